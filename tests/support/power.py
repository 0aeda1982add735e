"""A disk that loses power: what a process does to files, as operations that a loss of power can undo.

A `Tape` notes what is done below a folder. `states` tells what may be on the disk when the power fails at any point:
of what was not synced then, up to three changes of names are lost, in every combination, and what was written is
there whole, half, as zeros, or not at all. A rename between two folders is one change, as file systems with a
journal make it; every other change of a name is lost or kept by itself.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from cdo.files import grouped_writes

NAMES = ("open", "write", "fsync", "rename", "unlink", "mkdir", "link")
MOST_LOST = 3
Tree = dict[str, bytes | None]  # content by path; None is a folder
Folder = dict[str, int]  # what the entries of a folder lead to


class Killed(BaseException):
    """The process dies here: nothing that it would do afterwards is done."""


@dataclass(frozen=True)
class Change:
    """Names that lead elsewhere from now on, by folder: one change, lost or kept as a whole. None is no entry."""

    entries: tuple[tuple[int, str, int | None], ...]

    @property
    def folders(self) -> set[int]:
        return {folder for folder, _, _ in self.entries}

    def apply(self, folders: dict[int, Folder]) -> None:
        for folder, name, node in self.entries:
            if node is None:
                folders.setdefault(folder, {}).pop(name, None)
            else:
                folders.setdefault(folder, {})[name] = node


@dataclass(frozen=True)
class Wrote:
    """Bytes at the end of a file."""

    node: int
    data: bytes


@dataclass(frozen=True)
class Synced:
    """A file or folder that was synced."""

    node: int


Op = Change | Wrote | Synced


@dataclass
class Tape:
    """Notes what this process does below `root` while it is entered; it dies at operation number `kill`."""

    root: Path
    kill: int = 0
    ops: list[Op] = field(default_factory=list)
    done: int = 0
    whole: int = 0  # how often all was synced at once

    def __post_init__(self) -> None:
        self._real: dict[str, Any] = {name: getattr(os, name) for name in NAMES}
        self._real_sync = grouped_writes.sync_file_system
        self._nodes: dict[int, int] = {}
        self._folders: set[int] = set()
        self._count = 0
        self.first: dict[int, Folder] = {}
        self.content: dict[int, bytes] = {}
        self._dead = False
        self.top = self._scan(self.root)

    def _scan(self, path: Path) -> int:
        """Take in what is there at first: all of it is durable."""
        status = path.stat(follow_symlinks=False)
        node = self._node(status.st_ino, new=True)
        if stat.S_ISDIR(status.st_mode):
            self._folders.add(node)
            self.first[node] = {entry.name: self._scan(entry) for entry in path.iterdir()}
        else:
            self.content[node] = path.read_bytes()
        return node

    def _node(self, inode: int, *, new: bool = False) -> int:
        if new or inode not in self._nodes:
            self._count += 1
            self._nodes[inode] = self._count
        return self._nodes[inode]

    def __enter__(self) -> Tape:
        for name in NAMES:
            setattr(os, name, getattr(self, f"_{name}"))
        grouped_writes.sync_file_system = self._sync_file_system
        return self

    def __exit__(self, *_: object) -> None:
        for name, function in self._real.items():
            setattr(os, name, function)
        grouped_writes.sync_file_system = self._real_sync

    def revive(self) -> None:
        """Another process goes on."""
        self._dead, self.kill = False, 0

    def _step(self) -> None:
        """One more operation begins, if the process still lives."""
        self.done += 1
        if self.done == self.kill:
            self._dead = True
        if self._dead:
            raise Killed

    def _at(self, fd: int) -> int:
        return self._node(os.fstat(fd).st_ino)

    def _of(self, name: str, folder: int) -> int | None:
        try:
            return self._nodes.get(os.stat(name, dir_fd=folder, follow_symlinks=False).st_ino)
        except FileNotFoundError:
            return None

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if not flags & os.O_CREAT or dir_fd is None:
            return int(self._real["open"](path, flags, mode, dir_fd=dir_fd))
        self._step()
        there = self._of(path, dir_fd)
        fd = int(self._real["open"](path, flags, mode, dir_fd=dir_fd))
        if there is None:
            node = self._node(os.fstat(fd).st_ino, new=True)
            self.ops.append(Change(((self._at(dir_fd), path, node),)))
        return fd

    def _write(self, fd: int, data: Any) -> int:
        if not stat.S_ISREG(os.fstat(fd).st_mode) or os.fstat(fd).st_ino not in self._nodes:
            return int(self._real["write"](fd, data))
        self._step()
        size = int(self._real["write"](fd, data))
        self.ops.append(Wrote(self._at(fd), bytes(data[:size])))
        return size

    def _fsync(self, fd: int) -> None:
        self._step()
        self.ops.append(Synced(self._at(fd)))

    def _sync_file_system(self, fd: int) -> None:
        self._step()
        self.whole += 1
        self.ops += [Synced(node) for node in range(1, self._count + 1)]

    def _rename(self, source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        self._step()
        node = self._of(source, src_dir_fd)
        self._real["rename"](source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        self.ops.append(Change(((self._at(src_dir_fd), source, None), (self._at(dst_dir_fd), target, node))))

    def _link(self, source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int, **more: Any) -> None:
        self._step()
        node = self._of(source, src_dir_fd)
        self._real["link"](source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, **more)
        self.ops.append(Change(((self._at(dst_dir_fd), target, node),)))

    def _unlink(self, name: str, *, dir_fd: int | None = None) -> None:
        if dir_fd is None:
            self._real["unlink"](name)
            return
        self._step()
        self._real["unlink"](name, dir_fd=dir_fd)
        self.ops.append(Change(((self._at(dir_fd), name, None),)))

    def _mkdir(self, name: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        if dir_fd is None:
            self._real["mkdir"](name, mode)
            return
        self._step()
        self._real["mkdir"](name, mode, dir_fd=dir_fd)
        inode = os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_ino
        node = self._node(inode, new=True)
        self._folders.add(node)
        self.ops.append(Change(((self._at(dir_fd), name, node),)))

    # -- what may be left -----------------------------------------------------------------------

    def states(self, begin: int = 0) -> Iterator[tuple[int, Tree]]:
        """Every (operations done, what may be on disk) from the point `begin` on; none twice in a row."""
        folders = {node: dict(entries) for node, entries in self.first.items()}
        pieces = {node: [(data, True)] for node, data in self.content.items()}
        pending: list[Change] = []
        for cut in range(len(self.ops) + 1):
            if cut:
                self._take(self.ops[cut - 1], folders, pieces, pending)
            if cut >= begin:
                for tree in self._losses(folders, pieces, pending):
                    yield cut, tree

    @staticmethod
    def _take(
        op: Op, folders: dict[int, Folder], pieces: dict[int, list[tuple[bytes, bool]]], pending: list[Change]
    ) -> None:
        if isinstance(op, Wrote):
            pieces.setdefault(op.node, []).append((op.data, False))
        elif isinstance(op, Change):
            pending.append(op)
        else:
            if op.node in pieces:
                pieces[op.node] = [(data, True) for data, _ in pieces[op.node]]
            for change in [change for change in pending if op.node in change.folders]:
                change.apply(folders)
                pending.remove(change)

    def _losses(
        self, folders: dict[int, Folder], pieces: dict[int, list[tuple[bytes, bool]]], pending: list[Change]
    ) -> Iterator[Tree]:
        seen = set()
        for size in range(min(MOST_LOST, len(pending)) + 1):
            for lost in combinations(range(len(pending)), size):
                found = {node: dict(entries) for node, entries in folders.items()}
                for number, change in enumerate(pending):
                    if number not in lost:
                        change.apply(found)
                for way in ("whole", "half", "zeros", "empty"):
                    tree = self._tree(found, pieces, way)
                    if (key := frozenset(tree.items())) not in seen:
                        seen.add(key)
                        yield tree

    def _tree(self, folders: dict[int, Folder], pieces: dict[int, list[tuple[bytes, bool]]], way: str) -> Tree:
        tree: Tree = {}

        def walk(node: int, path: str) -> None:
            for name, inner in folders.get(node, {}).items():
                if inner in self._folders:
                    tree[path + name] = None
                    walk(inner, f"{path}{name}/")
                else:
                    tree[path + name] = _left(pieces.get(inner, []), way)

        walk(self.top, "")
        return tree


def _left(pieces: list[tuple[bytes, bool]], way: str) -> bytes:
    """What is left of a file's content."""
    safe = b"".join(data for data, synced in pieces if synced)
    loose = b"".join(data for data, synced in pieces if not synced)
    return safe + {"whole": loose, "half": loose[: len(loose) // 2], "zeros": bytes(len(loose)), "empty": b""}[way]


def lay_out(tree: Tree, folder: Path) -> None:
    """Make an empty folder hold a state."""
    for path, data in tree.items():
        target = folder / path
        if data is None:
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
