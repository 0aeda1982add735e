"""Defines the schema of `dispatch/agents/*.yaml` (command-line agents), and turns a request into a process to start.

`launch` turns a request into arguments, input, environment and files. It starts nothing, and reads no file, clock or
environment. `command_agent_output` reads what the process printed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct, field

from cdo.core.errors import ContentError
from cdo.core.exchange import Fault, Finish, Message, Request, Thread
from cdo.core.schema import Schema

if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2.sandbox import ImmutableSandboxedEnvironment

# An id becomes an argument later: it must not look like an option or a path.
THREAD_ID = re.compile(r"[A-Za-z0-9][\w.:-]{0,127}", re.ASCII)
_TAGS = re.compile(r"\{%.*?%\}")


def _require_patterns(**texts: str) -> None:
    """Raise `ValueError` for the first of the named texts that is not a regular expression."""
    for name, text in texts.items():
        try:
            re.compile(text)
        except re.error as error:
            raise ValueError(f"`{name}`: not a regular expression: {error}") from None


Program = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*\Z")]
Scalar = bool | int | str


class Pick(Schema, frozen=True, kw_only=True):
    """Where to find a value in the output: at each of `paths`, in each record that has all values of `when`.

    A path is keys joined by dots; `*` stands for any key or list index. A path may lead to several values.
    """

    when: dict[str, Scalar] = field(default_factory=dict)
    paths: tuple[str, ...] = ()


class Counts(Schema, frozen=True, kw_only=True):
    """Where to find tokens and dollars in the output (see `Pick`); the values at all paths of a key are added up.

    `input` counts all tokens that were read, cached ones included. With `running`, a resumed conversation is reported
    as a whole: the usage of its earlier exchanges has to be subtracted.
    """

    when: dict[str, Scalar] = field(default_factory=dict)
    input: tuple[str, ...]
    output: tuple[str, ...]
    cached: tuple[str, ...] = ()
    cost: tuple[str, ...] = ()
    running: bool = False


class Ends(Schema, frozen=True, kw_only=True):
    """Where the output says why the reply ended. `values` maps its words to reasons; other words mean "stop"."""

    when: dict[str, Scalar] = field(default_factory=dict)
    paths: tuple[str, ...]
    values: dict[str, Finish]


class OutputReading(Schema, frozen=True, kw_only=True):
    """How to read the output. `done` marks the agent's own end: a reply without it is not complete.

    `take` says if the last of several texts counts, or all of them joined. `errors` are where the agent reports
    errors. They count only if no end follows, because agents also report errors from which they recover. `again` is a
    regular expression for a line that announces a retry by the agent itself: the process is ended there, because only
    the runner retries. `log` is a regular expression for stderr with a group `said`. Its match replaces a reported
    error without a known cause.
    """

    text: Pick = Pick()
    take: Literal["last", "join"] = "last"
    done: Pick | None = None
    finish: Ends | None = None
    thread: Pick | None = None
    usage: Counts | None = None
    errors: tuple[Pick, ...] = ()
    again: str = ""
    log: str = ""

    def require_sound(self) -> None:
        _require_patterns(again=self.again, log=self.log)


class Cause(Schema, frozen=True, kw_only=True):
    """The fault that the words of an error stand for. `words` is a regular expression; case is ignored.

    A group called `seconds` is how long the agent asks to wait. `lost` is true if the words mean that the agent does
    not have the conversation that it was asked to continue.
    """

    words: str
    fault: Fault
    lost: bool = False

    def require_sound(self) -> None:
        _require_patterns(words=self.words)


class Environment(Schema, frozen=True, kw_only=True):
    """The environment of the process: variables passed on by name or by prefix, and variables set by templates."""

    names: tuple[str, ...]
    prefixes: tuple[str, ...] = ()
    set: dict[str, str] = field(default_factory=dict)


class Registration(Schema, frozen=True, kw_only=True):
    """How an agent is told of an MCP server: by a command of its own, or by an entry in a file of its configuration.

    `argv` are the arguments of the command, after which the words of the server come, and `removal` those of the one
    that takes it back, which a person is told where the first one fails. `file` is the path of the
    configuration and `entry` what is put there: tables of a TOML file, or an object that is merged into a JSON file.
    They are templates, which know `server` (the words), `keys` (the variables to pass on), `env` and `home`.
    """

    argv: tuple[str, ...] = ()
    removal: tuple[str, ...] = ()
    file: str = ""
    entry: str = ""

    def require_sound(self) -> None:
        if bool(self.argv) == bool(self.file and self.entry):
            raise ValueError("it needs either `argv`, or `file` and `entry`")


class CommandAgent(Schema, frozen=True, kw_only=True):
    """`dispatch/agents/*.yaml`: one command-line agent.

    `program` is looked up on PATH; `install` says how to get it. Each item of `argv` is a template and stays one
    argument; an item that renders to nothing is left out. `resume` are the arguments that continue a conversation
    (empty: the agent cannot). With `stdin: prompt`, the prompt is sent on stdin; otherwise `argv` must contain it.
    With `system: prompt`, the system messages become part of the prompt. `files` maps file names to templates; the
    files are in a private folder that is removed afterwards. Templates know `model`, `system`, `prompt`, `thread`,
    `keep`, `home` (that folder) and `passed` (the names of the variables that were passed on). `exits` maps exit
    codes to faults, for errors whose words match none of `causes`. `mcp` is how `cdo mcp install` registers cdo's
    server with it.
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
    files: dict[Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z")], str] = field(default_factory=dict)
    output: Literal["jsonl", "json", "text"]
    read: OutputReading = OutputReading()
    causes: tuple[Cause, ...] = ()
    mcp: Registration | None = None
    exits: dict[int, Fault] = field(default_factory=dict)
    window: Annotated[int, Meta(ge=1024)]
    reply_tokens: Annotated[int, Meta(ge=256)]

    def require_sound(self) -> None:
        """Raise `ValueError` if an argument could become an option, or what reads the output lacks a part."""
        for argv in (self.argv, self.resume):
            for position, item in enumerate(argv):
                if _TAGS.sub("", item).lstrip().startswith("{{") and "--" not in argv[:position]:
                    raise ValueError(f"`{item}` could become an option: write --option={item} or put -- before it")
        if self.read.log and "said" not in re.compile(self.read.log).groupindex:
            raise ValueError("`log` needs a group `said`")
        if self.output != "text" and not (self.read.text.paths and self.read.done):
            raise ValueError("`read` needs `text` and `done`, unless the output is text")


class Launch(Struct, frozen=True):
    """A process to start: its arguments (without the program), input, environment and private files."""

    argv: tuple[str, ...]
    stdin: str
    env: Mapping[str, str]
    files: Mapping[str, str]


# -- from a request to a process -------------------------------------------------------------------


def resumes(agent: CommandAgent, request: Request) -> Thread | None:
    """Return the conversation that a request continues; None if there is none or the agent cannot continue it."""
    return request.thread if agent.resume and request.thread and THREAD_ID.fullmatch(request.thread.id) else None


def unseen(agent: CommandAgent, request: Request) -> tuple[Message, ...]:
    """Return the messages for the prompt: a resumed conversation already has the messages up to its last answer."""
    messages = [message for message in request.messages if message.role != "system" or agent.system == "prompt"]
    if resumes(agent, request):
        answers = [position for position, message in enumerate(messages) if message.role == "assistant"]
        messages = messages[answers[-1] + 1 if answers else 0 :] or messages[-1:]
    return tuple(messages)


def launch(agent: CommandAgent, request: Request, prompt: str, home: str, env: Mapping[str, str]) -> Launch:
    """Return the process that answers `request`; raise `ContentError` if one of the agent's templates is wrong.

    `prompt` is the text of the messages of `unseen`. `home` is the folder for the agent's files. Of `env`, only the
    variables that the agent's file allows are passed on.
    """
    thread = resumes(agent, request)
    passed = {
        name: value
        for name, value in env.items()
        if name in agent.env.names or name.startswith(agent.env.prefixes or ("\0",))
    }
    rules = "\n\n".join(message.text for message in request.messages if message.role == "system")
    values: dict[str, Any] = {
        "model": plain(request.model),
        "system": plain(rules) if agent.system == "own" else "",
        "prompt": plain(prompt),
        "thread": thread.id if thread else "",
        "keep": request.keep or thread is not None,
        "home": home,
        "passed": sorted(passed),
    }
    items = [render(item, values, agent) for item in (agent.resume if thread else agent.argv)]
    return Launch(
        argv=tuple(item for item in items if item),
        stdin=values["prompt"] if agent.stdin == "prompt" else "",
        env={**passed, **{name: render(text, values, agent) for name, text in agent.env.set.items()}},
        files={name: render(text, values, agent) for name, text in agent.files.items()},
    )


def plain(text: str) -> str:
    """Return `text` without NUL and valid in UTF-8, so that it can be passed to a process."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def render(template: str, values: Mapping[str, Any], agent: CommandAgent) -> str:
    """Return a template of an agent's file, filled in; raise `ContentError` if it is wrong."""
    if "{" not in template:
        return template
    try:
        return _template(template).render(values)
    except Exception as error:  # the expressions of a template can raise anything
        raise ContentError(
            f"The file of the command-line agent `{agent.program}`: `{template[:80]}`: {error}.",
            "Fix the file and run again.",
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
    """Return `text` as a JSON string that is also a valid TOML string."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
