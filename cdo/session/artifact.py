"""Reads and writes artifacts, the readable Markdown files of a session. Pure.

An artifact is YAML front matter (the reply's own keys, then cdo's) followed by Markdown. cdo's keys end with the
`sha256` of the reply. If the reply no longer matches it, a person edited the file, and the edit takes precedence.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cdo.core.errors import SessionError
from cdo.formats import strict_yaml
from cdo.formats.final_answer import add_to_section, final_section
from cdo.formats.markdown import (
    escape_keys,
    front_matter,
    has_active_markup,
    line_breaks,
    neutralise,
    restore,
    split_front_matter,
    unescape_keys,
    unwrap,
)

# cdo's own keys, in the order in which files show them. A model cannot set them.
OWN_KEYS = (
    "session", "forked", "audits", "problem", "kind", "role", "turn", "preset", "status", "why", "turns", "model",
    "models", "usage", "cost", "attempts", "missing_voices", "open_tensions", "added", "flags", "votes", "citations",
    "stated_confidence", "voices", "inputs", "sha256",
)  # fmt: skip
MAX_ARTIFACT_BYTES = 1_048_576


@dataclass(frozen=True)
class Artifact:
    """One artifact: `meta` are the reply's own keys, `body` its Markdown, `own` cdo's keys."""

    meta: Mapping[str, Any]
    body: str
    own: Mapping[str, Any]

    @property
    def reply(self) -> str:
        """The reply alone, without cdo's keys. This is the text that other calls read and that formats parse."""
        return _document(self.meta, self.body)

    @property
    def sha(self) -> str:
        """The hash of the reply, independent of cdo's own keys and of the YAML layout."""
        return digest({"meta": dict(self.meta), "body": self.body.strip()})

    @property
    def edited(self) -> bool:
        """True if a person changed the reply since cdo wrote it, or wrote the file themselves."""
        return self.own.get("sha256") != self.sha

    def text(self) -> str:
        """Return the whole file, with images, links and HTML written by a model made inert."""
        own = {key: self.own[key] for key in OWN_KEYS if key in self.own and key != "sha256"}
        keys, sha = {**self.meta, **own}, {"sha256": self.sha}
        text = _document({**keys, **sha}, self.body)
        head = text[: len(text) - len(self.body.strip()) - 1]
        if not has_active_markup(text) and "```" not in head and "~~~" not in head:
            return text
        return _document(
            {**_each(keys, escape_keys), **sha}, neutralise(self.body)
        )  # neutralise everything, so that `from_file` can restore everything

    def as_found(self) -> str:
        """Return the whole file with its original checksum, so that an edited file still counts as edited."""
        return _document({**self.meta, **self.own}, self.body)


def digest(value: Any) -> str:
    """Return the SHA-256 (hex) of a JSON value in canonical form."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def from_reply(text: str, own: Mapping[str, Any]) -> Artifact:
    """Build the artifact of a validated reply; keys of the reply that are reserved for cdo are dropped."""
    # Replace lone surrogates: they cannot be stored, so the file would read back differently and look edited.
    meta, body = front_matter(_laid_out(unwrap(text.encode("utf-8", "replace").decode())))
    return Artifact({key: value for key, value in meta.items() if key not in OWN_KEYS}, body.strip(), own)


def _laid_out(text: str) -> str:
    """Pretty-print a reply that is a JSON object; return any other reply unchanged."""
    if not text.lstrip().startswith("{"):
        return text
    try:
        return f"```json\n{json.dumps(json.loads(text), indent=2, ensure_ascii=False)}\n```"
    except (ValueError, RecursionError):
        return text


def from_file(text: str, name: str) -> Artifact:
    """Parse a session's file; raise `SessionError` with line and column if a person's edit broke it."""
    text = line_breaks(text).lstrip("\ufeff")
    block, body = split_front_matter(text.lstrip())
    if block is None:
        return Artifact({}, body.strip(), {})
    above = text[: len(text) - len(text.lstrip())].count("\n")
    try:
        keys = strict_yaml.load(block, max_bytes=MAX_ARTIFACT_BYTES, max_depth=8)
    except strict_yaml.YamlProblem as problem:
        where = f"line {problem.line + above}, column {problem.column}"
        raise SessionError(
            f"{name}: {where}: {problem.why}.", "Fix the front matter and resume; nothing is lost."
        ) from None
    if not isinstance(keys, dict | None):
        raise SessionError(f"{name}: its front matter is not a mapping of keys.", "Fix it and resume.")
    found = _owned(keys or {}, body)
    if "sha256" not in found.own or not found.edited:
        return found  # written by a person, or nothing in it was neutralised
    return _owned(_each(keys or {}, unescape_keys), restore(body))


def _owned(keys: Mapping[str, Any], body: str) -> Artifact:
    """Build an artifact from the keys and the body of its file."""
    meta = dict(keys)
    own = {key: meta.pop(key) for key in OWN_KEYS if key in meta}
    return Artifact(meta, body.strip(), own)


def _each(value: Any, change: Callable[[str], str]) -> Any:
    """Apply `change` to every string in `value`, including keys."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _each(item, change) for key, item in value.items()}
    return [_each(item, change) for item in value] if isinstance(value, (list, tuple)) else value


def _document(meta: Mapping[str, Any], body: str) -> str:
    head = f"---\n{strict_yaml.dump(dict(meta))}---\n\n" if meta else ""
    return f"{head}{body.strip()}\n"


def final(reply: Artifact, confidence: float, own: Mapping[str, Any], lowered: str = "") -> Artifact:
    """Build FINAL.md: the reply's sections under front matter that only code writes.

    `confidence` is the confidence at the end of the run; `lowered` names the facts that lowered it. The number is
    written to the front matter and to the start of the section Confidence, so that readers see the recorded number.
    """
    said = f"bounded by {lowered}, " if lowered else ""
    line = f"**{confidence:.2f} ({confidence_word(confidence)}; {said}uncalibrated)**"
    has_place = final_section(reply.body, "Confidence") is not None
    body = add_to_section(reply.body, "Confidence", line, first=True) if has_place else reply.body
    return Artifact({"confidence": confidence}, body, own)


def confidence_word(confidence: float) -> str:
    """Return the word for a confidence from 0 to 1: high, moderate or low."""
    return "high" if confidence >= 0.8 else "moderate" if confidence >= 0.55 else "low"
