"""Sessions as anybody can read them: from a folder and from memory, nothing followed, nothing changed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdo.core.errors import SessionError
from cdo.core.steps import CitationCheck
from cdo.session.reader import InMemorySession, SessionFolder, SessionReader, checked_in
from cdo.session.records import group_file, read_session
from tests.conftest import Desk
from tests.support.records import ANSWER


def kept(folder: SessionFolder) -> InMemorySession:
    """The same session in memory."""
    return InMemorySession(folder.name, folder.place, {file: folder.data(file) or b"" for file in folder.files()})


@pytest.fixture
def copy(finished: Desk, tmp_path: Path) -> SessionFolder:
    """A finished session that may be changed."""
    return SessionFolder(shutil.copytree(finished.session(), tmp_path / "cdo-copy", symlinks=True))


@pytest.mark.wide
def test_a_folder_and_what_is_kept_of_it_tell_the_same(finished: Desk) -> None:
    folder = SessionFolder(finished.session())
    memory = kept(folder)
    assert (folder.name, memory.name, folder.place) == ("a", "a", str(finished.session()))
    below = {path for path in finished.session().rglob("*") if path.is_file()}
    assert folder.files() == tuple(sorted(str(path.relative_to(finished.session())) for path in below))
    assert {"00-input.md", "FINAL.md", "calls/0001.jsonl", "t1-critic.md"} <= set(folder.files())
    assert memory.files() == folder.files()
    assert memory.records() == folder.records() == read_session(finished.session()) != []
    for archive in (folder, memory):
        assert archive.text("00-input.md") == "Should we split the service?\n"
        found = archive.artifact("t1-critic")
        assert found and found.own["role"] == "critic" and not found.edited
        assert archive.artifact("t9-critic") is None
        assert archive.text("t9-critic.md") is archive.text("none/at-all") is None


def test_reading_changes_nothing(finished: Desk) -> None:
    def state() -> dict[Path, tuple[int, int]]:
        return {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in finished.session().rglob("*")}

    before = state()
    kept(SessionFolder(finished.session())).records()
    assert state() == before


def test_groups_are_read_in_the_order_of_their_numbers_and_nothing_else_is_one() -> None:
    files = {f"calls/{number:04d}.jsonl": group_file(number, [{**ANSWER, "n": number}])[1] for number in range(9, 12)}
    files["calls/10000.jsonl"] = group_file(10_000, [{**ANSWER, "n": 10_000}, {**ANSWER, "n": 10_001}])[1]
    files |= {"calls/001.jsonl": b"x", "calls/0009.jsonl.tmp": b"x", "other/0001.jsonl": b"x", "0001.jsonl": b"x"}
    found = InMemorySession("a", "memory", files).records()
    assert [record["n"] for record in found] == [9, 10, 11, 10_000, 10_001]


def test_links_and_hidden_files_are_left_out_and_never_followed(copy: SessionFolder, tmp_path: Path) -> None:
    secret = tmp_path / "secret.md"
    secret.write_text("do not tell")
    before = copy.files()
    (copy.path / "t1-spy.md").symlink_to(secret)
    (copy.path / "calls" / "0099.jsonl").symlink_to(secret)
    (copy.path / "elsewhere").symlink_to(tmp_path)
    (copy.path / ".hidden.md").write_text("x")
    (copy.path / ".git").mkdir()
    (copy.path / ".git" / "config").write_text("x")
    os.mkfifo(copy.path / "pipe")
    assert copy.files() == before
    for file in ("t1-spy.md", "elsewhere/secret.md"):
        try:
            assert copy.data(file) is None
        except SessionError as error:
            assert "do not tell" not in error.message + error.hint


def test_folders_are_read_to_a_depth_and_names_that_cdo_never_gives_are_left_out(copy: SessionFolder) -> None:
    deepest = "/".join("abcdefghijk")  # eleven folders, one in another
    for place in ("team/inbox/deep", deepest, "UPPER", "a.b"):
        (copy.path / place).mkdir(parents=True)
    before = set(copy.files())
    deep = ("team/one.md", "team/inbox/deep/three.md", f"{deepest[:-2]}/ten.md", f"{deepest}/eleven.md")
    for file in (*deep, "UPPER/x.md", "a.b/x.md"):
        (copy.path / file).write_text(file)
    assert set(copy.files()) - before == set(deep[:3])
    assert copy.data("team/inbox/deep/three.md") == b"team/inbox/deep/three.md"


def test_what_is_not_there_or_cannot_be_read_is_said(copy: SessionFolder, tmp_path: Path) -> None:
    with pytest.raises(SessionError, match=r"There is no session .*cdo-none") as none:
        SessionFolder(tmp_path / "cdo-none").files()
    assert none.value.hint
    (tmp_path / "cdo-file").write_text("x")
    with pytest.raises(SessionError):
        SessionFolder(tmp_path / "cdo-file").files()
    (copy.path / "t1-latin.md").write_bytes("déjà".encode("latin-1"))
    with pytest.raises(SessionError, match=r"t1-latin\.md is not UTF-8"):
        copy.artifact("t1-latin")
    (copy.path / "t1-broken.md").write_text("---\nposition: [\n---\n")
    with pytest.raises(SessionError, match=r"copy/t1-broken\.md: line 3"):
        copy.artifact("t1-broken")
    (copy.path / "t1-folder.md").mkdir()
    with pytest.raises(SessionError):
        copy.data("t1-folder.md")


@pytest.mark.parametrize(
    "data", [b"", b"\n", b"null\n", b"[1]\n{}\n", b'{"sha256": "0"}\n{}\n', b"\xff\n", b"[" * 9999]
)
def test_a_damaged_group_is_named(data: bytes) -> None:
    with pytest.raises(SessionError, match=r"a/calls/0001\.jsonl is damaged"):
        InMemorySession("a", "memory", {"calls/0001.jsonl": data}).records()


def test_one_changed_byte_of_a_record_is_damage(copy: SessionFolder) -> None:
    file = next(file for file in copy.files() if file.startswith("calls/"))
    data = copy.data(file) or b""
    (copy.path / file).write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    with pytest.raises(SessionError, match="its checksum does not match"):
        copy.records()


def test_an_artifact_is_parsed_once(copy: SessionFolder) -> None:
    first = copy.artifact("t1-critic")
    (copy.path / "t1-critic.md").unlink()
    assert copy.artifact("t1-critic") is first is not None
    assert SessionFolder(copy.path).artifact("t1-critic") is None


def test_the_name_of_a_session_is_that_of_its_folder_however_it_is_written(
    copy: SessionFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copy.path / "calls")
    for path in ("..", "../", "../../cdo-copy", "../calls/.."):
        assert SessionFolder(Path(path)).name == "copy"
    monkeypatch.chdir(copy.path)
    assert SessionFolder(Path("./")).name == "copy"


@given(st.dictionaries(st.text(min_size=1, max_size=8), st.binary(max_size=20), max_size=6))
def test_what_is_kept_is_given_back(files: dict[str, bytes]) -> None:
    archive: SessionReader = InMemorySession("a", "memory", files)
    assert archive.files() == tuple(sorted(files))
    assert {file: archive.data(file) for file in archive.files()} == files
    for file, data in files.items():
        try:
            assert archive.text(file) == data.decode()
        except SessionError as error:
            assert "is not UTF-8" in error.message


def test_findings_of_earlier_versions_are_read_as_they_were_recorded() -> None:
    """They knew two states: a line that exists counted as verified. The marks that readers saw must not change."""
    old: dict[str, Any] = {"citation": "a.py:1", "verified": True, "why": "line exists; nothing was quoted"}
    new = CitationCheck("a.py:1", False, "line exists; nothing was quoted", exists=True, path="src/a.py")
    records = [{"kind": "checked", "sha": sha, "findings": [item]} for sha, item in (("1", old), ("2", new.data()))]
    found = checked_in(records)
    assert found == {"1": (CitationCheck("a.py:1", True, "line exists; nothing was quoted"),), "2": (new,)}
    assert found["1"][0].data() == old
    assert [item.holds for (item,) in found.values()] == [True, True]
