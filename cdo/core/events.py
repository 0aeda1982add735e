"""What observers of a run are told: a type for each kind of event, shared by writers and readers. Pure.

`json` gives what journal.jsonl keeps of an event; `cdo.history.journal_events` makes the event of it again.
Texts in events come from models, providers and people, and are shown through `core.formatting` only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NotRequired, TypeAlias

from msgspec import Struct
from msgspec.structs import asdict
from typing_extensions import TypedDict

from cdo.core.result import Result


class TensionData(TypedDict):
    """A tension as a synthesis names it. `status` is open, resolved, accepted or outside."""

    id: str
    title: str
    status: str


class RoleData(TypedDict):
    """A role that a directive asks for."""

    name: str


class DirectiveData(TypedDict, total=False):
    """The directive of a synthesis, as far as observers read it; it has all keys of `formats.voice.Directive`."""

    tensions: list[TensionData]
    confidence: float
    agreement: float | None
    exit_ready: bool
    focus: str
    width: int
    roles: list[RoleData | str]


class TokenData(TypedDict):
    """The tokens of an exchange; `measured` is False where they are estimated."""

    input_tokens: int
    output_tokens: int
    cached_tokens: NotRequired[int]
    cache_write_tokens: NotRequired[int]
    measured: NotRequired[bool]


class VersionData(TypedDict):
    """A version that was written in a round: its product's name, its number, its author's id."""

    product: str
    number: int
    author: str
    summary: str


class VerdictData(TypedDict):
    """What an inspection of a round says of a product."""

    product: str
    verdict: str


class BlockedData(TypedDict):
    """A product that cannot be accepted, and the summaries of what blocks it."""

    product: str
    by: list[str]


class ProductData(TypedDict):
    """A product of a mission as live views and lists show it: a row of the tree, parents before children.

    `version` is the number of its newest version, 0 for none; `verdict` that of its newest inspection, "" if that
    one is of an earlier version; `blocked` the summaries of its blocking collabs.
    """

    id: str
    name: str
    kind: str
    depth: int
    status: str
    owner: str
    version: int
    version_id: str
    verdict: str
    blocked: list[str]


class Event(Struct, frozen=True, kw_only=True):
    """Something that happened in a run. `name` is the call, file or question that it is about, "" for none."""

    kind: ClassVar[str]

    name: str = ""

    def json(self) -> dict[str, Any]:
        """Return the event as JSON without kind and name. What is None is left out."""
        return {key: value for key, value in asdict(self).items() if key != "name" and value is not None}


Observe: TypeAlias = Callable[[Event], None]


class RunBegan(Event, frozen=True, kw_only=True):
    """A process begins or resumes the session `name` in the folder `path`. `why` says who chose the preset."""

    kind = "run"

    preset: str
    why: str = ""
    models: Sequence[str] = ()
    path: str = ""
    question: str = ""
    resumed: bool = False


class PlanShown(Event, frozen=True, kw_only=True):
    """The plan is shown before the first call, as lines of text."""

    kind = "dashboard"

    lines: Sequence[str]


class BatchBegan(Event, frozen=True, kw_only=True):
    """A program asks for calls, each a (name, kind) such as ("t1-critic", "agent")."""

    kind = "batch"

    calls: Sequence[tuple[str, str]]


class CallSent(Event, frozen=True, kw_only=True):
    """A request of the call `name` goes to a model; `attempt` counts from 1."""

    kind = "call"

    model: str
    attempt: int


class TextReceived(Event, frozen=True, kw_only=True):
    """So many characters of the answer have arrived, the last of them in `tail`.

    Several a second; the journal does not keep them.
    """

    kind = "progress"

    characters: int
    tail: str = ""


class ToolUsed(Event, frozen=True, kw_only=True):
    """A model looked at the repository with a tool. `arguments` is shortened."""

    kind = "tool"

    tool: str
    arguments: str


class ExchangeRecorded(Event, frozen=True, kw_only=True):
    """A request was answered or failed, and its record is on disk.

    `usage` is None where nothing was charged; `cost` is in dollars, None where the price is unknown; `fault` names
    the kind of fault.
    """

    kind = "exchange"

    model: str = ""
    attempt: int = 0
    seconds: float = 0.0
    usage: TokenData | None = None
    cost: float | None = None
    fault: str | None = None


class RetryPlanned(Event, frozen=True, kw_only=True):
    """The request failed and is sent again after `wait` seconds."""

    kind = "retry"

    fault: str
    message: str
    wait: float


class ReplyRefused(Event, frozen=True, kw_only=True):
    """A reply does not have the form that was asked for; the model is told and asked again."""

    kind = "invalid"

    problems: Sequence[str]


class ReplyAccepted(Event, frozen=True, kw_only=True):
    """A call has a valid reply. `how` is "recorded" or "edited" where no model was asked now, else None."""

    kind = "reply"

    position: str | None = None
    confidence: float | None = None
    focus: str | None = None
    exit_ready: bool | None = None
    agreement: float | None = None
    directive: DirectiveData | None = None
    how: str | None = None


class ReplyCorrected(Event, frozen=True, kw_only=True):
    """A valid reply deviated from its format; `notes` say in short phrases how it was read."""

    kind = "corrected"

    notes: Sequence[str]


class ReplyMissing(Event, frozen=True, kw_only=True):
    """A call ends without a valid reply. `how` is "recorded" where that was decided by an earlier process."""

    kind = "missing"

    reason: str
    how: str | None = None


class QuestionAsked(Event, frozen=True, kw_only=True):
    """The run waits for a person's answer."""

    kind = "pause"

    question: str
    options: Sequence[str]


class ReviewBegan(Event, frozen=True, kw_only=True):
    """The run waits until a person has looked at the file `path`."""

    kind = "review"

    path: str


class RoundEnded(Event, frozen=True, kw_only=True):
    """A round of a mission has ended. `taken` are the products that were accepted in it.

    `edited` are the files of recorded replies of this round that the person edited.

    `accepted` of `live` products are accepted; `halt` and `why` say why it is the last round; `how` is "recorded"
    where all its calls came from the record.
    """

    kind = "round"

    round: int
    accepted: int
    live: int
    blockers: int
    versions: Sequence[VersionData]
    verdicts: Sequence[VerdictData]
    blocked: Sequence[BlockedData]
    halt: str
    why: str
    taken: Sequence[str] = ()
    edited: Sequence[str] = ()
    products: Sequence[ProductData] = ()
    how: str | None = None


class MessageTold(Event, frozen=True, kw_only=True):
    """The team of a mission says something to the person; `by` is the speaker's name.

    Before what the team says at the end of a round, `by` is "" and code says what is accepted.

    `how` is "recorded" where that was said in an earlier process.
    """

    kind = "message"

    by: str
    text: str
    how: str | None = None


class TreeChanged(Event, frozen=True, kw_only=True):
    """The products of a mission as they are now. Only views are told; the journal has it with each round."""

    kind = "tree"

    products: Sequence[ProductData]


class FilesStale(Event, frozen=True, kw_only=True):
    """Files that an edit made stale were moved to the folder `place`; `kept` are stale ones that a person edited."""

    kind = "stale"

    superseded: Sequence[str]
    kept: Sequence[str]
    place: str


class NoteTold(Event, frozen=True, kw_only=True):
    """A sentence for the person at the run."""

    kind = "note"

    text: str


class AnswerAwaited(NoteTold, frozen=True, kw_only=True):
    """A turn waits for the answer of a `person` who has a seat in it.

    The form is the file `path`; the turn waits until the time `until`, as ISO 8601. `name` is the call.
    """

    kind = "awaited"

    person: str
    turn: int
    path: str
    until: str


class RunStopped(Event, frozen=True, kw_only=True):
    """The run ended without a result. `status` is the class name of the error, `why` its message."""

    kind = "stopped"

    why: str
    status: str = ""


class RunEnded(Event, frozen=True, kw_only=True):
    """The run ended with FINAL.md."""

    kind = "done"

    result: Result

    def json(self) -> dict[str, Any]:
        """Return the result, as `--json` prints it."""
        return self.result.json()


class ContentOpened(Event, frozen=True, kw_only=True):
    """The names of the content files that the run has read, in order."""

    kind = "content"

    opened: Sequence[str]
