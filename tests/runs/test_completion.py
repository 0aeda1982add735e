"""Completion in a real bash: commands, sessions and models."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Desk

SCRIPT = """
eval "$(cdo completion bash)"
COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); COMPREPLY=()
_cdo_completion cdo "${COMP_WORDS[$COMP_CWORD]}" ""
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.wide
@pytest.mark.parametrize(
    ("typed", "offered", "others"),
    [
        (("re",), {"replay", "report", "restore", "resume"}, {"list"}),
        (("thi",), {"think"}, {"quick"}),
        (("report", ""), {"first", "second"}, set[str]()),
        (("diff", "first", "s"), {"second"}, {"first"}),
        (("think", "-m", ""), {"local", "codex", "openai/gpt-6.1-sol"}, set[str]()),
        (("think", "-m", "openai/gpt-4.1"), {"openai/gpt-4.1", "openai/gpt-4.1-mini"}, {"openai/gpt-5", "local"}),
        (("cabal", "-m", "loc"), {"local"}, {"openai/gpt-5"}),
    ],
)
def test_bash_completes(bare: Desk, typed: tuple[str, ...], offered: set[str], others: set[str]) -> None:
    for name in ("first", "second"):
        bare.write(f"tmp/cdo-{name}/session.yaml", "cdo: x\n")
    environment = {"HOME": str(bare.path), "LANG": "C.UTF-8", "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    done = subprocess.run(
        ["bash", "--norc", "-c", SCRIPT, "bash", "cdo", *typed],
        cwd=bare.path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    found = set(done.stdout.split())
    assert offered <= found and not others & found, done
