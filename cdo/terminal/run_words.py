"""Says in words what happens in a run, and how it ended. What models, providers and files say is made visible."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from pathlib import PurePath
from typing import Protocol

from cdo.core.events import (
    BatchBegan,
    CallSent,
    Event,
    FilesStale,
    MessageTold,
    NoteTold,
    PlanShown,
    QuestionAsked,
    ReplyAccepted,
    ReplyCorrected,
    ReplyMissing,
    ReplyRefused,
    RetryPlanned,
    ReviewBegan,
    RoundEnded,
    RunBegan,
    ToolUsed,
)
from cdo.core.formatting import columns, one_line, pluralise, rounded_money, visible
from cdo.core.mission_names import came
from cdo.terminal.run_state import CallState, LiveRun, asking

_MISSION_CALL = len("r1-reflect-operative-1")  # most calls of a mission fit, so that its columns stay


def line(event: Event, board: LiveRun) -> str:
    """Return one event as one line; `board` is the `LiveRun` after it."""
    voice = board.voices.get(event.name)
    widest = max([_MISSION_CALL if board.mission else 0, *map(len, board.voices)])
    head = f"  {one_line(event.name):<{widest}}"
    match event:
        case RunBegan():
            what = f"{'resumed ' if board.resumed else ''}session {event.name}: {event.preset}"
            why = f" ({event.why})" if event.why else ""
            return one_line(" · ".join((what + why, *filter(None, (", ".join(event.models), event.path)))))
        case BatchBegan():
            labels = [board.voices[name].label for name, _ in event.calls]
            return one_line(board.title if labels == [board.title] else f"{board.title}: {', '.join(labels)}")
        case CallSent():
            again = f", attempt {event.attempt}" if event.attempt > 1 else ""
            return f"{head}  asking {one_line(event.model)}{again}"
        case ReplyAccepted() if voice:
            state, took, tokens, cost, confidence, text = voice.cells(0.0)
            how = "" if voice.state is CallState.DONE else state
            took, tokens = f"{took:>6}" if took else "", f"{tokens:>6} tok" if tokens else ""
            cost = f"{cost:>7}" if cost else ""
            news = board.news if voice.kind == "synthesis" else ""
            return columns(head, f"{confidence:4}", how, took, tokens, cost, news, one_line(text, 100))
        case RetryPlanned():
            return f"{head}  {one_line(event.fault)}: {one_line(event.message)}; again in {event.wait:.1f} s"
        case ReplyRefused():
            return f"{head}  invalid reply: {one_line(' '.join(event.problems))}"
        case ReplyCorrected():
            return f"{head}  read leniently: {one_line('; '.join(event.notes))}"
        case ReplyMissing():
            how = " (from record)" if event.how else ""
            return f"{head}  missing{how}: {one_line(event.reason)}"
        case FilesStale():
            kept = f"; kept as edited: {_files(event.kept)}" if event.kept else ""
            return f"stale: {_files(event.superseded)} moved to superseded/{one_line(event.place)}{kept}"
        case PlanShown():
            return "\n".join(visible(row) for row in event.lines)
        case ToolUsed():
            return f"{head}  looks: {one_line(event.tool)} {one_line(event.arguments, 100)}"
        case ReviewBegan():
            return one_line(f"a plan waits for its person: {event.path}")
        case RoundEnded():
            why = "; ".join(f"{one_line(item['product'], 60)}: {', '.join(item['by'])}" for item in event.blocked)
            ends = f"; {one_line(event.halt)}: {one_line(event.why)}" if event.halt else ""
            return one_line(f"round {event.round} ends: {came(event)}{f' ({why})' if why else ''}{ends}")
        case QuestionAsked():
            return f"question: {asking(event)}"
        case NoteTold():
            return one_line(event.text)
        case MessageTold():
            by = f"{event.by} to you" if event.by else "By the record"
            return one_line(f"{by}: {event.text}", 2000)
    return ""


def _files(names: Sequence[str]) -> str:
    return ", ".join(f"{one_line(name)}.md" for name in names)


class RunResult(Protocol):
    """The result of a run. `path` is the session's directory; `decision` is "" if there is no FINAL.md.

    `confidence_reason` is the confidence with what lowered it in words, "" if it is not known.
    """

    @property
    def session(self) -> str: ...
    @property
    def path(self) -> PurePath | str: ...
    @property
    def status(self) -> str: ...
    @property
    def why(self) -> str: ...
    @property
    def decision(self) -> str: ...
    @property
    def confidence(self) -> float | None: ...
    @property
    def confidence_reason(self) -> str: ...
    @property
    def turns(self) -> int: ...
    @property
    def unit(self) -> str: ...
    @property
    def unaccepted(self) -> Sequence[str]: ...
    @property
    def calls(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def cost(self) -> float | None: ...
    @property
    def missing_voices(self) -> Sequence[str]: ...
    @property
    def flags(self) -> Sequence[str]: ...


def summary(result: RunResult, width: int = 0, *, commands: bool = True) -> str:
    """Return the final text for stdout: decision, confidence, status, cost, what is missing, and the path.

    For a terminal of `width` columns, its words are wrapped and, with `commands`, the next commands are named. 0 is
    for a pipe.
    """
    # Imported here, because a view must not load the modules that parse replies.
    from cdo.formats.final_opening import status_in_words

    sure, decision, path = result.confidence, visible(result.decision).strip(), PurePath(result.path)
    amounts = [
        pluralise(result.turns, result.unit),
        pluralise(result.calls, "call"),
        pluralise(result.tokens, "token"),
    ]
    used = ", ".join(amounts)
    stated = f"{one_line(result.confidence_reason) or f'{sure:.2f}'} (uncalibrated)" if sure is not None else "none"
    rows = [
        *([("Confidence", stated)] if result.unit == "turn" else []),
        ("Status", one_line(status_in_words(result.status, result.why, result.turns, result.unit))),
        ("Cost", f"{used}, price unknown" if result.cost is None else f"{rounded_money(result.cost)} ({used})"),
        *(("Missing", one_line(name)) for name in (*result.missing_voices, *result.unaccepted)),
        *(("Note", one_line(flag)) for flag in _explained(result.flags)),
        ("FINAL.md", visible(str(path / "FINAL.md"))) if decision else ("Session", visible(str(path))),
    ]
    lines = [_wrapped(f"{name:<12}{text}", width, 12) for name, text in rows]
    if decision:
        title = "Decision" if result.unit == "turn" else "Result"
        lines = [title, "", *(_wrapped(line, width) for line in decision.split("\n")), "", *lines]
    if width and decision and commands:
        name = one_line(result.session)
        more = "fork" if result.unit == "turn" else "verify"  # a mission has no turns to fork from
        lines += ["", f"next: cdo report {name} · cdo final {name} · cdo {more} {name}"]
    return "\n".join(lines)


def _explained(flags: Sequence[str]) -> list[str]:
    """Return flags; the first one about high agreement says why it matters."""
    found = list(flags)
    for at, flag in enumerate(found):
        if re.fullmatch(r"turn \d+: agreement of \d+% is suspiciously high", flag):
            found[at] = f"{flag}: voices may follow one another rather than the evidence"
            break
    return found


def _wrapped(line: str, width: int, indent: int = 0) -> str:
    """Wrap a line at blanks; paths and long words stay whole. Without `width` it stays as it is."""
    if not width or len(line) <= width:
        return line
    return textwrap.fill(
        line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False,
        replace_whitespace=False,
    )  # fmt: skip
