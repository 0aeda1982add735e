"""Prints the oldest versions that pyproject.toml allows, as constraints for pip: `.ci/run` tests cdo with them."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]


def floors() -> list[str]:
    """Return one `name==version` for each package that users install; raises ValueError for one without a floor."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    found = []
    for line in [*project["dependencies"], *extras["local"], *extras["mcp"], *extras["dask"]]:
        needed = Requirement(line)
        oldest = [part.version for part in needed.specifier if part.operator == ">="]
        if len(oldest) != 1:
            raise ValueError(f"{line} needs one oldest version, as in {needed.name}>=1.0")
        found.append(f"{needed.name}=={oldest[0]}")
    return found


if __name__ == "__main__":
    sys.stdout.write("".join(f"{line}\n" for line in floors()))
