"""Renders the pages and facts of a mission as files. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cdo.cabal.files.delivered_files import spoken
from cdo.cabal.files.page_text import inert, page, prose
from cdo.cabal.files.person_files import LETTER
from cdo.cabal.files.serialization import collab_text, inspection_text, product_text, version_text
from cdo.cabal.model.entities import MissionEvent, Product, Status
from cdo.cabal.model.names import speaker
from cdo.cabal.model.state import MissionState
from cdo.cabal.rules import acceptance
from cdo.cabal.rules.presentation import STANDING
from cdo.core.formatting import one_line, pluralise

# The kinds of events that CHAT.md lists for a round, beside the messages of the team.
_TOLD = frozenset(
    ("version", "inspection", "accepted", "updated", "redefined", "waived", "reopened", "stale",
     "override", "missed", "command", "unreviewed", "unfounded", "decided", "user", "stall", "halt")
)  # fmt: skip


def files(after: MissionState, before: MissionState | None) -> tuple[dict[str, str], dict[str, str]]:
    """Return the files of `after` that may differ from `before`: projections, and files that are written once."""
    projections = {}
    if after.mission and (before is None or after.mission != before.mission):
        projections["mission.md"] = _mission(after)
    if before is None or _shape(after) != _shape(before):
        projections["TREE.md"] = _tree(after)
    if before is None or _talk(after) != _talk(before):
        projections["CHAT.md"] = _chat(after)
    old = before or MissionState("", ())
    for id, product in after.products.items():
        pins = [(state.acceptances.get(id), state.earlier.get(id)) for state in (after, old)]
        if product != old.products.get(id) or pins[0] != pins[1]:
            projections[f"{product.folder}/product.yaml"] = product_text(product, *pins[0])
    for id, collab in after.collabs.items():
        if collab != old.collabs.get(id):
            projections[f"{after.products[collab.product].folder}/{id}.md"] = collab_text(collab)
    kept = {
        f"{after.products[version.product].folder}/{id}.md": version_text(version)
        for id, version in after.versions.items()
        if id not in old.versions
    }
    kept |= {
        f"{after.products[item.product].folder}/{id}.md": inspection_text(item)
        for id, item in after.inspections.items()
        if id not in old.inspections
    }
    return projections, kept


def _shape(state: MissionState) -> tuple[Any, ...]:
    """Return the fields that TREE.md depends on."""
    return (
        state.products, state.versions, state.collabs, state.inspections, state.acceptances, state.mission,
        state.round, state.halt,
    )  # fmt: skip


def _talk(state: MissionState) -> tuple[Any, ...]:
    """Return the fields that CHAT.md depends on."""
    # Events and reasons wait for the next message. After the last one they are written at once.
    rest = (len(state.events), len(state.rationales)) if state.halt else ()
    return state.messages, state.questions, state.mission, state.round, state.halt, rest


def _named(state: MissionState, agent: str | None) -> str:
    """Return an agent's name and id."""
    if agent is None:
        return "nobody yet"
    name = speaker(state, agent)
    return agent if name == agent else f"{inert(name)} ({agent})"


# -- mission.md ------------------------------------------------------------------------------------


def _mission(state: MissionState) -> str:
    mission = state.mission
    assert mission is not None
    domains = [
        f"- **{_named(state, agent)}**, {inert(area)}: {inert(responsibility)}"
        for agent, (responsibility, area) in mission.domains.items()
    ]
    personas = [f"- **{agent}**: {prose(state, text, LETTER)}" for agent, text in mission.personas.items()]
    parts = [
        ("# Mission", [prose(state, mission.mission, LETTER)]),
        ("## Objectives", [f"- {prose(state, line, LETTER)}" for line in mission.objectives]),
        ("## Constraints", [f"- {prose(state, line, LETTER)}" for line in mission.constraints] or ["None."]),
        ("## Personas", personas or ["None."]),
        ("## Domains", domains or ["None."]),
    ]
    body = "\n\n".join("\n".join([title, "", *lines]) for title, lines in parts)
    return page({"request": one_line(state.request, 300), "team": list(state.agents)}, body, noted=True)


# -- TREE.md ---------------------------------------------------------------------------------------


def _tree(state: MissionState) -> str:
    live = state.live()
    accepted = sum(product.status is Status.ACCEPTED for product in live)
    head = {
        "round": state.round,
        "accepted": accepted,
        "live": len(live),
        "blockers": sum(item.blocking for item in state.collabs.values()),
        "halt": state.halt or "no",
    }
    changes: dict[str, list[str]] = {}
    for event in state.events:
        if event.kind == "redefined":
            changes.setdefault(event.product, []).append(f"Round {event.round}: {prose(state, event.text)}")
    rows = [
        line
        for product, depth in state.walk()
        for line in (*_node(state, product, depth), *_below(depth, changes.get(product.id, ())))
    ]
    gone = [f"- {inert(item.name)} ({item.id})" for item in state.products.values() if item.status is Status.ARCHIVED]
    body = [f"# Product tree after round {state.round}", "", *(rows or ["There are no products yet."])]
    return page(head, "\n".join([*body, *(["", "## Archived", "", *gone] if gone else [])]), noted=True)


def _node(state: MissionState, product: Product, depth: int) -> list[str]:
    latest = state.latest(product.id)
    version = (
        f"version {latest.number} ([{latest.id}]({product.folder}/{latest.id}.md))"
        if latest
        else pluralise(sum(child.live for child in state.children(product.id)), "part")
        if product.container
        else "no version"
    )
    status = "the chair's own" if product.meta else product.status.value.replace("_", " ")
    facts = [status, f"owner {_named(state, product.owner)}", version]
    kind = f"{product.kind.value} {inert(product.path)}" if product.path else product.kind.value
    line = f"- **{inert(product.name)}** ({product.id}, {kind}): {', '.join(facts)}"
    lacking = (
        ()
        if product.meta or product.status is Status.ACCEPTED
        else acceptance.missing_for_acceptance(state, product.id)
    )
    return ["  " * depth + line, *_below(depth, (f"✗ {prose(state, why)}" for why in lacking))]


def _below(depth: int, notes: Iterable[str]) -> list[str]:
    """Return notes as items below a product's line."""
    return ["  " * (depth + 1) + f"- {note}" for note in notes]


# -- CHAT.md ---------------------------------------------------------------------------------------


def _chat(state: MissionState) -> str:
    said: dict[int, list[str]] = {}
    for event in state.events:
        if event.kind == STANDING:  # before all messages of a round: it is what they are held against
            said.setdefault(event.round, []).extend([f"**By the record:** {prose(state, event.text)}", ""])
    for question in state.questions:
        lines = said.setdefault(question.round, [])
        lines.append(f"**The team asks you:** {prose(state, question.question, LETTER)}")
        lines += [f"- {prose(state, option)}" for option in question.options]
        answer = prose(state, question.answer, LETTER)
        lines += ["", f"**You:** {answer}" if answer else "*No answer yet.*", ""]
    for message in state.messages:
        said.setdefault(message.round, []).extend(
            [f"**{_named(state, message.agent)}:** {prose(state, message.content, LETTER)}", ""]
        )
    facts: dict[int, list[MissionEvent]] = {}
    for event in state.events:
        if event.kind in _TOLD:
            facts.setdefault(event.round, []).append(event)
    reasons: dict[int, list[str]] = {}
    for item in state.rationales:
        line = f"- {_named(state, item.agent)}, {item.step}: {prose(state, spoken(state, item.text), LETTER)}"
        reasons.setdefault(item.round, []).append(line)
    body = ["# Chat"]
    for round in sorted({*said, *facts, *reasons}):
        told = [f"- {prose(state, event.text)}" for event in facts.get(round, ())]
        why = reasons.get(round, ())
        above = [] if state.rules >= 5 and not body[-1] else [""]
        body += [*above, f"## Round {round}", "", *said.get(round, ())]
        body += [*(["Facts:", "", *told, ""] if told else []), *(["Reasons:", "", *why] if why else [])]
    head = {"rounds": state.round, "messages": len(state.messages)}
    return page(head, "\n".join(body if body[1:] else [*body, "", "Nothing was said yet."]).rstrip(), noted=True)
