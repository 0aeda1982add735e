"""git as cdo uses it: the repository is found wherever it is, and every answer is bounded in size and time."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from cdo.repository import git as cdo_git
from cdo.repository.git import Git, Repository, TreeEntry, blob_id, find
from cdo.repository.git_process import Refused, TooSlow
from tests.support.harness import wait_for
from tests.support.repositories import KINDS, git, repository

REF = "refs/heads/cdo/a"
WHEN = (1_700_000_000, "+0130")


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    """A plain repository with one commit."""
    folder = tmp_path / "repo"
    folder.mkdir()
    repository(folder)
    return known(folder)


def known(folder: Path) -> Repository:
    """The repository that a folder is in."""
    found = find(folder)
    assert found
    return found


# -- finding ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_repository_of_any_kind_is_found_and_committed_to(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "repo"
    folder.mkdir()
    repository(folder, kind)
    found = known(folder / "missing" / "below")
    assert found.head() == git(folder, "rev-parse", "-q", "--verify", "HEAD", check=False)
    tip = found.commit(REF, "", "First\n", WHEN, {"a.md": b"one"})
    assert git(folder, "rev-parse", "cdo/a") == tip
    assert len(tip) == (64 if kind == "sha256" else 40)
    assert [(entry.path, entry.object) for entry in found.tree(tip)] == [("a.md", blob_id(b"one", len(tip)))]


def test_no_repository_is_none_and_a_broken_one_says_why(tmp_path: Path) -> None:
    assert find(tmp_path) is None
    (tmp_path / ".git").mkdir()
    with pytest.raises(Refused, match="damaged"):
        find(tmp_path)
    (tmp_path / ".git").rmdir()
    (tmp_path / ".git").write_text("gitdir: nowhere\n")
    with pytest.raises(Refused, match="not a git repository"):
        find(tmp_path / "below")


def test_without_git_only_a_repository_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "repo").mkdir()
    repository(tmp_path / "repo")
    monkeypatch.setenv("PATH", f"{tmp_path}:relative")
    assert find(tmp_path) is None
    with pytest.raises(Refused, match="no git program"):
        find(tmp_path / "repo")


# -- committing ------------------------------------------------------------------------------------


def test_commits_add_change_and_remove_files_of_any_name(repo: Repository) -> None:
    names = ['q"uote.md', "back\\slash.md", "é — ü.md", " blank .md", "calls/0001.jsonl", "superseded/1/x.md", "Ⅷ"]
    first = repo.commit(REF, "", "One\n\nBody é\n", WHEN, {name: name.encode() for name in names})
    entries = repo.tree(first)
    assert {entry.path for entry in entries} == set(names)
    assert dict(zip((e.path for e in entries), repo.blobs(entries), strict=True)) == {n: n.encode() for n in names}
    changes = {names[0]: None, "calls/0001.jsonl": b"\0\n\xff", "calls/0002.jsonl": b""}
    second = repo.commit(REF, first, "Two\n", WHEN, changes)
    now = {entry.path: data for entry, data in zip(repo.tree(second), repo.blobs(repo.tree(second)), strict=True)}
    assert names[0] not in now and now["calls/0001.jsonl"] == b"\0\n\xff" and now["calls/0002.jsonl"] == b""
    assert repo.log(second) == [(second, "Two\n"), (first, "One\n\nBody é\n")]
    branch = repo.branches("refs/heads/cdo")[0]
    assert (branch.ref, branch.tip, branch.date, branch.message) == (REF, second, WHEN[0], "Two\n")
    assert not branch.symbolic and not branch.worktree
    assert git(repo.directory, "log", "-1", "--format=%ad", "--date=iso", "cdo/a").endswith("+0130")
    git(repo.directory, "fsck", "--strict")


def test_a_branch_that_moved_is_not_overwritten(repo: Repository) -> None:
    first = repo.commit(REF, "", "One\n", WHEN, {"a": b"1"})
    second = repo.commit(REF, first, "Two\n", WHEN, {"a": b"2"})
    for parent in (first, ""):
        with pytest.raises(Refused, match="Not updating"):
            repo.commit(REF, parent, "Other\n", WHEN, {"a": b"3"})
    assert repo.branches(REF)[0].tip == second


def test_a_commit_that_fails_leaves_nothing_behind(repo: Repository) -> None:
    before = sorted(path.name for path in repo.directory.iterdir())
    with pytest.raises(Refused):
        repo.commit(REF, "0" * 39 + "1", "One\n", WHEN, {"a": b"1"})
    with pytest.raises(Refused):
        repo.commit("refs/heads/a..b", "", "One\n", WHEN, {"a": b"1"})
    assert sorted(path.name for path in repo.directory.iterdir()) == before


def test_where_a_branch_is_checked_out_is_known_before_its_first_commit_too(repo: Repository, tmp_path: Path) -> None:
    tip = repo.commit(REF, "", "One\n", WHEN, {"a": b"1"})
    git(repo.directory, "worktree", "add", "-q", str(tmp_path / "beside"), "cdo/a")
    assert repo.branches(REF)[0].worktree == str(tmp_path / "beside")
    git(repo.directory, "symbolic-ref", "HEAD", "refs/heads/unborn")
    assert repo.unborn() == ["refs/heads/unborn", REF]
    git(repo.directory, "symbolic-ref", "refs/heads/other", REF)
    assert [branch.symbolic for branch in repo.branches("refs/heads/other")] == [True]
    assert repo.has("refs/heads/cdo/a") and not repo.has("refs/heads/cdo")
    assert repo.branches(REF)[0].tip == tip


@pytest.mark.parametrize("data", [b"", b"x", os.urandom(100_000)])
@pytest.mark.parametrize("kind", ["plain", "sha256"])
def test_a_files_id_is_gits(tmp_path: Path, data: bytes, kind: str) -> None:
    (tmp_path / "repo").mkdir()
    repository(tmp_path / "repo", kind)
    theirs = git(tmp_path / "repo", "hash-object", "--stdin", data=data)
    assert blob_id(data, len(theirs)) == theirs


# -- bounds ----------------------------------------------------------------------------------------


def test_an_answer_that_is_too_long_is_refused(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    tip = repo.commit(REF, "", "One\n", WHEN, {"a": b"x" * 500_000})
    entry = repo.tree(tip)[0]
    assert repo.blobs([entry]) == [b"x" * 500_000]
    with pytest.raises(Refused, match="too great a length"):
        repo.blobs([TreeEntry(entry.path, entry.mode, entry.object, 5)])
    with pytest.raises(Refused, match="is missing"):
        repo.blobs([TreeEntry("b", "100644", "0" * 39 + "1", 5)])


@pytest.mark.wide
@pytest.mark.parametrize("word", ["exec sleep 300", "trap '' TERM; while :; do sleep 1; done"])
def test_a_git_that_hangs_is_ended_with_all_it_started(repo: Repository, tmp_path: Path, word: str) -> None:
    program = tmp_path / "git"
    program.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nsleep 300 &\necho $! >> {tmp_path}/pid\n{word}\n")
    program.chmod(0o755)
    slow = Repository(repo.directory, str(program))
    began = time.monotonic()
    slow.until = began + 1.5
    with pytest.raises(TooSlow):
        slow.commit(REF, "", "One\n", WHEN, {"a": b"x" * 10_000_000})
    assert time.monotonic() - began < 60  # it hangs for five minutes
    for process in (tmp_path / "pid").read_text().split():
        wait_for(functools.partial(ended, process), timeout=20)  # one that is killed may still be on its way out


def test_nobody_waits_for_what_git_leaves_running(repo: Repository, tmp_path: Path) -> None:
    """A wrapper whose child holds the pipes open, in its group and in another one."""
    tip = repo.commit(REF, "", "One\n", WHEN, {"a": b"x" * 300_000})
    program = tmp_path / "git"
    real = shutil.which("git")
    program.write_text(
        f"#!/bin/sh\nsleep 300 &\necho $! >> {tmp_path}/pid\n"
        f"{sys.executable} -c 'import os, time; os.setsid(); time.sleep(300)' &\necho $! >> {tmp_path}/other\n"
        f'{real} "$@"\n'
    )
    program.chmod(0o755)
    wrapped = Repository(repo.directory, str(program))
    began = time.monotonic()
    try:
        (entry,) = wrapped.tree(tip)
        assert wrapped.blobs([entry]) == [b"x" * 300_000]
        assert time.monotonic() - began < 120  # the children sleep for five minutes
        for process in (tmp_path / "pid").read_text().split():
            wait_for(functools.partial(ended, process), timeout=20)
    finally:
        for process in (tmp_path / "other").read_text().split():
            with contextlib.suppress(ProcessLookupError):  # it may have ended before it left the group
                os.kill(int(process), signal.SIGKILL)


def ended(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] in "ZX"
    except OSError:
        return True


def test_looking_for_a_repository_ends_when_it_has_to(repo: Repository) -> None:
    folder = repo.directory.parent
    with pytest.raises(TooSlow):
        find(folder, lambda: 0.0)
    (repo.directory / "config").unlink()
    os.mkfifo(repo.directory / "config")  # git waits for somebody to write into it
    limits = iter([float("inf")] * 3)
    with pytest.raises(TooSlow):
        find(folder, lambda: next(limits, 0.0))


def test_questions_about_a_work_tree_stop_at_the_first_that_fails(tmp_path: Path) -> None:
    (tmp_path / "repo").mkdir()
    repository(tmp_path / "repo")
    asked = Git(str(tmp_path / "repo"))
    assert asked.ask("ls-files", "-z") == [".gitignore", "a.txt"]
    assert asked.ask("no-such-command") is None
    assert asked.ask("ls-files", "-z") is None


def test_a_git_in_the_repository_is_never_run(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = repo.directory.parent
    (folder / "git").write_text(f"#!/bin/sh\ntouch {folder}/ran\n")
    (folder / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:.:{os.environ['PATH']}")
    assert known(folder).head()
    assert Git(str(folder)).ask("ls-files", "-z")
    assert not (folder / "ran").exists()
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(Refused, match="no git program"):
        find(folder)
    assert shutil.which("git") == str(folder / "git")


def test_no_other_program_in_the_repository_is_run_on_the_way_to_git(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = repo.directory.parent
    (folder / "env").write_text(f"#!/bin/sh\ntouch {folder}/ran\n")
    (folder / "env").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    assert known(folder).head() and Git(str(folder)).ask("ls-files", "-z")
    assert not (folder / "ran").exists()


def test_git_is_run_where_path_has_nothing_else(
    repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").symlink_to(str(shutil.which("git")))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert known(repo.directory.parent).head()


def test_what_git_sees_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/elsewhere")
    monkeypatch.setenv("SECRET_KEY", "x")
    seen = cdo_git._environment()
    assert "GIT_DIR" not in seen and "SECRET_KEY" not in seen
    assert seen["GIT_CONFIG_GLOBAL"] == seen["GIT_CONFIG_SYSTEM"] == os.devnull
    assert seen["GIT_NO_LAZY_FETCH"] == "1" and seen["GIT_ALLOW_PROTOCOL"] == "none"
