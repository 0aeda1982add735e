"""Renders a session as one self-contained page: no network, no script, no font, and untrusted content only as text.

Its input is the history and the files. Texts of voices, people and files enter the page through an environment that
escapes everything, or as Markdown through `cdo.report.safe_html`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from msgspec import Struct, to_builtins

from cdo import __version__
from cdo.core.errors import SessionError
from cdo.core.formatting import duration, one_line, pluralise
from cdo.core.steps import CitationCheck
from cdo.core.usage import TotalUsage
from cdo.formats.final_answer import FINAL_SECTIONS, final_section
from cdo.history import baseline
from cdo.history.history import SYNTHESIS
from cdo.history.past_session import History, PositionChange, TensionHistory, TurnRecord, VoiceReply
from cdo.programs import registry
from cdo.programs.debug.evidence import Checks
from cdo.report import charts, safe_html, summary
from cdo.report.rendering import PageTemplates, ServedPage
from cdo.repository.citation_syntax import find
from cdo.session.artifact import confidence_word
from cdo.session.reader import SessionReader, as_read, checked_in

if TYPE_CHECKING:
    from cdo.content.library import Library
    from cdo.session.artifact import Artifact

PAGE = "templates/report"
NAME = "report.html"
MANY = 40  # with more voices than this over all turns, each turn is folded
LIMIT = 300_000  # most characters of a file in the page
_INPUT = "00-context.md"  # may be large: the page only names it
_PLAN = re.compile(r"t([1-9][0-9]{0,5})-plan\.yaml")


class Paper(Struct, frozen=True):
    """A session file for people: its Markdown without front matter, and whether a person `edited` it.

    `raw`: the front matter cannot be read, so `body` is the whole file as it is.
    """

    body: str
    edited: bool = False
    raw: bool = False


class Papers(Struct, frozen=True):
    """The files of a session as a page shows them: Markdown files by name, and the names of all files.

    `base` is the address of the session's folder relative to the page ("" for the same folder), None if the files
    cannot be linked. `since` are the artifacts that a person edited after other artifacts had been made from them.
    """

    shown: Mapping[str, Paper]
    files: tuple[str, ...]
    base: str | None = None
    since: tuple[str, ...] = ()

    def body(self, file: str) -> str:
        """Return the Markdown of a file; "" if there is none."""
        return self.shown[file].body if file in self.shown else ""

    def address(self, file: str) -> str:
        """Return the relative address of a file; "" if it cannot be linked."""
        return "" if self.base is None else "/".join(filter(None, [self.base, quote(file, errors="replace")]))


class Standing(Struct, frozen=True):
    """The present status of a session: whether a process is `running` it, and which file `waits` for a person.

    `why` is the reason recorded when the last run stopped early, "" if it did not.
    """

    running: bool = False
    waits: str = ""
    why: str = ""


def papers(archive: SessionReader, base: str | None) -> Papers:
    """Read what a page shows of a session; `base` as in `Papers`. Raises `SessionError`."""
    files = tuple(name for name in archive.files() if name != NAME)
    shown = {name: _paper(archive, name) for name in files if name.endswith(".md") and name != _INPUT}
    return Papers(shown, files, base, _since(archive, shown))


def standing(archive: SessionReader, running: bool) -> Standing:
    """Return the status of a session; `running` comes from its lock. Raises `SessionError`."""
    if running:
        return Standing(running=True)
    reviewed = {str(record["file"]) for record in archive.records() if record["kind"] == "reviewed"}
    plans = [match for file in archive.files() if (match := _PLAN.fullmatch(file)) and file not in reviewed]
    return Standing(waits=max(plans, key=lambda match: int(match[1]))[0] if plans else "", why=_stopped(archive))


def page(
    history: History,
    files: Papers,
    library: Library,
    now: Standing | None = None,
    served: ServedPage | None = None,
) -> str:
    """Return the page of a session with the status `now`; raise `ContentError` if a template is broken."""
    body = files.body("FINAL.md")
    sections = {name: final_section(body, name) or "" for name in FINAL_SECTIONS}
    outcome = summary.outcome(history, sections, body)
    gained = None if registry.phased(history.frozen.plan, library) else baseline.measure(history)
    values = {
        "history": history,
        "papers": files,
        "now": now or Standing(),
        "outcome": outcome,
        "open": summary.still_open(history),
        "lowered": summary.lowered(history),
        "flags": summary.flags(history),
        "votes": summary.votes(history),
        "worth": gained,
        "version": __version__,
        "title": one_line(history.problem, 140) or history.session,
        "rows": [_row(history, held) for held in history.turns],
        "lives": [(life, _cells(history, life)) for life in history.tensions],
        "moves": _moves(history),
        "citations": _citations(history),
        "costs": _costs(history),
        "by_model": _by_model(history),
        "edited": _edited(history),
        "others": _others(history, files),
        "figures": _figures(history),
        "dissents": _dissents(history),
        "folded": sum(len(held.voices) for held in history.turns) > MANY,
        "sections": sections,
        "more": summary.more(history, sections, {outcome[0], baseline.TITLE if gained else ""}),
        "linked": _linked(history, files),
        "proof": _proving(history),
        **words(files),
    }
    return PageTemplates(library).page(PAGE, values, served)


def as_data(history: History) -> dict[str, Any]:
    """Return the history as JSON data, including derived tensions, moves and figures."""
    found: dict[str, Any] = _plain(history)
    found |= {
        "status": history.status,
        "tensions": [{**_plain(life), "status": life.status, "ended": life.ended} for life in history.tensions],
        "moves": [_moved(move) for move in history.moves],
        "confidences": [list(pair) for pair in history.confidences],
        "agreements": [list(pair) for pair in history.agreements],
    }
    return found


# -- what the template may call --------------------------------------------------------------------


def words(files: Papers) -> dict[str, Any]:
    """Return the functions that the template of a page with `files` may call."""
    from markupsafe import Markup

    def markdown(text: str, under: int) -> Markup:
        return Markup(safe_html.html(text[:LIMIT], under))

    def paper(file: str, under: int) -> Markup:
        found = files.shown.get(file)
        text = found.body if found else ""
        return Markup(safe_html.plain(text[:LIMIT])) if found and found.raw else markdown(text, under)

    def safe(svg: str) -> Markup:
        return Markup(svg)

    return {
        "markdown": markdown,
        "paper": paper,
        "cut": lambda file: len(files.body(file)) > LIMIT,
        "address": files.address,
        "svg": safe,
        "price": baseline.price,
        "taken": baseline.taken,
        "number": lambda value: "–" if value is None else f"{value:.2f}",
        "share": lambda value: "–" if value is None else f"{value:.0%}",
        "word": confidence_word,
        "counted": pluralise,
        "duration": duration,
        "flat": one_line,
    }


# -- parts of the page -----------------------------------------------------------------------------


def _paper(archive: SessionReader, file: str) -> Paper:
    try:
        artifact = archive.artifact(file.removesuffix(".md"))
    except SessionError:
        return Paper((archive.data(file) or b"").decode("utf-8", "replace"), edited=True, raw=True)
    if artifact is None:
        return Paper("")
    return Paper(artifact.body, edited="sha256" in artifact.own and artifact.edited)


def _since(archive: SessionReader, shown: Mapping[str, Paper]) -> tuple[str, ...]:
    """Return the edited artifacts whose earlier version is still an input of an artifact that cdo wrote."""
    edited = {file.removesuffix(".md"): paper.raw for file, paper in shown.items() if paper.edited}
    if not edited:
        return ()
    checked = checked_in(archive.records())

    def now(name: str) -> str:
        return as_read(cast("Artifact", archive.artifact(name)), checked)[1]

    known, found = {name: "" if raw else now(name) for name, raw in edited.items()}, set()
    for file, paper in shown.items():
        artifact = None if paper.edited or "/" in file else archive.artifact(file.removesuffix(".md"))
        inputs = artifact.own.get("inputs") if artifact else None
        read = inputs if isinstance(inputs, dict) else {}
        found |= {name for name, identity in known.items() if name in read and read[name] != identity}
    return tuple(sorted(found))


def _stopped(archive: SessionReader) -> str:
    """Return why the last run stopped early, from the journal; "" if it did not."""
    journal = (archive.data("journal.jsonl") or b"").decode("utf-8", "replace")
    for line in reversed(journal.splitlines()):
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        kind = event.get("event") if isinstance(event, dict) else None
        if kind in ("stopped", "done", "batch"):
            return str(event.get("why", "")) if kind == "stopped" else ""
    return ""


def _row(history: History, held: TurnRecord) -> dict[str, Any]:
    """Return the row of a turn in the overview."""
    directive = held.directive
    agreement = directive.agreement if directive else None
    return {
        "held": held,
        "confidence": directive.confidence if directive else None,
        "agreement": agreement,
        "flagged": agreement is not None and agreement > history.frozen.plan.criteria.agreement_flag,
        "open": [tension for tension in held.ledger if tension.status == "open"],
        "moved": sum(move.turn == held.number for move in history.moves),
    }


def _figures(history: History) -> dict[str, str]:
    """Return the plots by name; "" for a plot without data."""
    turns = [held.number for held in history.turns]
    voices = [
        (held.number, said.confidence)
        for held in history.turns
        for said in held.voices
        if said.confidence is not None
    ]
    final = history.final.confidence if history.final else None
    flag = history.frozen.plan.criteria.agreement_flag
    shown, agreed = bool(history.confidences or voices), bool(history.agreements)
    return {
        "confidence": charts.confidence(turns, history.confidences, voices, final) if shown else "",
        "agreement": charts.agreement(turns, history.agreements, flag, final is not None) if agreed else "",
    }


def _cells(history: History, life: TensionHistory) -> list[tuple[int, str, bool]]:
    """Return a tension's state in each turn, as (turn, status or "", whether the status is new in that turn)."""
    steps, found, before = dict(life.steps), [], ""
    for held in history.turns:
        status = steps.get(held.number, "")
        found.append((held.number, status, status != before))
        before = status
    return found


def _moves(history: History) -> list[tuple[int, int, list[PositionChange]]]:
    """Return the changes of position by turn, as (turn, number of voices, moves); moves with new evidence first."""
    found = []
    for held in history.turns:
        moves = [move for move in history.moves if move.turn == held.number]
        if moves:
            found.append((held.number, len(held.voices), sorted(moves, key=lambda move: not move.evidence)))
    return found


def _citations(history: History) -> list[tuple[CitationCheck, list[str]]]:
    """Return each citation check with the artifacts that have the citation; citations that do not hold come first."""
    found: dict[CitationCheck, list[str]] = {}
    for held in history.turns:
        for said in held.voices:
            for item in said.findings:
                found.setdefault(item, []).append(said.artifact)
    return sorted(found.items(), key=lambda pair: (pair[0].holds, pair[0].verified))


def _proving(history: History) -> Callable[[VoiceReply, str], tuple[str, str]]:
    """Return a function that rates a piece of evidence as (kind, why).

    `kind` is that of `Checks.kind`; `why` is the reason if code refuted it. Checks of a voice's own citations take
    precedence, then those of other voices. So an edited file, which is not checked again, gets marks too.
    """
    every = {item.citation: item for held in history.turns for said in held.voices for item in said.findings}
    known: dict[str, tuple[Checks, dict[str, str]]] = {}

    def proof(said: VoiceReply, text: str) -> tuple[str, str]:
        if said.artifact not in known:
            found = {**every, **{item.citation: item for item in said.findings}}
            refuted = {name: item.why for name, item in found.items() if not item.holds}
            there = frozenset(name for name, item in found.items() if item.exists)
            verified = frozenset(found) - frozenset(refuted) - there
            known[said.artifact] = Checks(verified, frozenset(refuted), there), refuted
        checks, refuted = known[said.artifact]
        kind = checks.kind(text)
        if kind != "refuted":
            return kind, ""
        places = tuple(f"{cited.path}:{cited.first}" for cited in find(text))
        return kind, next((why for name, why in refuted.items() if name.startswith(places)), "")

    return proof


def _dissents(history: History) -> list[tuple[VoiceReply, Any]]:
    """Return the objections of the last turn that has voices, the most severe first."""
    last = next((held.voices for held in reversed(history.turns) if held.voices), ())
    found = [(said, item) for said in last for item in said.objections]
    return sorted(found, key=lambda pair: -pair[1].severity)


def _costs(history: History) -> dict[str, Any]:
    """Return calls by caller and turn; calls that belong to no turn have a column of their own (0)."""
    rows: dict[str, dict[int, TotalUsage]] = {}
    for name, spent in history.calls.items():
        match = re.fullmatch(r"t([0-9]{1,4})-(.+)", name)
        turn, who = (int(match[1]), match[2]) if match else (0, name)
        row = rows.setdefault(who, {})
        row[turn] = row.get(turn, TotalUsage()) + spent
    order = sorted(rows, key=lambda who: (0 in rows[who], who == SYNTHESIS))
    columns = sorted({turn for row in rows.values() for turn in row}, key=lambda turn: (not turn, turn))
    return {
        "columns": columns,
        "rows": [(who, rows[who], _sum(rows[who].values())) for who in order],
        "below": {turn: _sum(row[turn] for row in rows.values() if turn in row) for turn in columns},
        "total": _sum(history.calls.values()),
    }


def _by_model(history: History) -> list[tuple[str, TotalUsage]]:
    """Return the usage by model, the most expensive first."""
    return sorted(history.by_model.items(), key=lambda item: (-item[1].cost, -item[1].tokens))


def _edited(history: History) -> list[str]:
    """Return the artifacts that a person edited."""
    found = [said.artifact for held in history.turns for said in held.voices if said.edited]
    found += [held.synthesis for held in history.turns if held.edited and held.synthesis]
    return [*found, *(["FINAL"] if history.final and history.final.edited else [])]


def _others(history: History, files: Papers) -> list[tuple[str, str]]:
    """Return the files that belong to neither a voice nor a synthesis, as (name, id)."""
    own = {f"{said.artifact}.md" for held in history.turns for said in held.voices}
    own |= {f"{held.synthesis}.md" for held in history.turns} | {"FINAL.md", "00-input.md"}
    names = [name for name, paper in files.shown.items() if name not in own and paper.body]
    return [(name, f"file-{at}") for at, name in enumerate(names, 1)]


def _linked(history: History, files: Papers) -> dict[str, str]:
    """Return the ids of the artifacts that have a place in the page, by stem."""
    found = {name.removesuffix(".md"): ident for name, ident in _others(history, files)}
    found |= {said.artifact: said.artifact for held in history.turns for said in held.voices}
    found |= {held.synthesis: held.synthesis for held in history.turns if held.synthesis}
    return found | ({"FINAL": "FINAL"} if history.final else {})


def _sum(spent: Iterable[TotalUsage]) -> TotalUsage:
    return sum(spent, TotalUsage())


# -- as data ---------------------------------------------------------------------------------------


def _moved(move: PositionChange) -> dict[str, Any]:
    def short(said: VoiceReply) -> dict[str, Any]:
        return {"turn": said.turn, "artifact": said.artifact, "position": said.position}

    kept = ("voice", "turn", "because", "evidence", "joined", "reworded")
    found = {name: _plain(getattr(move, name)) for name in kept}
    return {**found, "before": short(move.before), "after": short(move.after)}


def _plain(value: Any) -> Any:
    """Return records, models, tuples and mappings as JSON data."""
    return to_builtins(value, str_keys=True, enc_hook=lambda model: model.model_dump(mode="json"))
