"""Plants defects in cdo, one at a time, and runs the tests on each: `python tests/project/planted.py [WORD…]`.

`planted.toml` lists them: each replaces a piece of text that is in a file exactly once, and names a test that passes
without it and must fail with it. They are planted in copies of the repository, never in the repository itself. All of
them take about three minutes on two cores; the result is then written to `planted.md` (with a WORD only those are
planted whose kind, file, test or description has it, and nothing is written). The exit code is 1 when one survives.
"""

from __future__ import annotations

import ast
import contextlib
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("planted.toml")
TABLE = Path(__file__).with_name("planted.md")
LEFT_OUT = (".git", ".venv", ".hypothesis", "tmp", "dist", "build", "*_cache", "*.egg-info")
PATIENCE = 300.0  # seconds that a test may take with a defect; one that hangs has not caught it
AT_ONCE = 2  # copies of the repository in which tests run side by side
# No others are loaded, which halves the time that a test takes.
QUIET = {"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
PLUGINS = ("-p", "no:cacheprovider", "-p", "xdist.plugin", "-p", "_hypothesis_pytestplugin")


@dataclass(frozen=True)
class Defect:
    """A defect: in `file` the text `old` becomes `new`, and `test` (`unit/core/test_x.py::test_y`) must fail."""

    kind: str
    what: str
    file: str
    old: str
    new: str
    test: str

    def problem(self, root: Path = ROOT) -> str:
        """Why it cannot be planted in the tree at `root` any more; "" when it can."""
        path, (module, _, name) = root / self.file, self.test.partition("::")
        if not path.is_file():
            return f"{self.file} is gone"
        text = path.read_text("utf-8")
        if (times := text.count(self.old)) != 1:
            return f"{self.file} has this text {times} times: {self.old.strip()!r}"
        try:
            ast.parse(text.replace(self.old, self.new))
        except SyntaxError as error:
            return f"{self.file} cannot be parsed with it: {error}"
        tests = root / "tests" / module
        if not tests.is_file() or f"def {name.partition('[')[0]}(" not in tests.read_text("utf-8"):
            return f"there is no test {self.test}"
        return ""

    @contextmanager
    def planted(self, root: Path) -> Iterator[None]:
        """Have the defect in the tree at `root` while the block runs."""
        path = root / self.file
        before = path.read_bytes()
        path.write_text(before.decode().replace(self.old, self.new), "utf-8")
        try:
            yield
        finally:
            path.write_bytes(before)


@dataclass(frozen=True)
class Result:
    """What became of a defect: whether its test failed, what pytest said last, how many seconds it took."""

    defect: Defect
    caught: bool
    said: str
    seconds: float


def defects() -> tuple[Defect, ...]:
    """The list in `planted.toml`."""
    return tuple(Defect(**entry) for entry in tomllib.loads(LIST.read_text("utf-8"))["defect"])


def copy(target: Path) -> Path:
    """Copy the repository, without what is no part of it."""
    return Path(shutil.copytree(ROOT, target, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT)))


def tested(root: Path, tests: Iterable[str], patience: float = PATIENCE) -> tuple[int | None, str]:
    """Run tests in the tree at `root` up to the first failure: pytest's exit code (None: it hung) and last line."""
    names = [f"tests/{name}" for name in tests]
    options = ["-o", "addopts=", "-q", "-x", "--hypothesis-seed=0", *PLUGINS]
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "pytest", *options, *names],  # -u: both streams in the order of their writing
        cwd=root,
        env={**os.environ, **QUIET},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        out, _ = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return None, f"it hung for {patience:.0f} s"
    return process.returncode, (out.strip().splitlines() or [""])[-1]


def ended(root: Path) -> None:
    """End what a test has left running of the tree at `root`: some defects are just that."""
    mark = os.fsencode(root)
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(mark in (process / name).read_bytes() for name in ("cmdline", "environ")):
                os.kill(int(process.name), signal.SIGKILL)


def plant(defect: Defect, root: Path) -> Result:
    """Plant one defect in the tree at `root`, and run its test."""
    began = time.monotonic()
    if problem := defect.problem(root):
        return Result(defect, False, problem, 0.0)
    with defect.planted(root):
        code, said = tested(root, [defect.test])
        ended(root)
    # 1 is "a test failed" for pytest; what cannot be collected or set up does not test anything.
    caught = code == 1 and re.search(r"\b1 failed\b", said) is not None
    return Result(defect, caught, said, time.monotonic() - began)


def survey(chosen: Sequence[Defect]) -> list[Result]:
    """Plant each of `chosen` in turn, once their tests have passed without any (else `RuntimeError`)."""
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        trees: queue.SimpleQueue[Path] = queue.SimpleQueue()
        copies = [copy(Path(folder, str(number))) for number in range(AT_ONCE)]
        code, said = tested(copies[0], dict.fromkeys(defect.test for defect in chosen), 10 * PATIENCE)
        if code:
            raise RuntimeError(f"Without any defect the tests do not pass: {said}")

        def one(defect: Defect) -> Result:
            tree = trees.get()
            try:
                return plant(defect, tree)
            finally:
                trees.put(tree)

        for tree in copies:
            trees.put(tree)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(one, chosen))


def table(results: Sequence[Result]) -> str:
    """The results as a page of Markdown."""
    caught = sum(result.caught for result in results)
    rows = [
        f"| {r.defect.kind} | {r.defect.what} | `{r.defect.file}` | `{r.defect.test.replace('.py::', '::')}` "
        f"| {'caught' if r.caught else 'survives'} | {r.seconds:.0f} |"
        for r in results
    ]
    return "\n".join(
        [
            "# Planted defects",
            "",
            "Do the tests test? Each of these defects was planted by itself in a copy of the repository; the test",
            "beside it passes without it, and has to fail with it. `python tests/project/planted.py` makes this page",
            "again.",
            "",
            f"**{caught} of {len(results)} caught**, in {time.strftime('%B %Y')}.",
            "",
            "| kind | defect | in | test | | seconds |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def main(words: Sequence[str]) -> int:
    """Plant what matches one of `words` (all, where there is none) and print the table; 1 when a defect survives."""
    every = defects()
    chosen = [d for d in every if not words or any(w in f"{d.kind} {d.what} {d.file} {d.test}" for w in words)]
    if not chosen:
        print(f"No defect is like {', '.join(words)}.", file=sys.stderr)
        return 2
    results = survey(chosen)
    page = table(results)
    print(page)
    for result in results:
        if not result.caught:
            print(f"survives: {result.defect.what}: {result.said}", file=sys.stderr)
    if not words:
        TABLE.write_text(page, "utf-8")
    return int(not all(result.caught for result in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
