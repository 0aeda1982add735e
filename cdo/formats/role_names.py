"""Says which names a role can have. Pure."""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta

from cdo.formats.strict_yaml import shown

ROLE = re.compile(r"[a-z][a-z0-9-]{0,31}")
# Names that would collide with other files of a session, or with device names of some file systems.
RESERVED_ROLES = frozenset(
    ["synthesis", "plan", "human", "final", "input", "context", "con", "prn", "aux", "nul"]
    + [f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10)]
)


def role_problem(name: str) -> str | None:
    """Return what is wrong with `name` as the name of a role, or None if it can be one."""
    if not ROLE.fullmatch(name):
        return f"`{shown(name)}` cannot be a role: use a-z, 0-9 and -, a letter first, at most 32 characters"
    if name in RESERVED_ROLES or name.endswith("-"):
        return f"`{name}` cannot be a role: the name is reserved or ends in -"
    return None


def _problem(value: object) -> str:
    return (role_problem(value) or "") if isinstance(value, str) else ""


RoleName = Annotated[
    str,
    Meta(
        pattern=rf"^(?!(?:{'|'.join(sorted(RESERVED_ROLES))})\Z)(?!.*-\Z){ROLE.pattern}\Z",
        extra={"problem": _problem},
    ),
]
