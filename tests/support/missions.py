"""A mission as it stands after its rounds, made by hand: the TODO list of seed 000, part 9.

`todo(1)` is blocked by the watchdog's finding of severity 9, `todo(2)` is approved, `todo(3)` is done.
"""

from __future__ import annotations

from msgspec.structs import replace

from cdo.cabal.model.entities import (
    Acceptance,
    Assignment,
    Check,
    Collab,
    Criterion,
    CriterionResult,
    EnvoyMessage,
    FeedbackResponse,
    Inspection,
    InspectionFinding,
    InspectionVerdict,
    Kind,
    Mission,
    MissionEvent,
    MissionStep,
    Product,
    Reflection,
    Remark,
    Status,
    Version,
)
from cdo.cabal.model.state import MissionState
from cdo.core.mission_names import CHAIR, ROOT, WATCHDOG, operatives

REQUEST = "Build a simple TODO list web application MVP"
TEAM = operatives(2)
ALEX, JORDAN = TEAM
MISSION = Mission(
    "Specify a TODO list MVP with task CRUD, secure authentication and a responsive user interface.",
    ("Functional CRUD of tasks", "Secure authentication", "A responsive user interface"),
    ("Specification only: no code is deployed",),
    {
        CHAIR: "You are Richard, Full-Stack Developer leading this MVP.",
        ALEX: "You are Alex, Full-Stack Developer owning the frontend.",
        JORDAN: "You are Jordan, Full-Stack Developer owning the backend.",
        WATCHDOG: "You are Marco, who breaks things before others do.",
        "envoy-1": "You are Stacy, who tells users what happened in plain words.",
    },
    {
        ALEX: ("Frontend implementation including React components", "Frontend Development"),
        JORDAN: ("Backend architecture including API design and authentication", "Backend Development"),
    },
)
FEATURES = (
    Criterion("d1", "Lists task CRUD", Check("contains", "create")),
    Criterion("d2", "Says how users log in, safely against script injection"),
)
ARCHITECTURE = (
    Criterion("d1", "Has a section on rate limiting", Check("regex", "(?m)^## Rate limiting")),
    Criterion("d2", "Names the tech stack", Check("judged")),
)
OBJECTIVES = tuple(Criterion(f"d{place}", text) for place, text in enumerate(MISSION.objectives, 1))
V1 = "# MVP features\n\nUsers create, read, update and delete tasks.\n\nLog in: a JWT kept in localStorage."
V2 = "# Technical architecture\n\nReact, Node, PostgreSQL, for [[p:p3]].\n\n## Rate limiting\n\nTen logins a minute."
V3 = V1.replace("a JWT kept in localStorage", "a session in an httpOnly cookie, SameSite=Lax")
V4 = V2.replace("Ten logins a minute.", "Ten logins a minute, then HTTP 429 as in [[p:p5]].")
V5 = "# Error handling\n\nEvery error is problem+json with a stable code."


def todo(rounds: int) -> MissionState:
    """The mission after so many rounds (0 to 3)."""
    state = [_born, _blocked, _approved, _done]
    made = MissionState(REQUEST, TEAM)
    for step in state[: rounds + 1]:
        made = step(made)
    return made


def _event(
    state: MissionState, step: MissionStep, kind: str, actor: str, text: str, product: str = "", ref: str = ""
) -> MissionState:
    item = MissionEvent(f"e{len(state.events) + 1}", state.round, step, kind, actor, text, product, ref)
    return replace(state, events=(*state.events, item))


def _born(state: MissionState) -> MissionState:
    mission = "Specify a TODO list MVP"
    products = {
        ROOT: Product(ROOT, mission, Kind.ORCHESTRATION, None, CHAIR, OBJECTIVES, slug="specify-a-todo-list-mvp"),
        "p2": Product("p2", "Change Log", Kind.CONTENT, ROOT, CHAIR, (), meta=True, slug="change-log"),
        "p3": Product("p3", "MVP Features Selection", Kind.DECISION, ROOT, None, FEATURES, slug="mvp-features"),
        "p4": Product("p4", "Technical Architecture", Kind.CONTENT, ROOT, None, ARCHITECTURE, slug="tech-arch"),
    }
    state = replace(state, mission=MISSION, products=products)
    state = _event(state, MissionStep.BOOTSTRAP, "mission", CHAIR, "The mission was set")
    for item in products.values():
        state = _event(state, MissionStep.BOOTSTRAP, "created", CHAIR, f"{item.name} was planned", item.id)
    return state


def _blocked(state: MissionState) -> MissionState:
    """Round 1: two versions, a suggestion, and the watchdog's flag on the token in localStorage."""
    products = dict(state.products)
    products["p3"] = replace(products["p3"], owner=JORDAN, status=Status.IN_PROGRESS, versions=("v1",))
    products["p4"] = replace(products["p4"], owner=ALEX, status=Status.IN_PROGRESS, versions=("v2",))
    state = replace(
        state,
        round=1,
        products=products,
        assignments={
            "p3": Assignment(
                "p3", JORDAN, (), 8, "Select the features", "CRUD and login", "It comes first", "", 1
            ),
            "p4": Assignment("p4", ALEX, (JORDAN,), 7, "Draft the architecture", "", "", "", 1, attach=("p3",)),
        },
        versions={
            "v1": Version("v1", 1, "p3", JORDAN, "MVP features", V1, "First draft", 1, "CRUD, JWT in localStorage"),
            "v2": Version("v2", 1, "p4", ALEX, "Technical architecture", V2, "First draft", 1),
        },
        collabs={
            "c1": Collab(
                "c1", "p4", "suggestion", 6, JORDAN, "Say what a client sees when limited.", "429?", 1, "v2"
            ),
            "c2": Collab(
                "c2", "p3", "concern", 9, WATCHDOG,
                "A token in localStorage is read by any injected script. Use an httpOnly cookie.",
                "JWT in localStorage is open to XSS", 1, "v1", "i1",
            ),
        },
        remarks=(Remark(ALEX, (CHAIR,), "question", "Do we need accounts at all?", 1, 9),),
        idle=0,
    )  # fmt: skip
    for product, ref, actor in (("p3", "v1", JORDAN), ("p4", "v2", ALEX)):
        state = _event(
            state, MissionStep.WRITE, "version", actor, f"{products[product].name} got its version 1", product, ref
        )
    state = _event(
        state, MissionStep.REVIEW, "collab", JORDAN, "Technical Architecture: 429? (suggestion, 6)", "p4", "c1"
    )
    state = _inspected(
        state,
        "i1",
        "p3",
        "v1",
        InspectionVerdict.BLOCKED,
        (
            CriterionResult("d1", True, "create", "", "code"),
            CriterionResult("d2", False, "", "The token can be stolen", WATCHDOG),
        ),
        (InspectionFinding("security", 9, "JWT in localStorage is open to XSS", "Use httpOnly cookies", "d2", "c2"),),
    )
    state = _inspected(
        state, "i2", "p4", "v2", InspectionVerdict.APPROVED,
        (
            CriterionResult("d1", True, "## Rate limiting", "", "code"),
            CriterionResult("d2", True, "React, Node, PostgreSQL", "", WATCHDOG),
        ),
        (),
    )  # fmt: skip
    return _says(
        state, JORDAN, "Hit a security issue with the login. We switch to httpOnly cookies.", state.events[-2].id
    )


def _inspected(
    state: MissionState,
    id: str,
    product: str,
    version: str,
    verdict: InspectionVerdict,
    results: tuple[CriterionResult, ...],
    findings: tuple[InspectionFinding, ...],
) -> MissionState:
    from cdo.cabal.model.entities import identity
    from cdo.cabal.rules.acceptance import parts

    name = state.products[product].name
    state = _event(state, MissionStep.INSPECT, "inspection", WATCHDOG, f"{name}: {verdict.value}", product, id)
    container = state.products[product].container
    item = Inspection(
        id, product, version, identity(state.products[product].dod), results, findings, verdict, state.round,
        len(state.events), parts(state, product) if container else (), "It says what it has to.",
    )  # fmt: skip
    return replace(state, inspections={**state.inspections, id: item})


def _says(state: MissionState, agent: str, content: str, *events: str) -> MissionState:
    state = replace(state, messages=(*state.messages, EnvoyMessage(state.round, agent, content, events)))
    return _event(state, MissionStep.PRESENT, "message", "envoy-1", content)


def _approved(state: MissionState) -> MissionState:
    """Round 2: the login is repaired, errors get a product of their own, everything is approved."""
    products = dict(state.products)
    products["p3"] = replace(products["p3"], versions=("v1", "v3"))
    products["p4"] = replace(products["p4"], versions=("v2", "v4"))
    products["p5"] = Product(
        "p5", "Error Handling", Kind.CONTENT, ROOT, ALEX, (Criterion("d1", "Names the format of errors"),),
        Status.IN_PROGRESS, versions=("v5",), slug="error-handling", round=2,
    )  # fmt: skip
    closed = {
        "c1": replace(state.collabs["c1"], open=False, closed_by=ALEX, how="replied", why="Names HTTP 429"),
        "c2": replace(state.collabs["c2"], open=False, closed_by=WATCHDOG, how="confirmed", why="v3"),
    }
    state = replace(
        state,
        round=2,
        products=products,
        collabs={**state.collabs, **closed},
        assignments={
            "p3": Assignment(
                "p3", JORDAN, (), 9, "Switch to httpOnly cookies", "", "XSS", "[[c:c2]]", 2, address=("c2",)
            )
        },
        reflections=(
            Reflection(
                JORDAN, "p3", "partially_met", ("d2",), (FeedbackResponse("c2", "accept", "httpOnly cookies"),), "",
                "Switch to httpOnly", (),
            ),
        ),
        remarks=(),
        versions={
            **state.versions,
            "v3": Version("v3", 2, "p3", JORDAN, "MVP features", V3, "Login by httpOnly cookie", 2,
                          "CRUD, session in an httpOnly cookie", ("c2",)),
            "v4": Version("v4", 2, "p4", ALEX, "Technical architecture", V4, "Says what a limited client sees", 2),
            "v5": Version("v5", 1, "p5", ALEX, "Error handling", V5, "First draft", 2),
        },
    )  # fmt: skip
    state = _event(state, MissionStep.PLAN, "created", CHAIR, "Error Handling was planned", "p5")
    for product, ref, actor, number in (("p3", "v3", JORDAN, 2), ("p4", "v4", ALEX, 2), ("p5", "v5", ALEX, 1)):
        text = f"{products[product].name} got its version {number}"
        state = _event(state, MissionStep.WRITE, "version", actor, text, product, ref)
    state = _event(
        state, MissionStep.INSPECT, "closed", WATCHDOG, "JWT in localStorage is open to XSS: confirmed", "p3", "c2"
    )
    quotes = {"p3": ("create", "a session in an httpOnly cookie"), "p4": ("## Rate limiting", "React, Node")}
    for number, (product, version) in enumerate((("p3", "v3"), ("p4", "v4")), 3):
        results = tuple(
            CriterionResult(f"d{place}", True, quote, "", "code" if place == 1 else WATCHDOG)
            for place, quote in enumerate(quotes[product], 1)
        )
        state = _inspected(state, f"i{number}", product, version, InspectionVerdict.APPROVED, results, ())
    result = (CriterionResult("d1", True, "problem+json", "", WATCHDOG),)
    state = _inspected(state, "i5", "p5", "v5", InspectionVerdict.APPROVED, result, ())
    proved = (
        CriterionResult("d1", True, "Users create, read, update and delete tasks.", "", WATCHDOG),
        CriterionResult("d2", True, "a session in an httpOnly cookie", "", WATCHDOG),
        CriterionResult("d3", True, "React, Node, PostgreSQL", "", WATCHDOG),
    )
    state = _inspected(state, "i6", ROOT, "", InspectionVerdict.APPROVED, proved, ())
    return _says(state, ALEX, "The architecture is aligned and ready for acceptance.", state.events[-3].id)


def _done(state: MissionState) -> MissionState:
    """Round 3: the chair accepts all and ends the mission."""
    from cdo.cabal.model.entities import identity

    state = replace(state, round=3, assignments={}, reflections=())
    products, acceptances = dict(state.products), {}
    for id, inspection in (("p3", "i3"), ("p4", "i4"), ("p5", "i5"), (ROOT, "i6")):
        latest = state.latest(id)
        acceptances[id] = Acceptance(
            id, latest.id if latest else "", latest.sha if latest else "", identity(products[id].dod), inspection,
            "", 3,
        )  # fmt: skip
        products[id] = replace(products[id], status=Status.ACCEPTED)
        state = _event(
            state, MissionStep.PLAN, "accepted", CHAIR, f"{products[id].name} was accepted", id, inspection
        )
    state = replace(state, products=products, acceptances=acceptances, halt="done", why="All products are accepted.")
    state = _event(state, MissionStep.PLAN, "halt", CHAIR, "The chair declared the mission done")
    return _says(state, CHAIR, "Mission complete: the specification is ready.", state.events[-1].id)
