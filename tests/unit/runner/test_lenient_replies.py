"""Replies that deviate from their format, in a run: they cost no other call, and the session says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdo.core.errors import ModelsFailed, SessionError
from cdo.core.events import ReplyCorrected
from cdo.formats.lenient.reading import ReadReply
from cdo.formats.voice import AgentFormat
from cdo.runner import attempts, kept_replies
from cdo.session.artifact import from_file
from cdo.session.store import Session
from tests.support.answers import agent_text
from tests.unit.runner.test_runner import GOOD, bench, hang, interrupted, once, voice

STRICT = agent_text("Stage it.")
FENCED = f"Here is my reply:\n\n```markdown\n{STRICT}\n```"
FILE = f"{voice().artifact}.md"
NOTES = ("took the data out of a code fence", "left out a sentence before the front matter")


def test_a_reply_that_is_read_leniently_costs_no_other_call(tmp_path: Path) -> None:
    with bench(tmp_path, {"agent": [FENCED]}) as b:
        (reply,) = b.run(once(voice()))
        assert reply.data == AgentFormat().parse(STRICT) and reply.notes == NOTES
        assert len(b.model.requests) == 1
        assert [event.notes for event in b.events if isinstance(event, ReplyCorrected)] == [NOTES]
        (record,) = b.records()
        assert record["response"]["text"] == FENCED, "the record holds what the model said"
        b.reopen()
        file = (b.path / FILE).read_text()
        assert from_file(file, "x").own["read_leniently"] == list(NOTES) and "```" not in file


def test_a_later_process_reads_it_the_same(tmp_path: Path) -> None:
    with bench(tmp_path, {"agent": [FENCED]}) as b:
        (reply,) = b.run(once(voice()))
        b.reopen()
        kept = (b.path / FILE).read_bytes()
        for lost in (False, True):
            if lost:
                (b.path / FILE).unlink()
            (again,) = b.run(once(voice()))
            b.reopen()
            assert again.data == reply.data and (b.path / FILE).read_bytes() == kept
        assert len(b.model.requests) == 1


@pytest.fixture
def earlier_version(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Read every reply strictly, as earlier versions did; `undo` brings today's version back."""
    for module in (attempts, kept_replies):
        monkeypatch.setattr(module, "read", lambda form, text: ReadReply(form.parse(text), text))
    return monkeypatch


def test_a_reply_that_an_earlier_version_sent_back_gives_way_to_the_one_that_followed(
    tmp_path: Path, earlier_version: pytest.MonkeyPatch
) -> None:
    with bench(tmp_path, {"agent": [FENCED, agent_text("Wait.")]}) as b:
        (before,) = b.run(once(voice()))
        assert before.data.position == "Wait." and len(b.model.requests) == 2
        earlier_version.undo()
        b.reopen()
        (b.path / FILE).unlink()
        (reply,) = b.run(once(voice()))
        assert (reply.data, reply.notes) == (before.data, ())
        assert len(b.model.requests) == 2


def test_a_reply_that_an_earlier_version_was_about_to_send_back_is_read_leniently(
    tmp_path: Path, earlier_version: pytest.MonkeyPatch
) -> None:
    with bench(tmp_path, {"agent": [FENCED, hang]}) as b:
        interrupted(b, 2)
        earlier_version.undo()
        (reply,) = b.run(once(voice()))
        assert (reply.data.position, reply.notes) == ("Stage it.", NOTES)
        assert len(b.model.requests) == 2


def test_a_file_that_a_person_edited_is_read_strictly(tmp_path: Path) -> None:
    with bench(tmp_path, {"agent": [GOOD]}) as b:
        b.run(once(voice()))
        b.session.close()
        path = b.path / FILE
        path.write_text(path.read_text().replace("confidence: ", "confidence: about "))
        b.session = Session.open(b.path)
        with pytest.raises(SessionError, match="was edited and is no longer valid: The front matter: `confidence`"):
            b.run(once(voice()))
        assert len(b.model.requests) == 1


def test_what_is_ambiguous_is_still_sent_back(tmp_path: Path) -> None:
    eight = STRICT.replace("confidence: 0.", "confidence: 8 #")
    with bench(tmp_path, {"agent": [eight] * 3}) as b:
        with pytest.raises(ModelsFailed):
            b.run(once(voice()))
        assert len(b.model.requests) == 3
