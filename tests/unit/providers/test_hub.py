"""Files of the hub, fetched from a hub and a storage on loopback that answer as the real ones do."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cdo.core.errors import CdoError, ConfigError, NoModel
from cdo.providers import hub as hubs
from cdo.providers.hub import Hub, HubFile
from tests.support.hub import LoopbackHub, commit_of, loopback_hub

DATA = bytes(range(256)) * 400
SOURCE = HubFile("org/repo-GGUF", "Q4/model.gguf")
TOKEN = "hf_tokenOfThePerson0123456789"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    monkeypatch.setattr(hubs, "PAUSE", 0.001)
    with loopback_hub() as found:
        found.holds(str(SOURCE), DATA)
        yield found


def fetched(hub: LoopbackHub, place: Path, token: str = "") -> list[tuple[str, int, int]]:
    """Fetch the file into `place`; return what was told on the way."""
    told: list[tuple[str, int, int]] = []

    async def body() -> None:
        client = Hub({"HF_ENDPOINT": hub.url, "HF_TOKEN": token})
        await client.fetch(SOURCE, await client.stated(SOURCE), place / "model.gguf", lambda *row: told.append(row))

    asyncio.run(body())
    return told


def refused(hub: LoopbackHub, place: Path, token: str = "") -> CdoError:
    with pytest.raises((NoModel, ConfigError)) as caught:
        fetched(hub, place, token)
    assert TOKEN not in caught.value.message + caught.value.hint
    assert not (place / "model.gguf").exists()
    return caught.value


def parts(place: Path) -> list[bytes]:
    return [path.read_bytes() for path in place.glob(".*.part")]


def test_a_file_is_fetched_by_its_commit_and_the_token_stays_with_the_hub(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.private = TOKEN
    told = fetched(hub, tmp_path, TOKEN)
    assert (tmp_path / "model.gguf").read_bytes() == DATA and parts(tmp_path) == []
    assert [asked.method for asked in hub.asked] == ["HEAD", "GET", "GET"]
    assert [asked.token for asked in hub.asked] == [f"Bearer {TOKEN}", f"Bearer {TOKEN}", ""]
    assert f"/resolve/{commit_of(DATA)}/Q4/model.gguf" in hub.asked[1].path
    assert told[-1] == ("checking", len(DATA), len(DATA)) and ("fetching", len(DATA), len(DATA)) in told


def test_a_renamed_repository_is_followed_within_the_hub(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.renamed = True
    fetched(hub, tmp_path, TOKEN)
    assert (tmp_path / "model.gguf").read_bytes() == DATA
    assert [asked.token for asked in hub.to_storage()] == [""]


def test_a_cut_connection_is_resumed_at_once_and_by_a_later_process(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.cut, hub.cuts = 30_000, 2
    fetched(hub, tmp_path)
    assert (tmp_path / "model.gguf").read_bytes() == DATA
    assert [asked.range for asked in hub.to_storage()] == ["", "bytes=30000-", "bytes=60000-"]

    (tmp_path / "model.gguf").unlink()
    hub.asked.clear()
    hub.cut, hub.cuts = 40_000, 1
    monkeypatch.setattr(hubs, "TRIES", 1)
    error = refused(hub, tmp_path)
    assert "did not answer" in error.message and "goes on from there" in error.hint
    assert parts(tmp_path) == [DATA[:40_000]]
    fetched(hub, tmp_path)
    assert (tmp_path / "model.gguf").read_bytes() == DATA and parts(tmp_path) == []
    assert [asked.range for asked in hub.to_storage()] == ["", "bytes=40000-"]


def test_two_versions_never_mix(hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.cut, hub.cuts = 40_000, 1
    monkeypatch.setattr(hubs, "TRIES", 1)
    refused(hub, tmp_path)
    newer = DATA[::-1]
    hub.holds(str(SOURCE), newer)
    fetched(hub, tmp_path)
    assert (tmp_path / "model.gguf").read_bytes() == newer and parts(tmp_path) == []
    assert [asked.range for asked in hub.to_storage()] == ["", ""]


def test_a_storage_that_ignores_the_range_sends_all_again(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.cut, hub.cuts, hub.deaf = 40_000, 1, True
    fetched(hub, tmp_path)
    assert (tmp_path / "model.gguf").read_bytes() == DATA
    assert [asked.range for asked in hub.to_storage()] == ["", "bytes=40000-"]


def test_a_signed_address_that_ran_out_is_asked_for_again(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.expired = 2
    fetched(hub, tmp_path)
    assert (tmp_path / "model.gguf").read_bytes() == DATA and len(hub.to_storage()) == 3


@pytest.mark.parametrize("lies", [DATA[::-1], DATA + b"more", DATA[:-1]], ids=["other", "longer", "shorter"])
def test_content_with_another_hash_is_never_kept(hub: LoopbackHub, tmp_path: Path, lies: bytes) -> None:
    hub.lies = lies
    error = refused(hub, tmp_path)
    assert "\n" not in error.message + error.hint
    if len(lies) == len(DATA):
        assert "is not the file that the hub states" in error.message and parts(tmp_path) == []
        assert hashlib.sha256(lies).hexdigest()[:16] in error.message
    hub.lies = None
    fetched(hub, tmp_path)
    assert (tmp_path / "model.gguf").read_bytes() == DATA


@pytest.mark.parametrize(
    ("error", "token", "message", "hint"),
    [
        ((401, "RepoNotFound"), "", "shows no repository org/repo-GGUF", "HF_TOKEN for a private one"),
        ((401, ""), TOKEN, "shows no repository", "HF_TOKEN may not read it"),
        ((403, "GatedRepo"), TOKEN, "only after its license was accepted", "Accept it on "),
        ((401, "GatedRepo"), "", "only after its license was accepted", "set HF_TOKEN"),
        ((404, "EntryNotFound"), "", "has no file Q4/model.gguf", "/tree/main"),
        ((404, "RepoNotFound"), TOKEN, "shows no repository", "Check the name"),
        ((503, ""), "", "did not answer (status 503)", "try again"),
        ((418, ""), "", "status 418", "HF_ENDPOINT"),
    ],
)
def test_a_refusal_says_why_and_what_to_do(
    hub: LoopbackHub, tmp_path: Path, error: tuple[int, str], token: str, message: str, hint: str
) -> None:
    hub.error = error
    told = refused(hub, tmp_path, token)
    assert message in told.message and hint in told.hint
    assert len(hub.asked) == (hubs.LOOKS if error[0] == 503 else 1), "only passing faults are tried again"


def test_a_hub_that_states_no_hash_or_is_not_there(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.states = False
    assert "does not state the hash" in refused(hub, tmp_path).message
    hub.url = "http://127.0.0.1:9"
    assert "did not answer (Connection refused)" in refused(hub, tmp_path).message


def test_room_is_checked_before_and_a_full_disk_on_the_way_is_told(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=hubs.SPARE + len(DATA) - 1))
        error = refused(hub, tmp_path)
        assert isinstance(error, ConfigError) and "has no room" in error.message and "CDO_MODELS_DIR" in error.hint
        assert hub.to_storage() == []
    full = Path("/dev/full")
    if full.exists():
        stated = asyncio.run(Hub({"HF_ENDPOINT": hub.url}).stated(SOURCE))
        (tmp_path / f".model.gguf.{stated.sha256}.part").symlink_to(full)
        error = refused(hub, tmp_path)
        assert "No space left on device" in error.message and error.hint.startswith("Make room there")


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"HF_ENDPOINT": "hub.example.com"}, "HF_ENDPOINT is not an address"),
        ({"HF_ENDPOINT": "http://user:pw@hub.example.com", "HF_TOKEN": TOKEN}, "http://hub.example.com"),
        ({"HF_ENDPOINT": "http://127.example.com", "HF_TOKEN": TOKEN}, "http://127.example.com"),  # a name
    ],
)
def test_an_address_that_is_none_or_would_get_the_token_in_clear(env: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Hub(env)
    assert message in caught.value.message and "pw" not in caught.value.message and TOKEN not in caught.value.message


def test_a_name_that_is_not_known_is_told_in_words() -> None:
    key: Any = None
    error = aiohttp.ClientConnectorDNSError(key, OSError(-2, "Name or service not known"))
    assert hubs._reason(error) == "its name is not known here"


@pytest.mark.parametrize("location", ["http://elsewhere.example.com/x", "file:///etc/passwd", ""])
def test_no_redirect_leaves_https(location: str) -> None:
    with pytest.raises(NoModel, match="redirects to an address that cdo does not follow"):
        hubs._next("https://huggingface.co/a/b/resolve/main/c.gguf", location)
    assert hubs._next("https://huggingface.co/a", "https://cdn.example.com/b?x=1") == "https://cdn.example.com/b?x=1"
