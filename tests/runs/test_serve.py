"""`cdo serve` from outside: the vendor's own client, a real server process, a provider that counts."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from tests.support.harness import Place, finish, kill_group, wait_for
from tests.support.provider import Fault, Provider

ASK: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "We run one service."},
    {"role": "assistant", "content": "I see."},
    {"role": "user", "content": [{"type": "text", "text": "Should we split it?"}]},
    {"role": "assistant", "content": None, "tool_calls": []},
    {"role": "tool", "tool_call_id": "c1", "content": "42 nodes"},
]


class Served:
    """A server process, and where it listens."""

    def __init__(self, place: Place, model: str, *args: str) -> None:
        self.place = place
        self.process = place.start("serve", "--json", *args, env={"CDO_MODEL": model})
        assert self.process.stdout
        told = json.loads(self.process.stdout.readline())
        self.url, self.key = told["url"], told["key"]

    def client(self, **more: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url, api_key=self.key, max_retries=0, timeout=120, **more)

    @contextlib.contextmanager
    def streaming(self) -> Iterator[http.client.HTTPResponse]:
        """Ask for a stream; yield the answer as it comes, and close its connection in the end."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=60)
        with contextlib.closing(connection):
            body = json.dumps({"model": "cdo/quick", "messages": ASK, "stream": True})
            connection.request("POST", "/v1/chat/completions", body, {"Authorization": f"Bearer {self.key}"})
            with contextlib.closing(connection.getresponse()) as answer:
                yield answer

    def ask(self, body: Any, headers: dict[str, str] | None = None, path: str = "/v1/chat/completions") -> Any:
        """Send a body as it is; return the status and the answer's JSON."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=60)
        with contextlib.closing(connection):
            given = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json", **(headers or {})}
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request("GET" if body is None else "POST", path, None if body is None else data, given)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())


@contextlib.contextmanager
def served(path: Path, *args: str, model: str = "openai/bench") -> Iterator[tuple[Served, Provider]]:
    with Provider() as provider:
        server = Served(Place(path, provider.url, {"XDG_DATA_HOME": str(path / "data")}), model, *args)
        try:
            yield server, provider
        finally:
            kill_group(server.process.pid)
            server.process.communicate()


def test_a_client_of_openai_asks_a_preset_as_a_model(tmp_path: Path) -> None:
    with served(tmp_path, "--port", "0", "--out", "kept") as (server, provider), server.client() as client:
        assert {"cdo/quick", "cdo/think", "cdo/deep"} <= {model.id for model in client.models.list()}
        assert client.models.retrieve("cdo/quick").id == "cdo/quick"
        assert server.ask(None, path="/v1/models/gpt-4o") == (404, server.ask({"model": "gpt-4o"})[1])
        whole = client.chat.completions.create(model="cdo/quick", messages=ASK)
        (session,) = (tmp_path / "kept").glob("cdo-*")
        final = (session / "FINAL.md").read_text()
        assert whole.choices[0].message.content and whole.choices[0].message.content in final
        assert whole.choices[0].finish_reason == "stop" and whole.usage
        spent = server.place.cdo("show", session.name[4:], "--out", "kept", "--json").ok().json
        assert whole.usage.total_tokens == spent["tokens"] > 0
        question = (session / "00-input.md").read_text()
        assert question.startswith("Should we split it?") and "user:\nWe run one service." in question
        assert question.endswith("after this question, oldest first:\n\ntool:\n42 nodes\n")
        asked = len(provider.calls)
        pieces = list(
            client.chat.completions.create(
                model="cdo/quick", messages=ASK, stream=True, stream_options={"include_usage": True}
            )
        )
        text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
        assert text.startswith("#") and pieces[-1].usage and pieces[-1].usage.total_tokens > 0
        assert len(provider.calls) == 2 * asked


def test_progress_comes_as_comments_before_the_answer(tmp_path: Path) -> None:
    with served(tmp_path) as (server, provider):
        provider.hold("t1-synthesis")
        with server.streaming() as answer:
            seen = b""
            while b"answered" not in seen:
                seen += answer.readline()
            assert seen.startswith(b": ") and b"data:" not in seen
            provider.release()
            rest = answer.read().decode()
        assert rest.rstrip().endswith("data: [DONE]") and '"content": "#' in rest


@pytest.mark.parametrize("way", ["client", "server"])
def test_who_goes_away_stops_the_run_which_a_person_can_resume(way: str, tmp_path: Path) -> None:
    with served(tmp_path) as (server, provider):
        provider.hold("t1-synthesis")
        with server.streaming() as answer:
            answer.readline()
            wait_for(lambda: provider.named("t1-synthesis"))
            if way == "server":
                server.process.send_signal(signal.SIGINT)
                assert finish(server.process, timeout=30).code == 130
        (session,) = (tmp_path / "tmp").glob("cdo-*")
        name = session.name.removeprefix("cdo-")
        wait_for(lambda: server.place.cdo("show", name, "--json").json["status"] != "running", timeout=30, every=0.5)
        provider.release()
        before = [info.call for info in provider.calls]
        server.place.resume(name=name).ok()
        assert [info.call for info in provider.calls[len(before) :]] == ["t1-synthesis", "final"]


def test_a_client_cannot_spend_more_than_the_person_allows(tmp_path: Path) -> None:
    with served(tmp_path, "--max-budget", "0.0000001", model="openai/gpt-4o") as (server, provider):
        status, said = server.ask({"model": "cdo/deep", "messages": ASK, "budget": 100})
        assert status == 400 and "`cdo serve --max-budget USD`" in said["error"]["message"], said
        assert not provider.calls


def test_a_run_that_fails_is_not_begun_again_by_its_client(tmp_path: Path) -> None:
    with served(tmp_path) as (server, provider):
        provider.faults = [Fault(status=401)]
        with server.client() as client, pytest.raises(openai.InternalServerError, match="refuses access"):
            client.with_options(max_retries=2).chat.completions.create(model="cdo/quick", messages=ASK)
        assert len(list((tmp_path / "tmp").glob("cdo-*"))) == 1


WRONG = [
    (b"{", 400, "not JSON"),
    (b"[" * 100_000, 400, "not JSON"),
    ([], 400, "not a JSON object"),
    ({"model": "cdo/none", "messages": ASK}, 404, "cdo/quick"),
    ({"model": "../quick", "messages": ASK}, 404, "not a model here"),
    ({"model": 7, "messages": ASK}, 404, "not a model here"),
    ({"model": "cdo/quick", "messages": "x"}, 400, "not a list"),
    ({"model": "cdo/quick", "messages": [{"role": "user", "content": 7}]}, 400, "neither"),
    ({"model": "cdo/quick", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "image_url"),
    ({"model": "cdo/quick", "messages": [{"role": "system", "content": "x"}]}, 400, "no message of a user"),
    ({"model": "cdo/quick", "messages": ASK, "n": 3}, 400, "`n` can only be 1"),
    ({"model": "cdo/quick", "messages": ASK, "tool_choice": "required"}, 400, "tool_choice"),
    ({"model": "cdo/quick", "messages": ASK, "response_format": {"type": "json_object"}}, 400, "Markdown"),
    ({"model": "cdo/quick", "messages": ASK, "logprobs": True}, 400, "states a confidence"),
    ({"model": "cdo/quick", "messages": [{"role": "user", "content": "x" * 3_000_000}]}, 413, ""),
]


def test_what_is_wrong_is_refused_and_starts_nothing(tmp_path: Path) -> None:
    with served(tmp_path) as (server, provider):
        for body, status, words in WRONG:
            found, said = server.ask(body)
            assert (status == 404) == (said["error"]["code"] == "model_not_found")
            assert found == status and words in said["error"]["message"], (body if len(str(body)) < 300 else "", said)
        good = {"model": "cdo/quick", "messages": ASK}
        for headers in ({"Authorization": ""}, {"Authorization": "Bearer x"}, {"Authorization": "Bearer \u00e9"}):
            assert server.ask(good, headers)[0] == 401
        port = urlsplit(server.url).port
        for headers in (
            {"Host": "evil.example"}, {"Host": f"evil.example:{port}"}, {"Host": "127.0.0.1:1"}, {"Host": "[::1"},
            {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "http://127.0.0.1:1"},
        ):  # fmt: skip
            assert server.ask(good, headers)[0] in (400, 403), headers
        found, said = server.ask(good, path="/v1/responses")
        assert found == 404 and "/v1/chat/completions" in said["error"]["message"]
        assert server.ask(None, path="/v1/models", headers={"Origin": f"http://localhost:{port}"})[0] == 200
        time.sleep(0.2)
        assert not provider.calls and not list(tmp_path.glob("tmp/cdo-*"))
