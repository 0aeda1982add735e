"""What the final formats of special programs share: further sections, ids in prose, a grammar's rules. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from cdo.core.steps import InvalidReply, ReplyFormat
from cdo.formats.markdown import front_matter, headings, sections, unwrap

ADDED = "*(added by cdo)*"
_LONGEST = 300


def section(body: str, names: Collection[str]) -> str | None:
    """The text under the first heading that goes by one of `names` (letters only, lower case), or None."""
    found = sections(body)
    return next((found[name] for name in names if name in found), None)


def add_under(body: str, names: Collection[str], added: str) -> str:
    """`body` with `added` at the end of a section, which must be there."""
    lines = body.split("\n")
    end = next(end for _, end, key in headings(lines) if key in names)
    above = "\n".join(lines[:end]).rstrip("\n")
    return "\n".join([above, "", added, *(["", *lines[end:]] if end < len(lines) else [])])


def lacking(inner: ReplyFormat, text: str, wanted: Mapping[str, Collection[str]]) -> tuple[str, list[str]]:
    """The body of a report, and its problems: what `inner` finds, and each of `wanted` (title → names) missing."""
    problems: list[str] = []
    try:
        inner.parse(text)
    except InvalidReply as invalid:
        problems += invalid.problems
    body = front_matter(unwrap(text))[1]
    problems += [
        f"The section `## {title}` is missing." for title, names in wanted.items() if section(body, names) is None
    ]
    return body, problems


def completed(body: str, wanted: Mapping[str, Collection[str]]) -> tuple[str, list[str]]:
    """`body` with a section for each of `wanted` (title → names), and which had to be added."""
    added = []
    for title, names in wanted.items():
        if section(body, names) is None:
            body = f"{body.rstrip()}\n\n## {title}\n\nNothing was written here."
            added.append(f"section {title}")
    return body, added


def speaks_of(place: str, ident: str) -> bool:
    """Whether an id or name stands in `place` by itself: H1 is neither in H10 nor in H1-b, but in `H1.`."""
    return bool(re.search(rf"(?<![\w-]){re.escape(ident)}(?![\w-]|\.\d)", place, re.IGNORECASE))


def as_list_item(text: str) -> str:
    """Recorded text as it stands in a list: on one line, so that it begins neither heading nor fence."""
    return " ".join(text.split())[:_LONGEST]


def folded(text: str) -> str:
    """Text as it is compared with what is on record: case, white space and a last full stop do not count."""
    return " ".join(text.casefold().split()).rstrip(".")


def plain(text: str) -> str:
    """`text` with a blank for all that is not printable ASCII, as a grammar's literal can hold it."""
    return re.sub(r"[^ -~]", " ", text)


def rules_of(grammar: str) -> dict[str, str]:
    """The rules of a grammar by name, so that another one can be made from it."""
    return dict(rule.split(" ::= ", 1) for rule in grammar.splitlines())
