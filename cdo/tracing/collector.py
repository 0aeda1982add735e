"""Sends OTLP requests to a collector over HTTP, as the protocol asks: what may pass is tried again, a rest is told.

It blocks, so that a thread of its own can be left alone when a collector does not answer.
"""

from __future__ import annotations

import http.client
import json
import random
import time
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Thread
from typing import TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit

from cdo import __version__
from cdo.core.errors import ConfigError, UsageError
from cdo.core.formatting import one_line
from cdo.providers.addresses import is_here
from cdo.providers.http.headers import retry_after

HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"
PATH = "/v1/traces"
SECONDS = 10.0  # for one request, from connecting to the end of the answer
PATIENCE = 30.0  # seconds for which a request is tried again
_PASSING = (429, 502, 503, 504)  # the protocol's list of statuses after which a client tries again
_FIRST_WAIT = 1.0  # seconds before the second try; each further wait is twice as long
_SECRET = 8  # characters of a word among the headers that may be a key
_ANSWER = 65_536  # bytes read of an answer

T = TypeVar("T")


class CollectorError(ConfigError):
    """A collector cannot be reached, or does not take what is sent. `passing`: it may do so later."""

    def __init__(self, message: str, hint: str = "", *, passing: bool = False, wait: float = 0.0) -> None:
        super().__init__(message, hint)
        self.passing = passing
        self.wait = wait


@dataclass(frozen=True)
class Collector:
    """The address that traces are posted to, and the headers that go with them."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def at(cls, base: str, env: Mapping[str, str]) -> Collector:
        """Return the collector at the base address `base`; raise `UsageError` if there can be none."""
        try:
            parts = urlsplit(base)
            known = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            known = False
        if not known or any(char <= " " or char > "~" for char in base) or parts.query or parts.fragment:
            raise UsageError(
                f"{one_line(base, 200)!r} is not the address of a collector.", "Write it as http://HOST:4318."
            )
        if parts.username is not None:
            raise UsageError(
                "The address of the collector holds credentials.", f"Put them into the variable {HEADERS}."
            )
        url = base.rstrip("/")
        return cls(url if url.endswith(PATH) else f"{url}{PATH}", _headers(env.get(HEADERS, "")))

    def send(self, body: bytes, patience: float = PATIENCE, pause: Callable[[float], object] = time.sleep) -> str:
        """Post a request, again for `patience` seconds while that may help; raise `CollectorError`.

        Return what the collector says of spans that it did not take, "" if it took all.
        """
        until, wait = time.monotonic() + patience, _FIRST_WAIT
        while True:
            try:
                return self._post(body)
            except CollectorError as error:
                delay = max(error.wait, wait * random.uniform(0.8, 1.2))
                if not error.passing or time.monotonic() + delay > until:
                    raise
            pause(delay)
            wait *= 2

    def _post(self, body: bytes) -> str:
        try:
            status, headers, answer = _within(SECONDS, lambda: self._exchange(body))
        except TimeoutError:
            raise self._error(f"does not answer within {SECONDS:g} s", passing=True) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            told = getattr(why, "strerror", None) or str(why) or type(error).__name__
            passing = not isinstance(error, ValueError)
            raise self._error(f"cannot be reached: {one_line(told, 200)}", passing=passing) from None
        if status == 200:
            return self._without_headers(_left_out(answer))
        asked = retry_after(headers, time.time()) or 0.0
        said = one_line(self._without_headers(answer.decode("utf-8", "replace")), 200)
        why = f"refuses the spans: HTTP {status}" + (f": {said}" if said else "")
        raise self._error(why, passing=status in _PASSING, wait=asked)

    def _exchange(self, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        sent = {"Content-Type": "application/json", "User-Agent": f"cdo/{__version__}", **self.headers}
        request = urllib.request.Request(self.url, data=body, headers=sent, method="POST")
        proxies = urllib.request.ProxyHandler({} if is_here(self.url) else None)
        try:
            with urllib.request.build_opener(proxies, _NoRedirect).open(request, timeout=SECONDS) as answer:
                return answer.status, dict(answer.headers), answer.read(_ANSWER)
        except HTTPError as error:
            with error:
                return error.code, dict(error.headers), error.read(_ANSWER)
        except URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise error.reason from None
            raise

    def _without_headers(self, text: str) -> str:
        """Return what a collector says without the values of headers, which can be keys: it is kept in sessions."""
        words = {word for value in self.headers.values() for word in value.split() if len(word) >= _SECRET}
        for word in sorted(words, key=len, reverse=True):
            text = text.replace(word, "[header]")
        return text

    def _error(self, why: str, *, passing: bool, wait: float = 0.0) -> CollectorError:
        return CollectorError(
            f"The collector at {self.url} {why}.", "Check the address and that it runs.", passing=passing, wait=wait
        )


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Takes a redirect as an answer: spans go nowhere but to the address that the person gave."""

    def redirect_request(self, *args: object, **more: object) -> None:
        return None


def _within(seconds: float, function: Callable[[], T]) -> T:
    """Return what `function` returns; raise `TimeoutError` after `seconds`, and leave its thread alone."""
    done: Future[T] = Future()

    def work() -> None:
        try:
            done.set_result(function())
        except BaseException as error:
            done.set_exception(error)

    Thread(target=work, name="cdo-otlp-request", daemon=True).start()
    return done.result(seconds)


def _headers(text: str) -> dict[str, str]:
    """Return the headers in the value of the variable: `name=value` with commas between, values percent-encoded."""
    found = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = item.partition("=")
        name, value = name.strip(), unquote(value.strip())
        if not equals or not name.replace("-", "").replace("_", "").isalnum() or not value.isprintable():
            raise UsageError(
                f"The variable {HEADERS} holds an item that is not a header.", "Write it as NAME=VALUE,NAME=VALUE."
            )
        found[name] = value
    return found


def _left_out(answer: bytes) -> str:
    """Return what a successful answer says of spans that were not taken."""
    try:
        partial = json.loads(answer).get("partialSuccess") or {}
        rejected, message = int(partial.get("rejectedSpans") or 0), str(partial.get("errorMessage") or "")
    except (ValueError, TypeError, AttributeError, RecursionError):
        return ""  # an answer in another encoding; the status counts
    if not rejected and not message:
        return ""
    told = f"{rejected:,} spans were rejected" if rejected else "the collector says"
    return f"{told}: {one_line(message, 300)}" if message else told
