"""A `bd` that keeps to what is documented of the real one, and can be told to go wrong.

State and faults lie in `.beads/` of the working directory, as JSON: `state.json` (issues, and every command run) and
`faults.json` ({command: fault}, and under "shape" how answers are wrapped). What cdo must never do (an unknown
option, two commands at once, a key in the environment) is a failure with exit code 99, kept in `state.json`.
`test_beads.install` makes the program, which calls `main`.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace as Args

# A test starts this program a thousand times: what takes long to import waits until it is used.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    State = dict[str, Any]
    Answer = tuple[Any, bool]  # what is answered, and whether the command answers with a list

HERE = Path(".beads")
# The words after each command, then its options; "" is one that takes no value, "!" one that must be there.
OPTIONS = {
    "version": ((), {}),
    "create": ((), {
        "--title": "!", "-t": "!", "--parent": "text", "--description": "text", "--metadata": "json",
        "--estimate": "number",
    }),
    "dep": (("verb", "later", "earlier"), {}),
    "update": (("id",), {"--claim": "", "--append-notes": "text"}),
    "close": (("id",), {"--reason": "!"}),
    "list": ((), {"--all": "", "-n": "number", "--parent": "text", "--metadata-field": "text"}),
}  # fmt: skip


class Refused(Exception):
    """An error as bd reports it."""


def load(name: str) -> State:
    path = HERE / f"{name}.json"
    return dict(json.loads(path.read_text("utf-8"))) if path.exists() else {}


def save(state: State) -> None:
    fresh = HERE / "state.new"
    fresh.write_text(json.dumps(state), "utf-8")
    fresh.replace(HERE / "state.json")


def misuse(message: str) -> NoReturn:
    """Keep what cdo must never do, so that a test can see it."""
    state = load("state")
    state.setdefault("misuse", []).append(f"{message}: {sys.argv[1:]}")
    save(state)
    sys.exit(99)


def parsed() -> Args:
    """The command line, which must be that of the contract to the letter; values of long options follow a `=`."""
    if len(sys.argv) < 2 or sys.argv[1] not in OPTIONS:
        misuse("no such command")
    command, rest = sys.argv[1], sys.argv[2:]
    words, options = OPTIONS[command]
    found: dict[str, Any] = dict.fromkeys((name.strip("-").replace("-", "_") for name in options), None)
    found |= {"command": command}
    left = list(words)
    if command != "version" and rest.pop() != "--json":
        misuse("--json comes last")
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name in options:
            if options[name] and not equals:
                if name.startswith("--"):
                    misuse("a value without `=`")
                value = rest.pop(0)
            kind = options[name]
            found[name.strip("-").replace("-", "_")] = (
                True if not kind else json.loads(value) if kind in ("json", "number") else value
            )
        elif left and not name.startswith("-") and not equals:
            found[left.pop(0)] = name
        else:
            misuse("no such option")
    if left or any(kind == "!" and found[name.strip("-")] is None for name, kind in options.items()):
        misuse("something is missing")
    return Args(**found)


def find(state: State, name: str) -> dict[str, Any]:
    if name not in state["issues"]:
        raise Refused(f'no issue found matching "{name}"')
    found: dict[str, Any] = state["issues"][name]
    return found


def create(state: State, args: Args) -> Answer:
    if args.t not in ("epic", "task"):
        misuse("no such type")
    if not 0 < len(args.title.encode()) <= 500 or "\n" in args.title:
        raise Refused("title must be one line of 1 to 500 bytes")
    if args.parent:
        find(state, args.parent)
        siblings = [issue for issue in state["issues"].values() if issue.get("parent") == args.parent]
        name = f"{args.parent}.{len(siblings) + 1}"
    else:
        name = f"fake-{len(state['issues']) + 1:x}"
    state["issues"][name] = {
        "id": name, "title": args.title, "description": args.description or "", "issue_type": args.t,
        "status": "open", "priority": 2, "metadata": args.metadata or {},
        "parent": args.parent, "estimate": args.estimate, "notes": "",
    }  # fmt: skip
    return state["issues"][name], False


def dep(state: State, args: Args) -> Answer:
    later, earlier = args.later, args.earlier
    if args.verb != "add":
        misuse("dep add is all there is")
    reached: set[str] = set()
    todo = [find(state, earlier)["id"]]
    while todo:
        reached.add(name := todo.pop())
        todo += [on for who, on in state["deps"] if who == name]
    if find(state, later)["id"] in reached:
        raise Refused("adding dependency would create a cycle")
    if [later, earlier] not in state["deps"]:
        state["deps"].append([later, earlier])
    return {"status": "added", "issue_id": later, "depends_on_id": earlier, "type": "blocks"}, False


def update(state: State, args: Args) -> Answer:
    issue = find(state, args.id)
    if args.claim:
        if issue.setdefault("assignee", os.environ["BEADS_ACTOR"]) != os.environ["BEADS_ACTOR"]:
            raise Refused(f"already claimed by {issue['assignee']}")
        if issue["status"] == "closed":
            raise Refused("issue is closed")
        issue["status"] = "in_progress"
    if args.append_notes:
        issue["notes"] = "\n".join(filter(None, (issue["notes"], args.append_notes)))
    return [issue], True


def close(state: State, args: Args) -> Answer:
    issue = find(state, args.id)
    below = [child for child in state["issues"].values() if child.get("parent") == args.id]
    if count := sum(child["status"] != "closed" for child in below):
        raise Refused(f"cannot close {args.id}: {count} open child issue(s)")
    if issue["status"] != "closed":
        issue |= {"status": "closed", "close_reason": args.reason}
    return [issue], True


def listed(state: State, args: Args) -> Answer:
    found = [issue for issue in state["issues"].values() if args.all or issue["status"] != "closed"]
    if args.parent:
        found = [issue for issue in found if issue.get("parent") == args.parent]
    if args.metadata_field:
        key, _, value = args.metadata_field.partition("=")
        found = [issue for issue in found if issue["metadata"].get(key) == value]
    return (found if args.n == 0 else found[: args.n or 50]), True


def wrapped(data: Any, is_list: bool, shape: str) -> Any:
    if shape == "items":
        return {"items": data if is_list else [data]}
    if shape == "bare":
        return data
    if shape == "list":
        return data if is_list else [data]
    return {"schema_version": 1, "data": data}


def go_wrong(fault: str) -> NoReturn:
    error = {"error": "the \x1b[31mdisk is sad", "hint": "buy another"}
    if fault == "error-on-stdout":
        print(json.dumps(error))
    elif fault == "error-in-envelope":
        print(json.dumps({"schema_version": 1, "data": error}, indent=2))
    elif fault == "error-on-stderr":
        print(f"warning: old\n{json.dumps(error, indent=2)}", file=sys.stderr)
    elif fault == "error-in-words":
        print("Error: the \x1b[31mdisk is sad", file=sys.stderr)
    elif fault == "silent-failure":
        pass
    elif fault == "killed":
        os.kill(os.getpid(), 9)
    elif fault in ("hang", "hang-with-child"):
        if fault == "hang-with-child":
            os.spawnv(os.P_NOWAIT, "/bin/sleep", ["sleep", "600"])
        time.sleep(600)
    elif fault == "flood":
        while True:
            os.write(1, b"x" * 65536)
    else:
        answers = {
            "garbage": b"\x1b[31m<html>\xff\x00 not json", "nothing": b"", "numbers": b"[1, 2]", "deep": b"[" * 99999,
            "no-id": b'{"schema_version": 1, "data": {"title": "x"}}', "an-error": json.dumps(error).encode(),
            "bad-id": b'[{"id": "--force; rm -rf /"}]', "cut": b'{"schema_version": 1, "data": {"id": "fake',
        }  # fmt: skip
        os.write(1, answers[fault])
        sys.exit(0)
    sys.exit(1)


def main() -> None:
    args = parsed()
    if os.isatty(0) or os.read(0, 1):
        misuse("stdin must be closed")
    if os.getpgrp() != os.getpid() or os.environ.get("BD_JSON_ENVELOPE") != "1":
        misuse("a process group of its own and the envelope are asked for")
    if not all(place.startswith("/") for place in os.environ["PATH"].split(os.pathsep)):
        misuse(f"a place relative to here: {os.environ['PATH']}")
    if any("KEY" in name or "TOKEN" in name for name in os.environ):
        misuse(f"a key is passed on: {sorted(os.environ)}")
    if args.command == "version":
        print("bd version 9.9.9 (fake)")
        return
    if not HERE.is_dir():
        print("Error: no beads database found\nHint: run 'bd init' to create a new database", file=sys.stderr)
        sys.exit(1)
    with (HERE / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            misuse("two commands at once")
        answer(args, {"issues": {}, "deps": [], "log": []} | load("state"), load("faults"))


def answer(args: Args, state: State, faults: State) -> None:
    """Do the command, or go wrong before, after or beside it."""
    state["log"].append(sys.argv[1:])
    fault = str(faults.get(args.command, ""))
    if fault and not fault.startswith(("after-", "then-")):
        save(state)
        go_wrong(fault)
    does = {"create": create, "dep": dep, "update": update, "close": close, "list": listed}[args.command]
    try:
        data, is_list = does(state, args)
    except Refused as refused:
        save(state)
        print(json.dumps({"schema_version": 1, "data": {"error": str(refused)}}))
        sys.exit(1)
    save(state)
    if fault.startswith("after-"):
        go_wrong(fault.removeprefix("after-"))
    if fault in ("then-orphan", "then-child"):  # a server that lives on with the pipes it inherited
        # Popen returns once the program runs: a fork that has not come so far yet would still hold the lock.
        seconds, orphan = ("5", True) if fault == "then-orphan" else ("600", False)
        subprocess.Popen(["/bin/sleep", seconds], start_new_session=orphan)
    text = json.dumps(wrapped(data, is_list, str(faults.get("shape", ""))), indent=2)
    print(f"warning: schema [old]\n{text}\n\nTip: {{see bd doctor}}" if fault == "then-chat" else text)
