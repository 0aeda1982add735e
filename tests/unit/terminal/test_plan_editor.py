"""A person in front of a plan: at a real pseudo-terminal, with a real file that anybody may save."""

from __future__ import annotations

import io
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pexpect
import pytest

from tests.support.harness import ROOT, at_once

# What the command line does around a review: a live view, signals, a store that writes, an exit code.
DRIVER = """
import asyncio, functools, os, sys
from pathlib import Path
from cdo.terminal import plan_dashboard as dashboard, plan_editor as hitl
from cdo.core import signals
from cdo.planning import turn_plan as proposal, turn_plan_commands as plan_edits
from cdo.content.library import PACKAGED, Library
from cdo.core.errors import CdoError
from msgspec import to_builtins
from cdo.content.schemas import Convergence, Criteria
from tests.support.events import happened
from cdo.terminal.views import make_view
from cdo.planning.role_choice import SPECIAL_ROLES

library = Library((("packaged", PACKAGED),))
rules = to_builtins(library.read("engine/convergence", Convergence)[0].criteria)
seats = ["architect", {"role": "critic", "charge": "attack the seam"}]
plan = proposal.as_proposal({"turn": 2, "voices": seats, "turns": [2, 4], "criteria": rules})
combos = library.read("templates/combos", proposal.Combos)[0].combos
roles = tuple(name for name in library.names("templates/roles") if name not in SPECIAL_ROLES)
format = proposal.PlanFormat(
    plan, (2, 6), roles, ("adr", "threat-model"), combos, ("openai/gpt-4.1",), ("critic", "tester")
)
render = functools.partial(library.render, "templates/turn-plan")
path = Path(sys.argv[1])
hitl.SETTLE = float(os.environ.get("SETTLE", hitl.SETTLE))


def write(text):
    temporary = path.with_name(".new")
    temporary.write_text(text)
    temporary.rename(path)
    with Path("writes").open("a") as log:
        log.write("x")


def show(plan, width):
    pairs = zip(plan.names, plan.voices)
    voices = tuple(dashboard.PlannedVoice(n, charge=v.charge, skills=v.skills) for n, v in pairs)
    span = dashboard.Span((1, 9), (10, 90))
    sketch = dashboard.Sketch(
        "deep", "you asked", "Split?", voices, (2, 6), plan.turns, True, plan.criteria, (), span, turn=2
    )
    return [*dashboard.lines(sketch, width), *format.remarks(plan)]


async def main():
    view = make_view(sys.stderr, quiet=False, verbose=False, json=False)
    view(happened("run", "a", {"preset": "deep"}))
    view(happened("batch", "", {"calls": [["t1-critic", "agent"]]}))
    text = proposal.dump(plan, format, render)

    def change(command, text):
        return proposal.dump(plan_edits.applied(command, format.parse(text), format), format, render)

    commands = [(f"{verb} {takes}".rstrip(), about) for verb, (takes, about) in plan_edits.COMMANDS.items()]
    bare = sys.argv[2:] == ["bare"]
    with signals.interruptible("a"):
        try:
            return await hitl.review(
                view, path, text, format.parse, show, write=write,
                change=None if bare else change, commands=() if bare else commands,
                correct=lambda command: plan_edits.corrected(command, format), mistyped=format.mistyped,
            )
        finally:
            view.close()

signals.listen()
try:
    text = asyncio.run(main())
except CdoError as error:
    print(f"{error.message} {error.hint}")
    os._exit(error.exit_code)
Path("chosen").write_text(text)
chosen = format.parse(text)
print("chose", chosen.decision, *chosen.names)
"""


@dataclass
class Desk:
    """A review under way: its terminal, the folder it runs in, the file that is reviewed."""

    child: Any
    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / "session" / "t2-plan.yaml"

    @property
    def text(self) -> str:
        return self.path.read_text()

    def says(self, *wanted: str) -> None:
        for words in wanted:
            self.child.expect_exact(words)

    def types(self, line: str) -> None:
        """Type a line, once the prompt is there."""
        self.child.expect_exact("plan> ")
        self.child.sendline(line)

    def save(self, text: str) -> None:
        """Save as editors do: a new file in the place of the old one."""
        other = self.path.with_name("t2-plan.yaml~")
        other.write_text(text)
        other.replace(self.path)

    def ends(self, code: int = 0) -> str:
        """Wait for the end; what was shown since the last expectation."""
        self.child.expect(pexpect.EOF)
        self.child.close()
        assert self.child.exitstatus == code, self.child.before
        return str(self.child.before)

    @property
    def writes(self) -> int:
        """How often cdo wrote the file."""
        log = self.folder / "writes"
        return len(log.read_text()) if log.exists() else 0


@contextmanager
def desk(
    folder: Path, *args: str, columns: int = 100, env: Mapping[str, str] | None = None, into: str = "/dev/tty"
) -> Iterator[Desk]:
    """A review at a terminal; what the driver prints at its end goes to the file `into`."""
    (folder / "session").mkdir(exist_ok=True)
    (folder / "driver.py").write_text(DRIVER)
    child = pexpect.spawn(
        "/bin/sh",
        ["-c", f'exec "$0" "$@" > {into}', sys.executable, "driver.py", "session/t2-plan.yaml", *args],
        cwd=str(folder),
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "PYTHONPATH": str(ROOT),
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            **(env or {}),
        },
        dimensions=(50, columns),
        timeout=60,
        encoding="utf-8",
    )
    try:
        yield Desk(child, folder)
    finally:
        child.close(force=True)


def script(folder: Path, body: str) -> str:
    """An editor: a Python program that changes the file it is called with."""
    path = folder / "my editor.py"
    path.write_text(f"import sys\nfrom pathlib import Path\npath = Path(sys.argv[-1])\n{body}\n")
    return f"{sys.executable} '{path}' --wait"


# -- the prompt ------------------------------------------------------------------------------------


@pytest.mark.wide
def test_enter_goes_on_with_the_plan_as_it_was_proposed(tmp_path: Path) -> None:
    with desk(tmp_path) as here:
        here.says("Plan of turn 2", "architect", "critic", "attack the seam", "t2-plan.yaml")
        here.types("")
        assert "chose go architect critic" in here.ends()
    assert here.writes == 1
    assert (tmp_path / "chosen").read_text() == here.text


@pytest.mark.wide
def test_commands_change_the_file_and_show_what_became_of_it(tmp_path: Path) -> None:
    with desk(tmp_path) as here:
        here.types("add security-reviewer walk the token flow")
        here.says("\n2     architect", "\n      security-reviewer", "walk the token flow")
        here.types("rename architect historian")
        assert "charge: walk the token flow" in here.text
        here.says("\n2     historian")
        here.types("skills critic adr, threat-model")
        here.says("critic", "adr, threat-model", "\n      critic", "adr, threat-model")
        here.types("turns 3")
        here.says("\nends at", "3 turns")
        here.types("set exit_confidence 0.95")
        here.says("\nends at", "confidence 0.95")
        here.types("remove critic")
        here.types("width 4")
        here.types("done")
        assert "chose done historian security-reviewer critic tester" in here.ends()
    assert "exit_confidence: 0.95" in here.text


@pytest.mark.wide
def test_a_role_that_is_probably_mistyped_is_asked_about(tmp_path: Path) -> None:
    with desk(tmp_path) as here:
        here.types("add pragmatst count the cost")
        here.child.expect_exact("There is no pragmatst. Did you mean pragmatist? [Y/n] ")
        here.child.sendline("")
        here.says("\n      pragmatist", "count the cost")
        here.types("rename architect architct")
        here.child.expect_exact("[Y/n] ")
        here.child.sendline("hm")
        here.says("neither yes nor no, so nothing was changed")
        here.types("add token-auditor")  # it resembles no known role
        here.says("token-auditor is a new role")
        here.types("rename architect architct")
        here.child.expect_exact("[Y/n] ")
        here.child.sendline("n")
        here.says("architct is a new role")
        here.save("voices: [critc, architect]\n")
        here.says("There is no critc. Did you mean critic?")
        assert here.child.isalive()
        here.save("voices: [critic, architect]\n")
        assert "chose go critic architect" in here.ends()


@pytest.mark.wide
def test_the_plan_is_redrawn_in_its_place(tmp_path: Path) -> None:
    import pyte

    screen = pyte.Screen(100, 50)
    stream = pyte.Stream(screen)
    with desk(tmp_path) as here:
        here.child.logfile_read = shown = io.StringIO()
        for line in ("add tester", "help", "width 4", "width nine", "charge critic the seam"):
            here.types(line)
        here.child.expect_exact("plan> ")
        stream.feed(shown.getvalue())
        text = "\n".join(screen.display)
        assert text.count("Plan of turn 2") == 1
        assert "set KEY NUMBER" not in text
        assert text.count("the seam") == 1 and "attack the seam" not in text
        here.child.sendline("")
        here.ends()


@pytest.mark.wide
def test_a_command_that_is_wrong_is_explained_and_changes_nothing(tmp_path: Path) -> None:
    with desk(tmp_path) as here:
        here.types("combo securty")
        here.says("There is no combo called `securty`. Did you mean security?")
        here.types("skills critic threat-modle")
        here.says("There is no skill called `threat-modle`. Did you mean threat-model?")
        here.types("width 9")
        here.says("2 to 6 can sit")
        here.types("fly \x16\x1b[2J")
        here.says("There is no command `fly`")
        here.types("help")
        here.says("combo NAME", "set KEY NUMBER")
        assert here.writes == 1
        here.types("combo architect + critic + pragmatist")
        here.types("go")
        assert "chose go architect critic pragmatist" in here.ends()


@pytest.mark.wide
def test_going_on_leaves_a_persons_own_comments_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "session").mkdir()
    mine = "voices: [tester]  # mine\nwidth: 2\n"
    (tmp_path / "session" / "t2-plan.yaml").write_text(mine)
    with desk(tmp_path) as here:
        here.says("tester")
        here.types("go")
        assert "chose go tester critic" in here.ends()
    assert (tmp_path / "chosen").read_text() == here.text == mine
    assert here.writes == 0


@pytest.mark.wide
@pytest.mark.parametrize("leave", ["quit\n", "\x04"])
def test_quit_and_the_end_of_input_pause_the_run(tmp_path: Path, leave: str) -> None:
    with desk(tmp_path) as here:
        here.types("note hold the line")
        here.child.expect_exact("plan> ")
        here.child.send(leave)
        assert "cdo resume" in here.ends(6)
    assert "note: hold the line" in here.text


@pytest.mark.wide
def test_ctrl_c_stops_at_once_and_leaves_the_terminal_clean(tmp_path: Path) -> None:
    began = time.monotonic()
    with desk(tmp_path) as here:
        here.child.expect_exact("plan> ")
        before, soon, sent = here.text, at_once(began), time.monotonic()
        here.child.sendintr()
        shown = here.ends(130)
        assert time.monotonic() - sent < soon
    assert "Traceback" not in shown and "cdo resume a" in shown
    assert here.text == before


@pytest.mark.wide
def test_what_was_typed_before_the_question_is_no_answer(tmp_path: Path) -> None:
    with desk(tmp_path) as here:
        here.child.sendline("")
        here.child.sendline("done")
        here.types("note asked")
        here.says("plan> ")
        here.child.sendline("go")
        assert "chose go" in here.ends()
    assert "note: asked" in here.text


@pytest.mark.wide
def test_a_document_without_commands_can_be_taken_edited_or_left(tmp_path: Path) -> None:
    with desk(tmp_path, "bare") as here:
        here.types("width 3")
        here.says("There is no command `width`")
        here.types("go")
        assert "chose go architect critic" in here.ends()


@pytest.mark.wide
@pytest.mark.parametrize("columns", [60, 200])
def test_what_is_shown_fits_the_terminal(tmp_path: Path, columns: int) -> None:
    charge = "follow every fact from birth to deletion " * 4
    with desk(tmp_path, columns=columns) as here:
        here.child.logfile_read = log = io.StringIO()
        here.types(f"add data-modeler {charge}")
        here.types("quit")
        here.ends(6)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", log.getvalue()).replace("\r", "")
    tables = re.findall(r"^Plan of turn.*?^tokens.*?$", shown, re.S | re.M)
    assert len(tables) == 2 and "data-modeler" in tables[1]
    assert max(len(line) for table in tables for line in table.split("\n")) < columns


# -- the file --------------------------------------------------------------------------------------


@pytest.mark.wide
def test_saving_the_file_anywhere_goes_on_with_it(tmp_path: Path) -> None:
    with desk(tmp_path) as here:
        here.child.expect_exact("plan> ")
        here.child.send("half a comm")
        mine = "voices:\n- {role: tester, charge: break it}\n- critic\n"
        here.save(mine)
        here.says("t2-plan.yaml was saved", "tester", "break it", "Going on with it")
        assert "chose go tester critic" in here.ends()
    assert (tmp_path / "chosen").read_text() == here.text == mine


@pytest.mark.wide
def test_a_broken_save_is_explained_and_waited_for(tmp_path: Path) -> None:
    with desk(tmp_path) as here:
        here.child.expect_exact("plan> ")
        broken = "voices:\n- {role: tester, skills: [thret-model]}\n- critic\n"
        here.save(broken)
        here.says("cannot be used yet", "line 2, column 27", "Did you mean threat-model?")
        # Nothing goes on with it, and nothing overwrites it.
        here.types("")
        here.says("line 2, column 27")
        here.types("width 3")
        here.says("line 2, column 27")
        assert here.text == broken
        here.child.expect_exact("plan> ")
        here.save("voices: [tester\n")
        here.says("not valid YAML: line 2, column 1")
        here.child.expect_exact("plan> ")
        here.path.write_bytes(b"note: caf\xe9\n")
        here.says("line 1, column 10: this is not UTF-8 text")
        here.child.expect_exact("plan> ")
        here.path.write_text("")
        here.says("The plan is empty")
        here.child.expect_exact("plan> ")
        here.path.unlink()
        time.sleep(0.5)
        here.save(broken.replace("thret", "threat"))
        here.says("was saved", "Going on")
        assert "chose go tester critic" in here.ends()


@pytest.mark.wide
def test_a_file_that_is_saved_unchanged_goes_on(tmp_path: Path) -> None:
    with desk(tmp_path) as here:
        here.types("note wait")
        here.child.expect_exact("plan> ")
        time.sleep(1.5)  # cdo's own writing is no save
        assert here.child.isalive()
        here.save(here.text)
        here.says("Going on")
        assert "chose go architect critic" in here.ends()


@pytest.mark.wide
def test_a_file_that_is_written_in_pieces_is_read_when_it_is_whole(tmp_path: Path) -> None:
    with desk(tmp_path, env={"SETTLE": "1.5"}) as here:  # far longer than the pauses, on a busy machine too
        here.child.expect_exact("plan> ")
        with here.path.open("w") as file:
            for role in ("tester", "critic", "operator"):
                file.write(f"{'voices:' if role == 'tester' else ''}\n- {role}")
                file.flush()
                time.sleep(0.1)
        assert "chose go tester critic operator" in here.ends()


# -- the editor ------------------------------------------------------------------------------------


@pytest.mark.wide
def test_edit_opens_the_editor_and_asks_again(tmp_path: Path) -> None:
    editor = script(tmp_path, "path.write_text('combo: data\\n'); print('editing', sys.stdout.isatty())")
    with desk(tmp_path, env={"VISUAL": editor, "EDITOR": "false"}) as here:
        here.types("edit")
        here.says("editing True", "data-modeler")
        here.types("remove maintainer")
        here.types("")
        assert "chose go data-modeler integrator compliance-reviewer" in here.ends()


@pytest.mark.wide
def test_the_editor_has_the_terminal_although_the_result_goes_elsewhere(tmp_path: Path) -> None:
    editor = script(tmp_path, "path.write_text('combo: data\\n'); print('editing', sys.stdout.isatty())")
    with desk(tmp_path, env={"EDITOR": editor}, into="out") as here:
        here.types("edit")
        here.says("editing True")
        here.types("")
        here.ends()
    assert (tmp_path / "out").read_text().startswith("chose go data-modeler")


@pytest.mark.wide
def test_what_is_saved_while_the_editor_is_open_waits_for_its_end(tmp_path: Path) -> None:
    body = "import time\npath.write_text('voices: [tester, critic]')\ntime.sleep(1.5)\n"
    body += "path.write_text('voices: [operator, critic]')\nline = input('name? ')\nprint('hello', line)"
    with desk(tmp_path, env={"EDITOR": script(tmp_path, body)}) as here:
        here.types("edit")
        here.says("name? ")
        here.child.sendline("me")  # the keyboard is the editor's
        here.says("hello me", "operator")
        here.types("go")
        assert "chose go operator critic" in here.ends()


@pytest.mark.wide
@pytest.mark.parametrize(
    ("editor", "words"),
    [
        ("/nowhere/editor", "cannot be started: No such file"),
        ("'open", "cannot be started"),
        ("false", "with code 1"),
    ],
)
def test_an_editor_that_fails_is_named(tmp_path: Path, editor: str, words: str) -> None:
    with desk(tmp_path, env={"EDITOR": editor}) as here:
        here.types("edit")
        here.says(words)
        here.types("")
        assert "chose go architect critic" in here.ends()


@pytest.mark.wide
def test_an_edit_that_breaks_the_plan_is_explained(tmp_path: Path) -> None:
    editor = script(tmp_path, "path.write_text('turns: [9, 3]')")
    with desk(tmp_path, env={"EDITOR": editor}) as here:
        here.types("edit")
        here.says("line 1, column 8: `turns`: the first number must not be above the second")
        here.types("go")
        here.says("line 1, column 8")
        here.types("quit")
        here.ends(6)
    assert here.text == "turns: [9, 3]"


@pytest.mark.wide
def test_ctrl_c_in_an_editor_ends_it_and_the_run(tmp_path: Path) -> None:
    body = "import time, signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('open')\ntime.sleep(30)"
    with desk(tmp_path, env={"EDITOR": script(tmp_path, body)}) as here:
        here.types("edit")
        here.says("open")
        here.child.sendintr()
        here.ends(130)
