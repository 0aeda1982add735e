"""Runs whose calls wait at the batch endpoints of providers, at half the price: `--batch-api`."""

from __future__ import annotations

import io
import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest
from google import genai

from cdo.session.records import read_session
from tests.conftest import A, Desk
from tests.runs.test_protocols import CLAUDE, GPT, with_messages
from tests.support.harness import KEY, Done, exchanges, finish, kill_group
from tests.support.provider import Provider

QUESTION = "Should we replace the queue?"
TWO_TURNS = ("deep", "--width", "3", "--turns", "2", "--no-git")


def with_chat(cdo: Desk, provider: Provider) -> Desk:
    return cdo.having(OPENAI_BASE_URL=f"{provider.url}/v1", OPENAI_API_KEY=KEY)


def with_responses(cdo: Desk, provider: Provider) -> Desk:
    """The desk of a person whose table of providers has this one, which speaks Responses."""
    entry = {"url": f"{provider.url}/v1", "protocol": "responses", "key_env": ["OPENAI_API_KEY"]}
    table = {"openai": {**entry, "batch_api": "openai"}}
    cdo.write(
        "../home/.config/cdo/dispatch/providers.yaml",
        json.dumps({"purpose": "x", "load_when": "x", "providers": table}),
    )
    return cdo.having(OPENAI_BASE_URL="")


def with_openrouter(cdo: Desk, provider: Provider) -> Desk:
    prices = {"openrouter/openai/gpt-4o": {"input": 2, "output": 8}}
    cdo.write("../home/.config/cdo/config.yaml", json.dumps({"prices": prices}))
    return cdo.having(OPENROUTER_API_BASE=f"{provider.url}/v1", OPENROUTER_API_KEY=KEY)


def with_gemini(cdo: Desk, provider: Provider) -> Desk:
    return cdo.having(GEMINI_API_BASE=f"{provider.url}/v1beta/openai", GEMINI_API_KEY=KEY)


WAYS: dict[str, tuple[Callable[[Desk, Provider], Desk], tuple[str, ...]]] = {
    "/v1/chat/completions": (with_chat, GPT),
    "/v1/responses": (with_responses, GPT),
    "/v1/messages": (with_messages, CLAUDE),
    "openrouter": (with_openrouter, ("-m", "openrouter/openai/gpt-4o")),
    "/v1beta/models": (with_gemini, ("-m", "gemini/gemini-2.5-flash")),
}


def collected(desk: Desk, *args: str, steps: int = 20) -> list[Done]:
    """Resume until the run ends with another code than 6; returns what each process said."""
    told = []
    for _ in range(steps):
        told.append(desk("resume", "a", *args))
        if told[-1].code != 6:
            return told
    raise AssertionError(told[-1].err)


def records(desk: Desk, kind: str) -> list[dict[str, Any]]:
    return [record for record in read_session(desk.session()) if record["kind"] == kind]


def submitted(provider: Provider) -> Counter[str]:
    return Counter(provider.batches.asked)


@pytest.mark.parametrize("path", WAYS)
def test_each_step_of_a_run_is_a_batch_at_half_the_price(cdo: Desk, provider: Provider, path: str) -> None:
    way, model = WAYS[path]
    desk = way(cdo, provider)
    desk(*TWO_TURNS, *model, "--session", "at-once", QUESTION).ok()
    provider.reset()
    first = desk(*TWO_TURNS, "--batch-api", *model, *A, QUESTION).failed(6)
    assert "asked through the batch endpoint, at 50% of the price" in first.err
    assert "3 calls wait at" in first.err and "`cdo resume a` collects" in first.err
    assert [batch.path for batch in provider.batches.batches] == [path.replace("openrouter", "/v1/chat/completions")]
    provider.batches.going = True
    still = desk("resume", "a").failed(6)
    for command in (("list",), ("list", "--status", "waiting"), ("show", "a"), ("doctor",)):
        assert "waiting" in desk(*command).ok().out
    assert "3 calls wait at" in desk("show", "a").out and "a: 3 calls wait at" in desk("doctor").out
    status = "running" if path == "/v1beta/models" else "in_progress"
    assert f"{status}: 0 of 3 done" in still.err and len(provider.batches.batches) == 1
    provider.batches.going = False
    steps = collected(desk)
    assert steps[-1].code == 0
    names = ["t1-synthesis", "t2-synthesis", "final"]
    assert set(names) < set(submitted(provider)) and set(submitted(provider).values()) == {1}
    assert len(provider.batches.batches) == len(steps)
    assert not provider.calls  # nothing was asked at once
    asked = exchanges(desk.session())
    assert len(asked) == len(submitted(provider)) and all(record["batch"] for record in asked)
    once = {record["call"]: record for record in exchanges(desk.session("at-once"))}
    halved = [(record, once[record["call"]]) for record in asked if record["call"] in once]
    same = [(ours["cost"], other["cost"]) for ours, other in halved if ours["usage"] == other["usage"]]
    assert len(same) >= 6 and all(ours == pytest.approx(other / 2) for ours, other in same)
    assert len(records(desk, "batch-ended")) == len(provider.batches.batches)
    before = len(provider.requests)
    (desk.session() / "FINAL.md").unlink()
    desk("resume", "a").ok()
    assert len(provider.requests) == before


# When a provider holds its answer back: to the file of requests, before it makes the batch, or after that.
KILLS = pytest.mark.parametrize(
    ("path", "moment"),
    [
        ("/v1/responses", "files"),
        ("/v1/responses", "before"),
        ("/v1/responses", "after"),
        ("/v1/messages", "before"),
        ("/v1/messages", "after"),
        ("openrouter", "after"),
        ("/v1beta/models", "before"),
        ("/v1beta/models", "after"),
    ],
)


def killed_at(desk: Desk, provider: Provider, moment: str, *command: str) -> bool:
    """Kill a command while it submits a batch, which goes on; return whether the provider had made it."""
    batches = provider.batches
    batches.stall, batches.going = moment, True
    process = desk.start(*command)
    try:
        within(lambda: batches.held)
    finally:
        kill_group(process.pid)
        process.communicate()
    assert len(batches.batches) == (moment == "after")
    batches.stall = ""
    return bool(batches.batches)


@KILLS
def test_a_kill_at_any_moment_of_a_submission_submits_nothing_twice(
    cdo: Desk, provider: Provider, path: str, moment: str
) -> None:
    way, model = WAYS[path]
    desk, batches = way(cdo, provider), provider.batches
    made = killed_at(desk, provider, moment, *TWO_TURNS, "--batch-api", *model, *A, QUESTION)
    assert len(records(desk, "batch-intent")) == 1 and not records(desk, "batch-sent")
    again = desk("resume", "a").failed(6)
    if made and path in ("/v1/messages", "openrouter"):  # its ids can be read only when it has ended
        assert "may be it" in again.err
        batches.going = False
        again = desk("resume", "a").failed(6)
    assert ("found again" in again.err) == made
    batches.going = False
    assert collected(desk)[-1].code == 0
    assert set(submitted(provider).values()) == {1}
    assert len(records(desk, "batch-void")) == (not made)


def within(true: Callable[[], object], seconds: float = 30.0) -> None:
    limit = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("path", "end"),
    [
        ("/v1/responses", "expired"),
        ("/v1/responses", "cancelled"),
        ("/v1/responses", "failed"),
        ("/v1/messages", "expired"),
        ("/v1/messages", "cancelled"),
        ("openrouter", "expired"),
        ("/v1beta/models", "expired"),
        ("/v1beta/models", "cancelled"),
        ("/v1beta/models", "failed"),
    ],
)
def test_requests_that_a_batch_did_not_come_to_go_into_the_next_one(
    cdo: Desk, provider: Provider, path: str, end: str
) -> None:
    way, model = WAYS[path]
    desk, batches = way(cdo, provider), provider.batches
    batches.end, batches.answered = end, 1
    desk("think", "--width", "3", "--turns", "1", "--no-git", "--batch-api", *model, *A, QUESTION).failed(6)
    second = desk("resume", "a")
    asked = submitted(provider)
    if end == "failed":  # the provider's reason is final: nothing is submitted again
        second.failed(7)
        assert "The model cannot be batched." in second.err and set(asked.values()) == {1}
        return
    second.failed(6)
    left = 3 if (path, end) == ("/v1beta/models", "expired") else 2  # Gemini then has no results at all
    assert f"{left} of 3 calls of the batch" in second.err and "go into the next batch" in second.err
    assert sorted(asked.values()) == [*[1] * (3 - left), *[2] * left]
    faults = [record for record in exchanges(desk.session()) if "fault" in record]
    assert [record["fault"]["kind"] for record in faults] == ["overloaded"] * left
    assert not any("usage" in record for record in faults)  # which cost nothing
    batches.end, batches.answered = "completed", None
    assert collected(desk)[-1].code == 0


def hostile(provider: Provider, path: str) -> None:
    """Let the provider send what it should not: for each voice something else, and results that belong to nobody."""
    batches, gemini = provider.batches, path == "/v1beta/models"

    def under(ident: str, result: dict[str, Any]) -> dict[str, Any]:
        return {**result, **({"metadata": {"key": ident}} if gemini else {"custom_id": ident})}

    def spoil(call: str, result: dict[str, Any]) -> dict[str, Any] | None:
        ident = result["metadata"]["key"] if gemini else result["custom_id"]
        match call:
            case "t1-architect":  # is answered again, by another
                other = json.loads(json.dumps(result).replace("architect", "intruder"))
                batches.extra.append(json.dumps(under(ident, other)))
            case "t1-critic":  # claims to have used what nobody can
                absurd(path, result)
            case "t1-systems-thinker":  # answers under the id of nobody
                foreign = [under(f"{ident[:-16]}{'0' * 16}", result), under("someone-else", result)]
                batches.extra += [*map(json.dumps, foreign), "[]", "7" if path in IN_ONE_BODY else "{broken"]
                return None
            case "t1-pragmatist":
                return under(ident, {"response": "x", "result": 7, "error": None})
            case "t1-risk-analyst":
                return under(ident, BUSY.get(path, BUSY["/v1/responses"]))
        return result

    batches.spoil = spoil


IN_ONE_BODY = ("openrouter", "/v1beta/models")  # where all results come as one JSON
BUSY: dict[str, dict[str, Any]] = {  # what a result says of a request that was turned away
    "/v1/responses": {
        "response": {"status_code": 429, "body": {"error": {"code": "rate_limit_exceeded", "message": "Slow down."}}},
        "error": None,
    },
    "/v1/messages": {
        "result": {
            "type": "errored",
            "error": {"type": "error", "error": {"type": "rate_limit_error", "message": "Slow down."}},
        }
    },
    "/v1beta/models": {"error": {"code": 8, "message": "Slow down."}},
}


def absurd(path: str, result: dict[str, Any]) -> None:
    """Put a usage into a result that nobody can have had."""
    many, less = 10**18, -5
    if path == "/v1beta/models":
        result["response"]["usageMetadata"] = {"promptTokenCount": many, "candidatesTokenCount": less}
        return
    answer = result["result"]["message"] if path == "/v1/messages" else result["response"]["body"]
    answer["usage"] = {
        "input_tokens": many, "output_tokens": less, "prompt_tokens": many, "completion_tokens": less,
    }  # fmt: skip


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "openrouter", "/v1beta/models"])
def test_results_that_belong_to_no_request_credit_no_voice(cdo: Desk, provider: Provider, path: str) -> None:
    way, model = WAYS[path]
    desk = way(cdo, provider)
    hostile(provider, path)
    deep = ("deep", "--width", "5", "--turns", "1", "--no-git", "--batch-api")
    desk(*deep, *model, *A, QUESTION).failed(6)
    second = desk("resume", "a").failed(6)
    first = {record["call"]: record for record in exchanges(desk.session())}
    assert {call: record.get("fault", {}).get("kind") for call, record in first.items()} == {
        "t1-architect": "malformed", "t1-critic": None, "t1-systems-thinker": "overloaded",
        "t1-pragmatist": "malformed", "t1-risk-analyst": "rate-limited",
    }  # fmt: skip
    assert "answers this request twice" in first["t1-architect"]["fault"]["message"]
    assert first["t1-critic"]["usage"]["measured"] is False and first["t1-critic"]["cost"] < 0.01
    for told in ("2 results for requests that cdo did not make", "2 lines that are no results", "more than once"):
        assert told in second.err
    assert "intruder" not in json.dumps(exchanges(desk.session()))
    asked, others = submitted(provider), set(first) - {"t1-critic"}
    assert asked["t1-critic"] == 1 and {asked[call] for call in others} == {2}
    provider.batches.spoil, provider.batches.extra = None, []
    assert collected(desk)[-1].code == 0
    replies = {record["call"] for record in exchanges(desk.session()) if "response" in record}
    assert set(first) < replies


def test_caps_hold_for_what_waits_at_a_provider(cdo: Desk, provider: Provider) -> None:
    """What is submitted counts with the most that it can use, in every process until its answers are there."""
    desk, batches = with_responses(cdo, provider), provider.batches
    batches.going = True
    desk(*TWO_TURNS, "--batch-api", "--max-calls", "2", *GPT, *A, QUESTION).failed(6)
    assert len(batches.asked) == 2
    desk("resume", "a").failed(6)
    assert len(batches.asked) == 2  # the third call would be one too many, whatever the others cost
    desk("resume", "a", "--max-calls", "3").failed(6)
    assert len(batches.asked) == 3
    batches.going = False
    assert collected(desk)[-1].code == 5 and len(batches.asked) == 3
    assert collected(desk, "--max-calls", "50")[-1].code == 0


def test_a_refused_batch_is_told_and_a_lost_key_submits_nothing(cdo: Desk, provider: Provider) -> None:
    desk, batches = with_responses(cdo, provider), provider.batches
    batches.refuse = (401, "Incorrect API key provided")
    told = desk(*TWO_TURNS, "--batch-api", *GPT, *A, QUESTION).failed(7)
    assert "openai does not take the batch of 3 calls: HTTP 401" in told.err and not batches.batches
    batches.refuse = None
    desk("resume", "a").failed(6)
    kept, batches.batches = batches.batches, []  # as another organisation sees it
    told = desk("resume", "a").failed(7)
    assert "openai does not say how the batch batch_1" in told.err and "Nothing is submitted twice" in told.err
    assert not batches.batches
    batches.batches = kept
    assert collected(desk)[-1].code == 0


def test_models_without_a_batch_endpoint_are_asked_at_once(cdo: Desk, provider: Provider) -> None:
    desk = with_chat(cdo, provider).having(GROQ_API_KEY=KEY, GROQ_API_BASE=f"{provider.url}/v1")
    told = desk("quick", "--batch-api", "-m", "groq/llama-3.3-70b-versatile", *A, QUESTION).failed(4)
    assert "cdo knows no batch endpoint of groq/llama-3.3-70b-versatile" in told.err
    two = ("-m", "openai/gpt-4.1", "-m", "groq/llama-3.3-70b-versatile")
    told = desk("think", "--width", "2-2", "--turns", "1", "--batch-api", *two, *A, QUESTION).failed(6)
    assert "no batch endpoint is known for groq/llama-3.3-70b-versatile: asked at once, at the full price" in told.err
    assert len(provider.calls) == 1 and len(provider.batches.asked) == 1
    moved = desk.having(OPENAI_BASE_URL="http://127.0.0.1:9/v1")
    assert "is at http://127.0.0.1:9/v1 now" in moved("resume", "a").failed(8).err  # the key stays here
    assert collected(desk, "--no-batch-api")[-1].code == 0
    assert len(provider.batches.asked) == 1 and len(provider.calls) > 2


def test_wait_stays_until_the_end(cdo: Desk, provider: Provider) -> None:
    desk = with_responses(cdo, provider)
    told = desk("quick", "--batch-api", "--wait", "--no-git", *GPT, *A, QUESTION).ok()
    assert "asked again in 5 s" in told.err and not provider.calls and set(submitted(provider).values()) == {1}


def test_the_vendors_own_clients_can_use_the_loopback_s_batches(provider: Provider) -> None:
    """So that what cdo is tested against answers as the vendors do."""
    with openai.OpenAI(base_url=f"{provider.url}/v1", api_key=KEY) as gpt:
        body = {"model": "gpt-x", "messages": [{"role": "user", "content": "Hello"}]}
        line = {"custom_id": "one", "method": "POST", "url": "/v1/chat/completions", "body": body}
        file = gpt.files.create(file=("x.jsonl", io.BytesIO(json.dumps(line).encode())), purpose="batch")
        made = gpt.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"cdo": "x"}
        )
        assert made.status == "in_progress"
        for _ in range(3):
            gpt.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        assert [batch.id for batch in gpt.batches.list()] == ["batch_4", "batch_3", "batch_2", "batch_1"]
        ended = gpt.batches.retrieve(made.id)
        assert (ended.status, ended.metadata) == ("completed", {"cdo": "x"}) and ended.output_file_id
        result = json.loads(gpt.files.content(ended.output_file_id).text)
        assert result["custom_id"] == "one" and result["response"]["status_code"] == 200

    with anthropic.Anthropic(base_url=provider.url, api_key=KEY) as claude:
        params: Any = {"model": "claude-x", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}]}
        batch = claude.messages.batches.create(requests=[{"custom_id": "two", "params": params}])
        assert claude.messages.batches.retrieve(batch.id).processing_status == "ended"
        assert [item.id for item in claude.messages.batches.list()] == [batch.id]
        (item,) = claude.messages.batches.results(batch.id)
        assert item.custom_id == "two" and item.result.type == "succeeded"

    options = genai.types.HttpOptions(base_url=provider.url, api_version="v1beta")
    with genai.Client(api_key=KEY, http_options=options) as gemini:
        asked: Any = {
            "contents": "Hello",
            "metadata": {"key": "three"},
            "config": {"system_instruction": "Be brief."},
        }
        for name in ("first", "second", "third"):
            job = gemini.batches.create(model="gemini-x", src=[asked], config={"display_name": name})
            assert job.state == genai.types.JobState.JOB_STATE_RUNNING
        assert [item.display_name for item in gemini.batches.list()] == ["first", "second", "third"]
        whole = gemini.batches.get(name=str(job.name))
        assert whole.state == genai.types.JobState.JOB_STATE_SUCCEEDED and whole.dest and whole.dest.inlined_responses
        (inlined,) = whole.dest.inlined_responses
        assert inlined.metadata == {"key": "three"} and inlined.response and inlined.response.text
        assert inlined.response.usage_metadata and inlined.response.usage_metadata.thoughts_token_count


ITEMS = "".join(json.dumps({"id": f"q{number}", "question": f"Should we do {number}?"}) + "\n" for number in range(4))
FILE = ("batch", "q.jsonl", "--preset", "quick", "--batch-api")


def item_records(desk: Desk, kind: str) -> list[dict[str, Any]]:
    folder = desk.path / "tmp" / "batch-q"
    found = [read_session(folder / f"cdo-q{number}") for number in range(4)]
    return [record for records in found for record in records if record["kind"] == kind]


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "openrouter", "/v1beta/models"])
def test_all_items_of_a_file_leave_in_one_batch(cdo: Desk, provider: Provider, path: str) -> None:
    way, model = WAYS[path]
    desk, batches = way(cdo, provider), provider.batches
    desk.write("q.jsonl", ITEMS)
    batches.going = True
    told = desk(*FILE, *model).failed(6)
    assert len(batches.batches) == 1 and len(batches.asked) == 8
    vendor = model[1].partition("/")[0]
    assert f"4 items wait for the batch {batches.batches[0].id} at {vendor}" in told.err
    assert "cdo batch resume q" in told.err
    assert "4  waiting for provider batches" in desk("batch", "status", "q").ok().out
    waits = "q: 4 of 4 items open, calls wait at a provider; `cdo batch resume q` goes on"
    assert desk("doctor", "--json").ok().json["batches"] == waits
    alone = desk("resume", "q0", "--out", "tmp/batch-q").failed(8)
    assert "is an item of the batch q" in alone.err
    still = desk(*FILE, *model).failed(6)
    assert ": 0 of 8 done" in still.err and len(batches.batches) == 1
    spread = desk(*FILE, *model, "--cluster", "local").failed(2)
    assert "--batch-api and --cluster exclude each other" in spread.err
    merged = desk("batch", "merge", "all", "q").failed(8)
    assert "wait for answers of a provider" in merged.err
    batches.going = False
    done = desk("batch", "resume", "q", "--wait", "--json").ok().json
    assert (done["done"], done["open"]) == (4, 0) and set(submitted(provider).values()) == {4}
    assert not provider.calls and len(batches.batches) == 3  # voices, syntheses, answers
    costs = [record["cost"] for record in item_records(desk, "exchange")]
    assert len(costs) == 16 and done["cost"] == pytest.approx(sum(costs))
    before = len(provider.requests)
    desk(*FILE, *model).ok()
    assert len(provider.requests) == before


@pytest.mark.parametrize(
    ("path", "end"),
    [
        ("/v1/responses", "cancelled"),
        ("/v1/messages", "cancelled"),
        ("/v1/messages", "expired"),
        ("openrouter", "expired"),
        ("/v1beta/models", "cancelled"),
    ],
)
def test_what_a_batch_of_items_did_not_come_to_goes_into_the_next_one(
    cdo: Desk, provider: Provider, path: str, end: str
) -> None:
    """The first batch ends after three of its eight requests; one of the three gets an error."""
    way, model = WAYS[path]
    desk, batches, turned_away = way(cdo, provider), provider.batches, list[str]()
    desk.write("q.jsonl", ITEMS)

    def spoil(call: str, result: dict[str, Any]) -> dict[str, Any]:
        if turned_away:
            return result
        turned_away.append(call)
        named: dict[str, Any] = {key: result[key] for key in ("custom_id", "metadata") if key in result}
        return {**named, **BUSY.get(path, BUSY["/v1/responses"])}

    batches.end, batches.answered, batches.spoil = end, 3, spoil
    desk(*FILE, *model).failed(6)
    told = desk("batch", "resume", "q").failed(6).err
    assert told.count("6 of 8 calls of the batch") == 1 and "go into the next batch" in told
    assert [len(batch.requests) for batch in batches.batches] == [8, 6]
    faults = [record for record in item_records(desk, "exchange") if "fault" in record]
    kinds = Counter(record["fault"]["kind"] for record in faults)
    assert kinds == {"overloaded": 5, "rate-limited": 1} and not any("usage" in record for record in faults)
    batches.end, batches.answered = "completed", None
    done = desk("batch", "resume", "q", "--wait", "--json").ok().json
    assert (done["done"], done["failed"]) == (4, 0) and not provider.calls
    assert len(item_records(desk, "exchange")) == 16 + 6 == len(batches.asked)


@KILLS
def test_a_kill_of_a_batch_of_items_submits_nothing_twice(
    cdo: Desk, provider: Provider, path: str, moment: str
) -> None:
    way, model = WAYS[path]
    desk, batches = way(cdo, provider), provider.batches
    desk.write("q.jsonl", ITEMS)
    made = killed_at(desk, provider, moment, *FILE, *model)
    assert len(item_records(desk, "batch-intent")) == 4 and not item_records(desk, "batch-sent")
    again, found = desk("batch", "resume", "q").failed(6), f"was found again at {model[1].partition('/')[0]}"
    assert len(batches.batches) == 1 and len(batches.asked) == 8
    late = made and path in ("/v1/messages", "openrouter")  # its ids can be read only when it has ended
    assert ("may be it" in again.err) == late and again.err.count(found) == (made and not late)
    batches.going = False
    ended = desk("batch", "resume", "q", "--wait", "--json").ok()
    assert ended.json["done"] == 4 and ended.err.count(found) == late
    assert set(submitted(provider).values()) == {4}


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "openrouter", "/v1beta/models"])
def test_items_whose_answers_cannot_be_had_now_have_not_failed(cdo: Desk, provider: Provider, path: str) -> None:
    way, model = WAYS[path]
    desk, batches = way(cdo, provider), provider.batches
    desk.write("q.jsonl", ITEMS)
    desk(*FILE, *model).failed(6)
    batches.silent = (503, "Try later.")
    told = desk("batch", "resume", "q").failed(6)
    assert "how it stands cannot be asked now: HTTP 503: Try later" in told.err
    batches.silent = (401, "No such key.")
    told = desk("batch", "resume", "q").failed(7)
    assert "does not say how the batch" in told.err and "`cdo batch resume q` asks again" in told.err
    batches.silent = None
    if path == "/v1/messages":
        moved = desk.having(ANTHROPIC_BASE_URL="http://127.0.0.1:9")
        assert "is at http://127.0.0.1:9" in moved("batch", "resume", "q").failed(8).err
    status = desk("batch", "status", "q", "--json").ok().json
    assert (status["open"], status["waiting"], status["failed"]) == (4, 4, 0)
    assert desk("batch", "resume", "q", "--wait", "--json").ok().json["done"] == 4
    assert set(submitted(provider).values()) == {4} and not provider.calls


def test_one_run_stays_while_the_provider_cannot_be_asked(cdo: Desk, provider: Provider) -> None:
    desk, batches = with_responses(cdo, provider), provider.batches
    desk("quick", "--batch-api", "--no-git", *GPT, *A, QUESTION).failed(6)
    batches.silent = (503, "Try later.")
    assert "since" in desk("resume", "a").failed(6).err
    process = desk.start("resume", "a", "--wait")
    within(lambda: sum(info.method == "GET" for info in provider.requests) >= 3)
    batches.silent = None
    finish(process).ok()
    assert set(submitted(provider).values()) == {1}


def test_a_refused_batch_of_items_waits_nowhere(cdo: Desk, provider: Provider) -> None:
    desk, batches = with_responses(cdo, provider), provider.batches
    desk.write("q.jsonl", ITEMS)
    batches.refuse = (401, "Incorrect API key provided")
    told = desk(*FILE, *GPT).failed(7)
    assert "Nothing of it was paid. `cdo batch resume q` submits it again." in told.err
    assert desk("batch", "status", "q", "--json").ok().json["waiting"] == 0
    batches.refuse = None
    desk("batch", "resume", "q").failed(6)
    assert len(batches.batches) == 1


def test_failed_items_that_were_submitted_again_say_how_they_are_collected(cdo: Desk, provider: Provider) -> None:
    desk, batches = with_responses(cdo, provider), provider.batches
    desk.write("q.jsonl", ITEMS)
    batches.end = "failed"
    desk(*FILE, *GPT).failed(6)
    desk("batch", "resume", "q").failed(9)
    batches.end = "completed"
    again = "`cdo batch resume q --retry-failed`"
    assert f"{again} collects" in desk("batch", "resume", "q", "--retry-failed").failed(6).err
    assert f"q: 0 of 4 items open, calls wait at a provider; {again} goes on" in desk("doctor").ok().out
    status = desk("batch", "status", "q").ok().out
    assert "4  waiting for provider batches" in status and f"{again} goes on." in status
    assert desk("batch", "resume", "q", "--retry-failed", "--wait", "--json").ok().json["done"] == 4


def test_a_cap_holds_over_all_items_that_wait(cdo: Desk, provider: Provider) -> None:
    desk, batches = with_responses(cdo, provider), provider.batches
    desk.write("q.jsonl", ITEMS)
    batches.going = True
    desk(*FILE, *GPT, "--max-calls", "5").failed(6)
    desk("batch", "resume", "q").failed(6)
    assert len(batches.asked) == 5
    batches.going = False
    for _ in range(4):
        ended = desk("batch", "resume", "q")
        if ended.code != 6:
            break
    assert ended.code == 5 and len(batches.asked) == 5 and not provider.calls
