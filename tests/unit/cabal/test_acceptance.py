"""Acceptance: what a product lacks, what still holds, and what is to be inspected, from the record alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cdo.cabal.model.entities import (
    Acceptance,
    Check,
    Collab,
    Criterion,
    CriterionResult,
    Inspection,
    InspectionFinding,
    InspectionVerdict,
    Kind,
    MissionStep,
    Product,
    Status,
    Version,
    fingerprint,
    identity,
)
from cdo.cabal.model.state import MissionState
from cdo.cabal.rules import automatic_acceptance
from cdo.cabal.rules.acceptance import current, due, holds, missing_for_acceptance, parts, unaccepted, verdict
from cdo.cabal.rules.criteria import material
from cdo.core.mission_names import CHAIR, ROOT, WATCHDOG
from cdo.core.steps import Json
from tests.support.missions import ALEX, JORDAN, todo

DOD = (Criterion("d1", "Says how", Check("contains", "how")), Criterion("d2", "Reads well"))


def one(**changes: Any) -> MissionState:
    """The approved mission with fields of p4, of its version v4 or of its inspection i4 changed."""
    state = todo(2)
    product = replace(state.products["p4"], **changes.pop("product", {}))
    version = replace(state.versions["v4"], **changes.pop("version", {}))
    inspection = replace(state.inspections["i4"], **changes.pop("inspection", {}))
    assert not changes
    return replace(
        state,
        products={**state.products, "p4": product},
        versions={**state.versions, "v4": version},
        inspections={**state.inspections, "i4": inspection},
    )


def collab(id: str, importance: int, author: str = JORDAN, **rest: Any) -> Collab:
    return Collab(id, "p4", "concern", importance, author, "Why so?", "Why so?", 2, "v4", **rest)


def said(state: MissionState, *collabs: Collab) -> MissionState:
    return replace(state, collabs={**state.collabs, **{item.id: item for item in collabs}})


def versioned(state: MissionState, product: str, id: str, author: str = ALEX) -> MissionState:
    """The state with one more version of a product."""
    item = state.products[product]
    version = Version(id, len(item.versions) + 1, product, author, "t", f"content of {id}", "s", state.round)
    return replace(
        state,
        products={**state.products, product: replace(item, versions=(*item.versions, id))},
        versions={**state.versions, id: version},
    )


# -- identity and verdict --------------------------------------------------------------------------


def criteria() -> st.SearchStrategy[Criterion]:
    scalars = st.none() | st.booleans() | st.integers() | st.text()
    values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=6)
    checks = st.builds(Check, st.sampled_from(["judged", "regex", "json_schema"]), values)
    return st.builds(Criterion, st.sampled_from(["d1", "d2", "d3"]), st.text(), checks)


def turned(value: Any) -> Any:
    """A value with the keys of its mappings the other way round."""
    if isinstance(value, dict):
        return {key: turned(value[key]) for key in reversed(value)}
    return [turned(item) for item in value] if isinstance(value, list) else value


@pytest.mark.wide
@given(st.lists(criteria(), max_size=4).map(tuple))
def test_the_order_of_keys_is_all_that_an_identity_does_not_see(dod: tuple[Criterion, ...]) -> None:
    other = tuple(replace(item, check=replace(item.check, value=turned(item.check.value))) for item in dod)
    assert identity(other) == identity(dod)
    for place, item in enumerate(dod):
        for changed in (
            replace(item, id=f"{item.id}0"),
            replace(item, text=f"{item.text} "),
            replace(item, check=replace(item.check, kind=f"{item.check.kind}_")),
            replace(item, check=replace(item.check, value=[item.check.value])),
        ):
            assert identity((*dod[:place], changed, *dod[place + 1 :])) != identity(dod)
        assert identity((*dod[:place], *dod[place + 1 :])) != identity(dod)


def test_an_identity_knows_the_order_of_criteria_and_one_from_true() -> None:
    assert identity(DOD) != identity(DOD[::-1])
    values: list[Json] = [1, True, "1", None, [1]]
    assert len({identity((Criterion("d1", "x", Check("regex", value)),)) for value in values}) == len(values)


@given(st.lists(st.integers(1, 10)))
def test_the_verdict_is_that_of_the_worst_finding(severities: list[int]) -> None:
    if any(item >= 8 for item in severities):
        assert verdict(severities) is InspectionVerdict.BLOCKED
    elif any(item >= 5 for item in severities):
        assert verdict(severities) is InspectionVerdict.NEEDS_REVISION
    else:
        assert verdict(severities) is InspectionVerdict.APPROVED


# -- parts and what still holds --------------------------------------------------------------------


def nested() -> MissionState:
    """The approved mission with p6, a collection of p7 and of p8 which is archived, below the root."""
    state = todo(2)
    products = {
        **state.products,
        "p6": Product("p6", "Endpoints", Kind.COLLECTION, ROOT, JORDAN, ()),
        "p7": Product("p7", "Login", Kind.CONTENT, "p6", JORDAN, DOD),
        "p8": Product("p8", "Logout", Kind.CONTENT, "p6", JORDAN, DOD, Status.ARCHIVED),
    }
    return replace(state, products=products)


def test_the_parts_of_a_container_are_its_live_children_as_they_are_now() -> None:
    state = todo(2)
    assert parts(state, ROOT) == (
        ("p3", state.versions["v3"].sha), ("p4", state.versions["v4"].sha), ("p5", state.versions["v5"].sha)
    )  # fmt: skip
    assert dict(parts(todo(0), ROOT)) == {"p3": "", "p4": ""}


def test_a_part_that_is_a_container_changes_with_what_it_holds() -> None:
    before = nested()
    after = versioned(before, "p7", "v9")
    assert parts(before, "p6") == (("p7", ""),)
    assert parts(after, "p6") == (("p7", fingerprint("content of v9")),)
    assert dict(parts(before, ROOT))["p6"] != dict(parts(after, ROOT))["p6"]
    assert dict(parts(before, ROOT))["p3"] == dict(parts(after, ROOT))["p3"]


def annexed(*versions: str) -> MissionState:
    """The mission that is done, with a live p6 below p3, a Decision; it may have versions."""
    state = todo(3)
    annex = Product("p6", "Annex", Kind.CONTENT, "p3", ALEX, DOD)
    state = replace(state, products={**state.products, "p6": annex})
    for id in versions:
        state = versioned(state, "p6", id)
    return state


def test_what_lies_below_a_decision_is_part_of_the_container_around_it() -> None:
    bare = annexed()
    assert [id for id, _ in parts(bare, ROOT)] == ["p3", "p6", "p4", "p5"]
    assert dict(parts(bare, ROOT))["p6"] == ""
    assert not holds(bare, ROOT)
    assert holds(bare, "p3")
    assert "not accepted of what it holds: Annex" in missing_for_acceptance(bare, ROOT)
    first = annexed("v9")
    assert dict(parts(first, ROOT))["p6"] == fingerprint("content of v9")
    assert parts(annexed("v9", "v10"), ROOT) != parts(first, ROOT)
    assert due(bare) == ()
    assert due(first) == ("p6",)


def test_a_later_version_below_a_decision_ends_the_inspection_of_the_container() -> None:
    state = annexed("v9")
    found = replace(state.inspections["i6"], id="i9", parts=parts(state, ROOT))
    state = replace(state, inspections={**state.inspections, "i9": found})
    assert current(state, ROOT) is not None
    assert current(versioned(state, "p6", "v10"), ROOT) is None


def test_a_container_below_a_decision_is_one_part_and_holds_its_own() -> None:
    state = annexed()
    products = dict(state.products)
    products["p6"] = replace(products["p6"], kind=Kind.DECISION)
    products["p7"] = Product("p7", "Annexes", Kind.COLLECTION, "p6", ALEX, ())
    products["p8"] = Product("p8", "First", Kind.CONTENT, "p7", ALEX, DOD)
    products["p9"] = Product("p9", "Gone", Kind.CONTENT, "p6", ALEX, DOD, Status.ARCHIVED)
    state = replace(state, products=products)
    assert [id for id, _ in parts(state, ROOT)] == ["p3", "p6", "p7", "p4", "p5"]
    assert parts(state, "p7") == (("p8", ""),)
    before = dict(parts(state, ROOT))
    after = dict(parts(versioned(state, "p8", "v9"), ROOT))
    assert [id for id in before if before[id] != after[id]] == ["p7"]


def test_a_tree_of_any_depth_has_parts() -> None:
    state = todo(3)
    chain = {
        f"p{place}": Product(f"p{place}", "n", Kind.ORCHESTRATION, f"p{place - 1}" if place > 100 else ROOT, None, ())
        for place in range(100, 1_600)
    }
    leaf = Product("p2000", "n", Kind.CONTENT, "p1599", ALEX, DOD)
    state = replace(state, products={**state.products, **chain, "p2000": leaf})
    assert parts(state, ROOT) != parts(versioned(state, "p2000", "v9"), ROOT)
    assert not holds(state, ROOT)
    assert material(versioned(state, "p2000", "v9"), "p100") == ("content of v9",)


@pytest.mark.parametrize(("how", "holds_still"), [("withdrawn", False), ("confirmed", True), ("", True)])
def test_an_inspection_ends_when_what_it_blocked_for_is_withdrawn(how: str, holds_still: bool) -> None:
    finding = InspectionFinding("quality", 8, "x", "", "", "c8")
    state = said(one(inspection={"findings": (finding,), "verdict": InspectionVerdict.BLOCKED}),
                 collab("c8", 8, WATCHDOG, open=not how, how=how))  # fmt: skip
    assert (current(state, "p4") is not None) is holds_still
    assert due(state) == (() if holds_still else ("p4",))
    lesser = one(inspection={"findings": (replace(finding, severity=7),)})
    assert current(said(lesser, collab("c8", 7, WATCHDOG, open=False, how="withdrawn")), "p4") is not None


def test_an_inspection_holds_for_its_version_and_definition_of_done_alone() -> None:
    assert current(one(), "p4") == todo(2).inspections["i4"]
    assert current(todo(0), "p4") is None
    assert current(versioned(one(), "p4", "v9"), "p4") is None
    assert current(one(product={"dod": DOD}), "p4") is None
    assert current(one(product={"versions": ()}), "p4") is None
    at = todo(2).inspections["i4"].at
    assert current(one(product={"stale_at": at - 1}), "p4") is not None
    assert current(one(product={"stale_at": at}), "p4") is None


def test_an_older_inspection_never_takes_the_place_of_the_newest() -> None:
    state = one()
    newer = replace(state.inspections["i4"], id="i9", version="v2")
    state = replace(state, inspections={**state.inspections, "i9": newer})
    assert current(state, "p4") is None


def test_the_inspection_of_a_container_ends_with_any_change_of_its_children() -> None:
    state = todo(2)
    assert current(state, ROOT) is not None
    assert current(versioned(state, "p5", "v9"), ROOT) is None
    assert current(nested(), ROOT) is None
    moved = replace(state.products["p5"], status=Status.ARCHIVED)
    assert current(replace(state, products={**state.products, "p5": moved}), ROOT) is None


# -- accepting -------------------------------------------------------------------------------------


def test_what_is_approved_and_undisputed_lacks_nothing() -> None:
    assert missing_for_acceptance(one(), "p4") == ()
    assert missing_for_acceptance(one(), ROOT, accepting=("p3", "p4", "p5")) == ()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"product": {"versions": ()}}, "it has no version"),
        ({"product": {"versions": ("v2",)}}, "newest version has not been inspected"),
        ({"product": {"stale_at": 10**6, "stale_why": "the mission changed"}}, "stale: the mission changed"),
        ({"product": {"dod": DOD}}, "definition of done has changed"),
        ({"product": {"status": Status.ARCHIVED}}, "archived"),
        ({"product": {"meta": True}}, "nobody accepts"),
        ({"inspection": {"verdict": InspectionVerdict.BLOCKED}}, "blocks"),
        ({"inspection": {"verdict": InspectionVerdict.NEEDS_REVISION}}, "wants a revision"),
        ({"inspection": {"findings": (InspectionFinding("quality", 8, "x", ""),)}}, "blocks"),
        ({"inspection": {"findings": (InspectionFinding("quality", 5, "x", ""),)}}, "wants a revision"),
        ({"inspection": {"results": ()}}, "not met: Names the tech stack"),
        ({"inspection": {"product": "p5"}}, "newest version has not been inspected"),
        ({"inspection": {"dod": ""}}, "definition of done has changed"),
        ({"inspection": {"version": ""}}, "newest version has not been inspected"),
    ],
)
def test_one_ground_missing_is_enough(changes: dict[str, Any], why: str) -> None:
    assert any(why in reason for reason in missing_for_acceptance(one(**changes), "p4"))


def test_a_pass_without_a_quote_and_a_criterion_judged_twice_are_not_met() -> None:
    passed = [CriterionResult("d1", True, "", "", "code"), CriterionResult("d2", True, "React", "", WATCHDOG)]

    def reasons(*results: CriterionResult) -> tuple[str, ...]:
        return missing_for_acceptance(one(inspection={"results": results}), "p4")

    assert reasons(*passed) == ()
    assert reasons(passed[0], replace(passed[1], quote=" \n")) == ("not met: Names the tech stack",)
    assert reasons(*passed, CriterionResult("d2", False, "", "", WATCHDOG)) == ("not met: Names the tech stack",)
    assert reasons(passed[0], replace(passed[1], criterion="d7")) == ("not met: Names the tech stack",)


def test_a_waiver_needs_a_reason_and_never_lets_a_block_pass() -> None:
    revision = one(inspection={"findings": (InspectionFinding("quality", 7, "x", ""),)})
    assert missing_for_acceptance(revision, "p4", waiver="  ")
    assert missing_for_acceptance(revision, "p4", waiver="It ships as a draft") == ()
    unmet = (
        CriterionResult("d1", True, "## Rate limiting", "", "code"),
        CriterionResult("d2", False, "", "", WATCHDOG),
    )
    assert missing_for_acceptance(one(inspection={"results": unmet}), "p4", waiver="It ships as a draft")
    for changes in (
        {"verdict": InspectionVerdict.BLOCKED},
        {"findings": (InspectionFinding("quality", 8, "x", ""),)},
    ):
        assert missing_for_acceptance(one(inspection=changes), "p4", waiver="It ships as a draft")


def test_a_blocking_collab_is_waived_by_name_and_the_watchdogs_never() -> None:
    assert missing_for_acceptance(said(one(), collab("c8", 7)), "p4") == ()
    assert missing_for_acceptance(said(one(), collab("c8", 8, open=False)), "p4") == ()
    assert missing_for_acceptance(said(one(), collab("c8", 8)), "p4") == ("a blocking concern is open: Why so?",)
    assert missing_for_acceptance(said(one(), collab("c8", 8)), "p4", waived={"c8"}) == ()
    assert missing_for_acceptance(said(one(), collab("c8", 8), collab("c9", 8)), "p4", waived={"c8"})
    assert missing_for_acceptance(said(one(), collab("c8", 8, WATCHDOG)), "p4", waived={"c8"})


def test_what_does_not_exist_cannot_be_accepted() -> None:
    assert missing_for_acceptance(one(), "p99") == ("there is no such product",)


def test_a_container_waits_for_its_live_children() -> None:
    (reason,) = missing_for_acceptance(todo(2), ROOT, accepting=("p3", "p4"))
    assert reason == "not accepted of what it holds: Error Handling"
    assert missing_for_acceptance(todo(3), ROOT) == ()
    state = replace(todo(2), products={id: todo(2).products[id] for id in (ROOT, "p2")})
    assert "it holds nothing yet" in missing_for_acceptance(state, ROOT)


@pytest.mark.wide
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_nothing_is_lacking_only_where_every_ground_holds(data: st.DataObject) -> None:
    def draw(values: Any) -> Any:
        return data.draw(st.sampled_from(values))

    flaw = {name: draw([False, False, False, True]) for name in ("version", "dod", "stale", "unmet", "unquoted")}
    severity, waiver, importance = draw([0, 4, 5, 7, 8, 10]), draw(["", " ", "why"]), draw([0, 7, 8, 10])
    author, opened, waived = draw([JORDAN, WATCHDOG]), draw([True, False]), draw([(), ("c8",)])
    at = todo(2).inspections["i4"].at
    state = one(
        product={
            "versions": ("v4", "v2") if flaw["version"] else ("v2", "v4"),
            "dod": DOD if flaw["dod"] else todo(2).products["p4"].dod,
            "stale_at": at if flaw["stale"] else at - 1,
        },
        inspection={
            "results": (
                CriterionResult("d1", True, "", "", "code"),
                CriterionResult("d2", not flaw["unmet"], "" if flaw["unquoted"] else "React", "", WATCHDOG),
            ),
            "findings": (InspectionFinding("quality", severity, "x", ""),) if severity else (),
            "verdict": InspectionVerdict.APPROVED,
        },
    )
    if importance:
        state = said(state, collab("c8", importance, author, open=opened))
    undisputed = importance < 8 or not opened or (author == JORDAN and waived == ("c8",))
    let_pass = severity < 5 or (severity < 8 and waiver == "why")
    may = undisputed and let_pass and not any(flaw.values())
    assert (missing_for_acceptance(state, "p4", waiver, waived) == ()) is may


# -- accepted --------------------------------------------------------------------------------------


def test_the_mission_is_done_where_every_acceptance_holds() -> None:
    assert unaccepted(todo(3)) == ()
    assert [item.id for item in unaccepted(todo(2))] == ["p1", "p3", "p4", "p5"]


@pytest.mark.parametrize(
    "changes",
    [
        {"status": Status.IN_PROGRESS},
        {"dod": DOD},
        {"stale_at": 10**6},
        {"versions": ("v4", "v2")},
    ],
)
def test_an_acceptance_ends_with_what_it_was_for_and_so_does_the_containers(changes: dict[str, Any]) -> None:
    state = todo(3)
    state = replace(state, products={**state.products, "p4": replace(state.products["p4"], **changes)})
    assert not holds(state, "p4")
    assert not holds(state, ROOT)
    assert holds(state, "p3")


@pytest.mark.parametrize("pinned", [{"version": "v2"}, {"sha": "0"}, {"dod": "0"}, {"inspection": "i2"}, None])
def test_an_acceptance_is_of_what_it_is_pinned_to(pinned: dict[str, Any] | None) -> None:
    state = todo(3)
    acceptances: dict[str, Acceptance] = dict(state.acceptances)
    if pinned is None:
        del acceptances["p4"]
    else:
        acceptances["p4"] = replace(acceptances["p4"], **pinned)
    assert [item.id for item in unaccepted(replace(state, acceptances=acceptances))] == ["p1", "p4"]


def test_a_blocking_word_after_acceptance_reopens_and_a_new_child_reopens_its_container() -> None:
    state = said(todo(3), collab("c8", 9, "u:user-1"))
    assert [item.id for item in unaccepted(state)] == ["p1", "p4"]
    more = Product("p6", "Tests", Kind.CONTENT, ROOT, ALEX, DOD)
    state = replace(todo(3), products={**todo(3).products, "p6": more})
    assert [item.id for item in unaccepted(state)] == ["p1", "p6"]


def test_a_container_that_was_accepted_empty_does_not_count() -> None:
    state = todo(3)
    state = replace(state, products={id: state.products[id] for id in (ROOT, "p2")})
    empty = replace(state.inspections["i6"], parts=())
    state = replace(state, inspections={"i6": empty})
    assert current(state, ROOT) is not None
    assert [item.id for item in unaccepted(state)] == [ROOT]


# -- what is due -----------------------------------------------------------------------------------


def test_what_is_due_has_a_version_that_no_inspection_holds_for() -> None:
    assert due(todo(0)) == ()
    assert due(todo(2)) == ()
    assert due(versioned(todo(2), "p4", "v9")) == ("p4",)
    stale = replace(todo(2).products["p4"], stale_at=10**6)
    assert due(replace(todo(2), products={**todo(2).products, "p4": stale})) == ("p4",)
    log = versioned(todo(2), "p2", "v9", CHAIR)
    assert due(log) == ()


def test_a_version_whose_inspection_was_missed_stays_due_in_later_rounds() -> None:
    state = replace(versioned(todo(2), "p4", "v9"), round=7)
    assert due(state) == ("p4",)


def test_a_container_is_due_when_its_parts_are_accepted_the_deepest_first() -> None:
    state = nested()
    assert due(state) == ()  # p7 has no version, so that neither p6 nor the root could be accepted
    state = versioned(state, "p7", "v9")
    for due_now in ("p7", "p6", ROOT):
        assert due(state) == (due_now,)
        product, latest = state.products[due_now], state.latest(due_now)
        dod = tuple(CriterionResult(item.id, True, "content", "", WATCHDOG) for item in product.dod)
        found = Inspection(
            f"i{due_now}", due_now, latest.id if latest else "", product.dod_sha, dod, (), InspectionVerdict.APPROVED,
            2, len(state.events) + 1, () if latest else parts(state, due_now),
        )  # fmt: skip
        state = replace(state, inspections={**state.inspections, found.id: found})
        state = automatic_acceptance.accepted(state, MissionStep.INSPECT)
    assert due(state) == () and not unaccepted(state)


def test_a_container_of_nothing_is_not_inspected() -> None:
    state = nested()
    gone = replace(state.products["p7"], status=Status.ARCHIVED)
    assert due(replace(state, products={**state.products, "p7": gone})) == ()


def test_a_tree_that_is_a_ring_ends() -> None:
    state = todo(2)
    ring = {"p8": Product("p8", "a", Kind.ORCHESTRATION, "p9", None, ()),
            "p9": Product("p9", "b", Kind.ORCHESTRATION, "p8", None, ())}  # fmt: skip
    with_ring = replace(state, products={**state.products, **ring})
    assert due(with_ring) == ()
    assert [id for id, _ in parts(with_ring, "p8")] == ["p9"]
    assert not holds(with_ring, "p8")
    decided = {id: replace(item, kind=Kind.DECISION) for id, item in ring.items()}
    assert [id for id, _ in parts(replace(state, products={**state.products, **decided}), "p8")] == ["p9", "p8"]


def test_fifty_products_after_twenty_rounds_are_looked_at_at_once() -> None:
    products = {ROOT: todo(0).products[ROOT]}
    versions: dict[str, Version] = {}
    inspections: dict[str, Inspection] = {}
    for place in range(2, 52):
        own = [f"v{place * 100 + number}" for number in range(20)]
        products[f"p{place}"] = Product(f"p{place}", "n", Kind.CONTENT, ROOT, ALEX, DOD, versions=tuple(own))
        for number, id in enumerate(own):
            versions[id] = Version(id, number, f"p{place}", ALEX, "t", f"{id} " * 8000, "s", number)
            inspections[f"i{id[1:]}"] = Inspection(
                f"i{id[1:]}", f"p{place}", id, identity(DOD), (), (), InspectionVerdict.APPROVED, number, 1
            )
    state = replace(todo(0), products=products, versions=versions, inspections=inspections)
    calls = 0

    class Counted(dict[str, Version]):
        def __getitem__(self, key: str) -> Version:
            nonlocal calls
            calls += 1
            return super().__getitem__(key)

    state = replace(state, versions=Counted(versions))
    assert due(state) == ()
    assert len(unaccepted(state)) == 51
    assert calls < 1_000  # of 1,000 versions each newest one is looked at a few times, the others never
