"""What the tests of the backends share: one request, sent once, and what came of it."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cdo.core.exchange import Backend, BackendError, Message, Request, Response
from cdo.providers.http.backend import HttpBackend
from cdo.providers.http.chat_completions import ChatBackend
from cdo.providers.http.messages import MessagesBackend
from cdo.providers.http.responses import ResponsesBackend
from tests.support.provider import Provider

Outcome = Response | BackendError
EVENTS = {"Content-Type": "text/event-stream"}


def request(prompt: str = "why?", *, model: str = "bench", call: str = "t1-architect", **more: Any) -> Request:
    """A request for `call` as the runner would make it."""
    headers = {"X-Cdo-Session": "s", "X-Cdo-Call": call, "X-Cdo-Kind": "agent", "X-Cdo-Attempt": "1"}
    return Request(model, (Message("system", "Be brief."), Message("user", prompt)), 256, headers, **more)


async def attempt(backend: Backend, asked: Request | None = None, heard: list[str] | None = None) -> Outcome:
    """What one request comes to; `heard` collects what `on_text` is told."""
    try:
        return await backend.complete(asked or request(), (heard if heard is not None else []).append)
    except BackendError as error:
        return error


def using(backend: Backend, client: Callable[[Backend], Awaitable[Any]]) -> Any:
    """Run `client` with `backend`, and close it."""

    async def main() -> Any:
        try:
            return await client(backend)
        finally:
            await backend.close()

    return asyncio.run(main())


PROTOCOLS: dict[str, type[HttpBackend]] = {
    "chat": ChatBackend,
    "responses": ResponsesBackend,
    "messages": MessagesBackend,
}


def ask(
    p: Provider,
    asked: Request | None = None,
    *,
    protocol: str = "chat",
    stream: bool = True,
    heard: list[str] | None = None,
    **more: Any,
) -> Outcome:
    """What one request to the provider comes to, through a backend of its own."""
    extra = {} if stream else {"stream": False}
    backend = PROTOCOLS[protocol](p.url + "/v1", **{"extra": extra, **more})
    return using(backend, lambda backend: attempt(backend, asked, heard))  # type: ignore[no-any-return]


def reach_by_litellm(p: Provider, patch: pytest.MonkeyPatch) -> None:
    """Let litellm's paths to OpenAI, Anthropic and vLLM end at `p`, and wait until litellm is there."""
    from cdo.providers import litellm_backend

    patch.setenv("ANTHROPIC_API_KEY", "sk-ant-test")
    patch.setenv("ANTHROPIC_API_BASE", p.url)
    patch.setenv("HOSTED_VLLM_API_KEY", "sk-vllm-test")
    patch.setenv("HOSTED_VLLM_API_BASE", f"{p.url}/v1")
    patch.setenv("OPENAI_API_KEY", "sk-openai-test")
    patch.setenv("OPENAI_API_BASE", f"{p.url}/v1")
    patch.delenv("OPENAI_BASE_URL", raising=False)
    with warnings.catch_warnings():  # importing litellm is not ours to fix
        warnings.simplefilter("ignore")
        litellm_backend.preload()
        assert litellm_backend._module is not None
        litellm_backend._module.result(60)


def answered(outcome: Outcome) -> Response:
    """The response; raises the error if there was one."""
    if isinstance(outcome, BackendError):
        raise outcome
    return outcome


def failed(outcome: Outcome) -> BackendError:
    """The error; fails if there was none."""
    assert isinstance(outcome, BackendError), f"accepted: {outcome.text[-80:]!r} ({outcome.finish})"
    return outcome
