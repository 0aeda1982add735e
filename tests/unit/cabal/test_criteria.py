"""Definitions of done and references: what may be demanded, what code makes of it, what counts as evidence."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cdo.cabal.model import references
from cdo.cabal.model.entities import Check, Criterion, CriterionResult, Kind, Product, Status
from cdo.cabal.model.state import MissionState
from cdo.cabal.replies.fields import CriterionItem
from cdo.cabal.rules import criteria
from cdo.formats.document_blocks import joined
from cdo.security import bounded_checks
from tests.support.effort import at_most
from tests.support.missions import ALEX, JORDAN, V1, todo

STATE = todo(2)


def item(text: str = "Says so", kind: str = "judged", value: Any = None, id: str = "") -> CriterionItem:
    return CriterionItem.model_validate({"text": text, "id": id, "check": {"kind": kind, "value": value}})


def wrong(kind: str, value: Any) -> str:
    """The one problem of a criterion with this test, "" for none."""
    found = criteria.problems([item(kind=kind, value=value)], STATE)
    assert len(found) < 2
    return found[0] if found else ""


def result(kind: str, value: Any, content: str, state: MissionState = STATE) -> CriterionResult:
    found = criteria.tested(Criterion("d1", "x", Check(kind, value)), version(content), state)
    assert found is not None
    assert (found.criterion, found.by) == ("d1", "code")
    return found


def version(content: str) -> Any:
    return replace(STATE.versions["v4"], content=content)


def passes(kind: str, value: Any, content: str, state: MissionState = STATE) -> bool:
    return result(kind, value, content, state).passed


# -- ids -------------------------------------------------------------------------------------------


def test_criteria_get_ids_in_order_and_keep_them() -> None:
    old = criteria.made([item("One"), item("Two"), item("Three")])
    assert [(line.id, line.text) for line in old] == [("d1", "One"), ("d2", "Two"), ("d3", "Three")]
    new = criteria.made([item("three."), item("Four"), item("Zwei", id="d2"), item("Five", id="d9")], old)
    assert [(line.id, line.text) for line in new] == [
        ("d3", "three."), ("d4", "Four"), ("d5", "Zwei"), ("d6", "Five"),
    ]  # fmt: skip


def test_another_text_or_test_is_another_criterion_whatever_id_it_claims() -> None:
    old = criteria.made([item("Covers risks"), item("Is long", "min_words", 20), item("c", "json_schema", {"a": 1})])
    same = [item("covers  risks.", id="d3"), item("Is long", "min_words", "20"), item("c", "json_schema", {"a": 1})]
    assert [line.id for line in criteria.made(same, old)] == ["d1", "d2", "d3"]
    other = [
        item("Covers costs", id="d1"),
        item("Is long", "min_words", 30, id="d2"),
        item("c", "json_schema", {"a": True}),
    ]  # fmt: skip
    assert [line.id for line in criteria.made(other, old)] == ["d4", "d5", "d6"]
    assert [line.id for line in criteria.made([item("Is long")], old)] == ["d4"]


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from(["", "d1", "d2", "d9"])), max_size=8), st.data())
def test_ids_are_never_given_twice(said: list[tuple[str, str]], data: st.DataObject) -> None:
    old = criteria.made([item(text, id=id) for text, id in said])
    again = data.draw(st.permutations(said))
    new = criteria.made([item(text, id=id) for text, id in again], old)
    for made in (old, new):
        assert len({line.id for line in made}) == len(made) == len(said)
    texts = {line.id: line.text for line in old}
    taken = {line.id for line in new}
    for line, (text, _) in zip(new, again, strict=True):
        if line.id in texts:
            assert texts[line.id] == text
        else:
            assert {id for id in texts if texts[id] == text} <= taken


def test_a_mission_does_not_run_out_of_ids() -> None:
    dod = criteria.made([item(f"n{place}") for place in range(16)])
    for turn in range(30):
        dod = criteria.made([item(f"{turn} {place}") for place in range(16)], dod)
        assert len({line.id for line in dod}) == 16
        assert all(len(line.id) < 4 for line in dod)


def test_arguments_are_kept_as_they_are_used() -> None:
    made = criteria.made(
        [item("a", "min_words", " 20 "), item("b", "reference", "[[p:p3]]"), item("c", "judged", "by me")]
    )
    assert [line.check for line in made] == [Check("min_words", 20), Check("reference", "p3"), Check()]


# -- what may be demanded --------------------------------------------------------------------------


def test_what_is_wrong_with_a_criterion_is_told_by_its_place() -> None:
    found = criteria.problems(
        [item("Fine"), item("See [[p:p9]]"), item("c", "regex", "(x"), item("fine."), item("e", id="d1")], STATE
    )
    assert found == [
        "two criteria have the text `fine`.",
        "criterion 2: [[p:p9]] is not a product; the products are p1, p2, p3, p4 and p5.",
        "criterion 3 (regex): RE2 does not take the pattern: missing ): (x.",
    ]
    assert criteria.problems([item("a", id="d1"), item("b", id="d1")], STATE) == ["two criteria have the id `d1`."]


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        ("regex", r"(a)\1", "RE2 does not take"),
        ("regex", "(?=a)", "RE2 does not take"),
        ("regex", "a*", "found in an empty text"),
        ("regex", "", "must be a pattern"),
        ("regex", None, "must be a pattern"),
        ("regex", 7, "must be a pattern"),
        ("regex", "a" * 601, "at most 600"),
        ("regex", ".", "almost any text"),
        ("regex", "e", "almost any text"),
        ("regex", r"\w", "almost any text"),
        ("regex", r"\S+", "almost any text"),
        ("regex", "[a-z]", "almost any text"),
        ("regex", r"(?s)\A.{5}", "almost any text"),
        ("regex", r"\w+\s+\w+|x", "almost any text"),
        ("regex", "((a{99}){99}){99}", "RE2 does not take"),
        ("regex", r"\p{L}{50}", "too large"),
        ("contains", "", "must be the text"),
        ("contains", " \u200b\u2060\u3164 ", "must be the text"),
        ("contains", ["a"], "must be the text"),
        ("contains", "e ", "must be the text"),
        ("contains", "a \u200b b", "must be the text"),
        ("reference", "p9", "the products are p1"),
        ("reference", "v1", "the products are p1"),
        ("reference", None, "the products are p1"),
        ("min_words", "many", "number of words"),
        ("min_words", True, "number of words"),
        ("min_words", 0, "number of words"),
        ("min_words", -5, "number of words"),
        ("min_words", 2.5, "number of words"),
        ("min_words", 4, "from 5 to 200,000"),
        ("min_words", 200_001, "from 5 to 200,000"),
        ("max_words", 10**9, "number of words"),
        ("max_words", 200_000, "from 1 to 199,999"),
        ("max_words", 0, "from 1 to 199,999"),
        ("max_words", "\u00b2", "number of words"),
        ("json_schema", {}, "takes any JSON"),
        ("json_schema", True, "is a mapping"),
        ("json_schema", {"title": "x", "anyOf": [True, {"type": "object"}]}, "takes any JSON"),
        ("json_schema", {"properties": {"a": {"type": "string"}}}, "takes any JSON"),
        ("json_schema", "object", "is a mapping"),
        ("json_schema", None, "is a mapping"),
        ("json_schema", {"type": "objekt"}, "at $.type"),
        ("json_schema", {"format": "email"}, "`format` is not tested"),
        ("json_schema", {"requires": ["a"]}, "`requires` is not tested"),
        ("json_schema", {"patternProperties": {"(a+)+$": True}}, "is not tested"),
        ("json_schema", {"properties": {"a": {"$schema": "http://json-schema.org/draft-07/schema#"}}}, "not tested"),
        ("json_schema", {"$ref": "http://127.0.0.1:1/schema"}, "is no definition"),
        ("json_schema", {"$ref": "#"}, "is no definition"),
        ("json_schema", {"$ref": "#/enum/0", "enum": [{"format": "x"}]}, "is no definition"),
        ("json_schema", {"$id": "http://127.0.0.1:1/", "type": "object"}, "`$id` is not tested"),
        ("json_schema", {"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"}, "refers to itself"),
        ("json_schema", {"properties": {"a": {"pattern": "(?=a)"}}}, "RE2 does not take"),
        ("json_schema", {"enum": ["x" * 9000]}, "at most 8000"),
        ("json_schema", {"multipleOf": float("nan")}, "not plain JSON"),
        ("json_schema", {"items": 5}, "neither a mapping"),
        ("json_schema", {"allOf": [{"pattern": f"a{{{n}}}.{{300}}"} for n in range(9)]}, "too large together"),
    ],
)
def test_a_test_that_cannot_be_run_is_refused_and_fails_if_it_is_there_all_the_same(
    kind: str, value: Any, why: str
) -> None:
    assert why in wrong(kind, value)
    assert not passes(kind, value, 'aaa {"a": 1}\n[[p:p9]] [[v:v1]]')


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("judged", None),
        ("regex", r"(?m)^#+ .{0,80}rate limit"),
        ("regex", r"\A[^<>]+\z"),
        ("regex", r"\A.{1,200}\z"),
        ("regex", "(?s).{100}"),
        ("contains", "Rate limiting"),
        ("contains", "429"),
        ("reference", "p3"),
        ("min_words", 5),
        ("min_words", 300),
        ("max_words", 1),
        ("max_words", "900"),
        ("max_words", 29_999),
        ("json_schema", {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}),
        (
            "json_schema",
            {
                "$defs": {"id": {"type": "string", "pattern": "^[a-z]+$"}},
                "properties": {"a": {"$ref": "#/$defs/id"}},
                "required": ["a"],
            },
        ),
    ],
)
def test_what_can_be_run_is_not_refused(kind: str, value: Any) -> None:
    assert wrong(kind, value) == ""


def deep(levels: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def doubled(levels: int) -> Any:
    """A small schema that is 2 to the power of `levels` subschemas large once its references are followed."""
    defs: dict[str, Any] = {"a0": {"type": "string"}}
    for level in range(levels):
        defs[f"a{level + 1}"] = {"allOf": [{"$ref": f"#/$defs/a{level}"}] * 2}
    return {"$defs": defs, "$ref": f"#/$defs/a{levels}"}


@pytest.mark.parametrize("schema", [deep(500), deep(25), doubled(20), {"allOf": [True] * 600}])
def test_a_schema_is_neither_deep_nor_large_once_its_references_are_followed(schema: Any) -> None:
    with at_most(2):
        assert "refers to itself, or has over" in wrong("json_schema", schema)


# -- what code tests -------------------------------------------------------------------------------


def test_what_is_judged_is_left_to_an_inspection() -> None:
    assert criteria.tested(Criterion("d1", "x"), version("x"), STATE) is None


def test_a_test_that_nobody_knows_has_not_passed() -> None:
    assert result("shell", "rm -rf /", "x") == CriterionResult("d1", False, "", "there is no such test", "code")


def test_a_pattern_quotes_what_it_matched() -> None:
    found = result("regex", r"(?m)^## Rate.*$", "# A\n\n## Rate limiting\n\ntext")
    assert (found.passed, found.quote) == (True, "## Rate limiting")
    assert result("regex", "Limits", "none").note == "nothing matches Limits"
    assert len(result("regex", "aa+", "a" * 5000).quote) == 300


def test_lone_surrogates_neither_match_nor_break() -> None:
    assert passes("regex", "b", "a\ud800b")
    assert not passes("regex", "\ud800", "a")


def test_contained_text_may_be_wrapped_and_is_exact_otherwise() -> None:
    assert result("contains", "rate  limiting", "on rate\nlimiting.").quote == "rate limiting"
    assert passes("contains", "rate limiting", "rate\u200b limiting")
    assert not passes("contains", "rate limiting", "Rate limiting")


def test_words_are_counted_without_signs() -> None:
    text = "one - two | three ... \u200b \u2060 four, five"
    assert passes("min_words", 5, text)
    assert not passes("min_words", 6, text)
    assert passes("max_words", 5, text)
    assert result("max_words", 4, text).note == "it has 5 words, at most 4 are wanted"


def test_a_reference_is_to_a_product_with_a_version() -> None:
    assert result("reference", "p3", "see [[p:p3]]").quote == "[[p:p3]]"
    assert not passes("reference", "p3", "see p3, [[v:p3]]")
    assert not passes("reference", "p3", "see [[p:p3]]", todo(0))
    archived = replace(STATE.products["p3"], status=Status.ARCHIVED)
    assert passes("reference", "p3", "[[p:p3]]", replace(STATE, products={**STATE.products, "p3": archived}))


SCHEMA = {
    "type": "object",
    "required": ["port"],
    "properties": {
        "port": {"type": "integer", "maximum": 65535},
        "names": {"uniqueItems": True, "items": {"pattern": "^[a-z]+$"}},
    },
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('{"port": 80, "names": ["a", "b"]}', ""),
        ('Text\n\n```json\n{"port": 80}\n```\n\nand {"port": "x"}', ""),
        ('{"port": 80000}', "at $.port"),
        ('{"port": 80, "host": 1}', "at $"),
        ('{"port": 80, "names": ["a", "a"]}', "the same"),
        ('{"port": 80, "names": ["A"]}', "does not match"),
        ('{"port": "80", "port": 80}', "a key is there twice"),
        ('{"port": NaN}', "NaN is no number"),
        ('```json\n{"port": 80}', "no JSON"),
        ("port: 80", "no JSON"),
        ("[" * 60_000, "deeper than 64"),
        ('{"port": ' + "[" * 65 + "]" * 65 + "}", "deeper than 64"),
        ('{"port": ' + "9" * 5000 + "}", "no JSON"),
        ('"' + '\\"' * 30_000, "no JSON"),
    ],
)
def test_json_is_held_against_its_schema(content: str, why: str) -> None:
    with at_most(2):
        found = result("json_schema", SCHEMA, content)
        assert found.passed is (why == "")
        assert why in found.note


def test_items_are_the_same_as_json_has_it() -> None:
    schema = {"type": "array", "uniqueItems": True}
    assert not passes("json_schema", schema, '[{"a": 1, "b": [2]}, {"b": [2.0], "a": 1}]')
    assert passes("json_schema", schema, '[1, true, "1", 0, false, null]')


def test_numbers_beyond_all_bounds_do_not_pass() -> None:
    assert not passes("json_schema", {"type": "number", "multipleOf": 3}, "1e999")
    assert not passes("json_schema", {"type": "number", "multipleOf": 0.1}, "1e999")


ATTACKS = [
    ("regex", r"(x+x+)+y", "x" * 60_000),
    ("regex", r"(.?){40}[^a]{9}b", "a" * 60_000),
    ("regex", r"^(\w+\s?)*$b", "aaaa " * 12_000),
    ("json_schema", {"type": "array", "items": {"pattern": "(x+x+)+y"}}, json.dumps(["x" * 50_000])),
    ("json_schema", {"type": "array", "uniqueItems": True}, json.dumps([{"a": place} for place in range(5_000)])),
    ("json_schema", {"type": "array", "items": {"enum": list(range(1_000, 2_500))}}, json.dumps([2_499] * 10_000)),
    (
        "json_schema",
        {"type": "array", "items": {"anyOf": [{"minimum": place} for place in range(400)]}},
        "[" + "0," * 20_000 + "0]",
    ),
    ("json_schema", doubled(7), '"x"'),
    (
        "json_schema",
        {"type": "string", "anyOf": [{"pattern": f"x{place}y"} for place in range(300)]},
        json.dumps("x" * 59_000),
    ),
]


@pytest.mark.parametrize(("kind", "value", "content"), ATTACKS, ids=[str(place) for place in range(len(ATTACKS))])
def test_no_test_takes_long_whatever_is_asked_of_what(kind: str, value: Any, content: str) -> None:
    """Python's own patterns and the library's own keywords would take from half a minute to for ever."""
    with at_most(10):
        criteria.problems([item(kind=kind, value=value)], STATE)
        criteria.tested(Criterion("d1", "x", Check(kind, value)), version(content), STATE)


def test_a_test_that_takes_too_long_has_not_passed() -> None:
    for kind, value, content in (ATTACKS[6], ATTACKS[8]):
        found = result(kind, value, content)
        assert (found.passed, found.note) == (False, "its JSON takes too long to hold against the schema")


@pytest.mark.wide
def test_many_short_texts_are_searched_by_many_patterns() -> None:
    schema = {"type": "array", "items": {"allOf": [{"pattern": f"x(?:{place})?y"} for place in range(100)]}}
    assert passes("json_schema", schema, json.dumps(["xy"] * 500))


def test_a_pattern_is_compiled_once() -> None:
    assert bounded_checks.pattern("once and only") is bounded_checks.pattern("once and only")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["type", "$ref", "items", "enum", "pattern", "allOf", "a"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(
    st.sampled_from(["regex", "contains", "json_schema", "reference", "min_words", "max_words", "x"]), _JSON, _JSON
)
def test_any_test_of_any_text_has_a_result_and_a_refused_one_never_passes(kind: str, value: Any, said: Any) -> None:
    found = result(kind, value, json.dumps(said))
    if kind == "x" or wrong(kind, value):
        assert not found.passed


@given(st.binary(max_size=60))
def test_any_pattern_is_compiled_or_refused(noise: bytes) -> None:
    text = noise.decode("latin-1")
    try:
        bounded_checks.pattern(text).search(bounded_checks.encodable(text))
    except bounded_checks.UnusableCheck as why:
        assert str(why)


# -- evidence --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quote", "stands"),
    [
        ("Users create, read, update", True),
        ("Users   create,\n read,\tupdate", True),
        ("Users create,\u200b read, update", True),
        ("a JWT kept in localStorage", True),
        ("a JWT kept in sessionStorage", False),
        ("users create, read, update", False),
        ("# MVP", False),
        ("# MVP features", False),
        ("MVP features", False),
        ("MVP features Users", True),
        ("sers create, read, update", False),
        ("Users create, read, upda", False),
        ("e", False),
        ("", False),
        (" \n ", False),
        ("\u200b" * 20, False),
        ("\u3164" * 20, False),
        ("and", False),
        ("Users create … delete tasks.", False),
    ],
)
def test_a_quote_stands_there_word_for_word(quote: str, stands: bool) -> None:
    assert criteria.evidence(quote, [V1]) is stands


def test_a_short_quote_is_a_whole_line_that_says_something() -> None:
    text = "# A\n\n- yes\n}\n--------\n1"
    assert criteria.evidence("- yes", [text])
    assert not criteria.evidence("yes", [text])
    assert not criteria.evidence("}", [text])
    assert not criteria.evidence("1", [text])
    assert not criteria.evidence("--------", [text])


def test_in_a_program_comments_and_signs_are_text() -> None:
    text = "# load the settings\n<!-- main page -->\nlet total = a < b;\n"
    for quote in ("# load the settings", "<!-- main page -->", "let total = a < b;"):
        assert criteria.evidence(quote, [criteria.Code(text)])
    assert not criteria.evidence("# load the settings", [text]), "in a document it is a heading"
    files = joined([("app/a.py", "# only a comment"), ("app/b.md", "# Only a heading\n\nAnd text.")])
    product = replace(STATE.products["p4"], path="app/")
    version = replace(STATE.versions["v4"], content=files)
    state = replace(STATE, products={**STATE.products, "p4": product}, versions={**STATE.versions, "v4": version})
    texts = criteria.material(state, "p4")
    assert [criteria.evidence(quote, texts) for quote in ("# only a comment", "Only a heading", "And text.")] == [
        True, False, True,
    ]  # fmt: skip
    assert not criteria.evidence("=====BEGIN app/a.py=====", texts)


@pytest.mark.parametrize(
    ("quote", "text", "stands"),
    [
        ("safe login", "# Safe login\n\nThe safe login is described.", True),
        ("Safe login", "## Safe login\n\nNothing.", False),
        ("Safe login", "> - # Safe login\n\nNothing.", False),
        ("Safe login", "Safe login\n----------\n\nNothing.", False),
        ("Safe login ----------", "Safe login\n----------\n\nNothing.", False),
        ("Safe login", "Safe login\n\n----------\n\nNothing.", True),
        ("# Login ## Safe and sound", "# Login\n\n## Safe and sound\n\nNothing.", False),
        ("# Login ## Safe and sound N", "# Login\n\n## Safe and sound\n\nN", True),
        ("Safe login", "#Safe login is a tag", True),
        ("# yes", "# yes\n\nno", False),
        ("Safe login", "<!-- Safe login -->\n\nNothing.", False),
        ("Safe login", "a <!--\nSafe login\n--> b <!-- x --> c", False),
        ("Safe login", "<!-- x -->Safe login<!-- y -->", True),
        ("Safe login", "  <!-- x -->\nSafe login", True),
        ("Safe login", "  <!-- never ends\nSafe login", False),
        ("Safe login", "It says `<!--` here.\nSafe login", True),
        ("Safe login", "It says `<!--` here.\nSafe login\n<!-- and hides\n\nmore", True),
        ("unsafe login", "An unsafe login.", True),
        ("safe login", "An unsafe login.", False),
        ("safe login", "safe login_page", False),
        ("costs money", "It (costs money).", True),
        ("le caf\u00e9 est", "le cafe\u0301 estival", False),
        (
            "\u7528\u6237\u53ef\u4ee5\u521b\u5efa\u4efb\u52a1",
            "\u6240\u6709\u7528\u6237\u53ef\u4ee5\u521b\u5efa\u4efb\u52a1\u3002",
            True,
        ),
    ],
)
def test_evidence_is_of_whole_words_that_readers_see_and_not_a_heading(quote: str, text: str, stands: bool) -> None:
    assert criteria.evidence(quote, [text]) is stands


@pytest.mark.parametrize(
    "text",
    [
        "# a b\nc\n" * 7_000,
        "# " + "ab " * 19_000,
        "ab " * 20_000,
        "x <!-- " * 8_000,
        " <!-- -->\n" * 6_000,
        "1" * 60_000,
        "1." * 30_000,
    ],
)
@pytest.mark.parametrize("quote", ["a b c d e f", "ab " * 1_300 + "a", "# a b", "11111111"])
def test_evidence_is_looked_for_in_time_that_grows_with_the_text(text: str, quote: str) -> None:
    with at_most(2):
        assert not criteria.evidence(quote, [text])


def test_a_quote_is_of_one_text() -> None:
    assert not criteria.evidence("the end the start", ["This is the end", "the start of it"])


_PLAIN = st.lists(st.text("abcZ\u00e9 1.,\u200b\n", min_size=1, max_size=12), min_size=1, max_size=20).map(" ".join)


@given(_PLAIN, st.integers(0, 40), st.integers(1, 12))
def test_whole_words_of_a_text_that_say_something_stand_there(text: str, start: int, size: int) -> None:
    cut = " ".join(text.split()[start : start + size])
    plain = criteria.seen(cut)
    if len(plain) >= 8 and sum(map(str.isalnum, plain)) >= 2:
        assert criteria.evidence(cut, ["other", text])
    assert not criteria.evidence(f"{cut} never there", [text])


@given(st.text(max_size=200), st.text(max_size=60))
def test_what_stands_there_is_seen_there(text: str, quote: str) -> None:
    if criteria.evidence(quote, [text]):
        assert criteria.seen(quote) in criteria.seen(text)


def test_evidence_is_in_the_content_and_the_outcome_of_the_newest_version() -> None:
    assert criteria.material(STATE, "p3") == (STATE.versions["v3"].content, STATE.versions["v3"].outcome)
    assert criteria.material(STATE, "p4") == (STATE.versions["v4"].content,)
    assert criteria.material(todo(0), "p4") == ()
    assert set(criteria.material(STATE, "p1")) == {
        text for id in ("p3", "p4", "p5") for text in criteria.material(STATE, id)
    }


def test_a_container_shows_what_lies_below_its_decisions_too() -> None:
    inner = replace(STATE.versions["v4"], id="v9", product="p6", content="An annex of the features.")
    product = Product("p6", "Annex", Kind.CONTENT, "p3", None, (), versions=("v9",))
    products = {**STATE.products, "p6": product}
    state = replace(STATE, products=products, versions={**STATE.versions, "v9": inner})
    assert criteria.material(state, "p1") == (
        *criteria.material(STATE, "p3"),
        inner.content,
        *(text for id in ("p4", "p5") for text in criteria.material(STATE, id)),
    )
    assert criteria.material(state, "p3") == criteria.material(STATE, "p3")


# -- references ------------------------------------------------------------------------------------


def test_references_are_found_once_in_order() -> None:
    text = "[[p:p3]] [[v:v1]] [[ a : operative-1 ]] [[p:p3]] [[u:user-1]] [p:p4] [[x:p4]] [[c:c1]"
    assert references.cited(text) == (("p", "p3"), ("v", "v1"), ("a", "operative-1"), ("u", "user-1"))


def test_what_resolves_has_no_problem() -> None:
    archived = replace(STATE.products["p4"], status=Status.ARCHIVED)
    state = replace(STATE, products={**STATE.products, "p4": archived})
    text = "[[p:p4]] [[v:v5]] [[c:c2]] [[a:operative-2]] [[a:watchdog-1]] [[u:user-1]] [[u:all]]"
    assert references.problems([text, ""], state, "x") == []


def test_what_does_not_resolve_is_named_with_what_there_is() -> None:
    text = "[[p:p9]] [[v:p3]] [[c:c9]] [[a:operative-3]] [[u:user-2]] [[p:p9]]"
    assert references.problems([text, "[[p:p9]]"], STATE, "v9") == [
        "v9: [[p:p9]] is not a product; the products are p1, p2, p3, p4 and p5.",
        "v9: [[v:p3]] is not a version; the versions are v1, v2, v3, v4 and v5.",
        "v9: [[c:c9]] is not a collab; the collabs are c1 and c2.",
        "v9: [[a:operative-3]] is not an agent; "
        "the agents are chair-1, operative-1, operative-2, watchdog-1 and envoy-1.",
        "v9: [[u:user-2]] is not a user; the users are user-1 and all.",
    ]
    assert references.problems(["[[c:c1]]"], todo(0), "x") == [
        "x: [[c:c1]] is not a collab; there are no collabs yet."
    ]


def test_many_that_do_not_resolve_and_many_that_there_are_make_few_words() -> None:
    state = replace(STATE, products={f"p{place}": STATE.products["p4"] for place in range(1, 200)})
    text = " ".join(f"[[p:p{place}]]" for place in range(500, 600))
    found = references.problems([text], state, "x")
    assert len(found) == 9
    assert found[-1] == "x: 92 more references do not resolve."
    assert "p199 and 175 older ones" in found[0]
    assert "\x1b" not in "".join(references.problems(["[[p:\x1b]2;x\x07]] [[p:\x1bx]]"], STATE, "x"))


def test_references_are_looked_for_in_time_that_grows_with_the_text() -> None:
    for text in ("[[p:" * 15_000, "[" * 60_000, "[[p:" + " " * 60_000, "[[ " * 20_000):
        with at_most(1):
            assert references.cited(text) == ()


def test_recipients_have_one_name_each() -> None:
    names = ["self", ALEX, "[[a:operative-1]]", "u:all", "user-1", "u:user-1", "[[u:user-1]]", " Chair-1 "]
    assert references.recipients(names, STATE, ALEX) == ((ALEX, "u:user-1", "chair-1"), [])
    assert references.recipients(["team"], STATE, ALEX) == (("chair-1", JORDAN, "watchdog-1", "envoy-1"), [])
    found, problems = references.recipients(["self", "operative-9", "everybody"], STATE, ALEX)
    assert found == (ALEX,)
    assert problems[0].startswith("operative-9 is nobody; a remark goes to chair-1, operative-1, operative-2")
    assert len(problems) == 2


@given(st.lists(st.text(max_size=40), max_size=6))
def test_a_recipient_is_somebody_or_a_problem(names: list[str]) -> None:
    found, problems = references.recipients(names, STATE, JORDAN)
    assert set(found) <= {*STATE.agents, "u:user-1"}
    assert len(found) == len(set(found))
    assert len(problems) <= len(names)


def test_noise_is_no_reference_that_resolves() -> None:
    chance = random.Random(5)
    for _ in range(300):
        text = "".join(chance.choice("[[p:34vca u]] ") for _ in range(200))
        for kind, id in references.cited(text):
            known = {"p": STATE.products, "v": STATE.versions, "c": STATE.collabs}.get(kind, {})
            said = references.problems([f"[[{kind}:{id}]]"], STATE, "x")
            assert (said == []) is (id in known)


def test_criteria_name_products_by_reference_too() -> None:
    product = Product("p6", "New", STATE.products["p4"].kind, "p1", None, ())
    state = replace(STATE, products={**STATE.products, "p6": product})
    assert criteria.problems([item("Fits [[p:p6]]", "reference", "[[p:p6]]")], state) == []
    assert len(criteria.problems([item("Fits [[p:p6]]", "reference", "[[p:p6]]")], STATE)) == 2
