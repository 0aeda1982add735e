"""Classifies the errors of HTTP providers by their status and their words. Pure."""

from __future__ import annotations

import re
from typing import Any

from cdo.core.exchange import Fault

# These patterns are texts that `re` compiles when the first error comes: no request waits for them.
# Words by which providers say that the prompt does not fit, whatever status they use.
_OVERFLOW = (
    r"(?is)context[ _-]?(length|window|size)|maximum (context|prompt|input)|too many (input )?tokens|"
    r"prompt (is|was|length is)? ?too (long|large)|exceed\w* (the )?(\w+ ){0,3}(context|token|input)|"
    r"reduce the length|input (is|length|tokens?)\b.{0,40}(too long|exceed|maximum|larger)|range of input length|"
    r"(too large|too long) for (the |this |requested )?model|token count.{0,40}exceed|maximum.{0,20}tokens? allowed|"
    r"max_new_tokens\W{0,3} must be|request[ _]too[ _]large"
)
_TOO_LARGE = r"(?i)request too large|tokens must be reduced"  # than any rate limit allows
# Words by which providers say that a quota of a day or a month, or the account's credit, is used up.
_USED_UP = (
    r"(?i)(insufficient|exceeded_current)[_ ](quota|balance|credits?|funds)|credit balance is too low|"
    r"(out of|not enough|no|any|all available|requires more) credits|credit limit|spend(ing)?[_ ]limit|"
    r"billing[_ ](hard[_ ]limit|error)|specified API usage limits|quotaId\W+\w*PerDay|models-per-day|"
    r"quota exceeded[^{}]{0,200}\blimit: 0\b"
)
_FILTERED = r"(?i)content[ _-]?(filter|policy|management)|\b(bio|cyber)_policy\b|\bmoderation\b|\bflagged\b"
# The status of an error inside a 200 that states none, by the words in it; without any of them it is a 500.
_STATUS_BY_WORD = (
    (402, _USED_UP),
    (429, r"(?i)rate.?limit|too.?many.?requests|exhausted"),
    (401, r"(?i)api.?key|authenti|unauthori|permission"),
    (400, r"(?i)invalid|bad.?request|not.?found|unsupported|context_length|_policy"),
)


def classify(status: int, text: str) -> Fault:
    """Return the fault for an HTTP status (or the code inside an error event) and its text."""
    if status == 402 or (status in (400, 403, 429) and re.search(_USED_UP, text)):
        return Fault.USED_UP
    if status == 429:  # too large for the limit of a whole minute: waiting never helps
        return Fault.OVERFLOW if re.search(_TOO_LARGE, text) else Fault.RATE_LIMITED
    if status == 413 or (status not in (401, 403) and re.search(_OVERFLOW, text)):
        return Fault.OVERFLOW
    if status in (408, 409, 425) or status >= 500:
        return Fault.OVERLOADED
    if status != 401 and re.search(_FILTERED, text):
        return Fault.REFUSED
    if status in (401, 403):
        return Fault.DENIED
    return Fault.REJECTED


def inside(error: Any) -> tuple[Fault, str]:
    """Return the fault and the message of an error inside a response of status 200: its own code counts."""
    message, detail = said(error) or "error", error if isinstance(error, dict) else {}
    stated = [str(detail.get(key) or "") for key in ("code", "status", "type")]
    code = next((int(text) for text in stated if re.fullmatch(r"[45]\d\d", text, re.ASCII)), 0)
    if not code:
        name = "".join(stated) or message
        code = next((code for code, words in _STATUS_BY_WORD if re.search(words, name)), 500)
    return classify(code, f"{' '.join(stated)} {message}"), message


def said(error: Any) -> str:
    """Return the message in an error's JSON, in whichever field the provider puts it; "" if there is none."""
    if isinstance(error, str):
        return error
    if isinstance(error, list):
        return said(error[0]) if error else ""
    if not isinstance(error, dict):
        return ""
    found = next(filter(None, (said(error.get(key)) for key in ("error", "message", "detail", "msg", "type"))), "")
    place = error.get("loc")
    field = error.get("param") or (place[-1] if isinstance(place, list) and len(place) > 1 else None)
    if found and isinstance(field, str) and field and field not in found:
        found = f"{found} (`{field}`)"  # the part of the request that is meant
    cause = error["metadata"].get("raw") if isinstance(error.get("metadata"), dict) else None
    return f"{found}: {cause}" if isinstance(cause, str) else found  # OpenRouter quotes the provider that it asked


def without_html(text: str) -> str:
    """Return the words of a text that is a page, as proxies and gateways send it; any other text as it is."""
    import html  # lazily: needed only to explain an error

    if not re.match(r"\s*<(!doctype|html|head|\?xml)", text, re.IGNORECASE):
        return text
    title = re.search(r"<title[^>]*>([^<]*)", text, re.IGNORECASE)
    return f"a page instead of an answer: {html.unescape(title[1] if title else re.sub(r'<[^>]*>', ' ', text))}"
