"""Missions that are killed, run out of disk or are tampered with: nothing recorded is lost, asked again or paid
twice, and nothing that a person wrote is overwritten.

As in `test_crash` the kernel does the killing: strace delivers SIGKILL on entering a file operation. Whatever else
has to happen at a certain moment happens while the provider holds its answer; no verdict depends on speed.
"""

from __future__ import annotations

import functools
import random
import re
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from cdo.session.records import read_session
from tests.faults.test_crash import Point, Whole, everywhere, one_sentence, operations
from tests.runs.test_mission import Said, deciding, tells, todo_script_of, told
from tests.support.answers import RequestInfo
from tests.support.cabal_team import ALEX, JORDAN, REQUEST, inspect, inspection, question, todo
from tests.support.harness import (
    KEY,
    Done,
    Place,
    exchanges,
    finish,
    inject,
    journal_events,
    kill_group,
    members,
    needs_strace,
    same,
    wait_for,
)
from tests.support.provider import Fault, Provider

WORDS = ("cabal", "--operatives", "2", "--session", "a", "-q", REQUEST)
KILLED = (-9, 137)
BELOW = ("FINAL.md", "CERTIFICATE.yaml")
Script = Mapping[str, Said]
Asked = tuple[str, str, int]  # session, call, attempt


@dataclass(frozen=True)
class Mission(Whole):
    """An undisturbed mission, what its team says beside the TODO script, and the code with which it ends."""

    script: Script
    code: int = 0

    def provider(self) -> Provider:
        """A provider at which the same team works."""
        return Provider(script=told(self.script))


def undisturbed(path: Path, script: Script) -> Mission:
    with Provider(script=told(script)) as p:
        place = Place(path, p.url)
        ended = place.cdo(*WORDS).ok()
    return Mission(place, ended.seconds, script)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Mission:
    """The TODO list: three rounds, 21 calls."""
    return undisturbed(tmp_path_factory.mktemp("todo"), {})


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> Mission:
    """A mission whose Decision is deliberated in a session of its own."""
    return undisturbed(tmp_path_factory.mktemp("decided"), deciding())


# -- what there is afterwards ------------------------------------------------------------------------------


def sessions(place: Place) -> list[Path]:
    """The mission, and the deliberations it holds."""
    return sorted(place.path.glob("tmp/cdo-*"))


def asked(p: Provider) -> list[Asked]:
    return [(info.headers["X-Cdo-Session"], info.call, info.attempt) for info in p.calls]


def recorded(place: Place) -> list[Asked]:
    return [
        (path.name.removeprefix("cdo-"), record["call"], record["attempt"])
        for path in sessions(place)
        for record in exchanges(path)
    ]


def answered(place: Place) -> set[tuple[str, str]]:
    return {
        (path.name.removeprefix("cdo-"), record["call"])
        for path in sessions(place)
        for record in exchanges(path)
        if "response" in record
    }


def temporaries(place: Place) -> list[Path]:
    """Half-written files that were left in sessions."""
    return [found for path in sessions(place) for found in path.rglob(".*.tmp")]


def recovers(place: Place, p: Provider, whole: Mission, what: object) -> int:
    """Finish the mission and hold it against the undisturbed one; returns how many calls were repeated."""
    p.release()
    p.settle()
    before, had, replied = asked(p), recorded(place), answered(place)
    born = place.session().exists()
    ended = place.resume("-q") if born else place.cdo(*WORDS)
    assert ended.code == whole.code, (what, ended)
    after = asked(p)[len(before) :]
    assert not set(had) & set(after), (what, "what is recorded was asked again")
    assert not replied & {(session, call) for session, call, _ in after}, (what, "what was answered was asked again")
    every = recorded(place)
    assert len(every) == len(set(every)), (what, "something is recorded twice")
    repeated = Counter(before) + Counter(after) - Counter(set(before) | set(after))
    assert sum(repeated.values()) <= 3, (what, "more was repeated than was in flight")
    alike(place, whole.place)
    journal_events(place.session())
    place.cdo("verify", "a").ok()
    return sum(repeated.values())


def alike(place: Place, other: Place) -> None:
    """Both hold the same sessions, times aside, and nothing half-written."""
    assert [path.name for path in sessions(place)] == [path.name for path in sessions(other)]
    for one, two in zip(sessions(place), sessions(other), strict=True):
        same(one, two)
    assert not temporaries(place)


# -- kill -9 at every file operation -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def points(whole: Mission, tmp_path_factory: pytest.TempPathFactory) -> list[Point]:
    """Every file operation of the thread that writes a mission that is born, in the order of their numbers."""
    strace = needs_strace()
    with whole.provider() as p:
        place = whole.begun(tmp_path_factory.mktemp("points") / "w", p.url)
        counts = operations(strace, place, "resume", "a", "-q")[False]
    files = [path for session in sessions(place) for path in session.rglob("*") if path.is_file()]
    placed = [path for path in files if path.name != "journal.jsonl"]
    groups = [path for path in placed if path.parent.name == "calls"]
    assert len(placed) > 70 and len(groups) > 10
    # Each file is written and renamed into its place. A group file and its line of the journal are synced each.
    assert min(counts["write"], counts["renameat"]) >= len(placed) and counts["fsync"] >= 2 * len(groups), counts
    return [Point(name, number) for name, count in counts.items() for number in range(1, count + 1)]


def killed_at(strace: str, whole: Mission, root: Path, point: Point) -> int:
    """Kill a mission at one point and finish it; returns 1 when it was killed, 0 when it never got there."""
    path = root / f"{point.operation.strip('/^')}-{point.number}"
    with whole.provider() as p:
        place = whole.begun(path, p.url)
        ended = place.resume("-q", prefix=point.words(strace, place))
        assert ended.code in (0, *KILLED), ended
        recovers(place, p, whole, point)
    shutil.rmtree(path)
    return int(ended.code != 0)


@pytest.mark.slow
def test_a_kill_at_a_sample_of_all_file_operations(whole: Mission, points: list[Point], tmp_path: Path) -> None:
    strace = needs_strace()
    chosen = random.Random(11).sample(points, 4)
    killed = everywhere([functools.partial(killed_at, strace, whole, tmp_path, point) for point in chosen])
    assert sum(killed) >= 3


@pytest.mark.slow
def test_a_kill_at_fifteen_file_operations_spread_over_a_mission(
    whole: Mission, points: list[Point], tmp_path: Path
) -> None:
    strace = needs_strace()
    chosen = points[3 :: len(points) // 15]
    killed = everywhere([functools.partial(killed_at, strace, whole, tmp_path, point) for point in chosen])
    print(f"{len(chosen)} points, {sum(killed)} kills")
    # How records group differs from run to run: the last numbers may not be reached.
    assert len(chosen) >= 15 and sum(killed) >= len(chosen) * 0.85


@pytest.mark.parametrize(
    "point",
    [Point("/^rename", 1), Point("mkdirat", 2), Point("fsync", 2)],
)
@pytest.mark.slow
def test_a_kill_while_a_mission_is_born(whole: Mission, tmp_path: Path, point: Point) -> None:
    with whole.provider() as p:
        place = Place(tmp_path, p.url)
        assert place.cdo(*WORDS, prefix=point.words(needs_strace(), place)).code in KILLED
        recovers(place, p, whole, point)


@pytest.mark.slow
def test_a_kill_while_the_end_of_a_finished_mission_is_written_again(whole: Mission, tmp_path: Path) -> None:
    """FINAL.md and what is delivered are gone; they come back whole, however often that is disturbed."""
    strace = needs_strace()
    with whole.provider() as p:
        place = replace(whole.place.copy(tmp_path / "w"), url=p.url)
        shutil.rmtree(place.session() / "deliverables")
        for name in BELOW:
            (place.session() / name).unlink()
        killing = inject(strace, "/^rename", "signal=KILL:when=2")
        for _ in range(5):  # each gets one file further
            assert place.resume("-q", prefix=killing).code in KILLED
        assert place.resume("-q").code == 0 and p.calls == []
        alike(place, whole.place)


# -- what a person leaves there after the kill ---------------------------------------------------------------

NOTE, HELLO, MINE = "No vendor may see who logs in.", "Take your time.", "# Log\n\nWe met, and talked of the login."
OLD, NEW = "PostgreSQL", "CockroachDB"


def renumbered(info: RequestInfo) -> str:
    """The second inspection of the TODO list, of whichever versions are shown."""
    shown = dict(re.findall(r'<version product="(p\d+)" id="(v\d+)" number', info.prompt))
    quotes = {
        "p3": {"d1": "create, read, update and delete", "d2": "kept in an httpOnly cookie"},
        "p4": {"d1": "React in the browser", "d2": "Ten logins a minute"},
        "p5": {"d1": "problem+json"},
    }
    about = info.call.split("-")[2]
    if about not in quotes:
        return inspect(inspection(about))
    confirms = ["c3"] if about == "p3" else []
    return inspect(inspection(about, shown[about], quotes[about]), confirms=confirms)


def stopped(path: Path, p: Provider, call: str) -> Place:
    """A mission that was killed while this call was in flight, the first time that it was made."""
    place = Place(path, p.url)
    p.hold(call)
    with place.running(*WORDS) as process:
        wait_for(lambda: p.named(call) or process.poll() is not None)
        kill_group(process.pid)
    p.release()
    p.settle()
    assert not (place.session() / "FINAL.md").exists()
    return place


def leave(session: Path) -> None:
    """A person edits a version where it stands, adds a file beside another, and drops two letters."""
    version = session / "products/p4-technical-architecture/v2.md"
    text = version.read_text()
    assert OLD in text
    version.write_text(text.replace(OLD, NEW))
    (session / "products/p2-change-log/mine.md").write_text(MINE)
    (session / "inbox").mkdir(exist_ok=True)
    (session / "inbox/hello.md").write_text(HELLO)
    (session / "inbox/note.md").write_text(f"---\nproduct: p4\nimportance: 5\n---\n\n{NOTE}\n")


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, Mission]:
    """A mission killed at the end of round 1 with what a person then left; and the same after one undisturbed end."""
    script: Script = {"r2-inspect": renumbered}
    with Provider(script=told(script)) as p:
        place = stopped(tmp_path_factory.mktemp("left"), p, "r1-present")
        leave(place.session())
        end = Place(place.copy(tmp_path_factory.mktemp("end") / "w").path, p.url)
        ended = end.resume("-q").ok()
    return place, Mission(end, ended.seconds, script)


def holding(session: Path, text: str, pattern: str) -> list[Path]:
    return [path for path in session.glob(pattern) if text in path.read_text()]


def test_what_a_person_left_is_taken_once(left: tuple[Place, Mission], whole: Mission) -> None:
    before, after = left
    session, original = after.place.session(), "products/p4-technical-architecture/v2.md"
    for text, file in ((NEW, "v2.md"), ("We met", "mine.md")):
        (version,) = holding(session, text, "products/*/v*.md")
        assert "author: u:user-1" in version.read_text()
        assert holding(session, text, "superseded/edits/*") == [session / "superseded/edits" / file]
    assert (session / original).read_text() == (whole.place.session() / original).read_text()
    assert len(holding(session, NOTE, "products/p4-*/c*.md")) == 1
    assert sorted(path.name for path in (session / "taken").iterdir()) == ["hello.md", "note.md"]
    assert not list((session / "inbox").iterdir()) and list((before.session() / "inbox").iterdir())


def of_kind(place: Place, kind: str) -> list[dict[str, Any]]:
    """What a mission has recorded of a kind."""
    return [record for record in read_session(place.session()) if record["kind"] == kind]


# Where the moves of what was taken can be cut: in the folder they end in, and in the one they come from.
MOVES = [
    ("superseded/edits", "/^rename", 1), ("superseded/edits", "/^rename", 2), ("superseded/edits", "fsync", 1),
    ("superseded/edits", "fsync", 2), ("products/p4-technical-architecture", "/^rename", 1), ("taken", "/^rename", 1),
    ("products/p4-technical-architecture", "/^rename", 2), ("taken", "fsync", 1), ("taken", "/^rename", 2),
]  # fmt: skip


def taken_and_killed(strace: str, left: tuple[Place, Mission], path: Path, move: tuple[str, str, int]) -> int:
    before, after = left
    folder, operation, number = move
    with after.provider() as p:
        place = replace(before.copy(path), url=p.url)
        words = inject(strace, operation, f"signal=KILL:when={number}", place.session() / folder)
        assert place.resume("-q", prefix=words).code in KILLED, move
        p.settle()
        if not folder.startswith("products"):  # there the kill may come before anything is taken
            assert any(record["items"] for record in of_kind(place, "collected")), move
        everything = "\n".join(file.read_text() for file in place.session().rglob("*.md"))
        assert all(text in everything for text in (NEW, MINE, NOTE, HELLO)), (move, "nothing is lost on the way")
        calls = asked(p)
        had = {pair for pair in recorded(place) if pair in calls}
        place.resume("-q").ok()
        assert not had & set(asked(p)[len(calls) :])
        alike(place, after.place)
        place.cdo("verify", "a").ok()
    return 1


@pytest.mark.slow
def test_a_kill_between_the_record_of_a_collection_and_its_move(left: tuple[Place, Mission], tmp_path: Path) -> None:
    chosen = [MOVES[0], MOVES[2], MOVES[5]]
    job = functools.partial(taken_and_killed, needs_strace(), left)
    everywhere([functools.partial(job, tmp_path / str(i), move) for i, move in enumerate(chosen)])


@pytest.mark.slow
def test_a_kill_at_every_step_of_putting_away_what_was_taken(left: tuple[Place, Mission], tmp_path: Path) -> None:
    job = functools.partial(taken_and_killed, needs_strace(), left)
    everywhere([functools.partial(job, tmp_path / str(i), move) for i, move in enumerate(MOVES)])


def test_what_a_person_changes_again_before_it_is_put_away_is_taken_too(
    left: tuple[Place, Mission], tmp_path: Path
) -> None:
    before, after = left
    with after.provider() as p:
        place = replace(before.copy(tmp_path / "w"), url=p.url)
        taken = place.session() / "taken"
        assert (
            place.resume("-q", prefix=inject(needs_strace(), "/^rename", "signal=KILL:when=1", taken)).code in KILLED
        )
        (place.session() / "inbox/hello.md").write_text("No, hurry.")
        place.resume("-q").ok()
        heard = {info.call: info.prompt for info in p.calls if info.kind == "plan"}
        assert HELLO in heard["r2-plan"] and "hurry" not in heard["r2-plan"] and "No, hurry." in heard["r3-plan"]
        assert not list((place.session() / "inbox").iterdir())


def test_the_same_letter_in_a_later_round_is_a_letter_again(whole: Mission, tmp_path: Path) -> None:
    with whole.provider() as p:
        place = stopped(tmp_path, p, "r1-present")
        inbox = place.session() / "inbox"
        inbox.mkdir(exist_ok=True)
        (inbox / "note.md").write_text(HELLO)
        p.faults = [Fault(status=401, call="r2-present")]
        assert place.resume("-q").code == 4
        (inbox / "note.md").write_text(HELLO)
        p.faults = []
        place.resume("-q").ok()
        letters = [item for record in of_kind(place, "collected") for item in record["items"]]
        assert [item["text"] for item in letters] == [HELLO, HELLO]
        assert not list(inbox.iterdir())


def test_what_holds_a_secret_is_taken_once_too(tmp_path: Path) -> None:
    """What is recorded says less than what the person wrote, and is yet the same."""
    with Provider(script=told({"r2-inspect": renumbered})) as p:
        place = stopped(tmp_path, p, "r1-present")
        (place.session() / "inbox").mkdir(exist_ok=True)
        (place.session() / "inbox/note.md").write_text(f"The key is {KEY}, keep it.")
        (place.session() / "products/p2-change-log/mine.md").write_text(f"{MINE}\n\nThe key is {KEY}.")
        place.resume("-q").ok()
        mine = holding(place.session(), "We met", "products/*/*.md")
        assert len(mine) == 1 and KEY not in mine[0].read_text() and "author: u:user-1" in mine[0].read_text()
        assert (place.session() / "taken/note.md").is_file() and not list((place.session() / "inbox").iterdir())
        assert not any(KEY in info.prompt for info in p.calls)


def test_an_answer_is_taken_once_whenever_it_is_disturbed(tmp_path: Path) -> None:
    """What answers a question is no letter to the team, also where a kill came before it was put away."""
    script: Script = {
        "r1-plan": question("Cookies?", "yes", "no"),
        "r1-plan-2": question("Which ones?", "yes", "others"),
        "r1-plan-3": todo_script_of("r1-plan"),
    }
    with Provider(script=told(script)) as p:
        place = Place(tmp_path, p.url)
        assert place.cdo(*WORDS).code == 6
        place.cdo("answer", "a", "1").ok()
        taken = place.session() / "taken"
        killing = inject(needs_strace(), "/^rename", "signal=KILL:when=1", taken)
        assert place.resume("-q", prefix=killing).code in KILLED
        assert [record["answer"] for record in of_kind(place, "answer")] == ["yes"]
        assert place.resume("-q").code == 6, "the second question is not answered by what answered the first"
        (place.session() / "inbox/answer.md").write_text("yes")
        place.resume("-q").ok()
        assert [record["answer"] for record in of_kind(place, "answer")] == ["yes", "yes"]
        assert sorted(path.name for path in taken.iterdir()) == ["answer-2.md", "answer.md"]
        assert not any(record["items"] for record in of_kind(place, "collected"))


def test_an_edited_deliverable_is_not_lost(whole: Mission, tmp_path: Path) -> None:
    with whole.provider() as p:
        place = replace(whole.place.copy(tmp_path / "w"), url=p.url)
        file = place.session() / "deliverables/technical-architecture.md"
        file.write_text(file.read_text() + "\nMy own words.\n")
        place.resume("-q").ok()
        assert holding(place.session(), "My own words.", "**/*.md")


# -- a deliberation inside a mission -------------------------------------------------------------------------

INSIDE = "a-r1-p2"


def paid(place: Place) -> tuple[int, float]:
    """How many exchanges are recorded in all sessions, and what they cost."""
    found = [record for path in sessions(place) for record in exchanges(path)]
    return len(found), round(sum(record["cost"] or 0.0 for record in found), 9)


def costs_are_counted_once(place: Place) -> None:
    told = place.resume("--json")
    assert (told.json["calls"], told.json["cost"]) == paid(place)


@pytest.mark.parametrize(
    "call",
    ["t1-critic", "t1-synthesis", "final", "r1-inspect-p2"],
)
@pytest.mark.slow
def test_a_mission_killed_in_a_deliberation_goes_on_in_it(call: str, decided: Mission, tmp_path: Path) -> None:
    with decided.provider() as p:
        place = stopped(tmp_path, p, call)
        recovers(place, p, decided, call)
        costs_are_counted_once(place)


def nested_and_killed(strace: str, decided: Mission, path: Path, where: tuple[str, str, int]) -> int:
    named, operation, number = where
    path.mkdir()
    with decided.provider() as p:
        place = Place(path, p.url)
        what = path / "tmp" / named[1:] if named.startswith("/") else Path(named)
        ended = place.cdo(*WORDS, prefix=inject(strace, operation, f"signal=KILL:when={number}", what))
        assert ended.code in (0, *KILLED), ended
        recovers(place, p, decided, where)
        costs_are_counted_once(place)
    return int(ended.code != 0)


# The birth of the inner session, its records and files, and the record of its result in the outer one. A name that
# begins with / is an open folder in the folder of sessions; without / it is the name that the call itself gets.
# strace counts the calls of each thread by itself, and the inner session is born in a thread of its own.
BORN = [(f"cdo-{INSIDE}", "newfstatat", 1), (f"cdo-{INSIDE}", "/^rename", 1)]
NESTED = [
    (f"/cdo-{INSIDE}/calls", "/^rename", 1), (f"/cdo-{INSIDE}", "fsync", 2), (f"/cdo-{INSIDE}", "/^rename", 5),
    ("/cdo-a/calls", "/^rename", 3), ("/cdo-a/calls", "fsync", 3), (f"/cdo-{INSIDE}", "fsync", 6),
    (f"/cdo-{INSIDE}/calls", "fsync", 3), ("/cdo-a/calls", "/^rename", 4),
]  # fmt: skip


@pytest.mark.slow
def test_a_kill_at_some_file_operations_of_a_deliberation(decided: Mission, tmp_path: Path) -> None:
    job = functools.partial(nested_and_killed, needs_strace(), decided)
    points = [BORN[1], NESTED[4]]
    assert all(everywhere([functools.partial(job, tmp_path / str(i), where) for i, where in enumerate(points)]))


@pytest.mark.slow
def test_a_kill_at_many_file_operations_of_a_deliberation(decided: Mission, tmp_path: Path) -> None:
    job = functools.partial(nested_and_killed, needs_strace(), decided)
    points = [*BORN, *NESTED]
    killed = everywhere([functools.partial(job, tmp_path / str(i), where) for i, where in enumerate(points)])
    assert all(killed[: len(BORN)])
    assert sum(killed) >= len(points) - 3  # how many files and groups there are differs from run to run


@pytest.mark.parametrize("cap", [4, pytest.param(7, marks=pytest.mark.slow)])
def test_what_a_capped_deliberation_took_counts_in_every_process(cap: int, tmp_path: Path) -> None:
    with Provider(script=told({**deciding(), "r1-present": tells(("chair-1", "A cap ended it."))})) as p:
        place = Place(tmp_path, p.url)
        first = place.cdo(*WORDS, "--max-calls", str(cap), "--json").failed(3)
        assert first.json["calls"] == len(p.calls) <= cap
        final = (place.session() / "FINAL.md").read_bytes()
        count = len(p.calls)
        again = place.resume("--json").failed(3)
        assert len(p.calls) == count and again.json == first.json
        assert (place.session() / "FINAL.md").read_bytes() == final


# -- disks -----------------------------------------------------------------------------------------------------

DISKS = [
    ("products/p3-mvp-features-selection", "ENOSPC", "the disk is full"),
    ("products/p3-mvp-features-selection", "EROFS", "read-only"),
    ("products/p4-technical-architecture", "EACCES", "permission is denied"),
    ("deliverables", "ENOSPC", "the disk is full"),
    ("deliverables", "EACCES", "permission is denied"),
    ("CERTIFICATE.yaml", "EROFS", "read-only"),
    ("CERTIFICATE.yaml", "ENOSPC", "the disk is full"),
    ("FINAL.md", "ENOSPC", "the disk is full"),
    ("FINAL.md", "EACCES", "permission is denied"),
]


def refused(strace: str, whole: Mission, path: Path, case: tuple[str, str, str]) -> int:
    where, code, words = case
    with whole.provider() as p:
        place = whole.begun(path, p.url)
        below = Path(where) if where in BELOW else place.session() / where
        ended = place.resume("-q", prefix=inject(strace, "/^rename", f"error={code}:when=1+", below))
        one_sentence(ended, words, "cdo-a")
        recovers(place, p, whole, case)
    return 1


@pytest.mark.slow
def test_a_disk_that_refuses_ends_a_mission_in_sentences(whole: Mission, tmp_path: Path) -> None:
    job = functools.partial(refused, needs_strace(), whole)
    chosen = [DISKS[0], DISKS[4], DISKS[5], DISKS[7]]
    everywhere([functools.partial(job, tmp_path / str(i), case) for i, case in enumerate(chosen)])


@pytest.mark.slow
def test_every_disk_that_refuses_ends_a_mission_in_sentences(whole: Mission, tmp_path: Path) -> None:
    job = functools.partial(refused, needs_strace(), whole)
    everywhere([functools.partial(job, tmp_path / str(i), case) for i, case in enumerate(DISKS)])


# -- what is gone or damaged -----------------------------------------------------------------------------------


def spoil(session: Path, *names: str) -> None:
    """Remove files and folders of a session."""
    for name in names:
        path = session / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize("finished", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "names", [("products",), ("r1-plan.md",), ("TREE.md", "CHAT.md", "mission.md"), ("r0-bootstrap.md", "products")]
)
def test_what_is_gone_is_restored_from_the_record(
    names: tuple[str, ...], finished: bool, whole: Mission, tmp_path: Path
) -> None:
    with whole.provider() as p:
        place = (
            replace(whole.place.copy(tmp_path / "w"), url=p.url)
            if finished
            else stopped(tmp_path, p, "r2-inspect-p5")
        )
        count = len(p.calls)
        spoil(place.session(), *names)
        recovers(place, p, whole, names)
        inspections = {f"r2-inspect-{product}" for product in ("p1", "p3", "p4", "p5")}
        assert {info.call for info in p.calls[count:]} <= {*inspections, "r2-present", "r3-plan", "r3-present",
                                                           f"r3-reflect-{ALEX}", f"r3-reflect-{JORDAN}"}  # fmt: skip
        assert finished is (len(p.calls) == count)


def test_a_deleted_certificate_is_made_again(whole: Mission, tmp_path: Path) -> None:
    with whole.provider() as p:
        place = replace(whole.place.copy(tmp_path / "w"), url=p.url)
        spoil(place.session(), "CERTIFICATE.yaml", "FINAL.md", "deliverables")
        recovers(place, p, whole, "the end")
        assert p.calls == []


def refusal(done: Done, code: int, *words: str) -> None:
    done.failed(code, *words)
    assert len(done.complaint) == 2, done.err


def test_a_damaged_record_is_refused_and_may_be_removed(whole: Mission, tmp_path: Path) -> None:
    with whole.provider() as p:
        place = replace(whole.place.copy(tmp_path / "w"), url=p.url)
        group = place.session() / "calls/0005.jsonl"
        whole_text = group.read_text()
        for spoilt in (whole_text[: len(whole_text) // 2], whole_text.replace("a", "b"), "", "\0" * 400):
            group.write_text(spoilt)
            refusal(place.resume("-q"), 8, "calls/0005.jsonl is damaged", "Restore it from a copy")
        group.unlink()
        place.resume("-q").ok()
        place.cdo("verify", "a").ok()
        assert len(p.calls) <= 1


CREW = r"  crew:\n(    .*\n)+"


@pytest.mark.parametrize(
    ("pattern", "instead"),
    [
        (r"    operatives: 2\n", "    operatives: many\n"),
        (r"    operatives: 2\n", "    operatives: 3\n"),
        (r"    operatives: 2\n", ""),
        (r"      chair-1: .*\n", ""),
        (r"      watchdog-1: .*\n", "      watchdog-1: nobody/knows\n"),
        (r"      envoy-1: .*\n", "      envoy-1: [1, 2\n"),
        (CREW, "  crew: 7\n"),
        (CREW, "  crew: null\n"),
        (CREW, ""),
        (r"  mode: cabal\n", "  mode: rca\n"),
    ],
)
def test_a_broken_crew_is_refused_in_a_sentence(pattern: str, instead: str, whole: Mission, tmp_path: Path) -> None:
    with whole.provider() as p:
        place = replace(whole.place.copy(tmp_path / "w"), url=p.url)
        spoil(place.session(), "FINAL.md")
        file = place.session() / "session.yaml"
        text = file.read_text()
        broken = re.sub(pattern, instead, text)
        assert broken != text
        file.write_text(broken)
        done = place.resume("-q")
        refusal(done, 8, "session.yaml")
        assert p.calls == []


# -- a soak ----------------------------------------------------------------------------------------------------


def faults(seed: int) -> list[Fault]:
    """What spoils one call in five."""
    share = 0.2 / 5
    return [
        Fault(status=429, headers={"Retry-After": "0"}, rate=share, seed=seed),
        Fault(status=500, rate=share, seed=seed + 1),
        Fault(cut=300, rate=share, seed=seed + 2),
        Fault(shape="malformed", rate=share, seed=seed + 3),
        Fault(shape="length", rate=share, seed=seed + 4),
    ]


def soaked(path: Path, seed: int) -> int:
    """Play a mission with faults, killing its processes after some requests, until one ends; returns the kills."""
    chance, kills = random.Random(seed), 0
    path.mkdir()
    with Provider(
        script=told({"r2-inspect": lenient, "r3-plan": todo_script_of("r3-plan")}), faults=faults(seed)
    ) as p:
        place = Place(path, p.url)
        for _ in range(40):
            args = ("resume", "a", "-q") if place.session().exists() else (*WORDS, "--rounds", "3")
            with place.running(*args) as process:
                if kills < 5 and chance.random() < 0.7:
                    enough = len(p.requests) + chance.randint(1, 9)
                    wait_for(lambda n=enough: len(p.requests) >= n or process.poll() is not None, timeout=120)
                    kills += process.poll() is None
                    kill_group(process.pid)
                ended = finish(process)
            assert members(process.pid) == []
            assert "Traceback" not in ended.err, ended.err
            if ended.code in (0, 3):
                break
            assert ended.code in (4, 7, *KILLED), (seed, ended)
        assert ended.code in (0, 3), (seed, ended)
        p.settle()
        every = recorded(place)
        assert len(every) == len(set(every))
        status = {0: "done", 3: "unresolved"}[ended.code]
        assert f"status: {status}" in (place.session() / "FINAL.yaml").read_text()
        place.cdo("verify", "a").ok()
        assert not temporaries(place)
    return kills


def lenient(info: RequestInfo) -> str:
    """The second inspection, or that of a mission that went another way."""
    try:
        return renumbered(info)
    except KeyError:
        return todo(info.call, ["e1"])


@pytest.mark.slow
def test_fifteen_missions_with_faults_and_kills_come_to_an_end(tmp_path: Path) -> None:
    kills = everywhere([functools.partial(soaked, tmp_path / str(seed), seed * 10) for seed in range(15)])
    assert sum(kills) >= 15
