"""The name of a session, as anybody may write it, at every place that takes one: it never leads out of the folder."""

from __future__ import annotations

import io
import os
import random
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import click
import pytest

from cdo.core.errors import CdoError, UsageError
from cdo.session.creation import Taken
from cdo.session.records import session_path
from cdo.session.store import Session
from tests.support.harness import ROOT
from tests.support.watched import CHANGES, FILES, PROCESSES, SOCKETS, Seen, of, watched
from tests.unit.session.test_store import BAD

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
DOORS: dict[str, tuple[str, ...]] = {
    "resume": ("resume", "--", "NAME"),
    "show": ("show", "--", "NAME"),
    "show a file": ("show", "--", "NAME", "FINAL"),
    "fork": ("fork", "--turn", "1", "--", "NAME", "Why?"),
    "restore": ("restore", "--", "NAME"),
    "diff": ("diff", "--", "NAME", "NAME"),
    "report": ("report", "--", "NAME"),
    "watch": ("watch", "--", "NAME"),
    "verify": ("verify", "--", "NAME"),
    "replay": ("replay", "--", "NAME"),
    "answer": ("answer", "--", "NAME", "yes"),
    "new": ("run", "--dry-run", "--no-context", "-m", "openai/m", "--session", "NAME", "--", "quick", "Why?"),
}
SIGNS = [
    "..", "/", "\\", "\0", ".", "-", "--", "cdo-", "cdo/", "origin/", "~", "$HOME", "a", "A", "CON", "con", "nul",
    "\n", "\r", "\x1b[2J", "\u202e", "\u2066", "\u200d", "\ufeff", "é", "e\u0301", "ａ", "\u212a", "\u0131", "ß",
    "😀", "*", "?", "[a]", "{a,b}", "`id`", "$(id)", ";id", "|", "&", "%2e%2e%2f", "\udcff", ":", " ", "a" * 70,
    "b", "1-", "Z_9", "x.y", ".lock", "@{", "^", "HEAD", "refs/heads/", ".git", "calls", "session.yaml", "--help",
    "-o", "--out=/", "..;",
]  # fmt: skip


def names(count: int) -> list[str]:
    """Hostile names, each another one, and the same ones every time."""
    pick, found = random.Random(23), dict.fromkeys(BAD)
    while len(found) < count:
        found["".join(pick.choices(SIGNS, k=pick.randint(1, 5)))] = None
    return list(found)[:count]


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, with what names that lead out of `tmp` would find: sessions beside it and above."""
    place = tmp_path / "top" / "work"
    for folder in (place, place.parent, tmp_path):
        for name in ("cdo-a", "a", "cdo-", "x", "cdo-x"):
            (folder / name).mkdir(parents=True)
            (folder / name / "session.yaml").write_text("MARKER\n")
    for data in ("objects", "refs"):  # the top of a work tree: nobody looks for one above it
        (place / ".git" / data).mkdir(parents=True)
    (place / ".git" / "HEAD").touch()
    monkeypatch.chdir(place)
    monkeypatch.setenv("PATH", "")  # without git: a thousand names are not worth as many processes
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OPENAI_API_KEY", "x-test-key")  # else a local model would be looked for
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    return place


def knock(*words: str) -> str:
    """What a command says to a name; nothing but a sentence is an answer."""
    from cdo.cli.main import cli

    out, err = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err), cli.make_context("cdo", list(words)) as context:
            cli.invoke(context)
    except CdoError as error:
        assert error.message and error.hint
        return f"{error.message} {error.hint}"
    except click.ClickException as error:
        return error.format_message()
    except click.exceptions.Exit as leaving:
        assert leaving.exit_code == 0
    return out.getvalue()


def outside(seen: Seen, work: Path) -> list[tuple[str, str]]:
    """The files that were touched and are neither below `work`/tmp nor, to be read, cdo's, Python's or one's own."""
    tmp, home = f"{work}/tmp", str(work.parents[1] / "home")
    own = (
        sys.prefix,
        sys.base_prefix,
        os.path.realpath(sys.base_prefix),
        str(ROOT),
        home,
        f"{work}/.cdo",
        f"{work}/.git",
        "/dev/null",
    )
    found = []
    for event, args in of(seen, (*FILES, *CHANGES)):
        reads = event in ("os.listdir", "os.scandir") or (event == "open" and not args[2] & WRITING)
        paths = args[: 2 if event in ("os.rename", "os.link", "os.symlink") else 1]
        for path in (os.fsdecode(path) for path in paths if isinstance(path, (str, bytes))):
            place = os.path.normpath(work / path)
            if event == "open" and os.sep not in path and path != "..":  # an entry of an open folder
                continue
            if not (f"{place}/".startswith(f"{tmp}/") or (reads and (place == str(work) or place.startswith(own)))):
                found.append((event, path))
    return found


def everywhere(work: Path, hostile: list[str], each: int) -> tuple[int, int]:
    """Make a session of each name and knock with it at `each` of the doors: (sessions made, knocks)."""
    out, made, knocks, doors = work / "tmp", 0, 0, list(DOORS.items())
    for number, name in enumerate(hostile):
        try:
            Session.create(session_path(out, name), {"00-input.md": "Why?\n"}).close()
            made += 1
        except (UsageError, Taken):
            pass
        if os.sep in name:  # such a one is a path that a person typed, and may lead anywhere
            continue
        for step in range(each):
            _, words = doors[(number * each + step) % len(doors)]
            said = knock(*(name if word == "NAME" else word for word in words))
            knocks += 1
            assert "MARKER" not in said and "Traceback" not in said, (name, words, said)
    return made, knocks


def check(work: Path, count: int, each: int) -> None:
    for _, words in DOORS.items():
        knock(*("a b" if word == "NAME" else word for word in words))  # what is imported first is no matter of names
    with watched() as seen:
        made, knocks = everywhere(work, names(count), each)
    assert knocks > count * each // 2 and made > count // 100, (made, knocks)
    assert of(seen, FILES)
    assert not (left := outside(seen, work)), left[:20]
    assert not of(seen, SOCKETS + PROCESSES)
    assert {path.name for path in work.parents[1].iterdir()} <= {"top", "home", "a", "x", "cdo-", "cdo-a", "cdo-x"}
    inside = [path for path in work.iterdir() if path.name not in (".git", "a", "x", "cdo-", "cdo-a", "cdo-x")]
    assert inside == [work / "tmp"]
    held = [path.name for path in (work / "tmp").iterdir()]
    assert len(held) == made + held.count(".gitignore"), "each name has a folder of its own"


def test_no_name_leads_out_of_the_folder_of_sessions(work: Path) -> None:
    check(work, 1000, 2)


@pytest.mark.slow
def test_nor_does_any_of_ten_thousand(work: Path) -> None:
    check(work, 10_000, 3)
