"""What a provider is asked and what it answers: a logged request, an answer, and replies in cdo's formats.

The texts follow the reply formats that cdo demands of models. Without a script every answer is a function
of the call's name and of the names in its prompt (voices, claims, what the final answer must mark), so that
two runs of the same calls get the same replies.
"""

from __future__ import annotations

import functools
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from multidict import CIMultiDictProxy

from cdo.core.exchange import ToolCall, Usage

if TYPE_CHECKING:
    from tests.support.faults import Fault

# fmt: off
ROLES = (
    "architect", "critic", "pragmatist", "systems", "security-reviewer", "operator", "economist",
    "historian", "tester", "user-advocate", "data-modeller", "performance-engineer", "maintainer",
    "skeptic", "lawyer", "ethicist", "futurist", "newcomer", "integrator", "statistician",
)
# fmt: on
OBJECTORS = {"critic", "skeptic", "refuter"}


@dataclass(eq=False)
class RequestInfo:
    """One request as the provider saw it; `ended` and what follows are filled in when it is over."""

    method: str
    path: str
    headers: CIMultiDictProxy[str]
    body: Any  # parsed JSON; the text itself where it is not JSON; None where there is none
    arrived: float  # time.monotonic() when the headers had been read
    number: int = 0  # counts every request of the provider, from 1
    nth: int = 0  # counts the requests with this call name, from 1
    port: int = 0  # the client's: requests with the same one shared a connection
    ended: float | None = None
    status: int = 0  # 0 where the connection was dropped before any header
    fault: Fault | None = None
    left: bool = False  # the client went away before the answer was complete
    kind: str = field(init=False)
    call: str = field(init=False)
    attempt: int = field(init=False)

    def __post_init__(self) -> None:
        self.kind = self.headers.get("X-Cdo-Kind", "")
        self.call = self.headers.get("X-Cdo-Call", "")
        attempt = self.headers.get("X-Cdo-Attempt", "")
        self.attempt = int(attempt) if attempt.isdecimal() else 1

    @property
    def is_call(self) -> bool:
        """Whether this asks a model something (and does not list models, say)."""
        return self.method == "POST" and self.path.endswith(("/chat/completions", "/messages", "/responses"))

    @property
    def anthropic(self) -> bool:
        """Whether the Messages protocol is spoken, not Chat Completions."""
        return self.path.endswith("/messages")

    @property
    def responses(self) -> bool:
        """Whether the Responses protocol is spoken."""
        return self.path.endswith("/responses")

    @property
    def streaming(self) -> bool:
        """Whether a streamed answer is asked for."""
        return isinstance(self.body, dict) and bool(self.body.get("stream"))

    @property
    def prompt(self) -> str:
        """All text of the request's messages, system prompt first."""
        if not isinstance(self.body, dict):
            return ""
        messages = self.body.get("input" if self.responses else "messages")
        contents = [self.body.get("instructions" if self.responses else "system")]
        contents += [item.get("content") for item in messages if isinstance(item, dict)] if messages else []
        return "\n\n".join(filter(None, map(_content_text, contents)))


def _content_text(content: Any) -> str:
    if isinstance(content, list):
        parts = [part.get("text") or part.get("content") or "" for part in content if isinstance(part, dict)]
        return "".join(part if isinstance(part, str) else _content_text(part) for part in parts)
    return content if isinstance(content, str) else ""


@dataclass(frozen=True)
class Answer:
    """What a model says. `finish` is Chat Completions' word for it; Messages gets its own translation.

    `usage` None is counted from the texts, four characters a token; `latency` None is the provider's. `redacted` is
    reasoning that Messages shows to nobody.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish: str = ""  # "" is "tool_calls" where there are some, else "stop"
    refusal: str = ""
    usage: Usage | None = None
    latency: float | None = None
    redacted: str = ""

    @property
    def finish_reason(self) -> str:
        return self.finish or ("tool_calls" if self.tool_calls else "stop")


def _quoted(value: object) -> str:
    """A value as JSON, which is YAML too."""
    return json.dumps(value, ensure_ascii=False)


def _prose(subject: str) -> str:
    """About 900 characters of Markdown about `subject`."""
    return f"""## Reasoning

Seen from {subject}, the question turns on what can be undone. A choice that one release can take back
needs less proof than one that binds the data for years, and the two are mixed in the question as it
stands. Measured on the last quarter, most of the delay comes from waiting on reviews and not from the
code, so a plan that shortens the queue beats a plan that rewrites the engine.

- Do the reversible half first and keep the old path behind a switch.
- Measure before and after with the same load, and publish both figures.
- Decide on the irreversible half only when the first month of figures is in.

## What would change this view

A hard date from outside, a regulator's letter, or a measurement that shows the old path losing data.
None of the three is on the table now. The strongest argument against is cost: two paths have to be
kept alive for a while, and somebody has to remember to delete one of them.
"""


def agent_text(
    position: str,
    confidence: float = 0.7,
    objections: Sequence[str | tuple[str, int] | Mapping[str, Any]] = (),
    claims: Sequence[str | Mapping[str, Any]] = ("The first half can be undone within one release.",),
    prose: str | None = None,
    withdraws: Sequence[str] = (),
) -> str:
    """A voice's reply. Ids are numbered where only texts are given; an objection's severity is then 5."""
    lines = [f"position: {_quoted(position)}", f"confidence: {confidence}"]
    lines += ["claims:"] if claims else []
    for number, claim in enumerate(claims, 1):
        item: Mapping[str, Any] = {"text": claim} if isinstance(claim, str) else claim
        lines += [
            f"  - id: {item.get('id', f'c{number}')}",
            f"    text: {_quoted(item['text'])}",
            f"    evidence: {_quoted(list(item.get('evidence', ['reasoning'])))}",
        ]
    lines += ["objections:"] if objections else []
    for number, objection in enumerate(objections, 1):
        if isinstance(objection, tuple):
            objection = {"text": objection[0], "severity": objection[1]}
        elif isinstance(objection, str):
            objection = {"text": objection}
        lines += [
            f"  - id: {objection.get('id', f'o{number}')}",
            f"    text: {_quoted(objection['text'])}",
            f"    severity: {objection.get('severity', 5)}",
            *([f"    against: {_quoted(objection['against'])}"] if "against" in objection else []),
        ]
    lines += [f"withdraws: {_quoted(list(withdraws))}"] if withdraws else []
    return "\n".join(["---", *lines, "---", "", _prose("this seat") if prose is None else prose])


def role_names(width: int) -> list[str]:
    """`width` different role names."""
    return [*ROLES[:width], *(f"voice-{number}" for number in range(len(ROLES) + 1, width + 1))]


def voices_in(prompt: str) -> tuple[str, ...]:
    """The voices whose replies a prompt shows, in the order in which it shows them."""
    return tuple(dict.fromkeys(re.findall(r'(?m)^<voice role="([^"]+)"', prompt)))


def camps_of(voices: Sequence[str], agreement: float = 0.6) -> dict[str, Sequence[str]]:
    """Two camps, of which the first holds the share `agreement` of the voices (at least one of them)."""
    first = max(1, round(agreement * len(voices)))
    camps = {"Stage it: the reversible half now": voices[:first], "Decide on the whole at once": voices[first:]}
    return {position: who for position, who in camps.items() if who}


def synthesis_text(
    *,
    width: int = 3,
    roles: Sequence[str | Mapping[str, Any]] | None = None,
    skills: Sequence[str] = (),
    focus: str = "what the first month of figures has to show",
    confidence: float = 0.7,
    exit_ready: bool = False,
    tensions: Sequence[str | Mapping[str, str]] = (),
    gaps: Sequence[str] = (),
    voices: Sequence[str] = (),
    agreement: float = 0.6,
    camps: Mapping[str, Sequence[str]] | None = None,
    objections: Sequence[Mapping[str, Any]] = (),
    **more: Any,
) -> str:
    """A synthesis with its directive. A tension given by title alone is open, its id its place (T1, T2 …).

    `camps` are the voices by their answer; without them the share `agreement` of `voices` gives one answer. Without
    either no camp is named: then each voice of the turn is a camp of its own. `more` are further keys.
    """
    ledger = [
        {"id": f"T{number}", "title": item, "status": "open"} if isinstance(item, str) else dict(item)
        for number, item in enumerate(tensions, 1)
    ]
    camps = camps_of(voices, agreement) if camps is None else camps
    directive = {
        "width": width,
        "roles": role_names(width) if roles is None else list(roles),
        "skills": list(skills),
        "focus": focus,
        "confidence": confidence,
        "exit_ready": exit_ready,
        "camps": [{"position": what, "voices": list(who)} for what, who in camps.items()],
        "tensions": ledger,
        **({"objections": [dict(item) for item in objections]} if objections else {}),
        "gaps": list(gaps),
        **more,
    }
    block = "\n".join(f"{key}: {_quoted(value)}" for key, value in directive.items())
    told = [f"- {item['id']} ({item.get('status', 'open')}): {item['title']}" for item in ledger]
    return f"""## Common ground

Every voice would rather begin with the half that can be undone, and wants the same load measured twice.

## Tensions

{chr(10).join(told) or "- None that is left."}

## Gaps

{chr(10).join(f"- {gap}" for gap in gaps) or "- None that is new."}

## Surprises

- The queue of reviews costs more than the engine everybody came to talk about.

## Anti-groupthink

The shared assumption is that the old path can be kept alive cheaply.

## Next turn directive

```yaml
{block}
```
"""


def findings_text(findings: Sequence[tuple[int, str] | tuple[int, str, Sequence[str]]]) -> str:
    """A ranked list: each finding is (rank, text) or (rank, text, sources), its id its place (F1, F2 …)."""
    items = [
        {"id": f"F{number}", "rank": rank, "text": text, "sources": list(*sources)}
        for number, (rank, text, *sources) in enumerate(findings, 1)
    ]
    return f"```yaml\nfindings: {_quoted(items)}\n```\n"


def review_text(**entries: Sequence[str]) -> str:
    """A review of a draft; `entries` are lists under errors, refuted, missing, numbers, unclear and cut."""
    lists = {key: list(entries.get(key, ())) for key in ("errors", "refuted", "missing", "numbers", "unclear", "cut")}
    block = "\n".join(f"{key}: {_quoted(value)}" for key, value in lists.items())
    return f"```yaml\n{block}\n```\n"


def final_text(
    decision: str,
    tensions: Sequence[str] = (),
    minority: str | Sequence[str] = "None was recorded.",
    confidence: float = 0.7,
    actions: Sequence[str] = ("Put the switch in and measure for one month.",),
) -> str:
    """A final answer. Each of `tensions` is an id, or a sentence about one; `minority` is text or a list."""
    told = [item if " " in item else f"{item}: argued both ways, settled by the way back" for item in tensions]
    reports = minority if isinstance(minority, str) else "\n".join(f"- {item}" for item in minority)
    return f"""## Decision

{decision}

## Confidence

{confidence}: the voices agree on the first step and differ on the second.

## Key Tensions

{chr(10).join(f"- {item}" for item in told) or "None."}

## Minority Reports

{reports}

## Action Items

{chr(10).join(f"- {item}" for item in actions) or "None."}
"""


def demanded(prompt: str) -> tuple[list[str], list[str]]:
    """The ids that a final answer must mark: findings of the first rank, and what only an outside fact can settle."""
    part = prompt.rpartition("# Your part")[2]
    findings = re.findall(r"(?m)^- (F\d+)(?: \(rank 1\))?: ", part)
    outside = re.split(r"(?m)^These can only be found out elsewhere", part)[1:]
    return findings, re.findall(r"(?m)^- (T\d+): ", "".join(outside))


def default_answer(info: RequestInfo, width: int = 3) -> Answer:
    """The answer without a script. Syntheses never end the run: each opens a tension and a gap of its own."""
    if info.kind in ("draft", "final"):
        return Answer(_default_final(info.prompt))
    if info.kind == "findings":
        return Answer(_default_findings(info.prompt))
    return Answer(_default_text(info.kind, info.call, width, voices_in(info.prompt)))


@functools.lru_cache(maxsize=4096)
def _default_text(kind: str, call: str, width: int, voices: tuple[str, ...]) -> str:
    match = re.fullmatch(r"t(\d+)-(.+)", call)
    turn, role = (int(match[1]), match[2]) if match else (1, call or "nobody in particular")
    if kind == "agent":
        objection = (f"{role} objects: the way back of turn {turn} is untested", 6)
        return agent_text(
            f"Stage it: the reversible half now, as seen by {role} in turn {turn}.",
            confidence=round(0.6 + zlib.crc32(call.encode()) % 20 / 100, 2),
            objections=[objection] if role in OBJECTORS else (),
            prose=_prose(role),
        )
    if kind == "synthesis":
        older = [{"id": f"T{turn - 1}", "title": f"speed against safety in turn {turn - 1}", "status": "resolved"}]
        opened = {"id": f"T{turn}", "title": f"speed against safety in turn {turn}", "status": "open"}
        return synthesis_text(
            width=width,
            confidence=min(0.79, round(0.6 + turn / 50, 2)),
            tensions=[*older[: turn - 1], opened],
            gaps=[f"nobody has measured what turn {turn} assumes"],
            focus=f"the assumption of turn {turn}",
            voices=sorted(voices),
        )
    if kind == "review":
        return review_text()
    return f"Answer to {call or 'the request'}.\n\n{_prose(role)}"


def _default_findings(prompt: str) -> str:
    """The first claim is of the first rank; code adds the others in the second."""
    sources = re.findall(r"(?m)^- (t\d+-\S+/\S+): (.+)", prompt.rpartition("# Your part")[2])
    ident, text = sources[0] if sources else ("", "The first half can be undone.")
    return findings_text([(1, text, [ident] if ident else [])])


def _default_final(prompt: str) -> str:
    findings, outside = demanded(prompt)
    unanswered = re.findall(r"(?m)^- severity \d+(?:, against [^:\n]*)?: (.+)", prompt.rpartition("# Your part")[2])
    reasons = [f"The first half can be undone within one release. [{ident}]" for ident in findings]
    return final_text(
        "\n\n".join(
            ["Stage it: build the reversible half now, and decide on the rest when the figures are in.", *reasons]
        ),
        tensions=["Speed against safety: settled by the way back."],
        minority=unanswered or "None was recorded.",
        actions=[
            "Put the switch in and measure for one month.",
            *(f"Ask who can tell, and wait for the answer. [{ident}]" for ident in outside),
        ],
    )


def filled(schema: Mapping[str, Any], value: Any = None) -> Any:
    """A value with all keys that a strict schema asks for: those that it lacks are empty."""
    if "anyOf" in schema:
        null = value is None and {"type": "null"} in schema["anyOf"]
        fitting = {dict: "object", list: "array", str: "string", int: "number"}.get(type(value))
        return None if null else filled(next(part for part in schema["anyOf"] if part["type"] == fitting), value)
    match schema["type"]:
        case "object" if isinstance(value, str):  # a criterion
            return filled(schema, {"text": value})
        case "object":
            return {key: filled(part, (value or {}).get(key)) for key, part in schema["properties"].items()}
        case "array":
            return [filled(schema["items"], item) for item in value or ()]
        case "string" if value is None:
            return schema.get("enum", [""])[-1]
    return value
