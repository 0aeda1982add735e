"""Which paths of files a model may give."""

from __future__ import annotations

import pytest

from cdo.core import file_paths

GOOD = [
    "index.html", "src/app.js", ".gitignore", ".github/workflows/ci.yml", "My File (1).txt", "docs/README.md",
    "größe.py",
]  # fmt: skip
BAD = [
    "", "/etc/passwd", "../x", "a/../b", "./a", "a//b", "a\\b", "C:/x", "~/x", "a/.git/config", ".GIT/x", ".cdo/x",
    "git~1/x", "...", "a/..", "con", "NUL.txt", "lib/aux.c", "com1", "x" * 201, "a\nb", "a\x00b", "a\u202eb",
    "trailing.", "blank ", " x", "what?.txt", "a:b", "src/", "/".join("abcdefghijklmnopqrstuvwxyz"),
]  # fmt: skip


@pytest.mark.parametrize("path", GOOD)
def test_a_relative_path_of_ordinary_names_is_accepted(path: str) -> None:
    assert file_paths.problem(path) == ""
    assert file_paths.delivered(f"deliverables/{path}")


@pytest.mark.parametrize("path", BAD)
def test_a_path_that_could_lead_elsewhere_or_not_exist_everywhere_is_refused(path: str) -> None:
    assert file_paths.problem(path)
    assert not file_paths.delivered(f"deliverables/{path}")


def test_a_folder_ends_in_a_slash() -> None:
    assert file_paths.problem("app/", folder=True) == ""
    assert file_paths.problem("app//", folder=True)
    assert file_paths.problem("/", folder=True)
    assert file_paths.is_folder("app/") and not file_paths.is_folder("app")


def test_paths_that_name_the_same_file_or_lie_in_one_another_collide() -> None:
    others = ["src/App.js", "assets/", "LICENSE"]
    for path in ("src/app.js", "SRC/APP.JS", "src", "src/", "src/app.js/x", "assets", "assets/logo.svg", "license/a"):
        assert file_paths.collision(path, others), path
    for path in ("src/app.jsx", "src2/app.js", "assets2/x", "index.html"):
        assert file_paths.collision(path, others) == ""
