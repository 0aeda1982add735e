"""Builds CERTIFICATE.yaml: what was accepted, on which evidence, and the hash of each file that it covers. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from cdo.cabal.files import delivered_files, layout
from cdo.cabal.files.by_hand import edited_calls, resting_on
from cdo.cabal.files.final_report import Delivery, final
from cdo.cabal.files.serialization import PLACE
from cdo.cabal.model.entities import (
    Collab,
    CommandRun,
    Criterion,
    CriterionResult,
    Inspection,
    Product,
    fingerprint,
)
from cdo.cabal.model.state import MissionState
from cdo.cabal.rules import acceptance
from cdo.core.mission_names import USER
from cdo.formats import strict_yaml

NAME = "CERTIFICATE.yaml"


def certificate(
    delivery: Delivery, session: str, models: Mapping[str, Sequence[str]], body: str = ""
) -> dict[str, Any]:
    """Return the data of CERTIFICATE.yaml, for `strict_yaml.dump`; `models` are the models that were asked, by role.

    It covers the files as `layout` renders them from this state, and a FINAL.md with the text `body`: by default
    `final(delivery)`.
    """
    state = delivery.state
    projections, kept = layout.files(state, None)
    texts = {**projections, **kept, **delivered_files.deliverables(state)}
    data = {
        "session": session,
        "status": delivery.status,
        "why": delivery.why,
        "rounds": delivery.rounds,
        **({"signed_off": _signed_off(state)} if state.sign_off else {}),
        "edited": [item.entry() for item in edited_calls(state)],
        "accepted": _entries(state),
        "unaccepted": unaccepted(state),
        **({"earlier": earlier} if (earlier := earlier_entries(state)) else {}),
        **({"commands": [_run(item) for item in state.runs.values()]} if state.runs else {}),
        "models": {role: list(names) for role, names in models.items()},
        "final": fingerprint(body or final(delivery)),
        "files": {name: digest(texts[name].encode()) for name in sorted(texts) if is_certified(name)},
    }
    return {**data, "sha256": seal(data)}


def digest(data: bytes) -> str:
    """Return the SHA-256 of a file's bytes, in hex."""
    return sha256(data).hexdigest()


def seal(data: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a certificate's YAML without the key `sha256`."""
    return digest(strict_yaml.dump({key: value for key, value in data.items() if key != "sha256"}).encode())


def is_certified(name: str) -> bool:
    """True if a certificate holds the hash of the file of this name: versions of products, and deliverables."""
    return bool(PLACE.fullmatch(name)) or name.startswith("deliverables/")


def _signed_off(state: MissionState) -> dict[str, Any] | None:
    """Return who signed the mission off and when, None if nobody did."""
    return {"by": USER, "round": state.round} if state.signed_off else None


def unaccepted(state: MissionState) -> list[dict[str, str]]:
    """Return the products that were not accepted, by id and name."""
    return [{"product": item.id, "name": item.name} for item in acceptance.unaccepted(state)]


# -- the entry of a product ------------------------------------------------------------------------


def _entries(state: MissionState) -> list[dict[str, Any]]:
    places = delivered_files.places(state)
    held = (item for item in state.live() if acceptance.holds(state, item.id))
    return [product_entry(state, item, places.get(item.id, "")) for item in held]


def earlier_entries(state: MissionState) -> list[dict[str, Any]]:
    """Return the versions that stay delivered although a newer one, which is not accepted, stands over them."""
    places = delivered_files.places(state)
    return [
        {
            "product": item.id,
            "name": item.name,
            "deliverable": places[item.id],
            "version": version.id,
            "sha256": version.sha,
            "inspection": state.earlier[item.id].inspection,
        }
        for item in state.live()
        if not acceptance.holds(state, item.id) and (version := acceptance.delivered_version(state, item.id))
    ]


def product_entry(state: MissionState, product: Product, place: str) -> dict[str, Any]:
    """Return all facts that the acceptance of a product is based on."""
    pinned = state.acceptances[product.id]
    found, version = state.inspections[pinned.inspection], state.versions.get(pinned.version)
    results = {item.criterion: item for item in found.results}
    about = state.about(product.id, closed=True)
    waived = [item for item in about if item.how == "waived"]
    told = {
        "product": product.id,
        "name": product.name,
        "kind": product.kind.value,
        "folder": product.folder,
        "path": product.path,
        "deliverable": place,
        "version": version.id if version else "",
        "number": version.number if version else 0,
        "sha256": pinned.sha,
        "author": version.author if version else "",
        "authors": list(dict.fromkeys(item.author for item in state.history(product.id))),
        "dod_sha256": pinned.dod,
        "criteria": [_criterion(item, results[item.id]) for item in product.dod],
        "inspection": pinned.inspection,
        "inspections": [_inspection(item) for item in state.inspections.values() if item.product == product.id],
        "waiver": pinned.waiver,
        "waived": [{**_collab(item), "by": item.closed_by, "why": item.why} for item in waived],
        "open": [_collab(item) for item in about if item.open],
        "parts": [list(part) for part in found.parts],
        "rests_on_edits": list(resting_on(state, product.id)),
    }
    return {key: value for key, value in told.items() if value not in ("", [], 0)}


def _criterion(item: Criterion, result: CriterionResult) -> dict[str, Any]:
    passed = {"id": item.id, "text": item.text, "check": item.check.kind, "passed": result.passed, "by": result.by}
    return {**passed, **({"quote": result.quote} if result.quote else {})}


def _inspection(item: Inspection) -> dict[str, Any]:
    findings = [
        {"severity": found.severity, "category": found.category, "issue": found.issue, "collab": found.collab}
        for found in item.findings
    ]
    return {"id": item.id, "version": item.version, "verdict": item.verdict.value, "findings": findings}


def _run(item: CommandRun) -> dict[str, Any]:
    said = {"command": item.command, "files_sha256": item.files, "exit_code": item.code, "outcome": item.outcome}
    return {**said, "output": item.output, "round": item.round}


def _collab(item: Collab) -> dict[str, Any]:
    said = {"collab": item.id, "kind": item.kind, "importance": item.importance}
    return {**said, "author": item.author, "summary": item.summary}
