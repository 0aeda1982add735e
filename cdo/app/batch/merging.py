"""Joins batches, such as the shards of one, into a batch that has the items, results and sessions of all."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from cdo.app.batch.folder import (
    PREFIX,
    BatchFile,
    BatchFolder,
    ItemResult,
    in_use,
    read_head,
    read_items,
    read_results,
)
from cdo.app.batch.items import BatchItem
from cdo.app.batch.opening import CONTENT
from cdo.app.batch.shards import owner_here
from cdo.app.batch.submitted import at_providers
from cdo.core.errors import SessionError, UsageError
from cdo.core.formatting import one_line
from cdo.session.records import session_path


class _Joined(Struct):
    """The items of several batches with where each comes from, and what should be told."""

    items: dict[str, tuple[BatchItem, Path, ItemResult | None]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def merge(out: Path, folders: Sequence[Path], redact: Callable[[str], str]) -> tuple[BatchFile, list[str]]:
    """Make the batch `out` of the batches in `folders`; return its head and what should be told.

    Their folders stay as they are. Raises `UsageError` for batches that do not ask in the same way, and
    `SessionError`.
    """
    for place in folders:
        if place.resolve() == out.resolve():
            raise UsageError(f"{out} cannot be made of itself.", "Give the merged batch a name of its own.")
        if in_use(place):
            raise SessionError(f"The batch {place} is in use by another cdo process.", "Wait for it to end.")
    heads = [read_head(place) for place in folders]
    for place, head in zip(folders, heads, strict=True):
        if next(at_providers(place, read_items(place, head)), None):
            name = place.name.removeprefix(PREFIX)
            raise SessionError(
                f"Items of the batch {place} wait for answers of a provider.", f"First `cdo batch resume {name}`."
            )
    for place, head in zip(folders[1:], heads[1:], strict=True):
        _require_alike(heads[0], head, folders[0], place)
    joined = _joined(folders, heads)
    target = BatchFolder.take(out, redact, make=True)
    try:
        if target.begun:
            raise SessionError(f"There is a batch {out} already.", "Give the merged batch a name of its own.")
        found = sorted(joined.items.values(), key=lambda entry: entry[0].line)
        for item, place, _ in found:
            _copy(place, out, item)
        target.add_all([ended for _, _, ended in found if ended])
        settings = replace(heads[0].settings, out=str(out))
        models = {name: names for head in reversed(heads) for name, names in head.models.items()}
        update = {"settings": settings, "models": models, "shard": None, "owner": owner_here()}
        first = replace(heads[0], **update, count=0, size=0, sha256=_sha256(heads))
        return target.settle(first, [item for item, _, _ in found]), joined.notes
    finally:
        target.close()


def _sha256(heads: Sequence[BatchFile]) -> str:
    """Return the digest of the file that all shards of it have in common; "" if a part of it may be missing."""
    shards = {head.shard for head in heads}
    of = {head.shard.of if head.shard else 1 for head in heads}
    whole = len({head.sha256 for head in heads}) == 1 and len(of) == 1 and len(shards) == max(of)
    return heads[0].sha256 if whole else ""


def _require_alike(one: BatchFile, other: BatchFile, place: Path, there: Path) -> None:
    keys = [key for key in CONTENT if getattr(one.settings, key) != getattr(other.settings, key)]
    keys += [key for key in ("preset", "columns") if getattr(one, key) != getattr(other, key)]
    if keys:
        raise UsageError(
            f"{there} and {place} do not ask in the same way: {', '.join(keys)} differ.", "Merge shards of one batch."
        )


def _joined(folders: Sequence[Path], heads: Sequence[BatchFile]) -> _Joined:
    found, names = _Joined(), dict[str, str]()
    for place, head in zip(folders, heads, strict=True):
        results = read_results(place)
        for item in read_items(place, head):
            ended, name = results.get(item.id), one_line(item.id, 60)
            if before := found.items.get(item.id):
                if before[0].digest != item.digest:
                    raise UsageError(
                        f"{before[1]} and {place} have different questions under the id `{name}`.",
                        "Give one of them another id.",
                    )
                better = bool(ended and not ended.failed and (before[2] is None or before[2].failed))
                kept = place if better else before[1]
                found.notes.append(f"the item {name} is in {before[1]} and in {place}; that of {kept} is taken")
                if not better:
                    continue
            elif names.setdefault(item.session.casefold(), item.id) != item.id:
                other = one_line(names[item.session.casefold()], 60)
                raise UsageError(
                    f"The items `{name}` and `{other}` have sessions of one name, {one_line(item.session, 64)}.",
                    "Give the sessions names of their own with a column `session`.",
                )
            found.items[item.id] = item, place, ended
    return found


def _copy(place: Path, out: Path, item: BatchItem) -> None:
    """Copy the session of an item, if it has begun."""
    source = session_path(place, item.session)
    try:
        if source.is_dir() and not source.is_symlink():
            shutil.copytree(source, session_path(out, item.session), symlinks=True, dirs_exist_ok=True)
    except (OSError, shutil.Error) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "a file cannot be read"
        raise SessionError(f"{source} cannot be copied: {why}.", "Fix that, then merge again.") from None
