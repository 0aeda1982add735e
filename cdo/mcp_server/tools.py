"""The tools of the server. What goes wrong is told to the client in the sentences that a person would get."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Annotated, TypeVar

import anyio
import anyio.to_thread
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from cdo.client_runs.progress import RunStatus, as_json
from cdo.client_runs.records import RunRecord
from cdo.client_runs.requests import RunRequest
from cdo.client_runs.service import RunService
from cdo.core.errors import CdoError

WAIT = 50.0  # seconds that a tool waits at most: agents give up on a tool after a minute
_PACE = 0.5  # seconds between two looks at a run

# The runs that the present call began, where it is to become a task; None for a client that knows no tasks.
BEGUN: ContextVar[list[RunRecord] | None] = ContextVar("begun", default=None)

Found = TypeVar("Found")
Question = Annotated[str, Field(max_length=200_000, description="The question, with the facts that a reader needs.")]
SessionName = Annotated[str, Field(max_length=100, description="The session, as `deliberate` returned it.")]
Dollars = Annotated[
    float | None,
    Field(
        description="Most that the run may cost in dollars. Leave it out to take the limit that the person allows."
    ),
]
Paths = Annotated[
    tuple[Annotated[str, Field(max_length=4096)], ...],
    Field(max_length=64, description="Files and folders of the project that the voices are shown."),
]
Models = Annotated[
    tuple[Annotated[str, Field(max_length=300)], ...],
    Field(max_length=16, description="Models as PROVIDER/MODEL, which the voices take in turn. Usually left out."),
]
PresetWords = Annotated[
    str,
    Field(
        max_length=200,
        description="quick, think, deep, full or debug; with `hitl` in front the person sees the plan of each turn; "
        "`cabal` has a team make deliverables. Leave it out, and the question decides.",
    ),
]
Seat = Annotated[
    str,
    Field(
        max_length=32,
        description="Name of the person, if they asked for a voice of their own: each turn waits for their answer.",
    ),
]
Seconds = Annotated[float, Field(ge=0, le=WAIT, description="Seconds to wait until the run no longer works.")]
Most = Annotated[int, Field(ge=1, le=100, description="Most entries.")]
Said = Annotated[str, Field(max_length=4000)]


async def told(work: Callable[[], Found]) -> Found:
    """Return what `work` returns, in a thread; raise `ToolError` for what a person would be told."""
    try:
        return await anyio.to_thread.run_sync(work)
    except CdoError as error:
        raise ToolError(" ".join(filter(None, (error.message, error.hint)))) from None
    except OSError as error:
        raise ToolError(f"A file cannot be used: {error.strerror}.") from None


class RunTools:
    """The tools by name, for the runs of one project."""

    def __init__(self, service: RunService) -> None:
        self._service = service

    async def deliberate(
        self,
        question: Question,
        preset: PresetWords = "",
        models: Models = (),
        evidence: Paths = (),
        budget: Dollars = None,
        seat: Seat = "",
    ) -> str:
        """Begin a run and return how it stands."""
        record = await self._begin(RunRequest(question, preset, models, evidence, budget, seat), "deliberate")
        return as_json(await told(lambda: self._service.status(record.session)))

    async def decide(self, question: Question, evidence: Paths = (), budget: Dollars = None) -> str:
        """Begin a quick run, and return its decision if it is there in time."""
        record = await self._begin(RunRequest(question, "quick", (), evidence, budget), "decide")
        if BEGUN.get() is None and (await self._settled(record.session, WAIT)).standing != "working":
            return await told(lambda: self._service.result(record.session, plain=True))
        return as_json(await told(lambda: self._service.status(record.session)))

    async def status(self, session: SessionName, wait_seconds: Seconds = 45.0) -> str:
        """Return how a run stands, after the wait."""
        await self._settled(session, wait_seconds)
        return as_json(await told(lambda: self._service.status(session)))

    async def result(self, session: SessionName) -> str:
        """Return FINAL.md of a run."""
        return await told(lambda: self._service.result(session))

    async def cancel(self, session: SessionName) -> str:
        """Stop a run."""
        await told(lambda: self._service.cancel(self._service.mine(session), "A client cancelled the run."))
        return as_json(await told(lambda: self._service.status(session)))

    async def list(self, limit: Most = 20) -> str:
        """Return the sessions of the project."""
        return as_json(await told(lambda: self._service.rows(limit)))

    async def search_decisions(self, query: Annotated[str, Field(max_length=1000)], limit: Most = 10) -> str:
        """Return the past decisions that a query finds."""
        return as_json(await told(lambda: self._service.search(query, limit)))

    async def answer(self, session: SessionName, answer: Said, note: Said = "", focus: Said = "") -> str:
        """Answer what a run waits for."""
        await told(lambda: self._service.answer(self._service.mine(session), answer, note, focus))
        return as_json(await told(lambda: self._service.status(session)))

    async def _begin(self, asked: RunRequest, tool: str) -> RunRecord:
        record = await told(lambda: self._service.begin(asked, tool))
        if (begun := BEGUN.get()) is not None:
            begun.append(record)
        return record

    async def _settled(self, session: str, seconds: float) -> RunStatus:
        """Wait until a run no longer works, for so many seconds at most; return how it stands."""
        until = anyio.current_time() + seconds
        while True:
            stands = await told(lambda: self._service.look(session))
            if stands.standing != "working" or anyio.current_time() >= until:
                return stands
            await anyio.sleep(min(_PACE, max(0.0, until - anyio.current_time())))
