"""What can go wrong between a client and a provider, as data: which requests it meets, and what happens."""

from __future__ import annotations

import dataclasses
import email.utils
import hashlib
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from msgspec.structs import replace

from cdo.core.exchange import Usage
from tests.support.answers import Answer, RequestInfo

Shape = Literal[
    "",
    "empty",  # a complete answer without text
    "no-choices",  # a complete answer without choices (Messages: without content)
    "reasoning-only",  # only reasoning, no text
    "length",  # half of the text, and "length" as the reason
    "content-filter",  # a little text, and "content_filter" as the reason
    "refusal",  # the refusal field, no text
    "malformed",  # JSON that breaks off, at HTTP 200
    "html",  # a page, at HTTP 200
    "no-finish",  # all text, but no reason why it ended
    "no-done",  # the stream ends without its end mark
]


@dataclass(frozen=True, kw_only=True, eq=False)
class Match:
    """Which requests a rule is for: all filters that are set must hold.

    `call` and `path` are shell patterns. Without `path` only calls of a model are meant. `nth` counts the
    requests that pass the other filters, from 1. With `rate` below 1 a hash of seed, call, attempt and
    repetition decides, so that the same calls meet the same faults in whatever order they arrive.
    """

    kind: str = ""
    call: str = ""
    path: str = ""
    attempt: int | range | None = None
    nth: int | range | None = None
    rate: float = 1.0
    seed: int = 0

    def covers(self, info: RequestInfo) -> bool:
        """Whether `info` passes the filters on kind, call, path and attempt."""
        return (
            (fnmatchcase(info.path, self.path) if self.path else info.is_call)
            and (not self.kind or info.kind == self.kind)
            and (not self.call or fnmatchcase(info.call, self.call))
            and _is_in(info.attempt, self.attempt)
        )

    def strikes(self, info: RequestInfo, count: int) -> bool:
        """Whether the rule holds for `info`, the `count`th request it covers."""
        if not _is_in(count, self.nth):
            return False
        if self.rate >= 1:
            return True
        seed = f"{self.seed}/{info.call}/{info.attempt}/{info.nth}".encode()
        return int.from_bytes(hashlib.blake2b(seed, digest_size=4).digest()) < self.rate * 2**32


def _is_in(value: int, wanted: int | range | None) -> bool:
    return wanted is None or (value in wanted if isinstance(wanted, range) else value == wanted)


RULE = TypeVar("RULE", bound=Match)


class Rules(Generic[RULE]):
    """Rules in order of precedence, each with the count of requests it has covered so far."""

    def __init__(self, rules: Iterable[RULE]) -> None:
        self.rules = tuple(rules)
        self._counts = [0] * len(self.rules)

    def pick(self, info: RequestInfo) -> RULE | None:
        """Return the first rule that holds for this request, counting it for all that cover it."""
        found: RULE | None = None
        for place, rule in enumerate(self.rules):
            if rule.covers(info):
                self._counts[place] += 1
                if found is None and rule.strikes(info, self._counts[place]):
                    found = rule
        return found


@dataclass(frozen=True, eq=False)
class Row(Match):
    """A line of a script as a table: what the requests it is for are answered."""

    answer: Answer | str


@dataclass(frozen=True, kw_only=True, eq=False)
class Fault(Match):
    """What happens to a request instead of, or on the way of, its answer. Fields can be combined.

    - `status`: answer with this HTTP status, `body` (text as it is, data as JSON; None: what a provider
      says with this status) and `headers`. These also go out with answers of status 0, which means none.
    - `shape`, `usage`: the answer itself is wrong, or reports no, zero, cached or priced usage.
    - `stream_error`: after `after` events an error event of this type ends the stream, at HTTP 200.
    - `hang`: nothing more comes from there on, for `hang_for` seconds (None: until the client leaves).
    - `drip`: the body comes byte by byte, this many seconds apart.
    - `cut`: only this many bytes of the body are sent (negative: all but so many); then, by `how`, the
      connection is closed (fin), reset (rst), or the body ends as if that were all of it (end).
    - `drop`: the connection is closed or reset, by `how`, before any header.
    """

    status: int = 0
    body: str | bytes | Mapping[str, Any] | list[Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    shape: Shape = ""
    usage: Literal["", "none", "zero", "cached", "cost"] = ""
    stream_error: str = ""
    after: int = 3
    hang: Literal["", "headers", "first-byte", "middle"] = ""
    hang_for: float | None = None
    drip: float | None = None
    cut: int | None = None
    drop: bool = False
    how: Literal["fin", "rst", "end"] = "fin"

    @property
    def on_the_wire(self) -> bool:
        """Whether the bytes must be sent one by one to be disturbed."""
        return bool(self.hang or self.drop) or self.drip is not None or self.cut is not None

    def reshape(self, answer: Answer) -> Answer:
        """The answer as this fault spoils it; shapes of the protocol itself are left to the encoder."""
        match self.shape:
            case "empty":
                return dataclasses.replace(answer, text="", reasoning="", tool_calls=())
            case "reasoning-only":
                return dataclasses.replace(answer, text="", reasoning=answer.reasoning or answer.text)
            case "length":
                return dataclasses.replace(answer, text=answer.text[: len(answer.text) // 2], finish="length")
            case "content-filter":
                return dataclasses.replace(answer, text=answer.text[:40], finish="content_filter")
            case "refusal":
                return dataclasses.replace(answer, text="", refusal="I'm sorry, but I can't help with that request.")
        return answer

    def recount(self, usage: Usage) -> Usage | None:
        """The usage as this fault reports it; None where nothing is reported."""
        match self.usage:
            case "none":
                return None
            case "zero":
                return Usage()
            case "cached":
                return replace(usage, cached_tokens=usage.input_tokens * 3 // 4)
            case "cost":
                return replace(usage, cost=0.00125)
        return usage


HTML_PAGE = """<!DOCTYPE html>
<html><head><title>Please wait...</title></head>
<body><h1>Checking your browser</h1><p>This is what a captive portal or a proxy says.</p></body></html>
"""

# status: (Chat Completions' type, its code, Messages' type, what both say)
_ERRORS: dict[int, tuple[str, str | None, str, str]] = {
    400: ("invalid_request_error", None, "invalid_request_error", "The request is not valid."),
    401: ("invalid_request_error", "invalid_api_key", "authentication_error", "Incorrect API key provided."),
    402: ("insufficient_quota", "insufficient_quota", "billing_error", "This account has no credit left."),
    403: ("permission_error", None, "permission_error", "Your key may not use this model."),
    404: ("invalid_request_error", "model_not_found", "not_found_error", "The model `bench` does not exist."),
    408: ("timeout", None, "timeout_error", "The request took too long to arrive."),
    409: ("conflict", None, "api_error", "The resource is being changed by another request."),
    413: ("invalid_request_error", None, "request_too_large", "Request exceeds the maximum size."),
    422: ("invalid_request_error", None, "invalid_request_error", "Unprocessable request."),
    429: ("rate_limit_error", "rate_limit_exceeded", "rate_limit_error", "Rate limit reached for requests."),
    502: ("server_error", None, "api_error", "Bad gateway."),
    503: ("service_unavailable", None, "api_error", "The engine is overloaded, please try again later."),
    529: ("overloaded_error", None, "overloaded_error", "Overloaded"),
}


def error_body(status: int, anthropic: bool) -> dict[str, Any]:
    """What a provider says with `status`, in the shape of its protocol."""
    fallback = ("server_error", None, "api_error", "The server had an error while processing your request.")
    kind, code, anthropic_kind, message = _ERRORS.get(status, fallback)
    if anthropic:
        return error_data(anthropic_kind, message)
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def error_data(kind: str, message: str) -> dict[str, Any]:
    """An error in the shape of the Messages protocol."""
    return {
        "type": "error",
        "error": {"type": kind, "message": message},
        "request_id": "req_011CSHoEeqs5C35K2U",
    }


def tools_refused(info: RequestInfo) -> Fault | None:
    """What OpenAI says to function tools on Chat Completions, as long as its current models may reason."""
    body = info.body if info.path.endswith("/chat/completions") and isinstance(info.body, dict) else {}
    model, may_reason = str(body.get("model")), body.get("reasoning_effort") != "none"
    if not (re.match(r"gpt-(5\.[4-9]|[6-9])", model) and body.get("tools") and may_reason):
        return None
    message = (
        f"Function tools with reasoning_effort are not supported for {model} in /v1/chat/completions. "
        "To use function tools, use /v1/responses or set reasoning_effort to 'none'."
    )
    error = {"message": message, "type": "invalid_request_error", "param": "reasoning_effort", "code": None}
    return Fault(status=400, body={"error": error})


def http_date(seconds: float) -> str:
    """The HTTP date `seconds` from now, as Retry-After may state it (whole seconds, rounded down)."""
    return email.utils.formatdate(time.time() + seconds, usegmt=True)


class Overflow(NamedTuple):
    """How a provider says that a prompt is longer than the model's window."""

    provider: str
    status: int
    body: dict[str, Any]


def _chat(message: str, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}


OVERFLOW_BODIES: list[Overflow] = [
    Overflow(
        "openai",
        400,
        _chat(
            "This model's maximum context length is 128000 tokens. However, your messages resulted in 204308 "
            "tokens. Please reduce the length of the messages.",
            code="context_length_exceeded",
            param="messages",
        ),
    ),
    Overflow(
        "anthropic",
        400,
        error_data("invalid_request_error", "prompt is too long: 208310 tokens > 200000 maximum"),
    ),
    Overflow(
        "openrouter",
        400,
        {
            "error": {
                "message": "This endpoint's maximum context length is 131072 tokens. However, you requested "
                "about 138956 tokens (130764 of text input, 8192 in the output). Please reduce the length of "
                'either one, or use the "middle-out" transform to compress your prompt automatically.',
                "code": 400,
                "metadata": {"provider_name": None},
            },
            "user_id": "user_2abc",
        },
    ),
    Overflow(
        "vllm",
        400,
        {
            "object": "error",
            "message": "This model's maximum context length is 16384 tokens. However, you requested 19591 "
            "tokens (9591 in the messages, 10000 in the completion). Please reduce the length of the "
            "messages or completion.",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        },
    ),
    Overflow(
        "llama.cpp",
        400,
        {
            "error": {
                "code": 400,
                "message": "the request exceeds the available context size, try increasing it",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 14429,
                "n_ctx": 8192,
            }
        },
    ),
    Overflow(
        "groq",
        400,
        _chat(
            "Please reduce the length of the messages or completion.",
            code="context_length_exceeded",
            param="messages",
        ),
    ),
    Overflow(
        "deepseek",
        400,
        _chat(
            "This model's maximum context length is 131072 tokens. However, you requested 154963 tokens "
            "(150867 in the messages, 4096 in the completion). Please reduce the length of the messages or "
            "completion.",
            code="invalid_request_error",
        ),
    ),
    Overflow(
        "mistral",
        400,
        {
            "object": "error",
            "message": "Prompt contains 140000 tokens and 0 draft tokens, too large for model with 131072 "
            "maximum context length",
            "type": "invalid_request_prompt_too_long",
            "param": None,
            "code": "3051",
        },
    ),
    Overflow(
        "xai",
        400,
        {
            "code": "Client specified an invalid argument",
            "error": "This model's maximum prompt length is 131072 but the request contains 136973 tokens.",
        },
    ),
    Overflow(
        "together",
        422,
        {
            "id": "oBq7wKX-4YNCb4-98b3",
            **_chat(
                "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193. Given: 9216 "
                "`inputs` tokens and 1024 `max_new_tokens`"
            ),
        },
    ),
]


def rate_limited(limit: float, refill: float) -> Callable[[RequestInfo], Fault]:
    """Return a script with a bucket of `limit` requests, `refill` more in a second, which headers state."""
    left, last = limit, time.monotonic()

    def script(info: RequestInfo) -> Fault:
        nonlocal left, last
        left, last = min(limit, left + (info.arrived - last) * refill), info.arrived
        over = left < 1
        left -= not over
        told = {
            "x-ratelimit-limit-requests": f"{limit:g}",
            "x-ratelimit-remaining-requests": f"{max(0, int(left))}",
            "x-ratelimit-reset-requests": f"{(limit - left) / refill * 1000:.0f}ms",
        }
        return Fault(status=429, headers=told) if over else Fault(headers=told)

    return script
