"""What a mission came to, its certificate, and that no byte of either can be changed without being found."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from msgspec.structs import replace

from cdo.cabal.files import delivered_files, layout, serialization
from cdo.cabal.files.certificate import NAME, certificate
from cdo.cabal.files.certificate_proof import Proof, proved
from cdo.cabal.files.final_report import Delivery, final
from cdo.cabal.model.entities import (
    Acceptance,
    Check,
    Collab,
    Criterion,
    CriterionResult,
    Inspection,
    InspectionFinding,
    Kind,
    MissionEvent,
    MissionStep,
    Product,
    Question,
    Status,
    Version,
    identity,
    slug,
)
from cdo.cabal.model.state import MissionState
from cdo.cabal.rules import acceptance
from cdo.cabal.verification import verified
from cdo.core.errors import SessionError
from cdo.core.mission_names import CHAIR, ROOT, USER, WATCHDOG
from cdo.core.steps import Json
from cdo.formats import strict_yaml
from cdo.formats.markdown import sections
from cdo.session.reader import InMemorySession
from tests.support.missions import ALEX, JORDAN, todo

Files = dict[str, bytes]
MODELS = {"plan": ["one"], "write": ["one", "two"]}
MINORITY = "- critic, severity 7: backups are <b>untested</b>\n\n```\ncode\n```\n\n### Why\n\n![x](http://evil/)"
STORAGE = f"Use PostgreSQL.\n\n## Decision\n\nYes.\n\n## Minority Reports\n\n{MINORITY}\n\n## Action Items\n\nNone."
SCHEMA: Json = {"type": "object", "required": ["openapi"]}
API = 'The interface:\n\n```json\n{"openapi": "3.1.0"}\n```\n'


# -- sessions --------------------------------------------------------------------------------------


def rich() -> MissionState:
    """A mission in which everything occurs that a certificate tells of; p11 is not accepted."""
    state = todo(3)
    state = _made(state, "p6", "API", Kind.COLLECTION)
    dod = (
        Criterion("d1", "Is OpenAPI", Check("json_schema", SCHEMA)),
        Criterion("d2", "Short", Check("max_words", 50)),
    )
    state = _made(state, "p7", "Users", Kind.CONTENT, "p6", API, dod)
    state = _made(state, "p8", "Users", Kind.CONTENT, "p6", "# Users\n\nUsers are named. See [[p:p7]].", (
        Criterion("d1", "Refers to the other", Check("reference", "p7")), Criterion("d2", "Names users"),
    ))  # fmt: skip
    state = _made(state, "p9", "Storage", Kind.DECISION, ROOT, STORAGE, session="20260101-deep", outcome="PostgreSQL")
    state = _made(state, "p10", "Old plan", Kind.CONTENT, ROOT, "Gone.")
    state = _made(state, "p11", "Roll-out", Kind.CONTENT, ROOT, "Later.")
    concern = Collab("c3", "p7", "concern", 6, ALEX, "No paging is named.", "No paging", 3, "v70")
    waived = Collab(
        "c4", "p8", "concern", 8, JORDAN, "Admins are missing.", "No admins", 3, "v80", "", False, CHAIR, "waived",
        "Admins come later.",
    )  # fmt: skip
    found = Collab("c5", "p9", "concern", 5, WATCHDOG, "Costs.", "Costs are missing", 3, "v90", "i90")
    state = replace(state, collabs={**state.collabs, "c3": concern, "c4": waived, "c5": found})
    for id, quote in (("p7", ""), ("p8", "Users are named."), ("p9", "")):
        state = _accepted(state, id, quote)
    state = _accepted(
        state,
        "p9",
        waiver="Costs are known.",
        findings=(InspectionFinding("quality", 5, "Costs are missing", "", "", "c5"),),
    )
    state = _accepted(state, "p6")
    gone = replace(state.products["p10"], status=Status.ARCHIVED)
    root = replace(state.products[ROOT], status=Status.IN_PROGRESS)
    acceptances = {id: item for id, item in state.acceptances.items() if id != ROOT}
    events = (
        _event(state, 1, "waived", "Storage was accepted though a revision was wanted", "p9"),
        _event(state, 2, "unreviewed", "Storage was reviewed by nobody", "p9"),
        _event(state, 3, "missed", "Operative 2 did not answer", ""),
    )
    return replace(
        state,
        products={**state.products, "p10": gone, ROOT: root},
        acceptances=acceptances,
        events=(*state.events, *events),
        questions=(Question("r2-plan-question", "Which database?", ("PostgreSQL",), "PostgreSQL", 2),),
        halt="rounds",
        why="The cap of 3 rounds is reached.",
    )


def whole() -> MissionState:
    """The same, with everything accepted."""
    state = rich()
    state = _accepted(state, "p11")
    return replace(_accepted(state, ROOT, "httpOnly cookie"), halt="done", why="All is there.")


def _event(state: MissionState, number: int, kind: str, text: str, product: str) -> MissionEvent:
    return MissionEvent(f"e{len(state.events) + number}", 3, MissionStep.PLAN, kind, CHAIR, text, product)


def _made(
    state: MissionState, id: str, name: str, kind: Kind, parent: str = ROOT, content: str = "",
    dod: tuple[Criterion, ...] = (), outcome: str = "", session: str = "",
) -> MissionState:  # fmt: skip
    made = Version(f"v{id[1:]}0", 1, id, ALEX, name, content, "First", 3, outcome, (), session)
    product = Product(
        id, name, kind, parent, ALEX, dod, Status.IN_PROGRESS, versions=(made.id,) if content else (),
        slug=slug(name), round=3,
    )  # fmt: skip
    versions = {**state.versions, made.id: made} if content else state.versions
    return replace(state, products={**state.products, id: product}, versions=versions)


def _accepted(
    state: MissionState, id: str, quote: str = "", waiver: str = "", findings: tuple[InspectionFinding, ...] = ()
) -> MissionState:
    """The state with an inspection of a product that lets it pass, and its acceptance."""
    product, latest = state.products[id], state.latest(id)
    results = tuple(
        CriterionResult(
            item.id, True, "" if item.check != Check() else quote, "", "code" if item.check != Check() else WATCHDOG
        )
        for item in product.dod
    )
    name = f"i{len(state.inspections) + 50}" if not findings else "i90"
    dod = identity(product.dod)
    inspection = Inspection(
        name, id, latest.id if latest else "", dod, results, findings,
        acceptance.verdict(item.severity for item in findings), 3, 99,
        acceptance.parts(state, id) if product.container else (),
    )  # fmt: skip
    accepted = Acceptance(id, latest.id if latest else "", latest.sha if latest else "", dod, name, waiver, 3)
    return replace(
        state,
        products={**state.products, id: replace(product, status=Status.ACCEPTED)},
        inspections={**state.inspections, name: inspection},
        acceptances={**state.acceptances, id: accepted},
    )


def session(state: MissionState) -> Files:
    """The files of a mission that ended so."""
    delivery = Delivery.of(state)
    projections, kept = layout.files(state, None)
    texts = {
        **projections,
        **kept,
        **delivered_files.deliverables(state),
        "FINAL.md": final(delivery),
        "FINAL.yaml": f"session: a\nstatus: {delivery.status}\ncost: 0.5\n",
        NAME: strict_yaml.dump(certificate(delivery, "a", MODELS)),
        "00-input.md": "Build it\n",
        "session.yaml": "created: 2026-01-01\n",
    }
    return {name: text.encode() for name, text in texts.items()}


def proof(files: Mapping[str, bytes]) -> Proof:
    return proved(InMemorySession("a", "tmp/cdo-a", files))


def wrong(files: Mapping[str, bytes]) -> str:
    """The lines of what does not hold."""
    return "\n".join(claim.line for claim in proof(files).claims if not claim.holds)


def certified(files: Files) -> dict[str, Any]:
    data = strict_yaml.load(files[NAME].decode(), max_bytes=10**6, max_depth=12)
    assert isinstance(data, dict)
    return data


def resealed(files: Files, change: Callable[[dict[str, Any]], object] = lambda _: None) -> Files:
    """The files with hashes and seal made anew, as somebody would who knows how; `change` alters the certificate."""
    data = certified(files)
    data["files"] = {
        name: sha256(text).hexdigest() for name, text in sorted(files.items())
        if re.match(r"products/[^/]+/(product\.yaml|[vci]\d+\.md)$|deliverables/", name)
    }  # fmt: skip
    change(data)
    data.pop("sha256")
    seal = sha256(strict_yaml.dump(data).encode()).hexdigest()
    return {**files, NAME: strict_yaml.dump({**data, "sha256": seal}).encode()}


def edited(files: Files, name: str, old: str, new: str) -> Files:
    text = files[name].decode()
    assert old in text, text
    return {**files, name: signed(text.replace(old, new, 1)).encode()}


def signed(text: str) -> str:
    """A projection with the checksum that its text wants, as somebody would write it who knows how."""
    above, note, below = (
        re.split(r"(?m)^(# cdo writes .*\n)", text, maxsplit=1) if "# cdo writes" in text else (text, "", "")
    )
    right = sha256(f"{above}{below}".encode()).hexdigest()[:8]
    return above + re.sub(r"\[[0-9a-f]{8}\]", f"[{right}]", note) + below


@pytest.fixture(scope="module", params=[rich, whole], ids=["unresolved", "done"])
def files(request: pytest.FixtureRequest) -> Files:
    made: Files = session(request.param())
    return made


DONE = session(whole())
P3, P7 = "products/p3-mvp-features", "products/p7-users"


# -- what a mission came to ------------------------------------------------------------------------


def test_a_mission_is_done_only_when_every_acceptance_holds() -> None:
    assert [Delivery.of(todo(rounds)).status for rounds in range(4)] == ["unresolved"] * 3 + ["done"]
    assert Delivery.of(todo(3)).missing == ()
    assert Delivery.of(replace(todo(3), halt="rounds")).status == "unresolved"
    assert Delivery.of(MissionState("x", (), halt="done")).status == "unresolved"
    block = Collab("c9", "p4", "concern", 8, JORDAN, "Wrong.", "Wrong", 3, "v4")
    state = todo(3)
    assert Delivery.of(replace(state, collabs={**state.collabs, "c9": block})).status == "unresolved"


def test_what_is_missing_is_said_of_each_product() -> None:
    found = Delivery.of(todo(1))
    assert [line.partition(" is not accepted: ")[0] for line in found.missing] == [
        "Specify a TODO list MVP", "MVP Features Selection", "Technical Architecture",
    ]  # fmt: skip
    assert "a flag of the watchdog is open: JWT in localStorage is open to XSS" in found.missing[1]
    assert found.missing[2].endswith("it lacks nothing, and the mission ended before it was accepted.")
    assert Delivery.of(rich()).flags == (
        "round 3: Storage was accepted though a revision was wanted", "round 3: Storage was reviewed by nobody",
        "round 3: Operative 2 did not answer",
    )  # fmt: skip


def test_final_begins_with_how_it_ended_and_has_all_sections() -> None:
    for rounds in range(4):
        text = final(Delivery.of(todo(rounds)))
        assert re.findall(r"(?m)^## (.+)$", text) == [
            "Result", "Objectives", "Deliverables", "Decisions", "What is missing", "Concerns on record", "Course",
            "Questions and answers",
        ]  # fmt: skip
    done, open_ = sections(final(Delivery.of(todo(3)))), sections(final(Delivery.of(rich())))
    assert done["result"].startswith("**Done**: all of 4 products accepted after 3 rounds.")
    assert done["whatismissing"] == "Nothing."
    assert open_["result"].startswith(
        "**Unresolved**: 7 of 9 products accepted after 3 rounds. The cap of 3 rounds is reached.\n"
    )
    assert "**Roll-out** (Content, in progress): it has not been inspected" in open_["whatismissing"]
    assert final(Delivery.of(MissionState("Do it", ()))).startswith(
        "## Result\n\n**Unresolved**: the mission was not set up"
    )


def test_final_lists_what_is_delivered_with_its_file_and_its_criteria() -> None:
    rows = sections(final(Delivery.of(rich())))["deliverables"].split("\n")
    place = "deliverables/api/users-2.md"
    assert f"| Users | Content | 1 (v80) | Alex (operative-1) | 2/2 | [{place}]({place}) |" in rows
    assert "| API | Collection | 2 parts |  | 0/0 |  |" in rows
    assert not any("Roll-out" in row or "Old plan" in row for row in rows)


def test_dissent_is_not_lost() -> None:
    for state in (rich(), whole()):
        found = sections(final(Delivery.of(state)))
        assert "**Storage**: PostgreSQL (version 1 (v90), Alex (operative-1))" in found["decisions"]
        assert (
            "Minority reports on Storage, version 1 (v90):\n\n> - critic, severity 7: backups are"
            in found["decisions"]
        )
        assert "> ### Why" in found["decisions"]
        concerns = found["concernsonrecord"]
        open_, _, rest = concerns.partition("Closed without a version that answers them:")
        closed, _, besides = rest.partition("Besides:")
        assert open_.startswith("Still open:\n\n- **"), "what is open comes first"
        assert "**Users** (concern of importance 6, Alex (operative-1); open): No paging is named.\n" in open_
        assert "waived by Richard (chair-1): Admins come later): No admins. Admins are missing.\n" in closed
        assert "**Storage** was accepted though a revision is wanted: Costs are known.\n" in besides
        assert "**Storage** was reviewed by no peer in its newest version.\n" in besides
        assert "answered by Alex (operative-1): Names HTTP 429" in closed
        assert besides.endswith("Round 3: Operative 2 did not answer.")
        assert "**Which database?** PostgreSQL" in found["questionsandanswers"]
    state = rich()
    acceptances = {id: item for id, item in state.acceptances.items() if id != "p9"}
    text = final(Delivery.of(replace(state, acceptances=acceptances)))
    assert "Minority reports on Storage, version 1 (v90), which is not accepted:" in text


def test_a_blocker_that_was_archived_with_its_product_is_not_lost() -> None:
    state = rich()
    block = Collab("c9", "p10", "concern", 8, JORDAN, "Logins leak.", "Logins leak", 3, "v100")
    state = replace(state, collabs={**state.collabs, "c9": block})
    told = sections(final(Delivery.of(state)))["concernsonrecord"]
    assert (
        "- **Old plan**, which is archived (concern of importance 8, Jordan (operative-2); open): Logins leak.\n"
        in told
    )
    assert told.count("Logins leak") == 1, "a comment that says the same is told once"
    assert Delivery.of(state).flags[-1] == (
        "round 3: Old plan was archived, and this concern of importance 8 is still open: Logins leak"
    )
    closed = replace(block, open=False, how="withdrawn", closed_by=JORDAN)
    assert "Logins" not in final(Delivery.of(replace(state, collabs={**state.collabs, "c9": closed})))


def test_a_definition_of_done_that_changed_is_told_in_its_round() -> None:
    state = rich()
    changed = replace(_event(state, 1, "updated", "Users has a new definition of done: 1 criterion, was 2", "p8"))
    course = sections(final(Delivery.of(replace(state, events=(*state.events, changed)))))["course"]
    assert "  - Changed: Users has a new definition of done: 1 criterion, was 2.\n" in course
    assert "- **Round 0**\n  - Start: The mission was set.\n" in course


def test_what_a_product_waits_for_is_said_once_and_sentences_end_once() -> None:
    state = rich()
    text = final(Delivery.of(replace(state, why="The cap is reached.")))
    assert "(Orchestration, in progress): it waits for Roll-out; " in sections(text)["whatismissing"]
    assert "not accepted of what it holds" not in text
    assert all("it waits for Roll-out" in line for line in Delivery.of(state).missing if line.startswith("Specify"))
    for line in text.split("\n"):
        assert not line.endswith("..") and not line.endswith(".;"), line


def test_deliverables_call_things_by_their_names_and_link_what_is_delivered() -> None:
    state = whole()
    text = delivered_files.deliverables(state)["deliverables/api/users-2.md"]
    assert text == "# Users\n\nUsers are named. See [Users](../api/users.md).\n"
    said = "[[v:v70]] by [[a:operative-1]] for [[u:user-1]], [[p:p10]], [[c:c3]]; [[p:p99]] and [[ p:p8 ]] stay [[x]]"
    version = replace(state.versions["v80"], content=said, outcome="As [[p:p7]]")
    text = delivered_files.delivered(state, version, delivered_files.places(state))["deliverables/api/users-2.md"]
    assert text == (
        "> **Decision:** As Users\n\nUsers, version 1 by operative 1 for the user, Old plan, "
        "the concern “No paging”; [[p:p99]] and Users stay [[x]]\n"
    )
    code = "[[p:p7]]\n```sh\nif [[ p:p7 ]]; then echo [[v:v70]]; fi\n```\n[[p:p8]]"
    text = delivered_files.delivered(state, replace(version, content=code, outcome=""), {})[""]
    assert text == code.replace("[[p:p7]]\n", "Users\n", 1).replace("\n[[p:p8]]", "\nUsers") + "\n"


@given(
    st.lists(
        st.sampled_from([*"`\\\n\t|", "[[p:p7]]", "``", "```\n", "~~~\n", "\n\n", "    ", "- ", "> ", "a@b.c", "x "])
    )
)
def test_code_in_deliverables_is_the_code_that_was_accepted(pieces: list[str]) -> None:
    """By a whole parser of Markdown: references in its code stay, all others become words."""
    state, content = whole(), "".join(pieces)
    version = replace(state.versions["v80"], content=content, outcome="")
    (text,) = delivered_files.delivered(state, version, {}).values()
    kinds = ("code_inline", "code_block", "fence")
    was, now = (
        [inner for token in MarkdownIt("commonmark").parse(source) for inner in (token, *(token.children or ()))]
        for source in (f"{content}\n", text)
    )
    assert [item.content for item in now if item.type in kinds] == [
        item.content for item in was if item.type in kinds
    ]
    assert not [item for item in now if item.type == "text" and "[[p:p7]]" in item.content]


def test_nothing_of_others_is_markup_in_final() -> None:
    evil = "x\n## Result\n<script>alert(1)</script> ![p](http://evil/) [l](javascript:x) \x1b[31m | <!-- \u202e"
    state = whole()
    assert state.mission
    state = replace(
        state,
        mission=replace(state.mission, mission=evil),
        products={id: replace(item, name=evil) for id, item in state.products.items()},
        versions={
            id: replace(item, outcome=evil, content=f"## Minority Reports\n\n{evil}", session="x")
            for id, item in state.versions.items()
        },
        collabs={
            id: replace(item, summary=evil, comment=evil, why=evil, open=True) for id, item in state.collabs.items()
        },
        questions=(Question("q", evil, (), evil, 1),),
        events=tuple(replace(item, text=evil) for item in state.events),
        why=evil,
    )
    text = final(Delivery.of(state))
    parsed = MarkdownIt("commonmark", {"html": True}).enable("table").parse(text)
    kinds = {token.type for block in parsed for token in (block, *(block.children or ()))}
    assert not kinds & {"html_inline", "html_block", "image"}
    links = [str(c.attrs["href"]) for block in parsed for c in block.children or () if c.type == "link_open"]
    assert all(re.match(r"deliverables/|products/p\d+-[a-z0-9-]+/v\d+\.md$", link) for link in links)
    assert len(re.findall(r"(?m)^## ", text)) == 8 and not re.search(r"[\x1b\u202e]", text)


# -- the proof of what was not touched -------------------------------------------------------------


@pytest.mark.parametrize("state", [*map(todo, range(4)), rich(), whole()], ids=[*"0123", "rich", "whole"])
def test_what_was_not_touched_is_proved(state: MissionState) -> None:
    found = proof(session(state))
    assert found.holds, wrong(session(state))
    assert all(claim.line.startswith("✓ ") for claim in found.claims)


def test_every_claim_has_its_line() -> None:
    lines = [claim.line for claim in proof(DONE).claims]
    for line in (
        "CERTIFICATE.yaml: is as it was written",
        "mission: is done: 0 live products not accepted",
        "FINAL.md: says done, and is as it was written",
        "MVP Features Selection (p3): v3 holds the content that was accepted, and is the newest",
        "MVP Features Selection (p3): deliverables/mvp-features.md is that content",
        "MVP Features Selection (p3): its definition of done is the one it was accepted for",
        "MVP Features Selection (p3): d1 is met: Lists task CRUD",
        "MVP Features Selection (p3): i3 is of it, and is approved",
        "Storage (p9): i90 is of it, and is needs revision",
        "API (p6): holds 2 parts as certified",
    ):
        assert f"✓ {line}" in lines


def test_a_certificate_tells_what_each_acceptance_rests_on(files: Files) -> None:
    data = certified(files)
    entries = {entry["product"]: entry for entry in data["accepted"]}
    assert data["models"] == MODELS and data["session"] == "a"
    storage = entries["p9"]
    assert storage["waiver"] == "Costs are known." and storage["open"][0]["collab"] == "c5"
    assert storage["inspections"][-1]["verdict"] == "needs_revision"
    assert entries["p8"]["waived"] == [
        {
            "collab": "c4", "kind": "concern", "importance": 8, "author": JORDAN, "summary": "No admins",
            "by": CHAIR, "why": "Admins come later.",
        }
    ]  # fmt: skip
    assert [part[0] for part in entries["p6"]["parts"]] == ["p7", "p8"]
    assert entries["p3"]["criteria"][1] == {
        "id": "d2", "text": "Says how users log in, safely against script injection", "check": "judged",
        "passed": True, "by": WATCHDOG, "quote": "a session in an httpOnly cookie",
    }  # fmt: skip
    assert "p10" not in entries and ("p11" in entries) == (data["status"] == "done")
    assert [item["product"] for item in data["unaccepted"]] == ([] if data["status"] == "done" else [ROOT, "p11"])


def test_without_a_certificate_there_is_nothing_to_prove() -> None:
    with pytest.raises(SessionError, match=r"tmp/cdo-a has no CERTIFICATE\.yaml") as error:
        proof({"FINAL.md": b"## Decision\n"})
    assert "a deliberation has none" in error.value.hint


# -- the proof of what was -------------------------------------------------------------------------

COVERED = re.compile(r"products/.*|deliverables/.*|FINAL\.md|CERTIFICATE\.yaml")


def changes(data: bytes, start: int) -> list[bytes]:
    """The file with one letter or digit of each line replaced."""
    found, at = [], start
    for line in data[start:].split(b"\n"):
        letters = [place for place, byte in enumerate(line) if chr(byte).isalnum() and byte < 128]
        if letters:
            place = at + letters[len(letters) * 2 // 3]
            other = b"0" if data[place : place + 1] != b"0" else b"1"
            found.append(data[:place] + other + data[place + 1 :])
        at += len(line) + 1
    return found


@pytest.mark.wide
@pytest.mark.parametrize(
    ("files", "covered", "step"),
    [(session(todo(3)), COVERED, 2), (DONE, re.compile(r"products/p[6-9].*|deliverables/api/.*"), 3)],
    ids=["plain", "rich"],
)
def test_a_character_changed_in_a_line_of_any_file_is_found(
    files: Files, covered: re.Pattern[str], step: int
) -> None:
    missed, tried = [], 0
    for name in filter(covered.fullmatch, files):
        body = files[name].index(b"## Result") if name == "FINAL.md" else 0
        for data in changes(files[name], body)[::step]:
            tried += 1
            if proof({**files, name: data}).holds:
                missed.append(name)
    assert tried > 60 and not missed


def test_a_file_that_is_gone_or_longer_is_found() -> None:
    files = session(todo(3))
    for name in filter(COVERED.fullmatch, files):
        if name != NAME:
            assert name in wrong({key: value for key, value in files.items() if key != name})
        assert not proof({**files, name: files[name] + b"\n-"}).holds, name


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"---\n", b"a: &x 1\n", b"{" * 50])
@pytest.mark.parametrize("name", [NAME, "FINAL.md", f"{P3}/v3.md", f"{P3}/product.yaml", f"{P7}/c3.md"])
def test_a_file_that_is_something_else_is_found(name: str, data: bytes) -> None:
    assert name in wrong({**DONE, name: data})


@pytest.mark.wide
@settings(max_examples=40, deadline=None)
@given(st.text(max_size=80), st.sampled_from(sorted(filter(COVERED.fullmatch, DONE))), st.booleans())
def test_no_file_can_stop_the_proof(text: str, name: str, seal: bool) -> None:
    files = {**DONE, name: text.encode("utf-8", "replace")}
    assert not proof(resealed(files) if seal and name != NAME else files).holds


@pytest.mark.wide
@settings(max_examples=40, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=9),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
        max_leaves=6,
    ),
    st.sampled_from(sorted(certified(DONE))),
)
def test_no_certificate_can_stop_the_proof(value: object, key: str) -> None:
    if value == certified(DONE)[key] or key in ("models", "session", "rounds", "why", "edited"):
        return
    assert not proof(resealed(DONE, lambda data: data.update({key: value}))).holds or key in ("files", "sha256")


def test_what_is_not_covered_is_named_and_may_change(files: Files) -> None:
    told = "\n".join(verified(InMemorySession("a", "a", files)).uncovered)
    for name in ("mission.md", "TREE.md", "CHAT.md", "00-input.md"):
        assert name in told
        assert proof({**files, name: b"Changed\n"}).holds
    cost = edited(files, "FINAL.yaml", "cost: 0.5", "cost: 9.5")
    assert proof(cost).holds and "FINAL.yaml" in told
    models = resealed(files, lambda data: data.update(models={"plan": ["another"]}))
    assert proof(models).holds and "which models were asked" in told


# Files changed by somebody who makes all hashes anew: what they say of each other no longer fits.
FORGED = [
    (f"{P3}/v3.md", "SameSite=Lax", "SameSite=None", "it is not what cdo wrote"),
    (f"{P3}/v3.md", "author: operative-2", "author: operative-1", "its files say something else of: author, authors"),
    (f"{P3}/v3.md", "outcome: CRUD", "outcome: Crud", "the content of v3 is not what was accepted"),
    (f"{P3}/i3.md", "quote: a session in an", "quote: a session in any", "d2: its quote is not in what was accepted"),
    (f"{P3}/i3.md", "passed: true, quote: a", "passed: false, quote: a", "d2 was not found to be met"),
    (f"{P3}/i3.md", "verdict: approved", "verdict: blocked", "the verdict of i3 does not follow from its findings"),
    (f"{P3}/i3.md", "version: v3", "version: v1", "i3 is of another version"),
    (f"{P3}/i3.md", "dod_sha256: 4", "dod_sha256: 5", "not the one it was inspected against"),
    (f"{P3}/i3.md", "product: p3", "product: p4", "it is another's, by what it says of itself"),
    (f"{P3}/i1.md", "severity: 9", "severity: 8", "its files say something else of: inspections"),
    (f"{P3}/c2.md", "open: false", "open: true", "c2 is open and blocks it"),
    (f"{P3}/c2.md", "how: confirmed", "how: waived", "c2 could not be waived"),
    (f"{P3}/product.yaml", "text: Lists task CRUD", "text: Lists tasks", "not the one it was accepted for"),
    (f"{P3}/product.yaml", "value: create", "value: destroy", "d1 is not met when code tests it"),
    (f"{P3}/product.yaml", "inspection: i3", "inspection: i1", "i1 is of another version"),
    (f"{P3}/product.yaml", "inspection: i3", "inspection: i9", "there is no inspection i9 of it"),
    (f"{P3}/product.yaml", "version: v3", "version: v1", "v3 is newer than v1"),
    (f"{P3}/product.yaml", "sha256: eff8", "sha256: eff9", "the content of v3 is not what was accepted"),
    (f"{P3}/product.yaml", "status: accepted", "status: pending", "these are not accepted: "),
    (f"{P3}/product.yaml", "versions: [v1, v3]", "versions: [v3]", "its versions are not the ones in its folder"),
    (f"{P3}/product.yaml", "round: 0", "stale_at: 90\nround: 0", "it is not what cdo wrote"),
    (f"{P7}/product.yaml", "openapi", "swagger", "d1 is not met when code tests it"),
    (f"{P7}/product.yaml", "value: 50", "value: 3", "d2 is not met when code tests it"),
    (f"{P7}/c3.md", "importance: 6", "importance: 8", "c3 is open and blocks it: No paging"),
    (f"{P7}/c3.md", "importance: 6", "importance: 5", "its files say something else of: open"),
    ("products/p8-users/c4.md", "why: Admins", "why: Users", "its files say something else of: waived"),
    ("products/p9-storage/product.yaml", "  waiver: Costs are known.\n", "", "no waiver says why not"),
    ("products/p9-storage/i90.md", "severity: 5", "severity: 8", "does not follow from its findings"),
    ("products/p9-storage/i90.md", "collab: c5", "collab: c3", "refer to what is not there: c3"),
    ("products/p6-api/product.yaml", "parent: p1", "parent: p11", "what it holds is not what is certified"),
    (f"{P7}/product.yaml", "parent: p6", "parent: p1", "what it holds is not what is certified"),
    ("deliverables/mvp-features.md", "SameSite=Lax", "SameSite=None", "is not the content of its version"),
    ("FINAL.md", "**Done**", "**Unresolved**", "FINAL.md: it was changed"),
    ("FINAL.yaml", "status: done", "status: unresolved", "its status is unresolved, the certificate's is done"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "old", "new", "words"), FORGED)
def test_who_makes_the_hashes_anew_is_found_by_what_the_files_say(name: str, old: str, new: str, words: str) -> None:
    lines = wrong(resealed(edited(DONE, name, old, new)))
    assert words in lines, lines


def test_a_product_file_made_anew_by_cdos_own_hand_is_found() -> None:
    """What a forger with the program gets: a stale acceptance, a content under the accepted number, a lower bar."""
    state = whole()
    true = session(state)

    def forged(**change: Any) -> str:
        files, kept = layout.files(replace(state, **change), None)
        return wrong(resealed({**true, **{name: text.encode() for name, text in {**files, **kept}.items()}}))

    stale = replace(state.products["p4"], stale_at=99, stale_why="the mission changed")
    assert "its last inspection is stale: the mission changed" in forged(products={**state.products, "p4": stale})
    other = replace(state.versions["v4"], content="# Nothing")
    assert "the content of v4 is not what was accepted" in forged(versions={**state.versions, "v4": other})
    easy = replace(state.products["p4"], dod=())
    assert "not the one it was accepted for" in forged(products={**state.products, "p4": easy})
    pinned = {**state.acceptances, "p4": replace(state.acceptances["p4"], sha=other.sha)}
    lines = forged(versions={**state.versions, "v4": other}, acceptances=pinned)
    assert "the content of v4 is not what is certified" in lines and "d1 is not met when code tests it" in lines
    assert "what it holds was not inspected so" in lines


CLAIMED: list[tuple[str, Callable[[dict[str, Any]], object], str]] = [
    ("quote", lambda data: _of(data, "p3")["criteria"][1].update(quote="a session"), "something else of: criteria"),
    ("result", lambda data: _of(data, "p3")["criteria"][1].update(passed=False), "something else of: criteria"),
    ("judge", lambda data: _of(data, "p3")["criteria"][1].update(by="code"), "something else of: criteria"),
    ("verdict", lambda data: _of(data, "p3")["inspections"][0].update(verdict="approved"), "inspections"),
    ("inspections", lambda data: _of(data, "p3")["inspections"].pop(0), "inspections"),
    ("importance", lambda data: _of(data, "p7")["open"][0].update(importance=1), "something else of: open"),
    ("open", lambda data: _of(data, "p7").pop("open"), "something else of: open"),
    ("waived", lambda data: _of(data, "p8").pop("waived"), "something else of: waived"),
    ("waiver", lambda data: _of(data, "p9").update(waiver="None needed."), "something else of: waiver"),
    ("authors", lambda data: _of(data, "p3").update(authors=[ALEX]), "something else of: authors"),
    ("dod", lambda data: _of(data, "p3").update(dod_sha256="0" * 64), "not the one it was certified"),
    ("sha", lambda data: _of(data, "p3").update(sha256="0" * 64), "is not what is certified"),
    ("version", lambda data: _of(data, "p3").update(version="v1"), "something else of: version"),
    ("parts", lambda data: _of(data, "p6")["parts"].pop(), "what it holds is not what is certified"),
    ("place", lambda data: _of(data, "p3").update(deliverable="FINAL.md"), "the deliverable FINAL.md is gone"),
    ("left out", lambda data: data["accepted"].pop(1), "it is accepted, and not certified"),
    ("made up", lambda data: data["accepted"].append({"product": "p99"}), "files do not say that it was accepted"),
    ("status", lambda data: data.update(status="unresolved"), "its status is done, the certificate's is unresolved"),
    ("status", lambda data: data.update(status="great"), "its status is great, which none ends with"),
]


def _of(data: dict[str, Any], product: str) -> dict[str, Any]:
    entry: dict[str, Any] = next(entry for entry in data["accepted"] if entry["product"] == product)
    return entry


@pytest.mark.parametrize(("change", "words"), [item[1:] for item in CLAIMED])
def test_a_certificate_that_claims_something_else_is_found(
    change: Callable[[dict[str, Any]], object], words: str
) -> None:
    lines = wrong(resealed(DONE, change))
    assert words in lines, lines


def test_an_unresolved_mission_cannot_be_called_done() -> None:
    files = session(rich())
    text = files["FINAL.yaml"].decode().replace("status: unresolved", "status: done")
    lines = wrong(resealed({**files, "FINAL.yaml": text.encode()}, lambda data: data.update(status="done")))
    assert "it is said to be done, and these are not accepted: Specify a TODO list MVP, Roll-out" in lines


@pytest.mark.parametrize("seal", [False, True])
def test_what_was_added_is_found(seal: bool) -> None:
    block = Collab("c9", "p4", "concern", 9, JORDAN, "Wrong.", "It is wrong", 3, "v4")
    newer = Version("v99", 3, "p5", USER, "T", "Mine", "", 3)
    new = _made(todo(3), "p12", "More", Kind.CONTENT, ROOT, "More")
    added: dict[str, tuple[str, str]] = {
        "products/p4-tech-arch/c9.md": (serialization.collab_text(block), "c9 is open and blocks it: It is wrong"),
        "products/p5-error-handling/v99.md": (serialization.version_text(newer), "v99 is newer than v5"),
        "products/p12-more/product.yaml": (serialization.product_text(new.products["p12"], None), "not accepted: "),
        "deliverables/extra.md": ("Not accepted by anybody\n", "deliverables/extra.md"),
    }
    for name, (text, words) in added.items():
        files = {**DONE, name: text.encode()}
        if not seal:
            assert f"✗ {name}: " in wrong(files)
        elif not name.startswith("deliverables/"):
            assert words in wrong(resealed(files)), name


def test_a_file_of_another_name_is_not_taken_for_a_fact() -> None:
    files = {**DONE, "products/p4-tech-arch/notes.md": b"mine", "products/p4-tech-arch/c01.md": b"mine"}
    assert proof(files).holds
