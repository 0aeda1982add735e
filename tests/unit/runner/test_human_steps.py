"""The steps by which a program asks a person or another session: questions, edits taken, files written once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cdo.content.library import Library
from cdo.content.schemas import Price
from cdo.core.errors import BudgetReached, NeedsHuman
from cdo.core.events import Event, RoundEnded
from cdo.core.exchange import BackendError
from cdo.core.exchange import Fault as Kind
from cdo.core.steps import Ask, Batch, Gather, InvalidReply, Nest, Nested, Project, Publish, Reply
from cdo.core.usage import TotalUsage
from cdo.providers.models import ModelSpec
from cdo.runner import retry
from cdo.runner.budget import Budget, Limits, held_back
from cdo.runner.people.human_steps import Human, HumanSteps, chosen
from cdo.session.store import Session
from tests.unit.runner.test_runner import VOICES, Said, bench, fault

ASK = Ask("r1-question", "Cookies or localStorage?", ("httpOnly cookies", "localStorage"))
SPEC = ModelSpec(name="m", route="scripted", model="m", price=Price(input=1.0, output=10.0))


class Plain:
    """Reads any text that is not empty."""

    def parse(self, text: str) -> str:
        if not text.strip():
            raise InvalidReply(["it is empty"])
        return text


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    with closing(Session.create(tmp_path / "cdo-a", {"session.yaml": "cdo: x\n"})) as session:
        session.flush()
    yield tmp_path / "cdo-a"


def people(path: Path, human: Human | None = None, seen: list[Event] | None = None) -> HumanSteps:
    told = seen if seen is not None else []
    return HumanSteps(Session.open(path), Library.at(path), human or Human(), told.append)


def asked(path: Path, human: Human | None = None, ask: Ask = ASK) -> str:
    here = people(path, human)
    with closing(here.session):
        return asyncio.run(here.ask(ask))


# -- questions ---------------------------------------------------------------------------------------


def test_a_question_waits_for_the_person_and_is_answered_once(path: Path) -> None:
    with pytest.raises(NeedsHuman) as stopped:
        asked(path)
    assert "Cookies or localStorage?" in stopped.value.message and "httpOnly cookies" in stopped.value.message
    assert "cdo answer a" in stopped.value.hint
    (path / "inbox").mkdir()
    (path / "inbox" / "answer.md").write_text("1\n")
    assert asked(path) == "httpOnly cookies"
    assert not (path / "inbox" / "answer.md").exists() and (path / "taken" / "answer.md").read_text() == "1\n"
    (path / "inbox" / "answer.md").write_text("2\n")  # for a later question, not for this one
    assert asked(path) == "httpOnly cookies"
    assert (path / "inbox" / "answer.md").read_text() == "2\n"


def test_a_letter_that_was_recorded_before_a_crash_is_moved_by_the_next_process(path: Path) -> None:
    here = people(path)
    with closing(here.session):
        asyncio.run(here._keep(ASK, "both\n", "human", ("answer-1.md", "both\n")))
    (path / "inbox").mkdir()
    (path / "inbox" / "answer-1.md").write_text("both\n")
    assert asked(path) == "both\n"
    assert not list((path / "inbox").iterdir())


def test_the_person_at_the_terminal_answers_in_their_own_words(path: Path) -> None:
    async def tell(ask: Ask) -> str:
        return f"neither of {len(ask.options)}"

    assert asked(path, Human(tell=tell)) == "neither of 2"
    assert asked(path) == "neither of 2"


@pytest.mark.parametrize(
    ("said", "meant"), [("1", "a"), ("2", "b"), ("3", "3"), ("0", "0"), ("b", "b"), ("none", "none"), ("²", "²")]
)
def test_a_number_stands_for_an_option_where_there_is_one(said: str, meant: str) -> None:
    assert chosen(said, ("a", "b")) == meant


# -- files that people change ------------------------------------------------------------------------

V1, V2 = "products/p4-tech/v1.md", "products/p4-tech/v2.md"


def written(path: Path, once: dict[str, str], files: dict[str, str] | None = None) -> None:
    here = people(path)
    with closing(here.session):
        here.project(Project(1, lambda after, before: (files or {}, once)))
        here.show()


def gathered(path: Path, known: dict[str, str], seen: list[Event] | None = None) -> tuple[tuple[str, Any], ...]:
    here = people(path, seen=seen)
    with closing(here.session):
        found = asyncio.run(here.gather(Gather("r2-edits", "products", known, Plain())))
        here.show()
        return found


def test_what_is_written_once_is_never_written_over(path: Path) -> None:
    written(path, {V1: "one"}, {"TREE.md": "tree"})
    (path / V1).write_text("mine")
    (path / "TREE.md").write_text("mine")
    written(path, {V1: "one", V2: "two"}, {"TREE.md": "tree"})
    assert (path / V1).read_text() == "mine"
    assert (path / V2).read_text() == "two" and (path / "TREE.md").read_text() == "tree"


def test_an_edit_of_what_is_written_again_makes_room_and_is_told(path: Path) -> None:
    seen: list[Event] = []

    def shown(text: str) -> None:
        here = people(path, seen=seen)
        with closing(here.session):
            files = {"TREE.md": text, "products/p4-tech/c1.md": f"cdo {text}"}
            here.project(Project(1, lambda *_: (files, {}), untouched=lambda _, there: there.startswith("cdo")))
            here.show()

    shown("cdo 1")
    shown("cdo 2")
    assert not (path / "superseded").exists() and not seen, "what cdo wrote is written over"
    (path / "TREE.md").write_text("mine")
    shown("mine")
    assert not seen, "what is the same makes no room"
    for text in ("cdo 3", "cdo 4"):
        (path / "TREE.md").write_text(f"mine before {text}")
        shown(text)
    (path / "products/p4-tech/c1.md").write_text("mine")
    shown("cdo 5")
    assert (path / "TREE.md").read_text() == "cdo 5"
    assert (path / "products/p4-tech/c1.md").read_text() == "cdo cdo 5"
    edits = {file.name: file.read_text() for file in (path / "superseded/edits").iterdir()}
    assert edits == {"TREE.md": "mine before cdo 3", "TREE-2.md": "mine before cdo 4", "c1.md": "mine"}
    told = [str(event.json()["text"]) for event in seen]
    assert told[0] == (
        "TREE.md was edited: cdo writes it from the record; what you wrote is in superseded/edits/TREE.md; "
        "use inbox/ to change things"
    )
    assert "superseded/edits;" in told[1] and told[2].startswith("products/p4-tech/c1.md was edited")


def test_an_edit_and_an_addition_are_taken_once_and_make_room_for_what_was_there(path: Path) -> None:
    known = {V1: "one", V2: "two"}
    written(path, known)
    (path / V1).write_text("one, repaired")
    (path / "products/p4-tech/mine.md").write_text("a version of mine")
    (path / "products/p4-tech/empty.md").write_text("")
    seen: list[Event] = []
    taken = (("products/p4-tech/mine.md", "a version of mine"), (V1, "one, repaired"))
    assert gathered(path, known, seen) == taken
    assert [event.json()["text"] for event in seen] == ["products/p4-tech/empty.md was not taken: it is empty"]
    assert (path / V1).read_text() == "one", "the version is what it was"
    assert (path / "superseded/edits/v1.md").read_text() == "one, repaired", "and the edit is kept"
    assert not (path / "products/p4-tech/mine.md").exists()
    (path / V2).write_text("later")  # belongs to the next time that somebody looks
    assert gathered(path, known) == taken
    assert (path / V2).read_text() == "later"


def test_an_edit_that_was_recorded_before_a_crash_makes_room_in_the_next_process(path: Path) -> None:
    written(path, {V1: "one"})
    (path / V1).write_text("repaired")
    here = people(path)
    with closing(here.session):
        record = {"kind": "collected", "name": "r2-edits", "items": [{"file": V1, "text": "repaired"}]}
        asyncio.run(here.session.commit(record))
    assert gathered(path, {V1: "one"}) == ((V1, "repaired"),)
    assert (path / V1).read_text() == "one" and (path / "superseded/edits/v1.md").read_text() == "repaired"


def test_links_below_products_are_not_followed(path: Path, tmp_path: Path) -> None:
    written(path, {V1: "one"})
    (tmp_path / "secret.md").write_text("secret")
    (path / "products/p4-tech/link.md").symlink_to(tmp_path / "secret.md")
    (path / "products/p9-away").symlink_to(tmp_path)
    assert gathered(path, {V1: "one"}) == ()


def test_a_state_is_rendered_when_the_run_goes_on_and_from_what_was_shown_last(path: Path) -> None:
    seen: list[tuple[int, int | None]] = []

    def render(after: int, before: int | None) -> tuple[dict[str, str], dict[str, str]]:
        seen.append((after, before))
        return {"TREE.md": f"{after}"}, {}

    here = people(path)
    with closing(here.session):
        for state in (1, 2, 3):
            here.project(Project(state, render))
        assert seen == []
        here.show()
        here.show()
        here.project(Project(4, render))
        here.show()
    assert seen == [(3, None), (4, 3)]
    assert (path / "TREE.md").read_text() == "4"


def test_what_is_not_published_any_more_makes_room(path: Path) -> None:
    here = people(path)
    with closing(here.session):
        before = {"deliverables/a.md": "a", "deliverables/inner/b.md": "b", "deliverables/Src/x y/.env.js": "c"}
        here.publish(Publish(before, folder="deliverables"))
        here.show()
        here.session.flush()
        here.publish(Publish({"deliverables/c.md": "c"}, folder="deliverables"))
        here.show()
    assert [file.name for file in (path / "deliverables").rglob("*") if file.is_file()] == ["c.md"]
    assert sorted(file.name for file in (path / "superseded/deliverables").iterdir()) == [".env.js", "a.md", "b.md"]


def test_what_another_wrote_where_something_is_published_makes_room(path: Path) -> None:
    def published(*texts: str) -> None:
        here = people(path)
        with closing(here.session):
            for text in texts:
                files = {"deliverables/a.md": text, "deliverables/inner/b.md": text}
                here.publish(Publish(files, folder="deliverables"))
                here.show()

    published("one", "two", "three")
    published("three")
    assert not (path / "superseded").exists(), "what this process wrote, and what is the same, stays"
    (path / "deliverables/a.md").write_text("mine")
    (path / "deliverables/inner/b.md").write_bytes(b"\xff mine")
    published("three")
    assert (path / "deliverables/a.md").read_text() == (path / "deliverables/inner/b.md").read_text() == "three"
    assert (path / "superseded/deliverables/a.md").read_text() == "mine"
    assert (path / "superseded/deliverables/b.md").read_bytes() == b"\xff mine"


def ended(name: str) -> RoundEnded:
    about: Any = {"round": 1, "accepted": 0, "live": 1, "blockers": 0, "versions": (), "verdicts": (), "blocked": ()}
    return RoundEnded(name=name, **about, halt="", why="")


def test_observers_hear_what_is_over_and_whether_it_is_new(path: Path) -> None:
    seen: list[Event] = []
    here = people(path, seen=seen)
    with closing(here.session):
        here.project(Project(1, lambda *_: ({}, {}), ended("r1")))
        here.moved = True
        here.project(Project(2, lambda *_: ({}, {}), ended("r2")))
        here.project(Project(3, lambda *_: ({}, {})))
    assert seen == [replace(ended("r1"), how="recorded"), ended("r2")]


# -- caps --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "used"),
    [
        (Limits(calls=9), TotalUsage(calls=7)),
        (Limits(tokens=1000), TotalUsage(input_tokens=850)),
        (Limits(cost=1.0), TotalUsage(cost=0.9495)),
    ],
)
def test_what_is_held_back_is_for_calls_that_close_the_run(limits: Limits, used: TotalUsage) -> None:
    async def main() -> None:
        budget = Budget(limits, used, held_back(limits))
        with pytest.raises(BudgetReached):
            await budget.reserve(SPEC, 50, 50)
        await budget.reserve(SPEC, 50, 50, closes=True)
        free = Budget(limits, replace(used))
        await free.reserve(SPEC, 50, 50)

    asyncio.run(main())


def test_a_small_cap_is_not_held_back_altogether() -> None:
    assert held_back(Limits(calls=2)).calls == 0 and held_back(Limits(calls=3)).calls == 1
    assert held_back(Limits()) == Limits()
    left = Budget(Limits(calls=9, tokens=100), TotalUsage(calls=8, input_tokens=20), held_back(Limits(9, 100))).left()
    assert (left.calls, left.tokens, left.cost, left.seconds) == (0, 70, None, None)


def lenient(*calls: Any, quorum: int = 1) -> Any:
    return (yield Batch(calls, quorum, lenient=True))


def reasons(replies: Sequence[Reply]) -> list[str]:
    return [reply.reason.kind for reply in replies]


def test_a_lenient_batch_goes_on_without_what_cannot_be_said(tmp_path: Path) -> None:
    script: dict[str, list[Said]] = {
        "t1-architect": ["nonsense"] * 3,
        "t1-critic": [fault(Kind.REFUSED)],
        "t1-pragmatist": ["no"] * 3,
    }
    with bench(tmp_path, script) as b:
        assert reasons(b.run(lenient(*VOICES))) == ["invalid", "refused", "invalid"]
        b.reopen()
        b.model.requests.clear()
        assert reasons(b.run(lenient(*VOICES))) == ["invalid", "refused", "invalid"]
        assert b.model.requests == [], "what was given up is on record"


def test_a_lenient_batch_fails_where_asking_again_could_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_DELAY", 0.01)
    monkeypatch.setattr(retry, "LONGEST_DELAY", 0.05)
    down: list[BackendError] = [fault(Kind.NETWORK) for _ in range(40)]
    with bench(tmp_path, {"agent": down}) as b, pytest.raises(Exception, match="The models failed"):
        b.run(lenient(*VOICES))


def test_a_cap_ends_a_lenient_batch_and_a_higher_one_goes_on(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        replies = b.run(lenient(*VOICES), Limits(calls=2))
        assert sorted(reasons(replies)) == ["", "", "budget"]
        b.reopen()
        b.model.requests.clear()
        assert sorted(reasons(b.run(lenient(*VOICES), Limits(calls=2)))) == ["", "", "budget"]
        assert b.model.requests == []
        b.reopen()
        assert reasons(b.run(lenient(*VOICES), Limits(calls=5))) == ["", "", ""]
        assert len(b.model.requests) == 1


# -- sessions in sessions ----------------------------------------------------------------------------

NEST = Nest("r1-p3", "Which stack?", "A context", "think")
DECIDED = Nested("a-r1-p3", "converged", "Postgres", 0.8, "## Decision\n\nPostgres")


def nesting(
    result: Nested | None, held: list[Limits]
) -> Callable[[Nest, Limits], Awaitable[tuple[Nested | None, TotalUsage]]]:
    async def nest(step: Nest, left: Limits) -> tuple[Nested | None, TotalUsage]:
        held.append(left)
        return result, TotalUsage(calls=4, input_tokens=100, cost=0.5)

    return nest


def one(step: Nest) -> Any:
    return (yield step)


def test_a_nested_session_is_held_once_within_the_caps_and_counted(tmp_path: Path) -> None:
    held: list[Limits] = []
    with bench(tmp_path) as b:
        assert b.run(one(NEST), Limits(calls=10), nest=nesting(DECIDED, held)) == DECIDED
        assert b.last.budget.totals.calls == 4 and held == [Limits(calls=10)]
        b.reopen()
        assert b.run(one(NEST), Limits(calls=10), nest=nesting(DECIDED, held)) == DECIDED
        assert len(held) == 1 and b.last.budget.totals.calls == 4, "it is on record, with what it used"
        assert b.run(one(replace(NEST, question="Another?")), nest=nesting(DECIDED, held)) == DECIDED
        assert len(held) == 2


def test_a_nested_session_that_a_cap_ended_is_held_again(tmp_path: Path) -> None:
    held: list[Limits] = []
    with bench(tmp_path) as b:
        assert b.run(one(NEST), nest=nesting(None, held)) is None
        assert b.run(one(NEST), nest=nesting(DECIDED, held)) == DECIDED
        assert b.run(one(replace(NEST, name="r2-p4"))) is None, "where none can be held there is none"
