"""The library of past runs at the command line: list, search, cost."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pexpect
import pytest
from rich.cells import cell_len

from cdo.history.costs import summed
from cdo.history.index_entries import IndexEntry, Paid
from cdo.session.records import group_file, group_records
from tests.conftest import A, Desk, explained
from tests.support.answers import Answer, RequestInfo
from tests.support.provider import Provider
from tests.support.repositories import repository
from tests.unit.history.test_run_index import aged, change, past

# -- list ------------------------------------------------------------------------------------------


def dated(folder: Path, when: int) -> None:
    """Sessions are as old as their plan."""
    os.utime(folder / "session.yaml", (when, when))


def test_list_shows_sessions_newest_first_and_damaged_ones(cdo: Desk) -> None:
    empty, none = cdo.several(["list"], ["list", "--json"])
    assert (empty.ok().out, empty.err) == ("", "There is no session in tmp.\n")
    assert (none.ok().json, none.err) == ([], "")

    begun, capped = cdo.several(
        ["quick", "--session", "done", "-q", "Why?"],
        ["quick", "--session", "capped", "-q", "--max-calls", "1", "Why\nnot?"],
    )
    assert (begun.code, capped.code) == (0, 5)
    tmp = cdo.path / "tmp"
    for name in ("edited", "plan", "group", "final", "folder"):
        shutil.copytree(tmp / "cdo-done", tmp / f"cdo-{name}")
    final = (tmp / "cdo-done/FINAL.yaml").read_text()
    edited = re.sub("(?m)^status: .*", "status: [odd, 1]", re.sub("(?m)^confidence: .*", "confidence: 1", final))
    (tmp / "cdo-edited/FINAL.yaml").write_text(edited)
    (tmp / "cdo-final/FINAL.yaml").write_text(final.replace("turns: 1", "turns: [1"))
    (tmp / "cdo-plan/session.yaml").write_bytes(b"caf\xe9")
    group = next((tmp / "cdo-group/calls").glob("*.jsonl"))
    group.write_text("rubbish")
    broken = next((tmp / "cdo-folder/calls").glob("*.jsonl"))
    broken.unlink()
    broken.mkdir()
    (tmp / "cdo-none").mkdir()  # no session.yaml: not a session
    (tmp / "cdo-link").symlink_to("cdo-done")
    for when, name in enumerate(["done", "capped", "edited", "plan", "group", "final", "folder"]):
        dated(tmp / f"cdo-{name}", when + 1_700_000_000)

    rows = cdo("list", "--json").ok().json
    assert [(row["session"], row["status"]) for row in rows] == [
        ("folder", "damaged"), ("final", "damaged"), ("group", "damaged"), ("plan", "damaged"),
        ("edited", "['odd', 1]"), ("capped", "unfinished"), ("done", "max_turns"),
    ]  # fmt: skip
    done = rows[-1]
    assert list(done) == [
        "session", "path", "created", "preset", "mode", "modifiers", "domain", "models", "calls", "tokens", "cost",
        "status", "confidence", "problem", "decision", "open_tensions",
    ]  # fmt: skip
    assert (done["path"], done["preset"], done["models"]) == ("tmp/cdo-done", "quick", ["openai/gpt-6.1-sol"])
    assert (done["calls"], done["confidence"], done["problem"]) == (4, 0.62, "Why?")
    assert done["tokens"] > 1000
    assert 0 < done["cost"] < 0.1
    assert rows[-2]["problem"] == "Why not?"
    causes = {"folder": broken.name, "final": "FINAL.yaml", "group": group.name, "plan": "not UTF-8"}
    for name, word in causes.items():
        (row,) = [row for row in rows if row["session"] == name]
        assert word in row["problem"]

    lines = cdo("list").ok().out.splitlines()
    assert [line.split()[0] for line in lines] == [row["session"] for row in rows]
    assert re.fullmatch(r"done    quick  max_turns   0\.62  \$0\.02\d+  +Why\?", lines[-1])
    assert re.fullmatch(r"capped  quick  unfinished +\$0\.00\d\d  Why not\?", lines[-2])
    assert "1.00" in lines[4]
    assert "damaged" in lines[0]


@pytest.mark.slow
def test_a_run_that_waits_for_its_person_is_paused(cdo: Desk) -> None:
    cdo("hitl,think", *A, "Should we move?").failed(6)
    shutil.copytree(cdo.session(), cdo.session("odd"))
    shutil.copytree(cdo.session(), cdo.session("b"))
    cdo("resume", "b").failed(6)
    runs = cdo.several(*(["list", "--json", "--status", name] for name in ("paused", "unfinished", "finished")))
    assert [sorted(row["session"] for row in done.ok().json) for done in runs] == [["a", "b", "odd"]] * 2 + [[]]
    journal = cdo.session("odd") / "journal.jsonl"
    kept = journal.read_bytes()

    def status() -> object:
        return {row["session"]: row["status"] for row in cdo("list", "--json").ok().json}["odd"]

    for tail in (b'{"event": "batch"}\n', b"{torn", b"[]\n", b'{"event": "stopped", "status": "Interrupted"}\n'):
        journal.write_bytes(kept + tail)
        assert status() == ("paused" if tail == b"{torn" else "unfinished"), tail
    journal.unlink()
    assert status() == "unfinished"
    journal.symlink_to("../cdo-a/journal.jsonl")
    assert status() == "unfinished"
    assert re.search(r"^a +think  paused ", cdo("list").ok().out, re.M)


def begun(path: Path, when: datetime) -> None:
    """The session says that it was begun then."""
    file = path / "session.yaml"
    file.write_text(re.sub("(?m)^created: .*", f"created: '{when.isoformat(timespec='seconds')}'", file.read_text()))


@pytest.fixture(scope="module")
def library(finished: Desk, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A desk with sessions of several kinds, only to be looked at: new, old, begun, damaged, of a domain."""
    base = tmp_path_factory.mktemp("library")
    (base / "work" / "tmp").mkdir(parents=True)
    desk = Desk(base / "work")
    out, now = base / "work" / "tmp", datetime.now(UTC)
    past(finished, out, "new", "Should billing move to events?", "Move billing in two steps.", 10)
    past(finished, out, "old", "Should billing stay?", "It stays.", 20)
    path = past(finished, out, "begun", "Which cache for the importer?", old=30)
    (path / "FINAL.md").unlink()
    plan = (path / "session.yaml").read_text().replace("domain: null", "domain: arch")
    (path / "session.yaml").write_text(plan.replace("preset: think", "preset: deep"))
    min((past(finished, out, "spoiled", old=40) / "calls").iterdir()).write_text("rubbish")
    for name, days in (("new", 0), ("old", 9), ("begun", 2), ("spoiled", 2)):
        begun(out / f"cdo-{name}", now - timedelta(days=days, minutes=1))
    for seconds, name in ((10, "new"), (20, "old"), (30, "begun"), (40, "spoiled")):
        aged(out / f"cdo-{name}", seconds)
    yield desk
    assert not desk.tried()


def test_list_filters_by_what_sessions_are_and_when_they_began(library: Desk) -> None:
    week_ago = (datetime.now() - timedelta(days=7)).strftime("%Y-%m-%d")
    cases: list[tuple[list[str], list[str]]] = [
        ([], ["new", "old", "begun", "spoiled"]),
        (["BILLING"], ["new", "old"]),
        (["billing", "two steps"], ["new"]),
        (["new"], ["new"]),
        (["--preset", "think"], ["new", "old"]),
        (["--preset", "arch"], ["begun"]),
        (["--preset", "parliament"], []),
        (["--status", "max_turns"], ["new", "old"]),
        (["--status", "finished", "-n", "1"], ["new"]),
        (["--status", "unfinished"], ["begun"]),
        (["--status", "running"], []),
        (["--status", "damaged"], ["spoiled"]),
        (["--since", "7d"], ["new", "begun"]),
        (["--since", week_ago, "--limit", "1"], ["new"]),
        (["--until", "7d"], ["old"]),
        (["--since", "3d", "--until", "24h"], ["begun"]),
    ]
    runs = library.several(*(["list", "--json", *args] for args, _ in cases))
    for (args, expected), done in zip(cases, runs, strict=True):
        assert [row["session"] for row in done.ok().json] == expected, args
    none = library("list", "nothing", "like", "it").ok()
    assert (none.out, none.err) == ("", "None of the sessions in tmp is like that.\n")


def test_list_explains_names_and_dates_that_are_none(library: Desk) -> None:
    runs = library.several(
        ["list", "--preset", "thnk"], ["list", "--status", "converge"], ["list", "--since", "monday"],
        ["cost", "--until", "2026-13-01"], ["list", "--status", "x\x1b[31m"],
    )  # fmt: skip
    words = [
        ["`thnk` is not a preset, mode or domain", "Did you mean think?", "parliament"],
        ["`converge` is not a status", "Did you mean converged?", "damaged"],
        ["`monday` is not a date", "yesterday"],
        ["`2026-13-01` is not a date"],
        ["is not a status"],
    ]
    for done, said in zip(runs, words, strict=True):
        explained(done, 2, *said)
        assert "\x1b" not in done.err
    library("list", "-n", "0").failed(2, "-n")


def terminal(desk: Desk, *args: str, width: int = 80) -> str:
    """What `cdo args` prints on a terminal of `width` columns."""
    env = {**desk.environment(), "TERM": "xterm-256color"}
    command = [sys.executable, "-m", "cdo", *args]
    size = (30, width)
    said, code = pexpect.run(
        " ".join(command), cwd=str(desk.path), env=env, dimensions=size, withexitstatus=True, encoding="utf-8"
    )
    assert code == 0, said
    return str(said).replace("\r\n", "\n")


def test_list_has_a_head_and_keeps_to_the_width_of_a_terminal(library: Desk) -> None:
    wide, narrow = (terminal(library, "list", width=width).splitlines() for width in (120, 74))
    assert wide[0].split() == ["session", "begun", "preset", "status", "sure", "cost", "problem"]
    assert [line.split()[0] for line in wide[1:]] == ["new", "old", "begun", "spoiled"]
    assert wide[1].endswith("Should billing move to events?")
    assert re.search(r"  20\d\d-\d\d-\d\d  ", wide[1])
    assert max(map(len, narrow)) <= 74
    assert narrow[1].endswith("…")
    assert "\x1b" not in "".join(wide)


def test_show_shortens_models_so_that_no_call_wraps(bare: Desk, finished: Desk) -> None:
    out = bare.path / "tmp"
    out.mkdir()
    past(finished, out, "a")
    wide = terminal(bare, "show", "a", width=200)
    calls = wide.partition("\ncall ")[2]
    width = max(map(len, calls.splitlines())) - 1
    assert "…" not in calls
    narrow = terminal(bare, "show", "a", width=width).partition("\ncall ")[2]
    assert max(map(len, narrow.splitlines())) <= width
    assert narrow.count("…") == len(narrow.splitlines()) - 1 and "…" not in bare("show", "a").ok().out


@pytest.mark.slow
def test_a_narrow_terminal_goes_without_columns_and_no_row_wraps(bare: Desk, finished: Desk) -> None:
    out = bare.path / "tmp"
    out.mkdir()
    plan = past(finished, out, "a", "今日は何を食べますか " * 20) / "session.yaml"
    plan.write_text(
        plan.read_text().replace("preset: think", "preset: full").replace("mode: null", "mode: parliament")
    )
    past(finished, out, "a-session-with-quite-a-long-name", "Should we split the service? " * 9)
    heads = {}
    for width in (100, 80, 70, 60, 50, 40, 30):
        head, *rows = terminal(bare, "list", width=width).splitlines()
        assert len(rows) == 2
        assert max(cell_len(row) for row in rows) <= width
        assert all(row.endswith("…") for row in rows)
        heads[width] = head.split()
    assert heads[100] == ["session", "begun", "preset", "status", "sure", "problem"]
    assert heads[80] == ["session", "status", "problem"]
    assert heads[30] == ["session", "status", "problem"]
    piped = bare("list").ok().out.splitlines()
    assert all(78 <= cell_len(row.rpartition("  ")[2]) <= 80 for row in piped)
    assert all(row.endswith("…") for row in piped)
    assert [row.split()[1] for row in piped if row.startswith("a ")] == ["full,parliament"]
    (row,) = bare("list", "--json", "--preset", "parliament").ok().json
    assert (row["preset"], row["mode"]) == ("full", "parliament")


# -- search ----------------------------------------------------------------------------------------


def test_search_prints_who_when_and_the_passage(library: Desk) -> None:
    plain, data = library.several(["search", "moving", "billing"], ["search", "billing", "--json"])
    first, second = plain.ok().out.splitlines()
    today = (datetime.now() - timedelta(minutes=1)).strftime("%Y-%m-%d")
    assert first == f"new  {today}  max_turns  0.66  Should billing move to events?"
    assert second.startswith("    decision: Move billing in two steps.")
    assert plain.err == ""
    rows = data.ok().json
    assert [row["session"] for row in rows] == ["new", "old"]
    assert list(rows[0]) == [
        "session", "path", "created", "status", "confidence", "problem", "decision", "where", "passage",
    ]  # fmt: skip
    assert "Move billing" in rows[0]["passage"]
    assert library("search", "billing", "--out", "elsewhere").ok().out == ""
    shown = terminal(library, "search", "importer")
    assert "problem: Which cache for the \x1b[1mimporter\x1b[0m?" in shown
    shown = terminal(library, "search", "moving", "billing")
    assert "\x1b[1mMove\x1b[0m \x1b[1mbilling\x1b[0m in two steps." in shown


@pytest.mark.slow
def test_search_takes_words_as_words(library: Desk) -> None:
    cases: list[tuple[list[str], set[str]]] = [
        (["billing"], {"new", "old"}),
        (["bill*", "-stay"], {"new"}),
        (["-stay", "billing", "-n", "5"], {"new"}),
        (["-vendor", "-network", "billing", "-n1", "-stay"], {"new"}),
        (["billing", "-n", "1"], {"new"}),
        (["two steps"], {"new"}),
        (["steps two"], set()),
        (['"two steps" billing'], {"new"}),
        (["--", "billing", "-stay"], {"new"}),
        (["importers"], {"begun"}),
        (["NEAR(a", 'b")', "col:x", "AND", "^"], set()),
        (["***"], set()),
        (["-billing"], set()),
    ]
    runs = library.several(*(["search", *args, "--json"] if "--" not in args else ["search", "--json", *args]
                             for args, _ in cases))  # fmt: skip
    for (args, expected), done in zip(cases, runs, strict=True):
        assert {row["session"] for row in done.ok().json} == expected, args
        assert done.err == ""
    nothing, phrase, no_word, missing, option = library.several(
        ["search", "penguin"], ["search", "steps two"], ["search", "***"], ["search"], ["search", "--nope", "x"]
    )
    assert (
        phrase.ok().err
        == "No session in tmp matches. Words in quotes are a phrase; without quotes each is looked for.\n"
    )
    assert (nothing.ok().out, nothing.err) == ("", "No session in tmp matches.\n")
    assert (no_word.ok().out, no_word.err) == ("", "There is no word to look for.\n")
    missing.failed(2, "WORDS")
    option.failed(2, "--nope")


def test_what_models_wrote_reaches_a_terminal_only_visibly(bare: Desk, finished: Desk) -> None:
    (bare.path / "tmp").mkdir()
    path = past(finished, bare.path / "tmp", "a", "Split \x1b[31mit?", "Split \x1b]0;x\x07 it \x02 now.")
    change(path, "\nstatus: ", '\nstatus: "\\e[31modd"  # ', "FINAL.yaml")
    for args in (["list"], ["search", "split"], ["cost"], ["list", "--json"], ["search", "--json", "split"]):
        done = bare(*args).ok()
        assert not set(done.out) & {"\x1b", "\x07", "\x01", "\x02"}
    assert "\x1b[31m" not in terminal(bare, "search", "split")


# -- cost ------------------------------------------------------------------------------------------


def paid(call: str, cost: float | None = 0.5, **values: Any) -> Paid:
    base = Paid(
        call, "agent", "critic", 1, "m", "2026-03-01T12:00:00+00:00", False, 10, cost or 0.0, int(cost is None)
    )
    return base._replace(**values)


def test_sums_never_take_an_unknown_price_for_zero_nor_count_a_fork_twice() -> None:
    entries = [
        IndexEntry(
            {"session": "a", "preset": "think"},
            (paid("t1-critic"), paid("final", turn=None, model="n", kind="final")),
        ),
        IndexEntry(
            {"session": "b", "preset": "deep"}, (paid("t1-critic", shared=True), paid("t2-critic", None, turn=2))
        ),
        IndexEntry({"session": "c", "preset": "deep"}),
    ]
    one, two, none = summed(entries, "session")
    assert (one.key, one.spent.calls, one.price, one.data()["cost"]) == ("a", 2, "$1.00", 1.0)
    assert (two.key, two.spent.calls, two.shared, two.price, two.data()["cost"]) == ("b", 1, 1, "unknown", None)
    assert (none.key, none.spent.calls, none.price, none.data()["cost"]) == ("c", 0, "", 0.0)
    both = one + two
    assert (both.price, both.data()["priced"], both.data()["unpriced"]) == ("$1.00 + ?", 1.0, 1)
    by = {key: [(item.key, item.spent.calls) for item in summed(entries, key)] for key in ("model", "turn", "preset")}
    assert by == {
        "model": [("m", 2), ("n", 1)],
        "turn": [("1", 1), ("2", 1), ("", 1)],
        "preset": [("think", 2), ("deep", 1)],
    }


def test_days_are_in_order_and_an_unreadable_time_is_last() -> None:
    times = ("2026-03-02T12:00:00+00:00", "nonsense", "2026-03-01T12:00:00+00:00")
    entry = IndexEntry({"session": "a"}, tuple(paid("x", started=time) for time in times))
    assert [item.key for item in summed([entry], "day")] == ["2026-03-01", "2026-03-02", ""]


def flaky(info: RequestInfo) -> Answer | None:
    """The critic's first reply is not one."""
    return Answer("I had rather not use your format.") if (info.call, info.attempt) == ("t1-critic", 1) else None


def test_cost_sums_what_runs_took_whatever_became_of_it(cdo: Desk, provider: Provider) -> None:
    """Failed attempts count, and answers that others replaced; a fork's shared ones only where they were paid."""
    provider.script = flaky
    cdo("quick", "--session", "a", "-q", "Why?").ok()
    file = cdo.session() / "t1-critic.md"
    file.write_text(file.read_text().replace("Stage it", "Stage all of it"))
    cdo("resume", "a", "--yes", "-q").ok()
    forked = cdo.session("b")
    shutil.copytree(cdo.session(), forked)
    for group in (forked / "calls").iterdir():
        records = group_records(group.read_bytes(), group.name)
        number = int(group.name.partition(".")[0])
        shared = [{**record, "from": "a"} if record["kind"] == "exchange" else record for record in records]
        group.write_bytes(group_file(number, shared)[1])
    shown = cdo("show", "a", "--json").ok().json
    alone, both, fork, kinds, text = (done.ok() for done in cdo.several(
        ["cost", "a", "--json"], ["cost", "--json"], ["cost", "b", "--json"], ["cost", "a", "--by", "kind", "--json"],
        ["cost"],
    ))  # fmt: skip
    total = alone.json["total"]
    assert (total["calls"], total["tokens"]) == (shown["calls"], shown["tokens"])
    assert total["calls"] > 5
    assert total["cost"] == pytest.approx(shown["cost"])
    assert {**both.json["total"], "shared": 0} == total
    assert both.json["total"]["shared"] == fork.json["total"]["shared"] == total["calls"]
    assert (fork.json["total"]["calls"], fork.json["total"]["cost"]) == (0, 0.0)
    assert sum(item["calls"] for item in kinds.json["sums"]) == total["calls"]
    assert {item["kind"] for item in kinds.json["sums"]} == {"agent", "synthesis", "final"}
    assert "shared" in text.out.splitlines()[0]
    assert "where they are counted" in text.err


def test_cost_takes_any_set_of_runs_and_any_key(library: Desk) -> None:
    keys = ("session", "model", "role", "kind", "turn", "day", "preset")
    runs = library.several(*(["cost", "--by", key, "--json"] for key in keys))
    totals = [done.ok().json["total"] for done in runs]
    assert totals == [totals[0]] * len(keys)
    firsts = [[item[key] for item in done.json["sums"]] for key, done in zip(keys, runs, strict=True)]
    assert firsts[0] == ["new", "old", "begun"]
    assert "critic" in firsts[2]
    assert firsts[4] == ["1", "2", "3", None]
    for done in runs:
        assert done.err == "Left out, as they are damaged: spoiled.\n"
        assert done.json["damaged"] == ["spoiled"]
    for words, names in (
        (["--since", "7d"], ["new", "begun"]), (["--until", "5d"], ["old"]), (["-n", "1"], ["new"]),
        (["--out", "elsewhere"], []),
    ):  # fmt: skip
        assert [item["session"] for item in library("cost", "--json", *words).ok().json["sums"]] == names
    some, named, none, wrong, missing = library.several(
        ["cost", "--status", "finished", "--json"], ["cost", "old", "cdo-new", "tmp/cdo-old"],
        ["cost", "--preset", "parliament"], ["cost", "--by", "colour"], ["cost", "nope"],
    )  # fmt: skip
    assert [item["session"] for item in some.ok().json["sums"]] == ["new", "old"]
    lines = named.ok().out.splitlines()
    assert [line.split()[0] for line in lines] == ["session", "old", "new", "total"]
    assert lines[0].split() == ["session", "calls", "tokens", "cost"]
    assert (none.ok().out, none.err) == ("", "tmp holds no sessions to add up.\n")
    wrong.failed(2, "--by")
    explained(missing, 8, "tmp/cdo-nope")


def test_a_session_whose_folder_is_gone_costs_what_its_branch_says(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    repository(tmp_path / "work")
    with Provider() as provider:
        desk = Desk(tmp_path / "work", provider.url)
        desk("quick", *A, "Should we move?").ok()
    before = desk("cost", "a", "--json").ok().json
    shutil.rmtree(desk.session())
    after = desk("cost", "a", "cdo/a", "--json").ok()
    assert after.json == before
    assert before["total"]["calls"] > 2
    assert "its folder is not there" in after.err
    watched, other = desk("watch", "a"), desk("watch", "b")
    explained(watched, 8, "nothing to watch", "cdo/a", "cdo report a", "cdo restore a")
    explained(other, 8, "tmp/cdo-b")


# -- recall ----------------------------------------------------------------------------------------


def test_a_run_is_shown_what_earlier_ones_decided(cdo: Desk, provider: Provider) -> None:
    cdo("think", "--turns", "1", "--session", "old", "Should the billing service move to an event queue?").ok()
    question = "Should the billing service keep its event queue?"
    recalling = cdo("think", "--turns", "1", "--recall", *A, question).ok()
    assert "recalled: old\n" in recalling.err
    text = (cdo.session() / "00-context.md").read_text()
    head = text.index("# Earlier runs, not evidence")
    assert "Stage it: build the reversible half now" in text[head:] and "old" in text[head:]
    asked = [info for info in provider.calls if info.kind == "agent" and "keep its event queue" in info.prompt]
    assert asked and all("# Earlier runs, not evidence" in info.prompt for info in asked)
    # Not without being asked for, and nothing where nothing is alike.
    cdo("think", "--turns", "1", "--session", "b", "Should the billing service drop its event queue?").ok()
    assert "Earlier runs" not in (cdo.session("b") / "00-context.md").read_text()
    done = cdo("think", "--turns", "1", "--recall", "--session", "c", "Which colour suits the garden fence?").ok()
    assert "no earlier run decided on a similar question" in done.err
    runs = cdo.several(*(["think", "--recall", "--dry-run", words] for words in (question, "Why is the sky blue?")))
    assert sorted(runs[0].ok().err.removeprefix("recalled: ").strip().split(", ")) == ["a", "b", "old"]
    assert runs[1].ok().err == "no earlier run decided on a similar question\n"
    assert "Earlier runs" not in (cdo.session("c") / "00-context.md").read_text()
