"""Data that does not fit a class is explained with its place, in words for people, one problem or all of them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Meta, field, to_builtins
from msgspec.structs import replace

from cdo.core.schema import Schema, SchemaError, differing, fitted, keys_at, misfits


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Inner(Schema, frozen=True, kw_only=True):
    size: Annotated[int, Meta(ge=1, le=9)]
    name: Annotated[str, Meta(min_length=1, max_length=8)] = "x"


class Outer(Schema, frozen=True, kw_only=True):
    share: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    ident: Annotated[str, Meta(pattern=r"^[a-z]+\Z")] = "a"
    pair: tuple[int, int] = (1, 2)
    inner: Inner | None = None
    items: Annotated[tuple[Inner, ...], Meta(max_length=3)] = ()
    named: dict[Annotated[str, Meta(pattern=r"^[a-z]+\Z")], Inner] = field(default_factory=dict)
    codes: dict[int, Colour] = field(default_factory=dict)
    mode: Literal["slow", "fast"] = "slow"
    on: bool = False
    word: Annotated[str, Meta(pattern="^w", extra={"problem": lambda value: f"`{value}` has no w" * bool(value)})] = (
        "w"
    )

    def require_sound(self) -> None:
        if self.pair[0] > self.pair[1]:
            raise ValueError("`pair`: the first number must not be above the second")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"share": 1}, "`share` must be less than 1"),
    ({"share": 0}, "`share` must be greater than 0"),
    ({"share": "much"}, "`share` must be a number"),
    ({"share": float("nan")}, "`share` must be greater than 0"),
    ({"ident": "a\n"}, "`ident` must match pattern '^[a-z]+$'"),
    ({"pair": [1]}, "`pair` must have 2 items"),
    ({"pair": [1, True]}, "`pair.1` must be a whole number"),
    ({"pair": [2, 1]}, "`pair` the first number must not be above the second"),
    ({"inner": 5}, "`inner` must be a mapping with the keys size, name"),
    ({"inner": {}}, "`inner.size` is missing"),
    ({"inner": {"size": 1, "name": ""}}, "`inner.name` must not be empty"),
    ({"inner": {"size": 1, "name": "x" * 9}}, "`inner.name` must have at most 8 characters"),
    ({"items": [{"size": 1}, {"size": 10}]}, "`items.1.size` must be less than or equal to 9"),
    ({"items": [{"size": 1}] * 4}, "`items` must have at most 3 items"),
    ({"items": "x"}, "`items` must be a list"),
    ({"named": {"a": {"size": 1}, "b": {"size": 0}}}, "`named.b.size` must be greater than or equal to 1"),
    ({"named": {"a": {"size": 1}, "B": {"size": 1}}}, "`named.B` must match pattern '^[a-z]+$'"),
    ({"codes": {"x": "red"}}, "`codes.x` must be a whole number"),
    ({"codes": {"1": "green"}}, "`codes.1` must be 'red' or 'blue'"),
    ({"mode": "quick"}, "`mode` must be 'slow' or 'fast'"),
    ({"mode": 3}, "`mode` must be 'slow' or 'fast'"),
    ({"on": "maybe"}, "`on` must be true or false"),
    ({"pair": ["1.5", 2]}, "`pair.0` must be a whole number"),
    ({"pair": ["x", "2"]}, "`pair.0` must be a whole number"),
    ({"word": "x"}, "`word` `x` has no w"),
    ({"word": ""}, "`word` must match pattern '^w'"),
    ({"more": 1}, "`more` is not an allowed key"),
    ({"a` - at `$.b": 1}, "is not an allowed key"),
    ({"a\nb": 1}, "is not an allowed key"),
]


@pytest.mark.parametrize(("data", "problem"), WRONG)
def test_a_misfit_is_told_with_its_place(data: dict[str, Any], problem: str) -> None:
    with pytest.raises(SchemaError) as caught:
        fitted(Outer, data)
    assert str(caught.value).endswith(problem)
    assert problem in "; ".join(map(str, misfits(Outer, data)))


def test_every_misfit_is_found() -> None:
    data = {
        "more": 1,
        "inner": {"size": 0, "odd": 1},
        "named": {"A": {}, "b": {"size": "x"}},
        "items": [1, {"size": 1}],
    }
    assert sorted(".".join(map(str, error.place)) for error in misfits(Outer, data)) == [
        "inner.odd", "inner.size", "items.0", "more", "named.A", "named.A.size", "named.b.size",
    ]  # fmt: skip
    assert not list(misfits(Outer, {"inner": {"size": 1}, "codes": {"7": "red"}}))


def test_values_that_disagree_are_refused_of_data_and_not_of_code() -> None:
    made = fitted(Outer, {"pair": [1, 2]})
    assert replace(made, pair=(2, 1)).pair == Outer(pair=(2, 1)).pair == (2, 1)


def test_a_text_stands_for_a_number_or_a_switch() -> None:
    data = {"on": "Yes", "pair": ["1", " 2 "], "share": "0.25", "named": {"a": {"size": "3"}}, "ident": "no"}
    made = fitted(Outer, data)
    assert (made.on, made.pair, made.share, made.named["a"].size, made.ident) == (True, (1, 2), 0.25, 3, "no")
    assert fitted(Outer, {"on": "off"}).on is False


def test_keys_are_those_of_the_innermost_mapping() -> None:
    assert keys_at(Outer, ()) == list(Outer.__struct_fields__)
    assert keys_at(Outer, ("items", 0, "size")) == keys_at(Outer, ("named", "b")) == ["size", "name"]
    assert keys_at(Outer, ("pair", 1)) == list(Outer.__struct_fields__)


def test_what_differs_from_the_defaults_makes_the_same_again() -> None:
    made = fitted(Outer, {"inner": {"size": 2}, "codes": {"7": "red"}, "share": 0.5})
    assert set(differing(made)) == {"inner", "codes"}
    assert fitted(Outer, to_builtins(differing(made))) == made


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1, 12)
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from(["red", "fast"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from([*Outer.__struct_fields__, "size", "name", "7", "a.b", "`"]), inner, max_size=5
        )
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(JSON)
def test_any_data_fits_or_is_explained(data: Any) -> None:
    found = list(misfits(Outer, data))
    try:
        fitted(Outer, data)
    except SchemaError as error:
        assert error.why and found
        assert "Expected `" not in str(error)  # in words for people
    else:
        assert not found
