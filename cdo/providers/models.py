"""Resolves the name of a model to its address, its price and its context size. Sends nothing.

Prices and context sizes come from litellm's own table, read as a data file: litellm itself is never imported
here. An unknown price stays None and never counts as zero.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from cdo.content.schemas import Price, Provider, Providers
from cdo.core.demo_model import DEMO_MODEL
from cdo.core.errors import ConfigError, NoModel
from cdo.core.exchange import Usage
from cdo.core.people import person_of
from cdo.core.schema import fitted
from cdo.providers.addresses import is_here
from cdo.providers.price_table import (
    DEFAULT_WINDOW,
    REPLY_TOKENS,
    entry,
    litellm_knows,
    price_of,
    reply_tokens,
    times,
)
from cdo.providers.recorded import PREFIX as RECORDED
from cdo.providers.vendors import Vendors, maker

if TYPE_CHECKING:
    from cdo.content.library import Library
    from cdo.providers.command_agent import CommandAgent
    from cdo.providers.extensions import ProviderExtension

Protocol = Literal["chat", "responses", "messages"]
Route = Literal["direct", "litellm", "local", "scripted", "command", "extension"]
AGENTS = "dispatch/agents"
PROVIDERS = "dispatch/providers"
EMBEDDED = "smollm2"
LOCAL_WINDOW = 8192
LOCAL_REPLY_TOKENS = 700


class ModelSpec(Struct, frozen=True):
    """One model and how to reach it.

    `name` is the name that the person wrote, `model` the name that the provider knows. `route` picks the backend.
    `url` is the address, `key_env` the variable with the key. `price` is None if unknown. `window` is the most tokens
    of prompt and reply together. `reply_tokens` is the cap on one reply, `longest_reply` the model's own maximum, to
    which the cap is raised for a reply that was cut off. `grammar` is true if a grammar can constrain
    its replies. `tools` is true if it may be offered tools (a model that turns out to know none is asked without).
    `agent` is the command-line agent's name in `dispatch/agents`, `program` its absolute path. `vendor` is the maker
    of the model, `family` its model family ("" if unknown). `idempotency` is the header in which the provider takes
    an idempotency key ("" if it takes none). `protocol` is the one that a direct provider speaks. `reasoning` is true
    if the model can be told how long to think. `flex_price` is its price in the flex tier, None if there is none;
    with `flex`, it is asked in that tier. `batch_api` is the kind of batch endpoint that its provider has ("": none),
    where requests cost `batch_factor` of the price; with `batch`, it is asked there. `provider` is the name of its
    provider. `cache_marks` is true if it caches a prompt only up to marks in it. `extension` is the prefix of the
    provider that another package adds.
    """

    name: str
    route: Route
    model: str
    url: str = ""
    key_env: str = ""
    cap: str = "max_tokens"
    usage: bool = True
    price: Price | None = None
    window: int = DEFAULT_WINDOW
    reply_tokens: int = REPLY_TOKENS
    longest_reply: int = 2 * REPLY_TOKENS
    grammar: bool = False
    agent: str = ""
    program: str = ""
    tools: bool = False
    vendor: str = ""
    family: str = ""
    idempotency: str = ""
    protocol: Protocol = "chat"
    reasoning: bool = False
    flex_price: Price | None = None
    flex: bool = False
    batch_api: str = ""
    batch_factor: float = 1.0
    batch: bool = False
    provider: str = ""
    cache_marks: bool = False
    extension: str = ""

    @property
    def caches(self) -> bool:
        """True if the provider charges less for the part of a prompt that it has read before.

        A model whose prompts are marked is one, also where the gateway that offers it has no price in the table.
        """
        price = self.price
        return self.cache_marks or bool(price and price.cached is not None and price.cached < price.input)

    def in_flex(self) -> ModelSpec:
        """Return the same model as it is asked in the flex tier; itself if it has no such tier."""
        return self if self.flex_price is None else replace(self, flex=True, price=self.flex_price)

    def in_batch(self) -> ModelSpec:
        """Return the same model as it is asked through its batch endpoint; itself if it has none."""
        if not self.batch_api or self.batch:
            return self
        return replace(self, batch=True, price=self.price and times(self.price, self.batch_factor))

    @property
    def here(self) -> bool:
        """True if the model, or the server that offers it, runs on this machine."""
        return self.route in ("local", "scripted") or is_here(self.url)

    def cost(self, usage: Usage) -> float | None:
        """Return the dollars for `usage`: by price, or as stated by the provider if that is more; None if unknown.

        The larger amount counts: a provider that states too little could otherwise disable the cap on money.
        """
        if self.price is None:
            return usage.cost
        price = self.price.of(usage.input_tokens)
        cached = min(usage.cached_tokens, usage.input_tokens)
        written = min(usage.cache_write_tokens, usage.input_tokens - cached)
        listed = (
            (usage.input_tokens - cached - written) * price.input
            + cached * (price.input if price.cached is None else price.cached)
            + written * (price.input if price.cache_write is None else price.cache_write)
            + usage.output_tokens * price.output
        )
        return max(listed / 1e6, usage.cost or 0.0)

    def most(self, input_tokens: int, reply_tokens: int) -> float | None:
        """Return the most dollars that a request of this size can cost: nothing cached, or all of it written anew."""
        fresh = self.cost(Usage(input_tokens, reply_tokens))
        written = self.cost(Usage(input_tokens, reply_tokens, cache_write_tokens=input_tokens))
        return None if fresh is None or written is None else max(fresh, written)


def table(library: Library) -> dict[str, Provider]:
    """Return the provider table, in order of preference."""
    return library.read(PROVIDERS, Providers)[0].providers


def resolve(
    name: str,
    library: Library,
    prices: Mapping[str, Price],
    env: Mapping[str, str],
) -> ModelSpec:
    """Return the spec of a model by its name; raise `ConfigError` when it cannot be reached from here.

    `prices` are the person's configured prices by model name; they take precedence over the table's.
    """
    spec = _resolve(name, library, prices, env)
    vendor, family = maker(_known_as(spec), library.read("dispatch/vendors", Vendors)[0])
    return replace(spec, vendor=spec.vendor or vendor, family=family)


def _known_as(spec: ModelSpec) -> str:
    """Return the name that best shows who made a model."""
    if spec.route == "scripted":
        return ""
    if spec.route == "local":
        return Path(spec.model).name or EMBEDDED
    return spec.name if spec.route != "command" and "/" in spec.name else spec.model


def _resolve(name: str, library: Library, prices: Mapping[str, Price], env: Mapping[str, str]) -> ModelSpec:
    if person := person_of(name):
        raise ConfigError(
            f"`{name}` means {person}, and a person is not a model.",
            "Give a person a voice of a deliberation with --seat human:NAME.",
        )
    if name.startswith(RECORDED):
        raise ConfigError(
            f"`{name}` is the name of a recording: no model answers under it.",
            "Name a model with -m, and it gives the new answers.",
        )
    if name == DEMO_MODEL or name.startswith(f"{DEMO_MODEL}:"):
        file = name.partition(":")[2]
        from cdo.providers.local_models import located

        return ModelSpec(
            name, "local", located(file, library) if file else "", price=Price(input=0, output=0),
            window=LOCAL_WINDOW, reply_tokens=LOCAL_REPLY_TOKENS, longest_reply=LOCAL_WINDOW // 2, grammar=True,
        )  # fmt: skip
    if name.startswith("scripted:"):
        return ModelSpec(name, "scripted", name.partition(":")[2], price=prices.get(name, Price(input=0, output=0)))
    called = name.partition(":")[0]
    if called in library.names(AGENTS) or f"{AGENTS}/{called}" in library.waiting():
        return _command(name, library, prices, env)
    if "://" in name:  # some of litellm's providers take an address as a name and send their key there
        raise ConfigError(
            f"`{name}` is an address and not the name of a model.",
            "Write PROVIDER/MODEL, and the address into the provider's variable (such as OPENAI_BASE_URL).",
        )
    return _provided(name, library, prices, env)


def _provided(name: str, library: Library, prices: Mapping[str, Price], env: Mapping[str, str]) -> ModelSpec:
    """Return the spec of a model that a provider offers; raise `ConfigError` if it cannot be reached."""
    providers = table(library)
    prefix, slash, model = name.partition("/")
    if slash:
        known = entry(name) or entry(model, prefix) or {}
    else:
        prefix, known = _owner(name, providers, env)
        model = name
    if not prefix or not model:
        raise ConfigError(
            f"`{name}` is not a model that cdo knows.",
            f"Write it as PROVIDER/MODEL, with a provider such as {', '.join(list(providers)[:6])}.",
        )
    if prefix not in providers and not known and not litellm_knows(prefix):
        from cdo.providers.extensions import extension  # only here: it reads the metadata of installed packages

        if added := extension(prefix):
            return _added(name, added, prices)
        raise ConfigError(
            f"`{prefix}` in `{name}` is not a provider that cdo or litellm knows.",
            f"Write it as PROVIDER/MODEL, with a provider such as {', '.join(list(providers)[:6])}.",
        )
    provider = providers.get(prefix) or Provider()
    price = prices.get(name) or provider.price or price_of(known)
    window = int(known.get("max_input_tokens") or provider.window or DEFAULT_WINDOW)
    reply, longest = reply_tokens(known, window)
    key_env = _first(provider.key_env, env)
    _require_key_text(key_env, env)
    if not provider.url:
        if provider.key_env and not key_env:
            raise _no_key(name, provider)
        full = name if slash or prefix not in providers else f"{prefix}/{name}"  # litellm knows whose the others are
        tools = bool(known.get("supports_function_calling"))
        return ModelSpec(
            name, "litellm", full, price=price, window=window, reply_tokens=reply, longest_reply=longest,
            tools=tools, idempotency=provider.idempotency,
        )  # fmt: skip
    override = _first(provider.url_env, env)
    if not key_env and provider.key == "required" and not override:
        raise _no_key(name, provider)
    url = _address(env[override], provider.url) if override else provider.url
    return ModelSpec(
        name, "direct", model, url=url, key_env=key_env, cap=provider.cap, usage=provider.usage,
        price=price, window=window, reply_tokens=reply, longest_reply=longest,
        tools=known.get("supports_function_calling", not known), idempotency=provider.idempotency,
        protocol="chat" if override and provider.protocol == "responses" else provider.protocol,
        reasoning=bool(known.get("supports_reasoning")),
        flex_price=price_of(known, "_flex") if provider.flex and not override else None,
        batch_api=provider.batch_api, batch_factor=provider.batch_factor, provider=prefix,
        cache_marks=any(fnmatchcase(model, pattern) for pattern in provider.cache_marks),
    )  # fmt: skip


def _added(name: str, provider: ProviderExtension, prices: Mapping[str, Price]) -> ModelSpec:
    """Return the spec of a model of a provider that another package adds."""
    prefix, _, model = name.partition("/")
    told = provider.describe(model)
    price = prices.get(name)
    if price is None and told.input_price is not None and told.output_price is not None:
        price = fitted(Price, {"input": told.input_price, "output": told.output_price})
    return ModelSpec(
        name, "extension", model, price=price, window=told.window, tools=told.tools, vendor=told.vendor,
        reply_tokens=told.reply_tokens, longest_reply=told.reply_tokens, extension=prefix,
    )  # fmt: skip


def _first(names: Sequence[str], env: Mapping[str, str]) -> str:
    """Return the first of the variables that is set to more than blanks; "" if none is."""
    return next((name for name in names if env.get(name, "").strip()), "")


def _owner(name: str, providers: Mapping[str, Provider], env: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """Return the provider for a name without one ("" if unknown), and the name's entry in the price table.

    A provider of cdo's table takes precedence over others that offer the same model. A name that no table knows
    belongs to the server at OPENAI_BASE_URL, if that is set.
    """
    known = entry(name) or {}
    owner = str(known.get("litellm_provider", ""))
    if owner not in providers:
        for prefix in providers:
            if own := entry(f"{prefix}/{name}"):
                return prefix, own
        if not owner and "openai" in providers and _first(providers["openai"].url_env, env):
            return "openai", {}
    return owner, known


def _no_key(name: str, provider: Provider) -> ConfigError:
    return ConfigError(f"There is no key for {name}.", f"Set {' or '.join(provider.key_env)} in the environment.")


def _require_key_text(key_env: str, env: Mapping[str, str]) -> None:
    """Raise `ConfigError` for a key that no HTTP header can hold, such as the `…` of an example."""
    if odd := re.search(r"[^!-~]", env.get(key_env, "").strip()):
        what = "a line break" if odd[0] in "\r\n" else "a blank" if odd[0].isspace() else f"`{odd[0]}`"
        raise ConfigError(f"{key_env} is not a key: it has {what} in it.", "Copy the key from your provider again.")


def _address(override: str, default: str) -> str:
    """Return the base address in a variable. A missing scheme, port or path is taken from `default`.

    So OLLAMA_HOST may have every form that Ollama accepts: a host, a port alone, or the address a server listens at.
    """
    base = urlsplit(default)
    scheme, mark, place = override.strip().strip("\"'").rpartition("://")
    place, _, path = place.partition("/")
    if place.count(":") > 1 and not re.search(r"[\[@]", place):  # a bare IPv6 address
        place = f"[{place}]"
    cut = place.find(":", place.find("]") + 1)
    host, port = (place, "") if cut < 0 else (place[:cut], place[cut + 1 :])
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
    if not mark:
        near = host == "localhost" or re.fullmatch(r"[\d.]+|\[.*", host)  # never send a key in clear to others
        scheme, port = "http" if near else base.scheme, port or str(base.port or "")
    path = f"/{path.strip('/')}" if path.strip("/") else base.path
    return f"{scheme.lower()}://{host}{f':{port}' if port else ''}{path}"


# -- command-line agents ---------------------------------------------------------------------------


def agent(name: str, library: Library) -> CommandAgent:
    """Return a command-line agent by its name in `dispatch/agents`; raise `ContentError`."""
    from cdo.providers.command_agent import CommandAgent

    return library.read(f"{AGENTS}/{name}", CommandAgent)[0]


def _program(program: str, env: Mapping[str, str]) -> str:
    """Return the absolute path of a program on PATH; "" if it is not there. Relative entries of PATH are ignored."""
    places = [place for place in env.get("PATH", "").split(os.pathsep) if Path(place).is_absolute()]
    return (shutil.which(program, path=os.pathsep.join(places)) or "") if places else ""


def _command(name: str, library: Library, prices: Mapping[str, Price], env: Mapping[str, str]) -> ModelSpec:
    called, colon, model = name.partition(":")
    found = agent(called, library)
    if colon and not model.strip():
        raise ConfigError(f"`{name}` names no model.", f"Write {called}:MODEL, or {called} for its own default.")
    program = _program(found.program, env)
    if not program:
        raise ConfigError(
            f"The command-line agent `{called}` needs the program `{found.program}`, which is not on PATH.",
            f"To get it: {found.install}.",
        )
    return ModelSpec(
        name, "command", model, price=prices.get(name) or prices.get(called), window=found.window,
        reply_tokens=found.reply_tokens, longest_reply=found.reply_tokens, agent=called, program=program,
        vendor=found.vendor,
    )  # fmt: skip


def _agents(library: Library, env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (name, why) for each command-line agent that can be started here."""
    for name in library.names(AGENTS):
        if program := _program(agent(name, library).program, env):
            yield name, f"{program} is on PATH"


# -- what this machine offers ----------------------------------------------------------------------


def _keyed(providers: Mapping[str, Provider], env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (name, why) for the default model of each provider whose key is set."""
    for prefix, provider in providers.items():
        key = _first(provider.key_env, env)
        if key and provider.model:
            yield f"{prefix}/{provider.model}", f"{key} is set"


def _served(providers: Mapping[str, Provider], env: Mapping[str, str], ollama: Any) -> Iterator[tuple[str, str]]:
    """Yield (name, why) for the first model that a running Ollama offers."""
    if "ollama" in providers:
        override = _first(providers["ollama"].url_env, env)
        default = providers["ollama"].url
        if found := ollama(_address(env[override], default) if override else default):
            yield f"ollama/{found}", "Ollama is running"


def available(library: Library, env: Mapping[str, str], ollama: Any) -> list[tuple[str, str]]:
    """Return (model name, why) for each model that can be used here: agents, providers whose key is set, Ollama.

    `ollama` is a function from a base address to the first model a running Ollama offers, or None. Raises
    `ConfigError` as `table` does.
    """
    providers = table(library)
    return [*_agents(library, env), *_keyed(providers, env), *_served(providers, env, ollama)]


def choose(library: Library, env: Mapping[str, str], ollama: Any) -> tuple[str, str]:
    """Return (model name, why) if no model is configured; raise `NoModel` naming everything that was tried.

    `ollama` is a function from a base address to the first model a running Ollama offers, or None. Raises
    `ConfigError` as `table` does.
    """
    providers = table(library)
    ways = _keyed(providers, env), _served(providers, env, ollama), _agents(library, env)
    if found := next(chain.from_iterable(ways), None):
        return found
    if importlib.util.find_spec("xllamacpp"):
        from cdo.providers.local_models import best

        return best(library), "the embedded model needs no key and no network"
    keys = ", ".join(provider.key_env[0] for provider in providers.values() if provider.key_env)
    raise NoModel(
        "No model can be used: none is configured, no provider key is set, no Ollama is running, no command-line "
        "agent is on PATH and the embedded model is not installed.",
        f"Set one of {keys}; or start Ollama; or install one of {', '.join(library.names(AGENTS))}; or "
        "`pip install 'cdo-deliberate[local]'`; or name one with -m.",
    )


def vendors(specs: Iterable[ModelSpec]) -> dict[str, int]:
    """Return how many of the models each vendor made. Models of unknown makers count as one vendor, "unknown"."""
    return dict(Counter(spec.vendor or "unknown" for spec in specs))
