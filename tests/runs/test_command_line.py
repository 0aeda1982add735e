"""The command line from outside: real processes in clean environments, a provider on loopback."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pexpect
import pytest
import yaml

from tests.conftest import Desk, explained
from tests.support.answers import Answer, RequestInfo, agent_text, final_text, synthesis_text
from tests.support.faults import Fault
from tests.support.guard import sitecustomize as guard
from tests.support.harness import KEY, ROOT, Done, needs, wait_for
from tests.support.provider import Provider

KEYS = [
    "session", "path", "status", "why", "decision", "confidence", "turns", "calls", "tokens", "cost",
    "missing_voices", "added", "flags", "verified", "exists", "unverified", "documents",
    "confidence_reason",
]  # fmt: skip
DECISION = "Stage it: build the reversible half now, and decide on the rest when the figures are in."


# What a terminal acts on, or what hides or reorders text.
ESCAPE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


# -- seed 004: every example through the real command ---------------------------------------------------------

FULL_ROLES = [
    "architect", "critic", "systems-thinker", "pragmatist", "risk-analyst", "empiricist", "user-advocate",
]  # fmt: skip
FULL = {"preset": "full", "width": [5, 20], "max_turns": 10, "adaptive": True, "roles": FULL_ROLES, "team": True}
EXAMPLES: dict[tuple[str, ...], dict[str, Any]] = {
    ("think", "Should we reduce node types?"): {
        "preset": "think", "width": [2, 4], "max_turns": 3, "turns": [2, 3], "adaptive": False, "hitl": False,
        "roles": ["first-principles", "critic", "pragmatist"], "calls": [8, 16], "team": False, "bd": False,
        "why": "you asked for think",
    },
    ("quick", "Summarize A2A conflicts"): {
        "preset": "quick", "width": [1, 2], "max_turns": 1, "turns": [1, 1],
        "adaptive": False, "roles": ["pragmatist", "critic"], "calls": [4, 4],
    },
    ("full", "Evaluate architecture"): {**FULL, "turns": [5, 10], "calls": [12, 207], "bd": True},
    ("hitl", "Design execution model"): {"modifiers": ["hitl"], "hitl": True, "preset": "deep"},
    ("bd,full", "Track everything in beads"): {**FULL, "modifiers": ["bd"], "bd": True},
    ("team,full", "Persistent teammates"): {**FULL, "modifiers": ["team"]},
    ("adaptive,team,full", "Grow/shrink team per turn"): {**FULL, "modifiers": ["adaptive", "team"]},
    ("lev-exec", "Multi-model comparison"): {"modifiers": ["lev-exec"], "models": ["openai/gpt-6.1-sol"]},
    ("exec", "dev", "POC dev team following lev sdlc"): {
        "preset": "deep", "domain": "dev", "roles": ["dev-lead", "implementer", "reviewer", "tester"],
        "documents": ["WBS"],
    },
    ("exec", "arch", "Architecture planning team"): {
        "preset": "deep", "domain": "arch", "roles": ["architect", "critic", "systems-thinker", "pragmatist"],
        "documents": ["ADR", "C4", "ATAM"],
    },
    ("debug", "Gateway crashes"): {
        "preset": "debug", "mode": "debug", "width": [1, 3], "max_turns": 7, "turns": [7, 7], "bd": False,
        "team": False, "roles": ["tester", "empiricist"], "adaptive": False,
    },
    ("full,parliament", "Who is right?"): {"preset": "full", "mode": "parliament"},
    ("hitl,bd", "x"): {"modifiers": ["hitl", "bd"], "hitl": True, "bd": True},
}  # fmt: skip


def test_every_example_of_the_seed(cdo: Desk, provider: Provider) -> None:
    text = (ROOT / "tests/unit/planning/test_arguments.py").read_text()
    for args in EXAMPLES:
        if args[-1] not in ("Who is right?", "x"):
            assert args[-1] in text  # test_arguments.py has the seed's list; nothing of it is left out here
    runs = cdo.several(*([*args, "--dry-run", "--json"] for args in EXAMPLES))
    for (args, expected), done in zip(EXAMPLES.items(), runs, strict=True):
        shown = done.ok().json
        assert done.err == ""
        low, high = shown["cost"]
        assert 0 < low <= high
        fewest, most = shown["tokens"]
        assert 0 < fewest < most
        assert shown["problem"] == args[-1]
        assert {key: shown[key] for key in expected} == expected, args
    assert provider.requests == []
    assert list(cdo.path.iterdir()) == []


def test_the_words_of_a_run_mean_the_same_wherever_options_stand(cdo: Desk, provider: Provider) -> None:
    same = [
        ["deep", "a", "b", "--dry-run", "--json"],
        ["--json", "--dry-run", "deep", "a b"],
        ["run", "deep", "a b", "--dry-run", "--json"],
        ["--dry-run", "--json", "deep", "--", "a", "b"],
        ["--dry-run", "--json", "--", "a", "b"],
    ]
    problems = {
        ("list of things to do",): "list of things to do",
        ("deep", "--", "--json", "-x", "deep"): "--json -x deep",
        ("--", "list"): "list",
        ("--", "--- title: x"): "--- title: x",
        ("think", "deep,down it is"): "deep,down it is",
        ("think", "list"): "list",
        ("Ünïcødé 漢字 🦆",): "Ünïcødé 漢字 🦆",
        ("adaptive,quick", "x"): "x",
    }
    runs = cdo.several(*same, *(["--dry-run", "--json", *words] for words in problems))
    shown = [done.ok().json for done in runs]
    assert [plan["problem"] for plan in shown] == ["a b"] * len(same) + list(problems.values())
    assert len({done.out for done in runs[: len(same) - 1]}) == 1
    gauged = shown[len(same) - 1]  # no preset: gauge picked one and says why
    assert gauged["preset"] == "quick"
    assert gauged["why"] == "quick: 2 words"
    adaptive = shown[-1]
    assert (adaptive["adaptive"], adaptive["modifiers"], adaptive["preset"]) == (True, ["adaptive"], "quick")
    assert provider.requests == []
    assert cdo.sessions() == []


def test_a_plan_is_shown_to_people_too(cdo: Desk) -> None:
    problem = "Should we migrate the billing database, the queue and the API to another cloud? What does it cost?"
    plan, adaptive, alone = cdo.several(
        ["--dry-run", problem], ["full", "--dry-run", "x"], ["quick", "--dry-run", "--width", "1", "x"]
    )
    for line in ("preset ", "problem ", "turn ", "ends at ", "model     openai/gpt-6.1-sol", "calls ", "cost      $"):
        assert f"\n{line}" in f"\n{plan.ok().out}"
    assert re.search(r"preset +\w+ .*words", plan.out)  # gauge's reason
    assert plan.out.endswith("Nothing was sent.\n")
    assert "5 to 20 voices; roles, skills and focus as each synthesis directs" in adaptive.ok().out
    assert "bd is not installed" not in adaptive.out, "nobody asked for bd"
    assert "team: voices live on" in adaptive.out
    assert "as each synthesis directs" not in alone.ok().out
    chosen = re.search(r"\nroles +(.*(?:\n {10}.*)*)", plan.out)
    assert chosen and "data-modeler (matches: data, database, migration)" in " ".join(chosen[1].split())
    assert "\nroles " not in adaptive.out


def test_words_that_cannot_act_are_named_before_the_run(cdo: Desk, provider: Provider) -> None:
    done = cdo("adaptive,team,quick", "--session", "a", "Who is right?").ok()
    before = done.err.partition("t1-")[0]
    assert "`adaptive` does nothing here: there is one turn" in before
    assert "`team` does nothing here: there is one turn" in before
    assert "`adaptive` does nothing here" in cdo("adaptive,quick", "--dry-run", "Who is right?").ok().out
    asked = len(provider.calls)
    cdo("hitl,quick", "--no-input", "--session", "b", "Who is right?").failed(
        6, "`hitl` with --no-input: nobody is asked", "exit code 6", "t1-plan.yaml"
    )
    assert len(provider.calls) == asked
    assert "hitl" not in cdo("quick", "--no-input", "--session", "c", "Who is right?").ok().err


USAGE: list[tuple[list[str], list[str]]] = [
    (["deep,adaptve", "Why?"], ["`adaptve` in `deep,adaptve`", "Write `adaptive`"]),
    (["deep,full", "Why?"], ["`deep` and `full` are both presets"]),
    (["deep", "full", "Why?"], ["`deep` and `full` are both presets"]),
    (["deep"], ["no problem"]),
    ([""], ["empty"]),
    (["deep", "  \t"], ["empty"]),
    (["-"], ["no problem", "nothing came by stdin"]),
    (["help", "nope"], ["`nope` is not a command, preset, modifier or mode", "`cdo help`"]),
    (["help", "reusme"], ["Did you mean `cdo help resume`"]),
    (["-c", "-", "Why?"], ["no '-' to use as context", "Save what comes by stdin in a file"]),
    (["@"], ["names no file"]),
    (["@nowhere.md"], ["nowhere.md", "No such file"]),
    (["@."], ["Is a directory"]),
    (["\udcff\udcfe bad"], ["not UTF-8"]),
    (["--json", "list"], ["`list` is a command", "Put it first"]),
    (["deep", "--nope", "Why?"], ["--nope", "`cdo run --help`", "put `--` before the problem"]),
    (["--mode", "x"], ["Did you mean --model"]),
    (["---"], ["put `--` before the problem"]),
    (["--model"], ["--model", "requires an argument"]),
    (["doctor", "of", "things"], ["of things", "quote the problem"]),
    (["list", "--nope"], ["--nope", "`cdo list --help`"]),
    (["list", "-n", "many"], ["'many' is not a whole number."]),
    (["serve", "--max-budget", "much"], ["'much' is not a number."]),
    (["content", "list", "--nope"], ["`cdo content list --help`"]),
    (["content", "nope"], ["nope", "`cdo content --help`"]),
    (["answer"], ["SESSION", "`cdo answer --help`"]),
    (["cabal"], ["REQUEST", "`cdo cabal --help`"]),
    (["--json", "cabal"], ["`cabal` is a command"]),
    (["docter"], ["Did you mean `cdo doctor`"]),
    (["thnk"], ["Did you mean `cdo think`"]),
    (["--width", "8-3", "Why?"], ["--width cannot be `8-3`", "must not be above"]),
    (["--budget", "$5", "Why?"], ["--budget cannot be `$5`", "a number"]),
    (["-m", "", "Why?"], ["--model cannot be ``", "empty"]),
    (["--out", "", "Why?"], ["--out cannot be ``", "empty"]),
    (["--session", "", "Why?"], ["`` cannot be the name"]),
    (["--session", "../x", "Why?"], ["`../x` cannot be the name"]),
    (["-c", "nowhere", "Why?"], ["nowhere"]),
    (["-c", ".", "--no-context", "Why?"], ["exclude each other"]),
    (["completion"], ["Missing argument 'SHELL'", "bash, zsh, fish"]),
    (["completion", "tcsh"], ["'tcsh' is not one of"]),
    (["show", ".."], ["`..` cannot be the name"]),
    (["resume"], ["no unfinished session"]),
]


def test_what_cannot_be_understood_exits_2_and_says_what_to_do(cdo: Desk, provider: Provider) -> None:
    runs = cdo.several(*(args for args, _ in USAGE))
    for (args, words), done in zip(USAGE, runs, strict=True):
        explained(done, 2, *words)
        assert done.out == "", args
        assert len(done.err.splitlines()) == 2, args
    assert provider.requests == []
    assert list(cdo.path.iterdir()) == []


# -- where the problem comes from -----------------------------------------------------------------------------


def test_the_problem_comes_from_a_pipe_a_file_or_a_dash(cdo: Desk, provider: Provider) -> None:
    cdo.write("q.md", "--- \nFrom a file?\n")
    hostile = "a\0b \x1b[31mred\x1b[0m \u202eevil\u202c \x9b2J"
    given: list[tuple[tuple[str, ...], str | bytes | None, str]] = [
        (("-",), "From a dash?\n", "From a dash?"),
        (("deep", "-"), "From a dash?\r\n", "From a dash?"),
        (("deep",), "\n From a pipe?\n\n", "From a pipe?"),
        ((), "---\ntitle: x\n---\nBody?", "---\ntitle: x\n---\nBody?"),
        (("deep", "@q.md"), None, "--- \nFrom a file?"),
        (("deep", "@q.md and more"), None, "@q.md and more"),
        (("-",), b"\xef\xbb\xbfWith a mark?", "With a mark?"),
        (("-",), hostile, hostile),
        (("deep", "Not from the pipe?"), "From the pipe?", "Not from the pipe?"),
    ]
    cdo.path.joinpath("latin.txt").write_bytes(b"caf\xe9")
    cdo.write("empty.md", "\n")
    wrong: list[tuple[tuple[str, ...], str | bytes | None, str]] = [
        (("deep", "-"), "", "no problem"),
        (("deep", "@empty.md"), None, "the file empty.md is empty"),
        (("deep",), " \n\t\n", "no problem"),
        (("deep",), b"\xff\xfe", "not UTF-8"),
        (("@latin.txt",), None, "not UTF-8"),
        (("deep", "@/dev/zero"), None, "longer than 1,048,576 bytes"),
        (("deep", "-"), "why? " * 300_000, "give long material with -c"),
    ]
    runs = [(*args, "--dry-run", "--json") for args, _, _ in (*given, *wrong)]
    seen = cdo.several(*runs, stdins=[stdin for _, stdin, _ in (*given, *wrong)])
    for (_, _, problem), done in zip(given, seen, strict=False):
        assert done.ok().json["problem"] == problem
        assert set(re.findall(r"[^ -~]", done.out)) <= {"\n"}
        assert ("What comes by stdin is not read" in done.err) == (problem == "Not from the pipe?")
    for (_, _, word), done in zip(wrong, seen[len(given) :], strict=True):
        explained(done, 2, word)
    assert provider.requests == []


@pytest.mark.slow
def test_odd_problems_survive_the_whole_way(cdo: Desk, provider: Provider) -> None:
    """Large, hostile or odd: what was asked is what is stored, sent and shown, and nothing acts on a terminal."""
    problems = {
        "large": "Why? " * 20_000,
        "hostile": "a\0b \x1b[31mred\x1b[0m \u202eevil\u202c \x9b2J\x7f end",
        "dashes": "---\nposition: mine\nconfidence: 1\n---\nIs this yours? Ünïcødé 漢字 🦆",
    }
    large, *rest = problems.values()  # one as an argument, the others, which no argument can hold, by a pipe
    words = [["quick", "-q", "--session", name, "-"] for name in problems]
    runs = cdo.several([*words[0][:-1], large], *words[1:], stdins=[None, *rest])
    looks = cdo.several(*([word, name] for name in problems for word in ("show", "final")), ["list", "--json"])
    rows = {row["session"]: row for row in looks[-1].ok().json}
    for (name, problem), run in zip(problems.items(), runs, strict=True):
        assert run.ok().out.startswith(f"Decision\n\n{DECISION}")
        assert (cdo.session(name) / "00-input.md").read_text() == f"{problem.strip()}\n"
        assert rows[name]["problem"] == " ".join(problem.split())
        sent = [info for info in provider.calls if info.headers["X-Cdo-Session"] == name]
        assert len(sent) == 4
        assert all(problem.strip() in info.prompt for info in sent)
    for done in (*runs, *looks):
        assert not ESCAPE.search(done.ok().out + done.err), ascii(done.out + done.err)
    assert cdo("resume", "hostile", "-q").ok().out == runs[1].out
    assert len(provider.calls) == 4 * len(problems)


# -- a whole run ----------------------------------------------------------------------------------------------


@pytest.mark.quick
def test_a_run_prints_its_decision_and_tells_its_progress(cdo: Desk, provider: Provider) -> None:
    colourful = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "FORCE_COLOR": "1"}
    plain, quiet, talkative = cdo.several(
        ["quick", "--session", "a", "Why?"],
        ["quick", "--session", "b", "-q", "Why?"],
        ["quick", "--session", "c", "-v", "Why?"],
        env=colourful,
    )
    for done, name in ((plain, "a"), (quiet, "b"), (talkative, "c")):
        assert done.ok().out.startswith(f"Decision\n\n{DECISION}\n\nConfidence  0.62: ")
        assert re.search(r"\nStatus +finished after its 1 turn\n", done.out)
        assert re.search(r"\nCost +\$0\.0\d \(1 turn, 4 calls, \d,\d{3} tokens\)\n", done.out)
        assert f"tmp/cdo-{name}" in done.out
        assert not ESCAPE.search(done.out + done.err)
        assert (cdo.session(name) / "FINAL.md").is_file()
    assert quiet.err == ""
    lines = plain.err.splitlines()
    assert lines[0] == "Sending the question and no files to openai/gpt-6.1-sol × 2 voices, $0.02–0.06"
    assert lines[1] == "session a: quick (you asked for quick) · openai/gpt-6.1-sol · tmp/cdo-a"
    assert [line.split()[0] for line in lines if line.startswith("  t1-")][-1] == "t1-synthesis"
    assert "asking" not in plain.err
    assert "t1-critic      asking openai/gpt-6.1-sol" in talkative.err
    for name in "abc":
        assert [
            info.call for info in provider.calls if info.headers["X-Cdo-Session"] == name and info.kind != "agent"
        ] == ["t1-synthesis", "final"]


def test_json_is_the_result_and_nothing_else(cdo: Desk, provider: Provider) -> None:
    done = cdo("think", "--json", "--turns", "2", "--session", "a", "Why?").ok()
    result = done.json
    assert list(result) == KEYS
    assert done.err.startswith("Sending the question and no files to openai/gpt-6.1-sol × 3 voices, $")
    assert done.err.splitlines()[1].startswith("session a: think")
    tokens = sum(
        len(info.prompt) // 4 for info in provider.calls
    )  # the answers' own tokens come on top, four characters a token
    assert result["session"] == "a"
    assert result["path"] == "tmp/cdo-a"
    assert result["status"] == "max_turns"
    assert result["decision"] == DECISION
    assert result["confidence"] == 0.64
    assert result["turns"] == 2
    assert result["calls"] == len(provider.calls) == 9
    assert tokens < result["tokens"] < 2 * tokens
    assert 0 < result["cost"] < 0.1
    assert result["missing_voices"] == result["added"] == result["flags"] == []
    again = cdo("resume", "a", "--json", "-q").ok()
    assert again.json == result
    assert again.err == ""
    assert len(provider.calls) == 9


def hostile(info: RequestInfo) -> Answer | None:
    """Answers full of what a terminal would act on. (YAML itself forbids some of it, unless it is escaped.)"""
    bomb = "\x1b[31mred\x1b]0;title\x07 \x9b2J \u202egnp.exe"
    mild = bomb.replace("\x9b", "")
    if info.kind == "agent":
        return Answer(agent_text(f"Do {mild}", prose=f"## Reasoning\n\n{bomb} wrote {info.call}\n"))
    if info.kind == "synthesis":
        return Answer(synthesis_text(focus=f"focus {mild}", gaps=[f"gap {mild}"]) + f"\n{bomb}\n")
    return Answer(final_text(f"Decide {bomb}", minority=f"None {bomb}"))


def test_what_models_write_never_acts_on_a_terminal(cdo: Desk, provider: Provider) -> None:
    provider.script = hostile
    run = cdo("quick", "--session", "a", "Why?").ok()
    seen = cdo.several(
        ["final", "a"], ["show", "a"], ["show", "a", "t1-critic"], ["show", "a", "t1-synthesis"], ["list"],
        ["show", "a", "t1-critic", "--json"], ["show", "a", "--json"], ["list", "--json"],
    )  # fmt: skip
    seen += [cdo("resume", "a", "--json"), cdo("resume", "a", "-v")]  # one after the other: a session has one owner
    for done in (run, *seen):
        done.ok()
        assert not ESCAPE.search(done.out + done.err), ascii(done.out + done.err)
    final, _, critic = seen[:3]
    for text in (run.out, final.out, critic.out):
        assert "␛[31mred␛]0;title␇ [U+009B]2J [U+202E]gnp.exe" in text
    assert "Do ␛[31mred" in run.err
    (exchange,) = seen[5].json
    assert "\x1b[31mred\x1b]0;title\x07 \x9b2J \u202egnp.exe wrote t1-critic" in exchange["response"]["text"]
    shown = "Decide ␛[31mred␛]0;title␇ [U+009B]2J [U+202E]gnp.exe"  # as FINAL.md says it, at once and later
    assert seen[8].json["decision"] == cdo("quick", "--session", "b", "--json", "Why?").ok().json["decision"] == shown


def test_two_runs_that_begin_in_the_same_second_both_finish(cdo: Desk, provider: Provider) -> None:
    """They wait for each other where a session gets its name, so that all want the same."""
    (cdo.path / "meeting").mkdir()
    desk = cdo.having(TESTS_STAMP="20260101-000000", TESTS_MEET=f"{cdo.path}/meeting 3")
    with ThreadPoolExecutor(3) as pool:
        runs = list(pool.map(lambda _: desk("quick", "--json", "-q", "Why?"), range(3)))
    names = sorted(done.ok().json["session"] for done in runs)
    assert names == ["20260101-000000", "20260101-000000-2", "20260101-000000-3"]
    assert [path.name for path in cdo.sessions()] == [f"cdo-{name}" for name in names]
    assert all((path / "FINAL.md").is_file() for path in cdo.sessions())
    assert len(provider.calls) == 12


# -- the exit codes -------------------------------------------------------------------------------------------

TEN = {"openai/gpt-4.1": {"input": 10, "output": 10}}


def converges(info: RequestInfo) -> Answer | None:
    """The first synthesis ends the run."""
    if info.kind == "synthesis":
        return Answer(synthesis_text(exit_ready=True, confidence=0.9, agreement=0.5))
    return None


def test_strict_turns_anything_but_a_clean_end_into_3(cdo: Desk, provider: Provider) -> None:
    provider.script = converges
    provider.faults = [
        Fault(call="t1-critic", status=400, seed=1),
    ]
    strict, lenient = cdo.several(
        ["quick", "--strict", "--json", "--session", "a", "Why?"], ["quick", "--json", "-q", "--session", "b", "Why?"]
    )
    assert (strict.code, lenient.code) == (3, 0), strict.err
    for done in (strict, lenient):  # converged, yet one voice is missing
        assert done.json["status"] == "converged"
        (missing,) = done.json["missing_voices"]
        assert missing.startswith("t1-critic: rejected")
    assert "Traceback" not in strict.err
    provider.faults = []
    assert cdo("quick", "--strict", "-q", "Why?").ok().out.startswith(f"Decision\n\n{DECISION}")
    provider.script = None
    late = cdo("quick", "--strict", "-q", "Why?").failed(3)  # not converged
    assert late.out.startswith(f"Decision\n\n{DECISION}")
    assert late.err == ""
    assert cdo.having(CDO_STRICT="1")("quick", "-q", "Why?").code == 3


def test_no_usable_model_or_a_bad_configuration_exits_4(bare: Desk) -> None:
    """Nothing is set up: every way out is named."""
    runs = bare.having(TESTS_HIDE="xllamacpp", OLLAMA_HOST="127.0.0.1:9").several(
        ["Why?"], ["doctor"], ["-m", "nope", "Why?"], ["-m", "anthropic/claude-sonnet-4-5", "Why?"],
        ["-m", "openai/gpt-4.1", "Why?"], ["-m", "codex", "Why?"], ["--dry-run", "Why?"],
    )  # fmt: skip
    options = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "Ollama", "cdo-deliberate[local]", "-m")
    explained(runs[0], 4, "No model can be used", *options)
    assert runs[1].code == 4
    assert runs[1].err == ""
    assert all(option in runs[1].out for option in options)
    explained(runs[2], 4, "`nope` is not a model", "PROVIDER/MODEL", "openai")
    explained(runs[3], 4, "no key for anthropic/claude-sonnet-4-5", "ANTHROPIC_API_KEY")
    explained(runs[4], 4, "no key for openai/gpt-4.1", "OPENAI_API_KEY")
    explained(runs[5], 4, "`codex` needs the program `codex`")
    explained(runs[6], 4, "No model can be used")
    bare.write(".cdo/config.yaml", "wdith: 3\n")
    explained(bare("Why?"), 4, ".cdo/config.yaml", "`wdith`", "Did you mean `width`")
    assert bare.sessions() == []


def test_a_refused_key_exits_4_and_a_higher_price_is_never_zero(cdo: Desk, provider: Provider) -> None:
    provider.faults = [Fault(status=401)]
    explained(cdo("quick", "--session", "a", "Why?"), 4, "refuses access", "Check the key")
    assert KEY not in (cdo.session() / "journal.jsonl").read_text()
    provider.faults = []
    explained(
        cdo("quick", "-m", "openai/unheard-of", "--budget", "1", "Why?"),
        4,
        "price of openai/unheard-of",
        "--max-calls",
    )


def test_each_cap_exits_5_and_a_higher_one_goes_on(cdo: Desk, provider: Provider) -> None:
    caps = [["--max-calls", "2"], ["--max-tokens", "6000"], ["--budget", "0.04"], ["--timeout", "0.001"]]
    raised = [["--max-calls", "9"], ["--max-tokens", "99999"], ["--budget", "9"], ["--timeout", "60"]]
    words = ["cap of 2 calls", "cap of 6000 tokens", "budget of $0.04", "time limit of 0.001 s"]
    runs = cdo.several(*(["quick", "--json", "--session", f"s{i}", *cap, "Why?"] for i, cap in enumerate(caps)))
    for done, word in zip(runs, words, strict=True):
        explained(done, 5, word, "cdo resume")
        result = done.json  # a script learns where to go on
        assert list(result) == KEYS
        assert result["status"] == "budget"
        assert result["why"] in done.err
        assert result["decision"] == ""
        assert not (cdo.path / result["path"] / "FINAL.md").exists()
    assert runs[0].json["calls"] == 2
    before = len(provider.calls)
    again = cdo.several(*(["resume", f"s{i}", "--json", "-q", *cap] for i, cap in enumerate(raised)))
    assert all(done.ok().json["calls"] == 4 for done in again)
    assert len(provider.calls) == 16 > before


def test_files_that_became_stale_exit_6_where_nobody_can_be_asked(cdo: Desk, provider: Provider) -> None:
    cdo("quick", "-q", "--session", "a", "Why?").ok()
    cdo.write("tmp/cdo-a/00-input.md", "Why not?\n")
    for flags in ([], ["--no-input"]):
        done = explained(cdo("resume", "a", "--json", *flags), 6, "t1-critic.md", "--yes")
        assert done.json["status"] == "paused"
    assert len(provider.calls) == 4
    for flag in ("--yes", "-y"):
        assert cdo("resume", "a", flag, "-q").ok().out.startswith(f"Decision\n\n{DECISION}")
        assert len(provider.calls) == 8
    assert (cdo.session() / "superseded/1/t1-critic.md").is_file()


def test_a_session_that_reads_or_writes_elsewhere_goes_on_after_a_yes(cdo: Desk, provider: Provider) -> None:
    """Whoever made it wrote its session.yaml: it must not decide which files of this machine a model is shown."""
    elsewhere = cdo.path.parent / "elsewhere"
    elsewhere.mkdir()
    cdo("quick", "-q", "--session", "a", "--max-calls", "1", "Why?").failed(5)
    frozen, asked = cdo.session() / "session.yaml", len(provider.calls)
    text = frozen.read_text()
    assert "adr_dir: null" in text and "root: ''" in text
    for changed in (
        text.replace("root: ''", f"root: {elsewhere}"),
        text.replace("root: ''", "root: ../../../elsewhere"),
        text.replace("adr_dir: null", f"adr_dir: {elsewhere}"),
    ):
        frozen.write_text(changed)
        done = cdo("resume", "a", "-q", "--max-calls", "9")
        explained(done, 6, str(elsewhere), "outside this repository", "--trust")
        forked = cdo("fork", "a", "--turn", "0", "--no-run")
        explained(forked, 6, str(elsewhere), "outside this repository", "--trust")
    assert len(provider.calls) == asked
    cdo("resume", "a", "-q", "--max-calls", "9", "--trust").ok()


def test_a_model_file_that_a_session_names_is_loaded_only_after_a_yes(cdo: Desk, provider: Provider) -> None:
    """llama.cpp parses it in native code: whoever made the session must not choose it."""
    cdo("quick", "-q", "--session", "a", "--max-calls", "1", "Why?").failed(5)
    frozen = cdo.session() / "session.yaml"
    name = yaml.safe_load(frozen.read_text())["plan"]["models"][0]
    hostile = cdo.write("tmp/cdo-a/evil.gguf", "not a model")
    frozen.write_text(frozen.read_text().replace(name, "local:tmp/cdo-a/evil.gguf"))
    for words in (["resume", "a", "--max-calls", "9"], ["fork", "a", "--turn", "0"]):
        for flags in ([], ["--no-input"]):
            explained(cdo(*words, *flags), 6, str(hostile), "not named", "--trust")
    calls = len(provider.calls)
    cdo("resume", "a", "--max-calls", "9", "--yes").failed(4)  # it is looked at, and is no model
    explained(cdo("resume", "a", "--max-calls", "9"), 6, "not named")  # --yes is for one command
    cdo("resume", "a", "--max-calls", "9", "--trust").failed(4)
    cdo("resume", "a", "--max-calls", "9").failed(4)
    hostile.write_text("another file")
    explained(cdo("resume", "a", "--max-calls", "9"), 6, "not named")
    cdo("quick", "-q", "-m", f"local:{hostile}", "--session", "b", "Why?").failed(4)  # one's own, named here
    cdo("resume", "b").failed(4)
    assert len(provider.calls) == calls


def test_models_that_fail_exit_7(cdo: Desk, provider: Provider) -> None:
    provider.faults = [Fault(status=404)]
    done = explained(cdo("quick", "--json", "--session", "b", "Why?"), 7, "models failed", "`cdo resume`")
    assert done.json["status"] == "failed"
    provider.faults = []
    assert cdo("resume", "b", "-q").ok().out.startswith(f"Decision\n\n{DECISION}")


def test_help_is_grouped_and_explains_the_words(bare: Desk) -> None:
    alone, asked, think, both, command, below, field, dev = bare.several(
        [], ["--help"], ["think", "--help"], ["help", "adaptive,deep"], ["help", "resume"],
        ["help", "models", "pull"], ["help", "exec"], ["help", "exec", "dev"],
    )  # fmt: skip
    assert alone.ok().out == asked.ok().out
    places = [asked.out.index(f"\n{title}:\n") for title in ("Ask", "Look", "Change course", "Missions", "Set up")]
    assert places == sorted(places) and "\nOther:" not in asked.out
    assert "think (preset): " in think.ok().out and re.search(
        r"Calls\s+of\s+a\s+model:\s+about\s+\d+\s+to\s+\d+\.", think.out
    )
    assert 'cdo think "' in think.out and "\nCaps:\n" in think.out
    assert "adaptive (modifier): " in both.ok().out and "deep (preset): " in both.out
    assert "No recorded call is repeated" in command.ok().out
    assert "Usage: cdo models pull " in below.ok().out
    assert "Usage: cdo exec TAG [OPTIONS] PROBLEM…" in field.ok().out and 'cdo exec arch "' in field.out
    assert "Usage: cdo exec dev [OPTIONS] PROBLEM…" in dev.ok().out and 'cdo exec dev "' in dev.out


@pytest.mark.slow  # a closed port is tried again for a while: it may be a server that starts
def test_a_provider_that_is_down_exits_7(bare: Desk) -> None:
    down = bare.having(OPENAI_BASE_URL="http://127.0.0.1:9/v1", OPENAI_API_KEY=KEY)
    explained(down("quick", "Why?"), 7, "127.0.0.1:9", "models failed")


def test_a_session_that_cannot_be_used_exits_8(cdo: Desk, provider: Provider) -> None:
    provider.faults = [Fault(call="t1-critic", hang="headers")]
    cdo.write("afile", "")
    cdo.write("tmp/cdo-b/session.yaml", "cdo: [\n")
    cdo.write("tmp/cdo-c/session.yaml", "nope: 1\n")
    (cdo.path / "tmp/cdo-empty").mkdir()
    cases: list[tuple[list[str], list[str]]] = [
        (["resume", "a"], ["in use by another cdo process"]),
        (["quick", "--session", "a", "Why?"], ["already", "`cdo resume a`"]),
        (["quick", "--session", "cdo-a", "Why?"], ["already"]),
        (["final", "a"], ["no FINAL.md yet", "cdo resume"]),
        (["resume", "nope"], ["no session tmp/cdo-nope"]),
        (["final", "nope"], ["no session tmp/cdo-nope"]),
        (["resume", "b"], ["session.yaml", "line 2"]),
        (["show", "b"], ["session.yaml", "line 2"]),
        (["show", "c"], ["session.yaml", "Allowed keys"]),
        (["resume", "empty"], ["no session.yaml"]),
        (["show", "./tmp/cdo-empty"], ["no session.yaml"]),
        (["quick", "--out", "afile", "Why?"], ["afile", "--out"]),
        (["quick", "--out", "afile/deeper", "Why?"], ["afile", "--out"]),
        (["quick", "--out", "/proc/nowhere", "Why?"], ["/proc/nowhere"]),
    ]
    owner = cdo.start("quick", "--session", "a", "Why?")
    try:
        wait_for(lambda: provider.named("t1-critic"))
        runs = cdo.several(*(args for args, _ in cases), ["list", "--json"])
    finally:
        os.killpg(owner.pid, signal.SIGKILL)
        owner.communicate()
    for (_, words), done in zip(cases, runs, strict=False):
        explained(done, 8, *words)
        assert done.out == ""
    statuses = {row["session"]: row["status"] for row in runs[-1].ok().json}
    assert statuses == {"a": "running", "b": "damaged", "c": "damaged"}
    provider.faults = []
    cdo("resume", "a", "-q").ok()
    groups = sorted((cdo.session() / "calls").glob("*.jsonl"))
    group = next(group for group in groups if b'"exchange"' in group.read_bytes())
    group.write_bytes(group.read_bytes().replace(b'"exchange"', b'"exchanges"'))
    for done in cdo.several(["resume", "a"], ["show", "a"], ["show", "a", "t1-critic", "--json"]):
        explained(done, 8, group.name, "damaged")


@needs("user", os.geteuid() != 0, "nothing is read-only for root")
def test_a_read_only_place_exits_8(cdo: Desk) -> None:
    (cdo.path / "tmp").mkdir(mode=0o555)
    explained(cdo("quick", "Why?"), 8, "permission is denied", "--out")
    assert "not writable" in cdo("doctor").out


@pytest.mark.quick
def test_an_interrupted_run_exits_130_and_says_how_to_go_on(cdo: Desk, provider: Provider) -> None:
    provider.faults = [Fault(call="t1-critic", hang="headers")]
    process = cdo.start("quick", "--json", "--session", "a", "Why?")
    wait_for(lambda: provider.named("t1-critic"))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    done = explained(Done(process.returncode, out, err, 0.0), 130, "Stopped", "`cdo resume a`")
    assert done.json["status"] == "interrupted"


def test_verbose_shows_the_traceback_of_every_command(cdo: Desk) -> None:
    """`-v` has an effect wherever it is offered. (All other tests of errors see that there is none without it.)"""
    cdo.write(".cdo/config.yaml", "wdith: 3\n")
    commands: list[list[str]] = [["think", "Why?"], ["resume"], ["list"], ["show"], ["final"], ["doctor"], ["config"]]
    misused: list[list[str]] = [
        ["models", "nope"], ["models", "pull", "nope"], ["models", "rm", "nope"], ["content", "list", "nope"],
        ["content", "show", "nope"], ["content", "path", "nope"], ["completion", "tcsh"],
    ]  # fmt: skip
    several = [*commands, *misused]
    loud = cdo.several(*([*args, ("-v", "--verbose")[at % 2]] for at, args in enumerate(several)))
    for done in loud:
        assert done.code in (2, 4)
        assert done.err.startswith("Traceback (most recent call last):")
        assert len(done.complaint) == 2


# -- options that shape or bound a run ------------------------------------------------------------------------


def test_options_shape_the_plan(cdo: Desk) -> None:
    cdo.write("notes.md", "The queue drops one message in a million. " * 40)
    base = ["--dry-run", "--json", "deep", "Why?"]
    plain, models, width, narrow, turns, context, none = [
        done.ok().json
        for done in cdo.several(
            base, [*base, "-m", "openai/gpt-4.1", "--model", "openai/gpt-4o-mini"], [*base, "--width", "3-4"],
            [*base, "--width", "3"], [*base, "--turns", "2"], [*base, "-c", "notes.md"], [*base, "--no-context"],
        )
    ]  # fmt: skip
    assert models["models"] == ["openai/gpt-4.1", "openai/gpt-4o-mini"]
    assert models["cost"][0] < plain["cost"][0]
    assert (width["width"], len(width["roles"])) == ([3, 4], 4)
    assert (narrow["width"], narrow["roles"]) == ([3, 3], ["architect", "critic", "systems-thinker"])
    assert (turns["turns"], turns["max_turns"]) == ([2, 2], 2)
    assert context["tokens"][0] > plain["tokens"][0] + 6 * 400
    assert none == plain


def test_options_reach_the_run_and_are_frozen_with_their_source(cdo: Desk, provider: Provider) -> None:
    cdo.write("docs/notes.md", "The queue drops one message in a million.\n")
    provider.latency = 0.02
    done = cdo(
        "think", "-m", "openai/a", "-m", "openai/b", "--context", "docs", "--width", "4", "--turns", "1", "--out",
        "elsewhere", "--session", "mine", "--concurrency", "1", "--max-calls", "30", "--json", "-q", "Why?",
    ).ok()  # fmt: skip
    assert done.json["path"] == "elsewhere/cdo-mine"
    assert provider.peak["all"] == 1
    agents = {info.call: info.body["model"] for info in provider.calls if info.kind == "agent"}
    assert sorted(agents.values()) == ["a", "a", "b", "b"]
    assert all("The queue drops one message" in info.prompt for info in provider.calls if info.kind == "agent")
    assert "docs/notes.md" in (cdo.path / "elsewhere/cdo-mine/00-context.md").read_text()
    frozen = (cdo.path / "elsewhere/cdo-mine/session.yaml").read_text()
    for line in ("model: --model", "width: --width", "turns: --turns", "out: --out", "concurrency: --concurrency"):
        assert line in frozen
    assert "budget: default" in frozen
    listed, elsewhere, shown, final = cdo.several(
        ["list"],
        ["list", "--out", "elsewhere"],
        ["show", "--out", "elsewhere"],
        ["final", "mine", "--out", "elsewhere"],
    )
    assert "no session in tmp" in listed.ok().err
    assert elsewhere.ok().out.startswith("mine")
    assert shown.ok().out.startswith("session:    mine")
    assert DECISION in final.ok().out


def test_resume_takes_options_of_its_own(cdo: Desk, provider: Provider) -> None:
    cap = ["--max-calls", "2"]
    cdo("quick", "--session", "a", "--out", "o", *cap, "Why?").failed(5)
    provider.latency = 0.02
    done = cdo(
        "resume", "--out", "o", "--max-calls", "9", "-m", "openai/other", "--concurrency", "1", "--json", "-q"
    ).ok()
    assert (done.json["session"], done.json["calls"], done.err) == ("a", 4, "")
    assert {info.call: info.body["model"] for info in provider.calls} == {
        "t1-pragmatist": "gpt-6.1-sol", "t1-critic": "gpt-6.1-sol", "t1-synthesis": "other", "final": "other",
    }  # fmt: skip
    assert provider.peak["all"] <= 2
    explained(cdo("resume", "--out", "o"), 2, "no unfinished session in o")
    assert cdo("resume", "a", "--out", "o", "--strict", "-m", "openai/other", "-q").code == 3
    assert "asking" not in cdo("resume", "a", "--out", "o", "-m", "openai/other", "-v").ok().err


def test_a_name_is_taken_once(cdo: Desk, provider: Provider) -> None:
    cdo("quick", "-q", "--session", "a", "Why?").ok()
    explained(cdo("quick", "-q", "--session", "a", "Why?"), 8, "already", "cdo resume")
    assert len(provider.calls) == 4


# -- at a terminal --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def terminal(desk: Desk, *args: str, **env: str) -> Iterator[Any]:
    """`cdo args` behind a pseudo-terminal."""
    child = pexpect.spawn(
        sys.executable,
        ["-m", "cdo", *args],
        cwd=str(desk.path),
        env={**desk.environment(env), "TERM": "xterm-256color"},
        dimensions=(30, 100),
        timeout=20,
        encoding="utf-8",
    )
    try:
        yield child
    finally:
        child.close(force=True)


def test_a_lone_cdo_at_a_terminal_shows_its_help(cdo: Desk, provider: Provider) -> None:
    with terminal(cdo) as child:
        child.expect("Exit codes: ")
        child.expect(pexpect.EOF)
        child.close()
        assert child.exitstatus == 0
    assert provider.requests == []


def test_no_color_is_honoured_at_a_terminal(cdo: Desk) -> None:
    colours = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-79]|9[0-7]|38;[\d;]+)m")
    seen = {}
    for value in ("", "1"):
        with terminal(cdo, "quick", "Why?", NO_COLOR=value) as child:
            child.expect(pexpect.EOF)
            seen[value] = child.before
    assert colours.search(seen[""])
    assert not colours.search(seen["1"])


# -- help, start-up, and the table of options -----------------------------------------------------------------


def commands(group: click.Group, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    """All commands with their full names."""
    for name, command in group.commands.items():
        assert command.name == name
        yield f"{prefix}{name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix}{name} ")


def cli_commands() -> dict[str, click.Command]:
    from cdo.cli import main

    return dict(commands(main.cli))


CLI = "tests/runs/test_command_line.py::"
COMMANDS = "tests/runs/test_commands.py::"
LISTS = "tests/runs/test_skill_commands.py::"
SKILLS = "tests/runs/test_skills_run.py::"
DOMAINS = "tests/runs/test_domains_run.py::"
SEATS = "tests/runs/test_seats_run.py::"
SHAPE, REACH, RESUME = (
    "test_options_shape_the_plan",
    "test_options_reach_the_run_and_are_frozen_with_their_source",
    "x",
)
CAPS = f"{CLI}test_each_cap_exits_5_and_a_higher_one_goes_on"
STALE = f"{CLI}test_files_that_became_stale_exit_6_where_nobody_can_be_asked"
LOUD = f"{CLI}test_verbose_shows_the_traceback_of_every_command"
OWN = f"{CLI}test_resume_takes_options_of_its_own"
NAMED = f"{CLI}test_options_reach_the_run_and_are_frozen_with_their_source"
RUN = f"{CLI}test_a_run_prints_its_decision_and_tells_its_progress"
RESULT = f"{CLI}test_json_is_the_result_and_nothing_else"
PAST = "tests/runs/test_library_commands.py::"
CHOSEN = f"{PAST}test_list_filters_by_what_sessions_are_and_when_they_began"
SUMS = f"{PAST}test_cost_takes_any_set_of_runs_and_any_key"
BRANCHES = "tests/unit/session/test_branch_reader.py::"
FORKS = "tests/runs/test_fork.py::"
DEMO = "tests/runs/test_demo.py::"
CHAIR = "tests/runs/test_audit.py::"
SAME = f"{CHAIR}test_the_options_of_a_run_are_those_of_an_audit"
REPLAYS = "tests/runs/test_replay.py::"
PAGE = "tests/unit/report/test_page.py::"
DIFFS = "tests/runs/test_diff_command.py::"
WATCHED = "tests/runs/test_watch.py::"
LOOKS = "tests/runs/test_mission_repository.py::"
REAL = "tests/runs/test_mission_files.py::"
SIGNED = "tests/runs/test_mission_sign_off.py::"
MISSION = "tests/runs/test_mission.py::"
AGREED = "tests/runs/test_consent.py::test_without_a_terminal_a_dear_run_ends_before_anything_is_sent_or_written"
BEGUN = "tests/runs/test_consent.py::test_resume_asks_only_if_nothing_was_paid_for_yet"
SEATED = f"{MISSION}test_a_dry_run_shows_the_team_and_sends_nothing"
SHARED = f"{MISSION}test_the_options_of_a_run_are_those_of_a_mission"
SHOWN = f"{MISSION}test_context_shows_what_an_agent_would_be_shown"
VERIFIED = "tests/runs/test_verify_command.py::"
HALF = "tests/runs/test_batch_api.py::"
WAITING = {
    "--batch-api": f"{HALF}test_each_step_of_a_run_is_a_batch_at_half_the_price",
    "--wait": f"{HALF}test_wait_stays_until_the_end",
}
THINKS = "tests/runs/test_protocols.py::test_effort_and_flex_reach_every_command_that_asks_models"
AGENTS = "tests/runs/test_mcp.py::"
SERVED = "tests/runs/test_serve.py::"
TRACES = "tests/runs/test_trace.py::"
PERSON = "tests/runs/test_human_seat.py::"
LATER = f"{PERSON}test_the_time_is_counted_from_the_first_form_and_a_longer_wait_can_be_given"
LIVE = f"{TRACES}test_a_run_is_sent_while_it_goes_on"
BATCH = "tests/runs/test_batch.py::"
SHARDS = "tests/runs/test_batch_shards.py::"
CLUSTER = "tests/runs/test_batch_cluster.py::"
BATCHED = {
    "--cluster": f"{CLUSTER}test_a_killed_worker_costs_only_the_calls_it_had_in_flight",
    "--workers": f"{CLUSTER}test_limits_of_a_provider_are_one_for_all_workers",
    **dict.fromkeys(("--batch-api", "--wait"), f"{HALF}test_all_items_of_a_file_leave_in_one_batch"),
    "--take-over": f"{SHARDS}test_another_machine_goes_on_only_when_told_to_take_over",
    "--live": f"{BATCH}test_every_question_of_a_file_gets_a_session_and_a_row",
    "--fail-fast": f"{BATCH}test_fail_fast_begins_no_further_item",
    "--retry-failed": f"{BATCH}test_an_item_that_fails_does_not_stop_the_rest",
    "--table": f"{BATCH}test_columns_say_what_is_asked_by_whom_and_under_which_name",
    **dict.fromkeys(("--effort", "--flex", "--concurrency", "--timeout"), f"{BATCH}test_limits_reach_every_item"),
    **dict.fromkeys(("--budget", "--max-calls", "--max-tokens"), f"{BATCH}test_a_cap_holds_over_all_items"),
    "--ask-above": f"{BATCH}test_a_dear_batch_is_agreed_to_as_a_whole",
    "--yes": f"{BATCH}test_a_dear_batch_is_agreed_to_as_a_whole",
    "--out": f"{BATCH}test_limits_reach_every_item",
    "--otlp": f"{TRACES}test_the_items_of_a_batch_are_traces_over_one_connection",
    "--trust": f"{BATCH}test_a_project_names_the_model_only_with_trust",
    "--no-input": f"{BATCH}test_a_person_at_a_terminal_is_asked_once",
    "--json": f"{BATCH}test_every_question_of_a_file_gets_a_session_and_a_row",
    "--quiet": f"{BATCH}test_progress_is_told_in_lines_where_there_is_no_terminal",
    "--verbose": f"{BATCH}test_progress_is_told_in_lines_where_there_is_no_terminal",
}
# Which test shows the effect of each option that --help offers.
EFFECTS: dict[str, dict[str, str]] = {
    "run": {
        "--otlp": LIVE,
        "--seat": f"{PERSON}test_a_person_is_one_blind_voice_of_every_turn_and_nothing_is_paid_twice",
        "--seat-wait": f"{PERSON}test_who_does_not_answer_is_absent_once_a_turn_and_it_is_told",
        **WAITING,
        **dict.fromkeys(("--effort", "--flex"), THINKS),
        "--ask-above": AGREED,
        "--model": f"{CLI}{SHAPE}",
        "--context": f"{CLI}{SHAPE}",
        "--no-context": f"{CLI}{SHAPE}",
        "--width": f"{CLI}{SHAPE}",
        "--turns": f"{CLI}{SHAPE}",
        "--budget": CAPS,
        "--max-calls": CAPS,
        "--max-tokens": CAPS,
        "--timeout": CAPS,
        "--concurrency": NAMED,
        "--strict": f"{CLI}test_strict_turns_anything_but_a_clean_end_into_3",
        "--out": NAMED,
        "--session": NAMED,
        "--recall": f"{PAST}test_a_run_is_shown_what_earlier_ones_decided",
        "--review": "tests/runs/test_review.py::test_who_asks_for_the_review_gets_it",
        "--no-git": "tests/unit/observers/test_git_commits.py::test_no_git_keeps_no_branch",
        "--branch": "tests/unit/observers/test_git_commits.py::test_runs_fill_no_list_of_branches",
        "--skills": f"{SKILLS}test_a_folder_that_is_given_needs_no_trust",
        "--trust": f"{SKILLS}test_a_projects_skills_reach_voices_only_with_trust",
        "--adr-dir": f"{DOMAINS}test_the_decision_record_is_copied_once_under_the_next_number",
        "--check": "tests/runs/test_check.py::test_a_patch_that_fixes_the_fault_confirms_the_cause",
        "--dry-run": f"{CLI}test_every_example_of_the_seed",
        "--yes": STALE,
        "--no-input": "tests/runs/test_terminal.py::test_no_question_is_asked_with_no_input",
        "--json": RESULT,
        "--quiet": RUN,
        "--verbose": RUN,
    },
    "resume": {
        "--otlp": LIVE,
        "--seat-wait": LATER,
        **WAITING,
        **dict.fromkeys(("--effort", "--flex"), THINKS),
        "--ask-above": BEGUN,
        "--rounds": f"{MISSION}test_a_higher_cap_of_rounds_goes_on_for_good",
        "--check": "tests/runs/test_check.py::test_the_check_of_a_session_that_somebody_else_made_is_not_run",
        "--exec": f"{REAL}test_commands_of_somebody_elses_session_run_only_after_exec",
        "--model": OWN,
        "--budget": CAPS,
        "--max-calls": CAPS,
        "--max-tokens": CAPS,
        "--timeout": CAPS,
        "--trust": f"{SEATS}test_a_projects_command_agent_is_started_only_with_trust",
        "--concurrency": OWN,
        "--strict": OWN,
        "--no-git": "tests/unit/observers/test_git_commits.py::test_no_git_keeps_no_branch",
        "--branch": "tests/unit/observers/test_git_commits.py::test_runs_fill_no_list_of_branches",
        "--out": OWN,
        "--yes": STALE,
        "--no-input": STALE,
        "--json": RESULT,
        "--quiet": RESULT,
        "--verbose": OWN,
    },
    "batch": {},
    "batch run": {
        **BATCHED,
        "--name": f"{BATCH}test_columns_say_what_is_asked_by_whom_and_under_which_name",
        "--column": f"{BATCH}test_columns_say_what_is_asked_by_whom_and_under_which_name",
        "--preset": f"{BATCH}test_columns_say_what_is_asked_by_whom_and_under_which_name",
        "--model": f"{BATCH}test_options_shape_the_plan_of_every_item",
        "--width": f"{BATCH}test_options_shape_the_plan_of_every_item",
        "--turns": f"{BATCH}test_options_shape_the_plan_of_every_item",
        "--review": f"{BATCH}test_options_shape_the_plan_of_every_item",
        "--shard": f"{SHARDS}test_shards_share_a_batch_out_and_each_is_asked_once",
        "--dry-run": f"{BATCH}test_a_dear_batch_is_agreed_to_as_a_whole",
    },
    "batch resume": BATCHED,
    "batch status": {
        "--out": f"{SHARDS}test_status_tells_how_far_a_batch_is",
        "--json": f"{SHARDS}test_status_tells_how_far_a_batch_is",
        "--verbose": LOUD,
    },
    "batch report": {
        "--output": f"{SHARDS}test_a_report_shows_all_items_and_what_stands_out",
        "--out": f"{SHARDS}test_a_report_shows_all_items_and_what_stands_out",
        "--verbose": LOUD,
    },
    "batch merge": {
        "--out": f"{SHARDS}test_what_shards_have_is_joined_and_goes_on",
        "--json": f"{SHARDS}test_what_shards_have_is_joined_and_goes_on",
        "--verbose": LOUD,
    },
    "skills": {},
    "skills list": {
        "--skills": f"{LISTS}test_list_shows_name_place_state_and_description",
        "--json": f"{LISTS}test_list_shows_name_place_state_and_description",
        "--verbose": LOUD,
    },
    "skills search": {
        "--skills": f"{LISTS}test_search_ranks_as_a_run_does",
        "--json": f"{LISTS}test_search_ranks_as_a_run_does",
        "--verbose": LOUD,
    },
    "skills show": {
        "--skills": f"{LISTS}test_show_prints_path_and_text_with_controls_made_visible",
        "--json": f"{LISTS}test_show_prints_path_and_text_with_controls_made_visible",
        "--verbose": LOUD,
    },
    "skills trust": {"--verbose": LOUD},
    "skills install-cdo": {
        "--user": f"{LISTS}test_install_into_home_or_a_folder_without_git",
        "--force": f"{LISTS}test_install_replaces_nothing_that_differs_unless_forced",
        "--verbose": LOUD,
    },
    "fork": {
        **dict.fromkeys(("--effort", "--flex"), THINKS),
        "--ask-above": AGREED,
        "--turn": f"{FORKS}test_a_fork_asks_only_for_the_turns_after_the_shared_ones",
        **dict.fromkeys(
            ("--focus", "--role", "--without", "--note"),
            f"{FORKS}test_focus_note_role_and_seats_hold_for_the_next_turn_alone",
        ),
        "--model": f"{FORKS}test_other_models_are_asked_from_the_next_turn_on",
        "--turns": f"{FORKS}test_a_run_at_its_cap_has_one_more_turn_or_as_many_as_asked",
        "--session": f"{FORKS}test_a_fork_is_called_after_its_source",
        "--no-run": f"{FORKS}test_without_running_nothing_is_sent_and_a_resume_goes_on",
        "--json": f"{FORKS}test_without_running_nothing_is_sent_and_a_resume_goes_on",
        "--trust": f"{FORKS}test_a_projects_command_agent_answers_in_a_fork_only_with_trust",
        **dict.fromkeys(
            ("--budget", "--max-tokens", "--timeout", "--concurrency", "--strict"),
            f"{FORKS}test_each_cap_stops_a_fork",
        ),
        "--max-calls": f"{FORKS}test_the_caps_of_a_fork_are_its_own",
        "--no-git": f"{FORKS}test_a_fork_is_kept_in_git_unless_not_wanted",
        "--branch": f"{FORKS}test_a_fork_is_kept_in_git_unless_not_wanted",
        **dict.fromkeys(
            ("--out", "--quiet", "--verbose"), f"{FORKS}test_a_fork_lives_and_says_what_its_options_ask_for"
        ),
        **dict.fromkeys(
            ("--yes", "--no-input"), f"{FORKS}test_what_an_edit_made_stale_is_asked_again_only_with_consent"
        ),
    },
    "demo": {
        "--fast": f"{DEMO}test_the_demo_takes_its_time_and_can_be_stopped",
        "--out": f"{DEMO}test_the_demo_takes_its_time_and_can_be_stopped",
        "--json": f"{DEMO}test_quiet_and_json_print_no_hints",
        "--quiet": f"{DEMO}test_quiet_and_json_print_no_hints",
        "--verbose": f"{DEMO}test_the_demo_takes_its_time_and_can_be_stopped",
    },
    "replay": {
        "--out": f"{REPLAYS}test_a_replay_needs_no_key_and_no_network_and_says_that_all_is_the_same",
        "--strict": f"{REPLAYS}test_a_replay_needs_no_key_and_no_network_and_says_that_all_is_the_same",
        "--json": f"{REPLAYS}test_a_replay_needs_no_key_and_no_network_and_says_that_all_is_the_same",
        "--verbose": f"{REPLAYS}test_whole_differences_are_shown_when_asked",
    },
    "audit": {
        **dict.fromkeys(("--effort", "--flex"), THINKS),
        **dict.fromkeys(("--ask-above", "--yes"), AGREED),
        "--no-input": "tests/runs/test_consent.py::test_with_no_input_a_terminal_counts_as_none",
        "--model": f"{CHAIR}test_two_models_sit_in_turn_and_judge_each_other",
        "--orders": f"{CHAIR}test_a_chair_that_follows_whom_it_reads_first",
        "--session": f"{CHAIR}test_an_audit_keeps_to_its_caps_and_goes_on_with_other_ones",
        "--budget": f"{CHAIR}test_an_audit_keeps_to_its_caps_and_goes_on_with_other_ones",
        "--max-calls": f"{CHAIR}test_an_audit_keeps_to_its_caps_and_goes_on_with_other_ones",
        **dict.fromkeys(("--max-tokens", "--timeout", "--concurrency", "--quiet", "--verbose"), SAME),
        "--strict": f"{CHAIR}test_another_model_that_decides_otherwise_changes_it",
        "--json": f"{CHAIR}test_a_decision_that_another_chair_shares_survives",
        "--out": f"{CHAIR}test_without_a_name_it_is_the_newest_finished_run_that_is_no_audit",
        "--no-git": f"{CHAIR}test_an_audit_is_kept_in_git_as_a_run_is",
        "--branch": f"{CHAIR}test_an_audit_is_kept_in_git_as_a_run_is",
        "--trust": f"{CHAIR}test_a_projects_agent_sits_in_the_chair_only_with_trust",
        "--dry-run": f"{CHAIR}test_a_dry_run_sends_and_makes_nothing",
    },
    "watch": {
        "--follow": f"{WATCHED}test_with_follow_it_waits_for_who_begins_and_who_goes_on",
        "--json": f"{WATCHED}test_in_a_pipe_it_prints_what_the_run_prints",
        "--web": "tests/runs/test_web.py::test_two_windows_follow_a_run_until_it_is_done",
        "--port": "tests/runs/test_web.py::test_the_port_is_the_one_that_one_says",
        "--out": f"{WATCHED}test_which_session_it_is",
        "--verbose": LOUD,
    },
    "report": {
        "--output": f"{PAGE}test_it_is_written_where_one_says",
        "--out": f"{PAGE}test_it_is_written_where_one_says",
        "--json": f"{PAGE}test_the_history_is_there_for_scripts",
        "--verbose": LOUD,
    },
    "trace": {
        "--otlp": f"{TRACES}test_a_trace_is_sent_as_the_protocol_asks",
        "--output": f"{TRACES}test_a_run_with_faults_retries_and_tools_is_a_trace",
        "--out": f"{TRACES}test_a_trace_is_sent_as_the_protocol_asks",
        "--content": f"{TRACES}test_a_run_with_faults_retries_and_tools_is_a_trace",
        "--verbose": LOUD,
    },
    "diff": {
        "--changed": f"{DIFFS}test_only_what_differs",
        "--strict": f"{DIFFS}test_strict_exits_3_when_they_differ",
        "--out": f"{DIFFS}test_a_session_is_found_by_its_path_too",
        "--json": f"{DIFFS}test_json_is_both_sides_and_the_rows",
        "--verbose": LOUD,
    },
    "restore": {
        "--out": f"{BRANCHES}test_restore_refuses_what_is_there_and_takes_another_folder",
        "--verbose": LOUD,
    },
    "list": {
        **dict.fromkeys(("--preset", "--status", "--since", "--until", "--limit"), CHOSEN),
        "--git": f"{BRANCHES}test_what_only_a_branch_keeps_is_listed_and_read",
        "--out": NAMED,
        "--json": f"{PAST}test_list_shows_sessions_newest_first_and_damaged_ones",
        "--verbose": LOUD,
    },
    "search": {
        "--limit": f"{PAST}test_search_takes_words_as_words",
        "--json": f"{PAST}test_search_prints_who_when_and_the_passage",
        "--out": f"{PAST}test_search_prints_who_when_and_the_passage",
        "--verbose": LOUD,
    },
    "cost": {
        **dict.fromkeys(("--by", "--status", "--preset", "--since", "--until", "--limit", "--out", "--json"), SUMS),
        "--verbose": LOUD,
    },
    "show": {
        "--out": NAMED,
        "--json": f"{COMMANDS}test_show_gives_the_overview_the_files_and_every_exchange",
        "--verbose": LOUD,
    },
    "final": {
        "--out": NAMED,
        "--raw": "tests/runs/test_terminal.py::test_final_is_rendered_at_a_terminal_and_raw_on_request",
        "--verbose": LOUD,
    },
    "doctor": {"--json": f"{COMMANDS}test_doctor_says_what_would_be_used_and_why", "--verbose": LOUD},
    "models": {"--json": f"{COMMANDS}test_models_lists_providers_and_what_is_set_up", "--verbose": LOUD},
    "models pull": {
        "--force": f"{COMMANDS}test_a_model_of_the_hub_is_pulled_named_used_and_removed",
        "--verbose": LOUD,
    },
    "models rm": {"--verbose": LOUD},
    "content": {},
    "content list": {"--json": f"{COMMANDS}test_content_is_listed_found_and_overridden", "--verbose": LOUD},
    "content show": {"--verbose": LOUD},
    "content path": {"--verbose": LOUD},
    "config": {
        "--json": "tests/unit/planning/test_settings.py::test_the_strongest_source_wins_and_is_named",
        "--verbose": LOUD,
    },
    "completion": {"--verbose": LOUD},
    "cabal": {
        "--otlp": f"{TRACES}test_a_mission_and_its_deliberation_are_one_trace",
        **dict.fromkeys(("--effort", "--flex"), THINKS),
        "--branch": "tests/unit/observers/test_git_commits.py::test_runs_fill_no_list_of_branches",
        **dict.fromkeys(("--ask-above", "--yes"), AGREED),
        "--model": f"{MISSION}test_the_watchdog_sits_on_another_makers_model",
        "--seat": SEATED,
        "--independent": f"{MISSION}test_the_watchdog_sits_on_another_makers_model",
        "--operatives": SEATED,
        "--rounds": f"{MISSION}test_a_cap_of_rounds_ends_unresolved_with_what_is_missing",
        "--deliberations": f"{MISSION}test_without_deliberations_a_decision_is_written",
        "--context": f"{MISSION}test_the_request_comes_from_a_file_or_a_pipe_and_material_goes_with_it",
        "--no-context": f"{LOOKS}test_a_mission_without_context_is_shown_no_file_and_gets_no_tools",
        "--budget": f"{MISSION}test_every_cap_ends_a_mission_unresolved",
        "--max-calls": f"{MISSION}test_a_cap_of_calls_leaves_room_for_inspection_and_end_and_a_higher_one_goes_on",
        "--max-tokens": f"{MISSION}test_every_cap_ends_a_mission_unresolved",
        "--timeout": f"{MISSION}test_every_cap_ends_a_mission_unresolved",
        "--exec": f"{REAL}test_the_todo_list_ends_with_files_that_run_on_a_branch",
        "--sign-off": f"{SIGNED}test_a_mission_waits_for_the_sign_off_and_says_who_gave_it",
        "--deliver": f"{REAL}test_a_mission_delivers_as_a_patch_what_is_accepted",
        "--concurrency": SHARED,
        "--out": SHARED,
        "--session": SHARED,
        "--trust": f"{MISSION}test_a_projects_agent_sits_in_the_team_only_with_trust",
        "--dry-run": SEATED,
        "--no-git": SHARED,
        "--no-input": f"{MISSION}test_at_a_terminal_the_person_is_asked_unless_there_is_no_input",
        "--json": f"{MISSION}test_a_cap_of_rounds_ends_unresolved_with_what_is_missing",
        "--quiet": SHARED,
        "--verbose": SHARED,
    },
    "answer": {"--seat": f"{PERSON}test_people_never_make_up_for_models", "--out": SHARED, "--verbose": LOUD},
    "mcp": {
        "--max-budget": f"{AGENTS}test_a_client_cannot_lift_what_the_person_allows",
        "--out": f"{AGENTS}test_a_client_cannot_lift_what_the_person_allows",
        "--verbose": LOUD,
    },
    "mcp install": {
        "--write": f"{AGENTS}test_a_registration_is_printed_or_written_beside_what_is_there",
        "--verbose": LOUD,
    },
    "serve": {
        "--port": f"{SERVED}test_a_client_of_openai_asks_a_preset_as_a_model",
        "--max-budget": f"{SERVED}test_a_client_cannot_spend_more_than_the_person_allows",
        "--out": f"{SERVED}test_a_client_of_openai_asks_a_preset_as_a_model",
        "--json": f"{SERVED}test_a_client_of_openai_asks_a_preset_as_a_model",
        "--verbose": LOUD,
    },
    "context": {
        "--step": SHOWN,
        "--agent": SHOWN,
        "--session": SHOWN,
        "--out": SHARED,
        "--json": SHOWN,
        "--verbose": LOUD,
    },
    "verify": {
        "--out": f"{VERIFIED}test_the_newest_session_is_taken_and_sessions_live_where_out_says",
        "--json": f"{VERIFIED}test_json_tells_every_claim",
        "--verbose": LOUD,
    },
}


def test_every_option_of_every_command_has_a_test_of_its_effect(bare: Desk) -> None:
    found = cli_commands()
    assert set(EFFECTS) == set(found)
    known: dict[str, set[str]] = {}
    helps = bare.several(*([*name.split(), "--help"] for name in found))
    for (name, command), done in zip(found.items(), helps, strict=True):
        # What --help prints, not what click knows: nothing may be hidden.
        shown = set(re.findall(r"(?m)^  (?:-\w, )?(--[a-z-]+)", done.ok().out)) - {"--help"}
        assert shown == set(EFFECTS[name]), name
        assert shown == {param.opts[0] if param.opts[0].startswith("--") else param.opts[-1]
                         for param in command.params if isinstance(param, click.Option)}, name  # fmt: skip
        assert done.out.startswith(f"Usage: cdo {name}")
        assert done.err == ""
        for test in EFFECTS[name].values():
            file, _, function = test.partition("::")
            if file not in known:
                tree = ast.parse((ROOT / file).read_text())
                known[file] = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
            assert function in known[file], test


@pytest.mark.quick
def test_help_and_version(bare: Desk) -> None:
    runs = bare.several(
        ["--help"], ["-h"], ["help"], ["--help", "nonsense"], ["--version"], ["version"], ["help", "show"],
        ["show", "-h"],
        ["think", "--help"], ["run", "--help"], ["content"], ["list", "--help"],
    )  # fmt: skip
    assert len({done.ok().out for done in runs[:4]}) == 1
    assert runs[0].out.startswith("Usage: cdo [ARGS] PROBLEM… | COMMAND …\n")
    for name in cli_commands():
        if " " not in name:
            assert re.search(rf"(?m)^  {name}  ", runs[0].out), name
    assert "…\n" not in runs[0].out.partition("Ask:")[2].partition("Examples")[0]
    assert "..." not in runs[0].out  # no summary of a command is cut
    version = re.search(r'__version__ = "(.+)"', (ROOT / "cdo/__init__.py").read_text())
    assert version
    assert runs[4].ok().out == runs[5].ok().out == f"cdo, version {version[1]}\n"
    assert runs[6].ok().out == runs[7].ok().out
    assert runs[8].ok().out.startswith("Usage: cdo think [OPTIONS] PROBLEM…\n")
    assert runs[9].ok().out.startswith("Usage: cdo run [OPTIONS] [ARGS] PROBLEM…\n")
    rest = runs[9].out.partition("\nHelp:\n")[2].partition("Examples:")[0]
    assert re.findall(r"--[a-z-]+", rest) == ["--help"]  # every other option has a group
    assert runs[10].code == 2
    assert "Commands:" in runs[10].err
    assert max(map(len, runs[0].out.splitlines())) <= 100


def test_help_loads_nothing_heavy(bare: Desk) -> None:
    heavy = "litellm git watchfiles rich pydantic aiohttp jinja2 yaml"
    code = (
        "import sys\nfrom cdo.cli import main as cli\ntry:\n    cli.exit_now = sys.exit\n    cli.run(sys.argv[1:])\n"
        f"finally:\n    print(sorted(set({heavy!r}.split()) & set(sys.modules)), len(sys.modules), file=sys.stderr)\n"
    )
    for args in (["--help"], ["--version"], ["run", "--help"], ["list", "--help"], ["completion", "bash"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *args], env=bare.environment(), capture_output=True, text=True, check=True
        )
        assert done.stderr.startswith("[] "), (args, done.stderr)
        assert done.stdout


# Modules that a run without files needs only later, if at all.
LATER = (
    "litellm git rich watchfiles cdo.app.finish cdo.history.history cdo.session.record_schemas "
    "cdo.providers.command_agent cdo.providers.embedded cdo.repository.survey cdo.repository.tools "
    "cdo.repository.citations cdo.formats.documents.document cdo.runner.check_command cdo.cli.mission "
    "cdo.cli.library cdo.cli.fork cdo.cabal.program cdo.formats.lenient.candidates cdo.formats.document_blocks "
    "cdo.programs.deliberation.conclusion cdo.programs.deliberation.draft_review cdo.providers.local_models "
    "cdo.providers.hub cdo.repository.context cdo.repository.excerpts"
)


def test_the_first_request_waits_for_no_module_that_is_needed_later(bare: Desk) -> None:
    code = (
        "import os, sys\nfrom cdo.providers.http.transport import HttpTransport\n"
        "async def told(*_):\n"
        f"    print(*sorted(set({LATER!r}.split()) & set(sys.modules)), 'sent', flush=True)\n    os._exit(0)\n"
        "HttpTransport.exchange = told\nfrom cdo.__main__ import main\nmain()\n"
    )
    words = ["quick", "--no-context", "--no-git", "-m", "openai/m", "Should we split it?"]
    env = bare.environment({"OPENAI_API_KEY": "x", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"})
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=bare.path, env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == "sent\n", done.stderr


# -- the annoying user ----------------------------------------------------------------------------------------


def shell(desk: Desk, script: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in which `cdo` is the command."""
    words = f'cdo() {{ "{sys.executable}" -m cdo "$@"; }}\n{script}'
    return subprocess.run(
        ["bash", "-c", words], cwd=desk.path, env=desk.environment(env), capture_output=True, text=True, timeout=60
    )


ANNOYING: list[tuple[str, int, str]] = [
    ("cdo content list | head -1; exit ${PIPESTATUS[0]}", 0, "presets/debug"),
    ("cdo --help | true; exit ${PIPESTATUS[0]}", 0, ""),
    ("cdo quick -q 'Why?' | true; exit ${PIPESTATUS[0]}", 0, ""),
    ("cdo quick -q --strict 'Why?' | true; exit ${PIPESTATUS[0]}", 3, ""),
    ("cdo deep <&-", 2, "There is no problem"),
    ("cdo --dry-run x? <&-", 0, "Nothing was sent."),
    ("cdo list >&-", 0, "There is no session in tmp."),
    ("cdo quick x -q >&-", 0, ""),
    ("cdo quick x --json 2>&-", 0, '"status": "max_turns"'),
    ("cdo list --nope 2>&-", 2, ""),
    ("cdo quick x --max-calls 1 <&- >&- 2>&-", 5, ""),
    ("cdo content list >/dev/full", 8, "disk is full.\n     Send the output elsewhere"),
    ("cdo quick x --out /proc", 8, "choose another place with --out"),
    ("OPENAI_API_KEY=… cdo quick x", 4, "OPENAI_API_KEY is not a key: it has `…` in it."),
    ("OPENAI_API_KEY=$'a\\nb' cdo quick x", 4, "it has a line break in it.\n     Copy the key"),
    ("OPENAI_API_KEY=$OPENAI_API_KEY$'\\r\\n' cdo quick -q x", 0, DECISION),
    ("cdo --version >/dev/full", 8, "disk is full"),
    ("cdo list --nope 2>/dev/full", 2, ""),
    ("mkdir gone; cd gone; rmdir ../gone; cdo --dry-run x?", 2, "folder you are in does not exist"),
    ("mkdir gone; cd gone; rmdir ../gone; cdo list", 2, "folder you are in does not exist"),
    ("mkdir gone; cd gone; rmdir ../gone; cdo --version", 0, "cdo, version"),
    ("HOME=/dev/null cdo --dry-run x?", 0, "Nothing was sent."),
    ("HOME=/proc cdo quick -q x", 0, DECISION),
    ("unset HOME; cdo --dry-run x?", 0, "Nothing was sent."),
    ("unset TERM; cdo quick -q x", 0, DECISION),
    ("TERM= cdo quick x", 0, DECISION),
    ("PYTHONIOENCODING=ascii cdo quick -q Ünïcødé", 0, DECISION),
    ("PYTHONIOENCODING=ascii cdo --dry-run --json Ünïcødé?", 0, "\\u00dcn\\u00efc"),
    ("LC_ALL=C LANG=C cdo --dry-run --json Ünïcødé?", 0, "Ünïcødé"),
    ("cdo list --out nowhere", 0, "There is no session in nowhere."),
    ("cdo final", 8, "no session in tmp"),
    (
        "mkdir tmp; cd tmp; cdo --dry-run x?; cdo quick -q x --out . --session a; cdo show ./cdo-a",
        0,
        "session:    a",
    ),
    ("echo 'From the pipe' | cdo thnk", 2, "Did you mean `cdo think`"),
    ("cdo think $NOTHING", 2, "There is no problem"),
    ('cdo think "$NOTHING"', 2, "The problem is empty"),
    ("cdo think Should we -- or not --dry-run", 0, DECISION),
    ("cdo quick 'a' 'b,c' -q", 0, DECISION),
]


@pytest.mark.slow
def test_the_annoying_user(cdo: Desk) -> None:
    """Each line in a folder of its own: what it exits with, what it says, and never a traceback."""
    folders = [cdo.path / str(number) for number in range(len(ANNOYING))]
    for folder in folders:
        folder.mkdir()
    desk = cdo.having(HOME=cdo.environment()["HOME"], TESTS_TRIED=cdo.environment()["TESTS_TRIED"])
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        runs = list(pool.map(lambda path, line: shell(replace(desk, path=path), line[0]), folders, ANNOYING))
    for (script, code, said), done in zip(ANNOYING, runs, strict=True):
        assert done.returncode == code, (script, done.stdout, done.stderr)
        assert said in done.stdout + done.stderr, (script, done.stdout, done.stderr)
        for word in ("Traceback", "Internal error", "Exception ignored", "BrokenPipe"):
            assert word not in done.stdout + done.stderr, (script, done.stdout, done.stderr)


# -- the guard of all these tests -----------------------------------------------------------------------------


def test_nothing_leaves_this_machine(cdo: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process and in those it starts; pip, which fetches the embedded model, is not held back."""
    for host in ("192.0.2.1", "2001:db8::1", "example.com", "::ffff:192.0.2.1", b"example.com"):
        with pytest.raises(guard.Beyond):
            socket.getaddrinfo(host, 443)
    for family, address in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with socket.socket(family) as sock:
            with pytest.raises(guard.Beyond):
                sock.connect((address, 443))
            with pytest.raises(guard.Beyond):
                sock.connect_ex((address, 443))
    with pytest.raises(guard.Beyond):
        asyncio.run(asyncio.wait_for(asyncio.open_connection("example.com", 443), 5))
    assert len(guard.TRIED) == 10
    guard.TRIED.clear()

    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(tmp_path / "s"))
        server.listen()
        client.connect(str(tmp_path / "s"))
    host, port = cdo.url.removeprefix("http://").split(":")
    for name in (host, "localhost"):
        socket.create_connection((name, int(port)), timeout=5).close()

    # The real provider: the key is set, the address is not.
    away = cdo("quick", "-q", "Why?", env={"OPENAI_BASE_URL": ""})
    assert away.code not in (0, 2)
    assert "look up 'api.openai.com'" in cdo.tried()
    (tmp_path / "home/tried").unlink()

    assert not guard.is_pip()
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-m", "pip", "download", "x"])
    assert guard.is_pip()


def test_nothing_in_the_folder_is_taken_for_a_module(cdo: Desk) -> None:
    for name in ("queue", "json", "click", "subprocess"):
        cdo.write(f"{name}.py", "raise SystemExit('taken')\n")
    assert "taken" not in cdo("quick", "-q", "Why?").ok().err
