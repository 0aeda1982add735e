"""Makes and reads the text of a session's pages: inert lines, front matter, cdo's note with a checksum. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from cdo.cabal.model.state import MissionState
from cdo.formats import strict_yaml
from cdo.formats.markdown import inert_line

_NOTE = (
    "# cdo writes this file from the record [{sum}]. To change things, put a note into inbox/ or add a new version.\n"
)
_NOTED = re.compile("(?:---\n)?(" + re.escape(_NOTE).replace(r"\{sum\}", "([0-9a-f]{8})") + ")")
MAX_BYTES, MAX_DEPTH = 4_000_000, 12  # limits for the YAML in one file
_MARKER = re.compile(r"^([0-9]{0,9})([-+=.)])")


def inert(text: object, limit: int = 600) -> str:
    """Return `text` as one line, cut to `limit` characters, with Markdown and HTML escaped and controls visible."""
    return _MARKER.sub(r"\1\\\2", inert_line(text, limit))


def prose(state: MissionState, text: object, limit: int = 600) -> str:
    """Return `text` like `inert`, but with its code spans, by rules since 5."""
    return _MARKER.sub(r"\1\\\2", inert_line(text, limit, code=state.rules >= 5))


def storable(text: str) -> str:
    """Return `text` with lone surrogates replaced, because UTF-8 cannot encode them."""
    return text.encode("utf-8", "replace").decode()


def page(head: Mapping[str, Any], body: str, *, noted: bool = False) -> str:
    """Return a file's text: front matter (starting with cdo's note if `noted`), `body` as it is, and a line break."""
    text = storable(f"{strict_yaml.dump(dict(head))}---\n\n{body}\n")
    return noted_text("---\n", text) if noted else f"---\n{text}"


def noted_text(above: str, text: str) -> str:
    """Return the text of a generated file: `above`, cdo's note with a checksum of the rest, then `text`."""
    return f"{above}{_NOTE.format(sum=_sum(above + text))}{text}"


def _sum(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:8]


def untouched(text: str) -> bool:
    """True if the checksum in a generated file is right, so that the file is as cdo last wrote it."""
    found = _NOTED.match(text)
    return found is not None and _sum(text[: found.start(1)] + text[found.end(1) :]) == found[2]


def opened(text: str) -> tuple[dict[str, Any], str]:
    """Return the front matter and the body of a text made by `page`; raise ValueError for any other text."""
    end = text.find("\n---\n\n", 3)
    if not text.startswith("---\n") or end < 0 or not text.endswith("\n"):
        raise ValueError("its front matter is not where it was written")
    head = strict_yaml.load(text[4 : end + 1], max_bytes=MAX_BYTES, max_depth=MAX_DEPTH)
    if not isinstance(head, dict):
        raise ValueError("its front matter is not a mapping of keys")
    return head, text[end + 6 : -1]
