"""Renders a mission as one self-contained page: turns its states into data that a template puts into words.

Texts of agents, people and files enter the page as in `cdo.report.page`: escaped, or as inert Markdown. Versions are
linked; the page embeds one version of each product, cut if it is long.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from msgspec import Struct

from cdo import __version__
from cdo.cabal.files.by_hand import edited_calls
from cdo.cabal.files.delivered_files import called, places
from cdo.cabal.model import names
from cdo.cabal.model.entities import (
    BLOCKING,
    Acceptance,
    Collab,
    CriterionResult,
    Inspection,
    Kind,
    MissionEvent,
    MissionStep,
    Product,
    Question,
    Status,
    Version,
)
from cdo.cabal.model.product_files import is_code
from cdo.cabal.model.references import REFERENCE
from cdo.cabal.model.state import MissionState
from cdo.cabal.rules import acceptance, citations, objectives
from cdo.core.formatting import one_line
from cdo.core.steps import Ask
from cdo.core.usage import NOTHING, TotalUsage
from cdo.formats.final_answer import final_section
from cdo.report import charts, safe_html
from cdo.report.mission_costs import Costs, made, summed
from cdo.report.page import NAME, Papers, Standing, words
from cdo.report.rendering import PageTemplates, ServedPage
from cdo.session.session_file import read_frozen

if TYPE_CHECKING:
    from cdo.content.library import Library
    from cdo.session.reader import SessionReader

PAGE = "templates/cabal/report"
MANY = 12  # with more products than this, each is folded
LIMIT = 4_000  # most characters of a version in the page
LONG, SHORT = 500, 140  # most characters of a quoted text, in pages of few and of many products
_TOLD = frozenset((
    "mission", "created", "updated", "moved", "archived", "reopened", "lapsed", "unreviewed", "waived",
    "stale", "override", "halt", "stall", "missed", "user", "decided", "unfounded", "edited", "redefined",
    "command",
))  # fmt: skip
_ABOUT = re.compile(r"(?<=-)p[1-9][0-9]*(?=-|$)")  # the product in the name of a call
_CODE = re.compile("(?<!`)`([^`<>]+)`(?!`)")  # a code span in escaped text
ITEM = TypeVar("ITEM")
KEY = TypeVar("KEY", bound=Hashable)


class MissionCourse(Protocol):
    """The data of a replayed session that a page needs: its states, and its open question."""

    @property
    def state(self) -> MissionState: ...
    @property
    def rounds(self) -> Sequence[MissionState]: ...
    @property
    def question(self) -> Ask | None: ...


class ProductRow(Struct, frozen=True):
    """A product as the tree and its own section show it.

    `shown` is the accepted version, else the latest one. `accepted` is the acceptance if it holds. `results` are the
    results of the newest inspection by criterion; `holds` is False if that inspection is stale. `lacking` says why
    the product is not accepted; `waiting` are its children that are not accepted.
    """

    product: Product
    depth: int
    versions: tuple[Version, ...]
    shown: Version | None
    inspections: tuple[Inspection, ...]
    holds: bool
    results: Mapping[str, CriterionResult]
    accepted: Acceptance | None
    collabs: tuple[Collab, ...]
    lacking: tuple[str, ...]
    waiting: tuple[Product, ...]
    spent: TotalUsage

    @property
    def met(self) -> int:
        """The number of met criteria of its definition of done."""
        return sum(item.id in self.results and self.results[item.id].passed for item in self.product.dod)

    @property
    def blockers(self) -> tuple[Collab, ...]:
        """Its blocking collabs."""
        return tuple(item for item in self.collabs if item.blocking)


class RoundSection(Struct, frozen=True):
    """The events of one round. `now` is the state at its end; `told` are events that no other field contains."""

    number: int
    now: MissionState
    versions: tuple[Version, ...]
    reviews: tuple[Collab, ...]
    raised: tuple[Collab, ...]
    inspections: tuple[Inspection, ...]
    closed: tuple[Collab, ...]
    accepted: tuple[MissionEvent, ...]
    told: tuple[MissionEvent, ...]
    questions: tuple[Question, ...]
    spent: TotalUsage

    @property
    def opened(self) -> tuple[Collab, ...]:
        """The blocking collabs that were raised in the round."""
        return tuple(item for item in (*self.reviews, *self.raised) if item.importance >= BLOCKING)

    @property
    def live(self) -> int:
        """The number of products to accept."""
        return len(self.now.live())

    @property
    def done(self) -> int:
        """The number of accepted products among them."""
        return sum(item.status is Status.ACCEPTED for item in self.now.live())

    @property
    def blocking(self) -> int:
        """The number of open blockers on live products."""
        live = {item.id for item in self.now.live()}
        return sum(item.blocking and item.product in live for item in self.now.collabs.values())


def page(
    archive: SessionReader,
    retraced: MissionCourse,
    library: Library,
    base: str | None = "",
    now: Standing | None = None,
    served: ServedPage | None = None,
) -> str:
    """Return the page of a mission; `base` as in `cdo.report.page.Papers`. `now` tells if a process runs the mission.

    Raises `SessionError` if session.yaml or the records are damaged, `ContentError` if the template is broken.
    """
    state = retraced.state
    files = Papers({}, tuple(name for name in archive.files() if name != NAME), base)
    frozen = read_frozen(archive.text("session.yaml"), Path(archive.place))
    costs = summed(archive.records(), state)
    unaccepted = {item.id for item in acceptance.unaccepted(state)}
    rows = _rows(state, costs, unaccepted)
    held = _held([*retraced.rounds[: state.round], state], costs)
    done = state.halt == "done" and not unaccepted
    values = {
        "session": archive.name,
        "created": frozen.created[:10],
        "plan": frozen.plan,
        "title": one_line(state.request, 140) or archive.name,
        "request": archive.text("00-input.md") or state.request,
        "state": state,
        "now": now or Standing(),
        "question": retraced.question,
        "standing": _word(state, done, retraced.question, now),
        "done": done,
        "edited": edited_calls(state),
        "rows": rows,
        "tree": [row for row in rows if row.product.status is not Status.ARCHIVED],
        "live": [row for row in rows if row.product.live],
        "missing": sorted(
            (row for row in rows if row.product.id in unaccepted), key=lambda row: row.product.container
        ),
        "delivered": [row for row in rows if row.accepted and not row.product.container],
        "held": held,
        "blocking": [item for row in rows if row.product.live for item in row.blockers],
        "figures": _figures(held),
        "decisions": [row for row in rows if row.product.kind is Kind.DECISION and row.versions],
        "objectives": list(objectives.proofs(state)),
        "costs": costs,
        "folded": len(rows) > MANY,
        "room": SHORT if len(rows) > MANY else LONG,
        "deliverables": [name for name in files.files if name.startswith("deliverables/")],
        "papers": files,
        "version": __version__,
        **words(files),
        **_words(state, files),
    }
    return PageTemplates(library).page(PAGE, values, served)


# -- what the template may call --------------------------------------------------------------------


def _words(state: MissionState, files: Papers) -> dict[str, Any]:
    from markupsafe import Markup

    there = frozenset(files.files)
    stems = sorted((name.removesuffix(".md") for name in there), key=len)  # the last call of a step comes last
    calls = {key: f"{stem}.md" for stem in stems if (key := made(stem))}
    inspected = {
        (key[0], match[0] if (match := _ABOUT.search(stem)) else ""): f"{stem}.md"
        for stem in stems
        if (key := made(stem)) and key[1] is MissionStep.INSPECT
    }
    events = {item.id: item for item in state.events}

    def linked(text: str, limit: int = LONG) -> Markup:
        return Markup(_linked(text[:limit], state)) + ("…" if len(text) > limit else "")

    return {
        "linked": linked,
        "there": there.__contains__,
        "call_file": lambda round_, step, agent: calls.get((round_, MissionStep(step), agent), ""),
        # Earlier missions inspected all products in one call, whose product is "".
        "inspection_file": lambda round_, id="": inspected.get((round_, id)) or inspected.get((round_, ""), ""),
        "name_of": lambda id: state.products[id].name if id in state.products else id,
        "number_of": lambda id: state.versions[id].number if id in state.versions else 0,
        "file_of": lambda id, item: f"{state.products[id].folder}/{item}.md",
        "event": events.get,
        "place": places(state).get,
        "speaker": lambda agent: names.speaker(state, agent),
        "named": lambda agent: names.called(state, agent) if agent in state.team else agent,
        "start": lambda version: version.content[:LIMIT],
        "longer": lambda version: len(version.content) > LIMIT,
        "minorities": _minorities,
        "unfounded": lambda id: [citations.words(item) for item in state.unfounded.get(id, ())],
        "as_code": lambda row: is_code(row.product),
        "overruled": lambda row: [item for item in row.collabs if item.how == "waived"],
    }


def _minorities(row: ProductRow) -> list[tuple[Version, str]]:
    """Return the minority reports of deliberations, each with the version that the deliberation produced."""
    found = ((item, final_section(item.content, "Minority Reports")) for item in row.versions if item.session)
    return [(item, said) for item, said in found if said]


def _linked(text: str, state: MissionState) -> str:
    """Return `text` as HTML with code spans; each reference that has a place in the page is a link with a name."""
    parts, at = [], 0
    for match in REFERENCE.finditer(text):
        name = _name(match[1], match[2], state)
        if name:
            parts += [
                safe_html.escape(text[at : match.start()]),
                f'<a href="#{match[2]}">{safe_html.escape(name)}</a>',
            ]
            at = match.end()
    return _CODE.sub(r"<code>\1</code>", "".join([*parts, safe_html.escape(text[at:])]))


def _name(kind: str, id: str, state: MissionState) -> str:
    """Return the words for a reference; "" if it has no place in the page."""
    if kind == "c":
        return id if id in state.collabs else ""
    return called(state, kind, id) if kind in "pv" else ""


def _word(state: MissionState, done: bool, question: Ask | None, now: Standing | None) -> str:
    """Return the status of a mission in a word or two."""
    if now and now.running:
        return "running"
    if done:
        return "done"
    if state.halt:
        return "unresolved"
    return "waits for you" if question else "unfinished"


# -- products --------------------------------------------------------------------------------------


def _rows(state: MissionState, costs: Costs, unaccepted: Container[str]) -> list[ProductRow]:
    """Return all products: the tree from its root on, then the archived products."""
    collabs = _by(state.collabs.values(), lambda item: item.product)
    inspections = _by(state.inspections.values(), lambda item: item.product)
    order = {product.id: depth for product, depth in state.walk()}
    order |= dict.fromkeys((id for id in state.products if id not in order), 0)
    found = []
    for id, depth in order.items():
        product, seen = state.products[id], inspections.get(id, ())
        pinned = state.acceptances.get(id) if product.live and id not in unaccepted else None
        version = state.versions.get(pinned.version) if pinned else None
        said = sorted(collabs.get(id, ()), key=lambda item: (not item.open, -item.importance if item.open else 0))
        found.append(
            ProductRow(
                product,
                depth,
                state.history(id),
                version or state.latest(id),
                seen,
                bool(seen) and acceptance.current(state, id) is not None,
                {item.criterion: item for item in seen[-1].results} if seen else {},
                pinned,
                tuple(said),
                acceptance.missing(state, id) if id in unaccepted else (),
                tuple(item for item in state.children(id) if item.id in unaccepted),
                costs.products.get(id, NOTHING),
            )
        )
    return found


# -- rounds ----------------------------------------------------------------------------------------


def _held(states: Sequence[MissionState], costs: Costs) -> list[RoundSection]:
    """Return the rounds from the bootstrap on; `states` are the states at the end of each."""
    last = states[-1]
    versions = _by(last.versions.values(), lambda item: item.round)
    events = _by(last.events, lambda item: item.round)
    inspections = _by(last.inspections.values(), lambda item: item.round)
    questions = _by(last.questions, lambda item: item.round)
    found = []
    for state in states:
        happened = events.get(state.round, ())
        said = [(item.step, last.collabs[item.ref]) for item in happened if _of(item, "collab", last)]
        flagged = [item for item in last.collabs.values() if item.finding and item.round == state.round]
        found.append(
            RoundSection(
                state.round,
                state,
                versions.get(state.round, ()),
                tuple(item for step, item in said if step is MissionStep.REVIEW and not item.finding),
                (*(item for step, item in said if step is not MissionStep.REVIEW and not item.finding), *flagged),
                inspections.get(state.round, ()),
                tuple(last.collabs[item.ref] for item in happened if _of(item, "closed", last)),
                tuple(item for item in happened if item.kind == "accepted"),
                tuple(item for item in happened if item.kind in _TOLD),
                questions.get(state.round, ()),
                costs.rounds.get(state.round, NOTHING),
            )
        )
    return found


def _of(event: MissionEvent, kind: str, state: MissionState) -> bool:
    """True if an event has this kind and is about a collab."""
    return event.kind == kind and event.ref in state.collabs


def _figures(held: Sequence[RoundSection]) -> dict[str, str]:
    """Return the plots by name; "" if there is nothing to count yet."""
    numbers = [item.number for item in held]
    if not any(item.versions or item.live for item in held):
        return {"progress": "", "work": ""}
    accepted, live = [(item.number, item.done) for item in held], [(item.number, item.live) for item in held]
    versions = [(item.number, len(item.versions)) for item in held]
    blockers = [(item.number, item.blocking) for item in held]
    return {"progress": charts.progress(numbers, accepted, live), "work": charts.work(numbers, versions, blockers)}


def _by(items: Iterable[ITEM], key: Callable[[ITEM], KEY]) -> dict[KEY, tuple[ITEM, ...]]:
    found: dict[KEY, list[ITEM]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return {name: tuple(group) for name, group in found.items()}
