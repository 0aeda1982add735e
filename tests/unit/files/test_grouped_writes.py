"""Several files written at once: whole or not at all, and durable with few syncs."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdo.files import grouped_writes
from cdo.files.atomic_files import closing, open_directory, temporary_name
from cdo.files.grouped_writes import TOGETHER, GroupedWrites


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is synced, in order: a file, a folder, or all."""
    found: list[str] = []
    one, every = os.fsync, grouped_writes.sync_file_system

    def file(fd: int) -> None:
        found.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file")
        one(fd)

    def whole(fd: int) -> None:
        found.append("all")
        every(fd)

    monkeypatch.setattr(os, "fsync", file)
    monkeypatch.setattr(grouped_writes, "sync_file_system", whole)
    return found


@contextlib.contextmanager
def folders(tmp_path: Path, count: int) -> Iterator[list[int]]:
    with contextlib.ExitStack() as opened:
        for number in range(count):
            (tmp_path / str(number)).mkdir()
        yield [opened.enter_context(closing(open_directory(tmp_path / str(number)))) for number in range(count)]


def written(tmp_path: Path) -> dict[str, str]:
    return {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_small_group_is_synced_file_by_file_and_its_folder_once(tmp_path: Path, syncs: list[str]) -> None:
    group = GroupedWrites()
    with closing(open_directory(tmp_path)) as fd:
        for name in "abcdef":
            group.add(fd, name, name.encode())
        found = group.commit()
        group.close()
    assert written(tmp_path) == {name: name for name in "abcdef"}
    assert [status.st_ino for status in found] == [(tmp_path / name).stat().st_ino for name in "abcdef"]
    assert syncs == ["file"] * 6 + ["folder"]


def test_a_group_of_several_folders_waits_twice_for_the_disk(tmp_path: Path, syncs: list[str]) -> None:
    group = GroupedWrites()
    with folders(tmp_path, TOGETHER) as opened:
        for number, fd in enumerate(opened):
            group.add(fd, "a", str(number).encode())
        group.commit()
        group.close()
    assert written(tmp_path) == {f"{number}/a": str(number) for number in range(TOGETHER)}
    with closing(open_directory(tmp_path)) as fd:
        whole = grouped_writes.syncs_whole(fd)
    assert syncs == (["all"] * 2 if whole else ["file"] * TOGETHER + ["folder"] * TOGETHER)


def test_a_file_system_that_is_not_known_is_synced_file_by_file(
    tmp_path: Path, syncs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grouped_writes, "_SURE", frozenset())
    group = GroupedWrites()
    with folders(tmp_path, 5) as opened:
        for number, fd in enumerate(opened):
            group.add(fd, "a", str(number).encode())
        group.commit()
        group.close()
    assert syncs == ["file"] * 5 + ["folder"] * 5


def test_files_of_a_folder_in_a_directory_are_written_there_and_the_folder_is_made_once(
    tmp_path: Path, syncs: list[str]
) -> None:
    group = GroupedWrites()
    with closing(open_directory(tmp_path)) as fd:
        group.add(fd, "a", b"1", "calls")
        group.add(fd, "b", b"2", "calls")
        assert syncs == ["folder"]  # the name of the new folder
        group.commit()
        group.close()
        assert written(tmp_path) == {"calls/a": "1", "calls/b": "2"}
        assert syncs == ["folder", "file", "file", "folder"]


def test_a_file_that_a_killed_process_of_the_same_number_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / temporary_name("a")).write_text("half")
    group = GroupedWrites()
    with closing(open_directory(tmp_path)) as fd:
        group.add(fd, "a", b"whole")
        group.commit()
        group.close()
    assert written(tmp_path) == {"a": "whole"}


def test_a_group_that_is_given_up_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("old")
    group = GroupedWrites()
    with closing(open_directory(tmp_path)) as fd:
        group.add(fd, "a", b"new")
        group.add(fd, "b", b"new")

        def fails(fd: int) -> None:
            raise OSError(5, "the disk is gone")

        monkeypatch.setattr(os, "fsync", fails)
        with pytest.raises(OSError, match="gone"):
            group.commit()
        group.close()
    assert written(tmp_path) == {"a": "old"}
