"""Reads the items of a batch: what each row of a file asks, and by which id it is known from then on.

An item is known by a digest of what it asks, unless the file has a column of ids. Everything in a file is untrusted:
an id never becomes a path, only the name of a session that is allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from cdo.app.batch.rows import Row
from cdo.core.errors import UsageError
from cdo.core.formatting import one_line
from cdo.session.artifact import digest
from cdo.session.records import PREFIX, session_path

COLUMNS = ("question", "context", "preset", "models", "session", "id")
MAX_QUESTION, MAX_CONTEXT, MAX_ID = 2**20, 2**22, 512  # bytes
_IDENTITY = 16  # hexadecimal digits of a digest that serve as an id


class BatchItem(Struct, frozen=True):
    """One question of a batch. `digest` identifies what is asked; `session` is the name of its session.

    `preset` and `models` are empty where those of the batch count. `line` is where the file had it.
    """

    id: str
    session: str
    digest: str
    question: str
    context: str = ""
    preset: str = ""
    models: tuple[str, ...] = ()
    line: int = 0

    def json(self) -> dict[str, Any]:
        """Return the item as JSON data."""
        return asdict(self)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> BatchItem:
        """Return the item of JSON data; raise `TypeError` for data that `json` did not make."""
        return cls(**{**data, "models": tuple(data["models"])})


def mapped(given: Iterable[str]) -> dict[str, str]:
    """Return what `--column question=title` says: the name in the file by cdo's name; raise `UsageError`."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, column = text.partition("=")
        if not equals or name not in COLUMNS or not column or name in found:
            raise UsageError(
                f"--column cannot be `{one_line(text, 60)}`.",
                f"Write NAME=COLUMN once for each of {', '.join(COLUMNS)}, as in question=title.",
            )
        found[name] = column
    return found


def items(rows: Iterable[Row], columns: Mapping[str, str], unused: set[str]) -> Iterator[BatchItem]:
    """Yield the items of a file's rows; `unused` collects the columns that no item uses. Raises `UsageError`."""
    for row in rows:
        where = f"{row.file}, line {row.line}"
        for name, column in columns.items():
            if column not in row.cells:
                raise UsageError(
                    f"{where}: there is no column `{one_line(column, 60)}`, which --column gives for {name}.",
                    f"It has {_listed(row.cells)}.",
                )
        cells = {name: row.cells.get(columns.get(name, name)) for name in COLUMNS}
        unused |= row.cells.keys() - {columns.get(name, name) for name in COLUMNS}
        yield _item(cells, row, columns.get("question", "question"), where)


def _item(cells: Mapping[str, object], row: Row, column: str, where: str) -> BatchItem:
    """Return the item of a row, whose question is in `column`; raise `UsageError`."""
    question = _text(cells["question"], "question", MAX_QUESTION, where)
    if not question:
        raise _without_question(row, column, where)
    context, preset = (_text(cells[name], name, MAX_CONTEXT, where) for name in ("context", "preset"))
    models = _models(cells["models"], where)
    asked = digest([question, context, preset, models])
    given = cells["id"]
    told = str(given) if isinstance(given, int) and not isinstance(given, bool) else given
    identity = _text(told, "id", MAX_ID, where) or asked[:_IDENTITY]
    session = _text(cells["session"], "session", MAX_ID, where)
    if session:
        _require_name(session, where)
    return BatchItem(identity, session or _name(identity), asked, question, context, preset, models, row.line)


def _without_question(row: Row, column: str, where: str) -> UsageError:
    if column in row.cells:
        return UsageError(f"{where}: its `{column}` is empty.", "Write a question there, or remove the row.")
    hint = f"It has {_listed(row.cells)}; `--column question=NAME` says which column holds the question."
    if len(row.cells) == 1 and (by := next((sign for sign in ";\t" if sign in next(iter(row.cells))), "")):
        sign = "`;`" if by == ";" else "tabs"
        hint = f"Its first line has {sign} between the names: save it with commas, or name it .tsv if it has tabs."
    return UsageError(f"{where}: it has no question.", hint)


def _text(value: object, name: str, most: int, where: str) -> str:
    """Return the text of a cell without blanks around it; "" for an empty one. Raises `UsageError`."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UsageError(
            f"{where}: `{name}` is {_kind(value)} and not a text.", "Write it as a text, in quotation marks."
        )
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise UsageError(f"{where}: `{name}` is not UTF-8 text.", "Convert the file first.") from None
    if size > most:
        raise UsageError(f"{where}: `{name}` has {size:,} bytes, and at most {most:,} are read.", "Shorten it.")
    return value.strip()


def _kind(value: object) -> str:
    names = {bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return names.get(type(value), "a value of another kind")


def _models(value: object, where: str) -> tuple[str, ...]:
    """Return the names of models in a cell: a list, or a text with commas."""
    names = value.split(",") if isinstance(value, str) else [] if value is None else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UsageError(
            f"{where}: `models` is neither a text nor a list of texts.", "Write it as in openai/gpt-5,qwen3:8b."
        )
    return tuple(text for name in names if (text := _text(name, "models", MAX_ID, where)))


def _listed(names: Iterable[str]) -> str:
    found = [f"`{one_line(name, 40)}`" for name in names]
    more = f" and {len(found) - 12} more" if len(found) > 12 else ""
    return f"the columns {', '.join(found[:12])}{more}" if found else "no columns"


def _require_name(name: str, where: str) -> None:
    try:
        if name.startswith(PREFIX):
            raise UsageError(f"`{name}` begins with {PREFIX}.", f"Leave {PREFIX} out.")
        session_path(Path(), name)
    except UsageError as error:
        raise UsageError(f"{where}: {error.message}", error.hint) from None


def _name(identity: str) -> str:
    """Return the name of the session of an item: its id where that can be one, else a digest of the id."""
    try:
        _require_name(identity, "")
    except UsageError:
        return f"item-{sha256(identity.encode()).hexdigest()[:_IDENTITY]}"
    return identity


class ItemRegister:
    """Knows which items a batch has, and takes in the rows of a file one by one.

    `begun` are the items that the batch has already. Rows that ask the same under the same id are counted once, in
    `repeated`. `alike` counts items that ask the same under ids of their own, `seen` all rows.
    """

    def __init__(self, batch: str, begun: Iterable[BatchItem] = ()) -> None:
        self._batch = batch
        self._known: dict[str, tuple[str, int]] = {}  # id → digest, line (0: of an earlier time)
        self._sessions: dict[str, str] = {}  # name of a session without regard to case → id
        self._asked: set[str] = set()
        self.repeated: list[tuple[int, int]] = []  # (line, line before)
        self.alike = self.seen = 0
        for item in begun:
            self._note(item, 0)
        self.begun = frozenset(self._known)

    def take(self, item: BatchItem) -> BatchItem | None:
        """Return the item if it is new; None for one that is known. Raises `UsageError` for an edited question."""
        self.seen += 1
        if known := self._known.get(item.id):
            asked, line = known
            if asked != item.digest:
                raise self._edited(item, line)
            if line:
                self.repeated.append((item.line, line))
            self._known[item.id] = asked, item.line
            return None
        if other := self._sessions.get(item.session.casefold()):
            raise UsageError(
                f"Line {item.line}: the items `{one_line(item.id, 60)}` and `{one_line(other, 60)}` would have the "
                f"same session, {one_line(item.session, 64)}.",
                "Give one of them another id or session; upper and lower case do not count.",
            )
        self.alike += item.digest in self._asked
        self._note(item, item.line)
        return item

    def gone(self) -> int:
        """Return how many items of an earlier time the file has not named."""
        return sum(self._known[identity][1] == 0 for identity in self.begun)

    def _note(self, item: BatchItem, line: int) -> None:
        self._known[item.id] = item.digest, line
        self._sessions[item.session.casefold()] = item.id
        self._asked.add(item.digest)

    def _edited(self, item: BatchItem, line: int) -> UsageError:
        name = one_line(item.id, 60)
        if line and item.id not in self.begun:
            return UsageError(
                f"Lines {line} and {item.line} have the same id, `{name}`, and do not ask the same.",
                "Give each item an id of its own.",
            )
        return UsageError(
            f"Line {item.line}: the item `{name}` does not ask what it asked when the batch {self._batch} was begun.",
            "Give the changed item another id; or begin a new batch with --name NAME.",
        )
