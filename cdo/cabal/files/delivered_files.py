"""Lays out the accepted versions of a mission as files in deliverables/, with words in place of ids. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from cdo.cabal.files.page_text import inert, storable
from cdo.cabal.model.entities import Version
from cdo.cabal.model.product_files import as_file, files_in
from cdo.cabal.model.references import REFERENCE
from cdo.cabal.model.state import MissionState
from cdo.cabal.rules import acceptance
from cdo.core import file_paths
from cdo.core.file_paths import DELIVERED
from cdo.core.formatting import one_line
from cdo.core.mission_names import ROOT
from cdo.formats.markdown import change_prose, fences

FOLDERS = 1  # levels below deliverables/ for documents without a path; deeper ones get longer names
_PLAIN = re.compile(r"[A-Za-z0-9/._-]+")  # a path that needs no marks in a link
_NAME = 120  # most characters of a deliverable's name, before .md
# The names of the team in deliverables, not from personas: a proof does not read the file with the personas.
_AGENT = re.compile(r"chair-1|watchdog-1|envoy-1|operative-[1-9][0-9]?|user-1|all")
_AGENTS = {
    "chair-1": "the chair", "watchdog-1": "the watchdog", "envoy-1": "the envoy", "user-1": "the user",
    "all": "everybody",
}  # fmt: skip


def delivered(state: MissionState, version: Version, places: Mapping[str, str]) -> dict[str, str]:
    """Return the files of an accepted version, by path in the session; `places` are those of all products.

    A document gets its reader's words in place of ids. So do Markdown files; any other file is delivered as it is.
    """
    path, place = state.products[version.product].path, places.get(version.product, "")
    if not path:
        outcome = f"> **Decision:** {inert(spoken(state, version.outcome))}\n\n" if version.outcome else ""
        return {place: storable(f"{outcome}{_read_by_people(state, version.content, place, places)}\n")}
    return {
        (file := f"{DELIVERED}{name}"): storable(
            as_file(_read_by_people(state, text, file, places) if file_paths.is_markdown(name) else text)
        )
        for name, text in files_in(path, version.content).items()
    }


def _read_by_people(state: MissionState, text: str, file: str, places: Mapping[str, str]) -> str:
    """Return Markdown with ids in words: a product's reference becomes its name, linked to its place as from `file`.

    Code stays as it was accepted; by rules before 4, only code between fences does.
    """
    up = "../" * (file.count("/") - 1)

    def word(match: re.Match[str]) -> str:
        name = inert(called(state, match[1], match[2]))
        there = places.get(match[2], "") if match[1] == "p" else ""
        target = f"{up}{there.removeprefix(DELIVERED)}"
        return f"[{name}]({_target(target)})" if there and there != file else name or match[0]

    if not REFERENCE.search(text):
        return text
    if state.rules >= 4:
        return change_prose(text, lambda prose: REFERENCE.sub(word, prose))
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
    for product, depth in state.walk():
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
