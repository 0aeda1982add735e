"""Reads a reply by its format, strictly first, then leniently. Pure.

The text of a reading follows the strict format, so that what is stored from it can be read strictly again. What
reads deviations is imported when a reply deviates.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from cdo.core.steps import InvalidReply, ReplyFormat
from cdo.formats.fields import MAX_REPLY_CHARS, texts
from cdo.formats.lenient.layout import LenientFormat, brief
from cdo.formats.markdown import line_breaks

if TYPE_CHECKING:
    from cdo.formats.lenient.candidates import Candidate

_THINKING = "think|thinking|thought|reasoning|scratchpad|reflection"
_THOUGHT = re.compile(rf"\s*<({_THINKING})>.*?</\1>\s*", re.DOTALL | re.IGNORECASE)
# Ends of thoughts without a beginning, and marks of models' own templates that a server has let through.
_END_OF_THOUGHT = re.compile(
    r"</think(?:ing)?>[ \t]*\n|◁/think▷|<\|channel\|>\s*final\b[^<\n]*<\|message\|>", re.IGNORECASE
)
_END_MARK = re.compile(r"<\|(?:end|return|im_end)\|>\s*$")
_INVISIBLE = re.compile("[\u200b\u2060]")
# Texts that the examples of prompts hold in place of an answer.
_ANGLES = re.compile(r"<[a-z][^<>]{3,200}>")
_ELLIPSIS = re.compile(r"<[a-z][^<>]{3,200}>|[#\s]*(?:[\w-]+:? ){0,2}(?:\.{3}|…)[#\s.…]*")
# What a reply holds that has such a text, as it is or escaped.
_PERHAPS_AN_EXAMPLE = re.compile(r"[<…\\]|\.\.\.")
_TWO = "The reply holds two answers that differ. Send one."
_RULE = re.compile(r"^---[ \t]*$", re.MULTILINE)
_UNSEEN = "left out invisible characters"
_LEFT_OUT = "left out the model's thoughts before its reply"


class ReadReply(Struct, frozen=True):
    """A valid reply: its `data`, its `text` in the strict layout, and `notes` on what was read leniently."""

    data: Any
    text: str
    notes: tuple[str, ...] = ()


def read(form: ReplyFormat, text: str) -> ReadReply:
    """Return a model's reply; raise `InvalidReply` with what is wrong with it, as far as it could be read."""
    found = _read(form, text)
    if not _PERHAPS_AN_EXAMPLE.search(found.text):
        return found
    from pydantic import BaseModel

    if isinstance(form, LenientFormat) and isinstance(found.data, BaseModel):
        example = _ELLIPSIS if form.layout.place == "json" else _ANGLES
        for path, said in texts(found.data.model_dump(mode="json", warnings=False)):
            # Words quoted from a page can look like a placeholder; code looks them up.
            if example.fullmatch(said.strip()) and not path.endswith(".quote"):
                end = "is a placeholder of the example: write your own text, or leave it out."
                raise InvalidReply([f"`{path}`: `{brief(said)}` {end}"])
    return found


def _read(form: ReplyFormat, text: str) -> ReadReply:
    plain, notes = without_thinking(text)
    if notes:
        try:
            return ReadReply(form.parse(plain), plain, notes)
        except InvalidReply:
            pass
    try:
        found = ReadReply(form.parse(text), text)
        strict = InvalidReply(["Only a part of the reply is valid."])
    except InvalidReply as invalid:
        found, strict = None, invalid
    if found is not None and not getattr(found.data, "refused", ()):
        return _alone(form, found)
    if found is not None:  # a reading as a whole, if there is one, is worth more than a part
        try:
            whole = _read_leniently(form, plain, notes, strict)
        except InvalidReply:
            return found
        return found if getattr(whole.data, "refused", ()) else whole
    if (shown := _INVISIBLE.sub("", plain)) != plain and (data := _parsed(form, shown)) is not None:
        return ReadReply(data, shown, (*notes, _UNSEEN))
    if not notes and (cut := _behind_thoughts(plain)):
        try:
            return ReadReply(form.parse(cut), cut, (_LEFT_OUT,))
        except InvalidReply:
            plain, notes = cut, (_LEFT_OUT,)
    return _read_leniently(form, plain, notes, strict)


def _alone(form: ReplyFormat, found: ReadReply) -> ReadReply:
    """Return a strict reply; raise `InvalidReply` if other front matter, or the rest of its own, stands in its text.

    Some models write the front matter twice, or end it too early, and what stands below would be lost.
    """
    rules = list(_RULE.finditer(found.text))
    if len(rules) < 3 or not (isinstance(form, LenientFormat) and form.layout.place == "front matter"):
        return found
    from cdo.formats.lenient.candidates import candidates, keys_in

    layout, text = form.layout, line_breaks(found.text)
    own, more = (keys_in(text[one.end() : two.start()], layout) for one, two in pairwise(rules[:3]))
    if more and more <= layout.names and not more <= own:
        raise InvalidReply(["Keys stand below the end of the front matter. Put all of them above it."])
    for candidate in candidates(text[rules[1].start() :].strip(), layout):
        other = _parsed(form, candidate.text)
        if other is not None and other != found.data:
            raise InvalidReply([_TWO])
    return found


def _parsed(form: ReplyFormat, text: str) -> Any:
    try:
        return form.parse(text)
    except InvalidReply:
        return None


def _read_leniently(form: ReplyFormat, text: str, notes: tuple[str, ...], strict: InvalidReply) -> ReadReply:
    """Return the one reading that is valid; raise what is wrong with the best one, or `strict` if there is none."""
    nearest: InvalidReply | None = None
    found: dict[int, ReadReply] = {}
    for candidate in _candidates(form, text):
        if candidate.place in found:
            continue
        try:
            data = form.parse(candidate.text)
        except InvalidReply as invalid:
            nearest = nearest or invalid
        else:
            found[candidate.place] = ReadReply(data, candidate.text, (*notes, *candidate.notes.told))
    readings = list(found.values())
    if not readings:
        raise nearest or strict
    if any(other.data != readings[0].data for other in readings):
        raise InvalidReply([_TWO])
    return readings[0]


def repaired(form: ReplyFormat, text: str) -> tuple[str, tuple[str, ...]] | None:
    """Return the last resort of the format for a reply that stays invalid: a text that passes, and what was added."""
    plain = without_thinking(text)[0]
    texts = [text, plain, *(candidate.text for candidate in _candidates(form, plain))]
    return next((found for each in dict.fromkeys(texts) if (found := form.repair(each))), None)


def without_thinking(text: str) -> tuple[str, tuple[str, ...]]:
    """Return a reply without a leading block of thoughts, and the note on it."""
    start = end = len(text) - len(text.lstrip("\ufeff"))
    while match := _THOUGHT.match(text, end):
        end = match.end()
    return (text[end:], (_LEFT_OUT,)) if end > start and text[end:].strip() else (text, ())


def _behind_thoughts(text: str) -> str:
    """Return what follows the end of thoughts whose opening tag the provider left out; "" if there are none."""
    match = _END_OF_THOUGHT.search(text)
    return _END_MARK.sub("", text[match.end() :]).lstrip() if match else ""


def _candidates(form: ReplyFormat, text: str) -> Iterator[Candidate]:
    if not isinstance(form, LenientFormat):
        return
    from cdo.formats.document_blocks import as_text, split
    from cdo.formats.lenient.candidates import candidates

    outside, blocks = split(text) if form.layout.documents else (text, [])
    if len(outside) > MAX_REPLY_CHARS:
        return
    bare = [replace(block, text=_bare(block.text)) for block in blocks]
    told = line_breaks(outside).replace("\ufeff", "").strip("\n")
    shown = _INVISIBLE.sub("", told)
    indented = shown.startswith((" ", "\t"))
    for found in candidates((textwrap.dedent(shown) if indented else shown).strip(), form.layout):
        if shown != told:
            found.notes.add(_UNSEEN)
        if indented:
            found.notes.add("took the indentation off the reply")
        if blocks:
            if bare != blocks:
                found.notes.add("took a file out of a code fence")
            found = replace(found, text=f"{found.text}\n\n{as_text(bare)}\n")
        yield found


def _bare(text: str) -> str:
    """Return the text of a document without a code fence around all of it."""
    from cdo.formats.document_blocks import unfenced

    inner = unfenced(text)
    return text if inner is None else inner
