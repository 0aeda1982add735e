"""The strict subset of YAML: what is read, what is refused and where, and that writing can be read back."""

from __future__ import annotations

import contextlib
import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdo.formats import strict_yaml
from cdo.formats.strict_yaml import YamlProblem, dump, load
from tests.support.effort import at_most, spent, unit

quick = settings(max_examples=300, deadline=None)


def problem(text: str, **limits: int) -> YamlProblem:
    with pytest.raises(YamlProblem) as caught:
        load(text, **limits)
    return caught.value


# -- reading ---------------------------------------------------------------------------------------

SCALARS: list[tuple[str, Any]] = [
    ("~", None),
    ("null", None),
    ("NULL", None),
    ("true", True),
    ("False", False),
    ("0", 0),
    ("-7", -7),
    ("+12", 12),
    ("007", 7),
    ("999999999999999999", 999999999999999999),
    ("0.70", 0.7),
    (".5", 0.5),
    ("1.", 1.0),
    ("-0.25", -0.25),
    ("1.5e3", 1500.0),
    ("1.0E-05", 1e-05),
]
STAYS_TEXT = [
    "no", "yes", "on", "off", "y", "n", "No", "12:30", "190:20:30", "1e3", "12e4567", "1E5", "0x1F", "0o17", "0b1",
    "1_000", "2024-01-01", ".inf", "-.INF", ".nan", "nan", "inf", "1.0e999", "1000000000000000000", "1.2.3",
    "tRUE", "nULL", "=", "v1.10", "+", "-", ".", "e3", "٣", "１", "Infinity",
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), SCALARS)
def test_plain_scalars_have_one_reading(text: str, value: Any) -> None:
    found = load(f"key: {text}")
    assert found == {"key": value}
    assert type(found["key"]) is type(value)


@pytest.mark.parametrize("text", [text for text in STAYS_TEXT if text != "-"])
def test_what_looks_special_elsewhere_stays_text(text: str) -> None:
    assert load(f"key: {text}") == {"key": text}


@pytest.mark.parametrize(("text", "value"), [*SCALARS, *((text, text) for text in STAYS_TEXT)])
def test_quoted_scalars_are_text(text: str, value: Any) -> None:
    assert load(f"[\"{text}\", '{text}']") == [text, text]
    assert load(f"|-\n  {text}") == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("# only a comment", None),
        ("---\n", None),
        ("a: b # comment", {"a": "b"}),
        ("{a: [1, {b: 2}], c: }", {"a": [1, {"b": 2}], "c": None}),
        ("- a\n- b: c\n  d: e\n-", ["a", {"b": "c", "d": "e"}, None]),
        ("a: |\n  one\n  two\n", {"a": "one\ntwo\n"}),
        ("a: >-\n  one\n  two\n", {"a": "one two"}),
        ("? a\n: b", {"a": "b"}),
        ("<<: {a: 1}\nb: 2", {"<<": {"a": 1}, "b": 2}),
        ("1: a\nno: b\nnull: c\n~: d\n1.0: e", {"1": "a", "no": "b", "null": "c", "~": "d", "1.0": "e"}),
        ("\ufeffa: b", {"a": "b"}),
        ("a: b\r\nc: d\r\n", {"a": "b", "c": "d"}),
        ("a: 日本語 😀", {"a": "日本語 😀"}),
        ("a: b\n...\n", {"a": "b"}),
        ("--- {a: b}", {"a": "b"}),
    ],
)
def test_documents_are_read(text: str, value: Any) -> None:
    assert load(text) == value


# -- refusing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "column", "why"),
    [
        ("a: b\nc: *x", 2, 4, "aliases (*name) are not allowed"),
        ("a: &x b", 1, 4, "anchors (&name) are not allowed"),
        ("&x a: b", 1, 1, "anchors (&name) are not allowed"),
        ("a:\n  - &x [1]", 2, 5, "anchors (&name) are not allowed"),
        ("a: !!str b", 1, 4, "tags (!name) are not allowed"),
        ("a: !x {b: c}", 1, 4, "tags (!name) are not allowed"),
        ("- !!python/object/apply:os.system [ls]", 1, 3, "tags (!name) are not allowed"),
        ("a: ! b", 1, 4, "tags (!name) are not allowed"),
        ("é: ! 'b'", 1, 4, "tags (!name) are not allowed"),
        ("a: ! [b]", 1, 4, "tags (!name) are not allowed"),
        ("%YAML 1.1\n---\na: b", 1, 1, "directives (%NAME) are not allowed"),
        ("%TAG ! tag:x,2000:\n---\na: b", 1, 1, "directives (%NAME) are not allowed"),
        ("a: 1\nb: 2\na: 3", 3, 1, "the key `a` is there twice"),
        ("a: {b: 1, 'b': 2}", 1, 11, "the key `b` is there twice"),
        ("1: a\n'1': b", 2, 1, "the key `1` is there twice"),
        ("? [a]\n: b", 1, 3, "a key must be plain text"),
        ("{{a: b}: c}", 1, 2, "a key must be plain text"),
        ("--- a\n--- b", 2, 1, "only one document is allowed"),
        ("---\n---\na: b", 2, 1, "only one document is allowed"),
        ("é: b\nc: \x00d", 2, 4, "the character U+0000 is not allowed"),
        ("a: \x1b[31m", 1, 4, "the character U+001B is not allowed"),
        ("\ud800", 1, 1, "the character U+D800 is not allowed"),
        ("a: b: c", 1, 5, "mapping values are not allowed in this context"),
        ("a: @b", 1, 4, "found character that cannot start any token"),
        ("\ta: b", 1, 1, "a tab cannot stand here: indent with spaces"),
        ("a: 1\n\tb: 2", 2, 1, "a tab cannot stand here: indent with spaces"),
        ("a: 'b\n---\nc'", 2, 1, "found unexpected document indicator"),
    ],
)
def test_what_is_outside_the_subset_is_named_with_its_place(text: str, line: int, column: int, why: str) -> None:
    found = problem(text)
    assert (found.line, found.column, found.why) == (line, column, why)
    assert str(found) == f"line {line}, column {column}: {why}"


def test_a_problem_is_one_short_line_whatever_the_key() -> None:
    key = "k" * 3000
    assert len(str(problem(f"'{key}': 1\n'{key}': 2"))) < 200
    assert problem('"a\\n\\e[31m": 1\n"a\\n\\e[31m": 2').why == "the key `a��[31m` is there twice"


@pytest.mark.parametrize("text", ["a: [b, c", 'a: "b', "a: {b", "a: 'b\n\nc", "- a\nb: c"])
def test_what_breaks_off_is_a_problem_with_a_place_in_the_text(text: str) -> None:
    found = problem(text)
    assert 1 <= found.line <= text.count("\n") + 2


def test_size_counts_utf8_bytes_and_both_sides_of_the_limit() -> None:
    assert load("é" * 4096, max_bytes=8192) == "é" * 4096
    found = problem("é" * 4096 + "x", max_bytes=8192)
    assert str(found) == "line 1, column 1: 8,193 bytes of YAML, at most 8,192 are read"
    assert load("x" * 8192) == "x" * 8192
    assert problem("x" * 8193).why.startswith("8,193 bytes")


@pytest.mark.parametrize("shape", ["flow", "block"])
def test_depth_counts_lists_and_mappings(shape: str) -> None:
    def nested(depth: int) -> str:
        if shape == "flow":
            return (
                "".join("[" if i % 2 else "{a: " for i in range(depth))
                + "x"
                + "".join("]" if i % 2 else "}" for i in reversed(range(depth)))
            )
        return "".join(f"{'  ' * i}a:\n" for i in range(depth - 1)) + "  " * (depth - 1) + "a: x"

    load(nested(6))
    assert problem(nested(7)).why == "nested deeper than 6"
    load(nested(7), max_depth=7)
    assert problem("[]", max_depth=0).why == "nested deeper than 0"


HOSTILE = {
    "500 brackets": "[" * 500,
    "8000 braces": "{" * 8000,
    "8000 complex keys": "? " * 4000,
    "8000 dashes": "- " * 4000,
    "alias bomb": "a: &a [x]\n" + "".join(f"b{i}: &b{i} [*a,*a,*a]\n" for i in range(300)),
    "merge bomb": "a: &a {x: 1}\n" + "".join(f"b{i}:\n  <<: [*a, *a]\n" for i in range(300)),
    "400 KB": "a: b\n" * 80_000,
    "many keys": "".join(f"k{i}: 1\n" for i in range(1000))[:8000],
    "many values": "[" + "a," * 4000,
    "colons": "a: " * 2700,
    "quotes": '"' * 8000,
    "open block": "a: |\n" + " " * 8000,
    "stairs": "".join(" " * i + "a:\n" for i in range(120)),
    "anchors": "&a " * 2700,
    "tags": "!a " * 2700,
    "percent": "%" * 8000,
    "backslashes": '"' + "\\" * 7999,
    "unicode escapes": '"' + "\\U0010FFFF" * 799 + '"',
    "bad unicode escape": '"\\UFFFFFFFF"',
    "surrogate escape": '"\\uD800"',
    "huge number": "9" * 8000,
    "huge exponent": "1.0e" + "9" * 8000,
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("limit", [8192, 1_048_576])
def test_hostile_documents_are_fast(name: str, limit: int) -> None:
    text = HOSTILE[name] if limit == 8192 else (HOSTILE[name] * 40)[:400_000]
    with at_most(1):
        try:
            load(text, max_bytes=limit)
        except YamlProblem as found:
            assert len(str(found)) < 200 and "\n" not in str(found)


@pytest.mark.wide
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_documents_need_little_memory(name: str) -> None:
    text = (HOSTILE[name] * 40)[:400_000]
    with contextlib.suppress(YamlProblem):
        load("a: [b]\n")  # what is made once is not counted
    tracemalloc.start()
    try:
        with contextlib.suppress(YamlProblem):
            load(text, max_bytes=1_048_576)
        assert tracemalloc.get_traced_memory()[1] <= 20_000_000
    finally:
        tracemalloc.stop()


TOKENS = [
    *"{}[]:,-?|>&*!%@`#'\" \t\n\r~", "a", "b1", ": ", ": ", "- ", "- ", "? ", "\n", "\n", "\n  ", "\n    ", "---\n",
    "...\n", "%YAML 1.2\n", "!!int ", "<<", "&x ", "*x", "|-\n", ">+\n", "\\u", "\\x41", "é", "😀", "\ufeff", "\x85",
    "1.5", "true",
]  # fmt: skip


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_token_soup_raises_nothing_but_yaml_problems(count: int) -> None:
    soup = random.Random(count)
    read = 0
    for _ in range(count):
        text = "".join(soup.choices(TOKENS, k=soup.randrange(1, 24)))
        text += soup.choice(["\0", "\ud800", "\x1b"]) if soup.random() < 0.05 else ""
        try:
            load(text)
            read += 1
        except YamlProblem as found:
            assert found.line >= 1 and found.column >= 1
    assert read > count * 0.03  # the soup is not only refused


@pytest.mark.wide
def test_the_slowest_of_a_thousand_documents_is_fast() -> None:
    """At 8 KB, the size of a reply's data: of those, 99 in 100 take less than a twentieth of a second."""
    soup, took = random.Random(8), list[float]()
    documents = ["".join(soup.choices(TOKENS, k=4000))[:8192] for _ in range(500)]
    plain = [f"- {{id: {n}, text: 'word {n}', more: [a, {n}.5, true]}}\n" for n in range(150)]
    documents += ["".join(soup.sample(plain, 150))[:8192].rpartition("\n")[0] for _ in range(500)]
    read = 0
    before = unit()
    for text in documents:
        began = spent()
        with contextlib.suppress(YamlProblem):
            load(text)
            read += 1
        took.append(spent() - began)
    assert read == 500
    assert sorted(took)[989] <= 0.05 * max(before, unit())


@pytest.mark.wide
@settings(quick, max_examples=1000)
@given(st.text() | st.text("ab:-?[]{},&*!|>'\"%@`#~ \n\t\\0123.e", max_size=40))
def test_any_text_raises_nothing_but_yaml_problems(text: str) -> None:
    try:
        load(text)
    except YamlProblem as found:
        assert found.line >= 1 and found.column >= 1


def test_the_python_parser_reads_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    import yaml

    expected = [load(f"key: {text}") for text in (*(text for text, _ in SCALARS), "no", "1e3", "'x'", "|\n  x")]
    monkeypatch.setattr(strict_yaml, "_Loader", yaml.SafeLoader)
    strict_yaml._packed.cache_clear()
    assert [
        load(f"key: {text}") for text in (*(text for text, _ in SCALARS), "no", "1e3", "'x'", "|\n  x")
    ] == expected
    assert problem("a: ! b").why == "tags (!name) are not allowed"
    assert problem("a: *b").why == "aliases (*name) are not allowed"


def test_a_text_that_was_read_before_gives_values_of_its_own() -> None:
    first: Any = load("claims: [{id: c1}]")
    first["claims"].append("changed")
    assert load("claims: [{id: c1}]") == {"claims": [{"id": "c1"}]}
    assert problem("a: [").why == problem("a: [").why


# -- writing ---------------------------------------------------------------------------------------

AWKWARD = "ab 01.:-#'\"|>{}[],&*!%@`?~\\\n\t\r\x85\u2028\u2029\ufeff\x00é😀"
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.text(AWKWARD, max_size=20)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(10**18) + 1, 10**18 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS
    | st.sampled_from([*STAYS_TEXT, *(text for text, _ in SCALARS), "", " a", "a ", "\na", "a\n\n", "a\n b\n", "---"])
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4), max_leaves=8
)


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types throughout (1 is not True, and not 1.0)."""
    if isinstance(one, dict):
        return isinstance(other, dict) and list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


@pytest.mark.wide
@quick
@given(VALUES)
def test_what_is_written_reads_back_the_same(value: Any) -> None:
    assert same(load(dump(value), max_bytes=1_000_000, max_depth=30), value)


@quick
@given(st.lists(st.text("abc .:#-'\"é😀", max_size=60), min_size=2, max_size=8), st.sampled_from([" ", "\n", "\n\n"]))
def test_long_text_reads_back_the_same(words: list[str], joint: str) -> None:
    text = joint.join(words)
    assert load(dump({"key": text}), max_bytes=1_000_000) == {"key": text}


def test_files_look_the_way_people_write_them() -> None:
    data = {
        "role": "critic",
        "answer": "no",
        "hash": "12e4",
        "time": "12:30",
        "confidence": 0.7,
        "cost": None,
        "claims": [{"id": "c1", "text": "first: with a colon", "evidence": ["a.py:3"]}],
        "short": {"a": 1, "b": 2},
        "names": ("one", "two"),
        "text": "line one\nline two\n",
        "party": "😀 as it is, ünd so weiter",
        "empty": [],
    }
    assert dump(data) == (
        "role: critic\n"
        "answer: 'no'\n"
        'hash: "12e4"\n'
        "time: '12:30'\n"
        "confidence: 0.7\n"
        "cost: null\n"
        "claims:\n"
        "- id: c1\n"
        "  text: 'first: with a colon'\n"
        "  evidence: ['a.py:3']\n"
        "short: {a: 1, b: 2}\n"
        "names: [one, two]\n"
        "text: |\n"
        "  line one\n"
        "  line two\n"
        "party: 😀 as it is, ünd so weiter\n"
        "empty: []\n"
    )


def test_the_same_list_twice_is_written_twice() -> None:
    shared = ["x"]
    assert "&" not in dump({"a": shared, "b": shared, "c": [shared, shared]})


def test_a_lone_surrogate_is_replaced_not_raised() -> None:
    assert load(dump({"why": "bad \ud800 byte"})) == {"why": "bad ? byte"}
