"""Sessions on branches: found when their folder is gone, read whatever pushed them, and restored."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cdo.content.library import PACKAGED, Library
from cdo.core.errors import SessionError, UsageError
from cdo.history import history
from cdo.observers.commit_messages import CommitMessageBuilder
from cdo.repository.git import Repository, find
from cdo.session import branch_reader
from cdo.session.branch_reader import BranchSession, kept, open_branch, trailers, turns
from cdo.session.reader import SessionFolder
from cdo.session.records import session_path
from tests.conftest import A, Desk, explained
from tests.support.events import happened
from tests.support.provider import Provider
from tests.support.repositories import git, repository, subjects

LIBRARY = Library((("packaged", PACKAGED),))
WHEN = (1_700_000_000, "+0000")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A desk in a repository where the session `a` is finished and `b` stopped; only to be looked at."""
    with Provider() as provider:
        base = tmp_path_factory.mktemp("told")
        (base / "work").mkdir()
        repository(base / "work")
        desk = Desk(base / "work", provider.url)
        desk("think", "--turns", "2", "--session", "a", "Should we split the service?").ok()
        desk("think", "--session", "b", "--max-calls", "5", "Should we move?").failed(5)
        yield desk


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    """An own repository, for branches that somebody else made."""
    (tmp_path / "repo").mkdir()
    repository(tmp_path / "repo")
    found = find(tmp_path / "repo")
    assert found
    return found


# -- what there is ---------------------------------------------------------------------------------


@pytest.mark.wide
def test_sessions_on_branches_are_told_from_their_newest_commit(told: Desk) -> None:
    found = {row.name: row for row in kept(told.path / "tmp")}
    assert list(found) == [row.name for row in kept(told.path)] and set(found) == {"a", "b"}
    a, b = found["a"], found["b"]
    final = told("show", "a", "--json").ok().json
    assert (a.status, a.turn, a.problem) == ("max_turns", 2, "Should we split the service?")
    assert a.confidence == pytest.approx(final["confidence"], abs=0.005) and a.cost == pytest.approx(final["cost"])
    assert (b.status, b.turn, b.branch) == ("budget", 1, "cdo/b") and b.date.startswith("20")
    frozen = yaml.safe_load((told.session() / "session.yaml").read_text())
    assert (a.preset, a.created) == ("think", frozen["created"])
    every = git(told.path, "log", "--format=%(trailers:key=Cdo-Created,valueonly,separator=)", "cdo/a").split()
    assert every == [frozen["created"]] * 4


def test_without_a_repository_there_are_none(tmp_path: Path) -> None:
    assert kept(tmp_path) == ()
    assert open_branch(tmp_path, "a") is None


def test_a_repository_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    with pytest.raises(SessionError, match="cannot be read"):
        kept(tmp_path)


def test_a_session_reads_from_its_branch_as_from_its_folder(told: Desk) -> None:
    branch, folder = open_branch(told.path, "a"), SessionFolder(told.session())
    assert branch and branch.place == "git ref cdo/a" and branch.name == "a"
    assert branch.files() == folder.files()
    assert all(branch.data(name) == folder.data(name) for name in branch.files() if name != "journal.jsonl")
    here, there = history.read(branch), history.read(folder)
    assert here == there
    assert branch.artifact("t1-critic") == folder.artifact("t1-critic")


@pytest.mark.wide
@pytest.mark.parametrize("name", ["zz", "../a", "a..b", "", "*", "main", "a.lock", "-x", "refs/heads/cdo/a"])
def test_what_is_no_branch_of_a_session_is_none(told: Desk, name: str) -> None:
    assert (open_branch(told.path, name) is None) or name == "refs/heads/cdo/a"


@pytest.mark.wide
def test_branches_of_remotes_are_found_where_there_is_none_here(told: Desk, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", str(told.path), "clone")
    clone = tmp_path / "clone"
    git(clone, "fetch", "-q", "origin", "refs/cdo/*:refs/remotes/origin/cdo/*")
    git(clone, "branch", "cdo/b", "origin/cdo/b")
    assert {row.name for row in kept(clone)} == {"origin/a", "b"}
    for name in ("origin/a", "a", "cdo/a"):
        found = open_branch(clone, name)
        assert found and found.place == "branch origin/cdo/a" and found.name == "a", name
    (clone / "tmp").mkdir()
    desk = Desk(clone, told.url)
    assert desk("restore", "origin/a").ok().out == "tmp/cdo-a\n"
    assert desk("final", "a").ok().out == told("final", "a").ok().out


# -- what a stranger pushed ------------------------------------------------------------------------


def pushed(repo: Repository, tree: str) -> None:
    """A branch `cdo/x` with a tree, given as lines for `git mktree`."""
    made = git(repo.directory, "mktree", "--missing", "-z", data=tree.encode())
    message = "Turn 1: x\n\nCdo-Session: x\nCdo-Event: turn\nCdo-Turn: 1\nCdo-Status: running\n"
    git(repo.directory, "update-ref", "refs/heads/cdo/x", git(repo.directory, "commit-tree", made, "-m", message))


def blob(repo: Repository, data: bytes = b"x") -> str:
    return git(repo.directory, "hash-object", "-w", "--stdin", data=data)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("120000 blob {x}\tt1-critic.md", "is not a regular file"),
        ("160000 commit 1111111111111111111111111111111111111111\tcalls", "is not a regular file"),
        ("100644 blob {x}\t.hidden", "has a name"),
        ("100644 blob {x}\tline\nbreak.md", "has a name"),
        ("100644 blob {x}\ta\\b.md", "has a name"),
        ("100644 blob {x}\tcolour\x1b[31m.md", "has a name"),
        ("100644 blob {x}\t..", "has a name"),
        ("100644 blob {x}\t.git", "has a name"),
        ("040000 tree {deep}\tUpper", "has a name"),
        ("040000 tree {deep}\t..", "has a name"),
    ],
)
def test_what_cannot_be_a_file_of_a_session_is_refused(repo: Repository, line: str, words: str) -> None:
    deep = git(repo.directory, "mktree", "-z", data=f"100644 blob {blob(repo)}\tf".encode())
    plan = f"100644 blob {blob(repo)}\tsession.yaml"
    pushed(repo, "\0".join([plan, line.format(x=blob(repo), deep=deep)]))
    with pytest.raises(SessionError, match=words) as error:
        open_branch(repo.directory.parent, "x")
    assert "\x1b" not in error.value.message and "\n" not in error.value.message


def test_a_branch_without_a_plan_is_no_session(repo: Repository) -> None:
    pushed(repo, f"100644 blob {blob(repo)}\tt1-critic.md")
    with pytest.raises(SessionError, match=r"it has no session\.yaml"):
        open_branch(repo.directory.parent, "x")


def test_a_branch_that_is_too_large_is_refused(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branch_reader, "FILE_BYTES", 100)
    monkeypatch.setattr(branch_reader, "ALL_BYTES", 150)
    big = blob(repo, b"y" * 101)
    pushed(repo, f"100644 blob {blob(repo)}\tsession.yaml\000100644 blob {big}\tt1-critic.md")
    with pytest.raises(SessionError, match="too large"):
        open_branch(repo.directory.parent, "x")
    most = blob(repo, b"y" * 100)
    pushed(repo, f"100644 blob {most}\tsession.yaml\000100644 blob {most}\tt1-critic.md")
    with pytest.raises(SessionError, match="too large"):
        open_branch(repo.directory.parent, "x")


@pytest.mark.slow
def test_a_tree_that_unfolds_without_end_is_refused(repo: Repository) -> None:
    inner = git(repo.directory, "mktree", "-z", data=f"100644 blob {blob(repo)}\tf".encode())
    for _ in range(9):
        lines = "\0".join(f"040000 tree {inner}\td{number}" for number in range(10))
        inner = git(repo.directory, "mktree", "-z", data=lines.encode())
    pushed(repo, f"100644 blob {blob(repo)}\tsession.yaml\000040000 tree {inner}\tbomb")
    with pytest.raises(SessionError, match=r"cannot be read: git (answers at too great a length|did not end)"):
        open_branch(repo.directory.parent, "x")


def test_what_a_strangers_commit_says_is_shown_as_plain_text(repo: Repository) -> None:
    for name, message in {
        "x": "Turn\n\nQuestion: \x1b[31mred\n\nCdo-Status: \x1b]0;evil\nCdo-Turn: 99999999999\nCdo-Cost: 1e999\n",
        "y": "no trailers\n",
        "z": "Turn\n\nCdo-Confidence: nan\nCdo-Cost: unknown\nCdo-Turn: 3\nCdo-Status: running\n",
        "a.lock.b": "Turn\n\nCdo-Turn: 1\n",
        "sub/dir": "Turn\n\nCdo-Turn: 1\n",
    }.items():
        repo.commit(f"refs/heads/cdo/{name}", "", message, WHEN, {"session.yaml": b"x"})
    git(repo.directory, "symbolic-ref", "refs/heads/cdo/link", "refs/heads/cdo/x")
    found = {row.name: row for row in kept(repo.directory.parent)}
    assert set(found) == {"x", "z", "a.lock.b"}
    assert found["x"].problem == "␛[31mred" and found["x"].status == "␛]0;evil"
    assert (found["x"].turn, found["x"].cost) == (0, None)
    date = "2023-11-14T22:13:20+00:00"
    assert found["z"] == BranchSession("z", "cdo/z", date, "unfinished", 3, None, None, "", "", "")


def test_trailers_are_only_the_last_paragraph_and_only_if_all_of_it_is_cdos() -> None:
    assert trailers("A\n\nCdo-Turn: 9\n\nbody\n\nCdo-Turn: 1\nCdo-Cost: unknown\n") == {
        "Cdo-Turn": "1",
        "Cdo-Cost": "unknown",
    }
    assert trailers("A\n\nCdo-Turn: 1\nSigned-off-by: x\n") == {}
    assert trailers("Cdo-Turn\n") == trailers("") == {}


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("**Carried** (4:1): stage it. *(added by cdo)*", "Carried (4:1): stage it."),
        ("## _Stage_ `a_b_c` by 2 * 3 * 4", "Stage `a_b_c` by 2 * 3 * 4"),
        ("***Stage*** __it__ and snake_case_name", "Stage it and snake_case_name"),
    ],
)
def test_a_subject_has_no_signs_of_markdown(said: str, shown: str) -> None:
    data = {"decision": said, "status": "converged", "why": "x", "flags": [], "turns": 1, "confidence": 0.5}
    job = CommitMessageBuilder("a", "Q?", [], str, LIBRARY).take(happened("done", "", data))
    assert job and job.message.splitlines()[0] == f"FINAL: {shown}"


def test_what_a_session_is_stands_in_every_message() -> None:
    told = CommitMessageBuilder("a", "Q?", [], str, LIBRARY)
    job = told.take(happened("stopped", "", {"status": "BudgetReached", "why": "x"}))
    told.identify("full", "parliament", "2026-01-01", "b@2")
    assert job
    for message in (job.message, told.begin(), told.edited(["t1-critic.md"], [], {}), told.again("origin/cdo/a", {})):
        found = trailers(message)
        assert (found["Cdo-Preset"], found["Cdo-Created"], found["Cdo-Fork"]) == (
            "full,parliament",
            "2026-01-01",
            "b@2",
        )
    told.identify("think", None, "2026-01-01", "")
    assert trailers(told.begin())["Cdo-Preset"] == "think"


def test_a_turn_that_was_held_again_hides_what_came_after_it() -> None:
    def commit(identity: str, turn: int, event: str = "turn") -> tuple[str, str]:
        return identity, f"x\n\nCdo-Turn: {turn}\nCdo-Event: {event}\n"

    newest_first = [commit("g", 2, "final"), commit("f", 2), commit("e", 3), commit("d", 2), commit("c", 1)]
    assert turns(newest_first) == {2: "f", 1: "c"}
    assert turns([]) == {}


# -- restoring -------------------------------------------------------------------------------------


@pytest.mark.wide
def test_a_session_whose_folder_is_gone_is_restored_and_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    repository(tmp_path / "work")
    with Provider() as provider:
        desk = Desk(tmp_path / "work", provider.url)
        desk("think", "--turns", "2", "--session", "b", "--max-calls", "5", "Should we move?").failed(5)
        shutil.rmtree(desk.session("b"))
        done = desk("restore", "b").ok()
        assert done.out == "tmp/cdo-b\n" and "`cdo resume b` goes on with it." in done.err
        asked = len(provider.requests)
        desk("resume", "b", "--max-calls", "50").ok()
        assert not [info for info in provider.requests[asked:] if info.call.startswith("t1-")]
    names = [subject.split()[0] for subject in subjects(desk.path, "cdo/b")]
    assert names == ["Begin:", "Turn", "Stopped", "Turn", "FINAL:"]


@pytest.mark.wide
def test_restore_refuses_what_is_there_and_takes_another_folder(told: Desk, tmp_path: Path) -> None:
    explained(told("restore", "a"), 8, "There is a session tmp/cdo-a already", "--out", "cdo fork a")
    told("restore", "a", "--out", str(tmp_path / "out")).ok()
    copy = SessionFolder(tmp_path / "out" / "cdo-a")
    found = open_branch(told.path, "a")
    assert found and copy.files() == found.files()
    assert all(copy.data(name) == found.data(name) for name in copy.files())
    explained(told("restore", "../x", "--out", str(tmp_path / "out")), 8, "Git keeps no session")


@pytest.fixture
def clone(told: Desk, tmp_path: Path) -> Iterator[Desk]:
    """A clone of the repository of `a` and `b`, which keeps their refs as branches of its remote."""
    git(tmp_path, "clone", "-q", str(told.path), "clone")
    git(tmp_path / "clone", "fetch", "-q", "origin", "refs/cdo/*:refs/remotes/origin/cdo/*")
    (tmp_path / "clone" / "tmp").mkdir()
    yield Desk(tmp_path / "clone", told.url)


@pytest.mark.wide
def test_what_a_remote_keeps_is_gone_on_with_on_top_of_it(clone: Desk) -> None:
    clone("restore", "b").ok()
    clone("resume", "b", "--max-calls", "50").ok()
    assert git(clone.path, "merge-base", "cdo/b", "origin/cdo/b") == git(clone.path, "rev-parse", "origin/cdo/b")
    events = [subject.split()[0] for subject in subjects(clone.path, "cdo/b")]
    assert events[:4] == ["Begin:", "Turn", "Stopped", "Begin:"] and events[4:] == ["Turn", "Turn", "FINAL:"]
    assert subjects(clone.path, "cdo/b")[3] == "Begin: go on from origin/cdo/b: Should we move?"
    assert git(clone.path, "diff", "--name-only", "cdo/b~4", "cdo/b~3") == ""


@pytest.mark.wide
def test_what_a_person_changed_on_top_of_a_remotes_is_a_commit_of_its_own(clone: Desk) -> None:
    clone("restore", "b").ok()
    path = clone.session("b") / "t1-synthesis.md"
    path.write_text(path.read_text().replace("what ", "whether Peru ", 1))
    clone("resume", "b", "--yes", "--max-calls", "50").ok()
    assert "Edited: t1-synthesis.md" in subjects(clone.path, "cdo/b")


@pytest.mark.wide
def test_another_session_of_that_name_begins_anew(clone: Desk) -> None:
    clone("think", "--turns", "1", "--session", "a", "Another question?").ok()
    assert subjects(clone.path, "cdo/a")[0] == "Begin: Another question?"
    assert not git(clone.path, "merge-base", "cdo/a", "origin/cdo/a", check=False)


@pytest.mark.wide
def test_a_fork_of_what_a_remote_keeps_begins_at_its_commit(clone: Desk) -> None:
    clone("fork", "origin/a", "--turn", "1", "--turns", "2", "--session", "f").ok()
    assert git(clone.path, "merge-base", "cdo/f", "origin/cdo/a") == git(clone.path, "rev-parse", "origin/cdo/a~2")
    assert subjects(clone.path, "cdo/f")[2].startswith("Begin: fork of a after turn 1: ")


@pytest.mark.wide
def test_a_fork_without_a_shared_commit_says_what_it_is(cdo: Desk) -> None:
    cdo("think", "--turns", "2", *A, "Should we split the service?").ok()
    repository(cdo.path)
    cdo("fork", "a", "--turn", "1", "--turns", "2").ok()
    told = subjects(cdo.path, "cdo/a-2")
    assert told[0].startswith("Begin: fork of a after turn 1: ") and len(told) == 4
    messages = [git(cdo.path, "log", "-1", "--format=%B", f"cdo/a-2~{back}") for back in (3, 2, 1, 0)]
    assert {trailers(message)["Cdo-Fork"] for message in messages} == {"a@1"}
    assert [trailers(message)["Cdo-Turn"] for message in messages] == ["0", "1", "2", "2"]
    assert "This turn: taken over from a." in messages[1] and "This turn: 4 calls, " in messages[2]
    assert all(re.search(r"In all: .*, and \$0\.\d+ before the fork\.", message) for message in messages[1:])


@pytest.mark.wide
def test_what_only_a_branch_keeps_is_listed_and_read(cdo: Desk) -> None:
    repository(cdo.path)
    cdo("think", "--turns", "1", *A, "Should we split the service?").ok()
    cdo("think", "--turns", "1", "--session", "b", "Should we move?").ok()
    shown, final = (cdo(*words).ok().out for words in (("show", "a", "t1-critic"), ("final", "a")))
    shutil.rmtree(cdo.session())
    assert [row["session"] for row in cdo("list", "--json").ok().json] == ["b"]
    rows = cdo("list", "--git", "--json").ok().json
    assert [row["session"] for row in rows] == ["b", "a"]
    assert rows[1]["path"] == "cdo/a" and rows[1]["problem"] == "Should we split the service?"
    assert rows[1]["status"] == "max_turns" and "cdo/a" not in cdo("list", "--git", "moved").ok().out
    done = cdo("show", "a", "t1-critic").ok()
    assert done.out == shown and "a: its folder is not there; this is git ref cdo/a" in done.err
    assert cdo("final", "a").ok().out == final
    assert "max_turns" in cdo("show", "a").ok().out and cdo("diff", "a", "b").ok().out
    assert "cdo-a-report.html" in cdo("report", "a").ok().out
    assert (cdo.path / "cdo-a-report.html").exists() and not cdo.session().exists()
    cdo("fork", "a", "--session", "again", "--no-run").ok()
    cdo("replay", "a", "--strict").ok()
    explained(cdo("show", "zz"), 8, "There is no session")


def test_restore_says_where_there_is_nothing(told: Desk, bare: Desk) -> None:
    explained(told("restore", "zz"), 8, "Git keeps no session zz here.", "cdo list --git")
    explained(bare("restore", "a"), 8, "Git keeps no session a here.")


def test_a_session_cannot_be_called_what_a_branch_cannot() -> None:
    for name in ("a.lock", "a.b.lock"):
        with pytest.raises(UsageError, match="cannot be the name of a session"):
            session_path(Path(), name)
    assert session_path(Path(), "a.lock.b").name == "cdo-a.lock.b"
