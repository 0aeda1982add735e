"""Checks FINAL.md of a root-cause analysis: the five sections of every final answer, then four of its own. Pure.

Its own sections are timeline, hypotheses, fix and validation. Every hypothesis must be there with its fate and its
evidence. A cause may be named only if evidence supports it. A fix is a diff that a voice proposed, word for word, or
the statement that there is none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from cdo.core.steps import InvalidReply
from cdo.formats import gbnf
from cdo.formats.final_answer import FINAL_SECTIONS, FinalData, FinalFormat, add_to_section, final_section
from cdo.formats.lenient.layout import ReplyLayout
from cdo.formats.markdown import closed, fenced, fences, front_matter, in_fence
from cdo.formats.sections import (
    ADDED,
    add_under,
    as_list_item,
    completed,
    lacking,
    plain,
    rules_of,
    section,
    speaks_of,
)
from cdo.programs.debug.evidence import UNCHECKED, Checks, Kind, is_evidence
from cdo.programs.debug.hypotheses import Hypotheses, Hypothesis

NO_CAUSE = "Root cause not established"
NO_FIX = "No fix is proposed"
UNKNOWN_FIX = f"Nobody proposed this {ADDED}:"
_NAMES = {
    "Timeline": ("timeline", "reproduction", "timelinereproduction", "timelineandreproduction"),
    "Hypotheses": ("hypotheses", "hypothesis"),
    "Fix": ("fix", "proposedfix", "thefix"),
    "Validation": ("validation",),
}
RCA_SECTIONS = tuple(_NAMES)
_LABELS: dict[Kind, str] = {
    "checked ✓": "checked ✓ by the command that was run",
    "cited": "cited, not looked up",
    "reported": "reported, not checked",
    "not found": "not found in the question, the context or a record",
}
_FATES = {"open": r"(?:still |left )?open", "supported": "supported", "ruled-out": r"ruled[ -]out"}
_DIFFS = ("diff", "patch")
KEPT = 60  # leading characters by which recorded evidence is recognised
IN_GRAMMAR = 1500  # most characters of a diff that a grammar spells out


class RcaFormat(Struct, frozen=True):
    """The final format of a root-cause analysis: `inner` checks the five common sections, this one the others.

    `fixes` are the diffs on record as (artifact, diff), in the order in which they were proposed. `checks` say what
    evidence is worth; the report repeats this for each settled hypothesis.
    """

    inner: FinalFormat
    ledger: Hypotheses
    fixes: tuple[tuple[str, str], ...] = ()
    checks: Checks = UNCHECKED
    name: str = "final"

    @property
    def layout(self) -> ReplyLayout:
        """The arrangement of the reply, for reading it leniently."""
        return ReplyLayout("prose", titles=(*FINAL_SECTIONS, *RCA_SECTIONS))

    def parse(self, text: str) -> FinalData:
        """Return which sections are there; raise `InvalidReply` naming each thing left out."""
        body, problems = lacking(self.inner, text, _NAMES)
        problems += [
            f"Hypotheses must give the fate of {item.id} (`{item.status}`) and its evidence{self._owed(item)}: "
            f"{as_list_item(item.text)}"
            for item in self._lost(body)
        ]
        problems += [problem for problem in (self._cause_problem(body), self._fix_problem(body)) if problem]
        if problems:
            raise InvalidReply(problems)
        return FinalData(sections=(*FINAL_SECTIONS, *RCA_SECTIONS))

    def _lost(self, body: str) -> list[Hypothesis]:
        """Return the hypotheses that the section leaves out, or states with another fate or without evidence."""
        told = _told(section(body, _NAMES["Hypotheses"]) or "", [item.id for item in self.ledger.items])
        return [item for item in self.ledger.items if not self._states(told.get(item.id, ""), item)]

    def _owed(self, item: Hypothesis) -> str:
        """Return the end of a sentence: which word the report must use for a hypothesis's evidence; "" for none."""
        best = None if item.status == "open" else self.checks.best(item.evidence)
        return f" with the word `{_word(best)}`" if best else ""

    def _states(self, said: str, item: Hypothesis) -> bool:
        """True if `said` gives a hypothesis's fate and, if evidence settled it, that evidence and its worth."""
        if not re.search(rf"(?<![\w-]){_FATES[item.status]}(?![\w-])", said, re.IGNORECASE):
            return False
        best = self.checks.best(item.evidence)
        if item.status == "open" or not best:
            return True
        if not re.search(rf"\b{_word(best)}\b", said, re.IGNORECASE):
            return False
        return any(is_evidence(line) for line in said.split("\n")) or any(
            _key(as_list_item(fact)) in _key(said, 0) for fact in item.evidence if is_evidence(fact)
        )

    def _entry(self, item: Hypothesis) -> str:
        """Return a hypothesis as a line of the section."""
        kinds = [(self.checks.kind(fact), as_list_item(fact)) for fact in item.evidence]
        facts = [(self.checks.kind(fact), as_list_item(fact)) for fact in item.evidence if self.checks.carries(fact)]
        listed = "; ".join(f"{_LABELS.get(kind, kind)}: {fact}" for kind, fact in (facts or kinds)[:3])
        proof = f"Evidence: {listed.rstrip('.')}." if kinds else "No evidence was brought."
        return f"- **{item.id}** ({item.status.replace('-', ' ')}): {as_list_item(item.text).rstrip('.')}. {proof}"

    def _cause_problem(self, body: str) -> str:
        """Return what is wrong with the cause in the section Decision; "" if nothing is."""
        decision = final_section(body, "Decision") or ""
        roots = self.ledger.of("supported")
        if roots and not any(speaks_of(decision, item.id) for item in roots):
            return f"Decision must name the supported cause by its id: {', '.join(item.id for item in roots)}."
        if not roots and NO_CAUSE.lower() not in " ".join(decision.lower().split()):
            return f"No hypothesis is supported: Decision must say `{NO_CAUSE}`."
        return ""

    def _fix_problem(self, body: str) -> str:
        """Return what is wrong with the section Fix, or with a diff anywhere else; "" if nothing is."""
        place = section(body, _NAMES["Fix"])
        if place is None:
            return ""
        if any(not self._known(diff) for diff, _ in fenced(body, _DIFFS)):
            return f"Fix: a diff in the report is not on record: repeat one that is ({self._names()}) word for word."
        if self.fixes:
            missing = not fenced(place, _DIFFS)
            return f"Fix must hold a diff on record ({self._names()}) in a fenced ```diff block." if missing else ""
        return "" if NO_FIX.lower() in place.lower() else f"Fix must say `{NO_FIX}: …`, with the reason."

    def _known(self, diff: str) -> bool:
        """True if a diff is on record; white space at the ends of its lines does not count."""
        return any(_trimmed(diff) == _trimmed(recorded) for _, recorded in self.fixes)

    def _names(self) -> str:
        return ", ".join(artifact for artifact, _ in self.fixes) or "there is none"

    def repair(self, text: str) -> tuple[str, tuple[str, ...]] | None:
        """Add, word for word from the record, what the model still leaves out."""
        repaired = self.inner.repair(text)
        if repaired is None:
            return None
        body, added = closed(front_matter(repaired[0])[1]), list(repaired[1])
        body, absent = completed(body, _NAMES)
        added += absent
        if lost := self._lost(body):
            body = add_under(body, _NAMES["Hypotheses"], "\n".join(f"{self._entry(item)} {ADDED}" for item in lost))
            added += [f"hypothesis {item.id}" for item in lost]
        if self._cause_problem(body):
            roots = "; ".join(f"**{item.id}**: {as_list_item(item.text)}" for item in self.ledger.of("supported"))
            said = f"Root cause on record: {roots} {ADDED}" if roots else f"{NO_CAUSE}. {ADDED}"
            body = add_to_section(body, "Decision", said, first=True)
            added.append("the root cause on record")
        if self._fix_problem(body):
            body = self._disowned(body)
            if self._fix_problem(body):
                body = add_under(body, _NAMES["Fix"], self._recorded_fix())
            added.append("the fix on record")
        try:
            self.parse(body)
        except InvalidReply:
            return None
        return body, tuple(added)

    def _recorded_fix(self) -> str:
        if not self.fixes:
            return f"{NO_FIX}: there is none on record. {ADDED}"
        artifact, diff = self.fixes[-1]
        return f"On record, from {artifact} {ADDED}:\n\n{in_fence(diff, 'diff')}"

    def _disowned(self, body: str) -> str:
        """Return `body` with each diff that no voice proposed fenced as text and marked with `UNKNOWN_FIX`."""
        lines = body.split("\n")
        for fence in reversed(fences(lines)):
            inside = "\n".join(lines[fence.start + 1 : fence.end - 1])
            if fence.language in _DIFFS and not self._known(inside):
                mark = re.sub(r"(?<=[`~])\s*(diff|patch)", "text", lines[fence.start], flags=re.IGNORECASE)
                lines[fence.start : fence.start + 1] = [UNKNOWN_FIX, "", mark]
        return "\n".join(lines)

    def grammar(self) -> str:
        """Return a grammar of the five sections, then the others. Hypotheses and the last fix are fixed text.

        A fix that is too long or not plain ASCII is only named; `repair` adds it.
        """
        rules = rules_of(self.inner.grammar())
        head, decision, rest = rules["root"].partition('"## Decision\\n\\n"')
        lines = [f"{plain(self._entry(item))} " for item in self.ledger.items]
        listed = " ".join(f'{gbnf.literal(line)} said "\\n"' for line in lines) or '"None.\\n"'
        roots = [item.id for item in self.ledger.of("supported")]
        cause = f"Root cause: {', '.join(roots)}.\n\n" if roots else f"{NO_CAUSE}.\n\n"
        return gbnf.grammar(
            {
                **rules,
                "root": f"{head}{decision} {gbnf.literal(cause)} {rest} "
                f'"\\n## Timeline\\n\\n" said "\\n\\n## Hypotheses\\n\\n" {listed} "\\n## Fix\\n\\n" '
                f'{self._fix_grammar()} "\\n\\n## Validation\\n\\n" said "\\n"',
            }
        )

    def _fix_grammar(self) -> str:
        if not self.fixes:
            return f'"{NO_FIX}: " said'
        artifact, diff = self.fixes[-1]
        if not diff.isascii() or "\0" in diff or len(diff) > IN_GRAMMAR:
            return gbnf.literal(f"The one on record is in {plain(artifact)}.md.")
        return gbnf.literal(in_fence(diff, "diff"))


def _trimmed(diff: str) -> str:
    return "\n".join(line.rstrip() for line in diff.strip("\n").split("\n"))


def _told(place: str, ids: Sequence[str]) -> dict[str, str]:
    """Return the lines of a section about each id: from a line that names it to the next line that names another."""
    found: dict[str, str] = {}
    last: list[str] = []
    for line in place.split("\n"):
        named = [ident for ident in ids if speaks_of(line, ident)]
        last = named or last
        for ident in last:
            found[ident] = f"{found.get(ident, '')}\n{line}"
    return found


def _word(kind: Kind) -> str:
    """Return the word for the worth of evidence in a report, without the tick: only code may set a tick."""
    return kind.split()[0]


def _key(text: str, limit: int = KEPT) -> str:
    """Return text in the form used for comparison: plain ASCII, lower case, one blank between words."""
    folded = " ".join(re.sub(r"[^ -~]|[*`]", " ", text).casefold().split())
    return folded[:limit].strip() if limit else folded
