"""What is shipped: the wheel and the sdist, the installed command in another folder, and what the README says."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from cdo import __version__
from cdo.content.project import FOLDERS, SUFFIXES
from cdo.planning.arguments import MODIFIERS
from tests.conftest import Desk
from tests.runs.test_command_line import cli_commands
from tests.support.answers import agent_text, final_text, synthesis_text
from tests.support.harness import KEY, ROOT
from tests.support.provider import Provider

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
JUNK = (".git", ".venv", ".hypothesis", "tmp", "dist", "build", "*_cache", "__pycache__", "*.egg-info")


def run(*words: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    """Run a program that must succeed and say nothing of errors; return its stdout."""
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


# -- wheel and sdist ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Built:
    """A source distribution, the wheel built from it, and the wheel built from the tree."""

    sdist: Path
    wheel: Path
    direct: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build from a copy with what a clone holds (git keeps no empty folder), and with what a run leaves behind."""
    base = tmp_path_factory.mktemp("wheel")
    tree = base / "tree"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*JUNK))
    for folder in sorted((path for path in tree.rglob("*") if path.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()
    (tree / "tmp/cdo-a").mkdir(parents=True)
    (tree / "tmp/cdo-a/FINAL.md").write_text("private")
    alone = [] if importlib.util.find_spec("hatchling") is None else ["--no-isolation"]
    run(sys.executable, "-m", "build", *alone, "--outdir", base / "dist", tree)
    run(sys.executable, "-m", "build", *alone, "--wheel", "--outdir", base / "direct", tree)
    return Built(
        next((base / "dist").glob("*.tar.gz")),
        next((base / "dist").glob("*.whl")),
        next((base / "direct").glob("*.whl")),
    )


def content_files() -> set[str]:
    """All content files, and the skills that ship, by their paths in the repository."""
    return {
        str(path.relative_to(ROOT))
        for folder in (*FOLDERS, "skills")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in SUFFIXES
    }


def recording_files() -> set[str]:
    """The files of the recording that `cdo demo` plays, by their paths in the repository."""
    return {str(path.relative_to(ROOT)) for path in (ROOT / "demo").rglob("*") if path.is_file()}


@pytest.mark.wide
def test_the_wheel_holds_the_package_and_its_content_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        names = set(wheel.namelist())
        info = f"cdo_deliberate-{__version__}.dist-info"
        metadata = wheel.read(f"{info}/METADATA").decode()
        entry_points = wheel.read(f"{info}/entry_points.txt").decode()
    assert built.wheel.name == f"cdo_deliberate-{__version__}-py3-none-any.whl"
    code = {str(path.relative_to(ROOT)) for path in (ROOT / "cdo").rglob("*.py")}
    assert {name for name in names if not name.startswith(info)} == (
        code | {"cdo/py.typed"} | {f"cdo/data/{name}" for name in content_files() | recording_files()}
    )
    assert len(content_files()) > 30
    assert f"\nName: cdo-deliberate\nVersion: {__version__}\n" in metadata
    assert "[console_scripts]\ncdo = cdo.__main__:main\n" in f"{entry_points}\n"
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_sdist_holds_all_content_and_builds_the_same_wheel(built: Built) -> None:
    with tarfile.open(built.sdist) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert built.sdist.name == f"cdo_deliberate-{__version__}.tar.gz"
    assert content_files() | recording_files() <= names
    assert {"README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", "cdo/py.typed", "PKG-INFO"} <= names
    assert not [
        name for name in names if re.search(r"(^|/)(tmp|dist|\.git|\.venv|__pycache__|[^/]*_cache)(/|$)", name)
    ]
    assert built.wheel.read_bytes() == built.direct.read_bytes()


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel, which borrows its dependencies from this one; returns its bin folder."""
    venv = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    (site,) = venv.glob("lib/python*/site-packages")
    # A plain path: .pth files over there (an editable cdo, say) are not read through it.
    (site / "borrowed.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    python = venv / "bin/python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", built.wheel)
    return venv / "bin"


@pytest.mark.slow
def test_the_installed_command_works_in_another_folder(installed: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    guarded = {"HOME": str(home), "PATH": os.defpath, "LANG": "C.UTF-8", "PYTHONPATH": f"{ROOT}/tests/support/guard"}
    script = tmp_path / "script.yaml"
    script.write_text(
        json.dumps(
            {
                "agent": agent_text("Stage it."),
                "synthesis": synthesis_text(exit_ready=True, confidence=0.9, agreement=0.5),
                "final": final_text("Decide with the wheel."),
            }
        )
    )

    def cdo(*args: str) -> str:
        return run(installed / "cdo", *args, cwd=tmp_path, env=guarded)

    place = Path(cdo("content", "path", "think").strip())
    assert place.is_relative_to(installed.parent)
    assert place.parts[-4:] == ("cdo", "data", "presets", "think.yaml")
    listed = {row["name"] for row in json.loads(cdo("content", "list", "--json"))}
    skills = {f"skills/{row['name']}/SKILL" for row in json.loads(cdo("skills", "list", "--json"))}
    assert listed | skills == {name.rpartition(".")[0] for name in content_files()}
    assert len(skills) == 6
    plan = json.loads(cdo("--dry-run", "--json", "-m", "scripted:script.yaml", "deep", "x"))
    assert (plan["preset"], len(plan["roles"])) == ("deep", 5)
    result = json.loads(
        cdo("think", "--no-review", "-m", f"scripted:{script}", "--json", "--strict", "Does the wheel turn?")
    )
    assert (result["status"], result["decision"]) == ("converged", "Decide with the wheel.")
    assert "Does the wheel turn?" in (tmp_path / result["path"] / "00-input.md").read_text()
    played = tmp_path / json.loads(cdo("demo", "--fast", "--json"))["path"]
    material = {str(path.relative_to(played)) for path in (played / "material").rglob("*") if path.is_file()}
    assert material == {name.removeprefix("demo/") for name in recording_files() if "/material/" in name}
    assert cdo("--version") == f"cdo, version {__version__}\n"
    module = run(installed / "python", "-m", "cdo", "--version", cwd=tmp_path, env=guarded)
    assert module == cdo("--version")
    code = "from importlib.metadata import version; print(version('cdo-deliberate'))"
    assert run(installed / "python", "-c", code, cwd=tmp_path, env=guarded).strip() == __version__


# -- the README and the pages of the documentation ------------------------------------------------------------


def readme() -> str:
    return (ROOT / "README.md").read_text()


def pages() -> str:
    """The README and every page that tells how to use cdo."""
    parts = ("tutorial", "how-to", "reference", "explanation")
    found = [path for part in parts for path in sorted((ROOT / "docs" / part).glob("*.md"))]
    assert len(found) > 15
    return "\n".join([readme(), *(path.read_text() for path in found)])


def blocks(text: str) -> list[str]:
    """The shell blocks."""
    return re.findall(r"(?ms)^```(?:sh|console)\n(.*?)^```", text)


def test_the_readme_is_read_in_three_minutes() -> None:
    assert len(readme().split()) <= 700


@pytest.mark.wide
def test_the_two_commands_are_those_that_are_checked(cdo: Desk) -> None:
    first, second = (
        next(b for b in blocks(readme()) if word in b).strip() for word in ("'.[local]'", "'.[local,test]'")
    )
    extras = set(PROJECT["optional-dependencies"])
    for command in (first, second):
        assert "\n" not in command
        (wanted,) = re.findall(r"'\.\[([a-z,]+)\]'", command)
        assert set(wanted.split(",")) <= extras
    lines = (ROOT / ".ci/run").read_text().splitlines()
    # `clean` takes every variable away but HOME, PATH and LANG; -rs only prints why tests are skipped.
    checked = {line.partition("  #")[0].removeprefix("clean ").strip().removesuffix(" -rs") for line in lines}
    for part in second.split(" && "):
        assert part in checked
    venv, install, ask = first.split(" && ")
    assert venv in checked
    assert install.startswith(".venv/bin/pip install ")
    words = shlex.split(ask)
    assert words[0] == ".venv/bin/cdo"
    assert "cdo" in PROJECT["scripts"]
    plan = cdo(*words[1:], "--dry-run", "--json").ok().json
    assert (plan["preset"], plan["models"], plan["problem"]) == ("quick", ["local"], "Should we reduce node types?")
    assert plan["calls"][0] == 4, "it ends within 90 seconds on two cores"


def named() -> Iterator[list[str]]:
    """The words of every `cdo …` in the README and the pages, in blocks and in sentences, without `cdo` itself."""
    lines = [line for block in blocks(pages()) for line in block.splitlines()]
    found = [part for line in lines for part in re.findall(r"(?:^|\$ |\| |bin/)cdo (.*)", line)]
    found += re.findall(r"`cdo ([^`/]*)`", pages())  # with a slash it is a ref of git
    for text in found:
        words = shlex.split(re.sub(r"[\[\]]", " ", text), comments=True)
        yield words


def test_every_command_and_option_that_the_documentation_names_exists() -> None:
    commands = cli_commands()
    options = {
        name: {opt for p in command.params for opt in (*p.opts, *p.secondary_opts)}
        for name, command in commands.items()
    }
    args = {"quick", "think", "deep", "full", "debug", "parliament", "exec", *MODIFIERS}
    seen = set()
    for words in named():
        if words[0] == "help":
            assert set(words[1:]) <= args | set(commands), words
            continue
        name = next((n for n in (" ".join(words[:2]), *words[:1]) if n in commands), "run")
        name = "batch run" if name == "batch" else name  # `cdo batch FILE`
        seen.add(name)
        if name == "run":
            first = words[0]
            assert first == "run" or first in ("ARGS", "-") or " " in first or set(first.split(",")) <= args, words
        for word in words:
            if re.fullmatch(r"--?[a-z][a-z-]*", word):
                assert word in options[name] | {"--help"}, (name, word)
    assert {
        "run",
        "resume",
        "list",
        "show",
        "final",
        "doctor",
        "models",
        "content list",
        "content path",
        "config",
    } <= seen
    everything = set().union(*options.values()) | {"--help"}
    inline = re.findall(r"`(--?[a-z][a-z-]*)[^`]*`", pages())
    assert len(inline) > 10
    assert set(inline) <= everything
    for opt in ("--budget", "--max-calls", "--max-tokens", "--timeout", "--concurrency", "--json", "--strict"):
        assert opt in inline


@pytest.mark.wide
def test_the_examples_of_documentation_and_help_run(cdo: Desk, provider: Provider) -> None:
    for name in ("docs/a.md", "src/queue/b.py", "README.md", "gateway.log", "proposal.md"):
        cdo.write(name, "text\n")
    subprocess.run(["git", "init", "-q"], cwd=cdo.path, check=True)  # --check needs a work tree
    desk = cdo.having(ANTHROPIC_API_KEY=KEY, GEMINI_API_KEY=KEY)
    help_text = desk("--help").ok().out
    examples = re.findall(r"(?m)^ {4}(?:.*\| )?cdo (.*)", help_text.partition("Examples:")[2])
    found = [shlex.split(text, comments=True) for text in examples]
    found += [words for words in named() if words and (" " in words[-1] or words[-1] == "-")]
    runs = [[*words, "--dry-run"] for words in found if words[0] not in cli_commands()]
    assert len(runs) > 7
    stdins = ["From a pipe?" if "-" in words else None for words in runs]
    for words, done in zip(runs, desk.several(*runs, stdins=stdins), strict=True):
        is_json = "--json" in words
        assert done.ok().json["preset"] if is_json else done.ok().out.endswith("Nothing was sent.\n"), words
    assert [info for info in provider.requests if info.is_call] == []


def test_exit_codes_are_told_alike_in_documentation_and_help(bare: Desk) -> None:
    shown = re.search(r"(?s)Exit codes: (.*)", bare("--help").ok().out)
    assert shown
    told = re.findall(r"(?m)^\| (\d+) \| \S", (ROOT / "docs/how-to/use-in-scripts.md").read_text())
    assert told == re.findall(r"(?<![\w$.])(\d+) (?=[A-Za-z`-])", shown[1])
    assert told == ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "130"]
    assert isinstance(cli_commands()["run"], click.Command)
