"""Prepares an audit from a replayed session: its brief, frozen files, plan and cost estimate."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from cdo import __version__
from cdo.content.library import Library
from cdo.core.errors import SessionError, UsageError
from cdo.core.exchange import Usage
from cdo.core.formatting import one_line
from cdo.core.steps import Call
from cdo.core.usage import estimate_tokens
from cdo.formats.final_answer import unmarked
from cdo.planning.estimate import BRIEF_TOKENS, PACE, REPLY_TOKENS, Range
from cdo.planning.plan import AUDIT, Plan
from cdo.planning.settings import Settings
from cdo.programs.audit.program import BRIEF, DECISION, AuditBrief, freeze, frozen_name, orders
from cdo.programs.deliberation.conclusion import Outcome, from_record
from cdo.providers import models
from cdo.providers.models import ModelSpec
from cdo.repository.context import Context
from cdo.security.secrets import redactor
from cdo.session.reader import SessionReader
from cdo.session.records import group_file
from cdo.session.session_file import read_frozen

if TYPE_CHECKING:
    from cdo.app.replay import ReplayRun
    from cdo.formats.voice_blocks import Directive

STEPS = 3  # sequential steps of an audit: syntheses, final answers, comparisons


def refuse(archive: SessionReader, plan: Plan) -> None:
    """Raise `SessionError` for a session that cannot be audited."""
    if plan.mode == AUDIT:
        raise SessionError(f"{archive.place} is an audit itself.", "Name the session that it audits.")
    if plan.mode:
        what = f"{plan.mode} ends by rules of its own, not by its last synthesis"
        raise SessionError(f"{archive.place} cannot be audited: {what}.", "Read FINAL.md, which holds its record.")
    if "FINAL.md" not in archive.files():
        raise SessionError(
            f"{archive.place} has no FINAL.md yet.", f"`cdo resume {archive.name}` goes on with it; then audit it."
        )


def begin(rehearsed: ReplayRun, wanted: int) -> AuditBrief:
    """Return the brief of an audit in at most `wanted` orders of voices, or in the original order if no other exists.

    Raises `SessionError` if the replay does not reach the end of the session, or if a person edited a file after
    recorded calls had read it.
    """
    place = rehearsed.then.place
    if edited := _unweighed(rehearsed):
        raise SessionError(
            f"{', '.join(edited)} {'was' if len(edited) == 1 else 'were'} edited since {rehearsed.then.name} ended.",
            f"`cdo resume {rehearsed.then.name}` first: it weighs that; then audit it.",
        )
    if not isinstance(rehearsed.outcome, Outcome):
        raise SessionError(
            f"{place} cannot be run again from its record: {rehearsed.stopped}",
            f"`cdo replay {rehearsed.then.name}` shows where it leaves the record.",
        )
    synthesis = next(call for call in reversed(rehearsed.calls) if call.kind == "synthesis")
    final = from_record(_final(rehearsed))
    kept = rehearsed.kept[synthesis.name]
    directive: Directive = synthesis.format.parse(kept.reply)
    first = tuple(voice["name"] for voice in synthesis.data["voices"])
    asked = (str(rehearsed.kept[call.name].own.get("model") or "") for call in (synthesis, final))
    return AuditBrief(
        source=rehearsed.then.name,
        models=tuple(dict.fromkeys(filter(None, asked))) or rehearsed.plan.models[:1],
        first=first,
        orders=orders(first, wanted) or (first,),
        synthesis=freeze(synthesis),
        final=freeze(final),
        confidence=rehearsed.outcome.confidence,
        exit_ready=directive.exit_ready,
        tensions=tuple((item["id"], item["title"], item["status"]) for item in final.data["tensions"]),
    )


def _final(rehearsed: ReplayRun) -> Call:
    return next(call for call in rehearsed.calls if call.name == "final")


def _unweighed(rehearsed: ReplayRun) -> list[str]:
    """Return the files that a person edited after calls had read them."""
    from cdo.app.replay import edited

    by_hand = set(edited(rehearsed.then))
    files = dict.fromkeys(f"{name}.md" for names in rehearsed.elsewise.values() for name in names)
    return [file for file in files if file in by_hand or file.startswith(("00-", "skills/"))]


def files(rehearsed: ReplayRun, brief: AuditBrief) -> dict[str, str | bytes]:
    """Return the initial files of the audit's session: the frozen texts, and the brief as its first record.

    The texts are as calls read them, with citation marks and without cdo's own keys, so that they contain no model
    names.
    """
    calls = [call for call in rehearsed.calls if call.kind == "synthesis"][-1:]
    calls.append(from_record(_final(rehearsed)))
    last = calls[0].name
    names = {name for call in calls for name in call.reads if name != last}
    found: dict[str, str | bytes] = {"00-context.md": Context((), (), 0).markdown()}
    for name in sorted(names):
        text = rehearsed.texts.get(name) or rehearsed.then.text(f"{name}.md") or ""
        found[f"{frozen_name(name)}.md"] = text
    found[f"{DECISION}.md"] = f"{unmarked(rehearsed.kept['final'].body).strip()}\n"
    text = redactor(os.environ)(msgspec.json.encode(brief).decode())
    file, data = group_file(1, [{"kind": "collected", "name": BRIEF, "items": [{"file": "brief", "text": text}]}])
    return {**found, f"calls/{file}": data}


def plan(source: Plan, brief: AuditBrief, specs: Sequence[ModelSpec]) -> Plan:
    """Return the plan of an audit, with its own voices and turns instead of the source's.

    Raises `UsageError` if neither the models nor the order of the voices would differ from the source.
    """
    if [brief.first] == list(brief.orders) and _same_chair(brief, specs):
        raise UsageError(f"There is one voice in {brief.source}, and no other model.", "Name another one with -m.")
    return Plan(
        preset=AUDIT,
        why=f"the last synthesis and FINAL.md of {brief.source} are written again",
        mode=AUDIT,
        width=(1, len(brief.first)),
        start=len(brief.first),
        turns=(1, len(brief.orders)),
        adaptive=False,
        roles=source.roles,
        known_roles=source.known_roles,
        models=tuple(spec.name for spec in specs),
        vendors={spec.name: spec.vendor for spec in specs},
        criteria=source.criteria,
        bounds=source.bounds,
    )


def another(chairs: Sequence[str], source: Plan, settings: Settings, library: Library, ollama: object) -> str:
    """Return the default model for an audit: preferably of a vendor that the source did not use, else another model.

    If there is no other model, return the first of `chairs`, the source's models. Agents come last. Raises
    `ConfigError`.
    """
    found = [name for name, _ in models.available(library, os.environ, ollama)]
    specs = [models.resolve(name, library, settings.prices, os.environ) for name in (*settings.model, *found)]
    vendors = {*source.vendors.values(), ""}
    others = sorted((spec for spec in specs if spec.name not in chairs), key=lambda spec: spec.route == "command")
    strange = (spec.name for spec in others if spec.vendor not in vendors)
    return next(strange, others[0].name if others else chairs[0])


def remarks(
    brief: AuditBrief, specs: Sequence[ModelSpec], source: Mapping[str, str], rehearsed: ReplayRun
) -> list[str]:
    """Return the remarks to show before the audit begins; `source` are the vendors of the source's models."""
    found = []
    if _same_chair(brief, specs):
        found.append("No other model is here: this tests the order of the voices only. Name another one with -m.")
    elif {spec.vendor for spec in specs} <= {source.get(name, "") for name in brief.models} - {""}:
        found.append("The chair is of the same vendor as before: models of one maker share their errors.")
    if [brief.first] == list(brief.orders):
        found.append("There is one voice, and no other order to read it in: this tests the model only.")
    return [*found, *_since(rehearsed)]


def _since(rehearsed: ReplayRun) -> Iterator[str]:
    """Yield remarks on what has changed since the session ended: edits, inputs, and the version of cdo."""
    from cdo.app.replay import edited

    then = rehearsed.then
    if "FINAL.md" in edited(then):
        yield "FINAL.md was edited: the decision is audited as a person left it."
    last = next(call.name for call in reversed(rehearsed.calls) if call.kind == "synthesis")
    if changed := [name for name in rehearsed.elsewise if name in (last, "final")]:
        yield f"Today's cdo asks {', '.join(changed)} from other inputs than then; the audit asks as today's does."
    made_by = read_frozen(then.text("session.yaml"), Path(then.place)).cdo
    if made_by != __version__:
        yield f"{then.name} was made by cdo {one_line(made_by, 20)}; the audit asks in the words of {__version__}."


def _same_chair(brief: AuditBrief, specs: Sequence[ModelSpec]) -> bool:
    return {spec.name for spec in specs} <= set(brief.models)


def estimate(brief: AuditBrief, texts: Mapping[str, str | bytes], specs: Sequence[ModelSpec]) -> Range:
    """Estimate an audit without retries: each order takes a synthesis, a final answer and two comparisons."""
    sizes = {name: estimate_tokens(text) for name, text in texts.items() if isinstance(text, str)}

    def prompt(names: Sequence[str]) -> int:
        return BRIEF_TOKENS + sum(sizes.get(f"{name}.md", 0) for name in names)

    asked, again = prompt(brief.synthesis.reads), prompt(brief.final.reads)
    count, decision = len(brief.orders), sizes.get(f"{DECISION}.md", 0)
    spans = []
    for reply in (REPLY_TOKENS // 2, REPLY_TOKENS * 2):
        total, cost, known = 0, 0.0, True
        for number in range(count):
            chair, judge = specs[number % len(specs)], specs[(number + 1) % len(specs)]
            for spec, size in (
                (chair, asked),
                (chair, again + reply),
                *[(judge, BRIEF_TOKENS + decision + reply)] * 2,
            ):
                total += size + reply
                price = spec.cost(Usage(size, reply))
                known, cost = known and price is not None, cost + (price or 0.0)
        spans.append((total, cost if known else None))
    (low, least), (high, most) = spans
    return Range(
        calls=(4 * count, 4 * count),
        tokens=(low, high),
        cost=None if least is None or most is None else (least, most),
        seconds=(STEPS * PACE[0], STEPS * PACE[1]),
    )
