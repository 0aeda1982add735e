"""Rewrites a reply into the strict layout of its format, in each way in which it may be meant. Pure.

The format judges each candidate. Nothing here decides whether a reply is valid.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from cdo.formats import strict_yaml
from cdo.formats.lenient.data_text import COMMENT, json_object, key_of, mappings
from cdo.formats.lenient.layout import AS_JSON, BODY, SECTIONS, TITLE, Notes, ReplyLayout, folded
from cdo.formats.lenient.values import normalised
from cdo.formats.markdown import Fence, fences, heading_key, headings

_RULE = re.compile(r"[ \t]*(?:-{3,}|\*{3,}|_{3,}|\.{3}|[—–]{1,3})[ \t]*")
_MARK = re.compile(r"[ \t]{0,3}(?:`{3,}|~{3,})[ \t]*")
_OPENED = re.compile(
    r"[ \t]{0,3}(?:`{3,}|~{3,})[ \t]*(?:yaml|yml|json|markdown|md|text|txt|directive|front-?matter)?[ \t]*", re.I
)
_WRAPPED = re.compile(r"[ \t]{0,3}(?:`{3,}|~{3,})[ \t]*(?:markdown|md)?[ \t]*", re.IGNORECASE)
_HEADING = re.compile(r"#{1,6}[ \t]+\S")
_BODY_KEYS = (BODY, "markdown", "content")
_SHORT = 300  # most characters of a sentence before the data that is left out
_PLACES = 6  # places at which the data may begin


class Candidate(Struct, frozen=True):
    """A text that may be the reply. Candidates of one `place` are readings of the same words, the best first."""

    place: int
    text: str
    notes: Notes


class _Data(Struct, frozen=True):
    """Data found in a reply, with the lines before and after it. `place` is its first line."""

    place: int
    data: dict[str, Any]
    before: str
    after: str
    notes: Notes


def _known_in(data: dict[str, Any], layout: ReplyLayout) -> bool:
    """True if the format has a key of the data, or of the one mapping that is all there is in it."""
    inner = next(iter(data.values())) if len(data) == 1 else None
    return any({folded(str(key)) for key in each} & layout.names for each in (data, inner) if isinstance(each, dict))


def keys_in(text: str, layout: ReplyLayout) -> set[str]:
    """Return the folded keys of a text that is a mapping in YAML; none if it is something else."""
    found = next(mappings(text.strip("\n"), layout.all_names, layout.max_bytes, Notes()), None)
    return {folded(str(key)) for key in found[0]} if found else set()


def candidates(text: str, layout: ReplyLayout) -> Iterator[Candidate]:
    """Yield each text in the strict layout that `text` may stand for."""
    match layout.place:
        case "front matter":
            for found in _unfenced(text.split("\n"), layout):
                yield _with_front_matter(found, layout)
        case "block":
            yield from _sectioned(text, layout)
            yield from _blocks(text, layout)
        case "json":
            yield from _objects(text, layout)
        case "prose":
            yield from _sectioned(text, layout)
            yield from _prose(text, layout)


# -- front matter ----------------------------------------------------------------------------------


def _with_front_matter(found: _Data, layout: ReplyLayout) -> Candidate:
    notes = found.notes.copy()
    data, body = normalised(found.data, layout, notes), found.after.strip("\n")
    before = found.before.strip()
    if before and (len(before) > _SHORT or "\n\n" in before or _HEADING.match(before)):
        notes.add("moved the text before the front matter below it")
        body = f"{before}\n\n{body}"
    elif before:
        notes.add("left out a sentence before the front matter")
    if not body.strip():
        own = [key for key in _BODY_KEYS if isinstance(data.get(key), str) and key not in layout.names]
        body = data.pop(own[0]) if own else ""
    return Candidate(found.place, f"---\n{strict_yaml.dump(data)}---\n\n{body}\n", notes)


def _unfenced(lines: Sequence[str], layout: ReplyLayout) -> Iterator[_Data]:
    """Yield data that stands at the start of the reply, below a rule, in a fence or below the last of the titles."""
    places = 0
    at = 0
    while at < len(lines) and places < _PLACES:
        start = _start(lines, at, layout)
        if start is None:
            at += 1
            continue
        places += 1
        first, wrapped = start
        notes = Notes()
        if any(_OPENED.fullmatch(line) and line.strip() for line in lines[at:first]):
            notes.add("took the data out of a code fence")
        elif layout.place == "front matter" and first == at and not lines[first].lstrip().startswith("{"):
            notes.add("took the keys without a line `---` above them")
        if any(map(COMMENT.fullmatch, lines[at:first])):
            notes.add("left out comments before the keys")
        before = "\n".join(lines[:at])
        if lines[first].lstrip().startswith("{"):
            yield from _object_at(lines, at, first, before, notes)
        for end, after, why in _ends(lines, first, layout, fenced=wrapped):
            own = notes.copy()
            if why:
                own.add(why)
            around = wrapped and not any(_MARK.fullmatch(line) for line in lines[end:after])
            body = "\n".join(_before_last_mark(lines[after:], own) if around else lines[after:])
            block = "\n".join(lines[first:end])
            for data, read in mappings(block, layout.all_names, layout.max_bytes, own):
                if _known_in(data, layout):
                    yield _Data(at, data, before, body, read)
        at = first + 1


def _start(lines: Sequence[str], at: int, layout: ReplyLayout) -> tuple[int, bool] | None:
    """Return the first line of data whose opening marks begin at line `at`, and whether a fence is one of them."""
    ruled = wrapped = False
    first = at
    for _ in range(3):
        while first < len(lines) and (not lines[first].strip() or COMMENT.fullmatch(lines[first])):
            first += 1
        if first == len(lines):
            return None
        if not ruled and _RULE.fullmatch(lines[first]):
            ruled = True
        elif not wrapped and _OPENED.fullmatch(lines[first]):
            wrapped = True
        else:
            break
        first += 1
    if first >= len(lines) or not lines[at].strip():
        return None
    begins = at == 0 or ruled or wrapped or (lines[at].startswith("{") and not lines[at - 1].strip())
    if not begins:
        titled = next((line for line in reversed(lines[:at]) if line.strip()), "")
        begins = bool(layout.titles) and _HEADING.match(titled) is not None
        begins = begins and heading_key(titled) == heading_key(layout.titles[-1])
    key = key_of(lines[first])
    known = key in layout.names or (ruled and key is not None) or lines[first].lstrip().startswith("{")
    return (first, wrapped) if begins and known else None


def _ends(lines: Sequence[str], first: int, layout: ReplyLayout, *, fenced: bool) -> Iterator[tuple[int, int, str]]:
    """Yield where data that starts at line `first` may end: (its end, where the text goes on, a note or "")."""
    soft: tuple[int, int, str] | None = None
    for at in range(first + 1, len(lines)):
        line = lines[at]
        if _RULE.fullmatch(line) and not line.startswith((" ", "\t")):
            mark = line.strip()
            after = _past(lines, at + 1, _MARK if fenced else None)
            yield at, after, "" if mark == "---" else f"took `{mark}` for `---`"
            break
        if fenced and _MARK.fullmatch(line):
            yield at, _past(lines, at + 1, _RULE), ""
            break
        if soft is None and _HEADING.match(line):
            soft = at, at, "took a heading for the end of the front matter"
        if soft is None and not lines[at - 1].strip() and line.strip() and not _goes_on(line, layout):
            soft = at, at, "took a blank line for the end of the front matter"
    yield soft or (len(lines), len(lines), "")


def _goes_on(line: str, layout: ReplyLayout) -> bool:
    return line.startswith((" ", "\t", "- ", "#", "}", "]")) or key_of(line) in layout.names


def _past(lines: Sequence[str], at: int, mark: re.Pattern[str] | None) -> int:
    """Return the line behind a closing mark at line `at` (after blank lines), or `at` if there is none."""
    after = next((n for n in range(at, len(lines)) if lines[n].strip()), len(lines))
    return after + 1 if mark and after < len(lines) and mark.fullmatch(lines[after]) else at


def _before_last_mark(lines: Sequence[str], notes: Notes) -> Sequence[str]:
    """Return the lines of a document without the closing mark of the fence around it, and a sentence behind that."""
    last = fences(lines)[-1:]
    if not last or last[0].closed or not _MARK.fullmatch(lines[last[0].start]):
        return lines
    start = last[0].start
    rest = lines[start + 1 :]
    if len("\n".join(rest).strip()) > _SHORT or any(_HEADING.match(line) for line in rest):
        return [*lines[:start], *rest]
    if any(line.strip() for line in rest):
        notes.add("left out a sentence behind the fence")
    return lines[:start]


def _object_at(lines: Sequence[str], at: int, first: int, before: str, notes: Notes) -> Iterator[_Data]:
    own = notes.copy()
    text = "\n".join(lines[first:])
    text = text[len(text) - len(text.lstrip()) :]
    if found := json_object(text, own):
        own.add(AS_JSON)
        rest = text[found[1] :].split("\n")
        while rest and (not rest[0].strip() or _MARK.fullmatch(rest[0]) or _RULE.fullmatch(rest[0])):
            rest = rest[1:]
        yield _Data(at, found[0], before, "\n".join(rest), own)


# -- a fenced block --------------------------------------------------------------------------------


def _blocks(text: str, layout: ReplyLayout) -> Iterator[Candidate]:
    for lines, notes in _documents(text.split("\n")):
        yield from _blocks_in(_with_headings(lines, layout, notes), layout, notes)


def _blocks_in(lines: Sequence[str], layout: ReplyLayout, notes: Notes) -> Iterator[Candidate]:
    """Yield the lines with the data in the one fenced block."""
    there = {key for _, _, key in headings(lines)}
    last = heading_key(layout.titles[-1]) if layout.titles else ""
    held = [found for fence in fences(lines) if (found := list(_in_fence(lines, fence, layout, notes)))]
    if len(held) > 1:
        held = _meant(lines, held, last)
    if held:
        for fence, data, own in held[0]:
            block = _block(data, layout, own)
            above, below = _relabelled(lines[: fence.start], own), _relabelled(lines[fence.end :], own)
            yield Candidate(0, "\n".join([*above, *block, *below]), own)
        return
    for mapping in _unfenced(lines, layout):
        own = Notes(list(dict.fromkeys([*notes.phrases, *mapping.notes.phrases])))
        own.add("put the block into a code fence")
        block = _block(mapping.data, layout, own)
        parts = [mapping.before, *block, mapping.after]
        if layout.titles and last not in there:
            parts = [mapping.before, mapping.after, "", f"## {layout.titles[-1]}", "", *block]
        yield Candidate(mapping.place, "\n".join(parts), own)


_Held = list[tuple[Fence, dict[str, Any], Notes]]


def _in_fence(
    lines: Sequence[str], fence: Fence, layout: ReplyLayout, notes: Notes
) -> Iterator[tuple[Fence, dict[str, Any], Notes]]:
    """Yield the readings of a fence that holds a mapping with known keys."""
    if fence.language not in ("", "yaml", "yml", "json", "directive", "text", "txt"):
        return
    own = notes.copy()
    if not fence.closed:
        own.add("closed the code fence of the block")
    if fence.language not in ("yaml", "yml"):
        own.add("read a code fence without the language yaml")
    inside = lines[fence.start + 1 : fence.end - fence.closed]
    while inside and (not inside[0].strip() or _RULE.fullmatch(inside[0])):
        inside = inside[1:]
    while inside and (not inside[-1].strip() or _RULE.fullmatch(inside[-1])):
        inside = inside[:-1]
    text = "\n".join(inside)
    found = [(data, read) for data, read in mappings(text, layout.all_names, layout.max_bytes, own)]
    if not found and text.lstrip().startswith("{") and (loaded := json_object(text.lstrip(), own)):
        found = [(loaded[0], own)]
    for data, read in found:
        if _known_in(data, layout):
            yield fence, data, read


def _meant(lines: Sequence[str], held: list[_Held], last: str) -> list[_Held]:
    """Return the block that is meant among several: under the last title, or the only content there is; else none."""
    if all(each[0][1] == held[0][0][1] for each in held):
        return held[-1:]
    places = [(start, end) for start, end, key in headings(lines) if key == last]
    under = [each for each in held if any(start < each[0][0].start < end for start, end in places)]
    return under if len(under) == 1 else []


def _block(data: dict[str, Any], layout: ReplyLayout, notes: Notes) -> list[str]:
    return ["```yaml", *strict_yaml.dump(normalised(data, layout, notes)).rstrip("\n").split("\n"), "```"]


def _relabelled(lines: Sequence[str], notes: Notes) -> list[str]:
    """Return lines in which no fence is YAML, so that only the block that is meant is read as such."""
    changed = list(lines)
    for fence in fences(lines):
        if fence.language in ("yaml", "yml"):
            notes.add("took the one YAML block that has the keys of the format")
            changed[fence.start] = f"{lines[fence.start][: lines[fence.start].index(fence.mark)]}{fence.mark}text"
    return changed


def _sectioned(text: str, layout: ReplyLayout) -> Iterator[Candidate]:
    """Yield the document of a reply that is one JSON object, with texts under `sections` if it has titles."""
    notes = Notes([AS_JSON])
    found = json_object(text, notes) if text.startswith("{") else None
    if not found or text[found[1] :].strip():
        return
    data = dict(found[0])
    sections = data.pop(SECTIONS, None) if layout.titles else {}
    if not isinstance(sections, dict):
        return
    said = {heading_key(str(key)): str(value) for key, value in sections.items()}
    lines: list[str] = []
    if layout.titled and (above := str(data.pop(TITLE, "")).strip()):
        lines += [f"# {above.lstrip('#').strip()}", ""]
    for title, level in zip(layout.titles, layout.levels or [2] * len(layout.titles), strict=True):
        if (told := said.get(heading_key(title))) is not None:
            lines += [f"{'#' * level} {title}", "", *_below(told.strip(), title), ""]
    if layout.place == "prose" and layout.models:
        lines = [f"---\n{strict_yaml.dump(normalised(data, layout, notes))}---\n", *lines]
    if layout.place == "block":
        lines += [*(f"## {title}\n" for title in layout.titles[-1:]), *_block(data, layout, notes)]
    yield Candidate(0, "\n".join(lines), notes)


def _below(text: str, title: str) -> list[str]:
    """Return the lines of a section's text, without its title if the text begins with that."""
    lines = text.split("\n")
    return lines[1:] if _HEADING.match(lines[0]) and heading_key(lines[0]) == heading_key(title) else lines


# -- JSON ------------------------------------------------------------------------------------------


def _objects(text: str, layout: ReplyLayout) -> Iterator[Candidate]:
    start, lines = text.find("{"), text.split("\n")
    inner = [
        (fence.start, body)
        for fence in fences(lines)
        if fence.language in ("", "json", "json5", "jsonc")
        and (body := "\n".join(lines[fence.start + 1 : fence.end - fence.closed]).strip()).startswith("{")
    ]
    if not inner and start >= 0:
        inner = [(0, text[start:])]
    for place, body in inner:
        notes = Notes()
        found = json_object(body, notes)
        rest = body[found[1] :] if found else ""
        if found and "{" not in rest and "}" not in rest:
            yield Candidate(place, json.dumps(normalised(found[0], layout, notes), ensure_ascii=False), notes)
    if start < 0:
        for mapping in _unfenced(lines, layout):
            notes = mapping.notes.copy()
            notes.add("read YAML for JSON")
            data = normalised(mapping.data, layout, notes)
            yield Candidate(mapping.place, json.dumps(data, ensure_ascii=False), notes)


# -- prose with headings ---------------------------------------------------------------------------


def _prose(text: str, layout: ReplyLayout) -> Iterator[Candidate]:
    lines = text.split("\n")
    for inside, notes in (*_documents(lines), *_without_preamble(lines)):
        changed = _with_headings(inside, layout, notes)
        if notes.phrases:
            yield Candidate(0, "\n".join(changed).strip(), notes)


def _documents(lines: Sequence[str]) -> Iterator[tuple[Sequence[str], Notes]]:
    """Yield the lines in which the document may stand: all of them, or those in a fence."""
    yield lines, Notes()
    yield from _unwrapped(lines)


def _unwrapped(lines: Sequence[str]) -> Iterator[tuple[Sequence[str], Notes]]:
    """Yield the lines of a document that stands in a fence, below a sentence or with one behind it."""
    notes = Notes()
    for at, line in enumerate(lines[:12]):
        if _WRAPPED.fullmatch(line):
            notes.add("took the document out of a code fence")
            yield _before_last_mark(lines[at + 1 :], notes), notes
            return


def _without_preamble(lines: Sequence[str]) -> Iterator[tuple[Sequence[str], Notes]]:
    """Yield the lines of a document without a sentence above its front matter or its first heading."""
    first = next((at for at, line in enumerate(lines) if line.strip() == "---" or _HEADING.match(line)), 0)
    if first and len("\n".join(lines[:first])) <= _SHORT:
        yield lines[first:], Notes(["left out a sentence before the document"])


def _with_headings(lines: Sequence[str], layout: ReplyLayout, notes: Notes) -> list[str]:
    """Return the lines with each missing title as a heading where it stands alone on a line, bold or underlined."""
    there = {key for _, _, key in headings(lines)}
    missing = {heading_key(title): title for title in layout.titles if heading_key(title) not in there}
    code = {number for fence in fences(lines) for number in range(fence.start, fence.end)}
    changed = list(lines)
    for number, line in enumerate(lines):
        if not missing or number in code or len(line) > 60:
            continue
        bold = re.fullmatch(r"\s*(?:\d{1,2}[.)]\s*)?(\*\*|__)(.+?)\1:?\s*", line)
        underlined = number + 1 < len(lines) and re.fullmatch(r"(=+|-+)\s*", lines[number + 1])
        title = missing.pop(heading_key(bold[2] if bold else line), None) if bold or underlined else None
        if title:
            notes.add(f"read the line `{title}` as a heading")
            changed[number] = f"## {title}"
            if underlined:
                changed[number + 1] = ""
    return changed
