"""Calls providers without the Chat Completions protocol through litellm (never imported unless needed).

litellm's own retries, cost map download, `.env` search and printing are off: the runner handles all of that. Answers
are not streamed: litellm makes up the end of a stream (and spends 30 ms of CPU a call on streaming), so only a whole
answer shows whether it is complete. `preload` imports litellm in a thread while the run starts.

litellm reports `stop` even if the provider gave no reason for the end, or a reason that litellm does not know. So the
reason is taken from the provider's own response, which litellm passes to a logging function.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from cdo.core.errors import ConfigError
from cdo.core.exchange import BackendError, Fault, Finish, OnText, Request, Response, ToolCall
from cdo.providers.http import chat_completions
from cdo.providers.http.faults import classify, said
from cdo.providers.http.headers import retry_after
from cdo.providers.reported_usage import reported

_module: Future[Any] | None = None
# litellm reports these as server errors: answers that it cannot read, that broke off, or that never began.
_UNREADABLE = re.compile(
    r"Unable to get json response|Empty or invalid response|line \d+ column \d+ \(char \d+\)|No module named|"
    r"Traceback \(most recent call last\)"
)
_CUT = re.compile(r"payload is not completed|peer closed connection without sending complete|incomplete chunked read")
_BROKEN = re.compile(
    r"Server disconnected|Connection reset|Cannot connect|Connection error|attempts failed|Connect call failed"
)
# Finish reasons of other protocols, in addition to those of Chat Completions.
_FINISH = {
    **chat_completions.FINISH,
    "complete": Finish.STOP,
    "finish": Finish.STOP,
    "content_filtered": Finish.REFUSAL,
    "guardrail_intervened": Finish.REFUSAL,
    "error_toxic": Finish.REFUSAL,
    "recitation": Finish.REFUSAL,
    "blocklist": Finish.REFUSAL,
    "prohibited_content": Finish.REFUSAL,
    "spii": Finish.REFUSAL,
    "sensitive": Finish.REFUSAL,
}
_PAUSED = ("pause_turn",)  # is no end, and `length` to litellm since 1.107
# Settings of litellm that override the environment.
_SETTINGS = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_MODE": "PRODUCTION",
}
_REASONS = ("finish_reason", "stop_reason", "finishReason", "stopReason", "done_reason", "completionReason")
_CHOICES = ("choices", "candidates", "results", "outputs")  # in some protocols, the first item holds the reason


def preload() -> None:
    """Start importing litellm in a thread and return at once. Safe to call more than once."""
    global _module
    if _module is not None:
        return
    import threading

    _module = Future()
    _module.set_running_or_notify_cancel()  # a cancelled call must not cancel the import for all others
    threading.Thread(target=_import, args=(_module,), name="cdo-litellm", daemon=True).start()


def _import(done: Future[Any]) -> None:
    # Use the packaged tables (else litellm downloads them while all calls wait), and do not search for a `.env` file.
    for name, value in _SETTINGS.items():
        os.environ[name] = value
    was_enabled = gc.isenabled()
    gc.disable()  # halves the time of the import
    try:
        import litellm

        litellm.suppress_debug_info = True
        litellm.drop_params = True
        litellm.telemetry = False
        for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        _send_once()
        gc.freeze()
        done.set_result(litellm)
    except BaseException as error:
        done.set_exception(error)
    finally:
        if was_enabled:
            gc.enable()


def _send_once() -> None:
    """Turn off retries after a broken connection or a refusal, and redirects: litellm has no setting for these.

    A second request without the tools or parameters that were refused would be neither recorded nor told.

    A redirect would send prompt and key to another address.
    """

    async def no_second_connection(*_: Any, **__: Any) -> Any:
        raise sys.exc_info()[1] or ConnectionError("Connection reset")

    def no_fewer_parameters(error: Exception, *_: Any, **__: Any) -> Any:
        raise error

    def no_second_request(*_: Any, **__: Any) -> bool:
        return False

    with contextlib.suppress(ImportError):
        from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler

        # Before 1.107 also of a request that was sent; since then only where no connection came about.
        for name in ("single_connection_post_request", "single_connection_request"):
            setattr(AsyncHTTPHandler, name, no_second_connection)
        AsyncHTTPHandler.create_client = _staying(AsyncHTTPHandler.create_client)  # type: ignore[method-assign]
    with contextlib.suppress(ImportError):
        from litellm.llms.openai import openai

        openai.drop_params_from_unprocessable_entity_error = no_fewer_parameters  # type: ignore[assignment, attr-defined]
    with contextlib.suppress(ImportError):
        from litellm.llms.azure_ai.chat.transformation import AzureAIStudioConfig

        AzureAIStudioConfig.should_retry_llm_api_inside_llm_translation_on_http_error = no_second_request  # type: ignore[method-assign]
    with contextlib.suppress(ImportError, AttributeError):
        from litellm.llms.openai.common_utils import BaseOpenAILLM

        BaseOpenAILLM._get_async_http_client = staticmethod(_staying(BaseOpenAILLM._get_async_http_client))  # type: ignore[method-assign]


def _staying(make: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `make` so that its HTTP clients follow no redirects."""

    def made(*args: Any, **more: Any) -> Any:
        client = make(*args, **more)
        if client is not None:
            client.follow_redirects = False
        return client

    return made


def loaded() -> bool:
    """True if litellm was imported: its exit handlers then take a second or more."""
    return "litellm" in sys.modules


@dataclass
class _Wire:
    """The bodies of one exchange as litellm logs them: the body sent and the body received."""

    sent: Any = None
    came: Any = None

    def watch(self, details: Mapping[str, Any]) -> None:
        """Store what litellm logs, which it does before and after each exchange."""
        more = details.get("additional_args")
        if isinstance(more, Mapping) and more.get("complete_input_dict"):
            self.sent = _parsed(more["complete_input_dict"])
        if details.get("log_event_type") == "post_api_call":
            self.came = _parsed(details.get("original_response"))

    def lacks(self, name: str) -> bool:
        """True if the sent body is known and has no field `name`, neither at its top level nor one level below."""
        if not isinstance(self.sent, dict):
            return False
        return not any(name in part for part in (self.sent, *self.sent.values()) if isinstance(part, dict))

    def reason(self) -> str:
        """Return the provider's own finish reason, "" if it gave none; raise `BackendError` if no body is known."""
        if not isinstance(self.came, dict):
            raise BackendError(Fault.MALFORMED, "litellm does not show how the provider ended its answer")
        for part in _parts(self.came):
            for key in _REASONS:
                if part.get(key):
                    return str(part[key])
        return ""


def _parts(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the parts of a body that may state the finish reason: itself and its first choice, no model text."""
    yield body
    for key in _CHOICES:
        listed = body.get(key)
        if isinstance(listed, list) and listed and isinstance(listed[0], dict):
            yield listed[0]


def _parsed(body: Any) -> Any:
    """Return a body, parsed if it is a string of JSON; None for any other string."""
    if not isinstance(body, str):
        return body
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(body)
    return None


@dataclass
class LiteLLMBackend:
    """Sends each request through `litellm.acompletion`.

    `say` gets one message for each parameter that litellm leaves out because a model does not accept it.
    """

    temperature: float | None = None
    say: Callable[[str], None] = lambda _: None
    streams: bool = field(default=False, init=False)
    _told: set[tuple[str, str]] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        preload()

    async def complete(self, request: Request, on_text: OnText) -> Response:
        """Send one request and return the complete answer; raises `BackendError`."""
        assert _module is not None
        try:
            litellm = await asyncio.wrap_future(_module)
        except Exception as error:
            raise ConfigError(f"litellm cannot be imported: {error}.", "Reinstall cdo-deliberate.") from None
        extra: dict[str, Any] = {} if self.temperature is None else {"temperature": self.temperature}
        if request.tools:
            extra["tools"] = [{"type": "function", "function": dict(tool)} for tool in request.tools]
            extra["_skip_mcp_handler"] = True  # it would import a package that litellm does not depend on
        wire = _Wire()
        try:
            answer = await litellm.acompletion(
                model=request.model,
                messages=[chat_completions.message_json(message) for message in request.messages],
                max_tokens=request.max_tokens,
                extra_headers=dict(request.headers),
                num_retries=0,
                max_retries=0,
                timeout=3600,  # the runner's deadlines come first
                logger_fn=wire.watch,
                **extra,
            )
        except Exception as error:  # litellm raises its own exceptions, openai's and others
            raise _fault(litellm, error) from None
        self._tell(request.model, [name for name in ("temperature", "tools") if name in extra and wire.lacks(name)])
        response = _response(answer, wire)
        on_text(response.text)
        return response

    def _tell(self, model: str, dropped: list[str]) -> None:
        """Report the parameters that were left out of a request, once for each model."""
        for name in dropped:
            if (model, name) not in self._told:
                self._told.add((model, name))
                self.say(f"{model} does not take `{name}` through litellm: it was left out.")

    async def close(self) -> None:
        if _module is None or not _module.done() or _module.exception():
            return
        closing = getattr(_module.result(), "close_litellm_async_clients", None)
        if closing:
            await closing()


def _fault(litellm: Any, error: Exception) -> BackendError:
    """Return the `BackendError` for one of litellm's exceptions."""
    text = " ".join(str(error).split())
    body = getattr(error, "body", None)  # what OpenAI's client leaves out of the text
    detail = " ".join(str(body.get(key) or "") for key in ("code", "type")) if isinstance(body, dict) else ""
    if isinstance(body, str) and body not in text:
        text = f"{text}: {body}"
    status = getattr(error, "status_code", None)
    headers = getattr(error, "litellm_response_headers", None)
    if isinstance(error, litellm.ContextWindowExceededError):
        fault = Fault.OVERFLOW
    elif isinstance(error, litellm.ContentPolicyViolationError):
        fault = Fault.REFUSED
    elif isinstance(error, OSError):
        fault = Fault.NETWORK
    elif not isinstance(status, int) or status < 300 or (status == 500 and _UNREADABLE.search(text)):
        fault = Fault.MALFORMED
    elif isinstance(error, litellm.Timeout) and not headers:
        fault = Fault.TIMEOUT
    elif not headers and (_CUT.search(text) or _BROKEN.search(text)):
        fault = Fault.TRUNCATED if _CUT.search(text) else Fault.NETWORK
    else:
        fault = classify(429 if status == 500 and "rate_limit_error" in text else status, f"{text} {detail}")
    wait = retry_after({str(key): str(value) for key, value in dict(headers or {}).items()}, time.time())
    return BackendError(fault, _sentence(text)[:300], retry_after=wait)


def _sentence(text: str) -> str:
    """Return the provider's own message, without the text that litellm puts around it."""
    text = re.sub(r"^[^{]{0,120}?(Exception|Error)[\w ]* - ", "", text.partition(" Traceback (most recent")[0])
    text = re.sub(r" Handle with `litellm\.\w+`\.$", "", text)
    with contextlib.suppress(ValueError, RecursionError):
        return said(json.JSONDecoder().raw_decode(text)[0]) or text
    return text


def _response(answer: Any, wire: _Wire) -> Response:
    """Return the complete answer; raise `BackendError` if the provider itself did not state its end."""
    usage = getattr(answer, "usage", None)
    details = getattr(usage, "prompt_tokens_details", None)
    sent, written, cost = (getattr(usage, key, None) for key in ("prompt_tokens", "completion_tokens", "cost"))
    cached, kept = getattr(details, "cached_tokens", None), getattr(details, "cache_creation_tokens", None)
    counted = reported(sent, written, cached, cost, kept)
    if not getattr(answer, "choices", None):
        raise BackendError(Fault.EMPTY, "the provider sent no choice", usage=counted)
    choice = answer.choices[0]
    message = choice.message
    text = message.content or ""
    refusal = (getattr(message, "provider_specific_fields", None) or {}).get("refusal")
    refusal = refusal or getattr(message, "refusal", None)  # since 1.107
    thoughts = str(getattr(message, "reasoning_content", "") or "")
    calls = tuple(
        ToolCall(str(call.id or ""), str(call.function.name or ""), str(call.function.arguments or ""))
        for call in message.tool_calls or ()
    )
    try:
        finish = _finish(str(choice.finish_reason or ""), wire, blank=not (text or refusal or thoughts or calls))
    except BackendError as error:
        error.usage, error.text = counted, text
        raise
    if refusal:
        text, finish = text or str(refusal), Finish.REFUSAL
    return Response(text, finish, counted, thoughts, calls)


def _finish(said: str, wire: _Wire, *, blank: bool) -> Finish:
    """Return why the answer ended: litellm's word `said` if litellm cannot have made it up, else the provider's.

    Raise `BackendError` if the provider gave no reason or an unknown one. `blank` is true for an empty answer.
    """
    if (told := chat_completions.FINISH.get(said.lower())) is Finish.REFUSAL:
        return told
    if told is Finish.LENGTH and not (isinstance(wire.came, dict) and wire.reason() in _PAUSED):
        return told
    reason = wire.reason()
    if not reason:
        fault = Fault.EMPTY if blank else Fault.TRUNCATED
        raise BackendError(fault, "the answer ended without the provider's end")
    if (finish := _FINISH.get(reason.lower())) is None:
        raise BackendError(Fault.TRUNCATED, f"the provider ended with `{reason[:40]}`")
    return finish
