"""Reads values that deviate from their model: case of keys and words, 60%, 8/10, items as plain strings. Pure."""

from __future__ import annotations

import re
import types
import zlib
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ValidationError
from pydantic.fields import FieldInfo

from cdo.formats.fields import is_none, texts
from cdo.formats.lenient.data_text import BULLETS
from cdo.formats.lenient.layout import Notes, ReplyLayout, brief, folded

Data = dict[str, Any]
_NUMBER = r"\d{1,6}(?:[.,]\d{1,6})?"
_PERCENT = re.compile(rf"({_NUMBER})\s?(?:%|percent|per cent)", re.IGNORECASE)
_OF = re.compile(rf"({_NUMBER})\s?(?:/|of|out of)\s?(\d{{1,4}})(?:[.,]0)?", re.IGNORECASE)
# A remark behind a number: in brackets, or behind a dash or a comma, and then without a number of its own.
_ASIDE = re.compile(r"\s*\([^()]*\)$|(?:\s+[-–—]|[,;:])\s+[^\d]+$")
# A number behind a word that says the same less exactly: `moderate (0.7)`. `At most 0.7` is something else.
_WORDED = re.compile(
    r"(?:(?:very|fairly|quite|moderately) )?(?:low|minor|medium|moderate|high|severe|serious|major|critical)"
    r"\s*[-–—:(]\s*(\d[^()]*)\)?",
    re.IGNORECASE,
)
_ABOUT = re.compile(r"^(?:[~≈]|about|approx\.?|approximately|around|roughly)\s*", re.IGNORECASE)
_NUMBERED = re.compile(r"(?:^|\s)(\d{1,2})[.)]\s+")
_ID = r"([A-Za-z]{1,3}[-.]?\d{1,3})"
_NAMED = re.compile(rf"(?:\[?{_ID}\]?\s*(?:[:.)]|\s[-–—])|[(\[]{_ID}[)\]])\s+(\S.*)", re.DOTALL)
_SEVERITY = re.compile(r"\s*[(\[,;–—-]\s*(?:severity:?\s*)?(\d{1,2})\s*(?:/\s?10)?\s*[)\]]?\.?$", re.IGNORECASE)
_LAST_WORDS = re.compile(r"\s*[(\[]([\w -]{2,20})[)\]]\.?$")


def normalised(data: Data, layout: ReplyLayout, notes: Notes) -> Data:
    """Return `data` with each unambiguous deviation from one of the layout's models corrected."""
    model = max(layout.models, key=lambda each: _known(data, each))
    data = _unpacked(data, model, notes)
    found = _mapping(data, model, notes)
    for name in layout.numbered:
        if isinstance(found.get(name), list):
            found[name] = _numbered(found, name, notes)
    return found


def _known(data: Mapping[str, Any], model: type[BaseModel]) -> int:
    names = {folded(name) for name in _fields(model)}
    return sum(folded(key) in names for key in data)


def _unpacked(data: Data, model: type[BaseModel], notes: Notes) -> Data:
    """Return the object in `data` if `data` holds nothing else under a key that the model does not know."""
    if len(data) == 1 and not _known(data, model):
        key, inner = next(iter(data.items()))
        if isinstance(inner, dict) and _known(inner, model):
            notes.add(f"took the keys out of `{brief(key)}`")
            return inner
    return data


def _mapping(data: Data, model: type[BaseModel], notes: Notes) -> Data:
    fields = _fields(model)
    names = {folded(name): name for name in fields}
    found: Data = {}
    for key, value in data.items():
        name = key if key in fields else names.get(folded(key), key)
        if name != key and name in data.keys() | found.keys():
            name = key  # both are there: which one counts is not for code to say
        if name != key:
            notes.add(f"read the key `{brief(key)}` as `{name}`")
        field = fields.get(name)
        found[name] = _field(value, field, name, notes) if field else value
    return found


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of a model by the keys under which replies have them."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _field(value: Any, field: FieldInfo, name: str, notes: Notes) -> Any:
    return _typed(value, field.annotation, field.metadata, name, notes)


def _typed(value: Any, kind: Any, metadata: Iterable[Any], name: str, notes: Notes) -> Any:
    """Return `value` in the form that a field of this type takes, or as it is if that is not certain."""
    if get_origin(kind) is Annotated:
        inner, *more = get_args(kind)
        more = [part for item in more for part in (item.metadata if isinstance(item, FieldInfo) else [item])]
        return _typed(value, inner, [*metadata, *more], name, notes)
    if get_origin(kind) in (Union, types.UnionType):
        kinds = [part for part in get_args(kind) if part is not type(None)]
        return _typed(value, kinds[0], metadata, name, notes) if len(kinds) == 1 and value is not None else value
    if kind in (int, float):
        return _scaled(value, kind, list(metadata), name, notes)
    words = _words(kind)
    if words and isinstance(value, str) and value not in words:
        return _word(value, words, name, notes)
    if get_origin(kind) is tuple:
        return _items(value, get_args(kind)[0], name, notes)
    if get_origin(kind) is dict and isinstance(value, dict):
        return {key: _typed(item, get_args(kind)[1], (), name, notes) for key, item in value.items()}
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return _mapping(value, kind, notes) if isinstance(value, dict) else value
    if kind is str and isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
        notes.add(f"took `{name}` out of a list")
        return value[0]
    return value


# -- words and numbers -----------------------------------------------------------------------------


def _words(kind: Any) -> list[str]:
    if get_origin(kind) is Literal:
        return [word for word in get_args(kind) if isinstance(word, str)]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [item.value for item in kind if isinstance(item.value, str)]
    return []


def _word(value: str, words: list[str], name: str, notes: Notes) -> str:
    same = [word for word in words if folded(word) == folded(value.strip().rstrip("."))]
    if len(same) != 1:
        return value
    notes.add(f"read {name} `{brief(value)}` as `{same[0]}`")
    return same[0]


def _scaled(value: Any, kind: type, metadata: list[Any], name: str, notes: Notes) -> Any:
    """Read a share or a grade that is written as a percentage, a fraction or a number with a remark."""
    stated, value = value, _of_mapping(value)
    low, high = (next((getattr(item, key) for item in metadata if hasattr(item, key)), None) for key in ("ge", "le"))
    if (kind, low, high) == (float, 0, 1):
        number = _share(value)
    elif kind is int and high == 10 and isinstance(value, str):
        number = _grade(_bare(value))
    else:
        return stated
    if number is None and stated is not value and isinstance(value, (int, float)) and not isinstance(value, bool):
        number = value
    if number is None or (high is not None and number > high):
        return stated
    notes.add(f"read {name} {brief(stated)} as {number:g}")
    return number


def _of_mapping(value: Any) -> Any:
    """Return the number of a mapping such as `{value: 0.7, why: ...}`; any other value as it is."""
    if not isinstance(value, dict):
        return value
    numbers = [item for key, item in value.items() if folded(str(key)) in ("value", "score", "level")]
    rest = [item for item in value.values() if not isinstance(item, str)]
    return numbers[0] if len(numbers) == 1 and len(rest) <= 1 else value


def _bare(text: str) -> str:
    """Return a number without marks, and without words beside it that say no more."""
    text = text.strip().strip("*_`").strip().rstrip(".")
    if worded := _WORDED.fullmatch(text):
        text = worded[1]
    return _ABOUT.sub("", _ASIDE.sub("", text)).strip().strip("*_`")


def _grade(text: str) -> int | None:
    """Return the grade of ten that `text` states as a whole number, alone or of ten; None if it states none."""
    match = _OF.fullmatch(text)
    number, of = (match[1], match[2]) if match else (text, "10")
    return int(number) if of == "10" and re.fullmatch(r"\d{1,2}", number, re.ASCII) else None


def _share(value: Any) -> float | None:
    """Return the share from 0 to 1 that `value` states in another form; None if it states none for certain.

    A whole number above 10 is a percentage. From 2 to 10 it could be a percentage or a grade out of ten.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return value / 100 if 10 < value <= 100 else None
    if not isinstance(value, str):
        return None
    text = _bare(value)
    if match := _PERCENT.fullmatch(text):
        return _float(match[1]) / 100
    if match := _OF.fullmatch(text):
        return _float(match[1]) / int(match[2]) if int(match[2]) in (1, 5, 10, 100) else None
    if not re.fullmatch(_NUMBER, text):
        return None
    number = _float(text)
    return number if number <= 1 else _share(number)


def _float(text: str) -> float:
    return float(text.replace(",", "."))


# -- lists -----------------------------------------------------------------------------------------


def _items(value: Any, kind: Any, name: str, notes: Notes) -> Any:
    model, text_taken = kind, False
    if get_origin(kind) is Annotated:
        model, *more = get_args(kind)
        text_taken = any(isinstance(item, BeforeValidator) for item in more)  # it reads texts itself
    if isinstance(model, type) and issubclass(model, BaseModel):
        if isinstance(value, dict):
            value = _by_id(value, model, name, notes)
        if isinstance(value, str) and not text_taken:
            value = _enumerated(value)
        if not isinstance(value, list):
            return value
        if is_none(value):
            notes.add(f"read {value[0]} as no `{name}`")
            return []
        items = [_item(item, model, name, notes, text_taken=text_taken) for item in value]
        return _once(items, name, notes) if "id" in model.model_fields or "name" in model.model_fields else items
    if not isinstance(value, list):
        return value
    if _words(model):
        return [_typed(item, kind, (), name, notes) for item in value]
    return [_line(item, name, notes) for item in value] if model is str else value


def _enumerated(text: str) -> list[str]:
    """Return the items of `1. one 2. two` or `• one • two`, which YAML takes for one text; or the text alone."""
    if text.strip()[:1] in tuple(BULLETS):
        return [item for item in re.split(rf"(?:^|\s){text.strip()[0]}\ufe0f?\s+", text.strip()) if item]
    before, *parts = _NUMBERED.split(text.strip())
    numbers, said = parts[::2], parts[1::2]
    counted = len(said) > 1 and not before and numbers == [str(n + 1) for n in range(len(numbers))]
    return said if counted and all(said) else [text]


def _line(item: Any, name: str, notes: Notes) -> Any:
    """Return the text of an item that YAML takes for a mapping: `Note: it is late`, or {text: it is late}."""
    if not isinstance(item, dict):
        return item
    if isinstance(item.get("text"), str) and item.keys() <= {"id", "text"}:
        notes.add(f"took the texts of `{name}` out of mappings")
        return item["text"]
    key, said = next(iter(item.items())) if len(item) == 1 else ("", None)
    if key and isinstance(said, (str, int, float)) and not isinstance(said, bool):
        notes.add(f"read an item of `{name}` with a colon as text")
        return f"{key}: {said}"
    return item


def _by_id(value: Data, model: type[BaseModel], name: str, notes: Notes) -> Any:
    """Return a mapping of ids to texts or items as a list; a single item stays as it is, in a list."""
    if _known(value, model):
        return [value]
    if "id" not in model.model_fields or not value or not all(isinstance(v, (str, dict)) for v in value.values()):
        return value
    notes.add(f"read the mapping `{name}` as a list")
    told = _told(model)
    return [{"id": key, **(item if isinstance(item, dict) else {told: item})} for key, item in value.items()]


def _with_told(item: Data, model: type[BaseModel], name: str, notes: Notes) -> Data:
    """Return an item with its text under the model's key, where it stands under `claim` (of `claims`) or so."""
    told = _told(model) or ("name" if "name" in model.model_fields else "")
    own = {name.removesuffix("s"), f"{name.removesuffix('es')}is", "statement"}  # one claim, one hypothesis
    found = [key for key, value in item.items() if folded(str(key)) in own and isinstance(value, str)]
    known = {folded(field) for field in _fields(model)}
    if not told or len(found) != 1 or folded(found[0]) in known or told in {folded(str(key)) for key in item}:
        return item
    notes.add(f"read the key `{brief(found[0])}` as `{told}`")
    return {told if key == found[0] else key: value for key, value in item.items()}


def _told(model: type[BaseModel]) -> str:
    """Return the key of a model's text; "" if it has none."""
    return next((name for name in ("text", "title") if name in model.model_fields), "")


def _item(item: Any, model: type[BaseModel], name: str, notes: Notes, *, text_taken: bool) -> Any:
    if isinstance(item, dict):
        item = _with_told(item, model, name, notes)
        key, said = next(iter(item.items())) if len(item) == 1 else ("", None)
        if key and not _known(item, model) and isinstance(said, str) and not text_taken:
            return _from_text(f"{key}: {said}", model, name, notes)
        return _mapping(item, model, notes)
    if isinstance(item, str) and item.strip() and not text_taken:
        return _from_text(item, model, name, notes)
    return item


def _from_text(text: str, model: type[BaseModel], name: str, notes: Notes) -> Any:
    """Return the item that a plain string stands for: `c1: text`, `text (severity 7)`, `T1: title (resolved)`.

    A tension without status is open. A severity is never guessed.
    """
    told = _told(model)
    if (
        _accepted(text, model)
        or not told
        or not {"id", told, "severity", "status", "rank"}
        >= {key for key, field in model.model_fields.items() if field.is_required()}
    ):
        return text
    found: Data = {}
    rest = text.strip()
    if "id" in model.model_fields and (match := _NAMED.fullmatch(rest)):
        found["id"], rest = match[1] or match[2], match[3].strip()
    if "severity" in model.model_fields and (match := _SEVERITY.search(rest)):
        found["severity"], rest = int(match[1]), rest[: match.start()].strip()
    if status := model.model_fields.get("status"):
        words = _words(status.annotation)
        last = _LAST_WORDS.search(rest)
        stated = [word for word in words if last and folded(word) == folded(last[1])]
        if last and stated:
            found["status"], rest = stated[0], rest[: last.start()].strip()
        elif status.is_required() and "open" in words:
            found["status"] = "open"
    if "id" not in found and status:
        found["id"] = f"N{zlib.crc32(rest.encode('utf-8', 'replace')) & 0xFFFFFF:06x}"  # the same for the same words
    notes.add(f"took an item of `{name}` from a plain string")
    return {**found, told: rest}


def _accepted(value: Any, model: type[BaseModel]) -> bool:
    """True if the model itself takes a plain string."""
    try:
        model.model_validate(value)
    except ValidationError:
        return False
    return True


def _once(items: list[Any], name: str, notes: Notes) -> list[Any]:
    """Return `items` without exact duplicates of earlier ones."""
    kept: list[Any] = []
    for item in items:
        if isinstance(item, dict) and item in kept:
            notes.add(f"left out an item of `{name}` that was there twice")
        else:
            kept.append(item)
    return kept


def _numbered(data: Data, name: str, notes: Notes) -> list[Any]:
    """Return the items of a list with ids for those that have none, and new ids for later ones with a used id.

    Duplicates stay, and so the reply is invalid, if another part of the data refers to the id: it could mean both.
    """
    items = data[name]
    ids = [str(item["id"]) if isinstance(item, dict) and item.get("id") not in (None, "") else "" for item in items]
    letter = next((match[1] for ident in ids if (match := re.match(r"([A-Za-z])\d", ident))), name[0])
    elsewhere = " \n".join(
        text for path, text in texts({**data, name: [_but_id(item) for item in items]}) if not path.endswith(".id")
    )
    taken, found = set(ids), list[Any]()
    seen: set[str] = set()
    for item, ident in zip(items, ids, strict=True):
        twice = ident in seen and not re.search(rf"(?<![\w-]){re.escape(ident)}(?![\w-])", elsewhere)
        if isinstance(item, dict) and (not ident or twice):
            fresh = next(new for n in range(1, len(items) + len(taken) + 2) if (new := f"{letter}{n}") not in taken)
            notes.add(f"gave a second {ident} of `{name}` the id {fresh}" if ident else f"numbered `{name}`")
            taken.add(fresh)
            item = {**item, "id": fresh}
        seen.add(ident)
        found.append(item)
    return found


def _but_id(item: Any) -> Any:
    return {key: value for key, value in item.items() if key != "id"} if isinstance(item, dict) else item
