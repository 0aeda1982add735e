"""Proves CERTIFICATE.yaml from the files alone. Reads only.

The proof rebuilds the mission from the files of its products and applies the rules of acceptance to it again. Then it
compares the certificate with the result, and each file with its certified hash.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from cdo.cabal.files import delivered_files
from cdo.cabal.files.certificate import NAME, digest, earlier_entries, is_certified, product_entry, seal, unaccepted
from cdo.cabal.files.page_text import MAX_DEPTH
from cdo.cabal.files.serialization import ParsedMission, read
from cdo.cabal.model.entities import (
    CommandRun,
    Criterion,
    Inspection,
    InspectionVerdict,
    Product,
    fingerprint,
)
from cdo.cabal.model.state import MissionState
from cdo.cabal.rules import acceptance, criteria
from cdo.core.errors import SessionError
from cdo.core.formatting import one_line, pluralise
from cdo.core.mission_names import USER
from cdo.formats import strict_yaml
from cdo.planning.mission_crew import RULES
from cdo.session import artifact
from cdo.session.reader import SessionReader

MAX_BYTES = 32_000_000  # most bytes of a certificate
_WORDS = ("session", "status", "why", "final", "sha256")  # keys of a certificate whose values are text


class CertificateClaim(Struct, frozen=True):
    """One checked claim: what it is `about`, its `text`, and why it does not hold ("" if it holds)."""

    about: str
    text: str
    why: str = ""

    @property
    def holds(self) -> bool:
        """True if the claim holds."""
        return not self.why

    @property
    def line(self) -> str:
        """The claim in one line, for a terminal."""
        return f"{'✗' if self.why else '✓'} {one_line(self.about, 160)}: {one_line(self.why or self.text, 400)}"


class Proof(Struct, frozen=True):
    """The checked claims about a session, and what the proof does not cover."""

    session: str
    claims: tuple[CertificateClaim, ...]
    uncovered: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """True if all claims hold."""
        return all(claim.holds for claim in self.claims)


def proved(archive: SessionReader, rules: int = RULES) -> Proof:
    """Check the certificate of a session against its files; raise `SessionError` if there is no certificate.

    `rules` is the version of the rules that the mission was begun under.
    """
    data = archive.data(NAME)
    if data is None:
        raise SessionError(
            f"{archive.place} has no {NAME}.",
            "A cabal's mission has one when it has ended; a deliberation has none: `cdo replay` compares its files "
            "with its record.",
        )
    problems: dict[str, str] = {}
    texts = {}
    for name in archive.files():
        if is_certified(name) or name in ("FINAL.md", "FINAL.yaml"):
            texts[name] = _decoded(name, archive.data(name) or b"", problems)
    certified, seal = _certificate(_decoded(NAME, data, problems))
    claims = [seal]
    if certified is not None:
        filed = read(texts)
        filed = replace(filed, state=replace(_with_runs(filed.state, certified), rules=rules))
        claims += _files(certified["files"], texts, {**filed.problems, **problems})
        claims += _status(certified, filed, texts)
        claims += _products(certified, filed, texts)
        claims += _delivered_before(certified, filed.state, texts)
    elif problems:
        claims += [CertificateClaim(name, "", why) for name, why in problems.items()]
    return Proof(archive.name, tuple(claims))


def _decoded(name: str, data: bytes, problems: dict[str, str]) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        problems[name] = "it is not UTF-8 text"
        return data.decode(errors="replace")


def _certificate(text: str) -> tuple[dict[str, Any] | None, CertificateClaim]:
    """Return a certificate's data (None if it cannot be read), and a claim that it was not changed."""
    try:
        data = strict_yaml.load(text, max_bytes=MAX_BYTES, max_depth=MAX_DEPTH)
    except (strict_yaml.YamlProblem, RecursionError) as problem:
        return None, CertificateClaim(NAME, "", f"it cannot be read: {problem}")
    known: dict[str, Any] = data if isinstance(data, dict) else {}
    lists, pinned = [known.get(key) for key in ("accepted", "unaccepted")], known.get("files")
    if (
        not all(isinstance(known.get(key), str) for key in _WORDS)
        or not isinstance(pinned, dict)
        or not all(isinstance(entries, list) and all(isinstance(item, dict) for item in entries) for entries in lists)
    ):
        return None, CertificateClaim(
            NAME, "", "it is not a certificate: something of it is missing or of another kind"
        )
    sealed = strict_yaml.dump(known) == text and seal(known) == known["sha256"]
    return known, CertificateClaim(
        NAME, "is as it was written", "" if sealed else "it was changed: its own hash does not fit"
    )


def _files(
    pinned: Mapping[str, Any], texts: Mapping[str, str], problems: Mapping[str, str]
) -> Iterator[CertificateClaim]:
    """Yield claims that each certified file is there unchanged, and that there are no other files."""
    wrong = dict(problems)
    here = {name for name in texts if is_certified(name)}
    for name in sorted({*pinned, *here}):
        if name not in here:
            wrong[name] = "it is gone"
        elif name not in pinned:
            wrong.setdefault(name, "it is not among the files that were certified")
        elif digest(texts[name].encode()) != pinned[name]:
            said = f": {wrong[name]}" if name in wrong else ""
            wrong[name] = f"it is not the file that was certified{said}"
    yield from (CertificateClaim(name, "", why) for name, why in sorted(wrong.items()))
    if not wrong:
        yield CertificateClaim(
            "files", f"{pluralise(len(pinned), 'file')} of products and deliverables are those certified"
        )


def _status(
    certified: Mapping[str, Any], filed: ParsedMission, texts: Mapping[str, str]
) -> Iterator[CertificateClaim]:
    """Yield claims that the products, the certificate and FINAL.md agree on whether the mission is done."""
    state, status = filed.state, certified["status"]
    open_ = acceptance.unaccepted(state)
    why = ""
    if status not in ("done", "unresolved"):
        why = f"its status is {status}, which none ends with"
    elif status == "done" and (open_ or not state.live()):
        names = ", ".join(item.name for item in open_) or "everything: there is no product"
        why = f"it is said to be done, and these are not accepted: {names}"
    elif unaccepted(state) != certified["unaccepted"]:
        why = "the products that are not accepted are others than it says"
    yield CertificateClaim("mission", f"is {status}: {pluralise(len(open_), 'live product')} not accepted", why)
    if "signed_off" in certified:
        yield _sign_off_claim(certified)
    yield CertificateClaim("FINAL.md", f"says {status}, and is as it was written", _final(certified, texts))


def _sign_off_claim(certified: Mapping[str, Any]) -> CertificateClaim:
    """Return the claim on who signed the mission off; the record proves it."""
    match certified["signed_off"]:
        case {"by": str(by), "round": int(round)} if by == USER and certified["status"] == "done":
            return CertificateClaim("sign-off", f"the user signed the mission off in round {round}")
        case None if certified["status"] != "done":
            return CertificateClaim("sign-off", "the user has not signed the mission off")
    return CertificateClaim("sign-off", "", "what it says of the sign-off does not fit its status")


def _final(certified: Mapping[str, Any], texts: Mapping[str, str]) -> str:
    try:
        found = artifact.parse("FINAL", texts.get)
    except SessionError as error:
        return error.message
    if found is None:
        return "it is gone"
    said = {**found.meta, **found.own}.get("status", certified["status"])
    if said != certified["status"]:
        return f"its status is {said}, the certificate's is {certified['status']}"
    return "" if fingerprint(found.body) == certified["final"] else "it was changed"


def _products(
    certified: Mapping[str, Any], filed: ParsedMission, texts: Mapping[str, str]
) -> Iterator[CertificateClaim]:
    """Yield claims that the certificate agrees with the files of each product, and that its acceptance holds."""
    state = filed.state
    places = delivered_files.places(state)
    claimed = {str(entry.get("product")): entry for entry in certified["accepted"]}
    linked = {id: str(entry["deliverable"]) for id, entry in claimed.items() if entry.get("deliverable")}
    for id in dict.fromkeys([*claimed, *(id for id in state.acceptances if state.products[id].live)]):
        product = state.products.get(id)
        if product is None or id not in state.acceptances:
            yield CertificateClaim(id, "", "it is certified, and its files do not say that it was accepted")
        elif id not in claimed:
            yield CertificateClaim(_called(product), "", "it is accepted, and not certified")
        else:
            for text, whys in _ProductProof(state, product, places.get(id, ""), claimed[id], linked, texts).claims():
                yield CertificateClaim(_called(product), text, "; ".join(why for why in whys if why))


def _delivered_before(
    certified: Mapping[str, Any], state: MissionState, texts: Mapping[str, str]
) -> Iterator[CertificateClaim]:
    """Yield claims that each version which stays delivered was accepted, and is what its deliverable holds."""
    now, places = earlier_entries(state), delivered_files.places(state)
    if now != certified.get("earlier", []):
        yield CertificateClaim("deliverables", "", "earlier versions stay delivered that are not the certified ones")
    for entry in now:
        version, pinned = state.versions[entry["version"]], state.earlier[entry["product"]]
        found = state.inspections.get(pinned.inspection)
        due = delivered_files.delivered(state, version, places)
        wrong = [f"{name} is not the content of its version" for name, text in due.items() if texts.get(name) != text]
        if version.sha != pinned.sha:
            wrong.append(f"the content of {version.id} is not what was accepted")
        if found is None or (found.product, found.version) != (version.product, version.id):
            wrong.append(f"there is no inspection {pinned.inspection} of it")
        said = f"{version.id} was accepted, and stays delivered until a newer version is"
        yield CertificateClaim(_called(state.products[version.product]), said, "; ".join(wrong))


def _called(product: Product) -> str:
    return f"{product.name} ({product.id})"


class _ProductProof(Struct, frozen=True):
    """The proof of one accepted product: `place` is the path of its deliverable, `claimed` its certificate entry.

    `linked` are the deliverables of all certified products by id, because deliverables link to one another.
    """

    state: MissionState
    product: Product
    place: str
    claimed: Mapping[str, Any]
    linked: Mapping[str, str]
    texts: Mapping[str, str]

    def claims(self) -> Iterator[tuple[str, list[str]]]:
        """Yield each claim, with a list of problems ("" for none)."""
        pinned = self.state.acceptances[self.product.id]
        found = self.state.inspections.get(pinned.inspection)
        if self.product.container:
            yield f"holds {pluralise(len(self._parts()), 'part')} as certified", self._held(found)
        else:
            yield f"{pinned.version} holds the content that was accepted, and is the newest", self._content()
            yield f"{self.claimed.get('deliverable', '')} is that content", self._delivered()
        yield "its definition of done is the one it was accepted for", self._dod(found)
        if found is None or found.product != self.product.id:
            yield "", [f"there is no inspection {pinned.inspection} of it"]
        else:
            for item in self.product.dod:
                yield f"{item.id} is met: {item.text}", [self._met(item, found)]
            yield f"{found.id} is of it, and is {found.verdict.value.replace('_', ' ')}", self._inspected(found)
        yield "nothing open keeps it from being accepted", self._open()
        yield "the certificate says of it what its files say", self._same()
        rules = acceptance.missing_for_acceptance(self.state, self.product.id, pinned.waiver)
        kept = acceptance.holds(self.state, self.product.id)
        yield "its acceptance holds", [*rules, "" if kept or rules else "what it was accepted for has changed"]

    def _content(self) -> list[str]:
        pinned = self.state.acceptances[self.product.id]
        version = self.state.versions.get(pinned.version)
        if version is None or version.product != self.product.id:
            return [f"there is no version {pinned.version} of it"]
        newest = self.state.latest(self.product.id)
        return [
            "" if version.sha == pinned.sha else f"the content of {version.id} is not what was accepted",
            ""
            if version.sha == self.claimed.get("sha256")
            else f"the content of {version.id} is not what is certified",
            "" if version is newest or newest is None else f"{newest.id} is newer than {version.id}",
        ]

    def _delivered(self) -> list[str]:
        place, latest = str(self.claimed.get("deliverable", "")), self.state.latest(self.product.id)
        due = delivered_files.delivered(self.state, latest, self.linked) if latest else {}
        here = [name for name in self.texts if name == place or (place.endswith("/") and name.startswith(place))]
        if not place.startswith("deliverables/") or not here:
            return [f"the deliverable {place} is gone"]
        wrong = [name for name in sorted({*due, *here}) if due.get(name) != self.texts.get(name)]
        return [f"{name} is not the content of its version" for name in wrong]

    def _dod(self, found: Inspection | None) -> list[str]:
        now = self.product.dod_sha
        pins = {
            "accepted for": self.state.acceptances[self.product.id].dod,
            "certified": self.claimed.get("dod_sha256"),
            **({"inspected against": found.dod} if found else {}),
        }
        return [f"its definition of done is not the one it was {how}" for how, pin in pins.items() if pin != now]

    def _met(self, item: Criterion, found: Inspection) -> str:
        """Return why a criterion is not proved to be met, "" if it is.

        Code tests the criterion again. If code cannot test it, the quote has to be in the accepted content.
        """
        result = next((result for result in found.results if result.criterion == item.id), None)
        if result is None or not result.passed:
            return f"{item.id} was not found to be met"
        texts = criteria.material(self.state, self.product.id)
        again = criteria.tested(item, criteria.whole(self.state, self.product.id), self.state)
        if again and not again.passed:
            return f"{item.id} is not met when code tests it: {again.note}"
        if again and result.quote in ("", again.quote):
            return ""
        there = criteria.evidence(result.quote, texts)
        return "" if there else f"{item.id}: its quote is not in what was accepted"

    def _inspected(self, found: Inspection) -> list[str]:
        due = acceptance.verdict(item.severity for item in found.findings)
        latest = self.state.latest(self.product.id)
        waiver = self.state.acceptances[self.product.id].waiver
        about = {item.id for item in self.state.about(self.product.id, closed=True)}
        lost = [item.collab for item in found.findings if item.collab and item.collab not in about]
        return [
            "" if found.version == (latest.id if latest else "") else f"{found.id} is of another version",
            "" if found.verdict is due else f"the verdict of {found.id} does not follow from its findings",
            "its inspection blocks it" if InspectionVerdict.BLOCKED in (due, found.verdict) else "",
            "a revision is wanted, and no waiver says why not"
            if due is not InspectionVerdict.APPROVED and not waiver
            else "",
            f"findings of {found.id} refer to what is not there: {', '.join(lost)}" if lost else "",
        ]

    def _open(self) -> list[str]:
        about = self.state.about(self.product.id, closed=True)
        return [
            *(f"{item.id} is open and blocks it: {item.summary}" for item in about if item.blocking),
            *(
                f"{item.id} could not be waived by the chair"
                for item in about
                if not item.waivable and item.how == "waived"
            ),
        ]

    def _parts(self) -> tuple[tuple[str, str], ...]:
        return acceptance.parts(self.state, self.product.id)

    def _held(self, found: Inspection | None) -> list[str]:
        parts = [list(part) for part in self._parts()]
        return [
            "" if parts == self.claimed.get("parts", []) else "what it holds is not what is certified",
            "" if found and [list(part) for part in found.parts] == parts else "what it holds was not inspected so",
            *(
                f"{_called(item)} is not accepted"
                for item in acceptance.held(self.state, self.product.id)
                if not acceptance.holds(self.state, item.id)
            ),
        ]

    def _same(self) -> list[str]:
        """Return a problem that names the keys of the certificate's entry that differ from the files."""
        pinned = self.state.acceptances[self.product.id]
        found = self.state.inspections.get(pinned.inspection)
        known = {item.criterion for item in found.results} if found else set[str]()
        if found is None or any(item.id not in known for item in self.product.dod):
            return ["its files do not hold what it was accepted on"]
        now = product_entry(self.state, self.product, self.place)
        wrong = [key for key in sorted({*now, *self.claimed}) if now.get(key) != self.claimed.get(key)]
        return [f"its files say something else of: {', '.join(wrong)}"] if wrong else []


def _with_runs(state: MissionState, certified: Mapping[str, Any]) -> MissionState:
    """Return the state with the runs of commands that a certificate names; they are not made again."""
    runs = {}
    for item in certified.get("commands", ()):
        try:
            code, told = item["exit_code"], {key: str(item[key]) for key in ("command", "outcome", "output")}
            run = CommandRun(
                **told, files=str(item["files_sha256"]), code=code if type(code) is int else None, round=item["round"]
            )
        except (KeyError, TypeError):
            continue
        runs[run.command] = run
    return replace(state, runs=runs, exec=bool(runs))
