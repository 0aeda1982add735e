"""Reads a recording: a finished run, in the compact form in which cdo ships the one of `cdo demo`.

A recording is a folder, made from a finished session by `python -m tests.support.record_demo SESSION`:

    recording.yaml         who answered and when, the frozen plan, and each exchange with its time and its tokens
    00-input.md            the question
    00-context.md          the context that the voices were given
    material/…             the files that replies cite; a session that plays the recording gets a copy
    replies/CALL.md        the reply to each call; CALL.2.md is that to its second attempt

It holds no prompts: today's code asks, and a reply is found by the name of its call and the number of its attempt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from cdo.content.library import checked
from cdo.core.errors import ContentError
from cdo.core.exchange import Finish, Response, ToolCall, Usage
from cdo.core.schema import Schema
from cdo.formats import strict_yaml
from cdo.planning.plan import MATERIAL, Plan
from cdo.providers.recorded import RecordedReply

HEAD = "recording.yaml"
REPLIES = "replies"
GIVEN = ("00-input.md", "00-context.md")
MAX_HEAD = 262_144

_Seconds = Annotated[float, Meta(ge=0, le=1e9)]
_Tokens = Annotated[int, Meta(ge=0)]


class RecordedTool(Schema, frozen=True, kw_only=True):
    """A tool that a model asked to use; the tool itself is run again, on the material."""

    id: str
    name: str
    arguments: str


class RecordedCall(Schema, frozen=True, kw_only=True):
    """One answered attempt of a call. It was asked `at` so many seconds after the first one, and took `seconds`."""

    call: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]*\Z")]
    at: _Seconds
    seconds: _Seconds
    input_tokens: _Tokens = 0
    output_tokens: _Tokens = 0
    cached_tokens: _Tokens = 0
    measured: bool = True
    finish: Finish = Finish.STOP
    tool_calls: tuple[RecordedTool, ...] = ()


class RecordingHead(Schema, frozen=True, kw_only=True):
    """The content of recording.yaml: `model` answered on `date` (UTC), when the version of cdo was `cdo`."""

    model: str
    date: str
    cdo: str
    plan: Plan
    exchanges: tuple[RecordedCall, ...]


class Recording(Struct, frozen=True):
    """A recording as it was read: its head, the text of each exchange, and the files that a session gets."""

    head: RecordingHead
    texts: tuple[str, ...]
    files: Mapping[str, bytes]

    @property
    def seconds(self) -> float:
        """The seconds during which at least one reply was awaited."""
        total = end = 0.0
        for item in sorted(self.head.exchanges, key=lambda item: item.at):
            total += max(0.0, item.at + item.seconds - max(end, item.at))
            end = max(end, item.at + item.seconds)
        return total

    def replies(self, duration: float) -> dict[str, list[RecordedReply]]:
        """Return the replies by call. All waiting together is shortened, or stretched, to `duration` seconds."""
        pace = duration / (self.seconds or 1.0)
        found: dict[str, list[RecordedReply]] = {}
        for item, text in zip(self.head.exchanges, self.texts, strict=True):
            usage = Usage(item.input_tokens, item.output_tokens, item.cached_tokens, measured=item.measured)
            tools = tuple(ToolCall(tool.id, tool.name, tool.arguments) for tool in item.tool_calls)
            reply = RecordedReply(Response(text, item.finish, usage, tool_calls=tools), item.seconds * pace)
            found.setdefault(item.call, []).append(reply)
        return found


def load(folder: Path) -> Recording:
    """Read the recording in a folder; raise `ContentError` naming the file that is wrong."""
    path = folder / HEAD
    try:
        data = strict_yaml.load(path.read_text(encoding="utf-8"), max_bytes=MAX_HEAD, max_depth=8)
        head = checked(RecordingHead, data if isinstance(data, dict) else {}, path)
        texts = tuple((folder / name).read_bytes().decode() for name in reply_files(head))
        files = {name: (folder / name).read_bytes() for name in GIVEN}
        for file in sorted((folder / MATERIAL).rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                files[file.relative_to(folder).as_posix()] = file.read_bytes()
    except strict_yaml.YamlProblem as problem:
        raise ContentError(f"{path}: {problem}.", "Install cdo again.") from None
    except (OSError, UnicodeDecodeError) as error:
        what = getattr(error, "filename", None) or folder
        raise ContentError(f"The recording is not whole: {what} cannot be read.", "Install cdo again.") from None
    return Recording(head, texts, files)


def reply_files(head: RecordingHead) -> list[str]:
    """Return the name of the file with the reply of each exchange, in order."""
    before: Counter[str] = Counter()
    names = []
    for item in head.exchanges:
        before[item.call] += 1
        again = f".{before[item.call]}" if before[item.call] > 1 else ""
        names.append(f"{REPLIES}/{item.call}{again}.md")
    return names
