"""File systems that cannot sync, and disks that fail to."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cdo.core.errors import SessionError
from cdo.session.store import Session


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP, errno.EIO, errno.ENOSPC])
def test_a_file_system_that_cannot_sync_is_used_and_one_that_fails_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    if code in (errno.EIO, errno.ENOSPC):
        with pytest.raises(SessionError):
            Session.create(tmp_path / "cdo-a", {"session.yaml": "a: 1\n"})
        return
    session = Session.create(tmp_path / "cdo-a", {"session.yaml": "a: 1\n"})
    session.put_now("x.md", "text")
    session.move("x.md", "old")
    session.close()
    session = Session.open(tmp_path / "cdo-a")
    assert (session.read("session.yaml"), (tmp_path / "cdo-a/old/x.md").read_text()) == ("a: 1\n", "text")
    session.close()
