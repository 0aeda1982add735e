"""Reads and writes artifacts, the readable Markdown files of a session. Pure.

An artifact is YAML front matter (the reply's own keys, then cdo's) followed by Markdown. cdo's keys end with the
`sha256` of the reply. If the reply no longer matches it, a person edited the file, and the edit takes precedence.
FINAL.md is for readers, so its keys are in a file of their own: FINAL.yaml. `parse` and `files` know both layouts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from msgspec import Struct

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
    "read_leniently", "tools_refused", "stated_confidence", "voices", "inputs", "sha256",
)  # fmt: skip
MAX_ARTIFACT_BYTES = 1_048_576
SIDECARS = {"FINAL": "FINAL.yaml"}  # artifacts whose keys are in a file of their own


class Artifact(Struct, frozen=True, dict=True):
    """One artifact: `meta` are the reply's own keys, `body` its Markdown, `own` cdo's keys."""

    meta: Mapping[str, Any]
    body: str
    own: Mapping[str, Any]

    @cached_property
    def reply(self) -> str:
        """The reply alone, without cdo's keys. This is the text that other calls read and that formats parse."""
        return f"{_head(self._keys)}{self.body.strip()}\n"

    @cached_property
    def _keys(self) -> str:
        """The reply's own keys as YAML, "" if it has none."""
        return strict_yaml.dump(dict(self.meta)) if self.meta else ""

    @cached_property
    def sha(self) -> str:
        """The hash of the reply, independent of cdo's own keys and of the YAML layout."""
        return digest({"meta": dict(self.meta), "body": self.body.strip()})

    @property
    def edited(self) -> bool:
        """True if a person changed the reply since cdo wrote it, or wrote the file themselves."""
        return self.own.get("sha256") != self.sha

    def text(self) -> str:
        """Return the whole file, with images, links and HTML written by a model made inert."""
        plain, inert = self._plain
        if inert:
            return plain
        keys = {**_each({**self.meta, **self._vouched}, escape_keys), "sha256": self.sha}
        return _document(keys, neutralise(self.body))  # everything, so that `from_file` can restore everything

    @cached_property
    def _vouched(self) -> dict[str, Any]:
        """cdo's own keys in their order, with the checksum of the reply as it is."""
        return {**{key: self.own[key] for key in OWN_KEYS if key in self.own}, "sha256": self.sha}

    @cached_property
    def _plain(self) -> tuple[str, bool]:
        """The whole file with its markup as it is, and whether nothing in it is active."""
        head = _head(self.keys_alone())
        text = f"{head}{self.body.strip()}\n"
        return text, not has_active_markup(text) and "```" not in head and "~~~" not in head

    def as_written(self, stem: str) -> Artifact:
        """Return the artifact as it is read back from its `files`."""
        if not self._inert(stem):
            found = parse(stem, files(stem, self).get)
            assert found is not None
            return found
        found = Artifact(self.meta, self.body.strip(), self._vouched)
        found.__dict__.update(reply=self.reply, sha=self.sha)  # these do not depend on cdo's keys
        return found

    def _inert(self, stem: str) -> bool:
        """True if its files hold it just as it is, so that there is nothing to restore when they are read."""
        if stem not in SIDECARS:
            return self._plain[1]
        odd = "\r" in self.body or self.body.lstrip().startswith(("---", "\ufeff"))
        return not odd and not has_active_markup(self.body)

    def changed(self, change: Callable[[Any], Any]) -> Artifact:
        """Return the artifact with each of its parts changed; what is known of its reply stays if that did not."""
        found = Artifact(change(dict(self.meta)), change(self.body), change(dict(self.own)))
        if found.body == self.body and found.meta == self.meta:
            known = self.__dict__
            found.__dict__.update((name, known[name]) for name in ("reply", "_keys", "sha") if name in known)
        return found

    def keys_alone(self) -> str:
        """Return the keys of the whole file as YAML."""
        first = self._keys  # a last text that ends with blank lines has the mark of a document's end behind it
        first = first[:-4] if first.endswith("\n...\n") else first
        return first + strict_yaml.dump(self._vouched)

    def as_found(self) -> str:
        """Return the whole file with its original checksum, so that an edited file still counts as edited."""
        return _document({**self.meta, **self.own}, self.body)


def files(stem: str, artifact: Artifact) -> dict[str, str]:
    """Return the texts of an artifact's files by name: its sidecar, if it has one, before its Markdown."""
    sidecar = SIDECARS.get(stem)
    if sidecar is None:
        return {f"{stem}.md": artifact.text()}
    body = f"{artifact.body.strip()}\n"
    return {sidecar: artifact.keys_alone(), f"{stem}.md": neutralise(body) if has_active_markup(body) else body}


def parse(stem: str, read: Callable[[str], str | None], place: str = "") -> Artifact | None:
    """Return the artifact `stem`, None if it does not exist; raise `SessionError` if a person's edit broke it.

    `read` returns the text of a file of the session, or None; `place` names the session in messages. A FINAL.md with
    front matter, as earlier versions wrote it, is read without its sidecar.
    """
    text = read(f"{stem}.md")
    if text is None:
        return None
    name, sidecar = (f"{place}/{stem}.md" if place else f"{stem}.md"), SIDECARS.get(stem)
    if sidecar is None or split_front_matter(_unmarked(text).lstrip())[0] is not None:
        return from_file(text, name)
    keys = _keys(read(sidecar) or "", f"{name.removesuffix('.md')}.yaml", 0, "Fix the file")
    found = _owned(keys, _unmarked(text))
    return _owned(keys, restore(found.body)) if "sha256" in found.own and found.edited else found


_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str).encode


def digest(value: Any) -> str:
    """Return the SHA-256 (hex) of a JSON value in canonical form."""
    return hashlib.sha256(_canonical(value).encode()).hexdigest()


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
    text = _unmarked(text)
    block, body = split_front_matter(text.lstrip())
    if block is None:
        return Artifact({}, body.strip(), {})
    above = text[: len(text) - len(text.lstrip())].count("\n")
    keys = _keys(block, name, above, "Fix the front matter")
    found = _owned(keys, body)
    if "sha256" not in found.own or not found.edited:
        return found  # written by a person, or nothing in it was neutralised
    return _owned(_each(keys, unescape_keys), restore(body))


def _unmarked(text: str) -> str:
    """Return a file's text with plain line breaks and without a byte order mark."""
    return line_breaks(text).lstrip("\ufeff")


def _keys(block: str, name: str, above: int, fix: str) -> dict[str, Any]:
    """Parse keys that start below line `above` of a file; raise `SessionError` with line and column."""
    try:
        keys = strict_yaml.load(block, max_bytes=MAX_ARTIFACT_BYTES, max_depth=8)
    except strict_yaml.YamlProblem as problem:
        where = f"line {problem.line + above}, column {problem.column}"
        raise SessionError(f"{name}: {where}: {problem.why}.", f"{fix} and resume; nothing is lost.") from None
    if not isinstance(keys, dict | None):
        what = "it" if name.endswith(".yaml") else "its front matter"
        raise SessionError(f"{name}: {what} is not a mapping of keys.", "Fix it and resume.")
    return keys or {}


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
    return f"{_head(strict_yaml.dump(dict(meta)) if meta else '')}{body.strip()}\n"


def _head(keys: str) -> str:
    return f"---\n{keys}---\n\n" if keys else ""


def final(reply: Artifact, confidence: float, own: Mapping[str, Any], said: str) -> Artifact:
    """Build FINAL.md: the reply's sections, with keys that only code writes.

    `confidence` is the confidence at the end of the run, `said` the same with its reason in words. It is also written
    at the start of the section Confidence, so that readers see the recorded number.
    """
    line = f"**{said}**"
    has_place = final_section(reply.body, "Confidence") is not None
    body = add_to_section(reply.body, "Confidence", line, first=True) if has_place else reply.body
    return Artifact({"confidence": confidence}, body, own)


def confidence_word(confidence: float) -> str:
    """Return the word for a confidence from 0 to 1: high, moderate or low."""
    return "high" if confidence >= 0.8 else "moderate" if confidence >= 0.55 else "low"
