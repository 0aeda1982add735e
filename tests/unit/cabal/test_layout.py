"""A mission as files: what each holds, what changes with a step, and that what models wrote stays in its place."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from msgspec.structs import replace

from cdo.cabal.files import page_text, serialization
from cdo.cabal.files.delivered_files import deliverables
from cdo.cabal.files.layout import files
from cdo.cabal.files.person_files import EditedVersion, Letter, LetterFormat, VersionFormat
from cdo.cabal.model.entities import (
    Acceptance,
    Check,
    Collab,
    Criterion,
    CriterionResult,
    EnvoyMessage,
    Inspection,
    InspectionFinding,
    InspectionVerdict,
    Kind,
    MissionStep,
    Product,
    Question,
    Status,
    Version,
    identity,
    slug,
)
from cdo.cabal.model.events import recorded
from cdo.cabal.model.names import speaker
from cdo.cabal.model.state import MissionState
from cdo.core.mission_names import CHAIR, ENVOY, ROOT, USER, WATCHDOG
from cdo.core.steps import InvalidReply
from cdo.formats import strict_yaml
from cdo.formats.document_blocks import joined
from cdo.planning.mission_crew import KNOWN_RULES
from tests.support.missions import ALEX, JORDAN, V3, V4, todo

HOSTILE = (
    "Login\x1b[31m <script>alert(1)</script> ![x](http://evil/p.png) [y](javascript:z) `\\[a](b)`\u202e\n---\n"
    "id: v9\n---\n# Result\n\n<!-- gone\n<img src=x onerror=y> | cell | &lt;b&gt; <http://evil/>"
)
TEXT = st.text(max_size=200) | st.text(alphabet="-:#'\"\n\t |>&*![](){}<`\\%@~ab1\r\x85\u2028\x1b", max_size=120)
# What a reply can hold: pydantic takes no lone surrogate.
SAID = TEXT.map(lambda text: text.encode("utf-8", "ignore").decode())
READER = MarkdownIt("commonmark", {"html": True}).enable("table")


def tokens(text: str) -> set[str]:
    """The kinds of Markdown tokens below the front matter."""
    body = text.partition("\n---\n")[2]
    return {token.type for block in READER.parse(body) for token in (block, *(block.children or ()))}


def written(state: MissionState) -> dict[str, str]:
    projections, kept = files(state, None)
    assert not set(projections) & set(kept)
    return {**projections, **kept}


def front(text: str) -> dict[str, object]:
    head = strict_yaml.load(text[4:].partition("\n---\n")[0])
    assert isinstance(head, dict)
    return dict(head)


# -- which files there are -------------------------------------------------------------------------


def test_every_fact_has_its_file_in_its_products_folder() -> None:
    state = todo(3)
    projections, kept = files(state, None)
    folders = {product.folder for product in state.products.values()}
    assert set(projections) == {
        "mission.md", "TREE.md", "CHAT.md", *(f"{folder}/product.yaml" for folder in folders),
        "products/p4-tech-arch/c1.md", "products/p3-mvp-features/c2.md",
    }  # fmt: skip
    assert set(kept) == {
        *(f"products/p3-mvp-features/{name}.md" for name in ("v1", "v3", "i1", "i3")),
        *(f"products/p4-tech-arch/{name}.md" for name in ("v2", "v4", "i2", "i4")),
        *(f"products/p5-error-handling/{name}.md" for name in ("v5", "i5")),
        "products/p1-specify-a-todo-list-mvp/i6.md",
    }  # fmt: skip
    for name, text in projections.items():
        line = text.split("\n")[0 if name.endswith(".yaml") else 1]
        assert re.match(r"# cdo writes this file from the record \[[0-9a-f]{8}\]\.", line), name
        assert "inbox/" in text and "new version" in text
    assert not any("# cdo writes" in text for text in kept.values())


@given(st.data())
def test_an_edit_of_a_projection_is_seen_wherever_it_is(data: st.DataObject) -> None:
    projections, _ = files(todo(3), None)
    name = data.draw(st.sampled_from(sorted(projections)))
    text = projections[name]
    assert page_text.untouched(text)
    at = data.draw(st.integers(0, len(text) - 1))
    assert not page_text.untouched(text[:at] + text[at + 1 :])
    assert not page_text.untouched(f"{text[:at]}x{text[at:]}")
    assert not page_text.untouched("") and not page_text.untouched("Mine\n")


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_a_round_writes_what_it_changed_and_nothing_that_was_written_once(rounds: int) -> None:
    before, after = todo(rounds - 1), todo(rounds)
    old, new = written(before), written(after)
    projections, kept = files(after, before)
    assert {**old, **projections, **kept} == new
    assert kept == {name: new[name] for name in new if name not in old and re.search(r"/[vi]\d+\.md$", name)}
    assert set(projections) == {name for name in new if new[name] != old.get(name)} - set(kept)


def test_where_nothing_happened_nothing_is_written() -> None:
    assert files(todo(2), todo(2)) == ({}, {})


def test_a_mission_that_was_not_set_up_has_a_tree_and_a_log_that_say_so() -> None:
    told = written(MissionState("Do it", ("operative-1",)))
    assert set(told) == {"TREE.md", "CHAT.md"}
    assert "There are no products yet." in told["TREE.md"] and "Nothing was said yet." in told["CHAT.md"]


def test_what_is_written_of_a_large_mission_is_what_changed() -> None:
    products = {ROOT: todo(0).products[ROOT]}
    versions: dict[str, Version] = {}
    collabs: dict[str, Collab] = {}
    for number in range(2, 52):
        ids = tuple(f"v{number * 20 + place}" for place in range(20))
        products[f"p{number}"] = Product(
            f"p{number}", f"Part {number}", Kind.CONTENT, ROOT, ALEX, (), Status.IN_PROGRESS, versions=ids
        )
        for place, id in enumerate(ids, 1):
            versions[id] = Version(id, place, f"p{number}", ALEX, "T", f"{id} " * 500, "S", place)
            name = f"c{len(collabs) + 1}"
            collabs[name] = Collab(name, f"p{number}", "feedback", 4, JORDAN, "Say more.", "More", place)
    before = replace(todo(0), products=products, versions=versions, collabs=collabs)
    made = Version("v9999", 21, "p7", ALEX, "T", "New", "S", 20)
    after = replace(
        before,
        versions={**versions, "v9999": made},
        products={**products, "p7": replace(products["p7"], versions=(*products["p7"].versions, "v9999"))},
    )
    projections, kept = files(after, before)
    assert set(projections) == {"TREE.md", "products/p7-product/product.yaml"}
    assert set(kept) == {"products/p7-product/v9999.md"}


# -- what they hold --------------------------------------------------------------------------------


def test_a_versions_file_says_what_it_is_and_holds_its_content_byte_for_byte() -> None:
    text = written(todo(3))["products/p3-mvp-features/v3.md"]
    assert front(text) == {
        "id": "v3", "product": "p3", "number": 2, "author": JORDAN, "title": "MVP features",
        "change_summary": "Login by httpOnly cookie", "outcome": "CRUD, session in an httpOnly cookie",
        "addresses": ["c2"], "round": 2, "sha256": todo(3).versions["v3"].sha,
    }  # fmt: skip
    assert text.endswith(f"---\n\n{V3}\n")


def test_a_products_file_says_how_it_stands_and_for_what_it_was_accepted() -> None:
    state = todo(3)
    data = strict_yaml.load(written(state)["products/p4-tech-arch/product.yaml"])
    assert isinstance(data, dict)
    assert data["dod_sha256"] == identity(state.products["p4"].dod)
    assert data["accepted"] == {
        "version": "v4", "sha256": state.versions["v4"].sha, "dod_sha256": data["dod_sha256"], "inspection": "i4",
        "round": 3,
    }  # fmt: skip
    assert (data["status"], data["owner"], data["versions"]) == ("accepted", ALEX, ["v2", "v4"])


def test_the_tree_shows_owners_versions_and_what_blocks() -> None:
    text = written(todo(1))["TREE.md"]
    assert front(text) == {"round": 1, "accepted": 0, "live": 3, "blockers": 1, "halt": "no"}
    lines = text.split("\n")
    at = next(number for number, line in enumerate(lines) if "MVP Features Selection" in line and "(p3," in line)
    assert lines[at] == (
        "  - **MVP Features Selection** (p3, Decision): in progress, owner Jordan (operative-2), "
        "version 1 ([v1](products/p3-mvp-features/v1.md))"
    )
    assert lines[at + 1] == "    - ✗ a flag of the watchdog is open: JWT in localStorage is open to XSS"
    assert "the chair's own" in next(line for line in lines if "Change Log" in line)
    assert "✗" not in written(todo(3))["TREE.md"]


def test_what_is_archived_stands_apart() -> None:
    state = todo(2)
    gone = replace(state.products["p5"], status=Status.ARCHIVED)
    text = written(replace(state, products={**state.products, "p5": gone}))["TREE.md"]
    assert text.endswith("## Archived\n\n- Error Handling (p5)\n")


def test_the_log_goes_by_rounds_with_names_from_the_personas_and_facts_below() -> None:
    state = replace(
        todo(2), questions=(Question("r2-plan-question", "Which database?", ("PostgreSQL", "SQLite"), "SQLite", 2),)
    )
    text = written(state)["CHAT.md"]
    first, second = text.partition("## Round 1")[2].split("## Round 2")
    assert "**Jordan (operative-2):** Hit a security issue" in first
    assert "Facts:\n\n- MVP Features Selection got its version 1" in first
    assert "**Alex (operative-1):** The architecture" in second
    assert "**The team asks you:** Which database?\n- PostgreSQL\n- SQLite\n\n**You:** SQLite" in second


@pytest.mark.parametrize(
    ("persona", "name"),
    [
        ("You are Alex, who codes.", "Alex"),
        ("  You are Ana-María O’Neill, lead.", "Ana-María O’Neill"),
        ("You are Zoë.", "Zoë"),
        ("You are the chair, and lead.", CHAIR),
        ("You are an operative.", CHAIR),
        ("Alex leads.", CHAIR),
        ("You are <b>Alex</b>, x", CHAIR),
    ],
)
def test_a_name_is_read_off_a_persona_where_there_is_one(persona: str, name: str) -> None:
    state = todo(0)
    assert state.mission
    state = replace(state, mission=replace(state.mission, personas={CHAIR: persona}))
    assert speaker(state, CHAIR) == name
    assert speaker(state, ALEX) == ALEX and speaker(MissionState("", ()), ALEX) == ALEX


# -- and back --------------------------------------------------------------------------------------


@given(SAID, SAID, SAID, SAID)
def test_a_version_comes_back_from_its_file_as_it_was(title: str, content: str, summary: str, outcome: str) -> None:
    version = Version("v3", 2, "p4", ALEX, title, content, summary, 3, outcome, ("c1", "c2"), "20260101-deep")
    text = serialization.version_text(version)
    assert serialization.version_of(text) == version
    assert text.endswith(f"\n---\n\n{content}\n")
    assert strict_yaml.load(text[4:].partition("\n---\n")[0], max_bytes=10**6) == front(text)


@given(SAID, SAID, SAID)
def test_a_collab_and_an_inspection_come_back_from_their_files(one: str, two: str, three: str) -> None:
    collab = Collab("c6", "p4", "concern", 9, WATCHDOG, one, two, 3, "v3", "i2", False, CHAIR, "waived", three)
    back = serialization.collab_of(serialization.collab_text(collab))
    assert replace(back, comment="") == replace(collab, comment="")
    assert serialization.collab_text(back) == serialization.collab_text(collab)
    inspection = Inspection(
        "i2",
        "p4",
        "v3",
        "0" * 64,
        (CriterionResult("d1", True, one, two, "code"), CriterionResult("d2", False, "", three, WATCHDOG)),
        (InspectionFinding("quality", 6, two, three, "d2", "c6"), InspectionFinding("security", 1, one, "")),
        InspectionVerdict.NEEDS_REVISION,
        3,
        17,
        (("p5", "1" * 64), ("p6", "")),
        two,
    )
    assert serialization.inspection_of(serialization.inspection_text(inspection)) == inspection


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | SAID,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SAID, inner, max_size=3),
    max_leaves=8,
)


@given(SAID, VALUES, SAID)
def test_a_product_comes_back_from_its_file_with_the_same_definition_of_done(
    name: str, value: object, why: str
) -> None:
    dod = (Criterion("d1", name, Check("json_schema", value)), Criterion("d2", why))  # type: ignore[arg-type]
    product = Product(
        "p4", name, Kind.DECISION, None, None, dod, Status.ACCEPTED, False, "deep", ("v1",), 7, why, "slug", 2
    )
    accepted = Acceptance("p4", "v1", "0" * 64, identity(dod), "i1", why, 3)
    for accepted_now, before in ((accepted, None), (None, accepted), (None, None)):
        text = serialization.product_text(product, accepted_now, before)
        back, *pins = serialization.product_of(text)
        assert (back, pins) == (product, [accepted_now, before])
    assert identity(back.dod) == accepted.dod


def test_all_files_of_a_mission_come_back_as_its_facts() -> None:
    for rounds in range(4):
        state = todo(rounds)
        found = serialization.read(written(state))
        assert not found.problems
        assert found.state.products == dict(state.products)
        assert found.state.versions == dict(state.versions)
        assert found.state.collabs == dict(state.collabs)
        assert found.state.inspections == dict(state.inspections)
        assert list(found.state.inspections) == list(state.inspections)
        assert found.state.acceptances == dict(state.acceptances)


@pytest.mark.wide
@given(st.text(max_size=300), st.sampled_from(sorted(written(todo(3)))))
def test_a_file_that_holds_anything_is_a_problem_and_no_crash(text: str, name: str) -> None:
    found = serialization.read({**written(todo(3)), name: text})
    assert (name in found.problems) == name.startswith("products/")


# -- nothing gets out of its place -----------------------------------------------------------------


def hostile(text: str) -> MissionState:
    """A mission in which everything that a model wrote is `text`."""
    state = todo(2)
    assert state.mission
    said = (text,)
    mission = replace(
        state.mission,
        mission=text,
        objectives=said,
        constraints=said,
        personas=dict.fromkeys(state.mission.personas, text),
        domains={ALEX: (text, text)},
    )
    return replace(
        state,
        request=text,
        mission=mission,
        products={id: replace(item, name=text) for id, item in state.products.items()},
        versions={
            id: replace(item, title=text, content=text, summary=text, outcome=text)
            for id, item in state.versions.items()
        },
        collabs={
            id: replace(item, comment=text, summary=text, why=text, open=True) for id, item in state.collabs.items()
        },
        inspections={
            id: replace(
                item,
                results=(CriterionResult("d1", False, text, text, WATCHDOG),),
                findings=(InspectionFinding("quality", 9, text, text),),
            )
            for id, item in state.inspections.items()
        },
        messages=(EnvoyMessage(1, ALEX, text, ("e1",)),),
        questions=(Question("r1", text, said, text, 1),),
        events=tuple(replace(item, text=text) for item in state.events),
    )


ACTIVE = {"html_inline", "html_block", "image"}


@pytest.mark.wide
@given(SAID)
def test_no_text_of_a_model_is_markup_in_what_cdo_shows(text: str) -> None:
    for rules in KNOWN_RULES:
        told = written(replace(hostile(text), rules=rules))
        for name in ("TREE.md", "CHAT.md", "mission.md"):
            allowed = {"link_open", "link_close"} if name == "TREE.md" else set[str]()
            allowed |= {"code_inline"} if rules >= 5 else set()
            found = tokens(told[name])
            assert not found & (ACTIVE | {"link_open", "link_close", "code_inline", "fence", "hr"}) - allowed, name
            front(told[name])


def test_the_known_tricks_do_nothing() -> None:
    told = written(hostile(HOSTILE))
    for name in ("TREE.md", "CHAT.md", "mission.md"):
        assert not tokens(told[name]) & (ACTIVE | {"fence", "hr"}), name
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202e]", told[name]), name
        body = told[name].partition("\n---\n")[2]
        assert "\n---" not in body and "\n# Result" not in body
        targets = {
            str(child.attrs["href"])
            for block in READER.parse(body)
            for child in block.children or ()
            if child.type == "link_open"
        }
        assert all(re.fullmatch(r"products/p\d-[a-z-]+/v\d\.md", target) for target in targets)
    for name, text in told.items():
        if name.endswith(("v3.md", "i3.md", "c1.md")):
            assert front(text)["id"] == name[-5:-3], name
    version = told["products/p3-mvp-features/v3.md"]
    assert front(version)["title"] == HOSTILE and version.endswith(f"---\n\n{HOSTILE}\n")
    assert "\x1b" not in version.partition("\n---\n")[0]


def test_front_matter_of_a_content_stays_content() -> None:
    forged = "---\nid: v9\nauthor: u:user-1\n---\n\nMine"
    text = serialization.version_text(Version("v3", 2, "p4", ALEX, "T", forged, "S", 3))
    assert front(text)["id"] == "v3"
    assert serialization.version_of(text).content == forged
    assert VersionFormat().parse(text).content == forged


# -- deliverables ----------------------------------------------------------------------------------


def test_a_new_definition_of_done_is_told_in_the_log() -> None:
    state = todo(3)
    said = "Technical Architecture has a new definition of done: 1 criterion, was 2"
    changed = replace(state.events[-1], id=f"e{len(state.events) + 1}", kind="updated", text=said)
    assert f"- {said}\n" in files(replace(state, events=(*state.events, changed)), None)[0]["CHAT.md"]


def test_only_what_is_accepted_is_delivered_a_decision_with_its_outcome_first() -> None:
    assert deliverables(todo(2)) == {}
    found = deliverables(todo(3))
    assert set(found) == {
        "deliverables/mvp-features.md", "deliverables/tech-arch.md", "deliverables/error-handling.md",
    }  # fmt: skip
    assert found["deliverables/mvp-features.md"] == (f"> **Decision:** CRUD, session in an httpOnly cookie\n\n{V3}\n")
    other = V4.replace("[[p:p3]]", "[MVP Features Selection](mvp-features.md)")
    other = other.replace("[[p:p5]]", "[Error Handling](error-handling.md)")
    assert "[[" not in other and found["deliverables/tech-arch.md"] == f"{other}\n"


def test_what_no_longer_holds_is_not_delivered() -> None:
    state = todo(3)
    block = Collab("c9", "p4", "concern", 8, JORDAN, "Wrong.", "Wrong", 3, "v4")
    blocked = replace(state, collabs={**state.collabs, "c9": block})
    assert "deliverables/tech-arch.md" not in deliverables(blocked)
    newer = Version("v9", 3, "p5", USER, "T", "Mine", "", 3)
    product = replace(state.products["p5"], versions=("v5", "v9"))
    edited = replace(state, products={**state.products, "p5": product}, versions={**state.versions, "v9": newer})
    assert "deliverables/error-handling.md" not in deliverables(edited)


def grown(*nodes: tuple[str, str, str, Kind]) -> MissionState:
    """todo(3) with further accepted products: (id, parent, name, kind); containers need no acceptance here."""
    state = todo(3)
    products, versions = dict(state.products), dict(state.versions)
    inspections, acceptances = dict(state.inspections), dict(state.acceptances)
    for id, parent, name, kind in nodes:
        made = Version(f"v{id[1:]}0", 1, id, ALEX, name, f"The content of {id}.", "S", 3)
        held = kind in (Kind.COLLECTION, Kind.ORCHESTRATION)
        status = Status.IN_PROGRESS if held else Status.ACCEPTED
        own = () if held else (made.id,)
        products[id] = Product(id, name, kind, parent, ALEX, (), status, versions=own, slug=slug(name))
        if not held:
            versions[made.id] = made
            dod = identity(())
            inspections[f"i{id[1:]}0"] = Inspection(
                f"i{id[1:]}0", id, made.id, dod, (), (), InspectionVerdict.APPROVED, 3, 99
            )
            acceptances[id] = Acceptance(id, made.id, made.sha, dod, f"i{id[1:]}0", "", 3)
    return replace(state, products=products, versions=versions, inspections=inspections, acceptances=acceptances)


def test_deliverables_lie_as_the_tree_does_and_share_no_name() -> None:
    state = grown(
        ("p6", ROOT, "API", Kind.ORCHESTRATION),
        ("p7", "p6", "Users", Kind.CONTENT),
        ("p8", "p6", "users!", Kind.CONTENT),
        ("p9", "p6", "Admin", Kind.COLLECTION),
        ("p10", "p9", "Users", Kind.CONTENT),
        ("p11", ROOT, "API", Kind.CONTENT),
        ("p12", ROOT, "API 2", Kind.CONTENT),
        ("p13", "p11", "Annex", Kind.CONTENT),
        ("p14", ROOT, "../../etc/passwd", Kind.CONTENT),
    )
    found = {
        name.removeprefix("deliverables/"): text for name, text in deliverables(state).items() if "content" in text
    }
    assert {name: text[15:-2] for name, text in found.items()} == {
        "api/users.md": "p7", "api/users-2.md": "p8", "api/admin-users.md": "p10", "api-2.md": "p11",
        "api-2-2.md": "p12", "etc-passwd.md": "p14",
        "api-2/annex.md": "p13",
    }  # fmt: skip


def at(state: MissionState, **files: tuple[str, str]) -> MissionState:
    """The mission with these products at a path, with this content in an accepted version."""
    for id, (path, content) in files.items():
        product = replace(state.products[id], path=path)
        version = replace(state.versions[product.versions[-1]], content=content)
        pinned = replace(state.acceptances[id], sha=version.sha)
        state = replace(
            state,
            products={**state.products, id: product},
            versions={**state.versions, version.id: version},
            acceptances={**state.acceptances, id: pinned},
        )
    return state


def test_a_file_is_delivered_at_its_path_as_it_was_accepted() -> None:
    code = "#!/bin/sh\n# see [[p:p3]]\n[[ -f x ]] && echo '[[p:p5]]'\n\n"
    page = "# Read me\n\nIt rests on [[p:p5]] and [[p:p4]].\n\n    [[v:v5]]"
    inner = [("web app/index.html", "<p>{[[p:p4]]}</p>"), ("web app/docs/a.md", "See [[p:p5]]."), ("web app/x", "")]
    state = grown(*((id, ROOT, id, Kind.CONTENT) for id in ("p6", "p7", "p8")))
    state = at(state, p6=("web app/", joined(inner)), p7=("a/b/c/run.sh", code), p8=("docs/READ ME.md", page))
    found = deliverables(state)
    assert found["deliverables/a/b/c/run.sh"] == f"{code}\n"
    assert found["deliverables/web app/index.html"] == "<p>{[[p:p4]]}</p>\n"
    assert found["deliverables/web app/x"] == ""
    assert found["deliverables/web app/docs/a.md"] == "See [Error Handling](../../error-handling.md).\n"
    rests = "It rests on [Error Handling](../error-handling.md) and [Technical Architecture](../tech-arch.md)."
    assert found["deliverables/docs/READ ME.md"].startswith(f"# Read me\n\n{rests}\n")
    assert "(p6, Content web app/)" in files(state, None)[0]["TREE.md"]


def test_a_document_without_a_path_gives_way_to_given_paths() -> None:
    state = grown(("p6", ROOT, "one", Kind.CONTENT), ("p7", ROOT, "two", Kind.CONTENT))
    state = at(state, p6=("Tech-Arch.md", "x"), p7=("error-handling/a.py", "y"))
    found = deliverables(state)
    assert sorted(found) == [
        "deliverables/Tech-Arch.md", "deliverables/error-handling-2.md", "deliverables/error-handling/a.py",
        "deliverables/mvp-features.md", "deliverables/tech-arch-2.md",
    ]  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 9), st.text(max_size=60), st.sampled_from(list(Kind))), max_size=10))
def test_whatever_products_are_called_their_files_can_be_kept(tree: list[tuple[int, str, Kind]]) -> None:
    nodes: list[tuple[str, str, str, Kind]] = []
    for number, (parent, name, kind) in enumerate(tree, 6):
        held = [id for id, _, _, kind_ in nodes if kind_ in (Kind.COLLECTION, Kind.ORCHESTRATION)]
        nodes.append((f"p{number}", [*held, ROOT][parent % (len(held) + 1)], name, kind))
    found = deliverables(grown(*nodes))
    assert len(found) == 3 + sum(kind in (Kind.CONTENT, Kind.DECISION) for _, _, _, kind in nodes)
    for name in found:
        *folders, file = name.split("/")
        assert folders[0] == "deliverables" and len(folders) <= 2
        assert all(re.fullmatch("[a-z0-9][a-z0-9-]*", folder) for folder in folders)
        assert re.fullmatch(r"[a-z0-9][a-z0-9-]{0,130}\.md", file)


# -- what people put there -------------------------------------------------------------------------


def test_a_version_that_was_edited_is_read_without_what_cdo_wrote_above_it() -> None:
    text = written(todo(3))["products/p3-mvp-features/v3.md"]
    found = VersionFormat().parse(text.replace("SameSite=Lax", "SameSite=Strict"))
    assert found == EditedVersion(
        "MVP features", "Login by httpOnly cookie", V3.replace("Lax", "Strict"), "CRUD, session in an httpOnly cookie"
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("# My plan\n\nDo it.\n", EditedVersion("My plan", "", "# My plan\n\nDo it.", "")),
        ("\ufeffDo it.\r\nNow.", EditedVersion("Do it.", "", "Do it.\nNow.", "")),
        (
            "---\ntitle: T\nchange_summary: Why\noutcome: Yes\n---\n\nDo it.",
            EditedVersion("T", "Why", "Do it.", "Yes"),
        ),
        ("\n\n---\ntitle: 12\n---\nDo it.", EditedVersion("12", "", "Do it.", "")),
        (
            "---\n---\n---\nstatus: draft\n---\nDo it.",
            EditedVersion("---", "", "---\nstatus: draft\n---\nDo it.", ""),
        ),
        (
            "---\nstatus: draft\n---\n\nDo it.",
            EditedVersion("---", "", "---\nstatus: draft\n---\n\nDo it.", ""),
        ),
        (
            "---\n\nA rule above, and no front matter",
            EditedVersion("---", "", "---\n\nA rule above, and no front matter", ""),
        ),
    ],
)
def test_what_a_person_adds_is_a_version_with_or_without_front_matter(text: str, found: EditedVersion) -> None:
    assert VersionFormat().parse(text) == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no content"),
        ("---\ntitle: T\n---\n\n \n", "no content"),
        ("---\ntitle: T\nauthr: me\n---\n\nDo it.", "`authr` is not a key"),
        ("---\ntitle: [T\n---\n\nDo it.", "line "),
        ("---\n- title\n---\n\nDo it.", "mapping"),
        (f"---\ntitle: {'x' * 201}\n---\n\nDo it.", "`title`"),
        ("x" * 400_001, "400001 characters; at most 400000"),
        ("x" * 900_000, "at most"),
    ],
)
def test_what_is_wrong_with_a_persons_version_is_said(text: str, words: str) -> None:
    with pytest.raises(InvalidReply, match=re.escape(words)):
        VersionFormat().parse(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Please hurry.\n", Letter("", "feedback", 7, "Please hurry.")),
        ("---\nproduct: p4\n---\n\nNo.", Letter("p4", "feedback", 7, "No.")),
        ("---\nwithdraw: c6\n---\n", Letter("", "feedback", 7, "", ("c6",))),
        (
            "---\nproduct: '[[p:p4]]'\ntype: Concern\nimportance: 9\n---\nNo.",
            Letter("p4", "concern", 9, "No."),
        ),
        ("---\nproduct: Technical Architecture\n---\nNo.", Letter("Technical Architecture", "feedback", 7, "No.")),
        ("---\nproduct:\n---\nNo.\x1b[0m", Letter("", "feedback", 7, "No.␛[0m")),
        ("---\n\nNot closed", Letter("", "feedback", 7, "---\n\nNot closed")),
    ],
)
def test_a_letter_is_its_text_and_what_stands_above(text: str, found: Letter) -> None:
    assert LetterFormat().parse(text) == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("---\nproduct: p4\n---\n\n", "empty"),
        ("---\nimportance: 11\n---\nNo.", "`importance`"),
        ("---\nimportance: true\n---\nNo.", "`importance`"),
        ("---\ntype: rant\n---\nNo.", "`type`"),
        ("---\nto: chair\n---\nNo.", "`to` is not a key"),
        ("---\nproduct: *x\n---\nNo.", "aliases"),
        ("x" * 4001, "4001 characters; at most 4000"),
    ],
)
def test_what_is_wrong_with_a_letter_is_said(text: str, words: str) -> None:
    with pytest.raises(InvalidReply, match=re.escape(words)):
        LetterFormat().parse(text)


@given(
    st.text(max_size=200) | st.text(alphabet="-:\n \ttitleoupdcrn[]{}&*!'\"\r#", max_size=80).map("---\n{}".format)
)
def test_whatever_a_person_writes_is_read_or_explained(text: str) -> None:
    for format in (VersionFormat(), LetterFormat()):
        try:
            found = format.parse(text)
        except InvalidReply as invalid:
            assert invalid.problems and all(problem.endswith((".", "…")) for problem in invalid.problems)
        else:
            assert isinstance(found, (EditedVersion, Letter))


def test_what_happens_after_the_end_was_declared_is_in_the_chat() -> None:
    ended = replace(todo(3), halt="done")
    after = recorded(ended, MissionStep.PRESENT, "missed", ENVOY, "Nothing came from the envoy")
    assert "Nothing came from the envoy" in files(after, ended)[0]["CHAT.md"]
