"""Finds the folder for what cdo can make again at any time."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder for data that cdo can generate again (`CDO_CACHE_DIR` overrides it)."""
    if custom := os.environ.get("CDO_CACHE_DIR"):
        return Path(custom).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("cdo"))
