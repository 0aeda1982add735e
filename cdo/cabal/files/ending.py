"""Makes the files that a mission has only when it has ended: FINAL.md with its keys, and CERTIFICATE.yaml. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from cdo.cabal.files.certificate import certificate
from cdo.cabal.files.final_report import Delivery, final
from cdo.cabal.files.page_text import inert
from cdo.core.demo_model import DEMO_ADVICE, DEMO_MISSION, only_demo
from cdo.core.mission_names import MODE
from cdo.formats import strict_yaml
from cdo.formats.final_opening import opening, status_in_words
from cdo.formats.markdown import sections
from cdo.session.artifact import Artifact

HANDED_OVER = "delivered"  # the kind of the record of what was handed over


def handed_over(records: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the last record of accepted files that were handed over, None if there is none."""
    return next((item for item in reversed(records) if item["kind"] == HANDED_OVER), None)


def told_of(record: Mapping[str, Any] | None) -> str:
    """Return the sentence on what was handed over, "" for None."""
    return str(record["told"]) if record else ""


class MissionEnding(Struct, frozen=True):
    """What a mission leaves at its end: FINAL.md, the text of CERTIFICATE.yaml, and the section Result."""

    final: Artifact
    certificate: str
    result: str


def ending(
    delivery: Delivery,
    replies: Iterable[Artifact],
    *,
    session: str,
    request: str,
    created: str,
    cost: float | None,
    handed: str = "",
) -> MissionEnding:
    """Return the files of a mission that ended so.

    `replies` are the replies to all its calls; `handed` says where its files were handed over, "" for nowhere.
    """
    models = _models(delivery.state.agents, replies)
    asked = sorted({name for names in models.values() for name in names})
    problem, body = " ".join(request.split())[:300], final(delivery)
    own = {
        "session": session,
        "problem": problem,
        "preset": MODE,
        "status": delivery.status,
        "why": delivery.why,
        "turns": delivery.rounds,
        "models": asked,
        "cost": cost,
        "missing_voices": [],
        **({"flags": list(delivery.flags)} if delivery.flags else {}),
    }
    result = sections(body).get("result", "")
    top = opening(
        question=problem,
        decision=result,
        status=status_in_words(delivery.status, delivery.why, delivery.rounds, "round"),
        cost=cost,
        created=created,
        models=asked,
    )
    top += f"\n\n> **{DEMO_MISSION}** {inert(DEMO_ADVICE)}." if only_demo(asked) else ""
    page = f"{top}\n\n{body}" + (f"\n## Handed over\n\n{inert(handed)}\n" if handed else "")
    proof = certificate(delivery, session, models, page)
    return MissionEnding(Artifact({}, page, own), strict_yaml.dump(proof), result)


def _models(agents: Iterable[str], replies: Iterable[Artifact]) -> Mapping[str, list[str]]:
    """Return the models that replied, by role, in the order of the agents and not of the replies."""
    found: dict[str, set[str]] = {agent: set() for agent in agents}
    for reply in replies:
        names = found.setdefault(str(reply.own.get("role") or ""), set())
        names |= {str(reply.own.get("model") or "")} - {""}
    return {role: sorted(names) for role, names in found.items() if names}
