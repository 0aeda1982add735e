"""The ledger of hypotheses of a root-cause analysis, and how its voices and synthesisers reply. Pure.

A hypothesis keeps its id and its text for good, and changes its status by evidence only: a place, a quote, or what
was observed. Leaving one out changes nothing. Whatever a voice puts forward enters the ledger, be it on its own or
taken up by another entry.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from cdo.formats.fields import Strings, Tolerant, twice
from cdo.formats.sections import folded
from cdo.programs.debug.evidence import OWED, UNCHECKED, Checks

Fate = Literal["open", "supported", "ruled-out"]
Duty = Literal["hypothesis", "test", "fix"]
MOST = 64  # hypotheses of one directive
SHORTER = "report only what is new or changed this turn, with its new evidence"
SHOWN = 200  # characters of a hypothesis that a problem repeats


# -- the ledger ------------------------------------------------------------------------------------


def _plain_status(value: Any) -> Any:
    return re.sub(r"[\s_]+", "-", value.strip().lower()) if isinstance(value, str) else value


def _or_empty(value: Any) -> Any:
    return "" if value is None else value


_MaybeLine = Annotated[str, Field(max_length=600), BeforeValidator(_or_empty)]


class HypothesisWish(Tolerant):
    """A hypothesis as a reply reports it: `text` may be left out where the id is known.

    `merges` names what it takes up of the voices, as "role/id".
    """

    id: Annotated[str, Field(pattern=r"^H[1-9][0-9]{0,3}$")]
    text: _MaybeLine = ""
    prediction: _MaybeLine = ""
    status: Annotated[Fate, BeforeValidator(_plain_status)] = "open"
    evidence: Strings = ()
    merges: Strings = ()


@dataclass(frozen=True)
class Hypothesis:
    """One possible cause: what it predicts, its fate, all evidence on record, and the turn it came up in."""

    id: str
    text: str
    prediction: str
    status: Fate
    evidence: tuple[str, ...]
    since: int


@dataclass(frozen=True)
class Hypotheses:
    """Every hypothesis of a run, in the order in which they came up."""

    items: tuple[Hypothesis, ...] = ()

    def get(self, ident: str) -> Hypothesis | None:
        """The hypothesis with this id, or None."""
        return next((item for item in self.items if item.id == ident), None)

    def of(self, *fates: Fate) -> tuple[Hypothesis, ...]:
        """Those whose status is one of `fates`."""
        return tuple(item for item in self.items if item.status in fates)

    @property
    def following(self) -> str:
        """The first id that nobody has used."""
        return f"H{max((int(item.id[1:]) for item in self.items), default=0) + 1}"

    def problems(self, wishes: Sequence[HypothesisWish]) -> list[str]:
        """A sentence for each thing that speaks against taking `wishes` over; [] where nothing does."""
        found = twice([wish.id for wish in wishes], "hypotheses: the id")
        for wish in wishes:
            found += [problem for problem in (self._identity(wish), self._fate(wish)) if problem]
        return found

    def _identity(self, wish: HypothesisWish) -> str:
        """What is wrong with which hypothesis a wish means; "" when nothing is."""
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
        """What is missing for the status that a wish asks for; "" when nothing is."""
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
        """The ledger after a turn: the synthesis's `wishes`, then what it left out of those (voice, wish) `proposed`.

        Evidence that `checks` refute is left out; evidence that they did not find is kept. A hypothesis that no
        evidence carries any more is open again. A change of status that evidence does not carry is not made; a wish
        whose identity is wrong is left out. What only a voice settles stays open, with the evidence that it brought.
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
        """The ledger as the data of a call; each piece of evidence with its kind by `checks`."""
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
    """A hypothesis as it stands when none of its evidence is left: open."""
    return item if item.status == "open" or checks.best(item.evidence) else replace(item, status="open")


# -- the formats -----------------------------------------------------------------------------------
