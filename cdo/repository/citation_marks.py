"""Marks the citations of a text with the results of their checks, and counts the results in words. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cdo.core.steps import CitationCheck
from cdo.repository.citation_syntax import MARKED, each, phrase

# Matches the line of FINAL.md that counts citations, both as `cited_in_words` writes it and in its older wording.
SUMMARY = r"Citations: [\d,]+ of [\d,]+ (?:were found in the repository as cited|verified)\b.*"


def marked(text: str, findings: Sequence[CitationCheck], *, paths: bool = True) -> str:
    """Return `text` with a mark after each citation that has a result in `findings`; nothing else is changed.

    ` ✓`: the quote was found; ` ○`: the line exists, and nothing was quoted; ` ✗ (why)`: the check failed. With
    `paths`, a file that was found under a longer path has that path added to its first citation.

    An existing mark is replaced, so that marking is idempotent.
    """
    checks = {item.citation: item for item in findings}
    pieces, at, named = list[str](), 0, set[str]()
    for citation in each(text):
        reading = next((item for item in citation.readings if str(item) in checks), None)
        if reading is None or reading.end <= at:  # the second: it stands in the quote of the citation before
            continue
        citation, check = reading, checks[str(reading)]
        pieces += [text[at : citation.end], _mark(check, named if paths else (check.path,))]
        named.add(check.path)
        at = citation.end
        while old := MARKED.match(text, at):
            at = old.end()
    return "".join([*pieces, text[at:]])


def cited_in_words(verified: int, existing: int, failing: int) -> str:
    """Return a sentence that counts the citations by result and explains the marks."""
    parts = [f"{verified:,} of {verified + existing + failing:,} verified (✓, the quoted words stand there)"]
    parts += [f"{existing:,} where the line exists (○, no words were quoted)"] * bool(existing)
    parts += [f"{failing:,} not found (✗)"] * bool(failing)
    return f"Citations: {', '.join(parts)}."


def _mark(check: CitationCheck, named: Collection[str]) -> str:
    """Return the mark for a citation. `named` are the paths that were already added to an earlier mark."""
    if not check.holds:
        return f" ✗ ({phrase(check.why)})"
    found = f" (found as {phrase(check.path)})" if check.path and check.path not in named else ""
    return f" {'✓' if check.verified else '○'}{found}"
