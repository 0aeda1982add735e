"""Keeps a run in git: a commit for every turn, with a message that people and machines can read.

An observer beside the run: it collects events, and one thread makes the commits in order. A failure there costs the
commits and never the run. The tree of a commit is the session's folder, so that a session can be read, compared and
restored from git alone.
"""

from __future__ import annotations

import contextlib
import queue
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from cdo.content.library import Library
from cdo.core.errors import CdoError, SessionError
from cdo.core.events import CallSent, Event, QuestionAsked, ReviewBegan, RoundEnded, RunEnded, RunStopped
from cdo.core.formatting import one_line, pluralise
from cdo.files.atomic_files import names_in
from cdo.observers.branch_writer import ADVICE, BranchWriter, NoBranch
from cdo.observers.commit_messages import CommitMessageBuilder, PendingCommit
from cdo.repository.git_process import Refused, TooSlow
from cdo.security.secrets import masked
from cdo.session.branch_reader import BRANCH
from cdo.session.store import Session

AT_BEGIN = 0.5  # seconds without git, unless a commit is due: the first requests do not wait for it
AT_END = 5.0  # seconds for the commits that are due when the run has ended
AT_STOP = 2.0  # the same when the run was interrupted

# Before these events, all published files are written.
_GOES_ON = (CallSent, QuestionAsked, ReviewBegan, RunEnded, RunStopped)


# -- beside the run --------------------------------------------------------------------------------


class GitCommitObserver:
    """Keeps one run of an open session in git, from now until `close`.

    An instance is the observer of one process. Events queue commits, which a thread makes in order; `close` makes the
    commit of the run's end. `say` gets what a person should know, from the calling thread. `folder` is where the run
    was started, for a session that is kept outside of any repository. `library` words the messages. `redact` removes
    secrets from them. A file that it would change stays out of the commits, and so does a file with text that looks
    like a key. `heads` asks for a real branch. The files of a mission's round are written when the run goes on, so
    the commit of a round waits for that.
    """

    def __init__(
        self,
        session: Session,
        say: Callable[[str], None],
        folder: Path,
        library: Library,
        redact: Callable[[str], str] = str,
        heads: bool = False,
    ) -> None:
        problem = session.read("00-input.md") or ""
        self._session = session
        self._say = say
        self._told = CommitMessageBuilder(
            session.name, problem, session.records, lambda text: masked(redact(text)), library
        )
        self._keeper = BranchWriter(session, self._told, folder, redact, heads)
        self._jobs: queue.SimpleQueue[PendingCommit | None] = queue.SimpleQueue()
        self._waiting: deque[PendingCommit] = deque()
        self._notes: deque[str] = deque()
        self._off = self._complained = False
        self._told_of = ""
        self._told_held: set[str] = set()
        self._ending: PendingCommit | None = None
        self._round: PendingCommit | None = None
        self._patience = AT_STOP
        self._due = threading.Event()
        self._thread = threading.Thread(target=self._work, name="cdo-trail", daemon=True)
        self._jobs.put(PendingCommit("begin", 0, str))
        self._thread.start()

    def __call__(self, event: Event) -> None:
        """Queue the commit that an event requires, if any; return at once and raise nothing."""
        self._tell()
        if isinstance(event, RunEnded):
            self._patience = AT_END
        try:
            job = self._told.take(event)
            if job:
                self._due.set()
            if isinstance(event, (RoundEnded, *_GOES_ON)) and self._round:
                self._jobs.put(self._round)
                self._round = None
            if job and job.event == "turn":
                job = replace(job, calls=frozenset(names_in(self._session.path / "calls")))
                if isinstance(event, RoundEnded):
                    self._round = job
                else:
                    self._jobs.put(job)
            elif job:  # whatever else is recorded until `close` belongs to this commit
                self._ending = job
        except Exception as error:
            self._complain(f"unexpected: {error!r}")

    def close(self, until: float = float("inf")) -> None:
        """Make the commits that are due, for a few seconds at most. Call it before the session is closed.

        They are given up at the latest when the monotonic clock reaches `until`.
        """
        until = min(until, time.monotonic() + self._patience)
        self._due.set()
        for job in (self._ending, None):
            self._jobs.put(job)
        self._keeper.end(until)
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            self._off = True
            self._keeper.end(0.0)
            self._thread.join(1.0)
            self._complain("git did not end in time")
        self._tell_held()
        self._tell()

    def _tell(self) -> None:
        while self._notes:
            self._say(self._notes.popleft())

    # -- the thread ---------------------------------------------------------------------------

    def _work(self) -> None:
        self._due.wait(AT_BEGIN)
        while (job := self._jobs.get()) is not None:
            self._waiting.append(job)
            if not self._off:
                self._attempt()

    def _attempt(self) -> None:
        """Make all commits that wait; commits that git refuses wait for the next attempt."""
        try:
            with contextlib.suppress(SessionError):  # the run itself reports it
                self._session.flush()
            while self._waiting and not self._off:
                self._keep(self._waiting[0])
                self._waiting.popleft()
        except NoBranch:
            self._off = True
        except TooSlow as slow:
            self._off = True
            self._complain(str(slow))
        except Refused as refused:
            self._complain(str(refused))
        except (CdoError, OSError) as error:
            self._complain(str(error).rstrip("."))
        except Exception as error:
            # An unexpected error costs the commits, never the run.
            self._off = True
            self._complain(f"unexpected: {error!r}")

    def _keep(self, job: PendingCommit) -> None:
        for again in (True, False):
            try:
                self._keeper.keep(job)
                break
            except TooSlow:
                raise
            except Refused as refused:
                # Another process moved the ref: retry once, on top of its new tip.
                if not again or "Not updating" not in str(refused):
                    raise
        if not self._told_held:
            self._tell_held()
        if (foreign := self._keeper.foreign) and not self._told_of:
            self._told_of = foreign
            where = f"{self._keeper.branch}: {foreign} is a commit of somebody else"
            self._notes.append(f"git: {where}; the session's folder counts, what it changed stays in that commit.")
        usual = f"{BRANCH}{self._session.name}"
        if job.event == "begin" and self._keeper.branch != usual:
            self._notes.append(f"git: {usual} holds another session; this one is kept on {self._keeper.branch}.")

    def _tell_held(self) -> None:
        """Report the files that are kept out of the commits: the first ones at once, later ones at the end."""
        new = sorted(set(self._keeper.held) - self._told_held)
        if not new:
            return
        self._told_held |= set(new)
        first = self._told.redact(new[0])
        others = f" and {pluralise(len(new) - 1, 'other file')}" if new[1:] else ""
        self._notes.append(
            f"git: {one_line(first)}{others} is left out of the commits: it holds {self._keeper.held[new[0]]}. "
            "Once that is taken out, a later commit has it."
        )

    def _complain(self, why: str) -> None:
        """Report the first failure, and what to do about it."""
        if not self._complained:
            self._complained = True
            advice = next((words for pattern, words in ADVICE if re.search(pattern, why)), "")
            more = f" {advice}" if advice else ""
            self._notes.append(f"git: the run is not committed: {one_line(why)}.{more} --no-git leaves it out.")
