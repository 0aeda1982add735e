"""Reads the output of a command-line agent into a response, as its file in `dispatch/agents/` says. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from msgspec import Struct

from cdo.core.exchange import LOST, BackendError, Fault, Finish, Request, Response, Thread, Usage
from cdo.providers.command_agent import THREAD_ID, Cause, CommandAgent, Counts, Ends, Pick, Scalar, plain, resumes
from cdo.providers.reported_usage import MOST_DOLLARS, amount, count, reported

NOT_STARTED = (126, 127)  # exit codes of shells and `env` for a program that cannot be run
_ANSI = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\-_])")


class ProcessResult(Struct, frozen=True):
    """A process that ended: its output, its exit code (negative: a signal), and the line for which it was ended."""

    out: str
    err: str
    code: int
    again: str = ""


def read(agent: CommandAgent, request: Request, ended: ProcessResult) -> Response:
    """Return the answer in what a process printed; raise `BackendError` with what went wrong.

    If the agent does not have the conversation that `request` continues, the message begins with `LOST`.
    """
    records, strange = _records(agent.output, ended.out)
    usage, thread = _account(agent, request, records)
    text = _text(agent, records, ended)
    complete = _complete(agent, ended, records)
    if complete and text.strip():
        return Response(text, _finish(agent.read.finish, records), usage, thread=thread)
    if complete:
        raise BackendError(Fault.EMPTY, "the agent ended without an answer", usage=usage)
    fault, message, wait = _wrong(agent, request, ended, records, strange)
    raise BackendError(fault, message, retry_after=wait, usage=usage, text=text)


def _complete(agent: CommandAgent, ended: ProcessResult, records: Sequence[dict[str, Any]]) -> bool:
    """True if the agent's own end was found and no error after it; without `done`, if the exit code is 0."""
    done = agent.read.done
    if done is None:
        return ended.code == 0
    for record in reversed(records):
        if _matches(record, done.when) and (not done.paths or any(_picked([record], {}, done.paths))):
            return True
        if any(_matches(record, pick.when) and _said([pick], [record]) for pick in agent.read.errors):
            return False
    return False


def _records(output: str, out: str) -> tuple[list[dict[str, Any]], bool]:
    """Return the JSON objects in an output, and True if there was anything else (not for text around one `json`)."""
    if output == "text":
        return [], False
    pieces = out.split("\n") if output == "jsonl" else [_first_json(out)]
    found = [_json(piece) for piece in pieces if piece.strip()]
    values = [value for item in found for value in (item if isinstance(item, list) else [item])]
    records = [value for value in values if isinstance(value, dict)]
    return records, len(records) < len(values)


def _first_json(text: str) -> str:
    """Return the first JSON object or list that begins a line, without the text around it; else all of `text`."""
    for match in islice(re.finditer(r"^[{\[]", text, re.MULTILINE), 20):
        try:
            return text[match.start() : json.JSONDecoder().raw_decode(text, match.start())[1]]
        except (ValueError, RecursionError):
            continue
    return text


def _json(text: str) -> Any:
    """Return the value of a JSON text; None if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _values(record: Any, path: str) -> Iterator[Any]:
    """Yield all values in `record` that a path leads to."""
    key, _, rest = path.partition(".")
    if isinstance(record, list):
        inner: Iterable[Any] = record if key == "*" else ()
    elif isinstance(record, dict):
        inner = record.values() if key == "*" else [record[key]] if key in record else ()
    else:
        return
    for value in inner:
        if rest:
            yield from _values(value, rest)
        else:
            yield value


def _matches(record: Mapping[str, Any], when: Mapping[str, Scalar]) -> bool:
    # Types are compared too: True equals 1 in Python, but not in JSON.
    return all(
        any(type(value) is type(wanted) and value == wanted for value in _values(record, path))
        for path, wanted in when.items()
    )


def _picked(records: Sequence[dict[str, Any]], when: Mapping[str, Scalar], paths: Sequence[str]) -> Iterator[Any]:
    for record in records:
        if _matches(record, when):
            for path in paths:
                yield from _values(record, path)


def _strings(records: Sequence[dict[str, Any]], pick: Pick | Ends | None) -> list[str]:
    found = _picked(records, pick.when, pick.paths) if pick else ()
    return [value for value in found if isinstance(value, str) and value]


def _text(agent: CommandAgent, records: Sequence[dict[str, Any]], ended: ProcessResult) -> str:
    if agent.output == "text":
        return _ANSI.sub("", ended.out).strip()
    texts = _strings(records, agent.read.text)
    # JSON may contain lone surrogates, which cannot be written to a file.
    return plain("".join(texts) if agent.read.take == "join" else texts[-1] if texts else "")


def _finish(ends: Ends | None, records: Sequence[dict[str, Any]]) -> Finish:
    named = _strings(records, ends)
    return ends.values.get(named[-1], Finish.STOP) if ends and named else Finish.STOP


def _account(
    agent: CommandAgent, request: Request, records: Sequence[dict[str, Any]]
) -> tuple[Usage | None, Thread | None]:
    """Return the usage of the exchange, and the conversation to continue later if the request asks for one."""
    before = resumes(agent, request)
    counts, usage = agent.read.usage, None
    if counts:
        sent, made, cached = (_total(records, counts, key) for key in (counts.input, counts.output, counts.cached))
        stated = map(_dollars, _picked(records, counts.when, counts.cost))
        costs = [dollars for dollars in stated if dollars is not None]
        cost: float | None = sum(costs) if costs else None
        if counts.running and before:
            sent, made = _since(sent, before.input_tokens), _since(made, before.output_tokens)
            cached = _since(cached, before.cached_tokens)
            cost = None  # the total of a conversation: the cost of this exchange is not known
        usage = reported(sent, made, cached, cost)
    ids = [name for name in _strings(records, agent.read.thread) if THREAD_ID.fullmatch(name)]
    if not agent.resume or not (request.keep or before) or not (ids or before):
        return usage, None
    old, new = before or Thread(""), usage or Usage()
    return usage, Thread(
        ids[-1] if ids else old.id,
        old.input_tokens + new.input_tokens,
        old.output_tokens + new.output_tokens,
        old.cached_tokens + new.cached_tokens,
    )


def _total(records: Sequence[dict[str, Any]], counts: Counts, paths: Sequence[str]) -> int | None:
    """Return the sum of the token counts at `paths`; None if there is none."""
    found = [known for value in _picked(records, counts.when, paths) if (known := count(value)) is not None]
    return sum(found) if found else None


def _since(total: int | None, before: int) -> int | None:
    """Return what was added to the running total of a conversation; None if the total is not known."""
    return None if total is None else max(0, total - before)


def _dollars(value: Any) -> float | None:
    return amount(value, MOST_DOLLARS)


# -- what went wrong -------------------------------------------------------------------------------


def _wrong(
    agent: CommandAgent, request: Request, ended: ProcessResult, records: Sequence[dict[str, Any]], strange: bool
) -> tuple[Fault, str, float | None]:
    """Return (fault, message, seconds to wait if stated) for a process that ended before its answer was complete."""
    told = _json(ended.err[_last_object(ended.err) :])
    everywhere = [*records, told] if isinstance(told, dict) else records
    said = _said(agent.read.errors, everywhere)
    if not said and not ended.code:
        if strange:
            return Fault.MALFORMED, "the agent printed text that is not in the JSON format of its documentation", None
        if not ended.out.strip():
            return Fault.EMPTY, "the agent printed nothing", None
        return Fault.TRUNCATED, "the output ended before the agent's own end", None
    lines = [line.strip() for line in _ANSI.sub("", ended.err).splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    if not said and ended.code in NOT_STARTED:
        return Fault.REJECTED, _line(f"the program cannot be run: {last or ended.code}"), None
    cause, wait = _cause(agent, said or ended.again or "\n".join(lines[-20:]))
    if said and not cause and (logged := _logged(agent.read.log, ended.err)):
        said, (cause, wait) = logged, _cause(agent, logged)
    how = f"ended by signal {-ended.code}" if ended.code < 0 else f"exit code {ended.code}"
    message = said or ended.again or last or f"the agent failed without a word ({how})"
    if cause and cause.lost and resumes(agent, request):
        message = f"{LOST}: {message}"
    return cause.fault if cause else agent.exits.get(ended.code, Fault.CRASHED), _line(message), wait


def _line(text: str) -> str:
    """Return `text` as one short line for a message."""
    return plain(" ".join(text.split())[:300])


def _last_object(text: str) -> int:
    """Return the position of the last line that begins with `{`; the end of the text if there is none."""
    starts = [match.start() for match in re.finditer(r"^\{", text, re.MULTILINE)]
    return starts[-1] if starts else len(text)


def _said(errors: Sequence[Pick], records: Sequence[dict[str, Any]]) -> str:
    """Return the last reported error (the texts and numbers at its paths, joined); "" if there is none."""
    for pick in errors:
        for record in reversed(records):
            found = [value for value in _picked([record], pick.when, pick.paths) if isinstance(value, str | int)]
            if words := [str(value) for value in found if value != "" and not isinstance(value, bool)]:
                return " ".join(words)
    return ""


def _logged(pattern: str, err: str) -> str:
    """Return the last error in the log on stderr; "" if there is none."""
    found = [match["said"] for match in re.finditer(pattern, err)] if pattern else []
    return found[-1] or "" if found else ""


def _cause(agent: CommandAgent, heard: str) -> tuple[Cause | None, float | None]:
    """Return the first cause whose words match, and the seconds to wait if stated."""
    for cause in agent.causes:
        if match := re.search(cause.words, heard[:4000], re.IGNORECASE):
            seconds = match.groupdict().get("seconds") or ""
            return cause, float(seconds) if re.fullmatch(r"\d{1,6}(\.\d*)?", seconds, re.ASCII) else None
    return None, None
