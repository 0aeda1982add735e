"""Reads requests of Chat Completions, and words the answers to them. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from cdo.core.errors import UsageError
from cdo.core.formatting import one_line
from cdo.core.usage import TotalUsage

PREFIX = "cdo/"
_PIECE = 2000  # most characters of one piece of a streamed answer
_SHOWN = 60
_HEAD = "What was said before this question, oldest first:"
_SINCE = "What was said after this question, oldest first:"


class NoSuchModel(UsageError):
    """The model that a client names is none of this server."""


class ChatRequest(Struct, frozen=True):
    """What a client asks: the `question`, with what was said before it, of a `preset`."""

    model: str
    preset: str
    question: str
    stream: bool
    usage_wanted: bool


def read(data: object, presets: Sequence[str]) -> ChatRequest:
    """Return the request in the body of `POST /v1/chat/completions`; raise `UsageError` naming what is wrong."""
    if not isinstance(data, dict):
        raise UsageError("The body is not a JSON object.")
    model, messages = data.get("model"), data.get("messages")
    preset = preset_of(model, presets)
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise UsageError("`messages` is not a list of messages.")
    if data.get("n") not in (None, 1):
        raise UsageError("A deliberation gives one answer: `n` can only be 1.")
    if data.get("tool_choice") not in (None, "auto", "none"):
        raise UsageError("A deliberation calls no tools of its client: `tool_choice` cannot demand one.")
    shape = data.get("response_format")
    if shape is not None and not (isinstance(shape, dict) and shape.get("type") == "text"):
        raise UsageError("A deliberation answers in Markdown: `response_format` can only be text.")
    if data.get("logprobs"):
        raise UsageError("A deliberation has no `logprobs`.", "Its answer states a confidence.")
    wanted = data.get("stream_options")
    return ChatRequest(
        f"{PREFIX}{preset}",
        preset,
        _question(messages),
        data.get("stream") is True,
        isinstance(wanted, dict) and wanted.get("include_usage") is True,
    )


def preset_of(model: object, presets: Sequence[str]) -> str:
    """Return the preset that a client names as a model, with or without `cdo/`; raise `NoSuchModel`."""
    preset = model.removeprefix(PREFIX) if isinstance(model, str) else ""
    if preset not in presets:
        names = ", ".join(PREFIX + name for name in presets)
        raise NoSuchModel(f"`{one_line(str(model), _SHOWN)}` is not a model here.", f"Name one of {names}.")
    return preset


def _question(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the user's last message, and below it what was said before and after; raise `UsageError` without one.

    After it come answers of tools, and what an assistant has begun to say.
    """
    said = [(str(message.get("role")), _text(message)) for message in messages]
    last = max((at for at, (role, text) in enumerate(said) if role == "user" and text), default=None)
    if last is None:
        raise UsageError("There is no message of a user with a text.", "Ask a question in it.")
    parts = [said[last][1]]
    for head, others in ((_HEAD, said[:last]), (_SINCE, said[last + 1 :])):
        lines = [f"{one_line(role, 20)}:\n{text}" for role, text in others if text]
        parts += [head, *lines] if lines else []
    return "\n\n".join(parts)


def _text(message: Mapping[str, Any]) -> str:
    """Return the text of a message; raise `UsageError` if it holds anything else that has to be seen."""
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content.strip()
    if not isinstance(content, list):
        raise UsageError("The `content` of a message is neither a text nor a list of parts.")
    parts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else part
            raise UsageError(f"A part of a message is not a text: {one_line(str(kind), _SHOWN)}.", "Send texts.")
        parts.append(part["text"])
    return "\n".join(parts).strip()


class ChatAnswer(Struct, frozen=True):
    """What is common to all pieces of one answer. `created` is in seconds since 1970."""

    id: str
    model: str
    created: int

    def whole(self, text: str, used: TotalUsage, about: Mapping[str, Any]) -> dict[str, Any]:
        """Return a whole answer; `about` tells of the session."""
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
        return {**self._head("chat.completion"), "choices": [choice], "usage": usage(used), "cdo": dict(about)}

    def pieces(self, text: str) -> Iterator[dict[str, Any]]:
        """Yield the pieces of a streamed answer, up to the one that says that it has ended."""
        yield self._piece({"role": "assistant", "content": ""})
        for at in range(0, len(text), _PIECE):
            yield self._piece({"content": text[at : at + _PIECE]})
        yield self._piece({}, "stop")

    def count(self, used: TotalUsage, about: Mapping[str, Any]) -> dict[str, Any]:
        """Return the last piece of a streamed answer, with the usage."""
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": usage(used), "cdo": dict(about)}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _piece(self, delta: Mapping[str, Any], reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": dict(delta), "finish_reason": reason, "logprobs": None}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}


def usage(used: TotalUsage) -> dict[str, int]:
    """Return the tokens of all calls of a run."""
    read, written = used.input_tokens, used.output_tokens
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def listed(preset: str) -> dict[str, Any]:
    """Return a preset as an entry in the list of models."""
    return {"id": f"{PREFIX}{preset}", "object": "model", "created": 0, "owned_by": "cdo"}


def error(message: str, kind: str, code: str | None = None) -> dict[str, Any]:
    """Return the body of an error."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def event(data: Mapping[str, Any] | str) -> bytes:
    """Return a server-sent event."""
    return f"data: {data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)}\n\n".encode()


def comment(text: str) -> bytes:
    """Return a comment of a stream, which clients ignore; it shows a person how far the run is."""
    return f": {one_line(text, 300)}\n\n".encode("utf-8", "replace")
