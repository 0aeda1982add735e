"""Reads and writes `session.yaml`, the frozen plan and settings of a session, and creates sessions with it."""

from __future__ import annotations

import contextlib
import os
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from cdo import __version__
from cdo.content.library import checked
from cdo.core.errors import ContentError, SessionError, UsageError
from cdo.core.schema import Schema
from cdo.formats import strict_yaml
from cdo.planning.plan import Plan
from cdo.planning.settings import Resolved, Settings, stricter
from cdo.security.secrets import redactor
from cdo.session.creation import NewFolder, Taken, create_session_dirs
from cdo.session.records import locked, session_path
from cdo.session.store import Session

# Settings that a resume may change: limits of the run, not its content.
ADJUSTABLE = (
    "budget", "max_calls", "max_tokens", "timeout", "concurrency", "reply_tokens", "effort", "flex", "batch_api",
    "connect_timeout", "first_byte_timeout", "idle_timeout", "call_timeout", "check_timeout", "seat_wait", "strict",
    "no_git", "branch",
)  # fmt: skip


class Forked(Schema, frozen=True, kw_only=True):
    """The origin of a fork: the source session, the last shared turn, and when the source was created."""

    session: str
    turn: int
    created: str


class Frozen(Schema, frozen=True, kw_only=True):
    """The content of `session.yaml`: the plan, the settings it ran under, and the source of each setting."""

    cdo: str
    created: str
    plan: Plan
    settings: Settings
    sources: dict[str, str]
    forked: Forked | None = None


_REMEMBERED = 256  # sessions that this process made last: more than a batch usually has under way
_made: OrderedDict[str, Frozen] = OrderedDict()  # by the text of their session.yaml


def create(plan: Plan, problem: str, context: str, resolved: Resolved, name: str | None) -> Session:
    """Make the session directory with its first three files; raise `SessionError`."""
    files = {"00-input.md": f"{problem.strip()}\n", "00-context.md": f"{context.strip()}\n"}
    stamp = time.strftime("%Y%m%d-%H%M%S")  # two runs may begin in the same second
    names = [stamp, *(f"{stamp}-{number}" for number in range(2, 100))]
    return create_session(
        new_session_file(plan, resolved.values, resolved.sources), files, Path(resolved.values.out), name, names
    )


def new_session_file(
    plan: Plan, settings: Settings, sources: Mapping[str, str], forked: Forked | None = None
) -> Frozen:
    """Return the `session.yaml` of a session that begins now."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return Frozen(cdo=__version__, created=now, plan=plan, settings=settings, sources=dict(sources), forked=forked)


def create_session(
    frozen: Frozen, files: Mapping[str, str | bytes], out: Path, name: str | None, names: Iterable[str]
) -> Session:
    """Create a session directory atomically, with session.yaml and `files`.

    It is called `name`, or the first free one of `names`.
    Raises `Taken` if a session `name` exists, and `SessionError` if the directory cannot be created.
    """
    whole = _whole(frozen, files)
    redact = redactor(os.environ)
    if name:
        return Session.create(session_path(out, name), whole, redact)
    for free in names:
        path = session_path(out, free)
        if not os.path.lexists(path):
            with contextlib.suppress(Taken):
                return Session.create(path, whole, redact)
    raise SessionError(f"No free name was found for a session in {out}.", "Name one with --session.")


class NewSession(Struct, frozen=True):
    """A session to create at `path`, with session.yaml and its first `files`."""

    frozen: Frozen
    files: Mapping[str, str | bytes]
    path: Path


_FIX = "Fix the file, then resume."


def create_sessions(wanted: Sequence[NewSession]) -> list[Session | SessionError]:
    """Create sessions whose folders become durable together; return those that could not be created as errors."""
    redact = redactor(os.environ)
    folders = [NewFolder(new.path, _whole(new.frozen, new.files), redact) for new in wanted]
    found: list[Session | SessionError] = []
    for folder, made in zip(folders, create_session_dirs(folders), strict=True):
        try:
            found.append(made if isinstance(made, SessionError) else Session.born(folder, made))
        except SessionError as error:
            found.append(error)
    return found


def _whole(frozen: Frozen, files: Mapping[str, str | bytes]) -> dict[str, str | bytes]:
    """Return the first files of a session, with its session.yaml."""
    text = strict_yaml.dump(to_builtins(frozen))
    _made[text] = frozen
    while len(_made) > _REMEMBERED:
        _made.popitem(last=False)
    return {**files, "session.yaml": text}


def load(session: Session) -> Frozen:
    """Return the frozen plan of a session; raise `SessionError` if session.yaml is missing or broken."""
    return read_frozen(session.read("session.yaml"), session.path)


def read_frozen(text: str | None, path: Path) -> Frozen:
    """Parse the text of a session.yaml; raise `SessionError` if it is missing or broken."""
    if text is None:
        raise SessionError(f"{path} has no session.yaml.", "It is not a session, or it was damaged: begin a new run.")
    if made := _made.get(text):
        return made
    try:
        data = strict_yaml.load(text, max_bytes=262_144, max_depth=8)
    except strict_yaml.YamlProblem as problem:
        raise SessionError(f"{path}/session.yaml: {problem}.", _FIX) from None
    try:
        return checked(Frozen, data if isinstance(data, dict) else {}, path / "session.yaml", "")
    except ContentError as error:
        raise SessionError(error.message, f"{_FIX} {error.hint}".rstrip()) from None


def with_more_rounds(session: Session, frozen: Frozen, rounds: int) -> Frozen:
    """Save and return a mission's frozen plan with another cap on rounds; raise `UsageError` for other runs."""
    crew = frozen.plan.crew
    if crew is None:
        raise UsageError(
            f"{session.name} is not a mission: it has no rounds.", "`cdo fork --turns` adds turns to a run."
        )
    longer = replace(frozen, plan=replace(frozen.plan, crew=replace(crew, rounds=rounds)))
    session.put_now("session.yaml", strict_yaml.dump(to_builtins(longer)))
    return longer


def with_overrides(mine: Settings, now: Resolved) -> Settings:
    """Return the settings under which a session with the settings `mine` continues.

    They are the session's own, apart from the adjustable settings that this invocation gives explicitly, lower caps
    from any of its sources, prices and `ask_above`. These two are always those of this invocation: the session can
    come from another person, and a price of 0 would void a budget.
    """
    explicit = {key: getattr(now.values, key) for key in given(now)}
    own = {"prices": now.values.prices, "ask_above": now.values.ask_above}
    return replace(mine, **{**stricter(mine, now), **explicit, **own})


def lowered(frozen: Frozen, now: Resolved) -> list[str]:
    """Return the caps of a session that this invocation lowers by configuration, without giving them explicitly."""
    return [key for key in stricter(frozen.settings, now) if key not in given(now)]


def given(now: Resolved) -> list[str]:
    """Return the adjustable settings that an invocation gives explicitly, by option or environment variable."""
    return [key for key in ADJUSTABLE if now.sources[key].startswith(("--", "CDO_"))]


def newest_unfinished(found: Sequence[Path], out: Path) -> Path:
    """Return the one of `found` that `resume` takes without a name; raise `UsageError` if there is none."""
    for path in found:
        if not (path / "FINAL.md").exists() and not locked(path):
            return path
    if not found:
        raise UsageError(f"There is no unfinished session in {out}.", 'Begin one: cdo think "Should we …?"')
    name = found[0].name.removeprefix("cdo-")
    raise UsageError(
        f"There is no unfinished session in {out}.",
        f"To go on with one that you edited, name it: cdo resume {name}; `cdo list` shows all.",
    )
