"""What people put into a run between its turns: answers, edited plans, messages. Each is recorded once taken.

A resume finds the same answers again; a plan that was edited since wins over what was recorded of it. What cdo only
shows (rosters, dashboards) is written when the run really goes on, so that a replay changes no file.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from cdo.content.library import Library
from cdo.core.errors import NeedsHuman, SessionError
from cdo.core.events import Event, Observe
from cdo.core.formatting import one_line
from cdo.core.steps import Ask, Collect, Gather, InvalidReply, Pause, Project, Publish, Review
from cdo.session.artifact import digest
from cdo.session.store import Session

QUARANTINE = "quarantine"
INBOX, LETTER = "inbox", "answer"  # where answers are put, and how their names begin
TAKEN = "taken"  # where a letter is kept once it was taken
EDITS = "superseded/edits"  # what a person changed in place, once it was taken


@dataclass(frozen=True)
class PendingReview:
    """A document in a person's hands: where it is and its text, how it was worded, and how it is written back."""

    path: Path
    text: str
    review: Review
    render: Callable[[Mapping[str, Any]], str]
    write: Callable[[str], None]


@dataclass(frozen=True)
class Human:
    """How the person is asked; each is None where nobody can be asked.

    `answer` takes a pause and returns an option, `tell` a question and returns any text; `consent` takes stale and
    kept names and says yes or no; `review` lets a document be edited and returns its text.
    """

    answer: Callable[[Pause], Awaitable[str]] | None = None
    consent: Callable[[Sequence[str], Sequence[str]], Awaitable[bool]] | None = None
    review: Callable[[PendingReview], Awaitable[str]] | None = None
    tell: Callable[[Ask], Awaitable[str]] | None = None


@dataclass
class HumanSteps:
    """The person's side of one session."""

    session: Session
    library: Library
    human: Human
    observe: Observe
    moved: bool = False  # this process asked models something: what waits was not yet seen as it is now
    closed: bool = False  # nothing that was left after the end is looked for
    _drafts: dict[str, str] = field(default_factory=dict)
    _restored: dict[str, str] = field(default_factory=dict)
    _projected: Project | None = None
    _shown: Any = None
    _rooms: dict[str, frozenset[str]] = field(default_factory=dict)
    _gone: tuple[str, ...] = ()

    async def pause(self, pause: Pause) -> str:
        """The recorded answer to a pause, or the person's, or the default where nobody can be asked."""
        if record := self._answered(pause):
            return str(record["answer"])
        self.show()
        self.observe(Event("pause", pause.name, {"question": pause.question, "options": list(pause.options)}))
        asked = self.human.answer
        answer = await asked(pause) if asked else pause.default
        return str((await self._keep(pause, answer, "human" if asked else "default"))["answer"])

    async def ask(self, ask: Ask) -> str:
        """The answer to a question that only the person can answer: recorded, left in the inbox, or given now.

        Raises `NeedsHuman` where nobody can be asked and no answer was left.
        """
        if record := self._answered(ask):
            self._clear(record)
            return str(record["answer"])
        self.show()
        if left := self._left_as_answer():
            record = await self._keep(ask, chosen(left[1].strip(), ask.options), "human", left)
            self._clear(record)
            return str(record["answer"])
        self.observe(Event("pause", ask.name, {"question": ask.question, "options": list(ask.options)}))
        if self.human.tell is None:
            choices = f" ({' / '.join(one_line(option) for option in ask.options)})" if ask.options else ""
            raise NeedsHuman(
                f"The team asks you: {one_line(ask.question)}{choices}",
                f'`cdo answer {self.session.name} "…"` answers it, or a file inbox/{LETTER}.md; then '
                f"`cdo resume {self.session.name}` goes on.",
                ask.question,
                tuple(ask.options),
            )
        return str((await self._keep(ask, await self.human.tell(ask), "human"))["answer"])

    def _left_as_answer(self) -> tuple[str, str] | None:
        """The letter (name, text) that answers a question: one that is called so, else one addressed to nothing."""
        letters = [(name, text) for name, text, _ in self.session.taken(INBOX) if text.strip()]
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
        """Move the letter that was taken as an answer, also where a crash came before this."""
        name, text = record.get("letter") or ("", "")
        if name and self._just(record) and (name, text, "") in self.session.taken(INBOX):
            self.session.move(f"{INBOX}/{name}", TAKEN)

    def _just(self, record: Mapping[str, Any]) -> bool:
        """Whether a record is so new that what follows from it may not be done yet: no model was asked since.

        Later the same words in the same place are said anew.
        """
        newer = takewhile(lambda other: other["kind"] != "exchange", reversed(self.session.records))
        return any(other is record for other in newer)

    # -- documents ----------------------------------------------------------------------------

    async def review(self, review: Review) -> Any:
        """The data of a document as the person left it.

        Raises `NeedsHuman` where nobody can be asked: the file is there then, and the next process takes it as it
        stands; also where an edit cannot be read, with line and column.
        """
        proposed = review.word(self._render(review))
        identity = digest([review.file, proposed])[:16]
        asked, left = self._reviewed(identity)
        text = self.session.read(review.file)
        if left is not None and text in (None, left):
            return review.format.parse(left)
        taken = asked and text is not None and not self.human.review and not self.moved
        if left is not None or taken:
            data, text = self._parsed(review, text or ""), text or ""
        else:
            text, data = await self._edited(review, identity, proposed, text if asked else None)
        await self.session.commit({"kind": "reviewed", "file": review.file, "proposed": identity, "text": text})
        return data

    def _render(self, review: Review) -> Callable[[Mapping[str, Any]], str]:
        return lambda values: self.library.render(review.template, values)

    def _reviewed(self, identity: str) -> tuple[bool, str | None]:
        """Whether a document was put before the person already, and the text they left last."""
        asked, left = False, None
        for record in self.session.records:
            if record.get("proposed") == identity:
                asked = True
                left = str(record["text"]) if record["kind"] == "reviewed" else left
        return asked, left

    async def _edited(self, review: Review, identity: str, proposed: str, text: str | None) -> tuple[str, Any]:
        """Put a document before the person, and return what they made of it."""
        if text is None:
            if self.session.read(review.file) is not None:
                self.session.move(review.file, "superseded/plans")
                told = f"{review.file} was the plan of another proposal; it is kept in superseded/plans"
                self.observe(Event("note", "", {"text": told}))
            self.session.put_now(review.file, proposed)
            await self.session.commit({"kind": "proposed", "file": review.file, "proposed": identity})
        self.show()
        path = self.session.path / review.file
        if self.human.review is None:
            raise NeedsHuman(
                f"The plan of the next turn waits for you: {path}.",
                f"Edit it or leave it as it is, then `cdo resume {self.session.name}` goes on.",
            )
        self.observe(Event("review", review.file, {"path": str(path)}))
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
            raise NeedsHuman(
                f"{self.session.path / review.file} cannot be read: {' '.join(invalid.problems)}",
                f"Fix the file, then `cdo resume {self.session.name}`; nothing is lost.",
            ) from None

    # -- messages -----------------------------------------------------------------------------

    async def collect(self, collect: Collect) -> tuple[Any, ...]:
        """What a person left in a folder, taken once; what cannot be read is put into quarantine, with the reason."""
        record = self._collected(collect.name)
        if record is None and ((collect.again and self.closed) or self._collected(collect.before)):
            return ()
        if record is None:
            items = []
            for name, text, problem in self.session.taken(collect.folder):
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
                    self.observe(Event("note", "", {"text": note}))
                else:
                    items.append({"file": name, "text": text})
            if collect.again and not items:
                return ()
            record = await self.session.commit({"kind": "collected", "name": collect.name, "items": items})
        known = {item["file"]: item["text"] for item in record["items"]}
        parent = collect.folder.rpartition("/")[0]
        for name, text, _ in self.session.taken(collect.folder) if known and self._just(record) else ():
            if known.get(name) == text:  # also where a crash came between the record and this
                self.session.move(f"{collect.folder}/{name}", f"{parent}/{TAKEN}" if parent else TAKEN)
        return tuple(collect.format.parse(text) for text in known.values())

    def _collected(self, name: str) -> dict[str, Any] | None:
        records = self.session.records
        return next((old for old in records if old["kind"] == "collected" and old["name"] == name), None)

    async def gather(self, gather: Gather) -> tuple[tuple[str, Any], ...]:
        """What a person changed or added below a folder, as (file, data), taken once.

        What was taken is moved out of the way, so that what was published can be there again.
        """
        record = self._collected(gather.name)
        if record is None and gather.again and self.closed:
            return ()
        if record is None:
            self.show()
            self.session.flush()  # or what cdo is about to write would look like an edit
            items = []
            for name, text, problem in self.session.below(gather.folder, written=False):
                if not problem and gather.known.get(name) == text:
                    continue
                try:
                    if problem:
                        raise InvalidReply([problem])
                    gather.format.parse(text)
                except InvalidReply as invalid:
                    if name not in gather.known:  # else it makes no room: the next time it is whole again
                        self.session.move(name, QUARANTINE, f"{invalid.problems[0]}\n")
                    self.observe(Event("note", "", {"text": f"{name} was not taken: {invalid.problems[0]}"}))
                else:
                    items.append({"file": name, "text": text})
            if gather.again and not items:
                return ()
            record = await self.session.commit({"kind": "collected", "name": gather.name, "items": items})
        known = {str(item["file"]): str(item["text"]) for item in record["items"]}
        there = {name: text for name, text, _ in self.session.below(gather.folder)} if self._just(record) else {}
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
        """Keep a state to be shown until the run really goes on, and tell observers what is over."""
        self._projected = project
        if project.name:
            how = {} if self.moved else {"how": "recorded"}
            self.observe(Event("round", project.name, {**project.told, **how}))

    def go_on(self) -> None:
        """Write queued files and move outdated ones away; called just before a model is asked."""
        for name in self._gone:
            if self.session.read(name) is not None:
                self.session.move(name, "superseded/ended")
        self._gone = ()
        self.show()
        self.moved = True

    def show(self) -> None:
        """Write what was published, where it is not on disk as it is."""
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
        for name, text in once.items():
            if self.session.read(name) is None:
                self.session.put_text(name, text)
        for name, text in files.items():
            self.session.put_changed(name, text)

    def _spare(self, files: Mapping[str, str], untouched: Callable[[str], bool]) -> None:
        """Move what a person edited out of the way of the files that are written over it, and tell where it is."""
        for name, text in files.items():
            there = self.session.read(name)
            if there is None or there == text or untouched(there):
                continue
            kept = f"{EDITS}/{name.rpartition('/')[2]}"
            place = kept if self.session.read(kept) is None else EDITS  # there it gets a number
            self.session.move(name, EDITS)
            told = f"{name} was edited: cdo writes it from the record; what you wrote is in {place}"
            self.observe(Event("note", "", {"text": f"{told}; use inbox/ to change things"}))

    def _make_room(self, folder: str, files: Mapping[str, str]) -> None:
        """Move what this process did not write in a folder, and would now write over, to superseded/."""
        self.session.flush()  # or what it is about to write would look like another's
        here = [f"{folder}/{file}" for file, *_ in self.session.taken(folder, written=False)]
        for name in (*here, *(name for name, *_ in self.session.below(folder, written=False))):
            if name in files and not self._holds(name, files[name]):
                self.session.move(name, f"superseded/{folder}")

    def _holds(self, name: str, text: str) -> bool:
        try:
            return self.session.read(name) == text
        except SessionError:  # it is not text
            return False

    def _clear_out(self, folder: str, names: Collection[str]) -> None:
        """Move what is in a folder of the session, and not among `names`, to superseded/."""
        here = [f"{folder}/{file}" for file, *_ in self.session.taken(folder)]
        for name in (*here, *(name for name, *_ in self.session.below(folder))):
            if name not in names:
                self.session.move(name, f"superseded/{folder}")


def chosen(answer: str, options: Sequence[str]) -> str:
    """The option that a person means: as it stands, or by its number; else what they wrote."""
    if answer in options:
        return answer
    return options[int(answer) - 1] if answer.isdecimal() and 1 <= int(answer) <= len(options) else answer
