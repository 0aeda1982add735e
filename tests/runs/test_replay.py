"""`cdo replay`: the same record through the same code gives the same bytes, and through other code it is named."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cdo.app.replay import rehearse
from cdo.app.replay_diff import ReplayReport, compare
from cdo.content.library import Library
from cdo.core.errors import SessionError
from cdo.core.exchange import ToolCall
from cdo.session.human_edits import HumanEdits, Looked, Signature
from cdo.session.reader import SessionFolder
from cdo.session.records import group_file, group_records
from tests.conftest import A, Desk
from tests.runs.test_modes_run import GATEWAY, case, house
from tests.support.answers import Answer, RequestInfo, agent_text, synthesis_text
from tests.support.faults import Fault
from tests.support.harness import QUESTION, ROOT, kill_group, sampled, sensitive, wait_for
from tests.support.provider import Provider

OTHER = "-m", "openai/gpt-4.1-mini"


def replayed(desk: Desk, name: str = "a") -> ReplayReport:
    """What a replay in this process finds; the session is left byte for byte as it was, times of its files too."""
    place = desk.session(name)
    before = stamped(place)
    found = compare(asyncio.run(rehearse(SessionFolder(place), Library.at(desk.path))))
    assert stamped(place) == before
    return found


def stamped(session: Path) -> dict[str, tuple[bytes, int]]:
    files = [path for path in session.rglob("*") if path.is_file()]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def made(desk: Desk) -> set[str]:
    """The artifacts and other files that a run made, by name."""
    names = {str(path.relative_to(desk.session())) for path in desk.session().rglob("*") if path.is_file()}
    given = ("00-", "calls/", "skills/", "superseded/", "journal", "session.yaml")
    return {name for name in names if not name.startswith(given) and not re.search(r"-plan\.yaml$", name)}


# -- runs of every kind ------------------------------------------------------------------------------


def plain(desk: Desk, provider: Provider) -> None:
    provider.script = sensitive
    desk("think", "--turns", "2", *A, QUESTION).ok()


def missing(desk: Desk, provider: Provider) -> None:
    provider.faults = [Fault(status=400, call="t1-critic")]
    desk("think", "--turns", "2", *A, QUESTION).ok()
    assert "t1-critic" in (desk.session() / "FINAL.yaml").read_text()


def repaired(desk: Desk, provider: Provider) -> None:
    """A synthesis that leaves a section out every time, and a voice that is valid at the second try only."""

    def script(info: RequestInfo) -> Answer | None:
        if info.kind == "synthesis":
            return Answer(synthesis_text(gaps=["one"]).replace("## Surprises", "## Nothing"))
        return Answer("no front matter") if info.call == "t1-critic" and info.attempt == 1 else None

    provider.script = script
    desk("think", "--turns", "2", *A, QUESTION).ok()
    assert "added" in (desk.session() / "t1-synthesis.md").read_text()


def other_model(desk: Desk, provider: Provider) -> None:
    """Another model goes on, and its synthesis has to be repaired."""

    def script(info: RequestInfo) -> Answer | None:
        if info.call == "t2-synthesis":
            return Answer(synthesis_text(gaps=["one"]).replace("## Surprises", "## Nothing"))
        return sensitive(info)

    provider.script = script
    desk("think", "--turns", "2", "--max-calls", "5", *A, QUESTION).failed(5)
    desk("resume", "a", "--max-calls", "99", *OTHER).ok()


def failed_before(desk: Desk, provider: Provider) -> None:
    """The synthesis failed for good; a resume asked it again."""
    provider.faults = [Fault(status=400, call="t1-synthesis", nth=1)]
    desk("think", "--turns", "2", *A, QUESTION).failed(7)
    desk("resume", "a").ok()


def edited(desk: Desk, provider: Provider) -> None:
    """A person changed a voice, and what followed from it was asked anew."""
    plain(desk, provider)
    path = desk.session() / "t1-critic.md"
    path.write_text(path.read_text().replace("Stage it", "Do not stage it"))
    desk("resume", "a", "--yes").ok()
    assert (desk.session() / "superseded").is_dir()


def hitl(desk: Desk, provider: Provider) -> None:
    desk("hitl,think", *A, QUESTION).failed(6)
    (desk.session() / "t1-plan.yaml").write_text(
        "voices:\n  - {role: historian, charge: look for the last attempt}\n  - {role: lawyer}\n"
        "note: mind the users in Peru\nturns: 2\n"
    )
    desk("resume", "a").failed(6)
    desk("resume", "a").ok()


def team(desk: Desk, provider: Provider) -> None:
    desk("team,think", "--max-calls", "4", *A, QUESTION).failed(5)
    letter = desk.session() / "team/inbox/letter.md"
    letter.parent.mkdir(exist_ok=True)
    letter.write_text("---\nto: critic\n---\n\nMind the cost.\n")
    desk("resume", "a", "--max-calls", "99").ok()


def debug(desk: Desk, provider: Provider) -> None:
    provider.script = case
    desk("debug", *A, GATEWAY).ok()


def parliament(desk: Desk, provider: Provider) -> None:
    provider.script = house
    desk("parliament,full", "--width", "5", *A, "Who is right?").ok()


def domain(desk: Desk, provider: Provider) -> None:
    desk("exec", "arch", "--turns", "1", *A, QUESTION)


def tools(desk: Desk, provider: Provider) -> None:
    """Voices look into the repository, and what they cite is checked there; then the repository changes."""
    desk.write("src/queue.py", "import heapq\n\n\ndef push(item):\n    heapq.heappush(ITEMS, item)\n")
    for words in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *words], cwd=desk.path, check=True)
    wish = ToolCall("i1", "read", json.dumps({"path": "src/queue.py"}))
    claims = [{"text": "A heap.", "evidence": ['src/queue.py:4 "def push(item)"', "src/gone.py:1"]}]

    def script(info: RequestInfo) -> Answer | None:
        if info.kind != "agent":
            return None
        looked = any(message["role"] == "tool" for message in info.body["messages"])
        return Answer(agent_text("A heap.", claims=claims)) if looked else Answer(tool_calls=(wish,))

    provider.script = script
    desk("quick", *A, "How does the queue push a job?").ok()
    assert "✓" in (desk.session() / "FINAL.md").read_text() or "1 of 2" in (desk.session() / "FINAL.md").read_text()
    desk.write("src/queue.py", "nothing of it is left\n")


def forked(desk: Desk, provider: Provider) -> None:
    """A fork with another focus: its first turn is the record of the run that it comes from."""
    provider.script = sensitive
    desk("think", "--turns", "2", "--session", "source", QUESTION).ok()
    desk("fork", "source", "--turn", "1", "--focus", "What does it cost to go back?", *A).ok()


KINDS = (
    plain, missing, repaired, other_model, failed_before, edited, hitl, team, debug, parliament, domain, tools,
    forked,
)  # fmt: skip


@pytest.mark.parametrize(
    "kind", sampled(KINDS, (plain, edited, hitl, debug, tools, forked)), ids=lambda kind: kind.__name__
)
def test_todays_code_makes_the_same_bytes_of_the_record(
    kind: Callable[[Desk, Provider], None], cdo: Desk, provider: Provider
) -> None:
    kind(cdo, provider)
    asked = len(provider.calls)
    found = replayed(cdo)
    assert not found.differs, (found.differences, found.elsewise, found.unknown, found.notes, found.stopped)
    assert len(provider.calls) == asked
    assert "FINAL.md" in found.same and found.then == found.now and found.then is not None
    assert made(cdo) - {*found.same, *found.edited} <= {"team/taken/letter.md", "team/inbox/letter.md", "FINAL.yaml"}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Desk, Provider]]:
    """A finished run, to be copied."""
    with Provider() as provider:
        base = tmp_path_factory.mktemp("told")
        (base / "work").mkdir()
        desk = Desk(base / "work", provider.url)
        plain(desk, provider)
        yield desk, provider


@pytest.fixture
def run(told: tuple[Desk, Provider], tmp_path: Path) -> Desk:
    """A copy of a finished run, at a desk without key and provider."""
    shutil.copytree(told[0].path, tmp_path / "copy" / "work", symlinks=True)
    return Desk(tmp_path / "copy" / "work")


# -- the command -------------------------------------------------------------------------------------


@pytest.mark.quick
def test_a_replay_needs_no_key_and_no_network_and_says_that_all_is_the_same(run: Desk) -> None:
    done = run("replay", "a", "--strict").ok()
    count = len([name for name in made(run) if name.endswith(".md")])
    assert f"The same: {count} files, byte for byte (9 calls, none sent)" in done.out
    assert "Ends the same: max_turns" in done.out and done.err == "" and not run.tried()
    assert run.sessions() == [run.session()]
    assert run("replay", "a", "--out", str(run.path / "tmp"), cwd="..").ok().out == done.out
    told = run("replay", "--json").ok().json
    assert told["differs"] is False and told["then"] == told["now"] and "FINAL.md" in told["same"]


def test_a_call_that_is_prepared_twice_is_counted_once(run: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that changes while its calls are prepared makes them be prepared again."""
    read, told = HumanEdits.signatures, iter([True])

    def changed_once(self: HumanEdits, looked: Looked) -> dict[str, Signature]:
        return {**read(self, looked), **({"edited.md": (1,)} if next(told, False) else {})}

    monkeypatch.setattr(HumanEdits, "signatures", changed_once)
    assert replayed(run).calls == 9 and next(told, None) is None


def test_a_session_that_runs_is_replayed_as_far_as_it_is_recorded(cdo: Desk, provider: Provider) -> None:
    provider.faults = [Fault(hang="headers", call="t2-*")]
    running = cdo.start("think", "--turns", "2", *A, QUESTION)
    try:
        wait_for(lambda: (cdo.session() / "t1-synthesis.md").exists())
        wait_for(lambda: provider.named("t2-critic"))
        done = cdo("replay", "a", "--strict").ok()
    finally:
        kill_group(running.pid)
        running.communicate()
    assert "Unfinished: it would go on with t2-" in done.out and "t2-critic" in done.out
    assert "The same: 4 files" in done.out
    provider.faults = []
    cdo("resume", "a").ok()
    assert not replayed(cdo).differs


def test_a_run_that_waits_for_a_person_still_waits(cdo: Desk) -> None:
    cdo("hitl,think", *A, QUESTION).failed(6)
    assert "Unfinished: t1-plan.yaml waits for you" in cdo("replay", "a").ok().out


def test_a_lost_final_answer_is_made_again(run: Desk) -> None:
    text = (run.session() / "FINAL.md").read_bytes()
    (run.session() / "FINAL.md").unlink()
    found = replayed(run)
    assert [(item.file, item.how) for item in found.differences] == [("FINAL.md", "new")]
    assert "it is recorded to its end" in run("replay", "a").ok().out
    run("resume", "a", env={"OPENAI_API_KEY": "x-test-key-123456"}).ok()
    assert (run.session() / "FINAL.md").read_bytes() == text


def test_what_cannot_be_read_is_explained(run: Desk, bare: Desk) -> None:
    bare("replay", "nothing").failed(8, "There is no session")
    group = next((run.session() / "calls").iterdir())
    group.write_bytes(group.read_bytes() + b"{}\n")
    run("replay", "a").failed(8, f"calls/{group.name} is damaged")


def test_a_broken_edit_is_named_where_it_is_and_not_where_it_was_rehearsed(run: Desk) -> None:
    path = run.session() / "t1-critic.md"
    path.write_text(path.read_text().replace("position:", "opinion:"))
    done = run("replay", "a").failed(8, "t1-critic.md was edited and is no longer valid")
    assert f"{Path('tmp/cdo-a/t1-critic.md')}" in done.err and "cdo-replay-" not in done.err


# -- what other code would make of it ----------------------------------------------------------------


def rerecord(session: Path, call: str, old: str, new: str) -> None:
    """Change a recorded response, as if another model had answered then."""
    changed = 0
    for path in sorted((session / "calls").iterdir()):
        records = group_records(path.read_bytes(), path.name)
        for record in records:
            if record.get("call") == call and old in str(record.get("response")):
                record["response"]["text"] = record["response"]["text"].replace(old, new)
                changed += 1
        name, data = group_file(int(path.stem), records)
        path.with_name(name).write_bytes(data)
    assert changed


def test_an_artifact_that_was_made_otherwise_is_shown_with_all_that_follows_from_it(run: Desk) -> None:
    rerecord(run.session(), "t1-critic", "Stage it", "Drop it")
    found = replayed(run)
    (difference,) = found.differences
    assert difference.file == "t1-critic.md" and any("+position: Drop it" in line for line in difference.diff)
    follows = {"t1-synthesis": ("t1-critic",)}
    assert follows.items() <= found.elsewise.items() and "t1-synthesis.md" in found.alike
    done = run("replay", "a", "--strict").failed(3)
    assert "Differs: t1-critic.md" in done.out and "+position: Drop it" in done.out
    assert "Asked with other inputs: t1-synthesis (t1-critic)" in done.out and "sha256" not in done.out


def test_an_edit_that_nobody_resumed_yet_tells_what_would_be_asked_again(run: Desk) -> None:
    path = run.session() / "t1-critic.md"
    path.write_text(path.read_text().replace("Stage it", "Do not stage it"))
    found = replayed(run)
    assert found.edited == ("t1-critic.md",) and found.elsewise["t1-synthesis"] == ("t1-critic",)
    assert not found.differences and found.then == found.now
    assert "Taken as you edited them: t1-critic.md" in run("replay", "a").ok().out


def test_a_template_that_is_worded_otherwise_only_matters_by_its_name_and_its_data(run: Desk) -> None:
    text = (ROOT / "templates/agent-brief.md").read_text()
    run.write(".cdo/templates/agent-brief.md", text.replace("independent", "lonely"))
    assert Library.at(run.path, trust_now=True).find("templates/agent-brief")[0] == "project"
    assert not replayed(run).differs, "how a brief is worded is no part of what it asks"


def patched(run: Desk, code: str) -> dict[str, str]:
    """The environment of a cdo of which one part is another."""
    guard = ROOT / "tests/support/guard"
    lines = ["import runpy", f"runpy.run_path({str(guard / 'sitecustomize.py')!r}, run_name='sitecustomize')", code]
    run.write("../other/sitecustomize.py", "\n".join(lines) + "\n")
    return {"PYTHONPATH": f"{run.path.parent / 'other'}:{ROOT}"}


def test_a_rule_that_changed_is_seen_in_the_ending(run: Desk) -> None:
    env = patched(
        run,
        "from cdo.programs.deliberation import turn\n"
        "turn.bounded = lambda stated, bounds, **facts: (0.25, 'a new rule')",
    )
    done = run("replay", "a", "--strict", env=env).failed(3)
    assert "Differs: FINAL.md" in done.out and re.search(r"Ends otherwise: confidence: 0\.\d+ → 0\.25", done.out)
    told = run("replay", "a", "--json", env=env).ok().json
    assert told["now"]["confidence"] == 0.25 and told["then"]["confidence"] != 0.25 and told["differs"]


def test_a_turn_that_nobody_recorded_ends_it_and_is_named(run: Desk) -> None:
    code = "from cdo.programs.deliberation import program\nprogram.convergence.verdict = lambda *a, **k: None"
    done = run("replay", "a", "--strict", env=patched(run, code)).failed(3)
    assert "Not on record: t3-" in done.out and "No longer made: FINAL.md" in done.out
    assert "It would not end as it did: The models failed" in done.out


def test_a_voice_that_is_no_longer_asked_and_a_new_one(run: Desk) -> None:
    code = (
        "from cdo.programs.deliberation import calls\nold = calls.seats\n"
        "new = lambda *a: [(n.replace('pragmatist', 'skeptic'), r, s) for n, r, s in old(*a)]\ncalls.seats = new"
    )
    told = run("replay", "a", "--json", env=patched(run, code)).ok().json
    hows = {(item["file"], item["how"]) for item in told["differences"]}
    assert {("t1-pragmatist.md", "gone"), ("FINAL.md", "differs")} <= hows
    assert "t1-skeptic" in told["unknown"] and told["now"] is not None


def test_whole_differences_are_shown_when_asked(run: Desk) -> None:
    rerecord(run.session(), "t1-critic", "the", "THE")
    short, long = run.several(["replay", "a"], ["replay", "a", "-v"])
    assert "-v shows all" in short.out and "-v shows all" not in long.out and len(long.out) > len(short.out)


def test_what_a_model_wrote_reaches_the_terminal_without_its_controls(run: Desk) -> None:
    rerecord(run.session(), "t1-critic", "## Reasoning", "\x1b]0;owned\x07 ## Reasoning")
    done = run("replay", "a", "-v").ok()
    assert "\x1b" not in done.out and "owned" in done.out


def test_a_replay_that_is_stopped_leaves_nothing_behind(run: Desk, tmp_path: Path) -> None:
    place = tmp_path / "scratch"
    place.mkdir()
    run("replay", "a", env={"TMPDIR": str(place)}).ok()
    assert list(place.iterdir()) == []


def test_what_somebody_put_into_a_session_is_left_there(run: Desk) -> None:
    for name in ("00-more/deep.md", "skills/a/b/c.md", "calls/notes/x.md", "t9-stranger.md", "notes.md"):
        path = run.session() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("not cdo's own\n")
    found = replayed(run)
    assert not found.differs and found.edited == ("t9-stranger.md",)


def test_a_session_of_a_later_cdo_is_refused(run: Desk) -> None:
    path = run.session() / "session.yaml"
    path.write_text(path.read_text() + "tomorrow: true\n")
    with pytest.raises(SessionError, match="tomorrow"):
        asyncio.run(rehearse(SessionFolder(run.session()), Library.at(run.path)))
