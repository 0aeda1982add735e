"""Links planted in place of what a run writes: refused or replaced, and nothing happens to what they lead to."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from cdo.core.errors import SessionError
from cdo.runner.budget import Limits
from tests.security.test_unbounded import Run, more
from tests.support.harness import sampled

MARK = "VICTIM"
# What people and other commands make in a session, beside what the run itself leaves.
OTHERS = (
    "inbox",
    "taken",
    "quarantine",
    "superseded",
    "deliverables",
    "team",
    "report.html",
    "FINAL.md",
    "FINAL.yaml",
    "ADR.md",
)


def entries(folder: Path) -> list[str]:
    """The files and folders of a session, one of each sort: numbers aside, there is no other like it."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    sorts = {re.sub(r"\d+", "N", re.sub(r"(?<=^t\d-)(?!synthesis)[a-z-]+", "X", name)): name for name in names}
    return sorted({*sorts.values(), *OTHERS})


def state(folder: Path) -> dict[str, tuple[str, int]]:
    return {
        path.relative_to(folder).as_posix(): (path.read_text() if path.is_file() else "", path.lstat().st_mtime_ns)
        for path in (folder, *folder.rglob("*"))
    }


def plant(session: Path, name: str, victim: Path) -> bool:
    """Put a link in place of an entry; what was there is where it leads. False where it has no folder to be in."""
    place, target = session / name, victim / "file"
    if not place.parent.is_dir():
        return False
    if place.exists():
        shutil.move(place, target)
    elif "." in place.name:
        target.write_text(f"{MARK}\n")
    else:
        target.mkdir()
        (target / "a.md").write_text(f"{MARK}\n")
    place.symlink_to(target)
    return True


@pytest.mark.parametrize("mode", sampled(("think", "team", "mission"), ("think",)))
def test_a_link_in_place_of_anything_that_a_run_writes(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, mode, more, Limits(), monkeypatch)
    assert run.ended is None
    names = entries(tmp_path / f"cdo-{mode}")
    half = Run(tmp_path / "half", mode, more, Limits(calls=run.used.calls // 2), monkeypatch)
    assert half.used.calls <= run.used.calls // 2
    outcomes = dict[str, bool]()
    for number, name in enumerate(names):
        base, victim = tmp_path / f"n{number}", tmp_path / f"v{number}"
        shutil.copytree(tmp_path / "half", base)
        victim.mkdir()
        session = base / f"cdo-{mode}"
        if not plant(session, name, victim):
            continue
        before = state(victim)
        try:
            ended = Run(base, mode, more, Limits(), monkeypatch).ended
        except SessionError as error:
            ended = error
        assert state(victim) == before, name
        if ended:
            assert "it is a symbolic link" in str(ended), (name, ended)
        outcomes[name] = ended is not None
    passed = {name for name, refused in outcomes.items() if not refused}
    # What this program neither reads nor writes stays as it is; a mission's head is the shell's to read.
    assert passed <= {*OTHERS, *(("00-context.md", "session.yaml") if mode == "mission" else ())}, passed
    assert outcomes["FINAL.md"] and outcomes["calls"] and len(outcomes) >= 15
