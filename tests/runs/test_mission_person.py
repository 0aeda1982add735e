"""What a person sees and hears of a mission while it runs. Real processes against a scripted team."""

from __future__ import annotations

import json
import re
import sys

import pexpect

from tests.conftest import Desk
from tests.runs.test_mission import TEAM, files, todo, told
from tests.support.cabal_team import ALEX, JORDAN, REQUEST, todo_script
from tests.support.faults import Fault
from tests.support.harness import finish, kill_group, wait_for
from tests.support.provider import Provider

__all__ = ["todo"]  # the fixture


# -- what the team says to the person ------------------------------------------------------------------


def test_what_the_team_says_to_the_person_is_printed_when_it_is_said_and_kept(todo: Desk, provider: Provider) -> None:
    remark = {"recipients": ["u:all"], "type": "question", "content": "Do you need accounts at all?"}
    provider.script = told(
        {f"r1-review-{JORDAN}": lambda info: json.dumps({**json.loads(todo_script(info)), "remarks": [remark]})}
    )
    provider.faults = [Fault(status=401, call="r3-present")]
    ended = todo(*TEAM, REQUEST).failed(4)
    before, _, after = ended.err.partition("round 1 ends:")
    assert any(text.endswith(" to you: Do you need accounts at all?") for text in before.splitlines())
    assert " to you: " in after, "the envoy's messages too"
    assert (todo.session() / "inbox").is_dir()
    provider.faults = []
    again = todo("resume", "a").ok().err
    assert "Do you need accounts" not in again and " to you: " in again.partition("r3-present")[2]
    assert "Do you need accounts at all?" in (todo.session() / "CHAT.md").read_text()
    assert "Do you need accounts at all?" in (todo.session() / "FINAL.md").read_text()
    todo("verify", "a").ok()


def test_the_tree_moves_within_a_round(todo: Desk, provider: Provider) -> None:
    """A terminal shows the first versions while the round in which they were written goes on."""
    provider.hold("r1-inspect-p3")
    words = [sys.executable, "-m", "cdo", *TEAM, REQUEST]
    env = {**todo.environment(), "TERM": "xterm-256color"}
    terminal = pexpect.spawn(words[0], words[1:], cwd=str(todo.path), env=env, encoding="utf-8", timeout=60,
                             dimensions=(40, 120))  # fmt: skip
    try:
        terminal.expect(r"Technical Architecture\s+in progress\s+v1")
    finally:
        provider.release()
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0


def test_a_verdict_stands_only_beside_the_version_that_it_is_of(todo: Desk, provider: Provider) -> None:
    provider.faults = [Fault(status=401, call="r2-inspect-*")]
    todo(*TEAM, "-q", REQUEST)
    shown = todo("show", "a").ok().out
    assert re.search(rf"(?m)^ *Technical Architecture +in progress +2 \(v5\) +{ALEX}$", shown)


# -- the folders of a session --------------------------------------------------------------------------


def test_the_inbox_exists_from_the_start(todo: Desk, provider: Provider) -> None:
    """A person finds it before the first reply, and what lies in it then is read in round 1."""
    provider.script = told({})
    provider.hold("r0-bootstrap")
    process = todo.start(*TEAM, "-q", REQUEST)
    try:
        wait_for(lambda: bool(provider.calls))
        assert (todo.session() / "inbox").is_dir()
        todo.write("tmp/cdo-a/inbox/early.md", "Say who may see a task.")
    finally:
        provider.release()
    finish(process).ok()
    assert "Say who may see a task." in next(info.prompt for info in provider.calls if info.call == "r1-plan")


def test_a_resume_never_complains_of_files_that_cdo_wrote(todo: Desk, provider: Provider) -> None:
    """After an end at a cap, whose files are written again, and after a kill in the middle of a round."""
    todo(*TEAM, "-q", "--max-calls", "9", REQUEST).failed(3)
    provider.hold("r2-inspect-p3")
    process = todo.start("resume", "a", "--yes", "--max-calls", "100")
    try:
        wait_for(lambda: any(info.call == "r2-inspect-p3" for info in provider.calls))
    finally:
        kill_group(process.pid)
        first = process.communicate()[1]
        provider.release()
    second = todo("resume", "a", "--yes", "--max-calls", "100").ok().err
    for said in (first, second):
        lines = [line for line in said.splitlines() if not line.startswith("stale: ")]  # what the cap had cut short
        assert "round 1 ends" in said
        assert not [
            line for line in lines if re.search(r"(products|deliverables|inbox|superseded|taken)/|edited", line)
        ]
    assert not (todo.session() / "taken").exists() and "by you" not in (todo.session() / "FINAL.md").read_text()


def test_a_finished_mission_stays_whole_while_nobody_agrees_to_go_on(todo: Desk, provider: Provider) -> None:
    """An edited reply makes later ones stale. Until the person agrees to ask for them again, nothing changes."""
    todo(*TEAM, "-q", REQUEST).ok()
    reply = todo.session() / "r2-present.md"
    reply.write_text(reply.read_text().replace("solid now", "good now"))
    before = files(todo.session())
    provider.reset()
    for _ in range(2):
        todo("resume", "a").failed(6, "Edited files make these stale", "--yes")
    assert provider.calls == [] and files(todo.session()) == before
    todo("resume", "a", "--yes").ok()
    assert "by hand (`r2-present.md`)" in (todo.session() / "FINAL.md").read_text()
    todo("verify", "a").ok()
