"""Writes requests as Gemini's own `generateContent` takes them, and reads its answers. Pure.

Single calls go by Gemini's address for Chat Completions. Its batches are documented in full in this form only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdo.core.exchange import BackendError, Fault, Finish, Response, Usage
from cdo.providers.http.reply import joined
from cdo.providers.reported_usage import count, reported

# Tokens of thinking for models before Gemini 3, as its address for Chat Completions has them for each effort.
_BUDGETS = {"low": 1024, "medium": 8192, "high": 24576}
_BY_BUDGET = ("gemini-1", "gemini-2")
FINISH = {
    "STOP": Finish.STOP,
    "MAX_TOKENS": Finish.LENGTH,
    "CONTINUATION": Finish.LENGTH,
    "SAFETY": Finish.REFUSAL,
    "RECITATION": Finish.REFUSAL,
    "LANGUAGE": Finish.REFUSAL,
    "BLOCKLIST": Finish.REFUSAL,
    "PROHIBITED_CONTENT": Finish.REFUSAL,
    "SPII": Finish.REFUSAL,
    "ESCALATION": Finish.REFUSAL,
}


def content_request(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body of Chat Completions without tools in Gemini's own form.

    A body without a message of the user or of the model asks nothing, and its system prompt is sent as the user's.
    """
    config: dict[str, Any] = {"maxOutputTokens": body.get("max_tokens") or body["max_completion_tokens"]}
    if "temperature" in body:
        config["temperature"] = body["temperature"]
    if effort := body.get("reasoning_effort"):
        older = str(body["model"]).startswith(_BY_BUDGET)
        config["thinkingConfig"] = {"thinkingBudget": _BUDGETS[effort]} if older else {"thinkingLevel": effort}
    if schema := body.get("response_format"):
        config["responseMimeType"] = "application/json"
        config["responseJsonSchema"] = schema["json_schema"]["schema"]
    told, contents = list[dict[str, Any]](), list[dict[str, Any]]()
    for message in body["messages"]:
        content, role = message["content"], message["role"]
        text = content if isinstance(content, str) else "".join(part["text"] for part in content)
        if not text.strip():  # a blank part is refused
            continue
        if role == "system":
            told.append({"text": text})
        else:
            contents.append({"role": "model" if role == "assistant" else "user", "parts": [{"text": text}]})
    if not contents:
        told, contents = [], [{"role": "user", "parts": told}]
    system = {"systemInstruction": {"parts": told}} if told else {}
    return {**system, "contents": contents, "generationConfig": config}


def content_answer(data: Mapping[str, Any]) -> Response:
    """Return the answer in a `GenerateContentResponse`; raise `BackendError` if its end was not stated."""
    usage = _usage(data.get("usageMetadata"))
    candidates, feedback = data.get("candidates"), data.get("promptFeedback")
    first = candidates[0] if isinstance(candidates, list) and candidates else None
    if not isinstance(first, dict):
        blocked = feedback.get("blockReason") if isinstance(feedback, dict) else None
        if blocked:
            return Response(f"the prompt was blocked: {joined([str(blocked)])[:100]}", Finish.REFUSAL, usage)
        raise BackendError(Fault.EMPTY, "the answer has no candidate", usage=usage)
    content = first.get("content")
    parts = content.get("parts") if isinstance(content, dict) else None
    known = [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    text = joined(_text(part) for part in known if not part.get("thought"))
    thoughts = joined(_text(part) for part in known if part.get("thought"))
    stated = str(first.get("finishReason") or "")
    if (finish := FINISH.get(stated)) is None:
        why = f"the provider ended with `{joined([stated])[:40]}`" if stated else "the provider stated no end"
        raise BackendError(Fault.TRUNCATED, why, usage=usage, text=text)
    if finish is Finish.REFUSAL:
        text = text or joined([str(first.get("finishMessage") or stated)])[:300]
    return Response(text, finish, usage, thoughts)


def _text(part: Mapping[str, Any]) -> str:
    text = part.get("text")
    return text if isinstance(text, str) else ""


def _usage(data: Any) -> Usage | None:
    """Return the token counts; None if there are none. Tokens of thinking are counted apart and paid as output."""
    if not isinstance(data, dict):
        return None
    written = [count(data.get(name)) for name in ("candidatesTokenCount", "thoughtsTokenCount")]
    total = None if written == [None, None] else sum(filter(None, written))
    return reported(data.get("promptTokenCount"), total, data.get("cachedContentTokenCount"))
