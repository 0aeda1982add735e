"""cdo at a terminal: what it asks, what it does with the answer, and how it stops. Real pseudo-terminals."""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pexpect
import pytest

from tests.support.answers import Answer, RequestInfo, agent_text, synthesis_text
from tests.support.harness import QUESTION, Place, at_once
from tests.support.provider import Provider

OBJECTION = {"id": "o1", "text": "the way back is lost", "severity": 9}


def severe(info: RequestInfo) -> Answer | None:
    """A first turn in which the critic objects with severity 9."""
    if info.call == "t1-critic":
        return Answer(agent_text("Do not do it.", objections=[OBJECTION]))
    if info.kind == "synthesis":
        return Answer(
            synthesis_text(width=2, roles=["critic", "pragmatist"], tensions=["speed or safety"], gaps=["load"])
        )
    return None


@contextmanager
def terminal(place: Place, *args: str) -> Iterator[Any]:
    """`cdo args` behind a pseudo-terminal of 100 columns."""
    child = pexpect.spawn(
        sys.executable,
        ["-m", "cdo", *args],
        cwd=str(place.path),
        env={**place.environment(), "TERM": "xterm-256color", "LANG": "C.UTF-8"},
        dimensions=(30, 100),
        timeout=60,
        encoding="utf-8",
    )
    try:
        yield child
    finally:
        child.close(force=True)


def ended(child: Any) -> int:
    """Wait for the process and return its exit code."""
    child.expect(pexpect.EOF)
    child.close()
    return int(child.exitstatus if child.exitstatus is not None else -child.signalstatus)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[Place, Provider]]:
    with Provider(script=severe) as provider:
        yield Place(tmp_path, provider.url), provider


RUN: Sequence[str] = ("think", "-m", "openai/gpt-4.1", "--width", "2", "--turns", "2", "--session", "a", QUESTION)


def test_final_is_rendered_at_a_terminal_and_raw_on_request(place: tuple[Place, Provider]) -> None:
    where, _ = place
    where.cdo("quick", "-m", "openai/gpt-4.1", "--session", "a", QUESTION).ok()
    text = (where.session() / "FINAL.md").read_text()
    assert "\n- **Decision:** " in text
    shown = []
    for more in ((), ("--raw",)):
        with terminal(where, "final", "a", *more) as child:
            child.expect(pexpect.EOF)
            shown.append(str(child.before).replace("\r\n", "\n"))
    rendered, raw = shown
    assert raw == text
    assert "**" not in rendered and re.search(r"\x1b\[1mDecision:", rendered)


@pytest.mark.parametrize(
    ("answer", "status", "turns"), [("1", "max_turns", 2), pytest.param("2", "stopped", 1, marks=pytest.mark.slow)]
)
def test_a_conflict_asks_and_follows_the_answer(
    place: tuple[Place, Provider], answer: str, status: str, turns: int
) -> None:
    where, provider = place
    with terminal(where, *RUN) as child:
        child.expect("severity 9")
        child.expect("Your choice")
        child.sendline(answer)
        assert ended(child) == 0
    final = (where.session() / "FINAL.yaml").read_text()
    assert f"status: {status}" in final
    assert f"turns: {turns}" in final
    assert bool(provider.named("t2-referee")) is (turns == 2)
    # The answer is on record: going on asks neither the person nor a model again.
    before = len(provider.requests)
    assert where.cdo("resume", "a").ok()
    assert len(provider.requests) == before


def test_ctrl_c_at_a_question_stops_at_once_and_it_is_asked_again(place: tuple[Place, Provider]) -> None:
    where, _ = place
    began = time.monotonic()
    with terminal(where, *RUN) as child:
        child.expect("Your choice")
        soon, sent = at_once(began), time.monotonic()
        child.sendintr()
        child.expect("resume")
        assert ended(child) == 130
        assert time.monotonic() - sent < soon
    with terminal(where, "resume", "a") as child:
        child.expect("Your choice")
        child.sendline("2")
        assert ended(child) == 0


def test_no_question_is_asked_with_no_input(place: tuple[Place, Provider]) -> None:
    where, provider = place
    with terminal(where, *RUN, "--no-input") as child:
        assert ended(child) == 0
    assert provider.named("t2-referee")


def test_stale_files_are_replaced_only_after_a_yes(place: tuple[Place, Provider]) -> None:
    where, provider = place
    where.cdo(*RUN).ok()
    critic = where.session() / "t1-critic.md"
    critic.write_text(critic.read_text().replace("Do not do it.", "Do it, with a way back."))
    before = len(provider.requests)
    with terminal(where, "resume", "a") as child:
        child.expect(r"make these stale: [^?]*t1-synthesis\.md")
        child.expect("Your choice")
        child.sendline("2")
        assert ended(child) == 6
    assert len(provider.requests) == before
    assert not (where.session() / "superseded").exists()
    with terminal(where, "resume", "a") as child:
        child.expect("Your choice")
        child.sendline("1")
        index = child.expect(["Your choice", pexpect.EOF])
        if index == 0:  # the synthesis changed, so its conflict is a new question
            child.sendline("1")
            child.expect(pexpect.EOF)
        child.close()
        assert child.exitstatus == 0
    assert (where.session() / "superseded" / "1" / "t1-synthesis.md").exists()
    assert "with a way back" in critic.read_text()


def test_ctrl_c_in_mid_turn_leaves_the_terminal_clean(tmp_path: Path) -> None:
    with Provider() as provider:
        provider.hold()
        where = Place(tmp_path, provider.url)
        began = time.monotonic()
        with terminal(where, *RUN) as child:
            child.expect("critic")
            time.sleep(0.5)
            soon, sent = at_once(began), time.monotonic()
            child.sendintr()
            assert ended(child) == 130
            assert time.monotonic() - sent < soon
            shown = child.before
        assert "Traceback" not in shown
        assert shown.count("\x1b[?25h") >= shown.count("\x1b[?25l")  # a hidden cursor is shown again


# -- what models write, at a terminal ----------------------------------------------------------------

_ACTS = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*|\x1b."
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e]"
)
_BOMB = (
    "\x1b]0;owned\x07 \x1b[2J\x1b[6n \x9b31m \x1bP$q\x1b\\ \x1b]8;;https://evil.example\x07x \x1bc \x08\x08 \r \x00 "
    "\u202e \u200b \x1b[?1049h \x85 \x7f"
)


def _bombed(info: RequestInfo) -> Answer | None:
    """As `severe`, with what a terminal would obey wherever a text may stand, written out in the data blocks."""
    bomb = json.dumps(_BOMB)[1:-1]
    if info.call == "t1-critic":
        objection = {**OBJECTION, "text": "the way back is lost BOMB"}
        said = agent_text("Do not do it. BOMB", objections=[objection], prose="Do not.").replace("BOMB", bomb)
        return Answer(f"{said}\n{_BOMB}\n")
    if info.kind == "synthesis":
        mine = synthesis_text(width=2, roles=["critic", "pragmatist"], tensions=["speed BOMB"], gaps=["load BOMB"])
        return Answer(f"{mine.replace('BOMB', bomb)}\n")
    return None


def _seen(path: Path, script: Any, command: Sequence[str]) -> set[str]:
    """What a run, its question and its answer sent to the terminal beside plain text: how each sequence ends."""
    path.mkdir()
    with Provider(script=script) as provider, terminal(Place(path, provider.url), *command) as child:
        child.logfile_read = io.StringIO()
        child.expect("Your choice")
        child.sendline("1")
        assert ended(child) == 0
        text = child.logfile_read.getvalue()
    assert "severity 9" in text
    assert ("␛" in text) == (script is _bombed)  # what is not shown would prove nothing
    return {found[-1] if found.startswith("\x1b[") else found for found in _ACTS.findall(text)}


def test_nothing_that_a_model_writes_acts_on_a_terminal(tmp_path: Path) -> None:
    """At a real one, with its live view and a question: it gets the same kinds of sequences as from plain words."""
    command = [*RUN[:-1], "-v", RUN[-1]]
    assert _seen(tmp_path / "b", _bombed, command) <= _seen(tmp_path / "a", severe, command)


# -- what is printed at all ------------------------------------------------------------------------

SAFE = {"visible", "dumps", "one_line"}  # what makes a text one that no terminal acts on
PRINTS = {"echo", "secho", "prompt", "confirm", "print"}
# What is printed otherwise, and why it may be.
ELSEWHERE = {
    ("cli.main", "text"): "sentence() made it visible",
    ("cli.common", "''.join(lines)"): "cells are made visible above",
    (
        "cli.demo",
        "_next(playback, options['out'])",
    ): "its own words, with the name and folder of a session that it made",
    ("cli.diff", "_painted(line)"): "lines() made it visible; colours are added",
    (
        "cli.run_session",
        "dumps(result.json()) if options['as_json'] else summary(result, width, commands=hints)",
    ): "summary() makes all visible",
    ("cli.library", "line(parts, _short(one_line(row['problem']), max(16, width - len(parts) - 2)))"): "parts are",
    ("cli.library", "f'    {one_line(hit.where, 40)}: {_marked(hit.passage)}'"): "_marked() makes it visible",
    ("cli.machine", "kind(root, {}, 'cdo', '_CDO_COMPLETE').source()"): "a script of click's",
    ("cli.report", "text"): "a page or a document, which a person redirects",
    ("cli.report", "encodable(text).encode()"): "the same, into a file",
    ("terminal.views", "self._frame(_ENDLESS)"): "rich draws what frame() made visible",
    ("terminal.views", "Group(*texts)"): "the same",
    ("cli.watch", "''.join((row.lstrip(' ') for row in dumps(data).split('\\n')))"): "dumps() on one line",
    ("cli.watch", "summary(replace(news.last.result, path=str(self.folder)), width)"): "summary() makes all visible",
}


def _is_safe(node: ast.expr) -> bool:
    """Whether a printed expression is a literal, or text that went through what makes it harmless."""
    if isinstance(node, ast.JoinedStr):
        parts = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
        return all(_is_safe(part) or (isinstance(part, ast.Name) and part.id == "number") for part in parts)
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in SAFE
    return called or isinstance(node, ast.Constant)


def test_whatever_is_printed_goes_through_one_gate() -> None:
    """A name of a file, a branch or a model, and all that a model wrote: none of it acts on a terminal."""
    package = Path(__file__).resolve().parents[2] / "cdo"
    odd = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            prints = ast.unparse(node.func).removeprefix("self._").rpartition(".")
            if (
                prints[2] in PRINTS if prints[0] in ("click", "console") else prints == ("", "", "print")
            ) and not _is_safe(node.args[0]):
                odd.add((".".join(path.relative_to(package).with_suffix("").parts), ast.unparse(node.args[0])))
    assert odd == set(ELSEWHERE)
