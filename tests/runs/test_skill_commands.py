"""The commands about skills, in a real folder: list, search, show, trust, install-cdo."""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from cdo.cli.skills import skills
from cdo.content.library import PACKAGED, Library
from cdo.content.skill_files import discover
from cdo.core.errors import CdoError, UsageError
from cdo.formats import strict_yaml
from cdo.formats.markdown import split_front_matter
from cdo.planning import arguments as grammar
from cdo.security.trust import Trust
from tests.support.harness import ROOT

# What the strict validator of Agent Skills allows at the top of a SKILL.md.
PORTABLE = {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}

BUILT_IN = {folder.name for folder in (PACKAGED / "skills").iterdir()}


@dataclass(frozen=True)
class Shell:
    """A person in a project: runs the commands there, with a home of their own."""

    path: Path
    home: Path

    def __call__(self, *args: str) -> Result:
        """Run `cdo skills args`, which must succeed."""
        result = CliRunner().invoke(skills, args)
        assert result.exception is None, result.output
        return result

    def fails(self, *args: str, printed: bool = False) -> CdoError:
        """The error of `cdo skills args`; what was done before may be `printed`."""
        result = CliRunner().invoke(skills, args)
        assert isinstance(result.exception, CdoError), (result.exception, result.output)
        assert printed == bool(result.stdout) and result.exception.hint
        return result.exception

    def json(self, *args: str) -> Any:
        """What `cdo skills args --json` prints."""
        return json.loads(self(*args, "--json").stdout)

    def found(self, *args: str) -> list[dict[str, Any]]:
        """The skills that `cdo skills list args` finds beside those that are built in, which come last."""
        every = self.json("list", *args)
        own = [row for row in every if row["place"] != "built in"]
        assert {row["name"] for row in every[len(own) :]} <= BUILT_IN
        return own

    def skill(self, folder: str, description: str = "Does a thing.", text: str = "Do it.", base: str = "") -> Path:
        """Write a SKILL.md below the project, or below `base`."""
        path = Path(base or self.path, folder, "SKILL.md")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"---\nname: {path.parent.name}\ndescription: {description}\n---\n\n{text}\n")
        return path


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    home, project = tmp_path / "home", tmp_path / "home/code/project"
    (project / ".git").mkdir(parents=True)
    for name in [name for name in os.environ if name.startswith(("CDO_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(project)
    return Shell(project, home)


def rows(output: str) -> list[list[str]]:
    return [re.split(r"  +", line) for line in output.splitlines()]


# -- list, search, show ----------------------------------------------------------------------------


def test_list_shows_name_place_state_and_description(shell: Shell, tmp_path: Path) -> None:
    empty = shell("list")
    assert {tuple(row[:3]) for row in rows(empty.stdout)} == {(name, "built in", "ready") for name in BUILT_IN}
    assert empty.stderr == "" and shell.found() == []

    shell.skill(".agents/skills/threat-model", "Finds what an attacker would do.")
    shell.skill(".agents/skills/broken", "")
    shell.skill(".claude/skills/cdo", "Deliberates.")
    shell.skill(".claude/skills/mine", "x" * 300, base=str(shell.home))
    shell.skill("more/given", "Given.", base=str(tmp_path))
    listed = shell("list", "--skills", str(tmp_path / "more"))
    assert [row for row in rows(listed.stdout) if row[1] != "built in"] == [
        ["given", "given", "ready", "Given."],
        ["threat-model", "project", "not trusted", "Finds what an attacker would do."],
        ["cdo", "project", "for hosts", "Deliberates."],
        ["mine", "user", "ready", "x" * 99 + "…"],
    ]
    assert "broken/SKILL.md: left out: it has no description." in listed.stderr
    found = shell.found()
    assert [(row["name"], row["state"]) for row in found] == [
        ("threat-model", "not trusted"), ("cdo", "for hosts"), ("mine", "ready"),
    ]  # fmt: skip
    assert list(found[0]) == ["name", "place", "state", "description", "tags", "path", "sha256"]
    assert found[0]["path"] == str(shell.path / ".agents/skills/threat-model/SKILL.md")


def test_search_ranks_as_a_run_does(shell: Shell) -> None:
    shell.skill(".agents/skills/sql-tuning", "Makes slow queries fast.")
    shell.skill(".agents/skills/threat-model", "Finds what an attacker would do.")
    shell.skill(".agents/skills/logging", "Finds slow attackers in logs.")
    assert [row[0] for row in rows(shell("search", "slow", "query").stdout)] == ["sql-tuning", "logging"]
    assert [row["name"] for row in shell.json("search", "NOT", "ATTACK*", '"')] == ["logging", "threat-model"]
    assert [row["name"] for row in shell.json("search", '"attacker"', "threat")] == ["threat-model", "logging"]
    none = shell("search", "xyzzy")
    assert (none.stdout, none.stderr) == ("", "No skill matches.\n")
    assert shell.json("search", "xyzzy") == []


def test_show_prints_path_and_text_with_controls_made_visible(shell: Shell) -> None:
    path = shell.skill(".agents/skills/odd", text="Red: \x1b[31m, turned: \u202e.")
    shown = shell("show", "skill://odd").stdout
    assert shown.startswith(f"{path}\n\n---\nname: odd\n")
    assert shown.endswith("Red: ␛[31m, turned: <U+202E>.\n")
    found = shell.json("show", "odd")
    assert (found["name"], found["state"], found["text"]) == ("odd", "not trusted", path.read_text())
    unknown = shell.fails("show", "od")
    assert (unknown.exit_code, unknown.message, unknown.hint) == (
        2,
        "There is no skill called od.",
        "Did you mean odd?",
    )
    assert "`cdo skills list`" in shell.fails("show", "../../etc/passwd").hint


def test_names_are_completed(shell: Shell) -> None:
    for name in ("alpha", "alto", "beta"):
        shell.skill(f".agents/skills/{name}")
    from click.shell_completion import ShellComplete

    complete = ShellComplete(skills, {}, "skills", "_X")
    assert [item.value for item in complete.get_completions(["show"], "al")] == ["alpha", "alto"]
    assert [item.value for item in complete.get_completions(["trust", "alpha"], "b")] == ["beta"]


# -- trust -----------------------------------------------------------------------------------------


def test_trust_pins_a_projects_skills_until_they_change(shell: Shell) -> None:
    one = shell.skill(".agents/skills/one")
    shell.skill(".agents/skills/two")
    shell.skill(".claude/skills/one", "A copy.")
    shell.skill(".agents/skills/mine", base=str(shell.home))
    assert shell("trust", "One").stdout.splitlines() == [
        f"trusted one ({one})",
        f"trusted one ({shell.path / '.claude/skills/one/SKILL.md'})",
    ]
    state = {row["name"]: row["state"] for row in shell.found()}
    assert state == {"one": "ready", "two": "not trusted", "mine": "ready"}
    assert shell("trust").stdout.startswith("trusted two (")
    assert discover(shell.path, shell.home).untrusted(Trust.load()) == ()
    again = shell("trust")
    assert (again.stdout, again.stderr[:27]) == ("", "There is nothing to trust: ")
    assert shell("trust", "mine").stdout == ""

    one.write_text(one.read_text() + "Changed.\n")
    assert {row["name"]: row["state"] for row in shell.found()}["one"] == "not trusted"
    assert shell("trust").stdout == f"trusted one ({one})\n"
    files = list(shell.home.rglob("trusted.json"))
    assert len(files) == 1 and stat.S_IMODE(files[0].stat().st_mode) == 0o600


def test_what_the_project_s_configuration_names_is_shown_and_needs_trust(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.skill("evil/handy")
    (shell.path / ".cdo").mkdir()
    (shell.path / ".cdo/config.yaml").write_text("skills: [evil]\n")
    assert shell.found() == []  # the folder's name waits for trust, too
    Library.at(shell.path, trust_now=True)
    (row,) = shell.found()
    assert (row["name"], row["place"], row["state"]) == ("handy", "project", "not trusted")
    assert "Do it." in shell("show", "handy").stdout
    shell("trust", "handy")
    assert shell.found()[0]["state"] == "ready"
    shell.skill("evil/handy", text="Do it otherwise.")
    assert shell.found()[0]["state"] == "not trusted"
    monkeypatch.setenv("CDO_SKILLS", "evil")
    assert [(row["place"], row["state"]) for row in shell.found()] == [("given", "ready")]
    monkeypatch.delenv("CDO_SKILLS")
    (shell.path / ".cdo/config.yaml").write_text("skills: [none]\n")
    Library.at(shell.path, trust_now=True)
    assert "config.yaml" in shell.fails("list").hint
    assert shell.found("--skills", "evil")[0]["place"] == "given"


def test_trust_of_an_unknown_name_trusts_nothing(shell: Shell) -> None:
    shell.skill(".agents/skills/one")
    assert shell.fails("trust", "one", "onw").hint == "Did you mean one?"
    assert shell.found()[0]["state"] == "not trusted"


# -- install-cdo -----------------------------------------------------------------------------------


def installed(base: Path) -> list[Path]:
    return [base / host / "skills/cdo/SKILL.md" for host in (".agents", ".claude")]


def test_install_writes_both_files_once_into_the_git_root(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    (shell.path / "src/deep").mkdir(parents=True)
    monkeypatch.chdir(shell.path / "src/deep")
    files = installed(shell.path)
    assert shell("install-cdo").stdout.splitlines() == [f"written {file}" for file in files]
    assert files[0].read_bytes() == files[1].read_bytes()
    before = [file.stat() for file in files]
    assert shell("install-cdo").stdout.splitlines() == [f"unchanged {file}" for file in files]
    assert [file.stat() for file in files] == before
    assert sorted(path.name for path in files[0].parent.iterdir()) == ["SKILL.md"]
    assert not (shell.path / "src/deep/.agents").exists()


def test_install_into_home_or_a_folder_without_git(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell("install-cdo", "--user")
    assert all(file.is_file() for file in installed(shell.home))
    assert not (shell.path / ".agents").exists()
    loose = shell.home / "loose"
    loose.mkdir()
    monkeypatch.chdir(loose)
    shell("install-cdo")
    assert all(file.is_file() for file in installed(loose))


def test_install_replaces_nothing_that_differs_unless_forced(shell: Shell) -> None:
    first, second = installed(shell.path)
    second.parent.mkdir(parents=True)
    second.write_text("mine")
    error = shell.fails("install-cdo")
    assert isinstance(error, UsageError)
    assert (error.message, error.hint) == (f"{second} is there and differs.", "Use --force to replace it.")
    assert second.read_text() == "mine" and not first.exists()
    shell("install-cdo", "--force")
    assert second.read_bytes() == first.read_bytes()
    target = shell.path / "target"
    target.write_text("kept")
    first.unlink()
    first.symlink_to(target)
    assert "differs" in shell.fails("install-cdo").message
    shell("install-cdo", "--force")
    assert first.read_bytes() == second.read_bytes() and not first.is_symlink() and target.read_text() == "kept"


def test_install_says_what_is_in_its_way(shell: Shell) -> None:
    first, second = installed(shell.path)
    second.mkdir(parents=True)
    assert "differs" in shell.fails("install-cdo").message
    in_place = shell.fails("install-cdo", "--force", printed=True)
    assert (in_place.exit_code, in_place.message) == (4, f"{second} cannot be written: Is a directory.")
    assert first.is_file()
    second.rmdir()
    second.parent.rmdir()
    second.parent.write_text("a file")
    assert "cannot be written" in shell.fails("install-cdo", "--force", printed=True).message
    assert second.parent.read_text() == "a file"


def test_install_follows_no_link_out_of_the_project(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (shell.path / ".claude").symlink_to(tmp_path / "outside")
    assert "leads out of" in shell.fails("install-cdo", "--force").message
    assert list((tmp_path / "outside").iterdir()) == [] and not (shell.path / ".agents").exists()
    (shell.path / ".claude").unlink()
    (shell.path / ".agents/skills").mkdir(parents=True)
    (shell.path / ".claude").mkdir()
    (shell.path / ".claude/skills").symlink_to("../.agents/skills")
    shell("install-cdo")
    assert shell("install-cdo").stdout.count("unchanged") == 2


def test_what_is_installed_passes_the_strict_rules_and_says_what_to_do(shell: Shell) -> None:
    shell("install-cdo")
    text = installed(shell.path)[0].read_text()
    block, body = split_front_matter(text)
    meta: Any = strict_yaml.load(block or "")
    assert list(meta)[:2] == ["name", "description"]
    assert set(meta) <= PORTABLE
    assert meta["name"] == installed(shell.path)[0].parent.name == "cdo"
    assert 100 < len(meta["description"]) <= 1024 and "<" not in meta["description"]
    assert len(meta["compatibility"]) <= 500
    assert all(isinstance(value, str) for value in meta["metadata"].values())
    assert text.endswith("\n") and len(body.splitlines()) < 500 and len(body) < 20_000
    for what in ("/cdo ARGS PROBLEM", "$ARGUMENTS", "FINAL.md", "cdo resume", "hitl", "plan.yaml", "--dry-run"):
        assert what in body
    assert discover(shell.path, shell.home).notes == ()


SEED_EXAMPLES = """
think "Should we reduce node types?"
quick "Summarize A2A conflicts"
full "Evaluate architecture"
hitl "Design execution model"
bd,full "Track everything in beads"
team,full "Persistent teammates"
adaptive,team,full "Grow/shrink team per turn"
lev-exec "Multi-model comparison"
exec dev "POC dev team following lev sdlc"
exec arch "Architecture planning team"
debug "Gateway crashes"
"""


def test_a_host_finds_every_word_of_cdo_explained_in_the_first_step(shell: Shell) -> None:
    shell("install-cdo")
    text = installed(shell.path)[0].read_text()
    step = text.partition("\n1. ")[2].partition("\n2. ")[0]
    explained = {word for code in re.findall(r"`([^`\n]+)`", step) for word in code.split()}
    library = Library((("packaged", PACKAGED),))
    vocabulary = grammar.vocabulary(library.names("presets"), library.names("modes"))
    assert set(vocabulary.words()) | {"dev", "arch", "TAG"} <= explained
    assert set(library.names("domains")) - {"generic"} <= explained
    for example in SEED_EXAMPLES.strip().split("\n"):
        words = shlex.split(example)
        assert {word for part in words[:-1] for word in part.split(",")} <= explained
        assert grammar.parse(words, vocabulary).problem == words[-1]
    # And what it says is to be run in such a case is what cdo reads as this.
    shown = re.findall(r"`/cdo ([^`\n]+)`\s+is\s+`cdo ([^`\n]*?) ?--json -`", step)
    assert len(shown) == step.count("`/cdo ") == 4
    for typed, run in shown:
        args, problem = shlex.split(typed)[:-1], shlex.split(typed)[-1]
        assert run.split() == args
        asked = grammar.parse(shlex.split(typed), vocabulary)
        assert asked == replace(grammar.parse([*run.split(), "-"], vocabulary), problem=problem)


def test_the_skill_for_all_projects_is_none_of_this_project_s(shell: Shell) -> None:
    theirs = shell.path / ".cdo/templates/skill.md"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("---\npurpose: p\nload_when: l\n---\nEVIL\n")
    shell("install-cdo")
    assert all("EVIL" not in file.read_text() for file in installed(shell.path))
    Library.at(shell.path, trust_now=True)
    shell("install-cdo", "--force")
    shell("install-cdo", "--user")
    assert {file.read_text() for file in installed(shell.path)} == {"EVIL\n"}
    assert all("EVIL" not in file.read_text() for file in installed(shell.home))


def test_every_command_and_option_that_the_skill_names_is_one(shell: Shell) -> None:
    from cdo.cli.main import cli

    shell("install-cdo")
    text = installed(shell.path)[0].read_text()
    known = {option for command in cli.commands.values() for each in command.params for option in each.opts}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) <= known
    library = Library((("packaged", PACKAGED),))
    args = grammar.vocabulary(library.names("presets"), library.names("modes")).words()
    commands = set(re.findall(r"`cdo ([a-z]+)\b", text)) - set(args)
    assert {"final", "resume", "list", "doctor"} <= commands <= set(cli.commands)


# -- as processes ----------------------------------------------------------------------------------


def process(shell: Shell, *args: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from cdo.cli.skills import skills; skills(sys.argv[1:], standalone_mode=False)"
    env = {"HOME": str(shell.home), "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"}
    return subprocess.run(
        [sys.executable, "-c", code, *args], cwd=shell.path, env=env, capture_output=True, text=True, timeout=60
    )


def test_the_summary_of_no_command_is_cut(shell: Shell) -> None:
    assert "..." not in shell("--help").stdout.partition("Commands:")[2]


def test_help_needs_nothing_heavy(shell: Shell) -> None:
    code = (
        "import sys; from cdo.cli.skills import skills; "
        "print(sorted({'pydantic', 'yaml', 'jinja2', 'sqlite3', 'litellm'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_two_installs_at_once_leave_whole_files(shell: Shell) -> None:
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda _: process(shell, "install-cdo", "--force"), range(2)))
    assert [each.returncode for each in done] == [0, 0], done
    first, second = installed(shell.path)
    assert first.read_bytes() == second.read_bytes()
    assert [path.name for path in first.parent.iterdir()] == ["SKILL.md"]
