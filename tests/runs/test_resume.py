"""Resume: what is recorded is never asked again, what a person edited wins, and what follows from it is redone."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from cdo.planning.settings import Resolved
from cdo.session import human_edits, session_file
from tests.support.answers import Answer, RequestInfo, agent_text, final_text, synthesis_text
from tests.support.harness import (
    KEY,
    Done,
    Place,
    answered,
    asked,
    attempts,
    exchanges,
    finish,
    kill_group,
    same,
    sampled,
    sensitive,
    tree,
    wait_for,
)
from tests.support.provider import Fault, Provider

T1 = ["t1-critic", "t1-first-principles", "t1-pragmatist"]
T2 = ["t2-architect", "t2-critic", "t2-pragmatist"]
ALL = [*T1, "t1-synthesis", *T2, "t2-synthesis", "final"]
AFTER_T1 = ["t1-synthesis", *T2, "t2-synthesis", "final"]


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with Provider(script=sensitive) as p:
        yield p


@pytest.fixture(scope="module")
def whole(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, Done]:
    """An undisturbed run of nine calls, and what it printed."""
    place = Place(tmp_path_factory.mktemp("whole"), as_it_was(provider).url)
    done = place.run("--turns", "2", "--json").ok()
    assert sorted(call for call, _ in asked(provider.calls)) == sorted(ALL)
    return place, done


def as_it_was(provider: Provider) -> Provider:
    """The provider with its log empty and its answers as they were."""
    provider.script, provider.faults, provider.latency = sensitive, (), 0.0
    provider.release()
    provider.reset()
    return provider


@pytest.fixture
def p(provider: Provider) -> Provider:
    """The provider as it was in the beginning."""
    return as_it_was(provider)


@pytest.fixture
def done(whole: tuple[Place, Done], p: Provider, tmp_path: Path) -> Place:
    """A copy of the finished run."""
    return whole[0].copy(tmp_path / "work")


@pytest.fixture
def empty(p: Provider, tmp_path: Path) -> Place:
    """A place without a session."""
    return Place(tmp_path, p.url)


def names(p: Provider) -> list[str]:
    """The calls that were asked for, sorted; none of them twice."""
    found = [call for call, _ in asked(p.calls)]
    assert len(found) == len(set(found)), found
    return sorted(found)


def edit(path: Path, old: str, new: str) -> bytes:
    """Change a file as an editor does, by rename; returns what it then holds."""
    text = path.read_text("utf-8")
    assert old in text
    beside = path.with_name(f"{path.name}~")
    beside.write_text(text.replace(old, new), "utf-8")
    beside.replace(path)
    return path.read_bytes()


def superseded(session: Path, number: int = 1) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (session / "superseded" / str(number)).glob("*.md")}


def artifact_files(session: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in session.glob("*.md")}


# -- nothing is paid twice ---------------------------------------------------------------------------


def test_a_finished_session_is_only_read(whole: tuple[Place, Done], done: Place, p: Provider) -> None:
    before = artifact_files(done.session())
    again = done.resume("--json").ok()
    assert p.calls == []
    assert again.json == whole[1].json
    assert artifact_files(done.session()) == before
    same(done.session(), whole[0].session())


def test_the_same_calls_give_the_same_files(whole: tuple[Place, Done], p: Provider, tmp_path: Path) -> None:
    for number, (seed, zone, locale) in enumerate(
        [("0", "Asia/Kathmandu", "C"), ("1", "America/St_Johns", "C.UTF-8"), ("4242", "UTC", "POSIX")]
    ):
        place = Place(tmp_path / str(number), p.url, {"PYTHONHASHSEED": seed, "TZ": zone, "LC_ALL": locale})
        place.path.mkdir()
        place.run("--turns", "2").ok()
        same(place.session(), whole[0].session())


def test_an_artifact_that_was_deleted_is_restored_without_a_call(done: Place, p: Provider) -> None:
    before = artifact_files(done.session())
    for name in ("t1-critic.md", "t2-synthesis.md", "FINAL.md"):
        (done.session() / name).unlink()
    done.resume().ok()
    assert p.calls == []
    assert artifact_files(done.session()) == before


def test_all_artifacts_are_restored_from_the_records_alone(
    whole: tuple[Place, Done], done: Place, p: Provider
) -> None:
    for path in done.session().glob("*.md"):
        if not path.name.startswith("00-"):
            path.unlink()
    (done.session() / "journal.jsonl").unlink()
    done.resume().ok()
    assert p.calls == []
    same(done.session(), whole[0].session())


@pytest.mark.parametrize("emptied", [False, True])
def test_what_was_given_is_restored_from_the_records_alone(done: Place, p: Provider, emptied: bool) -> None:
    files = [done.session() / name for name in ("00-input.md", "00-context.md")]
    before = [file.read_bytes() for file in files]
    for file in files:
        file.write_text("") if emptied else file.unlink()
    again = done.resume("--yes").ok()
    assert p.calls == []
    assert [file.read_bytes() for file in files] == before
    assert f"00-input.md was {'empty' if emptied else 'gone'}; it is written again as it was recorded" in again.err


def test_a_fork_of_a_session_whose_question_is_gone_asks_the_question(done: Place, p: Provider) -> None:
    question = (done.session() / "00-input.md").read_bytes()
    (done.session() / "00-input.md").unlink()
    done.cdo("fork", "a", "--turn", "1", "--no-run", "--session", "b").ok()
    assert (done.session("b") / "00-input.md").read_bytes() == question
    assert p.calls == []


def test_an_empty_file_ends_the_run_at_once(done: Place, p: Provider) -> None:
    file = done.session() / "t1-critic.md"
    file.write_text("")
    time.sleep(human_edits.EMPTIED)  # as somebody does who resumes later
    told = done.resume("--yes")
    assert told.code == 8 and "t1-critic.md is empty" in told.err and told.seconds < human_edits.RESTLESS
    (done.session() / "00-input.md").write_text("\n")
    shutil.rmtree(done.session() / "calls")
    told = done.resume("--yes")
    assert told.code == 8 and "no record holds the question" in told.err
    assert p.calls == []


def test_without_the_records_the_artifacts_are_enough(done: Place, p: Provider) -> None:
    before = artifact_files(done.session())
    shutil.rmtree(done.session() / "calls")
    result = done.resume("--json").ok().json
    assert p.calls == []
    assert artifact_files(done.session()) == before
    assert result["status"] == "max_turns" and result["decision"].startswith("Stage it")
    (done.session() / "t2-critic.md").unlink()
    done.resume().ok()
    assert names(p) == ["t2-critic"], "only what is neither recorded nor written is asked again"


def test_a_lower_cap_stops_and_a_higher_one_goes_on(whole: tuple[Place, Done], empty: Place, p: Provider) -> None:
    empty.run("--turns", "2", "--max-calls", "5").failed(5, "The cap of 5 calls is reached", "resume")
    assert len(p.calls) == 5
    empty.resume().failed(5, "The cap of 5 calls is reached")
    assert len(p.calls) == 5
    empty.resume("--max-calls", "9").ok()
    assert names(p) == sorted(ALL)
    left, right = tree(empty.session()), tree(whole[0].session())
    assert {name for name in left if left[name] != right.get(name)} == {"session.yaml"}, "the frozen cap"


CAPS = (("--max-tokens", "12000"), ("--budget", "0.06"), ("--timeout", "4"))


@pytest.mark.parametrize("cap", sampled(CAPS, CAPS[1:2]))
def test_every_cap_ends_with_5_and_can_be_raised(empty: Place, p: Provider, cap: tuple[str, str]) -> None:
    p.faults = [Fault(hang="headers", call="t2-*")] if cap[0] == "--timeout" else []
    empty.run("--turns", "2", *cap, timeout=60).failed(5, "is reached", "resume")  # what hangs does so for ever
    p.faults = []
    before = answered(empty.session())
    assert 0 < len(before) < 9
    p.reset()
    empty.resume(cap[0], "100000").ok()
    assert not before & set(names(p))


def test_after_a_failed_quorum_only_what_is_missing_is_asked(empty: Place, p: Provider) -> None:
    p.faults = [Fault(status=400, call="t2-critic"), Fault(status=422, call="t2-architect")]
    failed = empty.run("--turns", "2").failed(7, "1 of 3 answered", "2 are needed", "t2-critic", "t2-architect")
    assert len(failed.complaint) == 2
    p.reset()
    p.faults = []
    empty.resume().ok()
    assert names(p) == sorted(["t2-critic", "t2-architect", "t2-synthesis", "final"])


def test_a_failed_quorum_of_malformed_replies_heals_too(empty: Place, p: Provider) -> None:
    p.script = lambda info: "nonsense" if info.call in ("t1-critic", "t1-pragmatist") else sensitive(info)
    empty.run("--turns", "2").failed(7, "1 of 3 answered", "asks only for what is missing")
    assert len(p.calls) == 7
    p.reset()
    p.script = sensitive
    empty.resume().ok()
    assert set(names(p)) == set(ALL) - {"t1-first-principles"}


def test_a_voice_that_was_given_up_is_named_and_not_asked_again(empty: Place, p: Provider) -> None:
    p.faults = [Fault(shape="refusal", call="t2-critic")]
    empty.run("--turns", "2").ok()
    p.reset()
    p.faults = []
    (empty.session() / "FINAL.md").unlink()
    result = empty.resume("--json").ok().json
    assert p.calls == []
    assert result["missing_voices"] and result["missing_voices"][0].startswith("t2-critic: refused")
    assert "t2-critic: refused" in (empty.session() / "FINAL.yaml").read_text()


@pytest.mark.quick
def test_killed_between_two_attempts_the_first_is_not_asked_again(
    whole: tuple[Place, Done], empty: Place, p: Provider
) -> None:
    def script(info: RequestInfo) -> Answer | Fault | str | None:
        if info.call == "t1-critic" and info.attempt == 1:
            return "---\nposition: yes\n---\n\nNo confidence."
        if info.call == "t1-critic" and info.nth == 2:
            return Fault(hang="middle")
        return sensitive(info)

    p.script = script
    with empty.running("think", "--turns", "2", "--session", "a", "Should we split the service?") as process:
        wait_for(lambda: len(p.named("t1-critic")) == 2)
        wait_for(lambda: len(exchanges(empty.session())) == 3)
        kill_group(process.pid)
        assert finish(process).code == -signal.SIGKILL
    empty.resume().ok()
    assert [attempt for call, attempt in asked(p.calls) if call == "t1-critic"] == [1, 2, 2]
    interrupted, repeated = p.named("t1-critic")[1:]
    assert interrupted.body == repeated.body, "told the same faults again"
    assert "confidence" in repeated.prompt.rpartition("could not be used")[2]
    assert [call for call, _ in asked(p.calls)].count("t1-pragmatist") == 1
    files = artifact_files(empty.session())
    assert b"attempts: 2" in files["t1-critic.md"]
    assert set(files) == set(artifact_files(whole[0].session()))


def test_replies_that_are_read_leniently_cost_no_other_call_and_stay_the_same(empty: Place, p: Provider) -> None:
    """Every reply stands in a fence below a sentence. The files say so; a lost one is made again from the record."""

    def script(info: RequestInfo) -> str:
        said = sensitive(info)
        return f"Here it is:\n\n````markdown\n{said.text if said else final_text('Stage it.')}\n````\n"

    p.script = script
    told = empty.run("--turns", "1", "-v").ok().err
    assert {attempt for _, attempt in asked(p.calls)} == {1} and "read leniently: took the document out of" in told
    files = artifact_files(empty.session())
    notes = [name for name in files if name != "FINAL.md" and b"read_leniently" in files[name]]
    assert {"t1-critic.md", "t1-synthesis.md"} <= set(notes)
    assert b"read_leniently" in (empty.session() / "FINAL.yaml").read_bytes()
    p.reset()
    (empty.session() / "t1-critic.md").unlink()
    empty.resume().ok()
    assert p.calls == [] and artifact_files(empty.session()) == files


# -- edits win ---------------------------------------------------------------------------------------


@pytest.mark.quick
def test_an_edited_voice_makes_what_follows_stale(done: Place, p: Provider) -> None:
    session = done.session()
    before = artifact_files(session)
    kept = edit(session / "t1-critic.md", "Stage it (", "Do not stage it (")

    refusal = done.resume().failed(6, "--yes")
    assert len(refusal.complaint) == 2
    for name in AFTER_T1:
        assert f"{name.replace('final', 'FINAL')}.md" in refusal.complaint[0]
    for name in T1:
        assert name not in refusal.complaint[0]
    assert p.calls == []
    assert artifact_files(session) == {**before, "t1-critic.md": kept}, "nothing was changed"
    assert not (session / "superseded").exists()

    done.resume("--yes").ok()
    assert names(p) == sorted(AFTER_T1), "exactly what is stale"
    assert "Do not stage it (" in p.named("t1-synthesis")[0].prompt
    now = artifact_files(session)
    assert now["t1-critic.md"] == kept
    stale = {f"{name}.md" for name in [*AFTER_T1[:-1], "FINAL"]}
    assert superseded(session) == {name: before[name] for name in stale}
    assert {name for name in before if now[name] != before[name]} >= {"t1-synthesis.md", "t2-critic.md"}
    p.reset()
    done.resume().ok()
    assert p.calls == [], "and then it is settled"


def test_an_edited_question_makes_everything_stale(done: Place, p: Provider) -> None:
    session = done.session()
    before = artifact_files(session)
    kept = edit(session / "00-input.md", "split", "merge")
    done.resume().failed(6, "t1-critic.md", "t2-synthesis.md", "FINAL.md")
    assert p.calls == []
    done.resume("--yes").ok()
    assert names(p) == sorted(ALL)
    assert all("Should we merge the service?" in info.prompt for info in p.calls)
    assert (session / "00-input.md").read_bytes() == kept
    assert len(superseded(session)) == 9
    assert superseded(session)["FINAL.md"] == before["FINAL.md"]


def test_an_edited_directive_decides_the_next_turn(done: Place, p: Provider) -> None:
    session = done.session()
    kept = edit(
        session / "t1-synthesis.md",
        'roles: ["architect", "critic", "pragmatist"]',
        "roles: [economist, {name: critic, charge: price the way back}, night-watch]",
    )
    done.resume().failed(6, "t2-architect.md", "t2-critic.md", "t2-pragmatist.md", "t2-synthesis.md", "FINAL.md")
    assert p.calls == []
    done.resume("--yes").ok()
    assert names(p) == sorted(["t2-economist", "t2-critic", "t2-night-watch", "t2-synthesis", "final"])
    assert "price the way back" in p.named("t2-critic")[0].prompt
    assert (session / "t1-synthesis.md").read_bytes() == kept
    assert sorted(path.name for path in session.glob("t2-*")) == [
        "t2-critic.md",
        "t2-economist.md",
        "t2-night-watch.md",
        "t2-synthesis.md",
    ]
    assert "t2-architect.md" in superseded(session)


def test_a_turn_of_new_roles_only_also_waits_for_consent(done: Place, p: Provider) -> None:
    session = done.session()
    edit(
        session / "t1-synthesis.md",
        'roles: ["architect", "critic", "pragmatist"]',
        "roles: [economist, operator, night-watch]",
    )
    done.resume().failed(6, "t2-architect.md", "t2-synthesis.md", "FINAL.md")
    assert p.calls == [], "nothing is paid before consent"
    done.resume("--yes").ok()
    assert names(p) == sorted(["t2-economist", "t2-operator", "t2-night-watch", "t2-synthesis", "final"])
    assert not (session / "t2-architect.md").exists()
    assert set(superseded(session)) == {*(f"{name}.md" for name in T2), "t2-synthesis.md", "FINAL.md"}


def test_a_directive_that_ends_the_loop_earlier_leaves_no_later_turn_behind(tmp_path: Path, p: Provider) -> None:
    place = Place(tmp_path, p.url)
    place.run().ok()
    p.reset()
    session = place.session()
    text = (session / "t2-synthesis.md").read_text()
    text = re.sub(r"(?m)^confidence: 0\.7$", "confidence: 0.95", text).replace(
        "exit_ready: false", "exit_ready: true"
    )
    (session / "t2-synthesis.md").write_text(text)
    place.resume().failed(6, "FINAL.md", "t3-critic.md")
    assert p.calls == []
    result = place.resume("--yes", "--json").ok().json
    assert names(p) == ["final"]
    assert result["status"] == "converged" and result["turns"] == 2
    assert not list(session.glob("t3-*")) and list(session.glob("t2-*"))


def test_other_edits_further_on_are_kept(done: Place, p: Provider) -> None:
    session = done.session()
    first = edit(session / "t1-critic.md", "Stage it (", "Do not stage it (")
    later = edit(session / "t2-critic.md", "Stage it (", "I have seen worse (")
    done.resume().failed(6, "t1-synthesis.md")
    done.resume("--yes").ok()
    assert names(p) == sorted(set(AFTER_T1) - {"t2-critic"})
    assert "I have seen worse (" in p.named("t2-synthesis")[0].prompt
    files = artifact_files(session)
    assert (files["t1-critic.md"], files["t2-critic.md"]) == (first, later)
    assert "t2-critic.md" not in superseded(session)


def test_a_second_edit_is_superseded_beside_the_first(done: Place, p: Provider) -> None:
    session = done.session()
    edit(session / "t1-critic.md", "Stage it (", "Do not stage it (")
    done.resume("--yes").ok()
    second = artifact_files(session)
    edit(session / "t1-critic.md", "Do not stage it (", "Wait (")
    p.reset()
    done.resume("--yes").ok()
    assert names(p) == sorted(AFTER_T1)
    assert superseded(session, 2)["FINAL.md"] == second["FINAL.md"]
    assert len(superseded(session, 1)) == 6


def test_an_edit_that_is_taken_back_costs_nothing(whole: tuple[Place, Done], done: Place, p: Provider) -> None:
    session = done.session()
    original = (session / "t1-critic.md").read_bytes()
    edit(session / "t1-critic.md", "Stage it (", "Do not stage it (")
    done.resume("--yes").ok()
    (session / "t1-critic.md").write_bytes(original)
    p.reset()
    done.resume("--yes").ok()
    assert p.calls == [], "everything was asked before and is recorded"
    before = artifact_files(whole[0].session())
    now = artifact_files(session)
    assert {name for name in before if now[name] != before[name]} <= {"FINAL.md"}, "FINAL.md states the whole cost"


def layout(change: Callable[[str], str]) -> Callable[[Path], None]:
    def apply(session: Path) -> None:
        for name in ("t1-critic.md", "t1-synthesis.md", "t2-critic.md"):
            path = session / name
            text = path.read_bytes().decode()
            changed = change(text)
            assert changed != text
            path.write_bytes(changed.encode())

    return apply


COSMETIC = {
    "line ends": layout(lambda text: text.replace("\n", "\r\n")),
    "byte order mark": layout(lambda text: f"\ufeff{text}"),
    "blank lines at the end": layout(lambda text: f"{text}\n\n\n"),
    "blank lines after the head": layout(lambda text: text.replace("\n---\n\n", "\n---\n\n\n\n", 1)),
    "a comment in the head": layout(lambda text: text.replace("---\n", "---\n# mine\n", 1)),
    "spaces in the head": layout(
        lambda text: re.sub(r"(?s)^(.*?\n---\n)", lambda m: m[1].replace("[", "[ ").replace("{", "{  "), text)
    ),
    "quotes in the head": layout(lambda text: re.sub(r"(?m)^kind: (\w+)$", r"kind: '\1'", text)),
    "the order of the keys": layout(
        lambda text: re.sub(r"(?s)^---\n(\w+: [^\n]*\n)(.*?)---\n", r"---\n\2\1---\n", text)
    ),
}


@pytest.mark.parametrize("kind", sampled(COSMETIC, ("line ends", "byte order mark", "the order of the keys")))
def test_a_cosmetic_edit_changes_nothing(done: Place, p: Provider, kind: str) -> None:
    COSMETIC[kind](done.session())
    before = artifact_files(done.session())
    done.resume().ok()
    assert p.calls == []
    assert artifact_files(done.session()) == before
    assert not (done.session() / "superseded").exists()


def test_a_touched_or_copied_session_is_the_same(done: Place, p: Provider) -> None:
    for path in done.session().rglob("*"):
        os.utime(path, (1, 1))
    done.resume().ok()
    assert p.calls == []


BROKEN = {
    "front matter": ("t1-critic.md", "position: ", "position: [", "t1-critic.md", True),
    "a second key": ("t1-critic.md", "confidence: ", "confidence: 0.1\nconfidence: ", "t1-critic.md", True),
    "a key that is missing": ("t1-critic.md", "confidence: ", "confidense: ", "t1-critic.md", False),
    "an unclosed head": ("t1-critic.md", "\n---\n\n", "\n\n", "t1-critic.md", False),
    "the directive": ("t1-synthesis.md", "width: 3", "width: [3", "t1-synthesis.md", True),
    "no directive": ("t1-synthesis.md", "```yaml", "```", "t1-synthesis.md", False),
    "a role like a path": ("t1-synthesis.md", '"architect"', '"../../etc"', "t1-synthesis.md", False),
    "a later file": ("t2-critic.md", "position: ", "position: [", "t2-critic.md", True),
}


@pytest.mark.parametrize("kind", sampled(BROKEN, ("front matter", "the directive", "a role like a path")))
def test_a_broken_edit_is_told_with_its_place_and_loses_nothing(done: Place, p: Provider, kind: str) -> None:
    name, old, new, told, placed = BROKEN[kind]
    session = done.session()
    whole = artifact_files(session)[name]
    broken = edit(session / name, old, new)
    before = artifact_files(session)
    failed = done.resume(*["--yes"] * placed).failed(8, told)
    assert len(failed.complaint) == 2, failed.err
    if placed:
        assert re.search(r"line \d+, column \d+", failed.complaint[0]), failed.complaint
        number = int(re.findall(r"line (\d+)", failed.complaint[0])[-1])
        first = next(i for i, line in enumerate(broken.decode().splitlines(), 1) if new.splitlines()[-1] in line)
        assert number in (first, first + 1), "lines are those of the file"
    assert p.calls == []
    assert artifact_files(session) == before and (session / name).read_bytes() == broken
    (session / name).write_bytes(whole)
    done.resume().ok()
    assert p.calls == []


def test_an_edited_result_is_kept(done: Place, p: Provider) -> None:
    session = done.session()
    kept = edit(session / "FINAL.md", "Stage it: build", "As the board decided: build")
    result = done.resume("--json").ok().json
    assert p.calls == []
    assert (session / "FINAL.md").read_bytes() == kept
    assert result["decision"].startswith("As the board decided")


def test_an_edited_result_survives_an_edit_before_it(done: Place, p: Provider) -> None:
    session = done.session()
    kept = edit(session / "FINAL.md", "Stage it: build", "As the board decided: build")
    edit(session / "t1-critic.md", "Stage it (", "Do not stage it (")
    refusal = done.resume().failed(6)
    assert "FINAL.md" not in refusal.complaint[0]
    done.resume("--yes").ok()
    assert names(p) == sorted(AFTER_T1[:-1])
    assert (session / "FINAL.md").read_bytes() == kept


def test_a_save_while_the_run_goes_on_is_seen(empty: Place, p: Provider) -> None:
    session = empty.session()
    kept: list[bytes] = []

    def script(info: RequestInfo) -> Answer | None:
        if info.call == "t2-synthesis" and not kept:
            wait_for((session / "t2-critic.md").exists)
            kept.append(edit(session / "t2-critic.md", "Stage it (", "I was at lunch ("))
        return sensitive(info)

    p.script = script
    empty.run("--turns", "2").ok()
    assert "I was at lunch (" in p.named("final")[0].prompt
    assert "I was at lunch (" not in p.named("t2-synthesis")[0].prompt
    assert (session / "t2-critic.md").read_bytes() == kept[0]
    p.reset()
    empty.resume().failed(6, "t2-synthesis.md", "FINAL.md")
    empty.resume("--yes").ok()
    assert names(p) == ["final", "t2-synthesis"]


# -- one owner, one place ------------------------------------------------------------------------------


def test_of_two_resumes_at_once_one_is_refused(empty: Place, p: Provider) -> None:
    empty.run("--turns", "2", "--max-calls", "3").failed(5)
    p.reset()
    p.hold()
    with empty.running("resume", "a", "--max-calls", "20") as first:
        wait_for(lambda: bool(p.calls))
        second = empty.resume("--max-calls", "20").failed(8, "tmp/cdo-a is in use by another cdo process")
        assert len(second.complaint) == 2
        assert first.poll() is None and len(p.calls) == 1, "refused while the first is at work, and without a call"
        p.release()
        finish(first).ok()
    assert set(names(p)) == set(ALL) - set(T1)


def test_list_and_show_do_not_disturb_a_run(empty: Place, p: Provider) -> None:
    p.hold()
    with empty.running("think", "--turns", "1", "--session", "a", "Why?") as process:
        wait_for(lambda: len(p.calls) == 3)
        assert "running" in empty.cdo("list").ok().out
        assert "running" in empty.cdo("show", "a").ok().out
        p.release()
        finish(process).ok()


def test_a_name_that_is_taken_is_refused(done: Place, p: Provider) -> None:
    before = tree(done.session())
    done.run("--turns", "1").failed(8, "There is a session tmp/cdo-a already", "cdo resume")
    assert p.calls == [] and tree(done.session()) == before


def test_runs_that_begin_in_the_same_second_get_names_of_their_own(
    whole: tuple[Place, Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when another run takes the name between the look and the birth."""
    kept = session_file.read_frozen((whole[0].session() / "session.yaml").read_text(), whole[0].session())
    settings = replace(kept.settings, out=str(tmp_path))
    resolved = Resolved(settings, kept.sources)
    monkeypatch.setattr(time, "strftime", lambda form: "20260102-030405")
    monkeypatch.setattr(os.path, "lexists", lambda path: False)
    made = [session_file.create(kept.plan, "Why?", "", resolved, None) for _ in range(3)]
    for session in made:
        session.close()
    assert [session.name for session in made] == ["20260102-030405", "20260102-030405-2", "20260102-030405-3"]


@pytest.mark.slow
def test_eight_sessions_at_once_do_not_mix(whole: tuple[Place, Done], empty: Place, p: Provider) -> None:
    with ThreadPoolExecutor(8) as pool:
        runs = [pool.submit(empty.run, "--turns", "2", name=f"s{number}") for number in range(8)]
        for run in runs:
            run.result().ok()
    right = tree(whole[0].session())
    for number in range(8):
        left = tree(empty.session(f"s{number}"))
        left["FINAL.yaml"] = left["FINAL.yaml"].replace(f"session: s{number}\n", "session: a\n")
        assert left == right
        assert sorted(call for call, _ in asked(p.calls, f"s{number}")) == sorted(ALL)


@pytest.mark.parametrize("name", ["../up", "a/b", "-x", "", ".", "a..b", "x" * 65, "a\nb"])
def test_a_name_that_cannot_be_one_is_refused(empty: Place, p: Provider, name: str) -> None:
    empty.cdo("think", f"--session={name}", "Why?").failed(2) if name else None
    assert p.calls == []
    assert not (empty.path / "tmp").exists() and not (empty.path.parent / "cdo-up").exists()


def test_what_is_not_there_is_said(empty: Place) -> None:
    empty.resume(name="nothing").failed(8, "There is no session tmp/cdo-nothing")
    empty.cdo("resume").failed(2, "There is no unfinished session", "Begin one: cdo think")
    (empty.path / "src").mkdir()
    (empty.path / "src" / ".x.1.tmp").write_text("mine")
    empty.cdo("resume", "./src/../src").failed(8, "is not a session")
    assert os.listdir(empty.path / "src") == [".x.1.tmp"]


def test_without_a_name_the_newest_unfinished_session_is_taken(empty: Place, p: Provider) -> None:
    for name in ("old", "new"):
        empty.run("--turns", "1", "--max-calls", "2", name=name).failed(5)
        time.sleep(0.02)
    empty.run("--turns", "1", name="finished").ok()
    result = empty.cdo("resume", "--max-calls", "20", "--json").ok().json
    assert result["session"] == "new"


@pytest.mark.parametrize("link", ["tmp", "tmp/cdo-a"])
def test_a_planted_link_is_refused(empty: Place, p: Provider, link: str) -> None:
    victim = empty.path / "victim"
    victim.mkdir()
    path = empty.path / link
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(victim)
    failed = empty.run("--turns", "1").failed(8, f"{link} cannot be used: it is a symbolic link")
    assert len(failed.complaint) == 2
    assert p.calls == [] and os.listdir(victim) == []


@pytest.mark.parametrize(
    "name", ["00-input.md", "t1-critic.md", "FINAL.md", "journal.jsonl", "calls", "session.yaml"]
)
def test_a_link_planted_in_a_session_is_refused(done: Place, p: Provider, name: str, tmp_path: Path) -> None:
    path = done.session() / name
    victim = tmp_path / "victim"
    path.rename(victim)
    path.symlink_to(victim)
    before = victim.read_bytes() if victim.is_file() else sorted(os.listdir(victim))
    done.resume("--yes").failed(8, f"{name} cannot be used: it is a symbolic link")
    assert p.calls == []
    assert (victim.read_bytes() if victim.is_file() else sorted(os.listdir(victim))) == before


# -- damage --------------------------------------------------------------------------------------------


def test_a_damaged_record_is_named_and_nothing_is_sent(done: Place, p: Provider) -> None:
    file = sorted((done.session() / "calls").iterdir())[1]
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])
    failed = done.resume().failed(8, f"calls/{file.name} is damaged")
    assert len(failed.complaint) == 2 and p.calls == []
    file.write_bytes(whole)
    done.resume().ok()
    assert p.calls == []


def test_a_torn_journal_is_mended_aloud(done: Place, p: Provider) -> None:
    file = done.session() / "journal.jsonl"
    file.write_bytes(file.read_bytes()[:-30])
    assert "torn last line" in done.resume("-v").ok().err
    assert p.calls == []
    for line in file.read_text().splitlines():
        json.loads(line)


@pytest.mark.parametrize("text", ["", "plan: [", "cdo: x\n", "\0\0\0", "a: &a [*a]\n"])
def test_a_broken_plan_is_named(done: Place, p: Provider, text: str) -> None:
    (done.session() / "session.yaml").write_text(text)
    failed = done.resume().failed(8, "session.yaml")
    assert len(failed.complaint) == 2 and p.calls == []


# -- secrets -------------------------------------------------------------------------------------------

CANARIES = {
    "OPENAI_API_KEY": KEY,
    "GITHUB_TOKEN": 'gh"quoted\\back-canary-2',
    "DEPLOY_SECRET": "with: colon, 'quotes' and spaces canary-3",
    "DB_PASSWORD": "pässwörd-canary-4",
    "CLIENT_CREDENTIALS": "line-canary-5",
}


@pytest.mark.slow  # thirty of them are looked for in test_secrets
def test_no_secret_of_the_environment_reaches_a_file_or_the_terminal(empty: Place, p: Provider) -> None:
    every = " | ".join(CANARIES.values())

    def script(info: RequestInfo) -> Answer | Fault | None:
        if info.call == "t1-operator" and info.attempt == 1:
            return Answer(f"malformed {every}", reasoning=every)
        if info.call == "t1-pragmatist":
            return Fault(status=400, body={"error": {"message": f"your key {every} is odd"}})
        if info.kind == "agent":
            return Answer(agent_text(f"Use {every}", claims=[f"{every} works"], objections=[every], prose=every))
        if info.kind == "synthesis":
            return Answer(
                synthesis_text(focus=every, tensions=[every], gaps=[every], exit_ready=True, confidence=0.9)
            )
        return Answer(final_text(f"Use {every}", tensions=[f"T1 {every}"], minority=[f"o1 {every}"]))

    p.script = script
    place = Place(empty.path, p.url, CANARIES)
    one = place.cdo("think", "--turns", "1", "--session", "a", "-v", f"Why {every}?").ok()
    (place.session() / "FINAL.md").unlink()
    two = place.resume("-v").ok()
    (place.session() / "t1-synthesis.md").write_text(
        (place.session() / "t1-synthesis.md").read_text().replace("0.9", "0.91")
    )
    three = place.resume("--yes", "-v").ok()
    said = {"first": one, "second": two, "third": three}
    files = {
        str(path): path.read_bytes().decode(errors="surrogateescape")
        for path in empty.path.rglob("*")
        if path.is_file()
    }
    assert len(files) > 8
    assert leaks(files) == []
    assert leaks({name: run.out + run.err for name, run in said.items()}) == []
    assert all(KEY in info.headers["Authorization"] for info in p.calls)
    assert ("t1-operator", 2) in attempts(place.session())


def leaks(texts: dict[str, str]) -> list[tuple[str, str, str]]:
    """(variable, text, surroundings) wherever a canary stands, also as JSON, YAML or Python would write it."""
    found = []
    for name, text in texts.items():
        folded = " ".join(text.split())
        for key, value in CANARIES.items():
            ways = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
            ways |= {value.replace("'", "''"), value.encode("unicode_escape").decode()}
            found += [(key, name, folded[max(0, at - 60) : at + 40]) for w in ways if (at := folded.find(w)) >= 0]
            found += [(key, name, "") for way in ways if way in text and way not in folded]
    return found
