"""One exchange with a provider: request, response, faults, and the interface of providers. Pure."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

from msgspec import Struct, field

OnText: TypeAlias = Callable[[str], None]


class ToolCall(Struct, frozen=True):
    """A model's request to use a tool; `arguments` is the JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str


class Message(Struct, frozen=True):
    """One message of a request. `shared` counts the leading characters a whole batch has in common.

    `carried` holds data of a model's own message that its provider wants back unchanged, such as reasoning: see
    `Response.carried`.
    """

    role: str
    text: str
    shared: int = 0
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    carried: tuple[Mapping[str, Any], ...] = ()


class Thread(Struct, frozen=True):
    """A conversation that a command-line agent keeps itself: its id there, and its total usage so far."""

    id: str
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0


class Effort(enum.StrEnum):
    """How long a model is asked to think before it answers. Each protocol maps it to its own words."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    MAX = "max"


class Request(Struct, frozen=True):
    """One request, ready to send. `max_tokens` limits the reply; `grammar` is GBNF or "".

    `thread` is a conversation to continue, if the backend can. `keep` asks the backend to keep this one for later.
    `closed_tools` are described to the model, so that the beginning of the prompt stays as it was, but may not be
    used any more; backends that cannot say so leave them out. `effort` is None if the model's own default is wanted.
    `cache_key` names the part that requests share, for providers that route requests of one key to one cache;
    it is "" where the protocol knows no key.
    `schema` is a strict JSON Schema to which the answer is held, where the provider can do that. `joins`: the answer
    corrects a part of the reply before, and the documents of that one are kept.
    """

    model: str
    messages: tuple[Message, ...]
    max_tokens: int
    headers: Mapping[str, str] = field(default_factory=dict)
    grammar: str = ""
    tools: tuple[Mapping[str, Any], ...] = ()
    closed_tools: tuple[Mapping[str, Any], ...] = ()
    thread: Thread | None = None
    keep: bool = False
    effort: Effort | None = None
    cache_key: str = ""
    schema: Mapping[str, Any] | None = None
    joins: bool = False


class Finish(enum.StrEnum):
    """Why a provider says a reply ended."""

    STOP = "stop"
    LENGTH = "length"
    REFUSAL = "refusal"
    TOOLS = "tool_calls"


class Usage(Struct, frozen=True):
    """Tokens of one exchange as counted by the provider, or estimated when `measured` is false.

    `input_tokens` is the whole prompt: `cached_tokens` of it were read from the provider's cache and
    `cache_write_tokens` of it were written to that cache, which some providers charge extra.
    `cost` is in US dollars; None means that the price is not known, which is never the same as zero. `unreported` is
    "input" or "output" as long as the provider left out that count and it was not estimated yet.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: float | None = None
    cache_write_tokens: int = 0
    measured: bool = True
    unreported: str = ""


class Quota(Struct, frozen=True):
    """What a provider lets a client send: `limit` at most at once, `left` now, and `refill` more in a second."""

    limit: float
    left: float
    refill: float


class RateLimits(Struct, frozen=True):
    """The quotas in the headers of a response, which arrived `at` (monotonic); None for what they leave out."""

    at: float
    requests: Quota | None = None
    tokens: Quota | None = None


class Response(Struct, frozen=True):
    """One complete answer, whose end the provider stated. `usage` is None if the provider reported none.

    `carried` holds what the provider wants back unchanged with this answer in a later request of the conversation
    (reasoning items, signed thinking), as JSON data that only its own protocol reads. `limits` are the provider's
    rate limits, if its headers state them.
    """

    text: str
    finish: Finish = Finish.STOP
    usage: Usage | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    thread: Thread | None = None
    carried: tuple[Mapping[str, Any], ...] = ()
    limits: RateLimits | None = None


class Fault(enum.StrEnum):
    """The closed list of ways an exchange can fail; the runner's policy is a table over it."""

    RATE_LIMITED = "rate-limited"
    OVERLOADED = "overloaded"  # 5xx, 529, 408, 409: a temporary problem of the provider
    NETWORK = "network"  # no connection, reset
    TIMEOUT = "timeout"  # one of our own deadlines
    TRUNCATED = "truncated"  # the stream ended before the provider said so
    MALFORMED = "malformed"  # bytes that are not the protocol
    OVERFLOW = "overflow"  # the prompt is longer than the model's window
    EMPTY = "empty"  # a complete answer with no text
    LENGTH = "length"  # cut by the token cap
    REFUSED = "refused"  # refusal or content filter
    REJECTED = "rejected"  # 400, 404, 422: this request will never work
    DENIED = "denied"  # 401, 403: this key will never work
    USED_UP = "quota-used-up"  # 402, or a quota or credit that is used up: waiting a minute does not help
    CRASHED = "crashed"  # a child process died
    INVALID = "invalid"  # the reply does not follow its format


LOST = "lost conversation"  # begins the message if a command-line agent does not have the thread of a request


class BackendError(Exception):
    """An exchange failed. `retry_after` is the delay in seconds that the provider asks for, if it stated one.

    `usage` is what the provider reported before failing: it is charged all the same. `limits` are its rate limits.
    """

    limits: RateLimits | None = None

    def __init__(
        self,
        fault: Fault,
        message: str,
        *,
        retry_after: float | None = None,
        usage: Usage | None = None,
        text: str = "",
    ) -> None:
        super().__init__(message)
        self.fault = fault
        self.message = message
        self.retry_after = retry_after
        self.usage = usage
        self.text = text


class Backend(Protocol):
    """Turns one request into one response. Holds no policy: no retry, no budget, no parsing of replies.

    `on_text` is called with each piece of the reply as it arrives (with "" for other signs of life), so
    that the runner can show progress and watch its deadlines. `streams` is false if the answer comes in
    one piece, so that only the total deadline applies. Raises `BackendError`.

    A backend that leaves out parameters once a model has refused them by name has a method `left_out(model)` too,
    which returns their names. One that shows all the time that its model is at work, from the prompt's first token
    on, has an attribute `tells_progress`.
    """

    streams: bool

    async def complete(self, request: Request, on_text: OnText) -> Response: ...

    async def close(self) -> None: ...
