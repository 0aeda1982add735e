"""Sends requests by OpenAI's Responses protocol over aiohttp: streamed, with tools, reasoning and cache breakpoints.

Nothing is stored at the provider: reasoning comes back encrypted, and goes out again with the conversation. A reply
counts as complete only if the provider's last event said so; a stream that just stops is truncated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from cdo.core.exchange import Effort, Message, Request
from cdo.providers.http.backend import SCHEMA_NAME, SCHEMA_REFUSED, HttpBackend
from cdo.providers.http.reply import IncomingReply
from cdo.providers.http.responses_reply import ResponsesReply

# Parts of a request that not every model accepts. The first refusal of one is remembered.
_BREAKPOINT, _ENCRYPTED = "prompt_cache_breakpoint", "encrypted_content"
_OPTIONAL = {
    "reasoning",
    "include",
    "temperature",
    "prompt_cache_key",
    "prompt_cache_options",
    _BREAKPOINT,
    _ENCRYPTED,
}
_QUOTED = re.compile(r"""['"`]([\w.\[\]]+)['"`]""")
# Reasoning of an earlier answer that cannot be read any more, such as after another server took over.
_UNREADABLE = re.compile(
    r"encrypted.content.{0,80}(verified|decrypted|not issued)|\bitem (with id )?'rs_", re.IGNORECASE
)
# The versions of GPT from which on a word for the greatest effort is known. Other models know "high" at most.
_GREATEST_EFFORT = (((5, 6), "max"), ((5, 2), "xhigh"))
_BY_BREAKPOINT = (5, 6)  # from this version on a prompt is found in the cache only by its breakpoints
_REASONING = (5, 0)  # earlier versions do not reason, and refuse to be asked for reasoning
_LONGEST_KEY = 64


@dataclass
class ResponsesBackend(HttpBackend):
    """Calls one provider, at its base address (…/v1)."""

    path = "/responses"
    structured = "text"

    def _reply(self) -> IncomingReply:
        return ResponsesReply()

    def _named(self, message: str, body: Mapping[str, Any]) -> Set[str]:
        if self.structured in body and SCHEMA_REFUSED.search(message):
            return {self.structured}
        return _named(message)

    def _body(self, request: Request) -> dict[str, Any]:
        refused, version = self.left_out(request.model), _version(request.model)
        marked = version >= _BY_BREAKPOINT and _BREAKPOINT not in refused
        messages = request.messages
        if _ENCRYPTED in refused:
            messages = tuple(replace(message, carried=()) for message in messages)
        items = [item for message in messages for item in _items(message, marked)]
        body: dict[str, Any] = {
            "model": request.model,
            "input": items,
            "stream": True,
            "store": False,
            "max_output_tokens": request.max_tokens,
        }
        if tools := request.tools or request.closed_tools:
            body["tools"] = [{"type": "function", **tool, "strict": False} for tool in tools]
        if request.closed_tools:
            body["tool_choice"] = "none"
        optional = {
            "reasoning": {"effort": _effort(request.effort, version)} if request.effort else None,
            "include": None if (0, 0) < version < _REASONING else ["reasoning.encrypted_content"],
            "temperature": self.temperature,
            "prompt_cache_key": request.cache_key[:_LONGEST_KEY] or None,
            # By default the whole prompt is written to the cache as well, at a surcharge. Only the next round of a
            # conversation with tools reads that.
            "prompt_cache_options": {"mode": "explicit"} if marked and not request.tools else None,
        }
        if schema := self._schema(request):
            told = {"type": "json_schema", "name": SCHEMA_NAME, "strict": True, "schema": schema}
            body[self.structured] = {"format": told}
        body |= {name: value for name, value in optional.items() if value is not None and name not in refused}
        return body


def _version(model: str) -> tuple[int, int]:
    """Return the version of GPT that a model's name states; (0, 0) if it states none."""
    found = re.search(r"\bgpt-(\d)(?:\.(\d+))?(?!\d)", model)
    return (int(found[1]), int(found[2] or 0)) if found else (0, 0)


def _effort(effort: Effort, version: tuple[int, int]) -> str:
    """Return the protocol's word for an effort, as far as models of this version know it."""
    if effort is not Effort.MAX:
        return effort.value
    return next((word for since, word in _GREATEST_EFFORT if version >= since), "high")


def _named(message: str) -> set[str]:
    """Return the optional parts of a request that an error's text complains about.

    That is the name which `faults.said` put at its end, else the first one in quotes, else any.
    """
    if _UNREADABLE.search(message):
        return {_ENCRYPTED}
    ending = re.search(r"\(`([^`]+)`\)$", message)
    name = ending or _QUOTED.search(message)
    return _OPTIONAL & set(re.findall(r"\w+", name[1] if name else message))


def _items(message: Message, marked: bool) -> Iterator[dict[str, Any]]:
    """Yield a message as items of the protocol; `marked` puts a cache breakpoint at the end of what is shared."""
    if message.role == "tool":
        yield {"type": "function_call_output", "call_id": message.tool_call_id, "output": message.text}
    elif message.role == "assistant":
        yield from _own_items(message)
    elif parts := _parts(message):
        if marked and message.shared:
            parts[0][_BREAKPOINT] = {"mode": "explicit"}
        # The system prompt is a message, not the field `instructions`: that one cannot hold a breakpoint.
        yield _message({"system": "developer"}.get(message.role, message.role), parts)


def _parts(message: Message) -> list[dict[str, Any]]:
    """Return a message's text in two parts, what is shared and what is not; an empty one is left out."""
    texts = message.text[: message.shared], message.text[message.shared :]
    return [{"type": "input_text", "text": text} for text in texts if text]


def _message(role: str, content: list[dict[str, Any]], phase: Any = None) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content, **({"phase": phase} if phase else {})}


def _own_items(message: Message) -> list[dict[str, Any]]:
    """Return the items of a model's own message: in the order of `carried`, without reasoning that leads nowhere."""
    calls = [
        {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments or "{}"}
        for call in message.tool_calls
    ]
    text, items = message.text, list[dict[str, Any]]()
    for item in (*message.carried, {"type": "message"}):
        match item.get("type"):
            case "reasoning":
                items.append(dict(item))
            case "message" if text:
                items.append(_message("assistant", [{"type": "output_text", "text": text}], item.get("phase")))
                text = ""
            case "function_call" if calls and calls[0]["call_id"] == item.get("call_id"):
                items.append(calls.pop(0))
    items += calls
    while items and items[-1]["type"] == "reasoning":  # it is refused without the item that followed it
        items.pop()
    return items
