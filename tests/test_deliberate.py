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

from cdo.blocks import role_problem
from cdo.calls import rotated
from cdo.content import PACKAGED, Library
from cdo.deliberate import FINISH, GO_ON, deliberate
from cdo.ending import Outcome
from cdo.final import Dissent, FinalData, FinalFormat
from cdo.plan import Change, Plan, make
from cdo.protocol import AgentData, Directive, SynthesisFormat
from cdo.schemas import Criteria
from cdo.settings import Resolved, Settings
from cdo.types import Call, Collect, Fault, Pause, Reply, Review, Step
from cdo.words import Invocation
from tests import programs

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
    return Plan.model_validate({**plain, **changes})


def adaptive(**changes: Any) -> Plan:
    return plan(**{"adaptive": True, "width": (2, 6), "turns": (4, 4), **changes})


def spoken(**changes: Any) -> AgentData:
    return AgentData.model_validate({"position": "x", "confidence": 0.6, **changes})


def objecting(severity: int, text: str = "it loses data") -> AgentData:
    return spoken(objections=[{"id": "o1", "text": text, "severity": severity}])


def directive(**changes: Any) -> Directive:
    """One that goes on and starts nothing."""
    tension = {"id": "T1", "title": "speed against safety", "status": "open"}
    plain = {"width": 3, "roles": [], "focus": "f", "confidence": 0.6, "exit_ready": False, "tensions": [tension]}
    return Directive.model_validate({**plain, **changes})


Voices = Callable[[Call], AgentData | str]  # what a voice says, or why it is missing
Syntheses = Callable[[int], dict[str, Any]]


class Run(programs.Run):
    """A run of this program."""

    def roles(self, number: int) -> list[str]:
        return [call.data["role"] for call in self.turn(number)]

    def names(self, number: int) -> list[str]:
        return [call.name for call in self.turn(number)]


def drive(
    what: Plan,
    *directives: dict[str, Any] | Directive,
    voices: Voices = lambda call: spoken(),
    answer: str = GO_ON,
    edits: Mapping[str, str] | None = None,
    letters: Mapping[str, Sequence[Any]] | None = None,
    added: Sequence[str] = (),
    final_added: Sequence[str] = (),
) -> Run:
    """Run a plan by hand; the last directive is given again when more are asked for."""
    given_ = [item if isinstance(item, Directive) else directive(**item) for item in directives] or [directive()]
    following = chain(given_, repeat(given_[-1]))

    def reply(call: Call) -> Reply:
        if call.kind == "agent":
            said = voices(call)
            return Reply(call.name, said) if isinstance(said, AgentData) else Reply(call.name, reason=said)
        if call.kind == "synthesis":
            return Reply(call.name, next(following), added=tuple(added))
        return Reply(call.name, FinalData(sections=()), added=tuple(final_added))

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
        confidence=0.6,
        turns=3,
        missing=(),
        open_tensions=("T1: speed against safety",),
        dissents=(),
        added=(),
        flags=(),
        ledger=(("T1", "open"),),
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
        adaptive(), {"agreement": 0.9, "confidence": 0.9}, {"confidence": 0.1}, voices=lambda call: objecting(9)
    )
    for batch in run.batches:
        for call in batch.calls:
            assert json.loads(json.dumps(call.data)) == call.data


def test_voices_of_one_turn_never_read_each_other() -> None:
    run = drive(plan())
    assert {call.reads for call in run.turn(1)} == {("00-input", "00-context")}
    for turn in (2, 3):
        assert {call.reads for call in run.turn(turn)} == {("00-input", "00-context", f"t{turn - 1}-synthesis")}


def test_the_synthesis_reads_question_last_synthesis_and_all_voices_of_its_turn() -> None:
    run = drive(plan())
    for turn in (1, 2, 3):
        call = run.synthesis(turn)
        before = [f"t{turn - 1}-synthesis"] if turn > 1 else []
        assert list(call.reads[: 1 + len(before)]) == ["00-input", *before]
        assert sorted(call.reads[1 + len(before) :]) == sorted(run.names(turn))
        assert [voice["artifact"] for voice in call.data["voices"]] == list(call.reads[1 + len(before) :])
        assert call.data["turn"] == turn


def test_the_order_in_which_voices_are_read_changes_by_turn() -> None:
    run = drive(plan())
    orders = [[voice["name"] for voice in run.synthesis(turn).data["voices"]] for turn in (1, 2, 3)]
    assert orders == [
        ["critic", "pragmatist", "architect"],
        ["pragmatist", "architect", "critic"],
        ["architect", "critic", "pragmatist"],
    ]
    assert [voice["name"] for voice in run.final.data["voices"]] == ["critic", "pragmatist", "architect"]


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
    assert fixed.format == SynthesisFormat(width=(3, 3), roles=KNOWN)
    assert free.format == SynthesisFormat(width=(2, 6), roles=KNOWN)
    assert fixed.data["max_turns"] == 3


def test_voices_are_shown_what_is_open_and_the_synthesiser_the_whole_ledger() -> None:
    ledger = [
        {"id": "T1", "title": "one", "status": "resolved"},
        {"id": "T2", "title": "two", "status": "open"},
        {"id": "T3", "title": "three", "status": "accepted"},
    ]
    run = drive(plan(), {"tensions": ledger}, {"tensions": []})
    for call in run.turn(3):
        assert call.data["tensions"] == [{"id": "T2", "title": "two", "status": "open", "since": 1}]
        assert call.data["settled"] == ["T1", "T3"]
    assert run.synthesis(3).data["tensions"] == [{**item, "since": 1} for item in ledger]


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
    assert run.outcome.missing == ((2, "critic", reason),)
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
    run = drive(plan(), voices=lambda call: "empty: x" if call.name.endswith("critic") else objecting(3))
    assert run.outcome.dissents == ("architect/o1: it loses data", "pragmatist/o1: it loses data")
    assert len(run.outcome.missing) == 3


# -- refuter and referee ---------------------------------------------------------------------------


def test_a_refuter_with_a_fresh_context_follows_too_much_agreement() -> None:
    says = spoken(claims=[{"id": "c1", "text": "first"}, {"id": "c2", "text": "second"}])
    run = drive(plan(), {"agreement": 0.71}, {"agreement": 0.7}, voices=lambda call: says)
    assert run.roles(2) == ["architect", "critic", "refuter"]
    refuter = run.turn(2)[-1]
    assert refuter.reads == ("00-input", "00-context")
    assert (refuter.data["previous"], refuter.data["tensions"], refuter.data["settled"]) == ("", [], [])
    assert refuter.data["claims"] == ["first", "first", "first", "second", "second", "second"]
    assert [call.data["claims"] for call in run.turn(2)[:-1]] == [[], []]
    assert run.roles(3) == ["architect", "critic", "pragmatist"]
    assert run.outcome.flags == ("turn 1: agreement 71% was flagged",)


def test_a_refuter_hears_every_voice_before_it_hears_one_twice() -> None:
    says = spoken(claims=[{"id": f"c{n}", "text": f"claim {n}"} for n in range(30)])
    run = drive(adaptive(), {"agreement": 1.0}, voices=lambda call: says)
    claims = run.turn(2)[-1].data["claims"]
    assert len(claims) == 24
    assert claims[:6] == ["claim 0"] * 3 + ["claim 1"] * 3


def test_a_refuter_takes_a_seat_of_its_own_where_the_band_allows_it() -> None:
    assert drive(adaptive(), {"agreement": 0.9, "width": 3}).roles(2) == [
        "architect", "critic", "pragmatist", "refuter",
    ]  # fmt: skip
    full = drive(adaptive(), {"agreement": 0.9, "width": 6}).roles(2)
    assert (len(full), full[-1]) == (6, "refuter")


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ({"confidence": 0.9}, {"confidence": 0.7}, "confidence fell from 0.90 to 0.70"),
        ({"confidence": 0.9}, {"confidence": 0.1}, "confidence fell from 0.90 to 0.10"),
    ],
)
def test_a_referee_follows_a_drop_of_confidence(first: dict[str, Any], second: dict[str, Any], said: str) -> None:
    run = drive(plan(), first, second)
    assert run.roles(3) == ["architect", "critic", "referee"]
    assert [call.data["charge"] for call in run.turn(3)] == ["", "", said]
    assert [pause.name for pause in run.pauses] == ["t2-conflict"]
    assert run.outcome.flags == (f"turn 2: conflict: {said}",)


def test_a_referee_follows_a_severe_objection_and_reads_the_synthesis() -> None:
    run = drive(plan(), voices=lambda call: objecting(8) if call.name == "t1-critic" else spoken())
    said = "critic objects with severity 8 (o1): it loses data"
    referee = run.turn(2)[-1]
    assert (referee.name, referee.data["charge"]) == ("t2-referee", said)
    assert "t1-synthesis" in referee.reads
    assert run.roles(3) == ["architect", "critic", "pragmatist"]
    assert run.outcome.flags == (f"turn 1: conflict: {said}",)


@pytest.mark.parametrize(
    ("width", "seated"),
    [
        (1, ["referee"]),
        (2, ["architect", "referee"]),
        (3, ["architect", "referee", "refuter"]),
        (4, ["architect", "critic", "referee", "refuter"]),
    ],
)
def test_both_take_the_last_seats_and_leave_one(width: int, seated: list[str]) -> None:
    run = drive(plan(width=(1, 4), start=width), {"agreement": 0.9}, voices=lambda call: objecting(9))
    assert run.roles(2) == seated


def test_a_directive_may_ask_for_them_itself() -> None:
    wishes = [{"name": "refuter", "charge": "the cost"}, {"name": "referee", "charge": "the dates"}]
    run = drive(plan(), {"roles": wishes})
    assert [(call.data["role"], call.data["charge"]) for call in run.turn(2)] == [
        ("refuter", "the cost"),
        ("referee", "the dates"),
        ("operator", ""),
    ]
    assert run.turn(2)[0].reads == ("00-input", "00-context")
    asked_and_needed = drive(plan(), {"roles": wishes, "agreement": 0.9}, voices=lambda call: objecting(9)).turn(2)
    assert [(call.data["role"], call.data["charge"][:20]) for call in asked_and_needed] == [
        ("architect", ""),
        ("referee", "architect objects wi"),
        ("refuter", "the cost"),
    ]


def test_they_are_never_seated_without_need() -> None:
    run = drive(plan(start=20, width=(20, 20)))
    assert not {"refuter", "referee"} & {role for turn in (1, 2, 3) for role in run.roles(turn)}


# -- pauses and endings ----------------------------------------------------------------------------


def test_a_conflict_asks_the_human_between_two_turns() -> None:
    run = drive(plan(), voices=lambda call: objecting(9) if call.name == "t1-critic" else spoken())
    assert run.steps.index(run.pauses[0]) == 2
    assert run.pauses == [
        Pause(
            "t1-conflict",
            "Turn 1 ended in a conflict: critic objects with severity 9 (o1): it loses data.",
            (GO_ON, FINISH),
            GO_ON,
        )
    ]


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
        f"{role}/o1: it loses data" for role in ("architect", "critic", "pragmatist")
    )


def test_exit_ready_converges() -> None:
    ready = {"exit_ready": True, "confidence": 0.8}
    settled = {**ready, "tensions": [{"id": "T1", "title": "speed against safety", "status": "resolved"}]}
    run = drive(plan(), {}, settled)
    assert (run.outcome.status, run.outcome.turns, run.outcome.confidence) == ("converged", 2, 0.8)
    run = drive(plan(), {}, ready)  # ready by its own word, while the ledger has an open tension
    assert (run.outcome.status, run.outcome.confidence, run.outcome.stated) == ("converged", 0.79, 0.8)
    assert run.outcome.lowered == "1 open tension"


def test_an_unheard_conflict_defers_the_exit_once() -> None:
    ready = {"exit_ready": True, "confidence": 0.9}
    run = drive(plan(turns=(5, 5)), ready, voices=lambda call: objecting(9))
    assert (run.outcome.status, run.outcome.turns) == ("converged", 2)
    assert "referee" in run.roles(2)


def test_a_conflict_after_a_quiet_turn_is_unheard_again() -> None:
    def voices(call: Call) -> AgentData:
        return objecting(9) if call.name in ("t1-critic", "t3-critic") else spoken()

    run = drive(
        plan(turns=(9, 9)), {}, {}, {"exit_ready": True, "confidence": 0.9}, {"exit_ready": True, "confidence": 0.9},
        voices=voices,
    )  # fmt: skip
    assert (run.outcome.status, run.outcome.turns) == ("converged", 4)


def test_quiet_turns_converge() -> None:
    run = drive(plan(turns=(9, 9)), {"tensions": []})
    assert (run.outcome.status, run.outcome.turns) == ("converged", 2)


def test_later_turns_are_earned() -> None:
    run = drive(
        plan(turns=(2, 3)), {}, {"tensions": [{"id": "T1", "title": "x", "status": "accepted"}], "gaps": ["a"]}
    )
    assert run.outcome.turns == 3
    run = drive(plan(turns=(2, 3)), {"gaps": ["a"]}, {"tensions": [{"id": "T1", "title": "x", "status": "accepted"}]})
    assert (run.outcome.turns, run.outcome.status) == (2, "max_turns")


# -- the final -------------------------------------------------------------------------------------


def test_the_final_is_held_to_ledger_and_last_turns_dissents() -> None:
    ledger = [{"id": "T1", "title": "one", "status": "resolved"}, {"id": "T2", "title": "two", "status": "open"}]

    def voices(call: Call) -> AgentData:
        return objecting(4, f"said in {call.name}") if "critic" in call.name else spoken()

    run = drive(plan(), {"tensions": ledger}, {"tensions": []}, voices=voices)
    assert run.final.format == FinalFormat(
        tensions=(("T1", "one", "resolved"), ("T2", "two", "open")),
        dissents=(Dissent("o1", "critic", "said in t3-critic", 4),),
    )
    assert run.final.data["dissents"] == [{"id": "o1", "role": "critic", "text": "said in t3-critic", "severity": 4}]
    assert [item["id"] for item in run.final.data["tensions"]] == ["T1", "T2"]
    assert run.final.reads == ("00-input", "t3-synthesis", "t3-critic", "t3-pragmatist", "t3-architect")
    assert (run.final.artifact, run.final.deferred) == ("FINAL", True)
    assert run.final.data["confidence"] == 0.6


def test_disagreement_at_the_end_is_in_the_outcome() -> None:
    run = drive(plan(), voices=lambda call: objecting(5) if "critic" in call.name else spoken())
    assert run.outcome.open_tensions == ("T1: speed against safety",)
    assert run.outcome.dissents == ("critic/o1: it loses data",)


def test_dissents_carry_the_name_of_the_seat() -> None:
    run = drive(
        plan(roles=("critic",), known_roles=("critic",), start=2, turns=(1, 1)), voices=lambda call: objecting(5)
    )
    assert run.outcome.dissents == ("critic/o1: it loses data", "critic-2/o1: it loses data")


def test_what_cdo_had_to_add_is_in_the_outcome() -> None:
    run = drive(plan(turns=(2, 2)), added=["section Gaps"], final_added=["tension T1"])
    assert run.outcome.added == ("turn 1: section Gaps", "turn 2: section Gaps", "tension T1")
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
        "agreement": st.none() | st.floats(0, 1),
        "gaps": st.lists(st.sampled_from(["g", "h"]), max_size=1),
        "tensions": st.lists(
            st.fixed_dictionaries(
                {
                    "id": st.sampled_from(["T1", "T2"]),
                    "title": st.just("x"),
                    "status": st.sampled_from(["open", "resolved"]),
                }
            ),
            max_size=1,
        ),
    }
)


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
        assert len(voices) == start if turn == 1 or not is_adaptive else low <= len(voices) <= high
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
    sure = {"exit_ready": True, "confidence": 0.9}
    assert drive(plan(), sure).outcome.turns == 1
    assert drive(plan(changes=(Change(turn=2),)), sure).outcome.turns == 2
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
