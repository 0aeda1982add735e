"""What a provider has sent of one reply in the Responses protocol: output items, whole and in pieces. Pure."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, field

from cdo.core.exchange import Fault, Finish, Response, ToolCall, Usage
from cdo.providers.http.reply import IncomingReply, joined
from cdo.providers.http.transport import END
from cdo.providers.reported_usage import reported

_FINISH = {
    "completed": Finish.STOP,
    "max_output_tokens": Finish.LENGTH,
    "max_tokens": Finish.LENGTH,
    "content_filter": Finish.REFUSAL,
}
_ENDS = {f"response.{status}": status for status in ("completed", "incomplete", "failed", "cancelled")}
# The events that bring a piece of an item, and which text of the item it belongs to.
_PIECES = {
    "response.output_text.delta": "output_text",
    "response.refusal.delta": "refusal",
    "response.reasoning_text.delta": "reasoning_text",
    "response.reasoning_summary_text.delta": "summary_text",
    "response.function_call_arguments.delta": "arguments",
}
_KINDS = {"arguments": "function_call", "reasoning_text": "reasoning", "summary_text": "reasoning"}
_COMMENTARY = "commentary"  # the phase of a message that is not meant as the answer


class _OutputItem(Struct, eq=False):
    """One item of the output: as the provider last stated it, and the texts that came of it in pieces."""

    data: Mapping[str, Any] = field(default_factory=dict)
    pieces: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    @property
    def kind(self) -> str:
        return str(self.data.get("type") or next((_KINDS[text] for text in self.pieces if text in _KINDS), "message"))

    def named(self, key: str) -> str:
        return joined([str(self.data.get(key) or "")])

    def told(self, kind: str) -> str:
        """Return one text of the item: as stated at its end, or from its pieces if these hold more."""
        if kind == "arguments":
            value = self.data.get("arguments")
            stated = json.dumps(value) if isinstance(value, (dict, list)) else str(value or "")
        else:
            parts = [part for key in ("summary", "content") for part in _dicts(self.data.get(key))]
            texts = (
                part.get("refusal" if kind == "refusal" else "text") for part in parts if part.get("type") == kind
            )
            stated = ("\n\n" if kind == "summary_text" else "").join(text for text in texts if isinstance(text, str))
        return joined([max(stated, "".join(self.pieces.get(kind, ())), key=len)])


class ResponsesReply(IncomingReply):
    """The answer received so far, event by event or in one piece."""

    items: dict[int, _OutputItem] = field(default_factory=lambda: defaultdict(_OutputItem))

    @property
    def begun(self) -> bool:
        return self.over or bool(self.items)

    @property
    def settled(self) -> bool:
        return self.finish in _FINISH

    def take(self, event: str) -> str:
        """Add one event and return the text in it; raise `BackendError` for an error event or broken JSON."""
        if event == END:  # some gateways add it
            self.done = True
            return ""
        data = self.parsed(event)
        kind = str(data.get("type") or "")
        if status := _ENDS.get(kind):
            self._end(status, data.get("response"))
            self.done = True
        elif kind == "error" or data.get("error"):
            raise self._error(data)
        elif kind.startswith("response.output_item."):
            self._item(_place(data), data.get("item"))
        elif (text := _PIECES.get(kind)) and isinstance(delta := data.get("delta"), str):
            self.items[_place(data)].pieces[text].append(delta)
            if text == "output_text":
                self.parts.append(delta)
                return delta
        return ""

    def whole(self, body: str) -> str:
        """Add the whole answer and return its text; raise `BackendError` for an error or broken JSON."""
        data = self.parsed(body)
        self.done = True
        stated = data.get("error") and data.get("status") != "failed"
        if stated or "error" in (data.get("object"), data.get("type")):
            raise self._error(data)
        self._end(str(data.get("status") or ""), data)
        self.parts = [self._said()[0]]
        return self.text

    def _error(self, data: Mapping[str, Any]) -> Exception:
        """Return the error of an event, which either holds it or is it."""
        return self.failed(data.get("error") or {key: value for key, value in data.items() if key != "type"})

    def _item(self, place: int, item: Any) -> None:
        if isinstance(item, dict):
            self.items[place].data = item

    def _end(self, status: str, response: Any) -> None:
        """Add the response as it is stated at its end."""
        response = response if isinstance(response, dict) else {}
        if isinstance(response.get("usage"), dict):
            self.usage = _usage(response["usage"])
        output = response.get("output")
        if isinstance(output, list) and len(output) >= len(self.items):  # some gateways leave it empty there
            for place, item in enumerate(output):
                self._item(place, item)
        if status == "failed":
            raise self.failed(response.get("error") or "the provider failed")
        details = response.get("incomplete_details")
        reason = details.get("reason") if status == "incomplete" and isinstance(details, dict) else None
        self.finish = str(reason or status)

    def response(self) -> Response:
        """Return the complete answer; raise `BackendError` if the provider stated no known reason for its end."""
        text, thoughts, refused = self._said()
        calls = tuple(
            ToolCall(item.named("call_id"), item.named("name"), item.told("arguments"))
            for item in self._of("function_call")
        )
        if not self.finish:
            fault = Fault.TRUNCATED if text or thoughts or refused or calls or not self.done else Fault.EMPTY
            raise self.error(fault, "the answer ended without the provider's end")
        finish = Finish.REFUSAL if refused else _FINISH.get(self.finish)
        if finish is None:
            raise self.error(Fault.TRUNCATED, f"the provider ended with `{self.finish[:40]}`")
        if finish is Finish.STOP and calls:
            finish = Finish.TOOLS
        return Response(text or refused, finish, self.usage, thoughts, calls, carried=self._carried())

    def _of(self, kind: str) -> list[_OutputItem]:
        return [item for _, item in sorted(self.items.items()) if item.kind == kind]

    def _answers(self) -> list[_OutputItem]:
        """Return the messages meant as the answer: all of them if each one is a commentary."""
        messages = [item for item in self._of("message") if item.told("output_text")]
        return [item for item in messages if item.data.get("phase") != _COMMENTARY] or messages

    def _said(self) -> tuple[str, str, str]:
        """Return the text of the answer, the reasoning, and the refusal."""
        answers = self._answers()
        thoughts = [item.told(kind) for item in self._of("reasoning") for kind in ("summary_text", "reasoning_text")]
        thoughts += [item.told("output_text") for item in self._of("message") if item not in answers]
        refused = (item.told("refusal") for item in self._of("message"))
        texts = ([item.told("output_text") for item in answers], thoughts, refused)
        text, thought, refusal = ("\n\n".join(filter(None, parts)) for parts in texts)
        return text, thought, refusal

    def _carried(self) -> tuple[Mapping[str, Any], ...]:
        """Return the reasoning that can be sent back, and where the text and each call stood between it."""
        answers, kept = self._answers(), list[Mapping[str, Any]]()
        for _, item in sorted(self.items.items()):
            if item.kind == "reasoning" and item.data.get("encrypted_content"):
                kept.append(json.loads(joined([json.dumps(item.data, ensure_ascii=False)])))
            elif item.kind == "function_call":
                kept.append({"type": item.kind, "call_id": item.named("call_id")})
            elif item in answers[:1]:
                phase = item.data.get("phase")
                kept.append({"type": item.kind, **({"phase": phase} if isinstance(phase, str) else {})})
        return tuple(kept) if any(item["type"] == "reasoning" or "phase" in item for item in kept) else ()


def _place(data: Mapping[str, Any]) -> int:
    index = data.get("output_index")
    return index if isinstance(index, int) else 0


def _dicts(value: Any) -> Iterable[dict[str, Any]]:
    return (part for part in value if isinstance(part, dict)) if isinstance(value, list) else ()


def _usage(data: Mapping[str, Any]) -> Usage | None:
    """Return the provider's token counts; None if there are none."""
    details = data.get("input_tokens_details")
    details = details if isinstance(details, dict) else {}
    read, written = details.get("cached_tokens"), details.get("cache_write_tokens")
    return reported(data.get("input_tokens"), data.get("output_tokens"), read, data.get("cost"), written)
