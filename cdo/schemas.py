"""What the keys of content files may be (pydantic). Unknown keys are errors, so that typos are found."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from cdo.secrets import secret_variable

Count = Annotated[int, Field(ge=1, le=256)]
Share = Annotated[float, Field(ge=0, le=1)]


def _band(value: tuple[int, int]) -> tuple[int, int]:
    if value[0] > value[1]:
        raise ValueError("the first number must not be above the second")
    return value


Band = Annotated[tuple[Count, Count], AfterValidator(_band)]


class Schema(BaseModel):
    """What a file may hold, or a part of one: these keys and no others. It does not change."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Preset(Schema):
    """`presets/*.yaml`: a row of the presets table (seed 004, section 2), and the roles to start from.

    `width` is [fewest, most] voices a turn; `max_turns` is [after which a further turn must be earned, the
    cap]; `start` is how many of `roles`, in order, make up the first turn.
    """

    about: str
    width: Band
    start: Count
    max_turns: Band
    bd: bool
    skills: Literal["no", "optional", "yes"]
    team_mode: Literal["subagents", "team"]
    dashboard: bool
    adaptive: bool
    roles: tuple[str, ...]
    mode: str | None = None


class Role(Schema):
    """`templates/roles/*.md`: a method and an evidence duty; the body is the charge."""

    title: str
    method: str
    evidence: str
    tags: tuple[str, ...]


class Prompt(Schema):
    """A document that words a call: blocks `system`, `shared` (the same for a whole batch) and `own`."""

    purpose: str
    load_when: str
    kind: Literal["agent", "synthesis", "final", "cabal"]


class Criteria(Schema):
    """The thresholds by which a deliberation ends, pauses or is tested."""

    exit_confidence: Share
    quiet_turns: Count
    agreement_flag: Share
    confidence_drop: Share
    severe: Annotated[int, Field(ge=1, le=10)]


class Bounds(Schema):
    """What facts on record leave of a stated confidence (see `convergence.bounded`)."""

    open_tension: Share = 0.79
    missing_voice: Share = 0.9
    unverified: Share = 0.5


class Convergence(Criteria):
    """`engine/convergence.md`: the criteria that code applies; the body tells the synthesiser about them."""

    purpose: str
    load_when: str
    bounds: Bounds


class Price(Schema):
    """US dollars for a million tokens."""

    input: Annotated[float, Field(ge=0)]
    output: Annotated[float, Field(ge=0)]
    cached: Annotated[float, Field(ge=0)] | None = None


def _of_key(name: str) -> str:
    """The name of a variable whose value is kept out of files; raise `ValueError` for any other."""
    if not secret_variable(name):
        raise ValueError("a variable that holds a key is called so, as in NAME_API_KEY: then its value is redacted")
    return name


class Provider(Schema):
    """One provider, under its litellm prefix.

    With a `url` it speaks the Chat Completions protocol and is called directly; without one it is reached
    through litellm. `url_env` and `key_env` name the variables that override the address and hold the key
    (first set one wins; what holds a key must be called so); `cap` is the name of the field that bounds a reply;
    `usage` whether it understands `stream_options`; `price` is given where calls cost nothing; `model` is its
    default.
    """

    url: str = ""
    url_env: tuple[str, ...] = ()
    key_env: tuple[Annotated[str, AfterValidator(_of_key)], ...] = ()
    key: Literal["required", "optional"] = "required"
    cap: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    usage: bool = True
    model: str = ""
    price: Price | None = None


class Providers(Schema):
    """`dispatch/providers.yaml`: the table of providers, in order of preference."""

    purpose: str
    load_when: str
    providers: dict[str, Provider]
