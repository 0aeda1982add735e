"""Where sessions lie, and whether one that somebody else made may reach beyond its folder.

The command line and programs that import cdo use these.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from cdo.core.errors import NeedsHuman
from cdo.repository.work_tree import root_of

if TYPE_CHECKING:
    from cdo.content.library import Library
    from cdo.planning.settings import Resolved

# Variables that move folders and are no settings.
NO_SETTINGS = ("CDO_CONFIG_DIR", "CDO_DATA_DIR", "CDO_MODELS_DIR", "CDO_CACHE_DIR")


def sessions_folder(out: str | None, library: Library, env: Mapping[str, str] | None = None) -> Path:
    """Return the folder of the sessions: the one given, else the one set, else `tmp` at the repository's root.

    Settings are checked where there are any. Where there are none, what checks them is not imported, which takes
    longer than to list ten thousand sessions. Raises `ConfigError` and `UsageError` as `settings.resolve`.
    """
    env = os.environ if env is None else env
    places = [place for place in (out, env.get("CDO_OUT")) if place]
    others = {name for name, value in env.items() if name.startswith("CDO_") and value} - {"CDO_OUT", *NO_SETTINGS}
    if others or any(map(str.isspace, places)) or any(map(_may_exist, library.config_files())):
        from cdo.planning import settings

        return Path(placed(settings.resolve({"out": out} if out else {}, library, env)).values.out)
    return Path(places[0]) if places else _tmp()


def _may_exist(file: Path) -> bool:
    try:
        os.lstat(file)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def placed(resolved: Resolved) -> Resolved:
    """The settings with the folder of sessions where none is set: `tmp` at the repository's root."""
    if resolved.sources["out"] != "default":
        return resolved
    return replace(resolved, values=replace(resolved.values, out=str(_tmp())))


def _tmp() -> Path:
    """`tmp` at the root of the work tree around, as a relative path; of the working directory where there is none.

    A root of another user is not used, as somebody else could read what is kept there; nor is a read-only one.
    """
    here = Path.cwd()
    root = root_of(here)
    with contextlib.suppress(OSError):
        if root and (root / ".git").stat().st_uid == root.stat().st_uid == os.geteuid():
            folder = root / "tmp"
            if os.access(folder if folder.is_dir() else root, os.W_OK | os.X_OK):
                return Path(os.path.relpath(folder, os.path.realpath(here)))
    return Path("tmp")


def require_trusted_session(session: Path, root: str, adr_dir: str | None) -> None:
    """Raise `NeedsHuman` where a session reads or writes elsewhere than around it and around here.

    One that somebody else made, in a clone or on a branch, could so send files of this machine to a model. Files in
    its own folder are its own. Whoever gives --trust or --yes is not asked.
    """
    here, there = (root_of(place) or place.resolve() for place in (Path.cwd(), session.absolute()))
    around = [place for place in (here, there) if place != Path("/")]
    for what, folder in (("reads files in", root and session / root), ("writes its decision to", adr_dir)):
        place = Path(os.path.realpath(folder)) if folder else here
        if what == "reads files in" and place.is_relative_to(os.path.realpath(session)):
            continue
        if not any(place == near or (what != "reads files in" and near in place.parents) for near in around):
            raise NeedsHuman(
                f"The session {session} {what} {place}, outside its own folder and outside this repository.",
                "If you created it that way, pass --trust. Otherwise inspect its session.yaml first.",
            )
