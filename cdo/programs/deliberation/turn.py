"""Runs one turn of any deliberation: seat, show the human, wake the team, ask the voices, synthesise. Pure.

A program chooses the voices and decides what follows. The steps between are the same for all programs and are here.
Each is a generator that yields steps of `core.steps` and receives their answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct, field
from msgspec.structs import replace

from cdo.content import skill_ranking
from cdo.core.steps import FURTHER, Call, Collect, Missing, Program, Publish, Reply, Review, Survey
from cdo.planning import turn_plan
from cdo.planning.plan import Plan
from cdo.planning.role_choice import SPECIAL_ROLES
from cdo.planning.turn_plan import Proposal
from cdo.programs.deliberation import calls, team
from cdo.programs.deliberation.calls import FRESH, TurnTemplate, Voice
from cdo.programs.deliberation.convergence import Position, Record, bounded
from cdo.programs.deliberation.findings import Source
from cdo.programs.deliberation.objections import dissents
from cdo.programs.deliberation.person_changes import (
    allowed_turns,
    edited_voices,
    proposal,
    resized,
    voices_of_people,
    with_change,
    with_seats,
)
from cdo.programs.deliberation.team import Memory, Team

if TYPE_CHECKING:
    from cdo.formats.voice_blocks import AgentData, Claim, Directive, Note, Objection, VoiceData

CLAIMS = 24  # most claims of a turn that a refuter and a checker are given
ALIKE = 0.7  # share of common words from which two claims count as the same


class TurnResult(Struct, frozen=True):
    """The result of a turn: the voices that answered, and the synthesis."""

    present: tuple[tuple[Voice, Reply], ...]
    synthesis: Reply

    @property
    def directive(self) -> Directive:
        """The directive of the synthesis."""
        return cast("Directive", self.synthesis.data)

    @property
    def claims(self) -> tuple[str, ...]:
        """At most `CLAIMS` distinct claims of the turn: the first claim of each voice, then the second of each, …"""
        ranks = zip_longest(*(cast("VoiceData", reply.data).claims for _, reply in self.present))
        found: list[str] = []
        for claim in filter(None, chain.from_iterable(ranks)):
            if not any(_alike(claim.text, other) for other in found):
                found.append(claim.text)
        return tuple(found[:CLAIMS])


def _alike(a: str, b: str) -> bool:
    """True if two claims share most of their words."""
    first, second = ({word.strip(".,;:()'\"") for word in text.casefold().split()} for text in (a, b))
    return len(first & second) >= ALIKE * len(first | second)


class RunState(Struct):
    """The state of a run, apart from the state that its program keeps itself.

    `plan` is the frozen plan with the human's changes since. `said` are the human's messages to voices. `last` are
    the roles of the last turn, `seats` the same by voice. `missing` are (turn, voice, reason). `added` is what cdo
    had to complete, `flags` what a reader should know. `verified`, `existing` (nothing was quoted) and `unverified`
    are the citations checked so far. `sources` are all claims and objections so far, `spoke` the calls of each voice
    in order. `argued` is true if the other side was argued in any turn, `refereed` if a referee sat in the last turn.
    `invented` are the charges of sitting roles that the directive made up. `further` is the stem of the file with
    further files for the focus, "" if there are none; `looked_for` is what was looked for last.
    """

    plan: Plan
    record: Record = field(default_factory=Record)
    team: Team = field(default_factory=Team)
    last: tuple[str, ...] = ()
    seats: dict[str, str] = field(default_factory=dict)
    note: str = ""
    focus: str = ""
    said: tuple[turn_plan.PlanMessage, ...] = ()
    stop: bool = False
    missing: list[tuple[int, str, Missing]] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    verified: set[str] = field(default_factory=set)
    existing: set[str] = field(default_factory=set)
    unverified: dict[str, str] = field(default_factory=dict)
    sources: list[Source] = field(default_factory=list)
    spoke: dict[str, list[str]] = field(default_factory=dict)
    invented: dict[str, str] = field(default_factory=dict)
    argued: bool = False
    refereed: bool = False
    further: str = ""
    looked_for: str = ""

    @property
    def turn(self) -> int:
        """The number of the turn that comes next, from 1."""
        return len(self.record.turns) + 1

    @property
    def directive(self) -> Directive | None:
        """The directive of the last synthesis; None before the first."""
        return self.record.turns[-1].directive if self.record.turns else None

    @property
    def previous(self) -> str:
        """The stem of the last synthesis; "" before the first."""
        return f"t{self.turn - 1}-synthesis" if self.turn > 1 else ""

    @property
    def confidence(self) -> tuple[float, str]:
        """The last synthesis's confidence, bounded by facts on record, and the facts that lowered it ("" if none)."""
        record = self.record
        return bounded(
            record.turns[-1].directive.confidence,
            self.plan.bounds,
            open_tensions=len(record.open),
            objections=len(record.objections.severe(self.plan.criteria.severe, weighed=True)),
            missing=sum(turn == len(record.turns) for turn, *_ in self.missing),
            verified=len(self.verified) + len(self.existing),
            unverified=len(self.unverified),
        )

    @property
    def objectors(self) -> list[str]:
        """The roles of the last turn whose objections make the conflict."""
        severe = {item.role for item in self.record.objections.severe(self.plan.criteria.severe)}
        return [role for name, role in self.seats.items() if name in severe and role not in SPECIAL_ROLES]

    def band(self) -> tuple[int, int]:
        """Return the fewest and the most voices that the next turn may have."""
        return self.plan.width if self.plan.adaptive else (self.plan.start, self.plan.start)

    def said_to(self, name: str) -> list[Note]:
        """Return the messages in the human's plan for one voice."""
        if not self.said:
            return []
        from cdo.formats.voice_blocks import Note

        return [Note(to=name, text=item.text[:2000]) for item in self.said if item.to in (name, turn_plan.ALL)]

    # -- before the voices are asked ----------------------------------------------------------

    def prepare(self, voices: Sequence[Voice]) -> Program[list[Voice]]:
        """Return the voices of the turn: with skills, with the human's changes, and on the roster.

        Set `stop` if the human says that the run is done. The changes of a fork for this turn are applied first. The
        seats that the fork asks for take precedence over seats for waiting messages.
        """
        self.focus, self.note, self.said, self.stop = self.directive.focus if self.directive else "", "", (), False
        chosen, change = list(voices), self.plan.change(self.turn)
        if change:
            self.plan = with_change(self.plan, change, self.turn)
            self.focus, self.note = change.focus or self.focus, change.note
        if self.plan.team:
            chosen = yield from self._mail(chosen)
        if change:
            seats, without = with_seats(self.plan, chosen, change)
            self.flags += [f"turn {self.turn}: {name} had no seat to be left out of" for name in without]
            chosen = self._resized(chosen, seats)
        chosen = self._skilled(chosen)
        if self.plan.hitl:
            chosen = yield from self._reviewed(chosen)
        if self.plan.team and not self.stop:
            names = {voice.name: voice.role for voice in chosen if voice.role not in FRESH}
            self.team = self.team.begin(self.turn, names, retire=self.plan.adaptive)
            self._written("human", [note for name in names for note in self.said_to(name)])
            if self.plan.hitl:  # letters left while the plan waited
                yield from self._letters("letters")
            self.team = self.team.delivered(self.turn, names)
            yield Publish(self.team.files())
        taken = {seat.role: seat.name for seat in self.plan.people}
        self.flags += [
            f"turn {self.turn}: no model sits as {voice.name}, which is the seat of {taken[voice.name]}"
            for voice in chosen
            if voice.name in taken
        ]
        chosen = [voice for voice in chosen if voice.name not in taken]
        self.last = tuple(voice.role for voice in chosen)
        self.seats = {voice.name: voice.role for voice in chosen}
        known = {*self.plan.known_roles, *SPECIAL_ROLES}
        self.invented = {voice.role: voice.charge for voice in chosen if voice.charge and voice.role not in known}
        return [*chosen, *voices_of_people(self.plan, change)]

    def _mail(self, voices: list[Voice]) -> Program[list[Voice]]:
        """Collect what lead and human wrote to teammates, and seat each teammate with a waiting message.

        If the band is full, another voice loses its seat, but never a voice with a waiting message nor a special role
        (one that argues the other side or weighs a conflict).
        """
        self._written("lead", self.directive.messages if self.directive else ())
        yield from self._letters("inbox", [voice.name for voice in voices if voice.role not in FRESH])
        high = self.band()[1]
        names = [voice.name for voice in voices]
        for name in (name for name in self.team.called() if name not in names and name in self.team.mates):
            mate = self.team.mates[name]
            if len(voices) >= high:
                regular = [voice for voice in voices if voice.role not in SPECIAL_ROLES]
                drop = next((voice for voice in reversed(regular) if voice.name not in self.team.called()), None)
                if drop is None:
                    break
                voices.remove(drop)
            voices.append(Voice(name, mate.role))
        if self.plan.hitl:  # without a person the next files of the team are written before anybody can look
            yield Publish(self.team.files())
        return voices

    def _letters(self, name: str, joining: Sequence[str] = ()) -> Program[None]:
        """Collect the letters that a person left; `name` distinguishes this collection from others of the turn.

        A letter must be for a teammate on the roster or a voice `joining` in this turn; other letters are
        quarantined.
        """
        refuse = partial(self.team.unknown, joining)
        found = yield Collect(f"t{self.turn}-{name}", team.INBOX, team.NoteFormat(), refuse=refuse)
        self._written("human", cast("tuple[Any, ...]", found), joining)

    def _written(self, sender: Any, notes: Sequence[Any], joining: Sequence[str] = ()) -> None:
        strangers = self.team.strangers(notes, joining)
        self.team = self.team.told(self.turn, sender, notes, joining)
        self.flags += [
            f"turn {self.turn}: a message to {name}, who is not on the team, was left" for name in strangers
        ]

    def _skilled(self, voices: Sequence[Voice]) -> list[Voice]:
        """Give each voice skills of its own, from the catalogue of the plan."""
        if not self.plan.skills or not self.plan.per_agent[1]:
            return list(voices)
        shared = [*self.plan.skill_words, *(self.directive.skills if self.directive else ())]
        wanted = [
            skill_ranking.SkillQuery(
                voice.name,
                skill_ranking.query(voice.role, voice.charge, self.focus, self.plan.topic),
                (*voice.wishes, *self.plan.wishes.get(voice.role, ())),
            )
            for voice in voices
        ]
        given = skill_ranking.assign(self.plan.skills, wanted, shared, self.plan.per_agent)
        return [replace(voice, skills=given.get(voice.name, ())) for voice in voices]

    def _reviewed(self, voices: Sequence[Voice]) -> Program[list[Voice]]:
        """Show the plan of the turn to the human, and apply the edited plan."""
        plan, turn = self.plan, self.turn
        proposed = proposal(plan, turn, voices, self.focus, self.note)
        form = plan.turn_format(proposed)
        word = partial(turn_plan.dump, proposed, form)
        answer = cast(Proposal, (yield Review(f"t{turn}-plan.yaml", "templates/turn-plan", word, form)))
        turns = allowed_turns(plan, answer.turns)
        if turns != answer.turns and answer.turns != plan.turns:
            self.flags.append(f"turn {turn}: {plan.mode} needs {plan.least} turns: yours were not taken over")
        self.plan = replace(plan, turns=turns, criteria=answer.criteria)
        self.focus, self.note, self.said = answer.focus, answer.note, answer.messages
        if answer.decision == "done":
            self.stop = True
            return list(voices)
        return self._resized(voices, edited_voices(plan, answer))

    def _resized(self, before: Sequence[Voice], after: list[Voice]) -> list[Voice]:
        """Return the voices that a person asked for, and hold to their number from now on if it is another one."""
        if len(after) != len(before):
            self.plan = resized(self.plan, len(after))
        return after

    # -- the voices ---------------------------------------------------------------------------

    def hear(
        self,
        voices: Sequence[Voice],
        shape: TurnTemplate | None = None,
        *,
        before: TurnResult | None = None,
        referee: str = "",
    ) -> Program[TurnResult]:
        """Ask the voices, then the synthesiser; add the turn to the record and return its result.

        `before` is the turn before, whose claims the refuter and the checker get. `referee` names a voice that weighs
        a conflict in addition to its own part.
        """
        shape, turn = shape or TurnTemplate(), self.turn
        yield from self._look_further()
        batch = calls.of_voices(self, voices, shape, before.claims if before else ())
        replies = cast("tuple[Reply, ...]", (yield batch))
        asked = {}
        for voice, call, reply in zip(voices, batch.calls, replies, strict=True):
            asked[voice.name] = _answering(call, reply)
            if asked[voice.name] != call.models[0]:
                self.flags.append(
                    f"turn {turn}: {asked[voice.name]} answered as {voice.name}, since {call.models[0]} did not"
                )
        pairs = list(zip(voices, replies, strict=True))
        present = [(voice, reply) for voice, reply in pairs if not reply.missing]
        absent = [(voice, reply) for voice, reply in pairs if reply.missing]
        self.missing += [(turn, voice.name, reply.reason) for voice, reply in absent]
        self._count(replies)
        if self.plan.team:
            self._answered([pair for pair in pairs if pair[0].name in self.team.mates and pair[0].role not in FRESH])
            yield Publish(self.team.files())
        makers = len({self.plan.vendors.get(asked[voice.name], "") for voice, _ in present} - {""}) or 1
        raised = tuple(
            chain.from_iterable(dissents(voice.name, turn, reply.data.objections) for voice, reply in present)
        )
        noted = self.record.objections.raised(turn, raised)
        (synthesis,) = cast(
            "tuple[Reply, ...]", (yield calls.of_synthesis(self, present, absent, shape, makers, noted))
        )
        self._count([synthesis])
        self.added += [f"turn {turn}: {item}" for item in synthesis.added]
        heard = TurnResult(tuple(present), synthesis)
        self._remember(present, referee)
        self.record = self.record.after(
            heard.directive,
            raised,
            [Position(voice.name, turn, reply.data.position, reply.data.confidence) for voice, reply in present],
            withdrawn=[(voice.name, name) for voice, reply in present for name in reply.data.withdraws],
            refereed=self.refereed,
        )
        return heard

    def _look_further(self) -> Program[None]:
        """Choose further files of the repository if the turn has a focus of its own that was not looked for yet."""
        directive = self.directive
        settled_with = directive.settle_with if directive and directive.focus == self.focus else ""
        wanted = f"{self.focus}\n{settled_with}".strip()
        if not self.plan.focus_tokens or not wanted:
            self.further = self.looked_for = ""
        elif wanted != self.looked_for:
            self.looked_for = wanted
            self.further = yield Survey(f"{FURTHER}{self.turn}", wanted, self.plan.focus_tokens)

    def _remember(self, present: Sequence[tuple[Voice, Reply]], referee: str) -> None:
        """Store each voice's calls, claims and objections, and whether the other side was argued."""
        roles = {voice.role for voice, _ in present}
        self.refereed = "referee" in roles or referee in {voice.name for voice, _ in present}
        self.argued = self.argued or bool(roles & {"steelman", "refuter"})
        for voice, reply in present:
            data = cast("VoiceData", reply.data)
            self.spoke.setdefault(voice.name, []).append(reply.call)
            found: tuple[Claim | Objection, ...] = (*data.claims, *data.objections)
            self.sources += [Source(f"{reply.call}/{item.id}", item.text) for item in found]

    def _count(self, replies: Sequence[Reply]) -> None:
        """Store which citations were confirmed; a citation that was confirmed once stays confirmed."""
        for finding in chain.from_iterable(reply.findings for reply in replies):
            if finding.holds:
                (self.verified if finding.verified else self.existing).add(finding.citation)
                self.unverified.pop(finding.citation, None)
            elif finding.citation not in self.verified | self.existing:
                self.unverified[finding.citation] = finding.why
        self.existing -= self.verified

    def _answered(self, pairs: Sequence[tuple[Voice, Reply]]) -> None:
        """Update the roster with the voices' answers."""
        answers: dict[str, Memory | None] = {}
        for voice, reply in pairs:
            data = cast("AgentData", reply.data)
            answers[voice.name] = (
                None if reply.missing else Memory(self.turn, voice.charge, self.focus, data.position, data.confidence)
            )
        heard = {voice.name: reply.data.acknowledged for voice, reply in pairs if not reply.missing}
        self.team = self.team.end(self.turn, answers, heard)


# -- parts -----------------------------------------------------------------------------------------


def _answering(call: Call, reply: Reply) -> str:
    """Return the model that answered a call: the call's first model, unless another of its models is on record."""
    return reply.model if reply.model in call.models else call.models[0]
