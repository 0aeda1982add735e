"""The branch of a run: every turn a commit, nothing of the repository touched or run, and never a run lost to git."""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins
from msgspec.structs import replace

from cdo import __version__
from cdo.content.library import PACKAGED, Library
from cdo.formats.strict_yaml import dump
from cdo.observers.commit_messages import CommitMessageBuilder
from cdo.observers.git_commits import GitCommitObserver
from cdo.repository import git as cdo_git
from cdo.repository.git_process import TooSlow
from cdo.session import branch_reader
from cdo.session.session_file import Forked, new_session_file, read_frozen
from cdo.session.store import Session
from tests.conftest import Desk
from tests.support.events import happened
from tests.support.harness import kill_group, lacking, members, sampled, wait_for
from tests.support.provider import Provider
from tests.support.repositories import KINDS, git, hostile, repository, state, subjects, turns

LIBRARY = Library((("packaged", PACKAGED),))
RUN = ("think", "--turns", "2", "--session", "a", "Should we split the service?")
WHOLE = ["begin", "turn 1", "turn 2", "final"]


def files(folder: Path, commit: str = "cdo/a") -> dict[str, str]:
    """The names of all files in a commit, with their ids."""
    lines = git(folder, "ls-tree", "-r", commit).splitlines()
    return {line.split("\t")[1]: line.split()[2] for line in lines}


def asked(folder: Path, commit: str) -> list[str]:
    """The calls on record in a commit, in order."""
    names = sorted(name for name in files(folder, commit) if name.startswith("calls/"))
    records = [line for name in names for line in git(folder, "show", f"{commit}:{name}").splitlines()]
    return [found[1] for line in records if (found := re.match(r'{"kind": "exchange".*?"call": "([^"]*)"', line))]


def lying(session: Path) -> set[str]:
    """The names of all files in a session's folder."""
    return {str(path.relative_to(session)) for path in session.rglob("*") if path.is_file()}


# -- every kind of repository ----------------------------------------------------------------------


@pytest.mark.wide
@pytest.mark.parametrize("kind", sampled(KINDS, KINDS[::2]))
def test_every_turn_is_a_commit_and_nothing_else_is_touched(cdo: Desk, kind: str) -> None:
    directory = repository(cdo.path, kind)
    if kind == "bare":
        (cdo.path / "tmp").mkdir()
    before, head = state(cdo.path, directory), git(cdo.path, "rev-parse", "HEAD", check=False)
    done = cdo(*RUN).ok()
    assert "git:" not in done.err
    assert state(cdo.path, directory) == before
    assert turns(cdo.path) == WHOLE
    assert subjects(cdo.path)[0] == "Begin: Should we split the service?"
    assert re.fullmatch(r"Turn 2: 3 voices, confidence 0\.\d\d, 1 open tension", subjects(cdo.path)[2])
    assert set(files(cdo.path)) == lying(cdo.session())
    assert set(files(cdo.path, "cdo/a~3")) == {"00-context.md", "00-input.md", "session.yaml"}
    first = set(files(cdo.path, "cdo/a~2"))
    assert {"t1-critic.md", "t1-synthesis.md"} <= first and not any(name.startswith("t2-") for name in first)
    for commit, last in (("cdo/a~2", "t1-synthesis"), ("cdo/a~1", "t2-synthesis"), ("cdo/a", "final")):
        assert asked(cdo.path, commit)[-1] == last
    for name in ("FINAL.md", "t1-critic.md", "session.yaml"):
        assert git(cdo.path, "show", f"cdo/a:{name}") == (cdo.session() / name).read_text().strip()
    told = git(cdo.path, "log", "-1", "--format=%(trailers:key=Cdo-Head,valueonly)", "cdo/a")
    assert told == ("" if kind in ("empty", "bare") else head)
    people = git(cdo.path, "log", "-1", "--format=%an <%ae>, %cn <%ce>", "cdo/a")
    assert people == "cdo <cdo@localhost>, cdo <cdo@localhost>"
    git(cdo.path, "fsck", "--strict", "--no-dangling")


@pytest.mark.wide
def test_nothing_of_a_hostile_repository_is_run(cdo: Desk) -> None:
    directory = repository(cdo.path)
    (cdo.path / ".gitattributes").write_text("* filter=evil diff=evil\n")
    canaries = cdo.path.parent / "canaries"
    hostile(cdo.path, directory, canaries)
    before = state(cdo.path, directory)
    done = cdo(*RUN).ok()
    assert "git:" not in done.err
    assert not list(canaries.iterdir())
    cdo("resume", "a").ok()
    cdo("restore", "a", "--out", "../elsewhere").ok()
    assert not list(canaries.iterdir())
    assert state(cdo.path, directory) == before
    git(cdo.path, "update-ref", "refs/heads/x", "HEAD")  # the trap does work
    assert (canaries / "hook-reference-transaction").exists()
    plain = ("-c", "trailer.separators=:", "-c", "i18n.logOutputEncoding=UTF-8")
    wanted = "--format=%(trailers:key=Cdo-Event,valueonly,separator=)"
    assert git(cdo.path, *plain, "-c", "log.showSignature=false", "log", wanted, "cdo/a").split() == [
        "final", "turn", "turn", "begin",
    ]  # fmt: skip


@pytest.mark.wide
def test_a_session_outside_of_repositories_is_kept_where_the_run_was_begun(cdo: Desk, tmp_path: Path) -> None:
    repository(cdo.path)
    cdo(*RUN, "--out", str(tmp_path / "elsewhere")).ok()
    assert turns(cdo.path) == WHOLE


@pytest.mark.wide
def test_the_repository_of_the_session_wins_over_that_of_the_folder_one_stands_in(cdo: Desk, tmp_path: Path) -> None:
    repository(cdo.path)
    other = tmp_path / "other"
    other.mkdir()
    repository(other)
    cdo(*RUN, "--out", str(other / "tmp")).ok()
    assert turns(other) == WHOLE
    assert not git(cdo.path, "for-each-ref", "refs/cdo", "refs/heads/cdo")


def refs(folder: Path) -> set[str]:
    return set(git(folder, "for-each-ref", "--format=%(refname)").split())


@pytest.mark.wide
def test_runs_fill_no_list_of_branches(cdo: Desk) -> None:
    repository(cdo.path)
    cdo.write(".cdo/config.yaml", "branch: true\n")  # which counts only with --trust
    for name in ("a", "b"):
        cdo("think", "--turns", "1", "--session", name, "Should we move?").ok()
    cdo("think", "--turns", "1", "--session", "c", "--branch", "Should we move?").ok()
    assert refs(cdo.path) == {"refs/heads/main", "refs/cdo/a", "refs/cdo/b", "refs/heads/cdo/c"}
    assert git(cdo.path, "branch", "--format=%(refname:short)").split() == ["cdo/c", "main"]
    assert turns(cdo.path, "cdo/b") == turns(cdo.path, "refs/cdo/b") == turns(cdo.path, "cdo/c")
    hidden = "--exclude=refs/cdo/*", "--exclude=refs/heads/cdo/*"
    assert git(cdo.path, "log", *hidden, "--all", "--format=%s") == "first"
    rows = cdo("list", "--git", "--json", "--out", "elsewhere").ok().json
    assert {row["path"] for row in rows} == {"cdo/a", "cdo/b", "cdo/c"}


@pytest.mark.wide
def test_a_session_of_an_older_version_goes_on_with_its_branch(cdo: Desk) -> None:
    repository(cdo.path)
    cdo(*RUN, "--max-calls", "5").failed(5)
    git(cdo.path, "update-ref", "refs/heads/cdo/a", "refs/cdo/a")
    git(cdo.path, "update-ref", "-d", "refs/cdo/a")
    assert cdo("resume", "a", "--max-calls", "50").ok().err.count("git:") == 0
    assert refs(cdo.path) == {"refs/heads/main", "refs/heads/cdo/a"}
    assert turns(cdo.path) == ["begin", "turn 1", "stopped", "turn 2", "final"]


@pytest.mark.wide
@pytest.mark.parametrize("flag", [[], ["--branch"]])
def test_two_histories_never_get_one_name(cdo: Desk, flag: list[str]) -> None:
    """A name that either place has is taken; of two refs of one name a session continues the one that holds it."""
    repository(cdo.path)
    other = ["refs/heads/cdo/a", "refs/cdo/a"][bool(flag)]
    git(cdo.path, "update-ref", other, "main")
    done = cdo(*RUN, *flag, "--max-calls", "5").failed(5)
    assert "cdo/a holds another session; this one is kept on cdo/a-2" in done.err
    kept = ["refs/cdo/a-2", "refs/heads/cdo/a-2"][bool(flag)]
    assert refs(cdo.path) == {"refs/heads/main", other, kept}
    late = ["refs/heads/cdo/a-2", "refs/cdo/a-2"][bool(flag)]
    git(cdo.path, "update-ref", late, "main")  # as somebody's fetch may do
    cdo("resume", "a", "--max-calls", "50").ok()
    assert turns(cdo.path, kept) == ["begin", "turn 1", "stopped", "turn 2", "final"]
    assert git(cdo.path, "rev-parse", other, late).split() == [git(cdo.path, "rev-parse", "main")] * 2


@pytest.mark.wide
def test_runs_are_pushed_and_fetched_by_name(cdo: Desk, tmp_path: Path) -> None:
    repository(cdo.path)
    cdo(*RUN).ok()
    git(tmp_path, "init", "-q", "--bare", "hub")
    git(cdo.path, "push", "-q", str(tmp_path / "hub"), "main", "refs/cdo/*:refs/cdo/*")
    git(tmp_path, "clone", "-q", "-b", "main", "hub", "clone")
    clone = Desk(tmp_path / "clone", cdo.url)
    assert refs(clone.path) & {"refs/cdo/a", "refs/remotes/origin/cdo/a"} == set()
    git(clone.path, "fetch", "-q", "origin", "refs/cdo/*:refs/cdo/*")
    assert clone("list", "--git", "--json").ok().json[0]["path"] == "cdo/a"
    assert clone("final", "a").ok().out == cdo("final", "a").ok().out
    clone("restore", "a").ok()
    assert turns(clone.path) == WHOLE


@pytest.mark.wide
def test_without_a_repository_nothing_is_said(cdo: Desk) -> None:
    assert "git" not in cdo(*RUN).ok().err
    assert not any('"trail"' in path.read_text() for path in cdo.session().glob("calls/*"))


@pytest.mark.wide
def test_no_git_keeps_no_branch(cdo: Desk) -> None:
    directory = repository(cdo.path)
    before = state(cdo.path, directory)
    cdo(*RUN, "--no-git").ok()
    cdo("resume", "a", "--no-git").ok()
    cdo("resume", "a").ok()  # a person's wish is kept with the session
    cdo("fork", "a", "--session", "b").ok()
    cdo("audit", "a", "-m", "openai/other", "--max-calls", "2").failed(5)
    cdo(*RUN[:-1], "--session", "c", RUN[-1], env={"CDO_NO_GIT": "1"}).ok()
    assert not git(cdo.path, "for-each-ref", "refs/cdo", "refs/heads/cdo")
    assert state(cdo.path, directory) == before


@pytest.mark.wide
def test_a_commit_of_somebody_else_on_the_branch_is_told(cdo: Desk) -> None:
    repository(cdo.path)
    cdo(*RUN[:-1], "--branch", "--max-calls", "4", RUN[-1]).failed(5)
    git(cdo.path, "worktree", "add", "-q", "../other", "cdo/a")
    (cdo.path.parent / "other" / "NOTES.txt").write_text("mine\n")
    git(cdo.path.parent / "other", "add", "-A")
    git(cdo.path.parent / "other", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "Notes")
    foreign = git(cdo.path, "rev-parse", "cdo/a")[:12]
    git(cdo.path, "worktree", "remove", "../other")
    done = cdo("resume", "a", "--max-calls", "50").ok()
    assert done.err.count(f"git: cdo/a: {foreign} is a commit of somebody else") == 1
    assert git(cdo.path, "show", f"{foreign}:NOTES.txt") == "mine"


@pytest.mark.wide
def test_the_page_of_a_report_is_on_no_branch(cdo: Desk) -> None:
    repository(cdo.path)
    cdo(*RUN[:-1], "--max-calls", "4", RUN[-1]).failed(5)
    cdo("report", "a").ok()
    cdo("resume", "a", "--max-calls", "50").ok()
    assert "report.html" not in git(cdo.path, "ls-tree", "-r", "--name-only", "cdo/a")


@pytest.mark.wide
def test_two_runs_at_once_keep_their_branches(cdo: Desk) -> None:
    repository(cdo.path)
    runs = [["think", "--turns", "2", "--session", name, f"Should {name} go?"] for name in ("a", "b")]
    for done in cdo.several(*runs):
        assert "git:" not in done.ok().err
    assert turns(cdo.path, "cdo/a") == turns(cdo.path, "cdo/b") == WHOLE
    git(cdo.path, "fsck", "--strict")


# -- what goes wrong costs the branch, never the run -----------------------------------------------


@pytest.mark.wide
def test_without_a_git_program_the_run_goes_on(cdo: Desk) -> None:
    directory = repository(cdo.path)
    before = state(cdo.path, directory)
    done = cdo(*RUN, env={"PATH": "/nonexistent"}).ok()
    assert done.err.count("git: ") == 1 and "there is no git program" in done.err and "Install git." in done.err
    assert state(cdo.path, directory) == before


@pytest.mark.wide
@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ("cdo", "Rename that branch"),
        ("lock", "remove that lock"),
        ("checked out", "Check out another branch there."),
        ("damaged", "is damaged"),
        ("gitfile", "not a git repository"),
        ("cdo ref", "Remove that ref"),
        ("unwritable", "the run is not committed"),
    ],
)
def test_trouble_is_said_once_and_the_run_goes_on(cdo: Desk, trouble: str, words: str) -> None:
    directory = repository(cdo.path)
    if trouble == "cdo":
        git(cdo.path, "branch", "cdo")
    elif trouble == "lock":
        (directory / "refs/cdo").mkdir()
        (directory / "refs/cdo/a.lock").touch()
    elif trouble == "cdo ref":
        git(cdo.path, "update-ref", "refs/cdo", "HEAD")
    elif trouble == "checked out":
        cdo(*RUN, "--max-calls", "5", "--branch")
        git(cdo.path, "worktree", "add", "-q", str(cdo.path.parent / "beside"), "cdo/a")
    elif trouble == "damaged":
        (directory / "HEAD").write_text("nonsense\n")
    elif trouble == "gitfile":
        directory.rename(cdo.path / "was")
        directory.write_text("gitdir: nowhere\n")
    elif trouble == "unwritable":
        shutil.rmtree(directory / "objects/pack")
        (directory / "objects/pack").touch()
    tip = git(cdo.path, "rev-parse", "cdo/a", check=False)
    branch = ["--branch"] if trouble == "cdo" else []
    done = cdo("resume", "a", "--max-calls", "50").ok() if trouble == "checked out" else cdo(*RUN, *branch).ok()
    assert done.err.count("git: ") == 1 and words in done.err, done.err
    assert "--no-git leaves it out" in done.err
    assert (cdo.session() / "FINAL.md").exists()
    assert not directory.is_dir() or not list(directory.glob("fast_import_crash*"))
    if trouble == "checked out":
        assert git(cdo.path, "rev-parse", "cdo/a") == tip


@pytest.mark.slow
def test_a_git_that_hangs_holds_up_nothing_for_long(cdo: Desk) -> None:
    repository(cdo.path)
    program = cdo.write(
        "../bin/git", f'#!/bin/sh\ncase "$*" in *fast-import*) sleep 300;; esac\nexec {shutil.which("git")} "$@"\n'
    )
    program.chmod(0o755)
    done = cdo(*RUN, env={"PATH": f"{program.parent.resolve()}:{os.environ['PATH']}"}).ok()
    assert "did not end in time" in done.err and done.err.count("git: ") == 1
    assert done.seconds < 55  # it hangs for five minutes
    assert not _running("fast-import", str(cdo.path))


def _running(word: str, folder: str) -> list[int]:
    """The processes with a word among their arguments that stand in a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace")
                place = str((entry / "cwd").readlink())
            except OSError:
                continue
            if word in words and place.startswith(folder):
                found.append(int(entry.name))
    return found


@pytest.mark.wide
def test_a_repository_of_somebody_else_is_left_alone(cdo: Desk) -> None:
    if os.getuid() != 0:
        lacking("root", "only root can give a folder away")
    directory = repository(cdo.path)
    for path in (cdo.path, directory):
        os.chown(path, 12345, 12345)
    done = cdo(*RUN).ok()
    assert "dubious ownership" in done.err and "cdo leaves it alone" in done.err
    assert not (directory / "refs/cdo").exists()


@pytest.mark.wide
def test_a_git_in_the_repository_itself_is_not_used(cdo: Desk) -> None:
    repository(cdo.path)
    program = cdo.write("bin/git", f"#!/bin/sh\ntouch {cdo.path}/ran\n")
    program.chmod(0o755)
    cdo(*RUN, env={"PATH": f"{program.parent}:{os.environ['PATH']}"}).ok()
    assert turns(cdo.path) == WHOLE and not (cdo.path / "ran").exists()


# -- whose branch it is ----------------------------------------------------------------------------


@pytest.mark.wide
def test_a_branch_of_another_session_is_left_and_the_next_name_kept_to(cdo: Desk) -> None:
    repository(cdo.path)
    cdo(*RUN).ok()
    tip = git(cdo.path, "rev-parse", "cdo/a")
    cdo.session().rename(cdo.session("other"))
    done = cdo(*RUN[:-1], "Another question?", "--max-calls", "5")
    assert done.code == 5 and "cdo/a holds another session; this one is kept on cdo/a-2" in done.err
    cdo("resume", "a", "--max-calls", "50").ok()
    assert turns(cdo.path, "cdo/a-2") == ["begin", "turn 1", "stopped", "turn 2", "final"]
    assert git(cdo.path, "rev-parse", "cdo/a") == tip


@pytest.mark.wide
@pytest.mark.parametrize("place", ["refs", "refs/heads"])
def test_a_ref_that_is_only_another_name_is_never_written_through(cdo: Desk, place: str) -> None:
    repository(cdo.path)
    git(cdo.path, "symbolic-ref", f"{place}/cdo/a", "refs/heads/main")
    tip = git(cdo.path, "rev-parse", "main")
    cdo(*RUN).ok()
    assert git(cdo.path, "rev-parse", "main") == tip
    assert turns(cdo.path, "cdo/a-2") == WHOLE


@pytest.mark.wide
def test_a_branch_that_is_checked_out_before_its_first_commit_is_left(cdo: Desk) -> None:
    directory = repository(cdo.path, "empty")
    git(cdo.path, "symbolic-ref", "HEAD", "refs/heads/cdo/a")
    before = state(cdo.path, directory)
    cdo(*RUN).ok()
    assert state(cdo.path, directory) == before
    assert turns(cdo.path, "cdo/a-2") == WHOLE


# -- runs that stop and go on ----------------------------------------------------------------------


@pytest.mark.wide
def test_a_run_that_stops_is_a_commit_and_resume_goes_on_from_it(cdo: Desk) -> None:
    repository(cdo.path)
    cdo(*RUN, "--max-calls", "6").failed(5)
    assert turns(cdo.path) == ["begin", "turn 1", "stopped"]
    assert subjects(cdo.path)[-1].startswith("Stopped (budget) after turn 1: ")
    cdo("resume", "a", "--max-calls", "6").failed(5)
    assert turns(cdo.path) == ["begin", "turn 1", "stopped"]  # nothing is new
    cdo("resume", "a", "--max-calls", "50").ok()
    assert turns(cdo.path) == ["begin", "turn 1", "stopped", "turn 2", "final"]
    cdo("resume", "a").ok()
    assert len(subjects(cdo.path)) == 5


@pytest.mark.wide
@pytest.mark.parametrize("turn", [1, 2])
def test_a_run_killed_in_the_middle_goes_on_on_its_branch(tmp_path: Path, turn: int) -> None:
    (tmp_path / "work").mkdir()
    repository(tmp_path / "work")
    with Provider() as provider:
        provider.hold(f"t{turn}-critic")
        desk = Desk(tmp_path / "work", provider.url)
        process = desk.start(*RUN)
        wait_for(lambda: len(_events(desk.path)) >= turn)
        kill_group(process.pid)
        process.communicate()
    assert _events(desk.path) == WHOLE[:turn]
    with Provider() as provider:
        again = Desk(desk.path, provider.url)
        again("resume", "a").ok()
        assert not [info for info in provider.requests if info.call.startswith("t1-") and turn > 1]
    assert turns(desk.path) == WHOLE


def _events(folder: Path) -> list[str]:
    return turns(folder) if git(folder, "for-each-ref", "refs/cdo/a") else []


@pytest.mark.wide
def test_ctrl_c_leaves_a_commit(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    repository(tmp_path / "work")
    with Provider() as provider:
        provider.hold("t2-critic")
        desk = Desk(tmp_path / "work", provider.url)
        process = desk.start(*RUN)
        wait_for(lambda: _events(desk.path) == WHOLE[:2])
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert turns(desk.path) == ["begin", "turn 1", "stopped"]
    assert subjects(desk.path)[-1].startswith("Stopped (interrupted) after turn 1")
    assert not members(process.pid)


@pytest.mark.wide
def test_what_a_person_changed_is_a_commit_of_its_own(cdo: Desk) -> None:
    repository(cdo.path)
    cdo(*RUN).ok()
    path = cdo.session() / "t1-critic.md"
    path.write_text(re.sub("(?m)^position: .*", "position: I say no.", path.read_text()))
    cdo("resume", "a", "--yes").ok()
    assert turns(cdo.path) == [*WHOLE, "edited", *WHOLE[1:]]
    assert subjects(cdo.path)[4] == "Edited: t1-critic.md"
    assert git(cdo.path, "diff", "--name-only", "cdo/a~4", "cdo/a~3") == "t1-critic.md"
    assert (
        "- critic (0." in (message := git(cdo.path, "log", "-1", "--format=%B", "cdo/a~2")) and "I say no." in message
    )
    assert {"superseded/1/t1-synthesis.md", "superseded/1/FINAL.md"} <= set(files(cdo.path))
    assert set(files(cdo.path)) == lying(cdo.session())


@pytest.mark.wide
def test_a_session_begun_without_git_gets_a_commit_for_each_turn_when_it_is_resumed(cdo: Desk) -> None:
    cdo(*RUN).ok()
    git(cdo.path, "init", "-q")
    cdo("resume", "a").ok()
    assert turns(cdo.path) == WHOLE
    assert "t2-critic.md" not in files(cdo.path, "cdo/a~2") and "FINAL.md" not in files(cdo.path, "cdo/a~1")


# -- what a person typed ---------------------------------------------------------------------------

TOKEN = "ghp_q7Wz3KfR9tYb2LmXs8VdHn4JcPg6TaEu1QoZ"  # looks like one
VALUE = "a-canary-of-the-environment-1"


def objects(folder: Path) -> bytes:
    """All that lies in a repository's object store, reachable or not."""
    ids = git(folder, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)")
    return git(folder, "cat-file", "--batch", data=f"{ids}\n".encode()).encode("utf-8", "surrogateescape")


@pytest.mark.slow
def test_a_secret_that_a_person_typed_reaches_no_object(cdo: Desk, provider: Provider) -> None:
    repository(cdo.path)
    desk = cdo.having(DEPLOY_TOKEN=VALUE)
    desk(*RUN).ok()
    path = desk.session() / "t1-critic.md"
    clean = path.read_text()
    typed = re.sub("(?m)^position: .*", f"position: I say {VALUE} and {TOKEN}.", clean)
    path.write_text(typed)
    done = desk("resume", "a", "--yes").ok()
    notes = [line for line in done.err.splitlines() if line.startswith("git: ")]
    assert len(notes) == 2 and all("left out of the commits: it holds " in note for note in notes), done.err
    assert notes[0].startswith("git: t1-critic.md is left out") and notes[1].startswith("git: calls/")
    assert path.read_text() == typed, "a person's file is never altered"
    assert VALUE not in done.out + done.err
    assert not any(VALUE in info.prompt for info in provider.calls)
    found = objects(cdo.path)
    assert VALUE.encode() not in found and TOKEN.encode() not in found
    # What was there stays until the file is clean: then it is a commit as any other.
    assert git(cdo.path, "show", "cdo/a:t1-critic.md") == clean.strip()
    path.write_text(re.sub("(?m)^position: .*", "position: I say no.", clean))
    desk("resume", "a", "--yes").ok()
    assert "I say no." in git(cdo.path, "show", "cdo/a:t1-critic.md")
    assert VALUE.encode() not in objects(cdo.path) and TOKEN.encode() not in objects(cdo.path)


# -- what is committed -----------------------------------------------------------------------------


def redact(text: str) -> str:
    """A text without the one secret of these tests."""
    return text.replace("s3cret", "[out]")


class Run:
    """An open session with its trail, told what happens by hand."""

    def __init__(self, path: Path, forked: Forked | None = None, library: Library = LIBRARY, **frozen: str) -> None:
        self.said: list[str] = []
        template = read_frozen((Path(frozen["like"]) / "session.yaml").read_text(), path)
        made = new_session_file(template.plan, template.settings, template.sources, forked)
        made = replace(made, created=frozen.get("created", made.created))
        texts: dict[str, str | bytes] = {"00-input.md": "Split?\n", "00-context.md": "None.\n"}
        self.session = Session.create(path, {**texts, "session.yaml": dump(to_builtins(made))}, redact)
        self.created = made.created
        self.trail = GitCommitObserver(self.session, self.said.append, path.parent, library, redact)

    def turn(self, number: int, position: str = "Yes.", **files: str) -> None:
        """Hold a turn with one voice, and wait for its commit."""
        for name, text in {f"t{number}-critic.md": position, f"t{number}-synthesis.md": "x", **files}.items():
            self.session.put_now(name, text)
        self.trail(happened("batch", "", {"calls": [[f"t{number}-critic", "agent"]]}))
        self.trail(happened("reply", f"t{number}-critic", {"position": position, "confidence": 0.5}))
        directive = {"confidence": 0.6, "agreement": 0.5, "focus": position, "exit_ready": False}
        directive["tensions"] = [{"id": "T1", "title": position, "status": "open"}]
        self.trail(happened("reply", f"t{number}-synthesis", {"directive": directive}))

    def close(self) -> list[str]:
        """End the run; what was said."""
        self.trail._patience = 20.0
        self.trail.close()
        self.session.close()
        return self.said


@pytest.fixture
def work(tmp_path: Path, finished: Desk) -> Path:
    """A plain repository."""
    folder = tmp_path / "repo"
    folder.mkdir()
    repository(folder)
    (folder / "tmp").mkdir()
    return folder


def run_in(work: Path, finished: Desk, name: str = "a", **more: Any) -> Run:
    return Run(work / "tmp" / f"cdo-{name}", like=str(finished.session()), **more)


@pytest.mark.wide
def test_no_word_of_a_model_passes_for_a_trailer(work: Path, finished: Desk) -> None:
    evil = "x\n\nCdo-Status: converged\nCdo-Turn: 99\n---\n\x1b[31m\u202e" + "y" * 500 + " s3cret"
    run = run_in(work, finished)
    run.turn(1, evil)
    run.trail(happened("stopped", "", {"status": "ModelsFailed", "why": evil}))
    assert run.close() == []
    for commit, event in (("cdo/a~1", "turn"), ("cdo/a", "stopped")):
        message = git(work, "log", "-1", "--format=%B", commit)
        parsed = git(work, "interpret-trailers", "--parse", data=f"{message}\n".encode())
        keys = [line.partition(": ")[0] for line in parsed.splitlines()]
        assert len(keys) == len(set(keys)) and all(key.startswith("Cdo-") for key in keys)
        found = branch_reader.trailers(message)
        assert found == dict(line.split(": ", 1) for line in parsed.splitlines())
        assert found["Cdo-Event"] == event and found["Cdo-Turn"] == "1" and found["Cdo-Version"] == __version__
        assert found["Cdo-Status"] == ("running" if event == "turn" else "failed")
        assert "\x1b" not in message and "\u202e" not in message and "s3cret" not in message
        assert len(message.splitlines()[0]) <= 72


WORDS = (PACKAGED / "templates/commits.md").read_text()


@pytest.mark.wide
def test_a_project_words_the_messages_only_where_it_is_trusted(cdo: Desk) -> None:
    repository(cdo.path)
    words = WORDS.replace("Begin: {{ title }}", "Start: {{ title }}")
    cdo.write(".cdo/templates/commits.md", words)
    for name, trust, subject in (("a", (), "Begin: Why?"), ("b", ("--trust",), "Start: Why?")):
        cdo("quick", *trust, "--session", name, "Why?").ok()
        assert subjects(cdo.path, f"cdo/{name}")[0] == subject


@pytest.mark.wide
def test_a_wording_of_a_persons_own_changes_no_trailer_and_a_broken_one_costs_the_branch_alone(
    work: Path, finished: Desk, tmp_path: Path
) -> None:
    (tmp_path / "templates").mkdir()
    library = Library((("user", tmp_path), ("packaged", PACKAGED)))
    own = WORDS.replace("Question: {{ question }}", "{{ question }}\n\nCdo-Turn: 99\nCdo-Status: converged")
    (tmp_path / "templates/commits.md").write_text(own)
    run = run_in(work, finished, library=library)
    run.turn(1)
    assert run.close() == [] and turns(work) == ["begin", "turn 1"]
    assert library.opened == ["templates/commits"]
    assert "\n\nSplit?\n\nCdo-Turn: 99\n" in git(work, "log", "-1", "--format=%B", "cdo/a")

    (tmp_path / "templates/commits.md").write_text(own.replace("{% block turn %}", "{% block other %}"))
    broken = run_in(work, finished, "b", library=Library(library.roots))
    broken.turn(1)
    (note,) = broken.close()
    assert "commits.md has no block called turn" in note and "--no-git leaves it out" in note
    assert turns(work, "cdo/b") == ["begin"] and (broken.session.path / "t1-synthesis.md").exists()


@given(st.text(), st.text(), st.text())
def test_whatever_is_written_a_message_keeps_its_shape(problem: str, position: str, why: str) -> None:
    told = CommitMessageBuilder("a", problem, [], str, LIBRARY)
    told.take(happened("batch", "", {"calls": [["t1-critic", "agent"]]}))
    told.take(happened("reply", "t1-critic", {"position": position, "confidence": 0.5}))
    tension = {"id": "T1", "title": why, "status": "open"}
    directive = {"confidence": 0.5, "focus": position, "exit_ready": False, "tensions": [tension]}
    turn = told.take(happened("reply", "t1-synthesis", {"directive": directive}))
    stop = told.take(happened("stopped", "", {"status": "BudgetReached", "why": why}))
    assert turn and stop
    for message, event, status in ((turn.message, "turn", "running"), (stop.message, "stopped", "budget")):
        message.encode()
        lines = message.split("\n")
        assert len(lines[0]) <= 72 and lines[1] == "" and lines[2].startswith("Question: ")
        assert lines == [*message.splitlines(), ""] and not any(line.startswith("---") for line in lines)
        found = branch_reader.trailers(message)
        assert (found["Cdo-Event"], found["Cdo-Status"], found["Cdo-Turn"]) == (event, status, "1")
        assert len(found) == message.rpartition("\n\n")[2].count("\n")


def test_an_unknown_price_is_never_zero(finished: Desk) -> None:
    usage = {"input_tokens": 5, "output_tokens": 5}
    records = [{"kind": "exchange", "call": "t1-critic", "usage": usage, "cost": None}]
    found = branch_reader.trailers(CommitMessageBuilder("a", "Split?", records, str, LIBRARY).begin())
    assert found["Cdo-Cost"] == "unknown" and found["Cdo-Tokens"] == "10"
    assert "Cdo-Confidence" not in found


def test_messages_tell_what_each_turn_brought(work: Path, finished: Desk) -> None:
    told = CommitMessageBuilder("a", "Split?", [], str, LIBRARY)
    told.take(
        happened("batch", "", {"calls": [["t1-critic", "agent"], ["t1-maker", "agent"], ["t1-audit", "audit"]]})
    )
    told.take(happened("reply", "t1-critic", {"position": "No.", "confidence": 0.25}))
    told.take(happened("missing", "t1-maker", {"reason": "timeout: none came"}))
    told.take(happened("reply", "t1-audit", {"position": "hidden"}))

    def after(turn: int, **statuses: str) -> str:
        tensions = [{"id": name, "title": f"about {name}", "status": status} for name, status in statuses.items()]
        directive = {"confidence": 0.5, "focus": f"look {turn}", "exit_ready": False, "tensions": tensions}
        job = told.take(happened("reply", f"t{turn}-synthesis", {"directive": directive}))
        assert job and job.turn == turn
        return job.message

    first = after(1, T1="open", T2="open", T3="open")
    assert first.partition("\n\nCdo-")[0].splitlines() == [
        "Turn 1: 1 voice, confidence 0.50, 3 open tensions", "",
        "Question: Split?", "",
        "Voices:", "- critic (0.25): No.", "- maker: missing (timeout: none came)", "",
        "Tensions:", *(f"- {name} opened this turn: about {name}" for name in ("T1", "T2", "T3")), "",
        "Next: look 1", "",
        "This turn: 0 calls, 0 tokens, $0.", "In all: 0 calls, 0 tokens, $0.",
    ]  # fmt: skip
    second = after(2, T1="resolved", T2="open")
    assert (
        "\nFocus: look 1\n" in second
        and "- T1 resolved this turn: about T1\n- T2 open: about T2\n- T3 open" in second
    )
    assert "T1 " not in after(3, T2="accepted")


def test_a_branch_that_somebody_else_moved_is_gone_on_with(work: Path, finished: Desk) -> None:
    run = run_in(work, finished)
    run.turn(1)
    wait_for(lambda: git(work, "rev-parse", "-q", "--verify", "cdo/a:t1-critic.md", check=False))
    tree = git(work, "rev-parse", "cdo/a^{tree}")
    other = git(work, "commit-tree", tree, "-p", "cdo/a", "-m", "mine")
    git(work, "update-ref", "refs/cdo/a", other)
    run.turn(2)
    (note,) = run.close()
    assert f"{other[:12]} is a commit of somebody else" in note
    assert subjects(work)[2:] == ["mine", "Turn 2: 1 voice, confidence 0.60, 1 open tension"]


def test_what_waits_for_a_lock_is_committed_when_it_is_gone(work: Path, finished: Desk) -> None:
    lock = work / ".git/refs/cdo/a.lock"
    lock.parent.mkdir()
    lock.touch()
    run = run_in(work, finished)
    run.turn(1)
    wait_for(lambda: run.trail._notes)
    lock.unlink()
    run.turn(2)
    assert len(run.close()) == 1
    assert turns(work) == ["begin", "turn 1", "turn 2"]
    assert "t2-critic.md" not in files(work, "cdo/a~1")


LOCKS = ("index.lock", "HEAD.lock", "config.lock", "shallow.lock", "packed-refs.lock", "refs/heads/main.lock",
         "gc.pid", "objects/maintenance.lock", "refs/cdo/b.lock")  # fmt: skip


@pytest.mark.parametrize("kind", ["plain", "detached", "worktree"])
def test_locks_of_others_hold_up_nothing_and_stay(tmp_path: Path, finished: Desk, kind: str) -> None:
    work = tmp_path / "repo"
    work.mkdir()
    directory = repository(work, kind)
    (work / "tmp").mkdir(exist_ok=True)
    git(work, "pack-refs", "--all")
    own = Path(git(work, "rev-parse", "--absolute-git-dir"))
    for place in {directory, own}:
        for name in LOCKS:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(f"{os.getpid()} somewhere\n")
    before = state(work, directory) | state(work, own)
    run = run_in(work, finished)
    run.turn(1)
    assert run.close() == []
    assert turns(work) == ["begin", "turn 1"]
    assert state(work, directory) | state(work, own) == before


@pytest.mark.wide
def test_while_objects_are_packed_away_and_pruned_every_commit_stays_whole(work: Path, finished: Desk) -> None:
    run = run_in(work, finished)
    for number in range(1, 5):
        run.turn(number)
        # What git is about to refer to, `--prune=now` throws away: that is its user's risk, and no run's.
        wait_for(lambda: run.trail._keeper._last.get("Cdo-Turn") == str(number))  # noqa: B023
        git(work, "gc", "-q", "--prune=now", check=False)
    assert run.close() == []
    assert turns(work) == ["begin", *(f"turn {number}" for number in range(1, 5))]
    git(work, "fsck", "--strict", "--no-dangling")


@pytest.mark.parametrize("kind", ["plain", "worktree"])
def test_runs_that_commit_at_once_lose_nothing(tmp_path: Path, finished: Desk, kind: str) -> None:
    work = tmp_path / "repo"
    work.mkdir()
    directory = repository(work, kind)
    (work / "tmp").mkdir(exist_ok=True)
    before = state(work, directory)
    runs = {name: run_in(work, finished, name) for name in ("a", "b", "c")}
    for number in range(1, 4):
        for run in runs.values():
            run.turn(number)
    for name, run in runs.items():
        assert run.close() == []
        assert turns(work, f"cdo/{name}") == ["begin", "turn 1", "turn 2", "turn 3"]
    assert state(work, directory) == before
    git(work, "fsck", "--strict", "--no-dangling")


def test_a_git_that_goes_away_in_the_middle_costs_the_branch_alone(
    work: Path, finished: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.symlink_to(str(shutil.which("git")))
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    run = run_in(work, finished)
    run.turn(1)
    wait_for(lambda: run.trail._keeper._event == "turn")
    program.unlink()
    run.turn(2)
    (note,) = run.close()
    assert "git cannot be started: No such file or directory" in note and "--no-git leaves it out" in note
    assert turns(work) == ["begin", "turn 1"]
    monkeypatch.undo()
    session = Session.open(run.session.path)
    trail = GitCommitObserver(session, run.said.append, work, LIBRARY)
    trail(happened("stopped", "", {"status": "Interrupted", "why": "x"}))
    trail._patience = 20.0
    trail.close()
    session.close()
    assert turns(work)[-1] == "stopped" and "t2-critic.md" in files(work)


def test_a_disk_that_is_full_in_git_costs_the_branch_alone(work: Path, finished: Desk, tmp_path: Path) -> None:
    # A bound on the size of what git writes: like on a full disk its write ends half-way, with an error.
    program = tmp_path / "git"
    program.write_text(f"#!/bin/sh\ntrap '' XFSZ\nulimit -f 8\nexec {shutil.which('git')} \"$@\"\n")
    program.chmod(0o755)
    run = run_in(work, finished)
    run.turn(1)
    wait_for(lambda: run.trail._keeper._event == "turn")
    before = state(work, work / ".git")
    repository = run.trail._keeper.repository
    assert repository
    repository._program, usual = str(program), repository._program
    noise = os.urandom(100_000).hex()
    run.turn(2, **{"t2-maker.md": noise})
    wait_for(lambda: run.trail._notes)
    assert turns(work) == ["begin", "turn 1"] and state(work, work / ".git") == before
    git(work, "fsck", "--strict", "--no-dangling")
    repository._program = usual  # there is room again
    run.turn(3)
    (note,) = run.close()
    assert "File too large" in note and "--no-git leaves it out" in note
    assert turns(work) == ["begin", "turn 1", "turn 2", "turn 3"]
    assert git(work, "show", "cdo/a~1:t2-maker.md") == noise
    git(work, "fsck", "--strict", "--no-dangling")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["config", "packed-refs", "objects/info/alternates", "info/attributes", "HEAD"])
def test_a_pipe_where_git_expects_a_file_holds_up_nothing_for_long(work: Path, finished: Desk, name: str) -> None:
    place = work / ".git" / name
    place.unlink(missing_ok=True)
    os.mkfifo(place)
    run = run_in(work, finished)
    run.turn(1)
    run.trail.close()
    run.session.close()
    assert (run.session.path / "t1-synthesis.md").exists()
    assert len(run.said) == (name != "info/attributes"), run.said
    wait_for(lambda: not _running("git", str(work)))
    run.trail._keeper.end(0.0)
    with pytest.raises(TooSlow):  # the very first question is bounded by the end of the run, too
        run.trail._keeper._find(work)
    assert stat.S_ISFIFO(place.lstat().st_mode)


def test_a_fork_begins_at_its_sources_commit(work: Path, finished: Desk) -> None:
    source = run_in(work, finished)
    source.turn(1)
    source.turn(2)
    source.close()
    fork = run_in(
        work, finished, "b", forked=Forked(session="a", turn=1, created=source.created), created="2026-01-01"
    )
    for name in ("t1-critic.md", "t1-synthesis.md"):
        fork.session.put_now(name, (source.session.path / name).read_text())
    fork.turn(2, "Another way.")
    assert fork.close() == []
    assert git(work, "merge-base", "cdo/a", "cdo/b") == git(work, "rev-parse", "cdo/a~1")
    assert subjects(work, "cdo/b")[2:] == [
        "Begin: fork of a after turn 1: Split?",
        "Turn 2: 1 voice, confidence 0.60, 1 open tension",
    ]
    assert {"session.yaml", "t2-critic.md"} <= set(git(work, "diff", "--name-only", "cdo/a", "cdo/b").split())


def test_odd_files_of_people_do_no_harm(work: Path, finished: Desk) -> None:
    run = run_in(work, finished)
    wait_for(lambda: run.trail._keeper.branch)
    (run.session.path / 'a "b" \\ c é.md').write_text("quoted")
    (run.session.path / 'a "b" é.md').write_text("quoted")
    (run.session.path / "line\nbreak.md").write_text("left out")
    (run.session.path / ".hidden.tmp").write_text("left out")
    (run.session.path / "link.md").symlink_to("/etc/hostname")
    run.turn(1)
    assert run.close() == []
    names = {entry.path for entry in cdo_git.find(work).tree("refs/cdo/a")}  # type: ignore[union-attr]
    assert {'a "b" é.md', "t1-critic.md"} <= names
    assert not names & {"line\nbreak.md", ".hidden.tmp", "link.md"}
    assert all(stat.S_ISREG(int(line.split()[0], 8)) for line in git(work, "ls-tree", "-r", "cdo/a").splitlines())


TYPED: dict[str, str | bytes] = {
    "inbox/1.md": TOKEN, "taken/1.md": f"Dear all, {TOKEN}\n", "superseded/edits/1.md": f"x{chr(10)}{TOKEN}",
    "products/p1-x/mine.md": "AKIA" + "Q7WZ3KFR9TYB2LMX", "t1-critic.md": "---\nposition: s3cret\n---\n",
    "superseded/1/t1-critic.md": "s3cret", f"inbox/{TOKEN}.md": "nothing inside", "inbox/s3cret.md": "nothing inside",
    "utf-16.md": TOKEN.encode("utf-16"), "broken.md": b"\xff\xfe\xff " + TOKEN.encode(), "00-input.md": "s3cret",
    "key.md": "-----BEGIN PRIVATE KEY-----\n" + (TOKEN[4:] * 4) + "\n-----END PRIVATE KEY-----\n",
}  # fmt: skip


def test_no_file_of_a_person_with_a_secret_is_committed_until_it_is_clean(work: Path, finished: Desk) -> None:
    run = run_in(work, finished)
    run.turn(1)
    wait_for(lambda: run.trail._keeper._event == "turn")
    before = files(work)
    lay(run.session.path, TYPED)
    lay(run.session.path, {"taken/2.md": "Dear all,\n"})
    run.turn(2)
    wait_for(lambda: run.trail._keeper._last.get("Cdo-Turn") == "2")
    after = files(work)
    assert {name for name in before if after.get(name) != before[name]} == set()
    assert set(after) & set(TYPED) == {"00-input.md", "t1-critic.md"} and "taken/2.md" in after
    found = objects(work)
    assert not [text for text in (TOKEN, TOKEN[4:], "s3cret", "Q7WZ3KFR9TYB2LMX") if text.encode() in found]
    clean: dict[str, str | bytes] = {name: "without" for name in TYPED if TOKEN not in name and "s3cret" not in name}
    lay(run.session.path, clean)
    run.turn(3)
    (note,) = run.close()
    assert note.startswith("git: ") and f" and {len(TYPED) - 1} other files is left out" in note
    assert TOKEN not in note and "s3cret" not in note
    final = files(work)
    assert {name for name in clean if final.get(name) != cdo_git.blob_id(b"without", 40)} == set()


def lay(session: Path, texts: Mapping[str, str | bytes]) -> None:
    """Put files into a session as a person does."""
    for name, text in texts.items():
        path = session / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


def test_a_turn_with_a_file_that_is_left_out_is_committed_once(work: Path, finished: Desk) -> None:
    run = run_in(work, finished)
    run.turn(1, f"Look at {TOKEN}.", **{"t1-synthesis.md": f"And at {TOKEN}."})
    (note,) = run.close()
    assert "t1-critic.md and 1 other file is left out" in note
    assert "an API key" not in note and "what looks like a GitHub token" in note
    assert turns(work) == ["begin", "turn 1"] and TOKEN.encode() not in objects(work)
    assert "[redacted:a GitHub token]" in git(work, "log", "-1", "--format=%B", "cdo/a")
    tip = git(work, "rev-parse", "cdo/a")
    assert len(replayed(work, run.session.path)) == 1
    assert git(work, "rev-parse", "cdo/a") == tip


def test_a_file_that_got_a_secret_later_makes_no_commit_of_its_turn(work: Path, finished: Desk) -> None:
    run = run_in(work, finished)
    run.turn(1)
    assert run.close() == []
    tip = git(work, "rev-parse", "cdo/a")
    lay(run.session.path, {"t1-synthesis.md": f"And at {TOKEN}."})
    for _ in range(2):
        (note,) = replayed(work, run.session.path)
        assert "t1-synthesis.md is left out" in note
    assert git(work, "rev-parse", "cdo/a") == tip


def replayed(work: Path, path: Path) -> list[str]:
    """What is said of git where a later process finds the first turn recorded."""
    told: list[str] = []
    session = Session.open(path)
    trail = GitCommitObserver(session, told.append, work, LIBRARY)
    directive = {"confidence": 0.6, "agreement": 0.5, "focus": "", "exit_ready": False, "tensions": []}
    trail(happened("reply", "t1-synthesis", {"directive": directive, "how": "recorded"}))
    trail._patience = 20.0
    trail.close()
    session.close()
    return told


def test_a_plan_with_a_secret_keeps_the_run_off_any_branch(work: Path, finished: Desk) -> None:
    run = run_in(work, finished, created=f"2026 {TOKEN}")
    run.turn(1)
    (note,) = run.close()
    assert "the run is not committed: session.yaml holds what looks like a GitHub token." in note
    assert not git(work, "for-each-ref", "refs/cdo", "refs/heads/cdo") and TOKEN.encode() not in objects(work)


def test_an_observer_raises_nothing_whatever_it_is_told(work: Path, finished: Desk) -> None:
    run = run_in(work, finished)
    run.trail(happened("batch", "", {"calls": [("t1-critic",)]}))
    run.trail(happened("reply", "t1-synthesis", {"directive": {}}))
    run.turn(1)
    began = time.monotonic()
    assert len(run.close()) == 1
    assert time.monotonic() - began < 15
    assert turns(work) == ["begin", "turn 1"]
