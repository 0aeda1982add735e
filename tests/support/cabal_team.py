"""A scripted team: valid replies of every step, and two missions for the loopback provider to play.

`todo_script` is the TODO list of seed 000, part 9: three rounds with a team of two. `busy_script` makes a mission of
many products and rounds, for measurements. Both are functions of the call's name, the same for every run; from the
prompt they take only what a name does not tell: which events there are, and which products are to be looked at.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cdo.formats.document_blocks import joined
from tests.support.answers import RequestInfo

ALEX, JORDAN = "operative-1", "operative-2"
NAME = re.compile(r"r(\d+)-([a-z]+?)(?:-(operative-\d+|p\d+))?(?:-p\d+)?(?:-again)?(?:-\d+)?")
_EVENT = re.compile(r"^- e([1-9]\d*): ", re.MULTILINE)  # as the envoy's prompt lists them
REQUEST = "Build a simple TODO list web application MVP"

Fields = Mapping[str, Any]


# -- replies ---------------------------------------------------------------------------------------


def said(**keys: Any) -> str:
    """A final reply with these keys."""
    return json.dumps({"response_type": "final_output", **keys}, ensure_ascii=False)


def asking(*pairs: tuple[str, str]) -> str:
    """A request for context: (product, need) pairs."""
    requests = [{"product_id": product, "need": need} for product, need in pairs]
    return json.dumps({"response_type": "request_context", "requests": requests})


def question(message: str, *options: str, **keys: Any) -> str:
    """A halt with a question for the user."""
    halt = {"type": "question", "to": ["u:all"], "message": message, "options": list(options)}
    return json.dumps({"response_type": "halt", "halt": halt, **keys})


def product(name: str, kind: str = "Content", *dod: str | Fields, **keys: Any) -> dict[str, Any]:
    """A product to be made; without criteria it gets one."""
    return {"name": name, "type": kind, "dod": list(dod) or [f"Says all that {name} has to say"], **keys}


def bootstrap(**changes: Any) -> str:
    """The charter of the TODO list, a team of two, and three products: the Change Log, a Decision, a Content."""
    fields = {
        "mission": "Specify a TODO list MVP with task CRUD, secure authentication and a responsive user interface.",
        "objectives": ["Functional CRUD of tasks", "Secure authentication", "A responsive user interface"],
        "constraints": ["Specification only: no code is deployed"],
        "personas": {
            "chair-1": "You are Richard, Full-Stack Developer leading this MVP.",
            ALEX: "You are Alex, Full-Stack Developer owning the frontend.",
            JORDAN: "You are Jordan, Full-Stack Developer owning the backend.",
            "watchdog-1": "You are Marco, who breaks things before others do.",
            "envoy-1": "You are Stacy, who tells users what happened in plain words.",
        },
        "operative_domains": {
            ALEX: {"responsibility": "Frontend implementation including React", "area": "Frontend Development"},
            JORDAN: {"responsibility": "API design and authentication", "area": "Backend Development"},
        },
        "initial_products": [
            product("Change Log", owner="chair-1", new_id="new-1"),
            product("MVP Features Selection", "Decision", *FEATURES, new_id="new-2"),
            product("Technical Architecture", "Content", *ARCHITECTURE, new_id="new-3"),
        ],
    }
    return said(**{**fields, **changes})


def reflection(product: str, status: str = "partially_met", **keys: Any) -> dict[str, Any]:
    """One reflection."""
    return {"refersToProduct": product, "dod_status": status, **keys}


def reflect(*reflections: Fields, **changes: Any) -> str:
    """Reflections."""
    return said(**{"reflections": list(reflections), **changes})


def assignment(
    product: str, *assignees: str, objective: str = "Write the next version", **keys: Any
) -> dict[str, Any]:
    """An order: the first of `assignees` writes, the others review."""
    directive = {"importance": 7, "objective": objective, "dod": "", "why": "It is next.", "context": ""}
    return {"product_id": product, "assignee_ids": list(assignees), "directive": directive, **keys}


def plan(*assignments: Fields, **changes: Any) -> str:
    """A plan with these assignments."""
    return said(**{"assignments": list(assignments), **changes})


def done(message: str = "All products are accepted. The specification is ready.", **keys: Any) -> str:
    """The chair ends the mission."""
    halt = {"type": "done", "to": ["u:all"], "message": message}
    return json.dumps({"response_type": "halt", "halt": halt, **keys})


def version(product: str, title: str, content: str, summary: str = "First draft", **keys: Any) -> dict[str, Any]:
    """A new version."""
    return {"product_id": product, "title": title, "content": content, "change_summary": summary, **keys}


def write(*versions: Fields, **changes: Any) -> str:
    """Versions."""
    return said(**{"versions": list(versions), **changes})


def beside(text: str, key: str) -> tuple[str, str]:
    """A reply of a mission's team as an object, and the documents of its entries of this key as blocks."""
    data = json.loads(text)
    documents = joined([(item["product_id"], item.pop("content")) for item in data.get(key, ())])
    return json.dumps(data), documents


def collab(product: str, summary: str, kind: str = "suggestion", importance: int = 5, **keys: Any) -> dict[str, Any]:
    """Something said of a product."""
    fields = {"refersToProduct": product, "type": kind, "importance": importance}
    return {**fields, "comment": f"{summary}.", "shortestSummary": summary, **keys}


def review(*collabs: Fields, **changes: Any) -> str:
    """What a reviewer says."""
    return said(**{"collabs": list(collabs), **changes})


def inspection(product: str, version: str = "", quotes: Fields | None = None, *findings: Fields) -> dict[str, Any]:
    """An inspection: `quotes` by criterion, of which one that is empty says that the criterion is not met.

    Without quotes, the inspection of the root proves the objectives of the TODO list.
    """
    if product == "p1" and quotes is None:
        quotes = PROVED
    criteria = [
        {"criterion_id": id, "quote": quote, "note": "" if quote else "It is not shown", "passed": bool(quote)}
        for id, quote in (quotes or {}).items()
    ]
    item = {"product_id": product, "criteria": criteria, "findings": list(findings)}
    return {**item, **({"version_id": version} if version else {})}


def finding(category: str, severity: int, issue: str, **keys: Any) -> dict[str, Any]:
    """What an inspection found."""
    return {"category": category, "severity": severity, "issue": issue, "recommendation": "Fix it.", **keys}


def inspect(*inspections: Fields, **changes: Any) -> str:
    """Inspections."""
    return said(**{"inspections": list(inspections), **changes})


def of_product(text: str, call: str) -> str:
    """A reply that inspects several products, as it is for the one that a call (r1-inspect-p3) is about."""
    about = call.split("-")[2]
    try:
        found = json.loads(text)
        found["inspections"] = [item for item in found["inspections"] if item["product_id"] == about]
    except (ValueError, KeyError):
        return text
    return json.dumps(found, ensure_ascii=False)


def present(*messages: tuple[str, str], events: Sequence[str] = ("e1",), **changes: Any) -> str:
    """Messages: (agent, content), all resting on the same events."""
    items = [{"as_agent": agent, "content": content, "events": list(events)} for agent, content in messages]
    return said(**{"messages": items, **changes})


def newest_events(prompt: str) -> list[str]:
    """The newest event that an envoy's prompt shows; the end of the mission if it shows that."""
    if end := re.findall(r"(?m)^- (e\d+): The chair declared the mission done", prompt):
        return end[-1:]
    return [f"e{max(map(int, _EVENT.findall(prompt)), default=1)}"]


# -- the TODO list of seed 000, part 9 -------------------------------------------------------------

FEATURES = (
    {"text": "Lists task CRUD", "check": {"kind": "regex", "value": "(?i)create, read, update and delete"}},
    "Says how users log in, safely against script injection",
)
ARCHITECTURE = ("Names the tech stack", {"text": "Is long enough", "check": {"kind": "min_words", "value": 15}})
CRUD = "Users create, read, update and delete tasks."
STACK = "React in the browser, Node on the server, PostgreSQL behind it, for [[p:p3]]."
LOG = "# Change Log\n\n- Round 1: features and architecture are drafted side by side."
LOG_2 = f"{LOG}\n- Round 2: the login moves to httpOnly cookies; errors get a product of their own."
LOG_3 = f"{LOG_2}\n- Round 3: everything passed its inspection and is accepted as it stands."
UNSAFE = f"# MVP features\n\n{CRUD}\n\n## Login\n\nA JWT is kept in localStorage and sent with every request."
SAFE = (
    f"# MVP features\n\n{CRUD}\n\n## Login\n\nA session id is kept in an httpOnly cookie with SameSite=Lax, which no "
    "script can read. A CSRF token goes with every request that changes something."
)
DRAFT = f"# Technical architecture\n\n{STACK}\n\nEvery request passes one gateway that checks who sends it."
LIMITED = f"{DRAFT}\n\n## Rate limiting\n\nTen logins a minute for one address, then HTTP 429 as in [[p:p5]]."
ERRORS = "# Error handling\n\nEvery error is problem+json with a stable code, a title for people and a trace id."
PROVED = {"d1": CRUD, "d2": "Every request passes one gateway", "d3": "React in the browser"}  # the objectives
XSS = "JWT in localStorage is open to XSS"


def todo_script(info: RequestInfo) -> str:
    """What the team of the TODO list says to one request (a `Script` of the provider)."""
    return todo(info.call, newest_events(info.prompt))


def todo(call: str, events: Sequence[str]) -> str:
    """What the team of the TODO list says in the call of this name; messages rest on `events`."""
    match = NAME.fullmatch(call)
    assert match, call
    number, step, agent = int(match[1]), match[2], match[3] or ""
    if step == "present":
        return present(*_TOLD[number], events=events)
    known = {"bootstrap": bootstrap, **_ROUNDS[number]}
    return known.get(f"{step}-{agent}".rstrip("-"), {"reflect": reflect, "review": review}.get(step, write))()


def _plan_1() -> str:
    return plan(
        assignment("p3", JORDAN, ALEX, objective="Select the features of the MVP and how users log in"),
        assignment("p4", ALEX, JORDAN, objective="Draft the architecture"),
        chair_versions=[version("p2", "Change Log", LOG)],
        remarks=[{"recipients": ["team"], "type": "note", "content": "Decide first, then build."}],
    )


def _plan_2() -> str:
    errors = product("Error Handling", "Content", "Names the format of errors")
    return plan(
        assignment("p3", JORDAN, ALEX, objective="Switch the login to httpOnly cookies", address=["c3"]),
        assignment("p4", ALEX, JORDAN, objective="Add rate limiting"),
        assignment("new-1", ALEX, JORDAN, objective="Say what clients see when something fails"),
        tree_operations=[
            {"action": "ADD", "new_id": "new-1", "parent_id": "p1", "product": errors, "reason": "Both sides need it"}
        ],
        chair_versions=[version("p2", "Change Log", LOG_2, "Adds round 2")],
    )


def _inspect_unsafe() -> str:
    stolen = finding("security", 9, XSS, criterion_id="d2", recommendation="Use httpOnly cookies.")
    return inspect(inspection("p3", "v3", {"d1": CRUD, "d2": ""}, stolen))


def _inspect_safe() -> str:
    safe = inspection("p3", "v7", {"d1": CRUD, "d2": "A session id is kept in an httpOnly cookie"})
    return inspect(safe, confirms=["c3"])


def _inspect_errors() -> str:
    return inspect(inspection("p5", "v6", {"d1": "problem+json"}, finding("quality", 3, "An example would help")))


def _answered(product: str, *collabs: str, status: str = "partially_met", delta: str = "") -> str:
    responses = [{"collab_id": id, "action": "accept", "planned_change": delta} for id in collabs]
    return reflect(reflection(product, status, feedback_responses=responses, next_version_delta=delta))


_ROUNDS: dict[int, dict[str, Callable[[], str]]] = {
    0: {},
    1: {
        "plan": _plan_1,
        f"write-{ALEX}": lambda: write(version("p4", "Technical architecture", DRAFT)),
        f"write-{JORDAN}": lambda: write(
            version("p3", "MVP features", UNSAFE, outcome="Task CRUD, login by JWT in localStorage")
        ),
        f"review-{ALEX}": lambda: review(collab("p3", "Say how long a login lasts", "question", 4)),
        f"review-{JORDAN}": lambda: review(collab("p4", "Say what a client sees when limited", "suggestion", 6)),
        "inspect-p3": _inspect_unsafe,
        "inspect-p4": lambda: inspect(
            inspection("p4", "v2", {"d1": "React in the browser", "d2": "Every request passes one gateway"})
        ),
    },
    2: {
        f"reflect-{ALEX}": lambda: _answered("p4", "c2", delta="Rate limits, with error codes aligned"),
        f"reflect-{JORDAN}": lambda: _answered("p3", "c1", "c3", delta="Sessions in httpOnly cookies"),
        "plan": _plan_2,
        f"write-{ALEX}": lambda: write(
            version("p4", "Technical architecture", LIMITED, "Adds rate limiting"),
            version("p5", "Error handling", ERRORS),
        ),
        f"write-{JORDAN}": lambda: write(
            version("p3", "MVP features", SAFE, "Sessions in httpOnly cookies, for [[c:c3]]", addresses=["c3"],
                    outcome="Task CRUD, login by a session in an httpOnly cookie")
        ),
        f"review-{ALEX}": lambda: review(collab("p3", "The login is sound now", "endorsement", 6)),
        f"review-{JORDAN}": lambda: review(collab("p4", "The limits fit the API", "endorsement", 5)),
        "inspect-p3": _inspect_safe,
        "inspect-p4": lambda: inspect(
            inspection("p4", "v5", {"d1": "React in the browser", "d2": "Ten logins a minute"})
        ),
        "inspect-p5": _inspect_errors,
        "inspect-p1": lambda: inspect(inspection("p1")),
    },
    3: {
        f"reflect-{ALEX}": lambda: _answered("p4", status="met"),
        f"reflect-{JORDAN}": lambda: _answered("p3", status="met"),
        "plan": lambda: done(
            chair_versions=[version("p2", "Change Log", LOG_3, "Closes the log")]
        ),
    },
}  # fmt: skip
_TOLD = {
    1: (
        (JORDAN, "Hit a security issue with auth. We need to switch to httpOnly cookies."),
        (ALEX, "The architecture has its first draft."),
    ),
    2: (
        (JORDAN, "The login is solid now."),
        (ALEX, "Limits and errors are aligned with it. All of it is ready for acceptance."),
    ),
    3: (("chair-1", "Mission complete! The specification of the MVP is ready."),),
}


# -- a large mission -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Busy:
    """A mission of `products` Contents over `rounds`, written in turn by a team of `team`.

    In every round but the last each operative writes some four to eight products, more where there are too few rounds
    for all; the last round ends the mission. `size` is characters of a version.
    """

    products: int = 50
    rounds: int = 20
    team: int = 4
    size: int = 2000

    def __call__(self, info: RequestInfo) -> str:
        """What the team says to one request (a `Script` of the provider)."""
        return self.reply(info.call, info.prompt)

    def reply(self, call: str, prompt: str) -> str:
        """What the team says in the call of this name; the prompt tells which versions and events it shows."""
        match = NAME.fullmatch(call)
        assert match, call
        number, step = int(match[1]), match[2]
        who = int(match[3].rpartition("-")[2]) if (match[3] or "").startswith("operative") else 0
        match step:
            case "bootstrap":
                return self._bootstrap()
            case "reflect":
                seen = sorted(self._before(number) & self._part(who))
                return reflect(*(reflection(_id(item), next_version_delta="More of it.") for item in seen[:4]))
            case "plan":
                return self._plan(number)
            case "write":
                mine = (item for item in self.windows[number] if item in self._part(who))
                return write(*(self._version(number, item) for item in mine))
            case "review":
                shown = self._shown(number, prompt)[:2]
                return review(*(collab(_id(item), f"Round {number}: say more about costs") for item in shown))
            case "inspect":
                return self._inspect(number, prompt)
        told = ("chair-1", "Some of the work is through, the rest goes on.")
        return present(told, events=newest_events(prompt))

    @cached_property
    def windows(self) -> dict[int, list[int]]:
        """The numbers (from 0) of the products that are written in each round, those of one operative together."""
        least = -(-self.products // (self.team * max(1, self.rounds - 1)))
        count = min(self.products, self.team * max(least, 6))  # the same in each, so that rounds can be compared
        found, start = {self.rounds: list[int]()}, 0
        for number in range(1, self.rounds):
            items = [(start + place) % self.products for place in range(count)]
            found[number] = sorted(items, key=lambda item: (item % self.team, item))
            start += count
        return found

    def _part(self, who: int) -> set[int]:
        return set(range(who - 1, self.products, self.team))

    def _before(self, number: int) -> set[int]:
        """What was written before this round."""
        return {item for earlier in range(1, number) for item in self.windows[earlier]}

    def _last(self, number: int, item: int) -> int:
        """The round up to this one in which a product was last written."""
        return next(earlier for earlier in range(number, 0, -1) if item in self.windows[earlier])

    def _version_id(self, number: int, item: int) -> str:
        earlier = sum(len(self.windows[other]) for other in range(1, number))
        return f"v{earlier + self.windows[number].index(item) + 1}"

    def _approved(self, number: int, item: int) -> bool:
        """Whether a version passes: one in three does not, unless it is its product's last."""
        last = all(item not in self.windows[later] for later in range(number + 1, self.rounds + 1))
        return last or (item + number) % 3 > 0

    def _bootstrap(self) -> str:
        domains = {
            f"operative-{who}": {"responsibility": f"Part {who} of the handbook", "area": f"Area {who}"}
            for who in range(1, self.team + 1)
        }
        first = [product(_title(item), "Content", *_CRITERIA) for item in range(min(40, self.products))]
        return bootstrap(
            mission="Write a handbook of many chapters.",
            objectives=["Every chapter says what it has to"],
            personas={},
            operative_domains=domains,
            initial_products=first,
        )

    def _plan(self, number: int) -> str:
        late = range(40, self.products) if number == 1 else ()
        operations = [
            {
                "action": "ADD", "new_id": f"new-{item}", "parent_id": "p1",
                "product": product(_title(item), "Content", *_CRITERIA),
            }
            for item in late
        ]  # fmt: skip
        if number == self.rounds:
            return done()
        orders = (assignment(_id(item), f"operative-{item % self.team + 1}") for item in self.windows[number])
        return plan(*orders, tree_operations=operations)

    def _version(self, number: int, item: int) -> dict[str, Any]:
        pick = random.Random(f"{number}-{item}")
        words, size = [_mark(number, item), "\n\nIt covers costs and risks.\n\n"], 0
        while size < self.size:
            words.append(f"{pick.choice(_VERBS)} {pick.choice(_NOUNS)} {pick.randrange(10_000)}. ")
            size += len(words[-1])
        return version(_id(item), _title(item), "".join(words), f"Rewritten in round {number}")

    def _shown(self, number: int, prompt: str) -> list[int]:
        """Of this round's versions those that a prompt shows whole."""
        return [item for item in sorted(self.windows[number]) if _mark(number, item) in prompt]

    def _inspect(self, number: int, prompt: str) -> str:
        section = prompt.partition("# To inspect\n")[2].partition("# What it holds\n")[0]
        due = [int(id) - 2 for id in re.findall(r"(?m)^## p(\d+) ", section)]
        whole = (inspection("p1", "", {"d1": "It covers costs and risks."}) for item in due if item < 0)
        return inspect(*(self._inspection(self._last(number, item), item) for item in due if item >= 0), *whole)

    def _inspection(self, number: int, item: int) -> dict[str, Any]:
        quotes = {"d1": _mark(number, item), "d2": "It covers costs and risks."}
        findings = () if self._approved(number, item) else (finding("quality", 6, "It is too general"),)
        return inspection(_id(item), self._version_id(number, item), quotes, *findings)


def busy_script(products: int = 50, rounds: int = 20) -> Busy:
    """The script of a large mission for a team of four."""
    return Busy(products, rounds)


_CRITERIA = ("Says which chapter it is", {"text": "Covers risks", "check": {"kind": "contains", "value": "risks"}})
_VERBS = ("Measure", "Buy", "Replace", "Inspect", "Move", "Rent", "Paint", "Seal", "Open", "Count", "Weigh", "Label")
_NOUNS = ("pump", "valve", "roof", "gate", "engine", "cable", "wall", "tank", "meter", "crane", "lamp", "floor")


def _id(item: int) -> str:
    return f"p{item + 2}"


def _title(item: int) -> str:
    return f"Chapter {item + 1}"


def _mark(number: int, item: int) -> str:
    return f"This is chapter {item + 1} as of round {number}."
