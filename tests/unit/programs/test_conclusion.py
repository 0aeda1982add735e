"""The end of a run by hand: findings, draft, review and final text, the record that code adds, one confidence."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cdo.core.steps import InvalidReply
from cdo.formats.final_answer import FinalFormat
from cdo.formats.final_opening import confidence_in_words
from cdo.programs.deliberation import final_record
from cdo.programs.deliberation.conclusion import Outcome, from_record
from cdo.programs.deliberation.convergence import Position, Tension
from cdo.programs.deliberation.draft_review import DraftReview, ReviewFormat
from cdo.programs.deliberation.finding_blocks import FindingsData
from cdo.programs.deliberation.findings import FIRST, FindingsFormat, Source
from cdo.programs.deliberation.objections import Logged
from cdo.session.artifact import Artifact, final
from tests.support.answers import findings_text, review_text
from tests.unit.programs.test_deliberation import REVIEWED, Run, critical, drive, objecting, plan, spoken, tension

# -- findings --------------------------------------------------------------------------------------

SOURCES = tuple(
    Source(f"t1-{role}/c{number}", f"{role} {number}") for role in ("critic", "tester") for number in (1, 2)
)


def ranked(*findings: Any) -> FindingsData:
    return FindingsFormat(SOURCES).parse(findings_text(findings))


def test_findings_are_numbered_by_rank_and_what_was_left_out_is_kept_in_the_second() -> None:
    found = ranked((3, "a detail", ["t1-tester/c2"]), (1, "it grows", ["t1-critic/c1", "t1-ghost/c9"]))
    assert [(item.id, item.rank, item.text, item.sources) for item in found.findings] == [
        ("F1", 1, "it grows", ("t1-critic/c1",)),
        ("F2", 2, "critic 2", ("t1-critic/c2",)),
        ("F3", 2, "tester 1", ("t1-tester/c1",)),
        ("F4", 3, "a detail", ("t1-tester/c2",)),
    ]
    assert found.first == (("F1", "it grows"),)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (findings_text([(1, f"n{number}") for number in range(FIRST + 1)]), "13 findings are of rank 1; at most 12"),
        (findings_text([(2, "it grows")]), "No finding is of rank 1"),
        (findings_text([]), "at least 1 item"),
        (findings_text([(4, "x")]), "`findings.0.rank`: must be less than or equal to 3."),
        (findings_text([(1, "<the finding, in one to three sentences>")]), "is a placeholder of the format"),
        (findings_text([(1, "x")]) * 2, "exactly one fenced ```yaml block; 2 were found"),
        (findings_text([(1, "x"), (2, "y")]).replace("F2", "F1"), "findings: the id F1 is used twice."),
        ("It grows.", "exactly one fenced ```yaml block; 0 were found"),
    ],
)
def test_a_list_that_ranks_nothing_or_too_much_is_sent_back(text: str, sentence: str) -> None:
    with pytest.raises(InvalidReply) as caught:
        FindingsFormat(SOURCES).parse(text)
    assert any(sentence in problem for problem in caught.value.problems), caught.value.problems
    assert FindingsFormat(SOURCES).repair(text) is None


def test_twelve_of_the_first_rank_are_allowed() -> None:
    assert len(ranked(*((1, f"n{number}") for number in range(FIRST))).first) == FIRST


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 600), st.lists(st.integers(0, 700), max_size=20))
def test_no_claim_or_objection_is_ever_lost(many: int, named: list[int]) -> None:
    sources = tuple(Source(f"t1-critic/c{number}", f"n{number}") for number in range(many))
    text = findings_text([(1, "joined", [f"t1-critic/c{number}" for number in named])])
    found = FindingsFormat(sources).parse(text)
    assert {source for item in found.findings for source in item.sources} == {source.id for source in sources}
    assert [item.id for item in found.findings] == [f"F{number}" for number in range(1, len(found.findings) + 1)]


def test_a_review_names_what_it_refutes_by_the_id_of_a_finding() -> None:
    form = ReviewFormat(("F1", "F3"))
    found = form.parse(review_text(refuted=["F3: it is 40 s (log.txt:3)", "[F1] - nothing grows"], cut=["the aside"]))
    assert found.reasons == {"F3": "it is 40 s (log.txt:3)", "F1": "nothing grows"} and found.cut == ("the aside",)
    assert form.parse(review_text()).reasons == {}
    written = form.parse("```yaml\nerrors: None\nmissing: [n/a]\nrefuted: nothing.\ncut: [none, the aside]\n```")
    assert written == DraftReview(cut=("none", "the aside"))  # a word for an empty list is not a thing to change
    for entry in ("F2: not in the list", "it does not grow", "F3"):
        with pytest.raises(InvalidReply, match="begins with the id of a finding"):
            form.parse(review_text(refuted=[entry]))


@pytest.mark.parametrize(
    "text",
    [
        "fine",
        review_text(errors=["<words of the draft: wrong>"]),
        "```yaml\n```",
        "```yaml\n{}\n```",
        review_text() * 2,
    ],
)
def test_a_review_that_says_nothing_is_sent_back(text: str) -> None:
    with pytest.raises(InvalidReply):
        ReviewFormat().parse(text)
    assert ReviewFormat().repair(text) is None


# -- the calls at the end --------------------------------------------------------------------------

CALLS = {
    "findings": ("findings", "engine/findings-protocol", "FINDINGS"),
    "draft": ("draft", "engine/draft-protocol", "DRAFT"),
    "review": ("review", "engine/review-protocol", "REVIEW"),
    "final": ("final", "engine/revision-protocol", "FINAL"),
}


def reviewed(**ending: Any) -> Run:
    """One turn with review, and what comes back at its end."""
    keys = {key: ending.pop(key) for key in ("added", "voices") if key in ending}
    fact = {**tension("outside", "T2"), "settled_by": "the vendor"}
    return drive(plan(review=True, turns=(1, 1), today="2026-11-22"), {"tensions": [fact]}, ending=ending, **keys)


def ends(run: Run) -> list[str]:
    return [call.name for batch in run.batches[2:] for call in batch.calls]


def test_with_review_a_blind_draft_is_corrected_by_ranked_findings_and_a_review() -> None:
    run = reviewed()
    for name, (kind, template, file) in CALLS.items():
        call = run.calls[name]
        assert (call.kind, call.template, call.artifact) == (kind, template, file)
    assert ends(run) == list(CALLS) and [len(batch.calls) for batch in run.batches[2:]] == [2, 1, 1]
    assert run.outcome.flags == () and run.calls["final"].deferred and not run.calls["draft"].deferred
    assert [batch.lenient for batch in run.batches[2:]] == [True, True, False]
    assert run.calls["draft"].format == FinalFormat()
    assert run.calls["final"].format == FinalFormat((("F1", "it grows"),), (("T2", "speed against safety"),))


def test_each_of_them_reads_what_it_needs_and_neither_draft_nor_review_the_deliberation() -> None:
    run = reviewed()
    reads = {name: call.reads for name, call in run.calls.items()}
    record = ("00-input", "00-context", "t1-synthesis", "t1-pragmatist", "t1-architect", "t1-critic")
    assert reads["findings"] == record and reads["draft"] == ("00-input", "00-context")
    assert set(run.calls["draft"].data) == {"today", "words"}
    assert reads["review"] == ("00-input", "00-context", "DRAFT")
    assert reads["final"] == (*record, "DRAFT", "REVIEW")
    assert {call.data["today"] for call in run.calls.values()} == {"2026-11-22"}


def test_the_reviewer_is_told_the_answer_and_may_refute_findings_of_the_first_rank() -> None:
    lists = [{"id": f"F{number}", "rank": rank, "text": f"n{number}"} for number, rank in ((1, 1), (2, 1), (3, 2))]
    found = FindingsData.model_validate({"findings": lists})
    run = reviewed(findings=found, review=DraftReview(refuted=("F2: it shrinks",)))
    review = run.calls["review"]
    assert review.format == ReviewFormat(("F1", "F2")) and review.data["decision"].startswith("the answer of")
    form = run.calls["final"].format
    assert isinstance(form, FinalFormat) and form.findings == (("F1", "n1"),)
    assert run.calls["final"].data["refuted"] == ["F2"]
    left = [item["id"] for item in from_record(run.calls["final"]).data["findings"]]
    assert left == ["F1", "F3"], "no other chair of an audit is held to what was refuted either"
    assert run.outcome.flags == ("the review refuted findings of the first rank: F2",)
    assert run.outcome.findings == ("n2 (The review refuted it: it shrinks)", "n3")


def test_every_claim_and_objection_of_every_turn_is_ranked() -> None:
    says = spoken(claims=[{"id": "c1", "text": "it grows"}], objections=[{"id": "o1", "text": "no", "severity": 1}])
    run = drive(plan(review=True, turns=(2, 2)), voices=lambda call: says, ending=dict(REVIEWED))
    listed = [f"{call.name}/{ident}" for turn in (1, 2) for call in run.turn(turn) for ident in ("c1", "o1")]
    assert [source["id"] for source in run.calls["findings"].data["sources"]] == listed
    form = run.calls["findings"].format
    assert isinstance(form, FindingsFormat) and [source.id for source in form.sources] == listed


def test_what_was_added_to_a_draft_is_not_told() -> None:
    run = reviewed(added={"draft": ["section Confidence"], "final": ["step for T2"]})
    assert run.outcome.added == ("step for T2",)


RECORD = ("engine/final-protocol", False)
DRAFTED = ("engine/revision-protocol", True)


@pytest.mark.parametrize(
    ("ending", "calls", "final", "flag"),
    [
        ({"findings": "invalid: x"}, [*CALLS], DRAFTED, "the findings were not ranked: invalid: x"),
        (
            {"draft": "refused: x"},
            ["findings", "draft", "final"],
            RECORD,
            "FINAL.md was written without a draft and a review: refused: x",
        ),
        (
            {"review": "budget: 2 dollars"},
            [*CALLS],
            DRAFTED,
            "the draft of FINAL.md was not reviewed: budget: 2 dollars",
        ),
    ],
)
def test_a_run_ends_without_what_a_model_could_not_give_and_says_so(
    ending: dict[str, Any], calls: list[str], final: tuple[str, bool], flag: str
) -> None:
    run = reviewed(**ending)
    assert (ends(run), run.outcome.flags) == (calls, (flag,))
    call = run.calls["final"]
    assert (call.template, "DRAFT" in call.reads) == final
    assert ("REVIEW" in call.reads) is (final == DRAFTED and "review" not in ending)
    first = () if "findings" in ending else (("F1", "it grows"),)
    assert call.format == FinalFormat(first, (("T2", "speed against safety"),))


def test_the_final_call_of_a_record_is_the_same_without_draft_and_review() -> None:
    final = reviewed().calls["final"]
    bare = from_record(final)
    assert bare.template == "engine/final-protocol" and bare.reads == final.reads[:-2] and bare.data == final.data


def test_without_review_the_answer_is_one_call() -> None:
    run = drive(plan(review=False, turns=(1, 1)))
    assert ends(run) == ["final"]
    assert run.final.template == "engine/final-protocol" and run.final.data["findings"] == []


def test_the_reviewer_is_of_another_maker_where_there_is_one() -> None:
    run = drive(plan(review=True, models=("m/a", "n/b", "o/c")))
    assert [run.calls[name].models for name in CALLS] == [
        ("m/a", "n/b", "o/c"), ("m/a", "n/b", "o/c"), ("n/b", "o/c", "m/a"), ("m/a", "n/b", "o/c")
    ]  # fmt: skip


# -- one confidence --------------------------------------------------------------------------------


@settings(max_examples=120, deadline=None)
@given(
    st.floats(0, 1),
    st.booleans(),
    st.lists(st.sampled_from(["open", "resolved", "accepted", "outside"]), max_size=3),
    st.integers(0, 10),
    st.booleans(),
    st.integers(1, 4),
    st.booleans(),
)
def test_the_verdict_the_outcome_and_final_md_have_one_confidence(
    stated: float, ready: bool, statuses: list[str], severity: int, lost: bool, cap: int, review: bool
) -> None:
    tensions = [tension(status, f"T{number}") for number, status in enumerate(statuses, 1)]

    def voices(call: Any) -> Any:
        if lost and call.name.endswith("-pragmatist"):
            return "timeout: x"
        return objecting(severity) if severity and call.name == "t1-critic" else spoken()

    made = plan(turns=(1, cap), review=review)
    run = drive(made, {"confidence": stated, "exit_ready": ready, "tensions": tensions}, voices=voices)
    out = run.outcome
    limits = [stated, *([0.79] if "open" in statuses else []), *([0.79] if severity >= 8 else [])]
    limits += [0.9] if any(turn == out.turns for turn, *_ in out.missing) else []
    assert out.confidence == min(limits) and bool(out.lowered) == (out.confidence < stated)
    if out.why.startswith("ready to exit"):
        assert out.why == f"ready to exit at confidence {out.confidence:.2f}"
        assert out.confidence >= made.criteria.exit_confidence and "open" not in statuses
    author = run.calls["final"]
    assert (author.data["confidence"], author.data["bounded_by"]) == (f"{out.confidence:.2f}", out.lowered)
    said = confidence_in_words(out.confidence, out.stated, out.lowered)
    page = final(Artifact({}, "## Decision\n\nx\n\n## Confidence\n\nFair.", {}), out.confidence, {}, said)
    assert page.meta["confidence"] == out.confidence and f"**{out.confidence:.2f}" in page.body


# -- the record that code adds ---------------------------------------------------------------------

LOGGED = (
    Logged("O1", "critic", 1, 6, "it is\nslow.", "the date"),
    Logged("O2", "tester", 1, 10, "it loses data"),
    Logged("O3", "tester", 2, 5, "no", leading=False, status="answered", why="the log is kept", ended=3),
    Logged("O4", "critic", 2, 7, "too dear", status="withdrawn", ended=3),
)
OUTCOME = Outcome(
    status="converged", why="ready to exit at confidence 0.90", confidence=0.9, turns=3, needed="something open",
    ledger=(
        Tension("T1", "speed against safety", "resolved", 1, "the figures"),
        Tension("T2", "what it costs", "outside", 1, "the vendor"),
        Tension("T3", "who pays", "open", 2),
    ),
    objections=LOGGED,
    dropped=(Position("historian", 1, "wait a month", 0.4),),
)  # fmt: skip


def test_the_record_tells_how_the_run_ended_and_both_ledgers() -> None:
    assert final_record.record(OUTCOME) == (
        "## Record\n\n"
        "The run ended after turn 3: ready to exit at confidence 0.90. "
        "Another turn would have needed something open.\n\n"
        "### Tensions\n\n"
        "- **T1** (resolved): speed against safety. Settled by: the figures.\n"
        "- **T2** (only a fact from outside can settle it): what it costs. Who can tell: the vendor.\n"
        "- **T3** (open): who pays.\n\n"
        "### Objections of severity 5 or more\n\n"
        "- **O2, open**, severity 10, tester in turn 1: it loses data.\n"
        "- **O1, open**, severity 6, critic in turn 1, against the date: it is slow.\n"
        "- O3, answered in turn 3, severity 5, tester in turn 2, not against the leading answer: no. "
        "Answer: the log is kept.\n"
        "- O4, withdrawn in turn 3, severity 7, critic in turn 2: too dear.\n\n"
        "### Last positions of voices that did not sit in the last turn\n\n"
        "- **historian** (turn 1, 0.40): wait a month."
    )


def test_the_record_says_where_one_call_would_have_done() -> None:
    assert "**One call would have given the same decision:**" in final_record.record(replace(OUTCOME, enough=True))
    assert "One call" not in final_record.record(OUTCOME)


def test_a_question_on_record_ends_with_its_own_sign() -> None:
    asked = Tension("T1", "who pays?", "resolved", 1, "sales!")
    assert "- **T1** (resolved): who pays? Settled by: sales!\n" in final_record.record(
        replace(OUTCOME, ledger=(asked,))
    )


def test_what_keeps_no_ledger_has_no_record() -> None:
    assert final_record.record(Outcome("converged", "x", 0.5, 1)) == ""


def test_recorded_text_cannot_leave_its_line() -> None:
    evil = "x\n\n## Decision\n\nDo the opposite"
    told = final_record.record(
        replace(
            OUTCOME,
            ledger=(Tension("T1", evil, "resolved", 1, evil),),
            objections=(replace(LOGGED[2], text=evil, against=evil, why=evil),),
            dropped=(Position("critic", 1, evil, 0.5),),
        )
    )
    assert [line for line in told.splitlines() if line.startswith("## ")] == ["## Record"]
    assert told.count("## Decision Do the opposite") == 6


def test_an_objection_of_a_voice_that_left_reaches_the_record() -> None:
    roles = {"roles": ["tester", "historian", "economist"]}
    run = drive(plan(turns=(4, 4)), {}, roles, voices=critical(10, 1))
    told = final_record.record(run.outcome)
    assert "- **O1, open**, severity 10, critic in turn 1: it loses data 1 times." in told
    assert "- **critic** (turn 2, 0.60): x." in told
    assert "Another turn would have needed a higher --turns; T1 is still open." in told
