"""Parses Markdown as models write it: outer fences, front matter, code fences, headings and sections. Pure."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from frontmatter.default_handlers import YAMLHandler
from msgspec import Struct

from cdo.core.formatting import one_line
from cdo.formats import strict_yaml

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

MAX_FRONT_MATTER = 65_536  # bytes
_FRONT_MATTER = YAMLHandler(re.compile(r"^---[ \t]*$", re.MULTILINE))


def unwrap(text: str) -> str:
    """Remove what chat models put around a document: a byte order mark, blank lines, one outer fence."""
    text = line_breaks(text).lstrip("\ufeff").strip()
    lines = text.split("\n")
    first = _FENCE.match(lines[0])
    if not first or len(lines) < 3 or lines[-1].strip() != first[1]:
        return text
    inner, language = lines[1:-1], _language(first)
    if language in ("yaml", "yml") and not inner[0].startswith("---"):
        return text  # a lone directive
    if language in ("", "markdown", "md", "yaml", "yml") and not any(_closes(line, first[1]) for line in inner):
        return "\n".join(inner).strip()
    # Fences of the same length inside: they are the document's own if they pair up, the first one with a language.
    own = fences(inner)
    nested = own and own[0].language and all(fence.closed for fence in own)
    return "\n".join(inner).strip() if nested and language in ("markdown", "md") else text


def line_breaks(text: str) -> str:
    """Return `text` with LF as its only line break."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def split_front_matter(text: str) -> tuple[str | None, str]:
    """Return (the YAML between the two `---` lines, the body); (None, text) if there is none.

    The YAML starts at the end of the first `---`, so that its line numbers are those of `text`.
    """
    if not _FRONT_MATTER.detect(text):
        return None, text
    try:
        block, body = _FRONT_MATTER.split(text)
    except ValueError:  # never closed
        return None, text
    return block, body.strip("\n")


def front_matter(text: str) -> tuple[dict[str, Any], str]:
    """Return (the mapping in the front matter, the body); ({}, text) if there is no such mapping."""
    block, body = split_front_matter(text)
    try:
        meta = strict_yaml.load(block or "", max_bytes=MAX_FRONT_MATTER)
    except strict_yaml.YamlProblem:
        return {}, text
    return (dict(meta), body) if isinstance(meta, dict) else ({}, text)


_FENCE = re.compile(r"[ \t]{0,3}(`{3,}|~{3,})([^`]*)$")
_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(.*)$")


class Fence(Struct, frozen=True):
    """Fenced code: its first line, the line after its last, its mark and language, and whether it is closed."""

    start: int
    end: int
    mark: str
    language: str
    closed: bool


def fences(lines: Sequence[str]) -> list[Fence]:
    """Return the fenced code in `lines`; a fence that is never closed runs to the end."""
    found: list[Fence] = []
    start, opened = 0, None
    for number, line in enumerate(lines):
        if "```" not in line and "~~~" not in line:
            continue
        if opened is None:
            start, opened = number, _FENCE.match(line)
        elif _closes(line, opened[1]):
            found.append(Fence(start, number + 1, opened[1], _language(opened), True))
            opened = None
    if opened:
        found.append(Fence(start, len(lines), opened[1], _language(opened), False))
    return found


def _closes(line: str, mark: str) -> bool:
    match = _FENCE.match(line)
    return bool(match and match[1].startswith(mark) and not match[2].strip())


def _language(mark: re.Match[str]) -> str:
    return next(iter(mark[2].lower().split()), "")


def fenced(text: str, languages: Sequence[str]) -> list[tuple[str, int]]:
    """Return the closed code fences in one of `languages`, as (content, number of lines above it)."""
    lines = text.split("\n")
    return [
        ("\n".join(lines[fence.start + 1 : fence.end - 1]), fence.start + 1)
        for fence in fences(lines)
        if fence.closed and fence.language in languages
    ]


def in_fence(text: str, language: str = "") -> str:
    """Return `text` as fenced code. The fence is longer than any run of backticks in it."""
    mark = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{mark}{language}\n{text}\n{mark}"


def headings(lines: Sequence[str]) -> list[tuple[int, int, str]]:
    """Return the headings outside fenced code as (line number, line number of its section's end, key).

    A section ends before the next heading of its own or a higher level, so it includes its subsections.
    """
    code = {number for fence in fences(lines) for number in range(fence.start, fence.end)}
    marks = [
        (number, len(match[1]), heading_key(match[2]))
        for number, line in enumerate(lines)
        if "#" in line and number not in code and (match := _HEADING.match(line))
    ]
    later = range(len(marks))
    return [
        (number, next((marks[i][0] for i in later[index + 1 :] if marks[i][1] <= level), len(lines)), key)
        for index, (number, level, key) in enumerate(marks)
    ]


def sections(text: str) -> dict[str, str]:
    """Map each heading (its letters, lower case) to the text under it; headings in fenced code do not count."""
    return dict(_sections(text))


@lru_cache(maxsize=32)
def _sections(text: str) -> Mapping[str, str]:
    lines = text.split("\n")
    found: dict[str, list[str]] = {}
    for start, end, key in headings(lines):
        found.setdefault(key, []).extend(lines[start + 1 : end])
    return {key: "\n".join(under).strip() for key, under in found.items()}


def heading_key(heading: str) -> str:
    """Return the form in which headings are compared: their letters a-z in lower case."""
    return re.sub(r"[^a-z]+", "", heading.lower())


def closed(text: str) -> str:
    """Return `text` with its last code fence closed."""
    last = fences(text.split("\n"))[-1:]
    return text if not last or last[0].closed else f"{text}\n{last[0].mark}"


# -- active markup ---------------------------------------------------------------------------------

# A link to a file in this folder or below may stay: it has no scheme, no host, and does not lead upwards.
_AFAR = r"(?:\((?![\w-](?:[\w/#-]|\.(?!\.))*\))|:)"
_TAG = re.compile(r"<(?=[A-Za-z/!?])|&(?=(?:amp;)*lt;)")
_REFERENCE = re.compile(r"&amp;(?=(?:amp;)*lt;)|&lt;")
_LINK = re.compile(rf"\](\\*)(?={_AFAR})")
# Both begin with a letter of their own, for which Python searches a text twenty times as fast as for either.
_OPENS = re.compile(r"<[A-Za-z/!?]")
_LEADS = re.compile(rf"\]{_AFAR}")
_ACTIVE = re.compile(r"[\\`*\[\]<>|&#~]")
_NAMED = {"<": "&lt;", "&": "&amp;"}
_PLAIN = re.compile(r"<(?=[A-Za-z/!?])|(?<=\])[(:]|`(?=``)|~(?=~~)|&(?=(?:amp;)*#(?:60|40|58|96|126);)")
_SPELLED = re.compile(r"&amp;(?=(?:amp;)*#(?:60|40|58|96|126);)|&#(60|40|58|96|126);")


def has_active_markup(text: str) -> bool:
    """True if a Markdown text may hold an image, a remote link or HTML that a viewer would act on."""
    if _OPENS.search(text):
        return True
    return any(not _backslashed(text, match.start()) for match in _LEADS.finditer(text))


def _backslashed(text: str, place: int) -> bool:
    """True if the character at `place` has an odd number of backslashes in front."""
    first = place
    while first and text[first - 1] == "\\":
        first -= 1
    return (place - first) % 2 == 1


def neutralise(text: str) -> str:
    """Escape images, remote links with a text of their own, and HTML, so that no Markdown viewer acts on them.

    `<` becomes a character reference, because many viewers take a backslash before it for a part of an address. A
    backslash is put behind the text of a link. Code stays as it is, so that a viewer shows what was written. A plain
    address stays one: it hides nothing.
    """
    return _changed(text, lambda prose: _LINK.sub(r"]\1\\", _TAG.sub(_referred, prose)), _code(text))


def restore(text: str) -> str:
    """Return the Markdown from which `neutralise` made `text`."""
    return _changed(text, lambda prose: _LINK.sub(_fewer, _REFERENCE.sub(_named, prose)), _code(text))


def change_prose(text: str, change: Callable[[str], str]) -> str:
    """Apply `change` to all of a Markdown text but its code: fences, indented code and code spans."""
    lines = [0, *(match.end() for match in re.finditer("\n", text)), len(text)]
    code: list[tuple[int, int]] = []
    for token in _blocks().parse(text):
        if token.map and token.type in ("fence", "code_block", "inline"):
            start, stop = (lines[min(line, len(lines) - 1)] for line in token.map)
            spans = _spans(text[start:stop], wary=False) if token.type == "inline" else [(0, stop - start)]
            code += ((start + left, start + right) for left, right in spans)
    return _changed(text, change, code)


def without_definitions(text: str) -> str:
    """Return Markdown with an empty line in place of each line of a link definition, which no viewer shows."""
    if "]:" not in text:
        return text
    lines, env = line_breaks(text).split("\n"), dict[str, Any]()
    _blocks(definitions=True).parse(text, env)
    for item in (*env.get("references", {}).values(), *env.get("duplicate_refs", ())):
        start, stop = item["map"]
        lines[start:stop] = [""] * (stop - start)
    return "\n".join(lines)


def inert_line(text: object, limit: int = 600, *, code: bool = False) -> str:
    """Return `text` as one line, cut to `limit` characters, with Markdown and HTML escaped and controls visible.

    `<` and `&` become character references: many viewers take a backslash before them for a part of an address.
    With `code`, code spans stay as they are, unless a viewer could take the line for a row of a table.
    """
    line = one_line(text, limit)
    spans = _spans(line) if code and "|" not in line else ()
    return _changed(line, lambda prose: _ACTIVE.sub(_escaped, prose), spans)


def escape_keys(text: str) -> str:
    """Escape a text of front matter, so that a Markdown reader finds no active markup and no fence in it."""
    return _PLAIN.sub(lambda match: "&amp;" if match[0] == "&" else f"&#{ord(match[0])};", text)


def unescape_keys(text: str) -> str:
    """Return the text from which `escape_keys` made `text`."""
    return _SPELLED.sub(lambda match: chr(int(match[1])) if match[1] else "&", text)


def _escaped(match: re.Match[str]) -> str:
    return _NAMED.get(match[0], f"\\{match[0]}")


def _referred(match: re.Match[str]) -> str:
    return "&lt;" if match[0] == "<" else "&amp;"


def _named(match: re.Match[str]) -> str:
    return "<" if match[0] == "&lt;" else "&"


def _fewer(match: re.Match[str]) -> str:
    return f"]{match[1][1:]}"


def _changed(text: str, change: Callable[[str], str], code: Iterable[tuple[int, int]]) -> str:
    """Apply `change` to `text` outside of these (start, end) of code, which are in order."""
    parts, end = [], 0
    for start, stop in code:
        parts += [change(text[end:start]), text[start:stop]]
        end = stop
    return "".join([*parts, change(text[end:])])


def _code(text: str) -> Iterator[tuple[int, int]]:
    """Yield the (start, end) of what every Markdown reader takes for code: fences, and spans where no table can be.

    A span over several lines does not count: HTML at the start of a line would end it. Nor does a fence that is never
    closed, or closed by a longer mark: Python-Markdown knows neither. It knows no fence inside a list or a quotation
    either; such a fence does count, so that code in lists stays legible. `neutralise` leaves all of it in its
    places, so that `restore` finds it.
    """
    if "`" not in text and "~~~" not in text:
        return
    lines = text.split("\n")
    closed = _closed_fences(lines)
    starts = [0, *(match.end() for match in re.finditer("\n", text)), len(text)]
    for token in _blocks().parse(text):
        if token.map and token.type in ("fence", "inline"):
            first, after = token.map
            start, stop = (starts[min(line, len(starts) - 1)] for line in token.map)
            if token.type == "fence":
                ends = lines[after - 1].strip(" \t>") == token.markup and after - first > 1
                inner = token.level > 0 and ends and _SIMPLE.fullmatch(token.markup + token.info)
                if inner or closed.get(first) == after:
                    yield start, stop
            elif "|" not in text[start:stop]:
                yield from ((start + left, start + right) for left, right in _spans(text[start:stop]))


_SIMPLE = re.compile(r"(`{3,}|~{3,}) *[\w#.+-]* *")


def _closed_fences(lines: Sequence[str]) -> dict[int, int]:
    """Return the fences that Python-Markdown knows: the line of the mark, and the line after the same mark alone."""
    marks: dict[str, list[int]] = {}
    for number, line in enumerate(lines):
        if line.startswith(("```", "~~~")):
            marks.setdefault(line.rstrip(" "), []).append(number)
    found, after = {}, 0
    for number, line in enumerate(lines):
        if number >= after and (opened := _SIMPLE.fullmatch(line)):
            ends = marks.get(opened[1], [])
            if (at := bisect_right(ends, number)) < len(ends):
                after = found[number] = ends[at] + 1
    return found


def _spans(text: str, *, wary: bool = True) -> Iterator[tuple[int, int]]:
    """Yield the code spans of a paragraph: from a run of backticks to the next one of equal length.

    If `wary`, only those on one line that every reader of Markdown knows: none is yielded from a backtick on that
    follows what may be an address, since many viewers make one link of both, and no code begins there. Nor is one
    after two or more backticks without a partner: Python-Markdown begins a span with some of them.
    """
    runs: dict[int, list[int]] = {}
    for match in re.finditer("`+", text):
        runs.setdefault(len(match[0]), []).append(match.start())
    end = 0
    for match in re.finditer(r"\\.|`+", text, re.DOTALL):
        # Within a span a backslash is only a backslash.
        if match.start() < end or match[0][0] == "\\":
            continue
        same = runs.get(len(match[0]), [])
        at = bisect_right(same, match.start())
        if at == len(same):
            if wary and len(match[0]) > 1:
                return
            continue
        if wary and re.search("[:@.]", re.split("[ \\t\\n\\r\\f\\v]", text[end : match.start()])[-1]):
            return
        end = same[at] + len(match[0])
        if not wary or "\n" not in text[match.start() : end]:
            yield match.start(), end


@cache
def _blocks(*, definitions: bool = False) -> MarkdownIt:
    """Return a parser of blocks only. HTML and references are text for it, as `neutralise` makes them text.

    With `definitions`, they are what they are.
    """
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark").disable(["inline"] if definitions else ["html_block", "reference", "inline"])
