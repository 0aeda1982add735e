"""Builds the data at the top of a session's page: the result in FINAL.md, and what to know about it. Pure.

A section of FINAL.md has one place in the page; sections without a place are returned by `more`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from cdo.core.formatting import one_line
from cdo.formats.final_answer import final_section
from cdo.history.past_session import History

_VOTES, _RECORD = "votes", "record of votes"


def outcome(history: History, sections: Mapping[str, str], body: str) -> tuple[str, str]:
    """Return the result in FINAL.md as (heading, text): its decision, else its verdict, else its whole body."""
    if sections["Decision"] or not history.final:
        return "Decision", sections["Decision"]
    verdict = (text for title, text in history.final.sections.items() if title.casefold() == "verdict" and text)
    found = next(verdict, "")
    return ("Verdict", found) if found else ("Outcome", body)


def still_open(history: History) -> list[tuple[str, str]]:
    """Return the tensions that are open at the end, as (tension, id of its row in the page or "")."""
    lines = {f"{life.id}: {life.title}": f"tension-{at}" for at, life in enumerate(history.tensions, 1)}
    named = [f"{life.id}: {life.title}" for life in history.tensions if life.status == "open"]
    found = history.final.open_tensions if history.final else named
    return [(item, lines.get(item, "")) for item in found]


def lowered(history: History) -> list[tuple[str, str]]:
    """Return the facts that lowered the stated confidence, as (fact, id of the section about it or "")."""
    final = history.final
    if not final or final.stated is None or final.confidence is None or final.stated <= final.confidence:
        return []
    first = final.sections.get("Confidence", "").partition("\n")[0]
    said = re.search(r"lowered from [01]\.\d\d: (.{1,300})\*\*$", first)
    said = said or re.search(r"bounded by (.{1,300}), uncalibrated", first)  # as earlier versions wrote it
    places = {"tension": "tensions", "question": "tensions", "voice": "course", "citation": "citations"}
    there = {"tensions": history.tensions, "course": history.turns, "citations": _cited(history)}
    found = []
    for fact in said[1].split(", ") if said else ():
        place = next((place for word, place in places.items() if word in fact and there[place]), "")
        found.append((fact, place))
    return found


def flags(history: History) -> list[tuple[str, str]]:
    """Return the flags of FINAL.md, as (flag, why it matters or "")."""
    found = []
    for flag in history.final.flags if history.final else ():
        match = re.fullmatch(r"turn ([0-9]{1,6}): agreement of [0-9]{1,3}% is suspiciously high", flag)
        found.append((flag, _agreeing(history, int(match[1])) if match else ""))
    return found


def votes(history: History) -> str:
    """Return the recorded votes as Markdown: motions, results, and who voted how; "" if there were none."""
    ended = history.final.votes if history.final else ()
    sections = history.final.sections if history.final else {}
    record = next((text for title, text in sections.items() if title.casefold() == _RECORD), "")
    if not ended or not record:
        return "\n".join(f"- {one_line(vote)}" for vote in ended)
    head = re.compile(r"^- \*\*[^*\n]+\*\*", re.MULTILINE)
    if len(head.findall(record)) != len(ended):
        return record
    ends = (re.match(r"\S+ (carried|not carried):", vote) for vote in ended)
    return head.sub(lambda match: f"{match[0]} {end[1]}" if (end := next(ends)) else match[0], record)


def more(history: History, sections: Mapping[str, str], told: set[str]) -> list[tuple[str, str]]:
    """Return the sections of FINAL.md without a place in the page, as (title, text). `told` are titles already shown.

    The sections of a decision have their own places, and recorded votes are shown only once.
    """
    if not history.final or "Outcome" in told:
        return []
    places = ["Decision", "Confidence"] if "Decision" in told else []
    places += ["Minority Reports", "Action Items", *(["Key Tensions"] if history.tensions else [])]
    skipped = {*map(str.casefold, told), *((_VOTES, _RECORD) if history.final.votes else ())}

    def placed(title: str, text: str) -> bool:
        named = (name for name in places if final_section(f"## {title}\n\n.", name) is not None)
        return title.casefold() in skipped or any(sections[name].strip() == text for name in named)

    return [(title, text) for title, text in history.final.sections.items() if text and not placed(title, text)]


def _agreeing(history: History, turn: int) -> str:
    """Return why high agreement matters, and whether a voice tested the agreement of a turn in the next one."""
    later = [held for held in history.turns if held.number == turn + 1]
    tested = next((said.role for held in later for said in held.voices if said.role in ("steelman", "refuter")), "")
    limit = f"{history.frozen.plan.criteria.agreement_flag:.0%}"
    so = f"a {tested} argued against it in turn {turn + 1}" if tested else "nobody argued against it in the next turn"
    return f"above {limit} voices may follow one another rather than the evidence; {so}."


def _cited(history: History) -> bool:
    """True if any citation was checked."""
    return any(said.findings for held in history.turns for said in held.voices)
