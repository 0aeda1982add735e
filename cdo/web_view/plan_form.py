"""Offers the plan of the next turn as fields and as text, and writes the plan that a person made of it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, get_args

from msgspec import to_builtins

from cdo.app.waiting import plan_format, put_plan
from cdo.content.library import PACKAGED, Library
from cdo.content.schemas import Criteria
from cdo.core.exchange import Effort
from cdo.core.formatting import without_controls
from cdo.core.schema import field_names
from cdo.core.steps import InvalidReply
from cdo.history.pending import PendingInput
from cdo.planning import turn_plan
from cdo.planning.turn_plan import ALL, Place, PlanFormat, PlanProblems, Proposal
from cdo.session.artifact import digest
from cdo.web_view.form_fields import Form, FormField, PersonSession, RefusedForm

KIND = "plan"
_NEW = "voice-new"  # the prefix of the fields of a further voice
_MOST_TEXT = 60_000  # characters of a plan
_MOST_TURNS = 999
_VOICES, _LIMITS, _MESSAGE = "Number of voices", "Turns, and when the run ends", "Message to one voice"
_EFFORTS = (("", "as the preset and the role say"), *((effort, effort) for effort in get_args(Effort)))
_CRITERIA = {
    "exit_confidence": ("Confidence that ends the run", "from 0 to 1"),
    "quiet_turns": ("Quiet turns that end the run", "turns without an open tension or a new gap"),
    "agreement_flag": ("Agreement that seats a refuter", "from 0 to 1"),
    "confidence_drop": ("Drop of confidence that is a conflict", "from 0 to 1"),
    "severe": ("Severity of an objection that is a conflict", "from 1 to 10"),
}


def opened(session: PersonSession) -> Form | None:
    """Return the form of the plan that waits or was just approved, None without one; raise `SessionError`."""
    asked = session.plan
    if asked is None:
        return None
    now = _now(session, asked)
    seen = digest([asked.name, asked.proposed, asked.plan])
    title, text = f"Plan of turn {asked.turn}", _text_field(asked)
    both = f"{now}\n\nChange the fields, or the text of {asked.file} at the end, but not both."
    try:
        format = plan_format(session.archive, asked)
        fields = _fields(format.parse(asked.plan), format)
    except InvalidReply as invalid:
        problems = tuple(f"{asked.file} cannot be read: {problem}" for problem in invalid.problems)
        return Form(KIND, title, now, (text, _new_roles_field()), seen, "Save this plan", problems)
    return Form(KIND, title, both, (*fields, text), seen, "Go on with this plan")


def taken(session: PersonSession, form: Form, values: Mapping[str, str]) -> str:
    """Write the plan that was filled in; return what was done. Raises `RefusedForm` and `SessionError`."""
    asked = session.plan
    assert asked
    before = {field.name: field.value for field in form.fields}
    changed = {name for name, value in values.items() if value != before[name]} - {"text", "new-roles"}
    rewritten = values["text"] != before["text"]
    if changed and rewritten:
        raise RefusedForm({"": ["You changed both the fields and the text: undo one of them."]})
    try:
        format = plan_format(session.archive, asked)
        if rewritten:
            plan, text = format.parse(values["text"]), f"{values['text']}\n"
        else:
            plan, text = format.parse(asked.plan), asked.plan
        if changed:
            plan = _built(values, plan, format)
            render = partial(Library((("packaged", PACKAGED),)).render, "templates/turn-plan")
            text = turn_plan.dump(plan, format, render)
    except InvalidReply as invalid:
        raise RefusedForm({"text": list(invalid.problems)}) from None
    if not values["new-roles"]:
        _require_known(values, plan, format)
    put_plan(session.path, asked, text)
    return _told(session, asked, plan, sure=not format.mistyped(plan))


def _now(session: PersonSession, asked: PendingInput) -> str:
    """Return what saving the plan does now."""
    if session.running:
        return (
            "The process that runs this session waits with this plan at its terminal. Saving the plan approves it: "
            "that process goes on with it. If an editor is open there, the terminal decides."
        )
    if asked.approved:
        return f"You approved this plan: {session.resume} goes on with it. Until then you can still change it here."
    return f"No process runs this session. Saving the plan approves it: then {session.resume} goes on with it."


def _told(session: PersonSession, asked: PendingInput, plan: Proposal, *, sure: bool) -> str:
    what = "to end the run" if plan.decision == "done" else f"to hold turn {asked.turn}"
    if not session.running:
        then = f"Now {session.resume} goes on with it."
    elif sure:
        then = "The process that waits with it goes on."
    else:
        then = "The terminal that waits with it first asks about the new role."
    return f"{asked.file} is saved, {what}. {then}"


# -- fields ----------------------------------------------------------------------------------------


def _text_field(asked: PendingInput) -> FormField:
    return FormField(
        "text",
        asked.file,
        "long",
        without_controls(asked.plan).strip(),
        "Every key of the plan. A key that is left out stays as it was proposed.",
        most=_MOST_TEXT,
        required=True,
        group="The plan as text",
        rows=24,
    )


def _fields(plan: Proposal, format: PlanFormat) -> list[FormField]:
    """Return the fields of a plan."""
    go, done = (
        ("go", f"Hold turn {plan.turn} with this plan"),
        ("done", "End here: write the result from what there is"),
    )
    decisions = (go,) if plan.turn == 1 else (go, done)
    fields = [
        FormField("decision", "Decision", "radio", plan.decision, options=decisions, required=True),
        FormField("focus", "What this turn is to settle", "long", plan.focus, most=2000),
        FormField("note", "What every voice of this turn should know", "long", plan.note, most=4000),
    ]
    for number, ((name, _, _), seat) in enumerate(zip(plan.seats, plan.voices, strict=True), 1):
        given = (seat.role, seat.charge, ", ".join(seat.skills), seat.model, seat.effort or "")
        fields += _seat(f"voice-{number}", f"Voice {number}: {name}", format, given)
    fields += _seat(_NEW, "One more voice", format, ("", "", "", "", ""))
    return [*fields, *_numbers(plan, format), *_message(plan)]


def _seat(prefix: str, group: str, format: PlanFormat, given: tuple[str, str, str, str, str]) -> list[FormField]:
    """Return the fields of one voice: role, charge, skills, model, effort."""
    role, charge, skills, model, effort = given
    names = list(dict.fromkeys([*format.models, *filter(None, [model])]))
    models = (("", "the next model in turn"), *((name, name) for name in names))
    there = f" There are: {', '.join(format.skills[:40])}." if format.skills else ""
    empty = "A method, or a new name with a task of its own." if prefix == _NEW else "Empty: this voice has no seat."
    return [
        FormField(f"{prefix}-role", "Role", "text", role, empty, suggested=format.known_roles, most=32, group=group),
        FormField(f"{prefix}-charge", "Task beyond its method", "long", charge, most=2000, group=group, rows=2),
        FormField(f"{prefix}-skills", "Skills", "text", skills, f"Divided by commas.{there}", most=2000, group=group),
        FormField(f"{prefix}-model", "Model", "choice", model, options=models, group=group),
        FormField(f"{prefix}-effort", "How long the model thinks", "choice", effort, options=_EFFORTS, group=group),
    ]


def _numbers(plan: Proposal, format: PlanFormat) -> list[FormField]:
    """Return the fields for the number of voices, the turns and the criteria."""
    low, high = format.band
    named = [(name, f"{name}: {' + '.join(combo.roles)}") for name, combo in format.combos.items()]
    instead = "A power combo instead of these roles"
    count = f"Empty: as many as above. A number ({low} to {high}) fills up with further roles, or cuts from the end."
    fields = [
        FormField("combo", instead, "choice", options=(("", "as they are above"), *named), group=_VOICES),
        FormField("width", "As many voices", "number", hint=count, span=(low, high), group=_VOICES),
        _new_roles_field(),
    ]
    turns = (("turns-low", "Turn after which each further one must be earned"), ("turns-most", "Most turns"))
    for (name, label), number in zip(turns, plan.turns, strict=True):
        fields.append(_limit(name, label, number, "", (1, _MOST_TURNS)))
    for key, value in to_builtins(plan.criteria).items():
        label, hint = _CRITERIA[key]
        span = (1, 10) if key == "severe" else (1, _MOST_TURNS) if isinstance(value, int) else (0, 1)
        fields.append(_limit(_criterion(key), label, value, hint, span))
    return fields


def _new_roles_field() -> FormField:
    sure = "Without it, a role that resembles a known one is not saved, since it may be mistyped."
    return FormField("new-roles", "New roles are meant as they are written", "checkbox", hint=sure, group=_VOICES)


def _criterion(key: str) -> str:
    """Return the field of a criterion."""
    return f"criteria-{key.replace('_', '-')}"


def _limit(name: str, label: str, value: float, hint: str, span: tuple[float, float]) -> FormField:
    whole = isinstance(value, int)
    return FormField(name, label, "number", f"{value:g}", hint, span=span, whole=whole, required=True, group=_LIMITS)


def _message(plan: Proposal) -> list[FormField]:
    options = (("", "nobody"), (ALL, "each of them"), *((name, name) for name in plan.names))
    there = f"{len(plan.messages)} in the plan already: they stay." if plan.messages else ""
    return [
        FormField("message-to", "To", "choice", hint=there, options=options, group=_MESSAGE),
        FormField("message-text", "Message", "long", most=2000, group=_MESSAGE),
    ]


# -- what was filled in ----------------------------------------------------------------------------


def _built(values: Mapping[str, str], before: Proposal, format: PlanFormat) -> Proposal:
    """Return the plan that the fields make; raise `RefusedForm`."""
    seats = [f"voice-{number}" for number in range(1, len(before.voices) + 1)] + [_NEW]
    seats = [seat for seat in seats if values[f"{seat}-role"]]
    if values[f"{_NEW}-charge"] and _NEW not in seats:
        raise RefusedForm({f"{_NEW}-role": ["Role: a further voice needs one."]})
    messages = [to_builtins(message) for message in before.messages]
    if bool(values["message-to"]) != bool(values["message-text"]):
        raise RefusedForm({"message-to": ["Message: it needs both a voice and a text."]})
    if values["message-to"]:
        messages.append({"to": values["message-to"], "text": values["message-text"]})
    data: dict[str, Any] = {
        "voices": [_voice(values, seat) for seat in seats],
        "turns": [int(values["turns-low"]), int(values["turns-most"])],
        "criteria": {key: _number(values[_criterion(key)]) for key in field_names(Criteria)},
        "messages": messages,
        "width": int(values["width"]) if values["width"] else None,
        **{key: values[key] for key in ("decision", "focus", "note", "combo")},
    }
    try:
        return format.built(data)
    except PlanProblems as error:
        found: dict[str, list[str]] = {}
        for place, problem in error.found:
            found.setdefault(_field_at(place, seats), []).append(problem)
        raise RefusedForm(found) from None


def _voice(values: Mapping[str, str], seat: str) -> dict[str, Any]:
    keys = ("role", "charge", "skills", "model")
    return {**{key: values[f"{seat}-{key}"] for key in keys}, "effort": values[f"{seat}-effort"] or None}


def _number(text: str) -> int | float:
    return int(text) if text.isdecimal() else float(text)


def _field_at(place: Place, seats: list[str]) -> str:
    """Return the field that makes what is at a place of the plan; "" for none in particular."""
    match place:
        case ("voices", int(index), str(key), *_):
            return f"{seats[index]}-{key}"
        case ("voices", int(index), *_):
            return f"{seats[index]}-role"
        case ("voices", *_):
            return "width"
        case ("turns", *_):
            return "turns-most"
        case ("criteria", str(key), *_) if key in field_names(Criteria):
            return _criterion(key)
        case ("messages", *_):
            return "message-to"
        case ("decision" | "focus" | "note" | "combo" | "width" as key, *_):
            return str(key)
    return ""


def _require_known(values: Mapping[str, str], plan: Proposal, format: PlanFormat) -> None:
    """Raise `RefusedForm` if a role is probably mistyped."""
    if meant := format.mistyped(plan):
        typed = {value: name for name, value in values.items() if name.endswith("-role")}  # else it is in the text
        told = {role: f"There is no role {role}. Did you mean {near}?" for role, near in meant.items()}
        hint = "If it is a new role, check the box that says so."
        raise RefusedForm({typed.get(role, "text"): [f"{problem} {hint}"] for role, problem in told.items()})
