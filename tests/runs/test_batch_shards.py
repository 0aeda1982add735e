"""A batch in shards, on several machines: who has which items, who may go on, and how the parts are joined."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from cdo.app.batch.shards import Shard, owner_here, shard_of
from cdo.core.errors import UsageError
from cdo.core.exchange import Usage
from tests.conftest import Desk, explained
from tests.runs.test_batch import CALLS, QUICK, asking, failing, folder, jsonl, question, sessions, table, twice
from tests.support.answers import Answer, RequestInfo, agent_text
from tests.support.faults import Fault
from tests.support.harness import wait_for
from tests.support.provider import Provider


def test_shards_share_a_batch_out_and_each_is_asked_once(cdo: Desk, provider: Provider) -> None:
    jsonl(cdo, asking(12))
    runs = cdo.several(*(["batch", "q.jsonl", *QUICK, "--shard", f"{k}/3", "--json"] for k in (1, 2, 3)))
    parts = [done.ok().json for done in runs]
    assert sum(part["items"] for part in parts) == 12
    assert len(provider.calls) == 12 * CALLS
    assert not twice(provider)
    assert [part["batch"] for part in parts] == ["q-1-of-3", "q-2-of-3", "q-3-of-3"]
    ids = [row["id"] for part in parts for row in table(cdo, part["batch"])]
    assert len(set(ids)) == 12
    task = {"SLURM_ARRAY_TASK_ID": "5", "SLURM_ARRAY_TASK_MIN": "4", "SLURM_ARRAY_TASK_COUNT": "3"}
    again = cdo("batch", "q.jsonl", *QUICK, "--shard", "auto", "--json", env=task).ok().json
    assert again == parts[1]
    explained(cdo("batch", "q.jsonl", *QUICK, env=task), 2, "SLURM_ARRAY_TASK_ID", "--shard auto", "--shard 1/1")
    explained(cdo("batch", "q.jsonl", "--shard", "4/3"), 2, "--shard cannot be `4/3`")
    assert len(provider.calls) == 12 * CALLS


ARRAYS: list[tuple[dict[str, str], str, tuple[int, int] | str]] = [
    ({}, "2/5", (2, 5)),
    ({"SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_TASK_MIN": "0", "SLURM_ARRAY_TASK_COUNT": "4"}, "auto", (1, 4)),
    (
        {
            "SLURM_ARRAY_TASK_ID": "14", "SLURM_ARRAY_TASK_MIN": "10", "SLURM_ARRAY_TASK_STEP": "2",
            "SLURM_ARRAY_TASK_COUNT": "3",
        },
        "auto",
        (3, 3),
    ),
    ({"JOB_COMPLETION_INDEX": "7"}, "auto/8", (8, 8)),
    ({"JOB_COMPLETION_INDEX": "7"}, "auto", "--shard auto/N"),
    ({"JOB_COMPLETION_INDEX": "8"}, "auto/8", "cannot be `auto/8`"),
    ({"AWS_BATCH_JOB_ARRAY_INDEX": "0", "AWS_BATCH_JOB_ARRAY_SIZE": "2"}, "auto", (1, 2)),
    ({"SGE_TASK_ID": "3", "SGE_TASK_FIRST": "1", "SGE_TASK_LAST": "5", "SGE_TASK_STEPSIZE": "2"}, "auto", (2, 3)),
    ({"PBS_ARRAY_INDEX": "0"}, "auto/4", (4, 4)),
    ({"PBS_ARRAY_INDEX": "4"}, "auto/4", (4, 4)),
    ({"SGE_TASK_ID": "undefined"}, "auto", "No array job is running here"),
    ({}, "0/3", "cannot be `0/3`"),
    ({}, "1", "cannot be `1`"),
    ({}, "x/3", "cannot be `x/3`"),
]  # fmt: skip


@pytest.mark.quick
@pytest.mark.parametrize(("env", "given", "found"), ARRAYS)
def test_schedulers_say_which_shard_a_task_is(env: dict[str, str], given: str, found: tuple[int, int] | str) -> None:
    if isinstance(found, str):
        with pytest.raises(UsageError) as error:
            shard_of(given, env)
        assert found in f"{error.value.message} {error.value.hint}"
    else:
        assert shard_of(given, env) == Shard(number=found[0], of=found[1])


@pytest.mark.quick
def test_every_item_belongs_to_exactly_one_shard() -> None:
    shards = [Shard(number=number, of=7) for number in range(1, 8)]
    sizes = [0] * 7
    for number in range(2000):
        having = [shard.has(f"item {number}") for shard in shards]
        assert sum(having) == 1
        sizes[having.index(True)] += 1
    assert min(sizes) > 200


def test_another_machine_goes_on_only_when_told_to_take_over(cdo: Desk, provider: Provider) -> None:
    jsonl(cdo, asking(4))
    explained(cdo("batch", "q.jsonl", *QUICK, "--max-calls", "6"), 5)
    head = folder(cdo) / "batch.yaml"
    here = owner_here().host
    assert here in head.read_text()
    head.write_text(head.read_text().replace(here, "other-machine 12345678"))
    asked = len(provider.calls)
    for words in (["q.jsonl"], ["resume", "q"]):
        explained(cdo("batch", *words, "--max-calls", "99"), 8, "another machine", "other-machine", "--take-over")
    assert len(provider.calls) == asked
    cdo("batch", "q.jsonl", "--max-calls", "99", "--take-over").ok()
    assert "other-machine" not in head.read_text()
    assert len(provider.calls) == 4 * CALLS
    head.write_text(head.read_text().replace(here, "other-machine 12345678"))
    cdo("batch", "q.jsonl").ok()  # nothing is left that could be paid twice


def test_what_shards_have_is_joined_and_goes_on(cdo: Desk, provider: Provider) -> None:
    provider.script = failing("2")
    jsonl(cdo, asking(8))
    for k in (1, 2):
        assert cdo("batch", "q.jsonl", *QUICK, "--shard", f"{k}/2").code in (0, 9)
    parts = {row["id"]: row for k in (1, 2) for row in table(cdo, f"q-{k}-of-2")}
    done = cdo("batch", "merge", "all", "q-1-of-2", "tmp/batch-q-2-of-2", "--json", "--out", "tmp").ok().json
    assert (done["items"], done["ended"], done["remarks"]) == (8, 8, [])
    rows = table(cdo, "all")
    assert [row["question"] for row in rows] == [item["question"] for item in asking(8)]
    for row in rows:
        before = parts[row["id"]]
        assert {**row, "path": ""} == {**before, "path": ""}
        assert row["path"] == before["path"].replace(before["path"].split("/")[1], "batch-all")
    assert len(sessions(cdo, "all")) == 8
    listed = cdo("list", "--json", "--out", "tmp/batch-all").ok().json
    assert len(listed) == 8
    asked = len(provider.calls)
    explained(cdo("batch", "merge", "all", "q-1-of-2"), 8, "There is a batch tmp/batch-all already")
    explained(cdo("batch", "q.jsonl", "--name", "all"), 9, "1 of 8 items failed")
    assert len(provider.calls) == asked
    provider.script = None
    cdo("batch", "resume", "all", "--retry-failed").ok()
    assert len({row["status"] for row in table(cdo, "all")}) == 1


def test_the_same_item_in_two_batches_is_told(cdo: Desk, provider: Provider) -> None:
    jsonl(cdo, [{**item, "id": f"n{number}"} for number, item in enumerate(asking(3))])
    cdo("batch", "q.jsonl", *QUICK).ok()
    shutil.copytree(folder(cdo), folder(cdo, "copy"))
    done = cdo("batch", "merge", "all", "q", "copy").ok()
    assert len(re.findall(r"the item n\d is in tmp/batch-q and in tmp/batch-copy", done.err)) == 3
    assert len(table(cdo, "all")) == 3
    jsonl(cdo, [{"question": "Should we merge them?", "id": "n1"}], "other.jsonl")
    cdo("batch", "other.jsonl", *QUICK).ok()
    explained(cdo("batch", "merge", "both", "q", "other"), 2, "different questions under the id `n1`")
    jsonl(cdo, asking(1), "think.jsonl")
    cdo("batch", "think.jsonl", "--preset", "think", "--turns", "1").ok()
    explained(cdo("batch", "merge", "both", "q", "think"), 2, "do not ask in the same way: turns, preset differ")
    explained(cdo("batch", "merge", "q", "q"), 2, "cannot be made of itself")
    assert not folder(cdo, "both").exists()


def test_status_tells_how_far_a_batch_is(cdo: Desk, provider: Provider) -> None:
    provider.script = failing("2")
    jsonl(cdo, asking(3))
    assert cdo("batch", "q.jsonl", *QUICK).code == 9
    told = cdo("batch", "status", "q", "--json", "--out", "tmp").ok().json
    assert (told["items"], told["open"], told["failed"], told["running"]) == (3, 0, 1, False)
    assert told["statuses"] == {"failed": 1, "max_turns": 2}
    assert told["calls"] == len(provider.calls)
    shown = cdo("batch", "status", "q").ok().out
    assert shown.startswith("q: 3 of 3 items ended; not running\n")
    assert re.search(r"failed 1 time: .*HTTP 400", shown)
    provider.script = None
    provider.hold()
    with (cdo.path / "q.jsonl").open("a") as file:
        file.write(json.dumps(asking(9)[8]) + "\n")
    process = cdo.start("batch", "q.jsonl")
    before = len(provider.calls)
    wait_for(lambda: len(provider.calls) > before)
    running = cdo("batch", "status", "q").ok().out
    provider.release()
    process.communicate(timeout=60)
    assert re.match(r"q: 3 of 4 items ended; running on \S+ \w+ \(process \d+\)", running)
    assert "  open" in running


def test_a_report_shows_all_items_and_what_stands_out(cdo: Desk, provider: Provider) -> None:
    def script(info: RequestInfo) -> Answer | Fault | None:
        if question(info) == "3" and info.kind == "agent":
            return Answer(agent_text("Stage it."), usage=Usage(60_000, 4_000))
        return Fault(status=400) if question(info) == "2" else None

    provider.script = script
    odd = {"question": "Is <script>alert(1)</script> [safe](http://x)?", "id": "<b>&"}
    jsonl(cdo, [*asking(7), odd])
    assert cdo("batch", "q.jsonl", *QUICK).code == 9
    done = cdo("batch", "report", "q", "--out", "tmp").ok()
    assert done.out == "tmp/batch-q/report.html\n"
    page = (folder(cdo) / "report.html").read_text()
    rows = {row["question"]: row for row in table(cdo)}
    assert page.count('<tr id="item-') == 8
    assert "<script" not in page and "<b>&" not in page.partition("<main")[2]
    assert "Is &lt;script&gt;alert(1)&lt;/script&gt; [safe](http://x)?" in page
    dear = rows["Should we split service 3?"]["id"]
    outliers = page.partition('id="outliers"')[2].partition("</section>")[0]
    assert re.search(rf'<a href="#item-3">{dear}</a>: cost \$[0-9.]+, median \$', outliers)
    assert "1 × The models failed: 0 of 2 answered" in page
    for row in rows.values():
        if row["status"] != "failed":
            link = f'href="{Path(row["path"]).name}/FINAL.md"'
            assert link in page
    cdo("batch", "report", "q", "-o", "pages/all.html").ok()
    assert f'href="../tmp/batch-q/cdo-{dear}/FINAL.md"' in (cdo.path / "pages/all.html").read_text()
    assert cdo("batch", "report", "q", "-o", "-").ok().out.startswith("<!DOCTYPE html>")
