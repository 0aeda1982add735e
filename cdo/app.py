"""The composition root: builds sessions, seats and runners from plans, and ends a run with FINAL.md.

The command line parses and prints; this module wires. It is the only one that knows both a program and the runner.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from cdo import __version__, artifacts, models, strict_yaml
from cdo.budget import Budget, Limits, price_unknown
from cdo.content import Library, checked
from cdo.deliberate import Outcome, deliberate
from cdo.errors import ConfigError, SessionError, UsageError
from cdo.final import final_section
from cdo.models import ModelSpec
from cdo.plan import Plan
from cdo.policy import Gate
from cdo.runner import Deadlines, Human, Runner, Seat, totals
from cdo.secrets import secret_values
from cdo.settings import Resolved, Settings
from cdo.signals import interruptible
from cdo.store import Session, Taken, session_path
from cdo.types import Backend, Event, Observe

# Settings that a resume may change: they bound the run, they do not shape it.
ADJUSTABLE = (
    "budget", "max_calls", "max_tokens", "timeout", "concurrency", "reply_tokens", "connect_timeout",
    "first_byte_timeout", "idle_timeout", "call_timeout", "strict",
)  # fmt: skip


class Frozen(BaseModel):
    """`session.yaml`: the plan, the settings it ran under, and where each of those came from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cdo: str
    created: str
    plan: Plan
    settings: Settings
    sources: dict[str, str]


@dataclass(frozen=True)
class Result:
    """What a run ended with, as `--json` prints it. `cost` is None when a price is unknown."""

    session: str
    path: str
    status: str
    why: str
    decision: str
    confidence: float | None
    turns: int
    calls: int
    tokens: int
    cost: float | None
    missing_voices: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()

    @property
    def degraded(self) -> bool:
        return bool(self.missing_voices or self.added)

    def json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Shell:
    """What surrounds a run: how events are shown, and how the person is asked."""

    observe: Observe
    human: Human = field(default_factory=Human)


def redactor(env: Mapping[str, str]) -> Callable[[str], str]:
    """A function that takes the values of secret-looking variables out of a text, quoted ones too."""
    forms: dict[str, str] = {}
    for name, value in secret_values(env).items():
        quoted = json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], value.replace("'", "''")
        forms |= dict.fromkeys((value, *quoted), name)
    found = sorted(forms.items(), key=lambda item: -len(item[0]))

    def redact(text: str) -> str:
        for form, name in found:
            if form in text:
                text = text.replace(form, f"[redacted:{name}]")
        return text

    return redact


# -- beginning and taking up -----------------------------------------------------------------------


def create(plan: Plan, problem: str, context: str, resolved: Resolved, name: str | None) -> Session:
    """Make the session directory with its first three files; raise `SessionError`."""
    frozen = Frozen(
        cdo=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        plan=plan,
        settings=resolved.values,
        sources=dict(resolved.sources),
    )
    files = {
        "00-input.md": f"{problem.strip()}\n",
        "00-context.md": f"{context.strip()}\n",
        "session.yaml": strict_yaml.dump(frozen.model_dump(mode="json", exclude_defaults=False)),
    }
    out, redact = Path(resolved.values.out), redactor(os.environ)
    if name:
        return Session.create(session_path(out, name), files, redact)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for attempt in range(1, 100):  # two runs may begin in the same second
        path = session_path(out, stamp if attempt == 1 else f"{stamp}-{attempt}")
        if not os.path.lexists(path):
            with contextlib.suppress(Taken):
                return Session.create(path, files, redact)
    raise SessionError(f"No free name was found for a session in {out}.", "Name one with --session.")


def load(session: Session) -> Frozen:
    """The frozen plan of a session; raise `SessionError` when session.yaml is missing or broken."""
    return read_frozen(session.read("session.yaml"), session.path)


def read_frozen(text: str | None, path: Path) -> Frozen:
    """Parse the text of a session.yaml."""
    from cdo.errors import ContentError

    if text is None:
        raise SessionError(f"{path} has no session.yaml.", "It is not a session, or it was damaged: begin a new run.")
    try:
        data = strict_yaml.load(text, max_bytes=262_144, max_depth=8)
    except strict_yaml.YamlProblem as problem:
        raise SessionError(f"{path}/session.yaml: {problem}.", "Mend the file, then resume.") from None
    try:
        return checked(Frozen, data if isinstance(data, dict) else {}, path / "session.yaml")
    except ContentError as error:
        raise SessionError(error.message, f"Mend the file, then resume. {error.hint}") from None


def adjusted(frozen: Frozen, now: Resolved) -> Settings:
    """The session's settings, with what this invocation sets explicitly among the adjustable ones."""
    changes = {key: getattr(now.values, key) for key in ADJUSTABLE if now.sources[key].startswith(("--", "CDO_"))}
    return frozen.settings.model_copy(update=changes)


# -- models ----------------------------------------------------------------------------------------


def specs(names: Sequence[str], library: Library, settings: Settings, env: Mapping[str, str]) -> list[ModelSpec]:
    """Resolve all model names, and start what takes long to load; raise `ConfigError`."""
    found = [models.resolve(name, library, settings.prices, env) for name in dict.fromkeys(names)]
    if settings.budget and (unpriced := next((spec for spec in found if spec.price is None), None)):
        raise price_unknown(unpriced)
    for spec in found:
        if spec.route in ("local", "scripted") and spec.model and not Path(spec.model).expanduser().is_file():
            raise ConfigError(f"`{spec.name}`: there is no file {spec.model}.", "Check the path.")
    if any(spec.route == "litellm" for spec in found):
        from cdo.backends import litellm

        litellm.preload()
    return found


def seats(found: Sequence[ModelSpec], settings: Settings, say: Callable[[str], None]) -> dict[str, Seat]:
    """A backend for each model; models of one address share its connections and its gate."""
    backends: dict[tuple[str, ...], Backend] = {}
    gates: dict[str, Gate] = {}
    made: dict[str, Seat] = {}
    for spec in found:
        where = (spec.route, spec.url or spec.model, spec.key_env, spec.cap)
        backend = backends.get(where) or _backend(spec, settings, say)
        backends[where] = backend
        gate = gates.setdefault(spec.url or spec.model.partition("/")[0], Gate())
        made[spec.name] = Seat(spec, backend, gate)
    return made


def _backend(spec: ModelSpec, settings: Settings, say: Callable[[str], None]) -> Backend:
    if spec.route == "litellm":
        from cdo.backends.litellm import LiteLLMBackend

        return LiteLLMBackend(settings.temperature)
    if spec.route == "scripted":
        from cdo.backends.scripted import ScriptedBackend

        return ScriptedBackend.from_file(Path(spec.model))
    if spec.route == "local":
        from cdo.backends.local import LocalBackend

        return LocalBackend(Path(spec.model) if spec.model else None, say, settings.temperature)
    from cdo.backends.chat import ChatBackend

    return ChatBackend(
        spec.url,
        os.environ.get(spec.key_env, ""),
        spec.cap,
        spec.usage,
        settings.connect_timeout,
        settings.temperature,
    )


# -- running ---------------------------------------------------------------------------------------


async def run(session: Session, plan: Plan, settings: Settings, library: Library, shell: Shell) -> Result:
    """Drive a session to its end and write FINAL.md; raises `CdoError`. Closes the session in any case."""
    observe = _journaled(session, shell.observe)
    found = seats(
        specs(plan.models, library, settings, os.environ),
        settings,
        lambda text: observe(Event("note", "", {"text": text})),
    )
    # The embedded model answers one at a time: more in flight would only let deadlines run.
    concurrency = 1 if any(seat.spec.route == "local" for seat in found.values()) else settings.concurrency
    runner = Runner(
        session=session,
        library=library,
        seats=found,
        budget=Budget(
            Limits(settings.max_calls, settings.max_tokens, settings.budget, settings.timeout),
            totals(session.records),
        ),
        observe=observe,
        human=shell.human,
        deadlines=Deadlines(settings.first_byte_timeout, settings.idle_timeout, settings.call_timeout),
        concurrency=concurrency,
        reply_tokens=settings.reply_tokens,
    )
    for note in session.notes:
        observe(Event("note", "", {"text": note}))
    try:
        with interruptible(session.name):
            outcome = await runner.drive(deliberate(plan))
            result = finish(session, plan, outcome, runner)
            observe(Event("done", "", result.json()))
            session.flush()
            return result
    finally:
        for backend in {id(seat.backend): seat.backend for seat in found.values()}.values():
            with contextlib.suppress(Exception):
                await asyncio.wait_for(backend.close(), 1.0)
        session.close()


def _journaled(session: Session, observe: Observe) -> Observe:
    def told(event: Event) -> None:
        if event.kind != "progress":  # several a second, and gone when the call is done
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            session.journal(
                {"at": now, "event": event.kind, **({"name": event.name} if event.name else {}), **event.data}
            )
        observe(event)

    return told


def finish(session: Session, plan: Plan, outcome: Outcome, runner: Runner) -> Result:
    """Write FINAL.md (unless a person edited it) and return the result."""
    reply = runner.kept["final"]
    used = runner.budget.totals
    missing = tuple(f"t{turn}-{role}: {reason}" for turn, role, reason in outcome.missing)
    existing = session.artifact("FINAL")
    if existing is None or not (existing.edited or existing is reply):
        own = {
            "session": session.name,
            "problem": " ".join((session.read("00-input.md") or "").split())[:300],
            "preset": plan.preset,
            "status": outcome.status,
            "why": outcome.why,
            "turns": outcome.turns,
            "models": list(plan.models),
            "cost": used.known_cost,
            "missing_voices": list(missing),
            "open_tensions": list(outcome.open_tensions),
            **({"added": list(outcome.added)} if outcome.added else {}),
            **({"flags": list(outcome.flags)} if outcome.flags else {}),
            "inputs": reply.own.get("inputs", {}),
        }
        session.put("FINAL", artifacts.final(reply, outcome.confidence, own))
    shown = session.artifact("FINAL") or reply
    return Result(
        session=session.name,
        path=str(session.path),
        status=outcome.status,
        why=outcome.why,
        decision=final_section(shown.body, "Decision") or "",
        confidence=outcome.confidence,
        turns=outcome.turns,
        calls=used.calls,
        tokens=used.tokens,
        cost=used.known_cost,
        missing_voices=missing,
        added=outcome.added,
        flags=outcome.flags,
    )


def newest_unfinished(out: Path) -> Path:
    """The session that `resume` takes without a name; raise `UsageError` when there is none."""
    from cdo.store import locked, sessions

    for path in sessions(out):
        if not (path / "FINAL.md").exists() and not locked(path):
            return path
    raise UsageError(
        f"There is no unfinished session in {out}.", "`cdo list` shows all; `cdo resume NAME` takes one."
    )
