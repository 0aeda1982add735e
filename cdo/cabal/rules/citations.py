"""Records which citations of the repository do not hold: in versions, collabs and inspections of a reply. Pure.

The citations were checked when the reply was received. Files that the mission itself makes are no citations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar

from msgspec.structs import replace

from cdo.cabal.model.entities import Collab, Inspection, MissionStep, Remark, Version
from cdo.cabal.model.events import recorded
from cdo.cabal.model.names import called
from cdo.cabal.model.state import MissionState
from cdo.core.formatting import one_line, pluralise
from cdo.core.steps import CitationCheck
from cdo.repository.citation_syntax import each
from cdo.repository.citations import TOO_MANY

PROSE = (".md", ".markdown", ".rst", ".txt", ".adoc")  # files of a mission that may cite the repository
SHOWN = 8  # most citations that a remark lists
T = TypeVar("T")


def checked(
    before: MissionState, after: MissionState, step: MissionStep, agent: str, findings: Sequence[CitationCheck]
) -> MissionState:
    """Return `after`, which a reply of `agent` made of `before`, with what in it cites a place that does not hold.

    Everybody who is shown it sees that. The author of a collab or an inspection gets a remark by code.
    """
    wrong = {item.citation: item for item in findings if not item.holds and item.why != TOO_MANY}
    if not wrong:
        return after
    state, found = after, dict[str, tuple[CitationCheck, ...]]()
    for version in _new(before.versions, after.versions):
        if refuted := _refuted(after, _texts_of_version(after, version), wrong):
            found[version.id] = refuted
            name = f"{after.products[version.product].name}, version {version.number}"
            state = _told(state, step, f"{name}: {_count(refuted)}", version.product, version.id)
    said: list[CitationCheck] = []
    raised: list[Collab | Inspection] = [*_new(before.collabs, after.collabs)]
    for item in (*raised, *_new(before.inspections, after.inspections)):
        if refuted := _refuted(after, _texts_of(item), wrong):
            found[item.id] = refuted
            said += refuted
            what = f"the {item.kind}" if isinstance(item, Collab) else "the inspection"
            name = after.products[item.product].name
            text = f"{name}, {what} by {called(state, agent)}: {_count(refuted)}"
            state = _told(state, step, text, item.product, item.id)
    if said:
        state = replace(state, remarks=(*state.remarks, _remark(state, agent, said)))
    return replace(state, unfounded={**state.unfounded, **found})


def words(check: CitationCheck) -> str:
    """Return a citation that does not hold and why, as one line."""
    return one_line(f"{check.citation}: {check.why}", 300)


def _new(before: Mapping[str, T], after: Mapping[str, T]) -> Iterator[T]:
    return islice(after.values(), len(before), None)


def _texts_of_version(state: MissionState, version: Version) -> Iterator[str]:
    """Yield the texts of a version that may cite the repository: not those of a program."""
    path = state.products[version.product].path
    if not path or path.lower().endswith(PROSE):
        yield version.content
    yield from (version.summary, version.outcome)


def _texts_of(item: Collab | Inspection) -> Iterator[str]:
    """Yield the texts of a collab or an inspection; findings with a collab of their own are left to that."""
    if isinstance(item, Collab):
        yield from (item.comment, item.summary)
        return
    yield from (result.note for result in item.results)
    for finding in item.findings:
        if not finding.collab:
            yield from (finding.issue, finding.recommendation)


def _refuted(
    state: MissionState, texts: Iterable[str], wrong: Mapping[str, CitationCheck]
) -> tuple[CitationCheck, ...]:
    """Return the checks of the citations in these texts that do not hold, each once."""
    found = dict[str, CitationCheck]()
    for text in texts:
        for citation in each(text):
            names = (str(reading) for reading in citation.readings)
            check = next((wrong[name] for name in names if name in wrong), None)
            if check and not _made_here(state, citation.path):
                found[check.citation] = check
    return tuple(found.values())


def _made_here(state: MissionState, path: str) -> bool:
    """True if a path may mean a file that this mission makes."""
    cited = path.removeprefix("./")
    for item in state.products.values():
        made = item.path
        if made and (cited == made or made.endswith(f"/{cited}") or (made.endswith("/") and cited.startswith(made))):
            return True
    return False


def _count(refuted: Sequence[CitationCheck]) -> str:
    verb = "does" if len(refuted) == 1 else "do"
    return f"{pluralise(len(refuted), 'citation')} of the repository {verb} not hold"


def _told(state: MissionState, step: MissionStep, text: str, product: str, ref: str) -> MissionState:
    return recorded(state, step, "unfounded", "code", text, product, ref)


def _remark(state: MissionState, agent: str, said: Sequence[CitationCheck]) -> Remark:
    listed = "; ".join(words(item) for item in said[:SHOWN])
    text = f"Of what you cited in your last reply, this does not hold in the repository: {listed}"
    return Remark("code", (agent,), "note", text, state.round, state.at)
