"""The nouns of a mission: what a cabal's state is made of. Plain data; nothing here decides (seeds 000, 002, 003).

Ids are short and readable: `p4` a product, `v9` a version, `c6` a collab, `i2` an inspection, `e31` an event.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

from cdo.core.mission_names import WATCHDOG
from cdo.core.steps import Json

BLOCKING = 8  # from this importance or severity on a collab, a finding or a criterion lost blocks acceptance
REVISION = 5  # from this severity on a finding wants a revision, and becomes a linked collab
REQUESTS, ITERATIONS = 5, 3  # pairs in one request for context, and such requests in one step


class Kind(enum.StrEnum):
    """What a product is, and so what it may hold."""

    CONTENT = "Content"
    DECISION = "Decision"
    COLLECTION = "Collection"
    ORCHESTRATION = "Orchestration"


class Status(enum.StrEnum):
    """How a product stands. A rejection is an event, not a status."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    ACCEPTED = "accepted"
    ARCHIVED = "archived"


class MissionStep(enum.StrEnum):
    """The seven steps, in order; their names are those of the calls and of the header X-Cdo-Kind."""

    BOOTSTRAP = "bootstrap"
    REFLECT = "reflect"
    PLAN = "plan"
    WRITE = "write"
    REVIEW = "review"
    INSPECT = "inspect"
    PRESENT = "present"


STEPS = tuple(MissionStep)


class Need(enum.StrEnum):
    """What can be asked for of a product in the middle of a step (seed 002, Context Request)."""

    FULL_CONTENT = "full_content"
    VERSION_HISTORY = "version_history"
    ALL_FEEDBACK = "all_feedback"
    PEER_CONTENT = "peer_content"


class InspectionVerdict(enum.StrEnum):
    """What an inspection comes to; code derives it from severities."""

    APPROVED = "approved"
    NEEDS_REVISION = "needs_revision"
    BLOCKED = "blocked"


def fingerprint(text: str) -> str:
    """SHA-256 (hex) of a text without the white space around it: identity of a version's content."""
    return sha256(text.strip().encode("utf-8", "replace")).hexdigest()


def slug(name: str) -> str:
    """A product's name as part of a folder's: a-z, 0-9 and hyphens, at most 40; "product" where nothing is left."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower())[:40].strip("-") or "product"


# -- the tree --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Check:
    """How code tests a criterion before any reviewer does.

    `kind` is regex (RE2), contains, json_schema, reference (the product `value` exists and has a version, and the
    text refers to it), min_words, max_words, or judged, which only an inspection can answer; `value` is its argument.
    """

    kind: str = "judged"
    value: Json = None


@dataclass(frozen=True)
class Criterion:
    """One line of a definition of done; `id` is d1, d2 … within its product."""

    id: str
    text: str
    check: Check = Check()


def identity(dod: tuple[Criterion, ...]) -> str:
    """SHA-256 (hex) of a definition of done: ids, texts, checks, in this order. Keys have no order."""
    listed = [[item.id, item.text, item.check.kind, item.check.value] for item in dod]
    return sha256(json.dumps(listed, sort_keys=True, separators=(",", ":")).encode("ascii")).hexdigest()


@dataclass(frozen=True)
class Product:
    """One node of the tree. `versions` are ids in order; `decide_by` is the preset of a Decision's deliberation.

    `meta` products (the Change Log) are the chair's own: it writes them itself and nobody accepts them. An inspection
    counts when its event lies after `stale_at` (the number of the event that made older ones stale, for the reason
    `stale_why`). `slug` names its folder for ever, whatever it is called later; `round` is when it was made.
    """

    id: str
    name: str
    kind: Kind
    parent: str | None
    owner: str | None
    dod: tuple[Criterion, ...]
    status: Status = Status.PENDING
    meta: bool = False
    decide_by: str = ""
    versions: tuple[str, ...] = ()
    stale_at: int = 0
    stale_why: str = ""
    slug: str = "product"
    round: int = 0

    @property
    def live(self) -> bool:
        """Whether the mission is not done before this is accepted."""
        return self.status is not Status.ARCHIVED and not self.meta

    @property
    def container(self) -> bool:
        """Whether it holds others and has no content of its own."""
        return self.kind in (Kind.COLLECTION, Kind.ORCHESTRATION)

    @cached_property
    def dod_sha(self) -> str:
        """The identity of its definition of done as it reads now."""
        return identity(self.dod)

    @property
    def folder(self) -> str:
        """Its folder in the session."""
        return f"products/{self.id}-{self.slug}"


@dataclass(frozen=True)
class Version:
    """An immutable snapshot: `id` is global, `number` counts within its product. `outcome` is a Decision's one line.

    `addresses` are the collabs that it says to answer; `session` is the deliberation that it comes from, if any.
    """

    id: str
    number: int
    product: str
    author: str
    title: str
    content: str
    summary: str
    round: int
    outcome: str = ""
    addresses: tuple[str, ...] = ()
    session: str = ""

    @property
    def sha(self) -> str:
        """Identity of its content and outcome."""
        return fingerprint(f"{self.outcome}\n\n{self.content}" if self.outcome else self.content)


# -- what is said of it ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Collab:
    """What somebody said of a product; `version` is the newest version there was then, "" for none.

    Of a container it is the newest in it.

    `open` until it is closed; then `closed_by` and `how` (replied, confirmed, withdrawn, waived) tell by whom and
    why. `finding` is the inspection that it comes from.
    """

    id: str
    product: str
    kind: str
    importance: int
    author: str
    comment: str
    summary: str
    round: int
    version: str = ""
    finding: str = ""
    open: bool = True
    closed_by: str = ""
    how: str = ""
    why: str = ""

    @property
    def blocking(self) -> bool:
        """Whether it keeps its product from being accepted."""
        return self.open and self.importance >= BLOCKING

    @property
    def flag(self) -> bool:
        """Whether it is the watchdog's, and of blocking importance: nobody can waive it."""
        return self.author == WATCHDOG and self.importance >= BLOCKING


@dataclass(frozen=True)
class Remark:
    """What is said to somebody, not of a product. `at` is the number of the step it was said in."""

    author: str
    recipients: tuple[str, ...]
    kind: str
    content: str
    round: int
    at: int


@dataclass(frozen=True)
class Assignment:
    """The chair's order for one round: `writer` writes a version, `reviewers` also read it.

    `address` are the collabs that the new version has to answer; `attach` other products shown in full.
    """

    product: str
    writer: str
    reviewers: tuple[str, ...]
    importance: int
    objective: str
    dod: str
    why: str
    context: str
    round: int
    attach: tuple[str, ...] = ()
    address: tuple[str, ...] = ()


@dataclass(frozen=True)
class FeedbackResponse:
    """What an owner plans about a collab: accept, defer or reject, and what or why."""

    collab: str
    action: str
    text: str


@dataclass(frozen=True)
class Reflection:
    """An operative's assessment of a product that it owns; lasts until the plan of its round."""

    agent: str
    product: str
    dod_status: str
    gaps: tuple[str, ...]
    responses: tuple[FeedbackResponse, ...]
    lessons: str
    delta: str
    blockers: tuple[str, ...]


@dataclass(frozen=True)
class CriterionResult:
    """Whether a criterion is met: `quote` was found in the version, `by` is "code" or the watchdog's id."""

    criterion: str
    passed: bool
    quote: str
    note: str
    by: str


@dataclass(frozen=True)
class InspectionFinding:
    """What an inspection found: `collab` is the one that it became or stands for."""

    category: str
    severity: int
    issue: str
    recommendation: str
    criterion: str = ""
    collab: str = ""


@dataclass(frozen=True)
class Inspection:
    """One inspection of one version; for a container `version` is "" and `parts` are its children's identities.

    `dod` is the identity of the definition of done that it was held against; `at` the number of its event.
    """

    id: str
    product: str
    version: str
    dod: str
    results: tuple[CriterionResult, ...]
    findings: tuple[InspectionFinding, ...]
    verdict: InspectionVerdict
    round: int
    at: int
    parts: tuple[tuple[str, str], ...] = ()
    ratings: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Acceptance:
    """A product accepted, pinned to what it was accepted for; `waiver` is why needs_revision was let pass."""

    product: str
    version: str
    sha: str
    dod: str
    inspection: str
    waiver: str
    round: int


@dataclass(frozen=True)
class Mission:
    """The charter. `personas` are by agent; `domains` by operative: (responsibility, area)."""

    mission: str
    objectives: tuple[str, ...]
    constraints: tuple[str, ...]
    personas: Mapping[str, str]
    domains: Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class Question:
    """What was asked of the person, and what they said. `name` is the call that asked."""

    name: str
    question: str
    options: tuple[str, ...]
    answer: str
    round: int


@dataclass(frozen=True)
class EnvoyMessage:
    """One message of the team to the user; `events` are those it rests on."""

    round: int
    agent: str
    content: str
    events: tuple[str, ...]


@dataclass(frozen=True)
class MissionEvent:
    """Something that happened, told in words that name no id: what the envoy cites and people read.

    `kind` is one of mission, created, updated, moved, archived, reopened, assigned, lapsed, version, unreviewed,
    reflection, collab, closed, remark, inspection, accepted, rejected, waived, stale, override, question, answer,
    halt, stall, message, missed, user, decided. `product` is an id or "", `ref` the id of what it is about, `actor`
    who did it ("code" for code).
    """

    id: str
    round: int
    step: MissionStep
    kind: str
    actor: str
    text: str
    product: str = ""
    ref: str = ""
    call: str = ""

    @property
    def number(self) -> int:
        """Its place in the mission's events, from 1."""
        return int(self.id[1:])
