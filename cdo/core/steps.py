"""The nouns that programs, runner, store and backends share.

Programs are pure generators: they yield steps (a `Batch` of `Call`s; a `Pause`, `Review` or `Collect` for the
human; a `Publish` of files to read; a `RunCheck` of the person's command) and receive `Reply`s. A `Reply` carries
validated data and nothing else of what a model wrote, so that a program *cannot* think about it: it only sees what a
reply format has checked.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
T = TypeVar("T")

# Files of a session that programs refer to: the question, its material, and the draft of FINAL.md.
INPUT, CONTEXT, DRAFT = "00-input", "00-context", "DRAFT"


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
    heard, with a reason of the kind "invalid", "refused" or "budget".
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
class CitationCheck:
    """What checking one citation found: the citation as written, what it is worth, and why, as a phrase.

    `verified`: the quoted words stand there. `exists`: the lines are there, but no words were quoted that could be
    compared. Neither: the citation does not hold. `path` is the file that was meant where the citation names it
    otherwise. `line` is where the words begin and `lines` are the numbered lines around that
    place; both are empty where nothing was found.
    """

    citation: str
    verified: bool
    why: str
    exists: bool = False
    path: str = ""
    line: int = field(default=0, compare=False)
    lines: str = field(default="", compare=False)

    @property
    def holds(self) -> bool:
        """Whether nothing was found against the citation."""
        return self.verified or self.exists

    def data(self) -> dict[str, Any]:
        """As an artifact's head tells it: without what is not so, and without the lines."""
        found: dict[str, Any] = {"citation": self.citation, "verified": self.verified, "why": self.why}
        return found | ({"exists": True} if self.exists else {}) | ({"path": self.path} if self.path else {})

    def record(self) -> dict[str, Any]:
        """As it is recorded, with the lines around the place."""
        return self.data() | ({"line": self.line, "lines": self.lines} if self.lines else {})


@runtime_checkable
class Quoting(Protocol):
    """Data of a reply that rests on words from elsewhere: `quotes` are the words that code has to look up."""

    @property
    def quotes(self) -> tuple[str, ...]: ...


CAPPED = "budget"  # the kind of a missing reply that a cap did not allow


@dataclass(frozen=True)
class Missing:
    """Why a call has no reply: the `kind` (a value of `Fault`, or `CAPPED`), and what was said in `text`."""

    kind: str
    text: str = ""

    @classmethod
    def read(cls, recorded: str) -> Missing:
        """From the one line that a session records, as `str` makes it."""
        kind, _, text = recorded.partition(": ")
        return cls(kind, text)

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" if self.text else self.kind


NO_REASON = Missing("")


@dataclass(frozen=True)
class Reply:
    """What came back for one call: `data` is what the format validated, or None with the `reason`.

    `added` lists what cdo itself had to add to make the reply complete (empty when nothing); `findings` what
    became of each place of the repository that the reply cites; `model` who gave it, where that is on record;
    `places` where each of the data's `quotes` stands (the words of `cdo.repository.quotes`), "" for nowhere.
    """

    call: str
    data: Any = None
    reason: Missing = NO_REASON
    added: tuple[str, ...] = ()
    findings: tuple[CitationCheck, ...] = ()
    model: str = ""
    places: Mapping[str, str] = field(default_factory=dict)

    @property
    def missing(self) -> bool:
        return self.data is None


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

    Other files in `folder` are outdated: they and the files in `gone` move to superseded/
    before the next model call.
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

    Each file that `format` can read comes back as data, in order of its name; others are put into quarantine, and so
    are those for which `refuse` gives a reason when they are found (not when they are read again from the record).
    With `again` nothing is no answer: where nothing was left, the next process looks again, until the later
    collection `before` is on record.
    """

    name: str
    folder: str
    format: Document
    again: bool = False
    before: str = ""
    refuse: Callable[[Any], str] | None = None


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


@dataclass(frozen=True)
class RunCheck:
    """The command that the person gave with `--check`, run in a copy of their work tree.

    `patch` is a unified diff that is applied to the copy first, "" for the work tree as it is. `name` tells it from
    others. What came of it is recorded, and never run again.
    """

    name: str
    command: str
    patch: str = ""


@dataclass(frozen=True)
class CheckRun:
    """What came of running the person's command once.

    `code` is the exit code (128 plus the signal's number if a signal ended it), None if the command did not end
    within `limit` seconds or was not run. `out` and `err` are the ends of what it printed. `sandbox` names what held
    it ("" for nothing), `held` says what that keeps it from. `refused` says why the patch could not be applied.
    """

    command: str
    code: int | None = None
    seconds: float = 0.0
    limit: float = 0.0
    out: str = ""
    err: str = ""
    sandbox: str = ""
    held: tuple[str, ...] = ()
    refused: str = ""

    @property
    def outcome(self) -> str:
        """How it ended, as a phrase."""
        if self.refused:
            return f"not run: the patch does not apply ({self.refused})"
        if self.code is None:
            return f"did not end within {self.limit:g} s"
        return f"exit code {self.code} after {self.seconds:.1f} s"

    @property
    def text(self) -> str:
        """Its record as text."""
        parts = [f"stdout:\n{self.out}"] * bool(self.out.strip()) + [f"stderr:\n{self.err}"] * bool(self.err.strip())
        return "\n".join([self.outcome, *(part.rstrip() for part in parts)])


Step: TypeAlias = Batch | Pause | Ask | Review | Publish | Project | Collect | Gather | Nest | RunCheck
# By step: replies; an option; a text; the data of a document; None; the data of several; (file, data) pairs;
# `Nested`, or None where a cap was reached; a `CheckRun`.
Answer: TypeAlias = Any
Program: TypeAlias = Generator[Step, Answer, T]
