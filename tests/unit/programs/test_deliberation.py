"""The deliberation loop, driven by hand: what it asks for, in which order, and what it makes of the answers."""

from __future__ import annotations

import builtins
import json
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, repeat
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cdo.content.library import PACKAGED, Library
from cdo.content.schemas import Criteria
from cdo.core.exchange import Fault
from cdo.core.schema import fitted
from cdo.core.steps import Call, Collect, Missing, Pause, Reply, Review, Step
from cdo.formats.final_answer import FinalData, FinalFormat
from cdo.formats.role_names import role_problem
from cdo.formats.voice import SynthesisFormat, agreement
from cdo.formats.voice_blocks import AgentData, Directive
from cdo.planning.arguments import Invocation
from cdo.planning.plan import Change, Plan
from cdo.planning.plan_builder import make
from cdo.planning.role_choice import SPECIAL_ROLES
from cdo.planning.settings import Resolved, Settings
from cdo.programs.deliberation.alerts import FINISH
from cdo.programs.deliberation.calls import rotated
from cdo.programs.deliberation.conclusion import Outcome
from cdo.programs.deliberation.convergence import Tension
from cdo.programs.deliberation.draft_review import DraftReview
from cdo.programs.deliberation.finding_blocks import FindingsData
from cdo.programs.deliberation.program import GO_ON, deliberate
from tests.support import programs

CRITERIA = Criteria(exit_confidence=0.8, quiet_turns=2, agreement_flag=0.7, confidence_drop=0.2, severe=8)
KNOWN = ("architect", "critic", "economist", "historian", "operator", "pragmatist", "tester")


def plan(**changes: Any) -> Plan:
    """Three fixed voices, at most three turns."""
    plain: dict[str, Any] = {
        "preset": "think",
        "why": "you asked for think",
        "width": (2, 4),
        "start": 3,
        "turns": (3, 3),
        "adaptive": False,
        "roles": ("architect", "critic", "pragmatist", "operator"),
        "known_roles": KNOWN,
        "models": ("m/a",),
        "criteria": CRITERIA,
    }
    return fitted(Plan, {**plain, **changes})


def adaptive(**changes: Any) -> Plan:
    return plan(**{"adaptive": True, "width": (2, 6), "turns": (4, 4), **changes})


Voices = Callable[[Call], AgentData | str]  # what a voice says, or why it is missing


def spoken(**changes: Any) -> AgentData:
    return AgentData.model_validate({"position": "x", "confidence": 0.6, **changes})


def objecting(severity: int, text: str = "it loses data") -> AgentData:
    return spoken(objections=[{"id": "o1", "text": text, "severity": severity}])


def critical(severity: int, *turns: int) -> Voices:
    """The critic objects in these turns, in other words each time; nobody else objects."""
    names = {f"t{turn}-critic": objecting(severity, f"it loses data {turn} times") for turn in turns if severity}
    return lambda call: names.get(call.name) or spoken()


def tension(status: str, ident: str = "T1") -> dict[str, str]:
    return {"id": ident, "title": "speed against safety", "status": status}


def directive(**changes: Any) -> Directive:
    """One that goes on and starts nothing; each voice has an answer of its own unless `camps` say otherwise."""
    plain = {"width": 3, "roles": [], "focus": "f", "confidence": 0.6, "exit_ready": False}
    return Directive.model_validate({**plain, "tensions": [tension("open")], **changes})


# What comes back at the end of a run with review, where nothing is said of it.
REVIEWED: dict[str, Any] = {
    "findings": FindingsData.model_validate({"findings": [{"id": "F1", "rank": 1, "text": "it grows"}]}),
    "review": DraftReview(),
}


class Run(programs.Run):
    """A run of this program."""

    def roles(self, number: int) -> list[str]:
        return [call.data["role"] for call in self.turn(number)]

    def names(self, number: int) -> list[str]:
        return [call.name for call in self.turn(number)]

    def sat(self) -> list[list[str]]:
        """The roles of each turn."""
        return [self.roles(number) for number in range(1, self.outcome.turns + 1)]


def drive(
    what: Plan,
    *directives: dict[str, Any] | Directive,
    voices: Voices = lambda call: spoken(),
    answer: str = GO_ON,
    edits: Mapping[str, str] | None = None,
    letters: Mapping[str, Sequence[Any]] | None = None,
    added: Mapping[str, Sequence[str]] | None = None,
    ending: Mapping[str, FindingsData | DraftReview | str] | None = None,
) -> Run:
    """Run a plan by hand; the last directive is given again when more are asked for.

    A directive's `together` is how many voices of its turn give one answer, the others each one of their own. `added`
    is what cdo added to replies, by call; `ending` what comes back for the calls at the end, or why nothing does.
    """
    following = chain(directives or [{}], repeat((directives or [{}])[-1]))

    def synthesised(call: Call) -> Directive:
        """What a synthesis says, as its format reads it."""
        item, names = next(following), [voice["name"] for voice in call.data["voices"]]
        if not isinstance(item, Directive):
            item = dict(item)
            camps = (
                [{"position": "stage it", "voices": names[:together]}]
                if (together := item.pop("together", 0))
                else []
            )
            item = directive(**{"camps": camps, **item})
        return item.model_copy(update={"agreement": agreement(item.camps, names)})

    def reply(call: Call) -> Reply:
        more = tuple((added or {}).get(call.name, ()))
        if call.kind == "agent":
            said: Any = voices(call)
        elif call.kind == "synthesis":
            said = synthesised(call)
        else:
            said = {**REVIEWED, **(ending or {})}.get(call.name, FinalData(sections=()))
        return (
            Reply(call.name, reason=Missing.read(said))
            if isinstance(said, str)
            else Reply(call.name, said, added=more)
        )

    def other(step: Step) -> Any:
        if isinstance(step, Pause):
            return answer
        if isinstance(step, Review):
            return step.format.parse((edits or {}).get(step.file, "decision: go"))
        return tuple((letters or {}).get(step.name, ())) if isinstance(step, Collect) else None

    return Run(*programs.driven(deliberate(what), reply, other))


# -- the shape of a run ----------------------------------------------------------------------------


def test_a_run_is_voices_then_synthesis_each_turn_then_the_final() -> None:
    run = drive(plan())
    assert [[(call.name, call.kind, call.template) for call in batch.calls] for batch in run.batches] == [
        step
        for turn in (1, 2, 3)
        for step in (
            [(f"t{turn}-{role}", "agent", "templates/agent-brief") for role in ("architect", "critic", "pragmatist")],
            [(f"t{turn}-synthesis", "synthesis", "engine/synthesis-protocol")],
        )
    ] + [[("final", "final", "engine/final-protocol")]]
    assert run.outcome == Outcome(
        status="max_turns",
        why="the cap of 3 turns was reached",
        needed="a higher --turns; T1 is still open",
        confidence=0.6,
        turns=3,
        missing=(),
        open_tensions=("T1: speed against safety",),
        dissents=(),
        added=(),
        flags=(),
        ledger=(Tension("T1", "speed against safety", "open", 1),),
        stated=0.6,
    )
    assert not run.outcome.degraded


def test_the_program_touches_nothing_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    what = plan()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a program reads and writes nothing")

    for place, name in (
        (builtins, "open"),
        (os, "open"),
        (os, "scandir"),
        (os, "stat"),
        (os, "getenv"),
        (os, "write"),
    ):
        monkeypatch.setattr(place, name, refuse)
    run = drive(what)
    monkeypatch.undo()
    assert run.outcome.turns == 3


def test_the_same_replies_give_the_same_calls() -> None:
    first, second = drive(plan()), drive(plan())
    assert first.steps == second.steps
    assert first.outcome == second.outcome


def test_what_calls_carry_is_json() -> None:
    run = drive(
        adaptive(review=True),
        {"together": 9, "confidence": 0.9},
        {"confidence": 0.1},
        voices=lambda call: objecting(9),
    )
    for batch in run.batches:
        for call in batch.calls:
            assert json.loads(json.dumps(call.data)) == call.data


def test_voices_of_one_turn_never_read_each_other() -> None:
    run = drive(plan())
    assert {call.reads for call in run.turn(1)} == {("00-input", "00-context")}
    for turn in (2, 3):
        assert {call.reads for call in run.turn(turn)} == {("00-input", "00-context", f"t{turn - 1}-synthesis")}


def test_the_synthesis_reads_the_material_the_last_synthesis_and_all_voices_of_its_turn() -> None:
    run = drive(plan())
    for turn in (1, 2, 3):
        call = run.synthesis(turn)
        before = ["00-input", "00-context", *([f"t{turn - 1}-synthesis"] if turn > 1 else [])]
        assert list(call.reads[: len(before)]) == before
        assert sorted(call.reads[len(before) :]) == sorted(run.names(turn))
        assert [voice["artifact"] for voice in call.data["voices"]] == list(call.reads[len(before) :])
        assert call.data["turn"] == turn


def test_the_order_in_which_voices_are_read_changes_by_turn() -> None:
    run = drive(plan())
    orders = [[voice["name"] for voice in run.synthesis(turn).data["voices"]] for turn in (1, 2, 3)]
    assert orders == [
        ["critic", "pragmatist", "architect"],
        ["pragmatist", "architect", "critic"],
        ["architect", "critic", "pragmatist"],
    ]
    shown = [(voice["turn"], voice["name"]) for voice in run.final.data["voices"]]
    assert shown == [(turn, name) for turn in (1, 3) for name in ("critic", "pragmatist", "architect")]


def test_rotation_keeps_everything() -> None:
    assert rotated([], 3) == []
    assert [rotated("abc", turn) for turn in range(4)] == [list("abc"), list("bca"), list("cab"), list("abc")]


@pytest.mark.parametrize(("width", "quorum"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (8, 4), (20, 10)])
def test_half_of_the_voices_rounded_up_are_a_quorum(width: int, quorum: int) -> None:
    run = drive(plan(width=(1, 20), start=width))
    assert [len(batch.calls) for batch in run.batches[:2]] == [width, 1]
    assert [batch.quorum for batch in run.batches] == [quorum, 1] * 3 + [1]


def test_seats_take_the_models_in_turn_and_the_synthesis_may_fall_back_on_all() -> None:
    models = ("m/a", "m/b")
    run = drive(plan(models=models, start=4))
    assert [call.models for call in run.turn(1)] == [("m/a",), ("m/b",), ("m/a",), ("m/b",)]
    assert run.synthesis(1).models == models
    assert run.final.models == models
    assert not any("m/a" in json.dumps(call.data) for batch in run.batches for call in batch.calls)


# -- composing turns -------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 2, 5, 20, 256])
def test_without_adaptive_the_first_turns_width_stays(width: int) -> None:
    run = drive(plan(), {"width": width, "roles": ["tester", "historian"]})
    assert [len(run.turn(turn)) for turn in (1, 2, 3)] == [3, 3, 3]


@pytest.mark.parametrize(("wish", "width"), [(1, 2), (2, 2), (4, 4), (6, 6), (7, 6), (256, 6)])
def test_with_adaptive_the_directives_width_is_kept_within_the_band(wish: int, width: int) -> None:
    run = drive(adaptive(), {"width": wish, "roles": ["tester"]})
    assert [len(run.turn(turn)) for turn in (1, 2, 3)] == [3, width, width]


@pytest.mark.parametrize(
    ("roles", "seated"),
    [
        (["tester", "historian", "economist"], ["tester", "historian", "economist"]),
        (["tester"], ["tester", "operator", "economist"]),
        ([], ["architect", "critic", "pragmatist"]),
        (["tester", "historian", "economist", "critic"], ["tester", "historian", "economist"]),
        (["wizard", "ghost"], ["wizard", "ghost", "operator"]),
        (["critic-2", "critic"], ["critic-2", "critic", "operator"]),
    ],
)
@pytest.mark.parametrize("make_plan", [plan, adaptive])
def test_roles_follow_the_directive(roles: list[str], seated: list[str], make_plan: Callable[..., Plan]) -> None:
    run = drive(make_plan(), {"roles": roles, "width": 3})
    assert run.roles(2) == seated
    assert run.names(2) == [f"t2-{role}" for role in seated]


def test_a_role_that_is_named_twice_sits_once() -> None:
    wish = directive().model_copy(update={"roles": directive(roles=["tester"]).roles * 3})
    assert drive(plan(), wish).roles(2) == ["tester", "operator", "economist"]


def test_when_all_methods_sit_they_sit_again_as_independent_voices() -> None:
    run = drive(plan(roles=("critic",), known_roles=("critic", "tester"), start=4, width=(4, 4)))
    assert [(call.name, call.data["role"], call.data["seat"]) for call in run.turn(1)] == [
        ("t1-critic", "critic", 1),
        ("t1-tester", "tester", 1),
        ("t1-critic-2", "critic", 2),
        ("t1-tester-2", "tester", 2),
    ]


def test_charges_and_focus_follow_the_directive() -> None:
    run = drive(
        plan(), {"roles": [{"name": "tester", "charge": "break the way back"}, "critic"], "focus": "way back"}
    )
    assert [call.data["charge"] for call in run.turn(1)] == ["", "", ""]
    assert [call.data["charge"] for call in run.turn(2)] == ["break the way back", "", ""]
    assert [call.data["focus"] for call in (*run.turn(1), *run.turn(2))] == [""] * 3 + ["way back"] * 3
    charges = {voice["name"]: voice["charge"] for voice in run.synthesis(2).data["voices"]}
    assert charges == {"tester": "break the way back", "critic": "", "operator": ""}


def test_the_synthesiser_is_told_the_band_and_the_methods() -> None:
    fixed, free = drive(plan()).synthesis(1), drive(adaptive()).synthesis(1)
    assert (fixed.data["width"], free.data["width"]) == ([3, 3], [2, 6])
    assert free.data["known_roles"] == list(KNOWN)
    heard = ("architect", "critic", "pragmatist")
    assert fixed.format == SynthesisFormat(width=(3, 3), roles=KNOWN, voices=heard)
    assert free.format == SynthesisFormat(width=(2, 6), roles=KNOWN, voices=heard)
    assert fixed.data["max_turns"] == 3


def test_voices_are_shown_what_is_open_and_the_synthesiser_the_whole_ledger() -> None:
    ledger = [
        {"id": "T1", "title": "one", "status": "resolved"},
        {"id": "T2", "title": "two", "status": "open"},
        {"id": "T3", "title": "three", "status": "accepted"},
        {"id": "T4", "title": "four", "status": "outside", "settled_by": "the vendor"},
    ]
    whole = [{"settled_by": "", **item, "since": 1} for item in ledger]
    run = drive(plan(), {"tensions": ledger}, {"tensions": []})
    for call in run.turn(3):
        assert call.data["tensions"] == [whole[1]]
        assert (call.data["settled"], call.data["outside"]) == (["T1", "T3"], [whole[3]])
    assert run.synthesis(3).data["tensions"] == whole


def test_the_synthesiser_is_reminded_of_the_gaps_named_before() -> None:
    run = drive(plan(turns=(4, 4)), {"gaps": ["a", "b"]}, {"gaps": ["A", "c"]}, {"gaps": []})
    assert [run.synthesis(turn).data["gaps"] for turn in (1, 2, 3, 4)] == [
        [], ["a", "b"], ["a", "b", "c"], ["a", "b", "c"],
    ]  # fmt: skip


# -- missing voices --------------------------------------------------------------------------------


def test_missing_voices_are_named_to_the_synthesiser_and_in_the_outcome() -> None:
    reason = "rate-limited: OpenAI says that gpt-4.1 is busy"
    run = drive(plan(), voices=lambda call: reason if call.name == "t2-critic" else spoken())
    assert run.synthesis(1).data["missing"] == []
    assert run.synthesis(2).data["missing"] == [{"role": "critic", "reason": "rate-limited"}]
    assert "t2-critic" not in run.synthesis(2).reads
    assert [voice["name"] for voice in run.synthesis(2).data["voices"]] == ["architect", "pragmatist"]
    assert run.synthesis(3).data["missing"] == []
    assert run.final.data["missing"] == [{"turn": 2, "role": "critic", "reason": "rate-limited"}]
    assert run.outcome.missing == ((2, "critic", Missing.read(reason)),)
    assert run.outcome.degraded


@pytest.mark.parametrize(
    ("reason", "told"),
    [*((f"{fault}: of acme/model-9", fault.value) for fault in Fault), ("acme is down", "no answer")],
)
def test_why_a_voice_is_missing_names_no_provider_in_a_prompt(reason: str, told: str) -> None:
    run = drive(plan(), voices=lambda call: reason if call.name == "t1-critic" else spoken())
    assert run.synthesis(1).data["missing"] == [{"role": "critic", "reason": told}]
    assert not any("acme" in json.dumps(call.data) for batch in run.batches for call in batch.calls)


def test_a_missing_voice_says_nothing_in_the_record() -> None:
    run = drive(plan(), voices=lambda call: "empty: x" if call.name.endswith("critic") else objecting(5))
    assert run.outcome.dissents == ("architect/O1: it loses data", "pragmatist/O2: it loses data")
    assert len(run.outcome.missing) == 3


# -- arguing for the other side --------------------------------------------------------------------

READY: dict[str, Any] = {"exit_ready": True, "confidence": 0.95, "tensions": []}


def test_agreement_in_blind_turn_1_seats_a_steelman_and_a_checker_before_the_run_may_end() -> None:
    run = drive(plan(start=20, width=(20, 20), turns=(1, 9)), {**READY, "together": 19})
    assert (len(run.roles(1)), run.sat()[1:]) == (20, [["steelman", "checker"]])
    assert (run.outcome.status, run.outcome.turns, run.outcome.confidence) == ("converged", 2, 0.95)
    assert run.outcome.flags == (
        "turn 1: agreement of 95% is suspiciously high",
        "turn 2: agreement of 100% is suspiciously high",
    )


def test_the_other_side_is_argued_exactly_once_however_long_the_run() -> None:
    run = drive(plan(turns=(6, 6)), {"together": 9})
    assert [[role for role in roles if role in SPECIAL_ROLES] for roles in run.sat()] == [
        [], ["steelman", "checker"], [], [], [], []
    ]  # fmt: skip


def test_agreement_of_a_later_turn_is_met_by_a_refuter() -> None:
    run = drive(plan(turns=(5, 5)), {}, {"together": 9})
    assert [[role for role in roles if role in SPECIAL_ROLES] for roles in run.sat()] == [[], [], ["refuter"], [], []]


def test_the_exit_stays_deferred_until_somebody_was_heard_for_the_other_side() -> None:
    run = drive(
        plan(turns=(1, 9)),
        {**READY, "together": 9},
        voices=lambda call: "timeout: x" if call.name == "t2-steelman" else spoken(),
    )
    assert run.sat()[1:] == [["steelman", "checker"], ["refuter"]]
    assert run.outcome.status == "converged"


@pytest.mark.parametrize(("together", "seats"), [(2, False), (3, True)])
def test_agreement_counts_above_the_threshold_only(together: int, seats: bool) -> None:
    assert ("steelman" in drive(plan(), {"together": together}).roles(2)) is seats


def test_at_the_cap_a_flag_is_told_and_defers_nothing() -> None:
    run = drive(plan(turns=(1, 1)), {**READY, "together": 9})
    assert (run.outcome.status, run.outcome.why) == ("max_turns", "the cap of 1 turn was reached")
    assert run.outcome.needed == "a higher --turns; nothing is open"
    assert run.outcome.flags == ("turn 1: agreement of 100% is suspiciously high",)


@pytest.mark.parametrize(
    ("last", "turns"),
    [
        ({"together": 9}, 2),
        ({"together": 1}, 4),  # the steelman holds the other answer: the lower number of turns is held
        ({"together": 9, "tensions": [tension("open")]}, 5),
        ({"together": 9, "tensions": [tension("outside")]}, 2),
        ({"together": 9, "exit_ready": False, "gaps": ["a"]}, 4),
        ({"together": 9, "confidence": 0.7, "gaps": ["a"]}, 4),
    ],
)
def test_a_run_ends_before_its_lower_number_with_one_argued_answer_and_nothing_open(
    last: dict[str, Any], turns: int
) -> None:
    run = drive(plan(turns=(4, 5)), {**READY, "together": 9}, {**READY, **last})
    assert run.outcome.turns == turns
    assert run.outcome.status == ("max_turns" if turns == 5 else "converged")


def test_who_argues_is_told_the_leading_answer_and_the_distinct_claims() -> None:
    says = spoken(
        claims=[{"id": "c1", "text": "The table grows by 40 rows."}, {"id": "c2", "text": "nobody is on call"}]
    )
    other = {"alternative": "wait a month", "tensions": [tension("open"), tension("resolved", "T2")]}
    run = drive(plan(turns=(2, 2), start=4), {"together": 3, **other}, voices=lambda call: says)
    told = {call.data["role"]: call for call in run.turn(2)}
    claims = ["The table grows by 40 rows.", "nobody is on call"]  # once each, though four voices made them
    for role in ("steelman", "checker"):
        assert (told[role].data["leading"], told[role].data["alternative"]) == ("stage it", "wait a month")
        assert told[role].reads == ("00-input", "00-context", "t1-synthesis")
    assert (told["steelman"].data["claims"], told["checker"].data["claims"]) == ([], claims)
    for call in told.values():
        if call.data["role"] not in SPECIAL_ROLES:
            assert (call.data["leading"], call.data["alternative"], call.data["claims"]) == ("", "", [])
    refuter = drive(plan(), {}, {"together": 9, **other}, voices=lambda call: says).turn(3)[-1]
    assert (refuter.data["role"], refuter.data["leading"], refuter.data["claims"]) == ("refuter", "stage it", claims)
    assert refuter.reads == ("00-input", "00-context")  # what the turns before found would colour it
    assert [refuter.data[key] for key in ("previous", "tensions", "settled", "outside")] == ["", [], [], []]


def test_claims_of_every_voice_are_handed_on_before_the_second_of_one() -> None:
    def says(call: Call) -> AgentData:
        return spoken(claims=[{"id": f"c{n}", "text": f"{call.name} {n} {'word ' * n}"} for n in range(30)])

    claims = next(call for call in drive(plan(), {"together": 9}, voices=says).turn(2) if call.data["claims"])
    texts = [" ".join(text.split()[:2]) for text in claims.data["claims"]]
    assert len(texts) == 24 and texts[:4] == ["t1-architect 0", "t1-critic 0", "t1-pragmatist 0", "t1-architect 1"]


# -- objections and referees -----------------------------------------------------------------------


def test_a_referee_follows_a_fall_of_confidence_and_reads_both_camps() -> None:
    run = drive(plan(), {"confidence": 0.9, "together": 2}, {"confidence": 0.7, "together": 2})
    said = "confidence fell from 0.90 to 0.70"
    assert "referee" not in run.roles(2) and run.roles(3)[-1] == "referee"
    referee = run.turn(3)[-1]
    # It is not told the confidence of the synthesis: no voice is.
    assert referee.data["dispute"] == "the leading answer stands on weaker evidence than it did in the turn before"
    assert (referee.data["charge"], len(referee.data["sides"])) == ("", 2)
    camps = [{voice["name"] for voice in run.synthesis(2).data["voices"][part]} for part in (slice(2), slice(2, 3))]
    assert [side.removeprefix("t2-") in camp for side, camp in zip(referee.data["sides"], camps, strict=True)] == [
        True
    ] * 2
    assert referee.reads == ("00-input", "00-context", "t2-synthesis", *referee.data["sides"])
    assert [pause.name for pause in run.pauses] == ["t2-conflict"]
    assert run.outcome.flags == (f"turn 2: conflict: {said}",)


def test_a_referee_follows_a_severe_objection_and_reads_both_sides() -> None:
    agreed = {"position": "stage it", "voices": ["pragmatist", "architect"]}
    run = drive(plan(), {"camps": [agreed, {"position": "wait", "voices": ["critic"]}]}, voices=critical(8, 1))
    said = "critic objects with severity 8 (O1): it loses data 1 times"
    referee = run.turn(2)[-1]
    assert (referee.name, referee.data["dispute"]) == ("t2-referee", said)
    assert referee.reads == ("00-input", "00-context", "t1-synthesis", "t1-critic", "t1-pragmatist")
    assert [(call.data["dispute"], call.data["sides"]) for call in run.turn(2)[:-1]] == [("", [])] * 2
    assert "referee" not in run.roles(3)
    assert run.outcome.flags == (f"turn 1: conflict: {said}",)


def test_the_other_side_is_another_voice_also_where_the_objector_leads() -> None:
    def sides(*camps: tuple[str, ...]) -> list[str]:
        told = [{"position": "x", "voices": camp} for camp in camps]
        run = drive(plan(), {"camps": told}, voices=critical(9, 1))
        return list(run.turn(2)[-1].data["sides"])

    assert sides(("critic",), ("architect", "pragmatist")) == ["t1-critic", "t1-architect"]
    assert sides(("critic", "pragmatist"), ("architect",)) == ["t1-critic", "t1-pragmatist"]
    assert sides(("critic",), ("pragmatist",), ("architect",)) == ["t1-critic", "t1-pragmatist"]


def test_what_severe_means_is_a_criterion_of_the_plan() -> None:
    gentle = plan(criteria=replace(CRITERIA, severe=6))
    referee = drive(gentle, voices=critical(6, 1)).turn(2)[-1]
    assert referee.data["role"] == "referee" and referee.data["sides"][0] == "t1-critic"
    assert "referee" not in drive(plan(), voices=critical(6, 1)).roles(2)


def test_an_objection_against_something_nobody_leads_with_is_no_conflict() -> None:
    aside = {**READY, "objections": [{"id": "O1", "leading": False}]}
    run = drive(plan(turns=(1, 3)), aside, voices=critical(10, 1))
    assert (run.outcome.status, run.outcome.turns, run.outcome.confidence) == ("converged", 1, 0.95)
    assert run.pauses == [] and run.outcome.flags == ()
    assert [(item.id, item.status, item.leading) for item in run.outcome.objections] == [("O1", "open", False)]


def test_a_severe_objection_outlives_its_voice() -> None:
    roles = {"roles": ["tester", "historian", "economist"]}
    run = drive(plan(turns=(5, 5)), {"confidence": 0.95}, {**roles, "confidence": 0.95}, voices=critical(10, 1))
    assert "critic" in run.roles(2) and run.sat()[2:] == [["tester", "historian", "economist"]] * 3
    (noted,) = run.outcome.objections
    assert (noted.id, noted.role, noted.turn, noted.severity, noted.status) == ("O1", "critic", 1, 10, "open")
    assert run.outcome.dissents == ("critic/O1: it loses data 1 times",)
    assert [item["id"] for item in run.final.data["dissents"]] == ["O1"]
    assert [[item["id"] for item in run.synthesis(turn).data["objections"]] for turn in range(1, 6)] == [["O1"]] * 5
    assert (run.outcome.confidence, run.outcome.lowered) == (
        0.79,
        "1 question is still open, 1 severe objection is still open",
    )
    # The last word of whoever left is kept, too.
    left = {item.voice: item.turn for item in run.outcome.dropped}
    assert left == {"architect": 2, "critic": 2, "pragmatist": 1, "referee": 2}
    assert {item["name"]: item["turn"] for item in run.final.data["dropped"]} == left


RULED: dict[str, Any] = {"objections": [{"id": "O1", "status": "ruled", "why": "the log is kept"}]}
ANSWERED: dict[str, Any] = {"objections": [{"id": "O1", "status": "answered", "why": "the log is kept"}]}


@pytest.mark.parametrize(
    ("directives", "withdraws", "fate"),
    [
        ([{}], {}, ("open", 0)),
        ([{}, ANSWERED], {}, ("answered", 2)),
        ([ANSWERED], {}, ("answered", 1)),
        ([{"objections": [{"id": "O1", "status": "answered"}]}], {}, ("open", 0)),  # no answer is given
        ([{}, RULED], {}, ("ruled", 2)),  # the referee sat in turn 2
        ([RULED], {}, ("answered", 1)),  # no referee had sat
        ([{}, {"objections": [{"id": "O9", "status": "ruled", "why": "x"}]}], {}, ("open", 0)),
        ([{}], {"t2-critic": ["O1"]}, ("withdrawn", 2)),
        ([{}], {"t2-architect": ["O1"]}, ("open", 0)),  # another voice cannot
        ([{}], {"t2-critic": ["O2", "o1"]}, ("open", 0)),
        ([{}, ANSWERED], {"t2-critic": ["O1"]}, ("withdrawn", 2)),
        ([{}, ANSWERED, {"objections": [{"id": "O1", "status": "open"}]}], {}, ("answered", 2)),  # closed is closed
    ],
)
def test_who_may_close_an_objection(
    directives: list[dict[str, Any]], withdraws: dict[str, list[str]], fate: tuple[str, int]
) -> None:
    def voices(call: Call) -> AgentData:
        return spoken(withdraws=withdraws[call.name]) if call.name in withdraws else critical(10, 1)(call)  # type: ignore[return-value]

    run = drive(plan(), *directives, voices=voices)
    (noted,) = run.outcome.objections
    assert (noted.status, noted.ended) == fate
    assert run.outcome.dissents == (() if noted.status != "open" else ("critic/O1: it loses data 1 times",))


def test_a_voice_is_shown_its_own_open_objections_alone() -> None:
    run = drive(plan(), voices=critical(6, 1, 2))
    standing = {call.data["role"]: [item["id"] for item in call.data["standing"]] for call in run.turn(3)}
    assert standing == {"architect": [], "critic": ["O1", "O2"], "pragmatist": []}


def test_an_objection_below_five_stays_with_its_turn() -> None:
    run = drive(plan(), voices=critical(4, 1))
    assert (run.outcome.objections, run.outcome.dissents) == ((), ())


def test_an_unweighed_objection_defers_the_exit_until_a_referee_sat() -> None:
    run = drive(plan(turns=(1, 5)), READY, voices=critical(9, 1))
    assert (run.outcome.turns, run.outcome.status) == (2, "converged") and "referee" in run.roles(2)
    # What nobody answered still bounds the confidence, and here keeps it below what an exit needs.
    assert (run.outcome.confidence, run.outcome.lowered) == (0.79, "1 severe objection is still open")
    assert run.outcome.why == "no open tension and no new gap in 2 turns"


def test_a_referee_who_failed_is_asked_for_again() -> None:
    def voices(call: Call) -> AgentData | str:
        return "timeout: x" if call.name == "t2-referee" else critical(9, 1)(call)

    run = drive(plan(turns=(1, 5)), READY, voices=voices)
    assert [("referee" in roles) for roles in run.sat()] == [False, True, True]


def test_what_a_referee_weighed_is_no_conflict_again_unless_its_voice_finds_it_worse() -> None:
    def run(*severities: int) -> Run:
        said = {f"t{turn}-critic": objecting(severity) for turn, severity in enumerate(severities, 1)}
        return drive(plan(turns=(5, 5)), {"roles": ["critic"]}, voices=lambda call: said.get(call.name) or spoken())

    assert [pause.name for pause in run(9, 9, 9, 9).pauses] == ["t1-conflict"]
    assert [pause.name for pause in run(9, 9, 10).pauses] == ["t1-conflict", "t3-conflict"]
    assert len(run(9, 9, 9, 9).outcome.objections) == 1


def test_an_answer_that_its_voice_does_not_accept_is_none() -> None:
    run = drive(plan(), ANSWERED, {}, voices=lambda call: objecting(6) if "critic" in call.name else spoken())
    assert [(item.id, item.status, item.turn) for item in run.outcome.objections] == [("O1", "open", 1)]


# -- seats beyond those of the directive -----------------------------------------------------------

CHARGED = [{"name": name, "charge": "look"} for name in ("tester", "historian", "economist", "operator")]


@pytest.mark.parametrize(
    ("charged", "together", "severity", "beside", "beyond"),
    [
        (2, 0, 9, ["critic", "referee"], False),
        (3, 0, 9, ["critic", "referee"], True),
        (1, 9, 0, ["steelman", "checker"], False),
        (2, 9, 0, ["steelman", "checker"], False),
        (3, 9, 0, ["steelman", "checker"], True),
        (4, 9, 0, ["steelman"], True),  # one beyond the band and no more: who is most needed sits
        (1, 9, 9, ["critic", "referee", "steelman", "checker"], True),
        (2, 9, 9, ["critic", "referee", "steelman"], True),
    ],
)
@pytest.mark.parametrize("make_plan", [plan, adaptive])
def test_extra_seats_displace_no_charged_role_and_no_objector(
    make_plan: Callable[..., Plan], charged: int, together: int, severity: int, beside: list[str], beyond: bool
) -> None:
    asked = {"roles": CHARGED[:charged], "together": together, "width": 3}
    run = drive(make_plan(width=(2, 4)), asked, {}, voices=critical(severity, 1))
    assert run.roles(2) == [*(role["name"] for role in CHARGED[:charged]), *beside]
    extra = " and ".join(role for role in beside if role != "critic")
    told = f"turn 2: 5 voices sit, one more than the band allows, for {extra}"
    assert [flag for flag in run.outcome.flags if "band" in flag] == ([told] if beyond else [])


def test_uncharged_roles_make_room_and_keep_what_is_left() -> None:
    asked: dict[str, Any] = {"roles": ["tester", "historian", "economist"], "together": 9}
    assert drive(plan(), asked).roles(2) == ["tester", "historian", "steelman", "checker"]
    assert drive(plan(width=(2, 5)), asked).roles(2) == ["tester", "historian", "economist", "steelman", "checker"]
    lone = drive(plan(width=(1, 1), start=1), {"roles": ["tester"]}, {}, voices=lambda call: objecting(9))
    assert lone.roles(2) == ["architect", "referee"]


def test_where_nothing_is_left_to_settle_only_the_other_side_sits() -> None:
    settled = {"tensions": [tension("accepted")], "together": 9, "width": 4, "roles": []}
    assert drive(adaptive(), settled).roles(2) == ["steelman", "checker"]
    assert drive(adaptive(), {**settled, "gaps": ["a"]}).roles(2)[2:] == ["steelman", "checker"]


def test_a_directive_cannot_seat_them_itself() -> None:
    wishes = [{"name": name, "charge": "x"} for name in SPECIAL_ROLES]
    run = drive(plan(), {"roles": [*wishes, "tester"]})
    assert run.roles(2) == ["tester", "operator", "economist"]


def test_they_are_never_seated_without_need() -> None:
    run = drive(plan(start=20, width=(20, 20)))
    assert not set(SPECIAL_ROLES) & {role for roles in run.sat() for role in roles}


def test_an_invented_role_keeps_its_charge_while_it_sits() -> None:
    auditor, tester = (
        {"name": "token-auditor", "charge": "attack the tokens"},
        {"name": "tester", "charge": "break it"},
    )
    bare = {"roles": ["token-auditor", "tester"]}
    run = drive(plan(turns=(6, 6)), {"roles": [auditor, tester]}, bare, bare, {"roles": ["tester"]}, bare)
    charges = [{call.data["role"]: call.data["charge"] for call in run.turn(number)} for number in range(2, 7)]
    assert [told.get("token-auditor") for told in charges] == [auditor["charge"]] * 3 + [None, ""]
    assert [told["tester"] for told in charges] == ["break it", "", "", "", ""]  # its document says what it does


def test_an_invented_role_keeps_its_seat_as_a_charged_one() -> None:
    asked = {"roles": [{"name": "token-auditor", "charge": "attack the tokens"}]}
    last = {"roles": ["tester", "historian", "economist", "token-auditor"], "together": 9}
    assert "token-auditor" in drive(plan(), asked, last).roles(3)


def test_a_letter_takes_no_seat_from_who_argues_or_rules() -> None:
    letter = {"messages": [{"to": "pragmatist", "text": "What does it cost?"}]}
    roles = {"roles": CHARGED[:2]}
    run = drive(plan(team=True), {**letter, **roles, "together": 9})
    assert {"pragmatist", "steelman", "checker"} <= set(run.roles(2)) and len(run.roles(2)) == 4


# -- pauses and endings ----------------------------------------------------------------------------


def test_a_conflict_asks_the_human_between_two_turns() -> None:
    run = drive(plan(), voices=critical(9, 1))
    assert run.steps.index(run.pauses[0]) == 2
    said = "Turn 1 ended in a conflict: critic objects with severity 9 (O1): it loses data 1 times."
    assert run.pauses == [Pause("t1-conflict", said, (GO_ON, FINISH), GO_ON)]


def test_finish_now_ends_with_the_result() -> None:
    run = drive(plan(), voices=lambda call: objecting(9), answer=FINISH)
    assert (run.outcome.status, run.outcome.why, run.outcome.turns) == ("stopped", "you asked for the result", 1)
    assert [type(step).__name__ for step in run.steps] == ["Batch", "Batch", "Pause", "Batch"]
    assert run.final.data["why"] == "you asked for the result"


@pytest.mark.parametrize("answer", ["", "FINISH", "anything else"])
def test_any_other_answer_goes_on(answer: str) -> None:
    assert drive(plan(), voices=lambda call: objecting(9), answer=answer).outcome.turns == 3


def test_a_conflict_in_the_last_turn_asks_nothing_and_is_reported() -> None:
    run = drive(plan(turns=(1, 1)), voices=lambda call: objecting(9))
    assert run.pauses == []
    assert run.outcome.status == "max_turns"
    assert len(run.outcome.flags) == 1
    assert run.outcome.dissents == tuple(
        f"{role}/O{number}: it loses data" for number, role in enumerate(("architect", "critic", "pragmatist"), 1)
    )


def test_exit_ready_converges_at_the_confidence_that_is_printed() -> None:
    ready = {"exit_ready": True, "confidence": 0.8}
    run = drive(plan(turns=(1, 3)), {}, {**ready, "tensions": [tension("resolved")], "gaps": ["a"]})
    assert (run.outcome.status, run.outcome.turns, run.outcome.confidence) == ("converged", 2, 0.8)
    assert run.outcome.why == "ready to exit at confidence 0.80"
    # An open tension bounds it, so that the run is not over by its own word.
    run = drive(plan(turns=(1, 3)), {**ready, "confidence": 0.95})
    assert (run.outcome.status, run.outcome.turns, run.outcome.stated) == ("max_turns", 3, 0.95)
    assert (run.outcome.confidence, run.outcome.lowered) == (0.79, "1 question is still open")
    assert (run.final.data["confidence"], run.final.data["bounded_by"]) == ("0.79", "1 question is still open")


def test_quiet_turns_converge() -> None:
    run = drive(plan(turns=(2, 9)), {"gaps": ["a"], "tensions": []}, {"gaps": ["a"], "tensions": []})
    assert (run.outcome.status, run.outcome.turns) == ("converged", 2)


def test_turns_are_spent_only_where_something_can_be_settled() -> None:
    accepted = {"tensions": [tension("accepted")]}
    assert drive(plan(turns=(2, 3)), {}, {**accepted, "gaps": ["a"]}).outcome.turns == 3
    run = drive(plan(turns=(2, 3)), {"gaps": ["a"]}, accepted)
    assert (run.outcome.turns, run.outcome.status) == (2, "converged")
    assert run.outcome.why == "nothing that could be settled here was open after turn 2"
    assert run.outcome.needed.startswith("something open that the material")


def test_what_only_an_outside_fact_can_settle_keeps_no_turn_going_and_becomes_a_step() -> None:
    fact = {**tension("outside"), "settled_by": "the vendor"}
    run = drive(plan(turns=(1, 9)), {"tensions": [fact], "confidence": 0.9})
    assert (run.outcome.turns, run.outcome.status, run.outcome.confidence) == (1, "converged", 0.9)
    assert run.outcome.open_tensions == () and run.outcome.ledger[0].status == "outside"
    assert run.final.format == FinalFormat(outside=(("T1", "speed against safety"),))
    assert run.final.data["outside"] == [{**fact, "since": 1}]
    mixed = drive(plan(turns=(1, 3)), {"tensions": [fact, tension("open", "T2")]})
    assert (mixed.outcome.turns, mixed.outcome.open_tensions) == (3, ("T2: speed against safety",))
    assert mixed.outcome.needed == "a higher --turns; T2 is still open"


def test_one_call_would_have_been_enough_where_nothing_moved_a_shared_answer() -> None:
    def run(*changed: bool | None, together: int = 9) -> bool:
        turns = [{"together": together, "answer_changed": value} for value in (False, *changed)]
        return drive(plan(turns=(3, 3)), *turns).outcome.enough

    assert run(False, False)
    assert not run(True, False) and not run(False, None)
    assert not run(False, False, together=2)
    assert not drive(plan(turns=(1, 1)), {"together": 9}).outcome.enough  # nobody argued against it


# -- the final -------------------------------------------------------------------------------------


def test_the_author_sees_the_material_every_synthesis_and_each_voices_first_and_last_answer() -> None:
    roles = [{"roles": ["tester", "critic", "operator"]}, {"roles": ["critic", "historian", "tester"]}]
    run = drive(plan(), *roles)
    assert run.final.reads[:5] == ("00-input", "00-context", "t1-synthesis", "t2-synthesis", "t3-synthesis")
    first, last = (
        {"t1-architect", "t1-critic", "t1-pragmatist"},
        {"t2-operator", "t3-critic", "t3-historian", "t3-tester"},
    )
    assert (set(run.final.reads[5:8]), set(run.final.reads[8:])) == (first, last)
    assert [voice["artifact"] for voice in run.final.data["voices"]] == list(run.final.reads[5:])
    assert run.final.data["syntheses"] == list(run.final.reads[2:5])
    assert (run.final.artifact, run.final.deferred) == ("FINAL", True)


def test_the_final_is_told_how_the_ledgers_ended() -> None:
    ledger = [tension("resolved"), tension("open", "T2")]
    run = drive(plan(), {"tensions": ledger}, {"tensions": []}, voices=critical(6, 1))
    assert run.final.format == FinalFormat()
    assert [(item["id"], item["status"]) for item in run.final.data["tensions"]] == [
        ("T1", "resolved"),
        ("T2", "open"),
    ]
    assert run.final.data["dissents"] == [
        {
            "id": "O1",
            "role": "critic",
            "turn": 1,
            "severity": 6,
            "against": "",
            "text": "it loses data 1 times",
            "weighed": False,
        }
    ]
    assert run.final.data["confidence"] == "0.60"


def test_disagreement_at_the_end_is_in_the_outcome() -> None:
    run = drive(plan(), voices=lambda call: objecting(5) if "critic" in call.name else spoken())
    assert run.outcome.open_tensions == ("T1: speed against safety",)
    assert run.outcome.dissents == ("critic/O1: it loses data",)


def test_dissents_carry_the_name_of_the_seat() -> None:
    run = drive(
        plan(roles=("critic",), known_roles=("critic",), start=2, turns=(1, 1)), voices=lambda call: objecting(5)
    )
    assert run.outcome.dissents == ("critic/O1: it loses data", "critic-2/O2: it loses data")


def test_what_cdo_had_to_add_is_in_the_outcome() -> None:
    gaps = ["section Gaps"]
    run = drive(plan(turns=(2, 2)), added={"t1-synthesis": gaps, "t2-synthesis": gaps, "final": ["step for T1"]})
    assert run.outcome.added == ("turn 1: section Gaps", "turn 2: section Gaps", "step for T1")
    assert run.outcome.degraded


# -- every preset, any directive -------------------------------------------------------------------


def preset_plan(name: str, modifiers: tuple[str, ...] = ()) -> Plan:
    library = Library((("packaged", PACKAGED),))
    invocation = Invocation(name, modifiers, None, None, "x")
    return make(invocation, "x", Resolved(Settings(), {}), library, ["m/a"])


@pytest.mark.parametrize("modifiers", [(), ("adaptive",)])
@pytest.mark.parametrize("name", ["quick", "think", "deep", "full"])
def test_every_preset_runs_to_its_end(name: str, modifiers: tuple[str, ...]) -> None:
    what = preset_plan(name, modifiers)
    run = drive(what, {"width": 256, "gaps": ["a"]})
    assert run.outcome.turns == what.turns[1]
    widths = [len(run.turn(turn)) for turn in range(1, run.outcome.turns + 1)]
    later = what.width[1] if what.adaptive else what.start
    assert widths == [what.start, *[later] * (what.turns[1] - 1)]


ROLE_NAMES = st.sampled_from(
    [
        "critic",
        "architect",
        "refuter",
        "referee",
        "critic-2",
        "refuter-2",
        "a" * 32,
        "a" * 31 + "b",
        "a" * 29 + "-",
        "com",
    ]
) | st.from_regex(r"[a-z][a-z0-9-]{0,31}", fullmatch=True)
WISHES = st.lists(
    ROLE_NAMES.filter(lambda name: role_problem(name) is None).map(lambda name: {"name": name, "charge": name}),
    max_size=8,
)
DIRECTIVES = st.fixed_dictionaries(
    {
        "width": st.integers(1, 256),
        "roles": WISHES,
        "confidence": st.floats(0, 1),
        "exit_ready": st.booleans(),
        "together": st.integers(0, 24),
        "gaps": st.lists(st.sampled_from(["g", "h"]), max_size=1),
        "tensions": st.lists(
            st.fixed_dictionaries(
                {
                    "id": st.sampled_from(["T1", "T2"]),
                    "title": st.just("x"),
                    "status": st.sampled_from(["open", "resolved", "outside"]),
                }
            ),
            max_size=1,
        ),
    }
)


@pytest.mark.wide
@settings(max_examples=120, deadline=None)
@given(
    st.lists(DIRECTIVES, min_size=1, max_size=6),
    st.tuples(st.integers(1, 12), st.integers(0, 12)),
    st.integers(1, 24),
    st.tuples(st.integers(1, 3), st.integers(0, 5)),
    st.booleans(),
    st.integers(0, 10),
)
def test_no_directive_breaks_names_band_or_cap(
    directives: list[dict[str, Any]],
    band: tuple[int, int],
    start: int,
    turns: tuple[int, int],
    is_adaptive: bool,
    severity: int,
) -> None:
    low, high = band[0], band[0] + band[1]
    start = min(max(start, low), high)
    cap = turns[0] + turns[1]
    what = plan(width=(low, high), start=start, turns=(turns[0], cap), adaptive=is_adaptive)
    run = drive(what, *directives, voices=lambda call: objecting(severity) if severity else spoken())
    assert 1 <= run.outcome.turns <= cap
    assert len(run.batches) == 2 * run.outcome.turns + 1
    names = [call.artifact for batch in run.batches for call in batch.calls]
    assert len(set(names)) == len(names)
    for turn in range(1, run.outcome.turns + 1):
        voices = run.turn(turn)
        extra = [call.data["role"] for call in voices if call.data["role"] in SPECIAL_ROLES]
        width = start if turn == 1 or not is_adaptive else None
        assert 1 <= len(voices) <= high + bool(extra)
        told = f"turn {turn}: {high + 1} voices sit, one more than the band allows, for {' and '.join(extra)}"
        assert (told in run.outcome.flags) is (len(voices) > high)
        if not extra:
            assert len(voices) == width if width else low <= len(voices)
        elif turn > 1:
            wishes = directives[min(turn - 1, len(directives)) - 1]["roles"]
            charged = [wish["name"] for wish in wishes if wish["name"] not in SPECIAL_ROLES]
            assert set(list(dict.fromkeys(charged))[:high]) <= {call.data["role"] for call in voices}
        assert all(role_problem(call.name.removeprefix(f"t{turn}-")) is None for call in voices)
        assert all(call.data["role"] in call.name or len(call.data["role"]) > 29 for call in voices)


# -- forks -----------------------------------------------------------------------------------------


def identities(run: Run, last: int) -> list[tuple[Any, ...]]:
    """All that tells a recorded call from another, for the turns up to `last`."""
    calls = [call for batch in run.batches for call in batch.calls if call.kind != "final"]
    return [
        (call.name, call.template, json.dumps(call.data), call.reads)
        for call in calls
        if int(call.name[1 : call.name.index("-")]) <= last
    ]


EVERYTHING: dict[str, Any] = {
    "focus": "the way back",
    "note": "mind Peru",
    "roles": (("lawyer", "read the contracts"), ("critic", "")),
    "without": ("pragmatist",),
    "models": ("x/1", "y/2"),
    "vendors": {"x/1": "x", "y/2": "y"},
}


@pytest.mark.parametrize("shape", [plan, adaptive])
@pytest.mark.parametrize("more", [{}, {"modifiers": ("lev-exec",)}, {"team": True}, {"hitl": True, "team": True}])
@pytest.mark.parametrize("turn", [1, 2, 3])
def test_a_fork_changes_no_call_of_the_turns_that_it_shares(
    shape: Callable[..., Plan], more: dict[str, Any], turn: int
) -> None:
    models = {"models": ("m/a", "m/b"), "vendors": {"m/a": "a", "m/b": "b"}}
    source = drive(shape(**models, **more))
    change = Change(turn=turn + 1, turns=(turn + 2, turn + 2), **EVERYTHING)
    fork = drive(shape(**models, **more, changes=(change,)))
    assert identities(fork, turn) == identities(source, turn) != []
    assert identities(fork, turn + 1) != identities(source, turn + 1)
    assert fork.outcome.turns == turn + 2
    assert {call.models[0] for call in fork.turn(turn + 1)} <= {"x/1", "y/2"} and fork.final.models == ("x/1", "y/2")


def test_what_a_fork_says_of_one_turn_is_for_that_turn_and_the_rest_stays() -> None:
    run = drive(plan(changes=(Change(turn=2, **EVERYTHING),)))
    assert run.roles(2) == ["architect", "critic", "lawyer"]
    assert {call.data["focus"] for call in run.turn(2)} == {"the way back"}
    assert {call.data["note"] for call in (*run.turn(2), run.synthesis(2))} == {"mind Peru"}
    assert [call.data["charge"] for call in run.turn(2)] == ["", "", "read the contracts"]
    assert {call.data["note"] for call in run.turn(3)} == {""} and "lawyer" not in run.roles(3)
    assert [call.models for call in run.turn(3)] == [("x/1",), ("y/2",), ("x/1",)]
    assert [call.models for call in run.turn(1)] == [("m/a",)] * 3


def test_the_turn_that_a_fork_begins_with_is_held_whatever_came_before() -> None:
    sure, early = {"exit_ready": True, "confidence": 0.9, "tensions": []}, (1, 3)
    assert drive(plan(turns=early), sure).outcome.turns == 1
    assert drive(plan(turns=early, changes=(Change(turn=2),)), sure).outcome.turns == 2
    capped = drive(plan(changes=(Change(turn=4),)))
    assert (capped.outcome.turns, capped.outcome.why) == (4, "the cap of 4 turns was reached")
    assert capped.synthesis(3).data["max_turns"] == 3 and capped.synthesis(4).data["max_turns"] == 4
    raised = drive(plan(changes=(Change(turn=2, turns=(5, 5)),)))
    assert raised.outcome.turns == 5 and raised.synthesis(1).data["max_turns"] == 3


def test_a_conflict_after_the_shared_turn_seats_a_referee_and_asks_nobody() -> None:
    source = drive(plan(), voices=lambda call: objecting(9) if call.name == "t1-critic" else spoken())
    fork = drive(
        plan(changes=(Change(turn=2),)), voices=lambda call: objecting(9) if call.name == "t1-critic" else spoken()
    )
    assert [pause.name for pause in source.pauses] == ["t1-conflict"] and fork.pauses == []
    assert "referee" in fork.roles(2) and fork.outcome.flags == source.outcome.flags


def test_a_fork_from_the_beginning_changes_the_first_turn() -> None:
    run = drive(plan(changes=(Change(turn=1, **EVERYTHING),)))
    assert run.roles(1) == ["architect", "critic", "lawyer"] and run.turn(1)[0].models == ("x/1",)


def test_the_seats_of_a_fork_move_the_band_as_a_persons_word_does() -> None:
    def seats(what: Callable[..., Plan], **keys: Any) -> list[list[str]]:
        run = drive(what(changes=(Change(turn=2, **keys),)), {"width": 3, "roles": ["architect", "critic", "tester"]})
        return [run.roles(2), run.roles(3)]

    asked = tuple((name, "look") for name in ("lawyer", "banker", "nurse", "pilot"))
    assert seats(plan, roles=asked[:1]) == [
        ["architect", "critic", "tester", "lawyer"], ["architect", "critic", "tester", "pragmatist"]
    ]  # fmt: skip
    assert seats(plan, without=("tester",)) == [["architect", "critic"], ["architect", "critic"]]
    # Adaptive: at most six sit, so that those whom nobody asked for give way from the end.
    assert seats(adaptive, roles=asked)[0] == ["architect", "critic", "lawyer", "banker", "nurse", "pilot"]
    assert seats(adaptive, roles=asked)[1] == ["architect", "critic", "tester"]
    assert seats(adaptive, without=("architect", "critic", "tester"))[0] == ["pragmatist"]


def test_a_voice_that_had_no_seat_is_named() -> None:
    run = drive(plan(changes=(Change(turn=2, without=("lawyer",)),)))
    assert "turn 2: lawyer had no seat to be left out of" in run.outcome.flags
