"""What looks at missions from outside: branches of git, `watch`, lists and searches, `replay`, `diff`, refusals."""

from __future__ import annotations

import asyncio
import io
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from cdo.app.replay import rehearse
from cdo.app.replay_diff import ReplayReport, compare
from cdo.cabal.files import status
from cdo.content.library import Library
from cdo.core.events import ReplyAccepted
from cdo.history.journal_follower import Journal
from cdo.session import branch_reader
from cdo.session.reader import SessionFolder
from cdo.terminal.live_screen import frame
from cdo.terminal.run_state import LiveRun
from cdo.terminal.run_words import line
from tests.conftest import Desk, explained
from tests.runs import test_mission
from tests.runs.test_mission import deciding, names, todo_script_of, told
from tests.runs.test_replay import stamped
from tests.support.cabal_team import ALEX, JORDAN, REQUEST, XSS, question
from tests.support.events import happened
from tests.support.faults import Fault
from tests.support.harness import kill_group, wait_for
from tests.support.provider import Provider
from tests.support.repositories import git, repository, subjects

TEAM = ("cabal", "--yes", *test_mission.TEAM[1:])  # the estimate in a repository is above what is asked for
ROUNDS = [
    "Begin: Build a simple TODO list web application MVP",
    "Round 0: 3 products planned",
    "Round 1: 3 versions, 1 of 3 accepted, 1 blocker",
    "Round 2: 4 versions, 4 of 4 accepted",
    "Round 3: 1 version, 4 of 4 accepted",
]
COMMANDS = (
    ("list",), ("list", "--json"), ("list", "--git"), ("show", "a"), ("show", "a", "--json"),
    ("show", "a", "r1-plan"), ("final", "a"), ("search", "cookie"), ("cost",), ("cost", "a", "--by", "turn"),
    ("cost", "--by", "role", "--json"), ("replay", "a"), ("replay", "a", "--json"), ("fork", "a"), ("audit", "a"),
    ("audit",), ("diff", "a"), ("diff", "a", "a"), ("diff", "a:1", "a:2"), ("report", "a"), ("verify", "a"),
    ("restore", "a"), ("answer", "a", "yes"), ("context", "p3", "--step", "write", "--session", "a"), ("watch", "a"),
)  # fmt: skip


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """The TODO list, done, in a repository of git; only to be looked at or copied."""
    with Provider(script=told({})) as provider:
        base = tmp_path_factory.mktemp("played")
        (base / "work").mkdir()
        repository(base / "work")
        desk = Desk(base / "work", provider.url)
        desk(*TEAM, "-q", REQUEST).ok()
        yield desk


@pytest.fixture
def done(played: Desk, tmp_path: Path) -> Desk:
    """A copy of the finished mission, at a desk without key and provider."""
    shutil.copytree(played.path, tmp_path / "copy" / "work", symlinks=True)
    return Desk(tmp_path / "copy" / "work")


@pytest.fixture
def todo(cdo: Desk, provider: Provider) -> Desk:
    """A repository of git in which the TODO team works."""
    provider.script = told({})
    repository(cdo.path)
    return cdo


def lying(session: Path) -> dict[str, bytes]:
    """Every file of a session."""
    return {str(path.relative_to(session)): path.read_bytes() for path in session.rglob("*") if path.is_file()}


def kept(folder: Path, commit: str) -> set[str]:
    """The names of the files in a commit."""
    return set(git(folder, "ls-tree", "-r", "--name-only", commit).splitlines())


def broken_off(desk: Desk, provider: Provider, call: str) -> None:
    """A mission that was killed while it waited for a call."""

    def committed() -> bool:
        begun = "/cdo/a\n" in git(desk.path, "for-each-ref", "--format=%(refname)") + "\n"
        return begun and f"Round {int(call[1]) - 1}" in "".join(subjects(desk.path))

    provider.hold(call)
    process = desk.start(*TEAM, "-q", REQUEST)
    try:
        wait_for(lambda: call in names(provider) and committed())
    finally:
        kill_group(process.pid)
        process.communicate()
        provider.release()


def again(desk: Desk, name: str = "a") -> ReplayReport:
    """What a replay finds; the session is left byte for byte as it was."""
    place = desk.session(name)
    before = stamped(place)
    found = compare(asyncio.run(rehearse(SessionFolder(place), Library.at(desk.path))))
    assert stamped(place) == before
    return found


# -- branches --------------------------------------------------------------------------------------


def test_every_round_is_a_commit_that_people_and_machines_can_read(played: Desk) -> None:
    assert subjects(played.path)[:5] == ROUNDS
    assert subjects(played.path)[5].startswith("FINAL: Done: all of 4 products accepted after 3 rounds.")
    first = git(played.path, "log", "-1", "--format=%B", "cdo/a~3")
    assert f"- MVP Features Selection by: {XSS}" in first
    assert "- MVP Features Selection: blocked" in first and "- Technical Architecture: approved" in first
    assert "- Technical Architecture, version 1 by operative-1: First draft" in first
    assert "Accepted in all: 1 of 3" in first and "This round: 8 calls" in first
    said = branch_reader.trailers(first)
    keys = ("Cdo-Event", "Cdo-Turn", "Cdo-Accepted", "Cdo-Live", "Cdo-Blockers", "Cdo-Calls")
    assert [said[key] for key in keys] == ["turn", "1", "1", "3", "1", "9"]
    assert "Halt: done: All products are accepted." in git(played.path, "log", "-1", "--format=%B", "cdo/a~1")
    git(played.path, "fsck", "--strict", "--no-dangling")


def test_a_commit_holds_its_round_and_nothing_that_was_said_later(played: Desk) -> None:
    begin, setup, first, second, third = (kept(played.path, f"cdo/a~{back}") for back in (5, 4, 3, 2, 1))
    assert begin == {"00-context.md", "00-input.md", "session.yaml"}
    assert {"TREE.md", "mission.md", "r0-bootstrap.md"} <= setup and not any(name.startswith("r1") for name in setup)
    assert f"r1-write-{ALEX}.md" in first and not any(name.startswith(("r2-", "r3-")) for name in first)
    assert any(name.endswith("/v7.md") for name in second) and not any(name.startswith("r3-") for name in second)
    assert not {name for name in third if name.startswith(("FINAL", "CERTIFICATE", "deliverables/"))}
    assert kept(played.path, "cdo/a") == set(lying(played.session()))


def test_what_a_round_published_is_in_its_commit(todo: Desk, provider: Provider) -> None:
    broken_off(todo, provider, f"r2-reflect-{ALEX}")
    assert subjects(todo.path) == ROUNDS[:3]
    tree = git(todo.path, "show", "cdo/a:TREE.md")
    assert "round: 1" in tree and XSS in tree
    versions = {Path(name).name for name in kept(todo.path, "cdo/a") if re.search(r"/v[0-9]+\.md$", name)}
    assert versions == {"v1.md", "v2.md", "v3.md"}


def test_a_mission_is_listed_shown_and_restored_from_its_branch(done: Desk) -> None:
    before = lying(done.session())
    done("resume", "a", "-q", env={"OPENAI_API_KEY": "x", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}).ok()
    assert len(subjects(done.path)) == 6, "nothing new is no commit"
    shutil.rmtree(done.session())
    listed = done("list", "--git", "--json").ok().json
    assert [(row["session"], row["preset"], row["status"], row["confidence"]) for row in listed] == [
        ("a", "cabal", "done", None)
    ]
    shown = done("show", "a").ok().out
    assert "git ref cdo/a" in shown and re.search(
        r"MVP Features Selection +accepted +2 .v7. +operative-2 +approved", shown
    )
    assert done("final", "a").ok().out.encode() == before["FINAL.md"]
    for file in ("CERTIFICATE.yaml", next(file for file in before if file.endswith("/v7.md"))):
        assert done("show", "a", file.removesuffix(".md")).ok().out.encode() == before[file], file
    for name in ("products", "products/../FINAL", "/etc/hosts"):
        explained(done("show", "a", name), 2, "has no file")
    done("restore", "a").ok()
    after = lying(done.session())
    assert {**after, "journal.jsonl": b""} == {**before, "journal.jsonl": b""}
    done("verify", "a").ok()


def test_folders_may_lie_in_folders_and_no_name_leaves_them() -> None:
    assert branch_reader.acceptable("deliverables/a/b/c/d/e/f/g/h/i/j.md")
    assert branch_reader.acceptable("products/p4-technical-architecture/My notes.md")
    for name in ("/".join("abcdefghijk") + "/x.md", "products/../x.md", "products/P4/x.md", "a//x.md", "products/.x"):
        assert not branch_reader.acceptable(name), name


def test_a_killed_mission_goes_on_without_a_commit_twice_and_a_persons_changes_are_one(
    todo: Desk, provider: Provider
) -> None:
    broken_off(todo, provider, "r2-plan")
    assert subjects(todo.path) == ROUNDS[:3]
    file = next(todo.session().glob("products/p4-*/v2.md"))
    file.write_text(file.read_text().replace("PostgreSQL", "CockroachDB"))
    (file.parent / "mine.md").write_text("# Mine\n\nOne process is enough for [[p:p3]], says who pays for it.\n")
    todo.write("tmp/cdo-a/inbox/note.md", "Take your time.")
    provider.faults = [Fault(status=401, call="r3-plan")]
    todo("resume", "a", "-q").failed(4)
    found = subjects(todo.path)
    place = str(file.relative_to(todo.session()).parent)
    assert found[3].startswith("Edited: inbox/note.md, ") and [*found[:3], found[4][:8]] == [*ROUNDS[:3], "Round 2:"]
    changed = git(todo.path, "log", "-1", "--format=%B", f"cdo/a~{len(found) - 4}")
    assert all(f"- {name}" in changed for name in ("inbox/note.md", f"{place}/mine.md", f"{place}/v2.md"))
    assert found[5:] == [found[5]] and found[5].startswith("Stopped (failed) after round 2: ")
    assert kept(todo.path, "cdo/a") == set(lying(todo.session()))


def test_what_cdo_wrote_before_it_was_killed_is_nobodys_edit(todo: Desk, provider: Provider) -> None:
    broken_off(todo, provider, "r2-plan")
    git(todo.path, "update-ref", "refs/cdo/a", "cdo/a~1")
    todo("resume", "a", "-q").ok()
    assert subjects(todo.path)[:5] == ROUNDS and len(subjects(todo.path)) == 6


@pytest.mark.slow
def test_a_raised_cap_makes_new_commits_of_what_is_new(todo: Desk) -> None:
    todo(*TEAM, "-q", "--max-calls", "6", REQUEST).failed(3)
    first = subjects(todo.path)
    assert first[2] == "Round 1: 3 versions, 1 of 3 accepted, 1 blocker" and first[3].startswith("FINAL: Unresolved")
    told = git(todo.path, "log", "-1", "--format=%B", "cdo/a")
    assert "Missing: MVP Features Selection is not accepted" in told and "Cdo-Status: unresolved" in told
    todo("resume", "a", "-q", "--yes", "--max-calls", "100").ok()
    assert [name.partition(":")[0] for name in subjects(todo.path)[4:]] == ["Round 1", "Round 2", "Round 3", "FINAL"]
    assert kept(todo.path, "cdo/a") == set(lying(todo.session()))


# -- questions -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_mission_that_waits_says_so_everywhere(todo: Desk, provider: Provider) -> None:
    provider.script = told({"r1-plan": question("Cookies?", "yes", "no"), "r1-plan-2": todo_script_of("r1-plan")})
    todo(*TEAM, REQUEST).failed(6, "Cookies?")
    assert subjects(todo.path)[2] == "Stopped (paused) after round 0: The team asks you: Cookies? (yes / no)"
    assert [row["status"] for row in todo("list", "--json").ok().json] == ["paused"]
    assert todo("show", "a").ok().out.count("Cookies? (yes / no)") == 1
    watched = todo("watch", "a").ok()
    assert "question: Cookies? (yes / no)" in watched.out and "`cdo resume a`" in watched.err
    found = again(todo)
    assert (found.differences, found.unknown, found.then) == ((), (), None) and "Cookies?" in found.stopped
    todo("answer", "a", "1").ok()
    assert again(todo).unknown == ("r1-plan-2",), "the answer that lies in the inbox is taken"
    todo("resume", "a", "-q").ok()
    assert subjects(todo.path)[3].startswith("Edited: inbox/answer.md")
    assert again(todo).differs is False


# -- watch -----------------------------------------------------------------------------------------


def drawn(board: LiveRun, width: int, height: int = 40) -> str:
    """What a terminal shows."""
    screen = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    screen.print(frame(board, 0.0, width, height))
    return screen.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def boards(desk: Desk) -> dict[str, LiveRun]:
    """What a view knew when each round was told, by its event's name; and at the end."""
    board, found = LiveRun("a", "cabal"), {}
    for fresh in Journal(desk.session()).news():
        assert not fresh.damaged
        for at, event in fresh.events:
            board = board.apply(event, at)
            if event.kind == "round":
                found[event.name] = board
    return {**found, "": board}


def test_a_board_knows_the_products_and_what_blocks_them(played: Desk) -> None:
    found = boards(played)
    first, last = found["r1"], found[""]
    assert first.accepted == (1, 3) and first.came == "3 versions, 1 of 3 accepted, 1 blocker"
    features = first.products["MVP Features Selection"]
    assert (features.version, features.owner, features.verdict, features.blocked) == (
        1, JORDAN, "blocked", (XSS,),
    )  # fmt: skip
    assert last.products["MVP Features Selection"].blocked == () and last.accepted == (4, 4)
    assert [row.split("  ")[0] for row in last.finished] == ["round 0", "round 1", "round 2"]
    assert "3 versions, 1 of 3 accepted, 1 blocker" in last.finished[1]
    assert "4 of 4 accepted" in last.outcome()


@pytest.mark.parametrize("width", [60, 80, 140])
def test_a_frame_shows_agents_products_and_blockers_at_every_width(played: Desk, width: int) -> None:
    rows = drawn(boards(played)["r1"], width).splitlines()
    assert all(len(row) < width for row in rows)
    text = "\n".join(rows)
    assert "products: 1 of 3 accepted, 1 blocked" in text and f"✗ {XSS}" in text
    assert text.count("accepted") == 1, "it is said once"
    assert " conf " not in text
    assert f"write-{ALEX}" in text and ("1 of 2 criteria said" in text) is (width > 60)
    low = drawn(boards(played)["r1"], width, 14).splitlines()
    assert len(low) <= 14 and any(XSS in row or "MVP Features" in row for row in low), "what is blocked comes first"


def test_a_question_stands_in_the_frame_until_it_is_answered() -> None:
    asked = happened("pause", "r1-plan-question", {"question": "Which \x1b[31mdatabase?", "options": []})
    board = (
        LiveRun("a", "cabal").apply(happened("batch", "", {"calls": [["r1-plan", "plan"]]}), 0.0).apply(asked, 0.0)
    )
    assert "? Which ␛[31mdatabase?" in drawn(board, 80) and line(asked, board).endswith("database?")
    after = board.apply(happened("batch", "", {"calls": [["r1-plan-2", "plan"]]}), 0.0)
    assert "database" not in drawn(after, 80)


def test_a_deliberation_inside_ends_neither_the_mission_nor_its_round() -> None:
    board = LiveRun("a", "cabal")
    setup = {
        "round": 0,
        "accepted": 0,
        "live": 1,
        "blockers": 0,
        "versions": [],
        "verdicts": [],
        "blocked": [],
        "halt": "",
        "why": "",
    }
    for event in (
        happened("round", "r0", setup),
        happened("batch", "", {"calls": [["r1-plan", "plan"]]}),
        happened("batch", "", {"calls": [["t1-critic", "agent"]]}),
        happened("done", "", {"session": "a-r1-p2", "status": "converged"}),
        happened("batch", "", {"calls": [["r1-inspect-p3", "inspect"]]}),
    ):
        board = board.apply(event, 0.0)
    assert (board.over, board.resumed, board.title, board.status) == (False, False, "round 1", "")


def test_what_a_reply_holds_is_told_in_a_few_words(played: Desk) -> None:
    said: dict[str, object] = {}
    for fresh in Journal(played.session()).news():
        said |= {event.name: event.position for _, event in fresh.events if isinstance(event, ReplyAccepted)}
    assert said["r0-bootstrap"] == "3 products"
    assert said["r1-plan"] == "2 assignments" and said["r3-plan"] == "halt: done"
    assert said["r2-plan"] == "3 assignments, 1 tree operation"
    assert (
        said["r1-inspect-p4"] == "2 of 2 criteria said to be met, no finding"
        and said[f"r1-write-{ALEX}"] == "1 version"
    )
    assert said[f"r1-review-{JORDAN}"] == "1 collab"


def test_a_mission_is_watched_from_outside_while_it_runs(todo: Desk, provider: Provider) -> None:
    provider.hold("r2-plan")
    process = todo.start(*TEAM, "-q", REQUEST)
    try:
        wait_for(lambda: "r2-plan" in names(provider))
        assert [row["status"] for row in todo("list", "--json").ok().json] == ["running"]
        shown = {row["name"]: row for row in todo("show", "a", "--json").ok().json["products"]}
        assert shown["MVP Features Selection"]["blocked"] == [XSS]
        watcher = todo.start("watch", "a")
        provider.release()
        out, err = watcher.communicate(timeout=60)
    finally:
        kill_group(process.pid)
        process.communicate()
    assert watcher.returncode == 0, err
    assert f"round 1 ends: 3 versions, 1 of 3 accepted, 1 blocker (MVP Features Selection: {XSS})" in out
    assert "round 3 ends: 1 version, 4 of 4 accepted; done: " in out and "Status      done after 3 rounds: " in out


def test_a_hostile_tree_of_files_ends_and_is_bounded(done: Desk) -> None:
    products = done.session() / "products"
    text = next(products.glob("p3-*/product.yaml")).read_text()
    (products / "p3-mvp-features-selection/product.yaml").write_text(text.replace("parent: p1", "parent: p3"))
    (products / "p90-x").mkdir()
    (products / "p90-x/product.yaml").write_text(text.replace("id: p3", "id: p91"))
    (products / "p4-technical-architecture/product.yaml").write_text("\x00")
    (products / "p4-technical-architecture/i99.md").write_text("---\nverdict: [")
    found = [row["id"] for row in status.products(SessionFolder(done.session()))]
    assert sorted(found) == ["p1", "p2", "p3", "p5"]
    assert done("show", "a").ok()


# -- the library -----------------------------------------------------------------------------------


def test_a_mission_is_found_by_what_it_asked_decided_and_delivered(done: Desk) -> None:
    row = done("list", "--json").ok().json[0]
    assert (row["preset"], row["status"], row["rounds"], row["confidence"]) == ("cabal", "done", 3, None)
    assert "Task CRUD, login by a session in an httpOnly cookie" in row["decision"]
    hits = done("search", "gateway", "--json").ok().json
    assert [(hit["session"], hit["where"]) for hit in hits] == [("a", "deliverables/technical-architecture.md")]
    assert done("search", "CRUD", "login", "httpOnly", "--json").ok().json
    assert done("search", "localStorage", "--json").ok().json == [], "what was not accepted is not found"
    assert done("list", "--status", "done").ok().out.startswith("a  cabal  done")
    assert done("list", "--status", "unresolved").ok().out == ""


def test_costs_are_by_round_and_agent_and_a_deliberation_counts_once(todo: Desk, provider: Provider) -> None:
    provider.script = told(deciding())
    result = todo(*TEAM, "--json", REQUEST).ok().json
    total = todo("cost", "--json").ok().json["total"]
    assert total["calls"] == result["calls"] == len(provider.calls)
    assert total["cost"] == pytest.approx(result["cost"])
    roles = {row["role"] for row in todo("cost", "a", "--by", "role", "--json").ok().json["sums"]}
    assert roles == {"chair-1", ALEX, JORDAN, "watchdog-1", "envoy-1"}
    turns = [row["turn"] for row in todo("cost", "a", "--by", "turn", "--json").ok().json["sums"]]
    assert turns == ["0", "1", "2"]
    assert re.search(r"deliberations: ?a-r1-p2 \(paid there: \$", todo("show", "a").ok().out)
    inside = git(todo.path, "log", "-1", "--format=%B", "cdo/a~2")
    assert "Round 1" in inside and f"This round: {result['calls'] - 4} calls" in inside
    provider.reset()
    assert again(todo).differs is False and provider.calls == []


def test_a_mission_is_recalled_by_its_result_and_its_decisions(done: Desk) -> None:
    from cdo.history.recall import recalled

    found = recalled("A simple TODO list web application, again", done.path / "tmp", Library.at(done.path), 3, 2000)
    assert found.names == ("a",) and "login by a session in an httpOnly cookie" in found.text


# -- replay ----------------------------------------------------------------------------------------


def test_a_finished_mission_replays_to_the_same_bytes(done: Desk) -> None:
    found = again(done)
    assert (found.differences, found.edited, found.unknown, found.notes) == ((), (), (), ())
    assert found.calls == 25 and {"TREE.md", "CERTIFICATE.yaml", "FINAL.md"} <= set(found.same)
    assert found.now == found.then and found.now and (found.now.turns, found.now.unit) == (3, "round")
    told = done("replay", "a", "--strict").ok().out
    assert told.endswith("Ends the same: done, 3 rounds\n")


def test_an_edited_reply_or_version_is_taken_as_the_person_left_it(done: Desk) -> None:
    reply = done.session() / "r3-present.md"
    reply.write_text(reply.read_text().replace('"content": "', '"content": "Well, '))
    version = next(done.session().glob("products/p4-*/v2.md"))
    version.write_text(version.read_text().replace("Every request", "Each request"))
    found = again(done)
    assert set(found.edited) == {"r3-present.md", str(version.relative_to(done.session()))}
    assert found.now is not None


def test_a_broken_off_mission_replays_to_where_it_was_and_names_what_comes_next(
    todo: Desk, provider: Provider
) -> None:
    broken_off(todo, provider, "r2-plan")
    found = again(todo)
    assert (found.unknown, found.then, found.now, found.differences) == (("r2-plan",), None, None, ())
    assert "Unfinished: it would go on with r2-plan" in todo("replay", "a", "--strict").ok().out


def test_a_mission_that_a_cap_ended_replays_to_the_same_end(todo: Desk, provider: Provider) -> None:
    todo(*TEAM, "-q", "--max-calls", "6", REQUEST).failed(3)
    provider.reset()
    found = again(todo)
    assert found.differs is False and found.then and found.then.status == "unresolved" and provider.calls == []


def test_a_changed_record_is_told(done: Desk) -> None:
    version = next(done.session().glob("products/p4-*/product.yaml"))
    version.write_text(version.read_text().replace("status: accepted", "status: pending"))
    assert [(item.file, item.how) for item in again(done).differences] == [
        (str(version.relative_to(done.session())), "differs")
    ]


# -- what missions do not have ---------------------------------------------------------------------


def test_what_a_mission_cannot_is_refused_with_what_to_do_instead(done: Desk) -> None:
    explained(done("fork", "a"), 2, "cannot be forked", "inbox/")
    explained(done("audit", "a"), 8, "cannot be audited", "cdo verify a")
    explained(done("diff", "a"), 2, "git log -p cdo/a")
    explained(done("diff", "a:1", "a:2"), 2, "git log -p cdo/a")
    assert not [path for path in done.sessions() if path.name != "cdo-a"]


def test_missions_are_set_side_by_side_and_never_beside_a_deliberation(todo: Desk, provider: Provider) -> None:
    todo(*TEAM, "-q", REQUEST).ok()
    provider.script = told({"r2-inspect-p5": "I cannot say."})
    todo(*TEAM[:-1], "b", "-q", "--rounds", "2", REQUEST).failed(3)
    found = todo("diff", "a", "b", "--json", "--strict").failed(3).json
    rows = {(row["part"], row["name"]): (row["a"], row["b"], row["same"]) for row in found["rows"]}
    assert rows["products", ""] == ("4 of 4 accepted", "2 of 4 accepted", False)
    one, other, same = rows["products", "Error Handling"]
    assert (one, same) == ("accepted, version 1, approved", False) and other.startswith("in progress, version 1")
    assert rows["rounds", ""] == ("3", "2", False) and rows["status", ""][1].startswith("unresolved: ")
    assert ("confidence", "") not in rows and ("voices", "") not in rows
    todo("think", "--session", "c", "-q", "Which list?").ok()
    explained(todo("diff", "a", "c"), 2, "a is a mission and c a deliberation")
    explained(todo("diff", "c", "a"), 2, "a is a mission and c a deliberation")


@pytest.mark.parametrize(
    "how",
    ["done", "asking", "unfinished", "unresolved", "torn", "empty"],
)
@pytest.mark.slow
def test_no_command_breaks_on_a_mission(todo: Desk, provider: Provider, how: str) -> None:
    if how == "unfinished":
        broken_off(todo, provider, "r2-plan")
    elif how == "asking":
        provider.script = told({"r0-bootstrap": question("Which database?")})
        todo(*TEAM, "-q", REQUEST).failed(6)
    else:
        todo(*TEAM, "-q", *(("--rounds", "1") if how == "unresolved" else ()), REQUEST)
    if how == "torn":
        (todo.session() / "FINAL.md").write_text("---\nstatus: [\n---\n")
        (todo.session() / "r1-plan.md").write_bytes(b"\xff")
        (todo.session() / "TREE.md").unlink()
        shutil.rmtree(todo.session() / "products")
    elif how == "empty":
        for path in todo.session().glob("calls/*"):
            path.write_text("{")
    provider.reset()
    for args, ended in zip(COMMANDS, todo.several(*COMMANDS), strict=True):
        assert ended.code in (0, 2, 3, 8), (args, ended)
        assert "Traceback" not in ended.err and "Internal" not in ended.err, (args, ended.err)
        assert ended.code in (0, 3) or ended.complaint, args
        if "--json" in args and ended.code == 0:
            json.loads(ended.out)
    assert provider.calls == []
