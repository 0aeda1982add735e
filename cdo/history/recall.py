"""Renders the decisions of earlier runs on similar questions as context for a new run.

Models wrote this text, and for another day. It is shortened, fenced and labelled, so that no voice takes it for an
instruction or for evidence about the present.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from cdo.content.library import Library, line
from cdo.core.errors import CdoError
from cdo.core.formatting import pluralise
from cdo.core.usage import estimate_tokens
from cdo.formats.final_answer import final_section
from cdo.history import search
from cdo.history.index_entries import decided
from cdo.history.search_query import content_words, created, family, finished
from cdo.repository.context import code_span, fenced
from cdo.session.reader import SessionFolder

TEMPLATE = "templates/recall"
_LEAST = 40  # tokens; a shorter excerpt of a decision is not useful
_CUT = 8  # tokens of the line that marks a cut
_MINORITY = 5  # most minority reports that are quoted


class Precedents(Struct, frozen=True):
    """The recalled text and the names of its sessions, best match first. Both are empty if nothing was recalled."""

    text: str = ""
    names: tuple[str, ...] = ()


class _Precedent(Struct, frozen=True):
    """The question and the decision of one run, with its minority reports in short."""

    problem: str
    decision: str
    dissent: str

    def within(self, tokens: int) -> str:
        """Return the text in about `tokens` at most. The decision is cut first, but gets at least half of them."""
        before, after = f"Question: {self.problem}\n\nDecision: ", f"\n\n{self.dissent}" if self.dissent else ""
        room = max(tokens // 2, tokens - estimate_tokens(before + after) - _CUT)
        decision = _cut(self.decision, room)
        return _cut(f"{before}{decision}{after}", tokens)


def recalled(
    problem: str, out: Path, library: Library, most: int, budget_tokens: int, leave_out: Collection[str] = ()
) -> Precedents:
    """Return the decisions of at most `most` finished runs in `out` that best match a problem.

    A run and its forks count as one precedent: the best match among them. The text has at most `budget_tokens`
    estimated tokens. Sessions named in `leave_out` are skipped. Raises `ContentError` if the template is wrong.
    """
    words = content_words(problem)
    if len(words) < 2 or most < 1:
        return Precedents()
    common = max(2, min(4, len(words) // 3))
    told = _precedents(search.related(out, words, common), leave_out)[:most]
    while told:
        room = budget_tokens - estimate_tokens(_rendered([(row, "") for row, _ in told], library))
        share = room // len(told) - _CUT
        if share >= _LEAST:
            text = _rendered([(row, past.within(share)) for row, past in told], library)
            if estimate_tokens(text) <= budget_tokens:
                return Precedents(text, tuple(str(row["session"]) for row, _ in told))
        told.pop()
    return Precedents()


def _precedents(
    rows: Sequence[Mapping[str, Any]], leave_out: Collection[str]
) -> list[tuple[Mapping[str, Any], _Precedent]]:
    """Return the finished runs among `rows` with their precedents, only the first run of each family of forks."""
    found, families, seen = [], family(rows), set[str]()
    for row in rows:
        name = families[row["session"]]
        if row["session"] in leave_out or name in seen or not (finished(row) and row.get("decision")):
            continue
        if past := _told(row):
            seen.add(name)
            found.append((row, past))
    return found


def _rendered(told: list[tuple[Mapping[str, Any], str]], library: Library) -> str:
    return library.render(TEMPLATE, {"runs": [_labelled(row, text) for row, text in told]}) + "\n"


def _labelled(row: Mapping[str, Any], text: str) -> dict[str, str]:
    """Return the template's values for one run. Recorded text is put into code spans or fences."""
    begun, sure = created(row), row.get("confidence")
    number = isinstance(sure, (int, float)) and not isinstance(sure, bool)
    return {
        "session": code_span(row["session"]),
        "date": begun.date().isoformat() if begun else "on an unknown day",
        "status": code_span(line(row["status"], 40)),
        "confidence": f"{sure:.2f}" if number else "unknown",
        "tensions": pluralise(len(row.get("open_tensions") or ()), "tension"),
        "text": fenced(text),
    }


def _told(row: Mapping[str, Any]) -> _Precedent | None:
    """Return question, decision and minority reports of a run; None if its FINAL.md cannot be read.

    For a mission, the decision is its result and the outcomes that were accepted.
    """
    try:
        final = SessionFolder(Path(row["path"])).artifact("FINAL")
    except CdoError:
        return None
    if final is None:
        return None
    decision = decided(final.body)
    reports = _first_lines(final_section(final.body, "Minority Reports") or "")
    return _Precedent(
        line(row["problem"], 300), decision, "\n".join(["Minority reports:", *reports]) if reports else ""
    )


def _first_lines(section: str) -> list[str]:
    """Return the shortened first line of each minority report; [] if there is none."""
    lines = [text for text in section.split("\n") if text.startswith(("- ", "* ", "1", "2", "3", "4", "5"))]
    lines = lines or [text for text in section.strip().split("\n")[:1] if text and not text.startswith("None")]
    return [line(text, 200) for text in lines[:_MINORITY]]


def _cut(text: str, tokens: int) -> str:
    """Return the start of a text, at most about `tokens` long. Cut it at a blank if possible, and mark the cut."""
    data = text.encode()
    if len(data) <= tokens * 4:
        return text
    kept = data[: tokens * 4].decode("utf-8", "ignore")
    return kept[: max(kept.rfind(" "), kept.rfind("\n"), len(kept) // 2)].rstrip() + "\n[… cut …]"
