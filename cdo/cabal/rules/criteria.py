"""Validates the criteria of definitions of done, runs their tests, and checks quotes as evidence. Pure.

One model writes a criterion, and it is applied to another model's text. A test that cannot be run has not passed.
"""

from __future__ import annotations

import json
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain

from cdo.cabal.model import references
from cdo.cabal.model.entities import Check, Criterion, CriterionResult, Version
from cdo.cabal.model.product_files import COMMANDS, commands, files_in, staged_digest
from cdo.cabal.model.state import MissionState
from cdo.cabal.replies.fields import CONTENT, CriterionItem
from cdo.cabal.rules.acceptance import held
from cdo.core import file_paths
from cdo.core.formatting import one_line, pluralise
from cdo.core.steps import Json
from cdo.formats.markdown import without_definitions
from cdo.formats.sections import folded
from cdo.formats.strict_yaml import shown
from cdo.security.bounded_checks import UnusableCheck, check_schema, document, encodable, misfit, pattern

QUOTE = 8  # least characters of a quote that is not a whole line
SUBSTANCE = 2  # least letters and digits of any quote
CONTAINED = 600  # most characters of the value of a `contains` test
COMMAND = 400  # most characters of a command
VISIBLE = 3  # least visible characters of that value, blanks not counted
WORDS = CONTENT // 2  # the most words that a version can have
FEWEST = 5  # least value of a `min_words` test
_KEPT = 300  # characters of a match that are kept as its quote
_LAST = 99  # the highest number of a criterion's id
# Unrelated texts: a pattern that is found in all of them is found in almost any text.
_UNRELATED = (
    "Zebras graze quietly at dawn",
    "Wir prüfen morgen alle Zahlen\n\nund melden das Ergebnis",
    'if (x < 7) { rows["key"] = a & b * 2; }  // TODO: see #1, @me <br/>',
    "Lorem ipsum dolor sit amet, consectetur\nadipiscing elit",
)
_ANY_JSON: tuple[Json, ...] = ({}, [], "x", 1)
_UNCLOSED = re.compile("^ {0,3}<!--", re.MULTILINE)
_HEADING = re.compile(r"(?:[\s>*+-]|\d{1,9}[.)])*#{1,6}(?:\s|$)")
_UNDERLINE = re.compile(r" {0,3}(?:=+|-+)\s*")
# A word, or one character. Some scripts put no blanks between words, so each of their characters may begin a word.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_PIECE = re.compile(f"(?:[^\\W{_UNSPACED}]|[\u0300-\u036f])+|.")
# Control characters, and letters and signs that are invisible.
_UNSEEN = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\ufe00-\ufe0f"
    "\U000e0100-\U000e01ef]"
)


# -- criteria from the chair -----------------------------------------------------------------------


def made(items: Sequence[CriterionItem], old: tuple[Criterion, ...] = ()) -> tuple[Criterion, ...]:
    """Return criteria with ids: a criterion with the text and test of an old one keeps its id, others get a new id.

    A criterion with an old id but another text or test also gets a new id: old results do not apply to it.
    """
    free = {item.id: _asked(item.text, item.check) for item in old}
    kept: dict[int, str] = {}
    for claimed in (True, False):
        for place, item in enumerate(items):
            asked = _asked(item.text, _check(item))
            same = (id for id, was in free.items() if was == asked and (id == item.id or not claimed))
            if place not in kept and (id := next(same, "")):
                kept[place] = id
                del free[id]
    new = _new_ids([item.id for item in old])
    return tuple(Criterion(kept.get(place) or next(new), item.text, _check(item)) for place, item in enumerate(items))


def _asked(text: str, check: Check) -> str:
    """Return a criterion's text and test for comparison: 1 differs from true, and the order of keys is ignored."""
    return json.dumps([folded(text), check.kind, check.value], sort_keys=True)


def _new_ids(old: Sequence[str]) -> Iterator[str]:
    """Yield ids that are not in `old`: first ids above its highest one, then unused ones below."""
    top = max((int(id[1:]) for id in old), default=0)
    return (id for number in chain(range(top + 1, _LAST + 1), range(1, top)) if (id := f"d{number}") not in old)


def _check(item: CriterionItem) -> Check:
    """Return the test of a criterion; its value is normalised if it is usable."""
    kind, value = item.check.kind, item.check.value
    if kind == "judged":
        return Check()
    if kind in ("min_words", "max_words"):
        return Check(kind, _number(value) or value)
    return Check(kind, _product(value) if kind == "reference" else value)


def _number(value: Json) -> int:
    """Return a number of words, 0 if `value` is not a valid one."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return 0
    text = str(value).strip()
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0
    return number if number <= WORDS else 0


def _product(value: Json) -> Json:
    """Return the id of a product; `value` may be a reference."""
    cited = references.cited(value) if isinstance(value, str) else ()
    return cited[0][1] if cited and cited[0][0] == "p" else value.strip() if isinstance(value, str) else value


def problems(items: Sequence[CriterionItem], state: MissionState) -> list[str]:
    """Return the problems with criteria, one sentence each.

    Problems are tests that cannot be run or cannot fail, duplicate ids and texts, and references that do not resolve.
    """
    found: list[str] = []
    for key, what in ((lambda item: item.id, "id"), (lambda item: folded(item.text), "text")):
        said = [value for item in items if (value := key(item))]
        twice = sorted({value for value in said if said.count(value) > 1})
        found += (f"two criteria have the {what} `{shown(value)}`." for value in twice)
    for place, item in enumerate(items, 1):
        what = f"criterion {place}"
        found += references.problems([item.text], state, what)
        try:
            _TESTED[item.check.kind][0](item.check.value, state)
        except UnusableCheck as why:
            found.append(f"{what} ({item.check.kind}): {why}.")
    return found


def _pattern_fits(value: Json, state: MissionState) -> None:
    if not isinstance(value, str) or not value:
        raise UnusableCheck("`value` must be a pattern of RE2")
    if pattern(value).search(""):
        raise UnusableCheck("the pattern is found in an empty text, and so in every other")
    if all(pattern(value).search(text) for text in _UNRELATED):
        raise UnusableCheck("the pattern is found in almost any text: put into it what only this product says")


def _text_fits(value: Json, state: MissionState) -> None:
    if not isinstance(value, str) or len(seen(value).replace(" ", "")) < VISIBLE or len(value) > CONTAINED:
        raise UnusableCheck(f"`value` must be the text to be there, {VISIBLE} to {CONTAINED} characters")


def _schema_fits(value: Json, state: MissionState) -> None:
    check_schema(value)
    if isinstance(value, dict) and not any(misfit(value, text) for text in _ANY_JSON):
        raise UnusableCheck("the schema takes any JSON: name a `type`, what is required, what may be there")


def _product_fits(value: Json, state: MissionState) -> None:
    id = _product(value)
    if not isinstance(id, str) or id not in state.products:
        raise UnusableCheck(f"`value` must be a product; {references.there(state)}")
    if state.rules >= 4 and state.products[id].container:
        raise UnusableCheck(f"{id} only holds other products and never has a version: name one of those")


def _least_fits(value: Json, state: MissionState) -> None:
    if _number(value) < FEWEST:
        raise UnusableCheck(f"`value` must be a number of words from {FEWEST} to {WORDS:,}")


def _most_fits(value: Json, state: MissionState) -> None:
    if not 0 < _number(value) < WORDS:
        raise UnusableCheck(f"`value` must be a number of words from 1 to {WORDS - 1:,}: no version has more")


def _command_fits(value: Json, state: MissionState) -> None:
    if not state.exec:
        raise UnusableCheck("no command runs in this mission, which was begun without --exec; use another kind")
    if not isinstance(value, str) or not value.strip() or len(value) > COMMAND or not value.isprintable():
        raise UnusableCheck(f"`value` must be a command for a shell, one line of at most {COMMAND} characters")
    if len(commands(state)) == COMMANDS and value not in commands(state):
        raise UnusableCheck(f"there are {COMMANDS} commands already; use one of them")
    if value.split()[0] in ("true", ":", "echo", "exit"):
        raise UnusableCheck("the command says nothing of the files: run a test of them")


def _anything_fits(value: Json, state: MissionState) -> None:
    return None


# -- tests by code ---------------------------------------------------------------------------------

Outcome = tuple[bool, str, str]  # whether it passed, the quote that shows it, a note


def tested(criterion: Criterion, version: Version, state: MissionState) -> CriterionResult | None:
    """Test a version's content and return the result, by "code"; None if only an inspection can judge it.

    A test that cannot be run has not passed.
    """
    check = criterion.check
    if check.kind == "judged":
        return None
    fits, test = _TESTED.get(check.kind, (_anything_fits, _unknown))
    try:
        fits(check.value, state)
        passed, quote, note = test(check.value, version.content, state)
    except UnusableCheck as why:
        passed, quote, note = False, "", f"{why}"
    return CriterionResult(criterion.id, passed, quote, note, "code")


def whole(state: MissionState, product: str) -> Version:
    """Return the version that code tests: the newest one; for a container, all texts in it joined as one version."""
    item, latest = state.products[product], state.latest(product)
    if latest and not item.container:
        return latest
    return Version("", 0, product, "code", item.name, "\n\n".join(material(state, product)), "", state.round)


def _unknown(value: Json, content: str, state: MissionState) -> Outcome:
    return False, "", "there is no such test"


def _searched(value: Json, content: str, state: MissionState) -> Outcome:
    match = pattern(str(value)).search(encodable(content))
    if not match:
        return False, "", f"nothing matches {one_line(value, 120)}"
    return True, match[0][:_KEPT], ""


def _contained(value: Json, content: str, state: MissionState) -> Outcome:
    text = seen(str(value))
    if text not in seen(content):
        return False, "", f"it does not contain “{one_line(text, 120)}”"
    return True, text[:_KEPT], ""


def _structured(value: Json, content: str, state: MissionState) -> Outcome:
    why = misfit(value, document(content)) if isinstance(value, dict) else "there is no schema"
    return not why, "", why or "its JSON fits the schema"


def _referring(value: Json, content: str, state: MissionState) -> Outcome:
    id = str(_product(value))
    if ("p", id) not in references.cited(content):
        return False, "", f"it does not refer to [[p:{id}]]"
    if not state.products[id].versions:
        return False, "", f"[[p:{id}]] has no version yet"
    return True, next(match[0] for match in references.REFERENCE.finditer(content) if match[2] == id), ""


def _long_enough(value: Json, content: str, state: MissionState) -> Outcome:
    found, wanted = _words(content), _number(value)
    return found >= wanted, "", f"it has {pluralise(found, 'word')}, {wanted:,} or more are wanted"


def _short_enough(value: Json, content: str, state: MissionState) -> Outcome:
    found, wanted = _words(content), _number(value)
    return found <= wanted, "", f"it has {pluralise(found, 'word')}, at most {wanted:,} are wanted"


def _ran(value: Json, content: str, state: MissionState) -> Outcome:
    run = state.runs.get(str(value))
    if run is None or run.files != staged_digest(state):
        return False, "", "it has not run on the newest files"
    last = next((line for line in reversed(run.output.splitlines()) if line.strip()), "")
    return run.passed, "", f"{run.outcome}{f': {one_line(last, 200)}' if last and not run.passed else ''}"


def _words(content: str) -> int:
    """Return the number of words in a text; a sign between blanks is not a word."""
    return sum(any(map(str.isalnum, word)) for word in seen(content).split(" "))


_TESTED: Mapping[str, tuple[Callable[[Json, MissionState], None], Callable[[Json, str, MissionState], Outcome]]] = {
    "regex": (_pattern_fits, _searched),
    "contains": (_text_fits, _contained),
    "json_schema": (_schema_fits, _structured),
    "reference": (_product_fits, _referring),
    "min_words": (_least_fits, _long_enough),
    "max_words": (_most_fits, _short_enough),
    "command": (_command_fits, _ran),
    "judged": (_anything_fits, _unknown),
}


# -- quotes as evidence ----------------------------------------------------------------------------


class Code(str):
    """The text of a file in which no line is a heading or a comment of Markdown."""


class Prose(str):
    """Markdown in which link definitions, which nobody sees, are no evidence: all Markdown by rules since 5."""


def material(state: MissionState, product: str) -> tuple[str, ...]:
    """Return the texts that can prove a product's criteria: content and outcome of its newest version.

    For a container, these are the texts of all products that it holds. Of a folder, each file is a text.
    """
    found: list[str] = []
    rest, begun = [product], {product}
    while rest:
        item = state.products[rest.pop()]
        inner = [each.id for each in held(state, item.id)] if item.container else []
        rest += (id for id in reversed(inner) if id not in begun)
        begun.update(inner)
        if not item.container and (latest := state.latest(item.id)):
            files = files_in(item.path, latest.content).items()
            kind = Prose if state.rules >= 5 else str
            texts = [(kind if file_paths.is_markdown(path) else Code)(text) for path, text in files]
            found += filter(None, (*texts, latest.outcome))
    return tuple(found)


def evidence(quote: str, texts: Iterable[str]) -> bool:
    """True if a quote occurs in one of the texts and is substantial.

    It needs `SUBSTANCE` letters or digits, and `QUOTE` characters or a whole line. It must consist of whole words and
    not lie entirely in headings. White space is folded; invisible characters and HTML comments are ignored.
    """
    text = seen(quote)
    if sum(map(str.isalnum, text)) < SUBSTANCE:
        return False
    if len(text) >= QUOTE:
        return any(_stands(f"\0{_pieces(text)}", *_stream(str(item), type(item))) for item in texts)
    lines = (line for item in texts for line in _lines(str(item), type(item)))
    return any(text == line and not heading for line, heading in lines)


def _stands(quote: str, stream: str, headings: Sequence[tuple[int, int]]) -> bool:
    """True if a quote occurs in a text, both split into pieces, and does not lie entirely within headings."""
    start = 0
    while (at := stream.find(quote, start)) >= 0:
        place = bisect_right(headings, at, key=lambda span: span[0]) - 1
        if place < 0 or at + len(quote) > headings[place][1]:
            return True
        start = max(at, headings[place][1] - len(quote)) + 1
    return False


@lru_cache(maxsize=128)
def _stream(text: str, kind: type[str]) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Return a text's visible pieces, and the (start, end) of its headings there; adjacent headings are one span."""
    parts, size = [], 0
    headings: list[tuple[int, int]] = []
    after = False  # whether the line before is a heading
    for line, heading in _lines(text, kind):
        piece = _pieces(line)
        parts.append(f" \0{piece}")
        size += len(parts[-1])
        if heading:
            begin = headings.pop()[0] if after else size - len(piece) - 1
            headings.append((begin, size))
        after = heading
    return "".join(parts), tuple(headings)


def _pieces(text: str) -> str:
    """Return the words of a text and each sign and blank between them, each followed by NUL, which no text has."""
    return "".join(f"{piece}\0" for piece in _PIECE.findall(text))


@lru_cache(maxsize=128)
def _lines(text: str, kind: type[str]) -> tuple[tuple[str, bool], ...]:
    """Return the lines of a text with visible content, each with a flag: True for a Markdown heading.

    In `Code` there are no headings, and what looks like a comment of Markdown is text.
    """
    if kind is Code:
        return tuple((line, False) for line in map(seen, text.splitlines()) if line)
    lines = _uncommented(without_definitions(text) if kind is Prose else text).splitlines()
    found = [(seen(line), line, below) for line, below in zip(lines, [*lines[1:], ""], strict=False)]
    return tuple(
        (text, bool(_HEADING.match(line) or _UNDERLINE.fullmatch(line) or _UNDERLINE.fullmatch(below)))
        for text, line, below in found
        if text
    )


def _uncommented(text: str) -> str:
    """Return a text without HTML comments.

    An unclosed comment at the beginning of a line hides the rest of the text; elsewhere it counts as text.
    """
    parts, start = [], 0
    while (at := text.find("<!--", start)) >= 0:
        if (end := text.find("-->", at + 4)) < 0:
            unclosed = _UNCLOSED.search(text, max(start, text.rfind("\n", 0, at) + 1))
            text = text[: unclosed.start()] if unclosed else text
            break
        parts.append(text[start:at])
        start = end + 3
    return "".join((*parts, text[start:]))


def seen(text: str) -> str:
    """Return the visible form of a text: white space folded to blanks, control and zero-width characters removed."""
    if not text.isascii():
        text = "".join(char for char in text if unicodedata.category(char) != "Cf")
    return " ".join(_UNSEEN.sub("", text).split())
