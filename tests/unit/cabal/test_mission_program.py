"""The loop of a mission by hand: which step runs when, who is asked, what may use what is held back, how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cdo.cabal.asking import MissionContext
from cdo.cabal.files.final_report import Delivery
from cdo.cabal.model.entities import STEPS
from cdo.cabal.program import cabal
from cdo.cabal.rules import rounds
from cdo.content.library import Library
from cdo.core.mission_names import CHAIR, WATCHDOG, operatives
from cdo.core.schema import field_names
from cdo.core.steps import Ask, Batch, Call, Collect, Gather, Missing, Nest, Nested, Project, Publish, Reply, Step
from cdo.core.usage import estimate_tokens
from cdo.planning.mission_crew import RULES, Crew, MissionLimits
from cdo.planning.mission_plan import estimate, kernel, plan, seats
from cdo.providers.models import ModelSpec
from cdo.runner import prompts
from tests.support.cabal_team import (
    ALEX,
    JORDAN,
    REQUEST,
    asking,
    assignment,
    bootstrap,
    busy_script,
    done,
    inspect,
    inspection,
    present,
    product,
    question,
    said,
    todo,
    version,
    write,
)
from tests.support.cabal_team import plan as planned

LIBRARY = Library.at(Path("/"))
SPEC = ModelSpec(name="m", route="scripted", model="m")
Says = Callable[[Call], str]


def crew(size: int = 2, **changes: Any) -> Crew:
    limits = kernel(LIBRARY)
    base = {key: getattr(limits, key) for key in field_names(MissionLimits)}
    manned = {**base, "operatives": size, "seats": seats(size, ["m"], {}, {}), "rules": RULES}
    return Crew(**{**manned, **changes})


def newest(desk: MissionContext) -> list[str]:
    return [desk.state.events[-1].id]


@dataclass
class Mission:
    """A mission that is driven by hand; `steps` are all it asked for."""

    says: Says
    crew: Crew = field(default_factory=crew)
    other: Callable[[Step], Any] = lambda step: () if isinstance(step, Collect | Gather) else None
    steps: list[Step] = field(default_factory=list)
    desk: MissionContext = field(init=False)
    outcome: Delivery | None = None

    def run(self) -> Mission:
        self.desk = MissionContext(rounds.begin(REQUEST, self.crew.operatives))
        program = cabal(plan(REQUEST, self.crew, [SPEC], LIBRARY), self.crew, self.desk)
        answer: Any = None
        while True:
            try:
                step = program.send(answer)
            except StopIteration as stop:
                self.outcome = stop.value
                return self
            self.steps.append(step)
            answer = tuple(map(self._reply, step.calls)) if isinstance(step, Batch) else self.other(step)

    def _reply(self, call: Call) -> Reply:
        text = self.says(call)
        if text.startswith("!"):
            return Reply(call.name, reason=Missing.read(text[1:]))
        return Reply(call.name, call.format.parse(text))

    @property
    def batches(self) -> list[list[str]]:
        return [[call.name for call in step.calls] for step in self.steps if isinstance(step, Batch)]

    @property
    def calls(self) -> list[Call]:
        return [call for step in self.steps if isinstance(step, Batch) for call in step.calls]


def team(**script: str) -> Says:
    """What the TODO team says, but for the calls in `script` (r1_plan for r1-plan)."""

    def say(call: Call) -> str:
        told = script.get(call.name.replace("-", "_"))
        return told if told is not None else todo(call.name, [call.data["shared"]["events"][-1]["id"]]
                                                  if call.kind == "present" else ["e1"])  # fmt: skip

    return say


def test_the_steps_run_in_order_each_when_there_is_something_to_do() -> None:
    mission = Mission(team()).run()
    assert mission.batches == [
        ["r0-bootstrap"],
        ["r1-plan"],
        [f"r1-write-{ALEX}", f"r1-write-{JORDAN}"],
        [f"r1-review-{ALEX}", f"r1-review-{JORDAN}"],
        ["r1-inspect-p3", "r1-inspect-p4"],
        ["r1-present"],
        [f"r2-reflect-{ALEX}", f"r2-reflect-{JORDAN}"],
        ["r2-plan"],
        [f"r2-write-{ALEX}", f"r2-write-{JORDAN}"],
        [f"r2-review-{ALEX}", f"r2-review-{JORDAN}"],
        ["r2-inspect-p3", "r2-inspect-p4", "r2-inspect-p5"],
        ["r2-inspect-p1"],
        ["r2-present"],
        [f"r3-reflect-{ALEX}", f"r3-reflect-{JORDAN}"],
        ["r3-plan"],
        ["r3-present"],
    ]
    assert mission.outcome and mission.outcome.status == "done" and mission.outcome.rounds == 3
    told = [step.ended.name for step in mission.steps if isinstance(step, Project) and step.ended]
    assert told == ["r0", "r1", "r2", "r3"]
    last = [step for step in mission.steps if isinstance(step, Publish)][-1]
    assert sorted(last.files) == [
        "deliverables/error-handling.md", "deliverables/mvp-features-selection.md",
        "deliverables/technical-architecture.md",
    ]  # fmt: skip
    assert len(mission.desk.rounds) == 4


@pytest.mark.parametrize("how", ["attached", "cited", "below", "alone"])
def test_a_product_waits_for_the_decision_of_its_round_that_it_rests_on(how: str) -> None:
    first = json.loads(bootstrap())
    if how == "below":
        first["initial_products"][2]["parent_id"] = "new-2"
    rests: dict[str, Any] = {"attached": {"attach_context": ["p3"]}, "cited": {"objective": "Build on [[p:p3]]"}}
    orders = assignment("p4", ALEX, **rests.get(how, {})), assignment("p3", JORDAN)
    gone = dict.fromkeys(("r1_inspect_p3", "r1_inspect_p4"), "!failed: It is not inspected.")
    says = team(r0_bootstrap=json.dumps(first), r1_plan=planned(*orders), **gone)
    mission = Mission(says, crew(rounds=1)).run()
    written = [names for names in mission.batches if "-write-" in names[0]]
    first_wave, second = f"r1-write-{JORDAN}", f"r1-write-{ALEX}"
    assert written == ([[second, first_wave]] if how == "alone" else [[first_wave], [second]])
    call = next(call for call in mission.calls if call.name == second)
    shown = [item["outcome"] for item in call.data["own"]["attached"]]
    assert shown == ([] if how == "alone" else ["Task CRUD, login by JWT in localStorage"])


def test_only_inspection_and_presentation_may_use_what_is_held_back() -> None:
    mission = Mission(team(r1_review_operative_1="!budget: The cap of 5 calls is reached.")).run()
    assert {call.kind for call in mission.calls if call.closes} == {"inspect", "present"}
    capped = "!budget: The cap of 6 calls is reached."
    late = Mission(team(r1_inspect_p4=capped, r1_inspect_p4_2="!invalid: no")).run()
    assert [call.name for call in late.calls if call.closes] == ["r1-inspect-p4-2", "r1-present"]
    mission = Mission(team()).run()
    assert not [call for call in mission.calls if call.closes], "as long as no cap is reached"
    assert {step.lenient for step in mission.steps if isinstance(step, Batch)} == {True, False}
    first = next(step for step in mission.steps if isinstance(step, Batch))
    assert not first.lenient, "without a charter there is nothing to go on with"


def test_each_agent_is_asked_by_its_seat_first() -> None:
    seated = dict.fromkeys((CHAIR, *operatives(2), WATCHDOG, "envoy-1"), "m") | {WATCHDOG: "w", JORDAN: "j"}
    mission = Mission(team(), crew(seats=seated)).run()
    by_kind = {(call.kind, call.data["role"]): call.models for call in mission.calls}
    assert by_kind["inspect", WATCHDOG] == ("w", "m", "j")
    assert by_kind["write", JORDAN] == ("j", "m", "w") and by_kind["write", ALEX] == ("m", "j", "w")


def test_material_is_shown_only_where_some_was_given() -> None:
    plain = Mission(team()).run()
    assert {call.reads for call in plain.calls} == {("00-input",)}
    given = Mission(team(), crew(material=True)).run()
    shown = {call.kind: call.reads == ("00-input", "00-context") for call in given.calls}
    assert shown == {call.kind: call.kind not in ("reflect", "present") for call in plain.calls}


def test_every_step_shows_the_request_a_long_one_in_part() -> None:
    text = f"{REQUEST}. {'So it goes on. ' * 4000}And so it ends."
    for crewed, whole in ((crew(), True), (crew(request=20_000, tokens=4_000), False)):
        mission = Mission(team(), crewed).run()
        assert {call.kind for call in mission.calls} == {step.value for step in STEPS}
        for call in mission.calls:
            shown = prompts.messages(call, {"00-input": text}, LIBRARY)[1]
            request = shown.text[: shown.shared].partition("<request>\n")[2].partition("\n</request>")[0]
            assert request.startswith(REQUEST) and request.endswith("And so it ends."), call.name
            assert (request == text) is (whole or call.kind == "bootstrap")
            assert whole or call.kind == "bootstrap" or 3_900 < len(request) < 4_100, "a quarter of the tokens"
    assert len(shown.text) < 4_000 * 4 + 4_000


def test_a_request_for_context_is_answered_and_bounded() -> None:
    more = asking(("p3", "full_content"))
    script = {f"r2_write_operative_1{part}": more for part in ("", "_2", "_3")}
    mission = Mission(team(**script)).run()
    writes = [call for call in mission.calls if call.name.startswith(f"r2-write-{ALEX}")]
    assert [call.name[len(f"r2-write-{ALEX}") :] for call in writes] == ["", "-2", "-3", "-4"]
    assert [call.format.last for call in writes] == [False, False, False, True]  # type: ignore[attr-defined]
    own: Any = writes[1].data["own"]
    assert "localStorage" in str(own["requested"])
    assert mission.outcome and mission.outcome.status == "done"


def test_a_question_of_the_bootstrap_is_asked_and_then_no_more_than_allowed() -> None:
    def say(call: Call) -> str:
        if call.kind == "bootstrap" and not call.format.last:  # type: ignore[attr-defined]
            return question(f"Question of {call.name}?", "a", "b")
        return team()(call)

    def other(step: Step) -> Any:
        return "a" if isinstance(step, Ask) else () if isinstance(step, Collect | Gather) else None

    mission = Mission(say, crew(questions=2), other).run()
    asks = [step for step in mission.steps if isinstance(step, Ask)]
    assert [ask.name for ask in asks] == ["r0-bootstrap-question", "r0-bootstrap-question-2"]
    assert mission.batches[:3] == [["r0-bootstrap"], ["r0-bootstrap-2"], ["r0-bootstrap-3"]]
    assert [item.answer for item in mission.desk.state.questions] == ["a", "a"]


def test_a_reply_that_is_missing_is_told_and_the_round_goes_on() -> None:
    mission = Mission(
        team(r1_write_operative_1="!invalid: nonsense", r1_inspect_p3="!invalid: nonsense"), crew(rounds=1)
    )
    events = [event for event in mission.run().desk.state.events if event.kind == "missed"]
    assert {event.actor for event in events} == {ALEX, WATCHDOG}
    assert mission.outcome and mission.outcome.status == "unresolved" and mission.outcome.missing


def test_a_cap_goes_straight_to_inspection_and_the_end() -> None:
    mission = Mission(team(r1_review_operative_1="!budget: The cap of 5 calls is reached.")).run()
    assert mission.batches[-2:] == [["r1-inspect-p3", "r1-inspect-p4"], ["r1-present"]]
    assert mission.outcome and mission.outcome.why == "The cap of 5 calls is reached."
    early = Mission(team(r1_plan="!budget: The cap of 2 calls is reached.")).run()
    assert [names[0] for names in early.batches] == ["r0-bootstrap", "r1-plan", "r1-present"]
    assert early.desk.state.halt == "budget"


@pytest.mark.parametrize("idle", [1, 2])
def test_rounds_without_progress_are_nudged_then_replanned_then_end(idle: int) -> None:
    def say(call: Call) -> str:
        match call.kind:
            case "plan":
                return planned()
            case "present":
                return present((CHAIR, "Nothing moved."), events=[call.data["shared"]["events"][-1]["id"]])
        return bootstrap()

    mission = Mission(say, crew(idle=idle)).run()
    nudges = [call.data["own"]["nudge"] for call in mission.calls if call.kind == "plan"]
    assert nudges == [*[""] * idle, "nudge", "replan"]
    assert mission.desk.state.halt == "stall"


def busy(products: int, rounds: int) -> tuple[Mission, dict[str, str]]:
    """A large mission of a team of four, and the prompt of each of its calls."""
    script, read = busy_script(products, rounds), dict[str, str]()

    def say(call: Call) -> str:
        read[call.name] = "\n".join(item.text for item in prompts.messages(call, {"00-input": REQUEST}, LIBRARY))
        return script.reply(call.name, read[call.name])

    return Mission(say, crew(4, rounds=rounds)).run(), read


@pytest.mark.slow
def test_the_prompts_of_a_mission_of_fifty_products_take_what_they_took_when_one_call_inspected_all() -> None:
    mission, read = busy(50, 20)
    assert mission.outcome and mission.outcome.status == "done"
    assert sum(len(text.encode()) for text in read.values()) < 10_860_000
    told = estimate(mission.crew, [SPEC], 10)
    assert len(read) <= told.calls[1]
    assert sum(map(estimate_tokens, read.values())) <= told.tokens[1]


def test_each_version_is_inspected_alone_once_and_the_whole_when_its_parts_are_accepted() -> None:
    mission, _ = busy(12, 3)
    inspected = [call for call in mission.calls if call.kind == "inspect"]
    assert all(len(call.format.about) == 1 for call in inspected)  # type: ignore[attr-defined]
    assert [batch for batch in mission.batches if batch[0].startswith("r1-inspect")] == [
        [f"r1-inspect-p{number}" for number in range(2, 14)]
    ], "side by side"
    assert [call.name for call in inspected if call.name.endswith("-p1")] == ["r2-inspect-p1"]
    shown = [str(call.data["own"]).count("It covers costs and risks") for call in inspected]
    assert shown == [*[1] * (len(shown) - 1), 12], "only the inspection of the root shows the versions of others"
    for batch in (step.calls for step in mission.steps if isinstance(step, Batch)):
        if batch[0].kind == "inspect":
            assert all(call.data["shared"] == batch[0].data["shared"] for call in batch), "read from a cache"
            assert not any(call.data["own"]["news"] for call in batch)
    assert mission.outcome and mission.outcome.status == "done"


def deciding(result: Nested | None) -> Mission:
    stack = product("Stack", "Decision", "Says which database", decide_by="think")
    text = "## Decision\n\nTake PostgreSQL for everything."
    script = {
        "r0_bootstrap": bootstrap(initial_products=[stack], objectives=["A database is chosen"]),
        "r1_plan": planned(assignment("p2", ALEX, objective="Which database?")),
        "r1_review_operative_2": said(),
        "r1_inspect_p2": inspect(inspection("p2", "v1", {"d1": "Take PostgreSQL for everything."})),
        "r1_inspect_p1": inspect(inspection("p1", "", {"d1": "PostgreSQL"})),
        "r2_reflect_operative_1": said(),
        "r2_plan": done(),
        "r1_write_operative_1": write(version("p2", "Stack", text, outcome="PostgreSQL")),
    }

    def other(step: Step) -> Any:
        return result if isinstance(step, Nest) else () if isinstance(step, Collect | Gather) else None

    def say(call: Call) -> str:
        if call.kind == "present":
            return present((CHAIR, "So it is."), events=[call.data["shared"]["events"][-1]["id"]])
        return team(**script)(call)

    return Mission(say, other=other)


def test_a_decision_is_deliberated_once_and_its_outcome_is_a_version() -> None:
    told = Nested("a-r1-p2", "converged", "PostgreSQL", 0.9, "## Decision\n\nTake PostgreSQL for everything.")
    mission = deciding(told).run()
    (nest,) = [step for step in mission.steps if isinstance(step, Nest)]
    assert nest.preset == "think" and nest.name == "r1-p2" and "Which database?" in nest.question
    assert not [call for call in mission.calls if call.kind == "write"]
    latest = mission.desk.state.latest("p2")
    assert latest and (latest.author, latest.outcome, latest.session) == (ALEX, "PostgreSQL", "a-r1-p2")
    assert mission.outcome and mission.outcome.status == "done"


def test_a_deliberation_that_a_cap_ends_ends_the_mission() -> None:
    mission = deciding(None).run()
    assert mission.desk.state.halt == "budget" and mission.outcome and mission.outcome.status == "unresolved"
    assert not [call for call in mission.calls if call.kind == "write"]
