"""Reads `dispatch/mcp.yaml`: what agents are told about the server, its tools and its prompts."""

from __future__ import annotations

from cdo.core.schema import Schema

NAME = "dispatch/mcp"


class ToolWording(Schema, frozen=True, kw_only=True):
    """What each tool is for."""

    deliberate: str
    decide: str
    status: str
    result: str
    cancel: str
    list: str
    search_decisions: str
    answer: str


class PromptWording(Schema, frozen=True, kw_only=True):
    """A prompt that a person can pick in an agent: what it is about, and the preset that it asks for."""

    about: str
    preset: str


class ServerWording(Schema, frozen=True, kw_only=True):
    """`dispatch/mcp.yaml`. `prompt` is the text of all prompts, with `{preset}` and `{question}` in it."""

    purpose: str
    load_when: str
    instructions: str
    tools: ToolWording
    prompts: dict[str, PromptWording]
    prompt: str

    def filled(self, preset: str, question: str) -> str:
        """Return the text of a prompt for a question."""
        return self.prompt.replace("{preset}", preset).replace("{question}", question)
