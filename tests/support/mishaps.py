"""What happens to the runs of a soak, as data: what they do, how their calls fail, when they die. Pure.

All of it is a function of a seed and a run's number, so that a run that fails can be had again by itself.
"""

from __future__ import annotations

import hashlib
import random
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.runs.test_mission import deciding, told
from tests.runs.test_modes_run import case, house
from tests.runs.test_seats_run import AGENT
from tests.support.answers import Answer, RequestInfo, agent_text
from tests.support.cabal_team import REQUEST, done, said
from tests.support.faults import OVERFLOW_BODIES, Fault
from tests.support.harness import QUESTION

Script = Callable[[RequestInfo], Any]
DEADLINES = {"CDO_FIRST_BYTE_TIMEOUT": "2", "CDO_IDLE_TIMEOUT": "2", "CDO_CALL_TIMEOUT": "5"}
PATIENT = dict.fromkeys(DEADLINES, "60")
RUN_FOR = 60.0  # seconds that a process may take by its own deadline (`--timeout`)
# What litellm is told; {url} is the provider's.
MESSAGES = {"ANTHROPIC_API_KEY": "x-test-key-654321", "ANTHROPIC_API_BASE": "{url}"}
COMPLETIONS = {"LITELLM_PROXY_API_KEY": "x-test-key-234567", "LITELLM_PROXY_API_BASE": "{url}/v1"}


@dataclass(frozen=True)
class Scene:
    """What a run does: the words that begin it, who answers, how many calls are in flight at most."""

    name: str
    words: tuple[str, ...]
    script: Script | None = None
    widest: int = 4
    agent: bool = False  # one of its seats is a command-line agent
    env: Mapping[str, str] = field(default_factory=dict)
    pauses: bool = False  # whether it waits for a person before each turn
    codes: tuple[int, ...] = (0,)


def _beyond(script: Script) -> Script:
    """A script for calls that it foresaw; in others the team has nothing to say, and the chair ends the mission."""

    def say(info: RequestInfo) -> Any:
        try:
            return script(info)
        except (KeyError, AssertionError, IndexError):
            step = info.call.split("-")[1]
            return done() if step == "plan" else said(**{key: [] for key in KEYS if step in KEYS[key]})

    return say


KEYS = {
    "assignments": ("plan",), "versions": ("write",), "collabs": ("review",), "inspections": ("inspect",),
    "messages": ("present",), "reflections": ("reflect",),
}  # fmt: skip


def _one(name: str, *words: str, **more: Any) -> Scene:
    return Scene(name, (*words, QUESTION), **more)


def _unreadable(info: RequestInfo) -> Answer | None:
    """The first two replies of each call lack what its format demands."""
    return Answer("I would rather not fill in forms.") if info.attempt < 3 else None


MISSION = ("cabal", "--operatives", "2", REQUEST)
SCENES = (
    _one("quick", "quick"),
    _one("think", "think", "--turns", "2", "--review"),
    _one("debug", "debug", script=case),
    _one("team", "team,think", "--turns", "2"),
    _one("command-line agent", "think", "--turns", "2", "-m", "openai/gpt-4.1", "-m", "mine", "--trust", agent=True),
    Scene("mission", MISSION, _beyond(told({})), widest=6, codes=(0, 3)),
    _one("parliament", "parliament,think", "--width", "4", script=house, widest=6),
    _one("deep", "deep", "--turns", "3", "--width", "3-5", "--review", widest=6),
    _one("litellm, Messages", "quick", "-m", "anthropic/claude-sonnet-4-5", env=MESSAGES),
    _one("adaptive", "adaptive,think", "--turns", "3", widest=6),
    _one("bad replies", "think", "--turns", "1", script=_unreadable),
    Scene("mission that deliberates", MISSION, _beyond(told(deciding())), widest=8, codes=(0, 3)),
    _one("domain", "exec", "arch", "quick", widest=6),
    _one("with a person", "hitl,think", "--turns", "2", pauses=True),
    _one("litellm, Chat Completions", "quick", "-m", "litellm_proxy/x", env=COMPLETIONS),
)
# In each twenty runs: the scene of each, by its place above. The dear ones (litellm takes seconds to load) are few.
CYCLE = (0, 1, 5, 4, 2, 1, 7, 6, 0, 3, 1, 9, 4, 8, 10, 13, 11, 2, 12, 14)


@dataclass(frozen=True)
class Death:
    """A signal, to the process or to its whole group, `delay` seconds after the process's `requests`th request.

    With 0 requests the delay counts from when the process takes signals into its own hands.
    """

    signal: signal.Signals
    requests: int
    delay: float
    group: bool


@dataclass(frozen=True)
class Plan:
    """One run of a soak: what it does and what it meets. `caps` hold until they are reached for the first time."""

    seed: int
    number: int
    faulty: float
    latency: float  # seconds from a call to its answer
    scene: Scene
    git: bool
    fork: bool
    caps: tuple[str, ...]
    beside: tuple[str, ...]
    deaths: tuple[Death, ...]

    @property
    def name(self) -> str:
        return f"run-{self.seed}-{self.number}"

    def script(self, info: RequestInfo) -> Any:
        """The answer to a request, or what goes wrong instead (a `Script` of the provider)."""
        chance = dice(self.seed, self.number, info.headers.get("X-Cdo-Session"), info.call, info.attempt, info.nth)
        if chance.random() < self.faulty:
            return chance.choice(FAULTS)
        return self.well(info)

    def well(self, info: RequestInfo) -> Any:
        """The answer of a provider that is well."""
        return self.scene.script(info) if self.scene.script else None


def dice(*words: object) -> random.Random:
    """Chance that is the same for the same words, in whatever process."""
    digest = hashlib.blake2b("/".join(map(str, words)).encode(), digest_size=8).digest()
    return random.Random(int.from_bytes(digest, "big"))


def planned(seed: int, number: int, faulty: float) -> Plan:
    """The plan of one run."""
    chance = dice(seed, number)
    scene = SCENES[CYCLE[number % len(CYCLE)]]
    mission = scene.words[0] == "cabal"
    caps = chance.choice([("--max-calls", str(chance.randrange(2, 12))), ("--budget", "0.05")])
    beside = chance.choice(
        [("watch", "a"), ("watch", "a", "--json"), ("report", "a"), ("show", "a"), ("list", "--json"), ("cost",)]
    )
    capped = chance.random() < 0.15 and not scene.env and not scene.agent
    return Plan(
        seed,
        number,
        faulty,
        chance.choice([0.0, 0.1, 0.3]),
        scene,
        git=chance.random() < 0.35,
        fork=chance.random() < 0.2 and scene.name in ("think", "deep", "adaptive"),
        caps=caps if capped else (),
        beside=beside if chance.random() < 0.25 else (),
        deaths=tuple(_death(chance) for _ in range(chance.choices([0, 1, 2, 4], [2, 5, 3, 1 + mission])[0])),
    )


def _death(chance: random.Random) -> Death:
    number = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
    if chance.random() < 0.2:
        return Death(number, 0, chance.uniform(0, 0.6), chance.random() < 0.3)
    return Death(number, chance.randrange(1, 9), chance.choice([0.0, chance.uniform(0, 0.3)]), chance.random() < 0.3)


# -- what goes wrong with a call ---------------------------------------------------------------------------

FAULTS: tuple[Any, ...] = (
    Fault(status=429),
    Fault(status=429, headers={"Retry-After": "0.3"}),
    Fault(status=429, headers={"Retry-After": "soon"}),
    Fault(status=500),
    Fault(status=503, headers={"Retry-After": "1"}),
    Fault(status=529),
    Fault(stream_error="overloaded_error"),
    Fault(stream_error="rate_limit_error", after=1),
    Fault(hang="headers"),
    Fault(hang="first-byte"),
    Fault(hang="middle"),
    Fault(drop=True),
    Fault(drop=True, how="rst"),
    Fault(cut=100),
    Fault(cut=-40, how="rst"),
    Fault(cut=-20, how="end"),
    Fault(shape="malformed"),
    Fault(shape="html"),
    Fault(shape="empty"),
    Fault(shape="no-choices"),
    Fault(shape="reasoning-only"),
    Fault(shape="length"),
    Fault(shape="refusal"),
    Fault(shape="content-filter"),
    Fault(shape="no-finish"),
    Fault(shape="no-done", cut=-30),
    Fault(usage="none"),
    Fault(usage="zero"),
    *(Fault(status=item.status, body=item.body) for item in OVERFLOW_BODIES[:3]),
    Answer("Half of a thought, and no form at all."),
)

# A command-line agent with the same share of trouble: it prints nonsense, nothing, or that it is out of luck; fails,
# dies, hangs, or leaves a child behind that holds its pipes. Each start is a line in the log, before anything else.
PROGRAM = f"""#!{sys.executable} -IS
import json, os, subprocess, sys, time, zlib
place = os.path.dirname(os.path.abspath(__file__))
prompt = sys.stdin.buffer.read()
log = os.open(place + "/starts", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
os.write(log, b"%d\\n" % os.getpid())
number = os.fstat(log).st_size
plan = json.load(open(place + "/plan.json"))
time.sleep(plan["latency"])
luck = zlib.crc32(b"%d/%d/" % (plan["seed"], number) + prompt)
said = {{"text": plan["text"], "used": {{"in": 10, "out": 5}}, "id": "thread-%d" % number}}
if luck % 1000 < plan["faulty"] * 1000:
    trouble = luck // 1000 % 8
    if trouble == 0: sys.exit(3)
    if trouble == 1: sys.exit(0)
    if trouble == 2: print("{{nonsense"); sys.exit(0)
    if trouble == 3: print("429 Too Many Requests", file=sys.stderr); sys.exit(1)
    if trouble == 4: time.sleep(300)
    if trouble == 5: os.kill(os.getpid(), 9)
    if trouble == 6: print(json.dumps(said)[:80]); sys.exit(0)
    subprocess.Popen([sys.executable, "-IS", "-c", "import time; time.sleep(300)"])
print(json.dumps(said))
"""
AGENT_FILE = AGENT
AGENT_TEXT = agent_text("Mine says: stage it.")
