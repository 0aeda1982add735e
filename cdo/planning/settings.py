"""Settings and where each came from: flags > `CDO_*` variables > nearest `.cdo/config.yaml` > user > default.

Whoever can write into a project can write its file. So that file may only lower what the person's own says of a cap,
and before it is trusted it neither names a model or a price nor has files written anywhere but inside the project.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from cdo.content.library import Library, read_content
from cdo.content.schemas import Price
from cdo.core.errors import ConfigError, UsageError

KIND = "settings"  # as what a project's file is trusted
Trusted = Callable[[str, Path, str], bool]
_RANGE = re.compile(r"\s*([0-9]+)\s*(?:[-–]\s*([0-9]+)\s*)?")  # the dash is how texts write "3–8"


def _number(value: Any) -> Any:
    """`true` is not a number, though Python thinks so."""
    if isinstance(value, bool):
        raise ValueError("it should be a number")
    return value


def _width(value: Any) -> Any:
    """ "3" and "3-8" and 3 and [3, 8] are all widths."""
    if value is None or (isinstance(value, (list, tuple)) and len(value) == 2):
        return value
    match = None if isinstance(value, bool) else _RANGE.fullmatch(str(value))
    if not match:
        raise ValueError("it should be N or A-B, as in 3 or 3-8")
    return (match[1], match[2] or match[1])


def _ordered(value: tuple[int, int] | None) -> tuple[int, int] | None:
    if value and value[0] > value[1]:
        raise ValueError("the first number must not be above the second")
    return value


def _names(value: Any) -> Any:
    """ "a,b" and [a, b] are both lists of names, none of them empty."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise ValueError("it should be a name or a list of names")
    if not all(name.strip() for name in names):
        raise ValueError("a name is empty")
    return tuple(name.strip() for name in names)


def _filled(value: str) -> str:
    if not value.strip():
        raise ValueError("it is empty")
    return value


Number = BeforeValidator(_number)
Positive = Annotated[float, Number, Field(gt=0, allow_inf_nan=False)]
Natural = Annotated[int, Number, Field(ge=1)]
Width = Annotated[
    tuple[Annotated[int, Number, Field(ge=1, le=256)], Annotated[int, Number, Field(ge=1, le=256)]] | None,
    BeforeValidator(_width),
    AfterValidator(_ordered),
]
Names = Annotated[tuple[str, ...], BeforeValidator(_names)]


class Settings(BaseModel):
    """Every setting of a run. Money is in US dollars, times in seconds, tokens as the provider counts them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: Names = ()
    width: Width = None
    turns: Annotated[int, Number, Field(ge=1, le=100)] | None = None
    budget: Positive | None = None
    max_calls: Natural | None = None
    max_tokens: Natural | None = None
    timeout: Positive | None = None
    concurrency: Annotated[int, Number, Field(ge=1, le=1024)] = 256
    reply_tokens: Natural | None = None
    context_tokens: Natural | None = None
    temperature: Annotated[float, Number, Field(ge=0, le=2)] | None = None
    connect_timeout: Positive = 10.0
    first_byte_timeout: Positive = 120.0
    idle_timeout: Positive = 60.0
    call_timeout: Positive = 600.0
    check_timeout: Positive = 300.0
    out: Annotated[str, AfterValidator(_filled)] = "tmp"
    strict: bool = False
    no_git: bool = False
    review: bool | None = None
    today: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")] | None = None  # what models are told the date is
    skills: Names = ()
    adr_dir: str | None = None
    prices: dict[str, Price] = {}


@dataclass(frozen=True)
class Resolved:
    """Settings with the source of each: `sources["width"]` is "--width", "CDO_WIDTH", a path, or "default".

    `untrusted` has what the project's file sets and may not before it is trusted, with that file's path: `values` do
    not hold it.
    """

    values: Settings
    sources: Mapping[str, str]
    untrusted: Mapping[str, str] = field(default_factory=dict)

    def sure(self, *keys: str) -> Resolved:
        """The same; raises `ConfigError` where the project's file sets one of `keys` (none: any) and is not trusted.

        To go on with another value than the one that is written there would surprise: with another model, say.
        """
        named = [key for key in keys or self.untrusted if key in self.untrusted]
        if not named:
            return self
        what = " and ".join(f"`{key}`" for key in named)
        raise ConfigError(
            f"{self.untrusted[named[0]]} sets {what}, and this project is not trusted to: it could spend your money, "
            "send your question elsewhere, or write outside of the project.",
            "Read that file; if it is what you want, give --trust to your next run. A flag or a "
            "variable of your own does as well.",
        )


# What a project's file can only tighten: of its value and the person's own the stricter one holds.
_STRICTER: Mapping[str, Callable[..., Any]] = {
    "budget": min, "max_calls": min, "max_tokens": min, "timeout": min, "no_git": max,
}  # fmt: skip


def config_files(library: Library) -> list[Path]:
    """The configuration files that count, strongest first, whether or not they exist."""
    return [root / "config.yaml" for source, root in library.roots if source != "packaged"]


def resolve(
    flags: Mapping[str, Any],
    library: Library,
    env: Mapping[str, str] | None = None,
    trusted: Trusted | None = None,
) -> Resolved:
    """Merge all sources, one value per setting; raise `ConfigError` naming source, key and what is allowed.

    A flag that is None, () or False was not given; an empty variable and a key without a value are not set. `trusted`
    tells whether the person trusts the project's file; without it what they trusted so far is looked up.
    """
    env = os.environ if env is None else env
    values: dict[str, Any] = {}
    sources: dict[str, str] = dict.fromkeys(Settings.model_fields, "default")
    untrusted: dict[str, str] = {}

    def take(key: str, value: Any, source: str) -> None:
        first = sources[key] == "default"
        # Only files are left to be read where one has spoken: the project's before the person's own.
        over = key in _STRICTER and not sources[key].startswith(("--", "CDO_"))
        if first or (over and _STRICTER[key](value, values[key]) != values[key]):
            values[key], sources[key] = value, source

    for key, value in flags.items():
        if value not in (None, (), False):
            source = f"--{key.replace('_', '-')}"
            take(key, _one(key, value, source), source)
    for key in Settings.model_fields:
        if key != "prices" and (text := env.get(f"CDO_{key.upper()}")):
            take(key, _one(key, text, f"CDO_{key.upper()}"), f"CDO_{key.upper()}")
    for kind, root in library.roots:
        path = root / "config.yaml"
        given, sha256 = _file(path, kind) if kind != "packaged" else ({}, "")
        # Also where a stronger source wins: a mistake should be found early.
        valid = {key: _one(key, value, str(path)) for key, value in given.items()}
        held = [key for key, value in valid.items() if kind == "project" and _needs_trust(key, value, root)]
        if held and not _is_trusted(path, sha256, trusted):
            untrusted |= {key: str(path) for key in held if sources[key] == "default"}
            valid = {key: value for key, value in valid.items() if key not in held}
        for key, value in valid.items():
            take(key, value, str(path))
    return Resolved(Settings.model_validate(values), sources, untrusted)


def _needs_trust(key: str, value: Any, folder: Path) -> bool:
    """Whether a project may set this only when it is trusted. `folder` is its `.cdo`."""
    if key in ("out", "adr_dir"):
        inside = os.path.relpath(os.path.realpath(value), os.path.realpath(folder.parent))
        return any(part.startswith(".") for part in Path(inside).parts)  # outside, or in a hidden folder like .git
    return key in ("model", "prices") and bool(value)


def _is_trusted(path: Path, sha256: str, trusted: Trusted | None) -> bool:
    if trusted is None:
        from cdo.security.trust import Trust

        trusted = Trust.load().holds
    return trusted(KIND, path, sha256)


def skill_folders(resolved: Resolved, library: Library) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """The folders of skills that are set: (those that the person named, those that the project's own file names).

    One of them is empty. Whoever can write into a project can write its file too, so that what it names is not
    trusted for that.
    """
    folders = tuple(Path(folder).expanduser() for folder in resolved.values.skills)
    files = [str(root / "config.yaml") for source, root in library.roots if source == "project"]
    return ((), folders) if resolved.sources["skills"] in files else (folders, ())


def _file(path: Path, source: str) -> tuple[Mapping[str, Any], str]:
    """The keys of one file that have a value, and the hash of its bytes; ({}, "") where there is no file."""
    from cdo.formats import strict_yaml

    fix = "Fix the file and run again."
    try:
        found = read_content(path, path.parent.parent if source == "project" else None)
        data = strict_yaml.load(found.decode("utf-8-sig"), max_bytes=65_536)
    except (FileNotFoundError, NotADirectoryError):
        return {}, ""
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text.", fix) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.", fix) from None
    except strict_yaml.YamlProblem as problem:
        raise ConfigError(f"{path}: {problem}.", fix) from None
    if not isinstance(data, dict | None):
        raise ConfigError(f"{path}: the top level must be a mapping of keys.", fix)
    for key in data or {}:
        if key not in Settings.model_fields:
            raise ConfigError(f"{path}: `{key}` is not a key it can have.", _instead(key))
    # A name in a file may hold a comma, where a variable's is split at it.
    values = {
        key: [value] if key == "model" and isinstance(value, str) else value
        for key, value in (data or {}).items()
        if value is not None
    }
    return values, hashlib.sha256(found).hexdigest()


def _instead(key: str) -> str:
    """What to do about a key that is none."""
    import difflib

    allowed = f"Allowed keys: {', '.join(Settings.model_fields)}."
    if re.search(r"(?i)key|token|secret|password", key):
        return f"Secrets are only read from the environment (`cdo models` names the variables). {allowed}"
    near = difflib.get_close_matches(key, Settings.model_fields, n=1)
    return f"Did you mean `{near[0]}`? {allowed}" if near else allowed


def _one(key: str, value: Any, source: str) -> Any:
    """Validate one setting so that its error names the source it came from."""
    try:
        return getattr(Settings.model_validate({key: value}), key)
    except ValidationError as error:
        item = error.errors()[0]
    given = value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value
    shown = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    shown = shown if len(shown) <= 60 else f"{shown[:59]}…"
    why = _in_words(item["msg"], [str(part) for part in item["loc"][1:]] if key == "prices" else [])
    if source.startswith("--"):
        raise UsageError(f"{source} cannot be `{shown}`: {why}.", "`cdo run --help` explains the options.")
    if source.startswith("CDO_"):
        raise ConfigError(f"{source} cannot be `{shown}`: {why}.", "Change the variable, or unset it.")
    raise ConfigError(f"{source}: `{key}` cannot be `{shown}`: {why}.", "Fix the file and run again.")


def _in_words(message: str, where: list[str]) -> str:
    """A validator's message for a person; `where` leads to the part that is wrong."""
    place = f"`{'.'.join(where)}` " if where else ""
    message = message.removeprefix("Value error, ").partition(", unable to")[0].partition(" or instance")[0]
    if message == "Field required":
        return f"{place}is missing"
    if message == "Extra inputs are not permitted":
        return f"{place}is not a key it can have (these are: {', '.join(Price.model_fields)})"
    for said, plain in (
        ("Input should be", "it should be" if not place else "should be"),
        ("a valid integer, got a number with a fractional part", "a whole number"),
        ("a valid integer", "a whole number"),
        ("a valid boolean", "true or false"),
        ("a valid dictionary", "a mapping"),
        ("a valid ", "a "),
    ):
        message = message.replace(said, plain)
    return place + message
