"""Makes the pages that a browser is shown: the list of sessions, a session live, its report, its files.

Texts of models, people and files enter a page as in `cdo.report.page`: escaped, or as inert Markdown.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from msgspec import Struct

from cdo import __version__
from cdo.content.library import Library
from cdo.core.errors import SessionError
from cdo.core.events import RunEnded
from cdo.core.formatting import one_line, rounded_money
from cdo.formats.markdown import split_front_matter
from cdo.history import index_entries
from cdo.history.journal_follower import SessionPhase
from cdo.history.pending import require_heard
from cdo.history.watching import session_name
from cdo.report import safe_html, session_page
from cdo.report.page import LIMIT, Papers, words
from cdo.report.rendering import STYLE, PageTemplates, ServedPage
from cdo.session.reader import SessionFolder
from cdo.session.records import session_path
from cdo.terminal.run_state import CallProgress, CallState
from cdo.web_view.form_fields import Form
from cdo.web_view.session_list import SessionList
from cdo.web_view.session_words import given_answer, sentence_of, word_of
from cdo.web_view.stream import LiveSession

FORMS = "templates/web-forms"
LIST, SESSION, LIVE, FILE, MESSAGE, SCRIPT, MORE_STYLE = (
    f"templates/web-{name}" for name in ("list", "session", "live", "file", "message", "script", "style")
)
PARTS = ("said", "status", "waits", "answer", "calls", "products", "tensions", "turns", "log")
ROWS = 50  # sessions on a page of the list
CALLS = 60  # calls of a turn that are listed, the active ones first
REFRESH = 5  # seconds after which a browser without scripts loads a page again that may change
_CHIPS = {
    CallState.DONE: "good", CallState.RECORDED: "good", CallState.EDITED: "warn", CallState.MISSING: "bad",
    CallState.RETRYING: "warn",
}  # fmt: skip
_ANSWERED = (CallState.DONE, CallState.RECORDED, CallState.EDITED)
_STATES = {
    "running": "plain", "paused": "warn", "answered": "plain", "damaged": "bad", "unfinished": "warn",
    "waiting": "plain",
}  # fmt: skip


class CallRow(Struct, frozen=True):
    """A call as its row shows it; `file` is its artifact, `since` when it began if it still goes on."""

    label: str
    file: str
    model: str
    state: str
    look: str
    since: str
    time: str
    tokens: str
    cost: str
    confidence: str
    text: str


class WebPages:
    """The pages of the sessions in the folders `places`, at addresses that begin with `home`.

    `named` are sessions that lie elsewhere, by name. `library` must not hold content of a project.
    """

    def __init__(self, library: Library, home: str, places: Sequence[Path], named: Mapping[str, Path]) -> None:
        self._library, self._templates = library, PageTemplates(library)
        self._home, self._places, self._named = home, tuple(places), dict(named)
        self._list = SessionList(places)

    # -- which session -----------------------------------------------------------------------------

    def folder(self, name: str) -> Path:
        """Return the folder of the session called `name`; raise `SessionError` and `UsageError`."""
        if name in self._named:
            return self._named[name]
        places = [session_path(place, name) for place in self._places]
        found = next((path for path in places if (path / "session.yaml").is_file() and not path.is_symlink()), None)
        if found is None:
            raise SessionError(f"There is no session {one_line(name, 80)}.", "The list shows what there is.")
        return found

    def place(self, name: str) -> str:
        """Return the address of a session's page."""
        return f"{self._home}{session_page_of(name)}"

    # -- what all pages have -----------------------------------------------------------------------

    def style(self) -> str:
        """Return the style sheet: that of reports, and what these pages add."""
        return self._library.load(STYLE).body + self._library.load(MORE_STYLE).body

    def script(self) -> str:
        """Return the script."""
        return self._library.load(SCRIPT).body

    def _served(self, *trail: tuple[str, str], script: bool = True, refresh: int = 0) -> ServedPage:
        way = (("Sessions", f"{self._home}/"), *trail) if trail else ()
        return ServedPage("/web.css", "/web.js" if script else "", way, refresh)

    def message(self, title: str, text: str, hint: str = "", to: tuple[str, str] | None = None) -> str:
        """Return a page that says one thing; `to` are the words of a link and its address."""
        values = {"title": title, "text": text, "hint": hint, "to": to[1] if to else "", "version": __version__}
        values["to_words"] = to[0] if to else ""
        return self._templates.page(MESSAGE, values, self._served(script=False))

    # -- the list ----------------------------------------------------------------------------------

    def sessions(self, query: str, number: int) -> str:
        """Return page `number` (from 1) of the sessions, newest first, that have the words of `query`."""
        words = query.casefold().split()
        known = self._list.listed()
        rows = [row for row in known.rows if all(word in _searched(row) for word in words)]
        pages = max(1, -(-len(rows) // ROWS))
        number = min(max(1, number), pages)
        first = (number - 1) * ROWS
        shown = rows[first : first + ROWS]

        def at(other: int) -> str:
            asked = {key: value for key, value in (("q", query), ("page", str(other))) if value}
            return f"{self._home}/?{urlencode(asked)}" if 1 <= other <= pages else ""

        values = {
            "title": "Sessions",
            "here": f"{self._home}/",
            "query": query,
            "rows": [self._row(row) for row in shown],
            "before": at(number - 1),
            "after": at(number + 1),
            "first": first + 1,
            "last": first + len(shown),
            "total": len(rows),
            "unread": known.unread,
            "seen": len(known.rows),
            "folders": [str(place) for place in self._places],
            "version": __version__,
        }
        return self._templates.page(LIST, values, self._served(refresh=2 * REFRESH))

    def _row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        state, name = str(row["status"]), str(row["session"])
        if state == "running" and index_entries.asks(Path(row["path"])):
            state = "paused"
        kind = " ".join(filter(None, (str(row.get("preset") or ""), str(row.get("mode") or ""))))
        cost = row.get("cost")
        return {
            "place": self.place(name),
            "session": name,
            "question": one_line(row.get("problem") or name, 200),
            "kind": " ".join(dict.fromkeys(kind.split())) or "unknown",
            "created": _day(str(row.get("created", ""))),
            "state": "waits for you" if state == "paused" else state.replace("_", " "),
            "look": _STATES.get(state, "good"),
            "waits": one_line(row.get("waits") or "", 160),
            "decision": one_line(str(row.get("decision") or "").replace("**", ""), 200),
            "cost": rounded_money(cost) if "cost" in row else "",
        }

    # -- a session, live ---------------------------------------------------------------------------

    def parts(self, state: LiveSession) -> dict[str, str]:
        """Return the parts of a session's page that change, as HTML by name; raise `CdoError`."""
        board, name = state.board, session_name(state.folder)
        calls = sorted(board.voices.values(), key=lambda call: list(CallState).index(call.state))
        listed = {call.name for call in calls[:CALLS]}
        final = "" if state.running else _final(state.folder)
        given = given_answer(state)
        word = word_of(state, final, given)
        now = time.time() if state.running else state.heard
        result = state.last.result if isinstance(state.last, RunEnded) else None
        values = {
            **words(Papers({}, (), f"{self.place(name)}/file")),
            "board": board,
            "is_mission": state.is_mission or board.mission,
            "title": one_line(board.question, 140) or name,
            "here": self.place(name),
            "version": __version__,
            "word": word,
            "sentence": sentence_of(state, word),
            "confidences": list(board.confidences.values()),
            "asks": board.asks if state.running else "",
            "standing": given or ("" if final else state.standing),
            "problem": state.problem,
            "final": final,
            "decided": index_entries.decided(final) or final,
            "sure": result.confidence_reason if result else "",
            "flags": result.flags if result else (),
            "now_title": f"{board.title[:1].upper()}{board.title[1:]}" or "Calls",
            "rows": [_call(call, now, state.folder) for call in board.voices.values() if call.name in listed],
            "finished": [re.sub(r" {2,}", " · ", text.strip()) for text in board.finished],
            "left_out": len(calls) - len(listed),
            "lines": [(_clock(item.at), item) for item in reversed(state.log)],
        }
        return self._templates.parts(LIVE, values, PARTS)

    def session(
        self, state: LiveSession, shown: str, parts: Mapping[str, str], done: str = "", error: str = ""
    ) -> str:
        """Return the page of a session with its `parts` as HTML; `shown` is their version."""
        from markupsafe import Markup

        board, name, live = state.board, session_name(state.folder), state.phase is not SessionPhase.DONE
        title = one_line(board.question, 140) or name
        values = {
            **words(Papers({}, ())),
            "title": title,
            "question": " ".join(board.question.split()) or title,
            "session": name,
            "kind": "Mission" if state.is_mission else "Deliberation",
            "preset": board.preset,
            "here": self.place(name),
            "live": live,
            "shown": shown,
            "parts": {key: Markup(html) for key, html in parts.items()},
            "done": done,
            "error": error,
            "version": __version__,
        }
        return self._templates.page(SESSION, values, self._served((name, ""), refresh=REFRESH if live else 0))

    def forms(self, folder: Path, forms: Sequence[Form], csrf: str) -> str:
        """Return the page with what a person may change in a session; `csrf` is what its forms must hold."""
        name = session_name(folder)
        values = {
            "title": f"What you can change in {name}",
            "question": one_line(SessionFolder(folder).text("00-input.md") or "", 300),
            "session": name,
            "here": self.place(name),
            "forms": forms,
            **words(Papers({}, (), f"{self.place(name)}/file")),
            "csrf": csrf,
            "version": __version__,
        }
        return self._templates.page(
            FORMS, values, self._served((name, self.place(name)), ("Change", ""), script=False)
        )

    # -- what lies in a session --------------------------------------------------------------------

    def report(self, folder: Path) -> str:
        """Return the report of a session as it is now; raise `CdoError`."""
        name = session_name(folder)
        served = self._served((name, self.place(name)), ("Report", ""), script=False)
        require_heard(archive := SessionFolder(folder), "The report")
        return session_page.page(archive, self._library, f"{self.place(name)}/file", served)

    def files(self, folder: Path) -> str:
        """Return the list of a session's files; raise `SessionError`."""
        return self._file(
            folder, "Files", {"names": SessionFolder(folder).files(), "content": "", "data": "", "cut": False}
        )

    def file(self, folder: Path, file: str) -> str:
        """Return a file of a session as a page, Markdown as inert HTML; raise `SessionError`."""
        from markupsafe import Markup

        archive = SessionFolder(folder)
        if file not in archive.files():
            raise SessionError(f"The session has no file {one_line(file, 120)}.", "Its list of files shows them.")
        require_heard(archive, file, file=file)
        data = archive.data(file) or b""
        text = archive.text(file) or "" if _is_text(data) else f"{len(data):,} bytes that are not text."
        head, body = split_front_matter(text) if file.endswith(".md") else (None, text)
        html = safe_html.html(body[:LIMIT], 1) if file.endswith(".md") else safe_html.plain(text[:LIMIT])
        shown = {"content": Markup(html), "data": Markup(safe_html.plain(head[:LIMIT]) if head else "")}
        return self._file(folder, file, {"names": None, **shown, "cut": len(text) > LIMIT})

    def _file(self, folder: Path, title: str, values: Mapping[str, Any]) -> str:
        name = session_name(folder)
        base = f"{self.place(name)}/file"
        trail = [(name, self.place(name)), *([("Files", f"{self.place(name)}/files")] if title != "Files" else [])]
        known = {**words(Papers({}, (), base)), "title": title, "session": name, "version": __version__, **values}
        return self._templates.page(FILE, known, self._served(*trail, (title, ""), script=False))


def session_page_of(name: str) -> str:
    """Return the path of a session's page, below the server's own."""
    return f"/session/{quote(name, safe='')}"


# -- words -----------------------------------------------------------------------------------------


def _searched(row: Mapping[str, Any]) -> str:
    return f"{row['session']} {row.get('problem') or ''}".casefold()


def _is_text(data: bytes) -> bool:
    try:
        return "\0" not in data.decode("utf-8")
    except UnicodeDecodeError:
        return False


def _final(folder: Path) -> str:
    """Return FINAL.md without its front matter; "" if there is none that can be read."""
    try:
        return split_front_matter(SessionFolder(folder).text("FINAL.md") or "")[1].strip()
    except SessionError:
        return ""


def _call(call: CallProgress, now: float, folder: Path) -> CallRow:
    state, seconds, tokens, cost, confidence, text = call.cells(now)
    file = f"{call.name}.md"
    there = call.state in _ANSWERED and re.fullmatch(r"[A-Za-z0-9._-]+", call.name) and (folder / file).is_file()
    going = call.started is not None and call.ended is None and call.state is not CallState.ANSWERED
    return CallRow(
        one_line(call.label, 80),
        file if there else "",
        one_line(call.model, 80),
        state,
        _CHIPS.get(call.state, "plain"),
        f"{call.started:.0f}" if going else "",
        seconds,
        tokens,
        cost,
        confidence,
        text,
    )


def _day(iso: str) -> str:
    """Return a time of ISO 8601 as day, hour and minute here."""
    try:
        return datetime.fromisoformat(iso).astimezone().strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return ""


def _clock(at: float) -> str:
    try:
        return datetime.fromtimestamp(at).strftime("%H:%M:%S")
    except (OverflowError, OSError, ValueError):
        return "--:--:--"
