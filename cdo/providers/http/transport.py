"""Sends one request over aiohttp and reads its answer, whole or as server-sent events, in any protocol."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import threading
import time
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from cdo.core.exchange import BackendError, Fault, OnText, Response
from cdo.providers.addresses import is_here
from cdo.providers.http.faults import classify, said, without_html
from cdo.providers.http.headers import rate_limits, retry_after
from cdo.providers.http.reply import IncomingReply, joined

if TYPE_CHECKING:
    import aiohttp

MAX_BODY = 16 * 2**20  # most bytes of an answer that is not streamed, and of one line of a stream
MAX_STREAM = 64 * 2**20  # most bytes of a stream: some providers wrap each token in half a kilobyte
LINGER = 5.0  # seconds to wait for usage and the end mark after the finish reason is known
DRAIN = 0.25  # seconds to wait for the connection to end after the end mark, so that it can be reused
ERROR_BODY = 5.0  # seconds to wait for the text of an error response
END = "[DONE]"  # the event by which some protocols mark the end of a stream


def preload() -> None:
    """Start importing aiohttp in a thread and return at once: it reads the certificates of the system meanwhile."""
    threading.Thread(target=_import, name="cdo-aiohttp", daemon=True).start()


def _import() -> None:
    with contextlib.suppress(Exception):  # the first request meets the error again, and reports it
        import aiohttp  # noqa: F401


class HttpTransport(Struct):
    """The connections to one provider at the base address `url`. The pool lives until `close`.

    The proxies of the environment (HTTPS_PROXY, NO_PROXY) are used for every address but one of this machine.
    """

    url: str
    connect_timeout: float = 10.0
    _client: aiohttp.ClientSession | None = None

    def _session(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._client is None:
            # The runner sets all other deadlines. The pool has no limit, so that no call of a batch waits in it.
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=self.connect_timeout)
            connector = aiohttp.TCPConnector(limit=0, ttl_dns_cache=300)
            self._client = aiohttp.ClientSession(
                timeout=timeout, connector=connector, auto_decompress=True, trust_env=not is_here(self.url)
            )
        return self._client

    async def close(self) -> None:
        """Close all connections. The transport can be used again."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def exchange(
        self, path: str, body: bytes, headers: Mapping[str, str], reply: IncomingReply, on_text: OnText
    ) -> Response:
        """Post `body` to `path`, add what comes to `reply` and return the complete answer; raises `BackendError`."""
        import aiohttp

        sent = {"Content-Type": "application/json", "Accept": "text/event-stream", **headers}
        # aiohttp sends a file in pieces, so that other calls go on while a large body is written.
        data = io.BytesIO(body) if len(body) >= 2**20 else body
        async with await self._request("POST", path, data, sent) as http:
            limits = rate_limits(http.headers, time.time(), time.monotonic())
            if http.status != 200:
                refused = await _refused(http)
                refused.limits = limits
                raise refused
            try:
                if "event-stream" in http.headers.get("Content-Type", ""):
                    await _stream(http, reply, on_text)
                else:
                    on_text(reply.whole(await _read(http)))
            except (aiohttp.ClientPayloadError, aiohttp.ClientConnectionError, ConnectionError) as error:
                if not reply.over:
                    why = str(error) or type(error).__name__
                    raise reply.error(Fault.TRUNCATED, f"the connection broke: {why}") from None
            except aiohttp.ClientError as error:
                raise reply.error(Fault.MALFORMED, f"not the protocol: {error}") from None
        return replace(reply.response(), limits=limits)

    async def json(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        data: Any = None,
        patience: float = 60.0,
        most: int = MAX_BODY,
    ) -> Mapping[str, Any]:
        """Send one request and return its answer, which is a JSON object; raises `BackendError`.

        `data` is a body as aiohttp takes it. The whole exchange may take `patience` seconds, and the answer may have
        `most` bytes.
        """
        body = bytearray()
        async for piece in self.pieces(method, path, headers, data, patience):
            body += piece
            if len(body) > most:
                raise BackendError(Fault.MALFORMED, f"the answer is larger than {most} bytes")
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            raise BackendError(
                Fault.MALFORMED, f"the provider sent text that is not JSON: {bytes(body[:80])!r}"
            ) from None
        if not isinstance(found, dict):
            raise BackendError(Fault.MALFORMED, "the provider sent JSON that is not an object")
        return found

    async def pieces(
        self, method: str, path: str, headers: Mapping[str, str], data: Any = None, patience: float = 60.0
    ) -> AsyncIterator[bytes]:
        """Send one request and yield its answer in pieces, which may take `patience` seconds in all.

        Raises `BackendError`.
        """
        import aiohttp

        try:
            async with asyncio.timeout(patience), await self._request(method, path, data, headers) as http:
                if http.status not in (200, 201, 202):
                    raise await _refused(http)
                async for piece in http.content.iter_any():
                    yield piece
        except TimeoutError:
            raise BackendError(Fault.TIMEOUT, f"no complete answer within {patience:g} s") from None
        except (aiohttp.ClientPayloadError, aiohttp.ClientConnectionError, ConnectionError) as error:
            why = str(error) or type(error).__name__
            raise BackendError(Fault.TRUNCATED, f"the connection broke: {why}"[:300]) from None

    async def _request(self, method: str, path: str, data: Any, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        """Send one request and return the response, its body not yet read; raises `BackendError`."""
        import aiohttp

        url = f"{self.url}{path}" if path.startswith("/") else path
        try:
            return await self._session().request(method, url, data=data, headers=headers, allow_redirects=False)
        except aiohttp.ClientProxyConnectionError as error:
            proxy = f"{error.host}:{error.port}"
            raise BackendError(
                Fault.NETWORK,
                f"no connection to the proxy {proxy} (HTTP_PROXY, HTTPS_PROXY): {error.strerror or error}",
            ) from None
        except aiohttp.ClientConnectorError as error:
            raise BackendError(Fault.NETWORK, f"no connection to {self.url}: {error.strerror or error}") from None
        except TimeoutError:
            raise BackendError(Fault.NETWORK, f"no connection to {self.url} in time") from None
        except (aiohttp.ClientConnectionError, ConnectionError) as error:
            why = str(error) or type(error).__name__
            raise BackendError(Fault.NETWORK, f"the connection broke: {why}"[:300]) from None
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError, ValueError) as error:
            raise BackendError(Fault.REJECTED, f"the address {self.url} cannot be used: {error}"[:300]) from None
        except aiohttp.ClientError as error:
            raise BackendError(Fault.MALFORMED, f"not the protocol: {error}"[:300]) from None


async def _stream(http: aiohttp.ClientResponse, reply: IncomingReply, on_text: OnText) -> None:
    """Add the events of a stream to `reply`, until the stream ends or shortly after the provider stated the end."""
    clock = asyncio.get_running_loop().time
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(None) as rest:
            async for events in _events(http.content):
                if reply.done:
                    continue
                for event in events:
                    try:
                        text = reply.take(event) if event else ""
                        if reply.begun or not event:
                            on_text(text)
                    except BackendError:
                        if not reply.settled:  # else the answer is complete: ignore the error
                            raise
                    if reply.done:
                        break
                if reply.over:
                    rest.reschedule(clock() + (DRAIN if reply.done else LINGER))


async def _read(http: aiohttp.ClientResponse) -> str:
    """Return the body of an answer that is not streamed; raise `BackendError` if it is too large."""
    body = bytearray()
    async for chunk in http.content.iter_any():
        body += chunk
        if len(body) > MAX_BODY:
            raise BackendError(Fault.MALFORMED, f"the answer is larger than {MAX_BODY} bytes")
    return body.decode("utf-8", "replace")


async def _refused(http: aiohttp.ClientResponse) -> BackendError:
    """Return the error for a status other than 200; the status counts even if the text never arrives."""
    import aiohttp

    body = bytearray()
    with contextlib.suppress(aiohttp.ClientError, ConnectionError, TimeoutError):
        async with asyncio.timeout(ERROR_BODY):
            while len(body) < 65_536 and (more := await http.content.read(65_536)):
                body += more
    text = body.decode("utf-8", "replace")
    try:
        message = said(json.loads(text)) or text
    except (ValueError, RecursionError):
        message = text
    wait = retry_after(http.headers, time.time())
    shown = joined([" ".join(without_html(message).split())])[:300]
    return BackendError(classify(http.status, text), f"HTTP {http.status}: {shown}", retry_after=wait)


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[list[str]]:
    """Yield the data of each server-sent event (its lines joined), and "" for each comment, as many as came at once.

    The last event may lack its blank line. If it is incomplete (neither JSON nor the end mark), it is dropped, as in
    the HTML standard.
    """
    rest, data = list[bytes](), list[str]()
    size = waiting = 0
    async for chunk in content.iter_any():
        size += len(chunk)
        lines = list[str]()
        if b"\n" in chunk:
            whole, _, last = b"".join([*rest, chunk]).rpartition(b"\n")
            lines, rest, waiting = whole.decode("utf-8", "replace").split("\n"), [last], len(last)
        else:
            waiting += len(chunk)
            rest.append(chunk)
        if size > MAX_STREAM or waiting > MAX_BODY:
            raise BackendError(Fault.MALFORMED, f"the answer is larger than {min(size, MAX_STREAM)} bytes")
        found = list[str]()
        for line in lines:
            line = line.rstrip("\r")
            if line.startswith("data:"):
                data.append(line[5:].removeprefix(" "))
            elif line.startswith(":"):
                found.append("")
            elif not line and data:
                found.append("\n".join(data))
                data = []
        if found:
            yield found
    if (tail := b"".join(rest)).startswith(b"data:"):
        data.append(tail[5:].decode("utf-8", "replace").strip())
    last_event = "\n".join(data).strip()
    with contextlib.suppress(ValueError, RecursionError):
        if last_event and (last_event == END or json.loads(last_event)):
            yield [last_event]
