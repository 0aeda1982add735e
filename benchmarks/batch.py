"""Measure `cdo batch` beside the same calls made bare and by LangGraph's own batch, and print a Markdown table.

A provider on loopback answers at once, so the figures are what each side adds. Every side is a whole process from
start to exit; the sides run in turn. LangGraph is measured where it is installed (`pip install langgraph
langchain-openai`). Compare ratios within one table: seconds drift from machine to machine.

    python benchmarks/batch.py                 # 1,000 deliberations of five calls, 100 live, three times a side
    python benchmarks/batch.py -n 200 -k 1
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, TypedDict

import bare
from processes import Ended, cdo, python
from run import provider

WIDTH = 3
CALLS = WIDTH + 2
HERE = Path(__file__).resolve()
Side = Callable[[Path, str, int, int], Ended]


def by_cdo(folder: Path, url: str, count: int, live: int) -> Ended:
    """Run `cdo batch` over so many questions; raise `SystemExit` unless all of them are done."""
    lines = (json.dumps({"question": f"Question {number}: {bare.PROMPT}"}) for number in range(count))
    (folder / "items.jsonl").write_text("\n".join(lines))
    ended = cdo(
        folder, "batch", "items.jsonl", "--preset", "think", "--width", str(WIDTH), "--turns", "1", "--no-review",
        "--live", str(live), "-m", "openai/bench", "--yes", "--json", url=url,
    )  # fmt: skip
    if json.loads(ended.out)["done"] != count:
        raise SystemExit(f"cdo batch: {ended.out}")
    return ended


def by_script(name: str) -> Side:
    """Return the side that runs one of the functions below in a process of its own."""

    def side(folder: Path, url: str, count: int, live: int) -> Ended:
        return python(folder, str(HERE), "--side", name, "--url", url, "-n", str(count), "--live", str(live), url=url)

    return side


async def bare_batch(url: str, count: int, live: int) -> None:
    """The same calls through one aiohttp session, nothing kept."""
    import aiohttp

    gate = asyncio.Semaphore(live)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        ask = bare.asking(session, url)

        async def one() -> None:
            async with gate:
                await bare.deliberate(ask, 1, WIDTH)

        await asyncio.gather(*(one() for _ in range(count)))


class GraphState(TypedDict, total=False):
    """What the graph of one deliberation carries from step to step."""

    question: str
    answers: list[str]
    synthesis: str
    final: str


async def langgraph_batch(url: str, count: int, live: int) -> None:
    """The same calls by a graph of three steps, run by `abatch`, nothing kept."""
    from langchain_openai import ChatOpenAI  # type: ignore[import-not-found, unused-ignore]
    from langgraph.graph import END, START, StateGraph  # type: ignore[import-not-found, unused-ignore]

    model = ChatOpenAI(model="bench")  # address and key are in its environment

    async def ask(kind: str, call: str, prompt: str) -> str:
        told = await model.ainvoke(prompt, extra_headers={"X-Cdo-Kind": kind, "X-Cdo-Call": call})
        return str(told.content)

    async def voices(state: GraphState) -> GraphState:
        asked = (ask("agent", f"t1-voice-{seat}", state["question"]) for seat in range(1, WIDTH + 1))
        return {"answers": list(await asyncio.gather(*asked))}

    async def synthesis(state: GraphState) -> GraphState:
        return {"synthesis": await ask("synthesis", "t1-synthesis", "\n\n".join([bare.PROMPT, *state["answers"]]))}

    async def final(state: GraphState) -> GraphState:
        return {"final": await ask("final", "final", f"{bare.PROMPT}\n{state['synthesis']}")}

    graph: Any = StateGraph(GraphState)
    steps = (voices, synthesis, final)
    for step in steps:
        graph.add_node(step.__name__ + "_step", step)
    names = [START, *(step.__name__ + "_step" for step in steps), END]
    for before, after in pairwise(names):
        graph.add_edge(before, after)
    inputs = [{"question": f"Question {number}: {bare.PROMPT}"} for number in range(count)]
    await graph.compile().abatch(inputs, config={"max_concurrency": live})


SCRIPTS = {"bare": bare_batch, "langgraph": langgraph_batch}


def table(found: dict[str, list[Ended]], count: int) -> str:
    """Return a row for each side: median seconds, milliseconds of a deliberation, peak memory, ratio to bare."""
    base = statistics.median(ended.seconds for ended in found["bare"])
    rows = ["| side | seconds | ms each | peak MB | × bare |", "|---|---|---|---|---|"]
    for name, ended in found.items():
        seconds = statistics.median(one.seconds for one in ended)
        most = max(one.megabytes for one in ended)
        rows.append(f"| {name} | {seconds:.1f} | {1000 * seconds / count:.1f} | {most:.0f} | {seconds / base:.2f} |")
    return "\n".join(rows)


def main() -> None:
    """Measure the sides in turn, or run one side where `--side` names it."""
    parser = argparse.ArgumentParser(description="cdo batch beside bare calls and LangGraph's batch.")
    parser.add_argument("-n", type=int, default=1000, help="deliberations")
    parser.add_argument("-k", type=int, default=3, help="processes of each side")
    parser.add_argument("--live", type=int, default=100, help="deliberations at a time")
    parser.add_argument("--side", choices=SCRIPTS, help=argparse.SUPPRESS)
    parser.add_argument("--url", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        asyncio.run(SCRIPTS[options.side](options.url, options.n, options.live))
        return
    sides: dict[str, Side] = {"bare": by_script("bare"), "cdo batch": by_cdo}
    if find_spec("langgraph") and find_spec("langchain_openai"):
        sides["langgraph"] = by_script("langgraph")
    found: dict[str, list[Ended]] = {name: [] for name in sides}
    with provider(WIDTH, latency=0.0) as url, tempfile.TemporaryDirectory() as home:
        for number in range(options.k):
            for name, side in sides.items():
                folder = Path(home) / f"{name.replace(' ', '-')}-{number}"
                folder.mkdir()
                found[name].append(side(folder, url, options.n, options.live))
                print(f"{name}: {found[name][-1].seconds:.1f} s", file=sys.stderr)
    print(f"{options.n} deliberations of {CALLS} calls, {options.live} live\n\n{table(found, options.n)}")


if __name__ == "__main__":
    main()
