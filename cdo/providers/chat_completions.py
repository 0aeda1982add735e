"""Sends requests by the Chat Completions protocol over aiohttp: streamed, with usage and tool calls.

One client serves every provider of the table (OpenAI, OpenRouter, Ollama, vLLM, llama.cpp, …). A reply counts as
complete only if the provider stated why it ended; a stream that just stops is truncated.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import io
import json
import re
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cdo.core.exchange import BackendError, Fault, Finish, Message, OnText, Request, Response, ToolCall, Usage
from cdo.providers.addresses import is_here
from cdo.providers.headers import retry_after
from cdo.providers.reported_usage import reported

if TYPE_CHECKING:
    import aiohttp

MAX_BODY = 16 * 2**20  # most bytes of an answer that is not streamed, and of one line of a stream
MAX_STREAM = 64 * 2**20  # most bytes of a stream: some providers wrap each token in half a kilobyte
LINGER = 5.0  # seconds to wait for usage and the end mark after the finish reason is known
DRAIN = 0.25  # seconds to wait for the connection to end after the end mark, so that it can be reused
ERROR_BODY = 5.0  # seconds to wait for the text of an error response
# Words by which providers say that the prompt does not fit, whatever status they use.
_OVERFLOW = re.compile(
    r"context[ _-]?(length|window|size)|maximum (context|prompt|input)|too many (input )?tokens|"
    r"prompt (is|was|length is)? ?too (long|large)|exceed\w* (the )?(\w+ ){0,3}(context|token|input)|"
    r"reduce the length|input (is|length|tokens?)\b.{0,40}(too long|exceed|maximum|larger)|range of input length|"
    r"(too large|too long) for (the |this |requested )?model|token count.{0,40}exceed|maximum.{0,20}tokens? allowed|"
    r"max_new_tokens\W{0,3} must be|request[ _]too[ _]large",
    re.IGNORECASE | re.DOTALL,
)
_TOO_LARGE = re.compile(r"request too large|tokens must be reduced", re.IGNORECASE)  # than any rate limit allows
# Words by which providers say that a quota of a day or a month, or the account's credit, is used up.
_USED_UP = re.compile(
    r"(insufficient|exceeded_current)[_ ](quota|balance|credits?|funds)|credit balance is too low|"
    r"(out of|not enough|no|any|all available|requires more) credits|credit limit|spending limit|"
    r"billing[_ ]hard[_ ]limit|specified API usage limits|quotaId\W+\w*PerDay|models-per-day|"
    r"quota exceeded[^{}]{0,200}\blimit: 0\b",
    re.IGNORECASE,
)
_FILTERED = re.compile(r"content[ _-]?(filter|policy|management)|\bmoderation\b|\bflagged\b", re.IGNORECASE)
# The status of an error inside a 200 that states none, by the words in it; without any of them it is a 500.
_STATUS_BY_WORD = (
    (402, _USED_UP),
    (429, re.compile(r"rate.?limit|too.?many.?requests|exhausted", re.IGNORECASE)),
    (401, re.compile(r"api.?key|authenti|unauthori|permission", re.IGNORECASE)),
    (400, re.compile(r"invalid|bad.?request|not.?found|unsupported|context_length", re.IGNORECASE)),
)
FINISH = {
    "stop": Finish.STOP,
    "eos": Finish.STOP,
    "eos_token": Finish.STOP,
    "stop_sequence": Finish.STOP,
    "end_turn": Finish.STOP,
    "length": Finish.LENGTH,
    "max_tokens": Finish.LENGTH,
    "model_length": Finish.LENGTH,
    "tool_calls": Finish.TOOLS,
    "tool_use": Finish.TOOLS,
    "function_call": Finish.TOOLS,
    "content_filter": Finish.REFUSAL,
    "refusal": Finish.REFUSAL,
    "safety": Finish.REFUSAL,
}


def classify(status: int, text: str) -> Fault:
    """Return the fault for an HTTP status (or the code inside an error event) and its text."""
    if status == 402 or (status in (400, 403, 429) and _USED_UP.search(text)):
        return Fault.USED_UP
    if status == 429:  # too large for the limit of a whole minute: waiting never helps
        return Fault.OVERFLOW if _TOO_LARGE.search(text) else Fault.RATE_LIMITED
    if status == 413 or (status not in (401, 403) and _OVERFLOW.search(text)):
        return Fault.OVERFLOW
    if status in (408, 409, 425) or status >= 500:
        return Fault.OVERLOADED
    if status != 401 and _FILTERED.search(text):
        return Fault.REFUSED
    if status in (401, 403):
        return Fault.DENIED
    return Fault.REJECTED


def said(error: Any) -> str:
    """Return the message in an error's JSON, in whichever field the provider puts it; "" if there is none."""
    if isinstance(error, str):
        return error
    if isinstance(error, list):
        return said(error[0]) if error else ""
    if not isinstance(error, dict):
        return ""
    found = next(filter(None, (said(error.get(key)) for key in ("error", "message", "detail", "msg", "type"))), "")
    cause = error["metadata"].get("raw") if isinstance(error.get("metadata"), dict) else None
    return f"{found}: {cause}" if isinstance(cause, str) else found  # OpenRouter quotes the provider that it asked


@dataclass
class ChatBackend:
    """Calls one provider. `url` is its base address (…/v1); `key` may be empty.

    `cap` names the request field that limits the reply. `usage` is true if the provider knows `stream_options`.
    `extra` is merged into each request's body. The connection pool lives as long as the backend. The proxies of the
    environment (HTTPS_PROXY, NO_PROXY) are used for every address but one of this machine.
    """

    url: str
    key: str = field(default="", repr=False)
    cap: str = "max_tokens"
    usage: bool = True
    connect_timeout: float = 10.0
    temperature: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    streams: bool = True
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
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def complete(self, request: Request, on_text: OnText) -> Response:
        """Send one request and return the complete answer; raises `BackendError`."""
        import aiohttp

        reply = _StreamedReply()
        async with await self._send(request) as http:
            if http.status != 200:
                raise await _refused(http)
            try:
                if "event-stream" in http.headers.get("Content-Type", ""):
                    await _stream(http, reply, on_text)
                else:
                    on_text(reply.take(await _read(http), "message"))
            except (aiohttp.ClientPayloadError, aiohttp.ClientConnectionError, ConnectionError) as error:
                if not reply.over:
                    why = str(error) or type(error).__name__
                    raise reply.error(Fault.TRUNCATED, f"the connection broke: {why}") from None
            except aiohttp.ClientError as error:
                raise reply.error(Fault.MALFORMED, f"not the protocol: {error}") from None
        return reply.response()

    async def _send(self, request: Request) -> aiohttp.ClientResponse:
        """Send one request and return the response, its body not yet read; raises `BackendError`."""
        import aiohttp

        headers = {"Content-Type": "application/json", "Accept": "text/event-stream", **request.headers}
        if key := self.key.strip():
            headers["Authorization"] = f"Bearer {key}"
        body = self._body(request)
        # aiohttp sends a file in pieces, so that other calls go on while a large body is written.
        data = io.BytesIO(body) if len(body) >= 2**20 else body
        try:
            return await self._session().post(
                f"{self.url}/chat/completions", data=data, headers=headers, allow_redirects=False
            )
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

    def _body(self, request: Request) -> bytes:
        body: dict[str, Any] = {
            "model": request.model,
            "messages": [message_json(message) for message in request.messages],
            "stream": True,
            self.cap: request.max_tokens,
        }
        if self.usage:
            body["stream_options"] = {"include_usage": True}
        if self.temperature is not None:
            body["temperature"] = self.temperature
        if request.tools:
            body["tools"] = [{"type": "function", "function": dict(tool)} for tool in request.tools]
        if request.grammar:
            body["grammar"] = request.grammar
        return json.dumps({**body, **self.extra}, ensure_ascii=False).encode("utf-8", "replace")


def message_json(message: Message) -> dict[str, Any]:
    """Return a message as JSON data of the protocol."""
    shown: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.tool_calls:
        shown["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        shown["tool_call_id"] = message.tool_call_id
    return shown


@dataclass
class _StreamedReply:
    """The answer received so far, chunk by chunk or in one piece."""

    parts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    calls: list[dict[str, str]] = field(default_factory=list)
    places: dict[int, int] = field(default_factory=dict)
    finish: str = ""
    usage: Usage | None = None
    done: bool = False  # the end mark was seen, or the answer came in one piece

    @property
    def text(self) -> str:
        return _whole(self.parts)

    @property
    def over(self) -> bool:
        """True if nothing that matters can follow: the finish reason is known, or `done`."""
        return bool(self.finish) or self.done

    def error(self, fault: Fault, message: str) -> BackendError:
        """Return an error that carries the text and the usage received so far."""
        return BackendError(fault, _whole([message])[:300], usage=self.usage, text=self.text)

    def take(self, text: str, field_name: str) -> str:
        """Add one chunk and return the text in it; raise `BackendError` for an error event or broken JSON."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            raise self.error(Fault.MALFORMED, f"the provider sent what is not JSON: {text[:80]!r}") from None
        if not isinstance(data, dict):
            raise self.error(Fault.MALFORMED, "the provider sent JSON that is not an object")
        self.done = field_name == "message"
        if data.get("error") or data.get("object") == "error":
            raise self._failed(data.get("error") or data)
        if isinstance(data.get("usage"), dict):
            self.usage = _usage(data["usage"])
        choices = data.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return ""
        choice = choices[0]
        if isinstance(choice.get("error"), dict):
            raise self._failed(choice["error"])
        self.finish = str(choice.get("finish_reason") or self.finish)
        piece = choice.get(field_name)
        return self._piece(piece) if isinstance(piece, dict) else ""

    def _piece(self, piece: Mapping[str, Any]) -> str:
        text = piece.get("content")
        if isinstance(text, list):  # content parts
            text = "".join(str(part.get("text") or "") for part in text if isinstance(part, dict))
        for value, into in (
            (piece.get("reasoning_content") or piece.get("reasoning"), self.thoughts),
            (piece.get("refusal"), self.refused),
            (text, self.parts),
        ):
            if isinstance(value, str) and value:
                into.append(value)
        calls = piece.get("tool_calls")
        for position, call in enumerate(calls if isinstance(calls, list) else ()):
            if isinstance(call, dict):
                self._tool(position, call)
        return text if isinstance(text, str) else ""

    def _tool(self, position: int, call: Mapping[str, Any]) -> None:
        index = call.get("index")
        key = index if isinstance(index, int) else position
        function = call.get("function")
        function = function if isinstance(function, dict) else {}
        ident, name, arguments = call.get("id"), function.get("name"), function.get("arguments")
        known = self.calls[self.places[key]] if key in self.places else None
        # Some providers number every call 0: a name with a different id begins another call.
        if known is None or (ident and name and known["id"] not in ("", ident)):
            known = {"id": "", "name": "", "arguments": ""}
            self.places[key] = len(self.calls)
            self.calls.append(known)
        known["id"] = str(ident or known["id"])
        known["name"] = str(name or known["name"])
        if arguments:
            known["arguments"] += arguments if isinstance(arguments, str) else json.dumps(arguments)

    def _failed(self, error: Any) -> BackendError:
        """Return the error inside a response of status 200: its own code counts, not the status."""
        message, detail = said(error) or "error", error if isinstance(error, dict) else {}
        stated = [str(detail.get(key) or "") for key in ("code", "status", "type")]
        code = next((int(text) for text in stated if re.fullmatch(r"[45]\d\d", text, re.ASCII)), 0)
        if not code:
            name = "".join(stated) or message
            code = next((code for code, words in _STATUS_BY_WORD if words.search(name)), 500)
        return self.error(classify(code, f"{' '.join(stated)} {message}"), message)

    def response(self) -> Response:
        """Return the complete answer; raise `BackendError` if the provider stated no known reason for its end."""
        refused, text = _whole(self.refused), self.text
        if not self.finish:
            blank = not (text or refused or self.thoughts or self.calls)
            fault = Fault.EMPTY if self.done and blank else Fault.TRUNCATED
            raise self.error(fault, "the answer ended without the provider's end")
        finish = Finish.REFUSAL if refused else FINISH.get(self.finish.lower())
        if finish is None:
            raise self.error(Fault.TRUNCATED, f"the provider ended with `{self.finish[:40]}`")
        calls = tuple(ToolCall(*(_whole([call[key]]) for key in ("id", "name", "arguments"))) for call in self.calls)
        return Response(text or refused, finish, self.usage, _whole(self.thoughts), calls)


def _whole(parts: Iterable[str]) -> str:
    """Join parts to text that is valid in UTF-8: some providers split one character over two chunks."""
    text = "".join(parts)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _usage(data: Mapping[str, Any]) -> Usage | None:
    """Return the provider's token counts; None if there are none (some providers report zeros)."""
    details = data.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return reported(data.get("prompt_tokens"), data.get("completion_tokens"), cached, data.get("cost"))


async def _stream(http: aiohttp.ClientResponse, reply: _StreamedReply, on_text: OnText) -> None:
    """Add the events of a stream to `reply`, until the stream ends or shortly after the provider stated the end."""
    clock = asyncio.get_running_loop().time
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(None) as rest:
            async for data in _events(http.content):
                if reply.done:
                    continue
                if data == "[DONE]":
                    reply.done = True
                    rest.reschedule(clock() + DRAIN)
                    continue
                try:
                    on_text(reply.take(data, "delta") if data else "")
                except BackendError:
                    if reply.finish.lower() not in FINISH:  # else the answer is complete: ignore the error
                        raise
                if reply.finish:
                    rest.reschedule(clock() + LINGER)


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
    shown = _whole([" ".join(_without_html(message).split())])[:300]
    return BackendError(classify(http.status, text), f"HTTP {http.status}: {shown}", retry_after=wait)


def _without_html(text: str) -> str:
    """Return the words of a text that is a page, as proxies and gateways send it; any other text as it is."""
    if not re.match(r"\s*<(!doctype|html|head|\?xml)", text, re.IGNORECASE):
        return text
    title = re.search(r"<title[^>]*>([^<]*)", text, re.IGNORECASE)
    return f"a page instead of an answer: {html.unescape(title[1] if title else re.sub(r'<[^>]*>', ' ', text))}"


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[str]:
    """Yield the data of each server-sent event (its lines joined), and "" for each comment.

    The last event may lack its blank line. If it is incomplete (neither JSON nor the end mark), it is dropped, as in
    the HTML standard.
    """
    rest, data = list[bytes](), list[str]()
    size = waiting = 0
    async for chunk in content.iter_any():
        size += len(chunk)
        if b"\n" in chunk:
            *lines, last = b"".join([*rest, chunk]).split(b"\n")
            rest, waiting = [last], len(last)
        else:
            lines, waiting = [], waiting + len(chunk)
            rest.append(chunk)
        if size > MAX_STREAM or waiting > MAX_BODY:
            raise BackendError(Fault.MALFORMED, f"the answer is larger than {min(size, MAX_STREAM)} bytes")
        for raw in lines:
            line = raw.rstrip(b"\r").decode("utf-8", "replace")
            if line.startswith("data:"):
                data.append(line[5:].removeprefix(" "))
            elif line.startswith(":"):
                yield ""
            elif not line and data:
                yield "\n".join(data)
                data = []
    if (tail := b"".join(rest)).startswith(b"data:"):
        data.append(tail[5:].decode("utf-8", "replace").strip())
    last_event = "\n".join(data).strip()
    with contextlib.suppress(ValueError, RecursionError):
        if last_event and (last_event == "[DONE]" or json.loads(last_event)):
            yield last_event
