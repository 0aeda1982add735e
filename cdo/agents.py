"""Command-line agents as content: what `dispatch/agents/*.yaml` may say, and the pure half of using one.

`launch` turns a request into arguments, input, environment and files; `read` turns what the process printed into a
response. Neither starts anything, and neither reads a file, a clock or the environment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from cdo.errors import ContentError
from cdo.types import BackendError, Fault, Finish, Message, Request, Response, Thread, Usage

if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2.sandbox import ImmutableSandboxedEnvironment

_ANSI = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\-_])")
_THREAD = re.compile(r"[A-Za-z0-9][\w.:-]{0,127}", re.ASCII)  # an id is an argument later: never an option or a path
_TAGS = re.compile(r"\{%.*?%\}")


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return text


Pattern = Annotated[str, AfterValidator(_pattern)]
Program = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")]
Scalar = bool | int | str


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Pick(_Part):
    """Where something stands in the output: in each record in which all of `when` holds, at each of `paths`.

    A path is keys joined by dots, `*` for any key or place in a list; it may lead to several values.
    """

    when: dict[str, Scalar] = {}
    paths: tuple[str, ...] = ()


class Counts(_Part):
    """Where tokens and dollars stand, as `Pick` has it; the values behind all paths of a key are added up.

    `input` counts all tokens that were read, those from a cache included. With `running` a resumed conversation is
    reported as a whole: what its earlier exchanges took has to be subtracted.
    """

    when: dict[str, Scalar] = {}
    input: tuple[str, ...]
    output: tuple[str, ...]
    cached: tuple[str, ...] = ()
    cost: tuple[str, ...] = ()
    running: bool = False


class Ends(_Part):
    """How the output names the reason for the reply's end, and which of its words mean more than "stop"."""

    when: dict[str, Scalar] = {}
    paths: tuple[str, ...]
    values: dict[str, Finish]


class Reading(_Part):
    """How to read the output. `done` marks the agent's own end: a reply without it is not complete.

    Of several texts the last one counts, or all joined. `errors` name what went wrong; they count only where the end
    is missing, because agents also report what they then recover from. `again` are words of a line (a regular
    expression) by which the agent says that it will try again by itself: it is ended there, since one place retries.
    """

    text: Pick = Pick()
    take: Literal["last", "join"] = "last"
    done: Pick | None = None
    finish: Ends | None = None
    thread: Pick | None = None
    usage: Counts | None = None
    errors: tuple[Pick, ...] = ()
    again: Pattern = ""


class Cause(_Part):
    """Words of an error (a regular expression, any case) and the fault behind them.

    A group called `seconds` is how long the agent asks to wait.
    """

    words: Pattern
    fault: Fault


class Environment(_Part):
    """What the process sees: variables passed by name or by how it begins, and ones that are set (templates)."""

    names: tuple[str, ...]
    prefixes: tuple[str, ...] = ()
    set: dict[str, str] = {}


class CommandAgent(_Part):
    """`dispatch/agents/*.yaml`: one command-line agent.

    `program` is looked for on PATH, `install` tells how to get it. Each item of `argv` is a template and stays one
    argument; one that renders to nothing is left out. `resume` are the arguments that go on with a conversation
    (empty: it cannot). `stdin` tells whether the prompt comes that way, else `argv` has to carry it; with
    `system: prompt` the rules come before the prompt. `files` are templates by their name in a private folder that
    is gone afterwards. Templates know `model`, `system`, `prompt`, `thread`, `keep`, `home` (that folder) and
    `passed` (the names of the variables that were passed). `exits` are faults by exit code, for errors whose words
    `causes` does not know.
    """

    purpose: str
    load_when: str
    program: Program
    install: str
    vendor: str = ""
    argv: tuple[str, ...]
    resume: tuple[str, ...] = ()
    stdin: Literal["prompt", "none"] = "prompt"
    system: Literal["own", "prompt"] = "own"
    env: Environment
    files: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")], str] = {}
    output: Literal["jsonl", "json", "text"]
    read: Reading = Reading()
    causes: tuple[Cause, ...] = ()
    exits: dict[int, Fault] = {}
    window: Annotated[int, Field(ge=1024)]
    reply_tokens: Annotated[int, Field(ge=256)]

    @model_validator(mode="after")
    def _sound(self) -> CommandAgent:
        for argv in (self.argv, self.resume):
            for position, item in enumerate(argv):
                if _TAGS.sub("", item).lstrip().startswith("{{") and "--" not in argv[:position]:
                    raise ValueError(f"`{item}` could become an option: write --option={item} or put -- before it")
        if self.output != "text" and not (self.read.text.paths and self.read.done):
            raise ValueError("`read` needs `text` and `done`, unless the output is text")
        return self


@dataclass(frozen=True)
class Launch:
    """A process, ready to be started: arguments without the program, input, environment, files of its own."""

    argv: tuple[str, ...]
    stdin: str
    env: Mapping[str, str]
    files: Mapping[str, str]


@dataclass(frozen=True)
class Ended:
    """A process that ended: what it printed, its exit code (negative: a signal), the line at which it was ended."""

    out: str
    err: str
    code: int
    again: str = ""


# -- from a request to a process -------------------------------------------------------------------


def resumes(agent: CommandAgent, request: Request) -> Thread | None:
    """The conversation that a request goes on with, where the agent can."""
    return request.thread if agent.resume and request.thread and _THREAD.fullmatch(request.thread.id) else None


def unseen(agent: CommandAgent, request: Request) -> tuple[Message, ...]:
    """The messages for the prompt: those of a resumed conversation's last answer and before are known there."""
    messages = [message for message in request.messages if message.role != "system" or agent.system == "prompt"]
    if resumes(agent, request):
        answers = [position for position, message in enumerate(messages) if message.role == "assistant"]
        messages = messages[answers[-1] + 1 if answers else 0 :] or messages[-1:]
    return tuple(messages)


def launch(agent: CommandAgent, request: Request, prompt: str, home: str, env: Mapping[str, str]) -> Launch:
    """The process that answers `request`; raises `ContentError` where the agent's templates are wrong.

    `prompt` words the messages of `unseen`; `home` is the folder for the agent's files; of `env` only what the
    agent's file allows is passed.
    """
    thread = resumes(agent, request)
    passed = {
        name: value
        for name, value in env.items()
        if name in agent.env.names or name.startswith(agent.env.prefixes or ("\0",))
    }
    rules = "\n\n".join(message.text for message in request.messages if message.role == "system")
    values: dict[str, Any] = {
        "model": _plain(request.model),
        "system": _plain(rules) if agent.system == "own" else "",
        "prompt": _plain(prompt),
        "thread": thread.id if thread else "",
        "keep": request.keep or thread is not None,
        "home": home,
        "passed": sorted(passed),
    }
    items = [_render(item, values, agent) for item in (agent.resume if thread else agent.argv)]
    return Launch(
        argv=tuple(item for item in items if item),
        stdin=values["prompt"] if agent.stdin == "prompt" else "",
        env={**passed, **{name: _render(text, values, agent) for name, text in agent.env.set.items()}},
        files={name: _render(text, values, agent) for name, text in agent.files.items()},
    )


def _plain(text: str) -> str:
    """`text` as a process can be given it: no NUL, valid in UTF-8."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def _render(template: str, values: Mapping[str, Any], agent: CommandAgent) -> str:
    if "{" not in template:
        return template
    try:
        return _template(template).render(values)
    except Exception as error:  # whatever the expressions of a template can raise
        raise ContentError(
            f"The file of the command-line agent `{agent.program}`: `{template[:80]}`: {error}.",
            "Mend the file and run again.",
        ) from None


@cache
def _template(text: str) -> Template:
    return _jinja().from_string(text)


@cache
def _jinja() -> ImmutableSandboxedEnvironment:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined)
    environment.filters["quoted"] = quoted
    return environment


def quoted(text: str) -> str:
    """`text` as a string of JSON that is one of TOML too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


# -- from its output to a response -----------------------------------------------------------------


def read(agent: CommandAgent, request: Request, ended: Ended) -> Response:
    """The answer in what a process printed; raises `BackendError` with what went wrong."""
    records, strange = _records(agent.output, ended.out)
    usage, thread = _account(agent, request, records)
    text = _text(agent, records, ended)
    complete = _complete(agent, ended, records)
    if complete and text.strip():
        return Response(text, _finish(agent.read.finish, records), usage, thread=thread)
    if complete:
        raise BackendError(Fault.EMPTY, "the agent ended without an answer", usage=usage)
    fault, message, wait = _wrong(agent, ended, records, strange)
    raise BackendError(fault, message, retry_after=wait, usage=usage, text=text)


def _complete(agent: CommandAgent, ended: Ended, records: Sequence[dict[str, Any]]) -> bool:
    """Whether the agent's own end was seen, and no error after it."""
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
    """The JSON objects in an output, and whether there was anything else. Text before the first object is skipped."""
    if output == "text":
        return [], False
    pieces = out.split("\n") if output == "jsonl" else [_first_json(out)]
    found = [_json(piece) for piece in pieces if piece.strip()]
    values = [value for item in found for value in (item if isinstance(item, list) else [item])]
    records = [value for value in values if isinstance(value, dict)]
    return records, len(records) < len(values)


def _first_json(text: str) -> str:
    """The first JSON object or list that begins a line, whatever stands around it; else all of `text`."""
    for match in islice(re.finditer(r"^[{\[]", text, re.MULTILINE), 20):
        try:
            return text[match.start() : json.JSONDecoder().raw_decode(text, match.start())[1]]
        except (ValueError, RecursionError):
            continue
    return text


def _json(text: str) -> Any:
    """The value of a JSON text; None when it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _values(record: Any, path: str) -> Iterator[Any]:
    """All values in `record` that a path leads to."""
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
    # True is 1 in Python, and is not in JSON.
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


def _text(agent: CommandAgent, records: Sequence[dict[str, Any]], ended: Ended) -> str:
    if agent.output == "text":
        return _ANSI.sub("", ended.out).strip()
    texts = _strings(records, agent.read.text)
    # JSON may hold halves of characters, which no file can.
    return _plain("".join(texts) if agent.read.take == "join" else texts[-1] if texts else "")


def _finish(ends: Ends | None, records: Sequence[dict[str, Any]]) -> Finish:
    named = _strings(records, ends)
    return ends.values.get(named[-1], Finish.STOP) if ends and named else Finish.STOP


def _account(
    agent: CommandAgent, request: Request, records: Sequence[dict[str, Any]]
) -> tuple[Usage | None, Thread | None]:
    """What the exchange took, and the conversation to go on with where that was asked for."""
    before = resumes(agent, request)
    counts, usage = agent.read.usage, None
    if counts and next(_numbers(records, counts, counts.input), None) is not None:
        sent, made, cached = (
            int(sum(_numbers(records, counts, key))) for key in (counts.input, counts.output, counts.cached)
        )
        costs = list(_numbers(records, counts, counts.cost))
        cost: float | None = sum(costs) if costs else None
        if counts.running and before:
            sent, made = max(0, sent - before.input_tokens), max(0, made - before.output_tokens)
            cached = max(0, cached - before.cached_tokens)
            cost = None  # the sum of a conversation: what this exchange cost is not told
        usage = Usage(sent, made, cached, cost)
    ids = [name for name in _strings(records, agent.read.thread) if _THREAD.fullmatch(name)]
    if not agent.resume or not (request.keep or before) or not (ids or before):
        return usage, None
    old, new = before or Thread(""), usage or Usage()
    return usage, Thread(
        ids[-1] if ids else old.id,
        old.input_tokens + new.input_tokens,
        old.output_tokens + new.output_tokens,
        old.cached_tokens + new.cached_tokens,
    )


def _numbers(records: Sequence[dict[str, Any]], counts: Counts, paths: Sequence[str]) -> Iterator[float]:
    for value in _picked(records, counts.when, paths):
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e15:
            yield value


# -- what went wrong -------------------------------------------------------------------------------


def _wrong(
    agent: CommandAgent, ended: Ended, records: Sequence[dict[str, Any]], strange: bool
) -> tuple[Fault, str, float | None]:
    """(fault, message, seconds to wait if told) of a process that ended without its answer's end."""
    told = _json(ended.err[_last_object(ended.err) :])
    everywhere = [*records, told] if isinstance(told, dict) else records
    said = _said(agent.read.errors, everywhere)
    if not said and not ended.code:
        if strange:
            return Fault.MALFORMED, "the agent printed what is not the JSON that it documents", None
        if not ended.out.strip():
            return Fault.EMPTY, "the agent printed nothing", None
        return Fault.TRUNCATED, "the output ended before the agent's own end", None
    lines = [line.strip() for line in _ANSI.sub("", ended.err).splitlines() if line.strip()]
    message = said or ended.again or (lines[-1] if lines else "")
    fault, wait = _cause(agent, (said or ended.again or "\n".join(lines[-20:]))[:4000], ended.code)
    how = f"ended by signal {-ended.code}" if ended.code < 0 else f"exit code {ended.code}"
    return fault, _plain(" ".join(message.split())[:300]) or f"the agent failed without a word ({how})", wait


def _last_object(text: str) -> int:
    """Where the last line that begins an object begins; the text's end when there is none."""
    starts = [match.start() for match in re.finditer(r"^\{", text, re.MULTILINE)]
    return starts[-1] if starts else len(text)


def _said(errors: Sequence[Pick], records: Sequence[dict[str, Any]]) -> str:
    """The last error that is reported: the texts and numbers behind its paths, joined."""
    for pick in errors:
        for record in reversed(records):
            found = [value for value in _picked([record], pick.when, pick.paths) if isinstance(value, str | int)]
            if words := [str(value) for value in found if value != "" and not isinstance(value, bool)]:
                return " ".join(words)
    return ""


def _cause(agent: CommandAgent, heard: str, code: int) -> tuple[Fault, float | None]:
    for cause in agent.causes:
        if match := re.search(cause.words, heard, re.IGNORECASE):
            seconds = match.groupdict().get("seconds") or ""
            return cause.fault, float(seconds) if re.fullmatch(r"\d{1,6}(\.\d*)?", seconds, re.ASCII) else None
    return agent.exits.get(code, Fault.CRASHED), None
