"""FINAL.md as a root-cause analysis: the sections of every final answer, then timeline, hypotheses and fix. Pure.

No hypothesis may be missing with its fate and its evidence, no cause may be named that no evidence carries, and a
fix is a diff that can be applied or the plain statement that there is none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cdo import gbnf
from cdo.diffs import diff_problem
from cdo.final import FINAL_SECTIONS, FinalData, FinalFormat, add_to_section, final_section
from cdo.hypotheses import Hypotheses, Hypothesis, is_evidence
from cdo.markup import closed, fenced, fences, front_matter, unwrap
from cdo.reports import ADDED, add_under, completed, one_line, plain, rules_of, section, speaks_of
from cdo.types import InvalidReply

NO_CAUSE = "Root cause not established"
NO_FIX = "No fix is proposed"
_NAMES = {
    "Timeline": ("timeline", "reproduction", "timelinereproduction", "timelineandreproduction"),
    "Hypotheses": ("hypotheses", "hypothesis"),
    "Fix": ("fix", "proposedfix", "thefix"),
    "Validation": ("validation",),
}
RCA_SECTIONS = tuple(_NAMES)
_FATES = {"open": r"(?:still |left )?open", "supported": "supported", "ruled-out": r"ruled[ -]out"}
KEPT = 60  # characters by which recorded evidence is known again
IN_GRAMMAR = 1500  # characters of a diff that a grammar spells out


@dataclass(frozen=True)
class RcaFormat:
    """The final format of a root-cause analysis: `inner` checks the five sections, this one the others.

    `fixes` are the diffs on record as (artifact, diff), best known first.
    """

    inner: FinalFormat
    ledger: Hypotheses
    fixes: tuple[tuple[str, str], ...] = ()
    name: str = "final"

    def parse(self, text: str) -> FinalData:
        """Return which sections are there; raise `InvalidReply` naming each thing left out."""
        problems: list[str] = []
        try:
            self.inner.parse(text)
        except InvalidReply as invalid:
            problems += invalid.problems
        body = front_matter(unwrap(text))[1]
        problems += [
            f"The section `## {name}` is missing." for name in RCA_SECTIONS if section(body, _NAMES[name]) is None
        ]
        problems += [
            f"Hypotheses must give the fate of {item.id} (`{item.status}`) and its evidence: {one_line(item.text)}"
            for item in self._lost(body)
        ]
        problems += [problem for problem in (self._cause_problem(body), self._fix_problem(body)) if problem]
        if problems:
            raise InvalidReply(problems)
        return FinalData(sections=(*FINAL_SECTIONS, *RCA_SECTIONS))

    def _lost(self, body: str) -> list[Hypothesis]:
        """The hypotheses that the section leaves out, or states with another fate or without evidence."""
        told = _told(section(body, _NAMES["Hypotheses"]) or "", [item.id for item in self.ledger.items])
        return [item for item in self.ledger.items if not _states(told.get(item.id, ""), item)]

    def _cause_problem(self, body: str) -> str:
        """What Decision says wrongly about the cause; "" when nothing."""
        decision = final_section(body, "Decision") or ""
        roots = self.ledger.of("supported")
        if roots and not any(speaks_of(decision, item.id) for item in roots):
            return f"Decision must name the supported cause by its id: {', '.join(item.id for item in roots)}."
        if not roots and NO_CAUSE.lower() not in " ".join(decision.lower().split()):
            return f"No hypothesis is supported: Decision must say `{NO_CAUSE}`."
        return ""

    def _fix_problem(self, body: str) -> str:
        """What is wrong with the section Fix; "" when nothing is."""
        place = section(body, _NAMES["Fix"])
        if place is None:
            return ""
        diffs = [block for block, _ in fenced(place, ("diff", "patch"))]
        if not diffs and NO_FIX.lower() not in place.lower():
            return f"Fix must hold the diff in a fenced ```diff block, or say `{NO_FIX}: …` with the reason."
        problem = next((found for diff in diffs if (found := diff_problem(diff))), "")
        return f"Fix: the diff: {problem}." if problem else ""

    def repair(self, text: str) -> tuple[str, tuple[str, ...]] | None:
        """Add, word for word from the record, what the model still leaves out."""
        mended = self.inner.repair(text)
        if mended is None:
            return None
        body, added = closed(front_matter(mended[0])[1]), list(mended[1])
        body, absent = completed(body, _NAMES)
        added += absent
        if lost := self._lost(body):
            body = add_under(body, _NAMES["Hypotheses"], "\n".join(f"{_entry(item)} {ADDED}" for item in lost))
            added += [f"hypothesis {item.id}" for item in lost]
        if self._cause_problem(body):
            roots = "; ".join(f"**{item.id}**: {one_line(item.text)}" for item in self.ledger.of("supported"))
            said = f"Root cause on record: {roots} {ADDED}" if roots else f"{NO_CAUSE}. {ADDED}"
            body = add_to_section(body, "Decision", said, first=True)
            added.append("the root cause on record")
        if self._fix_problem(body):
            body = add_under(_plain_diffs(body), _NAMES["Fix"], self._recorded_fix())
            added.append("the fix on record")
        try:
            self.parse(body)
        except InvalidReply:
            return None
        return body, tuple(added)

    def _recorded_fix(self) -> str:
        if not self.fixes:
            return f"{NO_FIX}: there is none on record. {ADDED}"
        artifact, diff = self.fixes[0]
        return f"From {artifact} {ADDED}:\n\n{_fenced(diff)}"

    def grammar(self) -> str:
        """The five sections, then the others with every hypothesis and the first fix spelled out ahead."""
        rules = rules_of(self.inner.grammar())
        head, decision, rest = rules["root"].partition('"## Decision\\n\\n"')
        lines = [f"{plain(_entry(item))} " for item in self.ledger.items]
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
        artifact, diff = self.fixes[0]
        if not diff.isascii() or "\0" in diff or len(diff) > IN_GRAMMAR:
            return gbnf.literal(f"{NO_FIX} here: the one on record is in {plain(artifact)}.md.")
        return gbnf.literal(_fenced(diff))


def _plain_diffs(body: str) -> str:
    """`body` with the fences of broken diffs marked as text."""
    lines = body.split("\n")
    for fence in fences(lines):
        inside = "\n".join(lines[fence.start + 1 : fence.end - 1])
        if fence.language in ("diff", "patch") and diff_problem(inside):
            lines[fence.start] = re.sub(r"(?<=[`~])\s*(diff|patch)", "text", lines[fence.start], flags=re.IGNORECASE)
    return "\n".join(lines)


def _fenced(diff: str) -> str:
    """A diff in a fence that is longer than any run of backticks in it."""
    mark = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", diff)), default=0))
    return f"{mark}diff\n{diff}\n{mark}"


def _told(place: str, ids: Sequence[str]) -> dict[str, str]:
    """What a section says of each id: from a line that names it to the next line that names another."""
    found: dict[str, str] = {}
    last: list[str] = []
    for line in place.split("\n"):
        named = [ident for ident in ids if speaks_of(line, ident)]
        last = named or last
        for ident in last:
            found[ident] = f"{found.get(ident, '')}\n{line}"
    return found


def _states(said: str, item: Hypothesis) -> bool:
    """Whether `said` gives the fate of a hypothesis and, where there is one to give, its evidence."""
    if not re.search(rf"(?<![\w-]){_FATES[item.status]}(?![\w-])", said, re.IGNORECASE):
        return False
    facts = [fact for fact in item.evidence if is_evidence(fact)]
    if item.status == "open" or not facts:
        return True
    return any(is_evidence(line) for line in said.split("\n")) or any(
        _key(one_line(fact)) in _key(said, 0) for fact in facts
    )


def _entry(item: Hypothesis) -> str:
    """A hypothesis as a line of the section."""
    facts = [fact for fact in item.evidence if is_evidence(fact)] or list(item.evidence)
    proof = f" Evidence: {'; '.join(one_line(fact) for fact in facts[:3])}." if facts else " No evidence was brought."
    return f"- **{item.id}** ({item.status.replace('-', ' ')}): {one_line(item.text)}.{proof}"


def _key(text: str, limit: int = KEPT) -> str:
    """Text as evidence is compared: plain ASCII, lower case, one blank between words."""
    folded = " ".join(re.sub(r"[^ -~]|[*`]", " ", text).casefold().split())
    return folded[:limit].strip() if limit else folded
