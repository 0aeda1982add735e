"""Derives the ids of traces and spans from what identifies a session, so that sending twice gives the same spans."""

from __future__ import annotations

from hashlib import sha256

from msgspec import Struct


class TraceIdentity(Struct, frozen=True):
    """The place of a session's spans: their trace, and the span that the run is part of ("" for none).

    A session is identified by its name and the time at which it was created, as `session.yaml` has it.
    """

    session: str
    created: str
    trace_id: str
    parent_id: str = ""

    @classmethod
    def of(cls, session: str, created: str) -> TraceIdentity:
        """Return the identity of a session that is a trace of its own."""
        return cls(session, created, _digest("trace", session, created)[:32])

    @property
    def root_id(self) -> str:
        """The id of the span of the whole run."""
        return self.span_id("run")

    def span_id(self, *parts: str) -> str:
        """Return the id of a span by what distinguishes it within the session."""
        return _digest("span", self.session, self.created, *parts)[:16]

    def nested(self, session: str, created: str) -> TraceIdentity:
        """Return the identity of a deliberation that this session held: a part of this trace."""
        return TraceIdentity(session, created, self.trace_id, self.root_id)


def _digest(*parts: str) -> str:
    return sha256("\0".join(("cdo", *parts)).encode("utf-8", "replace")).hexdigest()
