"""Makes a mission's objectives the root's definition of done, and finds what proves them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from cdo.cabal.model.entities import Check, Criterion, MissionStep, Product, Status
from cdo.cabal.model.events import recorded, told
from cdo.cabal.model.references import listed
from cdo.cabal.model.state import MissionState
from cdo.cabal.replies.fields import CheckItem, CriterionItem
from cdo.cabal.rules import acceptance, criteria
from cdo.core.mission_names import ROOT
from cdo.formats.sections import folded


class ObjectiveProof(Struct, frozen=True):
    """What is known of one objective: `state` is "met", "not met" or "not inspected".

    `quote` proves that it is met, and stands in the newest version of `product` ("" if no single product has it).
    `note` is what the inspection says besides.
    """

    text: str
    state: str
    quote: str = ""
    product: str = ""
    note: str = ""


def root_criteria(
    objectives: Sequence[str], old: tuple[Criterion, ...] = (), before: Sequence[str] = ()
) -> tuple[Criterion, ...]:
    """Return the root's definition of done: the objectives, then what `old` has beside the objectives `before`."""
    known = {folded(text) for text in before}
    more = [item for item in old if folded(item.text) not in known]
    return with_objectives(objectives, [_item(item.text, item.check) for item in more], old)


def with_objectives(
    objectives: Sequence[str], more: Sequence[CriterionItem], old: tuple[Criterion, ...]
) -> tuple[Criterion, ...]:
    """Return the objectives as judged criteria, each once, then `more`; ids of `old` are kept where they can be."""
    texts: dict[str, str] = {}
    for text in objectives:
        texts.setdefault(folded(text), text)
    mine = [_item(text, Check()) for text in texts.values()]
    return criteria.made([*mine, *(item for item in more if folded(item.text) not in texts)], old)


def _item(text: str, check: Check) -> CriterionItem:
    # Not validated: an objective may be longer than a criterion that the chair writes.
    asked = CheckItem.model_construct(kind=check.kind, value=check.value)
    return CriterionItem.model_construct(text=text, id="", check=asked)


def redefined(state: MissionState, step: MissionStep, actor: str, before: Product) -> MissionState:
    """Record what the definition of done of a product no longer asks for, compared with `before`, and what is new.

    That of an archived product asks for nothing.
    """
    now = state.products[before.id]
    gone = now.status is Status.ARCHIVED
    kept, known = {item.id for item in now.dod if not gone}, {item.id for item in before.dod}
    dropped = [_said(state, item) for item in before.dod if item.id not in kept]
    if not dropped:
        return state
    if gone:
        text = f"{now.name} was archived, and nothing has to meet {listed(dropped)} for it"
        return recorded(state, step, "redefined", actor, text, before.id)
    added = [_said(state, item) for item in now.dod if item.id not in known]
    text = f"{now.name} no longer has to meet {listed(dropped)}"
    text += f"; new instead: {listed(added)}" if added else "; nothing stands in its place"
    return recorded(state, step, "redefined", actor, text, before.id)


def _said(state: MissionState, item: Criterion) -> str:
    check, value = item.check.kind.replace("_", " "), item.check.value
    test = "" if item.check.kind == "judged" else f" ({check}: {told(state, str(value), 80)})"
    return f"“{told(state, item.text)}”{test}"


def proofs(state: MissionState) -> Iterator[ObjectiveProof]:
    """Yield what is known of each objective, from the newest inspection of the root as it stands now."""
    root, mission = state.products.get(ROOT), state.mission
    if root is None or mission is None:
        return
    found = acceptance.current(state, ROOT)
    results = {item.criterion: item for item in found.results} if found else {}
    ids = {folded(item.text): item.id for item in root.dod}
    for text in mission.objectives:
        result = results.get(ids.get(folded(text), ""))
        if result is None:
            yield ObjectiveProof(text, "not inspected")
        elif not result.passed:
            yield ObjectiveProof(text, "not met", note=result.note)
        else:
            yield ObjectiveProof(text, "met", result.quote, _holder(state, result.quote), result.note)


def _holder(state: MissionState, quote: str) -> str:
    """Return the first live product whose newest version has the quote."""
    leaves = (item.id for item in state.live() if not item.container)
    return next((id for id in leaves if criteria.evidence(quote, criteria.material(state, id))), "")


def set_objectives(state: MissionState, before: Sequence[str], step: MissionStep, actor: str) -> MissionState:
    """Give the root the mission's objectives as criteria, in place of those `before`; record what was dropped."""
    root, mission = state.products[ROOT], state.mission
    assert mission is not None  # there is a root only after the bootstrap
    new = replace(root, dod=root_criteria(mission.objectives, root.dod, before))
    return redefined(replace(state, products={**state.products, ROOT: new}), step, actor, root)
