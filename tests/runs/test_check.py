"""`cdo debug --check COMMAND`, as real processes in a git repository: what a person runs is evidence."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdo.session.records import read_session
from tests.conftest import A, Desk, explained
from tests.runs.test_modes_run import reply
from tests.support.answers import Answer, RequestInfo, final_text, synthesis_text
from tests.support.harness import finish, kill_group, tree, wait_for
from tests.support.provider import Provider

TOTAL = "def total(prices):\n    return sum(prices[1:])\n"
SUITE = """\
import time
from total import total

print("run", time.time_ns())
found = total([2, 3])
assert found == 5, f"total of 2 and 3 came out as {found}"
print("all totals are right")
"""
CHECK = "python3 suite.py"
QUESTION = "Orders are charged too little since the release of Tuesday."
FIXED = """\
--- a/total.py
+++ b/total.py
@@ -1,2 +1,2 @@
 def total(prices):
-    return sum(prices[1:])
+    return sum(prices)
"""
USELESS = FIXED.replace("+    return sum(prices)", "+    return sum(prices[2:])")
ELSEWHERE = FIXED.replace("def total(prices):", "def total(amounts):")
SHOWN = "total of 2 and 3 came out as 3"
Script = Callable[[RequestInfo], Answer | None]


@pytest.fixture
def checkout(cdo: Desk) -> Desk:
    """A desk in a repository with a fault, and a command that shows it."""
    cdo.write("total.py", TOTAL)
    cdo.write("suite.py", SUITE)
    cdo.write(".gitignore", "tmp/\n*.secret\n")
    cdo.write("notes.secret", "ignored")
    git(cdo, "init", "-q")
    git(cdo, "add", ".")
    git(cdo, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "Begin")
    return cdo


def git(desk: Desk, *words: str) -> str:
    env = {"PATH": "/usr/bin:/bin", "HOME": str(desk.path)}
    done = subprocess.run(["git", *words], cwd=desk.path, check=True, env=env, capture_output=True, text=True)
    return done.stdout


def case(*diffs: str) -> Script:
    """Voices that find the cause in the check's record, and propose these diffs, one each."""

    def script(info: RequestInfo) -> Answer | None:
        turn = int(found[1]) if (found := re.match(r"t(\d)-", info.call)) else 0
        wish: dict[str, Any] = {"id": "H1"}
        if turn == 3:
            wish |= {"text": "The first price is left out.", "prediction": "The total lacks the first price."}
        else:
            wish |= {"status": "supported", "evidence": [f'observed: "{SHOWN}"']}
        if info.kind == "agent":
            place = int(info.call == "t5-minimalist") % len(diffs)
            body = f"The fix:\n\n```diff\n{diffs[place]}```\n" if turn == 5 else "Because."
            return reply(body, position="The first price is lost.", **({"hypotheses": [wish]} if turn >= 3 else {}))
        if info.kind == "synthesis":
            text = synthesis_text(focus="go on", gaps=[f"gap {turn}"])
            return Answer(text.replace("gaps: ", f"hypotheses: {json.dumps([wish] if turn >= 3 else [])}\ngaps: "))
        report = final_text("H1: the first price is left out.", minority="None.")
        more = (
            "\n## Timeline\n\nReproduced in turn 1.\n\n## Hypotheses\n\n"
            f'- H1 (supported): checked ✓: "{SHOWN}".\n\n'
            f"## Fix\n\n```diff\n{diffs[-1]}```\n\n## Validation\n\nSee above.\n"
        )
        return Answer(report + more)

    return script


def final(desk: Desk) -> str:
    return (desk.session() / "FINAL.md").read_text()


def runs(desk: Desk) -> list[dict[str, Any]]:
    return [record for record in read_session(desk.session()) if record["kind"] == "check-run"]


def prompt(provider: Provider, call: str) -> str:
    return next(info.prompt for info in provider.calls if info.call == call)


# -- what it shows ---------------------------------------------------------------------------------


@pytest.mark.quick
def test_a_patch_that_fixes_the_fault_confirms_the_cause(checkout: Desk, provider: Provider) -> None:
    provider.script = case(FIXED)
    before = git(checkout, "status", "--porcelain")
    done = checkout("debug", "--json", "--check", CHECK, *A, QUESTION).ok()
    assert done.json["status"] == "converged"
    verdict = "the check failed before and passes with the patch of t5-implementer"
    assert done.json["why"].endswith(f"root cause: H1: The first price is left out.; confirmed: {verdict}")
    told = final(checkout).partition("## Check\n")[2]
    assert f"T{verdict[1:]}." in told and CHECK in told
    assert "- Before any change: fails (exit code 1 after" in told and SHOWN in told
    assert "- With the patch of t5-implementer: passes (exit code 0 after" in told and "all totals are right" in told
    assert [run["run"]["code"] for run in runs(checkout)] == [1, 0]
    assert git(checkout, "status", "--porcelain") == before and (checkout.path / "total.py").read_text() == TOTAL
    assert "check: `python3 suite.py` runs in a copy of the work tree" in done.err


def test_voices_and_synthesiser_see_the_runs_as_a_part_of_their_prompt(checkout: Desk, provider: Provider) -> None:
    provider.script = case(FIXED)
    checkout("debug", "--check", CHECK, *A, QUESTION).ok()
    for call in ("t1-tester", "t1-synthesis", "t5-implementer"):
        text = prompt(provider, call).partition('<check command="python3 suite.py">')[2].partition("</check>")[0]
        assert "Before any change: exit code 1" in text and SHOWN in text and "With the patch" not in text
    for call in ("t6-tester", "t6-synthesis", "final"):
        text = prompt(provider, call).partition('<check command="python3 suite.py">')[2].partition("</check>")[0]
        assert "With the patch of t5-implementer: " in text and "all totals are right" in text
    assert "Evidence (checked ✓)" in prompt(provider, "t5-implementer")


@pytest.mark.parametrize(
    ("diff", "verdict", "line"),
    [
        (USELESS, "the check failed before and still fails with the patch", "fails (exit code 1 after"),
        (
            ELSEWHERE,
            "the check failed before, and no patch on record applies to the work tree",
            "does not apply (not run: the patch does not apply (patch failed: total.py:1",
        ),
    ],
)
def test_a_patch_that_does_not_help_confirms_nothing(
    checkout: Desk, provider: Provider, diff: str, verdict: str, line: str
) -> None:
    provider.script = case(diff)
    done = checkout("debug", "--json", "--strict", "--check", CHECK, *A, QUESTION)
    assert (done.code, done.json["status"]) == (3, "max_turns")
    assert done.json["why"].endswith(f"The first price is left out.; not confirmed: {verdict}")
    told = final(checkout).partition("## Check\n")[2]
    assert f"T{verdict[1:]}." in told and f"- With the patch of t5-implementer: {line}" in told


def test_of_two_patches_the_one_that_passes_is_the_fix(checkout: Desk, provider: Provider) -> None:
    provider.script = case(FIXED, USELESS)
    done = checkout("debug", "--json", "--check", CHECK, *A, QUESTION).ok()
    assert done.json["why"].endswith("passes with the patch of t5-implementer")
    fix = final(checkout).partition("## Fix")[2].partition("## Validation")[0]
    assert f"```diff\n{FIXED}```" in fix and "Nobody proposed this" in fix
    assert [run["name"] for run in runs(checkout)] == ["t1-check", "t6-check-1", "t6-check-2"]


def test_what_does_not_fail_was_not_reproduced(checkout: Desk, provider: Provider) -> None:
    provider.script = case(FIXED)
    done = checkout("debug", "--json", "--check", "true", *A, QUESTION).ok()
    assert done.json["status"] == "max_turns"
    assert "the check passes without any patch: the fault could not be reproduced" in done.json["why"]
    assert "The check passes without any patch: the fault could not be reproduced." in final(checkout)


def test_it_runs_in_the_folder_that_the_run_began_in(checkout: Desk, provider: Provider) -> None:
    checkout.write("tools/where.sh", "pwd\nls ..\nexit 1\n")
    provider.script = case(FIXED)
    checkout("debug", "--out", "../out", "--check", "sh where.sh", *A, QUESTION, cwd="tools").ok()
    (run,) = [r for r in read_session(checkout.path / "out/cdo-a") if r.get("name") == "t1-check"]
    where, *files = run["run"]["out"].split("\n")
    assert where == str(checkout.path / "tools") and {"suite.py", "total.py", "tools"} <= set(files)
    assert "notes.secret" not in files and ".git" not in files


def test_what_does_not_end_in_time_is_ended(checkout: Desk, provider: Provider) -> None:
    provider.script = case(FIXED)
    slow = checkout.having(CDO_CHECK_TIMEOUT="1")
    slow("debug", "--check", "echo begun; sleep 600 & sleep 600", *A, QUESTION).ok()
    assert [run["run"]["code"] for run in runs(checkout)] == [None, None]
    assert "- Before any change: fails (did not end within 1 s)." in final(checkout) and "begun" in final(checkout)


def test_only_the_end_of_much_output_is_kept_and_no_escapes(checkout: Desk, provider: Provider) -> None:
    provider.script = case(FIXED)
    command = r"seq 1 100000; printf '\033[31mred\033[0m \007\n'; exit 1"
    checkout("debug", "--check", command, *A, QUESTION).ok()
    out = runs(checkout)[0]["run"]["out"]
    assert out.startswith("[… earlier output left out …]\n") and out.endswith("\n100000\nred ␇")
    assert len(out) < 9000


# -- once ------------------------------------------------------------------------------------------


def killed_in(turn: int, desk: Desk, provider: Provider, command: str) -> None:
    """Begin the session with a check, and kill it while the voices of a turn are asked."""
    provider.hold(f"t{turn}-*")
    process = desk.start("debug", "--check", command, *A, QUESTION)
    wait_for(lambda: any(info.call.startswith(f"t{turn}-") for info in provider.calls))
    kill_group(process.pid)
    finish(process)
    provider.release()


def test_a_recorded_check_is_never_run_again(checkout: Desk, provider: Provider) -> None:
    """Its output names the moment, so that a second run would show."""
    provider.script = case(FIXED)
    killed_in(2, checkout, provider, CHECK)
    (first,) = runs(checkout)
    checkout("resume", "a").ok()
    assert [run["name"] for run in runs(checkout)] == ["t1-check", "t6-check-1"] and runs(checkout)[0] == first
    assert re.search(r"run \d+", first["run"]["out"])[0] in final(checkout)  # type: ignore[index]
    before, calls = tree(checkout.session()), len(provider.calls)
    checkout("resume", "a").ok()
    assert tree(checkout.session()) == before and len(provider.calls) == calls
    assert checkout("replay", "a", "--json").ok().json["differs"] is False
    for name in ("FINAL.md", "t6-tester.md"):
        (checkout.session() / name).unlink()
    checkout("resume", "a").ok()
    assert tree(checkout.session()) == before and len(provider.calls) == calls


def test_nothing_of_a_check_is_left_when_cdo_is_killed(checkout: Desk, provider: Provider) -> None:
    sleep = f"sleep 600.{os.getpid()}"
    process = checkout.start("debug", "--check", f"setsid {sleep} & {sleep}; true", *A, QUESTION)
    wait_for(lambda: len(commands(sleep)) == 2)
    process.send_signal(signal.SIGKILL)
    finish(process)
    wait_for(lambda: not commands(sleep))
    assert runs(checkout) == []


def commands(words: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            except OSError:
                continue
            found += [line] if line.strip() == words else []
    return found


# -- whose command it is ---------------------------------------------------------------------------


def test_the_check_of_a_session_that_somebody_else_made_is_not_run(checkout: Desk, provider: Provider) -> None:
    provider.script = case(FIXED)
    canary = "echo ran >> /tmp/x; exit 1"
    killed_in(1, checkout, provider, canary)
    for group in (checkout.session() / "calls").iterdir():
        group.unlink()
    stranger = checkout.having(HOME=str(checkout.path.parent / "stranger"))
    (checkout.path.parent / "stranger").mkdir()
    done = stranger("resume", "a", "--yes", "--trust")
    explained(done, 6, "and you have not given it for", "cdo resume a --check 'echo ran >> /tmp/x; exit 1'")
    assert runs(checkout) == [] and not [info for info in provider.calls if info.call.startswith("t2-")]
    explained(stranger("resume", "a", "--check", "make"), 2, "is another command: `echo ran")
    stranger("resume", "a", "--check", canary, "--yes").ok()
    assert [run["run"]["code"] for run in runs(checkout)] == [1, 1]


def test_a_fork_keeps_the_check_and_its_record(checkout: Desk, provider: Provider) -> None:
    provider.script = case(FIXED)
    checkout("debug", "--check", CHECK, *A, QUESTION).ok()
    checkout("fork", "a", "--turn", "5", "--session", "b").ok()
    forked = [r for r in read_session(checkout.session("b")) if r["kind"] == "check-run"]
    assert forked[0] == runs(checkout)[0] and [r["name"] for r in forked] == ["t1-check", "t6-check-1"]
    assert forked[1]["run"]["out"] != runs(checkout)[1]["run"]["out"]


def test_what_cannot_be_used_is_refused_before_anything_is_sent(checkout: Desk, provider: Provider) -> None:
    refused = {
        ("think", "--check", CHECK): "--check is for `debug` alone",
        ("--check", CHECK): "--check is for `debug` alone",
        ("debug", "--check", " "): "--check has no command",
        ("debug", "--check", "echo s3cret-value-12"): "holds the value of a secret variable",
        ("debug", "--check", "no-such-program-here"): "cannot be started (exit code 127)",
    }
    desk = checkout.having(MY_TOKEN="s3cret-value-12")
    for words, why in refused.items():
        explained(desk(*words, QUESTION), 2, why)
    shutil.rmtree(checkout.path / ".git")
    explained(checkout("debug", "--check", CHECK, QUESTION), 2, "--check needs a git repository")
    explained(checkout("resume", "--check", CHECK), 2)
    assert provider.calls == []


def test_help_says_what_it_does(checkout: Desk) -> None:
    text = " ".join(checkout("run", "--help").ok().out.split())
    assert "--check COMMAND Only for debug: a command that fails while the fault is there." in text
