"""Resolves settings and their sources: flags > `CDO_*` variables > nearest `.cdo/config.yaml` > user > default.

Anyone who can write to a project can write its file. So that file may lower the caps of the person and never raise
them. Before the project is trusted (`content/project.py`) nothing else of the file counts, apart from fewer voices,
fewer turns, less context and fewer requests at a time.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from msgspec import Meta, Struct, field

from cdo.content.library import Library
from cdo.content.project import CONFIG, PROVIDERS, read_content
from cdo.content.schemas import Price, ascending
from cdo.core.errors import ConfigError, UsageError
from cdo.core.exchange import Effort
from cdo.core.schema import Schema, SchemaError, field_names, fitted, part_type, plain_type

_RANGE = re.compile(r"\s*([0-9]+)\s*(?:[-–]\s*([0-9]+)\s*)?")  # the dash is how texts write "3–8"


# -- ways to write a value -------------------------------------------------------------------------


def _number(value: Any) -> Any:
    """Return the number that a text or a number is; anything else unchanged.

    Raises ValueError for true and false, which Python takes for numbers, and for infinity.
    """
    if isinstance(value, bool):
        raise ValueError("it should be a number")
    if isinstance(value, str):
        try:
            value = float(value) if not re.fullmatch(r"\s*[-+]?[0-9]{1,4000}\s*", value) else int(value)
        except ValueError:
            return value
    if not isinstance(value, float):
        return value
    if math.isinf(value):
        raise ValueError("it should be a finite number")
    return int(value) if value.is_integer() else value


def _width(value: Any) -> Any:
    """Return two numbers for "3", "3-8", 3 and [3, 8]."""
    if isinstance(value, (list, tuple)) and len(value) == 2:
        low, high = map(_number, value)
    elif not isinstance(value, bool) and (match := _RANGE.fullmatch(str(value))):
        low, high = int(match[1]), int(match[2] or match[1])
    else:
        raise ValueError("it should be N or A-B, as in 3 or 3-8")
    if isinstance(low, int) and isinstance(high, int) and low > high:
        raise ValueError("the first number must not be above the second")
    return low, high


def _names(value: Any) -> Any:
    """Return the names in "a,b" or [a, b], none of them empty."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise ValueError("it should be a name or a list of names")
    if not all(name.strip() for name in names):
        raise ValueError("a name is empty")
    return tuple(name.strip() for name in names)


_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_PERIOD = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def _period(value: Any) -> Any:
    """Return the seconds of "90", 90, "90s", "30m", "2h" and "1d"."""
    if not isinstance(value, str):
        return _number(value)
    match = _PERIOD.fullmatch(value)
    if not match or (match[2] and match[2].lower() not in _UNITS):
        raise ValueError("it should be a time such as 90s, 30m, 2h or 1d")
    return float(match[1]) * _UNITS[match[2].lower() or "s"]


def _filled(value: Any) -> Any:
    if isinstance(value, str) and not value.strip():
        raise ValueError("it is empty")
    return value


# -- the settings ----------------------------------------------------------------------------------

Positive = Annotated[float, Meta(gt=0, le=1e12)]  # finite
Period = Annotated[float, Meta(gt=0, le=366 * 86_400)]
Natural = Annotated[int, Meta(ge=1)]
Day = Annotated[
    str,
    Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}\Z", extra={"problem": lambda _: "must be a date such as 2026-11-28"}),
]
Names = tuple[str, ...]
Voices = Annotated[int, Meta(ge=1, le=256)]
_ASK_ABOVE = 5.0  # dollars


class Settings(Schema, frozen=True, kw_only=True):
    """Every setting of a run. Money is in US dollars, times in seconds, tokens as the provider counts them."""

    model: Names = ()
    width: tuple[Voices, Voices] | None = None
    turns: Annotated[int, Meta(ge=1, le=100)] | None = None
    budget: Positive | None = None
    ask_above: Annotated[float, Meta(ge=0, le=1e12)] = _ASK_ABOVE  # a dearer run needs agreement
    max_calls: Natural | None = None
    max_tokens: Natural | None = None
    timeout: Positive | None = None
    concurrency: Annotated[int, Meta(ge=1, le=1024)] = 256
    reply_tokens: Natural | None = None
    effort: Effort | None = None  # how long models think, whatever preset, role and prompt say
    flex: bool = False  # ask at the price of the flex tier, where there is one
    batch_api: bool = False  # ask through the batch endpoints of providers, where there are any
    context_tokens: Natural | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    connect_timeout: Positive = 10.0
    first_byte_timeout: Positive = 600.0
    idle_timeout: Positive = 60.0
    call_timeout: Positive = 1800.0
    check_timeout: Positive = 300.0
    seat_wait: Period = 86_400.0  # how long a turn waits for the answer of a person who has a seat in it
    out: str = "tmp"
    strict: bool = False
    no_git: bool = False
    branch: bool = False
    review: bool | None = None
    today: Day | None = None  # what models are told the date is
    skills: Names = ()
    adr_dir: str | None = None
    prices: dict[str, Price] = field(default_factory=dict)

    def require_sound(self) -> None:
        ascending(width=self.width)


SETTINGS = field_names(Settings)
_DEFAULT = Settings()


class Resolved(Struct, frozen=True):
    """Settings with the source of each: `sources["width"]` is "--width", "CDO_WIDTH", a path, or "default".

    `untrusted` maps each key that an untrusted project sets in vain to the path of its file. `ceilings` has the
    values of an untrusted project that narrow what a preset says: "width", "turns" and "context_tokens".
    """

    values: Settings
    sources: Mapping[str, str]
    untrusted: Mapping[str, str] = field(default_factory=dict)
    ceilings: Mapping[str, Any] = field(default_factory=dict)

    def sure(self, library: Library) -> Self:
        """Return the same settings, if an untrusted project does not say where the question should go.

        Raises `ConfigError` if it names the model and you do not, or if it has a table of providers: with another
        model or address than the one that is written there, the question could leave your company.
        """
        what = "the model" if "model" in self.untrusted and self.sources["model"] == "default" else ""
        what = "the addresses of providers" if PROVIDERS in library.waiting() else what
        if not what or library.project is None:
            return self
        raise ConfigError(
            f"This project sets {what} in {library.project.folder}, and you do not trust it as it is now.",
            "Read the files in that folder, then pass --trust."
            + (" Or name a model with -m." if what == "the model" else ""),
        )


# Of a project's value and the person's own the stricter one holds.
_STRICTER: Mapping[str, Callable[..., Any]] = {
    "budget": min, "ask_above": min, "max_calls": min, "max_tokens": min, "timeout": min, "no_git": max,
}  # fmt: skip
# What an untrusted project may narrow as well.
_NARROWER: Mapping[str, Callable[..., Any]] = {
    "width": lambda one, other: (min(one[0], other[0]), min(one[1], other[1])),
    "turns": min, "context_tokens": min, "concurrency": min,
}  # fmt: skip


def narrowed(key: str, value: Any, ceilings: Mapping[str, Any]) -> Any:
    """Return `value` for the setting `key`, lowered to what an untrusted project asks for."""
    return _NARROWER[key](value, ceilings[key]) if key in ceilings else value


def stricter(mine: Settings, now: Resolved) -> dict[str, Any]:
    """The caps among the settings of this invocation that are lower than those in `mine`, from any source."""
    found = {}
    for key, choose in _STRICTER.items():
        if key == "ask_above":  # about agreeing to begin a run, and not a cap of the run itself
            continue
        kept, given = getattr(mine, key), getattr(now.values, key)
        if given not in (None, False) and (kept is None or choose(kept, given) != kept):
            found[key] = given
    return found


def resolve(flags: Mapping[str, Any], library: Library, env: Mapping[str, str] | None = None) -> Resolved:
    """Merge all sources, one value per setting; raise `ConfigError` naming source, key and what is allowed.

    A flag that is None, () or False was not given. An empty variable and a key without a value are not set.
    """
    env = os.environ if env is None else env
    values: dict[str, Any] = {}
    sources: dict[str, str] = dict.fromkeys(SETTINGS, "default")

    def take(key: str, value: Any, source: str) -> None:
        first = sources[key] == "default"
        # Only files are left to be read where one has set it: the project's before the person's own.
        over = key in _STRICTER and not sources[key].startswith(("--", "CDO_"))
        if first or (over and _STRICTER[key](value, values[key]) != values[key]):
            values[key], sources[key] = value, source

    for key, value in flags.items():
        if value not in (None, (), False):
            source = f"--{key.replace('_', '-')}"
            take(key, _one(key, value, source), source)
    for key in SETTINGS:
        if key != "prices" and (text := env.get(f"CDO_{key.upper()}")):
            take(key, _one(key, text, f"CDO_{key.upper()}"), f"CDO_{key.upper()}")
    waiting = _waiting(library)
    for key in _STRICTER:
        if key in waiting.values and not (key == "ask_above" and waiting.values[key] > _ASK_ABOVE):
            take(key, waiting.values[key], waiting.path)
    for kind, root in library.roots:
        path = root / CONFIG
        given = _file(path, _bytes(path, kind, library)) if kind != "packaged" else {}
        # Also where a stronger source wins: a mistake should be found early.
        for key, value in {key: _one(key, value, str(path)) for key, value in given.items()}.items():
            take(key, value, str(path))
    ceilings: dict[str, Any] = {}
    for key in (key for key in _NARROWER if key in waiting.values):
        value = waiting.values[key]
        if sources[key] == "default" and key != "concurrency":
            ceilings[key] = value
        elif not sources[key].startswith(("--", "CDO_")):
            mine = values.get(key, getattr(_DEFAULT, key))
            if (lower := _NARROWER[key](mine, value)) != mine:
                values[key], sources[key] = lower, waiting.path
    return Resolved(Settings(**values), sources, waiting.vain, ceilings)


class _Waiting(Struct, frozen=True):
    """The configuration of an untrusted project: the values that may narrow, and the keys that wait for trust."""

    path: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    vain: Mapping[str, str] = field(default_factory=dict)  # key → path


def _waiting(library: Library) -> _Waiting:
    """Read the configuration of a project that is not trusted.

    Raises `ConfigError` for a mistake in it, which may be a cap that the person believes to hold.
    """
    own = library.project
    if own is None or own.trusted or CONFIG not in (*own.files, *own.unread):
        return _Waiting()
    path = str(own.folder / CONFIG)
    given = _file(Path(path), _bytes(Path(path), "project", library))
    values = {key: _one(key, value, path) for key, value in given.items()}
    narrow = {key: value for key, value in values.items() if key in {*_STRICTER, *_NARROWER}}
    return _Waiting(path, narrow, {key: path for key in values if key not in narrow})


def skill_folders(resolved: Resolved, library: Library) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """The folders of skills that are set: (those that the person named, those that the project's own file names).

    One of the two is empty. Skills in the project's folders need trust one by one.
    """
    folders = tuple(Path(folder).expanduser() for folder in resolved.values.skills)
    files = [str(root / CONFIG) for source, root in library.roots if source == "project"]
    return ((), folders) if resolved.sources["skills"] in files else (folders, ())


def _bytes(path: Path, source: str, library: Library) -> bytes | None:
    """The bytes of a configuration file, None if there is none; of a trusted project those that were trusted."""
    own = library.project
    if source == "project" and own and CONFIG in own.files:
        return own.files[CONFIG]
    try:
        return read_content(path, path.parent.parent if source == "project" else None)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        fix = "Fix the file and run again."
        if isinstance(error, PermissionError):
            fix = "Let this user read it, or set HOME to a folder of yours (`sudo` may keep that of another user)."
        raise ConfigError(f"{path} cannot be read: {error.strerror}.", fix) from None


def _file(path: Path, found: bytes | None) -> Mapping[str, Any]:
    """The keys of one file that have a value; {} if there is no file. Raises `ConfigError`."""
    from cdo.formats import strict_yaml

    fix = "Fix the file and run again."
    if found is None:
        return {}
    try:
        data = strict_yaml.load(found.decode("utf-8-sig"), max_bytes=65_536)
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text.", fix) from None
    except strict_yaml.YamlProblem as problem:
        raise ConfigError(f"{path}: {problem}.", fix) from None
    if not isinstance(data, dict | None):
        raise ConfigError(f"{path}: the top level must be a mapping of keys.", fix)
    for key in data or {}:
        if key not in SETTINGS:
            raise ConfigError(f"{path}: `{key}` is not an allowed key.", _instead(key))
    # A name in a file may hold a comma, where a variable's is split at it.
    return {
        key: [value] if key == "model" and isinstance(value, str) else value
        for key, value in (data or {}).items()
        if value is not None
    }


def _instead(key: str) -> str:
    """What to do about a key that is none."""
    import difflib

    allowed = f"Allowed keys: {', '.join(SETTINGS)}."
    if re.search(r"(?i)key|token|secret|password", key):
        return f"Secrets are only read from the environment (`cdo models` names the variables). {allowed}"
    near = difflib.get_close_matches(key, SETTINGS, n=1)
    return f"Did you mean `{near[0]}`? {allowed}" if near else allowed


def _one(key: str, value: Any, source: str) -> Any:
    """Return one setting as it is written in a source; raise an error that names the source."""
    kind = part_type(Settings, key)
    plain = plain_type(kind)
    read = _READERS.get(key) or (_number if plain in (int, float) else _filled)
    try:
        return fitted(kind, read(value))
    except SchemaError as error:
        why = _in_words(error)
    except ValueError as error:
        why = str(error)
    given = value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value
    shown = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    shown = shown if len(shown) <= 60 else f"{shown[:59]}…"
    if source.startswith("--"):
        raise UsageError(f"{source} cannot be `{shown}`: {why}.", "`cdo run --help` explains the options.")
    if source.startswith("CDO_"):
        raise ConfigError(f"{source} cannot be `{shown}`: {why}.", "Change the variable, or unset it.")
    raise ConfigError(f"{source}: `{key}` cannot be `{shown}`: {why}.", "Fix the file and run again.")


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "model": _names, "skills": _names, "width": _width, "seat_wait": _period,
}  # fmt: skip


def _in_words(error: SchemaError) -> str:
    """Return what a value should be, for a person; the place is named where the value has parts."""
    parts = [part for part in error.place if isinstance(part, str)]  # the index in a pair of numbers says nothing
    place = f"`{'.'.join(parts)}` " if parts else ""
    if error.kind == "unknown":
        return f"{place}is not an allowed key (these are: {', '.join(field_names(Price))})"
    return place + re.sub(r"^must\b", "should" if place else "it should", error.why)
