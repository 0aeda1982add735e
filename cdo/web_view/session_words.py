"""Says in words how a session stands that a browser follows."""

from __future__ import annotations

import contextlib

from cdo.core.errors import SessionError
from cdo.core.events import RunEnded, RunStopped
from cdo.core.formatting import one_line, pluralise
from cdo.formats.final_opening import status_in_words
from cdo.history.journal_follower import SessionPhase
from cdo.history.pending import answered
from cdo.session.reader import SessionFolder
from cdo.web_view.stream import LiveSession


def given_answer(state: LiveSession) -> str:
    """Return what happens to an answer that people gave while no process runs the session; "" without one."""
    if state.phase is SessionPhase.STOPPED and isinstance(state.last, RunStopped):
        with contextlib.suppress(SessionError):
            return answered(SessionFolder(state.folder))
    return ""


def word_of(state: LiveSession, final: str, given: str) -> str:
    """Return the state of a session in a word or two; `final` is its result, `given` as `given_answer` tells."""
    if given:
        return "answered"
    if state.running:
        return "waits for you" if state.board.asks or state.board.status == "waits for an answer" else "running"
    if state.phase is SessionPhase.GONE:
        return "gone"
    if isinstance(state.last, RunStopped) and state.phase is SessionPhase.STOPPED:
        return "waits for you" if state.last.status == "NeedsHuman" else "stopped"
    if state.phase is SessionPhase.DONE:
        return state.board.status.replace("_", " ") or "done"
    return "done" if final else "not running"


def sentence_of(state: LiveSession, word: str) -> str:
    """Return the state of a session in a sentence, which a screen reader speaks whenever it changes."""
    board = state.board
    if isinstance(state.last, RunEnded) and state.phase is SessionPhase.DONE:
        result = state.last.result
        return _capital(status_in_words(result.status, result.why, result.turns, result.unit))
    if not state.running:
        return _capital(word)
    if word == "waits for you":
        return f"Waits for you: {board.asks}" if board.asks else "A plan waits for you."
    calls = board.voices.values()
    answered = sum(call.ended is not None for call in calls)
    if not calls:
        return "Running."
    return f"Running, {board.title}: {answered} of {pluralise(len(calls), 'call')} answered."


def _capital(text: str) -> str:
    """Return a text as a sentence."""
    text = one_line(text)
    return f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith((".", "?", "!", "…")) else ".")
