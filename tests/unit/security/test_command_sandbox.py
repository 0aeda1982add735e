"""What holds the person's command, run for real: the copy it works in, the sandboxes there are, and none."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from cdo.core.errors import NeedsHuman
from cdo.core.steps import CheckRun, RunCheck
from cdo.planning.plan import CheckCommand
from cdo.repository import git, work_tree_copy
from cdo.repository.git_process import Refused
from cdo.runner import check_command
from cdo.security import command_sandbox
from cdo.security.command_sandbox import BUBBLEWRAP, LANDLOCK, NAMESPACES, NOTHING, Confinement, Place
from tests.support.harness import lacking

SECRET = "s3cret-of-the-home"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with something to hide in it."""
    place = tmp_path / "home"
    (place / ".ssh").mkdir(parents=True)
    (place / ".ssh/id_ed25519").write_text(SECRET)
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CDO_DATA_DIR", str(tmp_path / "data"))
    return place


@pytest.fixture
def place(tmp_path: Path, home: Path) -> Place:
    """A work tree with installed dependencies, and a copy of it."""
    root = tmp_path / "work"
    (root / ".venv/bin").mkdir(parents=True)
    tool = root / ".venv/bin/tool"
    tool.write_text("#!/bin/sh\necho the tool ran\n")
    tool.chmod(0o755)
    (root / "a.txt").write_text("of the work tree")
    folders = {name: tmp_path / name for name in ("copy", "private", "temporary", "base")}
    for path in folders.values():
        path.mkdir()
    (tmp_path / "copy/a.txt").write_text("of the copy")
    return Place(root, folders["copy"], "", folders["private"], folders["temporary"], folders["base"])


def there(sandbox: Confinement, place: Place) -> dict[str, str]:
    """The environment to start a sandbox from; skips the test where it cannot be had."""
    env = {**os.environ, "MY_TOKEN": "t0ken-of-the-person", "PYTHONPATH": "/nowhere"}
    if not command_sandbox._works(
        command_sandbox.started(sandbox, place, command_sandbox.view(place, env), ":", env)
    ):
        lacking("mounts" if sandbox is NAMESPACES else sandbox.name, f"{sandbox.name} does not work here")
    return env


def say(sandbox: Confinement, place: Place, command: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command in a sandbox."""
    start = command_sandbox.started(sandbox, place, command_sandbox.view(place, env), command, env)
    return subprocess.run(
        start.argv, cwd=start.folder, env=start.env, capture_output=True, text=True, timeout=30, check=False
    )


HELD = pytest.mark.parametrize("sandbox", [BUBBLEWRAP, NAMESPACES, LANDLOCK], ids=lambda sandbox: sandbox.name)


@HELD
def test_a_command_works_in_its_copy_and_reaches_nothing_else(sandbox: Confinement, place: Place, home: Path) -> None:
    env = there(sandbox, place)
    outside = place.root.parent / "outside"
    outside.write_text("outside")
    done = say(
        sandbox,
        place,
        f"cat a.txt; echo changed > a.txt; mkdir -p x/y && mv a.txt x/y && echo in > $HOME/h && echo in > $TMPDIR/t; "
        f"cat {home}/.ssh/id_ed25519 {outside}; echo out > {outside}; echo out > {home}/planted; rm -f {outside}; "
        "echo out > /etc/planted; exit 7",
        env,
    )
    assert done.returncode == 7 and done.stdout.startswith("of the copy")
    assert SECRET not in done.stdout and "outside" not in done.stdout
    assert outside.read_text() == "outside" and not Path("/etc/planted").exists()
    assert (place.root / "a.txt").read_text() == "of the work tree" and sorted(os.listdir(home)) == [".ssh"]
    assert (place.copy / "x/y/a.txt").read_text() == "changed\n"
    assert (place.home / "h").exists() and (place.temporary / "t").exists()


@HELD
def test_a_command_sees_named_variables_and_no_secret(sandbox: Confinement, place: Place) -> None:
    env = there(sandbox, place) | {"LC_TIME": "C", "MY_SETTING": "x", "OPENAI_API_KEY": "sk-123456789"}
    seen = dict(line.split("=", 1) for line in say(sandbox, place, "env", env).stdout.splitlines() if "=" in line)
    assert {"PATH", "HOME", "TMPDIR", "LC_TIME"} <= set(seen)
    assert not {"MY_TOKEN", "MY_SETTING", "OPENAI_API_KEY"} & set(seen)


@HELD
def test_a_command_has_no_network(sandbox: Confinement, place: Place) -> None:
    env = there(sandbox, place)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        call = f"import socket; socket.create_connection(('127.0.0.1', {port}), 5); print('connected')"
        assert "connected" in say(NOTHING, place, f'python3 -c "{call}"', env).stdout
        assert "connected" not in say(sandbox, place, f'python3 -c "{call}"', env).stdout


@HELD
def test_a_command_ends_no_other_process_and_reads_none(sandbox: Confinement, place: Place) -> None:
    env = there(sandbox, place)
    with subprocess.Popen(["sleep", "60"], env={"PERSONAL": SECRET, "PATH": os.environ["PATH"]}) as other:
        try:
            done = say(sandbox, place, f"cat /proc/{other.pid}/environ; kill -9 {other.pid}", env)
            assert SECRET not in done.stdout
            time.sleep(0.1)
            assert other.poll() is None
        finally:
            other.kill()


@pytest.mark.parametrize("sandbox", [BUBBLEWRAP, NAMESPACES], ids=lambda sandbox: sandbox.name)
def test_the_copy_stands_where_the_work_tree_is_with_its_dependencies_read_only(
    sandbox: Confinement, place: Place
) -> None:
    """What is installed in place (`pip install -e .`) leads to the copy, so that a patch has an effect."""
    env = there(sandbox, place)
    words = f"cat {place.root}/a.txt; .venv/bin/tool; mount -o remount,rw {place.root}/.venv; echo x > .venv/bin/tool"
    done = say(sandbox, place, words, env)
    assert done.stdout == "of the copythe tool ran\n"
    assert "the tool ran" in (place.root / ".venv/bin/tool").read_text()
    on_path = {**env, "PATH": f"{place.root}/.venv/bin:{env['PATH']}"}
    assert say(sandbox, place, "tool", on_path).stdout == "the tool ran\n"


def test_the_machine_tells_which_sandbox_it_has(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    env = there(NAMESPACES, place)
    shown = command_sandbox.view(place, env)
    chosen = command_sandbox.choose(place, shown, env)
    bubblewrap = command_sandbox._works(command_sandbox.started(BUBBLEWRAP, place, shown, ":", env))
    assert chosen is (BUBBLEWRAP if bubblewrap else NAMESPACES)
    monkeypatch.setattr(command_sandbox, "_works", lambda start: False)
    assert command_sandbox.choose(place, shown, env) is NOTHING


@pytest.mark.parametrize(
    ("sandbox", "said"),
    [
        (NAMESPACES, "; the sandbox (namespaces) keeps it from other files, the network and other processes"),
        (
            LANDLOCK,
            "(landlock) keeps it from other files and TCP connections, but NOT from the network and oth",
        ),
        (NOTHING, "NOTHING keeps it from changing your other files, from using the network or from ending other"),
    ],
)
def test_a_person_is_told_plainly_what_is_not_held(sandbox: Confinement, said: str) -> None:
    text = check_command.announced("make test", sandbox, 300.0, patched=True)
    assert said in text and "`make test` runs in a copy of the work tree with a patch that a model wrote" in text


# -- one run of the command --------------------------------------------------------------------------


@pytest.fixture
def repo(tmp_path: Path, home: Path) -> Path:
    """A repository with one file, and the folder of a session in it."""
    root = tmp_path / "repo"
    (root / "tmp/cdo-a").mkdir(parents=True)
    (root / "a.txt").write_text("one\ntwo\n")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    return root


def ran(root: Path, command: str, patch: str = "", limit: float = 20.0) -> tuple[CheckRun, list[str]]:
    """Run a command as a session does that the person began; returns what came of it and what they were told."""
    check, said = CheckCommand(command=command, root="../.."), list[str]()
    check_command.allow(check, root)
    run = asyncio.run(
        check_command.runner(check, root / "tmp/cdo-a", limit, said.append)(RunCheck("t1", command, patch))
    )
    assert not list((root.parent / "cache/cdo/checks").glob("call-*")), "the copy is gone"
    return run, said


def test_without_a_sandbox_the_person_is_told_before_the_command_runs(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_sandbox, "choose", lambda *_: NOTHING)
    began = repo.parent / "began"
    check = CheckCommand(command=f"pwd; cat a.txt; touch {began}; exit 3", root="../..")
    check_command.allow(check, repo)
    told: list[tuple[str, bool]] = []
    run_check = check_command.runner(
        check, repo / "tmp/cdo-a", 20.0, lambda text: told.append((text, began.exists()))
    )
    run = asyncio.run(run_check(RunCheck("t1", check.command)))
    assert (run.code, run.sandbox, run.held) == (3, "", ()) and run.out == f"{repo}\none\ntwo"
    warned, ended = told
    assert (
        "NOTHING keeps it" in warned[0]
        and not warned[1]
        and ended[0].startswith("check: exit code 3 after")
        and ended[1]
    )


def test_a_command_that_nobody_gave_here_is_not_run(repo: Path) -> None:
    check = CheckCommand(command="true", root="../..")
    run_check = check_command.runner(check, repo / "tmp/cdo-a", 20.0, print)
    with pytest.raises(NeedsHuman, match="you have not given it for"):
        asyncio.run(run_check(RunCheck("t1", "true")))
    check_command.allow(check, repo)
    assert asyncio.run(run_check(RunCheck("t1", "true"))).code == 0
    for step in (RunCheck("t1", "true; true"),):
        with pytest.raises(NeedsHuman):
            asyncio.run(run_check(step))
    elsewhere = replace(check, folder="tmp")
    with pytest.raises(NeedsHuman):
        asyncio.run(check_command.runner(elsewhere, repo / "tmp/cdo-a", 20.0, print)(RunCheck("t1", "true")))


def test_a_patch_is_applied_strictly_and_only_to_the_copy(repo: Path) -> None:
    good = "--- a/a.txt\n+++ b/a.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+2"
    assert ran(repo, "cat a.txt", good)[0].out == "one\n2"
    run, said = ran(repo, "cat a.txt", good.replace(" one", " none"))
    assert (
        run.code is None
        and run.refused == "the patch does not apply (patch failed: a.txt:1)"
        and said == [f"check: not run: {run.refused}"]
    )
    for outside in ("../b.txt", ".git/hooks/pre-commit"):
        new = f"--- /dev/null\n+++ b/{outside}\n@@ -0,0 +1 @@\n+x\n"
        assert ran(repo, "true", new)[0].refused, outside
    assert (repo / "a.txt").read_text() == "one\ntwo\n" and not (repo.parent / "b.txt").exists()


def test_a_secret_that_a_command_prints_is_not_kept(repo: Path) -> None:
    key = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    run, _ = ran(repo, f"echo {key[:10]}{key[10:]}; exit 1")
    assert key not in run.out and "[redacted:a GitHub token]" in run.out


# -- the copy --------------------------------------------------------------------------------------


def test_a_work_tree_is_copied_without_what_git_ignores(repo: Path, tmp_path: Path) -> None:
    (repo / ".gitignore").write_text("*.log\n")
    (repo / "x.log").write_text("ignored")
    (repo / "sub").mkdir()
    (repo / "sub/run.sh").write_text("echo hi\n")
    (repo / "sub/run.sh").chmod(0o755)
    os.utime(repo / "sub/run.sh", (1_000_000_000, 1_000_000_000))
    (repo / "link").symlink_to("sub/run.sh")
    (repo / "out").symlink_to("/etc/passwd")
    (repo / "up").symlink_to("sub/../../x")
    (repo / "pipe").touch()
    subprocess.run(["git", "-C", str(repo), "add", "."], check=True)
    (repo / "a.txt").unlink()  # deleted, not committed
    (repo / "pipe").unlink()
    os.mkfifo(repo / "pipe")
    for name in ("session.yaml", "journal.jsonl"):
        (repo / "tmp/cdo-a" / name).write_text("x")
    (repo / "old").mkdir()
    for name in ("session.yaml", "journal.jsonl", "t1-critic.md"):
        (repo / "old" / name).write_text("x")
    target = tmp_path / "target"
    target.mkdir()
    done = work_tree_copy.copy(repo, target, repo / "tmp/cdo-a")
    found = sorted(str(path.relative_to(target)) for path in target.rglob("*") if not path.is_dir())
    assert found == [".gitignore", "link", "sub/run.sh"] and done.files == 3
    assert {"out", "up", "pipe", "old/t1-critic.md"} <= set(done.left_out)
    copied = (target / "sub/run.sh").stat()
    assert copied.st_mode & 0o777 == 0o755 and copied.st_mtime == 1_000_000_000
    assert (target / "link").readlink() == Path("sub/run.sh")


def test_a_patch_finds_no_way_out_through_a_link(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy/way").symlink_to(tmp_path)
    with pytest.raises(Refused, match="beyond a symbolic link"):
        git.apply(tmp_path / "copy", "--- /dev/null\n+++ b/way/x\n@@ -0,0 +1 @@\n+x\n")
    assert not (tmp_path / "x").exists()


# -- a program of cdo's own, on macOS ----------------------------------------------------------------

SEATBELT = """#!/bin/sh
printf '%s\\0' "$@" > {log}
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""


@pytest.fixture
def macos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that looks like macOS to cdo; returns the file with the words that sandbox-exec was given."""
    program, log = tmp_path / "sandbox-exec", tmp_path / "words"
    program.write_text(SEATBELT.format(log=log))
    program.chmod(0o755)
    monkeypatch.setattr(command_sandbox, "_SANDBOX_EXEC", str(program))
    monkeypatch.setattr("sys.platform", "darwin")
    return log


def test_sandbox_exec_gets_paths_as_parameters(macos: Path, tmp_path: Path) -> None:
    evil = tmp_path / 'a") (allow default) (x "\n.gguf'
    evil.write_text("weights")
    (tmp_path / "link").symlink_to(evil)
    argv = command_sandbox.limited(["/bin/echo", "it", "ran"], [str(tmp_path / "link")], ["/dev/dri"])
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "it ran\n"
    words = macos.read_text().split("\0")
    profile = words[words.index("-p") + 1].splitlines()
    assert not any("gguf" in rule or "dri" in rule for rule in profile), "no path is part of a rule"
    assert '(allow file-read-data (subpath (param "FILE_READ_DATA_0")))' in profile
    assert f"FILE_READ_DATA_0={os.path.realpath(evil)}" in words, "the system knows files by their real paths"
    assert "FILE_WRITE_0=/dev/dri" in words
    assert {"(deny network-outbound)", "(deny file-write*)", '(deny file-read-data (subpath "/Users"))'} <= {*profile}
    denied = [number for number, rule in enumerate(profile) if rule.startswith("(deny ")]
    allowed = [number for number, rule in enumerate(profile) if rule.startswith("(allow file-")]
    assert profile[0] == "(version 1)" and max(denied) < min(allowed), "the last rule that fits counts"


def test_what_sandbox_exec_achieves_is_tried(macos: Path) -> None:
    assert command_sandbox.limits_here(["/bin/true"], ["/usr"], []) == command_sandbox.SEATBELT
    assert command_sandbox.limits_here(["/bin/false"], ["/usr"], []) == NOTHING
    Path(command_sandbox._SANDBOX_EXEC).unlink()
    assert command_sandbox.limits_here(["/bin/true"], ["/usr"], []) == NOTHING
