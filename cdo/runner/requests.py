"""Builds the requests of one call to one model, adapts them after faults, and classifies the responses.

Pure, except for loading templates: nothing is sent or written here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from cdo.content.library import Library
from cdo.core.exchange import BackendError, Fault, Finish, Message, Request, Response, ToolCall, Usage
from cdo.core.steps import Call, Missing
from cdo.formats.fields import MAX_REPLY_CHARS
from cdo.providers.models import ModelSpec
from cdo.repository.context import estimate_tokens
from cdo.runner import prompts
from cdo.session.artifact import Artifact

# Faults after which the provider has most likely done the work: if it reports no usage, usage is estimated.
CHARGED = frozenset(
    {Fault.TIMEOUT, Fault.TRUNCATED, Fault.MALFORMED, Fault.EMPTY, Fault.LENGTH, Fault.REFUSED, Fault.INVALID}
)


MOST = 4 * MAX_REPLY_CHARS  # characters recorded of a text; more than any format reads
MOST_WORDS = 8192  # characters kept of a provider's error message, and of an overlong reply that is sent back
MOST_WISHES = 64  # tool uses recorded of one response; more than are ever granted
MOST_WISHED = 65_536  # characters recorded of each field of a tool use


class Toolbox(Protocol):
    """Read-only tools that a model may use: the limits on their use, their schemas, and `run`, which never raises."""

    @property
    def max_requests(self) -> int: ...

    @property
    def max_rounds(self) -> int: ...

    def schemas(self) -> tuple[Mapping[str, Any], ...]: ...

    def run(self, name: str, arguments: str) -> str: ...


@dataclass
class PendingCall:
    """A call in progress: the key of its inputs, its records, and its artifact on disk.

    `last` is (text, model) of the last reply received, valid or not. `failed` is the number of records made before
    the run failed on this call: they are kept, but a resume does not count them as attempts.
    """

    call: Call
    key: str
    inputs: Mapping[str, str]
    texts: Mapping[str, str]
    artifact: Artifact | None
    records: list[dict[str, Any]] = field(default_factory=list)
    given_up: Missing | None = None
    failed: int = 0
    last: tuple[str, str] | None = None

    def take(self, record: dict[str, Any]) -> None:
        """Apply a record of the call: an attempt, a failed run, or the decision to continue without a reply."""
        if record["kind"] == "exchange":
            self.records.append(record)
        elif record["kind"] == "failed":
            self.failed = len(self.records)
        elif record["kind"] == "missing":
            self.given_up = Missing.read(str(record["reason"]))

    @property
    def stale(self) -> bool:
        """True if the artifact on disk was written by cdo from other inputs.

        If this call was given up, its deferred file may come from another call's reply: that is not stale.
        """
        if self.artifact is None or self.artifact.edited or (self.call.deferred and self.given_up):
            return False
        return (self.artifact.own.get("inputs") or {}).get("call") != self.key


class RequestBuilder:
    """Builder of the requests of one call to one model; each result changes the next request."""

    def __init__(
        self,
        library: Library,
        session: str,
        work: PendingCall,
        spec: ModelSpec,
        reply_tokens: int | None,
        toolbox: Toolbox | None = None,
    ) -> None:
        self.problems: tuple[str, ...] = ()
        self._toolbox, self._rounds, self._requests = toolbox, 0, 0
        self._looks: list[Message] = []
        self._looks_limit = 0  # total characters of tool results; 0: no limit
        self._library, self._session, self._work, self._spec = library, session, work, spec
        self._reply_tokens = min(reply_tokens or spec.reply_tokens, spec.window // 2)
        self._rejected = ""
        self._limit = 0

    def reject(self, text: str, problems: Sequence[str]) -> None:
        """Add an invalid reply and its problems to the next request."""
        self._rejected = text if len(text) <= MAX_REPLY_CHARS else prompts.fit(text, MOST_WORDS)
        self.problems = tuple(problems)

    def looked(self, text: str, wishes: Sequence[ToolCall], results: Sequence[str]) -> None:
        """Add tool uses and their results to the next request."""
        self._rounds += 1
        self._requests += len(wishes)
        self._looks.append(Message("assistant", text, tool_calls=tuple(wishes)))
        self._looks += [
            Message("tool", result, tool_call_id=wish.id) for wish, result in zip(wishes, results, strict=True)
        ]

    def refuse_tools(self) -> bool:
        """Stop offering tools; return whether any were offered before."""
        offered, self._toolbox = self._toolbox is not None, None
        return offered

    def change(self, fault: Fault) -> bool:
        """Change the next request to avoid `fault`; return False if that is not possible."""
        if fault in (Fault.LENGTH, Fault.EMPTY):
            self._reply_tokens = min(2 * self._reply_tokens, self._spec.window // 2)
        return fault is not Fault.OVERFLOW or self._shorten()

    def _shorten(self) -> bool:
        """Shorten the texts until the next request is shorter; return False if nothing can be shortened further."""
        before = _size(self.request().messages)
        if answers := sum(len(message.text) for message in self._answers()):
            self._looks_limit = max(1, answers // 2)
        while self._limit != 1:
            self._limit = max(1, (self._limit or self._longest()) // 2)
            if _size(self._messages()) < before:
                return True
        return _size(self._messages()) < before

    def request(self) -> Request:
        """Return the current request, shortened so that it should fit the model's window.

        If it fits, nothing is left out. If not, tool results are limited to half of the window, and the artifacts are
        shortened to the rest.
        """
        call, spec = self._work.call, self._spec
        messages = self._messages()
        room = spec.window - self._reply_tokens
        if _tokens(messages) > room and sum(len(answer.text) for answer in self._answers()) > 2 * spec.window:
            self._looks_limit = 2 * spec.window  # half of the window's tokens, at four characters each
            messages = self._messages()
        while _tokens(messages) > room and self._limit != 1:
            self._limit = max(1, (self._limit or self._longest()) * 2 // 3)
            messages = self._messages()
        return Request(
            model=spec.model,
            messages=messages,
            max_tokens=self._reply_tokens,
            headers={
                "X-Cdo-Session": self._session,
                "X-Cdo-Call": call.name,
                "X-Cdo-Kind": call.kind,
                "X-Cdo-Attempt": str(len(self._work.records) + 1),
            },
            grammar=call.format.grammar() if spec.grammar else "",
            tools=self._tools(),
        )

    def _tools(self) -> tuple[Mapping[str, Any], ...]:
        """Return the tools to offer now: none after the last round or request, so that the model answers."""
        return () if self._toolbox is None or self._used_up or self._rejected else self._toolbox.schemas()

    @property
    def _used_up(self) -> bool:
        """True if tools were offered and the rounds or requests are used up."""
        box = self._toolbox
        return box is not None and (self._rounds >= box.max_rounds or self._requests >= box.max_requests)

    def _longest(self) -> int:
        """Return the length in characters of the longest text that may be shortened."""
        return max((len(text) for name, text in self._work.texts.items() if name != prompts.QUESTION), default=0)

    def _messages(self) -> tuple[Message, ...]:
        offered = self._toolbox is not None
        messages = prompts.messages(
            self._work.call, self._work.texts, self._library, limit=self._limit, tools=offered
        )
        looks = self._looked()
        if not self._rejected:
            return (*messages, *looks)
        told = self._library.render("engine/repair", {"problems": self.problems})
        return (*messages, *looks, Message("assistant", self._rejected), Message("user", told))

    def _answers(self) -> list[Message]:
        """Return the tool results as they are sent."""
        return [message for message in self._looked() if message.role == "tool"]

    def _looked(self) -> list[Message]:
        """Return the messages of tool use so far, results cut to the limit. The last one says if no uses are left."""
        most = _most([len(message.text) for message in self._looks if message.role == "tool"], self._looks_limit)
        looks = [
            replace(message, text=prompts.fit(message.text, most)) if message.role == "tool" else message
            for message in self._looks
        ]
        if looks and self._toolbox and self._used_up:
            values = {"used": min(self._requests, self._toolbox.max_requests),
                      "requests": self._toolbox.max_requests, "rounds": self._rounds}  # fmt: skip
            told = self._library.render("engine/answer-now", values)
            looks[-1] = replace(looks[-1], text=f"{looks[-1].text}\n\n{told}")
        return looks


def _most(sizes: Sequence[int], limit: int) -> int:
    """Return the size to which long texts must be cut to keep a total limit, after short ones have their full size.

    0 means that no text is cut.
    """
    if not limit or sum(sizes) <= limit:
        return 0
    for number, size in enumerate(sorted(sizes)):
        share = limit // (len(sizes) - number)
        if size > share:
            return max(1, share)
        limit -= size
    return 0


def _tokens(messages: Sequence[Message]) -> int:
    return sum(estimate_tokens(message.text) for message in messages)


def _size(messages: Sequence[Message]) -> int:
    return sum(len(message.text) for message in messages)


def kept_of(response: Response) -> dict[str, Any]:
    """Return the recorded form of a response, as JSON data. Overlong texts keep their beginning and end."""
    kept: dict[str, Any] = {"text": prompts.fit(response.text, MOST), "finish": response.finish.value}
    if response.reasoning:
        kept["reasoning"] = prompts.fit(response.reasoning, MOST)
    if response.tool_calls:
        wishes = response.tool_calls[:MOST_WISHES]
        kept["tool_calls"] = [{key: text[:MOST_WISHED] for key, text in asdict(wish).items()} for wish in wishes]
    if response.thread:
        kept["thread"] = asdict(response.thread)
    return kept


def fault_of(response: Response, *, offered: bool) -> BackendError | None:
    """Return the fault of a complete response that is visible without parsing it, or None.

    A tool use counts as an answer only if tools were `offered`; otherwise a model could use tools without end.
    """
    wrong: tuple[Fault, str] | None = None
    if response.finish is Finish.REFUSAL:
        wrong = Fault.REFUSED, "the model refused to answer"
    elif response.tool_calls and offered:
        return None
    elif not response.text.strip():
        what = "it asks for tools that it was not offered" if response.tool_calls else "the answer is empty"
        wrong = Fault.EMPTY, "only reasoning, no answer" if response.reasoning else what
    elif response.finish is Finish.LENGTH:
        wrong = Fault.LENGTH, "the answer was cut off by the token cap"
    return BackendError(*wrong, usage=response.usage, text=response.text) if wrong else None


def usage_of(response: Response | None, error: BackendError | None, input_tokens: int) -> Usage | None:
    """Return the usage of an exchange: as reported, else estimated if the provider most likely did the work.

    A count that the provider left out is estimated too, and so is a count of zero for an answer that has text. Then
    the usage is not `measured`.
    """
    reported = (response.usage if response else None) or (error.usage if error else None)
    if not reported and error and error.fault not in CHARGED:
        return None
    wishes = "".join(wish.name + wish.arguments for wish in response.tool_calls) if response else ""
    text = response.text + response.reasoning + wishes if response else error.text if error else ""
    written = estimate_tokens(text)
    if not reported:
        return Usage(input_tokens, written, measured=False)
    if reported.unreported == "input":
        reported = replace(reported, input_tokens=max(input_tokens, reported.cached_tokens), measured=False)
    if reported.unreported == "output" or (written and not reported.output_tokens):
        reported = replace(reported, output_tokens=written, measured=False)
    return replace(reported, unreported="")
