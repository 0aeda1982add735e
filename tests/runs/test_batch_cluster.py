"""`cdo batch --cluster` from outside: a real Dask scheduler, two real workers, and what can happen to each."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.conftest import Desk, explained
from tests.runs.test_batch import CALLS, QUICK, asking, failing, folder, jsonl, sessions, table, twice
from tests.support.dask_cluster import DaskCluster
from tests.support.faults import Fault, rate_limited
from tests.support.harness import (
    exchanges,
    finish,
    inject,
    kill_group,
    needs_module,
    needs_mounts,
    needs_strace,
    wait_for,
)
from tests.support.provider import Provider

SETTLED = 0.5  # seconds after which an answer that was sent is on record


@pytest.fixture
def cluster(cdo: Desk) -> Iterator[DaskCluster]:
    """A scheduler without workers."""
    needs_module("distributed")
    with DaskCluster(cdo) as running:
        yield running


def recorded(cdo: Desk) -> set[tuple[str, str, int]]:
    """(session, call, attempt) of every exchange on record."""
    return {
        (path.name.removeprefix("cdo-"), record["call"], record["attempt"])
        for path in sessions(cdo)
        for record in exchanges(path)
    }


def frozen(cdo: Desk, provider: Provider, calls: int) -> set[tuple[str, str, int]]:
    """Hold every answer once so many calls have come; return what is on record then."""
    wait_for(lambda: len(provider.calls) >= calls)
    provider.hold()
    time.sleep(SETTLED)
    return recorded(cdo)


def dead(worker: subprocess.Popen[bytes]) -> None:
    """Kill a worker, and wait until its provider knows: what is let go of then reaches nobody there."""
    worker.kill()
    worker.wait()
    time.sleep(SETTLED)


def asked_again(provider: Provider, known: set[tuple[str, str, int]]) -> set[tuple[str, str, int]]:
    """What was on record and asked twice all the same."""
    return known & set(twice(provider))


def test_a_killed_worker_costs_only_the_calls_it_had_in_flight(
    cdo: Desk, provider: Provider, cluster: DaskCluster
) -> None:
    """One of two workers is killed in mid-run, under a cap: the other one goes on from its record."""
    provider.latency = 0.05
    first, _ = cluster.worker(), cluster.worker()
    jsonl(cdo, asking(20))
    live = ("--live", "8", "--concurrency", "12")
    process = cdo.start("batch", "q.jsonl", *QUICK, *live, "--max-calls", "60", "--cluster", cluster.address)
    known = frozen(cdo, provider, 24)
    dead(first)
    provider.release()
    done = finish(process)
    explained(done, 5, "cap of 60 calls", f"cdo batch resume q --cluster {cluster.address}")
    assert re.search(r"worker tcp://\S+ \(\S+\) is gone: its \d items go to another one, which goes on", done.err)
    lost = sum(info.left for info in provider.calls)
    assert len(known) >= 12 and not asked_again(provider, known)
    assert 1 <= lost <= 8, "the calls that the dead worker had in flight"
    assert len(provider.calls) <= 60 + lost
    assert provider.peak["all"] <= 12
    again = cdo("batch", "resume", "q", "--max-calls", "200", "--cluster", cluster.address, "--json").ok()
    assert (again.json["done"], again.json["calls"]) == (20, 20 * CALLS)
    assert len(provider.calls) == 20 * CALLS + lost
    assert len({row["id"] for row in table(cdo)}) == 20
    assert not list(folder(cdo).glob("probe-*"))


def test_a_batch_goes_on_after_its_scheduler_was_killed(cdo: Desk, provider: Provider, cluster: DaskCluster) -> None:
    provider.latency = 0.05
    workers = [cluster.worker(), cluster.worker()]
    jsonl(cdo, asking(12))
    process = cdo.start("batch", "q.jsonl", *QUICK, "--live", "6", "--cluster", cluster.address)
    known = frozen(cdo, provider, 16)
    cluster.scheduler.kill()
    told = f"`cdo batch resume q --cluster {cluster.address}` goes on"
    explained(finish(process), 10, "its scheduler is gone", "Everything that was answered is recorded", told)
    provider.release()
    for worker in workers:
        worker.kill()
        worker.wait()
    provider.settle()
    known |= recorded(cdo)
    explained(cdo("batch", "resume", "q", "--cluster", cluster.address), 10, "cannot be reached", "Nothing was sent")
    done = cdo("batch", "resume", "q", "--json").ok()
    assert (done.json["done"], done.json["calls"]) == (12, 12 * CALLS)
    assert not asked_again(provider, known)
    assert Counter(row["status"] for row in table(cdo)) == {"max_turns": 12}


@pytest.mark.parametrize("wait", [0.0, 4.0])
def test_a_killed_coordinator_is_followed_by_another_one(
    wait: float, cdo: Desk, provider: Provider, cluster: DaskCluster
) -> None:
    """Its workers live on: what they had in flight is recorded before the next one counts, or after, and counted."""
    provider.latency = 0.05
    cluster.worker()
    cluster.worker()
    jsonl(cdo, asking(12))
    process = cdo.start("batch", "q.jsonl", *QUICK, "--live", "6", "--cluster", cluster.address)
    frozen(cdo, provider, 16)
    kill_group(process.pid)
    process.communicate()
    going = cdo.start("batch", "resume", "q", "--json", "--cluster", cluster.address)
    time.sleep(wait)
    provider.release()
    done = finish(going).ok()
    assert (done.json["done"], done.json["calls"]) == (12, 12 * CALLS)
    assert not twice(provider), "nothing was in a process that was killed"


def test_a_slow_disk_of_one_worker_loses_nothing(cdo: Desk, provider: Provider, cluster: DaskCluster) -> None:
    strace = needs_strace()
    cluster.worker(prefix=inject(strace, "fsync,fdatasync,syncfs", "delay_exit=200000"))
    cluster.worker()
    jsonl(cdo, asking(10))
    done = cdo("batch", "q.jsonl", *QUICK, "--live", "8", "--cluster", cluster.address, "--json").ok()
    assert (done.json["done"], done.json["calls"]) == (10, 10 * CALLS)
    assert len(provider.calls) == 10 * CALLS
    assert "is gone" not in done.err and "has not answered" not in done.err


def test_limits_of_a_provider_are_one_for_all_workers(cdo: Desk, provider: Provider) -> None:
    """Workers on this machine, and a bucket of requests that fills again."""
    needs_module("distributed")
    provider.script = rate_limited(limit=8.0, refill=14.0)
    jsonl(cdo, asking(14))
    words = ("--cluster", "local", "--workers", "2", "--live", "14", "--json")
    done = cdo("batch", "q.jsonl", *QUICK, *words).ok()
    assert done.json["done"] == 14
    refused = sum(info.status == 429 for info in provider.calls)
    assert refused <= 6, f"{refused} of {len(provider.calls)} requests were refused"
    ports = {info.port for info in provider.calls}
    assert len(ports) >= 2, "more than one process asked"


def test_workers_that_cannot_help_are_named(cdo: Desk, provider: Provider, cluster: DaskCluster) -> None:
    cluster.worker(version="0.0.1")
    cluster.worker(env={"OPENAI_API_KEY": "", "OPENAI_BASE_URL": ""})
    jsonl(cdo, asking(3))
    words = ("batch", "q.jsonl", *QUICK, "--cluster", cluster.address)
    done = cdo(*words)
    explained(done, 4, "No worker of the cluster can be used", "the same version of cdo", "the keys")
    assert re.search(r"worker tcp://\S+ \(\S+\) is not used: it has cdo 0.0.1, and the batch runs with ", done.err)
    assert re.search(r"worker tcp://\S+ \(\S+\) is not used: There is no key for \S+", done.err)
    assert provider.requests == []
    cluster.worker()
    assert cdo(*words, "--json").ok().json["done"] == 3


def test_what_a_lost_worker_had_reserved_counts_as_spent_where_its_disk_is_its_own(
    cdo: Desk, provider: Provider, cluster: DaskCluster
) -> None:
    """One worker sees an empty disk at the path of the batch, as a machine without the shared one does."""
    provider.latency = 0.4  # no item is done when its worker is lost
    (cdo.path / "tmp").mkdir()
    apart = [*needs_mounts(), 'mount -t tmpfs tmpfs "$0" && exec "$@"', str(cdo.path / "tmp")]
    own, _ = cluster.worker(prefix=apart), cluster.worker()
    jsonl(cdo, asking(8))
    process = cdo.start("batch", "q.jsonl", *QUICK, "--live", "8", "--cluster", cluster.address, "--json")
    known = frozen(cdo, provider, 14)
    dead(own)
    provider.release()
    done = finish(process).ok()
    assert re.search(r"worker tcp://\S+ \(\S+\) does not share \S*tmp/batch-q: a session comes here when", done.err)
    assert "is gone: its 4 items go to another one, and are asked anew: its disk is not shared" in done.err
    assert done.json["done"] == 8
    assert len(provider.calls) > 8 * CALLS
    assert done.json["calls"] >= len(provider.calls), "every call that was paid is counted"
    assert not asked_again(provider, known)


def test_sessions_come_home_from_a_worker_whose_disk_is_its_own(
    cdo: Desk, provider: Provider, cluster: DaskCluster
) -> None:
    """One item has an unfinished session here already, which is left as it is."""
    (cdo.path / "tmp").mkdir()
    jsonl(cdo, asking(4))
    explained(cdo("batch", "q.jsonl", *QUICK, "--live", "1", "--max-calls", "1"), 5, "cap of 1 call")
    (begun,) = sessions(cdo)
    cluster.worker(prefix=[*needs_mounts(), 'mount -t tmpfs tmpfs "$0" && exec "$@"', str(cdo.path / "tmp")])
    done = cdo("batch", "resume", "q", "--max-calls", "50", "--cluster", cluster.address, "--json").ok()
    assert done.json["done"] == 4
    assert f"the session {begun.name} stays at worker" in done.err and "There is a session" in done.err
    home = [path for path in sessions(cdo) if path != begun]
    assert len(home) == 3 and not (begun / "FINAL.md").exists()
    for path in home:
        assert f"{path.name[4:]}" in cdo("show", path.name[4:], "--out", "tmp/batch-q").ok().out
        assert len(exchanges(path)) == CALLS and (path / "FINAL.md").read_text()
    asked = len(provider.calls)
    for path in home:
        cdo("resume", path.name[4:], "--out", "tmp/batch-q").ok()
    assert len(provider.calls) == asked
    cdo("batch", "merge", "whole", "q").ok()
    assert len(list((cdo.path / "tmp" / "batch-whole").glob("cdo-*/FINAL.md"))) == 3


def test_a_worker_whose_own_disk_is_full_ends_the_batch(cdo: Desk, provider: Provider, cluster: DaskCluster) -> None:
    (cdo.path / "tmp").mkdir()
    mount = 'mount -t tmpfs -o size=300k tmpfs "$0" && exec "$@"'
    cluster.worker(prefix=[*needs_mounts(), mount, str(cdo.path / "tmp")])
    jsonl(cdo, asking(12))
    done = cdo("batch", "q.jsonl", *QUICK, "--live", "4", "--cluster", cluster.address)
    explained(done, 8, "cdo: Worker tcp://", "the disk is full", f"cdo batch resume q --cluster {cluster.address}")
    assert {row["status"] for row in table(cdo)} <= {"open", "max_turns"}
    assert cdo("batch", "resume", "q", "--json").ok().json["done"] == 12


def test_ctrl_c_stops_workers_of_this_machine_too(cdo: Desk, provider: Provider) -> None:
    needs_module("distributed")
    provider.latency = 0.1
    jsonl(cdo, asking(12))
    process = cdo.start("batch", "q.jsonl", *QUICK, "--live", "4", "--cluster", "local", "--workers", "2")
    wait_for(lambda: len(provider.calls) >= 9)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    began = time.monotonic()
    explained(finish(process), 130, "Stopped", "cdo batch resume q --cluster local")
    assert time.monotonic() - began < 10
    provider.settle()
    count, known = len(provider.calls), recorded(cdo)
    time.sleep(SETTLED)
    assert len(provider.calls) == count, "no worker is left that asks"
    done = cdo("batch", "resume", "q", "--json").ok()
    assert (done.json["done"], done.json["calls"]) == (12, 12 * CALLS)
    assert not asked_again(provider, known)


def test_failures_are_those_of_one_process(cdo: Desk, provider: Provider, cluster: DaskCluster) -> None:
    provider.script = failing("2", "4")
    cluster.worker(threads=1)
    jsonl(cdo, asking(5))
    done = cdo("batch", "q.jsonl", *QUICK, "--cluster", cluster.address, "--json")
    explained(done, 9, "2 of 5 items failed", f"cdo batch resume q --cluster {cluster.address} --retry-failed")
    assert "HTTP 400" in table(cdo)[1]["error"]
    provider.script = None
    provider.faults = [Fault(status=401)]
    jsonl(cdo, asking(60), "r.jsonl")
    done = cdo("batch", "r.jsonl", *QUICK, "--live", "5", "--cluster", cluster.address)
    explained(done, 4, "20 items in a row failed, so the batch stops", "HTTP 401")


def test_a_cluster_that_cannot_be_reached_is_told_at_once_with_the_reason(cdo: Desk, provider: Provider) -> None:
    needs_module("distributed")
    jsonl(cdo, asking(1))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        reasons = {
            "tcp://127.0.0.1:1": ("Connect call failed",),
            f"tls://127.0.0.1:{port}": ("check your TLS configuration",),
            f"xyz://127.0.0.1:{port}": ("unknown address scheme",),
        }
        for address, expected in reasons.items():
            done = cdo("batch", "q.jsonl", *QUICK, "--cluster", address)
            explained(done, 10, f"The Dask scheduler at {address} cannot be reached", "Nothing was sent")
            assert any(reason in done.err for reason in expected), done.err
    assert provider.requests == []


def test_what_cannot_be_a_cluster_is_refused(cdo: Desk, provider: Provider) -> None:
    jsonl(cdo, asking(1))
    words = ("batch", "q.jsonl", *QUICK)
    lacking = cdo(*words, "--cluster", "local", env={"TESTS_HIDE": "distributed"})
    explained(lacking, 2, "--cluster needs Dask", "pip install 'cdo-deliberate[dask]'")
    explained(cdo(*words, "--workers", "2"), 2, "--workers N has no meaning without --cluster local")
    needs_module("distributed")
    for address in ("here", "tcp://127.0.0.1:99999", "tcp://127.0.0.1:0"):
        explained(cdo(*words, "--cluster", address), 2, f"--cluster cannot be `{address}`", "tcp://")
    explained(cdo(*words, "--cluster", "tcp://127.0.0.1:1", "--workers", "2"), 2, "--workers N goes with")
    assert provider.requests == []
    assert not folder(cdo).exists()
