"""Sends requests by the Chat Completions protocol over aiohttp: streamed, with usage and tool calls.

One client serves every provider of the table (Gemini, OpenRouter, Ollama, vLLM, llama.cpp, …). A reply counts as
complete only if the provider stated why it ended; a stream that just stops is truncated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from msgspec import field
from msgspec.structs import replace

from cdo.core.exchange import Effort, Fault, Finish, Message, Request, Response, ToolCall, Usage
from cdo.providers.http.backend import SCHEMA_NAME, SCHEMA_REFUSED, HttpBackend
from cdo.providers.http.reply import IncomingReply, joined
from cdo.providers.http.transport import END
from cdo.providers.reported_usage import reported

_EFFORT, _MARK = "reasoning_effort", "cache_control"
_EFFORTS = {Effort.LOW: "low", Effort.MEDIUM: "medium", Effort.HIGH: "high", Effort.MAX: "high"}  # none goes higher
# Words that refuse the effort itself, and not tools beside it, as OpenAI's current models do here.
_REFUSED = re.compile(r"^(?!.*\btools?\b).*(reasoning[_. ]?effort|\beffort\b)", re.IGNORECASE | re.DOTALL)
# What some providers want back with the tool uses of an answer, and refuse the next round without: DeepSeek its
# reasoning, Gemini the signature beside a use, OpenRouter what it got from either. Others, such as Groq, refuse it.
_THOUGHTS, _DETAILS, _SIGNATURE = "reasoning_content", "reasoning_details", "extra_content"
_PLAIN = frozenset(("role", "content"))  # the fields of a piece that is text and nothing else
_PIECED = ("text", "summary", "data")  # the fields of such details that a stream sends in pieces
_CARRIED = "carried"
_UNACCEPTED = re.compile(
    rf"^(?!.*(missing|passed back|required)).*({_THOUGHTS}|{_DETAILS}|{_SIGNATURE})", re.IGNORECASE | re.DOTALL
)
# The two names of the field that limits the reply, and how a server says that it does not know the one it got.
_CAPS = ("max_tokens", "max_completion_tokens")
_UNKNOWN = re.compile(
    r"unsupported|unrecognized|unknown|unexpected|deprecated|not (?:supported|permitted|allowed)", re.IGNORECASE
)
_OPTIONAL = ("temperature", "stream_options")
FINISH = {
    "stop": Finish.STOP,
    "eos": Finish.STOP,
    "eos_token": Finish.STOP,
    "stop_sequence": Finish.STOP,
    "end_turn": Finish.STOP,
    "length": Finish.LENGTH,
    "max_tokens": Finish.LENGTH,
    "model_length": Finish.LENGTH,
    "tool_calls": Finish.TOOLS,
    "tool_use": Finish.TOOLS,
    "function_call": Finish.TOOLS,
    "content_filter": Finish.REFUSAL,
    "refusal": Finish.REFUSAL,
    "safety": Finish.REFUSAL,
}


@dataclass
class ChatBackend(HttpBackend):
    """Calls one provider, at its base address (…/v1).

    `cap` names the request field that limits the reply. `usage` is true if the provider knows `stream_options`.
    With `marks`, the prompt is marked at the end of what requests share, so that the provider caches it up to there.
    With tools it is marked at its own end too, which every round of the conversation reads again. Results of tools
    get no mark: OpenRouter takes it in the text of the other roles only.
    """

    path = "/chat/completions"
    structured = "response_format"
    cap: str = "max_tokens"
    usage: bool = True
    marks: bool = False

    def _reply(self) -> IncomingReply:
        return _ChatReply()

    def _named(self, message: str, body: Mapping[str, Any]) -> Set[str]:
        if _EFFORT in body and _REFUSED.search(message):
            return {_EFFORT}
        if self.marks and _MARK in message:
            return {_MARK}
        if _UNACCEPTED.search(message) and any(map(_carries, body["messages"])):
            return {_CARRIED}
        if named := self._unknown(message, body):
            return named
        return {self.structured} if self.structured in body and SCHEMA_REFUSED.search(message) else set()

    def _unknown(self, message: str, body: Mapping[str, Any]) -> set[str]:
        """Return the parameter of `body` that a refusal names first, if it says that it does not know or take it."""
        names = [name for name in (*_CAPS, *_OPTIONAL) if name in body]
        found = re.search(rf"\b({'|'.join(names)})\b", message) if _UNKNOWN.search(message) else None
        return {found[1]} if found else set()

    def _body(self, request: Request) -> dict[str, Any]:
        left_out = self.left_out(request.model)
        said = request.messages
        if _CARRIED in left_out:
            said = tuple(replace(message, carried=()) for message in said)
        other = next(name for name in _CAPS if name != self.cap)
        body: dict[str, Any] = {
            "model": request.model,
            "messages": _messages(said, grows=bool(request.tools))
            if self.marks and _MARK not in left_out
            else list(map(message_json, said)),
            "stream": True,
            other if self.cap in left_out and other not in left_out else self.cap: request.max_tokens,
        }
        if self.usage and "stream_options" not in left_out:
            body["stream_options"] = {"include_usage": True}
        if self.temperature is not None and "temperature" not in left_out:
            body["temperature"] = self.temperature
        if request.tools:
            body["tools"] = [{"type": "function", "function": dict(tool)} for tool in request.tools]
        if request.effort and _EFFORT not in left_out:
            body[_EFFORT] = _EFFORTS[request.effort]
        if schema := self._schema(request):
            told = {"name": SCHEMA_NAME, "strict": True, "schema": schema}
            body[self.structured] = {"type": "json_schema", "json_schema": told}
        if request.grammar:
            body["grammar"] = request.grammar
        return body


def _messages(said: Sequence[Message], *, grows: bool) -> list[dict[str, Any]]:
    """Return the messages with marks: at the end of shared parts, and if it `grows` at the end of the user's last."""
    last = max((place for place, message in enumerate(said) if message.role == "user"), default=-1)
    return [message_json(message, marked=True, whole=grows and place == last) for place, message in enumerate(said)]


def message_json(message: Message, *, marked: bool = False, whole: bool = False) -> dict[str, Any]:
    """Return a message as JSON data of the protocol.

    `marked` puts a mark at the end of what is shared, `whole` one at the end of the message.
    """
    shown: dict[str, Any] = {"role": message.role, "content": message.text}
    shared = message.shared if marked else 0
    parts: list[dict[str, Any]] = [
        {"type": "text", "text": text} for text in (message.text[:shared], message.text[shared:]) if text
    ]
    ends = [*(parts[:1] if shared else []), *(parts[-1:] if whole else [])]
    if ends:
        for part in ends:
            part[_MARK] = {"type": "ephemeral"}
        shown["content"] = parts
    if message.tool_calls:
        shown["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
        for kept in message.carried:
            shown |= kept.get("message", {})
            for call, own in zip(shown["tool_calls"], kept.get("calls", ()), strict=False):
                call |= own
    if message.tool_call_id:
        shown["tool_call_id"] = message.tool_call_id
    return shown


class _ChatReply(IncomingReply):
    """The answer received so far, chunk by chunk or in one piece."""

    calls: list[dict[str, str]] = field(default_factory=list)
    places: dict[int, int] = field(default_factory=dict)
    signatures: dict[int, Any] = field(default_factory=dict)
    content: list[str] = field(default_factory=list)
    details: dict[Any, dict[str, Any]] = field(default_factory=dict)

    @property
    def settled(self) -> bool:
        return self.finish.lower() in FINISH

    def take(self, event: str) -> str:
        """Add one chunk and return the text in it; raise `BackendError` for an error event or broken JSON."""
        if event == END:
            self.done = True
            return ""
        return self._add(self.parsed(event), "delta")

    def whole(self, body: str) -> str:
        """Add the whole answer and return its text; raise `BackendError` for an error or broken JSON."""
        data = self.parsed(body)
        self.done = True
        return self._add(data, "message")

    def _add(self, data: Mapping[str, Any], field_name: str) -> str:
        if data.get("error") or data.get("object") == "error":
            raise self.failed(data.get("error") or data)
        if isinstance(data.get("usage"), dict):
            self.usage = _usage(data["usage"])
        choices = data.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return ""
        choice = choices[0]
        if isinstance(choice.get("error"), dict):
            raise self.failed(choice["error"])
        self.finish = str(choice.get("finish_reason") or self.finish)
        piece = choice.get(field_name)
        return self._piece(piece) if isinstance(piece, dict) else ""

    def _piece(self, piece: Mapping[str, Any]) -> str:
        text = piece.get("content")
        if type(text) is str and piece.keys() <= _PLAIN:  # as most are
            if text:
                self.parts.append(text)
            return text
        if isinstance(text, list):  # content parts
            text = "".join(str(part.get("text") or "") for part in text if isinstance(part, dict))
        for value, into in (
            (piece.get("reasoning_content") or piece.get("reasoning"), self.thoughts),
            (piece.get("refusal"), self.refused),
            (text, self.parts),
        ):
            if isinstance(value, str) and value:
                into.append(value)
        if isinstance(thought := piece.get(_THOUGHTS), str):  # even an empty one is wanted back
            self.content.append(thought)
        for detail in _dicts(piece.get(_DETAILS)):
            self._detail(detail)
        for position, call in enumerate(_dicts(piece.get("tool_calls"))):
            self._tool(position, call)
        return text if isinstance(text, str) else ""

    def _detail(self, detail: dict[str, Any]) -> None:
        """Add a reasoning detail: a whole one, or the next piece of one that began before."""
        known = self.details.setdefault(tuple(str(detail.get(key)) for key in ("type", "index", "id")), {})
        for key, value in detail.items():
            if key in _PIECED and isinstance(value, str):
                known.setdefault(key, []).append(value)
            elif value is not None:
                known[key] = value

    def _tool(self, position: int, call: Mapping[str, Any]) -> None:
        index = call.get("index")
        key = index if isinstance(index, int) else position
        function = call.get("function")
        function = function if isinstance(function, dict) else {}
        ident, name, arguments = call.get("id"), function.get("name"), function.get("arguments")
        known = self.calls[self.places[key]] if key in self.places else None
        # Some providers number every call 0: a name with a different id begins another call.
        if known is None or (ident and name and known["id"] not in ("", ident)):
            known = {"id": "", "name": "", "arguments": ""}
            self.places[key] = len(self.calls)
            self.calls.append(known)
        known["id"] = str(ident or known["id"])
        known["name"] = str(name or known["name"])
        if call.get(_SIGNATURE):
            self.signatures[self.places[key]] = call[_SIGNATURE]
        if arguments:
            known["arguments"] += arguments if isinstance(arguments, str) else json.dumps(arguments)

    def response(self) -> Response:
        """Return the complete answer; raise `BackendError` if the provider stated no known reason for its end."""
        refused, text = joined(self.refused), self.text
        if not self.finish:
            blank = not (text or refused or self.thoughts or self.calls)
            fault = Fault.EMPTY if self.done and blank else Fault.TRUNCATED
            raise self.error(fault, "the answer ended without the provider's end")
        finish = Finish.REFUSAL if refused else FINISH.get(self.finish.lower())
        if finish is None:
            raise self.error(Fault.TRUNCATED, f"the provider ended with `{self.finish[:40]}`")
        calls = tuple(ToolCall(*(joined([call[key]]) for key in ("id", "name", "arguments"))) for call in self.calls)
        return Response(text or refused, finish, self.usage, joined(self.thoughts), calls, carried=self._carried())

    def _carried(self) -> tuple[Mapping[str, Any], ...]:
        """Return what goes back with the tool uses, if anything: fields of the message, and of each use."""
        fields: dict[str, Any] = {_THOUGHTS: "".join(self.content)} if self.content else {}
        if self.details:
            whole = ({key: "".join(value) if key in _PIECED else value for key, value in detail.items()}
                     for detail in self.details.values())  # fmt: skip
            fields[_DETAILS] = list(whole)
        uses = [
            {_SIGNATURE: self.signatures[place]} if place in self.signatures else {}
            for place in range(len(self.calls))
        ]
        if not self.calls or not (fields or any(uses)):
            return ()
        return (json.loads(joined([json.dumps({"message": fields, "calls": uses}, ensure_ascii=False)])),)


def _carries(message: Mapping[str, Any]) -> bool:
    """True if a message of a request has anything that came with an earlier answer."""
    return bool({_THOUGHTS, _DETAILS} & message.keys()) or any(
        _SIGNATURE in call for call in message.get("tool_calls", ())
    )


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _usage(data: Mapping[str, Any]) -> Usage | None:
    """Return the provider's token counts; None if there are none (some providers report zeros)."""
    details = data.get("prompt_tokens_details")
    known = details if isinstance(details, dict) else {}
    return reported(
        data.get("prompt_tokens"), data.get("completion_tokens"), known.get("cached_tokens"), data.get("cost"),
        known.get("cache_write_tokens"),
    )  # fmt: skip
