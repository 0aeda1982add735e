"""Programs that other packages add, under the entry point group `cdo.programs`.

A file in `modes/` names one by its key `program`, and `cdo full MODE "…"` then runs it. A program is a pure
generator: it yields steps and receives answers, so that a resume runs it again over the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, cast

from cdo.content import entry_points
from cdo.core.errors import ConfigError
from cdo.core.steps import Program
from cdo.planning.plan import Plan
from cdo.programs.deliberation.conclusion import Outcome


class ModeProgram(Protocol):
    """What the entry point of a program names."""

    def __call__(self, plan: Plan, mode: Mapping[str, Any]) -> Program[Outcome]:
        """Return the program of a plan; `mode` has the keys of the file in `modes/`."""


def extension(name: str) -> ModeProgram | None:
    """Return the program that an installed package adds under a name, None if there is none.

    Raises `ConfigError` if it cannot be imported, or cannot be called.
    """
    found = entry_points.named(entry_points.PROGRAMS, name)
    if found is not None and not callable(found):
        raise ConfigError(
            f"The entry point `{name}` in `{entry_points.PROGRAMS}` is not a program.",
            "It must be a function that takes a plan and the keys of a mode.",
        )
    return cast(ModeProgram | None, found)
