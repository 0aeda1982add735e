"""What people put into a run between its turns: answers, edited plans, messages. Each is recorded once taken.

A resume finds the same answers again; a plan that was edited since wins over what was recorded of it. What cdo only
shows (rosters, dashboards) is written when the run really goes on, so that a replay changes no file.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cdo.artifacts import digest
from cdo.content import Library
from cdo.errors import NeedsHuman
from cdo.store import Session
from cdo.types import Collect, Event, InvalidReply, Observe, Pause, Publish, Review

QUARANTINE = "quarantine"


@dataclass(frozen=True)
class Editing:
    """A document in a person's hands: where it is and its text, how it was worded, and how it is written back."""

    path: Path
    text: str
    review: Review
    render: Callable[[Mapping[str, Any]], str]
    write: Callable[[str], None]


@dataclass(frozen=True)
class Human:
    """How the person is asked; each is None where nobody can be asked.

    `answer` takes a pause and returns an option; `consent` takes stale and kept names and says yes or no; `review`
    lets a document be edited and returns its text.
    """

    answer: Callable[[Pause], Awaitable[str]] | None = None
    consent: Callable[[Sequence[str], Sequence[str]], Awaitable[bool]] | None = None
    review: Callable[[Editing], Awaitable[str]] | None = None


@dataclass
class People:
    """The person's side of one session."""

    session: Session
    library: Library
    human: Human
    observe: Observe
    moved: bool = False  # this process asked models something: what waits was not yet seen as it is now
    _drafts: dict[str, str] = field(default_factory=dict)

    async def pause(self, pause: Pause) -> str:
        """The recorded answer to a pause, or the person's, or the default where nobody can be asked."""
        for record in self.session.records:
            if record["kind"] == "answer" and record["name"] == pause.name and record["question"] == pause.question:
                return str(record["answer"])
        self.show()
        self.observe(Event("pause", pause.name, {"question": pause.question, "options": list(pause.options)}))
        asked = self.human.answer
        answer = await asked(pause) if asked else pause.default
        await self.session.commit(
            {
                "kind": "answer",
                "name": pause.name,
                "question": pause.question,
                "answer": answer,
                "by": "human" if asked else "default",
            }
        )
        return answer

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
            Editing(path, shown, review, self._render(review), lambda new: self.session.put_now(review.file, new))
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
                f"Mend the file, then `cdo resume {self.session.name}`; nothing is lost.",
            ) from None

    # -- messages -----------------------------------------------------------------------------

    async def collect(self, collect: Collect) -> tuple[Any, ...]:
        """What a person left in a folder, taken once; what cannot be read is put into quarantine, with the reason."""
        record = next(
            (old for old in self.session.records if old["kind"] == "collected" and old["name"] == collect.name), None
        )
        if record is None:
            items = []
            for name, text in self.session.taken(collect.folder):
                try:
                    collect.format.parse(text)
                except InvalidReply as invalid:
                    parent = collect.folder.rpartition("/")[0]
                    place = f"{parent}/{QUARANTINE}" if parent else QUARANTINE
                    self.session.move(f"{collect.folder}/{name}", place, " ".join(invalid.problems) + "\n")
                    note = f"{collect.folder}/{name} was put into {place}: {' '.join(invalid.problems)}"
                    self.observe(Event("note", "", {"text": note}))
                else:
                    items.append({"file": name, "text": text})
            record = await self.session.commit({"kind": "collected", "name": collect.name, "items": items})
        known = {item["file"]: item["text"] for item in record["items"]}
        for name, text in self.session.taken(collect.folder) if known else ():
            if known.get(name) == text:  # also where a crash came between the record and this
                self.session.move(f"{collect.folder}/{name}", f"{collect.folder.rpartition('/')[0] or 'taken'}/taken")
        return tuple(collect.format.parse(text) for text in known.values())

    # -- what is shown ------------------------------------------------------------------------

    def publish(self, publish: Publish) -> None:
        """Keep files for people until the run really goes on."""
        self._drafts |= publish.files

    def show(self) -> None:
        """Write what was published, where it is not on disk as it is."""
        files: Mapping[str, str] = self._drafts
        self._drafts = {}
        for name, text in files.items():
            self.session.put_changed(name, text)
