"""Reads a session at its end, or after a turn, for a comparison with another one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from cdo.cabal.files import status as standing
from cdo.core.errors import UsageError
from cdo.core.mission_names import round_of
from cdo.core.usage import TotalUsage
from cdo.formats.final_answer import final_section
from cdo.formats.markdown import sections
from cdo.history.past_session import History, TurnRecord, VoiceReply
from cdo.programs.deliberation.convergence import Tension
from cdo.programs.deliberation.objections import Dissent
from cdo.session.reader import SessionReader
from cdo.session.session_file import Forked

_MARK = re.compile(r"^(?:[-*+]|\d{1,3}[.)])[ \t]+")
_NOTHING = re.compile(r"(?i)(none|nothing)( (was )?(recorded|written here))?\.?")


class FinalPosition(Struct, frozen=True):
    """The latest reply of a voice up to this point: given in `turn`, or the reason why it is `missing`."""

    name: str
    role: str
    turn: int
    position: str = ""
    confidence: float | None = None
    model: str = ""
    edited: bool = False
    missing: str = ""


class SessionSnapshot(Struct, frozen=True):
    """A session at its end (`turn` is None) or after a turn; `held` counts its turns.

    `decision` and `minority` come from FINAL.md and are set only at the end. `ground` and `focus` come from the last
    synthesis. `stated` is the confidence before recorded facts lowered it. The citations and `spent` are those of the
    turn, or at the end those of the session. `exists` counts citations of existing lines without a quote. `shared` is
    the usage that a fork took over; `forked` is its source. For a mission, rounds count as turns, and `products` are
    its products with their status.
    """

    session: str
    place: str
    created: str
    turn: int | None
    held: int
    problem: str
    preset: str
    models: tuple[str, ...]
    status: str
    why: str
    decision: str
    ground: str
    focus: str
    confidence: float | None
    stated: float | None
    agreement: float | None
    voices: tuple[FinalPosition, ...]
    tensions: tuple[Tension, ...]
    gaps: tuple[str, ...]
    objections: tuple[Dissent, ...]
    minority: tuple[str, ...] | None
    votes: tuple[str, ...]
    verified: int
    unverified: int
    spent: TotalUsage
    shared: TotalUsage
    forked: Forked | None
    products: tuple[tuple[str, str], ...] = ()
    exists: int = 0

    @property
    def label(self) -> str:
        """The name shown to people: `deep:2` after a turn, `deep` at the end."""
        return self.session if self.turn is None else f"{self.session}:{self.turn}"


def view(archive: SessionReader, history: History, turn: int | None = None) -> SessionSnapshot:
    """Read a session from `archive`, at its end or after `turn`; raise `UsageError` if that turn was not held."""
    held = [found for found in history.turns if turn is None or found.number <= turn]
    if turn is not None and (not held or held[-1].number != turn):
        last = history.turns[-1].number if history.turns else 0
        has = f"It has turns 1 to {last}." if last > 1 else "It has turn 1 only." if last else "It has none yet."
        raise UsageError(f"{history.session} has no turn {turn}.", f"{has} `{history.session}` alone is its end.")
    told = [found for found in held if found.directive and (turn is None or found.number == turn)][-1:]
    synthesis = archive.artifact(told[0].synthesis) if told else None
    final, directive = history.final if turn is None else None, told[0].directive if told else None
    checked = held if turn is None else held[-1:]
    findings = [finding for found in checked for said in found.voices for finding in said.findings]
    good, there = sum(finding.verified for finding in findings), sum(finding.exists for finding in findings)
    plan, reports = history.frozen.plan, archive.artifact("FINAL") if final else None
    minority = final_section(reports.body, "Minority Reports") if reports else None
    sure = final.confidence if final else directive.confidence if directive else None
    return SessionSnapshot(
        session=history.session,
        place=archive.place,
        created=history.frozen.created,
        turn=turn,
        held=len(history.turns),
        problem=history.problem,
        preset=" · ".join(filter(None, (plan.preset, plan.mode and f"mode {plan.mode}", plan.domain))),
        models=plan.models,
        status=history.status,
        why=history.final.why if history.final else "",
        decision=final.decision if final else "",
        ground=sections(synthesis.body).get("commonground", "") if synthesis else "",
        focus=directive.focus if directive else "",
        confidence=sure,
        stated=final.stated if final else sure,
        agreement=directive.agreement if directive else None,
        voices=_voices(held if turn is None else held[-1:]),
        tensions=held[-1].ledger if held else (),
        gaps=directive.gaps if directive else (),
        objections=_objections(held[-1]) if held else (),
        minority=None if minority is None else _items(minority),
        votes=final.votes if final else (),
        verified=final.verified if final else good,
        exists=final.exists if final else there,
        unverified=len(final.unverified) if final else len(findings) - good - there,
        spent=history.spent if turn is None else held[-1].spent,
        shared=history.shared if turn is None else TotalUsage(),
        forked=history.frozen.forked,
    )


def _voices(held: Sequence[TurnRecord]) -> tuple[FinalPosition, ...]:
    """Return the latest reply of each voice, in order of first appearance. A voice missing later keeps its reply."""
    found: dict[str, FinalPosition] = {}
    for turn in held:
        for name, reason in turn.missing:
            found.setdefault(name, FinalPosition(name, name, turn.number, missing=f"missing: {reason}"))
        found |= {said.voice: _voice(said) for said in turn.voices}
    return tuple(found.values())


def _voice(said: VoiceReply) -> FinalPosition:
    broken = f"cannot be read: {said.broken}" if said.broken else ""
    return FinalPosition(
        said.voice, said.role, said.turn, said.position, said.confidence, said.model, said.edited, missing=broken
    )


def _objections(held: TurnRecord) -> tuple[Dissent, ...]:
    return tuple(
        Dissent(item.id, said.voice, item.text, item.severity) for said in held.voices for item in said.objections
    )


def _items(text: str) -> tuple[str, ...]:
    """Split a text into its list items or paragraphs; return () if it says that there is nothing."""
    parts = re.split(r"\n\s*\n|\n(?=[ \t]{0,3}(?:[-*+]|\d{1,3}[.)])[ \t])", text.strip())
    items = (" ".join(_MARK.sub("", part.strip()).split()) for part in parts)
    return tuple(item for item in items if item and not _NOTHING.fullmatch(item))


def mission(archive: SessionReader, history: History) -> SessionSnapshot:
    """Read a mission at its end, or as it is now, with the status of its products; raise `SessionError`."""
    found, final = view(archive, history), archive.artifact("FINAL")
    parts = sections(final.body) if final else {}
    rounds = [number for file in archive.files() if (number := round_of(file)) is not None]
    products = [
        (item["name"], ", ".join(filter(None, (
            item["status"],
            f"version {item['version']}" if item["version"] else "",
            f"blocked by {'; '.join(item['blocked'])}" if item["blocked"] else item["verdict"],
        ))))
        for item in standing.products(archive)
    ]  # fmt: skip
    return replace(
        found,
        preset=history.frozen.plan.preset,
        held=max(rounds, default=0),
        decision=parts.get("decisions", ""),
        products=tuple(products),
    )
