"""Defines the plain data in the state of a mission; nothing here makes decisions.

Ids are short and readable: `p4` a product, `v9` a version, `c6` a collab, `i2` an inspection, `e31` an event.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping
from functools import cached_property
from hashlib import sha256

from msgspec import Struct

from cdo.core.mission_names import USER, WATCHDOG
from cdo.core.steps import Json

BLOCKING = 8  # collabs and findings of at least this importance or severity block acceptance
REVISION = 5  # findings of at least this severity require a revision, and get a linked collab
REQUESTS, ITERATIONS = 5, 3  # most pairs in one context request, and most requests in one step


class Kind(enum.StrEnum):
    """The kind of a product, which determines what it may contain."""

    CONTENT = "Content"
    DECISION = "Decision"
    COLLECTION = "Collection"
    ORCHESTRATION = "Orchestration"


class Status(enum.StrEnum):
    """The status of a product. A rejection is an event, not a status."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    ACCEPTED = "accepted"
    ARCHIVED = "archived"


class MissionStep(enum.StrEnum):
    """The seven steps, in order. The names are also used for calls and in the header X-Cdo-Kind."""

    BOOTSTRAP = "bootstrap"
    REFLECT = "reflect"
    PLAN = "plan"
    WRITE = "write"
    REVIEW = "review"
    INSPECT = "inspect"
    PRESENT = "present"


STEPS = tuple(MissionStep)
FIRST = MissionStep.REFLECT  # the step recorded for events before a round's first reply


class Need(enum.StrEnum):
    """What an agent can request about a product during a step."""

    FULL_CONTENT = "full_content"
    VERSION_HISTORY = "version_history"
    ALL_FEEDBACK = "all_feedback"
    PEER_CONTENT = "peer_content"


class InspectionVerdict(enum.StrEnum):
    """The verdict of an inspection; code derives it from severities."""

    APPROVED = "approved"
    NEEDS_REVISION = "needs_revision"
    BLOCKED = "blocked"


def fingerprint(text: str) -> str:
    """Return the SHA-256 (hex) of a text without surrounding white space: the identity of a version's content."""
    return sha256(text.strip().encode("utf-8", "replace")).hexdigest()


def slug(name: str) -> str:
    """Return a product's name as part of a folder name: a-z, 0-9 and hyphens, at most 40 characters.

    If nothing is left, return "product".
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower())[:40].strip("-") or "product"


# -- the tree --------------------------------------------------------------------------------------


class Check(Struct, frozen=True):
    """The test of a criterion that code runs before any reviewer sees the product.

    `kind` is regex (RE2), contains, json_schema, reference (the product `value` exists and has a version, and the
    text refers to it), min_words, max_words, command (a shell command that ends with exit code 0 on the files of all
    products), or judged, which only an inspection can answer; `value` is its argument.
    """

    kind: str = "judged"
    value: Json = None


class Criterion(Struct, frozen=True):
    """One line of a definition of done; `id` is d1, d2 … within its product."""

    id: str
    text: str
    check: Check = Check()


def identity(dod: tuple[Criterion, ...]) -> str:
    """Return the SHA-256 (hex) of a definition of done: ids, texts, checks, in this order. Keys are sorted."""
    listed = [[item.id, item.text, item.check.kind, item.check.value] for item in dod]
    return sha256(json.dumps(listed, sort_keys=True, separators=(",", ":")).encode("ascii")).hexdigest()


class Product(Struct, frozen=True, dict=True):
    """One node of the tree. `versions` are ids in order; `decide_by` is the preset of a Decision's deliberation.

    `meta` products (the Change Log) belong to the chair: only the chair writes them, and they need no acceptance. An
    inspection counts only if its event is later than `stale_at`, the number of the event that made older inspections
    stale (reason: `stale_why`). `slug` names the product's folder and never changes, even if the product is renamed.
    `round` is the round in which the product was created. `path` is the file that a Content is ("src/app.js"), or the
    folder of its files ("app/"); "" for a Markdown document.
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
    path: str = ""

    @property
    def live(self) -> bool:
        """True if the mission needs the acceptance of this product: it is neither archived nor meta."""
        return self.status is not Status.ARCHIVED and not self.meta

    @property
    def container(self) -> bool:
        """True if the product holds other products and has no content of its own."""
        return self.kind in (Kind.COLLECTION, Kind.ORCHESTRATION)

    @cached_property
    def dod_sha(self) -> str:
        """The hash of its current definition of done."""
        return identity(self.dod)

    @property
    def folder(self) -> str:
        """Its folder in the session."""
        return f"products/{self.id}-{self.slug}"


class Version(Struct, frozen=True):
    """An immutable snapshot: `id` is global, `number` counts within its product. `outcome` is a Decision's one line.

    `addresses` are the collabs that the version answers, by its author; `session` is the deliberation that produced
    it, if any. `edited`: it comes from a recorded reply of its author that the person edited.
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
    edited: bool = False

    @property
    def sha(self) -> str:
        """The hash of its content and outcome."""
        return fingerprint(f"{self.outcome}\n\n{self.content}" if self.outcome else self.content)


# -- feedback, assignments, inspections ------------------------------------------------------------


class Collab(Struct, frozen=True):
    """A comment by an agent or the user on a product, with a kind and an importance.

    `version` is the newest version at that time, "" if there was none; for a container it is the newest version in
    it. A collab is `open` until it is closed. Then `closed_by`, `how` (replied, confirmed, withdrawn, waived) and
    `why` are set. `finding` is the inspection that raised it. `edited`: it comes from a recorded reply of its author
    that the person edited.
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
    edited: bool = False

    @property
    def blocking(self) -> bool:
        """True if it prevents the acceptance of its product."""
        return self.open and self.importance >= BLOCKING

    @property
    def flag(self) -> bool:
        """True if the watchdog raised it with blocking importance, so that it cannot be waived."""
        return self.author == WATCHDOG and self.importance >= BLOCKING

    @property
    def waivable(self) -> bool:
        """True if the chair may waive it: neither a flag of the watchdog nor a blocking note by the user."""
        return self.author not in (WATCHDOG, USER) or self.importance < BLOCKING


class Remark(Struct, frozen=True):
    """A message to agents or the user, not about a product. `at` is the number of the step in which it was sent."""

    author: str
    recipients: tuple[str, ...]
    kind: str
    content: str
    round: int
    at: int


class Assignment(Struct, frozen=True):
    """The chair's order for one round: `writer` writes a version; `reviewers` review it, besides the chosen peer.

    `address` are the collabs that the new version has to answer; `attach` are other products shown in full.
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


class FeedbackResponse(Struct, frozen=True):
    """An owner's response to a collab: accept, defer or reject, with a plan or a reason."""

    collab: str
    action: str
    text: str


class Reflection(Struct, frozen=True):
    """An operative's assessment of a product that it owns; it is kept until the plan of the same round."""

    agent: str
    product: str
    dod_status: str
    gaps: tuple[str, ...]
    responses: tuple[FeedbackResponse, ...]
    lessons: str
    delta: str
    blockers: tuple[str, ...]


class CriterionResult(Struct, frozen=True):
    """The result of one criterion: `quote` was found in the version, `by` is "code" or the watchdog's id."""

    criterion: str
    passed: bool
    quote: str
    note: str
    by: str


class InspectionFinding(Struct, frozen=True):
    """One finding of an inspection. `collab` is the collab raised for it, or an open one that covers it."""

    category: str
    severity: int
    issue: str
    recommendation: str
    criterion: str = ""
    collab: str = ""


class Inspection(Struct, frozen=True):
    """One inspection of one version. For a container, `version` is "" and `parts` has the id and hash of each part.

    `dod` is the hash of the definition of done used for the inspection; `at` is the number of its event.
    `rationale` is the watchdog's reasoning. `edited`: it comes from a recorded reply of it that the person edited.
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
    rationale: str = ""
    edited: bool = False


class CommandRun(Struct, frozen=True):
    """The newest run of a command of definitions of done: `files` is the hash of the files that it ran on.

    `code` is its exit code, None if it did not end or was not run; `outcome` says so in a phrase. `output` is the end
    of what it printed.
    """

    command: str
    files: str
    code: int | None
    outcome: str
    output: str
    round: int

    @property
    def passed(self) -> bool:
        """True if it ended with exit code 0."""
        return self.code == 0


class Acceptance(Struct, frozen=True):
    """The acceptance of a product, with the accepted hashes. `waiver` is the reason why needs_revision was waived."""

    product: str
    version: str
    sha: str
    dod: str
    inspection: str
    waiver: str
    round: int


class Rationale(Struct, frozen=True):
    """An agent's reasoning before its reply in a step."""

    round: int
    step: MissionStep
    agent: str
    text: str


class Mission(Struct, frozen=True):
    """The charter. `personas` are by agent; `domains` are by operative: (responsibility, area)."""

    mission: str
    objectives: tuple[str, ...]
    constraints: tuple[str, ...]
    personas: Mapping[str, str]
    domains: Mapping[str, tuple[str, str]]


class Question(Struct, frozen=True):
    """A question to the person, and the answer. `name` is the name of its `Ask`.

    With `sign_off`, it asks the person to sign off what is delivered.
    """

    name: str
    question: str
    options: tuple[str, ...]
    answer: str
    round: int
    sign_off: bool = False


class EnvoyMessage(Struct, frozen=True):
    """One message of the team to the user; `events` are the events that it is based on.

    `edited`: it comes from a recorded reply that the person edited.
    """

    round: int
    agent: str
    content: str
    events: tuple[str, ...]
    edited: bool = False


class MissionEvent(Struct, frozen=True):
    """An event of a mission. Its `text` contains no ids, because the envoy cites it and people read it.

    `kind` is one of mission, created, updated, moved, archived, reopened, assigned, lapsed, version, unreviewed,
    reflection, collab, closed, remark, inspection, accepted, waived, stale, override, question, answer,
    redefined, halt, stall, message, missed, user, decided, edited, unfounded, command. `product` is an id or "",
    `ref` is the id of the event's subject (of "edited" the call), `actor` is the agent that caused it ("code": code).
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
        """Its number among the mission's events, from 1."""
        return int(self.id[1:])
