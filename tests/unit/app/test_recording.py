"""The format of recordings, and the one that ships with cdo. No test depends on its words."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cdo.app.recording import HEAD, RecordedCall, Recording, RecordingHead, load
from cdo.core.errors import ContentError
from cdo.providers.recorded import PREFIX
from tests.support.harness import ROOT
from tests.support.record_demo import MOST
from tests.unit.programs.test_deliberation import plan


def test_the_shipped_recording_is_whole_small_and_names_no_model_that_answers() -> None:
    recording = load(ROOT / "demo")
    files = [path for path in (ROOT / "demo").rglob("*") if path.is_file()]
    used = {HEAD, *recording.files, *(f"replies/{path.name}" for path in (ROOT / "demo/replies").iterdir())}
    assert {path.relative_to(ROOT / "demo").as_posix() for path in files} == used
    assert len(recording.texts) == len(list((ROOT / "demo/replies").iterdir()))
    assert sum(path.stat().st_size for path in files) < MOST
    assert all(name.startswith(PREFIX) for name in recording.head.plan.named)
    assert all(text.strip() for text in recording.texts)
    assert any(name.startswith("material/") for name in recording.files)
    assert recording.seconds > 0


def recording(*times: tuple[str, float, float]) -> Recording:
    calls = tuple(RecordedCall(call=call, at=at, seconds=seconds) for call, at, seconds in times)
    head = RecordingHead(model="M", date="2026-11-26", cdo="1", plan=plan(), exchanges=calls)
    return Recording(head, tuple("text" for _ in calls), {})


def test_times_keep_their_relation_and_together_take_what_is_asked_for() -> None:
    # Two calls side by side, a pause of cdo itself, then two attempts of a third one.
    found = recording(("a", 0, 40), ("b", 5, 20), ("c", 50, 20), ("c", 80, 20))
    assert found.seconds == 80
    replies = found.replies(8.0)
    assert [[reply.seconds for reply in replies[name]] for name in "abc"] == [[4.0], [2.0], [2.0, 2.0]]
    assert {reply.seconds for each in found.replies(0.0).values() for reply in each} == {0.0}


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        (HEAD, None, "recording.yaml cannot be read"),
        (HEAD, "model: [", "recording.yaml"),
        (HEAD, "model: M", "`date` is missing"),
        ("00-input.md", None, "00-input.md cannot be read"),
        ("replies", None, "replies/"),
    ],
)
def test_a_recording_that_is_not_whole_names_the_file(
    file: str, text: str | None, words: str, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "demo", tmp_path / "demo")
    place = tmp_path / "demo" / file
    if text is not None:
        place.write_text(text)
    elif place.is_dir():
        next(place.iterdir()).unlink()
    else:
        place.unlink()
    with pytest.raises(ContentError) as failed:
        load(tmp_path / "demo")
    assert words in failed.value.message
