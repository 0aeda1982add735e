"""Parses FINAL.md as a model writes it: five sections, which must contain every finding of the first rank. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection

from msgspec import Struct

from cdo.core.steps import InvalidReply
from cdo.formats import gbnf
from cdo.formats.fields import too_long
from cdo.formats.lenient.layout import ReplyLayout
from cdo.formats.markdown import closed, front_matter, headings, sections, unwrap

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
    """Return the text under one of FINAL.md's headings, also under its other usual names, or None."""
    found = sections(text)
    return next((found[key] for key in _FINAL_NAMES[name] if key in found), None)


def add_to_section(text: str, name: str, added: str, *, first: bool = False) -> str:
    """Return `text` with `added` as the last (or first) lines under one of FINAL.md's headings, which must exist.

    A note in this section that it holds nothing ("None.") is removed.
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


class FinalData(Struct, frozen=True):
    """Which sections FINAL.md has; its prose stays in the file."""

    sections: tuple[str, ...]


class FinalFormat(Struct, frozen=True):
    """FINAL.md as the model writes it: five sections, with marks at the items that must not be left out.

    `findings` are (id, text) of the first rank: each must be marked somewhere, as in `[F3]`. `outside` are (id,
    title) of tensions that only a fact from outside can settle: each must be marked in an action item. `unmarked`
    removes the marks for the reader.
    """

    findings: tuple[tuple[str, str], ...] = ()
    outside: tuple[tuple[str, str], ...] = ()
    name: str = "final"

    @property
    def layout(self) -> ReplyLayout:
        """The arrangement of the reply, for reading it leniently."""
        return ReplyLayout("prose", titles=FINAL_SECTIONS)

    def parse(self, text: str) -> FinalData:
        """Return the sections of FINAL.md; raise `InvalidReply` with a sentence for each omission."""
        too_long(text)
        body = front_matter(unwrap(text))[1]
        problems = [
            f"The section `## {name}` is missing." for name in FINAL_SECTIONS if final_section(body, name) is None
        ]
        if not problems and not final_section(body, "Decision"):
            problems.append("The section `## Decision` is empty.")
        problems += [
            f"Finding {ident} is of the first rank and is not in the text. Say it where it matters and put [{ident}] "
            f"behind it: {_one_line(said)[:300]}"
            for ident, said in self._lost(body)
        ]
        problems += [
            f"Action Items needs a step that finds this out, with [{ident}] behind it: {_one_line(title)[:300]}"
            for ident, title in self._unasked(body)
        ]
        if problems:
            raise InvalidReply(problems)
        return FinalData(FINAL_SECTIONS)

    def _lost(self, body: str) -> list[tuple[str, str]]:
        found = marks(body)
        return [item for item in self.findings if item[0] not in found]

    def _unasked(self, body: str) -> list[tuple[str, str]]:
        found = marks(final_section(body, "Action Items") or "")
        return [item for item in self.outside if item[0] not in found]

    def repair(self, text: str) -> tuple[str, tuple[str, ...]] | None:
        """Add what the model still leaves out, word for word from the record; None if that is not enough."""
        body = closed(front_matter(unwrap(text))[1])
        if not final_section(body, "Decision"):
            return None
        added: list[str] = []
        for name in FINAL_SECTIONS:
            if final_section(body, name) is None:
                body = f"{body.rstrip()}\n\n## {name}\n\nNothing was written here."
                added.append(f"section {name}")
        if lost := self._lost(body):
            lines = [f"- {_one_line(said)} [{ident}] *(added by cdo)*" for ident, said in lost]
            body = add_to_section(body, "Decision", "\n".join(lines))
            added += [f"finding {ident}" for ident, _ in lost]
        if unasked := self._unasked(body):
            lines = [f"- Find out: {_one_line(title)} [{ident}] *(added by cdo)*" for ident, title in unasked]
            body = add_to_section(body, "Action Items", "\n".join(lines))
            added += [f"step for {ident}" for ident, _ in unasked]
        try:
            self.parse(body)
        except InvalidReply:
            return None
        return body, tuple(added)

    def grammar(self) -> str:
        """Return a grammar of the five sections, with first-rank findings and outside questions as fixed text."""
        findings = [f"- {_plain(said)} [{ident}]\n" for ident, said in self.findings]
        asked = [f"- Find out: {_plain(title)} [{ident}]\n" for ident, title in self.outside]
        return gbnf.grammar(
            {
                "root": f'"## Decision\\n\\n" prose "\\n\\n" {gbnf.literal("".join(findings) + chr(10))} '
                '"## Confidence\\n\\n" said "\\n\\n## Key Tensions\\n\\n- " said '
                '"\\n\\n## Minority Reports\\n\\n" said "\\n\\n## Action Items\\n\\n" '
                f'{gbnf.literal("".join(asked)) if asked else ""} ("- " said "\\n"){{1,3}}',
                "prose": gbnf.text(80, 400),
                "said": gbnf.line(20, 140),
            }
        )


_ID = r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}"
_MARK = re.compile(rf"(?<![ \t])[ \t]*\[({_ID}(?:\s*[,;]\s*{_ID})*)\]")
_OWN = re.compile(r"[FT]\d{1,3}")


def marks(text: str) -> set[str]:
    """Return the ids that are marked in a text, as in `[F3]` or `[F3, T1]`."""
    return {ident for match in _MARK.finditer(text) for ident in _marked(match)}


def unmarked(text: str, others: Collection[str] = ()) -> str:
    """Return `text` without its marks, for the reader: those of ids such as F3 and T1, and of `others`."""

    def left(match: re.Match[str]) -> str:
        return "" if all(ident in others or _OWN.fullmatch(ident) for ident in _marked(match)) else match[0]

    return _MARK.sub(left, text)


def _marked(match: re.Match[str]) -> list[str]:
    return re.split(r"[\s,;]+", match[1])


def _plain(text: str) -> str:
    """Return text for a grammar's literal: ASCII without quotes and backslashes, at most 200 characters."""
    return re.sub(r"[^ -~]|[\"\\]", " ", text)[:200]


def _one_line(text: str) -> str:
    """Return recorded text for a list item: on one line, so that it starts no heading and no fence."""
    return " ".join(text.split())
