"""Describes the forms of a browser view, checks what was filled in, and reads the session that they are for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from cdo.cabal.reconstruction import ReconstructedMission, retrace
from cdo.core.errors import UsageError
from cdo.core.formatting import CONTROLS, one_line
from cdo.history import pending
from cdo.history.pending import PendingInput
from cdo.session.reader import SessionFolder
from cdo.session.records import locked

FieldType: TypeAlias = Literal["choice", "radio", "text", "long", "number", "checkbox"]
Problems: TypeAlias = Mapping[str, Sequence[str]]  # sentences by field; "" is the whole form

_CONTROL = re.compile(f"[{CONTROLS}\ud800-\udfff]")
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_WHOLE = re.compile(r"[0-9]{1,9}")


class FormField(Struct, frozen=True):
    """A field of a form: `value` is what stands in it now.

    `options` are pairs of a value and words, for the types choice and radio; `suggested` are values that a text may
    have. A text has at most `most` characters. A number is within `span`, and whole if `whole`. Fields of one `group`
    stand together under its name. `problems` are sentences on what was filled in.
    """

    name: str
    label: str
    type: FieldType = "text"
    value: str = ""
    hint: str = ""
    options: tuple[tuple[str, str], ...] = ()
    suggested: tuple[str, ...] = ()
    most: int = 300
    span: tuple[float, float] = (0, 0)
    whole: bool = True
    required: bool = False
    group: str = ""
    rows: int = 3
    problems: tuple[str, ...] = ()

    def read(self, given: str | None) -> tuple[str, str]:
        """Return what was filled in, and what is wrong with it ("" if nothing is)."""
        if given is None:  # a browser leaves out boxes and buttons that are not chosen
            given = "" if self.type in ("checkbox", "radio") else self.value
        text = given.replace("\r\n", "\n").replace("\r", "\n").strip()
        if text == self.value.strip() and text:
            return self.value, ""
        if not text:
            return "", f"{self.label}: this has to be filled in." if self.required else ""
        return text, self._problem(text)

    def _problem(self, text: str) -> str:
        match self.type:
            case "checkbox":
                return "" if text == "yes" else f"{self.label}: a box is checked or not."
            case "choice" | "radio":
                known = any(text == value for value, _ in self.options)
                return "" if known else f"{self.label}: there is no choice {one_line(text, 40)}."
            case "number":
                low, high = self.span
                fits = (_WHOLE if self.whole else _NUMBER).fullmatch(text) and low <= float(text) <= high
                kind = "a whole number" if self.whole else "a number"
                return "" if fits else f"{self.label}: this has to be {kind} from {low:g} to {high:g}."
        if len(text) > self.most:
            return f"{self.label}: these are {len(text):,} characters, and at most {self.most:,} are taken."
        if bad := _CONTROL.search(text):
            return f"{self.label}: the character U+{ord(bad[0]):04X} cannot be part of a text."
        return f"{self.label}: this has to be one line." if self.type == "text" and "\n" in text else ""


class FieldGroup(Struct, frozen=True):
    """Fields of a form that stand together under a name; "" for those at its top."""

    name: str
    fields: tuple[FormField, ...]

    @property
    def wrong(self) -> bool:
        """True if something that was filled in here cannot be taken."""
        return any(field.problems for field in self.fields)


class Form(Struct, frozen=True):
    """One thing that a person may change in a session now.

    `seen` identifies the state for which the form was made: what is filled in is taken for that state alone. A form
    without fields only explains why nothing can be changed. `reading` are files that the person should read before.
    """

    kind: str
    title: str
    explanation: str
    fields: tuple[FormField, ...]
    seen: str
    button: str = "Save"
    problems: tuple[str, ...] = ()
    reading: tuple[str, ...] = ()

    @property
    def wrong(self) -> bool:
        """True if something that was filled in cannot be taken."""
        return bool(self.problems) or any(field.problems for field in self.fields)

    @property
    def groups(self) -> list[FieldGroup]:
        """The fields in their order, in groups."""
        return [FieldGroup(name, tuple(fields)) for name, fields in groupby(self.fields, lambda field: field.group)]

    def filled(self, values: Mapping[str, str], problems: Problems) -> Form:
        """Return the form with what a person filled in, and with what is wrong with it."""
        fields = tuple(
            replace(field, value=_shown(field, values), problems=tuple(problems.get(field.name, ())))
            for field in self.fields
        )
        return replace(self, fields=fields, problems=tuple(problems.get("", ())))

    def read(self, values: Mapping[str, str]) -> dict[str, str]:
        """Return what was filled in, by field; raise `RefusedForm`."""
        known = {field.name: field for field in self.fields}
        problems: dict[str, list[str]] = {}
        if strange := next((name for name in values if name not in known), None):
            raise RefusedForm({"": [f"The form has no field {one_line(strange, 40)}."]})
        found = {}
        for name, field in known.items():
            found[name], problem = field.read(values.get(name))
            if problem:
                problems[name] = [problem]
        if problems:
            raise RefusedForm(problems)
        return found


def _shown(field: FormField, values: Mapping[str, str]) -> str:
    if field.type in ("checkbox", "radio"):
        return values.get(field.name, "")
    return values.get(field.name, field.value)


class RefusedForm(UsageError):
    """What was filled into a form cannot be taken; `problems` has sentences by field."""

    def __init__(self, problems: Problems) -> None:
        said: Iterable[str] = (problem for found in problems.values() for problem in found)
        super().__init__(" ".join(said), "Nothing was written.")
        self.problems = problems


class PersonSession:
    """A session as forms see it, read once for each request; raises `SessionError` where it is damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.archive = SessionFolder(path)
        self.frozen = self.archive.frozen()
        self.name = self.archive.name
        self.running = locked(path)

    @cached_property
    def mission(self) -> ReconstructedMission | None:
        """The mission as it stands, None in a deliberation."""
        return retrace(self.archive) if self.frozen.plan.crew else None

    @cached_property
    def asked(self) -> PendingInput | None:
        """What the session waits for, or None."""
        return pending.question_of(self.mission) if self.mission else pending.pending(self.archive)

    @cached_property
    def plan(self) -> PendingInput | None:
        """The plan of a turn that waits, or that was approved and that no process has taken up; None without one."""
        plan = None if self.frozen.plan.crew else pending.plan_of(self.archive)
        return None if plan and plan.approved and self.running else plan

    @property
    def ended(self) -> bool:
        """True if the session has its result."""
        return self.archive.data("FINAL.md") is not None

    @property
    def resume(self) -> str:
        """The command that goes on with the session."""
        return f"`cdo resume {self.name}`"
