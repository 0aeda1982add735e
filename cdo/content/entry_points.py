"""Finds what other installed packages add to cdo by entry points: providers and programs.

An entry point is read from the metadata of installed packages, and its module is imported only when its name is used.
Whoever can install a package there can also change cdo itself, so no trust is asked for.
"""

from __future__ import annotations

from importlib import metadata

from cdo.core.errors import ConfigError
from cdo.core.formatting import one_line

PROVIDERS, PROGRAMS = "cdo.providers", "cdo.programs"


def names(group: str) -> list[str]:
    """Return the names of a group's entry points, sorted."""
    return sorted({point.name for point in metadata.entry_points(group=group)})


def named(group: str, name: str) -> object | None:
    """Return the object of an entry point, None if no package has one of this name.

    Raises `ConfigError` if two packages have one of this name, or if it cannot be imported.
    """
    points = {point.value: point for point in metadata.entry_points(group=group, name=name)}
    if not points:
        return None
    if len(points) > 1:
        raise ConfigError(
            f"Several packages have an entry point `{name}` in `{group}`: {', '.join(sorted(points))}.",
            "Uninstall all but one of them.",
        )
    point = next(iter(points.values()))
    package = point.dist.name if point.dist else "an installed package"
    try:
        found: object = point.load()
    except Exception as error:
        raise ConfigError(
            f"The entry point `{name}` of {package} cannot be imported: {one_line(f'{error!r}', 200)}.",
            "Repair or uninstall that package.",
        ) from error
    return found
