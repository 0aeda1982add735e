"""Replies of a cabal's steps: what is read, what is refused and with which words, and missions that scripts play."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdo.cabal.model.entities import InspectionVerdict, MissionStep, Status
from cdo.cabal.model.state import MissionState
from cdo.cabal.replies.schemas import ContextRequest, PlanReply, ReviewReply
from cdo.cabal.reply_format import MAX_PROBLEMS, StepFormat, extracted, load
from cdo.cabal.rules import acceptance, automatic_acceptance, rounds
from cdo.cabal.rules.peer_review import reviewers, unreviewed
from cdo.core.mission_names import CHAIR, ENVOY, ROOT, WATCHDOG
from cdo.core.steps import InvalidReply
from cdo.session.artifact import from_file, from_reply
from tests.support import cabal_team as team
from tests.support.missions import ALEX, JORDAN, todo
from tests.unit.cabal.test_feedback import reduced

Reply = Callable[[str, StepFormat], str]


def form(
    step: MissionStep = MissionStep.REVIEW, agent: str = JORDAN, *about: str, rounds: int = 1, **more: Any
) -> StepFormat:
    """The format of a reply in the TODO list after so many rounds."""
    return StepFormat(step, agent, todo(rounds), about, **more)


def problems(format: StepFormat, text: str) -> tuple[str, ...]:
    """What is wrong with a reply."""
    with pytest.raises(InvalidReply) as caught:
        format.parse(text)
    return caught.value.problems


# -- one JSON object, however it is wrapped --------------------------------------------------------

PLAIN = team.review(team.collab("p4", "Say what { and } mean"))
WRAPPED = (
    PLAIN,
    f"\ufeff\n {PLAIN}\r\n",
    json.dumps(json.loads(PLAIN), indent=2),
    f"```json\n{PLAIN}\n```",
    f"```\n{PLAIN}\n```",
    f"Here is my review:\n\n```json\n{PLAIN}\n```\n\nI hope that it helps.",
    f"Here is my review of {{p4}}:\n\n~~~json\n{PLAIN}\n~~~",
    f"Here is my review: {PLAIN}\nI hope that it helps.",
    f"```json\n{PLAIN}",
    f"---\ntitle: My review\n---\n\n{PLAIN}",
    PLAIN.replace('"final_output"', '" FINAL_OUTPUT "'),
    PLAIN.replace('"response_type": "final_output", ', ""),
)


@pytest.mark.parametrize("text", WRAPPED)
def test_a_reply_is_read_from_whatever_stands_around_it(text: str) -> None:
    assert form(MissionStep.REVIEW, JORDAN, "p4").parse(text) == form(MissionStep.REVIEW, JORDAN, "p4").parse(PLAIN)


@pytest.mark.parametrize("text", WRAPPED)
def test_what_a_session_keeps_reads_the_same(text: str) -> None:
    artifact = from_reply(text, {"kind": "review"})
    back = from_file(artifact.text(), "r1-review-operative-2.md")
    assert form(MissionStep.REVIEW, JORDAN, "p4").parse(back.reply) == form(MissionStep.REVIEW, JORDAN, "p4").parse(
        PLAIN
    )


def test_a_file_that_a_person_edited_is_read() -> None:
    file = from_reply(PLAIN, {"kind": "review"}).text()
    head, _, _ = file.rpartition('{"response_type"')
    edited = PLAIN.replace("Say what", "Tell what")
    reply = from_file(f"{head}```json\n{json.dumps(json.loads(edited), indent=4)}\n```\n", "x.md").reply
    parsed = form(MissionStep.REVIEW, JORDAN, "p4").parse(reply)
    assert isinstance(parsed, ReviewReply) and parsed.collabs[0].shortestSummary == "Tell what { and } mean"


REFUSED = {
    "": "There is no JSON object in the reply.",
    "I have nothing to say.": "There is no JSON object in the reply.",
    '{"response_type": "final_output", "response_type": "halt"}': "The key `response_type` is given twice",
    '{"response_type": "final_output", "collabs": [{"importance": NaN}]}': "NaN is not a number in JSON.",
    '{"collabs": -Infinity}': "-Infinity is not a number in JSON.",
    '{"collabs": 1e999}': "1e999 is not a number in JSON.",
    f'{{"collabs": {"9" * 5000}}}': "A number in the reply is too large.",
    f'{{"collabs": {"[" * 12}{"]" * 12}}}': "The reply is nested deeper than 12 levels.",
    f'{{"collabs": {"[" * 100_000}{"]" * 100_000}}}': "The reply is nested deeper than 12 levels.",
    f'{{"collabs": "{"x" * 262_144}"}}': "The reply has 262159 characters; at most 262144 are read.",
    r'{"collabs": "\ud800"}': "half a surrogate pair: U+D800",
    r'{"\u001b[2J": 1}': "a control character: U+001B",
    '{"collabs": "one\ntwo"}': "line 1, column 17 of the object: Invalid control character",
    '{"collabs": []': "line 1, column 15 of the object: Expecting ',' delimiter",
    '{"collabs": [], }': "The reply is not valid JSON: line 1, column ",
    '{"collabs": []} and {"remarks": []}': "something follows the object",
    'Of {p4}: {"collabs": []}': "The reply is not valid JSON",
    '```json\n{"collabs": []}\n```\n\n```json\n{"remarks": []}\n```': "There are 2 blocks of JSON in the reply.",
    '[{"collabs": []}]': "The reply must be a JSON object with the keys rationale, response_type, collabs",
    '{"collabs": 7}': "The reply: `collabs`: must be a list.",
    '{"collabs": "loud"}': "The reply: `collabs.0` must be a mapping with the keys refersToProduct, type, importance",
    '{"note": "fine"}': "`response_type` is missing, and so is every other key of this step",
    '{"response_type": ["halt"]}': '`response_type` must be "final_output" or "request_context", not a value that is',
    '{"response_type": "done"}': '`response_type` must be "final_output" or "request_context", not "done".',
    team.review(team.collab("p4", "Fine", "praise")): "The reply: `collabs.0.type`: must be 'feedback', 'question', ",
}  # fmt: skip


@pytest.mark.parametrize(("text", "problem"), REFUSED.items(), ids=range(len(REFUSED)))
def test_what_is_no_reply_is_refused_in_words(text: str, problem: str) -> None:
    found = problems(form(), text)
    assert any(problem in item for item in found), found
    assert all(item.isprintable() and len(item) < 500 for item in found)


@settings(max_examples=150)
@given(st.integers(0, len(WRAPPED) - 1), st.floats(0, 1), st.floats(0, 1))
def test_a_piece_of_a_reply_is_never_taken_for_it(which: int, start: float, end: float) -> None:
    text = json.dumps(json.loads(team.write(team.version("p4", "T", "C {x}", addresses=["c1"]))), indent=which % 3)
    cut = text[int(start * len(text)) : int(end * len(text))]
    try:
        found = load(extracted(cut))
    except InvalidReply:
        return
    whole = json.loads(text)
    inner = whole["versions"][0]
    assert found in (whole, inner, whole["versions"], inner["addresses"]) or found == []
    if found not in (whole, inner):
        assert problems(form(MissionStep.WRITE, ALEX), cut)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["response_type", "versions", "collabs", "halt", "assignments", "product", "tree_operations"]
            )
            | st.text(max_size=6),
            inner,
            max_size=5,
        )
    ),
    max_leaves=24,
)


@pytest.mark.wide
@settings(max_examples=150)
@given(VALUES.map(json.dumps) | st.text(max_size=200), st.sampled_from(list(MissionStep)))
def test_whatever_is_sent_is_read_or_refused(text: str, step: MissionStep) -> None:
    agent = {
        MissionStep.BOOTSTRAP: CHAIR,
        MissionStep.PLAN: CHAIR,
        MissionStep.INSPECT: WATCHDOG,
        MissionStep.PRESENT: ENVOY,
    }.get(step, ALEX)
    try:
        form(step, agent).parse(text)
    except InvalidReply as invalid:
        assert 0 < len(invalid.problems) <= MAX_PROBLEMS


def test_line_breaks_become_one_kind() -> None:
    assert load(r'{"a": ["one\r\ntwo\rthree\tfour"]}') == {"a": ["one\ntwo\nthree\tfour"]}


# -- who may say what kind of thing ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "last", "types"),
    [
        (MissionStep.BOOTSTRAP, False, ("final_output", "halt")),
        (MissionStep.BOOTSTRAP, True, ("final_output",)),
        (MissionStep.PLAN, False, ("final_output", "request_context", "halt")),
        (MissionStep.PLAN, True, ("final_output", "halt")),
        *(
            (step, False, ("final_output", "request_context"))
            for step in (MissionStep.REFLECT, MissionStep.WRITE, MissionStep.PRESENT)
        ),
        *((step, True, ("final_output",)) for step in (MissionStep.REVIEW, MissionStep.INSPECT)),
    ],
)
def test_the_step_says_what_a_reply_can_be(step: MissionStep, last: bool, types: tuple[str, ...]) -> None:
    format = form(step, CHAIR, last=last)
    assert format.types == types and format.name == step.value
    for kind, text in {
        "request_context": team.asking(("p4", "full_content")),
        "halt": team.question("Cookies or tokens?", "Cookies", "Tokens"),
    }.items():
        if kind not in types:
            assert f'not "{kind}": ' in problems(format, text)[0]


def test_a_request_names_products_that_there_are() -> None:
    asked = form().parse(team.asking(("p4", "full_content"), ("[[p:p3]]", "All_Feedback")))
    assert isinstance(asked, ContextRequest)
    assert [(item.product_id, item.need) for item in asked.requests] == [
        ("p4", "full_content"),
        ("p3", "all_feedback"),
    ]
    assert problems(form(), team.asking(("p9", "full_content"), ("new-1", "peer_content"))) == (
        "p9 is not a product; the products are p1, p2, p3 and p4.",
        "new-1 is not a product; the products are p1, p2, p3 and p4.",
    )
    assert "at most 5 items" in problems(form(), team.asking(*[("p4", "full_content")] * 6))[0]
    assert "at least 1 item" in problems(form(), team.asking())[0]


def test_the_chair_may_ask_the_user_in_its_plan() -> None:
    plan = form(MissionStep.PLAN, CHAIR).parse(team.question("Cookies or tokens?", "Cookies", "Tokens"))
    assert isinstance(plan, PlanReply) and plan.halt and plan.halt.options == ("Cookies", "Tokens")


def test_what_the_state_forbids_is_told() -> None:
    assert "p4" in problems(form(MissionStep.WRITE, JORDAN), team.write(team.version("p4", "T", "C")))[0]
    odd = [team.version(f"p{number}", "T", "C [[p:p99]]") for number in range(20, 40)]
    many = problems(form(MissionStep.WRITE, JORDAN), team.write(*odd))
    assert len(many) == MAX_PROBLEMS and many[-1].endswith("more things are wrong.")
    gone = [{"action": "REMOVE", "product_id": f"p{number}", "reason": "x"} for number in (*range(50, 80), 50)]
    many = problems(form(MissionStep.PLAN, CHAIR), team.said(tree_operations=gone))
    assert len(many) == MAX_PROBLEMS and many[-1] == "19 more things are wrong."


def test_what_is_wrong_inside_an_operation_is_named() -> None:
    item = {"name": "X", "type": "Poem", "dod": [{"check": {"kind": "regex", "flags": "i"}}]}
    operation = {"action": "ADD", "new_id": "new-1", "parent_id": "p1", "product": item}
    found = problems(form(MissionStep.PLAN, CHAIR), team.plan(tree_operations=[operation]))
    place = "The reply: `tree_operations.0.product"
    assert found == (
        f"{place}.type`: must be 'Content', 'Decision', 'Collection' or 'Orchestration'.",
        f"{place}.dod.0.text` is missing.",
        f"{place}.dod.0.check.flags` is not a key; the keys are kind, value.",
    )


def test_nothing_is_made_up() -> None:
    assert form().repair("") is None
    assert form().repair(PLAIN[:-1]) is None


# -- missions that scripts play --------------------------------------------------------------------


def playing(said: Reply, size: int, last: int) -> list[MissionState]:
    """The mission after its bootstrap and each round; `said` gives the reply to a call, by its name and format.

    It goes the program's way, without its caps.
    """
    state = rounds.begin(team.REQUEST, size)

    def take(base: MissionState, step: MissionStep, agent: str, about: Sequence[str] = ()) -> None:
        nonlocal state
        what = agent if agent in base.team else about[0] if step is MissionStep.INSPECT else ""
        format = StepFormat(step, agent, base, tuple(about))
        reply = format.parse(said(f"r{base.round}-{step}" + (f"-{what}" if what else ""), format))
        assert not isinstance(reply, ContextRequest)
        state = reduced(state, step, agent, reply, about)

    def together(step: MissionStep, briefs: dict[str, tuple[str, ...]]) -> None:
        nonlocal state
        base = state = rounds.stepped(state)
        for agent, about in briefs.items():
            take(base, step, agent, about)

    together(MissionStep.BOOTSTRAP, {CHAIR: ()})
    found = [state]
    while not state.halt and state.round < last:
        before = state
        state = rounds.open_round(state)
        owned = {agent: state.owned(agent) for agent in state.team}
        active = {
            agent: tuple(item.id for item in items)
            for agent, items in owned.items()
            if any(item.versions or state.about(item.id) for item in items)
        }
        together(MissionStep.REFLECT, active)
        together(MissionStep.PLAN, {CHAIR: ()})
        orders = state.assignments.values()
        writers = dict.fromkeys(item.writer for item in orders)
        had = state.versions
        together(
            MissionStep.WRITE,
            {who: tuple(item.product for item in orders if item.writer == who) for who in sorted(writers)},
        )
        new = tuple(dict.fromkeys(item.product for id, item in state.versions.items() if id not in had))
        chosen, alone = reviewers(state, new)
        state = unreviewed(state, alone)
        together(MissionStep.REVIEW, chosen)
        seen = set[str]()
        while due := [id for id in acceptance.due(state) if id not in seen]:
            seen.update(due)
            base = state = rounds.stepped(state)
            for id in due:
                take(base, MissionStep.INSPECT, WATCHDOG, (id,))
            state = automatic_acceptance.accepted(state, MissionStep.INSPECT)
        state = rounds.close_round(before, state)
        together(MissionStep.PRESENT, {ENVOY: ()})
        found.append(state)
    return found


def prompt(format: StepFormat) -> str:
    """What a prompt tells a script: the products that the step is about, and the events of the round."""
    state = format.state
    told = [f"- {item.id}: {item.text}" for item in state.events if item.round == state.round]
    for id in format.about:
        latest = state.latest(id)
        told += [f"## {id} {state.products[id].name}", latest.content if latest else ""]
    return "\n".join(["# To inspect", *told])


def test_the_todo_list_is_played_as_the_design_tells_it() -> None:
    def said(call: str, format: StepFormat) -> str:
        return team.todo(call, team.newest_events(prompt(format)))

    born, first, second, third = playing(said, 2, 9)
    assert [item.name for item in born.products.values()][1:] == [
        "Change Log", "MVP Features Selection", "Technical Architecture"
    ]  # fmt: skip
    flag = first.collabs["c3"]
    assert (flag.product, flag.importance, flag.flag, flag.open) == ("p3", 9, True, True)
    assert "localStorage" in flag.summary
    inspected = first.inspection("p3")
    assert inspected and inspected.verdict is InspectionVerdict.BLOCKED
    assert acceptance.missing_for_acceptance(first, "p3")

    assert second.products["p5"].name == "Error Handling" and second.products["p5"].owner == ALEX
    assert second.collabs["c3"].how == "confirmed" and "httpOnly" in second.versions["v7"].outcome
    assert {second.inspection(id).verdict for id in (ROOT, "p3", "p4", "p5")} == {InspectionVerdict.APPROVED}  # type: ignore[union-attr]
    assert set(first.acceptances) == {"p4"} and set(second.acceptances) == {ROOT, "p3", "p4", "p5"}

    assert third.halt == "done" and third.round == 3 and not acceptance.unaccepted(third)
    assert set(third.acceptances) == {ROOT, "p3", "p4", "p5"}
    assert third.messages[-1].content.startswith("Mission complete!")


@pytest.mark.wide
@pytest.mark.parametrize(("products", "rounds"), [(50, 20), (50, 6), (50, 2), (3, 4)])
def test_a_busy_mission_is_done_in_its_last_round(products: int, rounds: int) -> None:
    script = team.busy_script(products, rounds)
    states = playing(lambda call, format: script.reply(call, prompt(format)), 4, rounds + 5)
    assert len(states) == rounds + 1 and [bool(state.halt) for state in states] == [False] * rounds + [True]
    last = states[-1]
    assert last.halt == "done" and len(last.live()) == products + 1
    assert all(item.status is Status.ACCEPTED for item in last.live())
    sizes = [len(version.content) for version in last.versions.values()]
    assert min(sizes) >= 2000 and max(sizes) < 2300
    for before, after in pairwise(states[:-1]):
        assert len(after.versions) - len(before.versions) >= min(products, 16)
    if rounds > 4:
        assert any(item.verdict is InspectionVerdict.NEEDS_REVISION for item in last.inspections.values())
        assert any(state.acceptances for state in states[:-1])
