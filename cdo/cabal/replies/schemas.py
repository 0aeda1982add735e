"""Defines the replies of the seven steps, with the only keys allowed in each.

Permissions are defined here: only a plan has assignments, only an inspection has verdicts, only a write has versions
of assigned products. `reducer` checks the rules that need the mission's state (ids, ownership, composition).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from cdo.cabal.model.entities import REQUESTS, MissionStep
from cdo.cabal.replies.fields import (
    AssignmentItem,
    CollabIds,
    Collabs,
    Domains,
    HaltItem,
    InspectionItem,
    Lines,
    Maybe,
    MessageItem,
    NewProduct,
    Overrides,
    Personas,
    ReflectionItem,
    Remarks,
    StepQuestion,
    TreeOperation,
    VersionItem,
    WaiverItem,
    bracketed,
)
from cdo.cabal.replies.partial import RefusedPart
from cdo.core.formatting import pluralise
from cdo.formats.blocks import Block
from cdo.formats.fields import number, texts

REPLY = TypeVar("REPLY", bound="MissionReply")


def _told(*amounts: tuple[int, str], else_: str) -> str:
    """Return a reply's contents in a few words, for the terminal; `else_` if it is empty."""
    return ", ".join(pluralise(number, noun) for number, noun in amounts if number) or else_


class MissionReply(Block):
    """The base of every reply. Unknown keys are refused: otherwise, a misspelled key would be lost silently.

    `rationale` is the reasoning that comes before everything else.
    """

    rationale: Maybe = ""
    _refused: tuple[RefusedPart, ...] = PrivateAttr(default=())

    @model_validator(mode="before")
    @classmethod
    def _aloud(cls, value: Any) -> Any:
        """Drop the `thinking` key."""
        return {key: item for key, item in value.items() if key != "thinking"} if isinstance(value, dict) else value

    @property
    def refused(self) -> tuple[RefusedPart, ...]:
        """What of the reply as it was sent was not taken."""
        return self._refused

    def without(self: REPLY, refused: Sequence[RefusedPart]) -> REPLY:
        """Return the reply as what is left of one of which these parts were not taken."""
        self._refused = tuple(refused)
        return self

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts in the reply: in any of them it may cite the repository (`cdo.core.steps.Citing`)."""
        return tuple(text for _, text in texts(self.model_dump(mode="json")))


class ContextRequest(MissionReply):
    """A reply that requests more context before the step is done."""

    response_type: Literal["request_context"]
    requests: Annotated[tuple[StepQuestion, ...], Field(min_length=1, max_length=REQUESTS)]

    @property
    def position(self) -> str:
        """The reply in a few words."""
        return f"wants to see {pluralise(len(self.requests), 'thing')} more"


class TalkReply(MissionReply):
    """The base of reflect, write, review and inspect replies: new collabs, remarks, and collabs to close."""

    response_type: Literal["final_output"]
    collabs: Collabs = ()
    remarks: Remarks = ()
    confirms: CollabIds = ()
    withdraws: CollabIds = ()

    @property
    def _talk(self) -> tuple[tuple[int, str], ...]:
        """The numbers of collabs, remarks and closed collabs, each with its noun."""
        closed = len(self.confirms) + len(self.withdraws)
        return (len(self.collabs), "collab"), (len(self.remarks), "remark"), (closed, "closed collab")


# -- the seven replies -----------------------------------------------------------------------------


class BootstrapReply(MissionReply):
    """The charter, the team and the first tree; or a question that must be answered first."""

    response_type: Literal["final_output", "halt"]
    title: Maybe = ""
    mission: Maybe = ""
    objectives: Lines = ()
    constraints: Lines = ()
    personas: Personas = Field(default_factory=dict)
    operative_domains: Domains = Field(default_factory=dict)
    initial_products: Annotated[tuple[NewProduct, ...], BeforeValidator(bracketed), Field(max_length=40)] = ()
    halt: HaltItem | None = None

    @model_validator(mode="after")
    def _either(self) -> BootstrapReply:
        if self.response_type == "halt":
            if self.halt is None or self.halt.type != "question":
                raise ValueError("`halt` must hold a question in this step")
        elif not (self.mission.strip() and self.objectives and self.initial_products):
            raise ValueError("a final_output has `mission`, `objectives` and `initial_products`")
        return self

    @property
    def position(self) -> str:
        """The reply in a few words."""
        return f"halt: {self.halt.type}" if self.halt else _told((len(self.initial_products), "product"), else_="")


class ReflectReply(TalkReply):
    """An operative's reflections on its own products."""

    reflections: Annotated[tuple[ReflectionItem, ...], BeforeValidator(bracketed), Field(max_length=64)] = ()

    @property
    def position(self) -> str:
        """The reply in a few words."""
        return _told((len(self.reflections), "reflection"), *self._talk, else_="no reflection")


class PlanReply(MissionReply):
    """The chair's plan of a round: one transaction, all or nothing."""

    response_type: Literal["final_output", "halt"]
    bootstrap_overrides: Overrides | None = None
    tree_operations: Annotated[tuple[TreeOperation, ...], BeforeValidator(bracketed), Field(max_length=64)] = ()
    waivers: Annotated[tuple[WaiverItem, ...], BeforeValidator(bracketed), Field(max_length=64)] = ()
    assignments: Annotated[tuple[AssignmentItem, ...], BeforeValidator(bracketed), Field(max_length=128)] = ()
    chair_versions: Annotated[tuple[VersionItem, ...], BeforeValidator(bracketed), Field(max_length=8)] = ()
    collabs: Collabs = ()
    remarks: Remarks = ()
    halt: HaltItem | None = None

    @model_validator(mode="after")
    def _halted(self) -> PlanReply:
        if self.response_type == "halt" and self.halt is None:
            raise ValueError("a halt needs `halt`")
        return self

    @property
    def position(self) -> str:
        """The reply in a few words."""
        parts = [
            _told((len(self.assignments), "assignment"), (len(self.tree_operations), "tree operation"), else_=""),
            _told((len(self.waivers), "waiver"), (len(self.collabs), "collab"), else_=""),
            f"halt: {self.halt.type}" if self.halt else "",
        ]
        return ", ".join(filter(None, parts)) or "no assignment"


class WriteReply(TalkReply):
    """An operative's versions of its assigned products."""

    versions: Annotated[tuple[VersionItem, ...], BeforeValidator(bracketed), Field(max_length=64)] = ()

    @property
    def position(self) -> str:
        """The reply in a few words."""
        return _told((len(self.versions), "version"), *self._talk, else_="no version")


class ReviewReply(TalkReply):
    """An operative's review of the work of others."""

    @property
    def position(self) -> str:
        """The reply in a few words."""
        return _told(*self._talk, else_="nothing to say")


class InspectReply(TalkReply):
    """The watchdog's inspections."""

    inspections: Annotated[tuple[InspectionItem, ...], BeforeValidator(bracketed), Field(max_length=128)]

    @property
    def position(self) -> str:
        """The reply in a few words: what it says of the judged criteria."""
        said = [result.passed for item in self.inspections for result in item.criteria]
        found = sum(len(item.findings) for item in self.inspections)
        met = f"{sum(said)} of {len(said)} criteria said to be met" if said else ""
        return ", ".join(filter(None, (met, _told((found, "finding"), *self._talk, else_="no finding"))))


class PresentReply(MissionReply):
    """The envoy's messages: three to five if enough happened, at least one.

    `accepted` and `of` state how many products are accepted, of how many.
    """

    response_type: Literal["final_output"]
    accepted: Annotated[int, BeforeValidator(number), Field(ge=0)] | None = None
    of: Annotated[int, BeforeValidator(number), Field(ge=0)] | None = None
    messages: Annotated[tuple[MessageItem, ...], BeforeValidator(bracketed), Field(min_length=1, max_length=5)]

    @property
    def position(self) -> str:
        """The reply in a few words."""
        return _told((len(self.messages), "message"), else_="")


StepReply: TypeAlias = (
    BootstrapReply | ReflectReply | PlanReply | WriteReply | ReviewReply | InspectReply | PresentReply
)
Said: TypeAlias = StepReply | ContextRequest
REPLIES: dict[MissionStep, type[StepReply]] = {
    MissionStep.BOOTSTRAP: BootstrapReply,
    MissionStep.REFLECT: ReflectReply,
    MissionStep.PLAN: PlanReply,
    MissionStep.WRITE: WriteReply,
    MissionStep.REVIEW: ReviewReply,
    MissionStep.INSPECT: InspectReply,
    MissionStep.PRESENT: PresentReply,
}
