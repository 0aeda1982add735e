"""The commands around a run, from outside: show, final, doctor, models, content, completion."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from cdo.cli.common import dumps
from cdo.content.library import Library
from cdo.content.project import FOLDERS, SUFFIXES
from cdo.core.demo_model import DEMO_NOTICE
from cdo.providers import demo_model_file, local_models, models
from cdo.session.records import read_session
from tests.conftest import Desk, explained
from tests.support.answers import Answer, RequestInfo
from tests.support.embedded import stand_in
from tests.support.harness import KEY, ROOT, needs_module
from tests.support.hub import loopback_hub
from tests.support.provider import Fault, Provider

# -- show, final ----------------------------------------------------------------------------------------------


def flaky(info: RequestInfo) -> Answer | None:
    """The critic's first reply is not one."""
    return Answer("I had rather not use your format.") if (info.call, info.attempt) == ("t1-critic", 1) else None


def test_show_gives_the_overview_the_files_and_every_exchange(cdo: Desk, provider: Provider) -> None:
    provider.script = flaky
    cdo("quick", "--session", "a", "-q", "Why is the sky blue?").ok()
    folder = cdo.session()
    newest, named, by_path, overview, critic, with_suffix, final, lower, problem, calls, last = cdo.several(
        ["show"], ["show", "a"], ["show", "tmp/cdo-a"], ["show", "cdo-a", "--json"], ["show", "a", "t1-critic"],
        ["show", "a", "t1-critic.md"], ["show", "a", "FINAL"], ["show", "a", "final"], ["show", "a", "00-input"],
        ["show", "a", "t1-critic", "--json"], ["show", "a", "FINAL", "--json"],
    )  # fmt: skip
    assert newest.ok().out == named.ok().out == by_path.ok().out
    lines = named.out.splitlines()
    head = dict(line.split(None, 1) for line in lines[: lines.index("")])
    assert " ".join(head) == (
        "session: path: created: preset: models: calls: tokens: cost: status: confidence: problem:"
    )
    assert (head["session:"], head["calls:"], head["problem:"]) == ("a", "5", "Why is the sky blue?")
    table = [line.split() for line in lines[lines.index("") + 1 :]]
    assert table[0] == ["call", "attempts", "model", "seconds", "tokens", "cost"]
    assert {row[0]: row[1] for row in table[1:]} == {
        "t1-pragmatist": "1", "t1-critic": "2", "t1-synthesis": "1", "final": "1",
    }  # fmt: skip

    shown = overview.ok().json
    assert shown["calls"] == sum(row["attempts"] for row in shown["ledger"]) == 5
    assert shown["tokens"] == sum(row["tokens"] for row in shown["ledger"])
    assert shown["cost"] == pytest.approx(sum(row["cost"] for row in shown["ledger"]))

    assert critic.ok().out == with_suffix.ok().out == (folder / "t1-critic.md").read_text()
    assert final.ok().out == lower.ok().out == (folder / "FINAL.md").read_text()
    assert problem.ok().out == "Why is the sky blue?\n"

    first, second = calls.ok().json  # every attempt, with the whole prompt as it was sent
    for record, info in zip((first, second), provider.named("t1-critic"), strict=True):
        assert record["kind"] == "exchange"
        assert [m["text"] for m in record["request"]["messages"]] == [m["content"] for m in info.body["messages"]]
        assert [m["role"] for m in record["request"]["messages"]] == [m["role"] for m in info.body["messages"]]
        assert "Why is the sky blue?" in json.dumps(record["request"])
        assert {"usage", "cost", "started", "seconds", "model", "attempt"} <= set(record)
    assert first["response"]["text"] == "I had rather not use your format."
    assert (first["attempt"], second["attempt"]) == (1, 2)
    assert second["response"]["text"].startswith("---\nposition: ")
    assert [record["call"] for record in last.ok().json] == ["final"]


def test_show_and_final_say_what_is_not_there(finished: Desk) -> None:
    runs = finished.several(
        ["show", "b"], ["final", "b"], ["show", "a", "t9-critic"], ["show", "a", "../../secret"], ["show", "a", ".x"],
        ["show", "a", "t9-critic", "--json"], ["show", "a", "session"], ["show", "*"],
    )  # fmt: skip
    for done, code, word in zip(
        runs,
        (8, 8, 2, 2, 2, 2, 2, 2),
        ("tmp/cdo-b", "tmp/cdo-b", "t9-critic.md", "secret.md", ".x.md", "t9-critic", "session.md", "`*` cannot be"),
        strict=True,
    ):
        explained(done, code, word)
        assert done.out == ""
    assert "`cdo show a`" in runs[2].err


def test_final_prints_the_newest_or_the_named_one(finished: Desk) -> None:
    newest, named, by_path = finished.several(["final"], ["final", "a"], ["final", "tmp/cdo-a/"])
    assert newest.ok().out == named.ok().out == by_path.ok().out
    assert newest.out == (finished.session() / "FINAL.md").read_text()
    assert newest.err == ""
    for section in ("Decision", "Confidence", "Key Tensions", "Minority Reports", "Action Items"):
        assert f"\n## {section}\n" in newest.out


def test_looking_changes_nothing(finished: Desk) -> None:
    def state() -> dict[str, tuple[int, bytes]]:
        files = sorted(finished.path.rglob("*"))
        return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files if path.is_file()}

    before = state()
    for done in finished.several(["list"], ["show"], ["final"], ["show", "a", "final", "--json"], ["list", "--json"]):
        done.ok()
    assert state() == before
    assert len(read_session(finished.session())) > 9


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("é漢🦆", "é漢🦆"),
        ("\x1b[0m\x7f\x9b\u202e\u2066", "\\u001b[0m\\u007f\\u009b\\u202e\\u2066"),
        ("\ud800\U000e0041", "\\ud800\\udb40\\udc41"),
        ("a\nb\u2028", "a\\nb\\u2028"),
    ],
)
def test_json_is_readable_and_harmless(value: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert dumps([value]) == f'[\n  "{text}"\n]'
    assert json.loads(dumps([value])) == [value]


# -- doctor and models ----------------------------------------------------------------------------------------


def default(prefix: str) -> str:
    """A provider's default model, as the table has it."""
    return models.table(Library((("packaged", ROOT),)))[prefix].model


def test_doctor_says_what_would_be_used_and_why(cdo: Desk, provider: Provider) -> None:
    """What it says is what a run then uses."""
    local, here = cdo.having(OPENAI_BASE_URL="", OPENAI_API_KEY=""), provider.url.removeprefix("http://")
    # Nobody is at the proxy: a provider's list of models is not to be had.
    nobody = local.having(OLLAMA_HOST="127.0.0.1:9", HTTPS_PROXY="http://127.0.0.1:9")
    cdo.write("set/config.yaml", "model: openai/from-file\n")
    cases = [
        (cdo, f"openai/{default('openai')}", "OPENAI_API_KEY is set"),
        (local.having(OLLAMA_HOST=here), "ollama/bench:latest", "Ollama is running"),
        (nobody.having(GROQ_API_KEY=KEY), f"groq/{default('groq')}", "GROQ_API_KEY is set"),
        (local.having(OLLAMA_HOST=here, TESTS_HIDE="xllamacpp"), "ollama/bench:latest", "Ollama is running"),
        (cdo.having(CDO_MODEL="openai/a,openai/b"), "openai/a, openai/b", "from CDO_MODEL"),
        (cdo.having(CDO_CONFIG_DIR=str(cdo.path / "set")), "openai/from-file", "set/config.yaml"),
    ]
    for desk, model, why in cases:
        told, asked = desk.several(["doctor", "--json"], ["think", "Why?", "--dry-run", "--json"])
        assert told.ok().json["model"].startswith(f"{model} ("), told.out
        assert why in told.json["model"]
        assert ", ".join(asked.ok().json["models"]) == model
        assert told.err == ""
        assert KEY not in told.out
    plain, bad = cdo.several(["doctor"], ["doctor", "--json"], env={"CDO_MODEL": "claude", "CDO_BUGDET": "1"})
    assert (plain.code, bad.code) == (4, 4)
    assert bad.json["model"].startswith("none: The command-line agent `claude` needs the program `claude`")
    assert list(bad.json) == [
        "cdo", "python", "model", "keys set", "addresses", "embedded model", "litellm", "git", "check", "content",
        "settings", "not settings", "sessions",
    ]  # fmt: skip
    assert bad.json["settings"] == "CDO_MODEL, CDO_REVIEW"
    assert bad.json["not settings"] == "CDO_BUGDET"
    assert [line.partition(":")[0] for line in plain.out.splitlines()] == list(bad.json)
    assert "keys set:       OPENAI_API_KEY\n" in plain.out
    assert f"OPENAI_BASE_URL ({here})" in plain.out
    assert str(ROOT) in plain.out
    assert "sessions:       tmp (writable)" in plain.out
    assert re.search(r"check: +(held by (bubblewrap|namespaces|landlock)|no sandbox works here: --check)", plain.out)
    hidden = nobody.having(OPENAI_BASE_URL="https://me:hunter2@example.invalid/v1?key=hunter2")("doctor").out
    assert "OPENAI_BASE_URL (example.invalid)" in hidden
    assert "hunter2" not in hidden
    cdo.write("afile", "")
    assert "afile is not a folder" in nobody.having(CDO_OUT="afile/deep")("doctor").out
    assert [info.path for info in provider.requests if info.is_call] == []


def test_doctor_tells_when_a_model_in_use_will_be_shut_down(cdo: Desk, provider: Provider) -> None:
    """By the provider's own list, else by litellm's table; a model without a date has no row."""
    dated = {"object": "list", "data": [{"id": "other"}, {"id": "gpt-x", "shutdown_date": "2027-01-14T00:00:00Z"}]}
    provider.listing = dated
    desk = cdo.having(ANTHROPIC_API_KEY=KEY, ANTHROPIC_BASE_URL=provider.url)
    names = ["openai/gpt-x", "openai/gpt-y", "anthropic/claude-sonnet-4-5"]
    listed, table, none = (
        desk("doctor", "--json", env={"CDO_MODEL": name}).ok().json for name in (names[0], names[2], names[1])
    )
    assert listed["shut down"] == "openai/gpt-x on 2027-01-14: name another model"
    assert table["shut down"].startswith("anthropic/claude-sonnet-4-5 on 20")
    assert "shut down" not in none


def test_doctor_names_a_provider_that_refuses_the_key_or_does_not_answer(cdo: Desk, provider: Provider) -> None:
    """A newcomer learns it here, and not from the first run."""
    provider.faults = [Fault(status=401, path="*/models", body={"error": {"message": "Incorrect API key"}})]
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    closed = f"http://127.0.0.1:{port}"
    wrong, here, proxy = (
        cdo.having(CDO_MODEL=model, **more)("doctor", "--json").ok().json.get("no answer", "")
        for model, more in (
            ("openai/gpt-x", {}),
            ("ollama/x", {"OLLAMA_API_BASE": closed}),
            ("groq/x", {"GROQ_API_KEY": KEY, "GROQ_API_BASE": "http://models.invalid/v1", "HTTP_PROXY": closed}),
        )
    )
    assert wrong == "openai/gpt-x: the provider refuses the key in OPENAI_API_KEY"
    assert here.startswith("ollama/x: no connection to 127.0.0.1: ")
    assert proxy.startswith(f"groq/x: no connection to the proxy 127.0.0.1:{port} (HTTP_PROXY, HTTPS_PROXY)")
    provider.faults = []
    assert "no answer" not in cdo.having(CDO_MODEL="openai/gpt-x")("doctor", "--json").ok().json


def test_doctor_shows_whose_table_says_where_keys_go(bare: Desk) -> None:
    text = (ROOT / "dispatch/providers.yaml").read_text().replace("https://api.openai.com", "https://evil.example")
    desk = bare.having(OPENAI_API_KEY=KEY, HTTPS_PROXY="http://127.0.0.1:9")
    assert desk("doctor", "--json").ok().json["addresses"] == "as shipped"
    theirs = bare.write(".cdo/dispatch/providers.yaml", text)
    told, listed, ran = desk.several(["doctor", "--json"], ["content", "list"], ["think", "Why?", "--dry-run"])
    assert ran.code == 4
    for answer in (told.ok().json["not trusted"], ran.err):
        assert "dispatch/providers (replaces another one)" in answer and str(theirs.parents[1]) in answer
    assert told.json["addresses"] == "as shipped"
    assert re.search(r"dispatch/providers +project, not trusted", listed.ok().out)
    desk("think", "Why?", "--dry-run", "--trust").ok()
    trusted = desk("doctor", "--json").ok().json
    assert trusted["addresses"] == f"{theirs} (this project's table, trusted)"
    assert (trusted["keys set"], trusted["model"].split()[0]) == ("OPENAI_API_KEY", f"openai/{default('openai')}")
    theirs.write_text(text + "# changed\n")
    assert "dispatch/providers" in desk("doctor", "--json").json["not trusted"]
    theirs.unlink()
    mine = bare.write("user/dispatch/providers.yaml", text)
    own = desk.having(CDO_CONFIG_DIR=str(bare.path / "user"))("doctor", "--json").ok().json
    assert own["addresses"] == f"{mine} (your table)"


def test_no_key_goes_where_a_project_says_unless_it_is_trusted(cdo: Desk, provider: Provider) -> None:
    text = (ROOT / "dispatch/providers.yaml").read_text().replace("https://api.openai.com", provider.url)
    theirs = cdo.write(".cdo/dispatch/providers.yaml", text)
    desk = cdo.having(OPENAI_BASE_URL="")
    for args in (["quick", "Why?"], ["quick", "-m", "openai/gpt-4.1", "Why?"], ["lev-exec,quick", "Why?"]):
        explained(desk(*args), 4, "sets the addresses of providers", str(theirs.parents[1]), "--trust")
    assert provider.requests == []
    desk("quick", "--trust", "Why?").ok()
    assert provider.requests


def test_models_lists_providers_and_what_is_set_up(bare: Desk) -> None:
    text, rows = bare.having(GROQ_API_KEY=KEY).several(["models"], ["models", "--json"])
    states = {row["prefix"]: row for row in rows.ok().json}
    assert list(states)[:2] == ["anthropic", "openai"]
    assert states["groq"] == {
        "prefix": "groq", "route": "direct", "default": default("groq"), "state": "GROQ_API_KEY is set",
    }  # fmt: skip
    assert states["openai"]["state"] == "set OPENAI_API_KEY"
    assert states["anthropic"]["route"] == "direct"
    assert states["ollama"]["state"] == "no key needed"
    assert KEY not in text.out + rows.out
    local = [name for name in states if name.startswith("local:")]
    assert states["local:qwen3-4b"] == {
        "prefix": "local:qwen3-4b", "route": "embedded", "size": "2.5 GB", "license": "Apache-2.0",
        "default": "unsloth/Qwen3-4B-Instruct-2507-GGUF/Qwen3-4B-Instruct-2507-Q4_K_M.gguf",
        "state": "cdo models pull qwen3-4b",
    }  # fmt: skip
    assert local[-1] == list(states)[-1] == "local:demo" and len(local) > 6
    providers, _, embedded = text.ok().out.partition("\n\nLocal models, best first.")
    assert [line.split()[0] for line in providers.splitlines()] == [name for name in states if name not in local]
    assert [line.split()[0] for line in embedded.splitlines() if line.startswith("local:")] == local
    assert "Name models with -m." in text.out


def test_the_demo_model_is_never_used_without_saying_so(
    bare: Desk, provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider answers in its place; its file has the right size and no content."""
    stand_in(tmp_path / "fake", monkeypatch, url=provider.url)
    (tmp_path / "kept").mkdir()
    with (tmp_path / "kept" / demo_model_file.MODEL_FILE).open("wb") as file:
        file.truncate(demo_model_file.MODEL_BYTES)
    path = f"{tmp_path}/fake:{ROOT}/tests/support/guard:{ROOT}"
    desk = bare.having(PYTHONPATH=path, CDO_MODELS_DIR=str(tmp_path / "kept"))
    for words in (["quick"], ["quick", "-m", "local", "-q"], ["quick", "--json"]):
        done = desk(*words, "Why?").ok()
        assert done.err.count(DEMO_NOTICE) == 1 and done.err.count("cdo models pull") == 1
        assert DEMO_NOTICE not in done.out
    told = desk("quick", "-m", "local", "-m", f"local:{tmp_path}/fake/any.gguf", "Why?").ok()
    assert DEMO_NOTICE not in told.err, "not every model of the run is the demo model"


def test_a_model_of_the_hub_is_pulled_named_used_and_removed(bare: Desk, tmp_path: Path) -> None:
    """The hub is on loopback; `local` means the model then, and a session of somebody else may name it too."""
    needs_module("xllamacpp")
    with loopback_hub() as hub:
        hub.private = KEY
        table = local_models.table(Library((("packaged", ROOT),)))
        files = {name: f"{model.repository}/{model.file}" for name, model in table.items()}
        for name in ("smollm2-1.7b", "qwen3-4b"):
            hub.holds(files[name], b"GGUF" + name.encode() * 1000)
        desk = bare.having(HF_ENDPOINT=hub.url, HF_TOKEN=KEY, CDO_MODELS_DIR=str(tmp_path / "kept"))
        assert desk("doctor", "--json").json["embedded model"].startswith("local is the 135M demo model")
        pulled = desk("models", "pull", "smollm2-1.7b").ok()
        assert pulled.out == f"{tmp_path}/kept/hub/{files['smollm2-1.7b']}\n"
        desk("models", "pull", "qwen3-4b").ok()
        told = desk("doctor", "--json").ok().json
        assert told["model"].startswith("local:qwen3-4b (")
        assert told["embedded model"].startswith("local is local:qwen3-4b")
        plans = desk.several(
            ["quick", "--dry-run", "--json", "Why?"],
            ["quick", "-m", "local", "--dry-run", "--json", "Why?"],
            ["quick", "-m", "local:smollm2-1.7b", "--dry-run", "--json", "Why?"],
            ["quick", "-m", "local:demo", "--dry-run", "--json", "Why?"],
        )
        assert [done.ok().json["models"] for done in plans] == [
            ["local:qwen3-4b"], ["local:qwen3-4b"], ["local:smollm2-1.7b"], ["local"],
        ]  # fmt: skip
        rows = {row["prefix"]: row for row in desk("models", "--json").ok().json}
        assert rows["local:qwen3-4b"]["state"] == "here" and rows["local:qwen3-4b"]["size"] == "0 MB"
        broken = desk("quick", "-m", "local", "--session", "a", "Why?")
        explained(broken, 4, "cannot be loaded")
        assert "demo model" not in broken.err
        explained(desk("resume", "a"), 4, "cannot be loaded")
        assert "local:qwen3-4b" in (desk.session() / "session.yaml").read_text()
        desk("models", "rm", "qwen3-4b").ok()
        explained(desk("resume", "a"), 4, "`local:qwen3-4b` is not on this machine", "cdo models pull qwen3-4b")
        hub.holds(files["smollm2-1.7b"], b"GGUF of another")
        explained(desk("models", "pull", "smollm2-1.7b"), 4, "smollm2-1.7b is pinned", "--force")
        desk("models", "pull", "--force", "smollm2-1.7b").ok()
        explained(desk("models", "pull", "qwen3-9b"), 2, "not a model that cdo knows")
    everything = "".join(path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())
    assert KEY not in everything and KEY not in pulled.out + pulled.err


# -- content --------------------------------------------------------------------------------------------------


def test_content_is_listed_found_and_overridden(cdo: Desk) -> None:
    names = sorted(
        str(path.relative_to(ROOT).with_suffix(""))
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in SUFFIXES
    )
    everything, text, presets, think, full, role, shown = cdo.several(
        ["content", "list", "--json"], ["content", "list"], ["content", "list", "presets/"],
        ["content", "path", "think"],
        ["content", "path", "presets/think"], ["content", "path", "critic.md"], ["content", "show", "critic"],
    )  # fmt: skip
    rows = everything.ok().json
    assert sorted(row["name"] for row in rows) == names
    assert {row["source"] for row in rows} == {"packaged"}
    assert all(Path(row["path"]).is_file() for row in rows)
    assert [line.split() for line in text.ok().out.splitlines()] == [[row["name"], "packaged"] for row in rows]
    assert [line.split()[0] for line in presets.ok().out.splitlines()] == [
        "presets/debug", "presets/deep", "presets/full", "presets/quick", "presets/think",
    ]  # fmt: skip
    assert think.ok().out == full.ok().out == f"{ROOT}/presets/think.yaml\n"
    assert role.ok().out == f"{ROOT}/templates/roles/critic.md\n"
    assert shown.ok().out == (ROOT / "templates/roles/critic.md").read_text()

    # An override in .cdo wins, also from a subfolder; a new preset is a new word; the user's folder comes second.
    preset = (ROOT / "presets/think.yaml").read_text()
    mine = cdo.write(".cdo/presets/think.yaml", preset.replace("start: 3", "start: 4"))
    cdo.write(".cdo/presets/mine.yaml", preset.replace("start: 3", "start: 2"))
    cdo.write("user/presets/think.yaml", preset.replace("start: 3", "start: 2"))
    cdo.write("user/presets/quick.yaml", preset.replace("start: 3", "start: 4"))
    cdo.write(".cdo/templates/roles/full.md", (ROOT / "templates/roles/critic.md").read_text())
    cdo.write(".cdo/domains/zed.md", (ROOT / "domains/dev.md").read_text())
    (cdo.path / "sub/deep").mkdir(parents=True)
    desk = cdo.having(CDO_CONFIG_DIR=str(cdo.path / "user"))
    waiting = {
        row["name"]: row for row in desk("content", "list", "--json").ok().json if "not trusted" in row["source"]
    }
    assert set(waiting) == {"domains/zed", "presets/mine", "presets/think", "templates/roles/full"}
    assert waiting["presets/mine"]["path"] == str(cdo.path / ".cdo/presets/mine.yaml")
    explained(desk("mine", "x"), 4, "presets/mine is a file of this project", "--trust")
    explained(desk("team,mine", "x"), 4, "presets/mine is a file of this project", "--trust")
    explained(desk("exec", "zed", "x"), 4, "domains/zed is a file of this project", "--trust")
    assert desk("think", "--dry-run", "--json", "x").ok().json["width"][0] == 2  # the user's
    desk("think", "--dry-run", "--trust", "x").ok()
    assert desk("content", "path", "think", cwd="sub/deep").ok().out == f"{mine}\n"
    first, second, own, path, unclear, clear = desk.several(
        ["think", "--dry-run", "--json", "x"], ["quick", "--dry-run", "--json", "x"],
        ["mine", "--dry-run", "--json", "x"],
        ["content", "list", "presets"], ["content", "path", "full"], ["content", "path", "presets/full"],
    )  # fmt: skip
    assert len(first.ok().json["roles"]) == 4
    assert len(second.ok().json["roles"]) == 4
    assert (own.ok().json["preset"], len(own.json["roles"])) == ("mine", 2)
    assert dict(line.split() for line in path.ok().out.splitlines()) == {
        "presets/debug": "packaged", "presets/deep": "packaged", "presets/full": "packaged",
        "presets/mine": "project", "presets/quick": "user",
        "presets/think": "project",
    }  # fmt: skip
    explained(unclear, 4, "`full` could be presets/full or templates/roles/full", "full name")
    assert clear.ok().out == f"{ROOT}/presets/full.yaml\n"


def test_content_that_is_not_there_or_wrong_is_explained(cdo: Desk) -> None:
    preset = (ROOT / "presets/think.yaml").read_text()
    cdo.write(".cdo/presets/typo.yaml", preset.replace("about:", "abuot:"))
    cdo.write(".cdo/presets/broken.yaml", preset.replace("width: [2, 4]", "width: [2, 4"))
    cdo.write(".cdo/presets/nobody.yaml", preset.replace("critic", "crtic"))
    cdo.write(".cdo/presets/wide.yaml", preset.replace("[2, 4]", "[4, 2]"))
    (cdo.path / ".cdo/presets/latin.yaml").write_bytes(b"about: caf\xe9 \x1b[31m\n")
    cdo("quick", "--dry-run", "--trust", "x").ok()
    runs = cdo.several(
        ["content", "path", "nope"], ["content", "show", "presets/thnk"], ["content", "list", "nope"],
        ["content", "path", "/etc/passwd"], ["typo", "x"], ["broken", "x"], ["nobody", "x"], ["wide", "x"],
        ["latin", "x"],
    )  # fmt: skip
    expected = [
        (4, ["no content file called nope"]), (4, ["Did you mean presets/think"]),
        (2, ["folder called nope", "presets"]),
        (4, ["/etc/passwd"]), (4, ["presets/typo.yaml", "`abuot` is not an allowed key", "Did you mean `about`"]),
        (4, [".cdo/presets/broken.yaml", "line "]), (4, [".cdo/presets/nobody.yaml", "`roles`", "crtic", "critic"]),
        (4, [".cdo/presets/wide.yaml", "`width`", "must not be above"]), (4, [".cdo/presets/latin.yaml"]),
    ]  # fmt: skip
    for done, (code, words) in zip(runs, expected, strict=True):
        explained(done, code, *words)
    assert "\x1b" not in cdo("content", "show", "latin").ok().out
    assert cdo.sessions() == []


# -- completion -----------------------------------------------------------------------------------------------


def test_completion_scripts_are_valid_and_complete(cdo: Desk) -> None:
    bash, zsh, fish = cdo.several(["completion", "bash"], ["completion", "zsh"], ["completion", "fish"])
    for done, shell in ((bash, "bash"), (zsh, "zsh"), (fish, "fish")):
        assert f"_CDO_COMPLETE={shell}_complete" in done.ok().out
        assert done.err == ""
        if shutil.which(shell):
            check = subprocess.run([shell, "-n"], input=done.out, capture_output=True, text=True, check=True)
            assert check.stderr == ""
    used = subprocess.run(
        ["bash", "-c", 'eval "$(cat)"; complete -p cdo'], input=bash.out, capture_output=True, text=True, check=True
    )
    assert used.stdout.endswith("-F _cdo_completion cdo\n")

    cdo("quick", "-q", "--session", "mine", "Why?").ok()
    lines = [
        "cdo sh",
        "cdo ",
        "cdo d",
        "cdo think --mo",
        "cdo --dry",
        "cdo show m",
        "cdo resume m",
        "cdo content ",
        "cdo completion z",
    ]
    wanted = ["show", "list", "deep", "--model", "", "mine", "mine", "path", "zsh"]
    runs = [
        cdo(env={"_CDO_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)})
        for line in lines
    ]
    found = [[item.partition(",")[2] for item in done.ok().out.split()] for done in runs]
    for line, word, items in zip(lines, wanted, found, strict=True):
        assert not word or word in items, line
    assert {"think", "adaptive", "list", "run"} <= set(found[1])
    assert {"hitl", "exec", "parliament", "skills"} <= set(found[1])
    assert set(found[2]) == {"debug", "deep", "demo", "diff", "doctor"}
    assert found[5] == found[6] == ["mine"]
