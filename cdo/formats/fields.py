"""Reads the data of replies: its YAML, what stands for an empty list, placeholders that were left. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from cdo.core.steps import InvalidReply
from cdo.formats import strict_yaml

MAX_REPLY_CHARS = 262_144
TensionStatus = Literal["open", "resolved", "accepted", "outside"]  # of a disagreement between voices


def as_list(value: Any) -> Any:
    return [] if value is None else [value] if isinstance(value, (str, int, float)) else value


def is_none(items: Sequence[Any]) -> bool:
    """Return True if the only one of `items` is a word that stands for an empty list, such as `none`."""
    return len(items) == 1 and isinstance(items[0], str) and items[0].strip(" .").casefold() in _NONE


def number(value: Any) -> Any:
    """Return `value`; raise ValueError for true and false, which Python takes for numbers."""
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


_NONE = ("none", "n/a", "nothing", "none found", "nothing found", "none identified", "no errors", "no errors found")


def too_long(text: str, most: int = MAX_REPLY_CHARS) -> None:
    """Raise `InvalidReply` if a reply has more than `most` characters."""
    if len(text) > most:
        raise InvalidReply([f"The reply has {len(text)} characters; at most {most} are read."])


def twice(ids: Sequence[str], what: str) -> list[str]:
    """Return the sentence that names the duplicates in `ids`; [] if there are none."""
    twice = sorted({item for item in ids if ids.count(item) > 1})
    return [f"{what} {', '.join(twice)} is used twice."] if twice else []


_PLACEHOLDER = re.compile(r"<[^<>]+>")
_QUOTED = re.compile(r"[\"“`]<([a-z][\w ,:|'-]{2,200})>[\"”`]")


def placeholders(data: Any, what: str) -> list[str]:
    """Return a sentence for each text that is still a placeholder of the example, as in `<your answer>`.

    A placeholder in quotes counts too; `"<div>"` and other code do not.
    """
    end = "is a placeholder of the example: write your own text, or leave it out."
    return [
        f"{what}: `{path}`: `{strict_yaml.shown(' '.join(text.split()))}` {end}"
        for path, text in texts(data)
        if _PLACEHOLDER.fullmatch(text.strip()) or any(" " in words for words in _QUOTED.findall(text.strip()))
    ]


def texts(data: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield (path, text) for every text in nested mappings and lists."""
    if isinstance(data, str):
        yield path, data
    elif isinstance(data, Mapping | list | tuple):
        for key, value in data.items() if isinstance(data, Mapping) else enumerate(data):
            yield from texts(value, strict_yaml.shown(f"{path}.{key}" if path else str(key)))


def load(block: str, above: int, what: str, max_bytes: int, max_depth: int = 6) -> Any:
    """Load the YAML of a reply; raise `InvalidReply` with line numbers of the reply.

    `above` is the number of lines before `block`.
    """
    try:
        return strict_yaml.load(block, max_bytes=max_bytes, max_depth=max_depth)
    except strict_yaml.YamlProblem as problem:
        where = f"line {problem.line + above}, column {problem.column}: {problem.why}"
        advice = " Put text values between double quotes." if problem.quotes else ""
        raise InvalidReply([f"{what} is not valid YAML: {where}.{advice}"]) from None
