"""Defines the data blocks of replies: which values are allowed, and how a model is told what is wrong. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from cdo.core.schema import Schema
from cdo.core.steps import InvalidReply
from cdo.formats import strict_yaml

MAX_REPLY_CHARS = 262_144
ROLE = re.compile(r"[a-z][a-z0-9-]{0,31}")
# Names that would collide with other files of a session, or with device names of some file systems.
RESERVED_ROLES = frozenset(
    ["synthesis", "plan", "human", "final", "input", "context", "con", "prn", "aux", "nul"]
    + [f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10)]
)
MODEL = TypeVar("MODEL", bound=BaseModel)


def role_problem(name: str) -> str | None:
    """Return what is wrong with `name` as the name of a role, or None if it can be one."""
    if not ROLE.fullmatch(name):
        return (
            f"`{strict_yaml.shown(name)}` cannot be a role: use a-z, 0-9 and -, a letter first, at most 32 characters"
        )
    if name in RESERVED_ROLES or name.endswith("-"):
        return f"`{name}` cannot be a role: the name is reserved or ends in -"
    return None


def as_list(value: Any) -> Any:
    return [] if value is None else [value] if isinstance(value, (str, int, float)) else value


def _texts(value: Any) -> Any:
    """Return a list of texts; a word that stands for an empty list is no item."""
    items = as_list(value)
    return [] if isinstance(items, list) and is_none(items) else items


def is_none(items: Sequence[Any]) -> bool:
    """Return True if the only one of `items` is a word that stands for an empty list, such as `none`."""
    return len(items) == 1 and isinstance(items[0], str) and items[0].strip(" .").casefold() in _NONE


def _role(value: str) -> str:
    problem = role_problem(value)
    if problem:
        raise ValueError(problem)
    return value


def number(value: Any) -> Any:
    """Return `value`; raise ValueError for true and false, which Python takes for numbers."""
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


_NONE = ("none", "n/a", "nothing", "none found", "nothing found", "none identified", "no errors", "no errors found")

Text = Annotated[str, Field(min_length=1, max_length=4000)]
Line = Annotated[str, Field(min_length=1, max_length=600)]
Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$")]
Share = Annotated[float, BeforeValidator(number), Field(ge=0, le=1, allow_inf_nan=False)]
Strings = Annotated[tuple[Text, ...], BeforeValidator(_texts), Field(max_length=64)]
RoleName = Annotated[str, AfterValidator(_role)]


class Block(Schema):
    """A part of a reply. Numbers are accepted as text, and white space around a text is removed."""

    model_config = ConfigDict(coerce_numbers_to_str=True, str_strip_whitespace=True, defer_build=True)


class Tolerant(Block):
    """A mapping whose unknown keys are ignored."""

    model_config = ConfigDict(extra="ignore")


def validate(model: type[MODEL], data: Any, what: str) -> MODEL:
    """Return `data` as a block of kind `model`; raise `InvalidReply` with a sentence for each problem, at most 8.

    `what` names the data in these sentences.
    """
    if not isinstance(data, dict):
        raise InvalidReply([f"{what} must be a YAML mapping with the keys {', '.join(model.model_fields)}."])
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise InvalidReply([_sentence(item, what, model) for item in error.errors()[:8]]) from None


def _sentence(item: Any, what: str, model: type[BaseModel]) -> str:
    """Turn one of pydantic's errors into a sentence for the language model that has to fix it."""
    if not item["loc"]:
        return f"{what}: {worded(item)}."
    path = ".".join(strict_yaml.shown(str(part)) for part in item["loc"])
    kind = item["type"]
    if kind == "missing":
        return f"{what}: `{path}` is missing."
    if kind == "extra_forbidden":
        return f"{what}: `{path}` is not a key; the keys are {', '.join(keys_at(model, item['loc'][:-1]))}."
    if kind == "model_type":
        return f"{what}: `{path}` must be a mapping with the keys {', '.join(keys_at(model, item['loc']))}."
    return f"{what}: `{path}`: {worded(item)}."


def worded(item: Any) -> str:
    """Return the phrase for one of pydantic's errors, without Python's names of types."""
    plain = {"tuple_type": "must be a list", "string_type": "must be text", "string_too_short": "must not be empty"}
    if item["type"] in ("bool_type", "bool_parsing"):
        return "must be true or false"
    message = (
        str(plain.get(item["type"]) or item["msg"]).removeprefix("Value error, ").replace(" after validation", "")
    )
    return re.sub(r"^(Input|String|Value|Tuple) should\b", "must", message)


def keys_at(model: type[BaseModel], place: Iterable[object]) -> list[str]:
    """Return the keys that a mapping at `place` (a path such as roles, 0) of `model` can have."""
    for part in place:
        if isinstance(part, str) and part in model.model_fields:
            model = _block_in(model.model_fields[part].annotation) or model
    return list(model.model_fields)


def _block_in(annotation: Any) -> type[BaseModel] | None:
    """Return the block that a field holds, alone or in a list or mapping; None if it holds none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _block_in(part))), None)


def too_long(text: str, most: int = MAX_REPLY_CHARS) -> None:
    """Raise `InvalidReply` if a reply has more than `most` characters."""
    if len(text) > most:
        raise InvalidReply([f"The reply has {len(text)} characters; at most {most} are read."])


def twice(ids: Sequence[str], what: str) -> list[str]:
    """Return the sentence that names the duplicates in `ids`; [] if there are none."""
    twice = sorted({item for item in ids if ids.count(item) > 1})
    return [f"{what} {', '.join(twice)} is used twice."] if twice else []


_PLACEHOLDER = re.compile(r"<[^<>]+>")
_QUOTED = re.compile(r"[\"“`]<([a-z][\w ,:|'-]{2,200})>[\"”`]")


def placeholders(data: Any, what: str) -> list[str]:
    """Return a sentence for each text that is still a placeholder of the example, as in `<your answer>`.

    A placeholder in quotes counts too; `"<div>"` and other code do not.
    """
    end = "is a placeholder of the example: write your own text, or leave it out."
    return [
        f"{what}: `{path}`: `{strict_yaml.shown(' '.join(text.split()))}` {end}"
        for path, text in texts(data)
        if _PLACEHOLDER.fullmatch(text.strip()) or any(" " in words for words in _QUOTED.findall(text.strip()))
    ]


def texts(data: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield (path, text) for every text in nested mappings and lists."""
    if isinstance(data, str):
        yield path, data
    elif isinstance(data, Mapping | list | tuple):
        for key, value in data.items() if isinstance(data, Mapping) else enumerate(data):
            yield from texts(value, strict_yaml.shown(f"{path}.{key}" if path else str(key)))


def load(block: str, above: int, what: str, max_bytes: int, max_depth: int = 6) -> Any:
    """Load the YAML of a reply; raise `InvalidReply` with line numbers of the reply.

    `above` is the number of lines before `block`.
    """
    try:
        return strict_yaml.load(block, max_bytes=max_bytes, max_depth=max_depth)
    except strict_yaml.YamlProblem as problem:
        where = f"line {problem.line + above}, column {problem.column}: {problem.why}"
        raise InvalidReply([f"{what} is not valid YAML: {where}. Put text values between double quotes."]) from None
