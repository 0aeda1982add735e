"""Missions that make real files: commands that test them, and how accepted files reach a repository."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import A, Desk
from tests.support.harness import ROOT
from tests.support.repositories import git

SCRIPT = ROOT / "docs/tutorial/todo-mission.yaml"
REQUEST = "Build a simple TODO list web application MVP"
FILES = ("app.js", "index.html", "tests/test_app.py")


def script(place: Path, **changes: str) -> str:
    """The model of the tutorial's team, with other replies where `changes` say so (`_` for `-`)."""
    replies = yaml.safe_load(SCRIPT.read_text())
    replies |= {name.replace("_", "-"): text for name, text in changes.items()}
    (place / "team.yaml").write_text(yaml.safe_dump(replies))
    return f"scripted:{place / 'team.yaml'}"


def mission(model: str, *options: str) -> tuple[str, ...]:
    return ("cabal", "-m", model, "--operatives", "2", *A, *options, REQUEST)


@pytest.fixture
def repo(cdo: Desk) -> Desk:
    """A desk in a repository with one commit and a change that is not committed."""
    git(cdo.path, "init", "-q", "-b", "main")
    cdo.write("README.md", "# Mine\n")
    git(cdo.path, "add", "README.md")
    git(cdo.path, "commit", "-q", "-m", "Begin")
    cdo.write("README.md", "# Mine, changed\n")
    return cdo


def delivered(session: Path) -> dict[str, str]:
    place = session / "deliverables"
    return {str(path.relative_to(place)): path.read_text() for path in sorted(place.rglob("*")) if path.is_file()}


def seen(repo: Desk) -> tuple[str, ...]:
    """All that a person sees of their repository, but cdo's own refs and sessions."""
    return (
        git(repo.path, "status", "--porcelain", "--ignored=no"), git(repo.path, "rev-parse", "HEAD"),
        git(repo.path, "symbolic-ref", "HEAD"), git(repo.path, "ls-files", "-s"), git(repo.path, "stash", "list"),
    )  # fmt: skip


@pytest.mark.quick
def test_the_todo_list_ends_with_files_that_run_on_a_branch(repo: Desk) -> None:
    before = seen(repo)
    assert re.search(r" tokens, cost \$0$", repo(*mission(f"scripted:{SCRIPT}", "--dry-run")).ok().out, re.MULTILINE)
    ended = repo(*mission(f"scripted:{SCRIPT}", "--exec", "--deliver", "branch", "--json")).ok()
    session, result = repo.session(), ended.json
    assert (result["status"], result["turns"]) == ("done", 3) and "missing" not in ended.err
    assert sorted(result["deliverables"]) == [f"deliverables/{name}" for name in FILES]
    texts = delivered(session)
    assert tuple(texts) == FILES
    written = yaml.safe_load(SCRIPT.read_text())["r2-write-operative-1"]
    page = written.partition("=====BEGIN p3=====\n")[2].partition("=====END p3=====")[0]
    assert texts["index.html"] == page, "byte for byte"
    ran = subprocess.run(
        [sys.executable, "-m", "unittest", "discover", "-s", "tests"], cwd=session / "deliverables", check=False
    )
    assert ran.returncode == 0
    # The first files fail, and the writer and the watchdog are shown why.
    assert re.findall(r"^check: exit code (\d)", ended.err, re.MULTILINE) == ["1", "0"]
    assert len(re.findall(r"^check: `.+` runs", ended.err, re.MULTILINE)) == 2
    assert ended.err.count("the sandbox (") == 1, "how a command runs is explained once"
    shown = repo("context", "p3", "--step", "write", "--session", "a").ok().out
    assert "`python3 -m unittest discover -s tests`: exit code 0" in shown
    # One commit on top of HEAD; nothing of the person's own is touched.
    branch = "cdo/a-files"
    assert f"The branch {branch} has 3 files in one commit on top of HEAD." == result["handed_over"]
    assert result["handed_over"].partition(" ")[0] in (session / "FINAL.md").read_text()
    assert git(repo.path, "rev-list", "--count", f"main..refs/heads/{branch}") == "1"
    assert git(repo.path, "diff", "--name-only", "main", branch).split("\n") == list(FILES)
    assert git(repo.path, "show", f"{branch}:index.html") == texts["index.html"].strip()
    assert git(repo.path, "log", "-1", "--format=%an %s", branch).startswith("cdo Build a TODO list for the browser")
    assert seen(repo) == before
    proof = yaml.safe_load((session / "CERTIFICATE.yaml").read_text())
    assert [(run["exit_code"], run["round"]) for run in proof["commands"]] == [(0, 2)]
    repo("verify", "a").ok()
    # The page tells of both runs, and of each inspection where it came from.
    repo("report", "a").ok()
    page = (session / "report.html").read_text()
    commands = r"<dt>Commands</dt><dd><ul><li><code>python3 -m unittest discover -s tests</code> (?:failed|passed)"
    assert len(re.findall(commands, page)) == 2
    assert re.findall(r'href="r1-inspect-(p\d)\.md">\d of \d criteria', page) == ["p3", "p4", "p5"]
    # A resume repeats no run and makes no second branch.
    again = repo("resume", "a", "--json").ok()
    assert "check:" not in again.err and again.json["handed_over"] == result["handed_over"]
    assert git(repo.path, "for-each-ref", "--format=%(refname)", "refs/heads").split("\n") == [
        f"refs/heads/{branch}", "refs/heads/main",
    ]  # fmt: skip
    # What was accepted is proved byte for byte.
    (session / "deliverables/app.js").write_text(texts["app.js"].replace("push", "pop"))
    assert "app.js" in repo("verify", "a").failed(8).out


def test_an_unfinished_mission_ends_honestly(repo: Desk) -> None:
    before = seen(repo)
    stuck = script(repo.path.parent, r2_plan='{"response_type": "final_output", "assignments": []}')
    ended = repo(*mission(stuck, "--exec", "--deliver", "patch", "--rounds", "2", "--json")).failed(3)
    assert ended.json["status"] == "unresolved" and ended.json["deliverables"] == []
    assert ended.json["handed_over"] == "Nothing was delivered to git: no product with a path is accepted."
    assert seen(repo) == before and not (repo.session() / "deliverables.patch").exists()
    final = (repo.session() / "FINAL.md").read_text()
    assert "failed on the files of all products: exit code 1" in final and "not met: The tests pass" in final


def test_a_mission_delivers_as_a_patch_what_is_accepted(repo: Desk) -> None:
    before = seen(repo)
    ended = repo(*mission(f"scripted:{SCRIPT}", "--exec", "--deliver", "patch", "--json")).ok()
    patch = repo.session() / "deliverables.patch"
    assert ended.json["handed_over"].startswith("deliverables.patch changes 3 files; `git apply` takes it.")
    assert seen(repo) == before
    git(repo.path, "apply", str(patch))
    assert (repo.path / "tests/test_app.py").read_text() == delivered(repo.session())["tests/test_app.py"]
    assert git(repo.path, "for-each-ref", "refs/cdo-patch", "refs/heads/cdo") == ""


def test_a_branch_of_that_name_is_never_overwritten(repo: Desk) -> None:
    git(repo.path, "branch", "cdo/a-files")
    told = repo(*mission(f"scripted:{SCRIPT}", "--exec", "--deliver", "branch", "--json")).ok().json["handed_over"]
    assert "The branch cdo/a-files-2 has 3 files" in told and "cdo/a-files was taken." in told
    assert git(repo.path, "rev-parse", "cdo/a-files") == git(repo.path, "rev-parse", "main")


def test_outside_a_repository_deliver_is_refused_at_once(cdo: Desk) -> None:
    done = cdo(*mission(f"scripted:{SCRIPT}", "--deliver", "branch")).failed(2)
    assert "--deliver needs a git repository" in done.err
    assert not (cdo.path / "tmp").exists()


def test_commands_of_somebody_elses_session_run_only_after_exec(cdo: Desk) -> None:
    elsewhere = {"CDO_DATA_DIR": str(cdo.path.parent / "other")}
    cut = script(cdo.path.parent, r1_write_operative_2="nothing")
    cdo(*mission(cut, "--exec", "--max-calls", "3"))
    done = cdo("resume", "a", "-m", f"scripted:{SCRIPT}", "--max-calls", "99", env=elsewhere).failed(6)
    assert "you have not allowed that for this session" in done.err and "cdo resume a --exec" in done.err
    cdo("resume", "a", "-m", f"scripted:{SCRIPT}", "--max-calls", "99", "--exec", env=elsewhere)
    assert (cdo.session() / "FINAL.md").is_file()


def test_a_command_sees_no_network_no_other_files_and_has_bounds(cdo: Desk) -> None:
    secret = cdo.path.parent / "home/secret"
    cdo.write("../home/secret", "hidden")
    probe = f"""import os, resource, socket
for name, test in dict(
    network=lambda: socket.create_connection(("127.0.0.1", 9), 2),
    home=lambda: open({str(secret)!r}),
    memory=lambda: bytearray(6 << 30),
    outside=lambda: open("/etc/cdo-test", "w"),
).items():
    try:
        test()
        print(name, "open")
    except (OSError, MemoryError) as error:
        print(name, type(error).__name__)
print(resource.getrlimit(resource.RLIMIT_NPROC)[0] > 0, sorted(os.listdir(".")))
print("\\n".join(["x" * 50] * 60))
raise SystemExit(1)
"""
    replies = yaml.safe_load(SCRIPT.read_text())
    said = replies["r1-write-operative-2"]
    head, _, rest = said.partition("=====BEGIN p5=====\n")
    test = f"{head}=====BEGIN p5=====\n{probe}=====END p5{rest.partition('=====END p5')[2]}"
    begun = replies["r0-bootstrap"].replace("python3 -m unittest discover -s tests", "python3 tests/test_app.py")
    ended = cdo(
        *mission(script(cdo.path.parent, r1_write_operative_2=test, r0_bootstrap=begun), "--exec", "--rounds", "1")
    )
    assert ended.code == 3
    run = next(item["run"] for item in _records(cdo.session()) if item["kind"] == "check-run")
    assert run["code"] == 1
    assert run["out"].split("\n")[:5] == [
        "network ConnectionRefusedError", "home FileNotFoundError", "memory MemoryError", "outside OSError",
        "True ['app.js', 'index.html', 'tests']",
    ]  # fmt: skip
    text = cdo("context", "p5", "--step", "write", "--session", "a").ok().out
    assert 30 < text.count("x" * 50) < 50, "only the end of the output is shown"


def _records(session: Path) -> list[Mapping[str, Any]]:
    import json

    return [
        json.loads(line) for path in sorted((session / "calls").iterdir()) for line in path.read_text().splitlines()
    ]


def test_without_exec_a_command_is_refused_and_not_offered(cdo: Desk) -> None:
    done = cdo(*mission(f"scripted:{SCRIPT}", "--rounds", "1"))
    assert done.code != 0 and "command" not in cdo("context", "p3", "--step", "plan", "--session", "a").out
    journal = (cdo.session() / "journal.jsonl").read_text()
    assert "no command runs in this mission, which was begun without --exec; use another kind" in journal
    assert os.listdir(cdo.session())
