"""Writes FINAL.md and the result of a run that has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from cdo.core.result import Result
from cdo.core.usage import TotalUsage
from cdo.formats.final_answer import add_to_section, final_section, unmarked
from cdo.formats.final_opening import confidence_in_words, opening, status_in_words
from cdo.formats.markdown import sections
from cdo.history import baseline, history
from cdo.history.past_session import History
from cdo.planning.plan import Plan
from cdo.programs import registry
from cdo.programs.deliberation import final_record
from cdo.programs.deliberation.conclusion import Outcome
from cdo.repository.citation_marks import cited_in_words, marked
from cdo.runner.runner import Runner
from cdo.session import artifact as artifacts
from cdo.session.live_reader import LiveSessionReader
from cdo.session.store import Session

if TYPE_CHECKING:
    from cdo.cabal.files.final_report import Delivery


class Finished(Struct, frozen=True):
    """The result of a run, and its history as it was read for FINAL.md, which is not in it; None where it was not."""

    result: Result
    past: History | None = None


def finish(
    session: Session,
    plan: Plan,
    outcome: Outcome | Delivery,
    runner: Runner,
    archive: LiveSessionReader | None = None,
) -> Finished:
    """Write FINAL.md (unless a person edited it), and return what came of it; `archive` reads the session.

    What the run has handed over to the session must be on disk.
    """
    used = runner.budget.totals
    if not isinstance(outcome, Outcome):
        from cdo.app import mission_results

        return Finished(mission_results.deliver(session, outcome, used, runner.kept.artifacts))
    reply = registry.page(outcome, runner.kept.artifacts, _asked_by_call(session), used)
    said = confidence_in_words(outcome.confidence, outcome.stated, outcome.lowered)
    existing, past = session.artifact("FINAL"), None
    if existing is None or not (existing.edited or existing is reply):
        past = history.read(archive or LiveSessionReader(session))
        own = _front_matter(session, plan, outcome, reply, past, used)
        final = _checked(artifacts.final(reply, outcome.confidence, own, said), outcome, runner)
        if gained := None if registry.phased(plan, runner.library) else baseline.measure(past, outcome.votes):
            final = replace(final, body=f"{final.body.rstrip()}\n\n## {baseline.TITLE}\n\n{gained.markdown()}")
        top = _opening(final, past.frozen.created, said)
        session.put("FINAL", replace(final, body=f"{top}\n\n{final.body.lstrip()}"))
    shown = session.artifact("FINAL") or reply
    return Finished(_result(session, outcome, shown, used, said), past)


def _front_matter(
    session: Session, plan: Plan, outcome: Outcome, reply: artifacts.Artifact, past: History, used: TotalUsage
) -> dict[str, Any]:
    """Return the data of FINAL.md that its front matter and FINAL.yaml hold besides the confidence."""
    return {
        "session": session.name,
        **_origin(past),
        **{key: reply.own[key] for key in ("audits", "read_leniently") if key in reply.own},
        "problem": " ".join((session.read("00-input.md") or "").split())[:300],
        "preset": plan.preset,
        "status": outcome.status,
        "why": outcome.why,
        "turns": outcome.turns,
        "models": _asked(session) or list(plan.models),
        "cost": used.known_cost,
        "missing_voices": list(_missing(outcome)),
        "open_tensions": list(outcome.open_tensions),
        **({"added": list(outcome.added)} if outcome.added else {}),
        **({"flags": list(outcome.flags)} if outcome.flags else {}),
        **({"votes": list(outcome.votes)} if outcome.votes else {}),
        **({"citations": _citations(outcome)} if outcome.cited else {}),
        "inputs": reply.own.get("inputs", {}),
        **({"stated_confidence": outcome.stated} if outcome.lowered else {}),
    }


def _result(session: Session, outcome: Outcome, shown: artifacts.Artifact, used: TotalUsage, said: str) -> Result:
    """Return the result of a run whose FINAL.md is `shown`; `said` is its confidence in words."""
    return Result(
        session=session.name,
        path=str(session.path),
        status=outcome.status,
        why=outcome.why,
        decision=final_section(shown.body, "Decision") or sections(shown.body).get("verdict", ""),
        confidence=outcome.confidence,
        turns=outcome.turns,
        calls=used.calls,
        tokens=used.tokens,
        cost=used.known_cost,
        missing_voices=_missing(outcome),
        added=outcome.added,
        flags=outcome.flags,
        verified=len(outcome.verified),
        exists=len(outcome.existing),
        unverified=tuple(citation for citation, _ in outcome.unverified),
        confidence_reason=said,
        documents=tuple(file for name, data in outcome.documents.items() for file in (f"{name}.md", *data.drawn)),
    )


def _missing(outcome: Outcome) -> tuple[str, ...]:
    """Return the missing voices, each with its reason."""
    return tuple(f"t{turn}-{role}: {reason}" for turn, role, reason in outcome.missing)


def _opening(final: artifacts.Artifact, created: str, confidence: str) -> str:
    """Return the lines above the sections of FINAL.md. An audit has a verdict and no confidence of its own."""
    decision, own = final_section(final.body, "Decision"), final.own
    return opening(
        question=own["problem"],
        decision=decision or sections(final.body).get("verdict", ""),
        status=status_in_words(own["status"], own["why"], own["turns"]),
        cost=own["cost"],
        created=created,
        models=own["models"],
        confidence="" if "audits" in own else f"{confidence} (uncalibrated)",
    )


def _origin(past: History) -> dict[str, Any]:
    """Return a fork's origin: its source session, the last shared turn, and the cost of the shared calls."""
    forked = past.frozen.forked
    if forked is None:
        return {}
    return {"forked": {"session": forked.session, "turn": forked.turn, "cost": past.shared.known_cost}}


def _asked_by_call(session: Session) -> dict[str, str]:
    """Return the model asked last, by call."""
    return {record["call"]: str(record["model"]) for record in session.records if record["kind"] == "exchange"}


def _asked(session: Session) -> list[str]:
    """Return the models that were asked, sorted by name."""
    return sorted({str(record["model"]) for record in session.records if "model" in record})


def _citations(outcome: Outcome) -> dict[str, Any]:
    return {
        "verified": len(outcome.verified),
        "exists": len(outcome.existing),
        "unverified": [f"{item}: {why}" for item, why in outcome.unverified],
    }


def _checked(final: artifacts.Artifact, outcome: Outcome, runner: Runner) -> artifacts.Artifact:
    """Add to FINAL.md the facts known from the record: citation checks, how the run ended, and both ledgers."""
    found = marked(final.body, runner.kept.findings("final"), paths=False)
    body = unmarked(found, [item.id for item in outcome.ledger])
    if outcome.cited:
        line = cited_in_words(len(outcome.verified), len(outcome.existing), len(outcome.unverified))
        line += "".join(f"\n- ✗ `{item}`: {why}" for item, why in outcome.unverified).replace("\n", "\n\n", 1)
        if final_section(body, "Confidence") is not None:
            body = add_to_section(body, "Confidence", f"\n{line}")
    parts = (body.rstrip(), outcome.record, final_record.record(outcome))
    return replace(final, body="\n\n".join(part for part in parts if part))
