"""Writes FINAL.md, the certificate of accepted products and the result of a mission that has ended."""

from __future__ import annotations

from collections.abc import Mapping

from cdo.cabal.files.certificate import NAME
from cdo.cabal.files.delivered_files import deliverables
from cdo.cabal.files.ending import ending, handed_over, told_of
from cdo.cabal.files.final_report import Delivery
from cdo.core.result import Result
from cdo.core.usage import TotalUsage
from cdo.session.artifact import Artifact
from cdo.session.session_file import load
from cdo.session.store import Session


def deliver(session: Session, delivery: Delivery, used: TotalUsage, kept: Mapping[str, Artifact]) -> Result:
    """Write FINAL.md (unless a person edited it) and the certificate; return the result."""
    handed = told_of(handed_over(session.records))
    made = ending(
        delivery,
        kept.values(),
        session=session.name,
        request=session.read("00-input.md") or "",
        created=load(session).created,
        cost=used.known_cost,
        handed=handed,
    )
    existing = session.artifact("FINAL")
    if existing is None or not existing.edited:
        session.put("FINAL", made.final)
    session.put_changed(NAME, made.certificate)
    session.flush()
    return Result(
        session=session.name,
        path=str(session.path),
        status=delivery.status,
        why=delivery.why,
        decision=made.result,
        confidence=None,
        turns=delivery.rounds,
        calls=used.calls,
        tokens=used.tokens,
        cost=used.known_cost,
        flags=delivery.flags,
        unit="round",
        deliverables=tuple(deliverables(delivery.state)),
        unaccepted=delivery.missing,
        handed_over=handed,
    )
