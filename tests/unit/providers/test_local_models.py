"""The models of the hub on this machine: names, pins, and what `local` means."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdo.content.library import PACKAGED, Library
from cdo.core.errors import ConfigError, NoModel, UsageError
from cdo.providers import hub as hubs
from cdo.providers import local_models, models
from cdo.providers.hub import HubFile
from tests.support.hub import LoopbackHub, loopback_hub

LIBRARY = Library((("packaged", PACKAGED),))
SMALL = "smollm2-1.7b"
OTHER = "hf:someone/other-GGUF/sub/other-Q4_K_M.gguf"
DATA = b"GGUF" + bytes(range(256)) * 40


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """A hub that has every model of the table, and an empty folder for models."""
    monkeypatch.setenv("CDO_MODELS_DIR", str(tmp_path / "models"))
    monkeypatch.setattr(hubs, "PAUSE", 0.001)
    with loopback_hub() as found:
        for model in local_models.table(LIBRARY).values():
            found.holds(f"{model.repository}/{model.file}", DATA + model.file.encode())
        found.holds(OTHER.removeprefix("hf:"), DATA)
        yield found


def pull(hub: LoopbackHub, name: str = SMALL, *, force: bool = False) -> tuple[Path, list[str]]:
    said: list[str] = []
    env = {"HF_ENDPOINT": hub.url}
    path = asyncio.run(local_models.pull(name, LIBRARY, env, said.append, lambda *_: None, force=force))
    return path, said


def test_local_is_the_best_of_the_table_that_is_here(hub: LoopbackHub) -> None:
    assert local_models.best(LIBRARY) == "local"
    pull(hub, OTHER)
    assert local_models.best(LIBRARY) == "local", "a model that is not in the table is used only by its name"
    small, said = pull(hub)
    assert "Fetching HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF/" in said[0] and "127.0.0.1" in said[0]
    assert local_models.best(LIBRARY) == f"local:{SMALL}"
    pull(hub, "qwen3-4b")
    names = ["local", "local:demo", f"local:{SMALL}", "openai/gpt-4.1"]
    assert local_models.expanded(names, LIBRARY) == (
        "local:qwen3-4b", "local", f"local:{SMALL}", "openai/gpt-4.1",
    )  # fmt: skip
    spec = models.resolve(f"local:{SMALL}", LIBRARY, {}, {})
    assert (spec.route, spec.model, spec.vendor, spec.price) == (
        "local", str(small), "huggingface", models.resolve("local", LIBRARY, {}, {}).price,
    )  # fmt: skip
    assert models.resolve(f"local:{OTHER}", LIBRARY, {}, {}).model.endswith(
        "someone/other-GGUF/sub/other-Q4_K_M.gguf"
    )


def test_what_is_not_here_is_named_with_the_command_that_fetches_it(hub: LoopbackHub, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`local:qwen3-4b` is not on this machine") as caught:
        models.resolve("local:qwen3-4b", LIBRARY, {}, {})
    assert caught.value.hint == "Fetch it: cdo models pull qwen3-4b"
    with pytest.raises(ConfigError, match="is not a model that cdo knows") as caught:
        models.resolve("local:qwen9", LIBRARY, {}, {})
    assert "qwen3-4b" in caught.value.hint
    for path in ("/some/where.gguf", "~/x", "here.gguf"):
        assert models.resolve(f"local:{path}", LIBRARY, {}, {}).model == path
    assert hub.asked == []


@pytest.mark.parametrize(
    "name",
    [
        "hf:repo/x.gguf",
        "hf:a/b/../../c.gguf",
        "hf:a/b/.x.gguf",
        "hf:a/b/x.bin",
        "hf:a/b/x-00001-of-00002.gguf",
        "hf:",
    ],
)
def test_a_name_that_leads_out_of_the_folder_or_to_no_whole_model_is_refused(hub: LoopbackHub, name: str) -> None:
    with pytest.raises(UsageError):
        pull(hub, name)
    assert hub.asked == []


def test_a_later_version_is_refused_until_it_is_asked_for(hub: LoopbackHub) -> None:
    path, _ = pull(hub)
    assert pull(hub)[1] == [f"{SMALL} is on this machine."] and len(hub.to_storage()) == 1
    source = local_models.source_of(SMALL, LIBRARY)
    hub.holds(str(source), b"GGUF newer")
    with pytest.raises(ConfigError, match=f"{SMALL} is pinned to the file with sha256") as caught:
        pull(hub)
    assert caught.value.hint.endswith(f"cdo models pull {SMALL} --force") and path.read_bytes().startswith(DATA)
    pull(hub, force=True)
    pin = local_models.pin_of(path)
    assert path.read_bytes() == b"GGUF newer" and pin and pin.size == len(b"GGUF newer")
    assert pull(hub)[1] == [f"{SMALL} is on this machine."]


def test_a_file_that_changed_is_not_loaded_and_one_that_was_only_touched_is(hub: LoopbackHub) -> None:
    path, _ = pull(hub)
    local_models.require_pinned(path)
    os.utime(path, ns=(1, 1))
    local_models.require_pinned(path)
    pin = local_models.pin_of(path)
    assert pin and pin.seen[2] == 1, "it is not hashed again the next time"
    time.sleep(0.01)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"!")
    with pytest.raises(ConfigError, match="has changed since") as caught:
        local_models.require_pinned(path)
    assert "cdo models pull hf:HuggingFaceTB/" in caught.value.hint
    pull(hub)
    assert path.read_bytes() == data
    local_models.require_pinned(path)


def test_a_crash_before_the_pin_costs_no_second_download(hub: LoopbackHub) -> None:
    path, _ = pull(hub)
    path.with_name(path.name + local_models.PIN).unlink()
    assert local_models.best(LIBRARY) == "local", "without a pin it is not used"
    pull(hub)
    assert local_models.best(LIBRARY) == f"local:{SMALL}" and len(hub.to_storage()) == 1


def test_the_list_has_sizes_licenses_and_what_else_was_fetched(hub: LoopbackHub) -> None:
    pull(hub)
    pull(hub, OTHER)
    rows = {row.name: row for row in local_models.listed(LIBRARY)}
    assert list(rows)[-1] == OTHER and list(rows)[:-1] == list(local_models.table(LIBRARY))
    assert rows[SMALL].path and rows[OTHER].path and rows["qwen3-4b"].path is None
    assert (rows["gemma-3-4b"].license, rows["gemma-3-4b"].size) == ("Gemma Terms of Use", "2.5 GB")


def test_a_model_is_removed_with_all_that_belongs_to_it(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = pull(hub)
    local_models.remove(SMALL, LIBRARY)
    assert not path.parent.exists() and local_models.best(LIBRARY) == "local"
    with pytest.raises(UsageError, match="is not on this machine"):
        local_models.remove(SMALL, LIBRARY)
    hub.cut, hub.cuts = 5000, 1
    monkeypatch.setattr(hubs, "TRIES", 1)
    with pytest.raises(NoModel):
        pull(hub)
    assert [entry.suffix for entry in path.parent.iterdir()] == [".part"]
    local_models.remove(SMALL, LIBRARY)
    assert not path.parent.exists()


def test_pulls_at_the_same_time_fetch_once(hub: LoopbackHub) -> None:
    async def both() -> None:
        said: list[str] = []
        one = local_models.pull(SMALL, LIBRARY, {"HF_ENDPOINT": hub.url}, said.append, lambda *_: None)
        two = local_models.pull(SMALL, LIBRARY, {"HF_ENDPOINT": hub.url}, said.append, lambda *_: None)
        await asyncio.gather(one, two)
        assert sum(text.startswith("Fetching") for text in said) == 1, said

    asyncio.run(both())
    assert len(hub.to_storage()) == 1


def test_a_folder_that_cannot_be_made(hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CDO_MODELS_DIR", str(tmp_path / "file" / "models"))
    with pytest.raises(ConfigError, match=r"cannot be stored in .*Not a directory") as caught:
        pull(hub)
    assert "CDO_MODELS_DIR" in caught.value.hint


def test_the_table_names_each_file_once_and_no_hash() -> None:
    table = local_models.table(LIBRARY)
    sources = [HubFile(model.repository, model.file) for model in table.values()]
    assert len(set(sources)) == len(table) >= 6
    assert local_models.DEMO not in table
    assert all(local_models.source_of(f"hf:{source}", LIBRARY) == source for source in sources)
