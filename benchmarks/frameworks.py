"""The frameworks that benchmarks set beside cdo: each does the same calls in a Python of its own.

The Agent Framework is here because it was the fastest of those that were tried in November 2026: with the same calls
AutoGen, LangGraph, Pydantic AI, OpenAI Agents, Agno and Strands took longer. LangGraph is here because it is the best
known, and because it has a batch of its own.
"""

from __future__ import annotations

import argparse
from pathlib import Path

NAMES = {"agent_framework": "Agent Framework", "langgraph": "LangGraph"}
PACKAGES = {
    "agent_framework": "agent-framework-core agent-framework-openai openai[aiohttp]",
    "langgraph": "langgraph langchain-openai openai[aiohttp]",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add an option for each framework, which names the Python that has it."""
    for name, title in NAMES.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, metavar="PYTHON", help=f"measure {title} with it; it has {PACKAGES[name]}")


def chosen(options: argparse.Namespace) -> dict[str, str]:
    """The frameworks that a person asked for, each with its Python."""
    return {name: python for name in NAMES if (python := getattr(options, name))}


def script(name: str) -> str:
    """The path of the script that does the job with a framework."""
    return str(Path(__file__).with_name(f"{name}_run.py"))
