"""Defines the types that programs, runner, store and backends share.

Programs are pure generators. They yield steps (such as a `Batch` of `Call`s; a `Pause`, `Review` or `Collect` for the
human; a `Publish` of files to read; a `RunCheck` of the person's command) and receive the answers, such as `Reply`s.
A `Reply` carries validated data and nothing else that a model wrote, so a program only sees what a reply format has
checked.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import msgspec
from msgspec import Struct

from cdo.core.events import MessageTold, RoundEnded, TreeChanged
from cdo.core.exchange import Effort

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
T = TypeVar("T")

# Files of a session that programs refer to: the question, its material, and the draft of FINAL.md.
INPUT, CONTEXT, DRAFT = "00-input", "00-context", "DRAFT"
FURTHER = "00-context-t"  # with a turn's number: further files of the repository, for the focus of that turn


# -- what a program asks for ----------------------------------------------------------------------


class ReplyFormat(Protocol):
    """The format of one kind of reply: how it is checked, and a grammar to which a small model is restricted."""

    @property
    def name(self) -> str:
        """Stable name of the format ("agent", "synthesis", "final")."""
        ...

    def parse(self, text: str) -> Any:
        """Return the validated data block of a reply; raise `InvalidReply` with what is wrong."""
        ...

    def repair(self, text: str) -> tuple[str, tuple[str, ...]] | None:
        """Return a text that passes and what cdo had to add, or None; the last resort after every attempt failed."""
        ...

    def grammar(self) -> str:
        """Return a GBNF grammar of valid replies, for models that can be restricted to one."""
        ...


@runtime_checkable
class DivisibleFormat(Protocol):
    """A reply format of which a part can count: what is complete of a reply that was cut off."""

    def complete_part(self, text: str) -> str | None:
        """Return a reply that was cut off as far as it is complete and valid, None if nothing is."""
        ...


@runtime_checkable
class DocumentedFormat(Protocol):
    """A reply format with documents beside an object, which can be corrected alone."""

    def object_alone(self, text: str) -> str | None:
        """Return an invalid reply without its documents if nothing is wrong with these, else None."""
        ...


class InvalidReply(Exception):
    """A reply does not follow its format. `problems` are sentences the model can act on.

    `needs_prompt` is true if the model cannot correct them from its reply and the form alone: it has to see again
    what it was shown.
    """

    def __init__(self, problems: Sequence[str], *, needs_prompt: bool = False) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)
        self.needs_prompt = needs_prompt


class Call(Struct, frozen=True):
    """One question to one model.

    `name` is unique in a run and the stem of the artifact ("t2-architect"). `kind` is what the call is for ("agent",
    "synthesis", "final"). `template` names the content document with its prompt; `data` are that document's variables
    (JSON only). `reads` names the artifacts that the model is shown, in this order. `models` are the seats' model
    names, tried in this order when one fails for good. `file` is the artifact's stem if it is not `name`; with
    `deferred`, the shell writes that file when the outcome is known. With `tools`, the model may look into the
    repository first. Calls of one `thread` are one conversation for backends that keep conversations. A call that
    `closes` may use the reserve of the caps that is kept for ending a run. `effort` is how long the model should
    think, if a person chose it for this call. `caps` are further variables that are no part of the call's key: limits
    that the person may raise later, after which a recorded answer still holds.
    """

    name: str
    kind: str
    template: str
    format: ReplyFormat
    models: tuple[str, ...]
    data: Mapping[str, Any] = msgspec.field(default_factory=dict)
    reads: tuple[str, ...] = ()
    file: str = ""
    deferred: bool = False
    tools: bool = False
    thread: str = ""
    closes: bool = False
    effort: Effort | None = None
    caps: Mapping[str, int] = msgspec.field(default_factory=dict)

    @property
    def artifact(self) -> str:
        """The stem of the file that holds the reply."""
        return self.file or self.name


class Batch(Struct, frozen=True):
    """Calls that are made at the same time and do not see each other.

    With fewer than `quorum` valid replies the run fails; otherwise a missing reply is a reply without data. A
    `lenient` batch also goes on without a reply if a model cannot give a valid one or a cap is reached. Such a reply
    counts towards the quorum and has a reason of the kind "invalid", "refused" or "budget".
    """

    calls: tuple[Call, ...]
    quorum: int = 1
    lenient: bool = False


class Pause(Struct, frozen=True):
    """A question to the human. Without a terminal, `default` is taken and recorded as the answer."""

    name: str
    question: str
    options: tuple[str, ...]
    default: str


class Ask(Struct, frozen=True):
    """A question that only the person can answer. Without a terminal, the run pauses until it is answered.

    `name` distinguishes it from other questions. The answer is one of `options`, or any other text.
    """

    name: str
    question: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class CitationCheck:
    """The result of checking one citation: the citation as written, its verdict, and the reason as a phrase.

    `verified`: the quoted words were found. `exists`: the lines exist, but no words were quoted that could be
    compared. Neither: the citation does not hold. `path` is the file that was meant, if the citation names it
    differently. `line` is where the words begin, and `lines` are the numbered lines around that place; both are empty
    if nothing was found.
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
        """True if nothing was found against the citation."""
        return self.verified or self.exists

    def data(self) -> dict[str, Any]:
        """Return the data for an artifact's front matter: without the lines, `exists` and `path` only if set."""
        found: dict[str, Any] = {"citation": self.citation, "verified": self.verified, "why": self.why}
        return found | ({"exists": True} if self.exists else {}) | ({"path": self.path} if self.path else {})

    def record(self) -> dict[str, Any]:
        """Return the data that a session records: with the lines around the place."""
        return self.data() | ({"line": self.line, "lines": self.lines} if self.lines else {})


class Quoting(Protocol):
    """Data of a reply that is based on words from elsewhere: `quotes` are the words that code has to look up."""

    @property
    def quotes(self) -> tuple[str, ...]: ...


class Citing(Protocol):
    """Data of a reply that is not plain text: `texts` are the texts in which it may cite the repository."""

    @property
    def texts(self) -> tuple[str, ...]: ...


CAPPED = "budget"  # the kind of a missing reply whose call a cap did not allow


class Missing(Struct, frozen=True):
    """The reason why a call has no reply: its `kind` (a value of `Fault`, or `CAPPED`), and the message in `text`."""

    kind: str
    text: str = ""

    @classmethod
    def read(cls, recorded: str) -> Missing:
        """Parse the one line that a session records, as `str` writes it."""
        kind, _, text = recorded.partition(": ")
        return cls(kind, text)

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" if self.text else self.kind


NO_REASON = Missing("")


class Reply(Struct, frozen=True):
    """The reply to one call: `data` is what the format validated, or None with the `reason`.

    `added` lists what cdo had to add to complete the reply (empty if nothing). `findings` are the checks of the
    repository places that the reply cites. `model` is the model that replied, if that is on record. `places` says
    where each of the data's `quotes` was found (in the words of `cdo.repository.quotes`), "" for nowhere.
    `notes` say in short phrases how the reply deviates from its format. `edited` is set if a person changed the
    recorded reply by hand.
    """

    call: str
    data: Any = None
    reason: Missing = NO_REASON
    added: tuple[str, ...] = ()
    findings: tuple[CitationCheck, ...] = ()
    model: str = ""
    places: Mapping[str, str] = msgspec.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    edited: bool = False

    @property
    def missing(self) -> bool:
        return self.data is None


class Document(Protocol):
    """The format of a document that a person may edit."""

    def parse(self, text: str) -> Any:
        """Return the validated data of a document; raise `InvalidReply` with what is wrong, by line and column."""
        ...


@runtime_checkable
class QuestionedDocument(Protocol):
    """The format of a document in which something valid can be a mistake, as only the person can tell."""

    def question(self, data: Any) -> str:
        """Return what to ask the person about valid data before it counts; "" if there is nothing."""
        ...


class Review(Struct, frozen=True):
    """A document that a person may change before the run goes on.

    `file` is its name in the session ("t2-plan.yaml"). `word` renders the proposal with the content document
    `template`. The answer is the validated data of the text as the person left it. Without a terminal, the run pauses
    until it is resumed.
    """

    file: str
    template: str
    word: Callable[[Callable[[Mapping[str, Any]], str]], str]
    format: Document


class Publish(Struct, frozen=True):
    """Files for people to read, by name in the session: projections of what is decided, never read back.

    Other files in `folder` are outdated: they and the files in `gone` move to superseded/ before the next model call.
    """

    files: Mapping[str, str]
    folder: str = ""
    gone: tuple[str, ...] = ()


class Project(Struct, frozen=True):
    """The state of a program as files for people. They are written when the run goes on live, so a replay writes few.

    `render` takes `state` and the state that was written last (None if none was). It returns two mappings of files:
    those that are written again, and those that are written only if they are missing. `ended` is the round that
    ends with this state, which observers are told of, as of the events `told`. `untouched` tells from a file's name
    and text whether cdo wrote it that way: a file that a person edited is moved away before it is written again.
    With None, no file is moved away. A file that is written only once is written again if it is cdo's own of
    another course.
    """

    state: Any
    render: Callable[[Any, Any], tuple[Mapping[str, str], Mapping[str, str]]]
    ended: RoundEnded | None = None
    untouched: Callable[[str, str], bool] | None = None
    told: tuple[MessageTold | TreeChanged, ...] = ()


class Collect(Struct, frozen=True):
    """Files that a person left in a folder of the session, taken once; `name` distinguishes later collections.

    Each file that `format` can read is returned as data, in order of file name. Other files are quarantined. So are
    files for which `refuse` gives a reason when they are found (not when they are read again from the record). With
    `again`, an empty collection is not final: the next process looks again, until the later collection `before` is on
    record.
    """

    name: str
    folder: str
    format: Document
    again: bool = False
    before: str = ""
    refuse: Callable[[Any], str] | None = None


class Gather(Struct, frozen=True):
    """Files that a person changed or added in the folders below `folder`, taken once under `name`.

    `known` are the files as they were published. Each other Markdown file that `format` can read is returned as
    (file, data) and moved away, so that the published one can be written again. Others are reported and left alone.
    `again` has the same meaning as in `Collect`. `untouched` has the same meaning as in `Project`: such a file is
    outdated, and no input of a person.
    """

    name: str
    folder: str
    known: Mapping[str, str]
    format: Document
    again: bool = False
    untouched: Callable[[str, str], bool] | None = None


class Nest(Struct, frozen=True):
    """A question to be deliberated in a session of its own, by a preset. `name` distinguishes it from others."""

    name: str
    question: str
    context: str
    preset: str


class Nested(Struct, frozen=True):
    """The result of a nested session: its name, its status, the decision in a line, and its sections as Markdown.

    `refuted` are the citations of FINAL.md that do not hold, each with the reason.
    """

    session: str
    status: str
    decision: str
    confidence: float | None
    text: str
    refuted: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, recorded: Mapping[str, Any]) -> Nested:
        """Return the result that a session has on record."""
        pairs = ((str(citation), str(why)) for citation, why in recorded.get("refuted", ()))
        return cls(**{**recorded, "refuted": tuple(pairs)})


class Survey(Struct, frozen=True):
    """Further files of the repository that `focus` is about, beside those that the session already shows.

    They are shown in the file with the stem `name`, of at most `tokens` estimated tokens. The choice is recorded, and
    not made again. The answer is `name`, or "" if there are no further files.
    """

    name: str
    focus: str
    tokens: int


class RunCheck(Struct, frozen=True):
    """A command, run in a copy of the work tree: the person's of `--check`, or one that a mission's team wrote.

    `patch` is a unified diff that is applied to the copy first, "" for the work tree as it is. A mission has `files`
    by path: they are all there is, or are laid over the copy. `name` distinguishes it from others. The result is
    recorded, and the command is not run again for it.
    """

    name: str
    command: str
    patch: str = ""
    files: Mapping[str, str] = msgspec.field(default_factory=dict)


class CheckRun(Struct, frozen=True):
    """The result of running a command once.

    `code` is the exit code (128 plus the signal's number if a signal ended it), None if the command did not end
    within `limit` seconds or was not run. `out` and `err` are the ends of its stdout and stderr. `sandbox` names its
    sandbox ("" for none); `held` says what the sandbox keeps it from. `refused` says why the patch could not be
    applied, or a mission's files could not be laid out.
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

    @classmethod
    def of(cls, recorded: Mapping[str, Any]) -> CheckRun:
        """Return the run that a session has on record."""
        return cls(**{**recorded, "held": tuple(recorded["held"])})

    @property
    def outcome(self) -> str:
        """The outcome as a phrase."""
        if self.refused:
            return f"not run: {self.refused}"
        if self.code is None:
            return f"did not end within {self.limit:g} s"
        return f"exit code {self.code} after {self.seconds:.1f} s"

    @property
    def text(self) -> str:
        """The outcome and the output as text."""
        parts = [f"stdout:\n{self.out}"] * bool(self.out.strip()) + [f"stderr:\n{self.err}"] * bool(self.err.strip())
        return "\n".join([self.outcome, *(part.rstrip() for part in parts)])


Step: TypeAlias = Batch | Pause | Ask | Review | Publish | Project | Collect | Gather | Nest | RunCheck | Survey
# By step, in this order: replies; an option; a text; the data of a document; None (Publish, Project); the data of
# several documents; (file, data) pairs; `Nested`, or None if a cap was reached; a `CheckRun`; the
# stem of a file, or "".
Answer: TypeAlias = Any
Program: TypeAlias = Generator[Step, Answer, T]
