"""Command-line agents as content: what `dispatch/agents/*.yaml` may say, and how a request becomes a process.

`launch` turns a request into arguments, input, environment and files. It starts nothing, and reads no file, clock or
environment. `agent_output` reads what the process printed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from cdo.core.errors import ContentError
from cdo.core.exchange import Fault, Finish, Message, Request, Thread

if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2.sandbox import ImmutableSandboxedEnvironment

# An id is an argument later: never an option or a path.
THREAD_ID = re.compile(r"[A-Za-z0-9][\w.:-]{0,127}", re.ASCII)
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


class OutputReading(_Part):
    """How to read the output. `done` marks the agent's own end: a reply without it is not complete.

    Of several texts the last one counts, or all joined. `errors` name what went wrong; they count only where the end
    is missing, because agents also report what they then recover from. `again` are words of a line (a regular
    expression) by which the agent says that it will try again by itself: it is ended there, since one place retries.
    `log` finds on stderr (a regular expression with a group `said`) what a reported error leaves open: it counts
    where no cause is known for that one.
    """

    text: Pick = Pick()
    take: Literal["last", "join"] = "last"
    done: Pick | None = None
    finish: Ends | None = None
    thread: Pick | None = None
    usage: Counts | None = None
    errors: tuple[Pick, ...] = ()
    again: Pattern = ""
    log: Pattern = ""


class Cause(_Part):
    """Words of an error (a regular expression, any case) and the fault behind them.

    A group called `seconds` is how long the agent asks to wait. `lost` marks the words by which it says that it does
    not have the conversation it was to go on with.
    """

    words: Pattern
    fault: Fault
    lost: bool = False


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
    read: OutputReading = OutputReading()
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
        if self.read.log and "said" not in re.compile(self.read.log).groupindex:
            raise ValueError("`log` needs a group `said`")
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


# -- from a request to a process -------------------------------------------------------------------


def resumes(agent: CommandAgent, request: Request) -> Thread | None:
    """The conversation that a request goes on with, where the agent can."""
    return request.thread if agent.resume and request.thread and THREAD_ID.fullmatch(request.thread.id) else None


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
        "model": plain(request.model),
        "system": plain(rules) if agent.system == "own" else "",
        "prompt": plain(prompt),
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


def plain(text: str) -> str:
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
    """`text` as a string of JSON that is one of TOML too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
