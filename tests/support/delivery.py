"""How an answer leaves the provider: in one plain write, or hanging, dripping, cut or dropped."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.support.faults import Fault, error_body

JSON = "application/json"
EVENTS = "text/event-stream"


@dataclass
class Reply:
    """A response before it is sent: a body in one piece, or the events of a stream."""

    pieces: list[bytes]
    kind: str = JSON
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(map(len, self.pieces))


@dataclass
class Delivery:
    """Sends replies. `first_byte` and `between` are pauses in seconds; `closing` ends every hang."""

    first_byte: float
    between: float
    closing: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, request: web.BaseRequest, reply: Reply, fault: Fault, anthropic: bool) -> web.StreamResponse:
        """Send `reply` the way `fault` wants it. The common case is one write."""
        if fault.status:
            body = error_body(fault.status, anthropic) if fault.body is None else fault.body
            reply = Reply([_as_bytes(body)], status=fault.status)
        reply.headers = {"Content-Type": reply.kind, **fault.headers}
        paused = self.first_byte or (self.between and reply.kind == EVENTS)
        if fault.on_the_wire or paused:
            return await self._send_slowly(request, reply, fault)
        response = web.Response(body=b"".join(reply.pieces), status=reply.status, headers=reply.headers)
        if reply.kind == EVENTS:
            response.enable_chunked_encoding()
        return response

    async def _send_slowly(self, request: web.BaseRequest, reply: Reply, fault: Fault) -> web.StreamResponse:
        response = web.StreamResponse(status=reply.status, headers=reply.headers)
        if fault.hang == "headers":
            await self._hang(fault)
        if fault.drop:
            sever(request, fault.how)
            return response
        pieces, pause, middle = self._schedule(reply, fault)
        if reply.kind != EVENTS:
            response.content_length = sum(map(len, pieces)) if fault.how == "end" else reply.size
        await response.prepare(request)
        await asyncio.sleep(self.first_byte)
        if fault.hang == "first-byte":
            await self._hang(fault)
        for place, piece in enumerate(pieces):
            if place and pause:
                await asyncio.sleep(pause)
            if fault.hang == "middle" and place == middle:
                await self._hang(fault)
            await response.write(piece)
        if fault.cut is not None and fault.how != "end":
            sever(request, fault.how)
        else:
            await response.write_eof()
        return response

    def _schedule(self, reply: Reply, fault: Fault) -> tuple[list[bytes], float, int]:
        """What is written one after the other, the pause between, and the piece that comes after a hang."""
        pieces, pause = reply.pieces, self.between
        if fault.drip is not None:
            pieces, pause = [bytes([byte]) for byte in b"".join(pieces)], fault.drip
        elif fault.hang == "middle" and len(pieces) == 1:
            half = len(pieces[0]) // 2
            pieces = [pieces[0][:half], pieces[0][half:]]
        middle = len(pieces) // 2
        if fault.cut is not None:
            pieces = _shorten(pieces, fault.cut if fault.cut >= 0 else max(0, reply.size + fault.cut))
        return pieces, pause, middle

    async def _hang(self, fault: Fault) -> None:
        """Do nothing until the fault's time is over; a closing provider breaks the connection off."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.closing.wait(), fault.hang_for)
            raise ConnectionAbortedError("the provider closes")


def sever(request: web.BaseRequest, how: str) -> None:
    """Close the connection under the answer: by FIN, or by RST, which loses what is still on its way."""
    transport = request.transport
    if transport is None:
        return
    if how == "rst":
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    else:
        transport.close()


def _as_bytes(body: str | bytes | Mapping[str, Any] | list[Any]) -> bytes:
    if isinstance(body, bytes):
        return body
    return (body if isinstance(body, str) else json.dumps(body)).encode()


def _shorten(pieces: list[bytes], size: int) -> list[bytes]:
    """The first `size` bytes of the pieces, cut up as before."""
    kept: list[bytes] = []
    for piece in pieces:
        if size <= 0:
            break
        kept.append(piece[:size])
        size -= len(piece)
    return kept
