"""Stands in for a command-line agent: does the steps of `plan.json` beside the program that called it.

A step is [what, with]: out, err (print), big (print so many bytes), close (stdout), fill (stderr, so many bytes),
sleep (seconds), child (leave one running that holds the pipes), daemon (leave one that left the session), deaf (no
signal but KILL ends it), exit (code), signal (end by it), group (send it to its whole group).
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def record(place: Path) -> None:
    """Keep what this process was called with."""
    stdin = sys.stdin.buffer.read()
    home = Path.cwd().parent
    files = {}
    for file in home.glob("call-*/*"):
        with contextlib.suppress(OSError):  # another call's, just gone
            files[file.name] = file.read_text(encoding="utf-8")
    seen = {
        "argv": sys.argv[2:],
        "env": dict(os.environ),
        "stdin": stdin.decode("utf-8"),
        "cwd": str(Path.cwd()),
        "pid": os.getpid(),
        "session": os.getsid(0),
        "files": files,
    }
    keep(place / f"seen-{os.getpid()}.json", json.dumps(seen))


def keep(path: Path, text: str) -> None:
    """Write a file that is there at once and whole."""
    half = path.with_name(f".{path.name}")
    half.write_text(text, encoding="utf-8")
    half.rename(path)


def step(place: Path, what: str, value: Any) -> None:
    """Do one step."""
    if what == "out":
        sys.stdout.buffer.write(value.encode("utf-8", "surrogatepass"))
        sys.stdout.flush()
    elif what == "big":
        sys.stdout.buffer.write(b"x" * value)
        sys.stdout.flush()
    elif what == "err":
        sys.stderr.write(value)
        sys.stderr.flush()
    elif what == "fill":
        sys.stderr.write(("y" * 99 + "\n") * (value // 100))
        sys.stderr.flush()
    elif what == "close":
        os.close(1)
    elif what == "sleep":
        time.sleep(value)
    elif what == "deaf":
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
    elif what == "child":
        child = subprocess.Popen([sys.executable, "-I", "-S", "-c", f"import time; time.sleep({value})"])
        keep(place / f"child-{child.pid}", str(child.pid))
    elif what == "daemon":
        if os.fork() == 0:  # what daemons do: a session of their own, and init as their parent
            os.setsid()
            for stream in range(3):
                os.close(stream)
            if os.fork() == 0:
                keep(place / f"child-{os.getpid()}", str(os.getpid()))
                time.sleep(value)
            os._exit(0)
        while not list(place.glob("child-*")):
            time.sleep(0.01)
    elif what == "group":
        os.killpg(0, value)
    elif what == "exit":
        os._exit(value)
    elif what == "signal":
        os.kill(os.getpid(), value)
        time.sleep(60)


def main() -> None:
    """Record, then do what is planned."""
    place = Path(sys.argv[1]).parent
    record(place)
    for what, value in json.loads((place / "plan.json").read_text()):
        step(place, what, value)


main()
