"""Where sessions lie: found without the settings where nothing is set, and as the settings say otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cdo.app.session_places import placed, sessions_folder
from cdo.content.library import Library
from cdo.core.errors import CdoError
from cdo.planning.settings import resolve


@pytest.mark.parametrize("given", [None, "given", " "])
@pytest.mark.parametrize("env", [{}, {"CDO_OUT": "set"}, {"CDO_OUT": ""}, {"CDO_OUT": " "}, {"CDO_TURNS": "many"}])
@pytest.mark.parametrize("file", [None, "out: named\n", "turns: 2\n", "out: [\n", "folder", "loop"])
def test_the_folder_is_the_one_that_the_settings_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None, env: dict[str, str], file: str | None
) -> None:
    monkeypatch.setenv("CDO_CONFIG_DIR", str(tmp_path / "own"))
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "own" / "config.yaml"
    config.parent.mkdir()
    if file == "folder":
        config.mkdir()
    elif file == "loop":
        config.symlink_to(config)
    elif file:
        config.write_text(file)
    library = Library.at(tmp_path)

    def full() -> Path:
        return Path(placed(resolve({"out": given} if given else {}, library, env)).values.out)

    def told(found: CdoError) -> str:
        return f"{type(found).__name__} {found.message}"

    try:
        expected: Path | str = full()
    except CdoError as error:
        expected = told(error)
    try:
        found: Path | str = sessions_folder(given, library, env)
    except CdoError as error:
        found = told(error)
    assert found == expected


def test_a_list_where_nothing_is_set_checks_no_settings(tmp_path: Path) -> None:
    code = "import sys\nfrom cdo.cli import main as cli\ncli.exit_now = lambda code: None\ncli.run(sys.argv[1:])\n"
    code += "print(*sorted({'pydantic', 'yaml', 'cdo.planning.settings'} & set(sys.modules)))"
    env = {name: value for name, value in os.environ.items() if not name.startswith("CDO_")}
    env |= {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    (tmp_path / "tmp").mkdir()
    for args in (["list"], ["search", "anything"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *args], cwd=tmp_path, env=env, capture_output=True, text=True
        )
        assert (done.stdout.strip(), done.returncode) == ("", 0), done
