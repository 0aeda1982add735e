"""cdo for Python programs: start, follow, resume and read deliberations, and add providers and programs.

The names here are public: they change only as docs/reference/python.md says. Nothing here may print, ask at a
terminal or handle signals; that is what `cli` does.
"""

from __future__ import annotations

from cdo.api.options import ResumeOptions, RunOptions
from cdo.api.session import SessionHandle as Session
from cdo.api.session import deliberate, deliberate_async
from cdo.core import events
from cdo.core.errors import (
    BudgetReached,
    CdoError,
    ConfigError,
    ContentError,
    Interrupted,
    ModelsFailed,
    NeedsHuman,
    SessionError,
    UsageError,
    WaitsForBatch,
)
from cdo.core.events import Event
from cdo.core.exchange import (
    Backend,
    BackendError,
    Fault,
    Finish,
    Message,
    OnText,
    Request,
    Response,
    ToolCall,
    Usage,
)
from cdo.core.result import Result
from cdo.core.steps import Batch, Call, Program, Reply
from cdo.planning.plan import Plan
from cdo.programs.deliberation.calls import Voice
from cdo.programs.deliberation.conclusion import Outcome, conclude
from cdo.programs.deliberation.convergence import StopReason
from cdo.programs.deliberation.turn import RunState, TurnResult
from cdo.programs.extensions import ModeProgram
from cdo.providers.extensions import ModelDescription, ProviderExtension
from cdo.runner.people.human_steps import Human, PendingSeat

# Shown in tracebacks, `help` and the documentation by the name that programs import.
Session.__name__ = Session.__qualname__ = "Session"
Session.__module__ = "cdo"

__all__ = [
    "Backend",
    "BackendError",
    "Batch",
    "BudgetReached",
    "Call",
    "CdoError",
    "ConfigError",
    "ContentError",
    "Event",
    "Fault",
    "Finish",
    "Human",
    "Interrupted",
    "Message",
    "ModeProgram",
    "ModelDescription",
    "ModelsFailed",
    "NeedsHuman",
    "OnText",
    "Outcome",
    "PendingSeat",
    "Plan",
    "Program",
    "ProviderExtension",
    "Reply",
    "Request",
    "Response",
    "Result",
    "ResumeOptions",
    "RunOptions",
    "RunState",
    "Session",
    "SessionError",
    "StopReason",
    "ToolCall",
    "TurnResult",
    "Usage",
    "UsageError",
    "Voice",
    "WaitsForBatch",
    "conclude",
    "deliberate",
    "deliberate_async",
    "events",
]
