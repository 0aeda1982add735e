"""A deliberation for a Python program: begun, followed event by event, resumed, read.

A session is the folder that the command line uses too, so that `cdo resume`, `cdo report` and this module may take
turns with one. The working directory counts as it does there: its repository, its `.cdo` folder, its `tmp`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self, Unpack

from msgspec.structs import replace

from cdo.api.options import ResumeOptions, RunOptions, named_as_here, require_known, settings_of
from cdo.app import new_run, seats, waiting
from cdo.app import run as running
from cdo.app.session_places import placed, require_trusted_session
from cdo.content.library import Library
from cdo.core.errors import NeedsHuman, UsageError
from cdo.core.events import Event, Observe
from cdo.core.result import Result
from cdo.core.signals import left_to_caller
from cdo.core.usage import TotalUsage, estimate_tokens, totals
from cdo.history.index_entries import look
from cdo.history.pending import open_seats
from cdo.planning import settings, spending
from cdo.planning.arguments import Invocation
from cdo.planning.estimate import Range, estimate
from cdo.planning.plan import Plan
from cdo.planning.settings import Resolved
from cdo.providers.model_names import meant
from cdo.runner.people.human_steps import Human
from cdo.security.secrets import redactor
from cdo.session import session_file
from cdo.session.reader import SessionFolder
from cdo.session.records import PREFIX, read_session, session_path
from cdo.session.store import Session

if TYPE_CHECKING:
    from cdo.tracing.collector import Collector

AGREE = "Pass agreed=True to agree, or cap the run with budget=USD."


def deliberate(question: str, **options: Unpack[RunOptions]) -> Result:
    """Deliberate a question to its end and return the result; FINAL.md is in the folder `Result.path`.

    Raises `CdoError`: what was answered until then is on record, and `Session.open(...).run()` goes on from there.
    Within a running event loop use `deliberate_async`.
    """
    return SessionHandle.begin(question, **options).run()


async def deliberate_async(question: str, **options: Unpack[RunOptions]) -> Result:
    """Deliberate a question to its end, like `deliberate`. A cancelled task leaves a session that can be resumed."""
    session = await asyncio.to_thread(SessionHandle.begin, question, **options)
    return await session.run_async()


class SessionHandle:
    """A deliberation in its folder. Make one with `begin` or `open`; several may run at the same time.

    `path` is the folder. `estimate` is what the run may take, None for a session that was opened.
    """

    def __init__(self, path: Path, options: ResumeOptions, estimate: Range | None = None) -> None:
        self.path = path
        self.estimate = estimate
        self._options = options

    @classmethod
    @named_as_here()
    def begin(cls, question: str, **options: Unpack[RunOptions]) -> Self:
        """Plan a run and make its folder. Nothing is sent before it is run.

        Raises `UsageError`, `ConfigError` or `ContentError` if something is wrong with the question, an option or a
        file, and `NeedsHuman` if the run may cost more than is agreed to.
        """
        require_known(options, RunOptions)
        problem = redactor(os.environ)(question.strip())
        if not problem:
            raise UsageError("There is no question to deliberate.", "Give one.")
        _collector(options)
        library, resolved = _surroundings(options)
        new = _planned(problem, options, library, resolved.sure(library))
        span = estimate(new.plan, new.specs, estimate_tokens(problem + new.context))
        doubt = None if options.get("agreed") else spending.doubt(new.specs, span, resolved.values, resolved.sources)
        if doubt:
            raise NeedsHuman(f"{doubt.reason}. Nothing was sent.", AGREE)
        seats.allow_weights(new.specs)
        made = session_file.create(new.plan, problem, new.context, resolved, options.get("session"))
        made.close()
        return cls(made.path.absolute(), options, span)

    @classmethod
    @named_as_here()
    def open(cls, session: str | os.PathLike[str], **options: Unpack[ResumeOptions]) -> Self:
        """Return a session that is there, by its name or its folder, to read it or to go on with it.

        Raises `SessionError` if there is no such session.
        """
        require_known(options, ResumeOptions)
        _collector(options)
        name = os.fspath(session)
        path = Path(name)
        if os.sep not in name:
            path = session_path(Path(_surroundings(options)[1].values.out), name.removeprefix(PREFIX))
        SessionFolder(path).files()
        return cls(path.absolute(), options)

    @property
    def name(self) -> str:
        """The name of the session."""
        return SessionFolder(self.path).name

    @property
    def question(self) -> str:
        """The question, as it is on record."""
        return (self.read("00-input") or "").strip()

    @property
    def status(self) -> str:
        """How far it is: "converged", "capped" and the other statuses of ended runs, else what it waits for."""
        return str(look(SessionFolder(self.path)).row["status"])

    @property
    def final(self) -> str | None:
        """The text of FINAL.md, None before there is one."""
        return self.read("FINAL")

    @property
    def used(self) -> TotalUsage:
        """The calls, tokens and dollars of the session so far."""
        return totals(read_session(self.path))

    @property
    def awaited(self) -> tuple[str, ...]:
        """The people whose answers to the present turn it waits for."""
        return tuple(item.person for item in open_seats(SessionFolder(self.path)))

    @named_as_here()
    def answer(self, text: str, *, person: str = "") -> None:
        """Answer the present turn for a person who has a seat in it, also while the session is run with `wait=True`.

        `text` is plain words or a filled-in form; `person` says whose answer it is where several are awaited. Raises
        `SessionError` if nobody is asked, and `UsageError` for an answer that cannot be read.
        """
        waiting.answer_seat(self.path, text, person)

    def files(self) -> tuple[str, ...]:
        """Return the names of the session's files, with folders."""
        return SessionFolder(self.path).files()

    def read(self, name: str) -> str | None:
        """Return the text of a file, such as "t1-critic" or "FINAL.md"; None if there is none."""
        folder = SessionFolder(self.path)
        return folder.text(name) if "." in name else folder.text(f"{name}.md")

    def run(self, *, human: Human | None = None) -> Result:
        """Drive the session to its end and return the result. What is on record is not asked again.

        `human` answers questions; without it, questions that only a person can answer raise `NeedsHuman`. Raises
        `CdoError`; `KeyboardInterrupt` after Ctrl-C. In each case what was answered is on record.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.run_async(human=human))
        raise UsageError("An event loop runs already.", "Await `run_async()` or `deliberate_async()` in it.")

    async def run_async(self, *, human: Human | None = None, observe: Observe = lambda event: None) -> Result:
        """Drive the session to its end, like `run`. `observe` is called with each event, in the event loop."""
        session, plan, hooks, values, library = await asyncio.to_thread(self._opened)
        hooks.observe, hooks.human = observe, human or self._human()
        hooks.again = f'Session.open("{session.name}").run()'
        if collector := _collector(self._options):
            from cdo.observers.live_trace import SpanSender

            hooks.sender = SpanSender(collector, redactor(os.environ))
        if plan.crew:
            from cdo.app.nested_run import holder

            hooks.nest = holder(session, plan, values, library, hooks)
        with left_to_caller(), named_as_here():
            return await running.run(session, plan, values, library, hooks)

    async def events(self, *, human: Human | None = None) -> AsyncIterator[Event]:
        """Drive the session to its end and yield what happens; `RunEnded` has the result.

        Raises the `CdoError` that stops the run. An iteration that is left early stops the run, which can be resumed.
        """
        queue: asyncio.Queue[Event | None] = asyncio.Queue()
        task = asyncio.ensure_future(self.run_async(human=human, observe=queue.put_nowait))
        task.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while (event := await queue.get()) is not None:
                yield event
            await task
        finally:
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    @named_as_here()
    def _opened(self) -> tuple[Session, Plan, running.RunHooks, settings.Settings, Library]:
        """Open the session for a run; raise `CdoError` if it cannot go on here."""
        library, resolved = _surroundings(self._options)
        session = Session.open(self.path, redactor(os.environ))
        try:
            kept = session_file.load(session)
            values = session_file.with_overrides(kept.settings, resolved)
            if not self._options.get("trust"):
                require_trusted_session(session.path, kept.plan.root, values.adr_dir)
            names = kept.plan.asked
            specs = seats.specs(names, library, values, os.environ)
            if not self._options.get("trust"):
                seats.require_allowed_weights(specs, str(session.path))
            stays = self._options.get("wait", False)
            hooks = running.RunHooks(specs, lambda event: None, instead=kept.plan.instead(names), wait=stays)
            return session, kept.plan, hooks, values, library
        except BaseException:
            session.close()
            raise

    def _human(self) -> Human:
        """Return who is asked without a person: nobody, who agrees to stale calls only if that was said before."""

        async def consent(stale: Sequence[str], kept: Sequence[str]) -> bool:
            return True

        return Human(consent=consent) if self._options.get("agreed") else Human()


def _surroundings(options: ResumeOptions) -> tuple[Library, Resolved]:
    """Return the content and the settings that count here, with those among the options."""
    library = Library.at(Path.cwd(), trust_now=options.get("trust", False))
    resolved = placed(settings.resolve(settings_of(options), library))
    full = meant(resolved.values.model, library)
    return library, replace(resolved, values=replace(resolved.values, model=full))


def _collector(options: ResumeOptions) -> Collector | None:
    """Return the collector among the options, None without one; raise `UsageError` if there can be none."""
    address = options.get("otlp")
    if address is None:
        return None
    from cdo.tracing.collector import Collector

    return Collector.at(address, os.environ)


def _planned(problem: str, options: RunOptions, library: Library, resolved: Resolved) -> new_run.NewRun:
    """Return the plan of a new run with what belongs to it."""
    modifiers = tuple(options.get("modifiers", ()))
    words = Invocation(options.get("preset"), modifiers, options.get("mode"), options.get("domain"), problem)
    for kind, name in (("presets", words.preset), ("modes", words.mode)):
        if name is not None and not library.has(f"{kind}/{name}"):
            raise UsageError(f"`{name}` is not one of the {kind}.", f"There are {', '.join(library.names(kind))}.")
    wishes = new_run.Wishes(
        context=[os.fspath(path) for path in options.get("context", ())],
        look=options.get("look", True),
        trust=options.get("trust", False),
        seats=tuple(options.get("seats", ())),
    )
    return new_run.planned(words, problem, resolved, library, wishes)
