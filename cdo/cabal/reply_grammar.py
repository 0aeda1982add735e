"""Builds a grammar that restricts a small model's reply in each step: valid ids, fixed keys, short texts. Pure.

A model of 135M parameters knows no ids and follows no rules, so the grammar lists the choices that the state leaves
open: products, criteria, lines of a version that can be quoted. If the rules leave only one choice, the grammar makes
it: a mission ends as soon as all products can be accepted. Such a model cannot request context, and it judges badly:
it may demand a revision, but it cannot block (severities end at 7). The mission is the request in the user's words,
and what the envoy tells are the texts of events.

Free texts have only letters and simple punctuation, so they contain no ids or references and are always valid JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from cdo.cabal.model.entities import InspectionVerdict, Kind, MissionStep, Product
from cdo.cabal.model.events import told
from cdo.cabal.model.state import MissionState
from cdo.cabal.rules.acceptance import acceptance_status, current, held
from cdo.cabal.rules.criteria import evidence, material
from cdo.cabal.rules.feedback import renewed
from cdo.cabal.rules.presentation import tellable
from cdo.core.formatting import one_line
from cdo.core.mission_names import CHAIR
from cdo.formats import gbnf

# A letter, or the blank before the next word and its first letter. Digits, signs and capitals within words are left
# out: in a JSON string, a small model soon starts to write code, version numbers and addresses, and does not stop.
_LETTER = """[a-z'] | [,;]? " " [A-Za-z]"""
_MOST = 6  # most items of one kind, if a reply need not have them all
_HEADING = 80  # characters of a heading
_ASKED, _TOLD = 300, 200  # most characters of the request as a mission, and of an event as a message
_TYPES = ("feedback", "question", "suggestion", "concern", "endorsement")  # the last is not allowed on own products
_PIECE = re.compile(r"(?<!\w)[ -~]{2,60}(?!\w)")
_MARK = r'"\""'  # a quotation mark
_SECTIONS = 1000  # most characters of all paragraphs of a reply's versions


def grammar(step: MissionStep, agent: str, state: MissionState, about: Sequence[str] = ()) -> str:
    """Return a GBNF grammar for a reply of `agent` in `step`; `about` are the products that the step is about."""
    root = {
        MissionStep.BOOTSTRAP: _bootstrap,
        MissionStep.REFLECT: _reflect,
        MissionStep.PLAN: _plan,
        MissionStep.WRITE: _write,
        MissionStep.REVIEW: _review,
        MissionStep.INSPECT: _inspect,
        MissionStep.PRESENT: _present,
    }[step]
    rules = {**_texts(), "letter": _LETTER, "degree": gbnf.integer(1, 7), "weight": gbnf.integer(5, 9)}
    rules.update(root(agent, state, tuple(about)))
    return gbnf.grammar(rules)


def _texts() -> dict[str, str]:
    """Return the rules for texts. Most have a fixed beginning, else a small model leaves English or the topic."""
    return {
        "name": _said(6, 40),
        "area": _said(4, 24),
        "duty": _said(12, 50, "Write about "),
        "covers": _said(8, 50, "Covers "),  # two beginnings, because no two criteria may have the same text
        "explains": _said(8, 50, "Explains "),
        "goal": _said(12, 70, "Describe "),
        "news": _said(10, 50, "Adds "),
        "outcome": _said(12, 70, "We choose "),
        "comment": _said(16, 80, "The text "),
        "topic": _said(6, 30, "About "),
        "lack": _said(8, 50, "It does not say "),
        "advice": _said(8, 50, "Say "),
        "voice": _said(20, 120, "We "),
    }


# -- the steps -------------------------------------------------------------------------------------


def _bootstrap(agent: str, state: MissionState, about: tuple[str, ...]) -> dict[str, str]:
    product = _object({"name": "name", "type": _json("Content"), "dod": '"[" covers (", " explains)? "]"'})
    fields = {
        "mission": _json(told(state, state.request, _ASKED)),  # in the user's words: it would invent another one
        "objectives": '"[" goal ", " goal "]"',
        "constraints": _json([]),
        "personas": _json({}),
        "operative_domains": _object(dict.fromkeys(state.team[:3], "domain")),
        "initial_products": '"[" product (", " product)? "]"',
    }
    return {
        "root": _final(fields),
        "product": product,
        "domain": _object({"responsibility": "duty", "area": "area"}),
    }


def _reflect(agent: str, state: MissionState, about: tuple[str, ...]) -> dict[str, str]:
    owned = about or tuple(item.id for item in state.owned(agent))
    reflections = [
        _object(
            {
                "refersToProduct": _json(product),
                "dod_gaps": '"[" lack? "]"',
                "dod_status": "status",
                "feedback_responses": _list(
                    _object({"collab_id": _json(item.id), "rationale": "comment", "action": "action"})
                    for item in state.about(product)[:2]
                ),
                "next_version_delta": "goal",
            }
        )
        for product in owned[:4]
    ]
    return {
        "root": _final({"reflections": _list(reflections)}),
        "status": _choice("not_met", "partially_met", "met"),
        "action": _choice("accept", "defer", "reject"),
    }


def _plan(agent: str, state: MissionState, about: tuple[str, ...]) -> dict[str, str]:
    lacking = acceptance_status(state)
    left = [item for item in state.live() if lacking.get(item.id)]
    if not left:
        halt = _object({"type": _json("done"), "message": "voice"})
        return {"root": _object({"response_type": _json("halt"), "halt": halt})}
    assignments = [
        _object(
            {
                "product_id": _json(item.id),
                "assignee_ids": f'"[" {_json(item.owner) if item.owner in state.team else "writer"} "]"',
                "directive": _object({"importance": "weight", "objective": "goal"}),
                "address": _json([collab.id for collab in state.about(item.id)][:_MOST]),
            }
        )
        for item in _unfinished(state, left)[:_MOST]
    ]
    return {
        "root": _final({"assignments": _list(assignments)}),
        "writer": _choice(*state.team),
    }


def _write(agent: str, state: MissionState, about: tuple[str, ...]) -> dict[str, str]:
    assigned = about or tuple(item.product for item in state.assignments.values() if item.writer == agent)
    sections = sum(max(1, len(_headings(state, item))) for item in assigned) or 1
    high = max(60, min(240, _SECTIONS // sections))
    return {
        "root": _final({"versions": _list(_version(state, item) for item in assigned)}),
        "section": 'sentence (" " sentence){1,2}',
        "sentence": f"[A-Z] {gbnf.repeat('letter', high // 6, high // 3)} [.!?]",
    }


def _review(agent: str, state: MissionState, about: tuple[str, ...]) -> dict[str, str]:
    collabs = [
        _object(
            {
                "refersToProduct": _json(product),
                "type": _choice(*_TYPES[: 4 if state.products[product].owner == agent else 5]),
                "importance": "degree",
                "comment": "comment",
                "shortestSummary": "topic",
            }
        )
        for product in about[:_MOST]
    ]
    own = [id for id in _settled(state) if state.collabs[id].author == agent]
    return {"root": _final({"collabs": _list(collabs), "confirms": _subset(own)})}


def _inspect(agent: str, state: MissionState, about: tuple[str, ...]) -> dict[str, str]:
    failed = gbnf.literal('false, "note": ') + " lack"
    finding = {"category": "category", "issue": "lack", "severity": "degree", "recommendation": "advice"}
    rules = {
        "category": _choice("security", "completeness", "coherence", "integration", "quality"),
        "finding": _object(finding),
    }
    items = []
    for product in about:
        quotes, latest = _quotes(state, product), state.latest(product)
        passed = gbnf.literal('true, "quote": ') + f" {_choice(*quotes)}" if quotes else ""
        rules[f"met-{product}"] = gbnf.either(*filter(None, (passed, failed)))
        criteria = (
            _object({"criterion_id": _json(item.id), "passed": f"met-{product}"})
            for item in state.products[product].dod
            if item.check.kind == "judged"  # code tests the others
        )
        fields = {
            "product_id": _json(product),
            **({"version_id": _json(latest.id)} if latest else {}),
            "criteria": _list(criteria),
            "findings": '"[" finding? "]"',
        }
        items.append(_object(fields))
    flags = [item for product in about[:_MOST] for item in state.about(product) if item.flag]
    closed = [item.id for item in flags if renewed(state, item)]  # it closes all: one left open asks for a finding
    fields = {"inspections": _list(items), "confirms": _all(closed) if closed else _subset(_settled(state))}
    if mistaken := [item.id for item in flags if item.id not in closed]:
        fields["withdraws"] = _all(mistaken)
    return {**rules, "root": _final(fields)}


def _present(agent: str, state: MissionState, about: tuple[str, ...]) -> dict[str, str]:
    events = [item for item in state.events if item.round == state.round and item.kind != "message"]
    true = {item.id: item.text for item in events if tellable(state, item)}
    true = dict([*true.items()][-2 * _MOST :]) or {
        events[-1].id if events else "e1": "The team went on with its work"
    }
    messages = (
        _object({"content": _json(one_line(text, _TOLD)), "as_agent": "speaker", "events": _json([id])})
        for id, text in true.items()
    )
    return {
        "root": _final({"messages": '"[" message (", " message){0,2} "]"'}),
        "message": gbnf.either(*messages),
        "speaker": _choice(CHAIR, *state.team),
    }


# -- choices that depend on the state --------------------------------------------------------------


def _unfinished(state: MissionState, left: Sequence[Product]) -> list[Product]:
    """Return products to be written: those not yet acceptable; if none, those in containers that did not pass."""
    leaves = [item for item in left if not item.container]
    if leaves:
        return leaves
    failed = [
        item.id
        for item in left
        if (seen := current(state, item.id)) and seen.verdict is not InspectionVerdict.APPROVED
    ]
    return [child for item in failed for child in held(state, item) if not child.container and not child.meta]


def _settled(state: MissionState) -> list[str]:
    """Return the blocking collabs that may be confirmed: their products have newer versions."""
    return [id for id, item in state.collabs.items() if item.blocking and renewed(state, item)]


def _headings(state: MissionState, product: str) -> list[str]:
    """Return the headings of a version: one for each criterion, at most four, and in a later version new ones.

    The new ones are one for each collab that it has to answer, at most two, or else one for the order's objective: so
    even a model that copies the last version has to write something new.
    """
    item, order = state.products[product], state.assignments.get(product)
    heads = [criterion.text for criterion in item.dod[:4]]
    if order and item.versions:
        heads += [state.collabs[id].summary for id in order.address[:2]] or [order.objective]
    return [one_line(head, _HEADING) for head in heads]


def _version(state: MissionState, product: str) -> str:
    """Return the rule for a version: a title, a section for each heading, and the collabs that it addresses."""
    item, order = state.products[product], state.assignments.get(product)
    heads = [f"## {text}\n\n" for text in _headings(state, product)] or [""]
    heads[0] = f"# {one_line(item.name, _HEADING)}\n\n{heads[0]}"
    parts = [f"{_inside(head)} section" for head in (heads[0], *(f"\n\n{head}" for head in heads[1:]))]
    fields = {
        "product_id": _json(product),
        "title": _json(one_line(item.name, _HEADING)),
        "content": " ".join([_MARK, *parts, _MARK]),
        "change_summary": "news",
        **({"outcome": "outcome"} if item.kind is Kind.DECISION else {}),
        "addresses": _json(list(order.address if order else ())),
    }
    return _object(fields)


def _quotes(state: MissionState, product: str) -> list[str]:
    """Return up to four pieces of a product's texts that count as evidence, prose before headings."""
    texts = material(state, product)
    lines = [line.strip() for text in texts for line in text.splitlines()]
    lines.sort(key=lambda line: line.startswith("#"))
    found = (_quotable(line, texts) for line in dict.fromkeys(lines))
    return list(dict.fromkeys(islice(filter(None, found), 4)))


def _quotable(line: str, texts: Sequence[str]) -> str:
    """Return the first piece of a line that counts as evidence, "" if none does."""
    return next((piece for part in re.findall(_PIECE, line) if evidence(piece := part.strip(), texts)), "")


# -- pieces of JSON --------------------------------------------------------------------------------


def _said(low: int, high: int, opening: str = "") -> str:
    """Match a quoted text of about `low` to `high` characters after its `opening`; `...` ends a text that is cut."""
    start = f"{gbnf.literal(opening)} [a-z]" if opening else "[A-Z]"
    letters = f"letter{{{low - 1},{high - 5}}} | letter{{{high - 4}}} {gbnf.literal('...')}"
    return f"{_MARK} {start} ({letters}) {_MARK}"


def _json(value: Any) -> str:
    """Match exactly this value."""
    return gbnf.literal(json.dumps(value))


def _inside(text: str) -> str:
    """Match exactly this text, as part of a string."""
    return gbnf.literal(json.dumps(text)[1:-1])


def _choice(*texts: str) -> str:
    """Match one of these texts, between quotes."""
    return gbnf.choice(json.dumps(text) for text in texts)


def _subset(ids: Sequence[str]) -> str:
    """Match a list of none, one or all of the ids (the first `_MOST` of them)."""
    return gbnf.choice(json.dumps(some) for some in ([], *([id] for id in ids[:_MOST]), list(ids[:_MOST])))


def _all(ids: Sequence[str]) -> str:
    """Match the list of exactly these ids."""
    return gbnf.literal(json.dumps(list(ids)))


def _list(expressions: Iterable[str]) -> str:
    """Match a list of exactly these expressions."""
    return f'"[" {found} "]"' if (found := ' ", " '.join(expressions)) else '"[]"'


def _object(fields: Mapping[str, str]) -> str:
    """Match an object with these keys in this order."""
    heads = (("{" if number == 0 else ", ") + json.dumps(key) + ": " for number, key in enumerate(fields))
    parts = (f"{gbnf.literal(head)} {value}" for head, value in zip(heads, fields.values(), strict=True))
    return " ".join([*parts, '"}"'])


def _final(fields: Mapping[str, str]) -> str:
    return _object({"response_type": _json("final_output"), **fields})
