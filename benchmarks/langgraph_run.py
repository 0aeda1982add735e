"""The calls of a cdo run, or of a batch, as a graph of LangGraph, with its own client of OpenAI.

The steps of a turn are nodes, and an edge leads back until the turns are used up. A batch is the graph's `abatch`.
Nothing is checked or kept. `frameworks.py` says what its Python needs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import operator
import os
from typing import Annotated, Any, TypedDict

from bare import PROMPT, arguments


class RunState(TypedDict, total=False):
    """What the graph carries from step to step."""

    turn: Annotated[int, operator.add]
    answers: list[str]
    synthesis: str
    final: str


async def run(options: argparse.Namespace) -> list[RunState]:
    """The job as runs of one graph; its client has the transport that openai recommends for many calls at once."""
    from langchain_openai import ChatOpenAI  # type: ignore[import-not-found, unused-ignore]
    from langgraph.graph import END, START, StateGraph  # type: ignore[import-not-found, unused-ignore]
    from openai import DefaultAioHttpClient  # type: ignore[import-not-found, unused-ignore]

    model = ChatOpenAI(
        model="bench", base_url=f"{options.url}/v1", api_key="x", max_retries=0, max_tokens=4096,
        http_async_client=DefaultAioHttpClient(),
    )  # fmt: skip

    async def ask(kind: str, call: str, prompt: str) -> str:
        told = await model.ainvoke(prompt, extra_headers={"X-Cdo-Kind": kind, "X-Cdo-Call": call})
        return str(told.content)

    async def voices(state: RunState) -> RunState:
        turn, prompt = state.get("turn", 0) + 1, f"{PROMPT}\n{state.get('synthesis', '')}"
        asked = (ask("agent", f"t{turn}-voice-{seat}", prompt) for seat in range(1, options.width + 1))
        return {"turn": 1, "answers": list(await asyncio.gather(*asked))}

    async def synthesis(state: RunState) -> RunState:
        text = await ask("synthesis", f"t{state['turn']}-synthesis", "\n\n".join([PROMPT, *state["answers"]]))
        return {"synthesis": text}

    async def final(state: RunState) -> RunState:
        return {"final": await ask("final", "final", f"{PROMPT}\n{state['synthesis']}")}

    def further(state: RunState) -> str:
        return "voices_step" if state["turn"] < options.turns else "final_step"

    graph: Any = StateGraph(RunState)
    for step in (voices, synthesis, final):
        graph.add_node(f"{step.__name__}_step", step)
    graph.add_edge(START, "voices_step")
    graph.add_edge("voices_step", "synthesis_step")
    if options.turns > 1:
        graph.add_conditional_edges("synthesis_step", further, ["voices_step", "final_step"])
    else:
        graph.add_edge("synthesis_step", "final_step")
    graph.add_edge("final_step", END)
    ended: list[RunState] = await graph.compile().abatch([{}] * options.count, {"max_concurrency": options.live})
    return ended


if __name__ == "__main__":
    os.environ["LANGSMITH_TRACING"] = "false"
    print(json.dumps({"final": len(asyncio.run(run(arguments("The job as a graph of LangGraph.")))[-1]["final"])}))
