"""Keeps the ledger of objections of a run: who raised each, against what, its severity and its status. Pure.

An objection stays open until the synthesis answers it, its own voice withdraws it, or a referee rules on it. It also
stays open if a synthesis leaves it out, or if the voice that raised it is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from cdo.formats.sections import folded

if TYPE_CHECKING:
    from cdo.formats.voice_blocks import Objection, Ruling

NOTED = 5  # the lowest severity that the ledger keeps
Fate = Literal["open", "answered", "withdrawn", "ruled"]


class Dissent(Struct, frozen=True):
    """An objection as a voice raised it in `turn`: `role` is the voice's name, `id` the voice's id for it."""

    id: str
    role: str
    text: str
    severity: int
    against: str = ""
    turn: int = 0


def dissents(voice: str, turn: int, objections: Sequence[Objection]) -> Iterator[Dissent]:
    """Return the objections of a voice's reply as dissents of that voice."""
    return (Dissent(item.id, voice, item.text, item.severity, item.against, turn) for item in objections)


class Logged(Struct, frozen=True):
    """An objection on the ledger, under an `id` that is unique in the run (O1, O2 …).

    `leading` is true if it is aimed at the leading answer. `why` is the answer to it, `ended` the turn that closed
    it. `weighed` is true if a referee sat after it was raised.
    """

    id: str
    role: str
    turn: int
    severity: int
    text: str
    against: str = ""
    leading: bool = True
    status: Fate = "open"
    why: str = ""
    ended: int = 0
    weighed: bool = False


class Objections(Struct, frozen=True):
    """Every objection of severity `NOTED` or more, in the order in which they were raised."""

    items: tuple[Logged, ...] = ()

    @property
    def open(self) -> tuple[Logged, ...]:
        """The open objections, the most severe first."""
        return tuple(sorted((item for item in self.items if item.status == "open"), key=lambda item: -item.severity))

    def severe(self, least: int, *, weighed: bool = False) -> tuple[Logged, ...]:
        """Return the open objections of severity `least` or more against the leading answer.

        Objections that a referee has weighed are included only with `weighed`.
        """
        return tuple(
            item for item in self.open if item.leading and item.severity >= least and (weighed or not item.weighed)
        )

    def of(self, voice: str) -> tuple[Logged, ...]:
        """Return the open objections of one voice."""
        return tuple(item for item in self.open if item.role == voice)

    def raised(self, turn: int, dissents: Sequence[Dissent]) -> Objections:
        """Return the ledger with the objections of a turn; an objection raised again in the same words is reopened.

        An objection that a referee has weighed stays weighed, unless the voice now calls it more severe.
        """
        items = list(self.items)
        for dissent in dissents:
            if dissent.severity < NOTED:
                continue
            same = next((i for i, old in enumerate(items) if _same(old, dissent)), None)
            if same is None:
                fresh = (dissent.role, turn, dissent.severity, dissent.text, dissent.against)
                items.append(Logged(f"O{len(items) + 1}", *fresh))
            elif items[same].turn != turn:
                weighed = items[same].weighed and dissent.severity <= items[same].severity
                again = replace(items[same], severity=dissent.severity, status="open", why="", ended=0)
                items[same] = replace(again, weighed=weighed)
        return Objections(tuple(items))

    def after(
        self, turn: int, rulings: Sequence[Ruling], withdrawn: Sequence[tuple[str, str]], *, refereed: bool
    ) -> Objections:
        """Return the ledger after a synthesis: with its answers, the voices' withdrawals, and what a referee weighed.

        An answer counts only with a reason, a ruling only if a referee sat, a withdrawal only from the voice itself.
        """
        by_id = {ruling.id: ruling for ruling in rulings}
        items = []
        for item in self.items:
            ruling, seen = by_id.get(item.id), item.weighed or (refereed and item.turn < turn)
            item = replace(item, weighed=seen)
            if item.status == "open" and (item.role, item.id) in withdrawn:
                item = replace(item, status="withdrawn", ended=turn)
            elif item.status == "open" and ruling:
                item = replace(item, leading=item.leading if ruling.leading is None else ruling.leading)
                if ruling.status != "open" and ruling.why.strip():
                    status: Fate = "ruled" if ruling.status == "ruled" and seen else "answered"
                    item = replace(item, status=status, why=ruling.why, ended=turn)
            items.append(item)
        return Objections(tuple(items))


def _same(old: Logged, dissent: Dissent) -> bool:
    return old.role == dissent.role and folded(old.text) == folded(dissent.text)
