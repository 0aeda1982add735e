"""Grammars: what they promise holds for samples of them, and the real llama.cpp takes each one."""

from __future__ import annotations

import asyncio
import json
import random
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdo.formats import gbnf
from cdo.providers import demo_model_file, embedded

LENGTHS = st.tuples(st.integers(1, 250), st.integers(0, 600)).map(lambda pair: (pair[0], sum(pair)))
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=40)
ASCII = st.text(st.characters(max_codepoint=126, exclude_characters="\0"), min_size=1, max_size=40)
SOME = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
_TOKEN = re.compile(r'\[(?:[^\]\\]|\\.)+\]|"(?:[^"\\]|\\.)*"|[a-z][a-z0-9-]*|\{\d+(?:,\d+)?\}|[()|?]|\s+')


def as_regex(source: str) -> str:
    """The grammar (none of ours refers to itself) as a regular expression."""
    rules = dict(line.split(" ::= ", 1) for line in source.split("\n") if line)

    def convert(expression: str) -> str:
        found = _TOKEN.findall(expression)
        assert "".join(found) == expression, expression
        return "".join(piece(token) for token in found)

    def piece(token: str) -> str:
        if token in rules:
            return f"(?:{convert(rules[token])})"
        if token.startswith('"'):
            return f"(?:{re.escape(unescape(token[1:-1]))})"
        return "" if token.isspace() else "(?:" if token == "(" else token

    return convert(rules["root"])


def unescape(text: str) -> str:
    """A literal's characters as GBNF reads them."""
    known = {"n": "\n", "\\": "\\", '"': '"'}
    return re.sub(r"\\(?:x(..)|(.))", lambda m: chr(int(m[1], 16)) if m[1] else known[m[2]], text)


def sample(expression: str, seed: int) -> str:
    """A text that the expression allows, with repetitions as often at a bound as between the two."""
    source = as_regex(gbnf.grammar({"root": expression}))
    text = _walk(re._parser.parse(source), random.Random(seed))  # type: ignore[attr-defined]
    assert re.fullmatch(source, text)
    return text


def _walk(tree: object, pick: random.Random) -> str:
    """A random member of a parsed regular expression (the few node kinds that grammars here lead to)."""
    out = ""
    for operator, value in tree:  # type: ignore[attr-defined]
        match str(operator):
            case "LITERAL":
                out += chr(value)
            case "IN":
                ranges = [(v, v) if str(kind) == "LITERAL" else v for kind, v in value]
                low, high = pick.choices(ranges, [b - a + 1 for a, b in ranges])[0]
                out += chr(pick.randint(low, high))
            case "BRANCH":
                out += _walk(pick.choice(value[1]), pick)
            case "SUBPATTERN":
                out += _walk(value[-1], pick)
            case "MAX_REPEAT":
                low, high, inner = value
                times = pick.choice([low, int(high), pick.randint(low, int(high))])
                out += "".join(_walk(inner, pick) for _ in range(times))
            case other:
                raise AssertionError(other)
    return out


def matches(expression: str, text: str) -> bool:
    return bool(re.fullmatch(as_regex(gbnf.grammar({"root": expression})), text))


# -- what each piece promises ---------------------------------------------------------------------


@SOME
@given(LENGTHS, st.integers())
def test_a_line_is_one_printable_line_within_its_bounds(bounds: tuple[int, int], seed: int) -> None:
    low, high = bounds
    found = sample(gbnf.line(low, high), seed)
    assert low <= len(found) <= high
    assert found.isascii() and found.isprintable() and "`" not in found
    assert found[0].isupper()
    if high - low > 3 and len(found) > high - 4:  # cut, and nobody can take it for a whole sentence
        assert found.endswith("...")


@SOME
@given(LENGTHS, st.integers())
def test_a_quoted_string_reads_the_same_in_yaml_and_json(bounds: tuple[int, int], seed: int) -> None:
    low, high = bounds
    found = sample(gbnf.quoted(low, high), seed)
    assert low <= len(found) - 2 <= high
    assert yaml.safe_load(found) == json.loads(found) == found[1:-1]


@pytest.mark.wide
@SOME
@given(LENGTHS, st.integers())
def test_prose_has_no_runs_of_breaks_and_ends_with_a_sentence_where_it_is_cut(
    bounds: tuple[int, int], seed: int
) -> None:
    low, high = bounds
    found = sample(gbnf.text(low, high), seed)
    breaks = len(re.findall(r"\n+", found))
    assert low <= len(found) <= high + 2 * breaks
    assert "\n\n\n" not in found and "`" not in found
    assert all(part[0].isupper() for part in found.split("\n") if part)
    if high - low > 160 and len(found) - 2 * breaks > high - 80 + 1:
        assert found[-1] in ".!?"


@SOME
@given(LENGTHS, st.sampled_from([gbnf.line, gbnf.quoted, gbnf.text]))
def test_too_short_and_too_long_are_kept_out(bounds: tuple[int, int], piece: Callable[[int, int], str]) -> None:
    low, high = bounds
    wrap = '"{}"' if piece is gbnf.quoted else "{}"
    assert matches(piece(low, high), wrap.format("A" * low))
    assert not matches(piece(low, high), wrap.format("A" * (low - 1)))
    assert not matches(piece(low, high), wrap.format("A" * (high + 1)))
    assert not matches(piece(low, high), wrap.format("A" * (low - 1) + "é"))


@SOME
@given(TEXTS)
def test_a_literal_is_exactly_its_text(text: str) -> None:
    assert unescape(gbnf.literal(text)[1:-1]) == text


@SOME
@given(st.lists(TEXTS, min_size=1, max_size=6), TEXTS)
def test_a_choice_takes_its_options_and_nothing_else(options: list[str], other: str) -> None:
    assert all(matches(gbnf.choice(options), option) for option in options)
    assert matches(gbnf.choice(options), other) == (other in options)


@given(st.integers(0, 300), st.integers(0, 199), st.integers(0, 600))
def test_an_integer_lies_in_its_range(low: int, more: int, number: int) -> None:
    assert matches(gbnf.integer(low, low + more), str(number)) == (low <= number <= low + more)


def test_a_share_and_a_boolean() -> None:
    assert all(matches(gbnf.number01(), f"0.{number:02}") for number in range(100))
    assert not any(matches(gbnf.number01(), text) for text in ("1.00", "0.5", "0.500", ".50", "-0.10"))
    assert [text for text in ("true", "false", "yes", "") if matches(gbnf.boolean(), text)] == ["true", "false"]


@given(st.integers(0, 4), st.integers(1, 4), st.integers(0, 9), st.sampled_from(["", ", ", "\n"]))
def test_a_list_has_as_many_items_as_it_may(low: int, more: int, count: int, separator: str) -> None:
    expression = gbnf.items('"x"', low, low + more, separator)
    assert matches(expression, separator.join("x" * count)) == (low <= count <= low + more)


@pytest.mark.parametrize(
    "make",
    [
        lambda: gbnf.literal(""),
        lambda: gbnf.literal("a\0"),
        lambda: gbnf.literal("\ud800"),
        lambda: gbnf.choice([]),
        lambda: gbnf.either(),
        lambda: gbnf.line(0, 5),
        lambda: gbnf.quoted(6, 5),
        lambda: gbnf.text(-1, 5),
        lambda: gbnf.text(10, 2001),
        lambda: gbnf.items("word", 1, 1001, ", "),
        lambda: gbnf.integer(5, 4),
        lambda: gbnf.integer(0, 1000),
        lambda: gbnf.repeat('("a" "b")', 1, 2),
        lambda: gbnf.repeat('"a" "b"', 1, 2),
        lambda: gbnf.repeat("word", 0, 0),
        lambda: gbnf.items("word", 3, 2, ", "),
        lambda: gbnf.grammar({"start": '"x"'}),
        lambda: gbnf.grammar({"root": "other"}),
        lambda: gbnf.grammar({"root": '"x"', "a_b": '"y"'}),
        lambda: gbnf.grammar({"root": '"x"\n"y"'}),
    ],
)
def test_what_nobody_can_satisfy_is_refused(make: Callable[[], str]) -> None:
    with pytest.raises(ValueError):
        make()


# -- the real parser ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ask() -> Iterator[Callable[[str, int], str]]:
    """Ask the real model with a grammar and a number of tokens; fails when llama.cpp rejects the grammar."""
    server = embedded.LocalServer(demo_model_file.pull(print))
    url = asyncio.run(server.start())

    def asked(grammar: str, tokens: int) -> str:
        body = {
            "messages": [{"role": "user", "content": "Should a team of three keep its monolith?"}],
            "max_tokens": tokens,
            "grammar": grammar,
            **embedded.SAMPLING,
        }
        request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return str(json.load(answer)["choices"][0]["message"]["content"])
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{error.read().decode()}\n{grammar}") from None

    yield asked
    asyncio.run(server.close())


# The model has no token for these control characters: llama.cpp reads a literal with one, but no reply can write it.
WRITABLE = st.text(
    st.characters(max_codepoint=126, exclude_characters="\0\4\6\x13\x14\x16\x1d"), min_size=1, max_size=40
)
PIECES = st.one_of(
    LENGTHS.map(lambda b: gbnf.line(*b)),
    LENGTHS.map(lambda b: gbnf.quoted(*b)),
    LENGTHS.map(lambda b: gbnf.text(*b)),
    WRITABLE.map(gbnf.literal),
    st.lists(WRITABLE, min_size=1, max_size=5).map(gbnf.choice),
    st.integers(0, 20).map(lambda low: gbnf.integer(low, low + 12)),
    st.just(gbnf.number01()),
    st.just(gbnf.optional(gbnf.boolean())),
    st.tuples(st.integers(0, 3), st.integers(1, 40)).map(lambda p: gbnf.items("other", p[0], sum(p), ", ")),
    st.tuples(st.integers(0, 3), st.integers(1, 400)).map(lambda p: gbnf.repeat("other", p[0], sum(p))),
)


@pytest.mark.wide
@pytest.mark.model
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(PIECES, min_size=1, max_size=6), LENGTHS)
def test_llama_cpp_takes_whatever_is_put_together(
    ask: Callable[[str, int], str], pieces: list[str], other: tuple[int, int]
) -> None:
    ask(gbnf.grammar({"root": " ".join(pieces), "other": gbnf.line(*other)}), 1)


@pytest.mark.wide
@pytest.mark.model
def test_llama_cpp_reads_a_literal_and_a_class_as_we_mean_them(ask: Callable[[str, int], str]) -> None:
    odd = 'a"b\\c\nd\te\x01é→[]{}^-`'
    assert ask(gbnf.grammar({"root": gbnf.literal(odd)}), 80) == odd


@pytest.mark.wide
@pytest.mark.model
def test_llama_cpp_takes_the_longest_of_everything(ask: Callable[[str, int], str]) -> None:
    for piece in (
        *(make(low, 2000) for make in (gbnf.line, gbnf.quoted, gbnf.text) for low in (1, 1000, 1999, 2000)),
        *(gbnf.items("other", low, 1000, ", ") for low in (0, 500, 1000)),
    ):
        ask(gbnf.grammar({"root": piece, "other": gbnf.quoted(1, 2000)}), 1)


@pytest.mark.wide
@pytest.mark.model
def test_a_whole_reply_keeps_its_shape(ask: Callable[[str, int], str]) -> None:
    roles = ["architect", "skeptic", "operator"]
    source = gbnf.grammar(
        {
            "root": f'"---\\nposition: " {gbnf.quoted(20, 80)} "\\nconfidence: " {gbnf.number01()} "\\nroles: ["'
            f' {gbnf.items("role", 2, 3, ", ")} "]\\nclaims:\\n" {gbnf.repeat("claim", 1, 2)} "---\\n\\n"'
            f" {gbnf.text(40, 300)}",
            "role": gbnf.choice(roles),
            "claim": f'"- text: " {gbnf.quoted(10, 60)} "\\n"',
        }
    )
    reply = ask(source, 400)
    assert re.fullmatch(as_regex(source), reply), reply
    front = yaml.safe_load(reply.split("---\n")[1])
    assert 0 <= front["confidence"] < 1 and 2 <= len(front["roles"]) <= 3 and set(front["roles"]) <= set(roles)
