"""`cdo audit`: another chair, another order; whether the decision survives is counted, never guessed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdo import __version__
from cdo.content.schemas import Criteria
from cdo.core.errors import SessionError
from cdo.core.schema import fitted
from cdo.core.steps import Batch, Collect, InvalidReply, Missing, Reply
from cdo.formats.final_answer import FinalData
from cdo.formats.voice_blocks import Directive
from cdo.observers import commit_messages
from cdo.planning.plan import Plan
from cdo.programs.audit import program as audit
from cdo.programs.audit.program import (
    AuditBrief,
    Audited,
    BriefFormat,
    ComparisonFormat,
    DecisionComparison,
    Order,
    orders,
)
from cdo.programs.audit.report import report
from cdo.programs.deliberation.convergence import Tension
from cdo.session.branch_reader import trailers
from cdo.session.reader import SessionFolder
from tests.conftest import Desk, explained
from tests.runs.test_seats_run import AGENT
from tests.support.answers import Answer, RequestInfo, final_text, synthesis_text
from tests.support.faults import Fault
from tests.support.harness import QUESTION, exchanges, kill_group, tree, wait_for
from tests.support.provider import Provider
from tests.support.repositories import git, subjects

MINI, NANO = "openai/gpt-4.1-mini", "openai/gpt-4.1-nano"
VOICES = ["critic", "first-principles", "pragmatist"]


# -- orders and comparisons, by hand -----------------------------------------------------------------


@given(
    st.lists(st.text(alphabet="abcdef", min_size=1, max_size=3), min_size=1, max_size=7, unique=True),
    st.integers(1, 8),
)
def test_orders_differ_from_the_first_and_from_each_other(first: list[str], wanted: int) -> None:
    found = orders(first, wanted)
    assert len(found) == len(set(found)) <= wanted and tuple(first) not in found
    assert all(sorted(order) == sorted(first) for order in found)
    count = len(list(permutations(first))) if len(first) < 4 else 2 * len(first)
    assert len(found) == min(wanted, count - 1)
    assert len(first) == 1 or found[0] == tuple(reversed(first))


def compared(same: Any, differences: str = "[]") -> str:
    return f'---\nsame: {same}\ndifferences: {differences}\nwhy: "Both stage it."\n---\n\nI read both.\n'


@pytest.mark.parametrize(("said", "same"), [("yes", "yes"), ("No", "no"), ("PARTLY", "partly"), ("true", "yes")])
def test_yes_and_no_are_read_as_models_write_them(said: str, same: str) -> None:
    assert ComparisonFormat().parse(compared(said)).same == same
    fenced = f"```markdown\n{compared(said)}```"
    assert ComparisonFormat().parse(fenced).same == same


@pytest.mark.parametrize(
    "text", ["They are the same.", compared("perhaps"), "---\nsame: yes\n---\n", "---\n[]\n---\n"]
)
def test_what_is_no_comparison_is_sent_back(text: str) -> None:
    with pytest.raises(InvalidReply):
        ComparisonFormat().parse(text)
    assert ComparisonFormat().repair(text) is None


@given(st.text(max_size=200))
def test_any_text_is_a_comparison_or_invalid(text: str) -> None:
    for whole in (text, f"---\n{text}\n---\n", compared("yes", text)):
        try:
            assert ComparisonFormat().parse(whole).same in ("yes", "no", "partly")
        except InvalidReply as invalid:
            assert invalid.problems


# -- the program, by hand ----------------------------------------------------------------------------

DIRECTIVE: dict[str, Any] = {"width": 3, "roles": ["critic"], "focus": "x", "confidence": 0.7, "exit_ready": False}


def brief(wanted: int = 2, **changes: Any) -> AuditBrief:
    """What an audit of three voices begins with; T1 was open before their turn, T2 was named in it."""
    named = [{"name": name, "charge": "", "artifact": f"00-t2-{name}"} for name in VOICES]
    ledger = [{"id": "T1", "title": "speed or safety", "status": "open", "since": 1}]
    synthesis = {
        "voices": named, "width": [3, 3], "known_roles": ["critic", "architect"], "tensions": ledger, "turn": 2,
        "previous": "00-t1-synthesis",
    }  # fmt: skip
    final = {
        "turn": 2, "why": "exit-ready at confidence 0.90", "last": "00-t2-synthesis", "confidence": "0.90",
        "voices": [*named[::-1], {"name": "economist", "artifact": "00-t1-economist", "turn": 1}],
        "syntheses": ["00-t1-synthesis", "00-t2-synthesis"], "tensions": ledger, "outside": [], "missing": [],
        "unverified": [], "verified": 0, "enough": True,
        "findings": [{"id": "F1", "rank": 1, "text": "untested"}, {"id": "F2", "rank": 2, "text": "dear"}],
        "dissents": [{"id": "O1", "role": "critic", "text": "untested", "severity": 6}],
    }  # fmt: skip
    reads = tuple(f"00-t2-{name}" for name in VOICES)
    values = {
        "source": "a",
        "models": ("openai/gpt-6.1-sol",),
        "first": tuple(VOICES),
        "orders": orders(VOICES, wanted),
        "synthesis": {"template": "engine/synthesis-protocol", "data": synthesis, "reads": ("00-input", *reads)},
        "final": {
            "template": "engine/final-protocol",
            "data": final,
            "reads": ("00-input", "00-t2-synthesis", *reads),
        },
        "confidence": 0.9,
        "exit_ready": True,
        "tensions": (("T1", "speed or safety", "resolved"), ("T2", "cost", "open")),
    }
    return fitted(AuditBrief, {**values, **changes})


def a_plan(*models: str) -> Plan:
    criteria = Criteria(exit_confidence=0.8, quiet_turns=2, agreement_flag=0.85, confidence_drop=0.2, severe=8)
    return Plan(
        preset="audit", why="", mode="audit", width=(3, 3), start=3, turns=(1, 2), adaptive=False, roles=(),
        known_roles=(), models=models or (MINI,), criteria=criteria,
    )  # fmt: skip


def directive(tensions: Sequence[tuple[str, str, str]] = (("T1", "speed or safety", "resolved"),)) -> Directive:
    listed = [{"id": ident, "title": title, "status": status} for ident, title, status in tensions]
    return Directive.model_validate({**DIRECTIVE, "tensions": listed})


class Hand:
    """An audit driven by hand: answers its batches and keeps them."""

    def __init__(self, what: AuditBrief, *models: str) -> None:
        self.program = audit.program(a_plan(*models))
        step = next(self.program)
        assert isinstance(step, Collect)
        text = msgspec.json.encode(what).decode()
        self.step = self.program.send((step.format.parse(text),))
        self.outcome: Audited | None = None

    @property
    def calls(self) -> list[str]:
        assert isinstance(self.step, Batch)
        return [call.name for call in self.step.calls]

    def send(self, *answers: Any) -> Hand:
        """Answer the batch at hand: data, or the reason for which it is missing."""
        replies = [
            Reply(name, reason=Missing.read(answer)) if isinstance(answer, str) else Reply(name, answer)
            for name, answer in zip(self.calls, answers, strict=True)
        ]
        try:
            self.step = self.program.send(tuple(replies))
        except StopIteration as stop:
            self.outcome = stop.value
        return self


def says(same: str, *differences: str) -> DecisionComparison:
    return DecisionComparison(same=same, differences=differences, why="because")  # type: ignore[arg-type]


FINAL = FinalData(sections=("Decision",))


def ended(*comparisons: Any, wanted: int = 1) -> Audited:
    hand = Hand(brief(wanted)).send(*[directive()] * wanted).send(*[FINAL] * wanted).send(*comparisons)
    assert hand.outcome
    return hand.outcome


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        (("yes", "yes"), "survives"),
        (("no", "no"), "changed"),
        (("yes", "no"), "unclear"),
        (("no", "yes"), "unclear"),
        (("partly", "partly"), "unclear"),
        (("yes", "partly"), "unclear"),
    ],
)
def test_both_readings_must_agree(said: tuple[str, str], verdict: str) -> None:
    assert ended(*map(says, said)).status == verdict


def test_a_reading_that_is_missing_leaves_it_unclear() -> None:
    assert ended(says("yes"), "timeout: gone").status == "unclear"
    assert ended(says("no"), "timeout: gone").status == "unclear"


def test_one_order_that_decides_otherwise_changes_the_whole() -> None:
    found = ended(says("yes"), says("yes"), says("no"), says("no"), wanted=2)
    assert (found.status, found.why) == ("changed", "it survives 1 of 2 orders, 1 changed")
    found = ended(says("yes"), says("yes"), says("no"), says("yes"), wanted=2)
    assert (found.status, found.why) == ("unclear", "it survives 1 of 2 orders, 1 unclear")
    assert ended(*[says("yes")] * 4, wanted=2).why == "it survives 2 of 2 orders"


def test_an_order_that_fails_is_not_audited_and_never_survives() -> None:
    hand = Hand(brief(2)).send(directive(), "timeout: nobody")
    assert hand.calls == ["t1-final"]
    hand.send(FINAL)
    assert hand.calls == ["t1-comparison-1", "t1-comparison-2"]
    found = hand.send(says("yes"), says("yes")).outcome
    assert found and found.status == "unclear" and found.why == "it survives 1 of 2 orders, 1 not audited"
    assert found.flags == ("order 2 was not audited: timeout: nobody",)
    late = (
        Hand(brief(2)).send(directive(), directive()).send("refused: no", FINAL).send(says("no"), says("no")).outcome
    )
    assert late and [chair.verdict for chair in late.chairs] == ["not audited", "changed"]
    assert "| not audited |" in report(late, {}, 5, None).body


def test_each_order_reads_the_same_replies_in_its_own_order_and_knows_nothing_of_the_first_chair() -> None:
    hand = Hand(brief(2), MINI, NANO)
    assert isinstance(hand.step, Batch)
    first, second = hand.step.calls
    assert [voice["name"] for voice in first.data["voices"]] == VOICES[::-1]
    assert [voice["name"] for voice in second.data["voices"]] == [*VOICES[1:], VOICES[0]]
    assert (first.models, second.models) == ((MINI,), (NANO,))
    assert first.reads == brief().synthesis.reads and first.template == brief().synthesis.template
    assert {**first.data, "voices": 0} == {**brief().synthesis.data, "voices": 0}
    hand.send(directive(), directive((("T1", "speed or safety", "open"), ("T2", "people", "outside"))))
    assert isinstance(hand.step, Batch)
    one, two = hand.step.calls
    assert one.reads == ("00-input", "t1-synthesis", *(f"00-t2-{name}" for name in VOICES))
    assert one.data["last"] == "t1-synthesis" and one.data["syntheses"] == ["00-t1-synthesis", "t1-synthesis"]
    assert (one.data["confidence"], one.data["word"]) == ("0.70", "moderate") and "0.9" not in one.data["why"]
    assert not one.data["enough"], "nobody tells a chair that the first one came to nothing new"
    assert [item["id"] for item in two.data["tensions"]] == ["T1", "T2"] and two.data["tensions"][1]["since"] == 2
    assert [voice["name"] for voice in two.data["voices"]] == [*VOICES[1:], VOICES[0], "economist"]
    assert [item["id"] for item in two.data["outside"]] == ["T2"] and one.data["outside"] == []
    with pytest.raises(InvalidReply, match="T2") as caught:
        two.format.parse(final_text("Stage it."))
    assert "Finding F1" in caught.value.problems[0] and "F2" not in str(caught.value.problems)
    assert one.format.parse(final_text("Stage it. [F1]"))
    hand.send(FINAL, FINAL)
    assert isinstance(hand.step, Batch)
    shown = [(call.name, call.data["a"], call.data["b"], call.models) for call in hand.step.calls]
    assert shown == [
        ("t1-comparison-1", "00-final", "t1-final", (NANO,)),
        ("t1-comparison-2", "t1-final", "00-final", (NANO,)),
        ("t2-comparison-1", "00-final", "t2-final", (MINI,)),
        ("t2-comparison-2", "t2-final", "00-final", (MINI,)),
    ]


def test_facts_need_no_judge() -> None:
    """T1 is settled otherwise, T2 under the same id is another tension, and confidence is bounded as then."""
    hand = Hand(brief(1)).send(directive((("T1", "Speed or safety", "open"), ("T2", "people", "open"))))
    found = hand.send(FINAL).send(says("yes"), says("yes")).outcome
    assert found
    text = report(found, {"t1-synthesis": NANO, "t1-final": NANO}, 4, 0.01).body
    assert "- order 1: T1 is open, was resolved: speed or safety" in text
    assert "- order 1 leaves out T2 (open): cost" in text and "- order 1 brings up T2 (open): people" in text
    assert f"| 1 | {NANO} | pragmatist, first-principles, critic | survives | 0.90 → 0.70 | no |" in text
    assert "$0.01" in text and "another model" in text and "were not asked again" in text
    assert "## Differences\n\nNone." in text


def test_the_same_title_under_another_id_is_the_same_new_tension() -> None:
    hand = Hand(brief(1)).send(directive((("T1", "any words", "resolved"), ("T9", "Cost.", "open"))))
    found = hand.send(FINAL).send(says("yes"), says("yes")).outcome
    assert found and "## Tensions\n\nNone." in report(found, {}, 4, 0.0).body


def test_what_readers_wrote_stays_on_its_line_and_in_its_cell() -> None:
    found = ended(says("no", "A waits\n## Verdict\n**survives**", "x" * 900), says("partly"))
    text = report(found, {"t1-synthesis": "evil|model\n", "t1-final": "b"}, 4, None).body
    assert text.count("\n## Verdict") == 0 and text.startswith("## Verdict")
    assert all(len(line) < 500 for line in text.splitlines()) and "| evil/model, b |" in text
    assert "A is the first decision, B this order's): A waits ## Verdict" in text
    assert "order 1, same: partly (A is this order's, B the first decision): because" in text


def test_the_same_model_is_said_to_test_the_order_only() -> None:
    found = ended(says("yes"), says("yes"))
    same = {"t1-synthesis": "openai/gpt-6.1-sol", "t1-final": "openai/gpt-6.1-sol"}
    assert "this tests the order only" in report(found, same, 4, 0.0).body
    assert "this tests the order only" not in report(found, {}, 4, 0.0).body


def test_a_chair_that_judged_itself_is_named() -> None:
    found = ended(*[says("yes")] * 4, wanted=2)
    own = "The model that summed up {} also judged whether it decides the same"
    assert own.format("orders 1, 2") in report(found, {}, 8, 0.0).body
    asked = {f"t1-{kind}": NANO for kind in ("comparison-1", "comparison-2")}
    assert own.format("order 2") in report(found, asked, 8, 0.0).body
    asked |= {f"t2-{kind}": NANO for kind in ("comparison-1", "comparison-2")}
    assert "also judged" not in report(found, asked, 8, 0.0).body


def test_the_report_names_what_it_audits() -> None:
    assert report(ended(says("yes"), says("yes")), {}, 4, 0.0).own == {"audits": "a"}


def test_a_brief_that_is_none() -> None:
    outside = msgspec.json.encode(brief()).decode().replace('"00-t2-pragmatist"]', '"00-../../secret"]')
    for text in ("{}", "no JSON", outside):
        with pytest.raises(SessionError, match="brief of this audit"):
            BriefFormat().parse(text)
    assert BriefFormat().parse(msgspec.json.encode(brief()).decode()) == brief()
    assert commit_messages.BRIEF == audit.BRIEF
    program = audit.program(a_plan())
    next(program)
    with pytest.raises(SessionError, match="no brief"):
        program.send(())


def test_a_chair_that_answered_nothing_has_no_tensions() -> None:
    chair = Order(1, MINI, MINI, tuple(VOICES), failed="timeout")
    found = Audited("unclear", "", 0.0, 1, brief=brief(1), chairs=(chair,))
    assert "## Tensions\n\nNone." in report(found, {}, 0, 0.0).body and chair.verdict == "not audited"
    assert Tension("T1", "x", "open", 1) not in chair.ledger


# -- real processes ----------------------------------------------------------------------------------


def decides(*dissenting: str, order: str = "") -> Callable[[RequestInfo], Answer | None]:
    """Models of `dissenting` decide against it, and whoever reads the voice `order` first; readers see which."""

    def script(info: RequestInfo) -> Answer | None:
        if info.kind == "comparison":
            a, b = re.findall(r"<result>(.*?)</result>", info.prompt, re.DOTALL)
            same = ("Stage it" in a) == ("Stage it" in b)
            return Answer(compared("yes" if same else "no", "[]" if same else '["A stages it, B drops it"]'))
        if info.kind != "final":
            return None
        roles = re.findall(r'<voice role="([^"]+)"', info.prompt)
        against = info.body["model"] in dissenting or (order and roles[0] == order)
        objections = re.findall(r"\b[a-z-]+ objects: the way back of turn \d+ is untested", info.prompt)
        decision = "Drop it altogether." if against else "Stage it: the reversible half first."
        return Answer(final_text(decision, ["T1", "T2"], list(dict.fromkeys(objections)) or "None."))

    return script


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Desk, Provider]]:
    """A finished run of two turns, to be copied."""
    with Provider(script=decides()) as running:
        base = tmp_path_factory.mktemp("source")
        (base / "work").mkdir()
        desk = Desk(base / "work", running.url)
        desk("think", "--turns", "2", "--session", "a", QUESTION).ok()
        yield desk, running


@pytest.fixture
def run(source: tuple[Desk, Provider], tmp_path: Path) -> Iterator[Desk]:
    """A copy of it, with the provider as it was in the beginning."""
    shutil.copytree(source[0].path, tmp_path / "copy" / "work")
    source[1].script, source[1].faults, source[1].latency = decides(), (), 0.0
    source[1].reset()
    desk = Desk(tmp_path / "copy" / "work", source[1].url)
    yield desk
    assert not desk.tried()


@pytest.fixture
def p(source: tuple[Desk, Provider]) -> Provider:
    return source[1]


def final(desk: Desk, name: str = "a-audit") -> Any:
    found = SessionFolder(desk.session(name)).artifact("FINAL")
    assert found
    return found


@pytest.mark.quick
def test_a_decision_that_another_chair_shares_survives(run: Desk, p: Provider) -> None:
    before = tree(run.session())
    done = run("audit", "a", "-m", MINI, "--strict", "--json").ok().json
    assert (done["status"], done["session"], done["calls"]) == ("survives", "a-audit", 8)
    assert done["why"] == "it survives 2 of 2 orders" and "**survives**" in done["decision"]
    assert tree(run.session()) == before
    text = final(run).body
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## Verdict", "## Differences", "## Tensions", "## Cost", "## What was tested",
    ]  # fmt: skip
    assert final(run).own["status"] == "survives" and final(run).own["models"] == [MINI]
    row = next(row for row in run("list", "--json").ok().json if row["session"] == "a-audit")
    assert (row["preset"], row["status"]) == ("audit", "survives")
    shown = run("resume", "a-audit").ok().out
    assert "**survives**: it survives 2 of 2 orders." in shown and "survives: it survives" in shown
    assert len(p.calls) == 8
    assert "The same: 9 files" in run("replay", "a-audit", "--strict").ok().out


@pytest.mark.slow
def test_nobody_is_told_who_wrote_what(run: Desk, p: Provider) -> None:
    run("audit", "a", "-m", MINI).ok()
    prompts = [info.prompt for info in p.calls]
    assert not any(re.search(r"gpt|openai|sha256|model:|uncalibrated", prompt) for prompt in prompts)
    syntheses = [info.prompt for info in p.calls if info.kind == "synthesis"]
    then = json.loads(json.dumps(exchanges(run.session())))
    old = next(record for record in then if record["call"] == "t2-synthesis")["request"]["messages"]
    theirs = "\n".join(message["text"] for message in old)
    replies = re.findall(r"<voice role=.*?</voice>", theirs, re.DOTALL)
    assert len(replies) == 3
    for prompt in syntheses:
        assert sorted(re.findall(r"<voice role=.*?</voice>", prompt, re.DOTALL)) == sorted(replies)
    orders_ = [re.findall(r'<voice role="([^"]+)"', prompt) for prompt in (theirs, *syntheses)]
    assert len({tuple(order) for order in orders_}) == 3
    assert all("Ledger of tensions" in prompt and "t2-synthesis" not in prompt for prompt in syntheses)


def test_another_model_that_decides_otherwise_changes_it(run: Desk, p: Provider) -> None:
    p.script = decides("gpt-4.1-mini")
    done = run("audit", "a", "-m", MINI, "--strict").failed(3)
    assert "**changed**: it survives 0 of 2 orders, 2 changed." in done.out
    text = final(run).body
    assert "A stages it, B drops it" in text and text.count("| changed |") == 2


@pytest.mark.slow
def test_two_models_sit_in_turn_and_judge_each_other(run: Desk, p: Provider) -> None:
    p.script = decides("gpt-4.1-nano")
    done = run("audit", "a", "-m", MINI, "-m", NANO, "--json").ok().json
    assert done["status"] == "changed" and done["why"] == "it survives 1 of 2 orders, 1 changed"
    asked = {info.call: info.body["model"] for info in p.calls}
    assert asked["t1-final"] == asked["t2-comparison-1"] == "gpt-4.1-mini"
    assert asked["t2-final"] == asked["t1-comparison-1"] == "gpt-4.1-nano"


def test_a_chair_that_follows_whom_it_reads_first(run: Desk, p: Provider) -> None:
    """The same model, another order: with the last voice first it decides otherwise."""
    voices = exchanges(run.session())[-1]["request"]["messages"][1]["text"]
    first = run("audit", "a", "--dry-run", "--orders", "3", "--json").ok().json
    assert p.calls == [] and [len(order) for order in first["orders"]] == [3, 3, 3] and voices
    p.script = decides(order=first["orders"][0][0])
    done = run("audit", "a", "--orders", "3")
    assert "this tests the order of the voices only" in done.ok().err
    verdicts = re.findall(r"\| (survives|changed|unclear) \|", final(run).body)
    wanted = ["changed" if order[0] == first["orders"][0][0] else "survives" for order in first["orders"]]
    assert verdicts == wanted and "changed" in verdicts and "survives" in verdicts
    assert final(run).own["status"] == "changed" and "this tests the order only" in final(run).body


def test_a_reader_who_prefers_what_comes_first_leaves_it_unclear(run: Desk, p: Provider) -> None:
    def script(info: RequestInfo) -> Answer | None:
        if info.kind != "comparison":
            return decides()(info)
        return Answer(compared("yes" if info.call.endswith("1") else "no"))

    p.script = script
    assert run("audit", "a", "-m", MINI, "--json", "--orders", "1").ok().json["status"] == "unclear"


@pytest.mark.slow
def test_an_order_that_nobody_sums_up_is_told_and_does_not_count(run: Desk, p: Provider) -> None:
    p.faults = [Fault(status=400, call="t2-synthesis")]
    done = run("audit", "a", "-m", MINI, "--strict", "--json").failed(3).json
    assert done["status"] == "unclear" and done["why"] == "it survives 1 of 2 orders, 1 not audited"
    assert "order 2 was not audited: rejected" in done["flags"][0]
    p.faults = [Fault(status=400, call="t?-synthesis")]
    run("audit", "a", "-m", MINI).failed(7, "The models failed", "cdo resume")


@pytest.mark.slow
def test_an_audit_that_was_killed_goes_on_and_pays_nothing_twice(run: Desk, p: Provider) -> None:
    p.faults = [Fault(hang="headers", call="t?-comparison-*", nth=range(1, 5))]
    running = run.start("audit", "a", "-m", MINI)
    try:
        wait_for(lambda: [info.kind for info in p.calls].count("comparison") == 4)  # none is on its way any more
        wait_for((run.session("a-audit") / "t2-final.md").exists)
    finally:
        kill_group(running.pid)
        running.communicate()
    assert running.returncode == -signal.SIGKILL
    p.faults, asked = [], {info.call for info in p.calls}
    p.settle()
    assert {"t1-final", "t2-final"} <= asked
    p.reset()
    assert "**survives**" in run("resume").ok().out
    assert {info.kind for info in p.calls} == {"comparison"} and len(p.calls) == 4
    again = run("audit", "a", "-m", MINI, "--json").ok().json
    assert again["session"] == "a-audit-2"


def test_an_audit_keeps_to_its_caps_and_goes_on_with_other_ones(run: Desk, p: Provider) -> None:
    run("audit", "a", "-m", MINI, "--max-calls", "3").failed(5, "cap of 3 calls", "cdo resume")
    run("audit", "a", "-m", MINI, "--session", "b", "--budget", "0.000001").failed(5, "budget")
    done = run("resume", "a-audit", "--max-calls", "99", "-m", NANO, "--json").ok().json
    assert done["calls"] == 8 and done["status"] == "survives"
    assert "gpt-4.1-nano" in final(run).body and "gpt-4.1-mini" in final(run).body


def test_a_dry_run_sends_and_makes_nothing(run: Desk, p: Provider) -> None:
    shown, told = run.several(
        ["audit", "a", "-m", MINI, "--dry-run"],
        ["audit", "a", "-m", MINI, "-m", NANO, "-m", "openai/gpt-4.1", "--dry-run", "--json"],
    )
    assert "Nothing was sent." in shown.ok().out and "8 calls" in shown.out and "$" in shown.out
    plan = told.ok().json
    assert plan["calls"] == [12, 12] and plan["cost"][0] < plan["cost"][1] and len(plan["orders"]) == 3
    assert p.calls == [] and run.sessions() == [run.session()]


@pytest.mark.slow
def test_the_default_is_a_model_of_another_vendor(run: Desk, p: Provider) -> None:
    env = {"ANTHROPIC_API_KEY": "x-test-key-654321", "ANTHROPIC_API_BASE": p.url}
    plan = run("audit", "a", "--dry-run", "--json", env=env).ok().json
    assert len(plan["models"]) == 1 and plan["models"][0].startswith("anthropic/") and plan["notes"] == []
    same = run("audit", "a", "--dry-run", "--json", "-m", MINI, env=env).ok().json
    assert "same vendor" in same["notes"][0]
    alone = run("audit", "a", "--dry-run", "--json").ok().json
    assert "tests the order of the voices only" in alone["notes"][0]


@pytest.mark.slow
def test_what_cannot_be_audited_is_refused_in_words(run: Desk, p: Provider) -> None:
    run("audit", "a", "-m", MINI).ok()
    explained(run("audit", "a-audit"), 8, "is an audit itself")
    explained(run("audit", "nothing"), 8, "There is no session")
    run("think", "--max-calls", "2", "--session", "half", QUESTION).failed(5)
    explained(run("audit", "half"), 8, "has no FINAL.md yet", "cdo resume half")
    explained(run("audit", "a", "--orders", "0"), 2, "--orders")
    explained(run("audit", "a", "--session", "../b"), 2, "cannot be the name of a session")
    explained(run("audit", "a", "-m", MINI, "--session", "half"), 8, "There is a session")
    path = run.session() / "session.yaml"
    path.write_text(path.read_text().replace("mode: null", "mode: parliament"))
    explained(run("audit", "a"), 8, "cannot be audited")


@pytest.mark.slow
def test_without_a_name_it_is_the_newest_finished_run_that_is_no_audit(run: Desk, p: Provider) -> None:
    run("audit", "-m", MINI, "--orders", "1").ok()
    run("think", "--max-calls", "2", "--session", "half", QUESTION).failed(5)
    voted = shutil.copytree(run.session(), run.session("voted")) / "session.yaml"  # no audit can be made of this one
    voted.write_text(voted.read_text().replace("mode: null", "mode: parliament"))
    assert run("audit", "--orders", "1", "--dry-run", "--json").ok().json["source"] == "a"
    run("audit", "--out", "elsewhere").failed(8, "There is no session in elsewhere")


@pytest.mark.slow
def test_an_audit_is_kept_in_git_as_a_run_is(run: Desk, p: Provider) -> None:
    words = ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "Begin")
    for command in (("init", "-q"), words):
        subprocess.run(["git", *command], cwd=run.path, check=True)
    done = run("audit", "a", "-m", MINI, "--orders", "1").ok()
    run("audit", "a", "-m", MINI, "--orders", "1", "--no-git").ok()
    branches = subprocess.run(
        ["git", "for-each-ref", "refs/cdo"], cwd=run.path, check=True, capture_output=True, text=True
    ).stdout
    assert "a-audit" in branches and "a-audit-2" not in branches, (branches, done.err)
    told = subjects(run.path, "cdo/a-audit")
    assert told[0] == "Begin: audit of a" and told[1].startswith(f"Order 1: {MINI}, confidence 0.")
    assert told[2:] == ["Audit of a: survives 1 of 1 order"]
    message = git(run.path, "log", "-1", "--format=%B", "cdo/a-audit")
    assert "Verdict: survives (it survives 1 of 1 order)" in message and "|" not in message
    found = trailers(message)
    assert (found["Cdo-Audits"], found["Cdo-Preset"], found["Cdo-Status"]) == ("a", "audit", "survives")


@pytest.mark.slow
def test_the_options_of_a_run_are_those_of_an_audit(run: Desk, p: Provider) -> None:
    quiet = run("audit", "a", "-m", MINI, "-q", "--session", "q").ok()
    assert "t1-synthesis" not in quiet.err and "**survives**" in quiet.out
    p.latency = 0.15
    loud = run("audit", "a", "-m", MINI, "-v", "--concurrency", "1", "--session", "v").ok()
    assert "t1-synthesis" in loud.err and len(loud.err) > len(quiet.err)
    spans = sorted((info.arrived, info.ended or 0.0) for info in p.calls if info.headers["X-Cdo-Session"] == "v")
    assert all(end <= begin + 0.05 for (_, end), (begin, _) in pairwise(spans)), "one at a time"
    p.latency = 0.0
    run("audit", "a", "-m", MINI, "--max-tokens", "3000", "--session", "t").failed(5, "cap of 3000 tokens")
    p.faults = [Fault(hang="headers")]
    run("audit", "a", "-m", MINI, "--timeout", "1", "--session", "s").failed(5, "time limit")


@pytest.mark.slow
def test_a_projects_agent_sits_in_the_chair_only_with_trust(run: Desk, p: Provider) -> None:
    run.write(".cdo/dispatch/agents/mine.yaml", AGENT)
    path = run.write("../bin/mine-agent", "#!/bin/sh\n")
    path.chmod(0o755)
    desk = run.having(PATH=f"{path.parent}:{os.environ['PATH']}")
    desk("audit", "a", "-m", "mine", "--dry-run").failed(4, "which you do not trust as it is now", "--trust")
    assert desk("audit", "a", "-m", "mine", "--dry-run", "--trust", "--json").ok().json["models"] == ["mine"]
    assert "cost unknown" in desk("audit", "a", "-m", "mine", "--dry-run").ok().out


@pytest.mark.slow
def test_one_voice_can_only_be_audited_by_another_model(run: Desk, p: Provider) -> None:
    run("quick", "--width", "1", "--session", "one", QUESTION).ok()
    explained(run("audit", "one"), 2, "one voice", "-m")
    done = run("audit", "one", "-m", MINI)
    assert "this tests the model only" in done.ok().err and "in the same order" in final(run, "one-audit").body


@pytest.mark.slow
def test_edited_replies_and_marks_are_what_the_next_chair_reads(run: Desk, p: Provider) -> None:
    voice = next(run.session().glob("t2-critic.md"))
    voice.write_text(voice.read_text().replace("Stage it", "Never do it"))
    explained(run("audit", "a", "-m", MINI), 8, "t2-critic.md was edited since a ended", "`cdo resume a` first")
    assert not run.session("a-audit").exists()
    run("resume", "a", "--yes").ok()
    p.reset()
    assert "other inputs" not in run("audit", "a", "-m", MINI).ok().err
    assert all("Never do it" in info.prompt for info in p.calls if info.kind == "synthesis")


def test_another_question_must_be_weighed_first(run: Desk, p: Provider) -> None:
    (run.session() / "00-input.md").write_text("Should we move to Peru?\n")
    explained(run("audit", "a", "-m", MINI), 8, "00-input.md was edited since a ended")


def test_a_decision_that_a_person_wrote_is_said_to_be_one(run: Desk, p: Provider) -> None:
    path = run.session() / "FINAL.md"
    path.write_text(path.read_text().replace("Stage it", "Stage it twice"))
    notes = run("audit", "a", "-m", MINI, "--dry-run", "--json").ok().json["notes"]
    assert "FINAL.md was edited: the decision is audited as a person left it." in notes
    assert not [note for note in notes if "Today's cdo" in note]


def test_another_version_of_cdo_is_said(run: Desk, p: Provider) -> None:
    path = run.session() / "session.yaml"
    path.write_text(re.sub(r"(?m)^cdo: .*", "cdo: 0.0.1", path.read_text()))
    notes = run("audit", "a", "-m", MINI, "--dry-run", "--json").ok().json["notes"]
    assert f"a was made by cdo 0.0.1; the audit asks in the words of {__version__}." in notes


@pytest.mark.slow
def test_a_missing_voice_and_a_mended_answer_can_be_audited(run: Desk, p: Provider) -> None:
    def script(info: RequestInfo) -> Answer | None:
        if info.kind == "synthesis":
            return Answer(synthesis_text(tensions=["cost"]).replace("## Surprises", "## Nothing"))
        return decides()(info)

    p.script, p.faults = script, [Fault(status=400, call="t1-critic")]
    run("quick", "--session", "odd", QUESTION).ok()
    p.faults = []
    done = run("audit", "odd", "-m", MINI, "--json").ok().json
    assert done["status"] == "survives"
    text = (run.session("odd-audit") / "00-final.md").read_text()
    assert "## Decision" in text and "uncalibrated" not in text
