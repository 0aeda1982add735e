"""`cdo trace`, as real processes: what a session is as a trace, read with the definitions of the protocol."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from cdo.session.records import group_file
from tests.conftest import A, Desk, explained
from tests.runs.test_batch import QUICK, asking, jsonl, table
from tests.runs.test_mission import TEAM, deciding, told
from tests.runs.test_mission import todo as todo
from tests.runs.test_repository_evidence import checkout as checkout
from tests.runs.test_repository_evidence import looking, wish
from tests.support.cabal_team import REQUEST
from tests.support.faults import Fault
from tests.support.harness import KEY, Done, attempts, finish, wait_for
from tests.support.provider import Provider
from tests.support.records import EXCHANGE
from tests.support.traces import (
    CLIENT,
    INTERNAL,
    LoopbackCollector,
    attributes,
    children,
    partial,
    spans_of,
    whole,
)

PROBLEM = "How does the queue push a job?"
ERROR = 2


def test_a_run_with_faults_retries_and_tools_is_a_trace(checkout: Desk, provider: Provider) -> None:
    provider.script = looking([wish("read", path="src/queue.py"), wish("nothing", secret="in the arguments")])
    provider.faults = [Fault(status=429, headers={"Retry-After": "0"}, call="t1-critic", nth=1)]
    checkout("think", "--turns", "1", *A, PROBLEM).ok()
    shown = checkout("trace").ok()
    spans = spans_of(shown.out)
    root = whole(spans)
    assert root.name == "invoke_workflow think" and root.kind == INTERNAL and root.status.code == 0
    assert attributes(root)["cdo.status"] == "max_turns"
    agents = {str(attributes(span)["cdo.call"]): span for span in children(spans, root)}
    assert {"t1-critic", "t1-synthesis", "final"} <= set(agents)
    critic = agents["t1-critic"]
    assert critic.name == "invoke_agent critic" and attributes(critic)["cdo.turn"] == 1 and not critic.status.code
    failed, asked, answered = [span for span in children(spans, critic) if span.kind == CLIENT]
    assert {span.name for span in (failed, asked, answered)} == {"chat gpt-6.1-sol"}
    assert failed.status.code == ERROR and attributes(failed)["error.type"] == "rate-limited"
    assert "gen_ai.usage.input_tokens" not in attributes(failed)
    told_ = attributes(asked)
    assert told_["gen_ai.provider.name"] == "openai" and told_["gen_ai.operation.name"] == "chat"
    assert told_["gen_ai.response.finish_reasons"] == ["tool_call"] and told_["gen_ai.usage.input_tokens"] > 0
    assert attributes(answered)["gen_ai.response.finish_reasons"] == ["stop"]
    assert not [key for span in spans for key, value in attributes(span).items() if ".cache_" in key and not value]
    assert [attributes(span)["cdo.attempt"] for span in (failed, asked, answered)] == [1, 2, 3]
    tools = [span for span in children(spans, critic) if span.kind == INTERNAL]
    assert [span.name for span in tools] == ["execute_tool read", "execute_tool unknown"]
    for span in tools:
        assert asked.end_time_unix_nano <= span.start_time_unix_nano
        assert span.end_time_unix_nano <= answered.start_time_unix_nano

    row = json.loads(checkout("show", "a", "--json").ok().out)
    tokens = [attributes(span) for span in spans if span.kind == CLIENT]
    both = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")
    assert sum(item.get(key, 0) for item in tokens for key in both) == row["tokens"]
    assert round(sum(item.get("cdo.cost.usd", 0) for item in tokens), 9) == round(row["cost"], 9)

    for words in (PROBLEM, "in the arguments", "heapq", "stage it", "Rate limit"):
        assert words.lower() not in shown.out.lower()
    file = checkout.path / "trace.json"
    checkout("trace", "a", "--content", "-o", str(file), env={"SOME_TOKEN": "After 2 looks"}).ok()
    (line,) = file.read_text().splitlines()
    again = {span.span_id: span for span in spans_of(line)}
    assert set(again) == {span.span_id for span in spans}
    content = attributes(again[answered.span_id])
    messages = content["gen_ai.input.messages"]
    assert any(PROBLEM in str(message) for message in messages)
    assert [part["type"] for part in messages[-1]["parts"]] == ["tool_call_response"]
    assert "stage it" in content["gen_ai.output.messages"][0]["parts"][0]["content"]
    assert "After 2 looks" not in line and again[failed.span_id].status.message
    assert attributes(again[tools[0].span_id])["gen_ai.tool.call.arguments"] == {"path": "src/queue.py"}
    assert "heapq" in attributes(again[tools[0].span_id])["gen_ai.tool.call.result"]


def test_a_mission_and_its_deliberation_are_one_trace(todo: Desk, provider: Provider) -> None:
    provider.script = told(deciding())
    with LoopbackCollector().running() as collector:
        todo(*TEAM, "-q", "--otlp", collector.url, REQUEST).ok()
    spans = spans_of(todo("trace", "a").ok().out)
    assert {span.span_id: span.parent_span_id for span in spans} == {
        span.span_id: span.parent_span_id for span in collector.spans.values()
    }
    root = whole(spans)
    assert root.name == "invoke_workflow cabal"
    (nested,) = [span for span in children(spans, root) if span.name.startswith("invoke_workflow ")]
    assert attributes(nested)["cdo.session"] == "a-r1-p2" and nested.name == "invoke_workflow quick"
    chats = [span for span in spans if span.kind == CLIENT]
    assert len(chats) == len(provider.calls)
    names = {attributes(span)["gen_ai.agent.name"] for span in children(spans, root)}
    assert {"bootstrap", "plan", "inspect", "present", "operative-1", "operative-2"} <= names

    alone = {span.span_id: span.parent_span_id for span in spans_of(todo("trace", "a-r1-p2").ok().out)}
    assert alone.items() <= {span.span_id: span.parent_span_id for span in spans}.items(), "not counted twice"
    shutil.move(todo.session(), todo.path / "elsewhere")
    orphan = whole(spans_of(todo("trace", "a-r1-p2").ok().out))
    assert orphan.trace_id != root.trace_id


def test_a_run_is_sent_while_it_goes_on(cdo: Desk, provider: Provider) -> None:
    with LoopbackCollector().running() as collector:
        provider.hold("t1-synthesis")
        process = cdo.start("think", "--turns", "2", *A, "--otlp", collector.url, "--max-calls", "5", PROBLEM)
        wait_for(lambda: len(collector.spans) == 6)
        assert not any(span.name.startswith("invoke_workflow") for span in collector.spans.values())
        provider.release()
        assert "trace:" not in finish(process).failed(5, "The cap of 5 calls").err
        broken = whole(list(collector.spans.values()))
        assert broken.status.code == ERROR and attributes(broken)["error.type"] == "BudgetReached"
        cdo("resume", "a", "--max-calls", "99", "--otlp", f"{collector.url}/v1/traces").ok()
        root = whole(list(collector.spans.values()))
        assert root.span_id == broken.span_id and not root.status.code
        later = {span.span_id: span for span in spans_of(cdo("trace", "a").ok().out)}
        assert set(later) == set(collector.spans)
        for identity, span in later.items():
            assert identity == root.span_id or span == collector.spans[identity]
        sent = b"".join(collector.bodies).decode()
    assert {head["path"] for head in collector.headers} == {"/v1/traces"}
    assert PROBLEM not in sent and "messages" not in sent and KEY not in sent


def test_a_collector_that_hangs_refuses_or_dies_harms_no_run(cdo: Desk, provider: Provider) -> None:
    def result(done: Done) -> dict[str, Any]:
        return {key: value for key, value in done.ok().json.items() if key not in ("session", "path")}

    words = ("think", "--turns", "2", "--json", "--no-git", PROBLEM)
    cdo(*words, "--session", "warm").ok()
    plain_run = cdo(*words, "--session", "plain")
    with LoopbackCollector(hang=60).running() as hanging:
        hung = cdo(*words, "--session", "hung", "--otlp", hanging.url)
        assert hanging.bodies
    refused = cdo(*words, "--session", "refused", "--otlp", hanging.url)
    with LoopbackCollector().running() as dying:
        provider.hold("t2-*", "died")
        process = cdo.start(*words, "--session", "died", "--otlp", dying.url)
        wait_for(lambda: dying.bodies)
    provider.release()
    died = finish(process)
    for done, why in ((hung, "did not answer in time"), (refused, "cannot be reached"), (died, "cannot be reached")):
        assert result(done) == result(plain_run)
        assert done.err.count("trace: The collector") == 1 and why in done.err
        assert done.err.count("`cdo trace SESSION --otlp URL` sends them") == 1
    assert hung.seconds < 2 * plain_run.seconds + 6 and refused.seconds < 2 * plain_run.seconds + 6
    for name in ("hung", "refused", "died"):
        assert attempts(cdo.session(name)) == attempts(cdo.session("plain"))


def test_the_items_of_a_batch_are_traces_over_one_connection(cdo: Desk, provider: Provider) -> None:
    jsonl(cdo, asking(6))
    words = ("batch", "q.jsonl", *QUICK, "--live", "6", "--json")
    with LoopbackCollector(hang=0.05).running() as collector:
        done = cdo(*words, "--otlp", collector.url).ok()
        assert done.json["done"] == 6 and "trace:" not in done.err
    assert collector.most_at_once == 1
    traces: dict[bytes, list[Span]] = {}
    for span in collector.spans.values():
        traces.setdefault(span.trace_id, []).append(span)
    roots = [attributes(whole(spans)) for spans in traces.values()]
    places = {row["id"]: Path(row["path"]).name for row in table(cdo)}
    assert {root["cdo.item"]: f"cdo-{root['cdo.session']}" for root in roots} == places and len(roots) == 6
    assert {(root["cdo.batch"], root["cdo.preset"]) for root in roots} == {("q", "quick")}
    assert sum(span.kind == CLIENT for span in collector.spans.values()) == len(provider.calls)
    assert b"split service" not in b"".join(collector.bodies)
    one = sorted((cdo.path / "tmp/batch-q").glob("cdo-*"))[3]
    (kept, *_) = spans_of(cdo("trace", f"tmp/batch-q/{one.name}").ok().out)
    (sent,) = [root for root in roots if root["cdo.session"] == one.name.removeprefix("cdo-")]
    assert attributes(kept) == sent, "the record names the batch and the item as the run did"
    (cdo.path / "tmp/batch-q/items.jsonl").rename(cdo.path / "items.jsonl")
    (kept, *_) = spans_of(cdo("trace", f"tmp/batch-q/{one.name}").ok().out)
    assert attributes(kept) == {key: text for key, text in sent.items() if key not in ("cdo.batch", "cdo.item")}

    plain_run = cdo(*words, "--name", "plain").ok()
    with LoopbackCollector(hang=60).running() as hanging:
        hung = cdo(*words, "--name", "hung", "--otlp", hanging.url).ok()
        assert 1 <= len(hanging.bodies) <= 2, "each takes ten seconds"
    refused = cdo(*words, "--name", "refused", "--otlp", hanging.url).ok()
    for done, why in ((hung, "did not answer in time"), (refused, "cannot be reached")):
        assert all(done.json[key] == plain_run.json[key] for key in ("done", "failed", "calls", "cost"))
        assert done.err.count("trace: The collector") == 1 and why in done.err
        assert done.seconds < 2 * plain_run.seconds + 6
    explained(cdo(*words, "--cluster", "local", "--otlp", hanging.url), 2, "--otlp and --cluster exclude")


def test_a_session_in_git_and_a_fork(checkout: Desk) -> None:
    checkout("think", "--turns", "2", *A, PROBLEM).ok()
    before = spans_of(checkout("trace", "a").ok().out)
    checkout("fork", "a", "--turn", "1", "--session", "b", "-q").ok()
    forked = spans_of(checkout("trace", "b").ok().out)
    shutil.rmtree(checkout.session())
    kept = spans_of(checkout("trace", "cdo/a").ok().out)
    # The journal of a commit lacks the end of the run that makes the commit.
    inner = [[(s.name, s.span_id, s.end_time_unix_nano) for s in spans[1:]] for spans in (before, kept)]
    assert inner[0] == inner[1] and before[0].span_id == kept[0].span_id

    root = whole(forked)
    (link,) = root.links
    assert (link.trace_id, link.span_id) == (before[0].trace_id, before[0].span_id)
    assert root.trace_id != before[0].trace_id
    turns = {attributes(span).get("cdo.turn") for span in children(forked, root)}
    assert 1 not in turns and 2 in turns, "what the origin paid for is in its trace"


def test_what_a_hostile_session_holds_is_bounded_or_an_error(finished: Desk, tmp_path: Path) -> None:
    place = tmp_path / "tmp" / "cdo-evil"
    shutil.copytree(finished.session(), place)
    desk = Desk(tmp_path, env=finished.env)
    times = ("9999-12-31T23:59:59", "0001-01-01T00:00:00+14:00", "soon", "", "1960-01-01T00:00:00Z")
    deep = "[" * 100_000
    wishes = [
        {"id": "i" * 9999, "name": "\x1b[31m" * 999, "arguments": deep},
        {"id": "", "name": "n", "arguments": '{"n": 1e999, "i": 99999999999999999999}'},
    ]
    evil = [
        {**EXCHANGE, "call": "t1-\ud800" + "x" * 9000, "attempt": 1, "started": at, "seconds": 1e9, "model": model,
         "response": {"text": "\ud800" + "y" * 10**6, "finish": "z" * 999, "tool_calls": wishes},
         "request": {"messages": [{"role": "user", "text": "q" * 10**6}], "max_tokens": -5, "tools": ["n"]},
         "usage": {"input_tokens": 10**9, "output_tokens": 0}, "cost": 1e6}
        for at, model in zip(times * 4, ["", "/", ":", "a/" * 5000, "scripted:/home/me/x.yaml"] * 4, strict=True)
    ]  # fmt: skip
    evil.append({"kind": "tools", "call": evil[0]["call"], "inputs": "0", "attempt": 1, "results": ["r" * 10**6] * 9})
    evil.append({"kind": "nested", "name": "n", "inputs": "0", "used": {}, "result": {
        "session": "../../etc", "status": "", "decision": "", "confidence": None, "text": ""}})  # fmt: skip
    name, data = group_file(9000, evil)
    (place / "calls" / name).write_bytes(data)
    with (place / "journal.jsonl").open("a") as journal:
        journal.write('{"at": "9999-12-31T00:00:00+00:00", "event": "stopped", "why": "", "status": "X"}\n{"tool\n')
    out = tmp_path / "trace.json"
    desk("trace", "evil", "--content", "-o", str(out)).ok()
    lines = out.read_bytes().splitlines()
    spans = [span for line in lines for span in spans_of(line)]
    assert max(map(len, lines)) < 3 * 2**20 and len(whole(spans).name) < 300
    assert all(len(item.key) + len(str(item.value)) < 400_000 for span in spans for item in span.attributes)
    assert not any("/home/me" in span.name for span in spans)

    (place / "calls" / name).write_bytes(data.replace(b'"cost"', b'"c0st"'))
    explained(desk("trace", "evil"), 8, "damaged")
    explained(desk("trace", "none"), 8, "There is no session")


def test_a_trace_is_sent_as_the_protocol_asks(finished: Desk) -> None:
    def answer(number: int) -> tuple[int, dict[str, str], str]:
        return (503, {"Retry-After": "1"}, "busy") if number == 1 else (200, {}, partial(2, "too old"))

    with LoopbackCollector(answer).running() as collector:
        env = {"OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{KEY},x-tenant=a"}
        done = finished("trace", "a", "--otlp", f"{collector.url}/base/", env=env).ok()
        assert collector.bodies[0] == collector.bodies[1] and len(collector.bodies) == 2
        assert collector.times[1] - collector.times[0] >= 1
        head = collector.headers[0]
        assert (head["path"], head["content-type"]) == ("/base/v1/traces", "application/json")
        assert (head["authorization"], head["x-tenant"]) == (f"Bearer {KEY}", "a")
        assert f"{len(collector.spans)} spans sent to " in done.out
        assert "2 spans were rejected: too old" in done.err
        whole(list(collector.spans.values()))

    with LoopbackCollector(lambda _: (401, {}, f"who is {KEY}?")).running() as collector:
        refused = finished("trace", "a", "--otlp", collector.url, env=env)
        explained(refused, 4, "HTTP 401: who is [header]?", collector.url)
        assert KEY not in refused.err
        assert len(collector.bodies) == 1
    with LoopbackCollector(lambda _: (302, {"Location": "http://127.0.0.1:1/"}, "")).running() as collector:
        explained(finished("trace", "a", "--otlp", collector.url), 4, "HTTP 302")
    with LoopbackCollector(lambda _: (429, {"Retry-After": "9999"}, "")).running() as collector:
        assert explained(finished("trace", "a", "--otlp", collector.url), 4, "HTTP 429").seconds < 20
    wrong = ["localhost:4318", "ftp://h", "http://", "http://h:99999999", "http://h/?a=b", "http://a b"]
    for done in finished.several(*(["trace", "a", "--otlp", url] for url in wrong)):
        explained(done, 2, "is not the address of a collector")
    explained(finished("trace", "a", "--otlp", "http://me:secret@h"), 2, "OTEL_EXPORTER_OTLP_HEADERS")
    bad = {"OTEL_EXPORTER_OTLP_HEADERS": "a=b%0Ac"}
    explained(finished("trace", "a", "--otlp", "http://127.0.0.1:1", env=bad), 2, "is not a header")
    explained(finished("trace", "a", "--otlp", "http://127.0.0.1:1", "--output", "x"), 2, "Give one of the two")
    explained(finished("trace", "a", "--output", "tmp"), 2, "is a folder")
    explained(finished("trace", "a", "--out", "elsewhere"), 8, "There is no session", "elsewhere")
