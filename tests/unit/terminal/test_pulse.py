"""What is said while an answer of a model on this machine takes long, and how a download is shown."""

from __future__ import annotations

import io
import threading
import time

import pytest

from cdo.core.events import BatchBegan, CallSent, RunBegan, TextReceived
from cdo.terminal import pulse
from cdo.terminal.transfer import Transfer
from cdo.terminal.views import PlainView


class Heard(io.StringIO):
    """A stream that tells when it has been written to `times` times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self._left, self.done = times, threading.Event()

    def write(self, text: str) -> int:
        self._left -= 1
        if self._left <= 0:
            self.done.set()
        return super().write(text)


def begun(stream: io.StringIO, model: str, *, quiet: bool = False) -> PlainView:
    """A view of a run in the middle of its first call."""
    view = PlainView(stream, quiet=quiet)
    view(RunBegan(name="a", preset="quick", why="", models=(model,), path="tmp/cdo-a", resumed=False))
    view(BatchBegan(calls=(("t1-critic", "agent"), ("t1-pragmatist", "agent"))))
    view(CallSent(name="t1-critic", attempt=1, model=model))
    return view


def test_a_model_on_this_machine_is_not_waited_for_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "QUIET", 0.02)
    stream = Heard(4)
    view = begun(stream, "local")
    assert stream.done.wait(30)
    view(TextReceived(name="t1-critic", characters=800))
    more = stream.getvalue().count("\n") + 3
    while stream.getvalue().count("\n") < more:
        assert threading.Event().wait(0.01) is False
    view.close()
    said = stream.getvalue()
    assert "  … t1-critic: no word yet, " in said and "  … t1-critic: ~200 tokens so far, " in said
    assert "pragmatist: no word" not in said, "only what was asked is under way"
    threading.Event().wait(0.06)
    assert stream.getvalue() == said


def test_the_lines_become_rare_while_nothing_else_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "QUIET", 0.01)
    heard: list[float] = []
    began = time.monotonic()
    beating = pulse.Pulse(lambda: heard.append(time.monotonic()))
    beating.start()
    threading.Event().wait(0.4)  # pauses of 0.01, 0.02, 0.04, 0.08 and then 0.15
    assert 2 <= len(heard) <= 6
    pauses = [after - before for before, after in zip([began, *heard], heard, strict=False)]
    assert all(pause >= rare for pause, rare in zip(pauses, (0.01, 0.02, 0.04, 0.08, 0.15, 0.15), strict=False))
    beating.stop()


@pytest.mark.parametrize(("model", "quiet"), [("openai/gpt-4.1", False), ("local", True)])
def test_other_models_and_quiet_runs_say_nothing_meanwhile(
    model: str, quiet: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulse, "QUIET", 0.005)
    stream = io.StringIO()
    view = begun(stream, model, quiet=quiet)
    threading.Event().wait(0.05)
    view.close()
    assert "…" not in stream.getvalue()


def test_a_download_is_told_in_plain_lines_that_become_rare() -> None:
    now, stream = [0.0], io.StringIO()
    with Transfer(stream, clock=lambda: now[0]) as progress:
        progress.say("Fetching\x1b[31m it.")
        for second in range(101):
            now[0] = float(second)
            progress("fetching", second * 1_000_000, 100_000_000)
    lines = stream.getvalue().splitlines()
    assert "\x1b" not in lines[0] and lines[1] == "  fetching: 2 of 100 MB, 2.0 s"
    assert 15 < len(lines) < 35


def test_a_download_is_a_bar_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    with Transfer(stream) as progress:
        progress("fetching", 50_000_000, 100_000_000)
        progress.say("by the way")
        progress("checking", 100_000_000, 100_000_000)
    assert "fetching" in stream.getvalue() and "━" in stream.getvalue() and "by the way" in stream.getvalue()
