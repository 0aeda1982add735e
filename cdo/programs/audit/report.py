"""Writes FINAL.md of an audit from what was counted and compared; no model writes it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from cdo.core.formatting import one_line, paid, pluralise
from cdo.programs.audit.program import AuditBrief, Audited, Order
from cdo.session.artifact import Artifact

_LINE = 240


def report(outcome: Audited, asked: Mapping[str, str], calls: int, cost: float | None) -> Artifact:
    """Return the whole report; its key `audits` names the audited session.

    `asked` names the model that each call asked. `calls` and `cost` are the audit's totals; `cost` is None if
    unknown.
    """
    brief = cast(AuditBrief, outcome.brief)
    sections = {
        "Verdict": [f"**{outcome.status}**: {outcome.why}.", "", *_table(brief, outcome.chairs, asked)],
        "Differences": _listed(_differences(outcome.chairs)),
        "Tensions": _listed(_tensions(brief, outcome.chairs)),
        "Cost": [f"{paid(cost, pluralise(calls, 'call'))}."],
        "What was tested": _tested(brief, outcome.chairs, asked),
    }
    body = "\n\n".join("\n".join([f"## {name}", "", *lines]) for name, lines in sections.items())
    return Artifact({}, body, {"audits": brief.source})


def _table(brief: AuditBrief, chairs: Sequence[Order], asked: Mapping[str, str]) -> list[str]:
    """Return the table of decisions and confidences, by order."""
    rows = [
        ["order", "model", "voices as they were read", "decision", "confidence", "exit-ready"],
        ["---"] * 6,
        [
            "first",
            ", ".join(brief.models),
            ", ".join(brief.first),
            "",
            _share(brief.confidence),
            _yes(brief.exit_ready),
        ],
    ]
    for chair in chairs:
        sure = f"{_share(brief.confidence)} → {_share(chair.confidence)}" if not chair.failed else ""
        ready = _yes(chair.directive.exit_ready) if chair.directive else ""
        rows.append(
            [str(chair.number), ", ".join(_models(chair, asked)), ", ".join(chair.voices), chair.verdict, sure, ready]
        )
    return [f"| {' | '.join(one_line(cell).replace('|', '/') for cell in row)} |" for row in rows]


def _models(chair: Order, asked: Mapping[str, str]) -> list[str]:
    """Return the models that the chair's calls really asked: a resume may have used others than the plan names."""
    names = [asked.get(f"t{chair.number}-{kind}", chair.model) for kind in ("synthesis", "final")]
    return [one_line(name) for name in dict.fromkeys(names)]


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _differences(chairs: Sequence[Order]) -> list[str]:
    """Return the differences that readers report, explaining A and B. Comparisons that disagree are both listed."""
    found = []
    for chair in chairs:
        for number, comparison in enumerate(chair.comparisons, 1):
            if comparison is None:
                found.append(f"order {chair.number}: comparison {number} is missing")
            elif comparison.same != "yes":
                a, b = ("the first decision", "this order's")[:: 1 if number == 1 else -1]
                said = [*comparison.differences] or [comparison.why]
                lead = f"order {chair.number}, same: {comparison.same} (A is {a}, B {b})"
                found += [f"{lead}: {one_line(item, _LINE)}" for item in said]
    return list(dict.fromkeys(found))


def _tensions(brief: AuditBrief, chairs: Sequence[Order]) -> list[str]:
    """Return where a chair's ledger of tensions differs from the first chair's; code compares them, no judge."""
    known = {item.id for item in brief.before}
    then = {_key(ident, title, known): (ident, title, status) for ident, title, status in brief.tensions}
    found = []
    for chair in (chair for chair in chairs if not chair.failed):
        now = {_key(item.id, item.title, known): item for item in chair.ledger}
        lead = f"order {chair.number}"
        for key, (ident, title, status) in then.items():
            if key not in now:
                found.append(f"{lead} leaves out {ident} ({status}): {one_line(title, _LINE)}")
            elif now[key].status != status:
                found.append(f"{lead}: {ident} is {now[key].status}, was {status}: {one_line(title, _LINE)}")
        found += [
            f"{lead} brings up {item.id} ({item.status}): {one_line(item.title, _LINE)}"
            for key, item in now.items()
            if key not in then
        ]
    return found


def _key(ident: str, title: str, known: set[str]) -> str:
    """Return the key for comparing tensions: the id if both chairs were given it, else the title."""
    return f"id {ident}" if ident in known else f"title {' '.join(title.casefold().split()).rstrip('.')}"


def _tested(brief: AuditBrief, chairs: Sequence[Order], asked: Mapping[str, str]) -> list[str]:
    heard = {name for chair in chairs for name in _models(chair, asked)}
    who = "another model" if heard.isdisjoint(brief.models) else "the same model"
    if heard - set(brief.models) and not heard.isdisjoint(brief.models):
        who = "the same model and others"
    swapped = any(chair.voices != brief.first for chair in chairs)
    lines = [
        f"- Tested: the last synthesis and the final answer of {brief.source}, by {who}"
        f"{', the voices read in other orders' if swapped else ', in the same order: there is only one voice'}.",
        "- Not tested: the voices' own answers, which were not asked again, and the turns before the last.",
        "- Whether two results decide the same is what readers said, asked twice with the two swapped; confidence, "
        "exit-readiness and tensions are compared by code.",
    ]
    if own := [str(chair.number) for chair in chairs if not chair.failed and _judged_itself(chair, asked)]:
        orders = f"{'order' if len(own) == 1 else 'orders'} {', '.join(own)}"
        lines.append(
            f"- The model that summed up {orders} also judged whether it decides the same: no other one did."
        )
    if heard <= set(brief.models):
        lines.insert(1, "- No other model summed up: this tests the order only, and not the judgement of the model.")
    return lines


def _judged_itself(chair: Order, asked: Mapping[str, str]) -> bool:
    """True if a model that summed up was also a reader of the result."""
    judges = {one_line(asked.get(f"t{chair.number}-comparison-{number}", chair.judge)) for number in (1, 2)}
    return not judges.isdisjoint(_models(chair, asked))


def _listed(items: Sequence[str]) -> list[str]:
    return [f"- {item}" for item in items] or ["None."]
