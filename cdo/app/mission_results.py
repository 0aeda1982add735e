"""Writes FINAL.md, the certificate of accepted products and the result of a mission that has ended."""

from __future__ import annotations

from collections.abc import Mapping

from cdo.app import handover
from cdo.cabal.files.certificate import NAME, certificate
from cdo.cabal.files.final_report import Delivery, final
from cdo.cabal.files.layout import deliverables
from cdo.cabal.files.serialization import inert
from cdo.core.mission_names import MODE
from cdo.core.result import Result
from cdo.core.usage import TotalUsage
from cdo.formats import strict_yaml
from cdo.formats.final_opening import opening, status_in_words
from cdo.formats.markdown import sections
from cdo.session.artifact import Artifact
from cdo.session.session_file import load
from cdo.session.store import Session


def deliver(session: Session, delivery: Delivery, used: TotalUsage, kept: Mapping[str, Artifact]) -> Result:
    """Write FINAL.md (unless a person edited it) and the certificate; return the result."""
    files, body = tuple(deliverables(delivery.state)), final(delivery)
    models: dict[str, list[str]] = {agent: [] for agent in delivery.state.agents}  # not in the order of arrival
    for artifact in kept.values():
        of_role = models.setdefault(str(artifact.own.get("role") or ""), [])
        if (model := str(artifact.own.get("model") or "")) not in ("", *of_role):
            of_role.append(model)
    asked = sorted({name for names in models.values() for name in names})
    problem = " ".join((session.read("00-input.md") or "").split())[:300]
    own = {
        "session": session.name,
        "problem": problem,
        "preset": MODE,
        "status": delivery.status,
        "why": delivery.why,
        "turns": delivery.rounds,
        "models": asked,
        "cost": used.known_cost,
        "missing_voices": [],
        **({"flags": list(delivery.flags)} if delivery.flags else {}),
    }
    top = opening(
        question=problem,
        decision=sections(body).get("result", ""),
        status=status_in_words(delivery.status, delivery.why, delivery.rounds, "round"),
        cost=used.known_cost,
        created=load(session).created,
        models=asked,
    )
    handed = handover.told(session)
    page = f"{top}\n\n{body}" + (f"\n## Handed over\n\n{inert(handed)}\n" if handed else "")
    existing = session.artifact("FINAL")
    if existing is None or not existing.edited:
        session.put("FINAL", Artifact({}, page, own))
    proof = certificate(
        delivery, session.name, {role: sorted(names) for role, names in models.items() if names}, page
    )
    session.put_changed(NAME, strict_yaml.dump(proof))
    session.flush()
    return Result(
        session=session.name,
        path=str(session.path),
        status=delivery.status,
        why=delivery.why,
        decision=sections(body).get("result", ""),
        confidence=None,
        turns=delivery.rounds,
        calls=used.calls,
        tokens=used.tokens,
        cost=used.known_cost,
        flags=delivery.flags,
        unit="round",
        deliverables=files,
        unaccepted=delivery.missing,
        handed_over=handed,
    )
