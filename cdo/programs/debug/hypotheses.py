"""Keeps the ledger of hypotheses of a root-cause analysis. Pure.

A hypothesis keeps its id and its text for good. Only evidence changes its status: a place, a quote, or an
observation. A reply that leaves a hypothesis out does not change it. Every hypothesis that a voice proposes enters
the ledger, as an entry of its own or merged into another one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Struct
from msgspec.structs import replace
from pydantic import BeforeValidator, Field

from cdo.formats.blocks import Strings, Tolerant
from cdo.formats.fields import twice
from cdo.formats.sections import folded
from cdo.programs.debug.evidence import OWED, UNCHECKED, Checks

Fate = Literal["open", "supported", "ruled-out"]
Duty = Literal["hypothesis", "test", "fix"]
MOST = 64  # most hypotheses of one directive
SHORTER = "report only what is new or changed this turn, with its new evidence"
SHOWN = 200  # most characters of a hypothesis that a message repeats


# -- the ledger ------------------------------------------------------------------------------------


def _plain_status(value: Any) -> Any:
    return re.sub(r"[\s_]+", "-", value.strip().lower()) if isinstance(value, str) else value


def _or_empty(value: Any) -> Any:
    return "" if value is None else value


_MaybeLine = Annotated[str, Field(max_length=600), BeforeValidator(_or_empty)]


class HypothesisWish(Tolerant):
    """A hypothesis as a reply reports it; `text` may be left out if the id is known.

    `merges` names the voices' hypotheses that are merged into it, as "voice/id".
    """

    id: Annotated[str, Field(pattern=r"^H[1-9][0-9]{0,3}$")]
    text: _MaybeLine = ""
    prediction: _MaybeLine = ""
    status: Annotated[Fate, BeforeValidator(_plain_status)] = "open"
    evidence: Strings = ()
    merges: Strings = ()


class Hypothesis(Struct, frozen=True):
    """One possible cause: what it predicts, its status, all evidence on record, and the turn of its first mention."""

    id: str
    text: str
    prediction: str
    status: Fate
    evidence: tuple[str, ...]
    since: int


class Hypotheses(Struct, frozen=True):
    """Every hypothesis of a run, in the order in which they came up."""

    items: tuple[Hypothesis, ...] = ()

    def get(self, ident: str) -> Hypothesis | None:
        """Return the hypothesis with this id, or None."""
        return next((item for item in self.items if item.id == ident), None)

    def of(self, *fates: Fate) -> tuple[Hypothesis, ...]:
        """Return the hypotheses whose status is one of `fates`."""
        return tuple(item for item in self.items if item.status in fates)

    @property
    def following(self) -> str:
        """The next free id."""
        return f"H{max((int(item.id[1:]) for item in self.items), default=0) + 1}"

    def problems(self, wishes: Sequence[HypothesisWish]) -> list[str]:
        """Return a sentence for each reason not to accept `wishes`; [] if there is none."""
        found = twice([wish.id for wish in wishes], "hypotheses: the id")
        for wish in wishes:
            found += [problem for problem in (self._identity(wish), self._fate(wish)) if problem]
        return found

    def _identity(self, wish: HypothesisWish) -> str:
        """Return what is wrong with the id or the text of a wish; "" if nothing is."""
        known = self.get(wish.id)
        if known:
            if wish.text and folded(wish.text) != folded(known.text):
                return (
                    f"{wish.id} stands as “{known.text[:SHOWN]}” and keeps its text: leave `text` out, "
                    f"or give another hypothesis an id of its own ({self.following} is free)."
                )
            return ""
        if not wish.text or not wish.prediction:
            return f"{wish.id} is new: it needs `text`, and `prediction` with what one would see only if it is true."
        same = next((item for item in self.items if folded(item.text) == folded(wish.text)), None)
        return f"{wish.id} says the same as {same.id} ({same.status}): use that id." if same else ""

    def _fate(self, wish: HypothesisWish, checks: Checks = UNCHECKED) -> str:
        """Return what is missing for the status that a wish asks for; "" if nothing is."""
        known = self.get(wish.id)
        before: Fate = known.status if known else "open"
        if wish.status == before:
            return ""
        facts = [item for item in wish.evidence if checks.carries(item)]
        if not facts:
            return f"{wish.id}: `{wish.status}` needs evidence that is not opinion: {OWED}."
        if known and before != "open":
            on_record = {folded(item) for item in known.evidence}
            if all(folded(item) in on_record for item in facts):
                return f"{wish.id} is {before}: only evidence that is not on record yet can change that."
        return ""

    def after(
        self,
        turn: int,
        wishes: Sequence[HypothesisWish],
        proposed: Sequence[tuple[str, HypothesisWish]] = (),
        checks: Checks = UNCHECKED,
    ) -> Hypotheses:
        """Return the ledger after a turn: with `wishes` of the synthesis, then the unmerged (voice, wish) `proposed`.

        Evidence that `checks` refute is left out; evidence that was not found is kept. A settled hypothesis without
        evidence that carries a status is open again. A change of status without such evidence is not made. A wish
        with a wrong id or text is ignored. Only the synthesis settles a hypothesis; a voice adds evidence to it.
        """
        ledger = Hypotheses(tuple(_held(item, checks) for item in self.items))
        for wish in wishes:
            ledger = ledger._taken(turn, wish.model_copy(update={"evidence": checks.sound(wish.evidence)}), checks)
        merged = {folded(name) for wish in wishes for name in wish.merges}
        for voice, wish in proposed:
            if self.get(wish.id) and (now := ledger.get(wish.id)):
                # The evidence that a voice brings is kept; only a synthesis changes the status.
                kept = {"status": now.status, "evidence": checks.sound(wish.evidence)}
                ledger = ledger._taken(turn, wish.model_copy(update=kept), checks)
                continue
            if folded(f"{voice}/{wish.id}") in merged:
                continue
            fresh = {"id": ledger.following, "status": "open", "evidence": checks.sound(wish.evidence)}
            ledger = ledger._taken(turn, wish.model_copy(update=fresh), checks)
        return ledger

    def _taken(self, turn: int, wish: HypothesisWish, checks: Checks) -> Hypotheses:
        if self._identity(wish):
            return self
        known = self.get(wish.id)
        old = known or Hypothesis(wish.id, wish.text, wish.prediction, "open", (), turn)
        seen = {folded(item) for item in old.evidence}
        new = replace(
            old,
            prediction=old.prediction or wish.prediction,
            status=old.status if self._fate(wish, checks) else wish.status,
            evidence=(*old.evidence, *(item for item in wish.evidence if folded(item) not in seen)),
        )
        if not known:
            return Hypotheses((*self.items, new))
        return Hypotheses(tuple(new if item.id == wish.id else item for item in self.items))

    def data(self, checks: Checks = UNCHECKED) -> list[dict[str, Any]]:
        """Return the ledger as the data of a call; each piece of evidence has its kind by `checks`."""
        return [
            {
                "id": item.id,
                "text": item.text,
                "prediction": item.prediction,
                "status": item.status,
                "evidence": [{"text": text, "kind": checks.kind(text)} for text in item.evidence],
                "since": item.since,
            }
            for item in self.items
        ]


def _held(item: Hypothesis, checks: Checks) -> Hypothesis:
    """Return a hypothesis, open again if none of its evidence carries a status."""
    return item if item.status == "open" or checks.best(item.evidence) else replace(item, status="open")
