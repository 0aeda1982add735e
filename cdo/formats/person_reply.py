"""Reads what a person wrote in a form, and puts it into the format of a voice's reply. Pure.

Plain words are enough: headings, lists and numbers are read where they are certain. What the format does not ask for
stays as text: nothing that a person wrote is dropped. Only the keys of a voice are taken over, so that no text can
claim another role, model or cost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from cdo.core.formatting import one_line, pluralise
from cdo.core.steps import InvalidReply
from cdo.formats import strict_yaml
from cdo.formats.fields import load
from cdo.formats.lenient.layout import ReplyLayout
from cdo.formats.lenient.reading import read
from cdo.formats.markdown import (
    MAX_FRONT_MATTER,
    heading_key,
    headings,
    line_breaks,
    sections,
    split_front_matter,
)
from cdo.formats.voice import NUMBERED, head

if TYPE_CHECKING:
    from cdo.formats.voice_blocks import VoiceData

UNFINISHED = "NOT FINISHED"  # begins the line of the form that the person deletes when the answer is complete
DELETE = "delete this line when your answer is complete"  # stands in that line
USUAL = 5  # the severity of an objection without a number; the form says so
LONGEST, MOST = 4000, 60  # characters of one point, and points of a list


class FormPart(Struct, frozen=True):
    """A part of the form: its name, its heading, and what a person is told below that."""

    name: str
    title: str
    told: str = ""

    @property
    def key(self) -> str:
        """The heading as `sections` names it."""
        return heading_key(self.title)


ANSWER = FormPart("answer", "Your answer", "In a sentence or two: what you would do.")
SURE = FormPart("sure", "How sure you are", "From 0 to 100 %, as in 70 %.")
REASONS = FormPart(
    "reasons", "Reasons", "A list with one point after each -, and the number or the place that it rests on."
)
OBJECTIONS = FormPart(
    "objections",
    "Objections",
    "A list of what speaks against the answer that most would give. Begin a point with its weight in brackets, from "
    f"[1] for a quibble to [10] for what must not be done; without one it counts as [{USUAL}].",
)
WITHDRAWN = FormPart("withdrawn", "Objections that you withdraw", "By id, as in O1.")
CHANGE = FormPart("change", "What would change your mind")
FORM = (ANSWER, SURE, REASONS, OBJECTIONS, WITHDRAWN, CHANGE)
_TITLES = {SURE: "How sure", CHANGE: "What would change this view"}
_PARAGRAPH = re.compile(r"\n\s*\n|\n(?= {0,3}#{1,6} )")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_ITEM = re.compile(r" {0,3}(?:(?:[-*+]|\d{1,3}[.)])[ \t]+|(?=\[\d+\]))(.*)")
_WEIGHED = re.compile(r"\[\s*(\d+)\s*\]\s*(.+)", re.DOTALL)
_NUMBER = re.compile(r"\d+(?:[.,]\d+)?")


class PersonFormat(Struct, frozen=True):
    """The reply of a person, as `worded` makes it of their words: front matter (`VoiceData`), then Markdown."""

    name: str = "person"

    @property
    def layout(self) -> ReplyLayout:
        """The arrangement of the reply."""
        from cdo.formats.voice_blocks import VoiceData

        return ReplyLayout("front matter", (VoiceData,), numbered=NUMBERED)

    def parse(self, text: str) -> VoiceData:
        """Return the front matter; raise `InvalidReply`."""
        from cdo.formats.voice_blocks import VoiceData

        return head(VoiceData, text)

    def repair(self, text: str) -> tuple[str, tuple[str, ...]] | None:
        """Return None: what a person wrote is never repaired."""
        return None

    def grammar(self) -> str:
        """Return no grammar: no model writes this reply."""
        return ""


class LateAnswer(Struct, frozen=True):
    """The format of an answer that came after its turn had gone on without it: a sentence that tells of it."""

    def parse(self, text: str) -> str:
        """Return the sentence; raise `InvalidReply` for a form without an answer."""
        if unfinished(text) or (reply := worded(text)) is None:
            raise InvalidReply(["The form was not filled in before its turn went on."])
        said = one_line(PersonFormat().parse(reply).position, 120).rstrip(".")
        return f"An answer came after its turn had gone on without it, and was not used: “{said}” (it is in taken/)"


def unfinished(text: str) -> bool:
    """True if the line still stands that says that an answer is not finished."""
    return any(line.strip("\ufeff \t").startswith(UNFINISHED) for line in text.splitlines())


def complete(text: str) -> bool:
    """True if a form holds an answer that is finished and can be read."""
    try:
        return not unfinished(text) and worded(text) is not None
    except InvalidReply:
        return False


def own_words(text: str) -> str:
    """Return what stands in a form, without its comments and the line that it is not finished."""
    lines = line_breaks(_COMMENT.sub("", text.lstrip("\ufeff"))).split("\n")
    return "\n".join(line for line in lines if not line.strip().startswith(UNFINISHED) and DELETE not in line).strip()


def summary(data: VoiceData) -> tuple[str, str]:
    """Return in two lines how an answer is read: what it says, and what stands under its headings."""
    sure = "" if data.confidence is None else f" ({data.confidence:.0%} sure)"
    counts = f"{pluralise(len(data.claims), 'reason')}, {pluralise(len(data.objections), 'objection')}"
    return one_line(f"{data.position}{sure}", 2000), counts


def filled_in(said: Mapping[str, str]) -> str:
    """Return the form with what is said in each of its parts, by their names; "" without an answer."""
    if not said.get(ANSWER.name, "").strip():
        return ""
    parts = [(part.title, text) for part in FORM if (text := said.get(part.name, "").strip())]
    return "\n\n".join(f"## {title}\n\n{text}" for title, text in parts)


def worded(text: str) -> str | None:
    """Return the reply of a voice that a filled-in form makes, None for an empty form.

    Raises `InvalidReply` with sentences for the person where something is not certain.
    """
    text = own_words(text)
    block, below = split_front_matter(text)
    keys = load(block, 0, "The front matter", MAX_FRONT_MATTER) if block is not None else None
    if isinstance(keys, dict) and "position" in keys:
        from cdo.formats.blocks import validate
        from cdo.formats.voice_blocks import VoiceData

        data = validate(VoiceData, keys, "The front matter")
        return _checked(data.model_dump(mode="json", exclude_defaults=True), below)
    if "<!--" in text:
        raise InvalidReply(["“<!--” begins a comment that has no end: put --> at its end, or delete it."])
    found, rest = _parts(below if block is not None else text)
    if not any((*found.values(), rest)):
        return None
    if not (answer := found[ANSWER]):
        raise InvalidReply(["Nothing stands under “Your answer”: say there in a sentence what you would do."])
    position = one_line(_PARAGRAPH.split(answer, maxsplit=1)[0], 100_000)
    confidence, sure = _share(found[SURE])
    reasons = found[REASONS] or "\n".join(f"- {item}" for item in _items(answer, listed=True))
    data_ = {
        "position": _ITEM.sub(r"\1", position),
        **({} if confidence is None else {"confidence": confidence}),
        "claims": [{"id": f"c{n}", "text": item} for n, item in enumerate(_points(reasons, "reasons"), 1)],
        "objections": list(_objections(found[OBJECTIONS])),
        "withdraws": re.findall(r"\bO\d+\b", found[WITHDRAWN]),
    }
    whole = answer if len(position) > 590 or one_line(answer, 100_000) != position else ""
    told = [
        whole,
        *(f"## {_TITLES[part]}\n\n{text}" for part, text in ((SURE, sure), (CHANGE, found[CHANGE])) if text),
        rest,
    ]
    return _checked({key: value for key, value in data_.items() if value not in ([], "")}, "\n\n".join(told))


def _checked(keys: dict[str, Any], body: str) -> str:
    """Return a reply with these keys and this text; raise `InvalidReply` if it is none."""
    reply = f"---\n{strict_yaml.dump(keys)}---\n\n{body.strip()}\n"
    read(PersonFormat(), reply)
    return reply


def _parts(text: str) -> tuple[dict[FormPart, str], str]:
    """Return the text under each heading of the form, and the text that stands under none of them.

    Text without any of them is the answer, and so is what stands above the first one if nothing stands under
    “Your answer”. Raises `InvalidReply` for a heading that is probably a mistyped one of the form.
    """
    import difflib  # lazily: most runs have no such form

    lines, known = text.split("\n"), [part.key for part in FORM]
    marks = headings(lines)
    under = {line for start, end, key in marks if key in known for line in range(start, end)}
    for start, _, key in marks:
        if start not in under and (near := difflib.get_close_matches(key, known, 1, 0.8)):
            meant = FORM[known.index(near[0])].title
            raise InvalidReply([f"“{one_line(lines[start], 60)}” is no heading of the form: is it “{meant}”?"])
    if not under:
        return dict.fromkeys(FORM, "") | {ANSWER: text.strip()}, ""
    found = {part: sections(text).get(part.key, "").strip() for part in FORM}
    first = marks[0][0]
    if not found[ANSWER]:
        found[ANSWER] = "\n".join(lines[:first]).strip()
        under.update(range(first))
    return found, "\n".join(line for number, line in enumerate(lines) if number not in under).strip()


def _share(text: str) -> tuple[float | None, str]:
    """Return the confidence that a text states, and the text if it states none as a number."""
    numbers = _NUMBER.findall(text)
    if not numbers:
        return None, text
    value = float(numbers[0].replace(",", "."))
    if len(numbers) > 1 or (value == 1 and "%" not in text and "." not in numbers[0]):
        raise InvalidReply([f"“{one_line(text, 60)}” can be read in two ways: give one number with %, as in 70 %."])
    share = value / 100 if value > 1 or "%" in text else value
    if share > 1:
        raise InvalidReply([f"“{one_line(text, 60)}” is above 100 %: give a number from 0 to 100 %."])
    return round(share, 4), ""


def _objections(text: str) -> Iterator[dict[str, Any]]:
    for number, item in enumerate(_points(text, "objections"), 1):
        weighed = _WEIGHED.fullmatch(item)
        severity = int(weighed[1]) if weighed else USUAL
        if not 1 <= severity <= 10:
            raise InvalidReply([f"The objection “{one_line(item, 60)}” has a weight that is not from 1 to 10."])
        yield {"id": f"o{number}", "text": weighed[2].strip() if weighed else item, "severity": severity}


def _points(text: str, what: str) -> Sequence[str]:
    """Return the points of a list or the paragraphs of a text; raise `InvalidReply` if they are too many or long."""
    found = list(_items(text))
    if len(found) > MOST:
        raise InvalidReply([f"There are {len(found)} {what}: keep the {MOST} that matter most."])
    if long := next((item for item in found if len(item) > LONGEST), ""):
        raise InvalidReply([f"One of the {what} has over {LONGEST:,} characters, split it: “{one_line(long, 60)}”."])
    return found


def _items(text: str, *, listed: bool = False) -> Iterator[str]:
    """Yield the points of lists, and unless only these are wanted (`listed`) the paragraphs between them."""
    point: list[str] = []
    inside = False
    for line in [*text.split("\n"), ""]:
        begins = _ITEM.fullmatch(line)
        if (begins or not line.strip()) and point:
            if inside or not listed:
                yield " ".join(" ".join(point).split())
            point = []
        if begins:
            inside, point = True, [begins[1]]
        elif line.strip():
            inside = inside and bool(point)
            point.append(line)
