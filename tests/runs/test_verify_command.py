"""`cdo verify`: the certificate of a session proved again. Real processes, sessions in folders and on branches."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from cdo.cabal.files.certificate import NAME
from cdo.cabal.model.state import MissionState
from tests.conftest import Desk, explained
from tests.support.missions import todo
from tests.support.repositories import git, repository
from tests.unit.cabal.test_certificate import edited, rich, session

V4 = "products/p4-tech-arch/v4.md"


def put(desk: Desk, state: MissionState, name: str = "a") -> Path:
    """The session of a mission that ended so, in its folder."""
    for file, data in session(state).items():
        desk.write(f"tmp/cdo-{name}/{file}", "").write_bytes(data)
    return desk.session(name)


def test_a_session_that_is_as_it_was_certified_is_proved(bare: Desk) -> None:
    put(bare, todo(3))
    put(bare, rich(), "open")
    done, newest, unresolved = bare.several(["verify", "a"], ["verify", "tmp/cdo-a"], ["verify", "open"])
    assert done.ok().out == newest.ok().out and done.err == ""
    proved, _, rest = done.out.partition("\n\n")
    assert "✓ MVP Features Selection (p3): v3 holds the content that was accepted, and is the newest" in proved
    assert all(line.startswith("✓ ") for line in proved.split("\n"))
    assert rest.startswith("Not proved:\n- mission.md, TREE.md")
    assert "✓ mission: is unresolved: 2 live products not accepted" in unresolved.ok().out


def test_the_newest_session_is_taken_and_sessions_live_where_out_says(bare: Desk) -> None:
    put(bare, todo(3))
    shutil.move(bare.path / "tmp", bare.path / "runs")
    assert bare("verify", "--out", "runs").ok().out.startswith("✓ CERTIFICATE.yaml: ")
    explained(bare("verify"), 8, "There is no session")


def test_what_does_not_hold_is_said_line_by_line_and_ends_in_8(bare: Desk) -> None:
    path = put(bare, todo(3))
    file = path / V4
    file.write_text(file.read_text("utf-8").replace("Ten logins", "No\x1b[31m logins"), "utf-8")
    done = bare("verify", "a")
    wrong = [line for line in done.out.split("\n") if line.startswith("✗ ")]
    assert f"✗ {V4}: it is not the file that was certified: it is not what cdo wrote" in wrong
    assert any("(p4): the content of v4 is not what was accepted" in line for line in wrong)
    assert "\x1b" not in done.out
    explained(done, 8, f"a is not as it was certified: {len(wrong)} of ", "claims do not hold")


def test_json_tells_every_claim(bare: Desk) -> None:
    path = put(bare, todo(3))
    good = bare("verify", "a", "--json").ok().json
    assert good["holds"] is True and good["session"] == "a" and good["uncovered"]
    assert all(set(claim) == {"about", "claim", "holds", "why"} and claim["holds"] for claim in good["claims"])
    (path / V4).unlink()
    done = bare("verify", "a", "--json")
    explained(done, 8, "a is not as it was certified")
    wrong = [claim for claim in done.json["claims"] if not claim["holds"]]
    assert done.json["holds"] is False and {"about": V4, "claim": "", "holds": False, "why": "it is gone"} in wrong


def test_a_deliberation_has_nothing_to_prove(bare: Desk) -> None:
    bare.write("tmp/cdo-a/session.yaml", "created: 2026-01-01\n")
    bare.write("tmp/cdo-a/FINAL.md", "## Decision\n\nYes.\n")
    explained(bare("verify", "a"), 8, f"tmp/cdo-a has no {NAME}.", "a deliberation has none")
    explained(bare("verify", "none"), 8, "There is no session")


@pytest.mark.parametrize("broken", [False, True])
def test_what_only_a_branch_keeps_is_proved_too(bare: Desk, broken: bool) -> None:
    repository(bare.path)
    path = put(bare, todo(3))
    if broken:
        for name, data in edited(session(todo(3)), V4, "Ten logins", "Two logins").items():
            (path / name).write_bytes(data)
    git(path, "add", "--all", "--force", ".")
    tree = git(path, "write-tree", "--prefix=tmp/cdo-a/")
    message = "Round 3: done\n\nCdo-Session: a\nCdo-Event: turn\nCdo-Turn: 3\nCdo-Status: done\n"
    git(path, "update-ref", "refs/heads/cdo/a", git(path, "commit-tree", tree, "-m", message))
    shutil.rmtree(path)
    done = bare("verify", "a")
    assert "its folder is not there; this is branch cdo/a" in done.err
    assert bool(re.search("(?m)^✗ ", done.out)) is broken
    assert done.code == (8 if broken else 0)
