"""Crashes, full disks and signals: whatever ends a run, and wherever, nothing recorded is lost or paid twice.

The kernel does the killing: strace delivers SIGKILL on entering the Nth file operation of a thread. What is on disk
then is exactly what a `kill -9` at that moment leaves. All such points of a run are in the slow suite, a sample of
them in the fast one.
"""

from __future__ import annotations

import functools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from tests.support.answers import Answer, RequestInfo, agent_text
from tests.support.harness import (
    QUESTION,
    ROOT,
    Done,
    Place,
    answered,
    asked,
    at_once,
    attempts,
    exchanges,
    finish,
    inject,
    journal_events,
    kill_group,
    lacking,
    members,
    needs_mounts,
    needs_strace,
    same,
    sensitive,
    spawned,
    tree,
    wait_for,
)
from tests.support.provider import Fault, Provider

OPERATIONS = ("write", "fsync", "/^rename", "/^unlink", "/^mkdir")
WORKERS = 3
LATENCY = 0.15  # seconds from call to answer where a run is killed at some moment
BEGUN = ("00-input.md", "00-context.md", "session.yaml")
NOT_REPLACED = (*BEGUN, "journal.jsonl")  # written at birth, or line by line


T = TypeVar("T")


@dataclass(frozen=True)
class Point:
    """Where a run is killed: on entering the `number`th call of a kind; with `below` only calls that name an open
    directory of the session count."""

    operation: str
    number: int
    below: bool = False

    def words(self, strace: str, place: Place) -> list[str]:
        """The words that run a command under this fate."""
        paths = [place.session(), place.session() / "calls"] if self.below else []
        return inject(strace, self.operation, f"signal=KILL:when={self.number}", *paths)


@dataclass(frozen=True)
class Whole:
    """An undisturbed run: its directory, how long it took, and the file operations of its threads."""

    place: Place
    seconds: float

    def begun(self, path: Path, url: str) -> Place:
        """The same run elsewhere at the moment after its birth: nothing asked yet."""
        place = Place(path, url)
        (place.session() / "calls").mkdir(parents=True)
        for name in BEGUN:
            shutil.copy(self.place.session() / name, place.session() / name)
        return place


def undisturbed(path: Path, turns: int) -> Whole:
    with Provider(script=sensitive) as p:
        place = Place(path, p.url)
        done = place.run("-q", "--turns", str(turns)).ok()
    return Whole(place, done.seconds)


@pytest.fixture(scope="module")
def nine(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Nine calls: two turns of three voices."""
    return undisturbed(tmp_path_factory.mktemp("nine"), 2)


@pytest.fixture(scope="module")
def thirteen(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Thirteen calls: three turns of three voices."""
    return undisturbed(tmp_path_factory.mktemp("thirteen"), 3)


def recovers(place: Place, p: Provider, whole: Whole, turns: int, what: object) -> int:
    """After a kill: finish the run and hold it against the undisturbed one; returns how many calls were repeated."""
    p.settle()
    before = asked(p.calls)
    born = place.session().exists()
    recorded = attempts(place.session()) if born else set()
    replied = answered(place.session()) if born else set()
    assert recorded <= set(before), what
    done = place.resume("-q") if born else place.run("-q", "--turns", str(turns))
    assert done.code == 0, (what, done)
    after = asked(p.calls)[len(before) :]
    assert not recorded & set(after), (what, "what is recorded was asked again")
    assert not replied & {call for call, _ in after}, (what, "what was answered was asked again")
    repeated = Counter(before) + Counter(after) - Counter(set(before) | set(after))
    assert sum(repeated.values()) <= 3, (what, "more was repeated than was in flight")
    same(place.session(), whole.place.session())
    journal_events(place.session())
    return sum(repeated.values())


def everywhere(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """The results of all jobs, some at a time."""
    with ThreadPoolExecutor(WORKERS) as pool:
        return [future.result() for future in [pool.submit(job) for job in jobs]]


# -- kill -9 at every file operation ---------------------------------------------------------------------


def operations(strace: str, place: Place, *args: str) -> dict[bool, Counter[str]]:
    """How often each file operation is called by the first thread (True) and by the writer of a whole run."""
    with tempfile.NamedTemporaryFile("r") as log:
        prefix = [strace, "-f", "-qq", "--seccomp-bpf", "-o", log.name, "-e", f"trace={','.join(OPERATIONS)}"]
        place.cdo(*args, prefix=prefix).ok()
        lines = [line.split(None, 1) for line in log.read().splitlines()]
    first = min((thread for thread, _ in lines), key=int)
    found: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    for thread, text in lines:
        if match := re.match(r"(\w+)\(", text):
            found[thread == first][match[1]] += 1
    return found


@pytest.fixture(scope="module")
def points(nine: Whole) -> list[tuple[bool, Point]]:
    """Every (is it a birth, point): file operations of a birth, then those of the writer from birth to end.

    strace counts for each thread and each call by itself. The first thread writes only while a session is born, so
    the writer's share is taken from a run whose session is born already. A file is opened right after an attempt to
    remove a left-over one, so that no state on disk escapes; opening is still tried with a filter on the path.
    """
    strace = needs_strace()
    with Provider(script=sensitive) as p, tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a").mkdir()
        birth = operations(strace, Place(Path(folder) / "a", p.url), *begin(2))[True]
        later = nine.begun(Path(folder) / "b", p.url)
        resumed = operations(strace, later, "resume", "a", "-q")[False]
        files = [path for path in later.session().iterdir() if path.is_file() and path.name not in NOT_REPLACED]
    born = [(True, Point(name, n)) for name, count in birth.items() for n in range(1, count + 1) if name != "write"]
    born += [(True, Point("write", n)) for n in range(1, len(BEGUN) + 1)]
    late = [(False, Point(name, n)) for name, count in resumed.items() for n in range(1, count + 1)]
    opened = [(False, Point("openat", n, below=True)) for n in range(1, resumed["fsync"] + 1)]
    # Replies that arrive together share a group file: at least one for the voices and one for the synthesis of each
    # of the two turns, and one for the end. Each file is written, synced, renamed, and its directory synced.
    renames = len(files) + 5
    assert len(born) > 15 and len(files) == 10
    assert resumed["renameat"] >= renames and resumed["fsync"] >= 2 * renames and resumed["write"] >= renames, resumed
    return [*born, *late, *opened]


def begin(turns: int) -> list[str]:
    """The words that begin the reference run."""
    return ["think", "-q", "--turns", str(turns), "--session", "a", QUESTION]


def killed_at(strace: str, nine: Whole, root: Path, birth: bool, point: Point) -> int:
    """Kill a run at one point and finish it; returns 1 when it was killed, 0 when it never got there."""
    path = root / f"{'birth' if birth else 'run'}-{point.operation.strip('/^')}-{point.number}"
    with Provider(script=sensitive) as p:
        if birth:
            path.mkdir(parents=True)
            place = Place(path, p.url)
            ended = place.cdo(*begin(2), prefix=point.words(strace, place))
        else:
            place = nine.begun(path, p.url)
            ended = place.cdo("resume", "a", "-q", prefix=point.words(strace, place))
        assert ended.code in (0, -signal.SIGKILL, 128 + signal.SIGKILL), ended
        recovers(place, p, nine, 2, point)
    shutil.rmtree(path)
    return int(ended.code != 0)


def test_a_kill_at_a_sample_of_all_file_operations(
    nine: Whole, points: list[tuple[bool, Point]], tmp_path: Path
) -> None:
    strace = needs_strace()
    chosen = random.Random(7).sample(points, 12)  # the slow one takes them all
    killed = everywhere([functools.partial(killed_at, strace, nine, tmp_path, *point) for point in chosen])
    assert sum(killed) >= 10


@pytest.mark.slow
def test_a_kill_at_every_file_operation(nine: Whole, points: list[tuple[bool, Point]], tmp_path: Path) -> None:
    strace = needs_strace()
    killed = everywhere([functools.partial(killed_at, strace, nine, tmp_path, *point) for point in points])
    print(f"{len(points)} points, {sum(killed)} kills")
    # How many journal lines and groups there are differs from run to run: the last numbers may not be reached.
    assert sum(killed) >= len(points) * 0.85


# -- kill -9 at any time -----------------------------------------------------------------------------------


def killed_after(whole: Whole, path: Path, turns: int, share: float) -> int:
    """Kill a run at a share of its course, and finish it; returns how many calls were repeated.

    The course is counted in calls that have arrived, not in seconds: a slow machine takes longer to make each. The
    rest of the share is a part of the time that the call takes, so that the kill comes at any moment of it.
    """
    path.mkdir()
    with Provider(script=sensitive, latency=LATENCY) as p:
        place = Place(path, p.url)
        with place.running(*begin(turns)) as process:
            wait_for(place.session().exists)
            calls, rest = divmod(share * (4 * turns + 1), 1)
            wait_for(lambda: len(p.calls) >= calls or process.poll() is not None)
            time.sleep(rest * LATENCY)
            kill_group(process.pid)
            finish(process)
            assert members(process.pid) == []
        p.latency = 0.0
        return recovers(place, p, whole, turns, share)


def test_a_kill_at_any_time(thirteen: Whole, tmp_path: Path) -> None:
    shares = [0.1, 0.35, 0.6, 0.85]
    everywhere([functools.partial(killed_after, thirteen, tmp_path / str(s), 3, s) for s in shares])


def test_a_call_in_flight_at_a_kill_is_sent_again_under_its_idempotency_key(tmp_path: Path) -> None:
    table = (ROOT / "dispatch/providers.yaml").read_text()
    assert table.count("  openai:\n") == 1
    own = tmp_path / ".config/cdo/dispatch/providers.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(table.replace("  openai:\n", "  openai:\n    idempotency: Idempotency-Key\n"))
    retried = Fault(status=500, call="t1-synthesis", attempt=1)
    with Provider(script=sensitive, faults=[retried]) as p:
        place = Place(tmp_path, p.url)
        p.hold("t1-*")
        with place.running(*begin(1)) as process:
            wait_for(lambda: len(p.calls) >= 3)
            kill_group(process.pid)
            finish(process)
        in_flight = {info.call: info.headers["Idempotency-Key"] for info in p.calls}
        assert len(set(in_flight.values())) == 3
        p.release()
        p.settle()
        place.resume("-q").ok()
        after = p.calls[3:]
    sent = [(info.call, info.headers["Idempotency-Key"]) for info in after]
    assert {call: key for call, key in sent if call in in_flight} == in_flight
    assert sum(call == "t1-synthesis" for call, _ in sent) == 2
    assert len({key for _, key in sent}) == len(sent), "a second attempt is another request"


@pytest.mark.slow
def test_a_kill_at_twenty_random_times(thirteen: Whole, tmp_path: Path) -> None:
    chance = random.Random(20)
    shares = [chance.random() for _ in range(20)]
    repeated = everywhere([functools.partial(killed_after, thirteen, tmp_path / f"{s:.9f}", 3, s) for s in shares])
    print(f"{sum(repeated)} calls were in flight at 20 kills")
    assert sum(repeated) >= 10, "most kills meet calls in flight"


@pytest.mark.slow
def test_many_kills_of_one_run(thirteen: Whole, tmp_path: Path) -> None:
    """A machine that keeps dying: every process gets a little further, and nothing is asked again."""
    with Provider(script=sensitive) as p:
        place = Place(tmp_path, p.url)
        deaths = 0
        for number in range(1, 60):
            words = inject(needs_strace(), "fsync", f"signal=KILL:when={9 if number == 1 else 4}")
            args = ["resume", "a", "-q"] if place.session().exists() else begin(3)
            done = place.cdo(*args, prefix=words)
            if done.code == 0:
                break
            deaths += 1
            p.settle()
        recorded = [(record["call"], record["attempt"]) for record in exchanges(place.session())]
        assert len(recorded) == len(set(recorded)) == 13
        same(place.session(), thirteen.place.session())
        assert deaths >= 5
        assert len(p.calls) <= 13 + 3 * deaths


# -- kill -9 while stale files are put aside -----------------------------------------------------------------


@pytest.fixture(scope="module")
def edited(nine: Whole, tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, Whole]:
    """The finished run with an edited voice; and the same after an undisturbed `resume --yes`."""
    place = nine.place.copy(tmp_path_factory.mktemp("edited") / "a")
    file = place.session() / "t1-critic.md"
    file.write_text(file.read_text().replace("Stage it (", "Do not stage it ("))
    with Provider(script=sensitive) as p:
        settled = Place(place.copy(place.path.parent / "b").path, p.url)
        done = settled.resume("--yes", "-q").ok()
    return place, Whole(settled, done.seconds)


def superseded(session: Path) -> list[bytes]:
    return sorted(path.read_bytes() for path in (session / "superseded").rglob("*.md"))


def put_aside_and_killed(strace: str, edited: tuple[Place, Whole], path: Path, point: Point) -> int:
    before, after = edited
    with Provider(script=sensitive) as p:
        place = Place(before.copy(path).path, p.url)
        ended = place.resume("--yes", "-q", prefix=point.words(strace, place))
        p.settle()
        recorded, asked_before = attempts(place.session()), asked(p.calls)
        files = {file.name: file.read_bytes() for file in place.session().rglob("*.md")}
        assert set(files) == {file.name for file in before.session().glob("*.md")}, "nothing is lost on the way"
        place.resume("--yes", "-q").ok()
        again = asked(p.calls)[len(asked_before) :]
        assert not {pair for pair in recorded if pair in asked_before} & set(again)
        left, right = tree(place.session()), tree(after.place.session())
        for name in right:
            if not name.startswith("superseded"):
                assert left[name] == right[name], (point, name)
        assert superseded(place.session()) == superseded(after.place.session()), point
    return int(ended.code != 0)


ASIDE = [("mkdirat", 2), ("/^rename", 6), ("fsync", 6)]


@pytest.mark.parametrize("point", [Point("mkdirat", 2), Point("/^rename", 4), Point("fsync", 5)])
def test_a_kill_while_stale_files_are_put_aside(edited: tuple[Place, Whole], tmp_path: Path, point: Point) -> None:
    assert put_aside_and_killed(needs_strace(), edited, tmp_path / "w", point) == 1


@pytest.mark.slow
def test_a_kill_at_every_operation_of_putting_aside(edited: tuple[Place, Whole], tmp_path: Path) -> None:
    strace = needs_strace()
    every = [Point(name, n) for name, count in ASIDE for n in range(1, count + 1)]
    killed = everywhere(
        [functools.partial(put_aside_and_killed, strace, edited, tmp_path / str(i), p) for i, p in enumerate(every)]
    )
    assert sum(killed) == len(every)


# -- signals ---------------------------------------------------------------------------------------------------


def signalled(whole: Whole, path: Path, turns: int, number: int, share: float) -> int:
    """Tell a run to end after a share of its time; returns 1 when it was still under way."""
    path.mkdir()
    with Provider(script=sensitive, latency=0.05) as p:
        place = Place(path, p.url)
        began = time.monotonic()
        with place.running(*begin(turns)) as process:
            wait_for(lambda: place.session().exists() or process.poll() is not None)
            time.sleep(share * (0.06 * 3 * turns + 0.2))
            soon, sent = at_once(began), time.monotonic()
            process.send_signal(number)
            done = finish(process, sent)
        assert done.seconds < soon
        assert members(process.pid) == []
        assert done.code in (130, 0), (number, share, done)
        if done.code:
            assert done.complaint[0].startswith("cdo: Stopped"), done.err
            assert "Traceback" not in done.err and "Exception" not in done.err, done.err
        recovers(place, p, whole, turns, (number, share))
    return int(done.code != 0)


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def test_signals_stop_a_run_cleanly(nine: Whole, tmp_path: Path) -> None:
    cases = [*zip(SIGNALS, (0.0, 0.2, 0.4), strict=True), (signal.SIGINT, 0.5)]
    stopped = everywhere([functools.partial(signalled, nine, tmp_path / f"{n}-{s}", 2, n, s) for n, s in cases])
    assert sum(stopped) >= 3


@pytest.mark.slow
def test_signals_at_twenty_random_times(nine: Whole, tmp_path: Path) -> None:
    chance = random.Random(21)
    cases = [(SIGNALS[number % 3], chance.random()) for number in range(20)]
    stopped = everywhere([functools.partial(signalled, nine, tmp_path / f"{n}-{s:.9f}", 2, n, s) for n, s in cases])
    print(f"{sum(stopped)} of {len(cases)} were still under way")
    assert sum(stopped) >= 12


# Sends itself Ctrl-C at one of the steps from the birth of a session to its first call; prints how many there were.
STEPS = """
import os, signal, sys

left, seen, begun = int(sys.argv.pop(1)), 0, False
WHERE = "/threading.py", "/asyncio/", "/cdo/session/", "/cdo/app/run.py"


def step(frame, event, arg):
    global seen, begun
    name = frame.f_code.co_name
    begun = begun or event == "call" and name == "create_session"
    if event == "call" and name == "interruptible":
        sys.setprofile(None)
        print(seen, file=sys.stderr)
    elif begun and any(part in frame.f_code.co_filename for part in WHERE):
        seen += 1
        if seen == left:
            sys.setprofile(None)
            os.kill(os.getpid(), signal.SIGINT)


from cdo.__main__ import main

sys.setprofile(step)
main()
"""


def stopped_at_step(place: Place, number: int) -> Done:
    command = [
        sys.executable,
        "-c",
        STEPS,
        str(number),
        "quick",
        QUESTION,
        "--turns",
        "1",
        "--session",
        f"n{number}",
        "-q",
    ]
    began = time.monotonic()
    return finish(spawned(command, place.path, place.environment(None)), began, timeout=60)


def stopped_at_steps(path: Path, shares: int) -> None:
    with Provider(script=sensitive) as p:
        place = Place(path, p.url)
        counted = stopped_at_step(place, 0).ok()
        total, asked_before = int(counted.err.split()[0]), len(p.calls)
        numbers = [max(1, total * share // shares) for share in range(shares)]
        for done in everywhere([functools.partial(stopped_at_step, place, number) for number in numbers]):
            assert done.code == 130 and done.err.startswith("cdo: Stopped.") and len(done.complaint) <= 2, done
        assert len(p.calls) == asked_before


def test_a_stop_at_steps_of_the_start_says_only_that(tmp_path: Path) -> None:
    stopped_at_steps(tmp_path, 9)


@pytest.mark.slow
def test_a_stop_at_many_steps_of_the_start_says_only_that(tmp_path: Path) -> None:
    stopped_at_steps(tmp_path, 90)


HANGS = [Fault(hang="headers"), Fault(hang="middle"), Fault(status=503)]


@pytest.mark.parametrize(("number", "trouble"), [*zip(SIGNALS, HANGS, strict=True), (signal.SIGINT, HANGS[2])])
def test_a_signal_while_a_provider_hangs_or_is_down(tmp_path: Path, number: int, trouble: Fault) -> None:
    with Provider(faults=[trouble]) as p:
        place = Place(tmp_path, p.url)
        began = time.monotonic()
        with place.running(*begin(2)) as process:
            wait_for(lambda: len(p.calls) >= 3)
            time.sleep(0.1)
            soon, sent = at_once(began), time.monotonic()
            process.send_signal(number)
            done = finish(process, sent).failed(130, "Stopped", "cdo resume a")
        assert done.seconds < soon and members(process.pid) == []
        assert len(done.complaint) == 2
        p.faults = []
        place.resume("-q").ok()


@pytest.mark.parametrize(("number", "delay"), [*zip(SIGNALS, (0.05, 0.15, 0.3), strict=True), (signal.SIGTERM, 0.3)])
def test_a_signal_before_anything_was_asked_leaves_a_whole_session_or_none(
    nine: Whole, tmp_path: Path, number: int, delay: float
) -> None:
    with Provider(script=sensitive) as p:
        p.hold()  # so that no run ends but by the signal
        place = Place(tmp_path, p.url)
        with place.running(*begin(2)) as process:
            time.sleep(delay)
            process.send_signal(number)
            done = finish(process, timeout=60)
        assert members(process.pid) == []
        # Before Python gets to cdo at all, nobody can turn a signal into an exit code.
        assert done.code == 130 if place.session().exists() else done.code != 0, done
        p.release()
        recovers(place, p, nine, 2, (number, delay))


def test_a_run_under_nohup_outlives_its_terminal(nine: Whole, tmp_path: Path) -> None:
    with Provider(script=sensitive, latency=0.1) as p:
        place = Place(tmp_path, p.url)
        with place.running(*begin(2), prefix=["nohup"]) as process:
            for turn in (1, 4):
                wait_for(lambda turn=turn: len(p.calls) >= turn)
                process.send_signal(signal.SIGHUP)
            assert finish(process).code == 0
        same(place.session(), nine.place.session())


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with Provider(faults=[Fault(hang="headers")]) as p:
        place = Place(tmp_path, p.url)
        began = time.monotonic()
        with place.running(*begin(2)) as process:
            wait_for(lambda: len(p.calls) >= 3)
            soon, sent = at_once(began), time.monotonic()
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGTERM)
            done = finish(process, sent)
        assert done.code == 130 and done.seconds < soon


# -- disks ---------------------------------------------------------------------------------------------------------


def one_sentence(done: Done, *words: str) -> None:
    """Exit 8 within two seconds, one sentence of what and one of what to do."""
    done.failed(8, *words)
    assert len(done.complaint) == 2, done.err
    assert done.complaint[0].count(". ") == 0 and done.complaint[0].endswith(".")


def long_answers(info: RequestInfo) -> Answer | None:
    if info.kind == "agent":
        return Answer(agent_text("Stage it.", prose=f"{info.call} goes on and on. " * 1800))
    return sensitive(info)


def test_a_full_disk_ends_the_run_and_room_lets_it_go_on(tmp_path: Path) -> None:
    shell = needs_mounts()
    script = """
        mkdir tmp; mount -t tmpfs -o size=256k tmpfs tmp; keep=$1; shift
        "$@"; echo "code $?"
        cp -r tmp/cdo-a "$keep"
        mount -o remount,size=8m tmpfs tmp
        "$1" -m cdo resume a -q >&2; echo "code $?"
        cp -r tmp/cdo-a "$keep/after"
    """
    with Provider(script=long_answers) as p:
        place, keep = Place(tmp_path, p.url), tmp_path / "keep"
        done = place.cdo(*begin(2), prefix=[*shell, script, "x", str(keep)])
        assert done.out.count("code 8") == 1 and done.out.count("code 0") == 1, done
        lines = done.err.splitlines()
        assert [line for line in lines if line.startswith("cdo: ")] == [
            "cdo: tmp/cdo-a cannot be used: the disk is full."
        ]
        assert any("Make room, then `cdo resume`" in line for line in lines)
        calls = asked(p.calls)
    recorded = attempts(keep)
    assert 0 < len(recorded) < 9
    assert all(count == 1 for pair, count in Counter(calls).items() if pair in recorded)
    assert len(answered(keep / "after")) == 9
    assert (keep / "after" / "FINAL.md").exists()


def test_a_disk_that_is_full_from_the_start(tmp_path: Path) -> None:
    shell = needs_mounts()
    script = """
        mkdir tmp; mount -t tmpfs -o size=64k tmpfs tmp; dd if=/dev/zero of=tmp/fill bs=1k count=64 2>/dev/null
        "$@"; code=$?; ls -A tmp; exit $code
    """
    with Provider() as p:
        done = Place(tmp_path, p.url).cdo(*begin(2), prefix=[*shell, script, "x"])
        one_sentence(done, "tmp cannot be used: the disk is full")
        assert done.out.split() == ["fill"] and p.calls == []


def test_a_read_only_file_system(tmp_path: Path) -> None:
    shell = needs_mounts()
    script = 'mkdir tmp; mount -t tmpfs tmpfs tmp; mount -o remount,ro tmpfs tmp; exec "$@"'
    with Provider() as p:
        done = Place(tmp_path, p.url).cdo(*begin(2), prefix=[*shell, script, "x"])
        one_sentence(done, "tmp cannot be used: the file system is read-only", "--out")
        assert p.calls == []


def test_a_read_only_session(nine: Whole, tmp_path: Path) -> None:
    shell = needs_mounts()
    script = 'mount --bind tmp tmp && mount -o remount,bind,ro tmp && exec "$@"'
    with Provider(script=sensitive) as p:
        place = nine.begun(tmp_path / "w", p.url)
        one_sentence(place.resume("-q", prefix=[*shell, script, "x"]), "tmp/cdo-a cannot be used", "read-only")


def test_a_folder_one_may_not_write_to(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir(mode=0o555)
    if not os.access(tmp_path / "tmp", os.W_OK):
        prefix: list[str] = []
    elif subprocess.run(["unshare", "-U", "true"], capture_output=True).returncode == 0:
        prefix = ["unshare", "-U"]  # a root without its powers
    else:
        lacking("mounts", "this user may write anywhere, and no user namespace takes that away")
    with Provider() as p:
        done = Place(tmp_path, p.url).cdo(*begin(2), prefix=prefix)
        one_sentence(done, "tmp cannot be used: permission is denied", "--out")
        assert p.calls == [] and os.listdir(tmp_path / "tmp") == []


ERRORS = {"EIO": "input/output error", "ENOSPC": "the disk is full", "EROFS": "read-only", "EDQUOT": "quota"}


@pytest.mark.parametrize(
    ("operation", "code"),
    [("fsync", "EIO"), ("fsync", "EROFS"), ("write", "ENOSPC"), ("/^rename", "EDQUOT")],
)
def test_an_error_of_the_disk_ends_the_run_within_two_seconds(
    nine: Whole, tmp_path: Path, operation: str, code: str
) -> None:
    strace = needs_strace()
    number = 6 if operation == "fsync" else 3
    words = inject(strace, operation, f"error={code}:when={number}")
    with Provider(script=sensitive) as p:
        place = nine.begun(tmp_path / "w", p.url)
        done = place.resume("-q", prefix=words)
        one_sentence(done, ERRORS[code], "cdo-a")
        assert done.seconds < 4 + 2 * nine.seconds  # strace and the start of Python included
        recovers(place, p, nine, 2, (operation, code))


def test_an_error_of_the_disk_does_not_wait_for_a_provider_that_hangs(nine: Whole, tmp_path: Path) -> None:
    words = inject(needs_strace(), "fsync", "error=EIO:when=3+")
    with Provider(script=sensitive, faults=[Fault(hang="headers", call="t1-critic")]) as p:
        place = nine.begun(tmp_path / "w", p.url)
        began = time.monotonic()
        with place.running("resume", "a", "-q", prefix=words) as process:
            wait_for(lambda: len(p.calls) == 3)
            soon = at_once(began)
            done = finish(process)
        one_sentence(done, "input/output error")
        assert done.seconds < soon
