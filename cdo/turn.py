"""One turn, as every kind of deliberation takes it: seat, show the human, wake the team, hear, synthesise. Pure.

A program composes who speaks and decides what follows; what happens between is the same for all of them and is
told here once. Everything is a generator over the steps of `types`: it yields them and receives their answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, zip_longest
from typing import Any, cast

from cdo import calls, proposal, skills, team
from cdo.calls import FRESH, Shape, Voice
from cdo.convergence import Record
from cdo.final import Dissent
from cdo.plan import SPECIAL_ROLES, Change, Plan, seats
from cdo.proposal import Proposal
from cdo.protocol import AgentData, Directive, Note
from cdo.team import Memory, Team
from cdo.types import Collect, Program, Publish, Reply, Review

CLAIMS = 24  # of a turn that a refuter is given


@dataclass(frozen=True)
class Heard:
    """What came of a turn: who answered, who did not, what the synthesis directs."""

    present: tuple[tuple[Voice, Reply], ...]
    directive: Directive

    @property
    def dissents(self) -> tuple[Dissent, ...]:
        """The objections of the turn's voices."""
        return tuple(
            Dissent(item.id, voice.name, item.text, item.severity)
            for voice, reply in self.present
            for item in cast(AgentData, reply.data).objections
        )

    @property
    def claims(self) -> tuple[str, ...]:
        """The claims of the turn for a refuter: each voice's first one, then each one's second, …"""
        ranks = zip_longest(*(cast(AgentData, reply.data).claims for _, reply in self.present))
        return tuple(claim.text for claim in chain.from_iterable(ranks) if claim)[:CLAIMS]


@dataclass
class Course:
    """What a run knows while it goes on, beside what its program keeps for itself.

    `plan` is the frozen one with what the human changed since; `said` are their messages to voices; `last` the roles
    that sat in the last turn. `missing` are (turn, role, reason); `added` what cdo had to complete; `flags` what a
    reader should know; `verified` and `unverified` the citations that were checked so far.
    """

    plan: Plan
    record: Record = field(default_factory=Record)
    team: Team = field(default_factory=Team)
    last: tuple[str, ...] = ()
    note: str = ""
    focus: str = ""
    said: tuple[proposal.Message, ...] = ()
    stop: bool = False
    missing: list[tuple[int, str, str]] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    verified: set[str] = field(default_factory=set)
    unverified: dict[str, str] = field(default_factory=dict)

    @property
    def turn(self) -> int:
        """The number of the turn that comes next, from 1."""
        return len(self.record.turns) + 1

    @property
    def directive(self) -> Directive | None:
        """What the last synthesis directs."""
        return self.record.turns[-1].directive if self.record.turns else None

    @property
    def previous(self) -> str:
        """The stem of the last synthesis; "" before the first."""
        return f"t{self.turn - 1}-synthesis" if self.turn > 1 else ""

    def band(self) -> tuple[int, int]:
        """Fewest and most voices that the next turn may have."""
        return self.plan.width if self.plan.adaptive else (self.plan.start, self.plan.start)

    def said_to(self, name: str) -> list[Note]:
        """What the human's plan says to one voice."""
        return [Note(to=name, text=item.text[:2000]) for item in self.said if item.to in (name, proposal.ALL)]

    # -- before the voices speak --------------------------------------------------------------

    def prepare(self, voices: Sequence[Voice]) -> Program[list[Voice]]:
        """The voices as they will speak: with skills, as the human wants them, and on the roster.

        Sets `stop` where the human says that it is done. What a fork changes with this turn holds before anything
        else is decided; the seats it asks for win over those that messages call for.
        """
        self.focus, self.note, self.said, self.stop = self.directive.focus if self.directive else "", "", (), False
        chosen, change = list(voices), self.plan.change(self.turn)
        if change:
            self._change(change)
        if self.plan.team:
            chosen = yield from self._mail(chosen)
        if change:
            chosen = self._changed(chosen, change)
        chosen = self._skilled(chosen)
        if self.plan.hitl:
            chosen = yield from self._reviewed(chosen)
        if self.plan.team and not self.stop:
            names = {voice.name: voice.role for voice in chosen if voice.role not in FRESH}
            self.team = self.team.begin(self.turn, names, retire=self.plan.adaptive)
            self._written("human", [note for name in names for note in self.said_to(name)])
            if self.plan.hitl:  # what was left while the plan waited
                yield from self._letters("letters")
            self.team = self.team.delivered(self.turn, names)
            yield Publish(self.team.files())
        self.last = tuple(voice.role for voice in chosen)
        return chosen

    def _change(self, change: Change) -> None:
        """Take over what a fork changes beside the seats; the turn is held, so the cap is no lower."""
        (low, cap), models = change.turns or self.plan.turns, change.models or self.plan.models
        vendors = {**self.plan.vendors, **change.vendors}
        turns = (low, max(cap, self.turn))
        self.plan = self.plan.model_copy(update={"models": models, "vendors": vendors, "turns": turns})
        self.focus, self.note = change.focus or self.focus, change.note

    def _changed(self, voices: Sequence[Voice], change: Change) -> list[Voice]:
        """The voices without those that a fork leaves out, and with the roles that it asks for.

        One that sits keeps its seat; another takes a further one where an adaptive band has room, or the band is of
        one width; else that of the last voice that nobody asked for.
        """
        plan, asked = self.plan, dict(change.roles)
        chosen = [voice for voice in voices if not {voice.name, voice.role} & set(change.without)]
        sat = {name for voice in voices for name in (voice.name, voice.role)}
        self.flags += [
            f"turn {self.turn}: {name} had no seat to be left out of" for name in change.without if name not in sat
        ]
        chosen = [replace(voice, charge=asked.get(voice.role) or voice.charge) for voice in chosen]
        for role, charge in change.roles:
            if role in {name for voice in chosen for name in (voice.name, voice.role)}:
                continue
            drop = [voice for voice in chosen if voice.role not in asked and voice.role not in SPECIAL_ROLES]
            if plan.adaptive and len(chosen) >= plan.width[1] and drop:
                chosen.remove(drop[-1])
            chosen.append(Voice(role, role, 1, charge or plan.charges.get(role, "")))
        rest = [role for role in (*plan.roles, *plan.known_roles) if role not in change.without]
        chosen = chosen or seated(rest or plan.roles, (), 1, plan.charges)
        if len(chosen) != len(voices):
            self._resize(len(chosen))
        return chosen

    def _resize(self, width: int) -> None:
        """Move the band: as many voices as a person asked for may sit from now on."""
        low, high = self.plan.width
        self.plan = self.plan.model_copy(update={"start": width, "width": (min(low, width), max(high, width))})

    def _mail(self, voices: list[Voice]) -> Program[list[Voice]]:
        """Take in what lead and human wrote to teammates; whoever a message waits for gets a seat."""
        self._written("lead", self.directive.messages if self.directive else ())
        yield from self._letters("inbox")
        high = self.band()[1]
        names = [voice.name for voice in voices]
        for name in (name for name in self.team.called() if name not in names):
            mate = self.team.mates[name]
            if len(voices) >= high:
                drop = next((voice for voice in reversed(voices) if voice.name not in self.team.called()), None)
                if drop is None:
                    break
                voices.remove(drop)
            voices.append(Voice(name, mate.role))
        yield Publish(self.team.files())
        return voices

    def _letters(self, name: str) -> Program[None]:
        """Take in the letters that a person left; `name` tells this collection of the turn from others."""
        found = yield Collect(f"t{self.turn}-{name}", team.INBOX, team.NoteFormat())
        self._written("human", cast("tuple[Any, ...]", found))

    def _written(self, sender: Any, notes: Sequence[Any]) -> None:
        self.team, strangers = self.team.told(self.turn, sender, notes), self.team.strangers(notes)
        self.flags += [
            f"turn {self.turn}: a message to {name}, who is not on the team, was left" for name in strangers
        ]

    def _skilled(self, voices: Sequence[Voice]) -> list[Voice]:
        """Give each voice skills of its own, from the catalogue of the plan."""
        if not self.plan.skills or not self.plan.per_agent[1]:
            return list(voices)
        shared = [*self.plan.skill_words, *(self.directive.skills if self.directive else ())]
        wanted = [
            skills.Wanted(
                voice.name,
                skills.query(voice.role, voice.charge, self.focus, self.plan.topic),
                (*voice.wishes, *self.plan.wishes.get(voice.role, ())),
            )
            for voice in voices
        ]
        given = skills.assign(self.plan.skills, wanted, shared, self.plan.per_agent)
        return [replace(voice, skills=given.get(voice.name, ())) for voice in voices]

    def _reviewed(self, voices: Sequence[Voice]) -> Program[list[Voice]]:
        """Put the turn before the human, and take over what comes back."""
        plan, turn = self.plan, self.turn
        proposed = Proposal(
            turn=turn,
            voices=tuple(
                proposal.Seat(
                    role=voice.role,
                    charge=voice.charge,
                    skills=tuple(card.name for card in voice.skills),
                    model=voice.model,
                )
                for voice in voices
            ),
            focus=self.focus,
            turns=plan.turns,
            criteria=plan.criteria,
            note=self.note,
        )
        form = proposal.PlanFormat(
            proposed,
            known_roles=plan.known_roles,
            skills=tuple(card.name for card in plan.skills),
            combos=plan.combos,
            models=plan.models,
        )
        file = f"t{turn}-plan.yaml"
        word = partial(proposal.dump, proposed, form)
        answer = cast(Proposal, (yield Review(file, "templates/turn-plan", word, form)))
        self.plan = plan.model_copy(update={"turns": self._turns(answer.turns), "criteria": answer.criteria})
        self.focus, self.note, self.said = answer.focus, answer.note, answer.messages
        if answer.decision == "done":
            self.stop = True
            return list(voices)
        if len(answer.voices) != len(voices):
            self._resize(len(answer.voices))
        known = {card.name: card for card in plan.skills}
        return [
            Voice(
                name, role, number, seat.charge, seat.skills, tuple(known[skill] for skill in seat.skills), seat.model
            )
            for (name, role, number), seat in zip(answer.seats, answer.voices, strict=True)
        ]

    def _turns(self, wanted: tuple[int, int]) -> tuple[int, int]:
        """The turns that a person wants, as far as the mode can do with them."""
        plan = self.plan
        low, cap = (max(number, plan.least) for number in wanted)
        if plan.mode and plan.least == plan.turns[1]:
            low, cap = plan.turns
        if (low, cap) != wanted and wanted != plan.turns:
            self.flags.append(f"turn {self.turn}: {plan.mode} needs {plan.least} turns: yours were not taken over")
        return low, cap

    # -- the voices ---------------------------------------------------------------------------

    def hear(self, voices: Sequence[Voice], shape: Shape | None = None, claims: Sequence[str] = ()) -> Program[Heard]:
        """Ask the voices, then the synthesiser; the record has one more turn afterwards."""
        shape, turn = shape or Shape(), self.turn
        batch = calls.of_voices(self, voices, shape, claims)
        asked = {voice.name: call.models[0] for voice, call in zip(voices, batch.calls, strict=True)}
        replies = cast("tuple[Reply, ...]", (yield batch))
        pairs = list(zip(voices, replies, strict=True))
        present = [(voice, reply) for voice, reply in pairs if not reply.missing]
        absent = [(voice, reply) for voice, reply in pairs if reply.missing]
        self.missing += [(turn, voice.name, reply.reason) for voice, reply in absent]
        self._count(replies)
        if self.plan.team:
            self._answered([pair for pair in pairs if pair[0].name in self.team.mates and pair[0].role not in FRESH])
            yield Publish(self.team.files())
        makers = len({self.plan.vendors.get(asked[voice.name], "") for voice, _ in present} - {""}) or 1
        (synthesis,) = cast("tuple[Reply, ...]", (yield calls.of_synthesis(self, present, absent, shape, makers)))
        self._count([synthesis])
        self.added += [f"turn {turn}: {item}" for item in synthesis.added]
        heard = Heard(tuple(present), cast(Directive, synthesis.data))
        self.record = self.record.after(heard.directive, heard.dissents)
        return heard

    def _count(self, replies: Sequence[Reply]) -> None:
        """Remember which citations held; one that held anywhere holds."""
        for finding in chain.from_iterable(reply.findings for reply in replies):
            if finding.verified:
                self.verified.add(finding.citation)
                self.unverified.pop(finding.citation, None)
            elif finding.citation not in self.verified:
                self.unverified[finding.citation] = finding.why

    def _answered(self, pairs: Sequence[tuple[Voice, Reply]]) -> None:
        """The roster after the voices spoke."""
        answers: dict[str, Memory | None] = {}
        for voice, reply in pairs:
            data = cast(AgentData, reply.data)
            answers[voice.name] = (
                None if reply.missing else Memory(self.turn, voice.charge, self.focus, data.position, data.confidence)
            )
        heard = {voice.name: reply.data.acknowledged for voice, reply in pairs if not reply.missing}
        self.team = self.team.end(self.turn, answers, heard)


# -- parts -----------------------------------------------------------------------------------------


def seated(wanted: Sequence[str], spare: Sequence[str], count: int, charges: Mapping[str, str]) -> list[Voice]:
    """`count` voices: the wanted roles first, then spare ones."""
    return [Voice(name, role, seat, charges.get(role, "")) for name, role, seat in seats(wanted, spare, count)]
