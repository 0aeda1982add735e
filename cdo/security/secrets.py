"""Detects likely secrets: by file names, by patterns in texts, and by values of environment variables."""

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
SECRET_FOLDERS = ".ssh .gnupg .kube .aws .azure .gcloud .password-store"
_SECRET_NAMES = (
    ".env* *.env *.pem *.key *.p12 *.pfx *.jks *.keystore *.kdbx *.ppk id_rsa* id_dsa* id_ecdsa* id_ed25519* "
    ".netrc _netrc .npmrc .pypirc .pgpass .my.cnf .htpasswd .git-credentials .dockercfg .boto .s3cfg "
    ".vault-token *.tfstate *.tfstate.backup service-account*.json client_secret*.json"
)
# Files that often hold secrets, though not always: they are shown only if a person names them.
_LIKELY_NAMES = (
    "*.tfvars *.tfvars.json service_account*.json *.ovpn kubeconfig* .terraformrc *.tfrc.json wp-config.php "
    "passwords passwords.txt passwords.csv passwords.json passwords.y*ml passwords.ini passwords.xml passwords.xls* "
    ".bash_history .zsh_history .sh_history .psql_history .mysql_history .python_history .node_repl_history"
)
_LIKELY_IN_FOLDER = {".docker": "config.json"}
# Data files only: credentials.py is source code, credentials.json contains credentials.
_CREDENTIALS = (
    r"(?i)(.*[-_.])?(credentials?|secrets?)(\.(json|ya?ml|toml|ini|conf|xml|csv|txt|properties|db|enc|gpg))?"
)

# The kind of secret, a literal in every match (a cheap first test), and its pattern. The content is untrusted, so
# every repetition that could backtrack is bounded.
_SECRETS = (
    ("a private key", "-BEGIN ", r"(?s)-BEGIN [A-Z ]{0,20}PRIVATE KEY[A-Z ]{0,6}-----.{0,200}?([\w+/]{32})"),
    ("a private key", "AGE-SECRET-KEY-", r"\b(AGE-SECRET-KEY-1[0-9A-Z]{58})"),
    ("an AWS access key", "AKIA", r"\b(AKIA[0-9A-Z]{16})\b"),
    ("an AWS access key", "ASIA", r"\b(ASIA[0-9A-Z]{16})\b"),
    *(("a GitHub token", f"gh{kind}_", rf"\b(gh{kind}_[A-Za-z0-9]{{36}})") for kind in "pousr"),
    ("a GitHub token", "github_pat_", r"\b(github_pat_\w{50})"),
    ("a GitLab token", "glpat-", r"\b(glpat-[\w-]{20})"),
    # Names such as sk-learn-like-names are not keys: require one long run with a digit, as real keys have.
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


def likely_secret_name(name: str, folder: str = "") -> bool:
    """True if a file of this name, in a folder of that name, often holds secrets."""
    within = _LIKELY_IN_FOLDER.get(folder.lower(), "")
    return called(name, _LIKELY_NAMES) or bool(within and called(name, within))


def secret_in(text: str) -> str:
    """Return the kind of secret found in a text, "" for none. Placeholders (xxxx, EXAMPLE) are not secrets."""
    return next((what for what, _ in _found(text)), "")


def secret_of(name: str, data: bytes, redact: Callable[[str], str]) -> str:
    """Describe the secret in a file's name or content; "" for none. `redact` removes known values from texts."""
    # Without its zero bytes, UTF-16 text reads like UTF-8.
    for part in dict.fromkeys((data, data.replace(b"\0", b""))):
        text = f"{name}\n{part.decode('utf-8', 'replace')}"
        if redact(text) != text:
            return "the value of a secret variable"
        if what := secret_in(text):
            return f"what looks like {what}"
    return ""


def masked(text: str) -> str:
    """Return a text in which each secret that `secret_in` finds is replaced, up to its end."""
    kept, at = [], 0
    for what, match in sorted(_found(text), key=lambda found: found[1].start()):
        if match.start() >= at:
            kept += [text[at : match.start()], f"[redacted:{what}]"]
            rest = _KEY_REST if match[0].startswith("-BEGIN") else _REST
            at = rest.match(text, match.end()).end()  # type: ignore[union-attr]  # it matches nothing, too
    return "".join((*kept, text[at:]))


# Matches the rest of a secret after the part that identifies it.
_REST = re.compile(r"[\w+/=.-]*", re.ASCII)
_KEY_REST = re.compile(r"[\w+/=\s\\]*(-----END [A-Z ]{0,40}-----)?", re.ASCII)


def _found(text: str) -> Iterator[tuple[str, re.Match[str]]]:
    for what, literal, shape in _SECRETS:
        if literal in text:
            for match in re.finditer(shape, text, re.ASCII):
                if "EXAMPLE" not in match[1].upper() and _entropy(match[1]) >= 3:
                    yield what, match


def _entropy(text: str) -> float:
    """Return the entropy in bits per character, by frequencies in `text`; random keys of 20 characters reach 3.5."""
    return -sum(n / len(text) * math.log2(n / len(text)) for n in Counter(text).values())


# -- the environment --------------------------------------------------------------------------------

_SECRET_NAME = re.compile(
    r"(^|_|API|ACCESS|SECRET|PRIVATE|SSH)KEYS?(_|$)|TOKENS?(_|$)|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|"
    r"(^|_|SSH)PASS$|_PWD$|(^|_)(AUTH|AUTHORIZATION|COOKIE|JWT|PAT)$",
    re.IGNORECASE,
)
# Variables that only describe a secret (its path, its user), and git's variables for passing settings.
_ABOUT_NAME = re.compile(
    r"_(FILE|PATH|DIR|URL|URI|HOST|PORT|ENDPOINT|NAME|USER|USERNAME|EMAIL|TYPE|METHOD|MODE|FORMAT|SOCK|REGION|"
    r"VERSION)$|^GIT_CONFIG_KEY_\d+$",
    re.IGNORECASE,
)
# Paths, numbers, switches, URLs, and single short words: redacting these in every text would only garble it.
_PLAIN_VALUE = re.compile(
    r"(~[\w-]*|\.{0,2})/.*|[a-z]:[\\/].*|\S+\.(pem|key|crt|json|ya?ml|txt|env)|[\d.,:_ +-]*|[a-z]{0,11}|"
    r"[a-z][a-z0-9+.-]*://.*",
    re.IGNORECASE | re.DOTALL,
)
# A random key in base64 may begin like a path.
_BASE64 = re.compile(r"(?=.*\d)(?=.*[a-z])(?=.*[A-Z])[A-Za-z0-9+/]{32,}={0,2}")


def secret_variable(name: str) -> bool:
    """True if a variable with this name is assumed to contain a secret."""
    return bool(_SECRET_NAME.search(name)) and not _ABOUT_NAME.search(name)


def secret_values(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment's values that look like secrets, by variable name. They must never reach a file.

    This includes the password inside any URL, as in `postgres://user:password@host/`. Values below eight characters
    are left out, because they cannot be told from ordinary words.
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
    """Return the forms a secret can take in a text: as it is, and encoded for JSON, YAML, HTML, URLs or base64.

    A base64 form has only the digits that do not depend on the bytes around the secret.
    """
    import base64
    import html
    from urllib.parse import quote, quote_plus

    found = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], value.replace("'", "''")}
    odd = "surrogateescape"  # for bytes in a variable that are not UTF-8
    quoted = {quote(value, errors=odd), quote(value, safe="", errors=odd), quote_plus(value, errors=odd)}
    found |= quoted | {re.sub("%[0-9A-F]{2}", lambda code: code[0].lower(), form) for form in quoted}
    escaped = html.escape(value, quote=False)
    for double in ('"', "&quot;", "&#34;"):
        found |= {escaped.replace('"', double).replace("'", one) for one in ("'", "&#x27;", "&#39;", "&apos;")}
    data = value.encode(errors=odd)
    for before, mixed in ((0, 0), (1, 2), (2, 3)):  # other bytes before it, base64 digits that mix them in
        whole = (before + len(data)) * 8 // 6
        digits = base64.b64encode(bytes(before) + data).decode()[mixed:whole]
        found |= {digits, digits.translate(str.maketrans("+/", "-_"))}
    return frozenset(found)


_CUT = 6  # fewest characters of a secret by which a truncated secret is recognised
_BRIEF = 64  # characters; of texts as short, such as keys, models and times, a run has the same again and again


def redactor(env: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function that redacts the values of secret-looking variables in a text, in all their `spellings`.

    It also redacts part of a value at the start or end of the text, because the text may have been cut there.
    """
    return _redactor(tuple(secret_values(env).items()))


@functools.lru_cache(8)  # the sessions of a batch have the same secrets, and so the same brief texts
def _redactor(secrets: tuple[tuple[str, str], ...]) -> Callable[[str], str]:
    forms: dict[str, str] = {}
    for name, value in secrets:
        forms |= dict.fromkeys(spellings(value), name)
    found = sorted(forms.items(), key=lambda item: -len(item[0]))
    if not found:
        return str
    most = len(found[0][0])

    def redact(text: str) -> str:
        if len(text) < _CUT:  # as most keys of records are
            return text
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

    brief = functools.lru_cache(4096, typed=True)(redact)
    return lambda text: brief(text) if len(text) <= _BRIEF else redact(text)
