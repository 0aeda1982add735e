"""`cdo demo`, as real processes: the recording is played whole, offline, and leaves an ordinary session.

No test depends on the words of the recording.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cdo.app import demo, run
from cdo.app.recording import Recording, load
from cdo.content.library import Library
from cdo.core.events import Event
from cdo.planning import settings
from cdo.providers.recorded import PREFIX
from cdo.session.session_file import read_frozen
from tests.conftest import Desk
from tests.runs.test_repository_evidence import wish
from tests.support.answers import Answer, RequestInfo, agent_text
from tests.support.harness import ROOT, answered, exchanges, kill_group, wait_for
from tests.support.provider import Fault, Provider
from tests.support.record_demo import record
from tests.support.repositories import git
from tests.support.repositories import repository as made

FAST = ("demo", "--fast")
# Written to a file: each way in which a process could reach a network, and what it was asked to reach.
WATCH = """
import os, sys
def told(event, args):
    if event in ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto"):
        with open(os.environ["TESTS_SOCKETS"], "a") as file:
            file.write(f"{event} {args}\\n")
sys.addaudithook(told)
"""


def shipped() -> Recording:
    return load(ROOT / "demo")


def said(session: Path) -> list[tuple[str, str]]:
    """The answers of a session, by call, in a fixed order."""
    return sorted((item["call"], item["response"]["text"]) for item in exchanges(session))


@pytest.mark.quick
def test_the_demo_plays_the_whole_recording_offline(bare: Desk) -> None:
    watch = bare.write("watch/sitecustomize.py", WATCH).parent
    before = {path: path.stat().st_mtime_ns for path in (ROOT / "demo").rglob("*")}
    log = bare.path / "sockets"
    # Settings for real runs do not end it, and keys are not looked for.
    env = {"PYTHONPATH": f"{watch}:{ROOT}", "TESTS_SOCKETS": str(log), "CDO_MAX_CALLS": "1", "CDO_MODEL": "no-model"}
    done = bare(*FAST, env=env).ok()
    assert not log.exists(), log.read_text()
    assert {path: path.stat().st_mtime_ns for path in (ROOT / "demo").rglob("*")} == before
    recording, session = shipped(), bare.session("demo")
    # Each call is answered from the recording exactly once, none is missing, and none is unused.
    calls = zip((item.call for item in recording.head.exchanges), recording.texts, strict=True)
    assert said(session) == sorted(calls)
    assert (session / "FINAL.md").is_file()
    assert "\nmissing_voices: []\n" in (session / "FINAL.yaml").read_text()
    # It says first and last what it is, and the record says it too.
    lines = done.err.splitlines()
    assert lines[1].startswith("This is a recording: no model is asked, nothing is sent, nothing costs anything.")
    assert recording.head.model in lines[1]
    assert recording.head.date[:4] in lines[1]
    assert lines[2].removeprefix("The question: ") in (session / "00-input.md").read_text()
    assert "That was a recording: no model was asked, nothing was sent or paid." in done.err
    assert {item["model"].partition(":")[0] for item in exchanges(session)} == {"recorded"}
    assert {item["cost"] for item in exchanges(session)} == {0.0}
    assert lines[1] in " ".join((session / "session.yaml").read_text().split())


def test_the_session_of_the_demo_is_an_ordinary_one(bare: Desk) -> None:
    checkout = bare.path
    made(checkout)
    head = git(checkout, "for-each-ref"), git(checkout, "rev-parse", "HEAD")
    assert bare(*FAST, "--json").ok().json["session"] == "demo"
    assert (git(checkout, "for-each-ref"), git(checkout, "rev-parse", "HEAD")) == head  # no commits
    shown, final, report, changed, again, listed = bare.several(
        ["show", "demo", "--json"], ["final", "demo"], ["report", "demo"], ["diff", "demo"],
        ["replay", "demo", "--json"], ["list"],
    )  # fmt: skip
    assert shown.ok().json["calls"] == len(shipped().head.exchanges)
    assert final.ok().out
    assert (bare.session("demo") / "report.html").is_file(), report.err
    assert changed.ok().out
    assert again.ok().json["differences"] == again.json["unknown"] == []
    assert "FINAL.md" in again.json["same"]
    assert "demo" in listed.ok().out
    # The second one is another session, and says so in its commands.
    second = bare(*FAST).ok()
    assert [path.name for path in bare.sessions()] == ["cdo-demo", "cdo-demo-2"]
    assert "cdo final demo-2" in second.err
    assert said(bare.session("demo")) == said(bare.session("demo-2"))


def test_a_fork_of_the_demo_asks_for_a_model_and_goes_on_for_real(cdo: Desk, provider: Provider) -> None:
    cdo(*FAST, "-q").ok()
    made_ = cdo("fork", "demo", "--turn", "1", "--note", "Mind the budget.", "--no-run", "--session", "b").ok()
    assert "`cdo resume b -m MODEL`" in made_.err
    model = exchanges(cdo.session("demo"))[0]["model"]
    for words in (
        ["resume", "b"],
        ["resume", "demo"],
        ["fork", "demo", "--session", "c"],
        ["think", "-m", model, "?"],
    ):
        cdo(*words).failed(4, "is the name of a recording", "-m")
    assert not provider.calls
    # The fork has the material with it: what new voices cite is found where the first session is gone.
    shutil.rmtree(cdo.session("demo"))
    material = cdo.session("b") / "material"
    file = next(path for path in sorted(material.iterdir()) if path.suffix == ".md")
    line = next(
        line for line in file.read_text().splitlines() if len(line) > 20 and '"' not in line and "`" not in line
    )
    number = file.read_text().splitlines().index(line) + 1

    def script(info: RequestInfo) -> Answer | None:
        claim = {"text": "It is written there.", "evidence": [f'{file.name}:{number} "{line}"']}
        return Answer(agent_text("Stage it.", claims=[claim])) if info.kind == "agent" else None

    provider.script = script
    cdo("resume", "b", "-m", "openai/gpt-4.1").ok()
    asked = {info.call for info in provider.calls}
    assert asked
    assert not [call for call in asked if call.startswith("t1-")]
    checked = read_checks(cdo.session("b"), f'{file.name}:{number} "{line}"')
    assert checked
    assert all(item["verified"] for item in checked)


def read_checks(session: Path, citation: str) -> list[dict[str, Any]]:
    """What code found of the citations that begin so; the same text of several voices may be checked once."""
    from cdo.session.records import read_session

    records = [item for item in read_session(session) if item["kind"] == "checked"]
    return [item for record in records for item in record["findings"] if item["citation"].startswith(citation)]


def test_a_session_that_reads_beside_its_own_folder_is_still_not_trusted(cdo: Desk, provider: Provider) -> None:
    """Only its own folder needs no trust: not a symlink out of it, and not a way up."""
    cdo(*FAST, "-q").ok()
    cdo("fork", "demo", "--turn", "1", "--no-run", "--session", "b").ok()
    private = cdo.path.parent / "private"
    private.mkdir()
    shutil.rmtree(cdo.session("b") / "material")
    (cdo.session("b") / "material").symlink_to(private)
    cdo("resume", "b", "-m", "openai/gpt-4.1").failed(6, "outside its own folder")
    (cdo.session("b") / "material").unlink()
    plan = cdo.session("b") / "session.yaml"
    plan.write_text(plan.read_text().replace("root: material", "root: material/../../../../private"))
    cdo("resume", "b", "-m", "openai/gpt-4.1").failed(6, "outside its own folder")
    assert not provider.calls


def test_the_demo_takes_its_time_and_can_be_stopped(bare: Desk) -> None:
    process = bare.start("demo", "-v", "--out", "elsewhere")
    try:
        journal = bare.path / "elsewhere/cdo-demo/journal.jsonl"
        wait_for(lambda: journal.exists() and PREFIX in journal.read_text().partition('"call"')[2])
        assert not answered(bare.path / "elsewhere/cdo-demo")
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=30)
    finally:
        kill_group(process.pid)
    assert process.returncode == 130
    assert "asking recorded:" in err
    assert "`cdo demo` plays the recording from its beginning." in err
    assert "cdo resume" not in err
    done = bare(*FAST, "--out", "else where").ok()
    assert "cdo final demo --out 'else where'" in done.err
    assert (bare.path / "else where/cdo-demo/FINAL.md").is_file()


def test_quiet_and_json_print_no_hints(bare: Desk) -> None:
    quiet, json = bare.several([*FAST, "-q"], [*FAST, "--json"])
    assert quiet.ok().err.startswith("This is a recording: ")
    assert len(quiet.err.splitlines()) == 1
    assert json.ok().json["cost"] == 0.0
    assert "Try next" not in json.err


# -- the tool that makes a recording -----------------------------------------------------------------


def recorded(checkout: Desk, provider: Provider, *words: str) -> Path:
    """The session of a run whose first voice looks into the repository, and whose synthesis is refused once."""
    checkout.write("docs/figures.md", "one\nThe queue holds nine jobs.\n")
    if not (checkout.path / ".git").exists():
        made(checkout.path)

    def script(info: RequestInfo) -> Answer | None:
        if info.call == "t1-critic" and info.nth == 2:  # the first one meets a fault
            return Answer(tool_calls=(wish("read", path="docs/figures.md"),))
        if info.call == "t1-synthesis" and info.nth == 1:
            return Answer("I would rather not say.")
        claim = {"text": "There are nine.", "evidence": ['docs/figures.md:2 "The queue holds nine jobs."']}
        return Answer(agent_text("Stage it.", claims=[claim])) if info.kind == "agent" else None

    provider.script = script
    provider.faults = [Fault(status=500, call="t1-critic", nth=1)]
    checkout("think", *words, "--turns", "1", "--session", "a", "Should the queue be replaced?").ok()
    return checkout.session()


def played(recording: Recording, out: Path) -> tuple[Path, list[Event]]:
    """Play a recording without waiting; return its session, and the events."""
    events: list[Event] = []
    resolved = settings.resolve({"out": str(out)}, Library(()), {})
    playback = demo.begin(recording, resolved, 0.0)
    hooks = run.RunHooks(playback.specs, events.append, seats=playback.seats)
    asyncio.run(run.run(playback.session, playback.plan, playback.settings, playback.library, hooks))
    return playback.session.path, events


def test_a_finished_session_becomes_a_recording_that_plays_the_same(
    cdo: Desk, provider: Provider, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    session = recorded(cdo.having(CDO_REVIEW=""), provider)
    monkeypatch.chdir(cdo.path)
    record(session, tmp_path / "one", "Some Model 2")
    record(session, tmp_path / "two", "Some Model 2")
    files = {path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file()}
    assert all((tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes() for file in files)
    assert Path("material/docs/figures.md") in files
    assert Path("replies/t1-synthesis.2.md") in files  # a refused reply is kept, a fault of the transport is not
    assert not [path for path in files if str(tmp_path) in (tmp_path / "one" / path).read_text()]
    recording = load(tmp_path / "one")
    assert recording.head.plan.models == (f"{PREFIX}some-model-2",)
    assert recording.head.model == "Some Model 2"
    again, events = played(recording, tmp_path / "out")
    original = [item for item in exchanges(session) if "response" in item]
    assert len(original) < len(exchanges(session))
    assert said(again) == sorted((item["call"], item["response"]["text"]) for item in original)
    looks = [item["response"]["tool_calls"] for item in exchanges(again) if "tool_calls" in item["response"]]
    assert [tool["name"] for tools in looks for tool in tools] == ["read"]
    assert any(event.kind == "tool" for event in events)
    usage = Counter(
        (item["call"], item["usage"]["input_tokens"], item["usage"]["output_tokens"]) for item in original
    )
    assert usage == Counter(
        (item["call"], item["usage"]["input_tokens"], item["usage"]["output_tokens"]) for item in exchanges(again)
    )
    findings = [item["verified"] for item in read_checks(again, "docs/figures.md")]
    assert findings
    assert all(findings)
    assert read_frozen((again / "session.yaml").read_text(), again).plan.root == "material"


def refused(session: Path, target: Path, *words: str) -> None:
    there = target.exists()
    with pytest.raises(SystemExit) as stopped:
        record(session, target, "Some Model")
    assert target.exists() is there
    for word in words:
        assert word in str(stopped.value)


def test_what_cannot_be_recorded_is_refused_in_words(
    cdo: Desk, provider: Provider, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    session = recorded(cdo, provider)
    monkeypatch.chdir(cdo.path)
    refused(session, cdo.path / "docs", "is not a recording")
    assert (cdo.path / "docs/figures.md").is_file()
    question = session / "00-input.md"
    question.write_text(f"{question.read_text()} See {Path.home()}/notes.txt.")
    refused(session, tmp_path / "out", "00-input.md names this machine", str(Path.home()))
    question.write_text("Should the queue be replaced?")
    cdo.write("Big Folder/a.txt", "text")
    refused(session, tmp_path / "out", "Big Folder/a.txt", "small letters")
    (session / "FINAL.md").unlink()
    refused(session, tmp_path / "out", "has no FINAL.md")
