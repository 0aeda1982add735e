"""Writes and parses the plan of the next turn, which a person may change. Pure.

`dump` writes a `Proposal` as short YAML with comments, `PlanFormat.parse` reads the text that the person edited.
Every error is a sentence with line and column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, cycle, islice
from typing import Annotated, Any, Literal, TypeAlias

import yaml
from msgspec import Meta, Struct, field, to_builtins

from cdo.content.schemas import Band, Count, Criteria, ascending
from cdo.core.exchange import Effort
from cdo.core.formatting import one_line
from cdo.core.schema import Line, Schema, SchemaError, differing, field_names, fitted, keys_at, misfits
from cdo.core.steps import InvalidReply
from cdo.formats import strict_yaml
from cdo.formats.fields import load
from cdo.formats.role_names import RoleName
from cdo.planning.short_forms import written_out

MAX_BYTES = 262_144
MOST = 256  # most voices of a turn
ALL = "all"  # the recipient of a message to every voice
Render: TypeAlias = Callable[[Mapping[str, Any]], str]
Place: TypeAlias = tuple[str | int, ...]

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SHORT = 12  # most names that an error lists


# -- the content of a plan --------------------------------------------------------------------------


class PlannedSeat(Schema, frozen=True, kw_only=True):
    """One voice: its role, its further charge, its skills, its model ("" for the next model in turn).

    `effort` is how long the model thinks, None for as long as preset and role say.
    """

    role: RoleName
    charge: Annotated[str, Meta(max_length=2000)] = ""
    skills: Annotated[tuple[Line, ...], Meta(max_length=16)] = ()
    model: Annotated[str, Meta(max_length=300)] = ""
    effort: Effort | None = None


class PlanMessage(Schema, frozen=True, kw_only=True):
    """A person's message to one voice of the turn (by its name), or to `all`."""

    to: RoleName
    text: Annotated[str, Meta(min_length=1, max_length=4000)]


class Proposal(Schema, frozen=True, kw_only=True):
    """The proposed next turn. `turns` is [n, cap]: after turn n, each further turn must be earned."""

    turn: Count
    voices: Annotated[tuple[PlannedSeat, ...], Meta(min_length=1, max_length=MOST)]
    focus: Annotated[str, Meta(max_length=2000)] = ""
    turns: Annotated[Band, Meta(extra={"problem": lambda _: "must be two numbers, such as [3, 5]"})]
    criteria: Criteria
    note: Annotated[str, Meta(max_length=4000)] = ""
    messages: Annotated[tuple[PlanMessage, ...], Meta(max_length=64)] = ()
    decision: Literal["go", "done"] = "go"

    def require_sound(self) -> None:
        ascending(turns=self.turns)

    @property
    def seats(self) -> tuple[tuple[str, str, int], ...]:
        """Each voice's (file name, role, number among the seats of that role, from 1), in order."""
        chosen: dict[str, tuple[str, str, int]] = {}
        for index, voice in enumerate(self.voices):
            seat = sum(before.role == voice.role for before in self.voices[:index]) + 1
            name, tried = _named(voice.role, seat), seat
            while name in chosen:  # another role may be called "critic-2"
                tried += 1
                name = _named(voice.role, tried)
            chosen[name] = (name, voice.role, seat)
        return tuple(chosen.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The voices' names, in order."""
        return tuple(name for name, _, _ in self.seats)


def _named(role: str, seat: int) -> str:
    return role if seat == 1 else f"{role[: 31 - len(str(seat))]}-{seat}"


class _PlanFile(Proposal, frozen=True, kw_only=True):
    """The keys of a plan's file: those of a proposal, and two that change its voices."""

    voices: Annotated[tuple[PlannedSeat, ...], Meta(max_length=MOST)] = ()
    combo: Annotated[str, Meta(max_length=1000)] = ""
    width: Count | None = None


class Combo(Schema, frozen=True, kw_only=True):
    """Roles that work well together, and what they are for."""

    about: str
    roles: Annotated[tuple[RoleName, ...], Meta(min_length=1, max_length=MOST)]


class Combos(Schema, frozen=True, kw_only=True):
    """`templates/combos.yaml`: power combos by name."""

    purpose: str
    load_when: str
    combos: dict[str, Combo]


# -- the file --------------------------------------------------------------------------------------


class PlanProblems(InvalidReply):
    """What is wrong with the keys of a plan: `found` has pairs of the place of a key and a sentence."""

    def __init__(self, found: Sequence[tuple[Place, str]]) -> None:
        super().__init__([problem for _, problem in found])
        self.found = tuple(found)


class PlanFormat(Struct, frozen=True):
    """The format of the plan of a turn, for which `proposed` was put before the person.

    What the file leaves out stays as proposed. `width` is the range of voices a turn (None: any). `known_roles` are
    the roles with a method. Further seats get the roles of `order` first, which are those of the preset. `skills` and
    `models` are the available ones. Values of the proposal itself are always allowed.
    """

    proposed: Proposal
    width: tuple[int, int] | None = None
    known_roles: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
    combos: Mapping[str, Combo] = field(default_factory=dict)
    models: tuple[str, ...] = ()
    order: tuple[str, ...] = ()

    @property
    def turn(self) -> int:
        return self.proposed.turn

    @property
    def band(self) -> tuple[int, int]:
        """Fewest and most voices that the plan may have."""
        low, high = self.width or (1, MOST)
        return min(low, len(self.proposed.voices)), max(high, len(self.proposed.voices))

    def filled(self, voices: Sequence[PlannedSeat], count: int) -> tuple[PlannedSeat, ...]:
        """Return `count` voices: cut from the end, or filled up with the next unused roles, then all roles again."""
        taken = list(dict.fromkeys(voice.role for voice in voices))
        rest = [role for role in dict.fromkeys((*self.order, *self.known_roles)) if role not in taken]
        more = chain(rest, cycle([*taken, *rest]))
        return (*voices[:count], *(PlannedSeat(role=role) for role in islice(more, max(0, count - len(voices)))))

    def parse(self, text: str) -> Proposal:
        """Parse the text of a plan's file; raise `InvalidReply` with line and column of each problem."""
        text = text.removeprefix("\ufeff")
        data = load(text, 0, "The plan", MAX_BYTES)
        if not isinstance(data, dict) or not data:
            what = "is empty" if not data else "has no keys"
            how = "`decision: go` alone takes it as proposed, `decision: done` ends the run."
            raise InvalidReply([f"line 1, column 1: The plan {what}. {how}"])
        try:
            return self.built(data)
        except PlanProblems as error:
            raise InvalidReply(_located(text, error.found)) from None

    def built(self, data: dict[str, Any]) -> Proposal:
        """Return the plan that the keys of a file make; raise `PlanProblems`."""
        base = to_builtins(self.proposed)
        if isinstance(given := data.get("criteria"), dict):
            data = {**data, "criteria": {**base["criteria"], **given}}
        whole = {**base, **written_out(data)}
        try:
            file = fitted(_PlanFile, whole)
        except SchemaError:
            raise PlanProblems(_findings(_PlanFile, whole)) from None
        cause = "width" if file.width else "combo" if file.combo else "voices"
        try:
            voices = self.combined(file.combo, file.voices) if file.combo else file.voices
        except InvalidReply as error:
            raise PlanProblems([(("combo",), problem) for problem in error.problems]) from None
        voices = self.filled(voices, file.width) if file.width else voices
        if not voices:
            raise PlanProblems([(("voices",), "`voices`: there must be at least one.")])
        fields = {name: getattr(file, name) for name in field_names(Proposal)}
        plan = Proposal(**{**fields, "voices": voices})
        if found := list(self.objections(plan)):
            moved = [((cause,) if place == ("voices",) else place, problem) for place, problem in found[:8]]
            raise PlanProblems(moved)
        return plan

    def combined(self, typed: str, voices: Sequence[PlannedSeat]) -> tuple[PlannedSeat, ...]:
        """Return the voices of a combo, named or typed as roles with + between; raise `InvalidReply`.

        A voice whose role is already seated stays as it is. If there are too few voices, further roles fill up the
        seats.
        """
        sitting = {voice.role: voice for voice in reversed(voices)}
        roles: dict[str, None] = {}
        for part in (part.strip().lower() for part in typed.split("+")):
            if part in self.combos:
                roles |= dict.fromkeys(self.combos[part].roles)
            elif part in self.known_roles or part in sitting:
                roles[part] = None
            else:
                known = [*self.combos, *(self.known_roles if "+" in typed else ())]
                raise InvalidReply([unknown("combo or role" if "+" in typed else "combo", part, known)])
        if len(roles) > MOST:
            raise InvalidReply([f"These are {len(roles)} roles; a turn has at most {MOST} voices."])
        chosen = [sitting.get(role) or PlannedSeat(role=role) for role in roles]
        return self.filled(chosen, max(len(chosen), self.band[0]))

    def objections(self, plan: Proposal) -> Iterator[tuple[Place, str]]:
        """Yield the problems of a plan that is well formed, as (place in the file, sentence)."""
        (low, high), names = self.band, plan.names
        if not low <= len(plan.voices) <= high:
            yield ("voices",), f"`voices`: {len(names)} of them, where {low} to {high} can sit."
        if plan.turn != self.turn:
            yield ("turn",), f"`turn`: this is the plan of turn {self.turn}."
        if plan.turns[1] < plan.turn:
            yield ("turns",), f"`turns`: at most {plan.turns[1]}, and this is turn {plan.turn}."
        if plan.decision == "done" and plan.turn == 1:
            yield ("decision",), "`decision`: before the first turn there is nothing to write a result from."
        seated = self.proposed.voices
        skills = {*self.skills, *(skill for voice in seated for skill in voice.skills)}
        models = {*self.models, *(voice.model for voice in seated), ""}
        for index, voice in enumerate(plan.voices):
            for number_, skill in enumerate(voice.skills):
                if skill not in skills:
                    yield ("voices", index, "skills", number_), unknown("skill", skill, self.skills)
            if voice.model not in models:
                yield ("voices", index, "model"), unknown("model", voice.model, self.models)
        heard = {*names, ALL, *(message.to for message in self.proposed.messages)}
        for index, message in enumerate(plan.messages):
            if message.to not in heard:
                yield ("messages", index, "to"), unknown("voice", message.to, [*names, ALL])

    def remarks(self, plan: Proposal) -> list[str]:
        """Return remarks on a valid plan: roles that have no method of their own."""
        found = []
        for role in dict.fromkeys(voice.role for voice in plan.voices):
            if role not in self._roles:
                near = self.near(role)
                hint = f" Did you mean {near}?" if near else ""
                found.append(f"{role} is a new role: its name and its charge are all it goes by.{hint}")
        return found

    def mistyped(self, plan: Proposal) -> dict[str, str]:
        """Return the roles of a plan that are probably mistyped, each with the role that was probably meant."""
        return {voice.role: near for voice in plan.voices if (near := self.near(voice.role))}

    def question(self, plan: Proposal) -> str:
        """Return a question about a role that is probably mistyped; one with a charge is taken for a new role."""
        for voice in plan.voices:
            if not voice.charge and (near := self.near(voice.role)):
                return f"There is no role called `{voice.role}`. Did you mean {near}? A new role needs a charge."
        return ""

    def near(self, role: str) -> str:
        """Return the known role whose name is nearly that of an unknown one, else ""."""
        found = [] if role in self._roles else _near(role, self.known_roles)
        return found[0] if found else ""

    @property
    def _roles(self) -> tuple[str, ...]:
        return (*self.known_roles, *(voice.role for voice in self.proposed.voices))


def proposal(text: str, turn: int) -> Proposal:
    """Return the plan of `turn` in a text that `dump` wrote; raise `InvalidReply` if a key is missing or wrong."""
    data = load(text, 0, "The plan", MAX_BYTES)
    known = field_names(Proposal)
    keys = {key: value for key, value in data.items() if key in known} if isinstance(data, dict) else {}
    return as_proposal({"turn": turn, **keys})


def as_proposal(data: Mapping[str, Any]) -> Proposal:
    """Return the plan of a turn from its keys; raise `InvalidReply` with a sentence for each problem, at most 8."""
    whole = written_out(data)
    try:
        return fitted(Proposal, whole)
    except SchemaError:
        raise InvalidReply([f"The plan: {problem}" for _, problem in _findings(Proposal, whole)]) from None


def dump(plan: Proposal, format: PlanFormat, render: Render) -> str:
    """Return a plan as the text of its file; `render` fills the template `templates/turn-plan` with values."""
    low, high = format.band
    data = to_builtins(plan)
    data["voices"] = [to_builtins(differing(voice)) for voice in plan.voices]
    chunks = {key: strict_yaml.dump({key: data[key]}).rstrip("\n") for key in data if key not in ("turn", "turns")}
    names = {"known_roles": format.known_roles, "skills": format.skills, "models": format.models}
    values = {
        **chunks,
        **{key: [one_line(name, 100) for name in names[key]] for key in names},
        "combos": [(one_line(name, 60), combo.roles) for name, combo in format.combos.items()],
        "limits": strict_yaml.dump({"turns": data["turns"]}).rstrip("\n"),
        "turn": plan.turn,
        "low": low,
        "high": high,
    }
    return f"{render(values).rstrip()}\n"


# -- errors ----------------------------------------------------------------------------------------


def _findings(kind: type[Proposal], whole: Mapping[str, Any]) -> list[tuple[Place, str]]:
    """Return the place and the sentence of each problem of a plan's keys, at most 8."""
    errors = list(islice(misfits(kind, whole), 8))
    turns = whole.get("turns")
    # The class compares the two numbers only where all else fits.
    if isinstance(turns, list) and [*map(type, turns)] == [int, int] and turns[0] > turns[1] and len(errors) > 1:
        errors.insert(0, SchemaError(("turns",), "the first number must not be above the second"))
    return [_finding(error) for error in errors[:8]]


def _finding(error: SchemaError) -> tuple[Place, str]:
    """Return the place in a plan's file and the sentence of an error."""
    place = error.place
    key = strict_yaml.shown(str(next((part for part in reversed(place) if isinstance(part, str)), "The plan")))
    if error.kind == "unknown":
        keys = keys_at(_PlanFile, place[:-1])
        near = _near(key, keys)
        hint = f" Did you mean `{near[0]}`?" if near else ""
        return (*place, "?"), f"`{key}` is not a key; the keys are {', '.join(keys)}.{hint}"
    if error.kind == "missing":
        return place, f"`{key}` is missing."
    return place, f"`{key}`: {error.why}."


def _located(text: str, found: Any) -> list[str]:
    """Return the sentences of (place, sentence) pairs by line and column, which each begins with."""
    marks: dict[Place, yaml.Mark] = {}
    if root := yaml.compose(text, Loader=_Loader):
        _mark(root, (), marks)
    placed = []
    for place, problem in found:
        near = next((up for size in range(len(place), -1, -1) if (up := place[:size]) in marks), ())
        placed.append((marks[near].line + 1, marks[near].column + 1, problem))
    return [f"line {line}, column {column}: {problem}" for line, column, problem in sorted(placed)]


def _mark(node: yaml.Node, place: Place, marks: dict[Place, yaml.Mark]) -> None:
    """Record where each value starts, and under (…, key, "?") where its key starts."""
    marks[place] = node.start_mark
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            _mark(value, (*place, key.value), marks)
            marks[(*place, key.value, "?")] = key.start_mark
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _mark(value, (*place, index), marks)


def _near(name: str, known: Sequence[str]) -> list[str]:
    import difflib  # lazily: needed only to explain an error

    return difflib.get_close_matches(name[:80].lower(), [one_line(item, 100) for item in known], n=2)


def unknown(what: str, name: str, known: Sequence[str]) -> str:
    """Return the error for a name of the kind `what` that does not exist; suggest one of the `known` names."""
    near = _near(name, known)
    hint = f"Did you mean {' or '.join(near)}?" if near else ""
    if not hint:
        listed = ", ".join(one_line(item, 60) for item in known[:_SHORT]) + (", …" if len(known) > _SHORT else "")
        hint = f"There are: {listed}." if known else "There is none."
    return f"There is no {what} called `{strict_yaml.shown(name)}`. {hint}"
