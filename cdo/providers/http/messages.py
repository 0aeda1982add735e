"""Sends requests by Anthropic's Messages protocol over aiohttp: streamed, with caching, thinking, effort and tools.

A reply counts as complete only if the provider stated why it ended; a stream that just stops is truncated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from cdo.core.exchange import Fault, Finish, Request, Response, ToolCall, Usage
from cdo.providers.http.backend import SCHEMA_REFUSED, HttpBackend
from cdo.providers.http.messages_prompt import THINKING, Block, conversation
from cdo.providers.http.reply import IncomingReply, joined
from cdo.providers.http.transport import END
from cdo.providers.reported_usage import count, reported

VERSION = "2023-06-01"
# A turn that the provider paused (`pause_turn`) is not complete, so it stands here as little as an unknown reason.
FINISH = {
    "end_turn": Finish.STOP,
    "stop_sequence": Finish.STOP,
    "max_tokens": Finish.LENGTH,
    "model_context_window_exceeded": Finish.LENGTH,
    "tool_use": Finish.TOOLS,
    "refusal": Finish.REFUSAL,
}
# Thinking of an earlier answer that the provider does not accept back, such as after a change of the model.
_UNACCEPTED = re.compile(r"\bsignature\b|thinking.{0,80}cannot be modified", re.IGNORECASE)
# Parameters that not every model takes, and the words by which a provider refuses them.
_OPTIONAL = {
    "output_config": re.compile(r"output_config|\beffort\b", re.IGNORECASE),
    "thinking": re.compile(r"\bthinking\b", re.IGNORECASE),
    "temperature": re.compile(r"\btemperature\b", re.IGNORECASE),
    "cache_control": re.compile(r"\bcache_control\b", re.IGNORECASE),
}
# Where each kind of delta belongs: the kind of block, its field there, and the field of the delta.
_DELTAS = {
    "text_delta": ("text", "text", "text"),
    "thinking_delta": ("thinking", "thinking", "thinking"),
    "signature_delta": ("thinking", "signature", "signature"),
    "input_json_delta": ("tool_use", "input", "partial_json"),
}
_SENT = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")  # together the whole prompt


@dataclass
class MessagesBackend(HttpBackend):
    """Calls one provider, at its base address with or without `/v1`."""

    path = "/v1/messages"
    structured = "output_config.format"

    def __post_init__(self) -> None:
        self.url = self.url.rstrip("/").removesuffix("/v1")
        super().__post_init__()

    def _headers(self, key: str) -> dict[str, str]:
        return {"anthropic-version": VERSION, **({"x-api-key": key} if key else {})}

    def _reply(self) -> IncomingReply:
        return _MessagesReply()

    def _named(self, message: str, body: Mapping[str, Any]) -> Set[str]:
        if not message.startswith(("HTTP 400", "HTTP 422")):
            return set()
        if _UNACCEPTED.search(message):
            return {"carried"}
        if "format" in body.get("output_config", {}) and SCHEMA_REFUSED.search(message):
            return {self.structured}
        sent = {*body, "cache_control"}
        named = {name for name, words in _OPTIONAL.items() if name in sent and words.search(message)}
        # Thinking is asked for only together with effort.
        return named | {"thinking"} if "output_config" in named else named

    def _body(self, request: Request) -> dict[str, Any]:
        left_out = self.left_out(request.model)
        said = request.messages
        if "carried" in left_out:
            said = tuple(replace(message, carried=()) for message in said)
        system, messages = conversation(said, marked="cache_control" not in left_out, grows=bool(request.tools))
        body: dict[str, Any] = {"model": request.model, "max_tokens": request.max_tokens, "stream": True}
        if system:
            body["system"] = system
        body["messages"] = messages
        if tools := request.tools or request.closed_tools:
            body["tools"] = [_tool(tool) for tool in tools]
        if request.closed_tools:
            body["tool_choice"] = {"type": "none"}
        if request.effort:
            optional: dict[str, Any] = {
                "output_config": {"effort": request.effort.value},
                # Without a display, thinking is not sent at all, and a model that thinks long seems dead.
                "thinking": {"type": "adaptive", "display": "summarized"},
            }
            body |= {name: value for name, value in optional.items() if name not in left_out}
        if schema := self._schema(request):
            body.setdefault("output_config", {})["format"] = {"type": "json_schema", "schema": schema}
        if self.temperature is not None and "thinking" not in body and "temperature" not in left_out:
            body["temperature"] = self.temperature
        return body


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool as the protocol describes it: its parameters have another name."""
    described = {key: value for key, value in tool.items() if key != "parameters"}
    return {**described, "input_schema": tool.get("parameters") or {"type": "object"}}


class _ContentBlock(Struct):
    """One block of the answer: its data as it began, and by field what was added to it."""

    data: Block
    added: dict[str, list[str]] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return str(self.data.get("type"))

    def whole(self) -> Block:
        """Return the block with all that was added, except to a tool use: see `call`."""
        texts = {name: str(self.data.get(name) or "") + "".join(pieces) for name, pieces in self.added.items()}
        return {**self.data, **(texts if self.kind != "tool_use" else {})}

    def call(self) -> ToolCall:
        """Return a tool use."""
        ident, name = (joined([str(self.data.get(key) or "")]) for key in ("id", "name"))
        written, given = "".join(self.added.get("input", ())), self.data.get("input") or {}
        return ToolCall(ident, name, joined([written or json.dumps(given, ensure_ascii=False)]))


class _MessagesReply(IncomingReply):
    """The answer received so far, event by event or in one piece."""

    blocks: dict[int, _ContentBlock] = field(default_factory=dict)
    counts: dict[str, Any] = field(default_factory=dict)

    @property
    def settled(self) -> bool:
        return self.finish in FINISH

    def take(self, event: str) -> str:
        """Add one event and return the text in it; raise `BackendError` for an error event or broken JSON."""
        if event == END:  # not part of the protocol, but some gateways send it
            self.done = True
            return ""
        data = self._checked(event)
        index = data.get("index")
        place = index if isinstance(index, int) else max(self.blocks, default=0)
        match data.get("type"):
            case "message_start":
                # The count of output tokens is a beginning here, not what was written.
                usage = _dict(_dict(data.get("message")).get("usage"))
                self._count({key: value for key, value in usage.items() if key != "output_tokens"})
            case "content_block_start":
                return self._begin(place, _dict(data.get("content_block")))
            case "content_block_delta":
                return self._add(place, _dict(data.get("delta")))
            case "message_delta":
                self._count(data.get("usage"))
                self._end(_dict(data.get("delta")))
            case "message_stop":
                self.done = True
        return ""

    def whole(self, body: str) -> str:
        """Add the whole answer and return its text; raise `BackendError` for an error or broken JSON."""
        data = self._checked(body)
        self.done = True
        self._count(data.get("usage"))
        self._end(data)
        content = data.get("content")
        for place, block in enumerate(content if isinstance(content, list) else ()):
            self._begin(place, _dict(block))
        return self.text

    def _checked(self, text: str) -> Mapping[str, Any]:
        data = self.parsed(text)
        if data.get("error") or data.get("type") == "error":
            raise self.failed(data.get("error") or data)
        return data

    def _begin(self, place: int, block: Block) -> str:
        self.blocks[place] = _ContentBlock(block)
        return self._keep(block.get("type"), block)

    def _add(self, place: int, delta: Block) -> str:
        if (where := _DELTAS.get(str(delta.get("type")))) is None:
            return ""
        kind, name, source = where
        piece = delta.get(source)
        if not isinstance(piece, str):
            return ""
        block = self.blocks.setdefault(place, _ContentBlock({"type": kind}))
        block.added.setdefault(name, []).append(piece)
        return self._keep(name, {name: piece})

    def _keep(self, kind: Any, piece: Block) -> str:
        """Add a piece of text or of thinking to the answer; return it if it is text."""
        value = piece.get(kind) if kind in ("text", "thinking") else None
        if not isinstance(value, str) or not value:
            return ""
        (self.parts if kind == "text" else self.thoughts).append(value)
        return value if kind == "text" else ""

    def _end(self, data: Mapping[str, Any]) -> None:
        self.finish = str(data.get("stop_reason") or self.finish)
        details = _dict(data.get("stop_details"))
        if why := details.get("explanation") or details.get("category"):
            self.refused = [str(why)]

    def _count(self, usage: Any) -> None:
        """Add counts to those known. They are running totals, but a later zero or nonsense replaces no count."""
        for name, value in _dict(usage).items():
            if count(value) or name not in self.counts:
                self.counts[name] = value
        self.usage = _usage(self.counts)

    def response(self) -> Response:
        """Return the complete answer; raise `BackendError` if the provider stated no known reason for its end."""
        text, blocks = self.text, list(self.blocks.values())
        if not self.finish:
            fault = Fault.EMPTY if self.done and not blocks else Fault.TRUNCATED
            raise self.error(fault, "the answer ended without the provider's end")
        if (finish := FINISH.get(self.finish)) is None:
            raise self.error(Fault.TRUNCATED, f"the provider ended with `{self.finish[:40]}`")
        if finish is Finish.REFUSAL:
            text = text or joined(self.refused)
        calls = tuple(block.call() for block in blocks if block.kind == "tool_use")
        carried = _carried(blocks) if calls else ()
        return Response(text, finish, self.usage, joined(self.thoughts), calls, carried=carried)


def _carried(blocks: list[_ContentBlock]) -> tuple[Block, ...]:
    """Return the blocks up to the last thinking, which must go back with the tool uses, in their order."""
    last = max((place for place, block in enumerate(blocks) if block.kind in THINKING), default=-1)
    whole = [block.whole() for block in blocks[: last + 1]]
    return tuple(json.loads(joined([json.dumps(whole, ensure_ascii=False)])))


def _usage(counts: Mapping[str, Any]) -> Usage | None:
    """Return the provider's token counts; None if there are none. Its input tokens exclude what the cache served."""
    known = [count(counts.get(name)) for name in _SENT]
    if known[0] is None:
        return reported(None, counts.get("output_tokens"), cost=counts.get("cost"))
    sent = sum(filter(None, known))
    return reported(sent, counts.get("output_tokens"), known[1], counts.get("cost"), known[2])


def _dict(value: Any) -> dict[str, Any]:
    """Return a JSON object as it is, and an empty one for anything else."""
    return value if isinstance(value, dict) else {}
