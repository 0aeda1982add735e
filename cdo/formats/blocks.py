"""Defines the data blocks of replies: which values are allowed, and how a model is told what is wrong. Pure.

pydantic checks them, because it finds every problem at once. Importing it takes a tenth of a second, so this module
and those of the blocks are imported while the first replies are awaited (`runner/import_ahead.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from cdo.core.steps import InvalidReply
from cdo.formats import strict_yaml
from cdo.formats.fields import as_list, is_none, number
from cdo.formats.role_names import role_problem

MODEL = TypeVar("MODEL", bound=BaseModel)


def _texts(value: Any) -> Any:
    """Return a list of texts; a word that stands for an empty list is no item."""
    items = as_list(value)
    return [] if isinstance(items, list) and is_none(items) else items


def _role(value: str) -> str:
    problem = role_problem(value)
    if problem:
        raise ValueError(problem)
    return value


Text = Annotated[str, Field(min_length=1, max_length=4000)]
Line = Annotated[str, Field(min_length=1, max_length=600)]
Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$")]
Share = Annotated[float, BeforeValidator(number), Field(ge=0, le=1, allow_inf_nan=False)]
Strings = Annotated[tuple[Text, ...], BeforeValidator(_texts), Field(max_length=64)]
ReplyRole = Annotated[str, AfterValidator(_role)]


class Block(BaseModel):
    """A part of a reply: unknown keys are errors. Numbers are accepted as text, white space around it is removed."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", coerce_numbers_to_str=True, str_strip_whitespace=True, defer_build=True
    )


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
    plain = {
        "tuple_type": "must be a list", "string_type": "must be text", "string_too_short": "must not be empty",
        **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
        **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    }  # fmt: skip
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
