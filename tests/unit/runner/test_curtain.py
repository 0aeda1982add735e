"""What a person who has a seat is not shown before they have answered."""

from __future__ import annotations

from cdo.core.events import Event, NoteTold, ReplyAccepted, ReplyMissing, TextReceived
from cdo.runner.people.curtain import Curtain


def test_what_voices_say_is_passed_on_with_the_answer_of_the_last_person() -> None:
    told: list[Event] = []
    curtain = Curtain(told.append)
    critic, note = ReplyAccepted(name="t1-critic", position="Stage it."), NoteTold(text="a note")
    lost = ReplyMissing(name="t1-tester", reason="refused")
    curtain(critic)
    assert told == [critic], "nobody is waited for"
    told.clear()
    curtain.draw(["t1-anna", "t1-bert"])
    for event in (critic, note, lost, TextReceived(name="t1-tester", characters=9, tail="Stage it")):
        curtain(event)
    assert told == [note, lost, TextReceived(name="t1-tester", characters=9, tail="")]
    anna, bert = ReplyAccepted(name="t1-anna"), ReplyMissing(name="t1-bert", reason="absent")
    curtain(anna)
    assert len(told) == 3
    curtain(bert)
    assert told[3:] == [critic, anna, bert]
    curtain.draw(["t2-anna"])
    curtain(critic)
    curtain.draw([])  # the run stopped: the next one tells it again
    curtain(note)
    assert told[6:] == [note]
