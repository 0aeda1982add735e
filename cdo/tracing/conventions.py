"""Words models, ends of replies and the content of exchanges as the semantic conventions have them. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from cdo.core.exchange import Fault, Finish

MOST_CHARS = 65_536  # characters of one text among the content
_DEPTH = 16  # levels of a tool's arguments; what is nested deeper stays text
_INT64 = 2**63

# Values of `gen_ai.provider.name`, by the prefix of a model's name or by the vendor. Others keep their own name.
_PROVIDERS: Mapping[str, str] = {
    "azure": "azure.ai.openai", "azure_ai": "azure.ai.inference", "bedrock": "aws.bedrock", "gemini": "gcp.gemini",
    "google": "gcp.gen_ai", "mistral": "mistral_ai", "moonshot": "moonshot_ai", "vertex_ai": "gcp.vertex_ai",
    "watsonx": "ibm.watsonx.ai", "xai": "x_ai",
}  # fmt: skip
_FINISHES: Mapping[str, str] = {Finish.TOOLS.value: "tool_call", Finish.REFUSAL.value: "content_filter"}
_FAULT_FINISHES: Mapping[str, str] = {Fault.LENGTH.value: "length", Fault.REFUSED.value: "content_filter"}


def provider_and_model(name: str, vendors: Mapping[str, str]) -> tuple[str, str]:
    """Return the provider of a model and the name that the provider knows it by, from the name that cdo knows."""
    prefix = re.split("[:/]", name, maxsplit=1)[0]
    separator, rest = name[len(prefix) : len(prefix) + 1], name[len(prefix) + 1 :]
    provider = prefix if separator == "/" else vendors.get(name) or prefix
    model = rest.rpartition("/")[2] if rest.startswith(("/", ".")) else rest  # not the folders of this machine
    return _PROVIDERS.get(provider, provider) or "unknown", model or prefix


def finish_reasons(exchange: Mapping[str, Any]) -> tuple[str, ...]:
    """Return why the reply of a recorded exchange ended; () if it had no end."""
    if response := exchange.get("response"):
        finish = str(response["finish"])[:40]
        return (_FINISHES.get(finish, finish),)
    found = _FAULT_FINISHES.get(exchange["fault"]["kind"])
    return (found,) if found else ()


def content(exchange: Mapping[str, Any], texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the prompt and the reply of a recorded exchange as attributes. `texts` are the shared texts by hash."""
    messages = exchange["request"]["messages"]
    found: dict[str, Any] = {"gen_ai.input.messages": [_message(message, texts) for message in messages]}
    if response := exchange.get("response"):
        parts = [{"type": "reasoning", "content": cut(response["reasoning"])}] if response.get("reasoning") else []
        parts += _parts(str(response["text"]), response.get("tool_calls") or ())
        reply = {"role": "assistant", "parts": parts, "finish_reason": finish_reasons(exchange)[0]}
        found["gen_ai.output.messages"] = [reply]
    return found


def _message(message: Mapping[str, Any], texts: Mapping[str, str]) -> dict[str, Any]:
    text = texts.get(str(message.get("shared") or ""), "") + str(message["text"])
    if message.get("tool_call_id"):
        answer = {"type": "tool_call_response", "id": str(message["tool_call_id"]), "response": cut(text)}
        return {"role": "tool", "parts": [answer]}
    return {"role": str(message["role"]), "parts": _parts(text, message.get("tool_calls") or ())}


def _parts(text: str, wishes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    said = [{"type": "text", "content": cut(text)}] if text else []
    return said + [
        {"type": "tool_call", "id": cut(wish["id"]), "name": cut(wish["name"]), "arguments": arguments(wish)}
        for wish in wishes
    ]


def arguments(wish: Mapping[str, Any]) -> Any:
    """Return the arguments of a tool use as an object; as the text that the model wrote where they are none."""
    text = str(wish["arguments"])
    try:
        found = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return cut(text)
    return found if isinstance(found, dict) and _plain(found) else cut(text)


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _plain(value: Any, depth: int = 0) -> bool:
    """True if a value from JSON fits an attribute: not too deep, and numbers of 64 bits."""
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return depth < _DEPTH and all(_plain(item, depth + 1) for item in inner)
    if isinstance(value, float):
        return abs(value) < float("inf")
    return value is not None and (not isinstance(value, int) or -_INT64 <= value < _INT64)


def cut(text: object) -> str:
    """Return a text of the content with its beginning and its end if it is too long."""
    whole = str(text)
    half = MOST_CHARS // 2
    return whole if len(whole) <= MOST_CHARS else f"{whole[:half]}\n…\n{whole[-half:]}"
