"""Inspections: what the watchdog may say, what code makes of it, and what it leaves behind."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from pydantic import ValidationError

from cdo.cabal.model.entities import (
    Check,
    Criterion,
    CriterionResult,
    Inspection,
    InspectionVerdict,
    MissionStep,
    Version,
    identity,
)
from cdo.cabal.model.state import MissionState
from cdo.cabal.replies.fields import CriterionItem
from cdo.cabal.replies.schemas import InspectReply
from cdo.cabal.rules import automatic_acceptance
from cdo.cabal.rules.acceptance import current, due, missing_for_acceptance, parts
from cdo.cabal.rules.criteria import made
from cdo.cabal.rules.inspection import inspected
from cdo.core.mission_names import ROOT, WATCHDOG
from tests.support.missions import ALEX, JORDAN, todo

QUOTE = "The stack is React and Node."
TEXT = f"# Architecture\n\n{QUOTE}\n\n## Rate limiting\n\nTen logins a minute."


def written(
    content: str = TEXT, id: str = "v6", state: MissionState | None = None, product: str = "p4"
) -> MissionState:
    """The mission of two rounds, in its third, with one more version of a product."""
    state = replace(state or todo(2), round=3)
    item = state.products[product]
    version = Version(id, len(item.versions) + 1, product, ALEX, "t", content, "s", 3)
    return replace(
        state,
        products={**state.products, product: replace(item, versions=(*item.versions, id))},
        versions={**state.versions, id: version},
    )


def met(quote: str = QUOTE, criterion: str = "d2") -> dict[str, Any]:
    return {"criterion_id": criterion, "passed": True, "quote": quote}


def unmet(criterion: str = "d2", note: str = "Nowhere") -> dict[str, Any]:
    return {"criterion_id": criterion, "passed": False, "note": note}


def found(severity: int, criterion: str = "", issue: str = "Says too little", **rest: Any) -> dict[str, Any]:
    return {
        "category": "quality", "severity": severity, "issue": issue, "recommendation": "Say more",
        "criterion_id": criterion, **rest,
    }  # fmt: skip


def on(product: str = "p4", version: str | None = "v6", criteria: Any = None, findings: Any = (), **rest: Any) -> Any:
    return {
        "product_id": product, "version_id": version, "findings": list(findings),
        "criteria": [met()] if criteria is None else criteria, **rest,
    }  # fmt: skip


def reply(*items: dict[str, Any], **talk: Any) -> InspectReply:
    return InspectReply.model_validate({"response_type": "final_output", "inspections": list(items), **talk})


def done(state: MissionState, *items: dict[str, Any], due: tuple[str, ...] = ("p4",), **talk: Any) -> MissionState:
    after, problems = inspected(state, reply(*items, **talk), due)
    assert problems == ()
    return after


def refused(state: MissionState, *items: dict[str, Any], due: tuple[str, ...] = ("p4",), **talk: Any) -> str:
    """The one problem of a reply that changes nothing."""
    after, problems = inspected(state, reply(*items, **talk), due)
    assert after == state
    (problem,) = problems
    return problem


def newest(state: MissionState, product: str = "p4") -> Inspection:
    item = state.inspection(product)
    assert item is not None
    return item


# -- what comes of an inspection -------------------------------------------------------------------


def test_an_inspection_is_of_the_newest_version_and_its_definition_of_done() -> None:
    state = written()
    after = done(state, on(), rationale="It has all that it needs.")
    assert newest(after) == Inspection(
        "i7",
        "p4",
        "v6",
        identity(state.products["p4"].dod),
        (
            CriterionResult("d1", True, "## Rate limiting", "", "code"),
            CriterionResult("d2", True, QUOTE, "", WATCHDOG),
        ),
        (),
        InspectionVerdict.APPROVED,
        3,
        len(state.events) + 1,
        (),
        "It has all that it needs.",
    )
    event = after.events[-1]
    assert (event.kind, event.actor, event.product, event.ref) == ("inspection", WATCHDOG, "p4", "i7")
    assert (event.text, event.number) == ("Technical Architecture: approved", newest(after).at)
    assert missing_for_acceptance(after, "p4") == ()
    assert due(after) == ()
    assert due(automatic_acceptance.accepted(after, MissionStep.INSPECT)) == (ROOT,)


def test_what_was_stale_holds_again() -> None:
    state = todo(2)
    stale = replace(state.products["p4"], stale_at=len(state.events))
    state = replace(state, products={**state.products, "p4": stale})
    assert current(state, "p4") is None
    assert current(done(state, on(version="v4", criteria=[met("React, Node")])), "p4") is not None


def test_the_severities_are_the_verdict_whatever_else_is_said() -> None:
    after = done(written(), on(assessment="approved", findings=[found(8)]))
    assert newest(after).verdict is InspectionVerdict.BLOCKED
    after = done(written(), on(verdict="blocked", findings=[found(4)]))
    assert newest(after).verdict is InspectionVerdict.APPROVED


def test_what_code_tests_is_codes_to_say() -> None:
    without = written(TEXT.replace("## Rate", "Rate"))
    after = done(without, on(criteria=[met("# Architecture", "d1"), met()]))
    assert [(item.passed, item.by) for item in newest(after).results] == [(False, "code"), (True, WATCHDOG)]
    after = done(written(), on(criteria=[unmet("d1"), met()]))
    assert newest(after).results[0] == CriterionResult("d1", True, "## Rate limiting", "", "code")
    assert newest(after).verdict is InspectionVerdict.APPROVED


def test_a_criterion_that_is_lost_blocks() -> None:
    after = done(written(), on(criteria=[unmet()]))
    (finding,) = newest(after).findings
    assert (finding.severity, finding.criterion, finding.recommendation) == (8, "d2", "Nowhere")
    assert finding.issue == "Was met before and no longer is: Names the tech stack"
    assert newest(after).verdict is InspectionVerdict.BLOCKED
    assert after.collabs[finding.collab].flag


def test_a_criterion_that_code_finds_lost_blocks_whatever_the_watchdog_says() -> None:
    after = done(written(TEXT.replace("## Rate", "Rate")), on(criteria=[met("# Architecture", "d1"), met()]))
    assert [(item.severity, item.criterion) for item in newest(after).findings] == [(8, "d1")]


def test_a_blocking_finding_of_the_watchdog_tells_the_loss_already_and_a_lesser_one_does_not() -> None:
    after = done(written(), on(criteria=[unmet()], findings=[found(9, "d2")]))
    assert [item.severity for item in newest(after).findings] == [9]
    after = done(written(), on(criteria=[unmet()], findings=[found(6, "d2")]))
    assert [item.severity for item in newest(after).findings] == [6, 8]


@pytest.mark.parametrize(
    ("line", "severities"),
    [
        ({"id": "d2", "text": "Names the tech stack"}, [8]),
        ({"id": "d2", "text": "Names who runs it"}, [5]),
        ({"id": "d2", "text": "Names the tech stack", "check": {"kind": "contains", "value": "Kubernetes"}}, [5]),
    ],
)
def test_only_what_is_the_same_criterion_can_be_lost(line: dict[str, Any], severities: list[int]) -> None:
    state = written()
    items = [CriterionItem.model_validate(line)]
    changed = replace(state.products["p4"], dod=made(items, state.products["p4"].dod))
    state = replace(state, products={**state.products, "p4": changed})
    results = [unmet(item.id) for item in changed.dod if item.check.kind == "judged"]
    after = done(state, on(criteria=results))
    assert [finding.severity for finding in newest(after).findings] == severities


def test_a_criterion_not_met_wants_a_revision_at_least() -> None:
    never = replace(written(), inspections={})
    after = done(never, on(criteria=[unmet()], findings=[found(4, "d2"), found(7)]))
    assert [(item.severity, item.criterion) for item in newest(after).findings] == [(4, "d2"), (7, ""), (5, "d2")]
    assert newest(after).findings[-1].issue == "Not met: Names the tech stack"
    after = done(never, on(criteria=[unmet()], findings=[found(5, "d2")]))
    assert len(newest(after).findings) == 1
    assert newest(after).verdict is InspectionVerdict.NEEDS_REVISION


@pytest.mark.parametrize(("severity", "later", "open_"), [(5, "met", False), (5, "unmet", True), (9, "met", True)])
def test_a_note_on_a_criterion_is_settled_when_the_criterion_is_met(severity: int, later: str, open_: bool) -> None:
    never = replace(written(), inspections={})
    first = done(never, on(criteria=[unmet()], findings=[found(severity, "d2", issue="Names no stack")]))
    (note,) = [item for id, item in first.collabs.items() if id not in never.collabs]
    # A flag that the watchdog passes over would be asked about: here a finding names it again.
    again = [found(severity, "" if later == "met" else "d2", collab_id=note.id)] if open_ else []
    after = done(first, on(criteria=None if later == "met" else [unmet()], findings=again))
    assert after.collabs[note.id].open is open_
    if not open_:
        assert (after.collabs[note.id].closed_by, after.collabs[note.id].how) == (WATCHDOG, "confirmed")


# -- findings become collabs -----------------------------------------------------------------------


def test_findings_from_five_become_collabs() -> None:
    state = written()
    after = done(state, on(findings=[found(4, issue="Small"), found(5, issue="Middling"), found(9, issue="Large")]))
    fresh = [item for id, item in after.collabs.items() if id not in state.collabs]
    assert [(item.id, item.summary, item.importance) for item in fresh] == [("c3", "Middling", 5), ("c4", "Large", 9)]
    for item in fresh:
        assert (item.kind, item.author, item.product, item.version, item.finding, item.open, item.round) == (
            "concern", WATCHDOG, "p4", "v6", "i7", True, 3,
        )  # fmt: skip
        assert item.comment == f"{item.summary}.\n\nSay more."
    assert [item.collab for item in newest(after).findings] == ["", "c3", "c4"]
    told = [item for item in after.events if item.kind == "collab" and item.round == 3]
    assert [item.text for item in told] == [
        "Technical Architecture: Middling (concern, 5)", "Technical Architecture: Large (concern, 9)",
    ]  # fmt: skip


def reopened() -> MissionState:
    """The written mission with three open collabs on p4: Jordan's c1 of importance 6 and c2 of 9, and c3, a flag."""
    state = written()
    small = replace(state.collabs["c1"], open=True, closed_by="", how="", why="")
    large = replace(small, id="c2", importance=9)
    return replace(state, collabs={"c1": small, "c2": large, "c3": replace(large, id="c3", author=WATCHDOG)})


def test_a_finding_that_an_open_collab_tells_makes_no_other() -> None:
    state = reopened()
    after = done(state, on(findings=[found(6, collab_id="c1"), found(8, collab_id="c3"), found(2, collab_id="c1")]))
    assert after.collabs == state.collabs
    assert [item.collab for item in newest(after).findings] == ["c1", "c3", "c1"]


@pytest.mark.parametrize("named", ["c1", "c2"])
def test_only_a_flag_can_stand_for_a_finding_that_blocks(named: str) -> None:
    """What somebody else raised could be withdrawn by them, or waived by the chair."""
    after = done(reopened(), on(findings=[found(9, collab_id=named)]))
    (finding,) = newest(after).findings
    assert finding.collab == "c4"
    assert after.collabs["c4"].flag


@pytest.mark.parametrize("changes", [{"kind": "endorsement"}, {"importance": 4}])
def test_praise_and_what_hardly_matters_cannot_stand_for_a_finding(changes: dict[str, Any]) -> None:
    state = reopened()
    weak = replace(state.collabs["c1"], **changes)
    after = done(replace(state, collabs={**state.collabs, "c1": weak}), on(findings=[found(5, collab_id="c1")]))
    (finding,) = newest(after).findings
    assert finding.collab == "c4"
    assert (after.collabs["c4"].author, after.collabs["c4"].importance) == (WATCHDOG, 5)


def test_a_finding_names_the_collab_that_stands_for_it_before_older_ones_in_the_same_words() -> None:
    state = reopened()
    older = replace(state.collabs["c1"], author=WATCHDOG, finding="i2", summary="Says too little")
    after = done(replace(state, collabs={**state.collabs, "c1": older}), on(findings=[found(7, collab_id="c3")]))
    assert newest(after).findings[0].collab == "c3"


def test_what_is_found_again_in_the_same_words_is_one_collab() -> None:
    once = done(written(), on(findings=[found(6)]))
    again = done(
        written(f"{TEXT} more", "v7", once), on(version="v7", findings=[found(7, issue="says too  little.")])
    )
    assert set(again.collabs) == set(once.collabs)
    assert newest(again).findings[0].collab == newest(once).findings[0].collab
    worse = done(written(f"{TEXT} more", "v7", once), on(version="v7", findings=[found(8)]))
    assert len(worse.collabs) == len(once.collabs) + 1


def test_the_same_words_of_somebody_else_are_another_collab() -> None:
    state = reopened()
    words = on(findings=[found(6, issue=state.collabs["c1"].summary)])
    others = {id: item for id, item in state.collabs.items() if item.author != WATCHDOG}
    after = done(replace(state, collabs=others), words)
    assert len(after.collabs) == len(others) + 1
    assert done(state, words).collabs == state.collabs, "what it said itself, if not of a finding, is no other"
    assert len(done(replace(state, rules=3), words).collabs) == 4, "the rules of a mission that was begun before"


# -- what is sent back -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (on(version="v4"), "p4: you inspect v4; its newest is v6."),
        (on(version="v99"), "p4: you inspect v99; its newest is v6."),
        (on(version=None), "p4: you inspect no version; its newest is v6."),
        (on(criteria=[]), "p4: say whether d2 is met."),
        (on(criteria=[met(), met()]), "In the criteria of p4, d2 is used twice."),
        (on(criteria=[met(), unmet()]), "In the criteria of p4, d2 is used twice."),
        (on(criteria=[met(), met("# Architecture", "d3")]), "p4 has no criterion d3; it has d1"),
        (on(findings=[found(5, "d9")]), "p4 has no criterion d9; it has d1"),
        (on(findings=[found(5, collab_id="c1")]), "c1 is not an open collab of p4; those are none."),
        (on(findings=[found(5, collab_id="c77")]), "c77 is not an open collab of p4; those are none."),
        (on(findings=[found(5, issue="As [[p:p9]] says")]), "The inspection of p4: [[p:p9]] is not a product"),
        (on(criteria=[met("")]), "the quote for d2 does not stand there"),
        (on(criteria=[met("e")]), "the quote for d2 does not stand there"),
        (on(criteria=[met("The stack is Vue and Go.")]), "the quote for d2 does not stand there"),
        (on(criteria=[met("React, Node, PostgreSQL")]), "the quote for d2 does not stand there"),  # of v4
        (on(criteria=[met("\u200b" * 12)]), "the quote for d2 does not stand there"),
        (on(criteria=[met("-- -- -- --")]), "the quote for d2 does not stand there"),
        (on(criteria=[met("he stack is React")]), "the quote for d2 does not stand there"),
        (on(criteria=[met("# Architecture")]), "the quote for d2 does not stand there"),
    ],
)
def test_what_does_not_rest_on_the_record_is_sent_back(item: dict[str, Any], why: str) -> None:
    assert why in refused(written(), item)


def test_each_due_product_is_inspected_once_and_no_other() -> None:
    state = written("Format of errors: problem+json", "v7", written(), "p5")
    both = ("p4", "p5")
    fifth = on("p5", "v7", [met("problem+json", "d1")])
    assert refused(state, on(), due=both) == "These are to be inspected too: p5."
    assert refused(state, on(), fifth) == "Not to be inspected now: p5; inspect p4."
    assert refused(state, on(), on(findings=[found(9)])) == "In `inspections`, p4 is used twice."
    assert refused(state, on(), on("p77", "v7", [])) == "Not to be inspected now: p77; inspect p4."
    assert refused(state, on(), on("new-1", "v7", [])) == "Not to be inspected now: new-1; inspect p4."
    after = done(state, fifth, on(), due=both)
    assert [(item.id, item.product) for item in after.inspections.values()][-2:] == [("i7", "p4"), ("i8", "p5")]


def test_one_wrong_inspection_takes_the_others_and_the_talk_with_it() -> None:
    state = written("Format of errors: problem+json", "v7", written(), "p5")
    raised = {"refersToProduct": "p4", "type": "concern", "importance": 9, "comment": "x", "shortestSummary": "x"}
    said = reply(on(), on("p5", "v5", [met("problem+json", "d1")]), collabs=[raised])
    after, problems = inspected(state, said, ("p4", "p5"))
    assert problems == ("p5: you inspect v5; its newest is v7.",)
    assert after is state


@pytest.mark.parametrize("severity", ["grave", "8.5", True, None, 0, 11, [9]])
def test_a_severity_is_a_number_from_1_to_10(severity: Any) -> None:
    item = on(findings=[{**found(5), "severity": severity}])
    with pytest.raises(ValidationError):
        reply(item)


def test_a_severity_that_is_a_number_as_text_counts() -> None:
    item = on(findings=[{**found(5), "severity": "9"}])
    assert newest(done(written(), item)).verdict is InspectionVerdict.BLOCKED


# -- talk ------------------------------------------------------------------------------------------


def flagged() -> MissionState:
    """A round later: the watchdog's flag on v6 is open, and v7 has come."""
    return written(f"{TEXT}\n\nA repaired one.", "v7", done(written(), on(findings=[found(9)])))


def test_the_watchdog_confirms_that_its_flag_is_settled() -> None:
    state = flagged()
    after = done(state, on(version="v7"), confirms=["c3"])
    assert (after.collabs["c3"].open, after.collabs["c3"].how) == (False, "confirmed")
    assert missing_for_acceptance(after, "p4") == ()


def test_a_flag_that_the_watchdog_forgot_to_close_is_asked_about() -> None:
    state = flagged()
    same, problems = inspected(state, reply(on(version="v7")), ("p4",))
    assert same == state and [problem.split(",")[0] for problem in problems] == ["c3"]
    assert "`confirms`" in problems[0] and "`collab_id`" in problems[0]
    for severity, asked in ((4, 1), (9, 0)):
        named = on(version="v7", findings=[{**found(severity), "collab_id": "c3"}])
        assert len(inspected(state, reply(named), ("p4",))[1]) == asked


def test_a_flag_that_was_a_mistake_can_be_taken_back_without_a_new_version() -> None:
    state = done(written(), on(findings=[found(9)]))
    assert due(state) == ()
    taken, problems = inspected(state, reply(withdraws=["c3"]), ())
    assert problems == ()
    assert (current(taken, "p4"), due(taken)) == (None, ("p4",))
    assert any("has been withdrawn" in why for why in missing_for_acceptance(taken, "p4"))
    after = done(taken, on())
    assert missing_for_acceptance(after, "p4") == ()
    assert due(after) == ()


def test_a_flag_is_taken_back_with_the_inspection_that_takes_its_place() -> None:
    state = automatic_acceptance.accepted(rooted(), MissionStep.INSPECT)
    state = done(state, on(ROOT, None, [], [found(9)]), due=(ROOT,))
    assert due(state) == ()
    taken, problems = inspected(state, reply(withdraws=["c3"]), ())
    assert (problems, due(taken)) == ((), (ROOT,))
    again = done(taken, on(ROOT, None, [], [found(9)]), due=(ROOT,))
    assert (newest(again, ROOT).findings[0].collab, due(again)) == ("c4", ())


def test_what_wants_a_revision_still_does_when_its_collab_is_withdrawn() -> None:
    state = done(written(), on(findings=[found(6)]))
    taken, problems = inspected(state, reply(withdraws=["c3"]), ())
    assert (problems, current(taken, "p4")) == ((), newest(state))


def test_a_finding_cannot_stand_in_a_collab_that_the_same_reply_closes() -> None:
    problem = refused(flagged(), on(version="v7", findings=[found(9, collab_id="c3")]), confirms=["c3"])
    assert problem == "c3 is not an open collab of p4; those are none."


def test_a_collab_that_an_inspection_is_about_to_make_cannot_be_closed_by_its_reply() -> None:
    large = on(findings=[found(9)])
    assert "c3 is not an open collab" in refused(written(), large, confirms=["c3"])
    assert "c3 is not an open collab" in refused(written(), large, withdraws=["c3"])


def test_what_else_the_watchdog_says_goes_before_its_findings() -> None:
    raised = {
        "refersToProduct": "p4",
        "type": "question",
        "importance": 3,
        "comment": "Why?",
        "shortestSummary": "Why",
    }
    after = done(written(), on(findings=[found(6)]), collabs=[raised])
    assert [(item.id, item.summary) for item in after.collabs.values()][2:] == [
        ("c3", "Why"),
        ("c4", "Says too little"),
    ]


# -- containers ------------------------------------------------------------------------------------


def rooted(*dod: Criterion) -> MissionState:
    """The approved mission with a definition of done for its root."""
    state = todo(2)
    return replace(state, products={**state.products, ROOT: replace(state.products[ROOT], dod=dod)})


def test_a_container_is_inspected_as_what_it_holds() -> None:
    dod = (Criterion("d1", "Limits", Check("regex", "HTTP 429")), Criterion("d2", "Has a format of errors"))
    state = rooted(*dod)
    after = done(state, on(ROOT, None, [met("Every error is problem+json")]), due=(ROOT,))
    item = newest(after, ROOT)
    assert (item.version, item.parts, item.dod) == ("", parts(state, ROOT), identity(dod))
    assert [(result.passed, result.by) for result in item.results] == [(True, "code"), (True, WATCHDOG)]
    assert missing_for_acceptance(after, ROOT, accepting=("p3", "p4", "p5")) == ()


def test_a_container_has_no_version_and_its_quotes_are_of_one_child() -> None:
    state = rooted(Criterion("d2", "Has a format of errors"))
    problem = refused(state, on(ROOT, "v5", [met("Every error is problem+json")]), due=(ROOT,))
    assert problem == "p1 holds other products and has no versions: leave its `version_id` out."
    across = f"{state.versions['v3'].content[-20:]}\n\n{state.versions['v4'].content[:20]}"
    assert "does not stand there" in refused(state, on(ROOT, None, [met(across)]), due=(ROOT,))
    assert "does not stand there" in refused(state, on(ROOT, None, [met("JWT kept in localStorage")]), due=(ROOT,))


def test_a_finding_on_a_container_becomes_a_flag_on_it() -> None:
    after = done(rooted(), on(ROOT, None, [], [found(8)]), due=(ROOT,))
    assert (after.collabs["c3"].product, after.collabs["c3"].flag) == (ROOT, True)
    assert newest(after, ROOT).version == ""
    assert newest(after, ROOT).verdict is InspectionVerdict.BLOCKED


# -- whatever is said ------------------------------------------------------------------------------

_ITEMS = st.fixed_dictionaries(
    {
        "product_id": st.sampled_from(["p4", "p4", "p4", "p5", "p1"]),
        "version_id": st.sampled_from(["v6", "v6", "v4", None]),
        "assessment": st.sampled_from(["approved", "blocked"]),
        "criteria": st.lists(
            st.builds(
                lambda id, passed, quote: {"criterion_id": id, "passed": passed, "quote": quote},
                st.sampled_from(["d1", "d2", "d2", "d3"]),
                st.booleans(),
                st.sampled_from([QUOTE, QUOTE, "e", "# Architecture", "not there at all"]),
            ),
            max_size=3,
        ),
        "findings": st.lists(
            st.builds(found, st.integers(1, 10), st.sampled_from(["", "d1", "d2", "d9"])), max_size=2
        ),
    }
)


@pytest.mark.wide
@settings(max_examples=200, deadline=None)
@given(st.lists(_ITEMS, min_size=1, max_size=2), st.booleans())
def test_a_reply_changes_nothing_or_leaves_an_inspection_that_stands(items: list[Any], limited: bool) -> None:
    state = written(TEXT if limited else TEXT.replace("## Rate", "Rate"))
    after, problems = inspected(state, reply(*items), ("p4",))
    if problems:
        assert after is state
        return
    (item,) = items
    made = newest(after)
    (said,) = [entry for entry in item["criteria"] if entry["criterion_id"] == "d2"]
    assert (item["version_id"], made.version) == ("v6", "v6")
    assert [result.passed for result in made.results] == [limited, said["passed"]]
    assert not said["passed"] or said["quote"] == QUOTE
    worst = max((entry["severity"] for entry in item["findings"]), default=0)
    lost = not limited or not said["passed"]  # both were met before
    assert (made.verdict is InspectionVerdict.BLOCKED) is (lost or worst >= 8)
    assert (missing_for_acceptance(after, "p4") == ()) is (not lost and worst < 5)
    assert all(bool(finding.collab) is (finding.severity >= 5) for finding in made.findings)
    assert all(event.step is MissionStep.INSPECT for event in after.events[len(state.events) :])
    assert JORDAN not in {event.actor for event in after.events[len(state.events) :]}
