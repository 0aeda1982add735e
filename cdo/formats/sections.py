"""Holds what the final formats of special programs share: more sections, ids in prose, grammar rules. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from cdo.core.steps import InvalidReply, ReplyFormat
from cdo.formats.markdown import front_matter, headings, sections, unwrap

ADDED = "*(added by cdo)*"
_LONGEST = 300


def section(body: str, names: Collection[str]) -> str | None:
    """Return the text under the heading that is one of `names` (letters only, lower case), or None."""
    found = sections(body)
    return next((found[name] for name in names if name in found), None)


def add_under(body: str, names: Collection[str], added: str) -> str:
    """Return `body` with `added` at the end of a section, which must exist."""
    lines = body.split("\n")
    end = next(end for _, end, key in headings(lines) if key in names)
    above = "\n".join(lines[:end]).rstrip("\n")
    return "\n".join([above, "", added, *(["", *lines[end:]] if end < len(lines) else [])])


def lacking(inner: ReplyFormat, text: str, wanted: Mapping[str, Collection[str]]) -> tuple[str, list[str]]:
    """Return the body of a report and its problems: those that `inner` finds, and each missing section.

    `wanted` maps the titles of the required sections to the names that their headings may have.
    """
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
    """Add a section for each missing one of `wanted` (title → names); return the body and what was added."""
    added = []
    for title, names in wanted.items():
        if section(body, names) is None:
            body = f"{body.rstrip()}\n\n## {title}\n\nNothing was written here."
            added.append(f"section {title}")
    return body, added


def speaks_of(place: str, ident: str) -> bool:
    """True if an id occurs in `place` as a word of its own: H1 is in `H1.`, but not in H10 or H1-b."""
    return bool(re.search(rf"(?<![\w-]){re.escape(ident)}(?![\w-]|\.\d)", place, re.IGNORECASE))


def as_list_item(text: str) -> str:
    """Return recorded text for a list item: shortened, on one line, so that it starts no heading or fence."""
    return " ".join(text.split())[:_LONGEST]


def folded(text: str) -> str:
    """Return text in the form used for comparison: case, white space and a final full stop do not count."""
    return " ".join(text.casefold().split()).rstrip(".")


def plain(text: str) -> str:
    """Replace everything but printable ASCII with blanks, for use in a grammar's literal."""
    return re.sub(r"[^ -~]", " ", text)


def rules_of(grammar: str) -> dict[str, str]:
    """Return the rules of a grammar by name, so that another grammar can be built from them."""
    return dict(rule.split(" ::= ", 1) for rule in grammar.splitlines())
