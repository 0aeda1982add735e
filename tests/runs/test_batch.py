"""`cdo batch` from outside: real processes, real files, a provider on loopback that counts what it is asked."""

from __future__ import annotations

import csv
import json
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pexpect
import pytest

from cdo.app.batch.folder import read_results
from tests.conftest import Desk, explained
from tests.support.answers import Answer, RequestInfo
from tests.support.faults import Fault, rate_limited
from tests.support.harness import (
    KEY,
    Done,
    exchanges,
    finish,
    inject,
    kill_group,
    needs_module,
    needs_mounts,
    needs_strace,
    spawned,
    wait_for,
)
from tests.support.provider import Provider

QUICK = ("--preset", "quick")
CALLS = 4  # of an item with the preset quick


def asking(count: int, **more: Any) -> list[dict[str, Any]]:
    """Return so many items that differ in their question."""
    return [{"question": f"Should we split service {number}?", **more} for number in range(1, count + 1)]


def jsonl(cdo: Desk, items: Sequence[Mapping[str, Any]], name: str = "q.jsonl") -> Path:
    """Write a file of items."""
    return cdo.write(name, "".join(json.dumps(item) + "\n" for item in items))


def folder(cdo: Desk, name: str = "q") -> Path:
    """The folder of a batch."""
    return cdo.path / "tmp" / f"batch-{name}"


def table(cdo: Desk, name: str = "q") -> list[dict[str, Any]]:
    """The table of a batch."""
    return [json.loads(line) for line in (folder(cdo, name) / "table.jsonl").read_text().splitlines()]


def sessions(cdo: Desk, name: str = "q") -> list[Path]:
    """The sessions of a batch."""
    return sorted(folder(cdo, name).glob("cdo-*"))


def twice(provider: Provider) -> list[tuple[str, str, int]]:
    """(session, call, attempt) of everything that the provider was asked more than once."""
    seen = Counter((info.headers["X-Cdo-Session"], info.call, info.attempt) for info in provider.calls)
    return [key for key, count in seen.items() if count > 1]


def question(info: RequestInfo) -> str:
    """The question that a request is about."""
    found = re.search(r"Should we split service (\d+)\?", info.prompt)
    return found[1] if found else ""


# -- a batch from its beginning to its end -----------------------------------------------------------


@pytest.mark.quick
def test_every_question_of_a_file_gets_a_session_and_a_row(cdo: Desk, provider: Provider) -> None:
    provider.latency = 0.1
    jsonl(cdo, asking(12))
    done = cdo("batch", "q.jsonl", *QUICK, "--live", "4", "--json").ok()
    assert done.json["items"] == done.json["done"] == 12
    assert (done.json["failed"], done.json["open"], done.json["calls"]) == (0, 0, 12 * CALLS)
    assert len(provider.calls) == 12 * CALLS
    assert "Sending 12 questions (12 quick) to openai/gpt-6.1-sol: 48 calls" in done.err
    rows = table(cdo)
    assert [row["question"] for row in rows] == [item["question"] for item in asking(12)]
    for row, session in zip(sorted(rows, key=lambda row: row["id"]), sessions(cdo), strict=True):
        assert (row["status"], row["confidence"], row["calls"], row["error"]) == ("max_turns", 0.62, CALLS, "")
        assert row["cost"] > 0 and row["decision"].startswith("Stage it")
        assert row["path"] == str(session.relative_to(cdo.path))
        assert (session / "FINAL.md").is_file()
        assert len(exchanges(session)) == CALLS
    assert sum(row["cost"] for row in rows) == pytest.approx(done.json["cost"])
    most = max(
        len(
            {
                other.headers["X-Cdo-Session"]
                for other in provider.calls
                if other.arrived <= info.arrived < ended(other)
            }
        )
        for info in provider.calls
    )
    assert 2 <= most <= 4
    again = cdo("batch", "q.jsonl", *QUICK, "--json").ok()
    assert {**again.json} == {**done.json}
    assert len(provider.calls) == 12 * CALLS
    listed = cdo("list", "--json", "--out", "tmp/batch-q").ok().json
    assert {row["session"] for row in listed} == {row["id"] for row in rows}


def ended(info: RequestInfo) -> float:
    """When the answer to a request had been sent."""
    return info.ended or float("inf")


def test_columns_say_what_is_asked_by_whom_and_under_which_name(cdo: Desk, provider: Provider) -> None:
    cdo.write(
        "q.csv",
        "\ufeffkey,title,background,preset,models,session,note\n"
        'one,"Should we split ""billing"",\nor wait?","Ünïcødé 漢字, and a comma",quick,,first,x\n'
        "../../etc/x,=1+1 or not?,,,openai/gpt-4.1,,y\n",
    )
    done = cdo(
        "batch", "q.csv", "--name", "mine", "--column", "question=title", "--column", "context=background",
        "--column", "id=key", "--preset", "quick", "--table", "out/answers.csv",
    ).ok()  # fmt: skip
    assert "columns that are not used: note" in done.err
    first, second = table(cdo, "mine")
    assert first["question"] == 'Should we split "billing",\nor wait?'
    assert first["path"] == "tmp/batch-mine/cdo-first"
    assert "Ünïcødé 漢字, and a comma" in (folder(cdo, "mine") / "cdo-first" / "00-context.md").read_text()
    assert second["id"] == "../../etc/x"
    assert re.fullmatch(r"tmp/batch-mine/cdo-item-[0-9a-f]{16}", second["path"])
    assert {path.name for path in cdo.path.parent.iterdir()} == {"work", "home"}
    asked = {info.headers["X-Cdo-Session"]: info.body["model"] for info in provider.calls}
    assert set(asked.values()) == {"gpt-6.1-sol", "gpt-4.1"}
    with (cdo.path / "out/answers.csv").open(newline="") as file:
        shown = list(csv.DictReader(file))
    assert [row["id"] for row in shown] == ["one", "../../etc/x"]
    assert shown[0]["question"] == first["question"]
    assert shown[1]["question"] == "'=1+1 or not?", "no spreadsheet takes it for a formula"


def test_parquet_is_read_and_written(cdo: Desk, provider: Provider) -> None:
    needs_module("pyarrow")
    import pyarrow
    import pyarrow.parquet

    asked = [{"number": number, "question": item["question"]} for number, item in enumerate(asking(2), 1)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(asked), cdo.path / "q.parquet")
    cdo("batch", "q.parquet", *QUICK, "--column", "id=number", "--table", "out.parquet").ok()
    rows = pyarrow.parquet.read_table(cdo.path / "out.parquet").to_pylist()
    assert rows == table(cdo)
    assert [row["id"] for row in rows] == ["1", "2"]
    cdo.write("broken.parquet", "PAR1 not really PAR1")
    explained(cdo("batch", "broken.parquet"), 2, "cannot be read as Parquet")


def test_parquet_without_its_package_is_told(cdo: Desk, provider: Provider) -> None:
    cdo.write("q.parquet", "")
    cdo.write("lacking/pyarrow.py", "raise ImportError('not here')\n")
    path = f"{cdo.path / 'lacking'}:{cdo.environment()['PYTHONPATH']}"
    explained(cdo("batch", "q.parquet", env={"PYTHONPATH": path}), 2, "pip install 'cdo-deliberate[parquet]'")
    jsonl(cdo, asking(1))
    told = cdo("batch", "q.jsonl", *QUICK, "--table", "a.parquet", env={"PYTHONPATH": path})
    explained(told, 2, "pip install 'cdo-deliberate[parquet]'")
    assert provider.requests == []


WRONG: list[tuple[str, str | bytes, list[str]]] = [
    ("a.jsonl", "", ["has no items"]),
    ("a.csv", "", ["has no items"]),
    ("a.csv", "question\n", ["has no items"]),
    ("a.csv", "title\nWhy?\n", ["line 2: it has no question", "the columns `title`", "--column question=NAME"]),
    ("a.csv", "question,id\nWhy?\n", ["line 2: it has 1 cells, the first line 2"]),
    ("a.csv", 'question\nA?\n"Why\n\nB?\n', ["line 3: a quotation mark opens in this row and is never closed"]),
    ("a.csv", "question;context\nWhy?;x\n", ["line 2: it has no question", "has `;` between the names"]),
    ("a.csv", "question,context\nWhy?,\n,x\n", ["line 3: its `question` is empty", "remove the row"]),
    ("a.csv", "question,context\n,\n , \n", ["has no items"]),
    ("a", "question\nWhy?\n", ["its name has no ending"]),
    ("a.csv", "question,question\nWhy?,x\n", ["two columns have the same name"]),
    ("a.csv", b"question\ncaf\xe9?\n", ["not UTF-8"]),
    ("a.jsonl", '{"question": "a?"}\n{"question": \n', ["line 2: it is not JSON"]),
    ("a.jsonl", '["a?"]\n', ["line 1: it is not a JSON object"]),
    ("a.jsonl", '{"question": 7}\n', ["line 1: `question` is a number"]),
    ("a.jsonl", '{"question": "a?", "preset": "huge"}\n', ["Line 1: `huge` is not a preset", "quick"]),
    ("a.jsonl", '{"question": "a?", "models": "nope/x"}\n', ["Line 1: `nope`"]),
    ("a.jsonl", '{"question": "a?", "models": {"a": 1}}\n', ["neither a text nor a list"]),
    ("a.jsonl", '{"question": "a?", "session": "../x"}\n', ["line 1: `../x` cannot be the name of a session"]),
    ("a.jsonl", '{"question": "a?", "id": 1}\n{"question": "b?", "id": "1"}\n', ["Lines 1 and 2 have the same id"]),
    ("a.jsonl", '{"question": "a?", "id": "A"}\n{"question": "b?", "id": "a"}\n', ["the same session"]),
    ("a.txt", "a?\n", ["not a table that cdo reads", ".csv"]),
]


def test_a_file_that_cannot_be_used_is_told_before_anything_is_sent(cdo: Desk, provider: Provider) -> None:
    for number, (name, text, _) in enumerate(WRONG):
        place = cdo.path / f"{number}-{name}"
        place.write_bytes(text if isinstance(text, bytes) else text.encode())
    runs = cdo.several(*(["batch", f"{number}-{name}"] for number, (name, _, _) in enumerate(WRONG)))
    for (_, _, words), done in zip(WRONG, runs, strict=True):
        assert done.code in (2, 4), (words, done.err)
        explained(done, done.code, *words)
    explained(cdo("batch", "nowhere.csv"), 2, "nowhere.csv", "No such file")
    explained(cdo("batch", ".csv", "--name", "a/b"), 2, "cannot be the name of a batch")
    explained(cdo("batch", "0-a.jsonl", "--column", "title"), 2, "--column cannot be `title`")
    explained(cdo("batch", "0-a.jsonl", "--table", "x.xls"), 2, "`.xls`")
    assert provider.requests == []
    assert not (cdo.path / "tmp").exists()


def test_what_is_asked_twice_is_told_and_asked_once(cdo: Desk, provider: Provider) -> None:
    one, two = asking(2)
    jsonl(cdo, [one, two, one, {**one, "question": f"  {one['question']}\n"}])
    done = cdo("batch", "q.jsonl", *QUICK, "--json").ok()
    assert done.json["items"] == 2
    assert "line 3 repeats line 1, and so on: 2 rows" in done.err
    jsonl(cdo, [{**one, "id": "a"}, {**one, "id": "b"}], "r.jsonl")
    named = cdo("batch", "r.jsonl", *QUICK, "--json").ok()
    assert named.json["items"] == 2
    assert "items that ask what another one asks, under an id of their own: 1" in named.err


# -- going on ----------------------------------------------------------------------------------------


def test_a_batch_that_was_killed_asks_for_no_recorded_call_again(cdo: Desk, provider: Provider) -> None:
    provider.latency = 0.05
    jsonl(cdo, asking(12))
    process = cdo.start("batch", "q.jsonl", *QUICK, "--live", "4")
    wait_for(lambda: len(provider.calls) >= 20)
    kill_group(process.pid)
    process.communicate()
    provider.settle()
    recorded = {(path.name, record["call"]) for path in sessions(cdo) for record in exchanges(path)}
    assert 0 < len(recorded) < 12 * CALLS
    before = len(provider.calls)
    with (folder(cdo) / "results.jsonl").open("a") as file:
        file.write('{"id": "torn')
    done = cdo("batch", "q.jsonl", *QUICK, "--live", "4", "--json").ok()
    assert (done.json["done"], done.json["open"]) == (12, 0)
    later = {(f"cdo-{info.headers['X-Cdo-Session']}", info.call) for info in provider.calls[before:]}
    assert not later & recorded
    assert len(recorded) + len(later) == 12 * CALLS
    assert done.json["calls"] == 12 * CALLS
    assert len({row["id"] for row in table(cdo)}) == 12


def test_ctrl_c_keeps_what_was_answered(cdo: Desk, provider: Provider) -> None:
    provider.latency = 0.05
    jsonl(cdo, asking(8))
    process = cdo.start("batch", "q.jsonl", *QUICK, "--live", "3")
    wait_for(lambda: len(provider.calls) >= 9)
    process.send_signal(signal.SIGINT)
    explained(finish(process), 130, "Stopped", "cdo batch resume q")
    provider.settle()
    told = cdo("doctor", "--json").ok().json["batches"]
    assert re.fullmatch(r"q: [5-8] of 8 items open; `cdo batch resume q` goes on", told)
    recorded = sum(len(exchanges(path)) for path in sessions(cdo))
    before = len(provider.calls)
    done = cdo("batch", "resume", "q", "--json").ok()
    assert (done.json["done"], done.json["calls"]) == (8, 8 * CALLS)
    assert len(provider.calls) - before == 8 * CALLS - recorded
    assert Counter(row["status"] for row in table(cdo)) == {"max_turns": 8}
    assert "batches" not in cdo("doctor", "--json").ok().json


def test_an_edited_question_under_an_old_id_is_refused(cdo: Desk, provider: Provider) -> None:
    jsonl(cdo, [{**item, "id": f"n{number}"} for number, item in enumerate(asking(2))])
    cdo("batch", "q.jsonl", *QUICK).ok()
    asked = len(provider.calls)
    jsonl(cdo, [{"question": "Should we merge them?", "id": "n1"}])
    explained(cdo("batch", "q.jsonl"), 2, "`n1` does not ask what it asked when the batch q was begun", "--name")
    assert len(provider.calls) == asked
    jsonl(
        cdo,
        [{"question": "Should we split service 1?", "id": "n0"}, {"question": "Should we merge them?", "id": "n2"}],
    )
    done = cdo("batch", "q.jsonl", "--json").ok()
    assert done.json["items"] == 3
    assert "items of the batch that the file does not have any more: 1" in done.err
    assert len(provider.calls) == asked + CALLS
    assert [row["id"] for row in table(cdo)] == ["n0", "n1", "n2"]


def test_a_batch_that_was_begun_asks_in_one_way(cdo: Desk, provider: Provider) -> None:
    jsonl(cdo, asking(1))
    cdo("batch", "q.jsonl", *QUICK).ok()
    explained(cdo("batch", "q.jsonl", "--preset", "think"), 2, "begun with another --preset")
    explained(cdo("batch", "q.jsonl", "-m", "gpt-4.1", "--turns", "2"), 2, "another --model and --turns")
    explained(cdo("batch", "q.jsonl", "--column", "question=q"), 2, "another --column")
    explained(cdo("batch", "resume", "nope"), 8, "There is no batch", "There are q.")
    explained(cdo("batch", "resume", "nope", "--out", "elsewhere"), 8, "There is no batch", "cdo batch FILE")
    assert len(provider.calls) == CALLS


def test_two_processes_do_not_run_one_batch(cdo: Desk, provider: Provider) -> None:
    jsonl(cdo, asking(3))
    provider.hold()
    process = cdo.start("batch", "q.jsonl", *QUICK)
    wait_for(lambda: len(provider.calls) >= 3)
    explained(cdo("batch", "q.jsonl", *QUICK), 8, "in use by another cdo process")
    provider.release()
    finish(process).ok()
    assert len(provider.calls) == 3 * CALLS
    assert not twice(provider)


def test_rate_limits_of_a_provider_are_kept_across_all_items(cdo: Desk, provider: Provider) -> None:
    """A bucket of requests that fills again, as providers have: without its headers most items meet HTTP 429."""
    provider.script = rate_limited(limit=8.0, refill=12.0)
    jsonl(cdo, asking(14))
    done = cdo("batch", "q.jsonl", *QUICK, "--live", "14", "--json").ok()
    assert done.json["done"] == 14
    refused = sum(info.status == 429 for info in provider.calls)
    assert refused <= 5, f"{refused} of {len(provider.calls)} requests were refused"


# -- what fails, and what ends a batch ---------------------------------------------------------------


def failing(*numbers: str) -> Any:
    """A script that refuses every call about these services."""

    def script(info: RequestInfo) -> Answer | Fault | None:
        return Fault(status=400) if question(info) in numbers else None

    return script


def test_an_item_that_fails_does_not_stop_the_rest(cdo: Desk, provider: Provider) -> None:
    provider.script = failing("2", "4")
    jsonl(cdo, asking(5))
    done = cdo("batch", "q.jsonl", *QUICK, "--live", "2", "--json")
    explained(done, 9, "2 of 5 items failed", "cdo batch resume q --retry-failed")
    assert (done.json["done"], done.json["failed"]) == (3, 2)
    assert [row["status"] for row in table(cdo)] == ["max_turns", "failed", "max_turns", "failed", "max_turns"]
    assert "HTTP 400" in table(cdo)[1]["error"]
    provider.script = None
    asked = len(provider.calls)
    explained(cdo("batch", "q.jsonl"), 9, "2 of 5 items failed")
    assert len(provider.calls) == asked, "a failed item is asked again only on request"
    again = cdo("batch", "q.jsonl", "--retry-failed", "--json").ok()
    assert (again.json["done"], again.json["failed"]) == (5, 0)
    assert cdo("batch", "status").ok().out == "q: 5 of 5 items ended; not running\n"
    explained(cdo("batch", "stat", "q"), 2, "`stat` is not a command", "Did you mean `cdo batch status`?")
    assert {question(info) for info in provider.calls[asked:]} == {"2", "4"}
    assert all(row["error"] == "" for row in table(cdo))


def test_fail_fast_begins_no_further_item(cdo: Desk, provider: Provider) -> None:
    provider.script = failing("2")
    jsonl(cdo, asking(6))
    done = cdo("batch", "q.jsonl", *QUICK, "--live", "1", "--fail-fast", "--json")
    explained(done, 9, "1 of 6 items failed, and 4 have not begun (--fail-fast)")
    assert [row["status"] for row in table(cdo)] == ["max_turns", "failed", *["open"] * 4]


def test_a_cause_that_all_items_share_stops_the_batch(cdo: Desk, provider: Provider) -> None:
    provider.faults = [Fault(status=401)]
    jsonl(cdo, asking(60))
    done = cdo("batch", "q.jsonl", *QUICK, "--live", "5")
    explained(done, 4, "20 items in a row failed, so the batch stops", "HTTP 401", "--retry-failed")
    assert Counter(row["status"] for row in table(cdo))["open"] >= 35
    provider.faults = []
    assert cdo("batch", "q.jsonl", "--retry-failed", "--json").ok().json["done"] == 60


def behind(cdo: Desk, prefix: Sequence[str], *words: str) -> Done:
    """Run `cdo words` behind the words of `prefix` to its end."""
    return finish(spawned([*prefix, sys.executable, "-m", "cdo", *words], cdo.path, cdo.environment()))


def test_a_full_disk_stops_the_batch_and_room_lets_it_go_on(cdo: Desk, provider: Provider) -> None:
    """No item has failed by it, so a plain resume asks exactly what is not on record."""
    script = """
        mkdir tmp; mount -t tmpfs -o size=1m tmpfs tmp
        "$@" 2>told; echo $?; cp -r tmp/batch-q full
        mount -o remount,size=64m tmpfs tmp
        "$1" -m cdo batch resume q; echo $?; cp -r tmp/batch-q whole
    """
    provider.latency = 0.05
    jsonl(cdo, asking(40))
    done = behind(cdo, [*needs_mounts(), script, "x"], "batch", "q.jsonl", *QUICK, "--live", "6")
    assert done.out.splitlines()[0::3] == ["8", "0"] and "40 of 40 items done" in done.out, done
    told = replace(done, code=8, err=(cdo.path / "told").read_text())
    explained(told, 8, "cannot be used: the disk is full", "Make room, then `cdo batch resume q` goes on")
    ended = read_results(cdo.path / "full").values()
    assert ended and not any(result.failed for result in ended)
    full = (cdo.path / "full").glob("cdo-*")
    recorded = {(path.name, record["call"]) for path in full for record in exchanges(path)}
    lost = {(f"cdo-{session}", call) for session, call, _ in twice(provider)}
    assert not lost & recorded and len(lost) <= 2 * 6, "only what was in flight is asked again"
    assert len(provider.calls) == 40 * CALLS + len(lost)


@pytest.mark.parametrize(("operation", "code"), [("fsync,syncfs", "EIO"), ("/^rename", "EROFS")])
def test_a_disk_that_fails_leaves_items_open(cdo: Desk, provider: Provider, operation: str, code: str) -> None:
    told = {"EIO": "input/output error", "EROFS": "read-only"}[code]
    jsonl(cdo, asking(12))
    words = inject(needs_strace(), operation, f"error={code}:when=12+")  # counted in each thread
    done = behind(cdo, words, "batch", "q.jsonl", *QUICK, "--live", "12")
    explained(done, 8, told, "then `cdo batch resume q` goes on; nothing recorded is lost or paid twice")
    assert not any(result.failed for result in read_results(folder(cdo)).values())
    assert cdo("batch", "resume", "q", "--json").ok().json["done"] == 12


@pytest.mark.parametrize("cap", ["--max-calls", "--budget", "--max-tokens"])
def test_a_cap_holds_over_all_items(cdo: Desk, provider: Provider, cap: str) -> None:
    jsonl(cdo, asking(10))
    most = {"--max-calls": 13.0, "--budget": 0.1, "--max-tokens": 60_000.0}[cap]
    done = cdo("batch", "q.jsonl", *QUICK, "--live", "6", cap, f"{most:g}", "--json")
    explained(done, 5, "cdo batch resume q", "higher cap")
    used = {"--max-calls": done.json["calls"], "--budget": done.json["cost"], "--max-tokens": done.json["tokens"]}[
        cap
    ]
    assert used <= most
    assert len(provider.calls) == done.json["calls"]
    again = cdo("batch", "q.jsonl", cap, f"{100 * most:.0f}", "--json").ok()
    assert (again.json["done"], again.json["calls"]) == (10, 10 * CALLS)
    assert len(provider.calls) == 10 * CALLS
    assert not twice(provider)


def test_a_dear_batch_is_agreed_to_as_a_whole(cdo: Desk, provider: Provider) -> None:
    jsonl(cdo, asking(30))
    explained(
        cdo("batch", "q.jsonl", "--ask-above", "1"), 6, "This batch may cost up to", "Nothing was sent", "--yes"
    )
    plan = cdo("batch", "q.jsonl", *QUICK, "--dry-run").ok()
    assert plan.out.startswith("Would send 30 questions (30 quick) to openai/gpt-6.1-sol: 120 calls")
    told = cdo("batch", "q.jsonl", *QUICK, "--dry-run", "--json").ok().json
    assert (told["items"], told["new"], told["calls"]) == (30, 30, [120, 120])
    assert provider.requests == []
    assert not (cdo.path / "tmp").exists()
    cdo("batch", "q.jsonl", *QUICK, "--ask-above", "0.1", "--yes", "-q").ok()
    assert len(provider.calls) == 30 * CALLS


def test_no_secret_of_a_file_reaches_the_disk_or_a_model(cdo: Desk, provider: Provider) -> None:
    jsonl(cdo, [{"question": f"Is {KEY} safe?", "context": f"key: {KEY}"}])
    cdo("batch", "q.jsonl", *QUICK).ok()
    cdo("batch", "q.jsonl", *QUICK).ok()
    assert len(provider.calls) == CALLS
    assert all(KEY not in info.prompt for info in provider.calls)
    for path in folder(cdo).rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path


def test_sessions_of_a_batch_are_ordinary_sessions(cdo: Desk, provider: Provider) -> None:
    jsonl(cdo, [{**asking(1)[0], "id": "a"}])
    cdo("batch", "q.jsonl", *QUICK).ok()
    place = ("--out", "tmp/batch-q")
    shown = cdo("show", "a", "--json", *place).ok().json
    assert (shown["status"], shown["calls"]) == ("max_turns", CALLS)
    assert "# " in cdo("final", "a", *place).ok().out
    cdo("resume", "a", *place).ok()
    assert len(provider.calls) == CALLS
    assert "batch-q" not in cdo("list", "--json").ok().out
    for command in ("list", "search service"):
        assert "The batch q has sessions: add --out tmp/batch-q." in cdo(*command.split()).ok().err
    for command in ("show", "final", "resume"):
        explained(cdo(command, "a"), 8, "There is no session tmp/cdo-a", "The batch q has it: add --out tmp/batch-q.")


# -- what options do ---------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [(), ("--cluster", "local", "--workers", "2")], ids=["here", "cluster"])
def test_a_list_and_a_search_need_not_read_what_a_batch_ended(
    cdo: Desk, provider: Provider, where: tuple[str, ...]
) -> None:
    if where:
        needs_module("distributed")
    jsonl(cdo, asking(3))
    cdo("batch", "q.jsonl", *QUICK, *where).ok()
    place = ("--out", str(folder(cdo)), "--json")
    asked = (("list", *place), ("search", "service", "reversible", *place))
    read = [cdo.having(CDO_CACHE_DIR=str(cdo.path / "other"))(*words).ok().json for words in asked]
    assert [len(found) for found in read] == [3, 3] and {row["calls"] for row in read[0]} == {CALLS}
    for path in sessions(cdo):
        for group in (path / "calls").iterdir():
            group.write_bytes(b"rubbish")  # only somebody who reads the records sees it
    time.sleep(2.1)  # what changed less than two seconds ago is read in any case
    assert [cdo(*words).ok().json for words in asked] == read
    final = sessions(cdo)[1] / "FINAL.md"
    final.write_text(final.read_text().replace("## Decision\n\n", "## Decision\n\nAsk the penguins.\n\n"))
    rows = cdo("list", *place).ok().json
    assert [row["session"] for row in rows if row["status"] == "damaged"] == [final.parent.name.removeprefix("cdo-")]


def test_options_shape_the_plan_of_every_item(cdo: Desk, provider: Provider) -> None:
    jsonl(cdo, [{**asking(1)[0], "id": "a"}, {**asking(2)[1], "id": "b", "preset": "quick", "models": ["gpt-4.1"]}])
    cdo("batch", "q.jsonl", "--preset", "think", "-m", "gpt-5", "--width", "2", "--turns", "1", "--review").ok()
    plans = {row["session"]: row for row in cdo("list", "--json", "--out", "tmp/batch-q").ok().json}
    assert (plans["a"]["preset"], plans["a"]["models"]) == ("think", ["gpt-5"])
    assert (plans["b"]["preset"], plans["b"]["models"]) == ("quick", ["gpt-4.1"])
    for name in plans:
        names = {path.name for path in (folder(cdo) / f"cdo-{name}").iterdir()}
        assert "REVIEW.md" in names
        assert sum(bool(re.fullmatch(r"t1-.*\.md", name)) for name in names) == 3, "two voices and a synthesis"
        assert not any(name.startswith("t2-") for name in names)


def test_limits_reach_every_item(cdo: Desk, provider: Provider) -> None:
    provider.latency = 0.05
    jsonl(cdo, asking(4))
    cdo("batch", "q.jsonl", *QUICK, "--effort", "low", "--flex", "--concurrency", "2", "--out", "here").ok()
    assert provider.peak["all"] == 2
    assert all(info.body["reasoning_effort"] == "low" for info in provider.calls)
    assert len(list((cdo.path / "here" / "batch-q").glob("cdo-*"))) == 4
    jsonl(cdo, asking(4), "late.jsonl")
    provider.hold()
    late = cdo("batch", "late.jsonl", *QUICK, "--timeout", "1", "--out", "here")
    explained(late, 5, "The time limit of 1 s is reached", "`cdo batch resume late --out here`")
    provider.release()


def test_a_project_names_the_model_only_with_trust(cdo: Desk, provider: Provider) -> None:
    cdo.write(".cdo/config.yaml", "model: gpt-4.1\n")
    jsonl(cdo, asking(1))
    explained(cdo("batch", "q.jsonl", *QUICK), 4, "This project sets the model", "--trust")
    assert provider.requests == []
    cdo("batch", "q.jsonl", *QUICK, "--trust").ok()
    assert {info.body["model"] for info in provider.calls} == {"gpt-4.1"}


def test_a_person_at_a_terminal_is_asked_once(cdo: Desk, provider: Provider) -> None:
    jsonl(cdo, asking(3))
    words = ["-m", "cdo", "batch", "q.jsonl", *QUICK, "--ask-above", "0.01"]
    env = {**cdo.environment(), "TERM": "xterm-256color"}
    for more, answer in (("--no-input",), ""), ((), "n\n"), ((), "y\n"):
        child = pexpect.spawn(
            sys.executable, [*words, *more], cwd=str(cdo.path), env=env, dimensions=(30, 120), timeout=60,
            encoding="utf-8",
        )  # fmt: skip
        if answer:
            child.expect(r"Go on\?")
            assert provider.requests == []
            child.send(answer)
        child.expect(pexpect.EOF)
        child.close()
        assert child.exitstatus == (0 if answer == "y\n" else 6), child.before
    assert "3 of 3 items done" in child.before
    assert len(provider.calls) == 3 * CALLS


def test_a_price_that_nobody_knows_is_told_alike_before_and_after_by_a_batch_and_by_a_run(cdo: Desk) -> None:
    jsonl(cdo, asking(1))
    model = ("-m", "openai/bench")  # at an address of this machine
    for done in cdo.several(["batch", "q.jsonl", *QUICK, *model], ["quick", *model, "Shall we?"]):
        done.ok()
        (sent,) = [line for line in done.err.splitlines() if line.startswith("Sending ")]
        assert sent.endswith(", price unknown") and "calls, " in done.out and ", price unknown" in done.out


def test_progress_is_told_in_lines_where_there_is_no_terminal(cdo: Desk, provider: Provider) -> None:
    provider.script = failing("2")
    jsonl(cdo, asking(3))
    loud, usual, quiet = cdo.several(
        *(
            ["batch", "q.jsonl", *QUICK, *more, "--name", f"b{number}"]
            for number, more in enumerate([["-v"], [], ["-q"]])
        )
    )
    assert loud.code == usual.code == quiet.code == 9
    assert len(re.findall(r"(?m)^  [0-9a-f]{16}  (max_turns|failed: .*HTTP 400.*)$", loud.err)) == 3
    assert len(re.findall(r"(?m)^  [0-9a-f]{16}  failed: .*HTTP 400", usual.err)) == 1
    assert "max_turns" not in usual.err and "Sending 3 questions" in usual.err
    assert "Sending" not in quiet.err and "failed: " in quiet.err
    assert "\x1b" not in loud.err + usual.err + quiet.err
