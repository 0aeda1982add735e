"""Documents beside the JSON of a reply: each goes to the entry of its product, or is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from msgspec.structs import replace

from cdo.cabal.model.entities import Assignment, MissionStep
from cdo.cabal.model.product_files import files_in, staged
from cdo.cabal.model.state import MissionState
from cdo.cabal.replies.schemas import WriteReply
from cdo.cabal.reply_format import StepFormat
from cdo.core.formatting import without_controls
from cdo.core.steps import InvalidReply
from cdo.formats.document_blocks import joined
from cdo.formats.lenient.reading import read
from cdo.session.artifact import from_file, from_reply
from tests.support import cabal_team as team
from tests.support.missions import ALEX, todo
from tests.unit.formats.test_document_blocks import TEXTS, lf

HTML = '<!doctype html>\n<p id="a">{"x": [1}</p>\n<!-- # note -->'


def mission(**paths: str) -> MissionState:
    """The TODO list in round 1, where p4 and p5 are `paths` that Alex writes."""
    state = replace(todo(0), round=1)
    first = state.products["p4"]
    made = {id: replace(first, id=id, name=id, path=paths.get(id, ""), owner=ALEX) for id in ("p4", "p5")}
    orders = {id: Assignment(id, ALEX, (), 5, "Write it", "", "", "", 1) for id in ("p4", "p5")}
    return replace(state, products={**state.products, **made}, assignments=orders)


def form(**paths: str) -> StepFormat:
    return StepFormat(MissionStep.WRITE, ALEX, mission(**paths), ("p4", "p5"))


def entry(id: str, **more: Any) -> dict[str, Any]:
    return {"product_id": id, "title": id, "change_summary": "First draft", **more}


def reply(*entries: dict[str, Any], blocks: tuple[tuple[str, str], ...] = ()) -> str:
    said = team.write(*entries)
    return f"{said}\n\n{joined(blocks)}\n" if blocks else said


def parsed(format: StepFormat, text: str) -> WriteReply:
    found = format.parse(text)
    assert isinstance(found, WriteReply)
    return found


def contents(format: StepFormat, text: str) -> dict[str, str]:
    found = parsed(format, text)
    return {item.product_id: item.content for item in found.versions}


def refused(format: StepFormat, text: str) -> str:
    """What is wrong with a reply, whether a part of it is valid or nothing."""
    try:
        parts = read(format, text).data.refused
    except InvalidReply as invalid:
        return " ".join(invalid.problems)
    return " ".join(problem for part in parts for problem in part.problems)


BOTH = {"p4": "index.html", "p5": "app/"}
FILES = (("p4", HTML), ("p5 app/main.py", "print('{')\n"), ("p5 app/__init__.py", ""))


def test_documents_and_files_stand_beside_the_json_as_they_are() -> None:
    text = reply(entry("p4"), entry("p5"), blocks=FILES)
    found = contents(form(**BOTH), text)
    assert found["p4"] == HTML
    assert files_in("app/", found["p5"]) == {"app/main.py": "print('{')\n", "app/__init__.py": ""}
    kept = from_reply(text, {})
    assert contents(form(**BOTH), kept.reply) == found  # what a resume reads
    assert contents(form(**BOTH), from_file(kept.body, "x").reply) == found


@given(TEXTS.filter(lambda text: bool(text.strip()) and without_controls(lf(text)) == lf(text)))
def test_any_text_of_a_file_survives_a_reply(text: str) -> None:
    found = contents(form(**BOTH), reply(entry("p4"), entry("p5"), blocks=(("p4", text), ("p5 app/a.md", text))))
    assert found["p4"] == lf(text)
    assert files_in("app/", found["p5"]) == {"app/a.md": lf(text)}


def test_content_in_the_json_stays_possible() -> None:
    text = reply(entry("p4", content="<p>x</p>\n\n"), entry("p5"), blocks=(("p5", "  # Title\n\nText\n"),))
    assert contents(form(p4="index.html"), text) == {"p4": "<p>x</p>\n", "p5": "# Title\n\nText"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (reply(entry("p4"), entry("p5"), blocks=FILES[1:]), "p4 has no text: give its document behind the JSON"),
        (reply(entry("p4"), entry("p5"), blocks=(*FILES, ("p9", "x"))), "a block for p9 and no entry of it"),
        (reply(entry("p5"), blocks=FILES), "a block for p4 and no entry of it"),
        (
            reply(entry("p4"), entry("p5"), blocks=(("p4", "a"), ("p4", "b"), *FILES[1:])),
            "p4 is the one file index.html",
        ),
        (reply(entry("p4"), entry("p5"), blocks=(("p4", "a"), ("p5", "b"))), "p5 is the folder app/: give one block"),
        (reply(entry("p4"), entry("p5"), blocks=(("p4", "a"), ("p5 x.py", "b"))), "x.py is not in its folder app/"),
        (reply(entry("p4"), entry("p5"), blocks=(*FILES, ("p5 app/../x", "b"))), "`app/../x` cannot be a file"),
        (reply(entry("p4"), entry("p5"), blocks=(*FILES, ("p5 app/Main.py", "b"))), "collides with app/main.py"),
        (reply(entry("p4"), entry("p5"), blocks=(*FILES, ("index.html", "b"))), "`index.html` belongs to no product"),
        (
            f"{reply(entry('p4'), entry('p5'), blocks=FILES[1:])}=====BEGIN p4=====\n<p>",
            "p4 is cut off: its block has no",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(text: str, why: str) -> None:
    assert why in refused(form(**BOTH), text)


def test_a_fence_that_a_model_added_is_taken_off_and_noted() -> None:
    text = reply(entry("p4"), entry("p5"), blocks=(("p4", f"```html\n{HTML}\n```"), *FILES[1:]))
    found = read(form(**BOTH), text)
    assert found.notes == ("took a file out of a code fence",)
    assert {item.content for item in found.data.versions if item.product_id == "p4"} == {HTML}
    assert contents(form(**BOTH), found.text)["p4"] == HTML
    wrapped = read(form(**BOTH), f"```\n{reply(entry('p4'), entry('p5'), blocks=FILES)}```")
    assert {item.content for item in wrapped.data.versions if item.product_id == "p4"} == {HTML}
    whole = f"Here it is:\n```json\n{team.write(entry('p4'), entry('p5'))}\n```\n\n{joined(FILES)}"
    assert contents(form(**BOTH), whole)["p4"] == HTML


def test_json_that_deviates_is_read_with_its_documents() -> None:
    loose = team.write(entry("p4"), entry("p5"))[:-1] + ",}"
    found = read(form(**BOTH), f"{loose}\n\n{joined(FILES)}")
    assert found.notes
    assert {item.content for item in found.data.versions if item.product_id == "p4"} == {HTML}


def test_the_newest_versions_are_staged_as_files() -> None:
    format = form(**BOTH)
    after, problems = format.judged(parsed(format, reply(entry("p4"), entry("p5"), blocks=FILES)), format.state)
    assert problems == ()
    assert staged(after) == {"index.html": f"{HTML}\n", "app/__init__.py": "", "app/main.py": "print('{')\n\n"}


def test_one_sign_is_a_change_of_a_program_and_not_of_a_document() -> None:
    long = "\n".join(f"line {number} of the text" for number in range(300))
    format = form(p4="a.js")
    first = reply(entry("p4"), entry("p5"), blocks=(("p4", f"{long}\nif (a < b)"), ("p5", long)))
    before, _ = format.judged(parsed(format, first), format.state)
    again = replace(before, round=2, assignments=mission().assignments)
    next = StepFormat(MissionStep.WRITE, ALEX, again, ("p4", "p5"))
    text = reply(entry("p4"), entry("p5"), blocks=(("p4", f"{long}\nif (a <= b)"), ("p5", f"{long}.")))
    assert refused(next, text) == "The version of p5 is nearly the same as the last: change it, or say why not."


def test_the_chairs_log_may_stand_in_a_block() -> None:
    state = mission()
    own = next(item.id for item in state.products.values() if item.meta)
    plan = json.loads(team.plan())
    plan["chair_versions"] = [entry(own)]
    found = StepFormat(MissionStep.PLAN, "chair-1", state).parse(f"{json.dumps(plan)}\n{joined([(own, '# Log')])}")
    assert found.chair_versions[0].content == "# Log"  # type: ignore[union-attr]
