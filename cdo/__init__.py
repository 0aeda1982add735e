"""cdo: adaptive multi-voice deliberation in a shell, and from Python: `from cdo import deliberate, Session`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from cdo.api import Result, Session, deliberate, deliberate_async

__all__ = ["Result", "Session", "__version__", "deliberate", "deliberate_async"]


def __getattr__(name: str) -> Any:
    """Import a public name of `cdo.api` when it is first used, so that the command line starts without it."""
    if name in __all__:
        from cdo import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
