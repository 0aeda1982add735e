"""`cdo cabal --sign-off`: a mission is done when the person says so. Real processes against a scripted team."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pexpect
import pytest
import yaml

from cdo.cabal.files.certificate import seal
from cdo.formats import strict_yaml
from tests.conftest import Desk, explained
from tests.runs.test_mission import TEAM, Said, files, names, tells, told
from tests.runs.test_mission_authority import AUDIT, hello, section
from tests.support.cabal_team import (
    ALEX,
    JORDAN,
    assignment,
    done,
    inspect,
    inspection,
    plan,
    review,
    said,
    version,
    write,
)
from tests.support.provider import Provider

SIGNED = (*TEAM, "--sign-off", "Make an app")
GERMAN = "# Hello\n\nThe page greets its visitor in German with the words: Hallo, Welt. It says nothing else at all."
UNSAID = "I cannot say."  # no inspection
WRONG = "It has to greet in German."
SIGNED_OFF = "The user signed it off in round "
NOT_SIGNED_OFF = "The user has not signed it off."


def mission(**changes: Said) -> dict[str, Said]:
    """A team that is done in round 2, and done again in round 4 if the user wanted German in between."""
    proved = {"d1": "greets its visitor", "d2": "greets its visitor", "d3": "greets its visitor"}
    german = inspect(
        inspection("p2", "v2", {"d1": "greets its visitor"}), inspection("p1", "", proved), confirms=["c1"]
    )
    return hello() | {
        "r1-inspect": inspect(inspection("p2", "v1", {"d1": "hello, world"}), inspection("p1", "", proved)),
        "r2-present": tells(("chair-1", "The work is accepted.")),
        "r3-reflect-operative-1": said(),
        "r3-plan": plan(assignment("p2", ALEX, JORDAN)),
        f"r3-write-{ALEX}": write(version("p2", "Hallo", GERMAN, "Greets in German")),
        f"r3-review-{JORDAN}": review(),
        "r3-inspect": german,
        "r3-present": tells(("chair-1", "The page greets in German now.")),
        f"r4-reflect-{ALEX}": said(),
        "r4-plan": done(),
        "r4-present": tells(("chair-1", "We look at what we have.")),
    } | {name.replace("_", "-"): reply for name, reply in changes.items()}  # fmt: skip


@pytest.fixture
def desk(cdo: Desk, provider: Provider) -> Desk:
    """A desk at which the team makes Hello."""
    provider.script = told(mission())
    return cdo


def proof(session: Path) -> dict[str, object]:
    return dict(yaml.safe_load((session / "CERTIFICATE.yaml").read_text()))


def test_a_mission_waits_for_the_sign_off_and_says_who_gave_it(desk: Desk, provider: Provider) -> None:
    explained(desk(*SIGNED), 6, "with 2 products accepted", "deliverables/", "cdo answer a")
    session = desk.session()
    assert (session / "deliverables/hello.md").is_file() and not (session / "FINAL.md").exists()
    paused = desk("resume", "a", "--json").failed(6).json
    assert (paused["status"], paused["options"]) == ("paused", ["accept"])
    assert [row["status"] for row in desk("list", "--json").ok().json] == ["paused"]
    desk("report", "a").ok()
    assert "A question for you" in (session / "report.html").read_text()
    asked = len(provider.calls)
    desk("answer", "a", "Accept.").ok()
    ended = desk("resume", "a").ok()
    assert len(provider.calls) == asked, "a sign-off needs no model"
    signed = f"{SIGNED_OFF}2."
    assert signed in next(line for line in ended.err.splitlines() if line.startswith("round 2 ends: "))
    assert signed in section(session, "Result") and "**Done**" in section(session, "Result")
    assert "The user signed the mission off" in section(session, "Course")
    assert "accept" in section(session, "Questions and answers")
    assert proof(session)["signed_off"] == {"by": "u:user-1", "round": 2}
    desk("report", "a").ok()
    assert "signed off" in (session / "report.html").read_text()
    assert "✓ sign-off: the user signed the mission off in round 2" in desk("verify", "a").ok().out
    before = files(session)
    desk("replay", "a", "--strict").ok()
    desk("resume", "a").ok()
    assert files(session) == before


def test_a_refusal_blocks_until_it_is_resolved_and_signed_off(desk: Desk, provider: Provider) -> None:
    desk(*SIGNED).failed(6)
    desk("answer", "a", WRONG).ok()
    desk("resume", "a").failed(6)
    session = desk.session()
    assert not any(name.startswith("r2-write") for name in names(provider))
    planned = next(info.prompt for info in provider.calls if info.call == "r3-plan")
    assert "concern of importance 8 by u:user-1 (cannot be waived)" in planned and WRONG in planned
    text = next(session.glob("products/p1-*/c1.md")).read_text()
    assert "author: u:user-1" in text and "how: confirmed" in text
    assert "Hallo, Welt" in (session / "deliverables/hello.md").read_text()
    assert list(session.glob("superseded/deliverables/hello*.md")), "what was refused is kept"
    desk.write("tmp/cdo-a/inbox/answer.md", "accept")
    desk("resume", "a").ok()
    assert f"{SIGNED_OFF}4." in section(session, "Result") and proof(session)["signed_off"] == {
        "by": "u:user-1", "round": 4,
    }  # fmt: skip
    assert WRONG in section(session, "Questions and answers")
    desk("verify", "a").ok()
    desk("replay", "a", "--strict").ok()


def test_only_the_user_takes_a_refusal_back(desk: Desk, provider: Provider) -> None:
    waived = done(waivers=[{"collab_id": "c1", "reason": "It is good enough."}])
    provider.script = told(mission(r3_plan=waived, r3_inspect="", r4_plan=done()))
    desk(*SIGNED).failed(6)
    desk("answer", "a", WRONG).ok()
    desk("resume", "a", "--rounds", "3").failed(3)
    assert "only the user can withdraw it" in [info.prompt for info in provider.calls if info.call == "r3-plan"][1]
    result = section(desk.session(), "Result")
    assert "**Unresolved**" in result and NOT_SIGNED_OFF in result
    assert proof(desk.session())["signed_off"] is None
    assert "✓ sign-off: the user has not signed the mission off" in desk("verify", "a").ok().out


def test_a_cap_ends_a_mission_without_a_sign_off(desk: Desk, provider: Provider) -> None:
    later = inspect(inspection("p1", "", dict.fromkeys(("d1", "d2", "d3"), "greets its visitor")))
    provider.script = told(mission(r1_inspect_p1=UNSAID, r2_plan=plan(), r2_inspect_p1=later, r3_plan=done()))
    desk(*TEAM, "--sign-off", "--rounds", "1", "Make an app").failed(3)
    assert NOT_SIGNED_OFF in section(desk.session(), "Result")
    desk("resume", "a", "--rounds", "4").failed(6)
    assert not (desk.session() / "FINAL.md").exists()
    desk("answer", "a", "1").ok()
    desk("resume", "a").ok()
    assert f"{SIGNED_OFF}3." in section(desk.session(), "Result")


def test_a_mission_that_is_done_in_its_last_round_waits_for_the_sign_off_too(desk: Desk, provider: Provider) -> None:
    desk(*TEAM, "--sign-off", "--rounds", "1", "Make an app").failed(6)
    desk("answer", "a", WRONG).ok()
    asked = len(provider.calls)
    desk("resume", "a").failed(3)
    assert len(provider.calls) == asked, "no round is left"
    assert NOT_SIGNED_OFF in section(desk.session(), "Result")
    assert WRONG.rstrip(".") in section(desk.session(), "What is missing")
    assert proof(desk.session())["signed_off"] is None
    desk("verify", "a").ok()


def test_a_process_that_is_killed_at_the_pause_goes_on_with_the_question(desk: Desk, provider: Provider) -> None:
    words = [sys.executable, "-m", "cdo", *SIGNED]
    for _ in range(2):
        terminal = pexpect.spawn(
            words[0], words[1:], cwd=str(desk.path), env=dict(desk.environment()), encoding="utf-8", timeout=60
        )
        terminal.expect("Your answer")
        terminal.kill(signal.SIGKILL)
        terminal.expect(pexpect.EOF)
        words = [sys.executable, "-m", "cdo", "resume", "a"]
    calls = len(provider.calls)
    again = pexpect.spawn(
        words[0], words[1:], cwd=str(desk.path), env=dict(desk.environment()), encoding="utf-8", timeout=60
    )
    again.expect("Your answer")
    again.sendline("1")
    again.expect(pexpect.EOF)
    again.close()
    assert again.exitstatus == 0 and len(provider.calls) == calls
    assert f"{SIGNED_OFF}2." in section(desk.session(), "Result")
    desk("verify", "a").ok()


def test_what_a_certificate_claims_of_the_sign_off_is_checked(desk: Desk, provider: Provider) -> None:
    provider.script = told(mission(r1_inspect_p1=UNSAID))
    desk(*TEAM, "--sign-off", "--rounds", "1", "Make an app").failed(3)
    file = desk.session() / "CERTIFICATE.yaml"
    forged = proof(desk.session()) | {"signed_off": {"by": "u:user-1", "round": 1}}
    file.write_text(strict_yaml.dump({**forged, "sha256": seal(forged)}))
    wrong = desk("verify", "a").failed(8).out
    assert "✗ sign-off: " in wrong


def test_without_the_option_nothing_is_asked(desk: Desk) -> None:
    desk(*TEAM, "Make an app").ok()
    assert "signed_off" not in proof(desk.session()) and AUDIT in section(desk.session(), "Objectives")
    assert "sign" not in section(desk.session(), "Result")
