"""Derives a fork from a session and one of its turns: the plan, and the files to begin with. Pure.

The fork takes the files and records up to that turn as they are, including a person's edits. So no call up to that
turn is repeated or paid again. Nothing after the turn is taken.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

from cdo.core.errors import SessionError, UsageError
from cdo.core.formatting import money, one_line, pluralise
from cdo.core.schema import differing, fitted
from cdo.core.steps import CitationCheck
from cdo.core.usage import TotalUsage
from cdo.formats.role_names import role_problem
from cdo.history.history import SYNTHESIS, spent_by
from cdo.planning.plan import MATERIAL, Change, Plan
from cdo.planning.role_choice import SPECIAL_ROLES
from cdo.planning.settings import Settings
from cdo.planning.turn_plan import unknown
from cdo.session import artifact as artifacts
from cdo.session.given_files import recorded_files
from cdo.session.reader import SessionReader, as_read, checked_in
from cdo.session.records import group_files

_OF_TURN = re.compile(r"t([0-9]{1,6})-([a-z0-9-]+)")
_FILE = re.compile(r"t([0-9]{1,6})-(?:[a-z0-9-]+\.md|plan\.yaml)")
_FURTHER = re.compile(r"00-context-t([0-9]{1,6})(?:\.md)?")
_SKILL = re.compile(r"skills/[a-z0-9][a-z0-9-]*\.md")
GIVEN = ("00-input.md", "00-context.md")
SHOWN = 80  # characters shown of a text given by the person


class Shared(Struct, frozen=True):
    """The part that a fork shares with its source up to `turn`: its files, and the usage of their calls.

    `stale` are the artifacts made before an edit of files they read, with the names of these files.
    """

    source: str
    turn: int
    files: Mapping[str, bytes]
    spent: TotalUsage
    stale: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """A one-line description for the person."""
        if not self.turn:
            return f"shares the question and its context with {self.source}; no turn"
        turns = "turn 1" if self.turn == 1 else f"turns 1–{self.turn}"
        cost = "cost unknown" if self.spent.known_cost is None else money(self.spent.known_cost)
        took = f"{cost}, {pluralise(self.spent.calls, 'call')}"
        if self.stale:
            again = f"asked again is {next(iter(self.stale))}, which an edit made stale, and what follows from it"
            return f"shares {turns} with {self.source} ({took}); {again}"
        return f"shares {turns} with {self.source} ({took}): not asked, not paid again"

    def weigh(self) -> None:
        """Raise `UsageError` if a shared file is stale, because a person edited a file that it was made from."""
        if not self.stale:
            return
        edited = dict.fromkeys(f"{name}.md" for names in self.stale.values() for name in names)
        stale = next((name for name in self.stale if name.endswith(f"-{SYNTHESIS}")), next(iter(self.stale)))
        last = min(int(name[1 : name.index("-")]) for name in self.stale) - 1
        raise UsageError(
            f"{', '.join(edited)} changed since {stale}.md was made from it.",
            f"`cdo resume {self.source}` takes the edit into account first; or fork after turn {last}: --turn {last}."
            " With --yes the models are asked again for the stale files.",
        )


def base(archive: SessionReader, wanted: int | None) -> int:
    """Return the last turn that a fork shares: `wanted`, else the last complete turn.

    Raises `UsageError` if that turn is not complete.
    """
    files = set(archive.files())
    last = 0
    while f"t{last + 1}-{SYNTHESIS}.md" in files:
        last += 1
    if wanted is None or 0 <= wanted <= last:
        return last if wanted is None else wanted
    held = f"The last complete one is turn {last}." if last else "It has no complete turn: `--turn 0` begins anew."
    raise UsageError(f"{archive.name} has not held turn {wanted} completely.", held)


def sat(archive: SessionReader) -> tuple[str, ...]:
    """Return the names of all voices of a session."""
    found = (_OF_TURN.fullmatch(file.removesuffix(".md")) for file in archive.files() if file.endswith(".md"))
    return tuple(dict.fromkeys(match[2] for match in found if match and match[2] != SYNTHESIS))


def changed(plan: Plan, change: Change, program: str, voices: Sequence[str] = ()) -> tuple[Plan, list[str]]:
    """Return the plan of a fork whose first own turn is that of `change`, and notes for the person.

    `program` is the program of its mode ("" for plain deliberation); `voices` are the voices of the source. The
    source's own change for that turn is merged, with `change` taking precedence; its changes for later turns are left
    out. Raises `UsageError` for changes that the mode does not allow, and for unknown names.
    """
    _check(plan, change, program)
    _check_names(change, [*voices, *plan.roles, *plan.known_roles, *SPECIAL_ROLES])
    if old := plan.change(change.turn):
        said = differing(change)
        change = fitted(Change, {**to_builtins(old), **said})
    later = [item.turn for item in plan.changes if item.turn > change.turn]
    notes = [f"what its source changed with turn {turn} is left out" for turn in later]
    kept = (*(item for item in plan.changes if item.turn < change.turn), change)
    return replace(plan, changes=kept), notes


def of_vendors(plan: Plan, vendors: Mapping[str, str]) -> Plan:
    """Return the plan of a fork with the vendors of the models that its newest change names."""
    *earlier, newest = plan.changes
    known = replace(newest, vendors=dict(vendors))
    return replace(plan, changes=(*earlier, known))


def _check(plan: Plan, change: Change, program: str) -> None:
    """Raise `UsageError` for changes that the program of a plan does not allow."""
    if program == "phases":
        if change.turn > plan.turns[1]:
            raise UsageError(
                f"`{plan.mode}` has {plan.turns[1]} phases of one turn each, and all were held.",
                "Fork it after an earlier one with --turn.",
            )
        if change.turns:
            raise UsageError(f"`{plan.mode}` has {plan.turns[1]} phases of one turn each.", "Leave --turns out.")
    if program == "parliament":
        if change.roles or change.without:
            raise UsageError(
                "Nobody joins or leaves a parliament that sits.", "Give it another --focus or a --note instead."
            )
        if change.models:
            raise UsageError(
                "A seat of a parliament keeps its model, and votes are counted by vendor.",
                "Fork it with --no-run, then `cdo resume NAME -m MODEL` has others answer for it.",
            )
    if change.turns and change.turns[1] < change.turn:
        raise UsageError(
            f"The fork begins with turn {change.turn}, so it has at least {change.turn} turns.", "Raise --turns."
        )


def _check_names(change: Change, known: Sequence[str]) -> None:
    """Raise `UsageError` for roles that are unknown and have no charge, and for unknown voices."""
    there = tuple(dict.fromkeys(known))
    for role, charge in change.roles:
        if role not in there and not charge:
            hint = 'A role of your own needs a charge: --role NAME="what it is to do".'
            raise UsageError(unknown("role", role, there), hint)
    asked = [role for role, _ in change.roles]
    for name in change.without:
        if name in asked:
            raise UsageError(f"{name} cannot be both seated and left out.", "Give --role or --without.")
        if name not in there:
            raise UsageError(unknown("voice", name, there), "`cdo show` lists who sat in a session.")


def role(text: str) -> tuple[str, str]:
    """Parse `NAME` or `NAME=CHARGE` into (name, charge); raise `UsageError`."""
    name, _, charge = text.partition("=")
    name = name.strip().lower()
    if problem := role_problem(name):
        raise UsageError(f"{problem}.", "Give --role as NAME or NAME=CHARGE.")
    return name, charge.strip()


def told(change: Change) -> str:
    """Describe a change in one line for the person."""
    return f"turn {change.turn}: {'; '.join(_parts(change)) or 'held with nothing changed'}"


def caps(settings: Settings, given: Collection[str], source: str) -> tuple[str, ...]:
    """Return one line about the caps that a fork inherits from `source`, except those in `given`; () if none."""
    shown = {
        "budget": money(settings.budget),
        "max_calls": pluralise(settings.max_calls or 0, "call"),
        "max_tokens": f"{settings.max_tokens or 0:,} tokens",
        "timeout": f"{settings.timeout or 0:g} s",
    }
    parts = [text for key, text in shown.items() if getattr(settings, key) and key not in given]
    return (f"at most {', '.join(parts)}, as {source} was begun with",) if parts else ()


def _parts(change: Change) -> Iterator[str]:
    if change.focus:
        yield f"focus “{one_line(change.focus, SHOWN)}”"
    for name, charge in change.roles:
        yield f"with {name}" + (f" (“{one_line(charge, SHOWN)}”)" if charge else "")
    if change.without:
        yield f"without {', '.join(change.without)}"
    if change.models:
        yield f"asks {one_line(', '.join(dict.fromkeys(change.models)))} from then on"
    if change.note:
        yield f"your note “{one_line(change.note, SHOWN)}”"
    if change.turns:
        yield f"at most {pluralise(change.turns[1], 'turn')}"


# -- the past --------------------------------------------------------------------------------------


def shared(archive: SessionReader, turn: int) -> Shared:
    """Return the shared part of a session up to `turn`; raise `SessionError` if the session is damaged."""
    names = [
        file
        for file in archive.files()
        if file in GIVEN or _SKILL.fullmatch(file) or _until(_FILE, file, turn) or _until(_FURTHER, file, turn)
    ]
    files = {name: data for name in names if (data := archive.data(name)) is not None}
    for name, text in recorded_files(archive.records()).items():
        if name in GIVEN and not files.get(name, b"").strip():
            files[name] = text.encode()
    if not files.get(GIVEN[0], b"").strip():
        raise SessionError(f"{archive.place} has no {GIVEN[0]}: there is no question to go on with.", "Restore it.")
    records = _records(archive, files, turn)
    spent = sum(spent_by(records)[1].values(), TotalUsage())
    if records:
        files |= {f"calls/{name}": data for name, data in group_files(1, records)}
    return Shared(archive.name, turn, files, spent, _stale(archive, turn, records))


def material(archive: SessionReader, plan: Plan) -> dict[str, bytes]:
    """Return the files that a session brings for its voices to cite; {} if its plan reads a repository or nothing."""
    names = (file for file in archive.files() if plan.root == MATERIAL and file.startswith(f"{MATERIAL}/"))
    return {name: data for name in names if (data := archive.data(name)) is not None}


def _stale(archive: SessionReader, turn: int, records: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Return the artifacts up to `turn` whose inputs have changed since, in order, with the names of these inputs."""
    checked = checked_in(records)
    stems = [
        file.removesuffix(".md") for file in archive.files() if _until(_FILE, file, turn) and file.endswith(".md")
    ]
    found = {}
    for stem in sorted(stems, key=lambda stem: (int(stem[1 : stem.index("-")]), stem.endswith(SYNTHESIS), stem)):
        artifact = archive.artifact(stem)
        then = artifact.own.get("inputs") if artifact and not artifact.edited else None
        if isinstance(then, Mapping):
            changed = [name for name in then if _identity(archive, name, checked) not in ("", then[name])]
            found[stem] = tuple(changed)
    return {stem: names for stem, names in found.items() if names}


def _identity(archive: SessionReader, name: str, checked: Mapping[str, Sequence[CitationCheck]]) -> str:
    """Return the input hash that a call would record for this file now; "" if the file does not exist.

    A missing artifact is not stale: it is restored from the record.
    """
    if name.startswith(("00-", "skills/")):
        text = archive.text(f"{name}.md")
        return "" if text is None else artifacts.digest(text)[:16]
    artifact = archive.artifact(name) if _OF_TURN.fullmatch(name) else None
    if artifact is None:
        return ""
    return as_read(artifact, checked)[1]


def _until(pattern: re.Pattern[str], name: str, turn: int) -> bool:
    match = pattern.fullmatch(name)
    return match is not None and 1 <= int(match[1]) <= turn


def _records(archive: SessionReader, files: Mapping[str, bytes], turn: int) -> list[dict[str, Any]]:
    """Return the records of the shared turns, in order; exchanges get their source session as `from`."""
    every = archive.records()
    exchanges = [record for record in every if record["kind"] == "exchange" and _of_the_past(record, turn)]
    texts = {message.get("shared") for record in exchanges for message in record["request"]["messages"]}
    looked_up = any(record["kind"] in ("checked", "quoted") for record in every)
    shas = _shas(archive, files, exchanges) if looked_up else set()
    needed = {"text": ("sha256", texts), "checked": ("sha", shas), "quoted": ("sha", shas)}
    taken = []
    for record in every:
        key, those = needed.get(record["kind"], ("", ()))
        if record.get(key) in those:
            taken.append(record)
        elif _of_the_past(record, turn):
            taken.append(_signed(record, archive.name))
    return taken


def _shas(archive: SessionReader, files: Mapping[str, bytes], exchanges: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the hashes of the shared replies, both as in their current files and as recorded."""
    stems = [stem for file in files if _OF_TURN.fullmatch(stem := file.removesuffix(".md"))]
    found = {artifact.sha for stem in stems if (artifact := archive.artifact(stem))}
    texts = (str(record["response"]["text"]) for record in exchanges if "response" in record)
    return found | {artifacts.from_reply(text, {}).sha for text in texts}


def _of_the_past(record: Mapping[str, Any], turn: int) -> bool:
    """True if a record belongs to a call, a plan, a message or an answer of the turns up to `turn`.

    The person's answers of the last turn itself are left out, so that they can be given anew.
    """
    match record["kind"]:
        case "exchange" | "missing" | "failed" | "tools":
            return _until(_OF_TURN, str(record["call"]), turn)
        case "proposed" | "reviewed":
            return _until(_FILE, str(record["file"]), turn)
        case "surveyed":
            return _until(_FURTHER, str(record["name"]), turn)
        case "collected" | "check-run":
            return _until(_OF_TURN, str(record["name"]), turn)
        case "answer":
            return _until(_OF_TURN, str(record["name"]), turn - 1)
    return False


def _signed(record: dict[str, Any], source: str) -> dict[str, Any]:
    """Return a record as the fork keeps it.

    The thread of an agent's conversation is removed: the source may have continued it, so the fork starts a new one.
    """
    if record["kind"] != "exchange":
        return record
    record = {**record, "from": record.get("from") or source}
    if "response" in record:
        record["response"] = {key: value for key, value in record["response"].items() if key != "thread"}
    return record
