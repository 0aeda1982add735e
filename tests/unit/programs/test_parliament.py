"""The program `parliament`, driven by hand: who sits, which stage follows, and what becomes of the votes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cdo.content.library import PACKAGED, Library, checked
from cdo.content.schemas import Criteria, Prompt
from cdo.core.errors import ContentError
from cdo.core.schema import fitted
from cdo.core.steps import Call, Missing, Pause, Reply, Review, Step
from cdo.formats.final_answer import FinalData
from cdo.formats.voice_blocks import Directive
from cdo.planning.plan import Plan
from cdo.programs.deliberation.alerts import FINISH
from cdo.programs.parliament.minutes import MinutesFormat, SpeechFormat
from cdo.programs.parliament.motions import House, SpeechData
from cdo.programs.parliament.program import FINAL, GO_ON, MODE, ParliamentMode, following, outline, parliament, seats
from cdo.runner import prompts
from tests.support.programs import Run, driven
from tests.unit.programs.test_debug import converse

LIBRARY = Library((("packaged", PACKAGED),))
CRITERIA = Criteria(exit_confidence=0.8, quiet_turns=2, agreement_flag=0.7, confidence_drop=0.2, severe=8)
MODELS = ("x/one", "x/two", "y/one", "z/one")
VENDORS = {"x/one": "acme", "x/two": "acme", "y/one": "bolt", "z/one": "corp"}


def mode(**changes: Any) -> ParliamentMode:
    return replace(LIBRARY.read(MODE, ParliamentMode)[0], **changes)


def plan(**changes: Any) -> Plan:
    plain: dict[str, Any] = {
        "preset": "full",
        "why": "you asked for full",
        "mode": "parliament",
        "width": (5, 20),
        "start": 5,
        "turns": (5, 10),
        "adaptive": True,
        "roles": ("architect", "critic"),
        "known_roles": ("architect", "critic", "tester"),
        "models": MODELS,
        "vendors": VENDORS,
        "criteria": CRITERIA,
    }
    return fitted(Plan, {**plain, **changes})


def spoken(**keys: Any) -> SpeechData:
    return SpeechData.model_validate({"position": "x", "confidence": 0.6, **keys})


def casting(call: Call, word: Callable[[str], str] = lambda item: "yes") -> SpeechData:
    items = [item["id"] for item in call.data["ballot"]]
    return spoken(ballot=[{"item": item, "vote": word(item), "reason": f"{call.data['me']} knows"} for item in items])


def seat(call: Call) -> str:
    return str(call.data["me"])


def sitting(word: Callable[[str, str], str] = lambda me, item: "yes", amend: bool = False) -> Callable[[Call], Any]:
    """Seats that move one motion, second it, and vote as `word` says for a seat and an item."""

    def say(call: Call) -> SpeechData:
        me, stage = seat(call), call.data["stage"]
        if stage == "opening":
            return spoken(stance=f"{me} stands", motions=[{"text": "Split it."}] if me == "pragmatist" else [])
        if stage == "debate":
            known = [item["id"] for item in call.data["motions"]]
            change = [{"motion": "M1", "text": "Split it in May."}] if amend and me == "critic" else []
            return spoken(seconds=known, amendments=change)
        if stage == "answer":
            return spoken(accepts=["A1"] if me == "pragmatist" else [])
        return casting(call, lambda item: word(me, item))

    return say


class Sitting(Run):
    """A run of this program."""

    @property
    def stages(self) -> list[str]:
        return [batch.calls[0].data["stage"] for batch in self.batches[:-1:2]]


def drive(
    what: Plan | None = None,
    say: Callable[[Call], Any] | None = None,
    directives: Mapping[int, Mapping[str, Any]] | None = None,
    answer: str = GO_ON,
    house: ParliamentMode | None = None,
    left: Callable[[Review], Any] | None = None,
) -> Sitting:
    """Run a plan by hand; what a seat says is data, or a reason why it is missing."""
    say = say or sitting()

    def reply(call: Call) -> Reply:
        if call.kind == "agent":
            told = say(call)
            return Reply(call.name, reason=Missing.read(told)) if isinstance(told, str) else Reply(call.name, told)
        if call.kind == "synthesis":
            keys = {"width": 5, "roles": [], "focus": "f", "confidence": 0.6, "exit_ready": False}
            keys |= (directives or {}).get(call.data["turn"], {})
            return Reply(call.name, Directive.model_validate(keys))
        return Reply(call.name, FinalData(sections=()))

    def other(step: Step) -> Any:
        if isinstance(step, Pause):
            return answer
        assert isinstance(step, Review) and left
        return left(step)

    return Sitting(*driven(parliament(what or plan(), house or mode()), reply, other))


# -- the content -----------------------------------------------------------------------------------


def test_the_mode_has_every_stage_and_roles_that_there_are() -> None:
    known = LIBRARY.names("templates/roles")
    assert set(mode().stages) == {"opening", "debate", "answer", "vote"}
    assert all(stance.role in known for stance in mode().stances)
    assert len({stance.role for stance in mode().stances}) == len(mode().stances) >= 7
    assert LIBRARY.read(FINAL, Prompt)[0].kind == "final"


@pytest.mark.parametrize(
    "change",
    [
        {"majority": 0.4},
        {"majority": 1.0},
        {"stances": []},
        {"duties": {}},
        {"stages": {}},
        {"ballot": 0},
        {"mood": 1},
    ],
)
def test_a_broken_mode_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ContentError):
        checked(ParliamentMode, {**LIBRARY.load(MODE).meta, **change}, "modes/parliament.md")


# -- who sits --------------------------------------------------------------------------------------


def test_every_model_has_a_seat_and_vendors_come_first() -> None:
    found = seats(plan(), mode())
    assert [item.voice.model for item in found] == ["x/one", "y/one", "z/one", "x/two", "x/one"]
    assert [item.vendor for item in found[:3]] == ["acme", "bolt", "corp"]
    assert [item.voice.name for item in found] == [stance.role for stance in mode().stances[:5]]
    assert all(stance.name in item.voice.charge for stance, item in zip(mode().stances, found, strict=False))


def test_more_models_than_seats_widen_the_house_up_to_the_plan() -> None:
    many = tuple(f"v{number}/m" for number in range(12))
    assert len(seats(plan(models=many, vendors={}), mode())) == 12
    assert len(seats(plan(models=many, vendors={}, width=(2, 6), start=3), mode())) == 6


def test_a_stance_that_comes_again_is_another_seat() -> None:
    found = seats(plan(start=12), mode())
    assert [item.voice.name for item in found[10:]] == ["pragmatist-2", "critic-2"]
    assert len({item.voice.name for item in found}) == 12


def test_seats_keep_name_stance_and_model_whatever_is_directed() -> None:
    run = drive(
        plan(turns=(5, 7)),
        sitting(lambda me, item: "no"),
        {turn: {"width": 9, "roles": [{"name": "tester", "charge": "break it"}]} for turn in range(1, 9)},
    )
    first = [(call.data["me"], call.data["charge"], call.models) for call in run.turn(1)]
    assert len(run.stages) > 3
    for number in range(2, len(run.stages) + 1):
        assert [(call.data["me"], call.data["charge"], call.models) for call in run.turn(number)] == first


def test_no_prompt_names_a_model_or_a_vendor() -> None:
    run = drive(say=sitting(lambda me, item: "no" if me == "critic" else "yes", amend=True))
    for batch in run.batches:
        for call in batch.calls:
            text = json.dumps(call.data)
            assert json.loads(text) == call.data
            assert not any(word in text for word in (*MODELS, *VENDORS.values()))


def test_a_domains_team_takes_the_seats_and_stances_in_turn() -> None:
    team = ("architect", "critic", "systems-thinker")
    asked = plan(domain="arch", roles=(*team, "tester"), start=3, width=(5, 9), charges={"architect": "Draw it."})
    found = seats(asked, mode())
    assert [item.voice.role for item in found] == [*team, mode().stances[3].role]
    assert [item.stance for item in found] == [stance.name for stance in mode().stances[:4]]
    assert found[0].voice.charge.endswith(" Draw it.")
    again = seats(replace(asked, roles=("critic-2", "critic", "critic"), start=3), mode())
    assert [item.voice.name for item in again] == ["critic-2", "critic", "critic-3", mode().stances[3].role]
    assert [call.data["role"] for call in drive(asked).turn(1)] == [item.voice.role for item in found]


def test_the_dashboard_is_told_the_stages() -> None:
    assert outline(mode()) == (
        ("opening", 0),
        ("debate, answer or vote of the same seats, as motions stand", 0),
    )


# -- stages ----------------------------------------------------------------------------------------


def test_opening_debate_vote_and_the_minutes() -> None:
    run = drive(say=sitting(lambda me, item: "no" if me == "critic" else "yes"))
    assert run.stages == ["opening", "debate", "vote"]
    assert (run.final.template, run.final.file) == (FINAL, "FINAL")
    assert isinstance(run.final.format, MinutesFormat)
    assert run.outcome.status == "converged"
    assert run.outcome.why == "M1 carried: 4 yes / 1 no; 2 of 3 vendors"
    assert run.outcome.votes == ("M1 carried: 4 yes / 1 no; 2 of 3 vendors",)
    assert run.outcome.flags == ()
    assert run.final.data["against"] == [{"role": "critic", "motion": "M1", "reason": "critic knows"}]
    assert run.final.data["carried"] == [{"id": "M1", "text": "Split it."}]
    formats = [call.format for number in (1, 2, 3) for call in run.turn(number)[:1]]
    assert [form.stage for form in formats if isinstance(form, SpeechFormat)] == ["opening", "debate", "vote"]


def test_an_amendment_is_answered_before_the_vote() -> None:
    run = drive(say=sitting(amend=True))
    assert run.stages == ["opening", "debate", "answer", "vote"]
    assert run.final.data["carried"] == [{"id": "M1", "text": "Split it in May."}]
    short = drive(plan(turns=(3, 3)), sitting(amend=True))
    assert short.stages == ["opening", "debate", "vote"]
    assert [item["id"] for item in short.turn(3)[0].data["ballot"]] == ["M1", "A1"]


def test_without_a_majority_the_house_debates_again_and_says_so_in_the_end() -> None:
    run = drive(plan(turns=(5, 6)), sitting(lambda me, item: "no"))
    # The rejected motion cannot come back as it was: nothing stands, and one turn is too few for debate and vote.
    assert run.stages == ["opening", "debate", "vote", "debate", "debate"]
    assert run.outcome.status == "max_turns"
    assert run.outcome.why == (
        "no majority exists: M1 not carried: 0 yes / 5 no; 0 of 3 vendors; "
        "the cap of 6 turns leaves no room for another vote"
    )
    assert run.final.data["carried"] == [] and run.final.data["against"] == []


def test_a_motion_that_nobody_seconds_is_not_voted_on() -> None:
    def alone(call: Call) -> SpeechData:
        return spoken(stance="s", motions=[{"text": seat(call)}]) if call.data["stage"] == "opening" else spoken()

    run = drive(plan(turns=(3, 4)), alone)
    assert run.stages == ["opening", "debate", "debate"]
    assert run.outcome.why.startswith("no majority exists: no motion came to the vote")
    assert run.outcome.votes == ()


@pytest.mark.parametrize(("cap", "stages"), [(1, 1), (2, 2), (3, 3)])
def test_the_cap_holds(cap: int, stages: int) -> None:
    assert len(drive(plan(turns=(cap, cap))).stages) == stages


@settings(deadline=None)
@given(st.sampled_from(["opening", "debate", "answer", "vote"]), st.integers(1, 12), st.integers(1, 12))
def test_no_stage_follows_beyond_the_cap(stage: Any, turn: int, cap: int) -> None:
    moved = House().debated(1, [("a", spoken(motions=[{"text": "x"}])), ("b", spoken(motions=[{"text": "x"}]))])
    for house in (House(), moved):
        after = following(stage, house, turn, cap)
        assert after is None or turn < cap
        assert after != "vote" or house is moved


def test_a_ballot_that_is_too_small_says_what_is_left_out() -> None:
    def many(call: Call) -> SpeechData:
        if call.data["stage"] == "opening":
            return spoken(stance="s", motions=[{"text": f"{seat(call)} {number}"} for number in (1, 2)])
        if call.data["stage"] == "debate":
            return spoken(seconds=[item["id"] for item in call.data["motions"]])
        return casting(call)

    run = drive(say=many, house=mode(ballot=9))
    assert run.outcome.flags == ("turn 3: M10 found no place on the ballot",)
    assert len(run.outcome.votes) == 9


# -- one vendor, absent seats, conflicts, the human ------------------------------------------------


@pytest.mark.parametrize(
    ("models", "vendors", "told"),
    [
        (("x/one",), VENDORS, "all seats are one model of one vendor"),
        (("x/one", "x/two"), VENDORS, "all seats are models of one vendor"),
        (("q/one",), {"q/one": ""}, "all seats are one model of an unknown maker"),
        (("q/one", "r/two"), {"q/one": "", "r/two": ""}, "all seats are models of an unknown maker"),
        (("q/one", "r/two"), {}, "all seats are models of an unknown maker"),
    ],
)
def test_one_vendor_is_said_to_be_weak_evidence(models: tuple[str, ...], vendors: dict[str, str], told: str) -> None:
    run = drive(plan(models=models, vendors=vendors))
    assert run.outcome.flags == (f"{told}: agreement inside one family is weak evidence, however many agree",)
    assert run.outcome.votes == ("M1 carried: 5 yes / 0 no; 1 vendor",)
    assert (run.final.data["vendors"], run.final.data["unknown"]) == (1, "unknown" in told)
    values = {**run.final.data, "read": dict.fromkeys(run.final.reads, "text")}
    shown = "All seats are models of makers that nobody knows" if "unknown" in told else "All seats are models of one"
    assert shown in LIBRARY.render(FINAL, values, "own")


def test_unknown_makers_count_as_one_vendor() -> None:
    run = drive(plan(models=("x/one", "q/one", "r/two"), vendors={"x/one": "acme", "q/one": ""}))
    assert {item.vendor for item in seats(plan(vendors={}), mode())} == {"unknown maker"}
    assert run.outcome.votes == ("M1 carried: 5 yes / 0 no; 2 of 2 vendors",)
    assert run.outcome.flags == ("the models of an unknown maker count as of one vendor",)


def test_a_seat_that_is_missing_was_absent() -> None:
    def say(call: Call) -> Any:
        gone = call.data["stage"] == "vote" and seat(call) in ("critic", "first-principles")
        return "empty: x" if gone else sitting()(call)

    run = drive(say=say)
    assert run.outcome.votes == ("M1 carried: 3 yes / 0 no / 2 absent; 1 of 3 vendors",)
    assert [name for _, name, _ in run.outcome.missing] == ["critic", "first-principles"]


def test_too_few_present_carry_nothing() -> None:
    def say(call: Call) -> Any:
        gone = call.data["stage"] == "vote" and seat(call) != "pragmatist"
        return "empty: x" if gone else sitting()(call)

    assert drive(plan(turns=(3, 3)), say).outcome.why.startswith(
        "no majority exists: M1 not carried: 1 yes / 0 no / 4 absent"
    )


def test_a_conflict_asks_the_human() -> None:
    def say(call: Call) -> SpeechData:
        said: SpeechData = sitting()(call)
        severe = [{"id": "o1", "text": "it loses data", "severity": 9}] if call.data["stage"] == "debate" else []
        return SpeechData.model_validate({**said.model_dump(), "objections": severe})

    run = drive(say=say)
    (pause,) = run.pauses
    assert (pause.name, pause.default) == ("t2-conflict", GO_ON) and "it loses data" in pause.question
    assert run.outcome.status == "converged"
    assert "turn 3: critic also sits as referee" in run.outcome.flags
    assert {(item.status, item.weighed) for item in run.outcome.objections} == {("open", True)}
    charges = {call.data["me"]: call.data["charge"] for call in run.turn(3)}
    assert "Referee the conflict" in charges["critic"] and "it loses data" in charges["critic"]
    assert charges == {call.data["me"]: call.data["charge"] for call in run.turn(2)} | {"critic": charges["critic"]}
    assert charges["critic"] in {voice["charge"] for voice in run.synthesis(3).data["voices"]}
    done = drive(say=say, answer=FINISH)
    assert (done.outcome.status, done.outcome.turns) == ("stopped", 2)
    assert done.outcome.why == "you asked for the result; no majority exists: no motion came to the vote"


def test_flagged_agreement_has_a_seat_refute_for_one_turn() -> None:
    run = drive(directives={1: {"agreement": 0.9}}, say=sitting(amend=True))
    first, second, third = ({call.data["me"]: call.data["charge"] for call in run.turn(turn)} for turn in (1, 2, 3))
    assert second["critic"] == f"{first['critic']} {mode().duties['refuter']}"
    assert third == first and {**second, "critic": first["critic"]} == first
    assert run.outcome.flags == (
        "turn 1: agreement of 90% is suspiciously high",
        "turn 2: critic also sits as refuter",
    )
    last = drive(directives={1: {"agreement": 0.9}}, house=mode(challenger="nobody"))
    assert "turn 2: user-advocate-2 also sits as refuter" not in last.outcome.flags
    assert f"turn 2: {last.turn(2)[-1].data['me']} also sits as refuter" in last.outcome.flags


def test_a_long_conflict_leaves_the_charge_one_that_a_plan_can_hold() -> None:
    def say(call: Call) -> SpeechData:
        said: SpeechData = sitting()(call)
        severe = [{"id": f"o{number}", "text": "x" * 900, "severity": 9} for number in range(5)]
        return SpeechData.model_validate({**said.model_dump(), "objections": severe})

    def left(review: Review) -> Any:
        return review.format.parse("decision: go")

    run = drive(plan(hitl=True), say=say, left=left)
    assert max(len(call.data["charge"]) for call in run.turn(2)) <= 2000
    assert run.outcome.status == "converged"


def test_a_person_decides_who_sits_before_the_first_turn_only() -> None:
    def left(review: Review) -> Any:
        plan_ = review.format.parse(review.word(lambda values: LIBRARY.render(review.template, values)))
        if review.file == "t1-plan.yaml":
            kept = [*plan_.voices[1:4], replace(plan_.voices[1], role="tester", charge="break it")]
            return replace(plan_, voices=tuple(kept))
        other = replace(plan_.voices[0], role="historian", charge="", model="y/one")
        return replace(plan_, voices=(*plan_.voices, other))

    run = drive(plan(hitl=True), left=left, say=lambda call: spoken(stance="s"))
    names = [call.data["me"] for call in run.turn(1)]
    assert names == ["critic", "first-principles", "user-advocate", "tester"]
    assert [call.data["me"] for call in run.turn(2)] == names
    assert run.turn(2)[3].data["charge"] == "break it"
    assert "turn 2: historian was left out: nobody joins a parliament that sits" in run.outcome.flags


# -- prompts ---------------------------------------------------------------------------------------


def worded(call: Call) -> str:
    """A call as a model is asked it, where each artifact that it reads says "text"."""
    return "\n".join(message.text for message in prompts.messages(call, dict.fromkeys(call.reads, "text"), LIBRARY))


def test_every_prompt_can_be_worded() -> None:
    run = drive(say=sitting(lambda me, item: "no" if me == "critic" else "yes", amend=True))
    for batch in run.batches[:-1]:
        for call in batch.calls:
            assert LIBRARY.render(MODE, call.data).startswith(f"# Parliament: {call.data['stage']}")
    opening, debate, answer, voting = (LIBRARY.render(MODE, run.turn(number)[1].data) for number in (1, 2, 3, 4))
    assert "You are the seat critic and sit for the case against" in opening and "stance:" in opening
    assert "pragmatist stands" in debate and "M1 [moved], moved by pragmatist, not seconded: Split it." in debate
    assert "A1, by critic: M1 shall read: Split it in May." in answer
    assert "- M1: Split it in May." in voting and "more than 50% of the votes" in voting
    whole = worded(run.final)
    assert "- M1 carried: 4 yes / 1 no; 2 of 3 vendors (turn 4; yes: pragmatist, " in whole
    assert "critic voted against M1: critic knows" in whole
    silent = drive(plan(turns=(1, 1)), lambda call: spoken(stance="s"))
    assert "No vote was held." in worded(silent.final)


@pytest.mark.parametrize("seed", range(3))
def test_a_house_of_small_models_gets_through(seed: int) -> None:
    outcome, texts = converse(parliament(plan(), mode()), seed)
    assert outcome.votes and 3 <= outcome.turns <= 10
    assert all(words in texts["FINAL"] for words in outcome.votes)


def test_what_only_an_outside_fact_can_settle_becomes_a_step_of_the_minutes() -> None:
    fact = {"id": "T1", "title": "what it costs", "status": "outside", "settled_by": "the vendor"}
    run = drive(directives={1: {"tensions": [fact]}})
    assert isinstance(run.final.format, MinutesFormat) and run.final.format.inner.outside == (
        ("T1", "what it costs"),
    )
    told = worded(run.final)
    assert "put its id in brackets behind it, as in `[T1]`:\n- T1: what it costs (the vendor)\n" in told


def test_a_seat_that_referees_is_not_told_the_confidence_of_the_synthesis() -> None:
    run = drive(directives={1: {"confidence": 0.93}, 2: {"confidence": 0.51}})
    charge = next(call.data["charge"] for call in run.turn(3) if call.data["me"] == "critic")
    assert "The conflict: the leading answer stands on weaker evidence" in charge
    assert "0.93" not in charge and "0.51" not in charge
