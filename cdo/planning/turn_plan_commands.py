"""Applies the commands at the prompt with which a person changes the plan of the next turn. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from msgspec import to_builtins

from cdo.content.schemas import Criteria
from cdo.core.schema import field_names
from cdo.core.steps import InvalidReply
from cdo.formats.role_names import role_problem
from cdo.planning.turn_plan import MOST, PlanFormat, Proposal, as_proposal, unknown

_Changes: TypeAlias = dict[str, Any]
# By command: its arguments, and what it does.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "go": ("", "hold this turn"),
    "done": ("", "no further turn: write the result from what there is"),
    "combo": ("NAME", "seat a power combo, or roles such as architect + critic"),
    "add": ("ROLE [CHARGE]", "seat one more voice"),
    "remove": ("VOICE", "take a voice out"),
    "rename": ("VOICE ROLE", "give a voice another role; its charge stays"),
    "charge": ("VOICE [TEXT]", "set the task of a voice"),
    "skills": ("VOICE [A,B]", "give a voice these skills, or none"),
    "model": ("VOICE [MODEL]", "ask a voice of this model, or of the next in turn"),
    "width": ("N", "fill up or cut to so many voices"),
    "turns": ("N|A-B", "most turns; A-B: after turn A only if there is a reason to go on"),
    "set": ("KEY NUMBER", "change a criterion, such as exit_confidence 0.9"),
    "focus": ("[TEXT]", "set the question of the turn"),
    "note": ("[TEXT]", "tell every voice something"),
}


def applied(command: str, plan: Proposal, format: PlanFormat) -> Proposal:
    """Return the plan after a command of `COMMANDS`; raise `InvalidReply` if the command is wrong."""
    verb, *rest = command.strip().split(None, 1) or [""]
    verb, rest_ = verb.lower(), rest[0] if rest else ""
    if verb not in COMMANDS:
        raise InvalidReply([unknown("command", verb, list(COMMANDS))])
    takes = COMMANDS[verb][0]
    needed = len([word for word in takes.split() if not word.startswith("[")])
    if len(rest_.split()) < needed or (rest_ and not takes):
        raise InvalidReply([f"`{verb}` takes {takes or 'nothing'}."])
    changes = _changes(verb, rest_, plan, format)
    after = as_proposal({**to_builtins(plan), **to_builtins(changes)})
    if problems := [problem for _, problem in format.objections(after)]:
        raise InvalidReply(problems)
    return after


def corrected(command: str, format: PlanFormat) -> tuple[str, str, str] | None:
    """Return a role in a command that is probably mistyped, the role that is probably meant, and the command with it.

    Return None if the command names no role, or a known one, or one that resembles none.
    """
    words = command.split(None, 2)
    verb, place = (words[0].lower(), {"add": 1, "rename": 2}.get(words[0].lower(), 0)) if words else ("", 0)
    if not 0 < place < len(words):
        return None
    role = words[place].lower()
    near = format.near(role)
    return (role, near, " ".join([verb, *words[1:place], near, *words[place + 1 :]])) if near else None


def _changes(verb: str, rest: str, plan: Proposal, format: PlanFormat) -> _Changes:
    match verb:
        case "go" | "done":
            return {"decision": verb}
        case "focus" | "note":
            return {verb: rest}
        case "combo":
            return {"voices": format.combined(rest, plan.voices)}
        case "width":
            return {"voices": format.filled(plan.voices, _count(rest))}
        case "turns":
            return {"turns": rest}
        case "set":
            return {"criteria": _criterion(rest, plan)}
        case "add":
            role, *charge = rest.split(None, 1)
            return {"voices": (*plan.voices, {"role": _role(role), "charge": "".join(charge)})}
    return _reseated(verb, rest, plan)


def _reseated(verb: str, rest: str, plan: Proposal) -> _Changes:
    """Return the changes by a command that begins with a voice's name."""
    name, *words = rest.split(None, 1)
    value = words[0] if words else ""
    if name.lower() not in plan.names:
        raise InvalidReply([unknown("voice", name, plan.names)])
    index = plan.names.index(name.lower())
    seats: list[Any] = [to_builtins(voice) for voice in plan.voices]
    if verb == "remove":
        if value or len(seats) == 1:
            raise InvalidReply(["One voice has to stay." if not value else "`remove` takes VOICE."])
        return {"voices": [*seats[:index], *seats[index + 1 :]]}
    key = "role" if verb == "rename" else verb
    seats[index][key] = _role(value) if key == "role" else value
    if verb != "rename":
        return {"voices": seats}
    renamed = as_proposal({**to_builtins(plan), "voices": seats})
    now = dict(zip(plan.names, renamed.names, strict=True))
    return {"voices": seats, "messages": [{"to": now.get(m.to, m.to), "text": m.text} for m in plan.messages]}


def _role(name: str) -> str:
    if problem := role_problem(name.lower()):
        raise InvalidReply([f"{problem}."])
    return name.lower()


def _count(text: str) -> int:
    if not re.fullmatch("[0-9]{1,3}", text) or not 1 <= int(text) <= MOST:
        raise InvalidReply([f"`width` takes a number from 1 to {MOST}."])
    return int(text)


def _criterion(rest: str, plan: Proposal) -> _Changes:
    key, _, value = (part.strip() for part in rest.partition(" "))
    if key not in field_names(Criteria):
        raise InvalidReply([unknown("criterion", key, field_names(Criteria))])
    if not re.fullmatch(r"[0-9]{0,6}\.?[0-9]{1,9}", value):
        raise InvalidReply([f"`set {key}` takes a number."])
    return {**to_builtins(plan.criteria), key: float(value) if "." in value else int(value)}
