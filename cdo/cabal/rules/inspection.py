"""Turns the watchdog's reply into inspections, after a check against the record. Pure.

The watchdog reports which criteria are met, with quotes as evidence, and its findings. Code runs its own tests, looks
up each quote, adds findings that the watchdog left out, and derives the verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from cdo.cabal.model import references
from cdo.cabal.model.entities import (
    BLOCKING,
    REVISION,
    Collab,
    Criterion,
    CriterionResult,
    Inspection,
    InspectionFinding,
    MissionStep,
    Product,
)
from cdo.cabal.model.events import recorded
from cdo.cabal.model.references import listed
from cdo.cabal.model.state import MissionState
from cdo.cabal.replies.fields import FindingItem, InspectionItem, ResultItem
from cdo.cabal.replies.schemas import InspectReply
from cdo.cabal.rules import criteria, feedback
from cdo.cabal.rules.acceptance import parts, verdict
from cdo.cabal.rules.feedback import renewed
from cdo.core.formatting import one_line
from cdo.core.mission_names import WATCHDOG
from cdo.formats.fields import twice
from cdo.formats.sections import folded

_SUMMARY = 600  # characters of a collab's summary


def inspected(
    state: MissionState, reply: InspectReply, due: Sequence[str], *, part: bool = False
) -> tuple[MissionState, tuple[str, ...]]:
    """Add one inspection of each product in `due` (with `part`, of some of them), and the watchdog's other feedback.

    Return the state and the problems with the reply. If there are any, the state is unchanged.
    """
    said = [item.product_id for item in reply.inspections]
    problems = twice(said, "In `inspections`,")
    if not part and (missing := [id for id in due if id not in said]):
        problems.append(f"These are to be inspected too: {listed(missing)}.")
    if strange := [id for id in dict.fromkeys(said) if id not in due]:
        problems.append(f"Not to be inspected now: {listed(strange)}; inspect {listed(due)}.")
    after, talk = feedback.talked(state, MissionStep.INSPECT, WATCHDOG, reply)
    problems += talk
    items = {item.product_id: item for item in reply.inspections if item.product_id in due}
    for id in due:
        if id in items:
            problems += _unfit(after, state.products[id], items[id])
            problems += _passed_over(after, state, items[id])
    if problems:
        return state, tuple(problems)
    for id in (id for id in due if id in items):
        after = _inspection(after, state.products[id], items[id], reply.rationale)
    return after, ()


# -- problems with an inspection -------------------------------------------------------------------


def _unfit(state: MissionState, product: Product, item: InspectionItem) -> list[str]:
    """Return the problems with the inspection of a product."""
    latest = state.latest(product.id)
    found: list[str] = []
    if product.container:
        if item.version_id is not None:
            found.append(f"{product.id} holds other products and has no versions: leave its `version_id` out.")
    elif latest is None:
        found.append(f"{product.id} has no version that could be inspected.")
    elif item.version_id != latest.id:
        found.append(f"{product.id}: you inspect {item.version_id or 'no version'}; its newest is {latest.id}.")
    texts = [text for finding in item.findings for text in (finding.issue, finding.recommendation)]
    texts += [result.note for result in item.criteria]
    found += references.problems(texts, state, f"The inspection of {product.id}")
    return found + _results_wrong(state, product, item.criteria) + _findings_wrong(state, product, item.findings)


def _passed_over(after: MissionState, before: MissionState, item: InspectionItem) -> list[str]:
    """Return a problem for each flag that stays open although the inspection has nothing against the product.

    Only the watchdog can close its flag. One that it forgot would hold the product back for good.
    """
    if any(finding.severity >= REVISION for finding in item.findings) or not all(one.passed for one in item.criteria):
        return []
    return [
        f"{flag.id}, your flag on {item.product_id}, is still open: {one_line(flag.summary, 120)}. Name it in "
        + ("`confirms` if the version resolves it" if renewed(after, flag) else "`withdraws` if it was a mistake")
        + "; if it stands, name it in the `collab_id` of a finding of its severity."
        for flag in after.about(item.product_id)
        if flag.flag and flag.id in before.collabs
    ]


def _results_wrong(state: MissionState, product: Product, items: Sequence[ResultItem]) -> list[str]:
    """Return the problems with the results for a product's criteria. A criterion that code tests needs no result."""
    said = {item.criterion_id: item for item in items}
    found = twice([item.criterion_id for item in items], f"In the criteria of {product.id},")
    found += _strangers(product, said)
    texts = criteria.material(state, product.id)
    for criterion in product.dod:
        if criterion.check.kind != "judged":
            continue
        item = said.get(criterion.id)
        if item is None:
            found.append(f"{product.id}: say whether {criterion.id} is met.")
        elif item.passed and not criteria.evidence(item.quote, texts):
            found.append(
                f"{product.id}: the quote for {criterion.id} does not stand there. Quote whole words, "
                f"{criteria.QUOTE} characters or more, or a whole line, word for word, and more than a heading; "
                "or say that it is not met."
            )
    return found


def _findings_wrong(state: MissionState, product: Product, items: Sequence[FindingItem]) -> list[str]:
    """Return the problems with the findings on a product: criteria and collabs that it does not have."""
    found = _strangers(product, [item.criterion_id for item in items if item.criterion_id])
    there = [item.id for item in state.about(product.id)]
    for id in dict.fromkeys(item.collab_id for item in items if item.collab_id):
        if id not in there:
            found.append(f"{id} is not an open collab of {product.id}; those are {listed(there)}.")
    return found


def _strangers(product: Product, ids: Iterable[str]) -> list[str]:
    own = [item.id for item in product.dod]
    return [
        f"{product.id} has no criterion {id}; it has {listed(own)}." for id in dict.fromkeys(ids) if id not in own
    ]


# -- the result of an inspection -------------------------------------------------------------------


def _inspection(state: MissionState, product: Product, item: InspectionItem, rationale: str) -> MissionState:
    """Add the inspection of one product, its event, and a collab for each finding that needs one."""
    id = f"i{len(state.inspections) + 1}"
    results = _results(state, product, item.criteria)
    findings = [
        InspectionFinding(
            said.category, said.severity, said.issue, said.recommendation, said.criterion_id, said.collab_id
        )
        for said in item.findings
    ]
    findings += _lost(product, results, findings, state.inspection(product.id))
    findings += _unmet(product, results, findings)
    latest = state.latest(product.id)
    version = latest.id if latest and not product.container else ""
    came_to = verdict(finding.severity for finding in findings)
    text = f"{product.name}: {came_to.value.replace('_', ' ')}"
    after = recorded(state, MissionStep.INSPECT, "inspection", WATCHDOG, text, product.id, id)
    at = len(after.events)
    linked: list[InspectionFinding] = []
    for finding in findings:
        after, finding = _linked(after, product, finding, id)
        linked.append(finding)
    made = Inspection(
        id, product.id, version, product.dod_sha, results, tuple(linked), came_to, state.round, at,
        parts(state, product.id) if product.container else (), rationale,
    )  # fmt: skip
    return _overtaken(replace(after, inspections={**after.inspections, id: made}), made)


def _results(state: MissionState, product: Product, items: Sequence[ResultItem]) -> tuple[CriterionResult, ...]:
    """Return a result for each criterion: from code's test if it has one, else from the watchdog."""
    said = {item.criterion_id: item for item in items}
    text = criteria.whole(state, product.id)
    return tuple(
        criteria.tested(criterion, text, state) or _judged(criterion, said[criterion.id]) for criterion in product.dod
    )


def _judged(criterion: Criterion, item: ResultItem) -> CriterionResult:
    return CriterionResult(criterion.id, item.passed, item.quote if item.passed else "", item.note, WATCHDOG)


def _lost(
    product: Product,
    results: Sequence[CriterionResult],
    findings: Sequence[InspectionFinding],
    last: Inspection | None,
) -> list[InspectionFinding]:
    """Return a blocking finding for each criterion that was met at the last inspection and no longer is.

    A criterion that a blocking finding already names is left out. The same id means the same criterion:
    `criteria.made` gives a changed text or test a new id.
    """
    before = {item.criterion for item in last.results if item.passed} if last else set()
    lost = {item.criterion: item.note for item in results if not item.passed and item.criterion in before}
    for finding in findings:
        if finding.severity >= BLOCKING:
            lost.pop(finding.criterion, None)
    text = {item.id: item.text for item in product.dod}
    return [
        InspectionFinding("quality", BLOCKING, f"Was met before and no longer is: {text[id]}", note, id)
        for id, note in lost.items()
    ]


def _unmet(
    product: Product, results: Sequence[CriterionResult], findings: Sequence[InspectionFinding]
) -> list[InspectionFinding]:
    """Return a finding for each unmet criterion, unless a finding of severity `REVISION` or more names it."""
    named = {item.criterion for item in findings if item.severity >= REVISION}
    text = {item.id: item.text for item in product.dod}
    return [
        InspectionFinding("completeness", REVISION, f"Not met: {text[item.criterion]}", item.note, item.criterion)
        for item in results
        if not item.passed and item.criterion not in named
    ]


def _linked(
    state: MissionState, product: Product, finding: InspectionFinding, id: str
) -> tuple[MissionState, InspectionFinding]:
    """Link a finding to an open collab that covers it.

    If there is none and the severity is `REVISION` or more, raise one.
    """
    there = [item for item in state.about(product.id) if _can_stand(item, finding.severity)]
    stands = [item for item in there if item.id == finding.collab]
    if finding.severity >= REVISION:
        stands += [item for item in there if _same(state, item, finding)]
    if stands or finding.severity < REVISION:
        return state, replace(finding, collab=stands[0].id if stands else "")
    comment = "\n\n".join(_ended(text) for text in (finding.issue, finding.recommendation) if text)
    after, collab = feedback.raised(
        state, MissionStep.INSPECT, WATCHDOG, product.id, "concern", finding.severity, comment,
        one_line(finding.issue, _SUMMARY), id,
    )  # fmt: skip
    return after, replace(finding, collab=collab.id)


def _ended(text: str) -> str:
    """Return a text with a full stop, so that it can be shown in one line with the next one."""
    return text if text.endswith((".", "!", "?", ":", "…")) else f"{text}."


def _overtaken(state: MissionState, made: Inspection) -> MissionState:
    """Close the watchdog's own notes on criteria that it said were not met, and that are met now.

    A flag stays: the watchdog has to confirm it.
    """
    met = {item.criterion for item in made.results if item.passed}
    stands = {item.collab for item in made.findings}
    for collab in state.about(made.product):
        if collab.blocking or collab.id in stands or not (raised := state.inspections.get(collab.finding)):
            continue
        named = {item.criterion for item in raised.findings if item.collab == collab.id and item.criterion}
        if named and named <= met:
            state = feedback.closed(
                state, MissionStep.INSPECT, collab.id, WATCHDOG, "confirmed", "its criterion is met now"
            )
    return state


def _can_stand(collab: Collab, severity: int) -> bool:
    """True if an open collab is serious enough to cover a finding of this severity.

    A blocking finding needs a flag of the watchdog, because no other agent can close or waive it. A finding that
    demands a revision needs a collab of importance `REVISION` or more that is not an endorsement.
    """
    if severity >= BLOCKING:
        return collab.flag
    return severity < REVISION or (collab.importance >= REVISION and collab.kind != "endorsement")


def _same(state: MissionState, collab: Collab, finding: InspectionFinding) -> bool:
    """True if the watchdog said the same words in a collab, or (by earlier rules only) in an earlier finding."""
    said = folded(collab.summary) == folded(one_line(finding.issue, _SUMMARY))
    return said and collab.author == WATCHDOG and (bool(collab.finding) or state.rules >= 4)
