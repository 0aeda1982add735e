"""A run that has everything a reader may meet, told by a script: for pages, comparisons and whatever looks back.

Four voices argue for three turns over a queue. Citations hold and do not hold, voices move with and without new
evidence, one objects to the end, one is missing, tensions are resolved, accepted and left open, and a person may edit
a file afterwards.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from cdo.files.atomic_files import closing, open_directory, write_file
from tests.conftest import Desk
from tests.support.answers import Answer, RequestInfo, agent_text, final_text, synthesis_text
from tests.support.faults import Fault
from tests.support.provider import Provider, Script

QUESTION = "Should the job queue move into Redis before the spring sale?"  # no word of it fits a role
MISSING = "t2-systems-thinker"
EDITED = "t1-pragmatist"

SOURCES = {
    "src/queue.py": (
        "import heapq\n\nHEAP = []\n\n\ndef push(item):\n    heapq.heappush(HEAP, item)\n\n\n"
        "def pop():\n    row = db.execute(CLAIM)  # SELECT … FOR UPDATE SKIP LOCKED\n    return row\n"
    ),
    "docs/incidents.md": "# Incidents\n\n- 2026-03: polling took 41 % of all reads\n- 2026-05: no job was lost\n",
}
_POLLING = 'docs/incidents.md:3 "polling took 41 % of all reads"'
_CLAIM = 'src/queue.py:11 "row = db.execute(CLAIM)"'
_WRONG = 'src/queue.py:6 "def push(item, priority)"'

# By voice, what it says in each turn: position, confidence, claims as (text, evidence), objections, what moved it.
Speech = tuple[str, float, Sequence[tuple[str, Sequence[str]]], Sequence[tuple[str, int]], str]
SPEECHES: Mapping[str, Sequence[Speech]] = {
    "architect": (
        (
            "Move the queue into Redis, behind the interface that push and pop already have.",
            0.72,
            [("Both ends of the queue meet in one file.", [_WRONG]), ("Polling is what hurts.", [_POLLING])],
            [],
            "",
        ),
        (
            "Move the queue into Redis in two steps: writes to both first, reads later.",
            0.66,
            [("The claim is one statement and can be wrapped.", [_CLAIM])],
            [],
            "A double write keeps the way back open.",
        ),
        (
            "Write to both queues now, read from Redis only after the sale.",
            0.8,
            [("The claim is one statement and can be wrapped.", [_CLAIM])],
            [],
            "Nobody could show that reads are safe to move before the sale.",
        ),
    ),
    "critic": (
        (
            "Leave the queue where it is: nobody has measured what Redis would save.",
            0.64,
            [("No job was ever lost.", ['docs/incidents.md:4 "no job was lost"'])],
            [("A move before the sale puts every order at stake.", 7)],
            "",
        ),
        (
            "Leave the queue where it is until the double write has run for a month.",
            0.6,
            [("Two queues can disagree.", ["reasoning: two writes are not one transaction"])],
            [("Two writes without one transaction lose or double jobs.", 6)],
            "",
        ),
        (
            "Accept the double write, but only with a nightly comparison of both queues.",
            0.58,
            [("A comparison finds what two writes lose.", [_CLAIM])],
            [("Two writes without one transaction lose or double jobs.", 7)],
            "The claim is one statement, so that both queues can be compared by its key.",
        ),
    ),
    "pragmatist": (
        (
            "Tune the polling interval first; it is one line and can be undone.",
            0.7,
            [("Polling is most of the load.", [_POLLING])],
            [],
            "",
        ),
        ("Tune the polling now, and write to both queues.", 0.62, [("Both can be undone.", ["reasoning"])], [], ""),
        (
            "Tune the polling now, write to both queues, move reads after the sale.",
            0.78,
            [("The sale is in eleven weeks.", ["observed: the calendar says 1 March"])],
            [],
            "The systems thinker's figure of an hour's outage.",
        ),
    ),
    "systems-thinker": (
        (
            "Do nothing before the sale that cannot be undone within an hour.",
            0.75,
            [("An hour of lost orders costs more than a year of polling.", ["src/billing.py:40"])],
            [],
            "",
        ),
        ("", 0.0, [], [], ""),
        (
            "Write to both queues, and keep the switch back at hand through the sale.",
            0.74,
            [("The switch is one setting.", ["reasoning"])],
            [],
            "",
        ),
    ),
}
_TENSIONS: Sequence[Sequence[tuple[str, str, str]]] = (
    (
        ("T1", "Speed of the move against the sale", "open"),
        ("T2", "Measured load against felt load", "open"),
    ),
    (
        ("T1", "Speed of the move against the sale", "open"),
        ("T2", "Measured load against felt load", "resolved"),
        ("T3", "Two writes without a transaction", "open"),
    ),
    (
        ("T1", "Speed of the move against the sale", "resolved"),
        ("T3", "Two writes without a transaction", "accepted"),
        ("T4", "Who owns the comparison at night", "open"),
    ),
)
_STATED = ((0.55, ["nobody measured what Redis would save"]), (0.62, ["how two queues are compared"]))
_CAMPS = (
    {
        "Leave the queue as it is for now": ["critic", "systems-thinker"],
        "Move it into Redis": ["architect"],
        "Tune the polling first": ["pragmatist"],
    },
    {"Write to both queues": ["architect", "pragmatist"], "Leave it": ["critic"]},
    {
        "Write to both queues, move reads after the sale": ["architect", "pragmatist", "critic"],
        "Change nothing that has no way back within an hour": ["systems-thinker"],
    },
)


def told(info: RequestInfo) -> Answer | Fault | None:
    """The script of the story, for a provider."""
    if info.call == MISSING:
        return Fault(status=400)
    found = re.fullmatch(r"t(\d)-(.+)", info.call)
    if found and info.kind == "agent" and found[2] in SPEECHES:
        return Answer(speech(found[2], int(found[1])))
    if found and info.kind == "synthesis":
        return Answer(synthesis(int(found[1])))
    if info.kind == "comparison":
        same, differences = ("yes", "[]") if info.call.startswith("t1-") else ("no", '["B leaves the polling alone"]')
        return Answer(
            f'---\nsame: {same}\ndifferences: {differences}\nwhy: "Both write twice."\n---\n\nI read both.\n'
        )
    if info.kind == "final":
        return Answer(
            final_text(
                "**Write to both queues now; read from Redis only after the sale.** Tune the polling today, since "
                "that is one line and takes most of the load off.",
                tensions=[
                    "T1: settled by moving reads after the sale.",
                    "T2: settled by the incident log, which has the figure.",
                    "T3: accepted; a nightly comparison finds what two writes lose.",
                    "T4: open; nobody has taken the comparison on.",
                ],
                minority=[
                    "critic (o1, severity 7): two writes without one transaction lose or double jobs. The comparison "
                    "finds that a night late."
                ],
                actions=[
                    "Raise the polling interval to five seconds, today.",
                    "Write to both queues behind a switch, by the end of next week.",
                    "Name who owns the nightly comparison before the switch is turned.",
                ],
            )
        )
    return None


def speech(voice: str, turn: int) -> str:
    """What a voice says in a turn."""
    position, confidence, claims, objections, because = SPEECHES[voice][turn - 1]
    text = agent_text(
        position,
        confidence,
        objections=objections,
        claims=[{"text": what, "evidence": evidence} for what, evidence in claims],
    )
    moved = f"changed_because: {json.dumps(because)}\n" if because else ""
    return text.replace("claims:\n", f"{moved}claims:\n", 1)


def synthesis(turn: int) -> str:
    """The synthesis of a turn: the last one closes with agreement high enough to be flagged."""
    confidence, gaps = _STATED[turn - 1] if turn <= len(_STATED) else (0.84, [])
    at = min(turn, len(_TENSIONS)) - 1
    return synthesis_text(
        width=4,
        roles=list(SPEECHES),
        focus="what the double write costs, and who compares both queues",
        confidence=confidence,
        tensions=[{"id": ident, "title": title, "status": status} for ident, title, status in _TENSIONS[at]],
        gaps=gaps,
        camps=_CAMPS[at],
    )


def tell(desk: Desk, provider: Provider, name: str = "a", *, edited: bool = True, script: Script = told) -> Path:
    """Run the story as the session `name` in a small repository, and edit a voice's file; its directory."""
    provider.script = script
    for file, text in SOURCES.items():
        desk.write(file, text)
    desk.write(".gitignore", "tmp/\n")
    if not (desk.path / ".git").exists():
        env = {"PATH": "/usr/bin:/bin", "HOME": str(desk.path)}
        subprocess.run(["git", "init", "-q"], cwd=desk.path, check=True, env=env)
        subprocess.run(["git", "add", "."], cwd=desk.path, check=True, env=env)
    desk("deep", "--width", "4", "--turns", "3", "--session", name, QUESTION).ok()
    path = desk.session(name)
    if edited:
        edit(path, EDITED, "it is one line", "it is a single line")
    return path


def edit(session: Path, stem: str, old: str, new: str) -> None:
    """Change a word of an artifact, as a person with an editor does."""
    text = (session / f"{stem}.md").read_text("utf-8")
    assert old in text
    with closing(open_directory(session)) as folder:
        write_file(folder, f"{stem}.md", text.replace(old, new).encode())
