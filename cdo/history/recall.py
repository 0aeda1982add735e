"""What earlier runs decided on similar questions, as text for the context of a new run.

It was written by models, and for another day: it is cut, fenced and labelled so that no voice can take it for an
instruction or for evidence about the present.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdo.content.library import Library, line
from cdo.core.errors import CdoError
from cdo.core.formatting import pluralise
from cdo.formats.final_answer import final_section
from cdo.history import search
from cdo.history.run_index import decided
from cdo.history.search_query import content_words, created, family, finished
from cdo.repository.context import code_span, estimate_tokens, fenced
from cdo.session.reader import SessionFolder

TEMPLATE = "templates/recall"
_LEAST = 40  # tokens; less of a decision says too little
_CUT = 8  # tokens of the line that says that something was cut
_MINORITY = 5  # minority reports that are named


@dataclass(frozen=True)
class Precedents:
    """What was recalled, as text, and the sessions it is of, best first; both empty where nothing was."""

    text: str = ""
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Precedent:
    """What a run asked and decided, and its minority reports in short."""

    problem: str
    decision: str
    dissent: str

    def within(self, tokens: int) -> str:
        """All of it in at most about `tokens`: the decision is cut first, and never below half of them."""
        before, after = f"Question: {self.problem}\n\nDecision: ", f"\n\n{self.dissent}" if self.dissent else ""
        room = max(tokens // 2, tokens - estimate_tokens(before + after) - _CUT)
        decision = _cut(self.decision, room)
        return _cut(f"{before}{decision}{after}", tokens)


def recalled(
    problem: str, out: Path, library: Library, most: int, budget_tokens: int, leave_out: Collection[str] = ()
) -> Precedents:
    """The decisions of at most `most` finished runs in `out` that match a problem best.

    A run and its forks are one precedent: the best of them counts. At most `budget_tokens` estimated tokens; sessions
    named in `leave_out` are not looked at. Raises `ContentError` where the template is wrong.
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
    """The finished runs among `rows`, of each family of forks the first, with what they tell."""
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
    """What the template says of a run; nothing of it can pass for more than it is."""
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
    """Question, decision and minority reports of a run; None where its FINAL.md cannot be read any more.

    Of a mission the decision is its result, with the outcomes that were accepted.
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
    """The first line of each minority report; [] where there is none."""
    lines = [text for text in section.split("\n") if text.startswith(("- ", "* ", "1", "2", "3", "4", "5"))]
    lines = lines or [text for text in section.strip().split("\n")[:1] if text and not text.startswith("None")]
    return [line(text, 200) for text in lines[:_MINORITY]]


def _cut(text: str, tokens: int) -> str:
    """The beginning of a text, at most `tokens` of it, at a word's end."""
    data = text.encode()
    if len(data) <= tokens * 4:
        return text
    kept = data[: tokens * 4].decode("utf-8", "ignore")
    return kept[: max(kept.rfind(" "), kept.rfind("\n"), len(kept) // 2)].rstrip() + "\n[… cut …]"
