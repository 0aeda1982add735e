"""Reads mappings from YAML and JSON that a model wrote carelessly: quotes, tabs, trailing commas. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator
from typing import Any

from cdo.formats import strict_yaml
from cdo.formats.lenient.layout import Notes, folded

_MARKS = "\"“”'‘’*`"
_KEY = re.compile(
    rf"^(?P<head>\s*(?:- +)*)(?P<key>[{_MARKS}]*[A-Za-z][\w -]{{0,40}}[{_MARKS}]*)\s*[:：](?P<rest>.*)$"
)
_ITEM = re.compile(r"^(?P<head>\s*- +)(?P<rest>\S.*)$")
COMMENT = re.compile(r"\s*<!--.*-->\s*")
BULLETS = "•‣▪◦●✅✔☑➤→▶🔹🔸"  # signs that models put before items, beside those of Markdown
_BULLET = re.compile(rf"(?:[*–+{BULLETS}]\ufe0f?|-\t)\s+(?=\S)")
_ANCHOR = re.compile(r"&\w+\s")  # YAML's own mark for a value that stands elsewhere too
_BLOCK_TEXT = re.compile(r"[|>][-+]?\d?(?:\s+#.*)?")
_QUOTES = {'"': '"', "'": "'", "“": "”", "”": "”", "„": "“", "‘": "’"}
MOST_LINES = 4000


def mappings(
    text: str, names: Collection[str], max_bytes: int, notes: Notes
) -> Iterator[tuple[dict[str, Any], Notes]]:
    """Yield the mappings that `text` may stand for, each with its notes: as YAML, then with texts put in quotes.

    `names` are the folded keys whose lines may be changed.
    """
    if (data := _loaded(text, max_bytes)) is not None:
        yield data, notes.copy()
    elif (data := _listed(text, names, max_bytes)) is not None:
        own = notes.copy()
        own.add("read a list of keys as a mapping")
        yield data, own
    if text.count("\n") > MOST_LINES:
        return
    own = notes.copy()
    changed = _quoted(text, names, own)
    if changed != text and (data := _loaded(changed, max_bytes + 4096)) is not None:
        yield data, own


def _loaded(text: str, max_bytes: int) -> dict[str, Any] | None:
    try:
        data = strict_yaml.load(text, max_bytes=max_bytes)
    except strict_yaml.YamlProblem:
        return None
    return data if isinstance(data, dict) else None


def _listed(text: str, names: Collection[str], max_bytes: int) -> dict[str, Any] | None:
    """Return the mapping of a list with one known key in each item; None if it is no such list."""
    try:
        items = strict_yaml.load(text, max_bytes=max_bytes)
    except strict_yaml.YamlProblem:
        return None
    found = [item for item in items if isinstance(item, dict) and len(item) == 1] if isinstance(items, list) else []
    if not isinstance(items, list) or len(found) < max(2, len(items)):
        return None
    pairs = [pair for item in found for pair in item.items()]
    keys = {folded(str(key)) for key, _ in pairs}
    return dict(pairs) if len(keys) == len(pairs) and keys <= set(names) else None


def key_of(line: str) -> str | None:
    """Return the folded key that a line of YAML begins with, or None."""
    match = _KEY.match(line)
    return folded(match["key"]) if match else None


# -- YAML, line by line ----------------------------------------------------------------------------


def _quoted(text: str, names: Collection[str], notes: Notes) -> str:
    """Return YAML in which the text of each known key and list item that cannot stand plainly is in quotes."""
    lines = [_indented(line, notes) for line in _uncommented(text.split("\n"), notes)]
    found: list[str] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        match = _KEY.match(line)
        known = match is not None and folded(match["key"]) in names
        item = None if known else _ITEM.match(line)
        at += 1
        if match and known:
            key = match["key"].strip(_MARKS)
            if key != match["key"].strip("\"'") or match["rest"].startswith("**"):
                notes.add(f"took the marks off the key `{key}`")
            head, rest = f"{match['head']}{key}:", match["rest"].removeprefix("**").strip()
            if rest and not match["rest"][0].isspace() and key == match["key"].strip():
                notes.add(f"put a blank behind the colon of `{key}`")
            what, column = f"`{key}`", len(match["head"])
        elif item:
            head, rest, what = item["head"].rstrip(), item["rest"].strip(), "a list item"
            column = len(item["head"]) - 1
        else:
            found.append(line)
            continue
        if not rest:
            found.append(head)
            continue
        after = _end(lines, at, column, names, block=bool(_BLOCK_TEXT.fullmatch(rest)))
        whole = " ".join([rest, *(part.strip() for part in lines[at:after])]).strip()
        flush = any(line[: column + 1].strip() for line in lines[at:after])
        asis = _ANCHOR.match(whole) or (not flush and _stands(whole, item=item is not None))
        if _BLOCK_TEXT.fullmatch(rest) or asis:
            found += [f"{head} {rest}", *lines[at:after]]
        else:
            found.append(f"{head} {_flow(whole) or json.dumps(_literal(whole), ensure_ascii=False)}")
            notes.add(f"put the text of {what} between quotes")
        at = after
    return "\n".join(found)


def _uncommented(lines: list[str], notes: Notes) -> list[str]:
    kept = [line for line in lines if not COMMENT.fullmatch(line)]
    if len(kept) < len(lines):
        notes.add("left out comments between the keys")
    return kept


def _indented(line: str, notes: Notes) -> str:
    bare = line.lstrip(" \t\u00a0")
    space = line[: len(line) - len(bare)]
    if bullet := _BULLET.match(bare):
        bare = f"- {bare[bullet.end() :]}"
    if "\t" in space or "\u00a0" in space:
        notes.add("read tabs as indentation")
        return space.replace("\t", "  ").replace("\u00a0", " ") + bare
    return space + bare


def _end(lines: list[str], at: int, column: int, names: Collection[str], *, block: bool) -> int:
    """Return the line after the text that begins above line `at`, under a key in `column`."""
    while at < len(lines):
        line = lines[at]
        deeper = len(line) - len(line.lstrip(" ")) > column
        if block:
            over = bool(line.strip()) and not deeper
        else:
            flush = column == 0 and key_of(line) is None and not line.startswith(("#", "{", "}", "[", "]"))
            over = not line.strip() or bool(_ITEM.match(line)) or key_of(line) in names or not (deeper or flush)
        if over:
            break
        at += 1
    return at


def _stands(text: str, *, item: bool) -> bool:
    """True if `text` alone is the YAML of a scalar, of a list or mapping in brackets, or (in a list) of a mapping."""
    if text[0] not in "\"'[{" and re.search(r"(^|\s)#\S", text):
        return False  # `#12` is meant as text; a comment has a blank behind its mark
    try:
        value = strict_yaml.load(text, max_bytes=65_536)
    except strict_yaml.YamlProblem:
        return False
    if isinstance(value, dict):
        return text.startswith("{") or item
    return not isinstance(value, list) or text.startswith("[") or item


def _flow(text: str) -> str:
    """Return a list in brackets whose texts have quotes inside as YAML; "" if its items are not certain."""
    match = re.fullmatch(r"\[\s*\"(.*)\"\s*\]", text)
    if not match:
        return ""
    parts = [part.replace('\\"', '"') for part in re.split(r"\"\s*,\s*\"", match[1])]
    certain = all(part.count('"') % 2 == 0 for part in parts)
    return json.dumps(parts, ensure_ascii=False) if certain else ""


def _literal(text: str) -> str:
    """Return the text that is meant: without a pair of quotes around the whole."""
    closing = _QUOTES.get(text[0])
    inner = text[1:-1]
    if len(text) < 2 or closing is None or text[-1] not in (closing, text[0]):
        return text
    quotes = re.escape(text[0] + closing)
    first = re.search(rf"(?<!\\)[{quotes}](?!\w)|(?<![\w\\])[{quotes}]", inner)
    if first and not re.search(r"[\s(\[{]$|^$", inner[: first.start()]):
        return text  # `"Yes" and "no"`: the first quote is closed before the end
    return inner.replace('\\"', '"') if closing in ('"', "”") else inner


# -- JSON ------------------------------------------------------------------------------------------

_OUTSIDE = re.compile(r",(?=\s*[}\]])|//[^\n]*|/\*.*?\*/|\b(?:True|False|None)\b", re.DOTALL)
_PYTHON = {"True": "true", "False": "false", "None": "null"}


def json_object(text: str, notes: Notes) -> tuple[dict[str, Any], int] | None:
    """Return the JSON object at the start of `text` and where it ends, or None if there is none for certain.

    Trailing commas, comments, curly quotes around texts and line breaks inside them are accepted.
    """
    cleaned, end = _cleaned(text, notes)
    if not end:
        return None
    try:
        data = json.loads(cleaned, object_pairs_hook=_unique, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError):
        return None
    return (data, end) if isinstance(data, dict) else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(text)
    return number


def _cleaned(text: str, notes: Notes) -> tuple[str, int]:
    """Return the object at the start of `text` as strict JSON, and its end in `text` (0 if it has none)."""
    found: list[str] = []
    depth = at = 0
    while at < len(text):
        char = text[at]
        if char in '"“”„':
            string, at = _string(text, at, notes)
            found.append(string)
            continue
        if match := _OUTSIDE.match(text, at):
            found.append(_PYTHON.get(match[0], ""))
            notes.add(_phrase(match[0]))
            at = match.end()
            continue
        found.append(char)
        at += 1
        depth += (char in "{[") - (char in "}]")
        if depth == 0:
            return "".join(found), at
    return "", 0


def _phrase(token: str) -> str:
    if token == ",":
        return "left out a comma before a closing bracket"
    return f"read {token} as {_PYTHON[token]}" if token in _PYTHON else "left out comments in the JSON"


def _string(text: str, at: int, notes: Notes) -> tuple[str, int]:
    """Return the JSON text that begins at `at`, and the place behind it."""
    curly = text[at] != '"'
    ends = "”“" if curly else '"'
    if curly:
        notes.add("read curly quotes as straight ones")
    found, at = ['"'], at + 1
    while at < len(text) and text[at] not in ends:
        if text[at] == "\\":
            found.append(text[at : at + 2])
            at += 2
            continue
        if text[at] in "\n\r\t":
            notes.add("read a line break inside a JSON text")
        found.append({"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"'}.get(text[at], text[at]))
        at += 1
    return "".join([*found, '"']), at + 1
