"""FINAL.md as a model writes it: five sections from which no tension and no dissent may be missing. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from cdo import gbnf
from cdo.blocks import Block, too_long
from cdo.markup import closed, front_matter, headings, sections, unwrap
from cdo.types import InvalidReply

FINAL_SECTIONS = ("Decision", "Confidence", "Key Tensions", "Minority Reports", "Action Items")
_FINAL_NAMES = {
    "Decision": ("decision", "decisionanswer", "answer", "thedecision"),
    "Confidence": ("confidence",),
    "Key Tensions": ("keytensions", "tensions", "keytension"),
    "Minority Reports": ("minorityreports", "minorityreport", "dissent", "dissents"),
    "Action Items": ("actionitems", "actions", "nextsteps", "actionitem"),
}


_NOTHING = re.compile(r"(?i)(none|nothing)( (was )?(recorded|written here))?\.?")


def final_section(text: str, name: str) -> str | None:
    """The text under one of FINAL.md's headings (also under its other usual names), or None."""
    found = sections(text)
    return next((found[key] for key in _FINAL_NAMES[name] if key in found), None)


def add_to_section(text: str, name: str, added: str, *, first: bool = False) -> str:
    """`text` with `added` as the last (or first) lines under one of FINAL.md's headings, which must be there.

    A section that says that there is nothing says so no longer.
    """
    lines = text.split("\n")
    found = {key: (start, end) for start, end, key in reversed(headings(lines))}
    start, end = next(found[key] for key in _FINAL_NAMES[name] if key in found)
    if _NOTHING.fullmatch("\n".join(lines[start + 1 : end]).strip()):
        lines[start + 1 : end] = [""]
        end = start + 2
    if first:
        after = "\n".join(lines[start + 1 :]).strip("\n")
        return "\n".join([*lines[: start + 1], "", added, *(["", after] if after else [])])
    while not lines[end - 1].strip():
        end -= 1
    return "\n".join([*lines[:end], *([""] if end == start + 1 else []), added, *lines[end:]])


class FinalData(Block):
    """Which sections FINAL.md has; its prose stays in the file."""

    sections: tuple[str, ...]


@dataclass(frozen=True)
class Dissent:
    """An objection recorded in the last turn: it must have its minority report."""

    id: str
    role: str
    text: str
    severity: int


@dataclass(frozen=True)
class FinalFormat:
    """FINAL.md as the model writes it: five sections, no tension and no dissent left out.

    `tensions` are (id, title, status) of the whole ledger; `dissents` those of the last turn.
    """

    tensions: tuple[tuple[str, str, str], ...] = ()
    dissents: tuple[Dissent, ...] = ()
    name: str = "final"

    def parse(self, text: str) -> FinalData:
        """Return which sections are there; raise `InvalidReply` naming each thing left out."""
        too_long(text)
        body = front_matter(unwrap(text))[1]
        problems = [
            f"The section `## {name}` is missing." for name in FINAL_SECTIONS if final_section(body, name) is None
        ]
        if not problems and not final_section(body, "Decision"):
            problems.append("The section `## Decision` is empty.")
        problems += [
            f"Key Tensions must say what became of {ident} ({_one_line(title)})."
            for ident, title, _ in self._lost_tensions(body)
        ]
        problems += [
            f"Minority Reports must record objection {item.id} of {item.role}: {_one_line(item.text)[:300]}"
            for item in self._lost_dissents(body)
        ]
        if problems:
            raise InvalidReply(problems)
        return FinalData(sections=FINAL_SECTIONS)

    def _lost_tensions(self, body: str) -> list[tuple[str, str, str]]:
        place = final_section(body, "Key Tensions") or ""
        return [item for item in self.tensions if not _mentions(place, item[:2])]

    def _lost_dissents(self, body: str) -> list[Dissent]:
        """What the minority reports do not speak of.

        Ids are unique within one voice's reply only: two voices may use one for different objections. The same
        objection of several voices is one dissent.
        """
        place = final_section(body, "Minority Reports") or ""
        roles = Counter(item.role for item in self.dissents)
        ids = Counter(ident for ident, _ in {(item.id, item.text) for item in self.dissents})
        named = _attributed(place, list(roles), list(ids))

        def recorded(item: Dissent) -> bool:
            names = [item.text]
            names += [item.id] if ids[item.id] == 1 else []
            names += [item.role] if roles[item.role] == 1 else []
            return _mentions(place, names) or (_word(item.role), _word(item.id)) in named

        return [item for item in self.dissents if not recorded(item)]

    def repair(self, text: str) -> tuple[str, tuple[str, ...]] | None:
        """Add, word for word from the record, what the model still leaves out; it never gets lost."""
        body = closed(front_matter(unwrap(text))[1])
        if not final_section(body, "Decision"):
            return None
        added: list[str] = []
        for name in FINAL_SECTIONS:
            if final_section(body, name) is None:
                body = f"{body.rstrip()}\n\n## {name}\n\nNothing was written here."
                added.append(f"section {name}")
        if tensions := self._lost_tensions(body):
            lines = [
                f"- **{ident}** ({status}): {_one_line(title)} *(added by cdo)*" for ident, title, status in tensions
            ]
            body = add_to_section(body, "Key Tensions", "\n".join(lines))
            added += [f"tension {ident}" for ident, *_ in tensions]
        if dissents := self._lost_dissents(body):
            lines = [
                f"- **{item.role}** ({item.id}, severity {item.severity}): {_one_line(item.text)} *(added by cdo)*"
                for item in dissents
            ]
            body = add_to_section(body, "Minority Reports", "\n".join(lines))
            added += [f"minority report {item.role}/{item.id}" for item in dissents]
        try:
            self.parse(body)
        except InvalidReply:
            return None
        return body, tuple(added)

    def grammar(self) -> str:
        """The five sections, with every tension and dissent spelled out ahead."""
        tensions = [f"- **{ident}** ({status}): {_plain(title)}. " for ident, title, status in self.tensions]
        dissents = [f"- **{item.role}** ({item.id}): {_plain(item.text)}. " for item in self.dissents]

        def listed(heads: list[str]) -> str:
            return " ".join(f'{gbnf.literal(head)} said "\\n"' for head in heads) or '"None.\\n"'

        return gbnf.grammar(
            {
                "root": f'"## Decision\\n\\n" prose "\\n\\n## Confidence\\n\\n" said "\\n\\n## Key Tensions\\n\\n" '
                f'{listed(tensions)} "\\n## Minority Reports\\n\\n" {listed(dissents)} '
                '"\\n## Action Items\\n\\n" ("- " said "\\n"){1,3}',
                "prose": gbnf.text(80, 400),
                "said": gbnf.line(20, 140),
            }
        )


def _plain(text: str) -> str:
    """Text that can stand in a grammar's literal: one line of plain ASCII, at most 200 characters."""
    return re.sub(r"[^ -~]|[\"\\]", " ", text)[:200]


def _one_line(text: str) -> str:
    """Recorded text as it stands in a list: it cannot begin a line, and so no heading or fence."""
    return " ".join(text.split())


def _mentions(place: str, names: Sequence[str]) -> bool:
    """Whether one of `names` stands in `place` as a whole word (or phrase); case and emphasis do not count."""
    folded = _folded(place)
    return any(next(_places(folded, _word(name)), None) is not None for name in names)


def _attributed(place: str, roles: Sequence[str], ids: Sequence[str]) -> set[tuple[str, str]]:
    """Which (role, id) are spoken of: an id goes with the role named before it, or with the next one on its line."""
    found: set[tuple[str, str]] = set()
    words = {_word(name): (name in roles, name in ids) for name in (*roles, *ids)}
    last = ""
    for line in place.split("\n"):
        folded = _fold(line)
        named = [word for _, word in sorted((start, word) for word in words for start in _places(folded, word))]
        for index, word in enumerate(named):
            is_role, is_id = words[word]
            if is_id:
                later = next((other for other in named[index + 1 :] if words[other][0]), "")
                found |= {(last, word), (later, word)}
            if is_role:
                last = word
    return found


def _places(folded: str, word: str) -> Iterator[int]:
    """Where `word` stands by itself: T1 is neither in T10 nor in T1.5 or T1-b, but in `T1.` and `T1:`."""
    start = folded.find(word) if word else -1
    while start >= 0:
        end = start + len(word)
        if not _goes_on(folded[end : end + 2]) and not _goes_on(folded[max(0, start - 2) : start][::-1]):
            yield start
        start = folded.find(word, start + 1)


def _goes_on(beside: str) -> bool:
    """Whether a word goes on with the characters beside it, the nearest first."""
    return beside[:1] in _IN_WORDS or (beside[:1] in _JOINTS and beside[1:2] in _IN_WORDS)


_IN_WORDS, _JOINTS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789"), frozenset("-._")
_SIGNS = {
    ord(sign): plain for sign, plain in zip("*`\u2018\u2019\u201c\u201d\u2011", ["", "", *"''\"\"-"], strict=True)
}


def _word(name: str) -> str:
    """A name as it is looked for in folded text."""
    return _fold(name).strip(" .,;:!?")


def _fold(text: str) -> str:
    """Text as mentions compare it: lower case, one blank between words, Markdown's emphasis off, plain quotes."""
    bare = re.sub(r"(?<![^\W_])_+|_+(?![^\W_])", "", text.translate(_SIGNS))
    return " ".join(bare.casefold().split())


_folded = lru_cache(maxsize=4)(_fold)
