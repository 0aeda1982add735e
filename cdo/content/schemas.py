"""Defines the keys of content files and their values. Unknown keys are errors, so that typos are found."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from cdo.core.exchange import Effort
from cdo.core.schema import Schema, field_names
from cdo.security.secrets import secret_variable

Count = Annotated[int, Meta(ge=1, le=256)]
WordCount = Annotated[int, Meta(ge=50, le=10_000)]
Share = Annotated[float, Meta(ge=0, le=1)]


# How many requests for tools a voice may make in one reply, and in how many rounds.
Looks = tuple[Annotated[int, Meta(ge=0, le=100)], Annotated[int, Meta(ge=0, le=20)]]
# [fewest, most], or another pair in ascending order (`ascending`).
Band = tuple[Count, Count]


def ascending(**bands: tuple[int, int] | None) -> None:
    """Raise `ValueError` for the first of the named pairs whose first number is above the second."""
    for name, band in bands.items():
        if band and band[0] > band[1]:
            raise ValueError(f"`{name}`: the first number must not be above the second")


class Preset(Schema, frozen=True, kw_only=True):
    """`presets/*.yaml`: how many voices and turns a run has, and the roles that it starts with.

    `width` is [fewest, most] voices a turn. `max_turns` is [n, cap]: after turn n, each further turn must be earned.
    `start` is how many of `roles`, in order, make up the first turn, unless other roles fit the question better. With
    `mixed`, voices get models of different makers if several are available. `looks` is how often a voice may look
    into the repository in one reply, as [requests, rounds]; without it the numbers of `dispatch/tools.yaml` hold.
    `context_tokens` is the most that is shown of a repository which nobody named. With `review`, a blind draft is
    corrected by ranked findings and a review. `words` limits the length of [a voice's reply, FINAL.md]. `effort` is
    how long models think about each call; without it, what the role or the prompt says holds.
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
    mixed: bool = False
    mode: str | None = None
    review: bool = False
    words: tuple[WordCount, WordCount] = (500, 900)
    looks: Looks | None = None
    context_tokens: Annotated[int, Meta(ge=0, le=10_000_000)] = 16_000
    effort: Effort | None = None

    def require_sound(self) -> None:
        ascending(width=self.width, max_turns=self.max_turns)


class Role(Schema, frozen=True, kw_only=True):
    """`templates/roles/*.md`: a method and an evidence duty; the body is the charge.

    `method` is one sentence of about twelve words. A question that holds one of `tags` may seat the role in the first
    turn. `part` marks a role that argues from evidence or that attacks: a first turn keeps its only one of either.
    `length` multiplies the words that the preset allows a voice. `effort` is how long a model thinks as this role,
    unless the preset or a person says otherwise.
    """

    title: str
    method: str
    evidence: str
    tags: tuple[str, ...]
    length: Annotated[float, Meta(gt=0, le=4)] = 1.0
    part: Literal["evidence", "critique", ""] = ""
    effort: Effort | None = None


class Prompt(Schema, frozen=True, kw_only=True):
    """The prompt of a call: blocks `system`, `shared` (the same for a whole batch) and `own`.

    `effort` is how long a model thinks about it, unless the preset or a person says otherwise.
    """

    purpose: str
    load_when: str
    kind: Literal["agent", "synthesis", "findings", "review", "final", "cabal"]
    effort: Effort | None = None


class Criteria(Schema, frozen=True, kw_only=True):
    """The thresholds by which a deliberation ends, pauses or is tested."""

    exit_confidence: Share
    quiet_turns: Count
    agreement_flag: Share
    confidence_drop: Share
    severe: Annotated[int, Meta(ge=1, le=10)]


class ConfidenceCaps(Schema, frozen=True, kw_only=True):
    """How facts on record lower a stated confidence (see `convergence.bounded`).

    `unverified` is the weight of the share of citations that were not found; the others are upper limits.
    """

    open_tension: Share = 0.79
    severe_objection: Share = 0.79
    missing_voice: Share = 0.9
    unverified: Share = 0.5


class Convergence(Criteria, frozen=True, kw_only=True):
    """`engine/convergence.md`: the criteria that code applies; the body explains them to the synthesiser."""

    purpose: str
    load_when: str
    bounds: ConfidenceCaps

    @property
    def criteria(self) -> Criteria:
        """The thresholds alone, as a plan holds them."""
        return Criteria(**{key: getattr(self, key) for key in field_names(Criteria)})


class ComplexityPoints(Schema, frozen=True, kw_only=True):
    """The points of each sign of complexity. A list is indexed by the number of signs, its last entry for more."""

    length: dict[int, float]
    questions: Annotated[tuple[float, ...], Meta(min_length=1)]
    open_task: float
    open_question: float
    fields: Annotated[tuple[float, ...], Meta(min_length=1)]
    wide: Annotated[tuple[float, ...], Meta(min_length=1)]
    no_known_word: float
    narrow: dict[str, float]


class Complexity(Schema, frozen=True, kw_only=True):
    """`engine/complexity.yaml`: the words and points by which a preset is picked if none is named.

    Each table maps a label to patterns, separated by commas. `thresholds` maps presets to their lowest scores, in
    ascending order. `settled` maps a label to the regular expression of problems that need no deliberation.
    """

    purpose: str
    load_when: str
    thresholds: Annotated[dict[str, float], Meta(min_length=1)]
    full_needs_fields: int
    below_full: float
    points: ComplexityPoints
    narrow: dict[str, str]
    open: dict[str, str]
    wide: dict[str, str]
    fields: dict[str, str]
    english: str
    settled: dict[str, str] = field(default_factory=dict)


class CommandWords(Schema, frozen=True, kw_only=True):
    """`engine/command-words.yaml`: the words by which a mistyped command is told from a question.

    `meant` maps words that are no commands to the commands that people mean by them. `ordinary` lists words that
    resemble a command, and with which a question may begin all the same.
    """

    purpose: str
    load_when: str
    meant: dict[str, str]
    ordinary: str


class TokenPrices(Schema, frozen=True, kw_only=True):
    """US dollars per million tokens.

    `cached` and `cache_write` are the prices of input tokens that are read from and written to the provider's cache;
    None means the price of `input`.
    """

    input: Annotated[float, Meta(ge=0)]
    output: Annotated[float, Meta(ge=0)]
    cached: Annotated[float, Meta(ge=0)] | None = None
    cache_write: Annotated[float, Meta(ge=0)] | None = None


class LongPromptPrices(TokenPrices, frozen=True, kw_only=True):
    """The prices of a request whose prompt has more than `above` tokens; they hold for all of its tokens."""

    above: Annotated[int, Meta(ge=1)]


class Price(TokenPrices, frozen=True, kw_only=True):
    """What the tokens of a model cost. `long_prompts` are the prices from certain lengths of the prompt on."""

    long_prompts: tuple[LongPromptPrices, ...] = ()

    def of(self, input_tokens: int) -> TokenPrices:
        """Return the prices of a request whose prompt has this many tokens."""
        passed = [item for item in self.long_prompts if input_tokens > item.above]
        return max(passed, key=lambda item: item.above, default=self)


class Provider(Schema, frozen=True, kw_only=True):
    """One provider, under its litellm prefix.

    With a `url`, it is called directly; without one, through litellm. `protocol` is the one it speaks there: Chat
    Completions, or its own (OpenAI's Responses, Anthropic's Messages). A server that a variable puts in OpenAI's
    place is asked by Chat Completions, which all of them speak. `url_env` and `key_env` name the variables that
    override the address and hold the key: the first one that is set wins, and the name of a variable for a key must
    show that it holds a key. `cap` is the name of the field that limits a reply. `usage`: it understands
    `stream_options`. `price` is given if calls cost nothing. `model` is its default model. `window` is the number of
    tokens that its models can read, if nothing else tells it. `idempotency` is the header in which it takes an
    idempotency key, such as `Idempotency-Key`: a request that a crash interrupted is then sent again with the same
    key, so that it is answered and billed once. `flex`: its models with a flex price answer at that price, more
    slowly, to requests of the service tier "flex". `batch_api` is the kind of batch endpoint that it has ("": none),
    and `batch_factor` what a request there costs, as a share of the usual price. `cache_marks` are patterns of models
    that cache a prompt only up to marks (`cache_control`) in it.
    """

    url: str = ""
    protocol: Literal["chat", "responses", "messages"] = "chat"
    url_env: tuple[str, ...] = ()
    key_env: tuple[str, ...] = ()
    key: Literal["required", "optional"] = "required"
    cap: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    usage: bool = True
    model: str = ""
    price: Price | None = None
    window: Annotated[int, Meta(ge=1024)] | None = None
    idempotency: Annotated[str, Meta(pattern=r"^([A-Za-z][A-Za-z0-9-]{0,63})?\Z")] = ""
    flex: bool = False
    batch_api: Literal["", "openai", "messages", "openrouter", "gemini"] = ""
    batch_factor: Annotated[float, Meta(gt=0, le=1)] = 0.5
    cache_marks: tuple[str, ...] = ()

    def require_sound(self) -> None:
        for index, name in enumerate(self.key_env):
            if not secret_variable(name):
                why = "must be a name such as ACME_API_KEY: cdo hides the values of variables that are called so"
                raise ValueError(f"`key_env.{index}`: {why}")


class Aliases(Schema, frozen=True, kw_only=True):
    """`dispatch/aliases.yaml`: short names for models."""

    purpose: str
    load_when: str
    aliases: dict[Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9.-]*\Z")], str]


class Providers(Schema, frozen=True, kw_only=True):
    """`dispatch/providers.yaml`: the table of providers, in order of preference."""

    purpose: str
    load_when: str
    providers: dict[str, Provider]


# The parts of a path on the hub: none is hidden, and none leads out of a folder.
REPOSITORY = r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*\Z"
GGUF_FILE = r"^([A-Za-z0-9][A-Za-z0-9._-]*/)*[A-Za-z0-9][A-Za-z0-9._-]*\.gguf\Z"


class LocalModel(Schema, frozen=True, kw_only=True):
    """A model that can be fetched from the Hugging Face hub: one GGUF file of a repository there.

    `size` is the class of size and `license` the license, both as text for people. The hash and the exact size are
    never written down here: they are what the hub states for the file.
    """

    repository: Annotated[str, Meta(pattern=REPOSITORY)]
    file: Annotated[str, Meta(pattern=GGUF_FILE)]
    size: str
    license: str


class LocalModels(Schema, frozen=True, kw_only=True):
    """`dispatch/local_models.yaml`: models to fetch by name, best first."""

    purpose: str
    load_when: str
    models: dict[Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._-]*\Z")], LocalModel]
