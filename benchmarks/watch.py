"""Measure what it costs to watch a run, and print a Markdown table.

A run of 20 voices gives a real session and its journal. A process that owns the session then appends the events of
that journal again, turn after turn at the present time, while `cdo watch` follows on a pseudo-terminal of 120 x 40.
CPU is user and system time of the watcher as a share of one core, without its start-up, which is what a watch of a
session that has ended takes; the lag is from the writing of the last event to its sight on the terminal.

    python benchmarks/watch.py              # 200 events a second for 15 seconds
    python benchmarks/watch.py --rate 1000 -s 5
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MARK = "this is the last event"
ENDED = {
    "path": "", "status": "converged", "why": "", "decision": "", "confidence": 0.7, "turns": 1, "calls": 1,
    "tokens": 1, "cost": None,
}  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """One watcher: CPU seconds and wall seconds of its life, peak memory, and when it showed the last event."""

    cpu: float
    wall: float
    peak_mb: float
    shown: float
    error: str = ""


def write(folder: Path, rate: float, seconds: float) -> None:
    """Own a session and append to its journal what a run appends; print when the last event was written."""
    owner = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(owner, fcntl.LOCK_EX)
    journal = os.open(folder / "journal.jsonl", os.O_WRONLY | os.O_APPEND)
    began, lines = time.monotonic(), events((folder / "recorded.jsonl").read_text().splitlines())
    print("owned", flush=True)
    for number in range(int(rate * seconds)):
        time.sleep(max(0.0, began + number / rate - time.monotonic()))
        os.write(journal, stamped(next(lines)))
    os.write(journal, stamped({"event": "note", "text": MARK}))
    print(time.time(), flush=True)
    time.sleep(1.0)
    os.write(journal, stamped({"event": "done", **ENDED}))


def stamped(data: dict[str, object]) -> bytes:
    """A line of the journal, at the present time."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return json.dumps({**data, "at": now}, ensure_ascii=False).encode() + b"\n"


def events(recorded: Sequence[str]) -> Iterator[dict[str, object]]:
    """The recorded turn again and again, each time as a later one."""
    for turn in count(1):
        for line in recorded:
            yield json.loads(line.replace('"t1-', f'"t{turn}-'))


def watch(folder: Path, environment: dict[str, str]) -> Sample:
    """Run `cdo watch` on a pseudo-terminal until it ends."""
    began = time.monotonic()
    process, terminal = pty.fork()
    if not process:
        os.chdir(folder.parents[1])
        os.execve(sys.executable, [sys.executable, "-m", "cdo", "watch", folder.name[4:]], environment)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    seen, shown = b"", 0.0
    while True:
        select.select([terminal], [], [], 60)
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:  # its end, on Linux
            break
        if not data:
            break
        seen = (seen + data)[-(1 << 16) :]
        if not shown and MARK.encode() in seen:
            shown = time.time()
    _, status, usage = os.wait4(process, 0)
    os.close(terminal)
    code = os.waitstatus_to_exitcode(status)
    unit = 1 if sys.platform == "darwin" else 1024
    said = f"exit {code}: {seen[-300:]!r}" if code else ""
    wall = time.monotonic() - began
    return Sample(usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss * unit / 1e6, shown, said)


@contextmanager
def provider() -> Iterator[str]:
    """Run the provider of the tests as a process; yield its URL."""
    command = [sys.executable, "-m", "tests.support.provider", "--width", "20"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().strip() if process.stdout else ""
        finally:
            process.terminate()


def session(home: Path, environment: dict[str, str]) -> Path:
    """A session of one turn of 20 voices, which has ended; `recorded.jsonl` has the events of that turn."""
    with provider() as url:
        run = [
            "full",
            "--width",
            "20",
            "--turns",
            "1",
            "--no-context",
            "--session",
            "a",
            "-m",
            "openai/bench",
            "Why?",
        ]
        subprocess.run(
            [sys.executable, "-m", "cdo", *run],
            env={**environment, "OPENAI_BASE_URL": f"{url}/v1"},
            cwd=home,
            check=True,
            capture_output=True,
        )
    folder = home / "tmp" / "cdo-a"
    lines = (folder / "journal.jsonl").read_text().splitlines()
    turn = [line for line in lines if '"t1-' in line]
    (folder / "recorded.jsonl").write_text("\n".join(turn) + "\n")
    return folder


def measure(folder: Path, environment: dict[str, str], rate: float, seconds: float) -> tuple[Sample, float]:
    """Watch a session that is written to; also return when its last event was written."""
    (folder / "journal.jsonl").write_bytes(b"")
    (folder / "FINAL.md").unlink(missing_ok=True)
    command = [sys.executable, __file__, "--write", str(folder), "--rate", str(rate), "-s", str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        if writer.stdout is None or writer.stdout.readline() != "owned\n":
            raise SystemExit("The writer did not start.")
        sample = watch(folder, environment)
        return sample, float(writer.stdout.readline())


def main() -> int:
    """Run the benchmark; 1 when it failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rate", type=float, default=200, help="events a second (200)")
    parser.add_argument("-s", "--seconds", type=float, default=15, help="for how long (15)")
    parser.add_argument("--write", metavar="DIR", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        write(Path(options.write), options.rate, options.seconds)
        return 0
    with tempfile.TemporaryDirectory(prefix="cdo-bench-") as place:
        environment = {
            "PATH": os.defpath, "HOME": place, "LANG": "C.UTF-8", "TERM": "xterm-256color", "OPENAI_API_KEY": "x",
            "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        folder = session(Path(place), environment)
        idle = [watch(folder, environment) for _ in range(4)][1:]
        sample, written = measure(folder, environment, options.rate, options.seconds)
    failed = next((one.error for one in (*idle, sample) if one.error), "")
    if failed or not sample.shown:
        print(f"| cdo watch | failed | {failed.replace('|', '/')} | | | |")
        return 1
    start = statistics.median(one.cpu for one in idle)
    share = 100 * (sample.cpu - start) / (sample.wall - statistics.median(one.wall for one in idle))
    print("| | events/s | s | CPU % of a core | start-up CPU s | lag of the last event s | peak MB |")
    print("|---|---|---|---|---|---|---|")
    print(
        f"| cdo watch | {options.rate:.0f} | {options.seconds:.0f} | {share:.1f} | {start:.2f} "
        f"| {sample.shown - written:.2f} | {sample.peak_mb:.0f} |"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
