"""Writes the opening of FINAL.md: the question as its title, and five lines for a person. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from cdo.core.demo_model import DEMO_NOTICE, only_demo
from cdo.core.formatting import one_line, pluralise, rounded_money

_TITLE, _SENTENCE = 200, 300  # most characters of each
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[^\sa-z])")
_LEAD = re.compile(r"^(?:[-*+>]|\d+[.)])\s+")


def opening(
    *,
    question: str,
    decision: str,
    status: str,
    cost: float | None,
    created: str,
    models: Iterable[str],
    confidence: str = "",
) -> str:
    """Return the title and the lines above the first section of FINAL.md.

    `decision` is the text of the section with the decision, `status` and `confidence` are words for a person.
    `created` is when the session was created (ISO 8601), so that a run written again from its record says the same.
    """
    lines = [
        ("Decision", first_sentence(decision) or "none was written"),
        *([("Confidence", confidence)] if confidence else []),
        ("Status", status),
        ("Cost", rounded_money(cost)),
        ("Date", created[:10] or "unknown"),
    ]
    notice = [f"> **{DEMO_NOTICE}**", ""] if only_demo(models) else []
    return "\n".join([f"# {_title(question)}", "", *notice, *(f"- **{name}:** {text}" for name, text in lines)])


def _title(question: str) -> str:
    title = one_line(question, _TITLE) or "No question"
    # One or two words could be the name of a section, such as "Decision"; readers find sections by their names.
    return title if len(title.split()) > 2 else f"Question: {title}"


def first_sentence(text: str) -> str:
    """Return the first sentence of Markdown text on one line, without emphasis; a lead in bold counts as one."""
    paragraphs = (part.strip() for part in re.split(r"\n\s*\n", text))
    paragraph = next((part for part in paragraphs if part and not part.startswith(("#", "|", "```", "~~~"))), "")
    first = _LEAD.sub("", " ".join(paragraph.split()), count=1)
    if lead := re.match(r"(\*\*|__)(.{10,}?[.!?:])\1(?=\s|$)", first):
        return one_line(lead[2].rstrip(" :"), _SENTENCE)
    sentences = _SENTENCE_END.split(first.replace("**", "").replace("__", ""), maxsplit=2)
    short = len(sentences[0].split()) < 3  # "No." alone says too little
    return one_line(" ".join(sentences[: 2 if short else 1]).rstrip(" :"), _SENTENCE)


def status_in_words(status: str, why: str, turns: int, unit: str = "turn") -> str:
    """Return how a run ended, for a person: "finished after its 3 turns". `status` and `why` are those on record."""
    held = pluralise(turns, unit)
    if status == "max_turns":
        more = "" if why.startswith("the cap of ") else why  # the cap is what `held` says
        return f"finished after its {held}{f': {more}' if more else ''}"
    if status == "converged":
        return f"converged after {held}"
    if status in ("stopped", "done", "unresolved"):
        return f"{status} after {held}{f': {why}' if why else ''}"
    return f"{status}: {why}" if why else status


def confidence_in_words(confidence: float, stated: float, lowered: str) -> str:
    """Return a confidence with its reason, for use after the number: `lowered` are the facts that lowered it."""
    if lowered:
        return f"{confidence:.2f}, lowered from {stated:.2f}: {lowered}"
    return f"{confidence:.2f}: stated by the last synthesis; nothing on record lowers it"
