"""Builds the result of a mission and FINAL.md: what was accepted, what is missing, which concerns remain. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from cdo.cabal.files.by_hand import edited_calls, resting_on
from cdo.cabal.files.delivered_files import linked, places, spoken
from cdo.cabal.files.page_text import inert, prose
from cdo.cabal.model.entities import REVISION, Collab, Kind, Product, Status, Version
from cdo.cabal.model.names import speaker
from cdo.cabal.model.references import listed
from cdo.cabal.model.state import MissionState
from cdo.cabal.rules import acceptance, citations
from cdo.cabal.rules.objectives import proofs
from cdo.core.formatting import one_line, pluralise, visible
from cdo.formats.final_answer import final_section
from cdo.formats.markdown import neutralise as inert_markdown

_LONG = 4000  # most characters of one quoted text
_FLAGGED = ("missed", "unreviewed", "waived", "redefined", "stall", "edited")
_END = (".", "!", "?", "…")  # marks that end a sentence
# The kinds of events that the course of a round lists, in this order, with their labels.
_COURSE = (
    ("mission", "Start"), ("override", "Changed"), ("updated", "Changed"), ("redefined", "Changed"),
    ("stale", "Changed"), ("question", "Asked"),
    ("answer", "Answered"), ("user", "From you"), ("accepted", "Accepted"),
    ("reopened", "Reopened"), ("archived", "Archived"), ("waived", "Waived"),
    ("decided", "Decided"), ("version", "Versions"), ("unreviewed", "Unreviewed"), ("unfounded", "Citations"),
    ("inspection", "Verdicts"), ("command", "Commands"),
    ("standing", "By the record"), ("message", "Told to you"), ("missed", "Missed"), ("edited", "Edited"),
    ("stall", "Stall"), ("halt", "End"),
)  # fmt: skip


class Delivery(Struct, frozen=True):
    """The result of a mission: "done" or "unresolved", the reason `why` in words, and the number of rounds.

    `missing` has a sentence for each product that is not accepted; `flags` are other facts that a reader should know.
    """

    status: str
    why: str
    state: MissionState
    rounds: int
    missing: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()

    @classmethod
    def of(cls, state: MissionState) -> Delivery:
        """Return the result of a mission in this state.

        It is "done" only if it was halted as "done", the acceptance of every live product holds (and there is one),
        and the person has signed it off if that is asked for.
        """
        open_ = acceptance.unaccepted(state)
        signed = state.signed_off or not state.sign_off
        done = state.halt == "done" and bool(state.live()) and not open_ and signed
        missing = tuple(_sentence([f"{item.name} is not accepted: {_list(_lacks(state, item))}"]) for item in open_)
        flags = [f"round {event.round}: {event.text}" for event in state.events if event.kind in _FLAGGED]
        flags += [
            f"round {item.round}: {state.products[item.product].name} was archived, "
            f"and this {item.kind} of importance {item.importance} is still open: {item.summary}"
            for item in _buried(state)
        ]
        return cls("done" if done else "unresolved", state.why, state, state.round, missing, tuple(flags))


def _buried(state: MissionState) -> tuple[Collab, ...]:
    """Return the blocking collabs that are still open on archived products."""
    gone = {item.id for item in state.products.values() if item.status is Status.ARCHIVED}
    return tuple(item for item in state.collabs.values() if item.blocking and item.product in gone)


def _lacks(state: MissionState, item: Product) -> tuple[str, ...]:
    """Return why a live product is not accepted, for people: the children it waits for, then its own problems."""
    waiting = [child for child in state.children(item.id) if child.live and not acceptance.holds(state, child.id)]
    if not waiting:
        return acceptance.missing(state, item.id)
    pinned = state.acceptances.get(item.id)
    own = acceptance.missing_for_acceptance(
        state, item.id, pinned.waiver if pinned else "", (), {child.id for child in waiting}
    )
    return (f"it waits for {', '.join(child.name for child in waiting)}", *own)


def _list(clauses: Iterable[str]) -> str:
    """Join clauses with semicolons, without full stops."""
    return "; ".join(clause.rstrip(" .") for clause in clauses)


def _sentence(clauses: Iterable[str]) -> str:
    """Join clauses into one sentence with one end mark."""
    said = _list(clauses)
    return said if said.endswith(_END) else f"{said}."


def final(delivery: Delivery) -> str:
    """Return the body of FINAL.md."""
    state = delivery.state
    held = [item for item in state.live() if acceptance.holds(state, item.id)]
    parts = [
        ("Result", _result(delivery, len(held))),
        ("Objectives", _objectives(state)),
        ("Deliverables", _table(state)),
        ("Decisions", _decisions(state, held)),
        ("What is missing", _missing(state)),
        ("Concerns on record", _concerns(state)),
        ("Course", _course(state)),
        ("Questions and answers", _questions(state)),
    ]
    return "\n\n".join("\n".join([f"## {title}", "", *lines]) for title, lines in parts) + "\n"


def _result(delivery: Delivery, accepted: int) -> list[str]:
    state = delivery.state
    live, rounds = len(state.live()), pluralise(delivery.rounds, "round")
    if delivery.status == "done":
        told = f"**Done**: all of {pluralise(live, 'product')} accepted after {rounds}."
    elif not live:
        told = f"**Unresolved**: the mission was not set up after {rounds}."
    else:
        told = f"**Unresolved**: {accepted} of {pluralise(live, 'product')} accepted after {rounds}."
    why = [_sentence([prose(state, delivery.why)])] if delivery.why else []
    mission = state.mission.mission if state.mission else state.request
    return [" ".join([told, *why]), "", f"Mission: {prose(state, mission, _LONG)}"]


def _objectives(state: MissionState) -> list[str]:
    """Return each objective with the quote that proves it and where it stands, or why it is not proved."""
    files = places(state)
    lines = []
    for item in proofs(state):
        said = item.state
        if item.state == "met":
            quoted, noted = prose(state, spoken(state, item.quote)), prose(state, item.note)
            said = f"met: “{quoted}”" if quoted else f"met: {noted}"
        elif item.note:
            said = f"{item.state}: {prose(state, spoken(state, item.note), _LONG)}"
        if item.product:
            name, file = inert(state.products[item.product].name), files.get(item.product)
            said += f" ({f'[{name}]({file})' if file else name})"
        lines.append(f"- **{prose(state, spoken(state, item.text), _LONG)}**: {_sentence([said])}")
    return lines or ["None were set."]


def _by(state: MissionState, agent: str) -> str:
    name = speaker(state, agent)
    return inert(agent if name == agent else f"{name} ({agent})")


def _table(state: MissionState) -> list[str]:
    """Return a table of what was accepted and is delivered, with links to the files."""
    files = places(state)
    given = [item for item in state.live() if item.id in files or acceptance.holds(state, item.id)]
    if not given:
        return ["Nothing was accepted."]
    rows = ["| product | kind | version | author | criteria met | file |", "|---|---|---|---|---|---|"]
    for item in given:
        version = acceptance.delivered_version(state, item.id)
        pinned = state.acceptances.get(item.id) or state.earlier[item.id]
        found = state.inspections[pinned.inspection]
        met = {result.criterion for result in found.results if result.passed}
        count = f"{sum(criterion.id in met for criterion in item.dod)}/{len(item.dod)}"
        parts = pluralise(len(acceptance.parts(state, item.id)), "part")
        number, author = (f"{version.number} ({version.id})", _by(state, version.author)) if version else (parts, "")
        if version and version != state.latest(item.id):
            number += "; a newer one is not accepted"
        link = linked(files[item.id]) if item.id in files else ""
        cells = (inert(item.name), item.kind.value, number, author, count, link)
        rows.append(f"| {' | '.join(cells)} |")
    return rows


# -- decisions -------------------------------------------------------------------------------------


def _decisions(state: MissionState, held: Sequence[Product]) -> list[str]:
    """Return the outcome of each accepted Decision, and the minority reports on every Decision, accepted or not."""
    accepted = {item.id for item in held}
    lines: list[str] = []
    for item in state.live():
        if item.kind is not Kind.DECISION:
            continue
        latest = state.latest(item.id)
        if item.id in accepted and latest:
            outcome = prose(state, spoken(state, latest.outcome or latest.title))
            said = f"version {latest.number} ({latest.id}), {_by(state, latest.author)}"
            lines.append(f"- **{inert(item.name)}**: {outcome} ({said})")
        for version in state.history(item.id):
            lines += _minority(item, version, accepted=item.id in accepted)
    return lines or ["None was accepted."]


def _minority(product: Product, version: Version, *, accepted: bool) -> Iterator[str]:
    """Yield the minority reports in a version made by a deliberation, as a quotation."""
    said = final_section(version.content, "Minority Reports") if version.session else None
    if not said:
        return
    note = "" if accepted else ", which is not accepted"
    yield from ("", f"Minority reports on {inert(product.name)}, version {version.number} ({version.id}){note}:", "")
    yield from (f"> {line}".rstrip() for line in _harmless(said).split("\n"))
    yield ""


def _harmless(text: str) -> str:
    """Return untrusted Markdown with HTML, images, links and escape sequences made inert."""
    return inert_markdown(visible(text))


# -- what is open ----------------------------------------------------------------------------------


def _missing(state: MissionState) -> list[str]:
    lines = [
        f"- **{inert(item.name)}** ({item.kind.value}, {item.status.value.replace('_', ' ')}): "
        + _sentence(prose(state, why) for why in _lacks(state, item))
        + _draft(state, item)
        for item in acceptance.unaccepted(state)
    ]
    return lines or ["Nothing." if state.live() else "Everything: no product was planned."]


def _draft(state: MissionState, item: Product) -> str:
    """Return a link to the newest version of a product that is not accepted, as the end of its line."""
    latest = state.latest(item.id)
    if latest is None:
        return ""
    kept = acceptance.delivered_version(state, item.id)
    besides = f"; version {kept.number} stays delivered" if kept and kept != latest else ""
    return f" Draft, not accepted: [version {latest.number}]({item.folder}/{latest.id}.md){besides}."


def _concerns(state: MissionState) -> list[str]:
    """Return the concerns on live products, open ones first.

    Then follow collabs closed without a version that answers them, waivers, unreviewed versions and missing replies.
    """
    live = {item.id: item for item in state.live()}
    answered = {id for version in state.versions.values() for id in version.addresses}
    raised = [
        item
        for item in state.collabs.values()
        if item.product in live and item.importance >= REVISION and item.kind != "endorsement"
    ]
    open_ = [*(item for item in raised if item.open), *_buried(state)]
    closed = [item for item in raised if item.how == "waived" or (item.how == "replied" and item.id not in answered)]
    besides = [
        f"- **{inert(live[id].name)}** was accepted though a revision is wanted: "
        + _sentence([prose(state, item.waiver, _LONG)])
        for id, item in state.acceptances.items()
        if item.waiver and id in live
    ]
    alone = {(event.product, event.round) for event in state.events if event.kind == "unreviewed"}
    besides += [
        f"- **{inert(item.name)}** was reviewed by no peer in its newest version."
        for item in live.values()
        if (latest := state.latest(item.id)) and (item.id, latest.round) in alone
    ]
    besides += [
        f"- **{inert(live[id].name)}** was accepted, and cites what does not hold in the repository: "
        + _sentence([prose(state, citations.words(check), _LONG) for check in state.unfounded[accepted.version]])
        for id, accepted in state.acceptances.items()
        if id in live and accepted.version in state.unfounded
    ]
    besides += _by_hand(state)
    facts = (item for item in state.events if item.kind in ("redefined", "missed"))
    besides += [_sentence([f"- Round {item.round}: {prose(state, item.text)}"]) for item in facts]
    parts = [
        ("Still open:", [_concern(state, item) for item in open_]),
        ("Closed without a version that answers them:", [_concern(state, item) for item in closed]),
        ("Besides:", besides),
    ]
    lines = [line for title, told in parts if told for line in ("", title, "", *told)]
    return lines[1:] or ["None."]


def _by_hand(state: MissionState) -> Iterator[str]:
    """Yield the replies that the person edited, with what came of them, and the acceptances that rest on them."""
    for call in edited_calls(state):
        came = f". What came of it: {_list(prose(state, said) for said in call.came)}" if call.came else ""
        yield _sentence([f"- Round {call.round}: {prose(state, call.text)} (`{call.file}`){came}"])
    for item in state.live():
        if acceptance.holds(state, item.id) and (rests := resting_on(state, item.id)):
            came = f"{listed(rests)} comes from a reply that the user edited"
            yield f"- **{inert(item.name)}** was accepted, but {came}."


def _concern(state: MissionState, item: Collab) -> str:
    product = state.products[item.product]
    how = {"waived": "waived", "replied": "answered"}.get(item.how, "closed")
    end = (
        "open"
        if item.open
        else f"{how} by {_by(state, item.closed_by)}" + (f": {_list([prose(state, item.why)])}" if item.why else "")
    )
    archived = ", which is archived" if product.status is Status.ARCHIVED else ""
    said = f"{inert(item.kind)} of importance {item.importance}, {_by(state, item.author)}"
    summary, comment = (spoken(state, text) for text in (item.summary, item.comment))
    told = [_sentence([prose(state, comment, _LONG)])]
    if not _key(comment).startswith(_key(summary)):
        told.insert(0, _sentence([prose(state, summary)]))
    return f"- **{inert(product.name)}**{archived} ({said}; {end}): {' '.join(told)}"


def _key(text: str) -> str:
    """Return a text for comparison, without differences in case or end marks."""
    return one_line(text, _LONG).rstrip(" .…").casefold()


# -- how it went -----------------------------------------------------------------------------------


def _course(state: MissionState) -> list[str]:
    rounds: dict[int, dict[str, list[str]]] = {number: {} for number in range(state.round + 1)}
    words = dict(_COURSE)
    for event in state.events:
        if event.kind in words:
            told = rounds.setdefault(event.round, {}).setdefault(words[event.kind], [])
            told.append(prose(state, event.text))
    order = list(dict.fromkeys(words.values()))
    lines = []
    for number, happened in sorted(rounds.items()):
        lines.append(f"- **Round {number}**" + ("" if happened else ": nothing happened."))
        lines += [f"  - {word}: {_sentence(happened[word])}" for word in order if word in happened]
    return lines


def _questions(state: MissionState) -> list[str]:
    lines = [
        f"- **{prose(state, item.question, _LONG)}** {prose(state, item.answer or 'No answer yet.', _LONG)}"
        for item in state.questions
    ]
    return lines or ["None were asked."]
