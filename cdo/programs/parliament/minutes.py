"""Checks the replies of a parliament's seats, and the minutes in FINAL.md. Pure.

A seat's reply has only keys that its stage allows, and one vote on every item of a ballot. FINAL.md states each
recorded vote as it was counted, every motion that carried, and why seats voted against it.
"""

from __future__ import annotations

from msgspec import Struct

from cdo.core.steps import InvalidReply
from cdo.formats import gbnf
from cdo.formats.blocks import validate
from cdo.formats.fields import twice
from cdo.formats.final_answer import FINAL_SECTIONS, FinalData, FinalFormat, add_to_section, final_section
from cdo.formats.lenient.layout import ReplyLayout
from cdo.formats.markdown import closed, front_matter, unwrap
from cdo.formats.sections import (
    ADDED,
    add_under,
    as_list_item,
    completed,
    lacking,
    plain,
    rules_of,
    section,
    speaks_of,
)
from cdo.formats.voice import NUMBERED, AgentFormat, placeholders
from cdo.programs.parliament.motions import House, Item, Motion, SpeechData, Stage, Tally

NO_MAJORITY = "No majority"
_NAMES = {"Votes": ("votes", "recordedvotes", "vote")}
# The keys that a seat's reply may have, by stage.
BRINGS: dict[Stage, tuple[str, ...]] = {
    "opening": ("motions",),
    "debate": ("motions", "seconds", "amendments", "accepts"),
    "answer": ("seconds", "accepts"),
    "vote": ("ballot",),
}


class SpeechFormat(Struct, frozen=True):
    """A seat's reply in one stage. `house` is the state before the turn, `ballot` are the items to vote on.

    `most` limits the motions, and also the amendments, that a seat may move in a turn.
    """

    stage: Stage
    house: House
    ballot: tuple[Item, ...] = ()
    most: int = 2
    name: str = "agent"

    @property
    def layout(self) -> ReplyLayout:
        """The arrangement of the reply, for reading it leniently."""
        return ReplyLayout("front matter", (SpeechData,), numbered=NUMBERED)

    def parse(self, text: str) -> SpeechData:
        """Return the front matter; raise `InvalidReply` with everything that is wrong."""
        AgentFormat().parse(text)
        meta, _ = front_matter(unwrap(text))
        data = validate(SpeechData, meta, "The front matter")
        if problems := [*placeholders(data), *self._misplaced(data), *self._unknown(data), *self._votes(data)]:
            raise InvalidReply(problems)
        return data

    def _misplaced(self, data: SpeechData) -> list[str]:
        """Return what does not belong in this stage, what is missing, and what is too much."""
        allowed = BRINGS[self.stage]
        every = ("motions", "seconds", "amendments", "accepts", "ballot")
        found = [
            f"`{key}` has no place in the stage {self.stage}; it takes {', '.join(allowed)}."
            for key in every
            if key not in allowed and getattr(data, key)
        ]
        if self.stage == "opening" and not data.stance:
            found.append("`stance` is missing: the line that you put on record and keep.")
        found += [
            f"`{key}`: at most {self.most} in a turn; {len(getattr(data, key))} were given."
            for key in ("motions", "amendments")
            if key in allowed and len(getattr(data, key)) > self.most
        ]
        return found

    def _unknown(self, data: SpeechData) -> list[str]:
        """Return a problem for each id that is no motion or no open amendment."""
        motions = [item.id for item in self.house.motions]
        pending = [item.id for item in self.house.pending()]
        named = [*data.seconds, *(item.motion for item in data.amendments)]
        found = [f"There is no motion {ident}." for ident in dict.fromkeys(named) if ident not in motions]
        return [
            *found,
            *(f"There is no open amendment {i}." for i in dict.fromkeys(data.accepts) if i not in pending),
        ]

    def _votes(self, data: SpeechData) -> list[str]:
        """Return a problem for items of the ballot without exactly one vote, and for votes on other items."""
        if self.stage != "vote":
            return []
        voted, items = [vote.item for vote in data.ballot], [item.id for item in self.ballot]
        found = twice(voted, "ballot: the item")
        found += [f"ballot: {ident} is not on it." for ident in dict.fromkeys(voted) if ident not in items]
        missing = [ident for ident in items if ident not in voted]
        if missing:
            found.append(f"ballot: {', '.join(missing)} must have a vote: yes, no or abstain, with its reason.")
        return found

    def repair(self, text: str) -> tuple[str, tuple[str, ...]] | None:
        """Return None: a vote that cannot be read is no vote, and its seat was absent."""
        return None

    def grammar(self) -> str:
        """Return a grammar of a short reply with what the stage asks for."""
        more = ""
        if self.stage == "opening":
            more = '"stance: " quoted "\\nmotions:\\n  - text: " quoted "\\n" '
        elif self.stage == "vote" and self.ballot:
            line = '"  - item: {0}\\n    vote: " cast "\\n    reason: " quoted "\\n"'
            more = f'"ballot:\\n" {" ".join(line.format(item.id) for item in self.ballot)} '
        elif options := [item.id for item in self.house.motions if item.fate == "moved"]:
            more = f'"seconds: [" {gbnf.choice(options)} "]\\n" '
        rules = rules_of(AgentFormat().grammar())
        head, end, prose = rules["root"].rpartition('"---\\n\\n"')
        own = {"cast": gbnf.choice(["yes", "no", "abstain"])} if "cast" in more else {}
        return gbnf.grammar({**rules, **own, "root": f"{head}{more}{end}{prose}"})


class MinutesFormat(Struct, frozen=True):
    """The final format of a parliament: `inner` checks the five sections, this one votes, decision and dissent."""

    inner: FinalFormat
    house: House
    name: str = "final"

    @property
    def layout(self) -> ReplyLayout:
        """The arrangement of the reply, for reading it leniently."""
        return ReplyLayout("prose", titles=(*FINAL_SECTIONS, *_NAMES))

    @property
    def against(self) -> tuple[tuple[str, Motion, str], ...]:
        """The votes against motions that carried, as (seat, motion, reason)."""
        return tuple(
            (seat, motion, reason)
            for motion in self.house.carried
            for seat, reason in self.house.decisive(motion).named("no")
        )

    def parse(self, text: str) -> FinalData:
        """Return which sections are there; raise `InvalidReply` naming each thing left out."""
        body, problems = lacking(self.inner, text, _NAMES)
        problems += [f"Votes must state as recorded: `{tally.words}`." for tally in self._lost_votes(body)]
        problems += self._decision(body)
        problems += [
            f"Minority Reports must record, on one line, that {seat} voted "
            f"against {motion.id}: {as_list_item(reason)}"
            for seat, motion, reason in self._lost_dissent(body)
        ]
        if problems:
            raise InvalidReply(problems)
        return FinalData(sections=(*FINAL_SECTIONS, *_NAMES))

    def _lost_votes(self, body: str) -> list[Tally]:
        place = _bare(section(body, _NAMES["Votes"]) or "")
        return [tally for tally in self.house.tallies if not speaks_of(place, _bare(tally.words))]

    def _decision(self, body: str) -> list[str]:
        """Return a problem for each thing that the section Decision must say and does not."""
        decision = final_section(body, "Decision") or ""
        carried = self.house.carried
        if not carried and NO_MAJORITY.lower() not in " ".join(decision.lower().split()):
            return [f"No motion carried: Decision must say `{NO_MAJORITY}`."]
        return [
            f"Decision must name {motion.id}, which carried: {as_list_item(motion.text)}"
            for motion in carried
            if not speaks_of(decision, motion.id)
        ]

    def _lost_dissent(self, body: str) -> list[tuple[str, Motion, str]]:
        lines = (final_section(body, "Minority Reports") or "").split("\n")
        return [
            (seat, motion, reason)
            for seat, motion, reason in self.against
            if not any(speaks_of(line, seat) and speaks_of(line, motion.id) for line in lines)
        ]

    def repair(self, text: str) -> tuple[str, tuple[str, ...]] | None:
        """Add, word for word from the record, what the model still leaves out."""
        repaired = self.inner.repair(text)
        if repaired is None:
            return None
        body, absent = completed(closed(front_matter(repaired[0])[1]), _NAMES)
        added = [*repaired[1], *absent]
        if votes := self._lost_votes(body):
            body = add_under(body, _NAMES["Votes"], "\n".join(f"{_recorded(tally)} {ADDED}" for tally in votes))
            added += [f"vote on {tally.item.id} of turn {tally.turn}" for tally in votes]
        if self._decision(body):
            lost = [
                motion
                for motion in self.house.carried
                if not speaks_of(final_section(body, "Decision") or "", motion.id)
            ]
            told = [f"Carried: **{motion.id}**: {as_list_item(motion.text)} {ADDED}" for motion in lost]
            body = add_to_section(body, "Decision", "\n\n".join(told or [f"{NO_MAJORITY}. {ADDED}"]), first=True)
            added.append("what the votes decided")
        if dissent := self._lost_dissent(body):
            lines = [
                f"- **{seat}** voted against {motion.id}: {as_list_item(reason)} {ADDED}"
                for seat, motion, reason in dissent
            ]
            body = add_to_section(body, "Minority Reports", "\n".join(lines))
            added += [f"minority report {seat}/{motion.id}" for seat, motion, _ in dissent]
        try:
            self.parse(body)
        except InvalidReply:
            return None
        return body, tuple(added)

    def grammar(self) -> str:
        """Return a grammar of the five sections, with decisions and dissent as fixed text, then the votes."""
        rules = rules_of(self.inner.grammar())
        carried = [f"Carried: {motion.id}: {plain(as_list_item(motion.text))}\n\n" for motion in self.house.carried]
        decided = gbnf.literal("".join(carried) or f"{NO_MAJORITY}.\n\n")
        noes = [
            f"- {seat} voted against {motion.id}: {plain(as_list_item(reason))}\n"
            for seat, motion, reason in self.against
        ]
        votes = gbnf.literal(
            "".join(f"{plain(_recorded(tally))}\n" for tally in self.house.tallies) or "No vote was held.\n"
        )
        root = rules["root"]
        for head, literal in (
            ("Decision", decided),
            ("Minority Reports", gbnf.literal("".join(noes)) if noes else ""),
        ):
            mark = f'## {head}\\n\\n"'
            root = root.replace(mark, f"{mark} {literal}", 1)
            root = root.replace(f'{literal} "None.\\n"', literal, 1) if literal else root
        return gbnf.grammar({**rules, "root": f'{root} "\\n## Votes\\n\\n" {votes}'})


def _bare(text: str) -> str:
    """Return text in the form used to compare counts: without emphasis, with one blank between words."""
    return " ".join(text.replace("*", "").replace("`", "").split())


def _recorded(tally: Tally) -> str:
    """Return a recorded vote as a line: the count, and how each seat voted."""
    sides = [
        f"{vote}: {', '.join(seat for seat, _ in tally.named(vote))}"
        for vote in ("yes", "no", "abstain", "absent")
        if tally.named(vote)
    ]
    return f"- {tally.words} (turn {tally.turn}; {'; '.join(sides)})"


def voting_record(house: House) -> str:
    """Return the section that code writes: each item of a vote in its own words, and each seat's vote and reason."""
    if not house.tallies:
        return ""
    lines = ["## Record of votes", ""]
    for tally in house.tallies:
        lines.append(f"- **{tally.item.id}** (turn {tally.turn}), {tally.score}: {as_list_item(tally.item.text)}")
        for seat, _, vote, reason in tally.votes:
            lines.append(f"  - {seat}: {vote}{f', {as_list_item(reason)}' if reason else ''}")
    return "\n".join(lines)
