"""Reads what a person leaves for a mission, edited versions and letters, and applies it to the state. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from msgspec import Struct

from cdo.cabal.files.layout import files
from cdo.cabal.files.person_files import LETTER, EditedVersion, Letter, LetterFormat, VersionFormat
from cdo.cabal.files.serialization import written_by_cdo
from cdo.cabal.model.state import MissionState
from cdo.cabal.rules import person
from cdo.core.steps import Collect, Gather, Program

INBOX, PRODUCTS = "inbox", "products"


class HumanInput(Struct, frozen=True):
    """Input that a person left: versions that they edited or added, by file, and letters."""

    edits: tuple[tuple[str, EditedVersion], ...] = ()
    letters: tuple[Letter, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.edits or self.letters)

    def __add__(self, other: HumanInput) -> HumanInput:
        return HumanInput((*self.edits, *other.edits), (*self.letters, *other.letters))


def left(state: MissionState, name: str, *, again: bool = False) -> Program[HumanInput]:
    """Return the input that the person left: letters in the inbox, and versions that they edited or added."""
    edits = f"{name}-edits"
    letters = yield Collect(f"{name}-inbox", INBOX, LetterFormat(), again, edits)
    again = again and not letters
    files = yield Gather(edits, PRODUCTS, _Published(state), VersionFormat(), again, written_by_cdo)
    return HumanInput(tuple(files), tuple(letters))


def take_in(state: MissionState, given: HumanInput) -> MissionState:
    """Return the state with the person's input as versions and feedback."""
    folders = {product.folder: product.id for product in state.products.values()}
    for file, version in given.edits:
        place, _, name = file.rpartition("/")
        if place in folders:
            state = _edited(state, folders[place], name.removesuffix(".md"), version)
        else:
            state = person.user_said(state, f"{file}: {version.content[:LETTER]}")
    for letter in given.letters:
        for id in letter.withdraw:
            state = person.user_withdrew(state, id, letter.text)
        if letter.withdraw:
            continue
        product = state.named(letter.product)
        text = f"About {letter.product}: {letter.text}" if letter.product and not product else letter.text
        state = person.user_said(state, text, product, letter.kind, letter.importance)
    return state


def _edited(state: MissionState, product: str, base: str, version: EditedVersion) -> MissionState:
    """Make a version from the person's file; its summary names versions that are newer than the edited one."""
    history = state.history(product)
    old = state.versions.get(base)
    summary = "" if version.summary in {item.summary for item in history} else version.summary
    if old and old.product == product:
        summary = summary or f"Edited from version {old.number}"
        if later := [f"version {item.number}" for item in history if item.number > old.number]:
            summary += f"; {', '.join(later)} came after that and is not in it"
    summary = summary or "Added by the user"
    return person.user_version(state, product, version.title, version.content, summary, version.outcome)


class _Published(Mapping[str, str]):
    """The published files below products/, rendered at the first access, because most rounds need none of them."""

    def __init__(self, state: MissionState) -> None:
        self._state = state

    @cached_property
    def _files(self) -> dict[str, str]:
        projections, once = files(self._state, None)
        return {**projections, **once}

    def __getitem__(self, name: str) -> str:
        return self._files[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)
