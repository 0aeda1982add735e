"""What a record may be: each kind that cdo writes passes, and whatever else stands there is named, never a crash."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdo.core.errors import SessionError
from cdo.session.record_schemas import problem
from cdo.session.records import group_file, group_records
from cdo.session.store import Session
from tests.support.records import ANSWER, EXCHANGE
from tests.unit.session.test_store import FILES

USED = {"input_tokens": 5, "output_tokens": 5, "cached_tokens": 0, "measured": True}
NESTED = {
    "kind": "nested", "name": "n", "inputs": "0",
    "result": {"session": "s", "status": "converged", "decision": "d", "confidence": None, "text": "t"},
    "used": {"calls": 1, "input_tokens": 1, "output_tokens": 1, "cost": 0.1, "unpriced": 0},
}  # fmt: skip
EVERY: list[dict[str, Any]] = [
    ANSWER,
    {**EXCHANGE, "usage": USED, "cost": 0.1, "seconds": 1.5, "started": "2026-01-01", "from": "a"},
    {**{key: value for key, value in EXCHANGE.items() if key != "response"},
     "fault": {"kind": "network", "message": "m", "text": ""}},
    NESTED,
    {"kind": "text", "sha256": "0", "text": "t"},
    {"kind": "tools", "call": "c", "inputs": "0", "attempt": 1, "results": ["r"]},
    {"kind": "failed", "call": "c", "inputs": "0"},
    {"kind": "missing", "call": "c", "inputs": "0", "reason": "r", "caps": [1, None, None]},
    {"kind": "proposed", "file": "plan.yaml", "proposed": "0"},
    {"kind": "collected", "name": "n", "items": [{"file": "a", "text": "b"}]},
    {"kind": "check-run", "name": "n", "inputs": "0", "run": {"command": "x", "code": 1, "held": ["y"]}},
    {"kind": "checked", "sha": "0", "findings": [{"citation": "a:1", "verified": True, "why": "w"}]},
    {"kind": "quoted", "sha": "0", "words": ["w"]},
    {"kind": "trail", "branch": "cdo/a"},
    {"kind": "given", "files": {"00-input.md": "0"}},
    {"kind": "filed", "name": "0001.md", "date": "2026-01-01"},
    {"kind": "bd", "op": "task", "turn": 1, "id": "x-1"},
]  # fmt: skip
ODD: tuple[Any, ...] = (None, [], {}, "x", -1, 1e400, float("nan"), 10**30, True, [[1]], {"a": 1})


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to every value inside a record."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


@pytest.mark.parametrize("record", EVERY, ids=[record["kind"] for record in EVERY])
def test_each_kind_passes_and_no_odd_value_crashes(record: dict[str, Any]) -> None:
    assert problem(record) == ""
    refused = 0
    for path in list(places(record)):
        for odd in ODD:
            other = copy.deepcopy(record)
            inner: Any = other
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = odd
            refused += bool(problem(other))
    assert refused > 5


def test_half_a_surrogate_pair_is_neither_written_nor_read() -> None:
    half = {**EXCHANGE, "model": "\ud800lone"}
    assert "`model`" in problem(half)  # JSON can say it, UTF-8 cannot
    assert group_records(group_file(1, [half])[1], "calls/0001.jsonl")[0]["model"] == "?lone"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cost": -5.0}, "`exchange.cost`|`cost`"),
        ({"cost": float("inf")}, "cost"),
        ({"cost": 1e9}, "cost"),
        ({"usage": {**USED, "input_tokens": -(10**6)}}, "usage.input_tokens"),
        ({"usage": {**USED, "output_tokens": 1.5}}, "usage.output_tokens"),
        ({"usage": {**USED, "output_tokens": 10**12}}, "usage.output_tokens"),
        ({"usage": {**USED, "input_tokens": True}}, "usage.input_tokens"),
        ({"seconds": -1.0}, "seconds"),
        ({"response": None}, "neither a response nor a fault"),
        ({"kind": "surprise"}, "of no kind that cdo writes"),
    ],
)
def test_what_would_lift_a_cap_or_break_a_sum_is_refused_by_name(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    name, data = group_file(1, [EXCHANGE, {**EXCHANGE, "usage": USED, "cost": 0.1, **change}])
    with pytest.raises(SessionError, match=rf"calls/0001\.jsonl, record 2, is damaged: .*({words})") as caught:
        group_records(data, f"calls/{name}")
    assert caught.value.exit_code == 8 and "Restore it from a copy" in caught.value.hint
    nested = {**NESTED, "used": {"calls": 1, "input_tokens": 1, "output_tokens": 1, "cost": -9.0, "unpriced": 0}}
    assert "used.cost" in problem(nested)


KEYS = st.sampled_from(["kind", "call", "request", "usage", "x"])
ANY = st.none() | st.booleans() | st.floats() | st.integers() | st.text()


@given(st.recursive(ANY, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner)))
def test_no_record_crashes(record: Any) -> None:
    assert problem(record)
    assert problem({**EXCHANGE, "usage": record, "cost": record}) or record is None or isinstance(record, dict)


def test_the_number_of_a_group_costs_nothing(tmp_path: Path) -> None:
    """A file `calls/99999999.jsonl` once took all memory."""
    path = tmp_path / "cdo-a"
    Session.create(path, FILES, str).close()
    name, data = group_file(99_999_999, [ANSWER])
    (path / "calls" / name).write_bytes(data)
    session = Session.open(path, str)
    assert session.records == [json.loads(json.dumps(ANSWER))]
    (note,) = session.notes
    assert note.startswith("calls/0001.jsonl and 99,999,997 more: not there; ")
    session.close()
