"""What looks like a secret: names of files, shapes inside texts, and values of environment variables."""

from __future__ import annotations

import fnmatch
import functools
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

# Names, as globs that ignore case.
SECRET_FOLDERS = ".ssh .gnupg"
_SECRET_NAMES = (
    ".env* *.env *.pem *.key *.p12 *.pfx *.jks *.keystore *.kdbx *.ppk id_rsa* id_dsa* id_ecdsa* id_ed25519* "
    ".netrc _netrc .npmrc .pypirc .pgpass .my.cnf .htpasswd .git-credentials .dockercfg .boto .s3cfg "
    ".vault-token *.tfstate *.tfstate.backup service-account*.json client_secret*.json"
)
# Data files only: credentials.py is source code, credentials.json is the thing itself.
_CREDENTIALS = (
    r"(?i)(.*[-_.])?(credentials?|secrets?)(\.(json|ya?ml|toml|ini|conf|xml|csv|txt|properties|db|enc|gpg))?"
)

# What it is, a literal in every match (a cheap first test), and its shape. The content is untrusted, so
# every repeat that may fail late is bounded.
_SECRETS = (
    ("a private key", "-BEGIN ", r"(?s)-BEGIN [A-Z ]{0,20}PRIVATE KEY[A-Z ]{0,6}-----.{0,200}?([\w+/]{32})"),
    ("a private key", "AGE-SECRET-KEY-", r"\b(AGE-SECRET-KEY-1[0-9A-Z]{58})"),
    ("an AWS access key", "AKIA", r"\b(AKIA[0-9A-Z]{16})\b"),
    ("an AWS access key", "ASIA", r"\b(ASIA[0-9A-Z]{16})\b"),
    *(("a GitHub token", f"gh{kind}_", rf"\b(gh{kind}_[A-Za-z0-9]{{36}})") for kind in "pousr"),
    ("a GitHub token", "github_pat_", r"\b(github_pat_\w{50})"),
    ("a GitLab token", "glpat-", r"\b(glpat-[\w-]{20})"),
    # sk-learn-like-names are words: ask for one long run with a digit, as real keys have.
    ("an API key", "sk-", r"\b(sk-(?:[\w-]{0,80}[-_])?(?=[A-Za-z]{0,40}[0-9])[A-Za-z0-9]{16,})"),
    ("a Groq key", "gsk_", r"\b(gsk_[A-Za-z0-9]{40})"),
    ("a Stripe key", "k_live_", r"\b([sr]k_live_[A-Za-z0-9]{16})"),
    ("a Slack token", "xox", r"\b(xox[abeoprs]-[A-Za-z0-9-]{20,})"),
    ("a Google API key", "AIza", r"\b(AIza[\w-]{35})"),
    ("an npm token", "npm_", r"\b(npm_[A-Za-z0-9]{36})"),
    ("a PyPI token", "pypi-AgE", r"\b(pypi-AgE[\w-]{50})"),
    ("a Hugging Face token", "hf_", r"\b(hf_[A-Za-z0-9]{30})"),
    ("a SendGrid key", "SG.", r"\b(SG\.[\w-]{22}\.[\w-]{43})"),
)


def called(name: str, globs: str) -> bool:
    return _compiled(globs).match(name) is not None


@functools.cache
def _compiled(globs: str) -> re.Pattern[str]:
    return re.compile("|".join(fnmatch.translate(glob) for glob in globs.split()), re.IGNORECASE)


def secret_name(name: str) -> bool:
    return called(name, _SECRET_NAMES) or re.fullmatch(_CREDENTIALS, name) is not None


def secret_in(text: str) -> str:
    """What kind of secret a text holds, "" for none. Placeholders (xxxx, EXAMPLE) are not secrets."""
    return next((what for what, _ in _found(text)), "")


def secret_of(name: str, data: bytes, redact: Callable[[str], str]) -> str:
    """What secret a file holds, also in its name, in words; "" for none. `redact` takes known values out of texts."""
    # Without its zeros UTF-16 reads as UTF-8 does.
    for part in dict.fromkeys((data, data.replace(b"\0", b""))):
        text = f"{name}\n{part.decode('utf-8', 'replace')}"
        if redact(text) != text:
            return "the value of a secret variable"
        if what := secret_in(text):
            return f"what looks like {what}"
    return ""


def masked(text: str) -> str:
    """A text without the secrets that `secret_in` finds, each taken out to its end."""
    kept, at = [], 0
    for what, match in sorted(_found(text), key=lambda found: found[1].start()):
        if match.start() >= at:
            kept += [text[at : match.start()], f"[redacted:{what}]"]
            rest = _KEY_REST if match[0].startswith("-BEGIN") else _REST
            at = rest.match(text, match.end()).end()  # type: ignore[union-attr]  # it matches nothing, too
    return "".join((*kept, text[at:]))


# What may follow the part of a secret that tells what it is.
_REST = re.compile(r"[\w+/=.-]*", re.ASCII)
_KEY_REST = re.compile(r"[\w+/=\s\\]*(-----END [A-Z ]{0,40}-----)?", re.ASCII)


def _found(text: str) -> Iterator[tuple[str, re.Match[str]]]:
    for what, literal, shape in _SECRETS:
        if literal in text:
            for match in re.finditer(shape, text, re.ASCII):
                if "EXAMPLE" not in match[1].upper() and _entropy(match[1]) >= 3:
                    yield what, match


def _entropy(text: str) -> float:
    """Bits per character by the frequencies in `text` itself; random keys of 20 characters reach 3.5."""
    return -sum(n / len(text) * math.log2(n / len(text)) for n in Counter(text).values())


# -- the environment --------------------------------------------------------------------------------

_SECRET_NAME = re.compile(
    r"(^|_|API|ACCESS|SECRET|PRIVATE|SSH)KEYS?(_|$)|TOKENS?(_|$)|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|"
    r"(^|_|SSH)PASS$|_PWD$|(^|_)(AUTH|AUTHORIZATION|COOKIE|JWT|PAT)$",
    re.IGNORECASE,
)
# What only tells about a secret (where it is, whose it is), and git's way to pass settings.
_ABOUT_NAME = re.compile(
    r"_(FILE|PATH|DIR|URL|URI|HOST|PORT|ENDPOINT|NAME|USER|USERNAME|EMAIL|TYPE|METHOD|MODE|FORMAT|SOCK|REGION|"
    r"VERSION)$|^GIT_CONFIG_KEY_\d+$",
    re.IGNORECASE,
)
# Paths, numbers, switches, addresses, and single short words: taking these out of every text would only garble it.
_PLAIN_VALUE = re.compile(
    r"(~[\w-]*|\.{0,2})/.*|[a-z]:[\\/].*|\S+\.(pem|key|crt|json|ya?ml|txt|env)|[\d.,:_ +-]*|[a-z]{0,11}|"
    r"[a-z][a-z0-9+.-]*://.*",
    re.IGNORECASE | re.DOTALL,
)
# A random key in base64 may begin like a path.
_BASE64 = re.compile(r"(?=.*\d)(?=.*[a-z])(?=.*[A-Z])[A-Za-z0-9+/]{32,}={0,2}")


def secret_variable(name: str) -> bool:
    """Whether a variable called so is taken to hold a secret."""
    return bool(_SECRET_NAME.search(name)) and not _ABOUT_NAME.search(name)


def secret_values(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Values of the environment that look like secrets, by variable name; they never reach a file.

    Also the password inside any address, as in `postgres://user:password@host/`. Values below eight characters
    are too like ordinary words to be told from them.
    """
    found = {}
    for name, value in (os.environ if env is None else env).items():
        value = value.strip().strip("\"'")
        if address := re.match(r"[a-z][a-z0-9+.-]*://[^\s/@:]*:([^\s@]{8,})@", value, re.IGNORECASE):
            found[name] = address[1]
        elif len(value) < 8 or not secret_variable(name):
            continue
        elif _BASE64.fullmatch(value) or not _PLAIN_VALUE.fullmatch(value):
            found[name] = value
    return found


@functools.lru_cache(256)
def spellings(value: str) -> frozenset[str]:
    """A secret as a text may hold it: as it is, and as JSON, YAML, HTML, an address or base64 would have it.

    Of base64 it is what stays the same wherever in a longer text the secret stands.
    """
    import base64
    import html
    from urllib.parse import quote, quote_plus

    found = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], value.replace("'", "''")}
    odd = "surrogateescape"  # what is no UTF-8 in a variable
    found |= {quote(value, errors=odd), quote(value, safe="", errors=odd), quote_plus(value, errors=odd)}
    escaped = html.escape(value, quote=False)
    for double in ('"', "&quot;", "&#34;"):
        found |= {escaped.replace('"', double).replace("'", one) for one in ("'", "&#x27;", "&#39;", "&apos;")}
    data = value.encode(errors=odd)
    for before, mixed in ((0, 0), (1, 2), (2, 3)):  # bytes of something else in front, digits that hold part of them
        whole = (before + len(data)) * 8 // 6
        digits = base64.b64encode(bytes(before) + data).decode()[mixed:whole]
        found |= {digits, digits.translate(str.maketrans("+/", "-_"))}
    return frozenset(found)


_CUT = 6  # characters of a secret by which it is known where a text was cut in its middle


def redactor(env: Mapping[str, str]) -> Callable[[str], str]:
    """A function that takes the values of secret-looking variables out of a text, also as `spellings` has them.

    A part of one at the end of the text, or at its beginning, goes too: others may have cut it.
    """
    forms: dict[str, str] = {}
    for name, value in secret_values(env).items():
        forms |= dict.fromkeys(spellings(value), name)
    found = sorted(forms.items(), key=lambda item: -len(item[0]))
    most = len(found[0][0]) if found else 0

    def redact(text: str) -> str:
        for form, name in found:
            if form in text:
                text = text.replace(form, f"[redacted:{name}]")
        head, tail = text[:most], text[-most:].rstrip("…")
        for form, name in found:
            if (at := tail.rfind(form[:_CUT])) >= 0 and form.startswith(tail[at:]):
                text = f"{text[: text.rindex(tail[at:])]}[redacted:{name}]"
                break
        for form, name in found:
            if (at := head.find(form[-_CUT:])) >= 0 and form.endswith(head[: at + _CUT]):
                text = f"[redacted:{name}]{text[at + _CUT :]}"
                break
        return text

    return redact
