"""Runs a nested deliberation for another run, in its own session in the same folder."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from hashlib import sha256
from pathlib import Path

from msgspec.structs import replace

from cdo.app import run
from cdo.content.library import Library
from cdo.core.errors import BudgetReached, SessionError
from cdo.core.events import ContentOpened, Event, RunEnded, RunStopped
from cdo.core.schema import field_names
from cdo.core.steps import Nest, Nested
from cdo.core.usage import TotalUsage, estimate_tokens, totals
from cdo.files.atomic_files import encodable
from cdo.formats.final_answer import final_section
from cdo.planning.arguments import Invocation
from cdo.planning.plan import Plan
from cdo.planning.plan_builder import PlanEnvironment, make
from cdo.planning.settings import Resolved, Settings
from cdo.repository.shown_files import shown_files
from cdo.runner.budget import Limits
from cdo.security.secrets import redactor
from cdo.session.reader import SessionFolder, checked_in
from cdo.session.records import read_session, session_path
from cdo.session.session_file import create_session, load, new_session_file, read_frozen
from cdo.session.store import Session
from cdo.tracing.identity import TraceIdentity

KEPT = ("Decision", "Confidence", "Key Tensions", "Minority Reports", "Action Items")
LINE = 600  # most characters of the decision when shown on one line
_NAME = 63  # characters of a nested session's name
Hold = Callable[[Nest, Limits], Awaitable[tuple[Nested | None, TotalUsage]]]


def holder(parent: Session, plan: Plan, settings: Settings, library: Library, shell: run.RunHooks) -> Hold:
    """Return a function that runs deliberations for the session `parent`, with its models and settings."""

    def observe(event: Event) -> None:
        if not isinstance(event, RunStopped | RunEnded | ContentOpened):  # only the mission itself reports these
            shell.observe(event)

    async def hold(nest: Nest, left: Limits) -> tuple[Nested | None, TotalUsage]:
        if left.calls == 0 or left.tokens == 0 or left.cost == 0 or left.seconds == 0:
            return None, totals(read_session(_place(parent, nest)))
        bounded = replace(
            settings,
            max_calls=left.calls,
            max_tokens=left.tokens,
            budget=left.cost,
            timeout=left.seconds,
            width=None,
            turns=None,
            strict=False,
        )
        session, inner = await asyncio.to_thread(_opened, parent, nest, bounded, plan, library)
        again = f"cdo resume {parent.name}"
        within = TraceIdentity.of(parent.name, load(parent).created) if shell.sender else None
        try:
            result = await run.run(
                session,
                inner,
                bounded,
                library,
                replace(shell, nest=None, observe=observe, reopened=False, again=again, within=within),
            )
        except BudgetReached:
            return None, totals(session.records)
        final = SessionFolder(session.path).artifact("FINAL")
        body = final.body if final else ""
        parts = [f"## {name}\n\n{text.strip()}" for name in KEPT if (text := final_section(body, name))]
        line = " ".join(result.decision.split())[:LINE] or result.why
        why = {item.citation: item.why for found in checked_in(session.records).values() for item in found}
        refuted = tuple((citation, why[citation]) for citation in result.unverified if citation in why)
        told = Nested(session.name, result.status, line, result.confidence, "\n\n".join(parts), refuted)
        return told, totals(session.records)

    return hold


def _opened(parent: Session, nest: Nest, settings: Settings, plan: Plan, library: Library) -> tuple[Session, Plan]:
    """Return the session of a deliberation and its plan: the one already begun, else a new one."""
    path = _place(parent, nest)
    if path.is_dir():
        session = Session.open(path, redactor(os.environ))
        try:
            return session, load(session).plan
        except BaseException:
            session.close()
            raise
    most = plan.crew.evidence if plan.crew else 0
    around = PlanEnvironment(vendors=plan.vendors)
    if most:
        settings = replace(settings, context_tokens=most)
        around = replace(around, root=plan.root, looks=_looks(library) if plan.tools else None)
    invocation = Invocation(nest.preset, (), None, None, nest.question)
    sources = dict.fromkeys(field_names(Settings), _mission(parent))
    inner = make(invocation, nest.question, Resolved(settings, sources), library, plan.models, around)
    told = [f"# Context\n\n{nest.context.strip()}\n", *(_evidence(parent, inner, nest, most) if most else ())]
    files = {"00-input.md": _asked(nest), "00-context.md": encodable("\n".join(told))}
    return create_session(new_session_file(inner, settings, sources), files, parent.path.parent, path.name, ()), inner


def _looks(library: Library) -> tuple[int, int]:
    """Return how often a voice may look into the repository, unless its preset says otherwise."""
    from cdo.repository.tools import ToolBox

    box = library.read("dispatch/tools", ToolBox)[0]
    return box.max_requests, box.max_rounds


def _evidence(parent: Session, inner: Plan, nest: Nest, most: int) -> Iterator[str]:
    """Yield the files that a deliberation is shown, `most` estimated tokens of them: first those of the mission.

    Then come further files of the repository that its own question is about.
    """
    shown = parent.read("00-context.md") or ""
    files = shown.removeprefix("# Context\n").strip("\n") if shown_files(shown) else ""
    if files:
        yield f"{files}\n"
    room = min(inner.context_tokens or 0, most - estimate_tokens(files))
    if inner.root and room > 0:
        from cdo.repository.survey import further

        if found := further((parent.path / inner.root).resolve(), nest.question, room, shown):
            yield found


def _place(parent: Session, nest: Nest) -> Path:
    """Return the path of a deliberation's session: the first name that is free or already holds this deliberation.

    Raises `SessionError` if a folder at such a path is not a session, or if no name is free.
    """
    for number in range(1, 100):
        path = session_path(parent.path.parent, _name(parent.name, nest.name, number))
        if not os.path.lexists(path) or (path.is_dir() and _holds(path, parent, nest)):
            return path
    raise SessionError(f"No free name was found for the deliberation {nest.name} of {parent.name}.", "Move old ones.")


def _name(parent: str, nest: str, number: int) -> str:
    """Return the name of a nested session. If the parent's name must be cut, a hash of it keeps the name unique."""
    ending = f"-{nest}" if number == 1 else f"-{nest}-{number}"
    if len(parent) + len(ending) > _NAME:
        ending = f"-{sha256(parent.encode()).hexdigest()[:8]}{ending}"
    return f"{parent[: _NAME - len(ending)]}{ending}"


def _holds(path: Path, parent: Session, nest: Nest) -> bool:
    """True if a session was begun for this deliberation: by this mission, and with this question."""
    redact, folder = redactor(os.environ), SessionFolder(path)
    begun_by = read_frozen(folder.text("session.yaml"), path).sources.values()
    return _mission(parent) in begun_by and redact(folder.text("00-input.md") or "") == redact(_asked(nest))


def _mission(parent: Session) -> str:
    return f"mission {parent.name}"


def _asked(nest: Nest) -> str:
    return encodable(f"{nest.question.strip()}\n")
