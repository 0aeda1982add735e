"""Has people answer the turns in which they have a seat: writes their form, waits, reads it, records the answer.

Meanwhile the models of the turn are asked. The time that a turn waits is counted from the record of its form, so that
no resume begins it anew. An answer counts as long as the turn has not gone on without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from cdo.content.library import Library
from cdo.core.errors import NeedsHuman
from cdo.core.events import AnswerAwaited, CallSent, ExchangeRecorded, NoteTold, Observe
from cdo.core.exchange import BackendError, Fault, Message, Request, Response
from cdo.core.formatting import one_line, period
from cdo.core.people import ABSENT, BRIEFS, SEATS, UNCLEAR
from cdo.core.steps import InvalidReply, Missing, Reply
from cdo.files.file_changes import changes
from cdo.formats.person_reply import DELETE, FORM, UNFINISHED, WITHDRAWN, complete, own_words, unfinished, worded
from cdo.runner import prompts
from cdo.runner.exchange_records import MOST, record_of
from cdo.runner.people.human_steps import QUARANTINE, TAKEN, Human, PendingSeat, minute
from cdo.runner.requests import PendingCall
from cdo.session.store import Session

if TYPE_CHECKING:
    from cdo.formats.voice_blocks import VoiceData

READS = 3  # times that what a person saved may be unclear
OLD = f"superseded/{SEATS}"  # the folder for forms that are no longer asked


class PersonVoices(Struct):
    """The seats of people in one session. A turn waits `wait` seconds for each answer, the run for `left()` at most.

    With `stay`, the process waits also without a terminal. `closed`: files are left as they are.
    """

    session: Session
    library: Library
    human: Human
    observe: Observe
    left: Callable[[], float]
    wait: float
    stay: bool = False
    closed: bool = False

    async def open(self, work: PendingCall) -> None:
        """Write what the person of a call is shown, and tell where it is. Does nothing that was done before."""
        file, record = _form(work), self._seated(work)
        there = any(name == _name(work) for name, *_ in self.session.files.taken(SEATS))
        if there and record is None and any(_is_seat_of(old, work) for old in self.session.records):
            self.session.move(file, OLD)  # the form of a call with other inputs
            there = False
        at = datetime.fromisoformat(record["at"]) if record else datetime.now(UTC)
        if not there:
            self.session.put_now(f"{BRIEFS}/{_name(work)}", f"{self._brief(work)[0].text}\n")
            self.session.put_now(file, self._blank(work, at + timedelta(seconds=self.wait)))
        if record is None:
            seated = {"kind": "seated", "call": work.call.name, "inputs": work.key, "file": file}
            await self.session.commit(seated | {"at": at.isoformat(timespec="milliseconds")})
        if complete(self._saved(work)[0]):
            return  # it was answered since
        place, until = str(self.session.path / file), self._until(work).isoformat(timespec="seconds")
        told = f"{self._awaited(work)}: {place}"
        self.observe(
            AnswerAwaited(
                name=work.call.name, text=told, person=work.person, turn=_turn(work), path=place, until=until
            )
        )

    async def ask(self, work: PendingCall) -> Reply:
        """Return the answer of a call's person once it is there; a missing reply says that it did not come in time.

        Raises `NeedsHuman` if nobody waits for it here.
        """
        self.observe(CallSent(name=work.call.name, model=work.call.models[0], attempt=len(work.records) + 1))
        while True:
            text, problem = self._saved(work)
            try:
                if problem:
                    raise InvalidReply([problem])
                reply = None if unfinished(text) else worded(text)
            except InvalidReply as invalid:
                if await self._unclear(work, text, invalid) >= READS:
                    told = f"what {work.person} wrote for turn {_turn(work)} could not be read {READS} times"
                    return Reply(work.call.name, reason=Missing(UNCLEAR, told))
                continue
            if reply is not None:
                return await self._recorded(work, text, reply)
            if datetime.now(UTC) >= self._until(work):
                return Reply(work.call.name, reason=Missing(ABSENT, self._absence(work, text)))
            await self._stay(work)

    def tidy(self, work: PendingCall) -> None:
        """Move the form of a call that is answered or given up, unless it holds an answer that came too late."""
        text, problem = ("", "") if self.closed else self._saved(work)
        if not text or problem:
            return
        if not work.given_up and any(record.get("said") == text for record in work.records):
            self.session.move(_form(work), TAKEN)
        elif work.given_up and unfinished(text):
            self.session.move(_form(work), OLD)

    # -- the form -----------------------------------------------------------------------------

    def _blank(self, work: PendingCall, until: datetime, written: str = "", problems: tuple[str, ...] = ()) -> str:
        standing = work.call.data["standing"]
        values = {
            "unfinished": UNFINISHED,
            "delete": DELETE,
            "parts": [part for part in FORM if part != WITHDRAWN or standing],
            "withdrawn": WITHDRAWN.title,
            "person": work.person,
            "turn": _turn(work),
            "standing": standing,
            "brief": f"{BRIEFS}/{_name(work)}",
            "until": minute(until),
            "problems": problems,
            "written": written,
        }
        return f"{self.library.render('templates/seat-form', values)}\n"

    def _brief(self, work: PendingCall) -> tuple[Message, ...]:
        """Return what the person is shown: the prompt of the voices, without the rules for models."""
        return prompts.messages(work.call, work.texts, self.library)[1:]

    def _saved(self, work: PendingCall) -> tuple[str, str]:
        """Return the text of the form as it is now, and what keeps it from being read; "" for what is not there."""
        found = {name: (text, problem) for name, text, problem in self.session.files.taken(SEATS)}
        return found.get(_name(work), ("", ""))

    # -- waiting ------------------------------------------------------------------------------

    def _seated(self, work: PendingCall) -> dict[str, Any] | None:
        """Return the record of the form of a call."""
        return next((old for old in self.session.records if _is_seat_of(old, work, work.key)), None)

    def _until(self, work: PendingCall) -> datetime:
        record = self._seated(work)
        assert record is not None
        return datetime.fromisoformat(record["at"]) + timedelta(seconds=self.wait)

    async def _stay(self, work: PendingCall) -> None:
        """Wait until the form may be filled in or the time is over; raise `NeedsHuman` if nobody waits here."""
        until = self._until(work)
        path, left = self.session.path / _form(work), (until - datetime.now(UTC)).total_seconds()
        if self.human.speak is None and not self.stay:
            raise self._needed(work)
        try:
            async with asyncio.timeout(max(0.0, min(left, self.left()))):
                if self.human.speak:
                    form = PendingSeat(
                        path,
                        self.session.path / BRIEFS / _name(work),
                        work.person,
                        _turn(work),
                        minute(until),
                        self._saved(work)[0],
                        _checked,
                        lambda text: self.session.put_now(_form(work), text),
                    )
                    await self.human.speak(form)
                else:
                    async for _ in changes(path, asyncio.Event()):
                        if not unfinished(self._saved(work)[0]):
                            break
        except TimeoutError:
            if datetime.now(UTC) < until:  # the cap of the run
                raise self._needed(work) from None

    def _awaited(self, work: PendingCall) -> str:
        return f"the answer of {work.person} to turn {_turn(work)} is awaited until {minute(self._until(work))}"

    def _needed(self, work: PendingCall) -> NeedsHuman:
        name, said = self.session.name, self._awaited(work)
        whose = f" --seat {work.person}" if len(self.session.files.taken(SEATS)) > 1 else ""
        return NeedsHuman(
            f"{said[:1].upper()}{said[1:]}: {self.session.path / _form(work)}.",
            f'Fill it in, or say it with `cdo answer {name}{whose} "…"`; then `cdo resume {name}` goes on, and '
            "without the answer when the time is over.",
            f"What is your answer to turn {_turn(work)}, {work.person}?",
        )

    def _absence(self, work: PendingCall, text: str) -> str:
        told = f"{work.person} did not answer turn {_turn(work)} within {period(self.wait)}"
        begun = own_words(text) != own_words(self._blank(work, self._until(work)))
        return f"{told} (what was begun is in {OLD}/)" if text and begun else told

    # -- what is recorded ---------------------------------------------------------------------

    async def _recorded(self, work: PendingCall, text: str, reply: str) -> Reply:
        """Record an answer, and return it as the reply of its call."""
        record = await self._exchange(work, Response(reply), text)
        work.last = (str(record["response"]["text"]), work.call.models[0])
        return Reply(work.call.name, work.call.format.parse(work.last[0]))

    async def _unclear(self, work: PendingCall, text: str, invalid: InvalidReply) -> int:
        """Record what could not be read, and ask about it in the form; return how many times that was so."""
        why = " ".join(invalid.problems)
        await self._exchange(work, BackendError(Fault.INVALID, why, text=text), text)
        file = _form(work)
        if not text:  # it is no text that could be put into the form
            self.session.move(file, QUARANTINE, f"{why}\n")
        self.session.put_now(file, self._blank(work, self._until(work), own_words(text), invalid.problems))
        self.observe(NoteTold(name=work.call.name, text=f"{file} is asked about again: {one_line(why, 300)}"))
        return sum("fault" in record for record in work.records[work.failed :])

    async def _exchange(self, work: PendingCall, result: Response | BackendError, said: str) -> dict[str, Any]:
        """Record what a person was shown and what they said, like an exchange with a model that costs nothing."""
        seated = self._seated(work)
        assert seated is not None
        request = Request(work.person, self._brief(work), 0)
        record = record_of(work, work.call.models[0], request, result, None, None, self.session.shared_text)
        seconds = round((datetime.now(UTC) - datetime.fromisoformat(seated["at"])).total_seconds(), 3)
        more = {"said": prompts.fit(said, MOST), "started": seated["at"], "seconds": max(0.0, seconds)}
        record = await self.session.commit(record | more)
        work.records.append(record)
        fault = record["fault"]["kind"] if "fault" in record else None
        told = {key: record[key] for key in ("model", "attempt", "seconds")}
        self.observe(ExchangeRecorded(name=work.call.name, **told, fault=fault))
        return record


def _checked(text: str) -> VoiceData:
    """Return the data of a form; raise `InvalidReply` while it is not complete."""
    if unfinished(text):
        raise InvalidReply([f"The line “{UNFINISHED}” still stands: delete it when your answer is complete."])
    if (reply := worded(text)) is None:
        raise InvalidReply(["Nothing was filled in."])
    from cdo.formats.person_reply import PersonFormat

    return PersonFormat().parse(reply)


def _name(work: PendingCall) -> str:
    return f"t{_turn(work)}-{work.person}.md"


def _form(work: PendingCall) -> str:
    return f"{SEATS}/{_name(work)}"


def _turn(work: PendingCall) -> int:
    return int(work.call.data["turn"])


def _is_seat_of(record: dict[str, Any], work: PendingCall, key: str = "") -> bool:
    """True for the record of the form of a call, with the inputs `key` if it is given."""
    return record["kind"] == "seated" and record["call"] == work.call.name and key in ("", record["inputs"])
