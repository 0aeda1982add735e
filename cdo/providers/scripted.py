"""Answers requests from a script, for tests and demonstrations: without network and without cost.

A script is a YAML file that maps the name of a call, or else its kind, to the text of its reply. A list holds one
text for each attempt. A script may also be a function.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import yaml

from cdo.core.errors import ConfigError
from cdo.core.exchange import BackendError, Fault, OnText, Request, Response, Usage

Script = Mapping[str, str | Sequence[str]]


class ScriptedBackend:
    """Answers each request from `script`; raises `BackendError` for a call that the script does not know."""

    streams = True

    def __init__(self, script: Script | Callable[[Request], str], latency: float = 0.0) -> None:
        self._script, self._latency = script, latency
        self.requests: list[Request] = []

    @classmethod
    def from_file(cls, path: Path) -> ScriptedBackend:
        """Load a script; raise `ConfigError` when it is not a mapping of texts."""
        try:
            data = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise ConfigError(f"The script {path} cannot be read: {error}.") from None
        if not isinstance(data, dict):
            raise ConfigError(f"The script {path} must map names of calls, or kinds, to replies.")
        return cls({str(key): value for key, value in data.items()})

    async def complete(self, request: Request, on_text: OnText) -> Response:
        """Return the scripted reply of the call named in the request's headers; raise `BackendError` without one."""
        self.requests.append(request)
        if self._latency:
            await asyncio.sleep(self._latency)
        text = self._script(request) if callable(self._script) else self._find(self._script, request)
        on_text(text)
        sent = sum(len(message.text) for message in request.messages)
        return Response(text, usage=Usage(sent // 4, len(text) // 4))

    def _find(self, script: Script, request: Request) -> str:
        name, kind = request.headers["X-Cdo-Call"], request.headers["X-Cdo-Kind"]
        reply = script.get(name, script.get(kind))
        if reply is None:
            raise BackendError(Fault.REJECTED, f"the script has no reply for {name} or {kind}")
        if isinstance(reply, str):
            return reply
        return str(reply[min(int(request.headers["X-Cdo-Attempt"]), len(reply)) - 1])

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""
