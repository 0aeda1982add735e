"""Tells which files of a mission a person may have put there: letters, and versions of their own."""

from __future__ import annotations

import re

_VERSION = re.compile(r"products/[^/]+/v[0-9]+\.md")
# Files that a person may add: letters, and their own versions.
_GIVEN = re.compile(r"inbox/[^/]+\.md|products/[^/]+/(?![ci][0-9]+\.md)[^/]+\.md")


def may_be_given(file: str) -> bool:
    """True if a person may have put a file with this name into a mission: a letter, or a version."""
    return bool(_GIVEN.fullmatch(file))


def is_version(file: str) -> bool:
    """True if a file is named like a version written by cdo."""
    return bool(_VERSION.fullmatch(file))


def given(file: str, data: bytes) -> bool:
    """True if a file with this content is a letter, or a version that a person edited or added."""
    if not may_be_given(file):
        return False
    if not is_version(file):
        return True
    from cdo.cabal.files import serialization

    try:
        text = data.decode()
        return serialization.version_text(serialization.version_of(text)) != text
    except ValueError:
        return True
