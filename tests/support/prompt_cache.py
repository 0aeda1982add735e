"""A prompt cache as Anthropic's: it holds prefixes of requests that end at a block with `cache_control`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cdo.core.exchange import Usage

LOOKBACK = 20  # blocks before a mark that are searched for an end of what is cached
CHARACTERS = 4  # in one token


@dataclass
class Prefix:
    """A request up to the end of one block."""

    digest: str
    tokens: int
    marked: bool


@dataclass
class PromptCache:
    """What was cached so far. A prefix shorter than `minimum` tokens is not; marks on it are ignored."""

    minimum: int = 1024
    known: set[str] = field(default_factory=set)

    def look(self, body: Any) -> tuple[Usage, set[str]]:
        """Return the prompt's tokens (all, read and written), and what is cached once the answer has begun."""
        prefixes = list(_prefixes(body))
        ends = [place for place, prefix in enumerate(prefixes) if prefix.marked and prefix.tokens >= self.minimum]
        found = [
            prefix.tokens
            for end in ends
            for prefix in prefixes[max(0, end - LOOKBACK) : end + 1]
            if prefix.digest in self.known
        ]
        read = max(found, default=0)
        written = max(0, prefixes[ends[-1]].tokens - read) if ends else 0
        whole = prefixes[-1].tokens if prefixes else 0
        return Usage(whole, 0, read, cache_write_tokens=written), {prefixes[end].digest for end in ends}


def _prefixes(body: Any) -> Iterator[Prefix]:
    """The prefixes of a request, in the order in which its parts count: tools, system prompt, messages.

    Thinking and effort count as a part before the messages: requests that differ in them share no message.
    """
    hashed, size = hashlib.blake2b(str(body.get("model")).encode(), digest_size=16), 0
    for block in _parts(body):
        marked = "cache_control" in block
        text = json.dumps({key: value for key, value in block.items() if key != "cache_control"})
        thought = [body.get("thinking"), body.get("output_config")] if "role" in block else []
        hashed.update(json.dumps([*thought, text]).encode())
        size += len(str(block.get("text") or block.get("content") or text))
        yield Prefix(hashed.hexdigest(), size // CHARACTERS, marked)


def _parts(body: Any) -> Iterator[dict[str, Any]]:
    yield from body.get("tools") or ()
    system = body.get("system") or ()
    yield from [{"text": system}] if isinstance(system, str) else system
    for message in body.get("messages") or ():
        content = message["content"]
        for block in [{"text": content}] if isinstance(content, str) else content:
            yield {"role": message["role"], **block}
