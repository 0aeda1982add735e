"""Let cdo compete with a single call of the same model, and have a judge compare the answers blind.

    python benchmarks/duel.py cases                            # what there is to compete on
    python benchmarks/duel.py run --model openai/gpt-4.1       # all cases, `cdo think` against one call
    python benchmarks/duel.py run --case cache-savings --preset quick --model openai/gpt-4.1 --judge openai/o3
    python benchmarks/duel.py report DIR                       # make the tables again from what is on disk

Each case is answered by one call and by `cdo PRESET` as a process of its own, from the same material. The judge
compares both in both orders (docs/duel.md). Everything is kept in the folder of --out; the same command again goes on
where it stopped and pays for nothing twice. That folder must not lie in a git repository: cdo would read that as
evidence.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from platformdirs import user_state_path
from processes import ROOT

sys.path.insert(0, str(ROOT))

import duel_cases
import duel_table
from duel_calls import Ask, Model, models, prompt, read, save
from duel_cases import Case
from duel_texts import Shown, judgement, of_final, of_reply

from cdo.core.errors import CdoError, ModelsFailed, UsageError
from cdo.repository.work_tree import root_of
from cdo.session import records

LOOK = 0.5  # seconds from one look at a session that another process runs to the next
STOPPING = 15.0  # seconds that a process of cdo has to end when the duel is told to
SLACK = 1000  # tokens of room for the material beyond what it is estimated to take


@dataclass(frozen=True)
class Duel:
    """One duel: where it is kept, who answers and who judges."""

    out: Path
    preset: str
    model: Model
    judge: Model
    running: asyncio.Semaphore

    async def hold(self, case: Case) -> None:
        """Hold one case to its end; raise `CdoError` where a part of it fails."""
        async with self.running:
            place = self.out / case.name
            _same(place / "case.json", _about(case), f"{place} was made from other material.")
            single, final = await _both(self._single(case, place), self._deliberate(case, place))
            save(place / "single.md", single.text)
            save(place / "cdo.md", final.text)
            facts = {"cut": list(final.cut), "tells": {"single": single.tells, "cdo": final.tells}}
            save(place / "shown.json", facts | {"words": {"single": single.words, "cdo": final.words}})
            await _both(*(self._judge(case, place, name, single, final) for name in ("judge-1", "judge-2")))
            _say(case, "judged in both orders")

    async def _single(self, case: Case, place: Path) -> Shown:
        """What one call of the model answers."""
        asked = prompt("single", today=case.told.date, question=case.question, material=case.text)
        shown = await self.model.call(place / "single.json", Ask("single", case.name, "single", asked), of_reply)
        _say(case, "answered by one call")
        return shown

    async def _judge(self, case: Case, place: Path, name: str, single: Shown, final: Shown) -> None:
        """Have both answers compared in one of the two orders."""
        order = [single.text, final.text] if duel_table.single_first(case.name, name) else [final.text, single.text]
        asked = prompt("judge", question=case.question, material=case.text, first=order[0], second=order[1])
        await self.judge.call(place / f"{name}.json", Ask("judge", case.name, name, asked), judgement)

    async def _deliberate(self, case: Case, place: Path) -> Shown:
        """What cdo answers, as a process of its own in a folder of its own."""
        folder = place / "cdo"
        session = folder / "tmp" / f"{records.PREFIX}{case.name}"
        _lay_out(case, folder)
        for look in count():
            if not records.locked(session):
                break
            if not look:
                _say(case, "another process still runs this session: waiting for it")
            await asyncio.sleep(LOOK)
        if not (session / "FINAL.md").exists():
            words = (
                ["resume", case.name] if session.exists() else [self.preset, "@question.txt", "--session", case.name]
            )
            if words[0] != "resume":
                words += [word for file in case.files for word in ("-c", file)]
            code = await self._cdo(case, folder, [*words, "-m", self.model.name])
            if code or not (session / "FINAL.md").exists():
                told = (folder / "err.txt").read_text("utf-8", "replace").strip()[-600:]
                raise ModelsFailed(f"{case.name}: `cdo {words[0]}` ended with {code}: {told}")
        _say(case, "answered by cdo")
        return of_final((session / "FINAL.md").read_text("utf-8"))

    async def _cdo(self, case: Case, folder: Path, words: Sequence[str]) -> int:
        """Run cdo to its end; its exit code. Being stopped, stop it so that it can be resumed."""
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        env = {**os.environ, "PYTHONPATH": path, "CDO_CONTEXT_TOKENS": str(case.tokens + SLACK)}
        env["CDO_TODAY"] = case.told.date
        command = [sys.executable, "-m", "cdo", *words, "--out", "tmp", "--no-git", "--yes", "--no-input"]
        ended: dict[str, Any] = read(folder / "ended.json") or {"runs": []}
        began, code = time.monotonic(), None
        with (folder / "out.txt").open("wb") as out, (folder / "err.txt").open("wb") as err:
            process = await asyncio.create_subprocess_exec(
                *command, cwd=folder, env=env, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=err,
                start_new_session=True,
            )  # fmt: skip
            try:
                code = await process.wait()
            finally:
                if code is None:
                    await _stopped(process)
                seconds = round(time.monotonic() - began, 3)
                ended["runs"].append({"words": list(words), "code": process.returncode, "seconds": seconds})
                save(folder / "ended.json", ended)
        return code


async def _stopped(process: asyncio.subprocess.Process) -> None:
    """End a process gently, or else at once."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    try:
        await asyncio.wait_for(process.wait(), STOPPING)
    except TimeoutError:
        process.kill()
        await process.wait()


async def _both(*parts: Awaitable[Any]) -> list[Any]:
    """Results of parts that run side by side. Where one fails the others still come to their end."""
    found = await asyncio.gather(*parts, return_exceptions=True)
    if error := next((item for item in found if isinstance(item, BaseException)), None):
        raise error
    return found


def _about(case: Case) -> dict[str, Any]:
    """What is kept of a case, so that a report needs nothing else."""
    kept = {
        "name": case.name,
        "kind": case.told.kind,
        "about": case.told.about,
        "date": case.told.date,
        "digest": case.digest,
    }
    return {**kept, "files": list(case.files), "tokens": case.tokens}


def _same(path: Path, data: dict[str, Any], otherwise: str) -> None:
    """Write a file, or raise `UsageError` where it holds something else."""
    there = read(path)
    if there is not None and there.get("digest", there) != data.get("digest", data):
        raise UsageError(otherwise, "Name another folder with --out, or remove this one.")
    save(path, data)


def _lay_out(case: Case, folder: Path) -> None:
    """The folder in which cdo runs: the question and the material, nothing else."""
    save(folder / "question.txt", case.question + "\n")
    if not (folder / "material").exists():
        shutil.rmtree(folder / "material.new", ignore_errors=True)
        shutil.copytree(case.folder / "material", folder / "material.new")
        (folder / "material.new").rename(folder / "material")


def _say(case: Case, what: str) -> None:
    print(f"{case.name}: {what}", file=sys.stderr, flush=True)


# -- commands ----------------------------------------------------------------------------------------


async def _held(cases: Sequence[Case], options: argparse.Namespace) -> list[str]:
    """Hold all cases side by side; what went wrong, in sentences."""
    found = models(options.model, options.judge or options.model)
    model, judge = found[options.model], found[options.judge or options.model]
    duel = Duel(options.out, options.preset, model, judge, asyncio.Semaphore(options.jobs))
    window = model.seat.spec.window
    for case in cases:
        if case.tokens > window // 3:  # what the voices wrote has to fit beside it
            much = f"{case.tokens:,} of the {window:,} tokens that cdo takes for the window of {model.name}"
            _say(case, f"the material takes {much}: cdo may shorten prompts, the single call gets all of it")
    me, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert me is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, me.cancel)
    try:
        ended = await asyncio.gather(*map(duel.hold, cases), return_exceptions=True)
    finally:
        for backend in {id(item.seat.backend): item.seat.backend for item in (model, judge)}.values():
            await backend.close()
    if odd := next(
        (item for item in ended if isinstance(item, BaseException) and not isinstance(item, CdoError)), None
    ):
        raise odd
    return [f"{item.message} {item.hint}".strip() for item in ended if isinstance(item, CdoError)]


def run(options: argparse.Namespace) -> None:
    """Hold a duel, or go on with one, and write its tables."""
    chosen = options.case or duel_cases.names(options.cases)
    cases = [duel_cases.load(options.cases, name) for name in dict.fromkeys(chosen)]
    if around := root_of(options.out):
        raise UsageError(
            f"{options.out} lies in the git repository {around}, which cdo would read as evidence.",
            "Name a folder outside of any repository with --out.",
        )
    held = {"preset": options.preset, "model": options.model, "judge": options.judge or options.model}
    _same(options.out / "duel.json", held, f"{options.out} holds a duel of another preset, model or judge.")
    try:
        problems = asyncio.run(_held(cases, options))
    except (asyncio.CancelledError, KeyboardInterrupt):
        print("duel.py: Stopped; the same command goes on from here.", file=sys.stderr)
        raise SystemExit(130) from None
    print(duel_table.write(options.out))
    for problem in problems:
        print(f"duel.py: {problem}", file=sys.stderr)
    if problems:
        raise SystemExit(1)


def report(options: argparse.Namespace) -> None:
    """Make the tables of a duel again, from its folder alone."""
    if not (options.folder / "duel.json").exists():
        raise UsageError(f"{options.folder} holds no duel.", "Name the folder that `run` wrote.")
    print(duel_table.write(options.folder))


def cases(options: argparse.Namespace) -> None:
    """List the cases; one that cannot be read is told of, and fails the command at its end."""
    wrong = 0
    for name in duel_cases.names(options.cases):
        try:
            case = duel_cases.load(options.cases, name)
        except UsageError as error:
            print(f"{name}  WRONG  {error.message}")
            wrong += 1
            continue
        print(f"{name}  {case.told.kind}  {len(case.files)} files, {case.tokens:,} tokens  {case.told.about}")
        for note in case.notes if options.notes else ():
            print(f"    {note}")
    if wrong:
        raise SystemExit(UsageError.exit_code)


def main(argv: Sequence[str]) -> None:
    """Read the command line and do what it says."""
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="duel.py", description=__doc__, formatter_class=shape)
    commands = parser.add_subparsers(required=True, metavar="run|report|cases")
    command = commands.add_parser("run", help="hold a duel, or go on with one")
    command.add_argument("--case", nargs="+", metavar="NAME", help="these cases only")
    command.add_argument("--cases", type=Path, default=duel_cases.CASES, metavar="DIR", help="where the cases lie")
    command.add_argument("--preset", default="think", help="what cdo runs (default: think)")
    command.add_argument("--model", required=True, metavar="NAME", help="answers alone and sits in every seat of cdo")
    command.add_argument("--judge", metavar="NAME", help="the model that compares (default: that of --model)")
    command.add_argument("--out", type=Path, default=user_state_path("cdo") / "duel", metavar="DIR")
    command.add_argument("--jobs", type=int, default=8, metavar="N", help="cases held at once (default: 8)")
    command.set_defaults(act=run)
    command = commands.add_parser("report", help="make the tables again")
    command.add_argument("folder", type=Path)
    command.set_defaults(act=report)
    command = commands.add_parser("cases", help="list the cases")
    command.add_argument("--cases", type=Path, default=duel_cases.CASES, metavar="DIR", help="where they lie")
    command.add_argument(
        "--notes", action="store_true", help="what a very good answer finds; no model ever reads this"
    )
    command.set_defaults(act=cases)
    options = parser.parse_args(argv)
    if "out" in options:
        options.out = options.out.absolute()
    try:
        options.act(options)
    except CdoError as error:
        print(f"duel.py: {error.message}\n         {error.hint}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None


if __name__ == "__main__":
    main(sys.argv[1:])
