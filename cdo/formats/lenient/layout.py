"""Defines how the parts of a reply are arranged, and the notes on what was read leniently. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args, runtime_checkable

import msgspec
from msgspec import Struct, field

from cdo.formats.strict_yaml import shown

if TYPE_CHECKING:
    from pydantic import BaseModel

MOST_NOTES = 12
AS_JSON = "read the data as JSON"
# Keys of a reply that is one JSON object: the text below its data, the texts under its headings, and its title.
BODY, SECTIONS, TITLE = "body", "sections", "title"


class ReplyLayout(Struct, frozen=True):
    """The arrangement of a reply: where its data stands, and the `models` (any one of them) that the data follows.

    `front matter`: YAML above the text. `block`: one fenced `yaml` block in the text. `json`: one object. `prose`: no
    data, or front matter if there are `models`. `documents` is (list, key) of texts that may stand beside the object,
    in delimited blocks (`cdo.formats.document_blocks`). `keys` has the keys of maps by the name of their field.
    `titles` are the required headings, of the second level unless `levels` says otherwise; the data of a `block`
    stands under the last one. With `titled`, a title of the first level stands above
    them. `numbered` are the keys of lists whose items have ids that mean nothing outside the reply, so that code may
    number them. `computed` are the fields of the model that code sets.
    """

    place: Literal["front matter", "block", "json", "prose"]
    models: tuple[type[BaseModel], ...] = ()
    titles: tuple[str, ...] = ()
    numbered: tuple[str, ...] = ()
    documents: tuple[str, str] | None = None
    keys: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    max_bytes: int = 65_536
    computed: tuple[str, ...] = ()
    levels: tuple[int, ...] = ()
    titled: bool = False

    @property
    def names(self) -> frozenset[str]:
        """The keys at the top of the data, folded."""
        return frozenset(folded(name) for model in self.models for name in model.model_fields)

    @property
    def all_names(self) -> frozenset[str]:
        """The keys at any level of the data, folded."""
        left, seen = list(self.models), set()
        while left:
            model = left.pop()
            if model not in seen:
                seen.add(model)
                left += [inner for field in model.model_fields.values() for inner in _models(field.annotation)]
        return frozenset(folded(name) for model in seen for name in model.model_fields)


@runtime_checkable
class LenientFormat(Protocol):
    """A reply format whose replies are read leniently."""

    @property
    def layout(self) -> ReplyLayout: ...


class Notes(Struct):
    """The deviations of one reply as short phrases, in the order in which they were found."""

    phrases: list[str] = field(default_factory=list)

    def add(self, phrase: str) -> None:
        """Add a phrase, once."""
        if phrase not in self.phrases:
            self.phrases.append(phrase)

    def copy(self) -> Notes:
        """Return notes that begin with the same phrases."""
        return Notes(list(self.phrases))

    @property
    def told(self) -> tuple[str, ...]:
        """The phrases, at most `MOST_NOTES`; if there are more, the last one says how many."""
        if len(self.phrases) <= MOST_NOTES:
            return tuple(self.phrases)
        rest = len(self.phrases) - MOST_NOTES + 1
        return (*self.phrases[: MOST_NOTES - 1], f"read {rest} more things leniently")


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Return the models in a type, at any depth of it."""
    from pydantic import BaseModel

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in get_args(annotation) for found in _models(part)]


def folded(word: str) -> str:
    """Return a key or an enumerated word in the form used for comparison: without case, blanks, `-` and `_`."""
    return re.sub(r"[\s_*`\"“”'‘’-]+", "", word).casefold()


def brief(value: object) -> str:
    """Return a value for a note."""
    text = " ".join(str(value).split())
    return shown(text) + ("…" if len(text) > 40 else "")
