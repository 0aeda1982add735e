"""Tells which edits of a session are open to the person now, and takes them: what people may edit, and nothing else.

What is filled in ends up in the file that a person would change in an editor, with the same checks. `KINDS` has a
line for each kind of edit.
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from cdo.app.waiting import StateChanged
from cdo.core.errors import CdoError, UsageError
from cdo.core.formatting import one_line
from cdo.web_view import person_forms, plan_form
from cdo.web_view.form_fields import Form, PersonSession, RefusedForm

Opened: TypeAlias = Callable[[PersonSession], Form | None]
Taken: TypeAlias = Callable[[PersonSession, Form, Mapping[str, str]], str]

_ONE = threading.Lock()  # one edit at a time: requests are served in threads


class FormKind(Struct, frozen=True):
    """A kind of edit. `opened` makes its form, None if it is not open; `taken` writes it and says what was done."""

    opened: Opened
    taken: Taken


# In the order in which a page shows them: what the session waits for comes first.
KINDS: Mapping[str, FormKind] = {
    plan_form.KIND: FormKind(plan_form.opened, plan_form.taken),
    person_forms.VERDICT_KIND: FormKind(person_forms.verdict_opened, person_forms.verdict_taken),
    person_forms.ANSWER_KIND: FormKind(person_forms.answer_opened, person_forms.answer_taken),
    person_forms.SEAT_KIND: FormKind(person_forms.seat_opened, person_forms.seat_taken),
    person_forms.LETTER_KIND: FormKind(person_forms.letter_opened, person_forms.letter_taken),
    person_forms.WITHDRAWAL_KIND: FormKind(person_forms.withdrawal_opened, person_forms.withdrawal_taken),
}


def open_forms(folder: Path) -> list[Form]:
    """Return what a person may change in a session now; raise `SessionError` if it is damaged."""
    session = PersonSession(folder)
    return [form for kind in KINDS.values() if (form := kind.opened(session))]


def submit(folder: Path, kind: str, values: Mapping[str, str], seen: str) -> str:
    """Write what a person filled into the form `kind`; return what was done and what happens next.

    `seen` is that of the form. Raises `RefusedForm` for what cannot be taken, `StateChanged` if the person has not
    seen the present state, and other errors of `CdoError`.
    """
    if kind not in KINDS:
        raise UsageError(f"There is no form {one_line(kind, 40)}.", f"There are: {', '.join(KINDS)}.")
    with _ONE:
        session = PersonSession(folder)
        form = KINDS[kind].opened(session)
        if form is None:
            raise StateChanged("This is not open any more.", "Load the page again to see the present state.")
        if not hmac.compare_digest(form.seen.encode(), seen.encode("utf-8", "replace")):
            raise StateChanged(
                "This has changed since the page was made, so nothing was written.", "Look at it as it is now."
            )
        return KINDS[kind].taken(session, form, form.read(values))


def filled_forms(folder: Path, kind: str, values: Mapping[str, str], error: CdoError) -> list[Form]:
    """Return the open forms after an edit that was not taken: its form shows what was filled in, and the problems.

    The form is that of the present state, so that sending it again is an answer to that state.
    """
    problems = error.problems if isinstance(error, RefusedForm) else {"": [f"{error.message} {error.hint}".strip()]}
    found = open_forms(folder)
    return [form.filled(values, problems) if form.kind == kind else replace(form) for form in found]
