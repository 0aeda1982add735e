"""The command `watch`: a live view of any session, also one that another process runs. It changes nothing."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cdo.cli.common import OUT, SESSION, VERBOSE, dumps, out_folder, session_folder
from cdo.core.errors import SessionError, UsageError

if TYPE_CHECKING:
    from cdo.core.events import Event
    from cdo.history.journal_follower import Fresh, JournalUpdate
    from cdo.session.reader import SessionReader
    from cdo.terminal.views import LiveView, PlainView

UNATTENDED = "nobody runs it"
_RARELY = 50  # times as long as it took to read a mission's products they are not read again


@click.command()
@SESSION
@click.option(
    "-f", "--follow", is_flag=True, help="Wait until the session begins or is resumed, and watch until it is done."
)
@click.option("--json", "as_json", is_flag=True, help="Print each event as one line of JSON.")
@OUT
@VERBOSE
def watch(session: str | None, follow: bool, as_json: bool, out: str | None) -> None:
    """Watch a session while it runs, in this or another process.

    Without a name, watch the newest session that runs, else the newest one.
    """
    folder = _chosen(session, out, follow)
    watcher = _Lines(folder) if as_json else _Watcher(folder)
    try:
        watcher.follow(patient=follow)
    except KeyboardInterrupt:
        raise click.exceptions.Exit(130) from None


def _chosen(name: str | None, out: str | None, follow: bool) -> Path:
    """The session to watch; one that is waited for need not be there."""
    from cdo.session.records import locked, session_path, sessions

    if name is None:
        running = (path for path in sessions(out_folder(out)) if locked(path))
        return next(running, None) or session_folder(None, out)
    if follow:
        return Path(name) if os.sep in name else session_path(out_folder(out), name)
    try:
        return session_folder(name, out)
    except (SessionError, UsageError):  # `origin/a` is no name of a folder
        if kept := _kept(name, out):
            raise SessionError(
                f"There is nothing to watch: the folder of {kept.name} is gone, and {kept.place} keeps what it was.",
                f"`cdo report {name}` shows it, `cdo restore {name}` writes its folder again.",
            ) from None
        raise


def _kept(name: str, out: str | None) -> SessionReader | None:
    """The session on a branch of the repository that sessions live in, else of the working directory's."""
    from cdo.session.branch_reader import open_branch

    places = (place for place in (out_folder(out), Path()) if place.is_dir())
    return next((found for place in places if (found := open_branch(place, name))), None)


class _Lines:
    """Passes on every line of the journal, as JSON; and says on stderr what is not in it."""

    def __init__(self, folder: Path) -> None:
        from cdo.session.records import PREFIX

        self.folder = folder
        self.name = folder.name.removeprefix(PREFIX)
        self._damaged = False

    def follow(self, *, patient: bool) -> None:
        """Show what happens until it is done, or else until nobody runs it; raises `SessionError`.

        Who is `patient` waits for somebody to run it, unless there is a FINAL.md by then.
        """
        from cdo.history.journal_follower import Follower, SessionPhase

        before = SessionPhase.RUNNING
        for news in Follower(self.folder).news():
            self.show(news)
            if news.fresh.damaged and not self._damaged:
                self._damaged = True
                self.note("The journal has damaged lines, which are left out here; it only informs.")
            if news.phase is SessionPhase.DONE:
                return self.end(news)
            if news.phase is not before and news.phase is not SessionPhase.RUNNING:
                if not patient or self._finished(news):
                    return self.leave(news)
                self.wait(f"{self.state(news)} Waiting for it; Ctrl-C ends that.")
            before = news.phase
        return None

    def _finished(self, news: JournalUpdate) -> bool:
        """Whether it was left with a FINAL.md: then nobody will go on with it."""
        from cdo.history.journal_follower import SessionPhase

        return news.phase is SessionPhase.LEFT and (self.folder / "FINAL.md").is_file()

    def state(self, news: JournalUpdate) -> str:
        """Why nothing goes on, and what to do, in two sentences."""
        from cdo.core.formatting import one_line
        from cdo.history.journal_follower import SessionPhase

        resume = f"`cdo resume {self.name}` goes on with it."
        if news.phase is SessionPhase.GONE:
            return f"There is no session {self.folder}."
        if news.phase is SessionPhase.STOPPED and news.last:
            why = one_line(news.last.data["why"])
            return f"{why if why.endswith(('.', '?', '!', '…')) else f'{why}.'} {resume}"
        if self._finished(news):
            return f"Nobody runs it, and it has a FINAL.md: `cdo final {self.name}` prints it."
        return f"Nobody runs it. {resume}"

    def show(self, news: JournalUpdate) -> None:
        """Print what is fresh."""
        for data in news.fresh.lines:
            # Strings have no line breaks in JSON: every break is one between values.
            click.echo("".join(row.lstrip(" ") for row in dumps(data).split("\n")))

    def note(self, text: str) -> None:
        """Say something about what is watched."""
        from cdo.core.formatting import visible

        click.echo(visible(text), err=True)

    def wait(self, text: str) -> None:
        """Say why nothing goes on for now."""
        self.note(text)

    def leave(self, news: JournalUpdate) -> None:
        """End with a session that nobody runs."""
        from cdo.history.journal_follower import SessionPhase

        if news.phase is SessionPhase.GONE:
            raise SessionError(self.state(news), "`cdo list` shows what there is; `cdo watch -f` waits for one.")
        self.note(self.state(news))

    def end(self, news: JournalUpdate) -> None:
        """End with a session that has ended."""


class _ProductTree:
    """The products of the mission in `folder`, read again once they changed, and the rarer the longer that takes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: object = None
        self._after = 0.0
        self._told: list[dict[str, object]] = []

    def news(self, *, last: bool = False) -> Event | None:
        """The tree as an event, if it is another one now; `last` is asked however long it takes."""
        import time

        from cdo.cabal.files.status import products
        from cdo.core.events import Event
        from cdo.session.reader import SessionFolder

        began = time.monotonic()
        if began < self._after and not last:
            return None
        try:
            seen = sorted((entry.name, entry.stat().st_mtime_ns) for entry in os.scandir(self._folder / "products"))
            found = self._told if seen == self._seen else products(SessionFolder(self._folder))
        except (OSError, SessionError):  # it is about to be made, or gone
            return None
        self._seen, self._after = seen, began + _RARELY * (time.monotonic() - began)
        if found == self._told:
            return None
        self._told = found
        return Event("tree", "", {"products": found})


class _Watcher(_Lines):
    """Shows a session on stdout: drawn at a terminal, else a line an event; its result at the end."""

    def __init__(self, folder: Path) -> None:
        import time

        from cdo.terminal.run_state import LiveRun
        from cdo.terminal.views import make_view

        super().__init__(folder)
        self._tree: _ProductTree | None = None
        self._running, self._now = True, 0.0
        self._begun = self._closed = False

        def clock() -> float:
            return time.time() if self._running else self._now

        self.view: PlainView | LiveView = make_view(
            sys.stdout, quiet=False, verbose=False, json=False, watching=True, clock=clock
        )
        self.view.board = LiveRun(going="running")

    def follow(self, *, patient: bool) -> None:
        """As of lines; the terminal is restored whatever happens."""
        try:
            super().follow(patient=patient)
        finally:
            self.view.close()

    def show(self, news: JournalUpdate) -> None:
        """Tell the view what is fresh, at the time of the run."""
        from cdo.history.journal_follower import SessionPhase

        self._running = news.phase is SessionPhase.RUNNING
        if not self._begun and (self.folder / "session.yaml").is_file():
            self._begun = True
            self._introduce()
        self._renewed(news.fresh)
        if news.fresh.events:
            self._now = news.fresh.events[-1][0]
        self.view.tell(news.fresh.events)
        self._grown()

    def _grown(self, *, last: bool = False) -> None:
        """Tell the view what became of a mission's products."""
        if self._tree and (event := self._tree.news(last=last)):
            self.view.tell([(self._now, event)])

    def _renewed(self, fresh: Fresh) -> None:
        """Forget what a journal told that is another one now."""
        from cdo.terminal.run_state import LiveRun

        if fresh.anew:
            self.note("The journal is another one now: it is told from its beginning.")
            known = self.view.board
            self.view.board = LiveRun(known.session, known.preset, known.question, going="running")

    def _introduce(self) -> None:
        """Tell the view which session it is; a plan that cannot be read hides nothing else."""
        from cdo.core.events import Event
        from cdo.session.reader import SessionFolder
        from cdo.session.session_file import read_frozen

        data: dict[str, object] = {"preset": "", "path": str(self.folder)}
        try:
            plan = read_frozen(SessionFolder(self.folder).text("session.yaml"), self.folder).plan
            data |= {"preset": plan.preset, "why": plan.why, "models": list(plan.models)}
            self._tree = _ProductTree(self.folder) if plan.crew else None
            data["question"] = SessionFolder(self.folder).text("00-input.md")
        except SessionError as error:
            self.note(error.message)
        self.view.tell([(0.0, Event("run", self.name, data))])

    def note(self, text: str) -> None:
        """Say it among the events."""
        from cdo.core.events import Event

        if self._closed:
            return super().note(text)
        return self.view.tell([(self._now, Event("note", "", {"text": text}))])

    def wait(self, text: str) -> None:
        """Say it among the events, and in the head of what is drawn."""
        self.note(text)
        self.view.mark(UNATTENDED)

    def leave(self, news: JournalUpdate) -> None:
        """Leave what is known on the screen, and what to do on stderr."""
        self._grown(last=True)
        if not self.view.board.over:
            self.view.board = self.view.board.left(UNATTENDED)
        self.view.close()
        self._closed = True
        super().leave(news)

    def end(self, news: JournalUpdate) -> None:
        """Print the result as the run does."""
        from cdo.history.journal_events import RunEnd
        from cdo.terminal.views import summary

        self._grown(last=True)
        self.view.close()
        if news.last:
            ended = RunEnd.model_validate(dict(news.last.data))
            click.echo()
            click.echo(summary(ended.model_copy(update={"path": str(self.folder)})))
