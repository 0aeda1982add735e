"""Runs the mode `parliament`: seats of different models with recorded stances, motions and recorded votes. Pure.

opening → debate → (answers to amendments) → vote. If nothing carries, another debate follows while turns are left.
Every seat keeps its name, stance and model over the whole run, and code counts the votes. After a conflict or
suspiciously high agreement, one seat gets an additional charge for a turn: no voice can join after the first turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, zip_longest
from typing import Annotated, Any, Literal, cast, get_args

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from cdo.core.schema import Line, Schema
from cdo.core.steps import Program
from cdo.formats.role_names import RoleName
from cdo.planning.plan import Plan
from cdo.programs.deliberation.alerts import Alarms, ask_to_stop, check_alerts
from cdo.programs.deliberation.calls import TurnTemplate, Voice
from cdo.programs.deliberation.conclusion import FinalTemplate, Outcome, conclude, final_form
from cdo.programs.deliberation.convergence import StopReason
from cdo.programs.deliberation.turn import RunState, TurnResult
from cdo.programs.parliament.minutes import MinutesFormat, SpeechFormat, voting_record
from cdo.programs.parliament.motions import House, Item, SpeechData, Stage

MODE = "modes/parliament"  # its body becomes part of the prompts for seats and syntheses
FINAL = "engine/minutes-protocol"
GO_ON = "go on with the debate"
EVERYTHING = 10_000  # more items than a house can have
CHARGE = 2000  # most characters of a charge
UNKNOWN = "unknown maker"  # the vendor of all models whose maker is not known
Duty = Literal["referee", "refuter"]


class Stance(Schema, frozen=True, kw_only=True):
    """The stance of a seat: `name` is what the record calls it, `role` its method, `charge` its task."""

    name: Line
    role: RoleName
    charge: Line


class ParliamentMode(Schema, frozen=True, kw_only=True):
    """`modes/parliament.md`: the rules of the house; the body explains them to seats and synthesisers.

    `least_turns` is the number of turns needed for one vote. `stages` are the tasks of the stages. `majority` is the
    share of the votes cast that must be exceeded. `motions` limits what a seat may move in a turn, `ballot` the items
    of one vote. `ends` says in a line when the parliament is over. The seat with the stance `challenger`, else the
    last seat, gets the charge in `duties` after a conflict (referee) or flagged agreement (refuter).
    """

    purpose: str
    load_when: str
    about: str
    program: Literal["parliament"]
    ends: Line
    least_turns: Annotated[int, Meta(ge=1)]
    stages: dict[Stage, str]
    majority: Annotated[float, Meta(ge=0.5, lt=1)]
    motions: Annotated[int, Meta(ge=1, le=8)]
    ballot: Annotated[int, Meta(ge=1, le=40)]
    challenger: Line
    duties: dict[Duty, Line]
    stances: Annotated[tuple[Stance, ...], Meta(min_length=1)]

    def require_sound(self) -> None:
        """Raise `ValueError` if a stage or a duty lacks its text."""
        if missing := [key for key in get_args(Stage) if key not in self.stages]:
            raise ValueError(f"`stages` lacks {', '.join(missing)}")
        if missing := [key for key in get_args(Duty) if key not in self.duties]:
            raise ValueError(f"`duties` lacks {', '.join(missing)}")


class ParliamentSeat(Struct, frozen=True):
    """One seat for the whole run; `said` is the stance that it put on record itself."""

    voice: Voice
    stance: str
    vendor: str
    said: str = ""


class _HouseState(Struct):
    """The state that the program keeps in addition to `RunState`."""

    mode: ParliamentMode
    seats: list[ParliamentSeat]
    house: House = field(default_factory=House)
    ballot: tuple[Item, ...] = ()


def parliament(plan: Plan, mode: ParliamentMode) -> Program[Outcome]:
    """Run a parliament to its outcome."""
    hall = _HouseState(mode, seats(plan, mode))
    course = RunState(replace(plan, adaptive=False, start=len(hall.seats)))
    stage: Stage | None = "opening"
    heard: TurnResult | None = None
    stopped, alarms = "", Alarms()
    while stage:
        proposed, name, duties = _charged(hall, alarms)
        voices = yield from course.prepare(proposed)
        if course.stop and heard:
            stopped = "you said that it is done"
            break
        voices = _seated(course, hall, voices, proposed)
        if any(voice.name == name for voice in voices):
            course.flags += [f"turn {course.turn}: {name} also sits as {duty}" for duty in duties]
        hall.ballot = hall.house.ballot(mode.ballot) if stage == "vote" else ()
        heard = yield from course.hear(
            voices, _shape(stage, hall, voices), referee=name if "referee" in duties else ""
        )
        _learn(course, hall, stage, heard)
        stage = following(stage, hall.house, course.turn - 1, course.plan.turns[1]) or _reopened(course)
        alarms = check_alerts(course)
        if stage and (yield from ask_to_stop(course, alarms, GO_ON)):
            stopped, stage = "you asked for the result", None
    assert heard is not None  # a human cannot end the run before its first turn
    return (
        yield from conclude(course, ruling(hall.house, course.plan.turns[1], stopped), heard, _final(course, hall))
    )


def seats(plan: Plan, mode: ParliamentMode) -> list[ParliamentSeat]:
    """Return the seats: one for each model, vendors alternating, filled up to the plan's first width.

    There are never more seats than the plan's greatest width. Stances are assigned in turn. A domain's team (the
    first `start` of the plan's roles) takes the seats in order; any other seat has the role of its stance.
    """
    by_vendor: dict[str, list[str]] = {}
    for model in plan.models:
        by_vendor.setdefault(_vendor(plan, model), []).append(model)
    models = [model for model in chain.from_iterable(zip_longest(*by_vendor.values())) if model]
    count = min(max(plan.start, len(models)), plan.width[1])
    team = plan.roles[: plan.start] if plan.domain else ()
    found: dict[str, ParliamentSeat] = {}
    for index in range(count):
        stance, model = mode.stances[index % len(mode.stances)], models[index % len(models)]
        role = team[index] if index < len(team) else stance.role
        nth = sum(seat.voice.role == role for seat in found.values()) + 1
        name, tried = _named(role, nth), nth
        while name in found:  # another role may be called "critic-2"
            tried += 1
            name = _named(role, tried)
        charge = " ".join(filter(None, (f"You sit for {stance.name}.", stance.charge, plan.charges.get(role))))
        found[name] = ParliamentSeat(Voice(name, role, nth, charge, model=model), stance.name, _vendor(plan, model))
    return list(found.values())


def _named(role: str, nth: int) -> str:
    return role if nth == 1 else f"{role[: 31 - len(str(nth))]}-{nth}"


def _vendor(plan: Plan, model: str) -> str:
    return plan.vendors.get(model) or UNKNOWN


def outline(mode: ParliamentMode) -> tuple[tuple[str, int], ...]:
    """Return the turns for the dashboard: the opening, then what each later turn may be; 0 voices means all seats."""
    *most, last = [stage for stage in mode.stages if stage != "opening"]
    return (("opening", 0), (f"{', '.join(most)} or {last} of the same seats, as motions stand", 0))


def following(stage: Stage, house: House, turn: int, cap: int) -> Stage | None:
    """Return the stage after `turn` of at most `cap`; None if the house has decided, or can no longer decide."""
    left = cap - turn
    if stage == "vote":
        return "debate" if not house.carried and left >= 2 else None
    if stage == "opening":
        return "debate" if left >= 1 else None
    movers = any(item.stands for item in house.motions)
    if stage == "debate" and movers and left >= 2 and house.pending():
        return "answer"
    if movers and left >= 1:
        return "vote"
    if house.carried:
        return None  # it sat again, and nothing new was moved
    return "debate" if left >= 2 else None


def _reopened(course: RunState) -> Stage | None:
    """Return a debate if a fork asks for another turn after the end, with the cap raised for a vote; else None."""
    if not course.plan.change(course.turn):
        return None
    low, cap = course.plan.turns
    course.plan = replace(course.plan, turns=(low, max(cap, course.turn + 1)))
    return "debate"


def ruling(house: House, cap: int, stopped: str = "") -> StopReason:
    """Return how the house ends: with what carried, or without a majority. `stopped` says why it ended early."""
    decided = "; ".join(house.decisive(motion).words for motion in house.carried)
    if not decided:
        votes = "; ".join(tally.words for tally in house.tallies)
        decided = f"no majority exists: {votes or 'no motion came to the vote'}"
    if stopped:
        return StopReason("stopped", f"{stopped}; {decided}")
    if house.carried:
        return StopReason("converged", decided)
    return StopReason(
        "max_turns", f"{decided}; the cap of {cap} turn{'' if cap == 1 else 's'} leaves no room for another vote"
    )


# -- one turn --------------------------------------------------------------------------------------


def _charged(hall: _HouseState, alarms: Alarms) -> tuple[list[Voice], str, list[Duty]]:
    """Return the voices of the next turn, and the name and duties of the voice with an additional charge."""
    voices = [seat.voice for seat in hall.seats]
    wanted: dict[Duty, bool] = {"referee": bool(alarms.conflict), "refuter": alarms.suspicious}
    duties: list[Duty] = [duty for duty in get_args(Duty) if wanted[duty]]
    if not duties:
        return voices, "", []
    stances = [seat.stance for seat in hall.seats]
    index = stances.index(hall.mode.challenger) if hall.mode.challenger in stances else -1
    more = [hall.mode.duties[duty] for duty in duties]
    more += [f"The conflict: {alarms.dispute}."] if alarms.conflict else []
    voices[index] = replace(voices[index], charge=" ".join([voices[index].charge, *more])[:CHARGE])
    return voices, voices[index].name, duties


def _seated(course: RunState, hall: _HouseState, voices: Sequence[Voice], proposed: Sequence[Voice]) -> list[Voice]:
    """Return the voices of a turn as seats of the house; `proposed` are the voices before a person's changes.

    Before the first turn a person may change who sits. Later every seat keeps its role, charge and model, and no
    voice joins.
    """
    turn, plan = course.turn, course.plan
    if turn == 1:
        stances = {seat.voice.name: seat.stance for seat in hall.seats}
        hall.seats = []
        for index, voice in enumerate(voices):
            model = voice.model or plan.models[index % len(plan.models)]
            stance = stances.get(voice.name) or voice.role.replace("-", " ")
            hall.seats.append(ParliamentSeat(replace(voice, model=model), stance, _vendor(plan, model)))
        course.flags += _family(hall.seats)
        return [seat.voice for seat in hall.seats]
    known = {voice.name: voice for voice in proposed}
    strangers = [voice.name for voice in voices if voice.name not in known]
    course.flags += [f"turn {turn}: {name} was left out: nobody joins a parliament that sits" for name in strangers]
    sitting = [(voice, known[voice.name]) for voice in voices if voice.name in known]
    return [
        replace(voice, role=seat.role, seat=seat.seat, charge=seat.charge, model=seat.model)
        for voice, seat in sitting
    ]


def _family(seats: Sequence[ParliamentSeat]) -> list[str]:
    """Return flags for the reader about a house whose models may all be of one vendor."""
    vendors = {seat.vendor for seat in seats}
    if len(vendors) > 1:
        return [f"the models of an {UNKNOWN} count as of one vendor"] if UNKNOWN in vendors else []
    one = f"an {UNKNOWN}" if UNKNOWN in vendors else "one vendor"
    same = "all seats are one model" if len({seat.voice.model for seat in seats}) == 1 else "all seats are models"
    return [f"{same} of {one}: agreement inside one family is weak evidence, however many agree"]


def _shape(stage: Stage, hall: _HouseState, voices: Sequence[Voice]) -> TurnTemplate:
    """Return the prompts and formats of a turn."""
    mode, house = hall.mode, hall.house
    told = {
        "stage": stage,
        "task": mode.stages[stage],
        "most": mode.motions,
        "majority": mode.majority,
        "seats": [{"name": seat.voice.name, "stance": seat.stance, "said": seat.said} for seat in hall.seats],
        "ballot": [{"id": item.id, "motion": item.motion, "text": item.text} for item in hall.ballot],
        **house.data(),
    }
    stances = {seat.voice.name: seat.stance for seat in hall.seats}
    return TurnTemplate(
        format=SpeechFormat(stage, house, hall.ballot, mode.motions),
        brief={**told, "part": "voice"},
        own={voice.name: {"me": voice.name, "stance": stances[voice.name]} for voice in voices},
        sums={**told, "part": "synthesis", "include": {"phase": MODE}},
        include={"phase": MODE},
        fresh=frozenset(),
    )


def _learn(course: RunState, hall: _HouseState, stage: Stage, heard: TurnResult) -> None:
    """Add a turn to the house: the stances put on record, the motions and the votes."""
    turn = course.turn - 1
    order = [seat.voice.name for seat in hall.seats]
    said = {voice.name: cast(SpeechData, reply.data) for voice, reply in heard.present}
    speeches = [(name, said[name]) for name in order if name in said]
    if stage == "opening":
        hall.seats = [
            replace(seat, said=said[seat.voice.name].stance or "") if seat.voice.name in said else seat
            for seat in hall.seats
        ]
    if stage != "vote":
        hall.house = hall.house.debated(turn, speeches)
        return
    left = [item.id for item in hall.house.ballot(EVERYTHING)[len(hall.ballot) :]]
    if left:
        course.flags.append(f"turn {turn}: {', '.join(left)} found no place on the ballot")
    parties = [(seat.voice.name, seat.vendor) for seat in hall.seats]
    hall.house = hall.house.voted(turn, hall.ballot, speeches, parties, hall.mode.majority)


# -- the end ---------------------------------------------------------------------------------------


def _final(course: RunState, hall: _HouseState) -> FinalTemplate:
    """Return the prompt and the format of the minutes."""
    record, house = course.record, hall.house
    inner = final_form(record)
    form = MinutesFormat(inner, house)
    vendors = {seat.vendor for seat in hall.seats}
    data: dict[str, Any] = {
        **house.data(),
        "seats": [{"name": seat.voice.name, "stance": seat.stance, "said": seat.said} for seat in hall.seats],
        "carried": [{"id": motion.id, "text": motion.text} for motion in house.carried],
        "against": [{"role": seat, "motion": motion.id, "reason": why} for seat, motion, why in form.against],
        "vendors": len(vendors),
        "unknown": UNKNOWN in vendors,
    }
    votes = tuple(tally.words for tally in house.tallies)
    return FinalTemplate(template=FINAL, form=form, data=data, votes=votes, record=voting_record(house))
