"""The HTTP server of `cdo watch --web`: on this machine alone, for the browser that opened the printed address."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from aiohttp import web

from cdo.app.waiting import StateChanged
from cdo.content.library import Library
from cdo.core.errors import CdoError, SessionError, UsageError
from cdo.core.formatting import one_line
from cdo.security.loopback import listening_socket
from cdo.web_view import forms
from cdo.web_view.guard import HEADERS, MOST_BROWSERS, Browser, Guard, same
from cdo.web_view.pages import WebPages
from cdo.web_view.stream import Feeds, NoWindow

MAX_BODY = 512 * 1024  # bytes of a form
MAX_CONNECTIONS = 128  # open at a time
MAX_WORK = 16  # pages that are made at a time; more wait
FIRST_BYTES = 10.0  # seconds in which a new connection has to send a request
BROWSER: web.RequestKey[Browser] = web.RequestKey("browser", Browser)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
AGAIN = "Press Enter where `cdo watch --web` runs: it prints a new address, which lets one browser in."


class WebServer:
    """Answers the browsers that the guard knows."""

    def __init__(self, guard: Guard, pages: WebPages) -> None:
        self._guard, self._pages = guard, pages
        self._feeds = Feeds(pages.parts)
        self._done: dict[tuple[str, str], str] = {}  # what a form did, until its browser is shown it, by page
        self._room = asyncio.Semaphore(MAX_WORK)
        self._turnstile: Turnstile | None = None

    def application(self) -> web.Application:
        """Return the application, for one event loop."""
        made = web.Application(middlewares=[self._guarded], client_max_size=MAX_BODY)
        home = self._guard.place
        gets: Sequence[tuple[str, Handler]] = (
            ("/web.css", self._style),
            ("/web.js", self._script),
            ("/favicon.ico", self._icon),
            (f"{home}/begin", self._begin),
            (f"{home}/", self._list),
            (f"{home}/session/{{name}}", self._session),
            (f"{home}/session/{{name}}/events", self._events),
            (f"{home}/session/{{name}}/edit", self._edit),
            (f"{home}/session/{{name}}/report", self._report),
            (f"{home}/session/{{name}}/files", self._files),
            (f"{home}/session/{{name}}/file/{{file:.+}}", self._file),
        )
        for path, handler in gets:
            made.router.add_get(path, handler, allow_head=False)
        made.router.add_post(f"{home}/session/{{name}}/edit/{{kind}}", self._submit)
        return made

    def turnstile(self, server: web.Server) -> Turnstile:
        """Return what lets connections to the server in."""
        self._turnstile = Turnstile(server)
        return self._turnstile

    def stop(self) -> None:
        """Let all that follows sessions end."""
        self._feeds.stop()

    # -- who is answered ---------------------------------------------------------------------------

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse whoever the guard does not know; make pages of errors."""
        if self._turnstile:
            self._turnstile.passed(request)
        to_list = ("The list of sessions", f"{self._guard.place}/")
        try:
            response = self._refused(request) or await handler(request)
        except web.HTTPException as error:
            response = self._told(error.status, "This cannot be shown", f"{error.reason}.", to=to_list)
        except NoWindow as error:
            response = self._told(503, "Too many windows", error.message, error.hint, to_list)
        except (SessionError, UsageError) as error:
            response = self._told(404, "This cannot be shown", error.message, error.hint, to_list)
        except CdoError as error:
            response = self._told(500, "This cannot be shown", error.message, error.hint, to_list)
        except Exception as error:
            sys.stderr.write(f"cdo: a page failed: {type(error).__name__}: {one_line(error, 300)}\n")
            why = "Making the page failed; the terminal says why."
            response = self._told(500, "This cannot be shown", why, to=to_list)
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    def _refused(self, request: web.Request) -> web.Response | None:
        """Return the answer to a request that is refused, None for one that is answered."""
        heads, home = request.headers, self._guard.place
        arriving = request.method == "GET" and request.path == f"{home}/begin"
        why = self._guard.refusal(
            request.method,
            heads.getall("Host", []),
            heads.getall("Origin", []),
            heads.getall("Sec-Fetch-Site", []),
            arriving=arriving,
        )
        if why:
            return web.Response(status=403, text=f"{why}\n")
        if found := self._guard.browser(request.cookies.get(self._guard.cookie_name, "")):
            request[BROWSER] = found
        elif not arriving and request.path not in ("/web.css", "/web.js", "/favicon.ico"):
            return self._told(403, "This browser was not let in", "Each browser needs an address of its own.", AGAIN)
        return None

    def _told(
        self, status: int, title: str, text: str, hint: str = "", to: tuple[str, str] | None = None
    ) -> web.Response:
        return _html(self._pages.message(title, text, hint, to), status)

    async def _begin(self, request: web.Request) -> web.Response:
        """Let a browser in that comes with a good token; a used one does no harm to a browser that was let in."""
        home, known = f"{self._guard.place}/", request.get(BROWSER)
        let_in = self._guard.begin(request.query.get("token", ""))
        if let_in is None and known is None:
            text = "This address was used already, or it is too old. Each lets one browser in."
            return self._told(403, "This address is used up", text, AGAIN)
        to = f"{self._guard.place}{let_in[1]}" if let_in else home
        # A page, not a redirect, with which a `Strict` cookie would not be sent to whoever comes from elsewhere.
        response = _html(self._pages.message("Welcome", "The sessions open now.", to=("Go on", to)))
        response.headers["Refresh"] = f"0; url={to}"
        if let_in:
            response.set_cookie(
                self._guard.cookie_name, let_in[0].cookie, path=home, httponly=True, samesite="Strict"
            )
        return response

    # -- pages -------------------------------------------------------------------------------------

    async def _style(self, _: web.Request) -> web.Response:
        return web.Response(text=self._pages.style(), content_type="text/css")

    async def _script(self, _: web.Request) -> web.Response:
        return web.Response(text=self._pages.script(), content_type="text/javascript")

    async def _icon(self, _: web.Request) -> web.Response:
        return web.Response(status=204)

    async def _list(self, request: web.Request) -> web.Response:
        number = request.query.get("page", "1")
        return await self._made(
            self._pages.sessions, request.query.get("q", "")[:200], int(number[:6]) if number.isdecimal() else 1
        )

    async def _session(self, request: web.Request) -> web.Response:
        feed = await self._feeds.feed(self._folder(request))
        version, parts = await feed.parts()
        html = {name: text for name, (text, _) in parts.items()}
        done = self._done.pop((request[BROWSER].cookie, request.match_info["name"]), "")
        return await self._made(self._pages.session, feed.state, f"{feed.epoch}-{version}", html, done)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Send what changes, until the session is done or the window goes away."""
        feed = await self._feeds.feed(self._folder(request))
        known = request.headers.get("Last-Event-ID") or request.query.get("after", "")
        pieces = self._feeds.pieces(feed, known, str)
        async with contextlib.aclosing(pieces):
            first = await anext(pieces)
            response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
            await response.prepare(request)
            with contextlib.suppress(ConnectionResetError, CdoError):  # the window connects again, and is told
                await response.write(first)
                async for piece in pieces:
                    await response.write(piece)
        return response

    async def _edit(self, request: web.Request) -> web.Response:
        folder = self._folder(request)
        async with self._room:
            shown = await asyncio.to_thread(forms.open_forms, folder)
        return await self._made(self._pages.forms, folder, shown, request[BROWSER].csrf)

    async def _submit(self, request: web.Request) -> web.Response:
        """Write what was filled into a form and lead to the session's page, else show what is wrong with it."""
        folder, kind, csrf = self._folder(request), request.match_info["kind"], request[BROWSER].csrf
        back = ("The session", self._pages.place(request.match_info["name"]))
        sent = await request.post()
        values = {name: value for name, value in sent.items() if isinstance(value, str)}
        if len(values) != len(sent) or not same(csrf, values.pop("csrf", "")):
            return self._told(403, "Nothing was saved", "This form is not from a page of this server.", to=back)
        seen = values.pop("seen", "")
        async with self._room:
            try:
                done = await asyncio.to_thread(forms.submit, folder, kind, values, seen)
            except CdoError as error:
                shown = await asyncio.to_thread(forms.filled_forms, folder, kind, values, error)
                status = 409 if isinstance(error, StateChanged) else 422 if isinstance(error, UsageError) else 500
                if not any(form.kind == kind for form in shown):
                    return self._told(status, "Nothing was saved", error.message, error.hint, back)
                return _html(await asyncio.to_thread(self._pages.forms, folder, shown, csrf), status)
        self._done[request[BROWSER].cookie, request.match_info["name"]] = done
        while len(self._done) > MOST_BROWSERS:
            del self._done[next(iter(self._done))]
        self._feeds.changed(folder)
        return web.Response(status=303, headers={"Location": self._pages.place(request.match_info["name"])})

    async def _report(self, request: web.Request) -> web.Response:
        return await self._made(self._pages.report, self._folder(request))

    async def _files(self, request: web.Request) -> web.Response:
        return await self._made(self._pages.files, self._folder(request))

    async def _file(self, request: web.Request) -> web.Response:
        return await self._made(self._pages.file, self._folder(request), request.match_info["file"])

    def _folder(self, request: web.Request) -> Path:
        return self._pages.folder(request.match_info["name"])

    async def _made(self, make: Callable[..., str], *values: object) -> web.Response:
        async with self._room:
            return _html(await asyncio.to_thread(make, *values))


def _html(text: str, status: int = 200) -> web.Response:
    return web.Response(
        status=status, body=text.encode("utf-8", "replace"), content_type="text/html", charset="utf-8"
    )


class Turnstile:
    """Lets at most MAX_CONNECTIONS in at a time, and ends those that send no whole request in FIRST_BYTES seconds."""

    def __init__(self, server: web.Server) -> None:
        self._server = server
        self._silent: set[web.RequestHandler] = set()
        self._coming = 0  # connections that were let in, and that the server does not count yet: many come at once

    def __call__(self) -> asyncio.Protocol:
        if len(self._server.connections) + self._coming >= MAX_CONNECTIONS:
            return _Closed()
        made, loop = self._server(), asyncio.get_running_loop()
        self._silent.add(made)
        self._coming += 1
        loop.call_soon(self._came)
        loop.call_later(FIRST_BYTES, self._look, made)
        return made

    def _came(self) -> None:
        self._coming -= 1

    def passed(self, request: web.Request) -> None:
        """Take note that a request has come."""
        self._silent.discard(request.protocol)

    def _look(self, protocol: web.RequestHandler) -> None:
        if protocol in self._silent:
            self._silent.discard(protocol)
            protocol.force_close()


class _Closed(asyncio.Protocol):
    """A connection that is ended at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


async def serve(
    library: Library,
    places: Sequence[Path],
    named: Mapping[str, Path],
    port: int,
    listening: Callable[[Guard], None],
) -> None:
    """Serve until the task is cancelled; `listening` is called with the guard, which makes addresses.

    `places` are folders of sessions, `named` single sessions elsewhere. Raises `ConfigError`.
    """
    with listening_socket(port) as place:
        guard = Guard(place.getsockname()[1], time.monotonic)
        server = WebServer(guard, WebPages(library, guard.place, places, named))
        # A stream whose window goes away is cancelled.
        runner = web.AppRunner(
            server.application(),
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=15.0,
            shutdown_timeout=1.0,
        )
        await runner.setup()
        assert runner.server
        listener = await asyncio.get_running_loop().create_server(server.turnstile(runner.server), sock=place)
        try:
            listening(guard)
            await asyncio.Event().wait()
        finally:
            listener.close()
            server.stop()
            await runner.cleanup()
