"""What is filled into a field is taken as it is meant, or refused with a sentence."""

from __future__ import annotations

import pytest

from cdo.web_view.form_fields import Form, FormField, RefusedForm

SHARE = FormField("n", "Share", "number", "0.8", span=(0, 1), whole=False)
TURNS = FormField("n", "Turns", "number", "3", span=(1, 9), required=True)
CHOICE = FormField("n", "Model", "choice", "a", options=(("", "any"), ("a", "a")))
LONG = FormField("n", "Note", "long", "as it was\x07", most=10)
LINE = FormField("n", "Role", "text", most=10)
BOX = FormField("n", "Sure", "checkbox", "yes")


@pytest.mark.parametrize(
    ("field", "given", "read", "said"),
    [
        (SHARE, "1", "1", ""),
        (SHARE, "1.01", "1.01", "from 0 to 1"),
        (SHARE, "1e0", "1e0", "has to be a number"),
        (SHARE, "nan", "nan", "has to be a number"),
        (SHARE, "٣", "٣", "has to be a number"),
        (TURNS, "2.5", "2.5", "a whole number from 1 to 9"),
        (TURNS, " ", "", "has to be filled in"),
        (TURNS, None, "3", ""),
        (CHOICE, "", "", ""),
        (CHOICE, "b\x1b[31m", "b\x1b[31m", "no choice b␛[31m"),
        (LONG, "as it was\x07", "as it was\x07", ""),
        (LONG, " a\r\nb\rc ", "a\nb\nc", ""),
        (LONG, "x\u202ey", "x\u202ey", "U+202E"),
        (LONG, "x\ud800y", "x\ud800y", "U+D800"),
        (LONG, "x" * 11, "x" * 11, "11 characters, and at most 10"),
        (LINE, "a\nb", "a\nb", "one line"),
        (BOX, None, "", ""),
        (BOX, "on", "on", "checked or not"),
    ],
)
def test_a_field_reads_what_a_browser_sends(field: FormField, given: str | None, read: str, said: str) -> None:
    text, problem = field.read(given)
    assert text == read and (said in problem if said else problem == "")


def test_a_form_keeps_what_was_filled_in_beside_what_is_wrong() -> None:
    form = Form("plan", "Plan", "", (FormField("a", "A", group="one"), FormField("b", "B", required=True)), "s")
    with pytest.raises(RefusedForm) as caught:
        form.read({"a": "x\ny", "b": ""})
    again = form.filled({"a": "x", "b": ""}, caught.value.problems)
    assert [(field.value, len(field.problems)) for field in again.fields] == [("x", 1), ("", 1)]
    assert again.wrong and [(group.name, group.wrong) for group in again.groups] == [("one", True), ("", True)]
    with pytest.raises(RefusedForm, match="no field c"):
        form.read({"a": "", "b": "", "c": "1"})
