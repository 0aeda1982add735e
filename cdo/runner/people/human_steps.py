"""Takes the person's input between turns: answers, edited plans, messages. Each input is recorded when it is taken.

A resume reuses the recorded answers; a plan that was edited since replaces its recorded version. Files that are only
for display (rosters, dashboards) are written when a run makes new calls, so that a replay changes no file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from cdo.content.library import Library
from cdo.core.errors import NeedsHuman, SessionError
from cdo.core.events import MessageTold, NoteTold, Observe, QuestionAsked, ReviewBegan
from cdo.core.formatting import one_line
from cdo.core.steps import Ask, Collect, Gather, InvalidReply, Pause, Project, Publish, QuestionedDocument, Review
from cdo.session.artifact import digest
from cdo.session.store import Session

QUARANTINE = "quarantine"
LOOK = 0.5  # seconds between two looks for an answer in the inbox while the person is asked at the terminal
INBOX, LETTER = "inbox", "answer"  # the folder for answers, and the prefix of their file names
TAKEN = "taken"  # the folder for messages that were taken
OUTDATED = "superseded/outdated"  # the folder for files that cdo wrote before an edit changed the course
EDITS = "superseded/edits"  # the folder for files edited in place, after the edit was taken


class PendingReview(Struct, frozen=True):
    """A document under review by the person: its path, text and review step, and functions to render and write it."""

    path: Path
    text: str
    review: Review
    render: Callable[[Mapping[str, Any]], str]
    write: Callable[[str], None]


class PendingSeat(Struct, frozen=True):
    """The form of a `person` for a turn, which waits `until` then: where it is, its brief, and its `text`.

    `parse` returns the data of a complete answer and raises `InvalidReply` for another; `write` writes the form.
    """

    path: Path
    brief: Path
    person: str
    turn: int
    until: str
    text: str
    parse: Callable[[str], Any]
    write: Callable[[str], None]


class Human(Struct, frozen=True):
    """Functions that ask the person; each is None if no person can be asked.

    `answer` takes a pause and returns an option. `tell` takes a question and returns any text. `consent` takes the
    names of stale and of kept files and returns yes or no. `review` lets a document be edited and returns its text.
    `speak` lets a person fill in the form of their seat, and returns when that may be done.
    """

    answer: Callable[[Pause], Awaitable[str]] | None = None
    consent: Callable[[Sequence[str], Sequence[str]], Awaitable[bool]] | None = None
    review: Callable[[PendingReview], Awaitable[str]] | None = None
    tell: Callable[[Ask], Awaitable[str]] | None = None
    speak: Callable[[PendingSeat], Awaitable[None]] | None = None


class HumanSteps(Struct):
    """The person's steps in one session: answers, reviews, messages, and the files shown to the person."""

    session: Session
    library: Library
    human: Human
    observe: Observe
    moved: bool = False  # this process has called models, so the person has not seen the current documents yet
    closed: bool = False  # ignore files that were left after the end of the run
    _drafts: dict[str, str] = field(default_factory=dict)
    _restored: dict[str, str] = field(default_factory=dict)
    _projected: Project | None = None
    _shown: Any = None
    _rooms: dict[str, frozenset[str]] = field(default_factory=dict)
    _gone: tuple[str, ...] = ()

    async def pause(self, pause: Pause) -> str:
        """Return the recorded answer to a pause, else the person's, else the default if no person can be asked."""
        if record := self._answered(pause):
            return str(record["answer"])
        self.show()
        self.observe(QuestionAsked(name=pause.name, question=pause.question, options=pause.options))
        asked = self.human.answer
        answer = await asked(pause) if asked else pause.default
        return str((await self._keep(pause, answer, "human" if asked else "default"))["answer"])

    async def ask(self, ask: Ask) -> str:
        """Return the answer to a question that only the person can answer: recorded, left in the inbox, or given now.

        Raise `NeedsHuman` if no person can be asked and no answer was left.
        """
        if record := self._answered(ask):
            self._clear(record)
            return str(record["answer"])
        self.show()
        if left := self._left_as_answer():
            record = await self._keep(ask, chosen(left[1].strip(), ask.options), "human", left)
            self._clear(record)
            return str(record["answer"])
        self.observe(QuestionAsked(name=ask.name, question=ask.question, options=ask.options))
        if self.human.tell is None:
            choices = f" ({' / '.join(one_line(option) for option in ask.options)})" if ask.options else ""
            raise NeedsHuman(
                f"The team asks you: {one_line(ask.question)}{choices}",
                f'`cdo answer {self.session.name} "…"` answers it, or a file inbox/{LETTER}.md; then '
                f"`cdo resume {self.session.name}` goes on.",
                ask.question,
                tuple(ask.options),
            )
        answer, left = await self._heard(ask, self.human.tell)
        record = await self._keep(ask, answer, "human", left)
        self._clear(record)
        return answer

    async def _heard(self, ask: Ask, tell: Callable[[Ask], Awaitable[str]]) -> tuple[str, tuple[str, str] | None]:
        """Return what the person answers, and the message that says it, if it is left in the inbox meanwhile.

        Here only a file named `answer…` counts, once it has stopped changing: any other one is a letter.
        """
        telling = asyncio.ensure_future(tell(ask))
        before: tuple[str, str] | None = None
        try:
            while not (await asyncio.wait({telling}, timeout=LOOK))[0]:
                left = self._left_as_answer()
                if left and left == before and left[0].startswith(LETTER):
                    answer = chosen(left[1].strip(), ask.options)
                    self.observe(NoteTold(text=f"{INBOX}/{left[0]} answers: {one_line(answer, 200)}"))
                    return answer, left
                before = left
            return await telling, None
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)

    def _left_as_answer(self) -> tuple[str, str] | None:
        """Return the message (name, text) that answers a question, or None.

        A file named `answer…` comes first, then one without front matter.
        """
        letters = [(name, text) for name, text, _ in self.session.files.taken(INBOX) if text.strip()]
        named = [letter for letter in letters if letter[0].startswith(LETTER)]
        plain = [letter for letter in letters if not letter[1].lstrip().startswith("---")]
        return next(iter((*named, *plain)), None)

    def _answered(self, step: Pause | Ask) -> dict[str, Any] | None:
        asked = ("answer", step.name, step.question)
        records = self.session.records
        return next((old for old in records if (old["kind"], old.get("name"), old.get("question")) == asked), None)

    async def _keep(
        self, step: Pause | Ask, answer: str, by: str, letter: tuple[str, str] | None = None
    ) -> dict[str, Any]:
        left = {"letter": list(letter)} if letter else {}
        return await self.session.commit(
            {"kind": "answer", "name": step.name, "question": step.question, "answer": answer, "by": by, **left}
        )

    def _clear(self, record: Mapping[str, Any]) -> None:
        """Move the message that was taken as an answer, even if a crash prevented that before."""
        name, text = record.get("letter") or ("", "")
        if name and self._just(record) and (name, text, "") in self.session.files.taken(INBOX):
            self.session.move(f"{INBOX}/{name}", TAKEN)

    def _just(self, record: Mapping[str, Any]) -> bool:
        """True if no model call was recorded after this record, so that its effects may not be applied yet.

        After a model call, the same text in the same file counts as new input.
        """
        newer = takewhile(lambda other: other["kind"] != "exchange", reversed(self.session.records))
        return any(other is record for other in newer)

    # -- documents ----------------------------------------------------------------------------

    async def review(self, review: Review) -> Any:
        """Return the data of a document after the person's review.

        Raise `NeedsHuman` if no person can be asked: the file is then written, and the next process takes it as it
        is. Also raise `NeedsHuman`, with line and column, if an edit cannot be parsed.
        """
        proposed = review.word(self._render(review))
        identity = digest([review.file, proposed])[:16]
        asked, left = self._reviewed(identity)
        text = self.session.read(review.file)
        if left is not None and text in (None, left):
            return self._parsed(review, left)
        taken = asked and text is not None and not self.human.review and not self.moved
        if left is not None or taken:
            data, text = self._parsed(review, text or ""), text or ""
            if isinstance(review.format, QuestionedDocument) and (question := review.format.question(data)):
                raise self._to_fix(review, f": {question}")
        else:
            text, data = await self._edited(review, identity, proposed, text if asked else None)
        await self.session.commit({"kind": "reviewed", "file": review.file, "proposed": identity, "text": text})
        return data

    def _render(self, review: Review) -> Callable[[Mapping[str, Any]], str]:
        return lambda values: self.library.render(review.template, values)

    def _reviewed(self, identity: str) -> tuple[bool, str | None]:
        """Return whether a document was already shown to the person, and the text of their last review."""
        asked, left = False, None
        for record in self.session.records:
            if record.get("proposed") == identity:
                asked = True
                left = str(record["text"]) if record["kind"] == "reviewed" else left
        return asked, left

    async def _edited(self, review: Review, identity: str, proposed: str, text: str | None) -> tuple[str, Any]:
        """Show a document to the person, and return its text and data after the review."""
        if text is None:
            if self.session.read(review.file) is not None:
                self.session.move(review.file, "superseded/plans")
                told = f"{review.file} was the plan of another proposal; it is kept in superseded/plans"
                self.observe(NoteTold(text=told))
            self.session.put_now(review.file, proposed)
            await self.session.commit(
                {"kind": "proposed", "file": review.file, "proposed": identity, "text": proposed}
            )
        self.show()
        path = self.session.path / review.file
        if self.human.review is None:
            raise NeedsHuman(
                f"The plan of the next turn waits for you: {path}.",
                f"Edit it or leave it as it is, then `cdo resume {self.session.name}` goes on.",
            )
        self.observe(ReviewBegan(name=review.file, path=str(path)))
        shown = self.session.read(review.file) or proposed
        text = await self.human.review(
            PendingReview(
                path, shown, review, self._render(review), lambda new: self.session.put_now(review.file, new)
            )
        )
        if text != self.session.read(review.file):
            self.session.put_now(review.file, text)
        return text, self._parsed(review, text)

    def _parsed(self, review: Review, text: str) -> Any:
        try:
            return review.format.parse(text)
        except InvalidReply as invalid:
            raise self._to_fix(review, f" cannot be read: {' '.join(invalid.problems)}") from None

    def _to_fix(self, review: Review, why: str) -> NeedsHuman:
        fix = f"Fix the file, then `cdo resume {self.session.name}`; nothing is lost."
        return NeedsHuman(f"{self.session.path / review.file}{why}", fix)

    # -- messages -----------------------------------------------------------------------------

    async def collect(self, collect: Collect) -> tuple[Any, ...]:
        """Take the messages a person left in a folder, once. Invalid ones move to quarantine, with the reason."""
        record = self._collected(collect.name)
        if record is None and ((collect.again and self.closed) or self._collected(collect.before)):
            return ()
        if record is None:
            items = []
            for name, text, problem in self.session.files.taken(collect.folder):
                try:
                    if problem:
                        raise InvalidReply([problem])
                    data = collect.format.parse(text)
                    if refused := collect.refuse(data) if collect.refuse else "":
                        raise InvalidReply([refused])
                except InvalidReply as invalid:
                    parent = collect.folder.rpartition("/")[0]
                    place = f"{parent}/{QUARANTINE}" if parent else QUARANTINE
                    self.session.move(f"{collect.folder}/{name}", place, " ".join(invalid.problems) + "\n")
                    note = f"{collect.folder}/{name} was put into {place}: {' '.join(invalid.problems)}"
                    self.observe(NoteTold(text=note))
                else:
                    items.append({"file": name, "text": text})
            if collect.again and not items:
                return ()
            record = await self.session.commit({"kind": "collected", "name": collect.name, "items": items})
        known = {item["file"]: item["text"] for item in record["items"]}
        parent = collect.folder.rpartition("/")[0]
        for name, text, _ in self.session.files.taken(collect.folder) if known and self._just(record) else ():
            if known.get(name) == text:  # also after a crash between the commit and this move
                self.session.move(f"{collect.folder}/{name}", f"{parent}/{TAKEN}" if parent else TAKEN)
        return tuple(collect.format.parse(text) for text in known.values())

    def _collected(self, name: str) -> dict[str, Any] | None:
        records = self.session.records
        return next((old for old in records if old["kind"] == "collected" and old["name"] == name), None)

    async def gather(self, gather: Gather) -> tuple[tuple[str, Any], ...]:
        """Take the files a person changed or added below a folder, once, as (file, data).

        The taken files are moved away, so that the published versions can be restored.
        """
        record = self._collected(gather.name)
        if record is None and gather.again and self.closed:
            return ()
        if record is None:
            self.show()
            self.session.flush()  # otherwise cdo's own pending writes would look like edits
            items = []
            for name, text, problem in self.session.files.below(gather.folder, written=False):
                if not problem and gather.known.get(name) == text:
                    continue
                if not problem and gather.untouched and gather.untouched(name, text):
                    self.session.move(name, OUTDATED)
                    self._restored |= {name: gather.known[name]} if name in gather.known else {}
                    continue
                try:
                    if problem:
                        raise InvalidReply([problem])
                    gather.format.parse(text)
                except InvalidReply as invalid:
                    if name not in gather.known:  # a known file is left in place: the person may still fix it
                        self.session.move(name, QUARANTINE, f"{invalid.problems[0]}\n")
                    self.observe(NoteTold(text=f"{name} was not taken: {invalid.problems[0]}"))
                else:
                    items.append({"file": name, "text": text})
            if gather.again and not items:
                return ()
            record = await self.session.commit({"kind": "collected", "name": gather.name, "items": items})
        known = {str(item["file"]): str(item["text"]) for item in record["items"]}
        there = (
            {name: text for name, text, _ in self.session.files.below(gather.folder)} if self._just(record) else {}
        )
        for name, text in known.items():
            if there.get(name) == text:
                self.session.move(name, EDITS)
                self._restored |= {name: gather.known[name]} if name in gather.known else {}
        return tuple((name, gather.format.parse(text)) for name, text in known.items())

    # -- what is shown ------------------------------------------------------------------------

    def publish(self, publish: Publish) -> None:
        """Queue files; they are written before the next model call."""
        self._gone = publish.gone
        if publish.folder:
            self._rooms[publish.folder] = frozenset(publish.files)
            inside = f"{publish.folder}/"
            self._drafts = {name: text for name, text in self._drafts.items() if not name.startswith(inside)}
        self._drafts |= publish.files

    def project(self, project: Project) -> None:
        """Keep a state to be shown when the run makes new calls, and notify observers of a finished round."""
        self._projected = project
        for event in project.told:
            old = isinstance(event, MessageTold) and not self.moved
            self.observe(replace(event, how="recorded") if old and isinstance(event, MessageTold) else event)
        if project.ended:
            self.observe(project.ended if self.moved else replace(project.ended, how="recorded"))

    def go_on(self) -> None:
        """Write queued files and move outdated ones away; called just before the run makes new calls."""
        for name in self._gone:
            if self.session.read(name) is not None:
                self.session.move(name, "superseded/ended")
        self._gone = ()
        self.show()
        self.moved = True

    def drop(self) -> None:
        """Forget queued files if nothing was asked yet: the person does not agree to go on, so all stays as it is."""
        if not self.moved:
            self._drafts, self._rooms, self._restored, self._projected = {}, {}, {}, None

    def show(self) -> None:
        """Write the published files that differ from the disk."""
        files, rooms, once = self._drafts, self._rooms, dict(self._restored)
        self._drafts, self._rooms, self._restored = {}, {}, {}
        if project := self._projected:
            again, never_again = project.render(project.state, self._shown)
            self._projected, self._shown = None, project.state
            if project.untouched:
                self._spare(again, project.untouched)
            files, once = {**files, **again}, {**once, **never_again}
        for folder, names in rooms.items():
            self._clear_out(folder, names)
            self._make_room(folder, {name: files[name] for name in names})
        untouched = project.untouched if project else None
        for name, text in once.items():
            there = self.session.read(name)
            if there is None or (untouched and there != text and untouched(name, there)):
                self.session.put_text(name, text)
        for name, text in files.items():
            self.session.put_changed(name, text)

    def _spare(self, files: Mapping[str, str], untouched: Callable[[str, str], bool]) -> None:
        """Move a person's edits away before cdo overwrites these files, and say where the edits are kept."""
        for name, text in files.items():
            there = self.session.read(name)
            if there is None or there == text or untouched(name, there):
                continue
            kept = f"{EDITS}/{name.rpartition('/')[2]}"
            place = kept if self.session.read(kept) is None else EDITS  # `move` adds a number
            self.session.move(name, EDITS)
            told = f"{name} was edited: cdo writes it from the record; what you wrote is in {place}"
            self.observe(NoteTold(text=f"{told}; use inbox/ to change things"))

    def _make_room(self, folder: str, files: Mapping[str, str]) -> None:
        """Move files of a folder that this process did not write and is about to overwrite to superseded/."""
        self.session.flush()  # otherwise this process's own pending writes would count as foreign
        for name in self.session.files.all_below(folder, written=False):
            if name in files and not self._holds(name, files[name]):
                self.session.move(name, f"superseded/{folder}")

    def _holds(self, name: str, text: str) -> bool:
        try:
            return self.session.read(name) == text
        except SessionError:  # it is not text
            return False

    def _clear_out(self, folder: str, names: Collection[str]) -> None:
        """Move the files of a folder that are not among `names` to superseded/."""
        for name in self.session.files.all_below(folder):
            if name not in names:
                self.session.move(name, f"superseded/{folder}")


def chosen(answer: str, options: Sequence[str]) -> str:
    """Return the option that an answer names, by its text or number; else the answer itself."""
    if answer in options:
        return answer
    return options[int(answer) - 1] if answer.isdecimal() and 1 <= int(answer) <= len(options) else answer


def minute(at: datetime) -> str:
    """Return a time in UTC, to the minute."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
