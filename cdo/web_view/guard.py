"""Decides which requests a local web server answers: those of the person's own browser, from its own pages. Pure.

A page of another origin is told apart by Host, Origin and Sec-Fetch-Site. Another user of this machine lacks the
cookie. Ports do not separate cookies, so the cookie also belongs to a path that nobody can guess: a server at another
port of this machine, which the person's browser visits, is not sent it.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field

from cdo.security.loopback import LOOPBACK

NAMES = (LOOPBACK, "localhost")
TOKEN_SECONDS = 900.0  # a printed address that was not opened is good for so long
MOST_TOKENS = 8  # printed addresses that are good at a time; the oldest give way
MOST_BROWSERS = 32  # browsers that are known at a time; the oldest give way
_OWN = ("same-origin", "none")  # a page of this server, or the person: an address typed, a bookmark

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # With `no-referrer` a browser would send `Origin: null` with the forms of these pages.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Server": "cdo",
}


class Browser(Struct, frozen=True):
    """A browser that opened a printed address: the value of its cookie, and what its forms must hold."""

    cookie: str
    csrf: str


class Guard(Struct):
    """The rules of a server at `port`; `clock` gives seconds."""

    port: int
    clock: Callable[[], float]
    place: str = field(default_factory=lambda: f"/{secrets.token_urlsafe(16)}")
    _tokens: dict[str, tuple[float, str]] = field(default_factory=dict)  # until when each is good, where it leads
    _browsers: dict[str, Browser] = field(default_factory=dict)

    @property
    def cookie_name(self) -> str:
        """The name of the cookie, which is another one at each port."""
        return f"cdo-web-{self.port}"

    def address(self, path: str = "/") -> str:
        """Return a new address that lets one browser in, once, and leads it to `path`."""
        token = secrets.token_urlsafe(32)
        self._tokens[token] = self.clock() + TOKEN_SECONDS, path
        while len(self._tokens) > MOST_TOKENS:
            del self._tokens[next(iter(self._tokens))]
        return f"http://{NAMES[0]}:{self.port}{self.place}/begin?token={token}"

    def begin(self, token: str) -> tuple[Browser, str] | None:
        """Return the browser that `token` lets in, and where it is led to; None if it was used or is too old."""
        known = next((good for good in self._tokens if same(good, token)), None)
        until, path = self._tokens.pop(known) if known else (0.0, "")
        if known is None or until < self.clock():
            return None
        found = Browser(secrets.token_urlsafe(32), secrets.token_urlsafe(32))
        self._browsers[found.cookie] = found
        while len(self._browsers) > MOST_BROWSERS:
            del self._browsers[next(iter(self._browsers))]
        return found, path

    def browser(self, cookie: str) -> Browser | None:
        """Return the browser that has this cookie, None if there is none."""
        return next((found for known, found in self._browsers.items() if same(known, cookie)), None)

    def refusal(
        self,
        method: str,
        hosts: Sequence[str],
        origins: Sequence[str],
        sites: Sequence[str],
        *,
        arriving: bool = False,
    ) -> str:
        """Return why a request is refused for where it comes from, "" if it is not.

        `hosts`, `origins` and `sites` are the values of Host, Origin and Sec-Fetch-Site. `arriving` is True for a
        printed address, which may be opened from anywhere.
        """
        known = [f"{name}:{self.port}" for name in NAMES]
        if len(hosts) != 1 or hosts[0] not in known:
            return (
                f"This server answers at http://{known[0]}/ alone: through a tunnel, use the same port at both ends."
            )
        if any(origin != f"http://{hosts[0]}" for origin in origins) or (method == "POST" and len(origins) != 1):
            return "This request comes from another page."
        if not arriving and any(site not in _OWN for site in sites):
            return "This page is opened from its own pages, or by its address."
        return ""


def same(known: str, given: str) -> bool:
    """True if two secrets are the same, in a time that does not tell where they differ."""
    return hmac.compare_digest(known.encode(), given.encode("utf-8", "replace"))
