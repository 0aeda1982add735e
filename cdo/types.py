"""The nouns that programs, runner, store and backends share.

Programs are pure generators: they yield steps (a `Batch` of `Call`s; a `Pause`, `Review` or `Collect` for the
human; a `Publish` of files to read) and receive `Reply`s. A `Reply` carries validated data and nothing else of what a
model wrote, so that a program *cannot* think about it: it only sees what a reply format has checked.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
T = TypeVar("T")


# -- what a program asks for ----------------------------------------------------------------------


class ReplyFormat(Protocol):
    """How a reply of one kind is written: how it is checked, and what shape a small model is held to."""

    @property
    def name(self) -> str:
        """Stable name of the format ("agent", "synthesis", "final")."""
        ...

    def parse(self, text: str) -> Any:
        """Return the validated data block of a reply; raise `InvalidReply` with what is wrong."""
        ...

    def repair(self, text: str) -> tuple[str, tuple[str, ...]] | None:
        """Last resort after every attempt: a text that passes, and what cdo had to add; or None."""
        ...

    def grammar(self) -> str:
        """A GBNF grammar that every valid reply's shape obeys (for models that can be held to one)."""
        ...


class InvalidReply(Exception):
    """A reply does not follow its format. `problems` are sentences the model can act on."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True)
class Call:
    """One question to one model.

    `name` is unique in a run and the stem of the artifact ("t2-architect"); `kind` is what the call is
    for ("agent", "synthesis", "final"); `template` names the content document that words it; `data` are
    that document's variables (JSON only); `reads` names the artifacts it is shown, in this order;
    `models` are the seats' model names, tried in this order when one fails for good. `file` is the artifact's
    stem where it is not `name`; with `deferred` the shell writes that file when the outcome is known. With
    `tools` the model may look into the repository first. Calls of one `thread` are one conversation for backends
    that keep conversations. A call that `closes` may use what is held back of the caps so that a run can be ended.
    """

    name: str
    kind: str
    template: str
    format: ReplyFormat
    models: tuple[str, ...]
    data: Mapping[str, Any] = field(default_factory=dict)
    reads: tuple[str, ...] = ()
    file: str = ""
    deferred: bool = False
    tools: bool = False
    thread: str = ""
    closes: bool = False

    @property
    def artifact(self) -> str:
        """The stem of the file that holds the reply."""
        return self.file or self.name


@dataclass(frozen=True)
class Batch:
    """Calls that are made at the same time and do not see each other.

    With fewer than `quorum` valid replies the run fails; above it, missing ones are replies without data. A `lenient`
    batch goes on without a reply also where a model cannot give a valid one or a cap is reached: these count as
    heard, with the reason "invalid: …", "refused: …" or "budget: …".
    """

    calls: tuple[Call, ...]
    quorum: int = 1
    lenient: bool = False


@dataclass(frozen=True)
class Pause:
    """A question to the human. Off a terminal `default` is taken and recorded as the answer."""

    name: str
    question: str
    options: tuple[str, ...]
    default: str


@dataclass(frozen=True)
class Ask:
    """A question that only the person can answer: off a terminal the run pauses until somebody has.

    `name` tells it from others; the answer is one of `options`, or any other text.
    """

    name: str
    question: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """What checking one citation found: the citation as written, whether it holds, and why (not), as a phrase."""

    citation: str
    verified: bool
    why: str


@dataclass(frozen=True)
class Reply:
    """What came back for one call: `data` is what the format validated, or None with the `reason`.

    `added` lists what cdo itself had to add to make the reply complete (empty when nothing); `findings` what
    became of each place of the repository that the reply cites.
    """

    call: str
    data: Any = None
    reason: str = ""
    added: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def missing(self) -> bool:
        return self.data is None


CAPPED = "budget"  # how the reason of a missing reply begins that a cap did not allow


class Document(Protocol):
    """How a document that a person may edit is read."""

    def parse(self, text: str) -> Any:
        """Return the validated data of a document; raise `InvalidReply` with what is wrong, by line and column."""
        ...


@dataclass(frozen=True)
class Review:
    """A document put before the person, who may change it before the run goes on.

    `file` is its name in the session ("t2-plan.yaml"); `word` puts the proposal into words with the content
    document `template`. What comes back is the validated data of the text as the person left it. Off a terminal
    the run pauses until it is resumed.
    """

    file: str
    template: str
    word: Callable[[Callable[[Mapping[str, Any]], str]], str]
    format: Document


@dataclass(frozen=True)
class Publish:
    """Files for people to read, by name in the session: projections of what is decided, never read back.

    What else lies in `folder` was published before and does not hold any more: it makes room, as do the files `gone`
    when the run really goes on.
    """

    files: Mapping[str, str]
    folder: str = ""
    gone: tuple[str, ...] = ()


@dataclass(frozen=True)
class Project:
    """The state of a program as files for people: made when the run really goes on, so that a replay makes few.

    `render` takes `state` and the one that was shown last, None for none, and returns the files that may differ by
    then: those that are written again, and those that are written where they are missing and never again. `told` is
    what observers hear of the stage `name` that is over with this ("r2"): JSON. `untouched` tells by its text whether
    a file that is written again is as it was written: one that a person edited makes room first, None for never.
    """

    state: Any
    render: Callable[[Any, Any], tuple[Mapping[str, str], Mapping[str, str]]]
    name: str = ""
    told: Mapping[str, Any] = field(default_factory=dict)
    untouched: Callable[[str], bool] | None = None


@dataclass(frozen=True)
class Collect:
    """What a person left in a folder of the session, taken once: `name` tells this collection from later ones.

    Each file that `format` can read comes back as data, in order of its name; others are put into quarantine. With
    `again` nothing is no answer: where nothing was left, the next process looks again, until the later collection
    `before` is on record.
    """

    name: str
    folder: str
    format: Document
    again: bool = False
    before: str = ""


@dataclass(frozen=True)
class Gather:
    """What a person changed or added in the folders below `folder`, taken once under `name`.

    `known` are the files as they were published. Each other Markdown file that `format` can read comes back as (file,
    data) and makes room for what was published; others are told of and left alone. `again` is that of `Collect`.
    """

    name: str
    folder: str
    known: Mapping[str, str]
    format: Document
    again: bool = False


@dataclass(frozen=True)
class Nest:
    """A question to be deliberated in a session of its own, by a preset. `name` tells it from others."""

    name: str
    question: str
    context: str
    preset: str


@dataclass(frozen=True)
class Nested:
    """What a nested session came to: its name, how it ended, the decision in a line, and its sections as Markdown."""

    session: str
    status: str
    decision: str
    confidence: float | None
    text: str


Step: TypeAlias = Batch | Pause | Ask | Review | Publish | Project | Collect | Gather | Nest
# By step: replies; an option; a text; the data of a document; None; the data of several; (file, data) pairs;
# `Nested`, or None where a cap was reached.
Answer: TypeAlias = Any
Program: TypeAlias = Generator[Step, Answer, T]


# -- what a backend is asked, and answers ---------------------------------------------------------


@dataclass(frozen=True)
class ToolCall:
    """A model's wish to use a tool; `arguments` is the JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Message:
    """One message of a request. `shared` counts the leading characters a whole batch has in common."""

    role: str
    text: str
    shared: int = 0
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


@dataclass(frozen=True)
class Thread:
    """A conversation that a command-line agent keeps itself: its id there, and what it has used in all so far."""

    id: str
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True)
class Request:
    """One request, ready to send. `max_tokens` bounds the reply; `grammar` is GBNF or "".

    `thread` is a conversation to go on with, where the backend can; `keep` asks it to keep this one for later.
    """

    model: str
    messages: tuple[Message, ...]
    max_tokens: int
    headers: Mapping[str, str] = field(default_factory=dict)
    grammar: str = ""
    tools: tuple[Mapping[str, Any], ...] = ()
    thread: Thread | None = None
    keep: bool = False


class Finish(enum.StrEnum):
    """Why a provider says a reply ended."""

    STOP = "stop"
    LENGTH = "length"
    REFUSAL = "refusal"
    TOOLS = "tool_calls"


@dataclass(frozen=True)
class Usage:
    """Tokens of one exchange as counted by the provider, or estimated when `measured` is false.

    `cost` is in US dollars; None means that the price is not known, which is never the same as zero.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: float | None = None
    measured: bool = True


@dataclass(frozen=True)
class Response:
    """One complete answer: the provider's own end was seen. `usage` is None where it reported none."""

    text: str
    finish: Finish = Finish.STOP
    usage: Usage | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    thread: Thread | None = None


class Fault(enum.StrEnum):
    """The closed list of ways an exchange can fail; the runner's policy is a table over it."""

    RATE_LIMITED = "rate-limited"
    OVERLOADED = "overloaded"  # 5xx, 529, 408, 409: the provider's trouble, passing
    NETWORK = "network"  # no connection, reset
    TIMEOUT = "timeout"  # one of our own deadlines
    TRUNCATED = "truncated"  # the stream ended before the provider said so
    MALFORMED = "malformed"  # bytes that are not the protocol
    OVERFLOW = "overflow"  # the prompt is longer than the model's window
    EMPTY = "empty"  # a complete answer with no text
    LENGTH = "length"  # cut by the token cap
    REFUSED = "refused"  # refusal or content filter
    REJECTED = "rejected"  # 400, 404, 422: this request will never work
    DENIED = "denied"  # 401, 402, 403: this key will never work
    CRASHED = "crashed"  # a child process died
    INVALID = "invalid"  # the reply does not follow its format


class BackendError(Exception):
    """An exchange failed. `retry_after` is the provider's wish in seconds, if it stated one.

    `usage` is what the provider reported before failing: it is charged all the same.
    """

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


OnText: TypeAlias = Callable[[str], None]


class Backend(Protocol):
    """Turns one request into one response. Holds no policy: no retry, no budget, no parsing of replies.

    `on_text` is called with each piece of the reply as it arrives (with "" for other signs of life), so
    that the runner can show progress and watch its deadlines. `streams` is false where the answer comes in
    one piece, so that only the total deadline applies. Raises `BackendError`.
    """

    streams: bool

    async def complete(self, request: Request, on_text: OnText) -> Response: ...

    async def close(self) -> None: ...


# -- what is told while it happens ----------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """Something that happened: a line of the journal, and what live views show.

    `kind` is one of run, dashboard, batch, call, progress, tool, exchange, retry, invalid, reply, missing, pause,
    review, round, stale, note, stopped, done, content; `name` is the call, file or question it is about; `data` is
    JSON.
    """

    kind: str
    name: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


Observe: TypeAlias = Callable[[Event], None]
