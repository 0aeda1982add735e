"""Turns a finished session into the recording that `cdo demo` plays.

    python -m tests.support.record_demo tmp/cdo-a --model "Claude Opus 5" --vendor anthropic

writes the folder demo/ anew (`cdo/app/recording.py` says what is in it). The files that replies cite are copied from
the repository that the session's voices read, so run this where the session was made. The same session always gives
the same recording. Faults of the transport are left out, and nothing of the machine is kept: paths below the
repository become relative, and any other trace of the machine is an error.

With `--by-hand` the answers came through `benchmarks/by_hand.py`, whose times and token counts are not the model's.
Then each answer takes as long as its length at 60 tokens a second, and its tokens are marked as estimates.
"""

from __future__ import annotations

import argparse
import getpass
import re
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from cdo.app.recording import GIVEN, HEAD, RecordedCall, RecordedTool, RecordingHead, load, reply_files
from cdo.core.schema import differing
from cdo.formats import strict_yaml
from cdo.planning.plan import MATERIAL, Plan
from cdo.providers.recorded import PREFIX
from cdo.repository.visible_files import Tree, VisibleFile, walk
from cdo.session.reader import SessionFolder
from cdo.session.session_file import read_frozen

ROOT = Path(__file__).resolve().parents[2]
MOST = 300_000  # bytes of a recording
SPEED = 60.0  # tokens a second, with --by-hand
_FOLDER = re.compile(r"(?:[a-z0-9][a-z0-9-]*/)*[^/]+")  # as sessions can hold it
_TOLD = ("exchange", "text", "checked", "quoted", "tools", "given", "trail", "failed", "surveyed")


def record(session: Path, target: Path, model: str, vendor: str = "", *, by_hand: bool = False) -> RecordingHead:
    """Write the recording of a finished session into the folder `target`; raise `SystemExit` if it cannot be one."""
    archive = SessionFolder(session)
    frozen = read_frozen(archive.text("session.yaml"), session)
    _require_plain(archive, frozen.plan)
    exchanges = [item for item in archive.records() if item["kind"] == "exchange" and "response" in item]
    exchanges.sort(key=lambda item: (item["started"], item["call"]))
    root = (session / frozen.plan.root).resolve() if frozen.plan.root else None
    scrub = _scrubber([root] if root else [])
    head = RecordingHead(
        model=model,
        date=exchanges[0]["started"][:10],
        cdo=frozen.cdo,
        plan=_named(frozen.plan, model, vendor),
        exchanges=tuple(_by_length(_calls(exchanges, scrub)) if by_hand else _calls(exchanges, scrub)),
    )
    files = {name: scrub(archive.text(name) or "") for name in GIVEN}
    texts = (scrub(item["response"]["text"]) for item in exchanges)
    files |= dict(zip(reply_files(head), texts, strict=True))
    files |= {f"{MATERIAL}/{name}": text for name, text in _material(root)}
    # The plan with all its values: a default that changes later must not change how the recording is played.
    told = [to_builtins(differing(call)) for call in head.exchanges]
    values = {**differing(head), "plan": to_builtins(head.plan), "exchanges": told}
    files[HEAD] = strict_yaml.dump(values)
    _require_clean(files)
    _write(target, files)
    return load(target).head


def _require_plain(archive: SessionFolder, plan: Plan) -> None:
    """End with a message if the session has what a recording cannot hold."""
    kinds = {record["kind"] for record in archive.records()}
    if "FINAL.md" not in archive.files():
        raise SystemExit("This session has no FINAL.md: record a finished one.")
    if plan.crew or plan.check or plan.hitl or plan.bd or plan.team or plan.skills or plan.changes or plan.mode:
        raise SystemExit("Record a plain deliberation: no mission, mode, check, hitl, team, bd, skills or fork.")
    if extra := kinds - {*_TOLD}:
        raise SystemExit(f"This session holds what a recording cannot: {', '.join(sorted(extra))}.")
    keys: dict[str, str] = {}
    for item in archive.records():
        if item["kind"] == "exchange" and keys.setdefault(item["call"], item["inputs"]) != item["inputs"]:
            raise SystemExit(f"{item['call']} was asked again after an edit: record a session without edits.")


def _named(plan: Plan, model: str, vendor: str) -> Plan:
    """Return the plan under which the recording is played: its models have names under which none answers."""
    slug = re.sub(r"[^a-z0-9.]+", "-", model.lower()).strip("-")
    several = len(plan.models) > 1
    names = {name: f"{PREFIX}{slug}{f'-{number}' * several}" for number, name in enumerate(plan.models, 1)}
    return replace(
        plan,
        models=tuple(names[name] for name in plan.models),
        vendors={names[name]: vendor or own for name, own in plan.vendors.items() if name in names},
        remarks=(),
        root=MATERIAL,
    )


def _calls(exchanges: Sequence[Mapping[str, Any]], scrub: Any) -> Iterator[RecordedCall]:
    first = datetime.fromisoformat(exchanges[0]["started"])
    for item in exchanges:
        usage, response = item.get("usage") or {}, item["response"]
        yield RecordedCall(
            call=item["call"],
            at=round((datetime.fromisoformat(item["started"]) - first).total_seconds(), 1),
            seconds=round(item["seconds"], 1),
            input_tokens=usage.get("input_tokens", 0),
            output_tokens=usage.get("output_tokens", 0),
            cached_tokens=usage.get("cached_tokens", 0),
            measured=usage.get("measured", True),
            finish=response["finish"],
            tool_calls=tuple(
                RecordedTool(id=tool["id"], name=tool["name"], arguments=scrub(tool["arguments"]))
                for tool in response.get("tool_calls", ())
            ),
        )


def _by_length(calls: Iterable[RecordedCall]) -> Iterator[RecordedCall]:
    """Yield calls with times made of their length. Calls that were open at the same time stay one batch."""
    ends = now = latest = 0.0
    for call in calls:
        if call.at > ends - 1:  # the batch before has ended (times are rounded)
            now = latest
        ends = max(ends, call.at + call.seconds)
        seconds = round(call.output_tokens / SPEED, 1)
        latest = max(latest, now + seconds)
        yield replace(call, at=round(now, 1), seconds=seconds, measured=False)


def _material(root: Path | None) -> Iterator[tuple[str, str]]:
    """Yield the files that the voices could read, with their paths below the repository."""
    if root is None:
        return
    tree = Tree(root)
    for item in walk(tree.folder("")):
        if isinstance(item, VisibleFile):
            if not _FOLDER.fullmatch(item.path):
                raise SystemExit(f"{item.path}: a session holds only folders of small letters, digits and hyphens.")
            yield item.path, Path(item.real).read_text(encoding="utf-8")


def _scrubber(roots: Sequence[Path]) -> Any:
    """Return what makes the paths of a text relative to the repository."""

    def scrub(text: str) -> str:
        for root in roots:
            text = text.replace(f"{root}/", "")
        return text

    return scrub


def _require_clean(files: Mapping[str, str]) -> None:
    """End with a message if a file names this machine, its user or a folder of theirs, or if all are too large."""
    traces = {str(Path.home()), str(Path.cwd()), str(ROOT), socket.gethostname(), getpass.getuser()} - {"root"}
    pattern = re.compile("|".join(rf"(?<!\w){re.escape(trace)}\b" for trace in sorted(traces) if len(trace) > 3))
    for name, text in files.items():
        if found := pattern.search(text):
            raise SystemExit(f"{name} names this machine ({found[0]}): record a session that does not.")
    if (size := sum(len(text.encode()) for text in files.values())) > MOST:
        raise SystemExit(f"The recording would have {size:,} bytes, and {MOST:,} are the most.")


def _write(target: Path, files: Mapping[str, str]) -> None:
    if target.exists() and not (target / HEAD).exists() and any(target.iterdir()):
        raise SystemExit(f"{target} is not a recording: name another folder.")
    shutil.rmtree(target, ignore_errors=True)
    for name, text in files.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())


def main() -> None:
    """Record the session that the command line names."""
    parser = argparse.ArgumentParser(prog="record_demo", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("session", type=Path, help="folder of a finished session")
    parser.add_argument("--model", required=True, help="name of the model that answered, as people know it")
    parser.add_argument("--vendor", default="", help="who makes the model (default: as the session says)")
    parser.add_argument("--by-hand", action="store_true", help="the answers came through benchmarks/by_hand.py")
    parser.add_argument("--to", type=Path, default=ROOT / "demo", help="folder of the recording (default: demo/)")
    options = parser.parse_args()
    head = record(options.session, options.to, options.model, options.vendor, by_hand=options.by_hand)
    size = sum(path.stat().st_size for path in options.to.rglob("*") if path.is_file())
    print(f"{options.to}: {len(head.exchanges)} answers of {head.date}, {size:,} bytes")


if __name__ == "__main__":
    main()
