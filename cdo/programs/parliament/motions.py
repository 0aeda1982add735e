"""Keeps the motions, amendments and recorded votes of a parliament. Pure.

Code gives ids when a turn is over. A motion goes to the vote when a seat other than its mover seconds it. Its text
changes only if its mover accepts an amendment, or by a vote. Votes are counted here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Struct
from msgspec.structs import replace
from pydantic import BeforeValidator, Field

from cdo.formats.blocks import Line, Text, Tolerant
from cdo.formats.fields import as_list
from cdo.formats.sections import folded
from cdo.formats.voice_blocks import AgentData

Stage = Literal["opening", "debate", "answer", "vote"]
Vote = Literal["yes", "no", "abstain", "absent"]
Fate = Literal["moved", "carried", "rejected", "accepted", "lapsed"]


def _id(value: Any) -> Any:
    """Return an id in upper case: m1 means M1."""
    return value.strip().upper() if isinstance(value, str) else value


_Motion = Annotated[str, BeforeValidator(_id), Field(pattern=r"^M[1-9][0-9]{0,3}$")]
_Amendment = Annotated[str, BeforeValidator(_id), Field(pattern=r"^A[1-9][0-9]{0,3}$")]
_Wording = Annotated[str, Field(min_length=1, max_length=1500)]


class MotionWish(Tolerant):
    """A motion as a seat moves it."""

    text: _Wording
    reason: Text | None = None


class AmendmentWish(Tolerant):
    """The full text that is to replace the text of a motion."""

    motion: _Motion
    text: _Wording
    reason: Text | None = None


class VoteWish(Tolerant):
    """A seat's vote on one item of the ballot, with its reason."""

    item: Annotated[str, BeforeValidator(_id), Field(pattern=r"^[AM][1-9][0-9]{0,3}$")]
    vote: Annotated[Literal["yes", "no", "abstain"], BeforeValidator(lambda value: _word(value))]
    reason: Line


def _word(value: Any) -> Any:
    if isinstance(value, bool):  # some YAML readers turn yes and no into booleans
        return "yes" if value else "no"
    return value.strip().lower() if isinstance(value, str) else value


class SpeechData(AgentData):
    """The front matter of a seat's reply: what it moves, supports, accepts and votes."""

    stance: Line | None = None
    motions: Annotated[tuple[MotionWish, ...], BeforeValidator(as_list), Field(max_length=16)] = ()
    seconds: Annotated[tuple[_Motion, ...], BeforeValidator(as_list), Field(max_length=64)] = ()
    amendments: Annotated[tuple[AmendmentWish, ...], BeforeValidator(as_list), Field(max_length=16)] = ()
    accepts: Annotated[tuple[_Amendment, ...], BeforeValidator(as_list), Field(max_length=64)] = ()
    ballot: Annotated[tuple[VoteWish, ...], BeforeValidator(as_list), Field(max_length=64)] = ()


# -- what is on the table --------------------------------------------------------------------------


class Motion(Struct, frozen=True):
    """A motion as it stands: its text now, who moved and who seconded it, and what changed it."""

    id: str
    text: str
    mover: str
    since: int
    seconds: tuple[str, ...] = ()
    fate: Fate = "moved"
    changes: tuple[str, ...] = ()

    @property
    def stands(self) -> bool:
        """True if the motion may go to the vote."""
        return self.fate == "moved" and bool(self.seconds)


class Amendment(Struct, frozen=True):
    """Another text for a motion, as moved by a seat."""

    id: str
    motion: str
    text: str
    mover: str
    since: int
    fate: Fate = "moved"


class Item(Struct, frozen=True):
    """One line of a ballot: a motion, or a motion with the text of an amendment."""

    id: str
    motion: str
    text: str


class Tally(Struct, frozen=True):
    """The recorded vote on one item: every seat once, as (seat, vendor, vote, reason)."""

    item: Item
    turn: int
    votes: tuple[tuple[str, str, Vote, str], ...]
    majority: float

    def count(self, vote: Vote) -> int:
        """Return how many seats voted `vote`."""
        return sum(found == vote for _, _, found, _ in self.votes)

    @property
    def carried(self) -> bool:
        """True if yes has more than the share `majority` of yes and no, and at least half the seats were present."""
        yes, no = self.count("yes"), self.count("no")
        present = len(self.votes) - self.count("absent")
        return yes > self.majority * (yes + no) and 2 * present >= len(self.votes)

    @property
    def vendors(self) -> tuple[int, int]:
        """How many vendors have more seats for than against, and how many vendors there are."""
        balance: dict[str, int] = {}
        for _, vendor, vote, _ in self.votes:
            balance[vendor] = balance.get(vendor, 0) + {"yes": 1, "no": -1}.get(vote, 0)
        return sum(weight > 0 for weight in balance.values()), len(balance)

    @property
    def score(self) -> str:
        """The count in words: "5 yes / 2 no; 2 of 3 vendors"."""
        parts = [f"{self.count('yes')} yes", f"{self.count('no')} no"]
        parts += [f"{self.count(vote)} {vote}" for vote in ("abstain", "absent") if self.count(vote)]
        behind, vendors = self.vendors
        return f"{' / '.join(parts)}; {'1 vendor' if vendors == 1 else f'{behind} of {vendors} vendors'}"

    @property
    def words(self) -> str:
        """Item, result and count on one line."""
        return f"{self.item.id} {'carried' if self.carried else 'not carried'}: {self.score}"

    def named(self, vote: Vote) -> tuple[tuple[str, str], ...]:
        """Return the seats that voted `vote`, with their reasons."""
        return tuple((seat, reason) for seat, _, found, reason in self.votes if found == vote)


Speeches = Sequence[tuple[str, SpeechData]]  # seat and what it said, in the order of the seats


class House(Struct, frozen=True):
    """The state of a parliament: every motion and amendment, and every recorded vote."""

    motions: tuple[Motion, ...] = ()
    amendments: tuple[Amendment, ...] = ()
    tallies: tuple[Tally, ...] = ()

    def motion(self, ident: str) -> Motion | None:
        """Return the motion with this id, or None."""
        return next((item for item in self.motions if item.id == ident), None)

    def pending(self, motion: str = "") -> tuple[Amendment, ...]:
        """Return the undecided amendments, of one motion or of all."""
        return tuple(item for item in self.amendments if item.fate == "moved" and motion in ("", item.motion))

    @property
    def carried(self) -> tuple[Motion, ...]:
        """The motions that the house has adopted."""
        return tuple(item for item in self.motions if item.fate == "carried")

    def decisive(self, motion: Motion) -> Tally:
        """Return the vote by which a carried motion got its text."""
        return next(tally for tally in reversed(self.tallies) if tally.item.text == motion.text and tally.carried)

    def debated(self, turn: int, speeches: Speeches) -> House:
        """Return the house after a turn of speeches: with what was moved, seconded and accepted.

        Seats do not see the motions and amendments of the same turn. The same motion of two seats is one motion,
        moved by the first and seconded by the other. A seat cannot second its own motion. It can accept amendments
        only to its own motions, one for each motion and turn.
        """
        house = self
        for seat, said in speeches:
            for wish in said.motions:
                house = house._moved(turn, seat, wish)
        for seat, said in speeches:
            for ident in said.seconds:
                house = house._seconded(seat, ident) if self.motion(ident) else house
            for ident in said.accepts:
                house = house._accepted(turn, seat, ident, self)
        for seat, said in speeches:
            for change in said.amendments:
                house = house._amended(turn, seat, change) if self.motion(change.motion) else house
        return house

    def _moved(self, turn: int, seat: str, wish: MotionWish) -> House:
        same = next((item for item in self.motions if folded(item.text) == folded(wish.text)), None)
        if same:
            return self._seconded(seat, same.id)
        motion = Motion(f"M{len(self.motions) + 1}", wish.text, seat, turn)
        return replace(self, motions=(*self.motions, motion))

    def _seconded(self, seat: str, ident: str) -> House:
        motion = self.motion(ident)
        if not motion or seat in (motion.mover, *motion.seconds):
            return self
        return self._with(replace(motion, seconds=(*motion.seconds, seat)))

    def _amended(self, turn: int, seat: str, wish: AmendmentWish) -> House:
        motion = self.motion(wish.motion)
        texts = [item.text for item in self.amendments if item.motion == wish.motion]
        if not motion or motion.fate == "carried" or folded(wish.text) in map(folded, (motion.text, *texts)):
            return self
        amendment = Amendment(f"A{len(self.amendments) + 1}", wish.motion, wish.text, seat, turn)
        return replace(self, amendments=(*self.amendments, amendment))

    def _accepted(self, turn: int, seat: str, ident: str, before: House) -> House:
        amendment = next((item for item in before.pending() if item.id == ident), None)
        motion = self.motion(amendment.motion) if amendment else None
        old = before.motion(amendment.motion) if amendment else None
        if not amendment or not motion or not old or seat != motion.mover or motion.changes != old.changes:
            return self
        if motion.fate == "carried":
            return self
        changed = f"{ident} accepted by {seat} in turn {turn}"
        return self._with(
            replace(motion, text=amendment.text, fate="moved", changes=(*motion.changes, changed))
        )._decided({ident: "accepted"})

    def _with(self, motion: Motion) -> House:
        return replace(self, motions=tuple(motion if item.id == motion.id else item for item in self.motions))

    def _decided(self, fates: dict[str, Fate]) -> House:
        return replace(
            self, amendments=tuple(replace(item, fate=fates.get(item.id, item.fate)) for item in self.amendments)
        )

    def ballot(self, size: int) -> tuple[Item, ...]:
        """Return the items of the next vote, at most `size`: motions with the most seconds first.

        Each motion is followed by its undecided amendments, with the text that the motion would then have.
        """
        found: list[Item] = []
        standing = [motion for motion in self.motions if motion.stands]
        for motion in sorted(standing, key=lambda motion: -len(motion.seconds)):
            found.append(Item(motion.id, motion.id, motion.text))
            found += [Item(item.id, motion.id, item.text) for item in self.pending(motion.id)]
        return tuple(found[:size])

    def voted(
        self,
        turn: int,
        ballot: Sequence[Item],
        speeches: Speeches,
        seats: Sequence[tuple[str, str]],
        majority: float,
    ) -> House:
        """Return the house after a vote of `seats` (name, vendor) on `ballot`; a seat without a vote was absent.

        If several texts of one motion carry, the text with the most yes votes is adopted; in a tie, the one that is
        first on the ballot, which has a motion before its amendments.
        """
        said = {seat: {vote.item: vote for vote in reversed(data.ballot)} for seat, data in reversed(speeches)}
        tallies = []
        for item in ballot:
            votes: list[tuple[str, str, Vote, str]] = []
            for seat, vendor in seats:
                vote = said.get(seat, {}).get(item.id)
                votes.append((seat, vendor, vote.vote, vote.reason) if vote else (seat, vendor, "absent", ""))
            tallies.append(Tally(item, turn, tuple(votes), majority))
        house = replace(self, tallies=(*self.tallies, *tallies))
        for ident in dict.fromkeys(item.motion for item in ballot):
            house = house._settled(turn, ident, [tally for tally in tallies if tally.item.motion == ident])
        return house

    def _settled(self, turn: int, ident: str, tallies: Sequence[Tally]) -> House:
        motion = self.motion(ident)
        assert motion is not None  # a ballot is made of motions on the table
        best = max((tally for tally in tallies if tally.carried), key=lambda tally: tally.count("yes"), default=None)
        if best is None:
            lost: dict[str, Fate] = {tally.item.id: "rejected" for tally in tallies}
            return self._with(replace(motion, fate="rejected"))._decided(lost)
        fates: dict[str, Fate] = {
            tally.item.id: "lapsed" if tally.carried else "rejected" for tally in tallies if tally is not best
        }
        changes = motion.changes
        if best.item.id != ident:
            fates[best.item.id] = "carried"
            changes = (*changes, f"{best.item.id} carried in turn {turn}: {best.score}")
        return self._with(replace(motion, text=best.item.text, fate="carried", changes=changes))._decided(fates)

    def data(self) -> dict[str, Any]:
        """Return motions, pending amendments and votes as the data of a call; no vendor is named."""
        return {
            "motions": [
                {
                    "id": item.id,
                    "text": item.text,
                    "mover": item.mover,
                    "seconds": list(item.seconds),
                    "fate": item.fate,
                    "changes": list(item.changes),
                }
                for item in self.motions
            ],
            "amendments": [
                {"id": item.id, "motion": item.motion, "text": item.text, "mover": item.mover}
                for item in self.pending()
            ],
            "tallies": [
                {
                    "words": tally.words,
                    "turn": tally.turn,
                    "text": tally.item.text,
                    **{vote: [seat for seat, _ in tally.named(vote)] for vote in ("yes", "no", "abstain", "absent")},
                }
                for tally in self.tallies
            ],
        }
