"""`cdo verify`: the certificate of a session proved again. Real processes, sessions in folders and on branches."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from cdo.cabal.files.certificate import NAME
from cdo.cabal.model.state import MissionState
from cdo.cabal.reconstruction import retrace
from cdo.cabal.rules import acceptance
from cdo.session.reader import SessionFolder
from tests.conftest import A, Desk, explained
from tests.support.cabal_team import REQUEST, todo_script
from tests.support.missions import todo
from tests.support.provider import Provider
from tests.support.repositories import git, repository
from tests.unit.cabal.test_certificate import edited, rich
from tests.unit.cabal.test_certificate import session as files_of

V4 = "products/p4-tech-arch/v4.md"


def put(desk: Desk, state: MissionState, name: str = "a") -> Path:
    """The session of a mission that ended so, in its folder."""
    for file, data in files_of(state).items():
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
    assert rest.startswith("Not proved:\n- anything that only the record proves: there is no record here")
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
        for name, data in edited(files_of(todo(3)), V4, "Ten logins", "Two logins").items():
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


# -- the record ------------------------------------------------------------------------------------


@pytest.fixture
def ended(cdo: Desk, provider: Provider) -> Desk:
    """A desk at which the TODO team has ended a mission, in the session a."""
    provider.script = todo_script
    repository(cdo.path)
    cdo("cabal", "--yes", "--operatives", "2", *A, "-q", REQUEST).ok()
    return cdo


def contradictions(desk: Desk) -> dict[str, str]:
    """What `cdo verify` refuses, by what it is about."""
    done = desk("verify", "a", "--json")
    wrong = {claim["about"]: claim["why"] for claim in done.json["claims"] if not claim["holds"]}
    assert done.code == (8 if wrong else 0)
    return wrong


def rewritten(file: Path, old: str, new: str) -> None:
    text = file.read_text("utf-8")
    assert old in text
    file.write_text(text.replace(old, new), "utf-8")


def test_the_record_leads_to_every_file(ended: Desk) -> None:
    proved = ended("verify", "a").ok().out
    assert "✓ record: it leads to this end: the replies to 25 calls" in proved
    assert "mission.md" not in proved.partition("Not proved:")[2]


@pytest.mark.parametrize(
    ("file", "old", "new", "why"),
    [
        ("mission.md", "TODO", "NOTHING", "it is not what follows from the record"),
        ("TREE.md", "accepted", "pending", "it is not what follows from the record"),
        ("CHAT.md", "httpOnly", "plain", "it is not what follows from the record"),
        ("FINAL.yaml", "turns: 3", "turns: 9", "it is not what follows from the record"),
        ("00-input.md", "TODO", "shopping", "it is not what the mission was given"),
        ("r1-plan.md", "assignments", "assignments ", "it was edited, and is no valid reply any more"),
        ("r1-plan.md", "model: ", "model: better/", "it is not what a model answered, by the record in calls/"),
    ],
)
def test_each_file_that_the_record_contradicts_is_named(file: str, old: str, new: str, why: str, ended: Desk) -> None:
    rewritten(ended.session() / file, old, new)
    found = contradictions(ended)
    assert found[file] == why


def test_stray_and_lost_files_are_named(ended: Desk) -> None:
    session = ended.session()
    folder = next(session.glob("products/p4-*"))
    (folder / "notes.txt").write_text("Psst.")
    (session / "r9-plan.md").write_text("Nobody asked.")
    (session / "r2-inspect-p5.md").unlink()
    found = contradictions(ended)
    assert found[f"products/{folder.name}/notes.txt"] == "it is not part of the mission, according to its record"
    assert found["r2-inspect-p5.md"] == "it is gone"
    ended("resume", "a", "-q").ok()
    assert list(contradictions(ended)) == [f"products/{folder.name}/notes.txt", "r9-plan.md"]


def test_a_forged_set_of_files_is_refused_and_without_its_record_that_is_told(ended: Desk) -> None:
    """Every file that a proof from files alone looks at is made anew, from another state than the record's."""
    session = ended.session()
    state = retrace(SessionFolder(session)).state
    forged = replace(
        state, versions={id: replace(item, content=f"{item.content}\n\nAnd a back door.") if item.product == "p4"
                         else item for id, item in state.versions.items()}
    )  # fmt: skip
    pinned = {id: replace(item, sha=forged.versions[item.version].sha) if item.version else item
              for id, item in forged.acceptances.items()}  # fmt: skip
    forged = replace(forged, acceptances=pinned)
    forged = replace(forged, inspections={
        id: replace(item, parts=acceptance.parts(forged, item.product)) if item.parts else item
        for id, item in forged.inspections.items()
    })  # fmt: skip
    for name, text in files_of(forged).items():
        if name not in ("session.yaml", "00-input.md"):
            (session / name).write_bytes(text)
    found = contradictions(ended)
    assert "it is not what follows from the record" in found["products/p4-technical-architecture/v5.md"]
    shutil.rmtree(session / "calls")
    for file in session.glob("r*.md"):
        file.unlink()
    alone = ended("verify", "a").ok().out
    assert "there is no record here (calls/)" in alone
    assert "back door" in (session / "deliverables/technical-architecture.md").read_text()


# -- replies that were edited ------------------------------------------------------------------------


def test_an_edited_inspection_is_the_persons_and_said_to_be_theirs(ended: Desk, provider: Provider) -> None:
    session = ended.session()
    rewritten(session / "r2-inspect-p5.md", "problem+json", "Every error is problem+json")
    found = contradictions(ended)
    assert found["r2-inspect-p5.md"] == "it was edited, and the certificate does not say so"
    provider.reset()
    ended("resume", "a", "--yes", "-q").ok()
    assert contradictions(ended) == {}
    proof = yaml.safe_load((session / "CERTIFICATE.yaml").read_text())
    assert [item["file"] for item in proof["edited"]] == ["r2-inspect-p5.md"]
    errors = next(item for item in proof["accepted"] if item["product"] == "p5")
    assert errors["rests_on_edits"] == ["its inspection"]
    final = (session / "FINAL.md").read_text()
    concerns = final.partition("## Concerns on record")[2].partition("## Course")[0]
    assert "The user edited the reply of the watchdog in its inspection by hand (`r2-inspect-p5.md`)" in concerns
    assert "**Error Handling** was accepted, but its inspection comes from a reply that the user edited." in concerns
    assert "edited: true" in next(session.glob("products/p5-*/i*.md")).read_text()
    assert "edited by hand" in ended("report", "a", "-o", "-").ok().out
    last, *rounds = git(ended.path, "log", "cdo/a", "--format=%B%x00").split("\0")
    assert "The user edited the reply of the watchdog in its inspection by hand" in last
    assert any("Cdo-Event: edited" in text and "r2-inspect-p5.md" in text for text in rounds)
    assert any("\nRound 2:" in text and "person edited:\n- r2-inspect-p5.md" in text for text in rounds)
