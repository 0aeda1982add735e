"""Lets a person review a document before a turn: with a dashboard, a prompt, and a file that any editor can save.

Typed commands and saved files both end in one text. Only the person's own commands overwrite the person's text.
Problems are reported with line and column.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from cdo.core.errors import NeedsHuman
from cdo.core.formatting import one_line, visible
from cdo.core.steps import InvalidReply
from cdo.files.file_changes import changes
from cdo.terminal.redrawn import Redrawn
from cdo.terminal.typed_line import TypedText

if TYPE_CHECKING:
    from cdo.terminal.views import RunView

Parse: TypeAlias = Callable[[str], Any]
Show: TypeAlias = Callable[[Any, int], Sequence[str]]
Change: TypeAlias = Callable[[str, str], str]
Correct: TypeAlias = Callable[[str], tuple[str, str, str] | None]
Mistyped: TypeAlias = Callable[[Any], Mapping[str, str]]
Write: TypeAlias = Callable[[str], None]

MAX_BYTES = 1 << 20  # larger than any document that can be parsed
SETTLE = 0.2  # seconds for which a saved file must stay the same before it is read
EDITORS = ("sensible-editor", "nano", "vim", "vi")  # tried in this order if neither VISUAL nor EDITOR is set
OWN = (
    ("Enter", "go on with what stands here"),
    ("edit", "open the file in your editor ($VISUAL, $EDITOR)"),
    ("help", "show this"),
    ("quit", "pause; `cdo resume` goes on from here"),
)
# Identifies one save of the file: time, inode and size; None if there is no file.
Mark: TypeAlias = tuple[int, int, int] | None


async def review(
    view: RunView,
    path: Path,
    text: str,
    parse: Parse,
    show: Show,
    *,
    write: Write,
    change: Change | None = None,
    commands: Sequence[tuple[str, str]] = (),
    correct: Correct = lambda _: None,
    mistyped: Mistyped = lambda _: {},
    noun: str = "plan",
    above: Sequence[str] = (),
) -> str:
    """Let the person at the terminal review the document `text` at `path`; return the text to go on with.

    `parse` reads a text or raises `InvalidReply`. `show(data, columns)` draws the parsed data. `write` puts a text
    into the file (only a store writes into sessions). `change(command, text)` returns the text after one of
    `commands` (each with its syntax and its effect), or raises `InvalidReply`. `correct(command)` returns a name that
    is probably mistyped, the name that is probably meant, and the command with it. `mistyped(data)` returns the names
    of both kinds in a saved file. The person is asked about them. If the file exists already, its content is reviewed
    instead of `text`. `noun` is what the document is called; `above` are lines to show above it. Raises `NeedsHuman`
    if the person leaves. A cancelled review restores the terminal.
    """
    talk = _Dialogue(path, parse, show, write, change, tuple(commands), correct, mistyped, noun, above)
    if _mark(path) is None:
        write(text)
    with view.suspend():
        return await talk.held()


@dataclass
class _Dialogue:
    path: Path
    parse: Parse
    show: Show
    write: Write
    change: Change | None
    commands: tuple[tuple[str, str], ...]
    correct: Correct
    mistyped: Mistyped
    noun: str
    above: Sequence[str]
    screen: Redrawn = field(default_factory=Redrawn)
    inbox: asyncio.Queue[str | None] = field(default_factory=asyncio.Queue)  # typed lines; None: the file was saved
    mark: Mark = None  # of the file when it was last read or written here
    busy: bool = False  # True while an editor uses the terminal
    typing: TypedText = field(init=False)

    def __post_init__(self) -> None:
        self.typing = TypedText(self._take)

    async def held(self) -> str:
        """Show the document, then handle what is typed or saved; return the text to go on with."""
        stop, self.mark = asyncio.Event(), _mark(self.path)
        watching = asyncio.create_task(self._watch(stop))
        try:
            with self._typed():
                self._table()
                while True:
                    try:
                        said = await self._asked(f"{self.noun}> ")
                        text = self._saved() if said is None else await self._command(said)
                    except InvalidReply as error:
                        self._complain(error)
                    else:
                        if text is not None:
                            return text
        finally:
            stop.set()
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    # -- what is typed ----------------------------------------------------------------------------

    async def _asked(self, prompt: str) -> str | None:
        """Print a prompt and return the line that is typed; None if the file was saved instead."""
        self.screen.say(prompt, end="")
        try:
            said = await self.inbox.get()
        except asyncio.CancelledError:
            self.screen.say("")  # what is told next does not stand behind the prompt
            raise
        if said is not None:
            self.screen.echoed(said)
        return None if said is None else said.strip()

    async def _command(self, line: str) -> str | None:
        """Execute a typed line; return the text to go on with, or None if the review continues."""
        verb = line.split(None, 1)[0].lower() if line else ""
        if verb in ("quit", "exit", "q"):
            raise NeedsHuman(f"Paused; the {self.noun} waits in {self.path}.", "`cdo resume` goes on from there.")
        if verb in ("help", "?"):
            rows = [*OWN, *self.commands]
            left = max(len(how) for how, _ in rows)
            self.screen.say("\n".join(f"  {how:<{left}}  {what}" for how, what in rows))
            return None
        if verb == "edit":
            await self._edit()
        elif verb:
            self._changed(await self._checked(line), verb)
        if verb in ("", "go", "done"):
            text = self._read()
            self.parse(text)
            return text
        self._table()
        return None

    async def _checked(self, line: str) -> str:
        """Return a command, corrected if the person says so; raise `InvalidReply` if the answer is neither."""
        if not self.change or not (found := self.correct(line)):
            return line
        name, meant, better = found
        answer = await self._asked(f"There is no {name}. Did you mean {meant}? [Y/n] ")
        if answer is None:
            self.inbox.put_nowait(None)
        if answer is not None and answer.lower() in ("", "y", "yes"):
            return better
        if answer is not None and answer.lower() in ("n", "no"):
            return line
        raise InvalidReply([f"{name}: neither yes nor no, so nothing was changed."])

    def _changed(self, line: str, verb: str) -> None:
        """Let a command change the document. If the data stays the same, the person's own text is kept."""
        if verb not in {how.split()[0] for how, _ in self.commands} or not self.change:
            if verb != "go":
                raise InvalidReply([f"There is no command `{one_line(verb, 40)}`; `help` shows what there is."])
            return
        before = self._read()
        after = self.change(line, before)
        made = self.parse(after)
        try:
            same = made == self.parse(before)
        except InvalidReply:  # it was not complete
            same = False
        if not same:
            self.write(after)
            self.mark = _mark(self.path)

    async def _edit(self) -> None:
        """Open the file in the person's editor and wait until the editor is closed."""
        words = _editor(self.path)
        if not words:
            raise InvalidReply([f"No editor was found: set EDITOR, or open {self.path} in any editor and save it."])
        self.busy = True
        try:
            # stdout may be redirected to a file for the result, so the editor gets the terminal.
            with _terminal_kept(), self._deaf():
                process = await asyncio.create_subprocess_exec(*words, stdout=sys.stderr)
                try:
                    code = await process.wait()
                except asyncio.CancelledError:
                    with contextlib.suppress(ProcessLookupError):
                        process.terminate()
                    await process.wait()
                    raise
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "its name cannot be read"
            raise InvalidReply([f"The editor {one_line(words[0], 80)} cannot be started: {why}."]) from None
        finally:
            self.busy, self.mark = False, _mark(self.path)
            self.screen.forget()
        if code:
            self.screen.say(f"The editor ended with code {code}.")

    @contextlib.contextmanager
    def _typed(self) -> Iterator[None]:
        """Put lines from the terminal into the inbox. Discard what was typed before the prompt."""
        import termios

        with contextlib.suppress(OSError, termios.error):
            termios.tcflush(sys.stdin, termios.TCIFLUSH)
        self.typing.listen()
        try:
            yield
        finally:
            self.typing.stop()

    @contextlib.contextmanager
    def _deaf(self) -> Iterator[None]:
        """Do not read the keyboard while another process uses it."""
        self.typing.stop()
        try:
            yield
        finally:
            self.typing.listen()

    def _take(self, typed: str) -> None:
        """Put typed lines into the inbox; the end of the input leaves the review."""
        if not typed:
            self.screen.say("")
        for line in typed.removesuffix("\n").split("\n") if typed else ["quit"]:
            self.inbox.put_nowait(line)

    # -- what is saved ----------------------------------------------------------------------------

    async def _watch(self, stop: asyncio.Event) -> None:
        """Put None into the inbox when the file is saved."""
        try:
            async for _ in changes(self.path, stop):
                if not self.busy and _mark(self.path) != self.mark and (mark := await self._settled()):
                    self.mark = mark
                    self.inbox.put_nowait(None)
        except (OSError, RuntimeError) as error:
            why = one_line(error, 200)
            self.screen.say(f"\nThe file cannot be watched ({why}): press Enter once you have saved it.")

    async def _settled(self) -> Mark:
        """Return the file's mark once it stays the same, because editors write in several steps.

        Return None if an editor runs here, or if the file has not changed.
        """
        before: Mark = None
        while (mark := _mark(self.path)) != before or mark is None:
            before = mark
            await asyncio.sleep(SETTLE)
            if self.busy:
                return None
        return None if mark == self.mark else mark

    def _saved(self) -> str | None:
        """Show the saved document, and return its text; None if it has a name that is probably mistyped.

        Raises `InvalidReply` if the document cannot be used.
        """
        self.screen.clear()
        self.screen.say(f"\n{self.path.name} was saved.")
        text = self._read()
        try:
            data = self.parse(text)
            self._draw(data)
        except InvalidReply:
            self.screen.say("It cannot be used yet:")
            raise
        if found := self.mistyped(data):
            for name, meant in found.items():
                self.screen.say(f"There is no {name}. Did you mean {meant}?")
            self.screen.say("Correct the file and save it, or press Enter to go on with it as it stands.")
            return None
        self.screen.say("Going on with it.")
        return text

    # -- what is shown ----------------------------------------------------------------------------

    def _read(self) -> str:
        """Return the file's present text; raise `InvalidReply` if it cannot be read."""
        try:
            with self.path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
            if len(data) > MAX_BYTES:
                raise InvalidReply([f"{self.path} has more than {MAX_BYTES} bytes."])
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            before = data[: error.start].split(b"\n")
            where = f"line {len(before)}, column {len(before[-1].decode('utf-8', 'replace')) + 1}"
            raise InvalidReply([f"{where}: this is not UTF-8 text."]) from None
        except OSError as error:
            raise InvalidReply([f"{self.path} cannot be read: {error.strerror}."]) from None

    def _table(self) -> None:
        """Draw the present document in the place of the one before, or report why it cannot be drawn."""
        self.screen.clear()
        for text in self.above:
            self.screen.say(visible(text))
        try:
            self._draw(self.parse(self._read()))
        except InvalidReply as error:
            self._complain(error)
        how = (
            "change it here, or save it in any editor" if self.change else "`edit` opens it, or save it in any editor"
        )
        self.screen.say(f"The {self.noun} is {self.path}: {how}.")
        self.screen.say("Enter goes on with it, `help` shows the commands.")

    def _draw(self, data: Any) -> None:
        self.screen.say("\n".join(["", *self.show(data, self.screen.columns), ""]))

    def _complain(self, error: InvalidReply) -> None:
        for problem in error.problems:
            self.screen.say(f"  {visible(problem)}")


def _mark(path: Path) -> Mark:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _editor(path: Path) -> list[str]:
    """Return the command that opens `path` in the person's editor; [] if there is none."""
    import shlex
    import shutil

    words = [found for name in EDITORS if (found := shutil.which(name))][:1]
    if chosen := os.environ.get("VISUAL") or os.environ.get("EDITOR"):
        try:
            words = shlex.split(chosen)
        except ValueError:  # a quote that is not closed
            words = [chosen]
    return [*words, str(path.absolute())] if words else []


@contextlib.contextmanager
def _terminal_kept() -> Iterator[None]:
    """Restore the terminal's modes afterwards, because an editor may die without doing so."""
    import termios

    try:
        modes = termios.tcgetattr(sys.stdin)
    except (termios.error, OSError):
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(termios.error, OSError):
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, modes)
