"""A soak: many runs whose calls fail and whose processes die, each of which has to end as promised.

    python -m tests.faults.soak --runs 200 --faulty 0.2 --seed 0

Every run is a real process, beside others, at a provider where a share of all calls fails in some way. It is killed
at times of chance and resumed, under the same troubles, until it ends by itself; where that end is a stated failure,
the provider becomes well and the run is resumed once more: then it has to come to FINAL.md. After every death and at
the end all promises are checked (`Run`). What breaks one keeps its folder; its seed and number make it again:
`--seed S --only N`. The last lines are a table of what happened.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from cdo.session.records import read_session
from tests.support.answers import RequestInfo
from tests.support.harness import ROOT, Place, journal_events, kill_group, members
from tests.support.mishaps import AGENT_FILE, AGENT_TEXT, DEADLINES, PATIENT, PROGRAM, RUN_FOR, Death, Plan, planned
from tests.support.provider import Provider

GRACE = 60.0  # seconds beyond its own deadline after which a process hangs, however slow the machine is
TRIES = 3  # times that a run may state a failure before its provider becomes well
LIFTED = ("--max-calls", "9999", "--budget", "99")
SIGNALLED = (-9, -2, -15)  # how a process ends by a signal that cdo could not take
Asked = tuple[str, str, int]  # session, call, attempt

# All that may be left in the folder of a run; in a session, what is not of its root lies in one of these folders.
_IN_SESSION = r"tmp/cdo-[\w.-]+/(([\w.-]+/)*[A-Za-z0-9][\w-]*\.(md|yaml|jsonl|html|json)|[\w./-]+/v[0-9]+)"
KNOWN = re.compile(
    rf"{_IN_SESSION}|tmp/\.gitignore|\.cdo/dispatch/agents/mine\.yaml|bin/(mine-agent|plan\.json|starts)"
    r"|\.local/share/cdo/trusted\.json|\.cache/cdo/[\w./-]+|\.git/.*"
)


class Broken(Exception):
    """A promise was broken: which one, and how."""


@dataclass
class Result:
    """What became of a run: how it ended, how often what happened to it, and what promise it broke ("" for none)."""

    plan: Plan
    end: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    broken: str = ""


@dataclass(frozen=True)
class Ended:
    """A process that ended: its code, what it printed, and whether a death was sent to it in time."""

    code: int
    out: str
    err: str
    killed: bool


class Run:
    """One run from its first process to its end. Raises `Broken` where one of these is not kept:

    - a process ends within its own deadline, with a documented code and sentences, and never with a traceback;
    - nothing that it started lives on;
    - after each death the record can be read whole, and everything is in it that ever was;
    - what is recorded is never asked again, and no more is lost by a death than was in flight;
    - caps are passed by no more than that;
    - the run ends in FINAL.md or a stated failure, and in the former once its provider is well;
    - nothing is left on disk but files of known names.
    """

    def __init__(self, plan: Plan, place: Place, provider: Provider, result: Result) -> None:
        self.plan, self.place, self.provider, self.result = plan, place, provider, result
        self._recorded: set[Asked] = set()
        self._seen = 0  # requests that were looked at
        self._deaths = 0
        self._lift: tuple[str, ...] = ()

    def live(self) -> None:
        """Live it, and leave in `result` what became of it."""
        self._furnish()
        began = ("--session", "a", *self.plan.caps)
        self.result.end = self._until_it_ends("a", (*self.plan.scene.words[:-1], *began, self.plan.scene.words[-1]))
        if self.plan.fork and self.result.end.startswith("FINAL.md"):
            self._lift = LIFTED
            fork = ("fork", "a", "--turn", "1", "--session", "b", "--note", "We stay on premises.")
            self._until_it_ends("b", (*fork, *LIFTED))
            self.result.counts["forks"] += 1
            again = {info.call for info in self.provider.calls if info.headers["X-Cdo-Session"] == "b"}
            self._holds(not [call for call in again if call.startswith("t1-")], f"a fork asked again: {again}")
        self.clean()

    def _furnish(self) -> None:
        root = self.place.path
        (root / "t").mkdir()
        if self.plan.git:
            git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org"]
            subprocess.run([*git, "init", "-q"], cwd=root, check=True, env=self.place.environment())
            command = [*git, "commit", "-q", "--allow-empty", "-m", "begin"]
            subprocess.run(command, cwd=root, check=True, env=self.place.environment())
        if self.plan.scene.agent:
            (root / ".cdo/dispatch/agents").mkdir(parents=True)
            (root / ".cdo/dispatch/agents/mine.yaml").write_text(AGENT_FILE)
            (root / "bin").mkdir()
            (root / "bin/mine-agent").write_text(PROGRAM)
            (root / "bin/mine-agent").chmod(0o755)
            self._agent(self.plan.faulty)

    def _agent(self, faulty: float) -> None:
        told = {"seed": self.plan.seed, "faulty": faulty, "latency": self.plan.latency, "text": AGENT_TEXT}
        (self.place.path / "bin/plan.json").write_text(json.dumps(told))

    # -- its processes -----------------------------------------------------------------------------------

    def _until_it_ends(self, session: str, begin: Sequence[str]) -> str:
        """Begin a session and resume it until it ends; returns in what."""
        deaths = list(self.plan.deaths) if session == "a" else []
        stated = 0
        while stated < TRIES:
            ended = self._process(self._next(session, begin), deaths[0] if deaths else None)
            deaths = deaths[ended.killed :]  # one that came too late is for the next process
            if ended.code in self.plan.scene.codes:
                self._final(session)
                return "FINAL.md"
            if ended.code == 5 and "The time limit" in ended.err:  # of this process; the next one has its own
                self.result.counts["time limits"] += 1
            elif ended.code == 5:
                self._holds(bool(self.plan.caps), f"a cap that nobody set: {ended.err}")
                again = self._process(self._next(session, begin), None)
                self._holds(again.code in (5, 7), f"a cap that was reached lets it go on: {again.code}")
                self._lift = LIFTED
                self.result.counts["caps reached"] += 1
            elif ended.code == 6:
                self._holds(self.plan.scene.pauses, f"it waits for nobody: {ended.err}")
                self.result.counts["pauses"] += 1
            elif ended.code == 7:
                self.result.counts["stated failures"] += 1
                stated += 1
            else:
                self._holds(ended.killed, f"it ended with {ended.code}: {ended.err[-600:]}")
        self.provider.script = self.plan.well
        if self.plan.scene.agent:
            self._agent(0.0)
        ended = self._process(self._next(session, begin), None, PATIENT)
        while self.plan.scene.pauses and ended.code == 6:
            ended = self._process(self._next(session, begin), None, PATIENT)
        self._holds(ended.code in self.plan.scene.codes, f"it never ends: {ended.code}, {ended.err[-600:]}")
        self._final(session)
        self.provider.script = self.plan.script
        return "a stated failure; FINAL.md once the provider was well"

    def _next(self, session: str, begin: Sequence[str]) -> Sequence[str]:
        """The words of the next process: `begin` where nothing was born yet."""
        return ("resume", session, *self._lift) if self.place.session(session).exists() else begin

    def _process(self, words: Sequence[str], death: Death | None, deadlines: Mapping[str, str] = DEADLINES) -> Ended:
        """One process from start to end, killed on its way where a `death` says so, and what has to hold then."""
        self.result.counts["processes"] += 1
        before, began = len(self.provider.calls), time.monotonic()
        process = self.place.start(words[0], "--timeout", f"{RUN_FOR:g}", *words[1:], env=deadlines)
        beside = None
        try:
            if self.plan.beside and words[0] == "resume":
                beside = self.place.start(*self.plan.beside)
            killed = death is not None and self._dies(process, death, before)
            out, err = process.communicate(timeout=max(1.0, began + RUN_FOR + GRACE - time.monotonic()))
            if beside:
                self._reads(beside)
        except subprocess.TimeoutExpired:
            raise Broken(f"`cdo {' '.join(words)}` hangs") from None
        finally:
            for started in (process, beside):
                if started and started.poll() is None:
                    kill_group(started.pid)
                    started.communicate()
        ended = Ended(process.returncode, out, err, killed)
        self.sound(ended)
        self._nothing_lives(process.pid)
        self.record_holds(ended)
        return ended

    def _dies(self, process: subprocess.Popen[str], death: Death, before: int) -> bool:
        """Send a death at its time; whether the process was still there."""
        while process.poll() is None and not (
            len(self.provider.calls) - before >= death.requests if death.requests else _listens(process.pid)
        ):
            time.sleep(0.01)
        time.sleep(death.delay)
        if process.poll() is not None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, death.signal) if death.group else os.kill(process.pid, death.signal)
        self._deaths += 1
        self.result.counts[death.signal.name] += 1
        return True

    def _reads(self, reader: subprocess.Popen[str]) -> None:
        """The command beside a run ends too, well or with a sentence: what it reads changes under its eyes."""
        out, err = reader.communicate(timeout=RUN_FOR + GRACE)
        self.result.counts["readers"] += 1
        self._holds(reader.returncode in (0, 8), f"{self.plan.beside} ended with {reader.returncode}: {err[-600:]}")
        self.sound(Ended(reader.returncode, out, err, killed=False))
        self._nothing_lives(reader.pid)

    # -- what has to hold ----------------------------------------------------------------------------------

    def _holds(self, fact: bool, otherwise: str) -> None:
        if not fact:
            raise Broken(otherwise)

    def sound(self, ended: Ended) -> None:
        """It printed no traceback; where it failed by itself, a sentence of what happened and one of what to do."""
        for text in (ended.out, ended.err):
            self._holds(not re.search(r"Traceback|Exception ignored|Internal error", text), text[-2000:])
        if ended.code not in (0, 3) and not ended.killed:
            lines = [line for line in ended.err.splitlines() if line.startswith(("cdo: ", "     "))][-2:]
            said = len(lines) == 2 and re.fullmatch(r"cdo: \S.*[.?!…]", lines[0]) and lines[1].endswith((".", "?"))
            self._holds(bool(said), f"no sentences with {ended.code}: {ended.err[-600:]}")
        if ended.killed and ended.code not in (0, 3):  # by itself, or by the signal before cdo could listen
            self._holds(
                ended.code in (130, 5, 6, 7, *SIGNALLED), f"killed, it ended with {ended.code}: {ended.err[-600:]}"
            )

    def _nothing_lives(self, group: int) -> None:
        """Of its group, and of what has this run's folder as its home or works in there, nothing is left."""
        limit = time.monotonic() + GRACE
        while left := [*members(group), *at_home(self.place.path)]:
            if time.monotonic() > limit:
                raise Broken(f"processes are left: {[_command(pid) for pid in left]}")
            time.sleep(0.02)

    def record_holds(self, ended: Ended) -> None:
        """The record is whole, has all that it had, and what it has is not asked again; a death lost little."""
        with contextlib.suppress(TimeoutError):
            self.provider.settle(GRACE)
        asked = [_who(info) for info in self.provider.calls]
        again = self._recorded & set(asked[self._seen :])
        self._holds(not again, f"what is recorded was asked again: {sorted(again)}")
        self._seen = len(asked)
        found = [
            (path.name.removeprefix("cdo-"), str(record["call"]), int(record["attempt"]))
            for path in sorted(self.place.path.glob("tmp/cdo-*"))
            for record in read_session(path)
            if record["kind"] == "exchange" and record["model"] != "mine"
        ]
        self._holds(len(found) == len(set(found)), f"something is recorded twice: {found}")
        self._holds(self._recorded <= set(found), f"the record lost {sorted(self._recorded - set(found))}")
        self._recorded = set(found)
        # A fork's record begins with what it shares, which was asked in another session's name.
        lost = len(asked) - len(self._recorded & set(asked))
        self.result.counts["lost in flight"] = lost
        self._holds(lost <= self.plan.scene.widest * self._deaths, f"{lost} calls lost by {self._deaths} deaths")
        if ended.code == 5:
            self._under_the_cap(len(asked), lost)

    def _under_the_cap(self, asked: int, lost: int) -> None:
        """What was asked stays under a cap on calls, but for what was lost; what is recorded under one on money."""
        what, cap = self.plan.caps
        records = read_session(self.place.session())
        spent = sum(record.get("cost") or 0.0 for record in records if record["kind"] == "exchange")
        if what == "--max-calls":
            self._holds(asked <= int(cap) + lost, f"{asked} requests under a cap of {cap}, of which {lost} were lost")
        else:
            self._holds(spent <= float(cap), f"${spent:.4f} spent under a budget of ${cap}")

    def _final(self, session: str) -> None:
        path = self.place.session(session)
        self._holds((path / "FINAL.md").is_file(), "there is no FINAL.md")
        journal_events(path)

    def clean(self) -> None:
        """Nothing is left in the run's folder but files of known names.

        What a SIGKILL left behind half-made is removed by a later run: when it is an hour old, as it is made here.
        """
        half = self._half_made()
        self._holds(not half or bool(self.result.counts["SIGKILL"]), f"left half-made: {half}")
        if half:
            self.result.counts["half-made"] += len(half)
            self.provider.script = self.plan.well
            for path in half:
                os.utime(path, (0, 0))
            seats = ("-m", "openai/gpt-4.1", "-m", "mine") if self.plan.scene.agent else ()
            self._process(("quick", *seats, "--session", "later", "Later?"), None, PATIENT)
            self._holds(not self._half_made(), f"never removed: {half}")
        root = self.place.path
        files = [str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()]
        left = [name for name in files if not KNOWN.fullmatch(name) or name.endswith(".lock")]
        left += [str(path.relative_to(root)) for path in root.rglob("*.tmp")]
        self._holds(not left, f"left on disk: {left}")

    def _half_made(self) -> list[Path]:
        root = self.place.path
        return [*root.glob("tmp/.cdo-*.tmp"), *root.glob(".cache/cdo/agents/call-*")]


def _who(info: RequestInfo) -> Asked:
    return info.headers["X-Cdo-Session"], info.call, info.attempt


def _listens(pid: int) -> bool:
    """Whether a process takes SIGTERM into its own hands: before that, nobody can turn it into an exit code."""
    with contextlib.suppress(OSError):
        caught = re.search(r"SigCgt:\s*([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text())
        return bool(caught and int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)
    return False


def at_home(folder: Path) -> list[int]:
    """The processes whose home or working directory is `folder` or lies in it."""
    mark, found = f"HOME={folder}".encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            inside = (entry / "cwd").readlink().is_relative_to(folder)
            if (inside or mark in (entry / "environ").read_bytes().split(b"\0")) and int(entry.name) != os.getpid():
                found.append(int(entry.name))
    return found


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return str(pid)


# -- many of them --------------------------------------------------------------------------------------------


def soaked(plan: Plan, folder: Path) -> Result:
    """Live one run in a new folder below `folder`, which is gone afterwards unless a promise was broken."""
    result, began = Result(plan), time.monotonic()
    path = folder / plan.name
    path.mkdir(parents=True)
    try:
        with Provider(script=plan.script, latency=plan.latency) as provider:
            own = {"PATH": f"{path}/bin:{os.environ['PATH']}", "TMPDIR": f"{path}/t"}
            own |= {key: value.format(url=provider.url) for key, value in plan.scene.env.items()}
            Run(plan, Place(path, provider.url, own), provider, result).live()
            asked = provider.calls
        result.counts["requests"] = len(asked)
        result.counts["faulty"] = sum(info.fault is not None for info in asked)
        shutil.rmtree(path)
    except Exception as error:
        result.broken = str(error) if isinstance(error, Broken) else traceback.format_exc()
    result.seconds = time.monotonic() - began
    return result


def soak(plans: Iterable[Plan], folder: Path, at_once: int, tell: Callable[[Result], None]) -> list[Result]:
    """Live all plans, some at a time; `tell` hears of each when it is over."""

    def one(plan: Plan) -> Result:
        result = soaked(plan, folder)
        tell(result)
        return result

    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(one, plans))


def table(results: Sequence[Result]) -> str:
    """What happened, as Markdown: a row a scene, and the sums."""
    names = (
        *("processes", "requests", "faulty", "SIGKILL", "SIGINT", "SIGTERM"),
        *("lost in flight", "stated failures", "readers", "forks"),
    )
    rows: list[tuple[str, ...]] = [("runs of", "runs", "in FINAL.md", *names, "broken")]
    scenes = {result.plan.scene.name: None for result in results}
    for name in (*scenes, ""):
        these = [result for result in results if name in ("", result.plan.scene.name)]
        sums = [sum(result.counts[key] for result in these) for key in names]
        ended = sum(result.end != "" for result in these)
        broken = sum(bool(result.broken) for result in these)
        rows.append((name or "all", *map(str, (len(these), ended, *sums, broken))))
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" + "|--:" * (len(rows[0]) - 1) + "|", *lines[1:]])


def _tell(result: Result) -> None:
    counts = ", ".join(f"{count} {name}" for name, count in sorted(result.counts.items()) if count)
    how = f"BROKEN: {result.broken}" if result.broken else result.end
    print(f"{result.plan.name} ({result.plan.scene.name}, {result.seconds:.1f} s): {how} [{counts}]", flush=True)


def main(argv: Sequence[str]) -> int:
    """Soak; returns 1 when a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--faulty", type=float, default=0.2, help="share of calls that fail")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, action="append", help="only the run of this number (may be repeated)")
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--keep", type=Path, help="folder for the runs (default: a new one; what broke stays in it)")
    options = parser.parse_args(argv)
    compileall.compile_dir(ROOT / "cdo", quiet=1)  # what dies while it starts must not leave half of that behind
    folder = options.keep or Path(tempfile.mkdtemp(prefix="soak-"))
    began = time.monotonic()
    plans = [planned(options.seed, number, options.faulty) for number in options.only or range(options.runs)]
    results = soak(plans, folder, options.at_once, _tell)
    broken = [result for result in results if result.broken]
    print(f"\n{table(results)}\n\n{len(results)} runs, seed {options.seed}, {time.monotonic() - began:.0f} s")
    if broken:
        print(f"{len(broken)} broken, kept in {folder}: {', '.join(str(item.plan.number) for item in broken)}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
