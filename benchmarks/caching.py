"""Measure what a turn of voices costs with prompt caching, and how long it takes. Prints a Markdown table.

The provider on loopback speaks Messages, reads and writes a cache as Anthropic's does, and thinks for a second before
each answer begins. Costs are those of the table for the model; the ratio is of the voices' input, with caching to
without.

    python benchmarks/caching.py             # 8 voices that share about 30,000 tokens
    python benchmarks/caching.py -n 4 -t 8000
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from processes import ROOT, cdo

sys.path.insert(0, str(ROOT))

MODEL = "anthropic/claude-sonnet-5-5"
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
THINKING = 1.0  # seconds before an answer begins
MOST = 0.25  # of the price without a cache, for eight voices


def turn(folder: Path, voices: int, tokens: int, cache: int) -> tuple[float, float, float]:
    """Return dollars for the voices' input, what they would be without a cache, and the seconds of the run."""
    from cdo.content.library import Library
    from cdo.providers.models import resolve
    from tests.support.harness import exchanges
    from tests.support.provider import Provider

    (folder / ".cdo/presets").mkdir(parents=True)
    (folder / ".cdo/presets/share.yaml").write_text(PRESET.format(n=voices))
    facts = "\n".join(f"Fact {number}: the queue held {number} jobs that day." for number in range(tokens // 11))
    (folder / "facts.md").write_text(facts)
    with Provider(cache=cache, first_byte=THINKING) as provider:
        env = {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": provider.url}
        words = ("share", "-m", MODEL, "-c", "facts.md", "--trust", "--yes", "--no-git", "-q", "--session", "a")
        seconds = cdo(folder, *words, "Should we split the queue?", env=env).seconds
        price = resolve(MODEL, Library.at(folder), {}, env).price
    assert price and price.cached is not None
    used = [record["usage"] for record in exchanges(folder / "tmp/cdo-a") if record["call_kind"] == "agent"]
    assert len(used) == voices, used
    read = sum(usage["cached_tokens"] for usage in used)
    written = sum(usage.get("cache_write_tokens", 0) for usage in used)
    everything = sum(usage["input_tokens"] for usage in used)
    write = price.input if price.cache_write is None else price.cache_write
    paid = (everything - read - written) * price.input + read * price.cached + written * write
    return paid / 1e6, everything * price.input / 1e6, seconds


def main() -> int:
    """Print the table; returns 1 where eight voices pay more than a quarter."""
    parser = argparse.ArgumentParser(description="Measure prompt caching.")
    parser.add_argument("-n", type=int, default=8, help="voices")
    parser.add_argument("-t", type=int, default=30_000, help="tokens that they share, about")
    options = parser.parse_args()
    found = {}
    for name, cache in (("cached", 1024), ("not cached", 0)):
        with tempfile.TemporaryDirectory() as place:
            found[name] = turn(Path(place), options.n, options.t, cache)
    paid, fresh, seconds = found["cached"]
    print("| voices | shared tokens | input, $ | without cache, $ | ratio | run, s | without cache, s |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    row = [f"{options.n}", f"{options.t:,}", f"{paid:.4f}", f"{fresh:.4f}", f"{paid / fresh:.2f}"]
    row += [f"{seconds:.1f}", f"{found['not cached'][2]:.1f}"]
    print(f"| {' | '.join(row)} |")
    return int(options.n >= 8 and paid / fresh > MOST)


if __name__ == "__main__":
    raise SystemExit(main())
