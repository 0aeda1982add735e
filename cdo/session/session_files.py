"""Reads the files of an open session, and finds what people put into its folders."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from cdo.core.errors import SessionError
from cdo.files.atomic_files import (
    TEMPORARY,
    explain,
    is_session_folder,
    kind_of,
    open_below,
    read_file,
    signature,
    status_of,
)

_LETTER = 65_536  # bytes; a longer file in a folder for people's messages is not one
_EDIT = 2 * 1_048_576  # bytes of a file that a person may change
_KEPT = 65_536  # characters of a text that is kept in memory


class SessionFiles:
    """The files in the open `directory` of the session at `path`; `redact` removes secrets from their texts.

    `written` are the signatures of files as this process last wrote or found them, `count` is how many it has read.
    """

    def __init__(self, path: Path, directory: int, redact: Callable[[str], str]) -> None:
        self.path = path
        self.directory = directory
        self.written: dict[str, tuple[int, ...]] = {}
        self.count = 0
        self._redact = redact
        self._kept: dict[str, tuple[tuple[int, ...], str]] = {}  # texts with the signatures of their files
        self._looked: Mapping[str, os.stat_result | None] = {}

    @contextlib.contextmanager
    def as_looked(self, looked: Mapping[str, os.stat_result | None]) -> Iterator[None]:
        """Take these files of the top folder for as they were when they were looked at, within the block.

        Whoever reads them there looks again afterwards whether they have changed.
        """
        self._looked = looked
        try:
            yield
        finally:
            self._looked = {}

    def status(self, name: str) -> os.stat_result | None:
        """What is known of a file of the top folder, a link's own; None when it is not there."""
        return self._looked[name] if name in self._looked else status_of(name, self.directory)

    def place(self, folder: str, *, make: bool = False) -> contextlib.AbstractContextManager[int]:
        """Open a folder of the session ("" is its own), which is made if it is missing and `make` says so."""
        return open_below(self.directory, folder, make=make)

    def read(self, name: str) -> str | None:
        """The text of a file of the session without secrets, or None when there is none; raise `SessionError`.

        A person may have typed one there: it gets no further than that file. One that is as this process left it is
        read once: each call of a run wants the question and the context.
        """
        folder, _, file = name.rpartition("/")
        written, kept = self.written.get(name), self._kept.get(name)
        try:
            with self.place(folder) as place:
                if kept and kept[0] == written:
                    now = status_of(file, place) if folder else self.status(file)
                    if now and signature(now) == written:
                        return kept[1]
                self.count += 1
                data, status = read_file(place, file, written=written or ())
                text = self._redact(data.decode("utf-8"))
                if signature(status) == written:
                    self._keep(name, text)
                return text
        except FileNotFoundError:
            return None
        except UnicodeDecodeError:
            raise SessionError(f"{self.path / name} is not UTF-8 text.", "Fix or remove it, then resume.") from None
        except OSError as error:
            raise explain(error, self.path / name) from None

    def made(self, name: str, signature: tuple[int, ...], text: str | None) -> None:
        """Note a file that this process has just made, with the text that it wrote unless that is to be read."""
        self.written[name] = signature
        if text is not None:
            self._keep(name, self._redact(text))

    def _keep(self, name: str, text: str) -> None:
        if len(text) <= _KEPT:
            self._kept[name] = self.written[name], text

    def below(self, folder: str, *, written: bool = True) -> list[tuple[str, str, str]]:
        """The Markdown files in the folders of a folder, as (name with its folders, text, problem), by name.

        As `taken` for each of them. What a person called otherwise than cdo calls its folders is not looked into.
        """
        try:
            with self.place(folder) as place:
                inner = sorted(name for name in os.listdir(place) if kind_of(name, place) == stat.S_IFDIR)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise explain(error, self.path / folder) from None
        found = []
        for name in filter(is_session_folder, inner):
            below = f"{folder}/{name}"
            letters = self.taken(below, _EDIT, written=written)
            found += [(f"{below}/{file}", text, problem) for file, text, problem in letters]
        return found

    def all_below(self, folder: str, *, written: bool = True) -> list[str]:
        """The names of all files below a folder, however deep. Without those `written`, as `taken`."""
        found, waiting = list[str](), [folder]
        for place in waiting:  # grows during the iteration
            try:
                with self.place(place) as here:
                    for name in sorted(os.listdir(here)):
                        full, status = f"{place}/{name}", status_of(name, here)
                        if status and stat.S_ISDIR(status.st_mode) and is_session_folder(full):
                            waiting.append(full)
                        own = status and not written and self.written.get(full) == signature(status)
                        if status and stat.S_ISREG(status.st_mode) and not (own or TEMPORARY.fullmatch(name)):
                            found.append(full)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise explain(error, self.path / place) from None
        return found

    def taken(self, folder: str, most: int = _LETTER, *, written: bool = True) -> list[tuple[str, str, str]]:
        """The Markdown files of a folder of the session as (name, text without secrets, problem), by name.

        What cannot be read as text, or has over `most` bytes, comes with no text and the problem. Links are never
        followed. Without those `written` what is as this process wrote it is left out.
        """
        found = []
        try:
            with self.place(folder) as place:
                for name in sorted(os.listdir(place)):
                    if not name.endswith(".md") or name.startswith("."):
                        continue
                    status = status_of(name, place)
                    if status is None or not stat.S_ISREG(status.st_mode):
                        continue
                    if not written and self.written.get(f"{folder}/{name}") == signature(status):
                        continue
                    data = read_file(place, name)[0]
                    text, problem = _letter(data, most)
                    found.append((name, self._redact(text), problem))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise explain(error, self.path / folder) from None
        return found


def _letter(data: bytes, most: int) -> tuple[str, str]:
    """What a person's file says, and what keeps it from being read."""
    if len(data) > most:
        return "", f"It has {len(data):,} bytes; at most {most:,} are read."
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return "", "It is not UTF-8 text."
    return (text, "") if "\0" not in text else ("", "It is not text: it holds zero bytes.")
