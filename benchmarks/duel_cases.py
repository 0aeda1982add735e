"""The cases of a duel: a question, the material to answer it from, and what people should know about it.

A case is a folder: `question.txt`; `material/` with one to a hundred text files; `case.yaml` with the keys `kind`,
`about` (one line), `date` (the day on which it plays: both sides are told that it is today) and `judge_notes` (what a
very good answer finds: for people, never part of a prompt).
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from cdo.core.errors import UsageError
from cdo.core.steps import InvalidReply
from cdo.formats import strict_yaml
from cdo.formats.blocks import Block, validate
from cdo.repository.context import gather, section

CASES = Path(__file__).resolve().parent / "duel" / "cases"
ROOM = 1_000_000  # estimated tokens of material: more than any case has, so that nothing is cut
_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")


class Told(Block):
    """`case.yaml`."""

    kind: Annotated[str, Field(min_length=1, max_length=80)]
    about: Annotated[str, Field(min_length=1, max_length=300, pattern=r"^[^\n]+$")]
    date: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    judge_notes: Annotated[str, Field(min_length=1)] | Annotated[tuple[str, ...], Field(min_length=1)]


@dataclass(frozen=True)
class Case:
    """One case. `text` is its material as every model is shown it: each line numbered, under the file's path.

    `tokens` estimates the material; `digest` stands for question and material.
    """

    name: str
    folder: Path
    question: str
    told: Told
    files: tuple[str, ...]
    text: str
    tokens: int
    digest: str

    @property
    def notes(self) -> tuple[str, ...]:
        """What a very good answer finds."""
        notes = self.told.judge_notes
        return (notes,) if isinstance(notes, str) else notes


def names(root: Path) -> list[str]:
    """The names of the cases in a folder; raise `UsageError` where there are none."""
    found = sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    if not found:
        raise UsageError(f"There are no cases in {root}.", "Name a folder that holds some with --cases.")
    return found


def load(root: Path, name: str) -> Case:
    """Read one case; raise `UsageError` that says what is wrong with it."""
    folder = root.absolute() / name
    if not _NAME.fullmatch(name) or not folder.is_dir():
        raise UsageError(f"There is no case `{name}` in {root}.", f"There are {', '.join(names(root))}.")
    question = _text(folder / "question.txt").strip()
    if not question:
        raise _wrong(folder / "question.txt", "it is empty")
    told = _told(folder / "case.yaml")
    material = folder / "material"
    if not material.is_dir():
        raise _wrong(material, "this folder is missing")
    files = sorted(path for path in material.rglob("*") if not path.is_dir())
    if not files:
        raise _wrong(material, "it holds no file")
    if unread := next((path for path in files if path.is_symlink() or not path.is_file()), None):
        raise _wrong(unread, "only ordinary files can be material")
    gathered = gather(files, folder, ROOM)
    if len(gathered.pieces) != len(files) or any(piece.cut for piece in gathered.pieces):
        raise _wrong(material, "not every file can be shown as a whole")
    text = "".join(map(section, gathered.pieces)).strip()
    named = tuple(str(path.relative_to(folder)) for path in files)
    digest = hashlib.sha256(f"{question}\0{text}".encode()).hexdigest()
    return Case(name, folder, question, told, named, text, gathered.tokens, digest)


def _told(path: Path) -> Told:
    try:
        data = strict_yaml.load(_text(path), max_bytes=65_536)
        return validate(Told, data, "It")
    except strict_yaml.YamlProblem as problem:
        raise _wrong(path, f"line {problem.line}, column {problem.column}: {problem.why}") from None
    except InvalidReply as invalid:
        raise _wrong(path, " ".join(invalid.problems).rstrip(".")) from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise _wrong(path, "this file is missing") from None
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(path, f"it cannot be read ({error})") from None


def _wrong(path: Path, why: str) -> UsageError:
    return UsageError(f"{path}: {why}.", "A case is question.txt, case.yaml and the folder material/.")
