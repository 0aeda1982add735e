"""Verifies a mission: proves its certificate from its files, and compares every file with its record. Reads only.

The record (session.yaml and calls/) determines the mission. So the program is run over it again, without a model, and
each file has to be the one that this gives. Without a record, only the files are compared with one another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from cdo.cabal.files import delivered_files, layout
from cdo.cabal.files.certificate import NAME
from cdo.cabal.files.certificate_proof import MAX_BYTES, CertificateClaim, Proof, proved
from cdo.cabal.files.ending import ending, handed_over, told_of
from cdo.cabal.files.page_text import MAX_DEPTH
from cdo.cabal.reconstruction import ReconstructedMission, retrace
from cdo.core.errors import SessionError
from cdo.core.exchange import Fault
from cdo.core.formatting import pluralise, without_controls
from cdo.core.steps import Call, DivisibleFormat, InvalidReply
from cdo.core.usage import totals
from cdo.files.atomic_files import encodable
from cdo.formats import strict_yaml
from cdo.formats.lenient.reading import read
from cdo.planning.mission_crew import RULES
from cdo.session import artifact as artifacts
from cdo.session.artifact import Artifact
from cdo.session.given_files import recorded_files
from cdo.session.reader import SessionReader
from cdo.session.recorded_replies import reply_text
from cdo.session.records import group_number
from cdo.session.session_file import read_frozen

_CALL = re.compile(r"r[0-9]+-[a-z0-9-]+\.md")
_MADE = re.compile(r"(products|deliverables)/.*|(mission|TREE|CHAT)\.md")  # files that the record determines
_ENDING = ("FINAL.md", "FINAL.yaml", NAME)
_ALWAYS = (
    "what commands come to when they run again: the certificate says what they came to on these files",
    "whether a judged criterion is met in truth: what is checked is that its quote stands in what was accepted",
    "inbox/, taken/, superseded/, journal.jsonl, and white space around the text of FINAL.md",
)
_WITH_RECORD = (*_ALWAYS, "whether somebody made session.yaml, the record in calls/ and all files anew")
_GAP = "replies that part of calls/ held: a file of it is gone, so their files were taken as they are"
_WITHOUT_RECORD = (
    "anything that only the record proves: there is no record here (calls/), so the files were compared with one "
    "another; somebody who made all of them anew, or edited a reply, is not found out",
    "mission.md, TREE.md, CHAT.md, 00-input.md, the files of single calls, and FINAL.yaml except the status in it",
    "which models were asked, how many rounds there were, why the mission ended and whether the user signed it off: "
    "the certificate only says so",
    *_ALWAYS,
)

_OTHER_RULES = "whether the record leads to this end: another version of cdo, whose rules differ, began the mission"


def verified(archive: SessionReader) -> Proof:
    """Prove the certificate of a session, and compare its files with its record; raise `SessionError` without one."""
    found = {file for file in archive.files() if file.startswith("calls/") or _CALL.fullmatch(file)}
    crew = read_frozen(archive.text("session.yaml"), Path(archive.place)).plan.crew if found else None
    proof = proved(archive, crew.rules if crew else RULES)
    if not found:
        return replace(proof, uncovered=_WITHOUT_RECORD)
    if crew and not crew.known_rules:
        return replace(proof, uncovered=(_OTHER_RULES, *_WITHOUT_RECORD[1:]))
    told = {claim.about for claim in proof.claims if not claim.holds}
    claims = [claim for claim in _record_claims(archive) if claim.about not in told]
    gone = (_GAP,) if _gap(archive) else ()
    return replace(proof, claims=(*proof.claims, *claims), uncovered=(*gone, *_WITH_RECORD))


def _gap(archive: SessionReader) -> bool:
    """True if a group of records before the last one is gone; a run goes on without it, and says so."""
    numbers = {number for file in archive.files() if (number := group_number(file))}
    return bool(numbers) and len(numbers) < max(numbers)


def _record_claims(archive: SessionReader) -> Iterator[CertificateClaim]:
    """Yield a claim for each file that contradicts the record, or one that none does."""
    try:
        records = archive.records()
        mission = retrace(archive, without_files=True)
    except SessionError as error:
        yield CertificateClaim("record", "", f"it cannot be read: {error.message}")
        return
    wrong = {**_initial(archive, records), **_calls(archive, mission, records)}
    if mission.outcome is None:
        yield from (CertificateClaim(name, "", why) for name, why in sorted(wrong.items()))
        yield CertificateClaim("record", "", f"it does not lead to the end that is certified: {_stopped(mission)}")
        return
    wrong |= _files(archive, _expected(archive, mission, records))
    yield from (CertificateClaim(name, "", why) for name, why in sorted(wrong.items()))
    if not wrong:
        yield CertificateClaim(
            "record",
            f"it leads to this end: the replies to {pluralise(len(mission.replies), 'call')}, and every file that "
            "follows from them",
        )


def _stopped(mission: ReconstructedMission) -> str:
    """Return where the record ends."""
    if mission.question:
        return "a question to you has no answer in it"
    if mission.asked:
        return f"it has no valid reply of {', '.join(call.name for call in mission.asked[:3])}"
    return f"it ends in round {mission.state.round}"


# -- the files that follow from the record ---------------------------------------------------------


def _expected(
    archive: SessionReader, mission: ReconstructedMission, records: Sequence[Mapping[str, Any]]
) -> dict[str, bytes]:
    """Return the files that the mission leaves at its end, by name."""
    assert mission.outcome is not None
    projections, kept = layout.files(mission.state, None)
    frozen = read_frozen(archive.text("session.yaml"), Path(archive.place))
    final = archive.artifact("FINAL")
    made = ending(
        mission.outcome,
        [artifact for _, artifact in mission.replies],
        session=str(final.own.get("session", archive.name)) if final else archive.name,
        request=archive.text("00-input.md") or "",
        created=frozen.created,
        cost=totals(records).known_cost,
        handed=told_of(handed_over(records)),
    )
    texts = {**projections, **kept, **delivered_files.deliverables(mission.state), NAME: made.certificate}
    stored = {name: without_controls(encodable(text)) for name, text in texts.items()}
    return {name: text.encode() for name, text in {**stored, **artifacts.files("FINAL", _clean(made.final))}.items()}


def _clean(final: Artifact) -> Artifact:
    """Return FINAL.md without control characters, as sessions store it."""
    own: dict[str, Any] = {key: _plain(value) for key, value in final.own.items()}
    return Artifact({}, without_controls(encodable(final.body)), own)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return without_controls(encodable(value))
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _files(archive: SessionReader, expected: Mapping[str, bytes]) -> dict[str, str]:
    """Return what is wrong with the files that the record determines, by name."""
    here = {name for name in archive.files() if _MADE.fullmatch(name) or name in _ENDING}
    wrong = dict.fromkeys(here - set(expected), "it is not part of the mission, according to its record")
    wrong |= dict.fromkeys(set(expected) - here, "it is gone")
    for name in here & set(expected):
        if (data := archive.data(name)) != expected[name]:
            keys = _differing(data or b"", expected[name]) if name == NAME else ""
            wrong[name] = f"it is not what follows from the record{keys}"
    return wrong


def _differing(here: bytes, expected: bytes) -> str:
    """Return which keys of two certificates differ, as the end of a sentence."""
    try:
        old, new = (
            strict_yaml.load(data.decode(), max_bytes=MAX_BYTES, max_depth=MAX_DEPTH) for data in (here, expected)
        )
    except (strict_yaml.YamlProblem, UnicodeDecodeError, RecursionError):
        return ""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return ""
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key) and key != "sha256"]
    return f": it says something else of {', '.join(map(str, keys))}" if keys else ""


def _initial(archive: SessionReader, records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the initial files (the request, the material) that are not as the record has them."""
    then = recorded_files(records)
    return {
        name: "it is not what the mission was given" if text is not None else "it is gone"
        for name, given in then.items()
        if (text := archive.text(name)) != given
    }


# -- replies ---------------------------------------------------------------------------------------


def _calls(
    archive: SessionReader, mission: ReconstructedMission, records: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """Return what is wrong with the files of single calls, by name.

    A file that was edited is no problem: the certificate has to name it. A file that claims to be as it was written
    has to hold what a model answered to this call; if part of the record is gone, that may be unknown.
    """
    answers: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        cut = record.get("fault", {}).get("kind") == Fault.LENGTH.value
        if record["kind"] == "exchange" and ("response" in record or cut):
            answers.setdefault(str(record["call"]), []).append(record)
    known = {f"{call.artifact}.md" for call, _ in mission.replies}
    wrong, gap = {}, _gap(archive)
    named = {item["file"] for item in _named_as_edited(archive)}
    for call, artifact in mission.replies:
        given = answers.get(call.name, [])
        if artifact.edited and f"{call.artifact}.md" not in named:
            wrong[f"{call.artifact}.md"] = "it was edited, and the certificate does not say so"
        unknown = not given and gap
        if not (artifact.edited or unknown or any(_answered(call, artifact, record, given) for record in given)):
            wrong[f"{call.artifact}.md"] = "it is not what a model answered, by the record in calls/"
    wrong |= mission.lost
    strange = {name for name in archive.files() if _CALL.fullmatch(name)} - known - set(wrong)
    if mission.outcome is not None:
        wrong |= dict.fromkeys(strange, "it is not part of the mission, according to its record")
    return wrong


def _named_as_edited(archive: SessionReader) -> list[Mapping[str, Any]]:
    """Return the entries of the certificate for replies that the person edited."""
    try:
        known = strict_yaml.load(archive.text(NAME) or "", max_bytes=MAX_BYTES, max_depth=MAX_DEPTH)
    except (strict_yaml.YamlProblem, SessionError, RecursionError):
        return []
    entries = known.get("edited") if isinstance(known, dict) else None
    return (
        [item for item in entries if isinstance(item, dict) and "file" in item] if isinstance(entries, list) else []
    )


def _answered(
    call: Call, artifact: Artifact, record: Mapping[str, Any], exchanges: Sequence[Mapping[str, Any]]
) -> bool:
    """True if this one of a call's recorded answers, by the model that the file names, is the reply in the file."""
    text = reply_text(record, exchanges) if "response" in record else str(record["fault"]["text"])
    if str(artifact.own.get("model", "")) != str(record["model"]):
        return False
    if "response" not in record:
        part = call.format.complete_part(text) if isinstance(call.format, DivisibleFormat) else None
        return part is not None and _stored(part) == artifact.sha
    if _stored(text) == artifact.sha:
        return True
    try:
        return _stored(read(call.format, text).text) == artifact.sha
    except InvalidReply:
        return False


def _stored(text: str) -> str:
    """Return the hash of a reply as sessions store it."""
    made = artifacts.from_reply(text, {})
    clean = Artifact(_cleaned(made.meta), without_controls(encodable(made.body)), {})
    again = artifacts.parse("reply", artifacts.files("reply", clean).get)
    return again.sha if again else ""


def _cleaned(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _cleaned(item) for key, item in value.items()}
    return [_cleaned(item) for item in value] if isinstance(value, list) else _plain(value)
