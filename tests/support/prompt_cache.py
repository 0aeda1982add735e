"""Prompt caches as the vendors': what a request's prompt reads from the cache, and what it writes to it.

- **Marks** (`cache_control`; Anthropic, and OpenRouter for its models): prefixes that end at a marked block.
- **Breakpoints** (OpenAI from GPT-5.6 on): prefixes that end exactly at a breakpoint, for one `prompt_cache_key`.
  Unless the mode is explicit, the prompt's end is a breakpoint too. Writing costs.
- **Automatic** (OpenAI before, Gemini, DeepSeek): any common beginning, in steps of 128 tokens. Writing is free.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cdo.core.exchange import Usage

LOOKBACK = 20  # blocks before a mark that are searched for an end of what is cached
CHARACTERS = 4  # in one token
STEP = 128  # tokens
MARKS = ("cache_control", "prompt_cache_breakpoint")


@dataclass
class Prefix:
    """A request up to the end of one block."""

    digest: str
    tokens: int
    mark: str


@dataclass
class PromptCache:
    """What was cached so far. A prefix shorter than `minimum` tokens is not; marks on it are ignored."""

    minimum: int = 1024
    known: set[str] = field(default_factory=set)

    def look(self, body: Any) -> tuple[Usage, set[str]]:
        """Return the prompt's tokens (all, read and written), and what is cached once the answer has begun."""
        prefixes = list(_prefixes(body))
        if "prompt_cache_options" in body or any(prefix.mark == MARKS[1] for prefix in prefixes):
            if body.get("prompt_cache_options", {}).get("mode") != "explicit":
                prefixes[-1].mark = MARKS[1]
            return self._by_marks(prefixes, lookback=0)
        if any(prefix.mark for prefix in prefixes) or "anthropic" in str(body.get("model")) or "system" in body:
            return self._by_marks(prefixes, LOOKBACK)
        return self._automatic(body)

    def _by_marks(self, prefixes: list[Prefix], lookback: int) -> tuple[Usage, set[str]]:
        ends = [place for place, prefix in enumerate(prefixes) if prefix.mark and prefix.tokens >= self.minimum]
        found = [
            prefix.tokens
            for end in ends
            for prefix in prefixes[max(0, end - lookback) : end + 1]
            if prefix.digest in self.known
        ]
        read = max(found, default=0)
        written = max(0, prefixes[ends[-1]].tokens - read) if ends else 0
        whole = prefixes[-1].tokens if prefixes else 0
        return Usage(whole, 0, read, cache_write_tokens=written), {prefixes[end].digest for end in ends}

    def _automatic(self, body: Any) -> tuple[Usage, set[str]]:
        text = "".join(json.dumps([block.get("role"), _text(block)]) for block in _parts(body))
        hashed, size, read = hashlib.blake2b(_scope(body).encode(), digest_size=16), STEP * CHARACTERS, 0
        digests = []
        for start in range(0, len(text) - size + 1, size):
            hashed.update(text[start : start + size].encode())
            digests.append(hashed.hexdigest())
            if digests[-1] in self.known:
                read = (start + size) // CHARACTERS
        return Usage(len(text) // CHARACTERS, 0, read if read >= self.minimum else 0), set(digests)


def _scope(body: Any) -> str:
    return f"{body.get('model')} {body.get('prompt_cache_key')}"


def _text(block: dict[str, Any]) -> str:
    known = (block.get(key) for key in ("text", "content", "output"))
    return str(next((value for value in known if value), json.dumps(block)))


def _prefixes(body: Any) -> Iterator[Prefix]:
    """The prefixes of a request, in the order in which its parts count: tools, system prompt, messages.

    Thinking and effort count as a part before the messages: requests that differ in them share no message.
    """
    hashed, size = hashlib.blake2b(_scope(body).encode(), digest_size=16), 0
    for block in _parts(body):
        mark = next((name for name in MARKS if name in block), "")
        text = json.dumps({key: value for key, value in block.items() if key not in MARKS})
        thought = [body.get("thinking"), body.get("output_config")] if "role" in block else []
        hashed.update(json.dumps([*thought, text]).encode())
        size += len(_text(block))
        yield Prefix(hashed.hexdigest(), size // CHARACTERS, mark)


def _parts(body: Any) -> Iterator[dict[str, Any]]:
    yield from body.get("tools") or ()
    system = body.get("system") or ()
    yield from [{"text": system}] if isinstance(system, str) else system
    for message in body.get("messages") or body.get("input") or ():
        content = message.get("content")
        if not isinstance(content, list):  # a text, or an item without any, such as a call of a tool
            yield message
            continue
        for block in content:
            yield {"role": message["role"], **block}
