"""Makes spans of the records of a session: of the run, each call, each attempt and each tool use. Pure.

Token counts are attributes of attempts only, so that a sum over a trace counts each token once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Any

import msgspec
from msgspec import Struct, field

from cdo.core.exchange import Fault
from cdo.core.formatting import one_line
from cdo.core.mission_names import MODE
from cdo.core.people import person_of
from cdo.session.session_file import Frozen
from cdo.tracing import conventions
from cdo.tracing.identity import TraceIdentity

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = 2**62  # nanoseconds since 1970: a time of the year 2116 is an error or a forgery
_NAME = 200  # characters of a name among the attributes
_INT32 = 2**31


class SpanKind(IntEnum):
    """The kinds of spans, with the numbers that OTLP gives them."""

    INTERNAL = 1
    CLIENT = 3


class SpanLink(Struct, frozen=True):
    """A span of another trace that a span has to do with."""

    trace_id: str
    span_id: str
    attributes: Mapping[str, Any] = msgspec.field(default_factory=dict)


class TraceSpan(Struct, frozen=True):
    """One span. Times are nanoseconds since 1970. `error` is the class of the error that it ended with, "" for none.

    `message` says more of the error; it can quote what a provider wrote, so it counts as content.
    """

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: SpanKind
    start: int
    end: int
    attributes: Mapping[str, Any]
    error: str = ""
    message: str = ""
    links: tuple[SpanLink, ...] = ()


class AskedCall(Struct):
    """The records of one call with the same inputs: its exchanges in order, and the results of tools by attempt."""

    call: str
    inputs: str
    exchanges: list[Mapping[str, Any]] = field(default_factory=list)
    tools: dict[int, Sequence[str]] = field(default_factory=dict)
    missing: bool = False


class CallRecords:
    """The records of a session, grouped by invocation as they come."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self._found: dict[str, dict[str, AskedCall]] = {}

    def add(self, record: Mapping[str, Any]) -> None:
        """Take in a record; those that are of no call are left out."""
        if record["kind"] == "text":
            self.texts[str(record["sha256"])] = str(record["text"])
            return
        if record["kind"] not in ("exchange", "tools", "missing"):
            return
        call, inputs = str(record["call"]), str(record["inputs"])
        found = self._found.setdefault(call, {})
        if (invocation := found.get(inputs)) is None:
            invocation = found[inputs] = AskedCall(call, inputs)
        if record["kind"] == "exchange":
            invocation.exchanges.append(record)
        elif record["kind"] == "tools":
            invocation.tools[int(record["attempt"])] = record["results"]
        else:
            invocation.missing = True

    def invocations(self, call: str | None = None) -> list[AskedCall]:
        """Return the invocations of a call, of all calls without one, in order."""
        if call is not None:
            return list(self._found.get(call, {}).values())
        return [invocation for found in self._found.values() for invocation in found.values()]


class SpanMaker(Struct, frozen=True):
    """Makes the spans of one session. With `with_content` they carry prompts, replies and what tools were asked.

    `labels` are further attributes of the span of the run.
    """

    identity: TraceIdentity
    frozen: Frozen
    with_content: bool = False
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)

    @property
    def began(self) -> int:
        """When the session was created."""
        return nanoseconds(self.frozen.created) or 0

    def of_calls(
        self, records: CallRecords, tool_ends: Mapping[str, Sequence[int]], call: str | None = None
    ) -> Iterator[TraceSpan]:
        """Yield the spans of a call, of all calls without one; `tool_ends` are the ends of tool uses by call.

        What a fork took over is left out: its origin's trace has it.
        """
        at = self.began
        for invocation in records.invocations(call):
            if all(exchange.get("from") for exchange in invocation.exchanges):
                continue
            spans = list(self._invoked(invocation, at, tool_ends.get(invocation.call, ()), records.texts))
            at = spans[0].start
            yield from spans

    def of_run(self, start: int, end: int, status: str, error: str = "") -> TraceSpan:
        """Return the span of the run, which lasted at least from `start` to `end`."""
        plan, forked = self.frozen.plan, self.frozen.forked
        name = one_line(plan.mode or plan.preset, _NAME)
        attributes = {
            "gen_ai.operation.name": "invoke_workflow",
            "gen_ai.agent.name": name,
            "cdo.session": self.identity.session,
            "cdo.preset": MODE if plan.crew else one_line(plan.preset, _NAME),
            "cdo.status": one_line(status, _NAME),
        } | {key: one_line(value, _NAME) for key, value in self.labels.items()}
        links: tuple[SpanLink, ...] = ()
        if forked:
            origin = TraceIdentity.of(forked.session, forked.created)
            links = (SpanLink(origin.trace_id, origin.root_id, {"cdo.fork.turn": forked.turn}),)
        begin = min(self.began or start, start)
        return self._span(
            self.identity.root_id, self.identity.parent_id, f"invoke_workflow {name}", SpanKind.INTERNAL,
            (begin, max(begin, end)), attributes, error, links=links,
        )  # fmt: skip

    # -- one call ------------------------------------------------------------------------------

    def _invoked(
        self, invocation: AskedCall, before: int, tool_ends: Sequence[int], texts: Mapping[str, str]
    ) -> Iterator[TraceSpan]:
        """Yield the span of an invocation, then those of its attempts and tool uses."""
        identity = self.identity.span_id("call", invocation.call, invocation.inputs)
        times = list(_times(invocation.exchanges, before))
        inner: list[TraceSpan] = []
        for number, (exchange, (start, end)) in enumerate(zip(invocation.exchanges, times, strict=True), 1):
            if exchange.get("from"):
                continue
            inner.append(self._attempt(invocation, number, exchange, (start, end), identity, texts))
            until = times[number][0] if number < len(times) else _LATEST
            results = invocation.tools.get(int(exchange["attempt"]), ())
            inner += self._tool_uses(invocation, number, exchange, (end, until), identity, tool_ends, results)
        last = invocation.exchanges[-1]
        name, turn = _agent(invocation.call)
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": name,
            "cdo.call": one_line(invocation.call, _NAME),
            "cdo.call.kind": one_line(last["call_kind"], _NAME),
        } | ({"cdo.turn": turn} if turn is not None else {})
        within = (min(span.start for span in inner), max(span.end for span in inner))
        yield self._span(
            identity, self.identity.root_id, f"invoke_agent {name}", SpanKind.INTERNAL, within, attributes,
            _failed(invocation),
        )  # fmt: skip
        yield from inner

    def _attempt(
        self,
        invocation: AskedCall,
        number: int,
        exchange: Mapping[str, Any],
        times: tuple[int, int],
        parent: str,
        texts: Mapping[str, str],
    ) -> TraceSpan:
        """Return the span of one exchange with a model, or of the answer of a person, which is no chat."""
        identity = self.identity.span_id("attempt", invocation.call, invocation.inputs, str(number))
        request, fault = exchange["request"], exchange.get("fault") or {}
        failed = (str(fault.get("kind", "")), str(fault.get("message", "")))
        attributes: dict[str, Any] = {"cdo.call": one_line(invocation.call, _NAME), "cdo.attempt": number}
        if self.with_content:
            attributes |= conventions.content(exchange, texts)
        if person := person_of(str(exchange["model"])):
            attributes["cdo.person"] = one_line(person, _NAME)
            title = f"answer {attributes['cdo.person']}"
            return self._span(identity, parent, title, SpanKind.INTERNAL, times, attributes, *failed)
        provider, model = conventions.provider_and_model(str(exchange["model"]), self.frozen.plan.vendors)
        most, thread = request.get("max_tokens"), (exchange.get("response") or {}).get("thread") or {}
        attributes |= {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": one_line(provider, _NAME),
            "gen_ai.request.model": one_line(model, _NAME),
        }
        if isinstance(most, int) and 0 < most < _INT32:
            attributes["gen_ai.request.max_tokens"] = most
        if request.get("schema") is True:
            attributes["gen_ai.output.type"] = "json"
        if thread.get("id"):
            attributes["gen_ai.conversation.id"] = one_line(thread["id"], _NAME)
        if reasons := conventions.finish_reasons(exchange):
            attributes["gen_ai.response.finish_reasons"] = list(reasons)
        attributes |= _usage(exchange)
        title = f"chat {attributes['gen_ai.request.model']}"
        return self._span(identity, parent, title, SpanKind.CLIENT, times, attributes, *failed)

    def _tool_uses(
        self,
        invocation: AskedCall,
        number: int,
        exchange: Mapping[str, Any],
        within: tuple[int, int],
        parent: str,
        ends: Sequence[int],
        results: Sequence[str],
    ) -> Iterator[TraceSpan]:
        """Yield the spans of the tool uses that a reply asked for, one after the other between two attempts.

        `ends` are the times at which tool uses of the call ended, where that is known.
        """
        wishes = (exchange.get("response") or {}).get("tool_calls") or ()
        start, until = within
        known = [end for end in ends if start <= end <= until]
        offered = exchange["request"].get("tools") or ()
        for place, (wish, result) in enumerate(zip(wishes, results, strict=False)):
            end = max(start, known[place] if place < len(known) else until if until < _LATEST else start)
            # A name that was not offered is a text that the model made up.
            name = one_line(wish["name"], _NAME) if wish["name"] in offered else "unknown"
            attributes: dict[str, Any] = {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": name,
                "gen_ai.tool.type": "function",
                "gen_ai.tool.call.id": one_line(wish["id"], _NAME),
                "cdo.call": one_line(invocation.call, _NAME),
            }
            if self.with_content:
                attributes["gen_ai.tool.call.arguments"] = conventions.arguments(wish)
                attributes["gen_ai.tool.call.result"] = conventions.cut(result)
            identity = self.identity.span_id("tool", invocation.call, invocation.inputs, str(number), str(place))
            yield self._span(identity, parent, f"execute_tool {name}", SpanKind.INTERNAL, (start, end), attributes)
            start = end

    def _span(
        self,
        identity: str,
        parent: str,
        name: str,
        kind: SpanKind,
        times: tuple[int, int],
        attributes: Mapping[str, Any],
        error: str = "",
        message: str = "",
        links: tuple[SpanLink, ...] = (),
    ) -> TraceSpan:
        told = {**attributes, "error.type": error} if error else attributes
        more = conventions.cut(message) if self.with_content else ""
        return TraceSpan(self.identity.trace_id, identity, parent, name, kind, *times, told, error, more, links)


# -- parts -----------------------------------------------------------------------------------------


def nanoseconds(text: str) -> int | None:
    """Return a recorded time (ISO 8601) in nanoseconds since 1970; None if it is none, or one that cannot be."""
    try:
        at = datetime.fromisoformat(text)
        found = ((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1) * 1000
    except (ValueError, OverflowError):
        return None
    return found if 0 <= found < _LATEST else None


def extent(spans: Iterable[TraceSpan], start: int) -> tuple[int, int]:
    """Return from when to when the spans last; `start` twice if there are none."""
    times = [(span.start, span.end) for span in spans]
    return min((begin for begin, _ in times), default=start), max((end for _, end in times), default=start)


def _times(exchanges: Sequence[Mapping[str, Any]], before: int) -> Iterator[tuple[int, int]]:
    """Yield from when to when each exchange lasted. One without a time begins when the one before it ended."""
    for exchange in exchanges:
        start = nanoseconds(str(exchange.get("started") or ""))
        start = before if start is None else start
        before = min(start + round(float(exchange.get("seconds") or 0.0) * 1000) * 10**6, _LATEST)
        yield start, before


def _usage(exchange: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tokens and the cost of an exchange as attributes. What is not known is left out."""
    usage = exchange.get("usage")
    if not usage:
        return {}
    found: dict[str, Any] = {
        "gen_ai.usage.input_tokens": usage["input_tokens"],
        "gen_ai.usage.output_tokens": usage["output_tokens"],
    }
    for kind, key in (("cache_read", "cached_tokens"), ("cache_creation", "cache_write_tokens")):
        if tokens := usage.get(key):  # the conventions want it only if it is not 0
            found[f"gen_ai.usage.{kind}.input_tokens"] = tokens
    if not usage.get("measured", True):
        found["cdo.usage.estimated"] = True
    if exchange.get("cost") is not None:
        found["cdo.cost.usd"] = float(exchange["cost"])
    return found


def _agent(call: str) -> tuple[str, int | None]:
    """Return the name of the agent that a call asks, which is the same in all turns, and its turn or round."""
    letter, _, rest = call.partition("-")
    if letter[:1] not in ("t", "r") or not re.fullmatch(r"[0-9]{1,6}", letter[1:]) or not rest:
        return one_line(call, _NAME), None
    if letter[0] == "r":  # of a mission: the rest says what is asked, and of which product
        operative = re.search(r"operative-[0-9]+", rest)
        rest = operative[0] if operative else rest.partition("-")[0]
    return one_line(rest, _NAME), int(letter[1:])


def _failed(invocation: AskedCall) -> str:
    """Return the class of the error of a call without a valid reply, "" for one that has it or may still get it."""
    kind = str((invocation.exchanges[-1].get("fault") or {}).get("kind", ""))
    if invocation.missing:
        return kind or Fault.INVALID.value
    return "" if kind == Fault.LENGTH.value else kind  # what is complete of a reply that was cut off can count
