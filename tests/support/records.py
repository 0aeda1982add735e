"""Records of a session in the shape that cdo writes, for tests that need any."""

from __future__ import annotations

from typing import Any

ANSWER: dict[str, Any] = {"kind": "answer", "name": "a", "question": "?", "answer": "", "by": "you"}
EXCHANGE: dict[str, Any] = {
    "kind": "exchange", "call": "t1-critic", "call_kind": "voice", "inputs": "0", "attempt": 1, "model": "m",
    "request": {"messages": []}, "response": {"text": "", "finish": "stop"},
}  # fmt: skip
