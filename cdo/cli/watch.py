"""Implements the command `watch`, a live view of any session, even one run by another process. Changes nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from cdo.cli.common import (
    OUT,
    SESSION,
    VERBOSE,
    all_sessions,
    dumps,
    out_folder,
    session_folder,
    session_folders,
    session_place,
    text_width,
)  # fmt: skip
from cdo.core.errors import SessionError, UsageError
from cdo.core.formatting import visible

if TYPE_CHECKING:
    from cdo.history.journal_follower import Fresh, JournalUpdate
    from cdo.history.watching import ProductTree
    from cdo.session.reader import SessionReader
    from cdo.terminal.views import LiveView, PlainView
    from cdo.web_view.guard import Guard

UNATTENDED = "nobody runs it"


@click.command()
@SESSION
@click.option(
    "-f", "--follow", is_flag=True, help="Wait until the session begins or is resumed, and watch until it is done."
)
@click.option("--json", "as_json", is_flag=True, help="Print each event as one line of JSON.")
@click.option("--web", is_flag=True, help="Show sessions in a browser on this machine, live; Ctrl-C ends that.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Port of --web (default: a free one)."
)
@OUT
@VERBOSE
def watch(session: str | None, follow: bool, as_json: bool, web: bool, port: int, out: str | None) -> None:
    """Watch a session while it runs, in this or another process.

    Without a name, watch the newest session that runs, else the newest one; with --web, show all of them.
    """
    if web:
        return _in_browser(session, out, port)
    if port:
        raise UsageError("--port is the port of --web.", "Give both, or none.")
    folder = _chosen(session, out, follow)
    watcher = _Lines(folder) if as_json else _Watcher(folder)
    try:
        watcher.follow(patient=follow)
    except KeyboardInterrupt:
        raise click.exceptions.Exit(130) from None


def _in_browser(name: str | None, out: str | None, port: int) -> None:
    """Serve the pages of sessions to the person's browser until Ctrl-C; print the address that lets it in."""
    import asyncio
    import threading

    from cdo.cli.report import trusted_library
    from cdo.history.watching import session_name
    from cdo.web_view.pages import session_page_of
    from cdo.web_view.server import serve

    places, named, path = [place.absolute() for place in session_folders(out)], {}, "/"
    if name is not None:
        folder = session_folder(name, out).absolute()
        path = session_page_of(session_name(folder))
        named = {} if folder.parent in places else {session_name(folder): folder}

    def listening(guard: Guard) -> None:
        click.echo(visible(guard.address(path)))
        if sys.stdin.isatty():
            click.echo(
                "Open it in a browser. Enter prints another address, for another browser; Ctrl-C ends.", err=True
            )
            threading.Thread(target=_more_addresses, args=(guard, path), daemon=True).start()

    try:
        asyncio.run(serve(trusted_library(), places, named, port, listening))
    except KeyboardInterrupt:
        raise click.exceptions.Exit(130) from None


def _more_addresses(guard: Guard, path: str) -> None:
    """Print an address for each line that the person enters."""
    for _ in sys.stdin:
        click.echo(visible(guard.address(path)))


def _chosen(name: str | None, out: str | None, follow: bool) -> Path:
    """Return the folder of the session to watch; with `follow`, it need not exist yet."""
    from cdo.session.records import locked

    if name is None:
        running = (path for path in all_sessions(out) if locked(path))
        return next(running, None) or session_folder(None, out)
    if follow:
        return session_place(name, out)
    try:
        return session_folder(name, out)
    except (SessionError, UsageError):  # such as `origin/a`, which is not a folder
        if kept := _kept(name, out):
            raise SessionError(
                f"There is nothing to watch: the folder of {kept.name} is gone, and {kept.place} keeps what it was.",
                f"`cdo report {name}` shows it, `cdo restore {name}` writes its folder again.",
            ) from None
        raise


def _kept(name: str, out: str | None) -> SessionReader | None:
    """Return the session on a branch of the repository around the sessions' folder, else the working directory's."""
    from cdo.session.branch_reader import open_branch

    places = (place for place in (out_folder(out), Path()) if place.is_dir())
    return next((found for place in places if (found := open_branch(place, name))), None)


class _Lines:
    """A follower that prints every line of the journal as JSON, and its own notes on stderr."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._damaged = False

    def follow(self, *, patient: bool) -> None:
        """Show events until the session is done, or until no process runs it; raise `SessionError`.

        If `patient`, wait for a process to run it again, unless it has a FINAL.md.
        """
        from cdo.history.journal_follower import Follower, SessionPhase
        from cdo.history.watching import left_finished, standing

        before = SessionPhase.RUNNING
        for news in Follower(self.folder).news():
            self.show(news)
            if news.fresh.damaged and not self._damaged:
                self._damaged = True
                self.note("The journal has damaged lines, which are left out here; it only informs.")
            if news.phase is SessionPhase.DONE:
                return self.end(news)
            if news.phase is not before and news.phase is not SessionPhase.RUNNING:
                if not patient or left_finished(self.folder, news):
                    return self.leave(news)
                self.wait(f"{standing(self.folder, news)} Waiting for it; Ctrl-C ends that.")
            before = news.phase
        return None

    def show(self, news: JournalUpdate) -> None:
        """Print the new lines."""
        for data in news.fresh.lines:
            # JSON strings contain no line breaks, so every break is between values.
            click.echo("".join(row.lstrip(" ") for row in dumps(data).split("\n")))

    def note(self, text: str) -> None:
        """Print a note about the session."""
        click.echo(visible(text), err=True)

    def wait(self, text: str) -> None:
        """Print why the session is not running at the moment."""
        self.note(text)

    def leave(self, news: JournalUpdate) -> None:
        """Stop watching a session that no process runs."""
        from cdo.history.journal_follower import SessionPhase
        from cdo.history.watching import standing

        said = standing(self.folder, news)
        if news.phase is SessionPhase.GONE:
            raise SessionError(said, "`cdo list` shows what there is; `cdo watch -f` waits for one.")
        self.note(said)

    def end(self, news: JournalUpdate) -> None:
        """Stop watching a session that is done."""


class _Watcher(_Lines):
    """A follower that shows a session on stdout: live at a terminal, else one line per event; then its result."""

    def __init__(self, folder: Path) -> None:
        import time

        from cdo.terminal.run_state import LiveRun
        from cdo.terminal.views import make_view

        super().__init__(folder)
        self._tree: ProductTree | None = None
        self._running, self._now = True, 0.0
        self._begun = self._closed = False

        def clock() -> float:
            return time.time() if self._running else self._now

        self.view: PlainView | LiveView = make_view(
            sys.stdout, quiet=False, verbose=False, json=False, watching=True, clock=clock
        )
        self.view.board = LiveRun(going="running")

    def follow(self, *, patient: bool) -> None:
        """Follow as the base class does; always restore the terminal."""
        try:
            super().follow(patient=patient)
        finally:
            self.view.close()

    def show(self, news: JournalUpdate) -> None:
        """Pass the new events to the view, with the times of the run."""
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
        """Pass changes of a mission's products to the view."""
        if self._tree and (event := self._tree.news(last=last)):
            self.view.tell([(self._now, event)])

    def _renewed(self, fresh: Fresh) -> None:
        """Reset the view if the journal was replaced."""
        from cdo.terminal.run_state import LiveRun

        if fresh.anew:
            self.note("The journal is another one now: it is told from its beginning.")
            known = self.view.board
            self.view.board = LiveRun(known.session, known.preset, known.question, going="running")

    def _introduce(self) -> None:
        """Tell the view which session it shows."""
        from cdo.history.watching import ProductTree, opening

        told, is_mission, problem = opening(self.folder)
        if problem:
            self.note(problem)
        self._tree = ProductTree(self.folder) if is_mission else None
        self.view.tell([(0.0, told)])

    def note(self, text: str) -> None:
        """Show the note among the events."""
        from cdo.core.events import NoteTold

        if self._closed:
            return super().note(text)
        return self.view.tell([(self._now, NoteTold(text=text))])

    def wait(self, text: str) -> None:
        """Show the text among the events, and mark the session as unattended in the view."""
        self.note(text)
        self.view.mark(UNATTENDED)

    def leave(self, news: JournalUpdate) -> None:
        """Leave the last state on the screen, and print on stderr what to do."""
        self._grown(last=True)
        if not self.view.board.over:
            self.view.board = self.view.board.left(UNATTENDED)
        self.view.close()
        self._closed = True
        super().leave(news)

    def end(self, news: JournalUpdate) -> None:
        """Print the result as the run does."""
        from cdo.core.events import RunEnded
        from cdo.terminal.run_words import summary

        self._grown(last=True)
        self.view.close()
        if isinstance(news.last, RunEnded):
            width = text_width()
            click.echo()
            click.echo(summary(replace(news.last.result, path=str(self.folder)), width))
