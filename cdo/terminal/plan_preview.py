"""Builds the data of the planning dashboard from a plan. Pure, except that it loads the titles of roles."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from cdo.content.library import Library
from cdo.content.schemas import Role
from cdo.core.formatting import pluralise
from cdo.planning.estimate import Range, estimate
from cdo.planning.plan import Plan
from cdo.planning.turn_plan import Proposal
from cdo.programs.registry import first_turn, outline
from cdo.providers.models import ModelSpec
from cdo.repository.shown_files import ShownFile
from cdo.terminal.plan_dashboard import Model, PastTurn, PlannedVoice, Sketch, Span
from cdo.terminal.sending import listed


class Preview(Struct, frozen=True):
    """The facts known before a turn: the plan, its models, and the estimated usage.

    `given` counts the tokens of question and context; `tracked` tells if bd is installed. `files` are those that the
    context shows, which has `context_tokens`; a plan lists all of them if `whole`. `needless` says why the question
    needs no deliberation, "" if it may need one.
    """

    plan: Plan
    specs: Sequence[ModelSpec]
    span: Range
    given: int
    problem: str
    library: Library
    session: str = ""
    tracked: bool = True
    files: tuple[ShownFile, ...] = ()
    context_tokens: int = 0
    whole: bool = False
    needless: str = ""

    def first(self) -> Sketch:
        """Return the dashboard before the first turn, with the voices that the program itself asks."""
        voices = tuple(
            PlannedVoice(
                call.name.partition("-")[2],
                self._title(call.data["role"]),
                call.data["charge"],
                tuple(skill["name"] for skill in call.data["skills"]),
                call.models[0],
            )
            for call in first_turn(self.plan, self.library).calls
        )
        sketch, sitting = self._sketch(voices, self.plan.turns), {voice.name for voice in voices}
        matches = tuple((role, tags) for role, tags in self.plan.matches.items() if role in sitting)
        return replace(sketch, matches=matches, notes=(*sketch.notes, *self.plan.remarks))

    def of(self, proposal: Proposal, past: Sequence[PastTurn] = (), tensions: Sequence[str] = ()) -> Sketch:
        """Return the dashboard of a turn as a person plans it; `past` are earlier turns, `tensions` the open ones."""
        models = self.plan.models
        voices = tuple(
            PlannedVoice(name, self._title(role), seat.charge, seat.skills, seat.model or models[index % len(models)])
            for index, ((name, role, _), seat) in enumerate(zip(proposal.seats, proposal.voices, strict=True))
        )
        plan = replace(self.plan, criteria=proposal.criteria)
        said = [f"to {item.to}: {item.text}" for item in proposal.messages]
        left = max(1, proposal.turns[1] - proposal.turn + 1)
        rest = replace(plan, start=len(voices), turns=(1, left), least=min(plan.least, left))
        planned = replace(self, plan=plan, span=estimate(rest, self.specs, self.given))
        sketch = planned._sketch(voices, proposal.turns, proposal.turn, proposal.focus, past, tensions)
        told = [*([f"to all: {proposal.note}"] if proposal.note else []), *said]
        return replace(sketch, notes=(*(f"you say {text}" for text in told), *sketch.notes))

    def _sketch(
        self,
        voices: tuple[PlannedVoice, ...],
        turns: tuple[int, int],
        turn: int = 1,
        focus: str = "",
        past: Sequence[PastTurn] = (),
        tensions: Sequence[str] = (),
    ) -> Sketch:
        plan, span = self.plan, self.span
        phases, ends = outline(plan, self.library)
        return Sketch(
            phases=phases,
            ends=ends,
            preset=plan.preset,
            why=plan.why,
            problem=self.problem,
            voices=voices,
            width=plan.width,
            turns=turns,
            adaptive=plan.adaptive,
            criteria=plan.criteria,
            models=tuple(Model(spec.name, spec.vendor, spec.price is not None) for spec in self.specs),
            span=Span(span.calls, span.tokens, span.cost, span.seconds),
            session=self.session,
            mode=plan.mode or "",
            domain=plan.domain or "",
            turn=turn,
            focus=focus,
            past=tuple(past),
            tensions=tuple(tensions),
            notes=tuple(self._notes()),
            files=tuple(listed(self.files, whole=self.whole)),
        )

    def _title(self, role: str) -> str:
        """Return the title of a role's method; "" if it has none."""
        if role not in self.library.names("templates/roles"):
            return ""
        return self.library.read(f"templates/roles/{role}", Role)[0].title

    def _notes(self) -> list[str]:
        """Return sentences about the surroundings of the run."""
        plan = self.plan
        vendors = sorted(set(plan.vendors.values()))
        count = len(plan.models)
        notes = [
            "human in the loop: each turn waits for you" if plan.hitl else "",
            "team: voices live on between turns, with a memory of their own" if plan.team else "",
            "bd: an epic for the run, a task for each turn" if plan.bd and self.tracked else "",
            "bd is not installed: the run is not tracked" if "bd" in plan.modifiers and not self.tracked else "",
            f"skills: {len(plan.skills)} to choose from" if plan.skills else "",
            f"repository: at most {plan.context_tokens:,} tokens of files" if plan.context_tokens else "",
            f"repository: up to {plan.tools[0]} looks a voice" if plan.tools else "",
            f"at the end also: {', '.join(f'{item.file}.md' for item in plan.documents.values())}"
            if plan.documents
            else "",
            f"{pluralise(count, 'model')} of one vendor ({vendors[0] or 'not known'}): agreement counts once"
            if len(vendors) == 1
            and not all(name.startswith("scripted:") for name in plan.models)
            and (count > 1 or (plan.mode and plan.least < plan.turns[1]))
            else "",
        ]
        return [note for note in notes if note]
