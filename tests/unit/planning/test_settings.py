"""Settings: which source wins, what each may hold, and how a mistake is explained."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cdo.content.library import Library
from cdo.core.errors import CdoError, ConfigError, UsageError
from cdo.core.exchange import Effort
from cdo.core.schema import field_names
from cdo.planning.settings import Resolved, Settings, narrowed, resolve, skill_folders
from cdo.security.trust import Trust
from tests.conftest import Desk, explained
from tests.support.harness import ROOT
from tests.support.provider import Provider


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    """The library of a folder with a project's and a user's folder, both without files."""
    monkeypatch.setenv("CDO_CONFIG_DIR", str(tmp_path / "user"))
    (tmp_path / "work/.cdo").mkdir(parents=True)
    (tmp_path / "user").mkdir()
    return Library.at(tmp_path / "work")


def project(library: Library, text: str) -> Path:
    """Write the project's file and return its path."""
    path = library.config_files()[0]
    path.write_text(text, encoding="utf-8")
    return path


def work(library: Library) -> Path:
    """The project's folder."""
    return library.config_files()[0].parent.parent


def resolved(library: Library, flags: Mapping[str, Any] | None = None, **env: str) -> Resolved:
    """The settings where the project is trusted."""
    return resolve(flags or {}, Library.at(work(library), trust_now=True), env)


def doubted(library: Library, flags: Mapping[str, Any] | None = None, **env: str) -> Resolved:
    """The settings where the project is not trusted."""
    Trust.load().file.unlink(missing_ok=True)
    return resolve(flags or {}, Library.at(work(library)), env)


# -- which source wins ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", list(itertools.product([False, True], repeat=4)))
def test_flag_over_variable_over_project_over_user_over_default(library: Library, given: tuple[bool, ...]) -> None:
    flag, variable, in_project, in_user = given
    near, far = library.config_files()
    if in_project:
        near.write_text("turns: 3\n")
    if in_user:
        far.write_text("turns: 2\n")
    found = resolve({"turns": "5"} if flag else {}, library, {"CDO_TURNS": "4"} if variable else {})
    ranked = [(5, "--turns"), (4, "CDO_TURNS"), (3, str(near)), (2, str(far)), (None, "default")]
    value, source = next(one for one, there in zip(ranked, (*given, True), strict=True) if there)
    assert (found.values.turns, found.sources["turns"]) == (value, source)
    assert {key: where for key, where in found.sources.items() if key != "turns"} == dict.fromkeys(
        set(field_names(Settings)) - {"turns"}, "default"
    )


VALUES: dict[str, tuple[str, Any]] = {
    "model": ("a/b, c/d", ("a/b", "c/d")),
    "width": ("3-8", (3, 8)),
    "turns": ("7", 7),
    "today": ("2026-05-04", "2026-05-04"),
    "budget": ("2.50", 2.5),
    "ask_above": ("0.5", 0.5),
    "max_calls": ("9", 9),
    "max_tokens": ("1000", 1000),
    "timeout": ("1e3", 1000.0),
    "concurrency": ("2", 2),
    "reply_tokens": ("100", 100),
    "effort": ("high", Effort.HIGH),
    "flex": ("true", True),
    "batch_api": ("true", True),
    "context_tokens": ("100", 100),
    "temperature": ("0", 0.0),
    "connect_timeout": ("1", 1.0),
    "first_byte_timeout": ("2", 2.0),
    "idle_timeout": ("3", 3.0),
    "call_timeout": ("4", 4.0),
    "check_timeout": ("5", 5.0),
    "seat_wait": ("2h", 7200.0),
    "out": ("there", "there"),
    "strict": ("yes", True),
    "no_git": ("1", True),
    "branch": ("1", True),
    "review": ("no", False),
    "skills": ("mine,yours", ("mine", "yours")),
    "adr_dir": ("docs/adr", "docs/adr"),
}


def test_every_setting_can_stand_in_every_source(library: Library) -> None:
    assert set(VALUES) == set(field_names(Settings)) - {"prices"}  # which is a table: only a file can hold it
    env = {f"CDO_{key.upper()}": text for key, (text, _) in VALUES.items()}
    for key, (text, value) in VALUES.items():
        flag, variable = resolve({key: text}, library, {}), resolve({}, library, env)
        assert getattr(flag.values, key) == getattr(variable.values, key) == value
        assert flag.sources[key] == f"--{key.replace('_', '-')}"
        assert variable.sources[key] == f"CDO_{key.upper()}"
    plain = {key: list(value) if isinstance(value, tuple) else value for key, (_, value) in VALUES.items()}
    path = project(library, json.dumps({**plain, "prices": {"a/b": {"input": 1, "output": 2, "cached": 0.5}}}))
    found = resolved(library)
    assert all(getattr(found.values, key) == value for key, (_, value) in VALUES.items())
    assert found.values.prices["a/b"].cached == 0.5
    assert set(found.sources.values()) == {str(path)}


def test_what_is_empty_is_not_set(library: Library) -> None:
    near, far = library.config_files()
    near.write_text("width:\nturns: null\nmodel: []\n")
    far.write_text("width: 4\n")
    found = resolve({"turns": None, "model": (), "strict": False}, library, {"CDO_BUDGET": "", "CDO_PRICES": "1"})
    assert found.values == Settings(width=(4, 4))
    assert {key: where for key, where in found.sources.items() if where != "default"} == {
        "model": str(near), "width": str(far),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("width: 3", "width", (3, 3)),
        ("width: [3, 8]", "width", (3, 8)),
        ("width: 3-8", "width", (3, 8)),
        ("width: 3 – 8", "width", (3, 8)),
        ("turns: '3'", "turns", 3),
        ("model: openai/a,b", "model", ("openai/a,b",)),  # a file has lists for several
        ("model: [a, b]", "model", ("a", "b")),
        ("strict: no", "strict", False),
        ("\ufeffwidth: 3", "width", (3, 3)),
        ("# nothing", "width", None),
        ("", "width", None),
    ],
)
def test_ways_to_write_a_value(library: Library, text: str, key: str, value: object) -> None:
    project(library, text)
    assert getattr(resolved(library).values, key) == value


# -- mistakes -------------------------------------------------------------------------------------------------


def mistake(library: Library, kind: type[CdoError], flags: Mapping[str, Any] | None = None, **env: str) -> str:
    """The sentences of the error, which must be of `kind`; the hint must say something to do."""
    with pytest.raises(CdoError) as caught:
        resolved(library, flags, **env)
    assert type(caught.value) is kind
    assert caught.value.hint
    said = f"{caught.value.message} {caught.value.hint}"
    assert "\n" not in said
    assert "Input should" not in said  # a validator's own words
    return said


WRONG: list[tuple[str, str, str]] = [
    ("model", "", "a name is empty"),
    ("model", "a,,b", "a name is empty"),
    ("width", "0", "greater than or equal to 1"),
    ("width", "999", "less than or equal to 256"),
    ("width", "8-3", "must not be above"),
    ("width", "3-", "N or A-B"),
    ("width", "-3", "N or A-B"),
    ("width", "1e3", "N or A-B"),
    ("turns", "0", "greater than or equal to 1"),
    ("turns", "101", "less than or equal to 100"),
    ("turns", "2.5", "a whole number"),
    ("turns", "many", "a whole number"),
    ("budget", "0", "greater than 0"),
    ("budget", "-1", "greater than 0"),
    ("budget", "$5", "a number"),
    ("budget", "nan", "greater than 0"),
    ("timeout", "inf", "finite"),
    ("timeout", "10m", "a number"),
    ("max_calls", "0", "greater than or equal to 1"),
    ("max_tokens", "x", "a whole number"),
    ("concurrency", "2000", "less than or equal to 1024"),
    ("temperature", "3", "less than or equal to 2"),
    ("out", " ", "empty"),
    ("strict", "maybe", "true or false"),
]


@pytest.mark.parametrize(("key", "value", "why"), WRONG)
def test_a_bad_value_names_its_source_and_what_it_should_be(library: Library, key: str, value: str, why: str) -> None:
    flag = mistake(library, UsageError, {key: value})
    assert flag.startswith(f"--{key.replace('_', '-')} cannot be `{value}`: ")
    assert why in flag
    assert "cdo run --help" in flag
    if value:
        variable = mistake(library, ConfigError, None, **{f"CDO_{key.upper()}": value})
        assert variable.startswith(f"CDO_{key.upper()} cannot be `{value}`: ")
        assert why in variable
    path = project(library, json.dumps({key: [value] if key == "model" else value}))
    if "," not in value:
        in_file = mistake(library, ConfigError)
        assert in_file.startswith(f"{path}: `{key}` cannot be `{value}`: ")
        assert why in in_file


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("width: true", ["`width` cannot be `true`", "N or A-B"]),
        ("turns: true", ["`turns` cannot be `true`", "a number"]),
        ("budget: yes", ["`budget` cannot be `yes`", "a number"]),
        ("width: [1, 2, 3]", ["`width` cannot be `[1, 2, 3]`"]),
        ("width: [true, 2]", ["`width` cannot be `[true, 2]`", "a number"]),
        ("model: 5", ["`model` cannot be `5`", "a name or a list of names"]),
        ("model: [a, 5]", ['`model` cannot be `["a", 5]`']),
        ("out: 5", ["`out` cannot be `5`", "it should be text"]),
        ("prices: 5", ["`prices` cannot be `5`", "a mapping"]),
        ("prices: {m: 5}", ["`m` should be a mapping"]),
        ("prices: {m: {input: 1}}", ["`m.output` is missing"]),
        ("prices: {m: {input: 1, output: cheap}}", ["`m.output` should be a number"]),
        ("prices: {m: {input: -1, output: 1}}", ["`m.input` should be greater than or equal to 0"]),
        (
            "prices: {m: {input: 1, output: 1, ouput: 1}}",
            ["`m.ouput` is not an allowed key", "input, output, cached"],
        ),
        ("wdith: 3", ["`wdith` is not an allowed key", "Did you mean `width`?", "Allowed keys: model, width, "]),
        ("colour: red", ["`colour` is not an allowed key", "Allowed keys: model, width, "]),
        (
            "OPENAI_API_KEY: sk-0123456789abcdef",
            ["`OPENAI_API_KEY` is not an allowed key", "only read from the environment"],
        ),
        ("api_key: sk-0123456789abcdef", ["`api_key` is not an allowed key", "only read from the environment"]),
        ("keys: {openai: sk-0123456789abcdef}", ["`keys` is not an allowed key", "only read from the environment"]),
        ("width: 3\n  turns: 4", ["line 2, column 8", "mapping values are not allowed"]),
        ("width: [3, 8", ["line 2, column 1", "expected ',' or ']'"]),
        ("width: 3\nwidth: 4", ["line 2, column 1", "`width` is there twice"]),
        ("width: &a 3", ["line 1, column 8", "anchors"]),
        ("out: !!python/object 3", ["line 1, column 6", "tags"]),
        ("- width", ["the top level must be a mapping"]),
        ("width", ["the top level must be a mapping"]),
        ("a: " + "[" * 9, ["line 1", "nested deeper"]),
        ("out: " + "x" * 70_000, ["70,005 bytes"]),
    ],
)
def test_a_bad_file_is_explained_with_its_path(library: Library, text: str, words: list[str]) -> None:
    path = project(library, text)
    said = mistake(library, ConfigError)
    assert said.startswith(f"{path}: ")
    assert len(said) < 600
    for word in words:
        assert word in said
    assert "sk-0123456789abcdef" not in said


def test_files_that_cannot_be_read_are_named(library: Library, tmp_path: Path) -> None:
    path = library.config_files()[0]
    path.write_bytes(b"out: caf\xe9\n")
    assert mistake(library, ConfigError).startswith(f"{path} is not UTF-8 text.")
    path.unlink()
    path.mkdir()
    assert mistake(library, ConfigError).startswith(f"{path} cannot be read: not a regular file.")
    path.rmdir()
    path.write_bytes(b"#" * 1_000_001)
    assert mistake(library, ConfigError).startswith(f"{path} cannot be read: it is larger than 1,000,000 bytes.")
    path.unlink()
    if os.geteuid():
        path.write_text("width: 3")
        path.chmod(0)
        assert mistake(library, ConfigError).startswith(
            f"{path} cannot be read: Permission denied. Let this user read it"
        )
        path.unlink()
    # A folder that is none, as for daemons whose home is /dev/null.
    gone = Library((("user", tmp_path / "work/.cdo/nowhere"), ("user", Path("/dev/null"))))
    assert resolve({}, gone, {}).values == Settings()


def test_whose_word_a_folder_of_skills_is(library: Library) -> None:
    """Only what the project's own file names is the project's: an audit of trust hangs on it."""

    def folders(flags: Mapping[str, Any] | None = None, **env: str) -> tuple[list[str], list[str]]:
        given, theirs = skill_folders(resolved(library, flags, **env), library)
        return [str(folder) for folder in given], [str(folder) for folder in theirs]

    assert folders() == ([], [])
    user = dict(library.roots)["user"] / "config.yaml"
    user.parent.mkdir(parents=True, exist_ok=True)
    user.write_text("skills: [~/own, b]\n")
    assert folders() == ([str(Path.home() / "own"), "b"], [])
    project(library, "skills: [evil]\n")
    assert folders() == ([], ["evil"])
    assert folders(CDO_SKILLS="a,b") == (["a", "b"], [])
    assert folders({"skills": ("x",)}, CDO_SKILLS="a") == (["x"], [])
    project(library, "skills: []\n")
    assert folders() == ([], [])


def test_a_mistake_is_found_even_where_a_stronger_source_wins(library: Library) -> None:
    project(library, "budget: lots")
    assert "`budget` cannot be `lots`" in mistake(library, ConfigError, {"budget": "1"})


# -- what a project may not --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "lower", "higher"),
    [("budget", 0.5, 999.0), ("max_calls", 3, 99_999), ("max_tokens", 9, 10**9), ("timeout", 1.0, 10.0**6)],
)
def test_a_project_lowers_a_cap_and_never_raises_it(library: Library, key: str, lower: float, higher: float) -> None:
    """Trusted or not: a cap of a person's own is theirs to lift, with a flag or a variable."""
    near, far = library.config_files()
    for ours, theirs in ((lower, higher), (higher, lower)):
        far.write_text(f"{key}: {ours}\n")
        near.write_text(f"{key}: {theirs}\n")
        for found in (resolved(library), doubted(library)):
            assert getattr(found.values, key) == lower
            assert found.sources[key] == str(far if ours == lower else near)
            assert found.untrusted == {}
        assert getattr(doubted(library, {key: str(higher)}).values, key) == higher
        assert getattr(resolve({}, library, {f"CDO_{key.upper()}": str(higher)}).values, key) == higher
    far.write_text("")
    assert getattr(doubted(library).values, key) == lower  # where nobody else sets one, it is one


def test_a_project_does_not_undo_that_no_branch_is_kept(library: Library) -> None:
    near, far = library.config_files()
    for ours, theirs, kept in (("yes", "no", True), ("no", "yes", True), ("no", "no", False)):
        far.write_text(f"no_git: '{ours}'\n")
        near.write_text(f"no_git: '{theirs}'\n")
        assert doubted(library).values.no_git is kept


COSTLY = "model: openai/o1-pro\nprices: {openai/gpt-4.1: {input: 0, output: 0}}\n"


def test_a_project_names_no_model_and_no_price_before_it_is_trusted(library: Library) -> None:
    """Nor anything else that does not narrow."""
    near, far = library.config_files()
    far.write_text("model: openai/mine\nprices: {openai/gpt-4.1: {input: 2, output: 8}}\n")
    near.write_text(f"{COSTLY}turns: 3\n")
    found = doubted(library)
    assert (found.values.model, found.values.turns) == (("openai/mine",), None)
    assert found.values.prices["openai/gpt-4.1"].output == 8
    assert found.untrusted == {"model": str(near), "prices": str(near)} and found.ceilings == {"turns": 3}
    here = Library.at(work(library))
    assert found.sure(here) is found  # the person's own file names a model
    far.write_text("")
    with pytest.raises(ConfigError, match="This project sets the model in ") as caught:
        doubted(library).sure(here)
    assert str(near.parent) in caught.value.message
    assert "--trust" in caught.value.hint and "-m" in caught.value.hint
    given = doubted(library, {"model": ("openai/x",)})
    assert given.sure(here) is given  # what the person says instead needs no trust
    held = resolved(library)
    assert (held.values.model, held.values.turns, held.untrusted) == (("openai/o1-pro",), 3, {})
    assert held.sure(here) is held
    assert held.values.prices["openai/gpt-4.1"].output == 0


WIDER = {"turns": 100, "width": "256", "context_tokens": 800_000, "concurrency": 1024, "reply_tokens": 99_999}


def test_a_project_that_is_not_trusted_only_narrows(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """More turns, voices and context would multiply what a run costs."""
    near, far = library.config_files()
    near.write_text("".join(f"{key}: {value}\n" for key, value in WIDER.items()))
    far.write_text("turns: 2\nwidth: 2-3\ncontext_tokens: 5000\nconcurrency: 9\n")
    found = doubted(library)
    mine = (2, (2, 3), 5000, 9, None)
    keys = ("turns", "width", "context_tokens", "concurrency", "reply_tokens")
    assert tuple(getattr(found.values, key) for key in keys) == mine
    assert {found.sources[key] for key in keys[:4]} == {str(far)} and found.untrusted == {"reply_tokens": str(near)}
    near.write_text("turns: 1\nwidth: 1-9\ncontext_tokens: 10\nconcurrency: 1\n")
    found = doubted(library)
    assert tuple(getattr(found.values, key) for key in keys) == (1, (1, 3), 10, 1, None)
    assert {found.sources[key] for key in keys[:4]} == {str(near)}
    assert doubted(library, {"turns": "9"}).values.turns == 9  # a flag is the person's word
    far.write_text("")
    found = doubted(library)
    assert found.ceilings == {"turns": 1, "width": (1, 9), "context_tokens": 10}
    assert (found.values.concurrency, found.values.turns) == (1, None)
    assert narrowed("width", (3, 12), found.ceilings) == (1, 9) and narrowed("turns", 4, {}) == 4


@pytest.mark.parametrize("key", ["out", "adr_dir", "skills", "today", "temperature", "idle_timeout"])
def test_all_else_of_a_project_waits_for_trust(library: Library, key: str) -> None:
    text, value = VALUES[key]
    path = project(library, f"{key}: '{text}'\n")
    found = doubted(library)
    assert found.untrusted == {key: str(path)}
    assert getattr(found.values, key) == getattr(Settings(), key)
    assert getattr(resolved(library).values, key) == value


def test_a_projects_file_is_its_own(library: Library, tmp_path: Path) -> None:
    """A repository may hold links: what they lead to is not read, and nothing of it is told."""
    path = library.config_files()[0]
    (tmp_path / "secret").write_text("sk-0123456789abcdef: 1\n")
    path.symlink_to(tmp_path / "secret")
    said = mistake(library, ConfigError)
    assert said.startswith(f"{path} cannot be read: it is a link that leads out of the project.")
    assert "0123456789" not in said
    path.unlink()
    path.symlink_to("/dev/zero")
    assert "leads out of the project" in mistake(library, ConfigError)
    path.unlink()
    os.mkfifo(path)
    assert "not a regular file" in mistake(library, ConfigError)


@pytest.mark.wide
def test_what_a_cloned_repository_sets_costs_nothing_before_it_is_trusted(cdo: Desk, provider: Provider) -> None:
    """Trust is of the file as it is: a changed one is asked about again."""
    elsewhere = cdo.path.parent / "elsewhere"
    path = cdo.write(".cdo/config.yaml", f"{COSTLY}out: {elsewhere}\n")
    words = (f"This project sets the model in {path.parent}", "you do not trust it as it is now", "--trust")
    for done in cdo.several(["quick", "Why?"], ["cabal", "Make it."]):
        explained(done, 4, *words)
    shown, listed, named = cdo.several(["config"], ["list"], ["quick", "--dry-run", "-m", "openai/gpt-4.1", "Why?"])
    told = f"Not used, because you do not trust {path.parent} as it is now: config.yaml (model, prices, out)."
    assert told in shown.ok().out and told in named.ok().err
    listed.ok()
    assert provider.requests == []
    assert not elsewhere.exists()
    plan = cdo("quick", "--dry-run", "--json", "--trust", "Why?").ok().json
    assert plan["models"] == ["openai/o1-pro"]
    path.write_text(f"{path.read_text()}# touched\n")
    explained(cdo("quick", "--dry-run", "Why?"), 4, *words)


@pytest.mark.wide
def test_a_cloned_repository_does_not_multiply_what_a_run_costs(cdo: Desk) -> None:
    def planned() -> Any:
        return cdo("quick", "--dry-run", "--json", "Why?").ok().json

    before = planned()
    cdo.write(".cdo/config.yaml", "".join(f"{key}: {value}\n" for key, value in WIDER.items()))
    preset = (ROOT / "presets/quick.yaml").read_text()
    cdo.write(
        ".cdo/presets/quick.yaml", preset.replace("start: ", "start: 9 # ").replace("width: ", "width: [9, 9] # ")
    )
    cdo.write(
        ".cdo/dispatch/tools.yaml",
        (ROOT / "dispatch/tools.yaml").read_text().replace("max_rounds: 3", "max_rounds: 99"),
    )
    assert planned() == before
    told = cdo("quick", "--dry-run", "Why?").ok().err
    assert (
        "config.yaml (reply_tokens), dispatch/tools (replaces another one), presets/quick (replaces another one)"
        in told
    )
    cdo("quick", "--dry-run", "--trust", "Why?").ok()
    assert planned() != before


# -- from outside ---------------------------------------------------------------------------------------------


@pytest.mark.wide
def test_the_strongest_source_wins_and_is_named(cdo: Desk) -> None:
    """From a subfolder: the nearest `.cdo` counts, whole; `config` shows each value with its source."""
    user = cdo.write(
        "user/config.yaml",
        "turns: 2\nwidth: 2\nidle_timeout: 5\nprices: {openai/x: {input: 1, output: 1}}\n",
    )
    near = cdo.write("near/.cdo/config.yaml", "turns: 3\nwidth: 3\n")
    cdo.write(".cdo/config.yaml", "max_calls: 5\n")
    (cdo.path / "near/sub/deep").mkdir(parents=True)
    desk = cdo.having(CDO_CONFIG_DIR=str(user.parent), CDO_WIDTH="4-6", CDO_MODEL="openai/x,openai/y")
    desk("quick", "--dry-run", "--trust", "Why?", cwd="near/sub/deep").ok()
    shown = desk("config", "--json", cwd="near/sub/deep").ok().json
    assert {key: (row["value"], row["source"]) for key, row in shown.items() if row["source"] != "default"} == {
        "model": (["openai/x", "openai/y"], "CDO_MODEL"),
        "width": ([4, 6], "CDO_WIDTH"),
        "review": (False, "CDO_REVIEW"),  # set by the harness for every test
        "turns": (3, str(near)),
        "idle_timeout": (5.0, str(user)),
        "prices": (
            {
                "openai/x": {
                    "input": 1.0,
                    "output": 1.0,
                    **dict.fromkeys(("cached", "cache_write")),
                    "long_prompts": [],
                }
            },
            str(user),
        ),
    }
    assert list(shown) == list(field_names(Settings))
    lines = desk("config", cwd="near/sub/deep").ok().out.splitlines()
    rows = {line.split()[0]: line for line in lines if line}
    assert rows["model"].split(maxsplit=1)[1].split("  ")[0] == "openai/x, openai/y"
    assert rows["width"].split() == ["width", "4-6", "CDO_WIDTH"]
    assert rows["turns"].split() == ["turns", "3", str(near)]
    assert rows["idle_timeout"].split() == ["idle_timeout", "5.0", str(user)]
    assert rows["concurrency"].split() == ["concurrency", "256", "default"]
    assert rows["max_calls"].split() == ["max_calls", "not", "set", "default"]
    assert rows["strict"].split() == ["strict", "false", "default"]
    assert lines[-1] == f"Files, strongest first: {near}, {user}"
    plan = desk("--dry-run", "--json", "think", "--width", "2", "Why?", cwd="near/sub/deep").ok().json
    assert (plan["width"], plan["max_turns"], plan["models"]) == ([2, 2], 3, ["openai/x", "openai/y"])


@pytest.mark.wide
def test_mistakes_in_any_source_end_a_command_before_anything_is_sent(cdo: Desk, provider: Provider) -> None:
    path = cdo.write(".cdo/config.yaml", "width: 3\n  turns: 4\n")
    for done in cdo.several(["think", "Why?"], ["config"], ["list"], ["doctor"], ["resume"]):
        explained(done, 4, f"{path}: line 2, column 8", "Fix the file")
    path.write_text("OPENAI_API_KEY: sk-0123456789abcdef\n")
    done = explained(cdo("think", "Why?"), 4, str(path), "`OPENAI_API_KEY`", "only read from the environment")
    assert "sk-0123456789abcdef" not in done.err
    path.unlink()
    explained(cdo.having(CDO_WIDTH="8-3")("think", "Why?"), 4, "CDO_WIDTH cannot be `8-3`", "unset it")
    assert provider.requests == []
    assert cdo.sessions() == []


@pytest.mark.wide
def test_prices_of_the_configuration_count_in_cost_and_budget(cdo: Desk, provider: Provider) -> None:
    """With a dollar for a million tokens, read or written, the cost is the tokens."""
    path = cdo.write("user/config.yaml", "model: openai/own\nprices:\n  openai/own: {input: 1, output: 1}\n")
    cdo = cdo.having(CDO_CONFIG_DIR=str(path.parent))
    plan, run = cdo.several(["quick", "Why?", "--dry-run", "--json"], ["quick", "Why?", "--json", "--budget", "1"])
    assert plan.ok().json["cost"] == [round(tokens / 1e6, 6) for tokens in plan.json["tokens"]]
    assert run.ok().json["cost"] == pytest.approx(run.json["tokens"] / 1e6)
    assert run.json["cost"] > 0.003
    path.write_text("model: openai/own\nprices:\n  openai/own: {input: 1000, output: 1000}\n")
    capped = explained(cdo("quick", "Why?", "--json", "--budget", "1"), 5, "budget of $1 is reached")
    assert capped.json["cost"] == 0
    path.write_text("model: openai/own\nprices:\n  openai/own: {input: 0, output: 0}\n")
    assert cdo("quick", "Why?", "--json", "--budget", "0.01").ok().json["cost"] == 0
    path.write_text("model: openai/own\n")
    unknown = cdo("quick", "Why?", "--json").ok()
    assert unknown.json["cost"] is None
    assert "unknown" in cdo("list").ok().out.splitlines()[0]
    assert cdo("quick", "Why?", "--json", "--dry-run").ok().json["cost"] is None
