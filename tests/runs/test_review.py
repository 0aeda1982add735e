"""How a run ends, as its reader finds it: findings, draft, review and FINAL.md with its record."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdo.programs.deliberation.objections import NOTED
from tests.conftest import A, Desk
from tests.support.answers import (
    Answer,
    RequestInfo,
    agent_text,
    demanded,
    final_text,
    findings_text,
    review_text,
    synthesis_text,
    voices_in,
)
from tests.support.harness import QUESTION, TODAY, answered, kill_group, wait_for
from tests.support.provider import Fault, Provider

ENDING = ("findings", "draft", "review", "final")
FOUND = ("The index is rebuilt on every start, which takes 40 s.", "Nobody has read the vendor's contract.")
MARK = re.compile(r" \[[FT]\d+\]")
LOST = "Finding F2 is of the first rank and is not in the text"


@pytest.fixture
def reviewed(cdo: Desk) -> Desk:
    """A desk whose runs end with the review, as they do unless somebody turns it off."""
    return cdo.having(CDO_REVIEW="")


def told(
    turns: Sequence[Mapping[str, Any]] = ({}, {}),
    voices: Mapping[str, Mapping[str, Any]] | None = None,
    ending: Mapping[str, str | Fault] | None = None,
) -> Callable[[RequestInfo], Answer | Fault | None]:
    """A run in which the voices fall into two camps and the second turn is ready to end.

    `turns` change the directive of each turn, `voices` what a voice says in a call, `ending` is what a call of the
    ending is answered.
    """

    def script(info: RequestInfo) -> Answer | Fault | None:
        if info.call in (ending or {}):
            said = (ending or {})[info.call]
            return Answer(said) if isinstance(said, str) else said
        if info.kind == "agent" and info.call in (voices or {}):
            return Answer(agent_text(**{"position": "Stage it.", **(voices or {})[info.call]}))
        if found := re.fullmatch(r"t(\d+)-synthesis", info.call):
            turn = turns[int(found[1]) - 1]
            usual = {"confidence": 0.85, "exit_ready": True, "answer_changed": False}
            return Answer(synthesis_text(**{**usual, "voices": sorted(voices_in(info.prompt)), **turn}))
        if info.kind == "findings":
            return Answer(findings_text([(1, FOUND[0]), (1, FOUND[1]), (3, "The logo is blue.")]))
        return None

    return script


def head(session: Path) -> dict[str, Any]:
    """The keys of FINAL.md."""
    found = yaml.safe_load((session / "FINAL.yaml").read_text())
    assert isinstance(found, dict)
    return found


def section(session: Path, name: str, file: str = "FINAL.md") -> str:
    """The text under a heading of FINAL.md."""
    parts = re.split(r"(?m)^## ", (session / file).read_text())
    return next(part.partition("\n")[2].strip() for part in parts if part.partition("\n")[0] == name)


def ends(provider: Provider) -> list[str]:
    """The calls of the ending, in the order in which they were made."""
    return [info.call for info in provider.calls if info.call in ENDING]


# -- the four calls --------------------------------------------------------------------------------


@pytest.mark.quick
def test_a_blind_draft_is_corrected_by_ranked_findings_and_a_review(reviewed: Desk, provider: Provider) -> None:
    reviewed.write("notes.md", "The index is rebuilt on every start: 40 s.\n")
    claim = {"claims": ["Nobody has read the contract."], "prose": "A thought of turn 1 alone."}
    revise = review_text(errors=["“40 s”: it is 41 s."])
    provider.script = told(voices={"t1-first-principles": claim}, ending={"review": revise})
    done = reviewed("think", "--json", *A, "--context", "notes.md", QUESTION).ok()
    assert [info.call for info in provider.calls][-4:] == ends(provider) and sorted(ends(provider)) == sorted(ENDING)
    assert ends(provider)[2:] == ["review", "final"]
    prompts = {call: provider.named(call)[0].prompt for call in ENDING}
    assert all(f"Today is {TODAY}." in info.prompt for info in provider.calls)
    assert all(QUESTION in prompt and "rebuilt on every start: 40 s" in prompt for prompt in prompts.values())

    for call in ("findings", "final"):  # they see the whole record, with what turn 1 said
        assert re.findall(r'<synthesis turn="(\d)">', prompts[call]) == ["1", "2"]
        seen = set(re.findall(r'<voice role="([a-z-]+)" turn="(\d)">', prompts[call]))
        assert {("first-principles", "1"), ("critic", "1"), ("pragmatist", "1"), ("critic", "2")} <= seen
        assert "A thought of turn 1 alone." in prompts[call]
    assert "- t1-first-principles/c1: Nobody has read the contract." in prompts["findings"]
    for call in ("draft", "review"):  # they see the material with fresh eyes
        for part in ("<voice", "<synthesis", "A thought of turn 1", "The logo is blue."):
            assert part not in prompts[call], part
    draft = (reviewed.session() / "DRAFT.md").read_text().split("---\n", 2)[2].strip()
    assert not MARK.search(draft) and "F1" not in prompts["draft"]
    assert draft in prompts["review"] and draft in prompts["final"]
    assert all(f"- F2: {FOUND[1]}" in prompts[call] for call in ("review", "final"))
    assert re.search(r"(?m)^Their answer is: \w", prompts["review"]) and "it is 41 s." in prompts["final"]

    assert not MARK.search((reviewed.session() / "FINAL.md").read_text()) and not MARK.search(done.json["decision"])
    others = section(reviewed.session(), "Record").partition("### Other findings\n\n")[2]
    assert "- Nobody has read the contract." in others.splitlines(), "what the ranking left out stands in the record"
    assert "The logo is blue" not in others and not any(text.rstrip(".") in others for text in FOUND)
    assert done.json["flags"] == [] and done.json["added"] == []
    for name in ("FINDINGS.md", "DRAFT.md", "REVIEW.md", "FINAL.md"):
        assert (reviewed.session() / name).is_file()
    replayed = reviewed("replay", "a", "--json").ok().json
    assert (replayed["differs"], replayed["calls"]) == (False, len(provider.calls))


def test_a_finding_that_the_review_refutes_stands_behind_the_text_with_the_reason(
    reviewed: Desk, provider: Provider
) -> None:
    refuted = review_text(refuted=["F2: the contract lies in contract.txt, signed as read"])
    provider.script = told(ending={"review": refuted, "final": final_text("Wait. The index is rebuilt. [F1]")})
    done = reviewed("think", "--json", *A, QUESTION).ok()
    assert FOUND[1] not in section(reviewed.session(), "Decision") and len(provider.named("final")) == 1
    assert "The review refuted F2: leave that out." in provider.named("final")[0].prompt
    assert f"- F2: {FOUND[1]}" not in provider.named("final")[0].prompt
    others = section(reviewed.session(), "Record").partition("### Other findings\n\n")[2]
    assert f"- {FOUND[1]} (The review refuted it: the contract lies in contract.txt, signed as read)" in others
    assert done.json["flags"] == ["the review refuted findings of the first rank: F2"] and done.json["added"] == []


def test_a_finding_that_the_author_leaves_out_three_times_is_added_by_code(
    reviewed: Desk, provider: Provider
) -> None:
    provider.script = told(ending={"final": final_text("Wait. The index is rebuilt on every start. [F1]")})
    done = reviewed("think", "--json", *A, QUESTION).ok()
    asked = provider.named("final")
    assert len(asked) == 3 and all(f"{LOST}." in info.prompt for info in asked[1:])
    assert f"- {FOUND[1]} *(added by cdo)*" in section(reviewed.session(), "Decision")
    assert done.json["added"] == head(reviewed.session())["added"] == ["finding F2"]
    assert not MARK.search((reviewed.session() / "FINAL.md").read_text())
    assert reviewed("replay", "a", "--json").ok().json["differs"] is False


@pytest.mark.parametrize(
    ("call", "flag"),
    [
        ("findings", "the findings were not ranked: invalid"),
        ("review", "the draft of FINAL.md was not reviewed: invalid"),
        ("draft", "FINAL.md was written without a draft and a review: invalid"),
    ],
)
def test_what_fails_at_the_end_costs_the_review_and_not_the_result(
    reviewed: Desk, provider: Provider, call: str, flag: str
) -> None:
    provider.script = told(ending={call: "No."})
    done = reviewed("think", "--json", *A, QUESTION).ok()
    (said,) = done.json["flags"]
    assert said.startswith(flag) and head(reviewed.session())["flags"][0].startswith(flag)
    assert len(provider.named(call)) == 3 and len(provider.named("final")) == 1
    final = provider.named("final")[0].prompt
    if call == "findings":
        assert demanded(final) == ([], []) and "- F1:" not in provider.named("review")[0].prompt
    elif call == "draft":
        assert not provider.named("review") and "# Your part: write the result" in final and "<draft>" not in final
    else:
        assert "<draft>" in final and "<review>" not in final
    assert not MARK.search((reviewed.session() / "FINAL.md").read_text())
    count = len(provider.calls)
    reviewed("resume", "a").ok()
    assert len(provider.calls) == count  # what failed is settled


# -- interruptions and edits -----------------------------------------------------------------------


@pytest.mark.parametrize("call", ["review", "final"])
def test_a_kill_at_the_end_repeats_only_what_was_in_flight(reviewed: Desk, provider: Provider, call: str) -> None:
    provider.script = told(ending={"review": review_text(unclear=["“Stage it”: say what."])})
    provider.hold(call)
    process = reviewed.start("think", *A, QUESTION)
    wait_for(lambda: provider.named(call))
    kill_group(process.pid)
    process.communicate()
    provider.release()
    provider.settle()
    known = answered(reviewed.session())
    assert set(ENDING[: ENDING.index(call)]) <= known and not (reviewed.session() / "FINAL.md").exists()
    reviewed("resume", "a").ok()
    counts = {name: len(provider.named(name)) for name in ENDING}
    assert counts == {name: 2 if name == call else 1 for name in ENDING}
    assert all(len(provider.named(name)) == 1 for name in known)
    assert reviewed("replay", "a", "--json").ok().json["differs"] is False


def test_an_edited_draft_wins(reviewed: Desk, provider: Provider) -> None:
    provider.script = told()
    reviewed("think", *A, QUESTION).ok()
    path = reviewed.session() / "DRAFT.md"
    path.write_text(path.read_text().replace("Stage it: build", "Do not stage it: build"))
    reviewed("resume", "a").failed(6, "make these stale: REVIEW.md, FINAL.md", "--yes")
    reviewed("resume", "a", "--yes").ok()
    assert [info.call for info in provider.calls][-2:] == ["review", "final"]
    assert all("Do not stage it" in provider.named(call)[1].prompt for call in ("review", "final"))
    assert len(provider.named("draft")) == 1
    assert not MARK.search((reviewed.session() / "FINAL.md").read_text())


def test_a_draft_that_is_edited_while_it_is_reviewed_is_revised_as_edited(reviewed: Desk, provider: Provider) -> None:
    provider.script = told(ending={"review": review_text(cut=["“Stage it”"], errors=["It is 41 s."])})
    provider.hold("review")
    process = reviewed.start("think", *A, QUESTION)
    path = reviewed.session() / "DRAFT.md"
    wait_for(lambda: provider.named("review") and path.exists())
    path.write_text(path.read_text().replace("Stage it: build", "Do not stage it: build"))
    provider.release()
    process.communicate(timeout=60)
    assert "Do not stage it" in provider.named("final")[0].prompt


def test_a_cap_that_is_reached_at_the_end_is_told_and_a_higher_one_goes_on(
    reviewed: Desk, provider: Provider
) -> None:
    provider.script = told(
        ending={"review": review_text(errors=["It is 41 s."]), "final": final_text("Wait. [F1] [F2]")}
    )
    reviewed("think", *A, "--max-calls", "10", QUESTION).failed(5, "The cap of 10 calls is reached", "cdo resume")
    assert sorted(ends(provider)) == ["draft", "findings"] and not (reviewed.session() / "FINAL.md").exists()
    again = reviewed("resume", "a", "--json", "--max-calls", "99").ok().json
    assert sorted(ends(provider)) == sorted(ENDING) and again["flags"] == []
    assert section(reviewed.session(), "Decision") == "Wait." == again["decision"]


# -- looking back ----------------------------------------------------------------------------------


def test_whatever_looks_back_knows_how_the_run_ended(reviewed: Desk, provider: Provider) -> None:
    subprocess.run(["git", "init", "-q"], cwd=reviewed.path, check=True, env=reviewed.environment())
    asks = {"id": "T1", "title": "What the vendor charges", "status": "outside", "settled_by": "the sales desk"}
    provider.script = told(turns=({}, {"tensions": [asks]}), voices={"t1-critic": {"objections": [MILD]}})
    reviewed("think", *A, QUESTION).ok()
    calls = len(provider.calls)
    commands = [
        "show a DRAFT",
        "show a FINAL --json",
        "show a REVIEW --json",
        "report a",
        "search breaks habit",
        "cost a",
    ]
    draft, final, review, _, found, cost = (done.ok().out for done in reviewed.several(*map(str.split, commands)))
    assert "[F1]" not in draft and [item["call"] for item in json.loads(final)] == ["final"]
    assert [item["call"] for item in json.loads(review)] == ["review"]
    assert "It breaks a habit" in found and len(provider.calls) == calls and f" {calls} " in cost
    page = (reviewed.session() / "report.html").read_text()
    assert "It breaks a habit" in page and "Another turn would have needed" in page
    assert all(f'href="{name}.md"' in page for name in ("FINDINGS", "DRAFT", "REVIEW"))

    def git(*words: str) -> str:
        words = ("git", *words)
        env = reviewed.environment()
        return subprocess.run(words, cwd=reviewed.path, check=True, env=env, capture_output=True, text=True).stdout

    assert "T1 left to a fact from outside this turn: What the vendor charges" in git("log", "cdo/a")
    committed = git("show", "--stat", "--format=%s", "cdo/a")
    assert committed.startswith("FINAL: Stage it") and all(
        f" {name}.md " in committed for name in ("DRAFT", "REVIEW")
    )

    path = reviewed.session() / "DRAFT.md"
    path.write_text(path.read_text().replace("Stage it: build", "Do not stage it: build"))
    reviewed("audit", "a").failed(8, "DRAFT.md was edited", "cdo resume a")
    reviewed("resume", "a", "--yes").ok()
    assert "Edited: DRAFT.md" in git("log", "--format=%s", "cdo/a").splitlines()
    fork = reviewed("fork", "a", "--turn", "1", "--no-run", "--session", "b").ok()
    assert fork and not {"DRAFT.md", "REVIEW.md", "FINDINGS.md"} & set(os.listdir(reviewed.session("b")))


def test_an_audit_writes_the_result_from_the_record_alone(reviewed: Desk, provider: Provider) -> None:
    """Another chair sees neither the draft nor its review: both would tell it what the first one read."""

    def script(info: RequestInfo) -> Answer | Fault | None:
        if info.kind == "comparison":
            return Answer('---\nsame: yes\ndifferences: []\nwhy: "Both wait."\n---\n\nI read both.\n')
        return run(info)

    revise = review_text(errors=["It is 41 s."])
    run = told(ending={"review": revise, "final": final_text("Wait. [F1] [F2]")})
    provider.script = script
    reviewed("think", *A, QUESTION).ok()
    provider.reset()
    done = reviewed("audit", "a", "--orders", "1", "-m", "openai/other", "--json").ok()
    assert done.json["status"] == "survives"
    assert [info.call for info in provider.calls][:2] == ["t1-synthesis", "t1-final"]
    again = provider.named("t1-final")[0].prompt
    assert f"- F1 (rank 1): {FOUND[0]}" in again and "It is 41 s." not in again and "<draft>" not in again
    compared = provider.named("t1-comparison-1")[0].prompt
    assert "Wait." in compared and not MARK.search(compared.partition("# Result B")[0])


# -- the switch ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "env", "held"),
    [
        (["think"], "", True),
        (["think", "--no-review"], "", False),
        (["think"], "false", False),
        (["think", "--review"], "false", True),
        (["quick"], "", False),
        (["quick", "--review"], "", True),
    ],
)
def test_who_asks_for_the_review_gets_it(
    cdo: Desk, provider: Provider, words: Sequence[str], env: str, held: bool
) -> None:
    provider.script = told()
    cdo.having(CDO_REVIEW=env)(*words, *A, QUESTION).ok()
    assert sorted(ends(provider)) == (sorted(ENDING) if held else ["final"])
    assert not MARK.search((cdo.session() / "FINAL.md").read_text())


# -- the record ------------------------------------------------------------------------------------

MILD = {"id": "o1", "text": "It breaks a habit of the team.", "severity": 5}
MUST_NOT = {"id": "o1", "text": "It breaks the contract of 2024.", "severity": 10, "against": "splitting now"}


def test_an_objection_of_turn_1_stands_in_the_record_after_its_voice_has_left(cdo: Desk, provider: Provider) -> None:
    stay = {"exit_ready": False, "tensions": ["now or later"], "roles": ["critic", "pragmatist"], "width": 2}
    provider.script = told(
        turns=(stay, stay, {}),
        voices={"t1-first-principles": {"position": "Leave it whole.", "objections": [MUST_NOT]}},
    )
    cdo("think", *A, QUESTION).ok()
    sat = {info.call for info in provider.calls if info.kind == "agent"}
    assert {"t2-referee", "t2-first-principles"} <= sat and not any("t3-first" in call for call in sat)
    record = section(cdo.session(), "Record")
    assert (
        f"### Objections of severity {NOTED} or more\n\n- **O1, open**, severity 10, first-principles in turn 1"
        in record
    )
    assert "against splitting now: It breaks the contract of 2024" in record
    assert re.search(r"- \*\*first-principles\*\* \(turn 2, 0\.\d\d\): ", record)
    said = provider.named("final")[0].prompt
    assert "severity 10, against splitting now: It breaks the contract of 2024." in said


@pytest.mark.parametrize(
    ("ruling", "words"),
    [
        ({"status": "answered", "why": "The contract ended in May."}, "O1, answered in turn 2, severity 10"),
        ({"status": "ruled", "why": "The contract ended in May."}, "O1, ruled in turn 2, severity 10"),
        ({"status": "answered"}, "**O1, open**, severity 10"),
        (None, "O1, withdrawn in turn 2, severity 10"),
    ],
)
def test_an_objection_is_closed_by_an_answer_a_ruling_or_its_own_voice(
    cdo: Desk, provider: Provider, ruling: Mapping[str, str] | None, words: str
) -> None:
    rulings = [{"id": "O1", **ruling}] if ruling else []
    provider.script = told(
        turns=({"exit_ready": False}, {"objections": rulings}),
        voices={
            "t1-critic": {"objections": [MUST_NOT]},
            "t2-critic": {"withdraws": [] if ruling else ["O1"]},
            "t2-architect": {"withdraws": ["O1"]},  # somebody else's
        },
    )
    cdo("think", *A, QUESTION).ok()
    record = section(cdo.session(), "Record")
    assert f"- {words}, critic in turn 1, against splitting now: It breaks" in record
    assert ("Answer: The contract ended in May" in record) is ("why" in (ruling or {}))


def test_what_only_the_outside_can_tell_is_an_action_item_and_keeps_no_turn_going(
    cdo: Desk, provider: Provider
) -> None:
    asks = {"id": "T1", "title": "What the vendor charges", "status": "outside", "settled_by": "the sales desk"}
    provider.script = told(
        turns=({"tensions": [asks]},) * 2, ending={"final": final_text("Wait.", actions=["Nothing."])}
    )
    cdo("think", *A, QUESTION).ok()
    assert "t3-synthesis" not in {info.call for info in provider.calls} and head(cdo.session())["open_tensions"] == []
    assert "with [T1] behind it" in provider.named("final")[1].prompt
    assert "- Find out: What the vendor charges *(added by cdo)*" in section(cdo.session(), "Action Items")
    told_of = (
        "- **T1** (only a fact from outside can settle it): What the vendor charges. Who can tell: the sales desk"
    )
    assert told_of in section(cdo.session(), "Record") and not MARK.search((cdo.session() / "FINAL.md").read_text())


OPEN = {"exit_ready": False, "gaps": ["a", "b"], "tensions": ["now or later"]}


@pytest.mark.parametrize(
    ("turns", "why", "needed"),
    [
        (({}, {}), "ready to exit at confidence 0.85", "something open that the material"),
        (
            ({"exit_ready": False}, {"exit_ready": False}),
            "no open tension and no new gap in 2 turns",
            "something open that the material",
        ),
        (
            (OPEN, {"exit_ready": False, "tensions": [{"id": "T1", "title": "now or later", "status": "accepted"}]}),
            "nothing that could be settled here was open after turn 2",
            "something open that the material",
        ),
        ((OPEN,) * 3, "the cap of 3 turns was reached", "a higher --turns; T1 is still open"),
    ],
)
def test_final_tells_what_ended_the_run_and_what_another_turn_would_have_needed(
    cdo: Desk, provider: Provider, turns: Sequence[Mapping[str, Any]], why: str, needed: str
) -> None:
    provider.script = told(turns=turns)
    done = cdo("think", "--json", *A, QUESTION).ok()
    assert (done.json["why"], done.json["turns"]) == (why, len(turns))
    said = f"The run ended after turn {len(turns)}: {why}. Another turn would have needed {needed}"
    assert section(cdo.session(), "Record").startswith(said)
    assert f"The loop ended after turn {len(turns)}: {why}." in provider.named("final")[0].prompt


@pytest.mark.parametrize(
    ("first", "changed", "enough"),
    [(1.0, False, True), (0.6, False, False), (1.0, True, False), (1.0, None, False)],
)
def test_one_call_would_have_been_enough_where_all_agreed_and_nothing_moved_it(
    cdo: Desk, provider: Provider, first: float, changed: bool | None, enough: bool
) -> None:
    provider.script = told(turns=({"agreement": first}, {"answer_changed": changed}))
    done = cdo("think", "--json", *A, QUESTION).ok()
    assert done.json["turns"] == 2  # agreement of the blind turn holds the exit until the other side was argued
    assert ({"t2-steelman", "t2-checker"} <= {info.call for info in provider.calls}) is (first == 1.0)
    assert ("One call would have given the same decision" in section(cdo.session(), "Record")) is enough
    assert ("keep the text as short as the question allows" in provider.named("final")[0].prompt) is enough


def test_one_turn_cannot_tell_that_one_call_would_have_been_enough(cdo: Desk, provider: Provider) -> None:
    provider.script = told(turns=({"agreement": 1.0},))
    cdo("quick", *A, QUESTION).ok()
    assert "One call" not in section(cdo.session(), "Record")


@pytest.mark.parametrize(
    ("last", "voices", "faults", "bound", "why"),
    [
        ({"confidence": 0.74}, {}, [], 0.74, ""),
        ({"confidence": 0.95, "tensions": ["now or later"]}, {}, [], 0.79, "1 question is still open"),
        (
            {"confidence": 0.95},
            {"t1-critic": {"objections": [MUST_NOT]}},
            [],
            0.79,
            "1 severe objection is still open",
        ),
        ({"confidence": 0.95}, {}, [Fault(status=400, call="t2-critic")], 0.9, "1 voice is missing"),
    ],
)
def test_the_confidence_is_one_number_and_never_above_what_the_record_allows(
    cdo: Desk,
    provider: Provider,
    last: Mapping[str, Any],
    voices: Mapping[str, Mapping[str, Any]],
    faults: Sequence[Fault],
    bound: float,
    why: str,
) -> None:
    provider.script, provider.faults = told(turns=({}, last, last), voices=voices), faults
    done = cdo("think", "--json", *A, QUESTION).ok()
    said = section(cdo.session(), "Confidence")
    found = re.match(r"\*\*(0\.\d\d)(?:, lowered from 0\.\d\d: ([^*]*)|: stated by [^*]*)\*\*", said)
    assert found and (float(found[1]), found[2] or "") == (bound, why)
    assert head(cdo.session())["confidence"] == done.json["confidence"] == bound
    assert f"Code prints {bound:.2f}, and what lowered it" in provider.named("final")[0].prompt
    ended = re.search(r"at confidence (0\.\d\d)", done.json["why"])
    assert (float(ended[1]) == bound) if ended else bound < 0.8
    assert done.json["status"] == ("converged" if bound >= 0.8 else done.json["status"])
    listed = json.loads(cdo("list", "--json").ok().out)
    assert [item["confidence"] for item in listed] == [bound]
