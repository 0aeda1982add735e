"""Measure what a turn of voices costs with prompt caching, and how long it takes. Prints a Markdown table.

The provider on loopback caches as the vendor of each protocol does, and thinks for a second before an answer begins.
Costs are those of the table for the model; the ratio is of the voices' input, with caching to without.

| protocol | the vendor's cache |
|---|---|
| Messages | up to marks in the prompt (Anthropic); writing costs more than input |
| Responses | up to breakpoints, for requests with one `prompt_cache_key` (OpenAI); writing costs more than input |
| Chat Completions | any common beginning (Gemini); writing costs nothing more |
| Chat, marked | up to marks in the prompt (Claude by OpenRouter); writing costs more than input |

    python benchmarks/caching.py             # 8 voices that share about 30,000 tokens
    python benchmarks/caching.py -n 4 -t 8000
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from processes import ROOT, cdo

sys.path.insert(0, str(ROOT))

PRESET = """\
about: Voices that share much.
width: [{n}, {n}]
start: {n}
max_turns: [1, 1]
bd: false
skills: "no"
team_mode: subagents
dashboard: false
adaptive: false
roles: [pragmatist, critic, architect, economist, operator, historian, tester, maintainer]
"""
TABLE = """\
purpose: benchmark
load_when: always
providers: {{{provider}: {{url: "{url}/v1", key_env: [BENCH_API_KEY], {options}}}}}
"""
THINKING = 1.0  # seconds before an answer begins
MOST = 0.25  # of the price without a cache, for eight voices


@dataclass(frozen=True)
class Route:
    """One way to a model: its name, the vendor's own model whose prices hold, and how the provider is reached."""

    title: str
    model: str
    priced_as: str
    options: str


ROUTES = (
    Route("Messages", "anthropic/claude-sonnet-5-5", "anthropic/claude-sonnet-5-5", "protocol: messages"),
    Route("Responses", "openai/gpt-6.1-sol", "openai/gpt-6.1-sol", "protocol: responses"),
    Route("Chat Completions", "gemini/gemini-3.8-flash", "gemini/gemini-3.8-flash", "protocol: chat"),
    Route(
        "Chat, marked", "openrouter/anthropic/claude-sonnet-5-5", "anthropic/claude-sonnet-5-5",
        'cache_marks: ["anthropic/*"]',
    ),
)  # fmt: skip


def turn(folder: Path, route: Route, voices: int, tokens: int, cache: int) -> tuple[float, float, float]:
    """Return dollars for the voices' input, what they would be without a cache, and the seconds of the run."""
    from tests.support.harness import exchanges
    from tests.support.provider import Provider

    (folder / ".cdo/presets").mkdir(parents=True)
    (folder / ".cdo/dispatch").mkdir()
    (folder / ".cdo/presets/share.yaml").write_text(PRESET.format(n=voices))
    facts = "\n".join(f"Fact {number}: the queue held {number} jobs that day." for number in range(tokens // 11))
    (folder / "facts.md").write_text(facts)
    with Provider(cache=cache, first_byte=THINKING) as provider:
        name = route.model.partition("/")[0]
        table = TABLE.format(provider=name, url=provider.url, options=route.options)
        (folder / ".cdo/dispatch/providers.yaml").write_text(table)
        words = ("share", "-m", route.model, "-c", "facts.md", "--trust", "--yes", "--no-git", "-q", "--session", "a")
        seconds = cdo(folder, *words, "Should we split the queue?", env={"BENCH_API_KEY": "k"}).seconds
    used = [record["usage"] for record in exchanges(folder / "tmp/cdo-a") if record["call_kind"] == "agent"]
    assert len(used) == voices, used
    return (*_dollars(route, used), seconds)


def _dollars(route: Route, used: Sequence[Mapping[str, int]]) -> tuple[float, float]:
    """Return what the input of these exchanges costs, and what it would cost without a cache."""
    from cdo.providers.price_table import entry, price_of

    vendor, _, model = route.priced_as.partition("/")
    price = price_of(entry(route.priced_as) or entry(model, vendor) or {})
    assert price and price.cached is not None
    read = sum(usage["cached_tokens"] for usage in used)
    written = sum(usage.get("cache_write_tokens", 0) for usage in used)
    everything = sum(usage["input_tokens"] for usage in used)
    write = price.input if price.cache_write is None else price.cache_write
    paid = (everything - read - written) * price.input + read * price.cached + written * write
    return paid / 1e6, everything * price.input / 1e6


def main() -> int:
    """Print the table; returns 1 where eight voices pay more than a quarter."""
    parser = argparse.ArgumentParser(description="Measure prompt caching.")
    parser.add_argument("-n", type=int, default=8, help="voices")
    parser.add_argument("-t", type=int, default=30_000, help="tokens that they share, about")
    options = parser.parse_args()
    print("| protocol | voices | shared tokens | input, $ | without cache, $ | ratio | run, s | without cache, s |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    ratios = []
    for route in ROUTES:
        found = {}
        for cache in (1024, 0):
            with tempfile.TemporaryDirectory() as place:
                found[cache] = turn(Path(place), route, options.n, options.t, cache)
        paid, fresh, seconds = found[1024]
        ratios.append(paid / fresh)
        row = [route.title, f"{options.n}", f"{options.t:,}", f"{paid:.4f}", f"{fresh:.4f}", f"{ratios[-1]:.2f}"]
        print(f"| {' | '.join([*row, f'{seconds:.1f}', f'{found[0][2]:.1f}'])} |", flush=True)
    return int(options.n >= 8 and max(ratios) > MOST)


if __name__ == "__main__":
    raise SystemExit(main())
