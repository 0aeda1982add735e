"""Converts products, versions, collabs and inspections to the text of session files, and back. Pure.

The text depends on the fact alone. So a file can be verified: parse it, write it again, and compare.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar

from msgspec import Struct, ValidationError, convert
from msgspec.structs import asdict, replace

from cdo.cabal.files.page_text import (
    MAX_BYTES,
    MAX_DEPTH,
    inert,
    noted_text,
    opened,
    page,
    storable,
    untouched,
)
from cdo.cabal.model.entities import Acceptance, Check, Collab, Criterion, Inspection, Kind, Product, Status, Version
from cdo.cabal.model.state import MissionState
from cdo.core.formatting import one_line, visible
from cdo.formats import strict_yaml

FACT = TypeVar("FACT", Version, Collab, Inspection)
PLACE = re.compile(r"(products/(p[1-9][0-9]*)-[a-z0-9-]+)/(product\.yaml|([vci])[1-9][0-9]*\.md)")
_PLAIN_INTEGER = 10**18  # larger integers come back from YAML as text
WRITTEN = 2048  # cached texts: the facts never change, and one command needs their files several times


def written_by_cdo(name: str, text: str) -> bool:
    """True if a session's file is as cdo last wrote it, so that no person edited it. It may be outdated."""
    if untouched(text):
        return True
    place = PLACE.fullmatch(name)
    if place is None or place[4] not in ("v", "i"):
        return False
    try:
        _take({kind: {} for kind in "pvcia"}, place, text)
    except (ValueError, RecursionError):
        return False
    return True


# Keys that are left out of a file if they are empty; the parser takes a missing key as empty.
_OPTIONAL = frozenset(
    ("meta", "decide_by", "path", "versions", "stale_at", "stale_why", "dod", "accepted", "waiver", "outcome",
     "addresses", "session", "version", "sha256", "finding", "closed_by", "how", "why", "rationale", "parts",
     "results", "findings", "quote", "note", "recommendation", "criterion", "collab", "edited")
)  # fmt: skip


def _lean(head: Mapping[str, Any], *needed: str) -> dict[str, Any]:
    """Return `head` without optional keys that are empty, except those `needed`."""
    left_out = _OPTIONAL - set(needed)
    return {key: value for key, value in head.items() if key not in left_out or value}


# -- products --------------------------------------------------------------------------------------


def product_text(product: Product, accepted: Acceptance | None, earlier: Acceptance | None = None) -> str:
    """Return product.yaml: the product, its definition of done with a hash, and its acceptances.

    `earlier` is that of a version which stays delivered while a newer one is not accepted.
    """
    head = {
        "id": product.id,
        "name": product.name,
        "kind": product.kind.value,
        "parent": product.parent,
        "owner": product.owner,
        "status": product.status.value,
        "meta": product.meta,
        "decide_by": product.decide_by,
        "path": product.path,
        "versions": list(product.versions),
        "stale_at": product.stale_at,
        "stale_why": product.stale_why,
        "slug": product.slug,
        "round": product.round,
        "dod": [_criterion(item) for item in product.dod],
        "dod_sha256": product.dod_sha,
        "accepted": accepted and _acceptance(accepted),
        "delivered": earlier and _acceptance(earlier),
    }
    return noted_text("", storable(strict_yaml.dump(_lean(head))))


def _acceptance(item: Acceptance) -> dict[str, Any]:
    return _lean(
        {
            "version": item.version,
            "sha256": item.sha,
            "dod_sha256": item.dod,
            "inspection": item.inspection,
            "waiver": item.waiver,
            "round": item.round,
        },
    )


def _criterion(item: Criterion) -> dict[str, Any]:
    value = item.check.value
    plain = isinstance(value, str) or (type(value) is int and abs(value) < _PLAIN_INTEGER)
    # As JSON, because this YAML would read some numbers and keys of a schema as something else.
    told = {"value": value} if plain else {} if value is None else {"json": json.dumps(value, ensure_ascii=False)}
    check = {"check": {"kind": item.check.kind, **told}} if item.check != Check() else {}
    return {"id": item.id, "text": item.text, **check}


def product_of(text: str) -> tuple[Product, Acceptance | None, Acceptance | None]:
    """Return the product in a product.yaml, its acceptance and the earlier one; raise ValueError with the problem."""
    head = strict_yaml.load(text, max_bytes=MAX_BYTES, max_depth=MAX_DEPTH)
    if not isinstance(head, dict):
        raise ValueError("it is not a mapping of keys")
    data: dict[str, Any] = head
    try:
        product = Product(
            id=str(data["id"]),
            name=str(data["name"]),
            kind=Kind(data["kind"]),
            parent=None if data["parent"] is None else str(data["parent"]),
            owner=None if data["owner"] is None else str(data["owner"]),
            dod=tuple(map(_criterion_of, data.get("dod", []))),
            status=Status(data["status"]),
            meta=bool(data.get("meta", False)),
            decide_by=str(data.get("decide_by", "")),
            path=str(data.get("path", "")),
            versions=tuple(map(str, data.get("versions", []))),
            stale_at=int(data.get("stale_at", 0)),
            stale_why=str(data.get("stale_why", "")),
            slug=str(data["slug"]),
            round=int(data["round"]),
        )
        accepted, earlier = (_acceptance_of(product.id, data.get(key)) for key in ("accepted", "delivered"))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"something is missing or of another kind: {one_line(error, 80)}") from None
    return product, accepted, earlier


def _acceptance_of(product: str, said: Mapping[str, Any] | None) -> Acceptance | None:
    if not said:
        return None
    return Acceptance(
        product=product,
        version=str(said.get("version", "")),
        sha=str(said.get("sha256", "")),
        dod=str(said["dod_sha256"]),
        inspection=str(said["inspection"]),
        waiver=str(said.get("waiver", "")),
        round=int(said["round"]),
    )


def _criterion_of(item: Mapping[str, Any]) -> Criterion:
    check = item.get("check", {"kind": "judged"})
    value = json.loads(check["json"]) if "json" in check else check.get("value")
    return Criterion(str(item["id"]), str(item["text"]), Check(str(check["kind"]), value))


# -- versions, collabs, inspections ----------------------------------------------------------------


@lru_cache(maxsize=WRITTEN)
def version_text(version: Version) -> str:
    """Return a version's file (v3.md): its front matter with a hash, then its content byte for byte."""
    head = {
        "id": version.id,
        "product": version.product,
        "number": version.number,
        "author": version.author,
        "title": version.title,
        "change_summary": version.summary,
        "outcome": version.outcome,
        "addresses": list(version.addresses),
        "session": version.session,
        "edited": version.edited,
        "round": version.round,
        "sha256": version.sha,
    }
    return page(_lean(head), version.content)


def version_of(text: str) -> Version:
    """Return the version in a v3.md; raise ValueError with the problem."""
    head, content = opened(text)
    said = {key: value for key, value in head.items() if key not in ("change_summary", "sha256")}
    return _fact(Version, {**said, "summary": head.get("change_summary"), "content": content})


def collab_text(collab: Collab) -> str:
    """Return a collab's file (c6.md): its front matter, then its comment with controls made visible."""
    head = {
        "id": collab.id,
        "product": collab.product,
        "kind": collab.kind,
        "importance": collab.importance,
        "author": collab.author,
        "summary": collab.summary,
        "round": collab.round,
        "version": collab.version,
        "finding": collab.finding,
        "open": collab.open,
        "closed_by": collab.closed_by,
        "how": collab.how,
        "why": collab.why,
        "edited": collab.edited,
    }
    return page(_lean(head), visible(collab.comment), noted=True)


def collab_of(text: str) -> Collab:
    """Return the collab in a c6.md; raise ValueError with the problem."""
    head, comment = opened(text)
    return _fact(Collab, {**head, "comment": comment})


@lru_cache(maxsize=WRITTEN)
def inspection_text(inspection: Inspection) -> str:
    """Return an inspection's file (i2.md): its front matter with all data, then a readable summary."""
    head = {
        "id": inspection.id,
        "product": inspection.product,
        "version": inspection.version,
        "dod_sha256": inspection.dod,
        "verdict": inspection.verdict.value,
        "round": inspection.round,
        "at": inspection.at,
        "edited": inspection.edited,
        "rationale": inspection.rationale,
        "parts": [list(part) for part in inspection.parts],
        "results": [_lean(asdict(result), "criterion") for result in inspection.results],
        "findings": [_lean(asdict(finding)) for finding in inspection.findings],
    }
    rows = [f"# {inert(inspection.verdict.value.replace('_', ' ').capitalize())}"]
    rows += [
        f"- {'✓' if item.passed else '✗'} {item.criterion} ({item.by}): {inert(item.quote or item.note)}"
        for item in inspection.results
    ]
    rows += [
        f"- {inert(item.category)}, severity {item.severity}: {inert(item.issue)}" for item in inspection.findings
    ]
    return page(_lean(head, "version"), "\n".join([rows[0], "", *rows[1:]]).rstrip())


def inspection_of(text: str) -> Inspection:
    """Return the inspection in an i2.md; raise ValueError with the problem."""
    head, _ = opened(text)
    data = {"dod": head.pop("dod_sha256", ""), "results": [], "findings": [], **head}
    for result in data["results"] if isinstance(data["results"], list) else ():
        if isinstance(result, dict):
            result.update({key: result.get(key, "") for key in ("quote", "note")})
    for finding in data["findings"] if isinstance(data["findings"], list) else ():
        if isinstance(finding, dict):
            finding.setdefault("recommendation", "")
    return _fact(Inspection, data)


def _fact(kind: type[FACT], data: Mapping[str, Any]) -> FACT:
    try:
        return convert(data, kind, strict=False)
    except ValidationError as error:
        raise ValueError(one_line(error, 200)) from None


# -- all of them -----------------------------------------------------------------------------------


class ParsedMission(Struct, frozen=True):
    """The facts parsed from a session's files: the state, as far as they determine it, and problems by file."""

    state: MissionState
    problems: Mapping[str, str]


def read(texts: Mapping[str, str]) -> ParsedMission:
    """Parse the files below products/, given by name; a file that cdo would have written differently is a problem.

    If such a file can still be parsed, its fact is kept, so that a changed file is judged by its present content.
    """
    facts: dict[str, dict[str, Any]] = {"p": {}, "v": {}, "c": {}, "i": {}, "a": {}, "e": {}}
    problems: dict[str, str] = {}
    places = [place for name in texts if (place := PLACE.fullmatch(name))]
    for place in sorted(places, key=_order):
        try:
            _take(facts, place, texts[place[0]])
        except (ValueError, RecursionError) as error:
            problems[place[0]] = one_line(error, 200)
    _settle(facts, problems)
    return ParsedMission(
        MissionState(
            "",
            (),
            products=facts["p"],
            versions=facts["v"],
            collabs=facts["c"],
            inspections=facts["i"],
            acceptances=facts["a"],
            earlier=facts["e"],
        ),
        problems,
    )


def _order(place: re.Match[str]) -> tuple[bool, int]:
    """Return the sort key of a file: products first, then all others by the number in their id."""
    return bool(place[4]), int(place[3][1:-3] if place[4] else place[2][1:])


def _take(facts: dict[str, dict[str, Any]], place: re.Match[str], text: str) -> None:
    """Add the fact in one file; raise ValueError if cdo would have written the file differently."""
    fact: Any
    if place[4]:
        fact = _READ[place[4]](text)
        again, home = _WRITTEN[place[4]](fact), (fact.product, f"{fact.id}.md") == (place[2], place[3])
    else:
        fact, *pins = product_of(text)
        again, home = product_text(fact, *pins), fact.folder == place[1]
        for letter, pinned in zip("ae", pins, strict=True):
            facts[letter].update({fact.id: pinned} if pinned and home else {})
    if not home:
        raise ValueError("it is another's, by what it says of itself")
    facts[place[4] or "p"][fact.id] = fact
    if again != text:
        raise ValueError("it is not what cdo wrote")


_READ: Mapping[str, Any] = {"v": version_of, "c": collab_of, "i": inspection_of}
_WRITTEN: Mapping[str, Any] = {"v": version_text, "c": collab_text, "i": inspection_text}


def _settle(facts: dict[str, dict[str, Any]], problems: dict[str, str]) -> None:
    """Remove facts of products that do not exist, and correct lists of versions that do not match the files."""
    products, versions = facts["p"], facts["v"]
    for letter in "vci":
        for id in [id for id, fact in facts[letter].items() if fact.product not in products]:
            problems.setdefault(f"{id}.md of {facts[letter].pop(id).product}", "its product has no product.yaml")
    there: dict[str, list[Version]] = {}
    for version in versions.values():
        there.setdefault(version.product, []).append(version)
    for product in products.values():
        found = tuple(item.id for item in sorted(there.get(product.id, ()), key=lambda item: item.number))
        if product.versions != found:
            problems.setdefault(f"{product.folder}/product.yaml", "its versions are not the ones in its folder")
            products[product.id] = replace(product, versions=found)
