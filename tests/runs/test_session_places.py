"""Where sessions are kept: at the repository's root, hidden from git, and found from everywhere in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import Desk
from tests.support.harness import Done, lacking
from tests.support.repositories import git, repository

ASK = ("think", "--turns", "1", "--session")


def below(desk: Desk, folder: str) -> Callable[..., Done]:
    """Run commands in a folder of a desk."""
    (desk.path / folder).mkdir(parents=True, exist_ok=True)
    return partial(desk, cwd=folder)


def bare_repository(desk: Desk) -> None:
    """A repository without a .gitignore."""
    git(desk.path, "init", "-q", "-b", "main")
    git(desk.path, "commit", "-q", "--allow-empty", "-m", "first")


def test_sessions_go_to_the_root_of_the_repository_and_are_found_from_everywhere(cdo: Desk) -> None:
    bare_repository(cdo)
    inside = below(cdo, "src/deep")
    made = inside(*ASK, "a", "Should we move?").ok()
    assert "../../tmp/cdo-a/FINAL.md" in made.out + made.err
    assert (cdo.path / "tmp/cdo-a/FINAL.md").is_file() and not (cdo.path / "src/deep/tmp").exists()
    assert git(cdo.path, "status", "--porcelain") == "" and (cdo.path / "tmp/.gitignore").read_text() == "*\n"
    other = below(cdo, "docs")
    for desk, folder in ((cdo, "."), (inside, "src/deep"), (other, "docs")):
        (row,) = desk("list", "--json").ok().json
        assert Path(cdo.path, folder, row["path"]).resolve() == (cdo.path / "tmp/cdo-a").resolve()
        assert desk("final", "a").ok().out == desk("final").ok().out
        assert desk("show", "a").ok().out and desk("cost", "--json").ok().json["total"]["calls"]
        desk("resume", "a").ok()
    assert other("search", "move", "--json").ok().json[0]["session"] == "a"
    other("fork", "a", "--no-run").ok()
    assert (cdo.path / "tmp/cdo-a-2").is_dir()


@pytest.mark.wide
def test_sessions_that_an_older_version_left_in_a_subfolder_are_found_there(cdo: Desk) -> None:
    bare_repository(cdo)
    cdo(*ASK, "a", "Should we move?").ok()
    inside = below(cdo, "src")
    inside(*ASK, "b", "--out", "tmp", "--max-calls", "2", "Should we stay?").failed(5)
    assert (cdo.path / "src" / "tmp/cdo-b").is_dir()
    assert [row["path"] for row in inside("list", "--json").ok().json] == ["tmp/cdo-b", "../tmp/cdo-a"]
    assert [row["path"] for row in cdo("list", "--json").ok().json] == ["tmp/cdo-a"]
    assert inside("search", "stay", "--json").ok().json[0]["session"] == "b"
    assert {item["session"] for item in inside("cost", "--json").ok().json["sums"]} == {"a", "b"}
    inside("resume", "--max-calls", "50").ok()  # the newest that is unfinished
    assert (cdo.path / "src" / "tmp/cdo-b/FINAL.md").exists() and inside("final", "b").ok().out == inside(
        "final"
    ).ok().out


@pytest.mark.wide
@pytest.mark.parametrize("kind", ["worktree", "submodule"])
def test_a_work_tree_and_a_submodule_have_a_tmp_of_their_own(cdo: Desk, kind: str) -> None:
    repository(cdo.path, kind)
    below(cdo, "src")(*ASK, "a", "Should we move?").ok()
    assert (cdo.path / "tmp/cdo-a/FINAL.md").is_file()


@pytest.mark.wide
@pytest.mark.parametrize("kind", ["none", "bare", "broken", "of another user"])
def test_without_a_work_tree_of_ones_own_sessions_stay_here(cdo: Desk, kind: str) -> None:
    inside = below(cdo, "src")
    if kind == "bare":
        shutil.rmtree(cdo.path / "src")
        repository(cdo.path, "bare")
        inside = below(cdo, "src")
    elif kind == "broken":
        (cdo.path / ".git").write_text("gitdir: nowhere\n")
    elif kind == "of another user":
        if os.getuid() != 0:
            lacking("root", "only root can give a folder away")
        bare_repository(cdo)
        for path in (cdo.path, cdo.path / ".git"):
            os.chown(path, 12345, 12345)
    inside(*ASK, "a", "Should we move?").ok()
    assert (cdo.path / "src" / "tmp/cdo-a/FINAL.md").is_file()


@pytest.mark.wide
def test_only_a_folder_that_cdo_makes_is_hidden_from_git(cdo: Desk) -> None:
    bare_repository(cdo)
    cdo.write("mine/notes.txt", "mine\n")
    cdo.write("kept/.gitignore", "!*\n")
    for name, out in (("a", "new/runs"), ("b", "mine"), ("c", "kept")):
        cdo(*ASK, name, "--out", out, "Should we move?").ok()
    assert (cdo.path / "new/runs/.gitignore").read_text() == "*\n"
    assert not (cdo.path / "mine/.gitignore").exists()
    assert (cdo.path / "kept/.gitignore").read_text() == "!*\n"
    shown = git(cdo.path, "status", "--porcelain")
    assert "mine/" in shown and "kept/" in shown and "new" not in shown


@pytest.mark.wide
def test_two_first_runs_at_once_hide_the_folder_once(cdo: Desk) -> None:
    bare_repository(cdo)
    for done in cdo.several(*([*ASK, name, "Should we move?"] for name in "abc")):
        done.ok()
    assert git(cdo.path, "status", "--porcelain") == ""
    assert sorted(path.name for path in (cdo.path / "tmp").iterdir()) == [".gitignore", "cdo-a", "cdo-b", "cdo-c"]


@pytest.mark.wide
def test_a_link_that_a_repository_has_for_tmp_is_refused(cdo: Desk, tmp_path: Path) -> None:
    bare_repository(cdo)
    (tmp_path / "elsewhere").mkdir()
    (cdo.path / "tmp").symlink_to(tmp_path / "elsewhere")
    assert below(cdo, "src")(*ASK, "a", "Should we move?").code not in (0, None)
    assert list((tmp_path / "elsewhere").iterdir()) == []
