"""The models of the hub on this machine: which are there, what `local` means, and whether a file is the pinned one.

A fetched file is pinned: beside it lies what the hub stated when it was fetched. A later version under the same name
is refused until the person asks for it, and a file that changed on the disk is not loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta, Struct

from cdo.content.schemas import GGUF_FILE, REPOSITORY, LocalModel, LocalModels
from cdo.core.demo_model import DEMO_MODEL
from cdo.core.errors import ConfigError, UsageError
from cdo.core.schema import Schema
from cdo.files import locks
from cdo.files.atomic_files import closing, open_directory, write_file
from cdo.providers.hub import Hub, HubFile, Progress, digest, unwritable

if TYPE_CHECKING:
    from cdo.content.library import Library

TABLE = "dispatch/local_models"
ANY = "hf:"  # begins the name of a model that is not in the table: hf:ORG/REPO/FILE
DEMO = "demo"  # the name of the demo model after `local:`
PIN = ".pin.json"


class FilePin(Schema, frozen=True, kw_only=True):
    """What the hub stated of a file when it was fetched, and how the file on the disk looked then."""

    repository: str
    file: str
    commit: str
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    size: int
    seen: tuple[int, ...]


class Listed(Struct, frozen=True):
    """A model of the table, or another one that was fetched. `path` is None if it is not on this machine."""

    name: str
    source: HubFile
    size: str
    license: str
    path: Path | None


def folder() -> Path:
    """Return the folder for model files (`CDO_MODELS_DIR` moves it)."""
    if home := os.environ.get("CDO_MODELS_DIR"):
        return Path(home).expanduser()
    import platformdirs

    return Path(platformdirs.user_data_dir("cdo")) / "models"


def table(library: Library) -> dict[str, LocalModel]:
    """Return the models that can be fetched by name, best first."""
    return library.read(TABLE, LocalModels)[0].models


def source_of(name: str, library: Library) -> HubFile | None:
    """Return where on the hub a model is; None if it is neither in the table nor written as hf:ORG/REPO/FILE."""
    if name.startswith(ANY):
        parts = name.removeprefix(ANY).split("/", 2)
        repository, file = "/".join(parts[:2]), "".join(parts[2:])
        if not re.fullmatch(REPOSITORY, repository) or not re.fullmatch(GGUF_FILE, file):
            raise UsageError(f"`{name[:200]}` names no GGUF file.", "Write it as hf:ORG/REPO/FILE.gguf.")
        if re.search(r"-\d{5}-of-\d{5}\.gguf$", file):
            raise UsageError(f"{file} is one part of a model.", "Name a file that has the whole model.")
        return HubFile(repository, file)
    found = table(library).get(name)
    return HubFile(found.repository, found.file) if found else None


def path_of(source: HubFile) -> Path:
    """Return where the file of a model is kept, whether or not it is there."""
    return folder() / "hub" / source.repository / source.file


def pin_of(path: Path) -> FilePin | None:
    """Return the pin of a file; None if it has none."""
    try:
        return msgspec.json.decode(path.with_name(path.name + PIN).read_bytes(), type=FilePin)
    except (OSError, msgspec.DecodeError):
        return None


def present(source: HubFile) -> Path | None:
    """Return the path of a model that was fetched; None if it is not on this machine."""
    path = path_of(source)
    return path if path.is_file() and pin_of(path) else None


def best(library: Library) -> str:
    """Return the name of the model that `local` means: the first of the table that is here, else the demo model."""
    if (folder() / "hub").is_dir():
        for name, model in table(library).items():
            if present(HubFile(model.repository, model.file)):
                return f"{DEMO_MODEL}:{name}"
    return DEMO_MODEL


def expanded(names: Iterable[str], library: Library) -> tuple[str, ...]:
    """Return the names of models with `local` replaced by the model that it means here and now."""
    known = {f"{DEMO_MODEL}:{DEMO}": DEMO_MODEL}
    return tuple(best(library) if name == DEMO_MODEL else known.get(name, name) for name in names)


def located(name: str, library: Library) -> str:
    """Return the path of the model file that `name` means after `local:`; raise `ConfigError` if it is not here."""
    source = None if "/" in name and not name.startswith(ANY) else source_of(name, library)
    if source is None:
        if "/" in name or name.endswith(".gguf") or Path(name).is_file():
            return name
        near = ", ".join(table(library))
        raise ConfigError(
            f"`{DEMO_MODEL}:{name}` is not a model that cdo knows, and there is no such file.",
            f"Name one of {near}, hf:ORG/REPO/FILE, or the path of a GGUF file.",
        )
    if path := present(source):
        return str(path)
    raise ConfigError(f"`{DEMO_MODEL}:{name}` is not on this machine.", f"Fetch it: cdo models pull {name}")


def listed(library: Library) -> list[Listed]:
    """Return the models of the table in their order, then others that were fetched."""
    rows = []
    for name, model in table(library).items():
        source = HubFile(model.repository, model.file)
        rows.append(Listed(name, source, model.size, model.license, present(source)))
    known = {row.source for row in rows}
    root = folder() / "hub"
    for path in sorted(root.rglob(f"*.gguf{PIN}")) if root.is_dir() else ():
        pin = pin_of(path.with_name(path.name.removesuffix(PIN)))
        other = HubFile(pin.repository, pin.file) if pin else None
        if other and other not in known and (there := present(other)):
            rows.append(Listed(f"{ANY}{other}", other, "", "see its page on the hub", there))
    return rows


def require_pinned(path: Path) -> None:
    """Raise `ConfigError` if a fetched file is not the one that was fetched. Hashes it only if it was touched."""
    pin = pin_of(path)
    if pin is None or pin.seen == _look(path):
        return
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != pin.sha256:
        raise ConfigError(
            f"{path} is not the file that was fetched: it has changed since.",
            f"Fetch it again: cdo models pull {ANY}{pin.repository}/{pin.file}",
        )
    with contextlib.suppress(OSError):  # then it is hashed the next time too
        _write_pin(path, msgspec.structs.replace(pin, seen=_look(path)))


async def pull(
    name: str,
    library: Library,
    env: Mapping[str, str],
    say: Callable[[str], None],
    progress: Progress,
    *,
    force: bool = False,
) -> Path:
    """Fetch a model unless it is here, and pin it; return its path.

    Raises `NoModel` if it cannot be had, `ConfigError` if it cannot be stored, or if the hub now states another hash
    than the pinned one and `force` is not given. A run never calls this.
    """
    source, hub = source_of(name, library), Hub(env)
    if source is None:
        raise UsageError(
            f"`{name[:200]}` is not a model that cdo knows.",
            f"Name one of {', '.join(table(library))}, or write hf:ORG/REPO/FILE.gguf.",
        )
    path, stated = path_of(source), await hub.stated(source)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        async with _alone(path.parent, say):
            pin = pin_of(path)
            if pin and pin.sha256 != stated.sha256 and not force:
                raise ConfigError(
                    f"{name} is pinned to the file with sha256 {pin.sha256[:16]}…, and the hub now states "
                    f"{stated.sha256[:16]}….",
                    f"To take the new version: cdo models pull {name} --force",
                )
            if await _same(path, stated.sha256, progress):
                say(f"{name} is on this machine.")
            else:
                say(f"Fetching {source} from {hub.endpoint.partition('://')[2].rpartition('@')[2]}.")
                await hub.fetch(source, stated, path, progress)
            _write_pin(
                path,
                FilePin(
                    repository=source.repository,
                    file=source.file,
                    commit=stated.commit,
                    sha256=stated.sha256,
                    size=stated.size,
                    seen=_look(path),
                ),
            )
    except OSError as error:
        raise unwritable(path.parent, error) from None
    return path


def remove(name: str, library: Library) -> Path:
    """Remove a fetched model, what arrived of it, and its pin; return the path that it had."""
    source = source_of(name, library)
    path = path_of(source) if source else None
    left = list(path.parent.glob(f".{path.name}.*.part")) if path else []
    if path is None or not (path.exists() or left):
        raise UsageError(f"{name[:200]} is not on this machine.", "`cdo models` lists the models that are there.")
    try:
        for file in (path, path.with_name(path.name + PIN), *left):
            file.unlink(missing_ok=True)
        for place in (path.parent, path.parent.parent):
            with contextlib.suppress(OSError):  # it holds other files
                place.rmdir()
    except OSError as error:
        raise ConfigError(f"{path} cannot be removed: {error.strerror}.", "Check the folder's permissions.") from None
    return path


def _look(path: Path) -> tuple[int, ...]:
    """Return what of a file changes with any change of it; `st_ctime_ns` cannot be set back."""
    status = path.stat()
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _write_pin(path: Path, pin: FilePin) -> None:
    with closing(open_directory(path.parent)) as place:
        write_file(place, path.name + PIN, msgspec.json.encode(pin) + b"\n")


async def _same(path: Path, sha256: str, progress: Progress) -> bool:
    """Return True if the file is there and has this hash."""
    pin = pin_of(path)
    try:
        known = pin is not None and pin.sha256 == sha256 and pin.seen == _look(path)
        return known or await digest(path, progress) == sha256
    except FileNotFoundError:
        return False


@contextlib.asynccontextmanager
async def _alone(place: Path, say: Callable[[str], None]) -> AsyncIterator[None]:
    """Hold the lock on fetching into `place`; it is free when its holder dies."""
    with closing(open_directory(place)) as lock:
        told = False
        while not locks.take(lock):
            if not told:
                say("Another process is fetching into this folder; waiting for it.")
            told = True
            await asyncio.sleep(0.2)
        try:
            yield
        finally:
            locks.release(lock)
