"""Renders a mission as files (pages, facts, deliverables), and parses files that people add. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from cdo.cabal.files.serialization import collab_text, inert, inspection_text, page, product_text, version_text
from cdo.cabal.model.entities import MissionEvent, Product, Status, Version
from cdo.cabal.model.product_files import as_file, files_in
from cdo.cabal.model.references import REFERENCE
from cdo.cabal.model.state import MissionState
from cdo.cabal.replies.fields import CONTENT, CollabIds, CollabKind, Degree
from cdo.cabal.rules import acceptance
from cdo.core import file_paths
from cdo.core.file_paths import DELIVERED
from cdo.core.formatting import one_line, pluralise, visible
from cdo.core.mission_names import ROOT, USER
from cdo.core.steps import InvalidReply
from cdo.formats import strict_yaml
from cdo.formats.fields import Block, validate
from cdo.formats.markdown import MAX_FRONT_MATTER, fences, line_breaks, split_front_matter

LETTER = 4000  # most characters of a file in inbox/
FOLDERS = 1  # levels below deliverables/ for documents without a path; deeper ones get longer names
_PLAIN = re.compile(r"[A-Za-z0-9/._-]+")  # a path that needs no marks in a link
_NAME = 120  # most characters of a deliverable's name, before .md
# The names of the team in deliverables, not from personas: a proof does not read the file with the personas.
_AGENT = re.compile(r"chair-1|watchdog-1|envoy-1|operative-[1-9][0-9]?|user-1|all")
_AGENTS = {
    "chair-1": "the chair", "watchdog-1": "the watchdog", "envoy-1": "the envoy", "user-1": "the user",
    "all": "everybody",
}  # fmt: skip
_PERSONA = re.compile(r"\s*You are ([^\W\d_][\w'’-]{0,39}(?: [^\W\d_][\w'’-]{0,39})?)[,.]")
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
    # Events and reasons wait for the next message, or for the end.
    return state.messages, state.questions, state.mission, state.round, state.halt


def speaker(state: MissionState, agent: str) -> str:
    """Return the name in an agent's persona ("You are Alex, …"), else the agent's id; "You" for the user."""
    if agent == USER:
        return "You"
    match = _PERSONA.match(state.mission.personas.get(agent, "")) if state.mission else None
    return match[1] if match and match[1][0].isupper() else agent


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
    personas = [f"- **{agent}**: {inert(text, LETTER)}" for agent, text in mission.personas.items()]
    parts = [
        ("# Mission", [inert(mission.mission, LETTER)]),
        ("## Objectives", [f"- {inert(line, LETTER)}" for line in mission.objectives]),
        ("## Constraints", [f"- {inert(line, LETTER)}" for line in mission.constraints] or ["None."]),
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
            changes.setdefault(event.product, []).append(f"Round {event.round}: {inert(event.text)}")
    rows = [
        line
        for product, depth in walk(state)
        for line in (*_node(state, product, depth), *_below(depth, changes.get(product.id, ())))
    ]
    gone = [f"- {inert(item.name)} ({item.id})" for item in state.products.values() if item.status is Status.ARCHIVED]
    body = [f"# Product tree after round {state.round}", "", *(rows or ["There are no products yet."])]
    return page(head, "\n".join([*body, *(["", "## Archived", "", *gone] if gone else [])]), noted=True)


def walk(state: MissionState) -> Iterator[tuple[Product, int]]:
    """Yield the products that are not archived with their depth, parents before children."""
    below: dict[str, list[Product]] = {}
    for item in state.products.values():
        if item.parent and item.status is not Status.ARCHIVED:
            below.setdefault(item.parent, []).append(item)
    open_ = [(state.products[ROOT], 0)] if ROOT in state.products else []
    while open_:
        product, depth = open_.pop()
        yield product, depth
        open_ += [(item, depth + 1) for item in reversed(below.get(product.id, ()))]


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
    return ["  " * depth + line, *_below(depth, (f"✗ {inert(why)}" for why in lacking))]


def _below(depth: int, notes: Iterable[str]) -> list[str]:
    """Return notes as items below a product's line."""
    return ["  " * (depth + 1) + f"- {note}" for note in notes]


# -- CHAT.md ---------------------------------------------------------------------------------------


def _chat(state: MissionState) -> str:
    said: dict[int, list[str]] = {}
    for question in state.questions:
        lines = said.setdefault(question.round, [])
        lines.append(f"**The team asks you:** {inert(question.question, LETTER)}")
        lines += [f"- {inert(option)}" for option in question.options]
        lines += ["", f"**You:** {inert(question.answer, LETTER)}" if question.answer else "*No answer yet.*", ""]
    for message in state.messages:
        said.setdefault(message.round, []).extend(
            [f"**{_named(state, message.agent)}:** {inert(message.content, LETTER)}", ""]
        )
    facts: dict[int, list[MissionEvent]] = {}
    for event in state.events:
        if event.kind in _TOLD:
            facts.setdefault(event.round, []).append(event)
    reasons: dict[int, list[str]] = {}
    for item in state.rationales:
        line = f"- {_named(state, item.agent)}, {item.step}: {inert(spoken(state, item.text), LETTER)}"
        reasons.setdefault(item.round, []).append(line)
    body = ["# Chat"]
    for round in sorted({*said, *facts, *reasons}):
        told = [f"- {inert(event.text)}" for event in facts.get(round, ())]
        why = reasons.get(round, ())
        body += ["", f"## Round {round}", "", *said.get(round, ())]
        body += [*(["Facts:", "", *told, ""] if told else []), *(["Reasons:", "", *why] if why else [])]
    head = {"rounds": state.round, "messages": len(state.messages)}
    return page(head, "\n".join(body if body[1:] else [*body, "", "Nothing was said yet."]).rstrip(), noted=True)


# -- deliverables/ ---------------------------------------------------------------------------------


def delivered(state: MissionState, version: Version, places: Mapping[str, str]) -> dict[str, str]:
    """Return the files of an accepted version, by path in the session; `places` are those of all products.

    A document gets its reader's words in place of ids. So do Markdown files; any other file is delivered as it is.
    """
    path, place = state.products[version.product].path, places.get(version.product, "")
    if not path:
        outcome = f"> **Decision:** {inert(spoken(state, version.outcome))}\n\n" if version.outcome else ""
        return {place: _stored(f"{outcome}{_read_by_people(state, version.content, place, places)}\n")}
    return {
        (file := f"{DELIVERED}{name}"): _stored(
            as_file(_read_by_people(state, text, file, places) if file_paths.is_markdown(name) else text)
        )
        for name, text in files_in(path, version.content).items()
    }


def _stored(text: str) -> str:
    """Return a text without half surrogate pairs, which no file can hold."""
    return text.encode("utf-8", "replace").decode()


def _read_by_people(state: MissionState, text: str, file: str, places: Mapping[str, str]) -> str:
    """Return Markdown with ids in words: a product's reference becomes its name, linked to its place as from `file`.

    Fenced code stays as it was accepted.
    """
    up = "../" * (file.count("/") - 1)

    def word(match: re.Match[str]) -> str:
        name = inert(called(state, match[1], match[2]))
        there = places.get(match[2], "") if match[1] == "p" else ""
        target = f"{up}{there.removeprefix(DELIVERED)}"
        return f"[{name}]({_target(target)})" if there and there != file else name or match[0]

    lines = text.split("\n")
    code = {number for fence in fences(lines) for number in range(fence.start, fence.end)}
    return "\n".join(line if number in code else REFERENCE.sub(word, line) for number, line in enumerate(lines))


def linked(place: str) -> str:
    """Return a link of Markdown to a file of the session."""
    return f"[{place if _PLAIN.fullmatch(place) else inert(place)}]({_target(place)})"


def _target(place: str) -> str:
    return place if _PLAIN.fullmatch(place) else f"<{place}>"


def spoken(state: MissionState, text: str) -> str:
    """Return `text` with references replaced by words; unresolved references stay as written."""
    return REFERENCE.sub(lambda match: called(state, match[1], match[2]) or match[0], text)


def called(state: MissionState, kind: str, id: str) -> str:
    """Return the name of what a reference points to, without its id; "" if it does not exist."""
    if kind == "p" and id in state.products:
        return state.products[id].name
    if kind == "v" and id in state.versions:
        version = state.versions[id]
        return f"{state.products[version.product].name}, version {version.number}"
    if kind == "c" and id in state.collabs:
        collab = state.collabs[id]
        return f"the {collab.kind} “{one_line(collab.summary, 120)}”"
    return _AGENTS.get(id, id.replace("-", " ")) if kind in "au" and _AGENT.fullmatch(id) else ""


def places(state: MissionState) -> dict[str, str]:
    """Return the path in deliverables/ for each product with a version that is delivered, by product id.

    A product with a path is there; a folder ends in a slash. The others are laid out like the tree: a product that
    holds others gets a folder for them. Paths are unique, even if products have the same name.
    """
    found: dict[str, str] = {}
    inside = {ROOT: (DELIVERED, "")}  # by product: the folder for its children, and the prefix of their names
    given = [item.path for item in state.live() if item.path]
    taken: set[str] = set()
    for product, depth in walk(state):
        if product.meta or product.parent not in inside:
            continue
        folder, lead = inside[product.parent]
        if product.path:
            if acceptance.delivered_version(state, product.id):
                found[product.id] = f"{DELIVERED}{product.path}"
            continue
        stem = _stem(f"{folder}{lead}", product.slug, taken, given)
        inside[product.id] = (f"{stem}/", "") if depth <= FOLDERS else (folder, f"{stem.removeprefix(folder)}-")
        if not product.container and acceptance.delivered_version(state, product.id):
            found[product.id] = f"{stem}.md"
    return found


def _stem(lead: str, slug: str, taken: set[str], given: Sequence[str]) -> str:
    """Return a path without extension that is not taken and collides with none of the `given` paths, and take it."""
    folder, _, name = f"{lead}{slug}".rpartition("/")
    name = re.sub(r"[^a-z0-9-]+", "-", name)[:_NAME].strip("-") or "product"
    stem, place = name, 1
    while f"{folder}/{stem}" in taken or _collides(f"{folder}/{stem}", given):
        place += 1
        stem = f"{name}-{place}"
    taken.add(f"{folder}/{stem}")
    return f"{folder}/{stem}"


def _collides(stem: str, given: Sequence[str]) -> bool:
    path = stem.removeprefix(DELIVERED)
    return any(file_paths.collision(each, given) for each in (path, f"{path}.md"))


def deliverables(state: MissionState) -> dict[str, str]:
    """Return the accepted files by path in the session. Products of which no version was accepted are left out."""
    found = places(state)
    return {
        file: text
        for id in found
        if (version := acceptance.delivered_version(state, id)) is not None
        for file, text in delivered(state, version, found).items()
    }


# -- files that people add -------------------------------------------------------------------------


@dataclass(frozen=True)
class EditedVersion:
    """A version as a person wrote it: `summary` comes from its front matter, "" if it has none."""

    title: str
    summary: str
    content: str
    outcome: str


class _VersionHead(Block):
    """The front matter of a version. A person writes the first three keys; the others are cdo's and are not read."""

    title: Annotated[str, Field(max_length=200)] = ""
    change_summary: Annotated[str, Field(max_length=4000)] = ""
    outcome: Annotated[str, Field(max_length=600)] = ""
    id: Any = None
    product: Any = None
    number: Any = None
    author: Any = None
    addresses: Any = None
    session: Any = None
    edited: Any = None
    round: Any = None
    sha256: Any = None


class VersionFormat:
    """A version that a person edited or added: a Document (`cdo.core.steps`). Front matter is optional.

    Front matter without any of cdo's keys belongs to the content, because documents may have their own front matter.
    """

    def parse(self, text: str) -> EditedVersion:
        """Return the version; raise `InvalidReply` with what is wrong."""
        keys, body = _head(text, CONTENT + MAX_FRONT_MATTER)
        if keys and not set(keys) & set(_VersionHead.model_fields):
            keys, body = {}, _clean(text)
        head = validate(_VersionHead, keys, "The front matter")
        content = body.strip("\n")
        if not content.strip():
            raise InvalidReply(["The version has no content: write it under the front matter."])
        if len(content) > CONTENT:
            raise InvalidReply([f"The version has {len(content)} characters; at most {CONTENT} are read."])
        title = head.title or next(
            (one_line(line.lstrip("# "), 200) for line in content.split("\n") if line.strip("# ")), ""
        )
        return EditedVersion(title or "Untitled", head.change_summary, content, one_line(head.outcome))


@dataclass(frozen=True)
class Letter:
    """A file that a person put into inbox/: `product` is an id or a name as written, "" for the whole team.

    `withdraw` are collabs by the person that no longer hold; `text`, which may then be empty, is the reason.
    """

    product: str
    kind: str
    importance: int
    text: str
    withdraw: tuple[str, ...] = ()


def _product(value: Any) -> Any:
    """Return `p4` for `[[p:p4]]`, "" for None, and any other value unchanged."""
    match = re.fullmatch(r"\s*\[\[p:(.*)\]\]\s*", value) if isinstance(value, str) else None
    return match[1] if match else "" if value is None else value


class _LetterHead(Block):
    """The optional front matter of a letter."""

    product: Annotated[str, BeforeValidator(_product), Field(max_length=120)] = ""
    type: CollabKind = "feedback"
    importance: Degree = 7
    withdraw: CollabIds = ()


class LetterFormat:
    """A file in inbox/: a Document (`cdo.core.steps`).

    The front matter is optional: product, type and importance of a note, or `withdraw` with the ids of own notes.
    """

    def parse(self, text: str) -> Letter:
        """Return the letter; raise `InvalidReply` with what is wrong."""
        keys, body = _head(text, LETTER + MAX_FRONT_MATTER)
        head = validate(_LetterHead, keys, "The front matter")
        said = visible(body).strip()
        if not said and not head.withdraw:
            raise InvalidReply(["The letter is empty: write what you have to say under the front matter."])
        if len(said) > LETTER:
            raise InvalidReply([f"The letter has {len(said)} characters; at most {LETTER} are read."])
        return Letter(one_line(head.product), head.type, head.importance, said, head.withdraw)


def _clean(text: str) -> str:
    """Return `text` with one kind of line break, no byte order mark, and no lone surrogates."""
    return line_breaks(text).encode("utf-8", "replace").decode().lstrip("\ufeff")


def _head(text: str, most: int) -> tuple[Mapping[str, Any], str]:
    """Return the front matter of a person's text, and the text below it; raise `InvalidReply`."""
    if len(text) > most:
        raise InvalidReply([f"The file has {len(text)} characters; at most {most} are read."])
    clean = _clean(text)
    block, body = split_front_matter(clean.lstrip("\n"))
    if block is None:
        return {}, clean
    try:
        keys = strict_yaml.load(block, max_bytes=MAX_FRONT_MATTER)
    except strict_yaml.YamlProblem as problem:
        above = len(clean) - len(clean.lstrip("\n"))
        where = f"line {problem.line + above}, column {problem.column}"
        raise InvalidReply([f"The front matter cannot be read: {where}: {problem.why}."]) from None
    if keys is not None and not isinstance(keys, dict):
        raise InvalidReply(["The front matter must be a mapping of keys, such as `title: …`."])
    return keys or {}, body
