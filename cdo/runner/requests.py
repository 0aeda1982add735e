"""Builds the requests of one call to one model, and adapts them after faults.

Pure, except for loading templates: nothing is sent or written here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from cdo.content.library import Library
from cdo.core.exchange import Effort, Fault, Message, Request, ToolCall
from cdo.core.people import person_of
from cdo.core.steps import Call, DocumentedFormat, InvalidReply, Missing
from cdo.core.usage import estimate_tokens
from cdo.formats.fields import MAX_REPLY_CHARS
from cdo.formats.reply_schema import reply_schema
from cdo.providers.models import ModelSpec
from cdo.runner import prompts
from cdo.runner.prompt_fitting import TextLimits, without_oldest
from cdo.session.artifact import Artifact
from cdo.session.recorded_replies import reply_text

MOST_WORDS = 8192  # characters kept of a provider's error message, and of an overlong reply that is sent back
SHORTEST_DRAFT = 200  # characters; a shorter reply is no draft that could be corrected


class Toolbox(Protocol):
    """Read-only tools that a model may use: the limits on their use, their schemas, and `run`, which never raises."""

    @property
    def max_requests(self) -> int: ...

    @property
    def max_rounds(self) -> int: ...

    def schemas(self) -> tuple[Mapping[str, Any], ...]: ...

    def run(self, name: str, arguments: str) -> str: ...


class PendingCall(Struct):
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

    def said(self, record: Mapping[str, Any]) -> str:
        """Return the reply that a recorded response of the call gives."""
        return reply_text(record, self.records)

    @property
    def person(self) -> str:
        """The name of the person who is asked; "" if models are."""
        return person_of(self.call.models[0]) if self.call.models else ""

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
        *,
        effort: Effort | None = None,
    ) -> None:
        self.problems: tuple[str, ...] = ()
        self._toolbox, self._rounds, self._requests = toolbox, 0, 0
        self._looks: list[Message] = []
        self._looks_limit = 0  # total characters of tool results; 0: no limit
        self._library, self._session, self._work, self._spec = library, session, work, spec
        self._reply_tokens = min(reply_tokens or spec.reply_tokens, spec.window // 2)
        self._effort = work.call.effort or effort
        self._rejected = ""
        self._alone: str | None = None  # the object of the rejected reply, if its documents are kept
        self._rejections, self._needs_prompt = 0, False
        self._limits = TextLimits(work.texts)

    def reject(self, text: str, invalid: InvalidReply, *, kept: bool = False) -> None:
        """Add an invalid reply and its problems to the next request.

        `kept` says that the backend keeps the conversation: it has the prompt already.
        """
        form, self._alone = self._work.call.format, None
        if isinstance(form, DocumentedFormat) and not kept and not invalid.needs_prompt:
            self._alone = form.object_alone(text)
        too_long = len(text if self._alone is None else self._alone) > MAX_REPLY_CHARS
        self._rejected = prompts.fit(text, MOST_WORDS) if too_long else text
        self.problems = invalid.problems
        self._rejections += 1
        self._needs_prompt = kept or too_long or invalid.needs_prompt

    def looked(
        self,
        text: str,
        wishes: Sequence[ToolCall],
        results: Sequence[str],
        carried: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Add tool uses and their results to the next request, with what the provider wants back with them."""
        self._rounds += 1
        self._requests += len(wishes)
        self._looks.append(Message("assistant", text, tool_calls=tuple(wishes), carried=tuple(carried)))
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
            before = self._reply_tokens
            self._reply_tokens = max(before, min(2 * before, self._spec.longest_reply, self._spec.window // 2))
            if fault is Fault.LENGTH and self._reply_tokens == before:
                return False
        return fault is not Fault.OVERFLOW or self._shorten()

    def _shorten(self) -> bool:
        """Shorten the texts until the next request is shorter; return False if nothing can be shortened further."""
        before = _size(self.request().messages)
        answers = sum(len(message.text) for message in self._answers())
        if answers:
            self._looks_limit = max(1, answers // 2)
        goal = before - (answers + self._limits.size()) // 2
        while (size := _size(self._messages())) > goal and self._limits.lower(size - goal):
            pass
        return size < before

    def request(self) -> Request:
        """Return the current request, shortened so that it should fit the model's window.

        If it fits, nothing is left out. If not, tool results are limited to half of the window, and the artifacts to
        the rest.
        """
        call, spec = self._work.call, self._spec
        messages, corrects = self._messages(), bool(self._correction())
        joins = corrects and self._alone is not None
        room = spec.window - self._reply_tokens
        if _tokens(messages) > room and sum(len(answer.text) for answer in self._answers()) > 2 * spec.window:
            self._looks_limit = 2 * spec.window  # half of the window's tokens, at four characters each
            messages = self._messages()
        while (over := _tokens(messages) - room) > 0 and self._limits.lower(4 * over):
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
            tools=(tools := self._tools()),
            closed_tools=() if tools or corrects or self._toolbox is None else self._toolbox.schemas(),
            effort=(self._effort or prompts.effort(call, self._library)) if spec.reasoning else None,
            cache_key=self._key(messages) if spec.protocol == "responses" or spec.extension else "",
            schema=reply_schema(call.format, alone=joins) if corrects and not spec.grammar else None,
            joins=joins,
        )

    def _key(self, messages: Sequence[Message]) -> str:
        """Return the key of what these messages share with others, so that providers send those to one cache.

        A provider serves few requests a minute from one cache, so turns and steps have keys of their own.
        """
        shared = [message.text[: message.shared] for message in messages if message.shared]
        whole = "\0".join([self._session, *shared]).encode("utf-8", "replace")
        return f"cdo-{sha256(whole).hexdigest()[:32]}"

    def _tools(self) -> tuple[Mapping[str, Any], ...]:
        """Return the tools to offer now: none after the last round or request, so that the model answers."""
        return () if self._toolbox is None or self._used_up or self._rejected else self._toolbox.schemas()

    @property
    def _used_up(self) -> bool:
        """True if tools were offered and the rounds or requests are used up."""
        box = self._toolbox
        return box is not None and (self._rounds >= box.max_rounds or self._requests >= box.max_requests)

    def _messages(self) -> tuple[Message, ...]:
        if alone := self._correction():
            return alone
        offered = self._toolbox is not None
        messages = prompts.messages(
            self._work.call, self._work.texts, self._library, limits=self._limits.limits, tools=offered
        )
        looks = self._looked()
        if not self._rejected:
            return (*messages, *looks)
        told = self._library.render("engine/repair", {"problems": self.problems})
        return (*messages, *looks, Message("assistant", self._rejected), Message("user", told))

    def _correction(self) -> tuple[Message, ...]:
        """Return the messages of a first repair that needs the draft alone; () if the whole prompt is needed."""
        draft, call = self._rejected, self._work.call
        if self._rejections != 1 or len(draft.strip()) < SHORTEST_DRAFT or self._needs_prompt:
            return ()
        kept = self._alone is not None
        draft = self._alone or draft
        return prompts.correction(call, self._work.texts, self._library, draft, self.problems, documents_kept=kept)

    def _answers(self) -> list[Message]:
        """Return the tool results as they are sent."""
        return [message for message in self._looked() if message.role != "assistant"]

    def _looked(self) -> list[Message]:
        """Return the messages of tool use so far, without what has no room. The last one says if no uses are left.

        They are told as text if no tools can be offered any more: who refuses tools refuses uses of them too.
        """
        told = self._library.render("engine/left-out", {}) if self._looks_limit else ""
        looks = without_oldest(self._looks, self._looks_limit, told)
        if looks and self._toolbox is None:
            return [Message("user", self._library.render("engine/looked", {"looks": _as_texts(looks)}))]
        if looks and self._toolbox and self._used_up:
            values = {"used": min(self._requests, self._toolbox.max_requests),
                      "requests": self._toolbox.max_requests, "rounds": self._rounds}  # fmt: skip
            told = self._library.render("engine/answer-now", values)
            looks[-1] = replace(looks[-1], text=f"{looks[-1].text}\n\n{told}")
        return looks


def _as_texts(looks: Sequence[Message]) -> list[dict[str, str]]:
    """Return each tool use with its result, as data of a template."""
    wishes = [wish for message in looks for wish in message.tool_calls]
    results = (message.text for message in looks if message.role == "tool")
    return [
        {"tool": wish.name, "arguments": wish.arguments, "result": result}
        for wish, result in zip(wishes, results, strict=True)
    ]


def _tokens(messages: Sequence[Message]) -> int:
    return sum(estimate_tokens(message.text) for message in messages)


def _size(messages: Sequence[Message]) -> int:
    return sum(len(message.text) for message in messages)
