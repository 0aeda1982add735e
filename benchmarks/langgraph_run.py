"""The calls of a cdo run as a graph of LangGraph, with its own client of OpenAI: a yardstick for frameworks.

The steps of a turn are nodes, and an edge leads back until the turns are used up. Nothing is checked or kept. It runs
in a Python of its own (`pip install langgraph langchain-openai`), which `run.py --langgraph PYTHON` names.
"""

from __future__ import annotations

import asyncio
import json
import operator
import os
from typing import Annotated, TypedDict

from bare import PROMPT, arguments


class RunState(TypedDict, total=False):
    """What the graph carries from step to step."""

    turn: Annotated[int, operator.add]
    answers: list[str]
    synthesis: str
    final: str


async def run(url: str, turns: int, width: int) -> RunState:
    """The job as one run of the graph."""
    from langchain_openai import ChatOpenAI  # type: ignore[import-not-found, unused-ignore]
    from langgraph.graph import END, START, StateGraph  # type: ignore[import-not-found, unused-ignore]

    model = ChatOpenAI(model="bench", base_url=f"{url}/v1", api_key="x", max_retries=0, max_tokens=4096)

    async def ask(kind: str, call: str, prompt: str) -> str:
        told = await model.ainvoke(prompt, extra_headers={"X-Cdo-Kind": kind, "X-Cdo-Call": call})
        return str(told.content)

    async def voices(state: RunState) -> RunState:
        turn, prompt = state.get("turn", 0) + 1, f"{PROMPT}\n{state.get('synthesis', '')}"
        asked = (ask("agent", f"t{turn}-voice-{seat}", prompt) for seat in range(1, width + 1))
        return {"turn": 1, "answers": list(await asyncio.gather(*asked))}

    async def synthesis(state: RunState) -> RunState:
        text = await ask("synthesis", f"t{state['turn']}-synthesis", "\n\n".join([PROMPT, *state["answers"]]))
        return {"synthesis": text}

    async def final(state: RunState) -> RunState:
        return {"final": await ask("final", "final", f"{PROMPT}\n{state['synthesis']}")}

    def further(state: RunState) -> str:
        return "voices_step" if state["turn"] < turns else "final_step"

    graph = StateGraph(RunState)
    for step in (voices, synthesis, final):
        graph.add_node(f"{step.__name__}_step", step)
    graph.add_edge(START, "voices_step")
    graph.add_edge("voices_step", "synthesis_step")
    graph.add_conditional_edges("synthesis_step", further, ["voices_step", "final_step"])
    graph.add_edge("final_step", END)
    ended: RunState = await graph.compile().ainvoke({})
    return ended


if __name__ == "__main__":
    os.environ["LANGSMITH_TRACING"] = "false"
    options = arguments("The calls of a cdo run as a graph of LangGraph.")
    print(json.dumps({"final": len(asyncio.run(run(options.url, options.turns, options.width))["final"])}))
