"""Writes the messages of a request as the blocks of the Messages protocol, with marks for its prompt cache. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeAlias

from cdo.core.exchange import Message, ToolCall

Block: TypeAlias = dict[str, Any]
THINKING = ("thinking", "redacted_thinking")
MOST_MARKS = 4  # a request with more is refused
_MARK = {"cache_control": {"type": "ephemeral"}}


def conversation(
    messages: Sequence[Message], *, marked: bool = True, grows: bool = False
) -> tuple[list[Block], list[dict[str, Any]]]:
    """Return the blocks of the system prompt, and messages whose roles alternate.

    A text is never changed: its blocks, joined, are the text. Only blank texts are left out, which the protocol
    refuses. With `marked`, the provider caches the prompt up to the end of the system prompt, of the part that a
    batch shares, and of the last two rounds of tool results. It looks back only 20 blocks from a mark for what it
    cached before, so the last mark alone would miss the round before a large one. A conversation that `grows`, since
    tools are offered, is marked at its end before its first round too, so that the next round reads all of it.
    """
    system: list[Block] = []
    turns: list[dict[str, Any]] = []
    shared: list[Block] = []
    for message in messages:
        if not (blocks := _blocks(message)):
            continue
        if message.role == "system":
            system += blocks
            continue
        if message.shared and message.text[: message.shared].strip():
            shared.append(blocks[0])
        role = "assistant" if message.role == "assistant" else "user"
        if not turns or turns[-1]["role"] != role:
            turns.append({"role": role, "content": []})
        turns[-1]["content"] += blocks
    if marked:
        rounds = [turn["content"][-1] for turn in turns if turn["content"][0]["type"] == "tool_result"]
        if grows and not rounds and turns:
            rounds = [turns[-1]["content"][-1]]
        heads = [*system[-1:], *shared][: MOST_MARKS - 2]
        for block in (*heads, *rounds[-2:]):
            block.update(_MARK)
    return system, turns


def _blocks(message: Message) -> list[Block]:
    """Return one message as blocks; none if it says nothing."""
    if message.role == "assistant":
        return _said(message)
    if message.role == "tool":
        content = {"content": message.text} if message.text.strip() else {}
        return [{"type": "tool_result", "tool_use_id": message.tool_call_id, **content}]
    return _texts(message.text, message.shared)


def _texts(text: str, shared: int = 0) -> list[Block]:
    """Return a text as one block, or as two if both its shared part and the rest say something."""
    if not (text[:shared].strip() and text[shared:].strip()):
        shared = len(text)
    return [{"type": "text", "text": part} for part in (text[:shared], text[shared:]) if part.strip()]


def _said(message: Message) -> list[Block]:
    """Return a model's own message: what is carried keeps its order, then the rest of the text and of the tool uses.

    Of what is carried, thinking goes back unchanged. A text or a tool use there only states a place between two
    thoughts: it counts as far as it is still part of the message.
    """
    text, calls = message.text, list(message.tool_calls)
    blocks: list[Block] = []
    for block in message.carried:
        kind = block.get("type")
        if kind in THINKING:
            blocks.append(dict(block))
        elif kind == "text" and text.startswith(part := str(block.get("text") or "")):
            blocks += _texts(part)
            text = text[len(part) :]
        elif kind == "tool_use" and (call := next((one for one in calls if one.id == block.get("id")), None)):
            blocks.append(_tool_use(call))
            calls.remove(call)
    return [*blocks, *_texts(text), *map(_tool_use, calls)]


def _tool_use(call: ToolCall) -> Block:
    """Return a tool use; arguments that are not a JSON object are shown as the vendor advises."""
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        arguments = {"INVALID_JSON": call.arguments}
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}
