"""Defines the parts of replies, field by field, with their limits.

Missing brackets, ids written as references and wrong letter case are corrected; any other invalid value is refused.
Most parts ignore unknown keys (`Tolerant`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)

from cdo.cabal.model.entities import Kind, Need
from cdo.formats.blocks import Block, Line, Tolerant
from cdo.formats.fields import number

CONTENT = 400_000  # characters of one version
DOD = 20_000  # characters of one definition of done


def bracketed(value: Any) -> Any:
    """Return a single value, or none, as a list: models leave brackets out."""
    return [] if value is None or value == "" else [value] if isinstance(value, (str, dict)) else value


def _cased(case: Callable[[str], str]) -> BeforeValidator:
    """Return a validator that strips a word and applies `case`, because models vary the letter case."""
    return BeforeValidator(lambda value: case(value.strip()) if isinstance(value, str) else value)


_LOWER, _UPPER, _TITLE = map(_cased, (str.lower, str.upper, str.capitalize))


def _bare(value: Any) -> Any:
    """Return `p4` for `[[p:p4]]` and `p:p4`: models write ids in the form of references."""
    if not isinstance(value, str):
        return value
    text = value.strip().removeprefix("[[").removesuffix("]]").strip()
    head, colon, tail = text.partition(":")
    return tail if colon and head in ("p", "v", "c", "a") else text


Words = Annotated[str, Field(min_length=1, max_length=4000)]
Maybe = Annotated[str, Field(max_length=4000)]
Name = Annotated[str, Field(min_length=1, max_length=120)]
ProductId = Annotated[str, BeforeValidator(_bare), Field(pattern=r"^(p[1-9][0-9]{0,4}|new-[1-9][0-9]{0,2})$")]
VersionId = Annotated[str, BeforeValidator(_bare), Field(pattern=r"^v[1-9][0-9]{0,5}$")]
CollabId = Annotated[str, BeforeValidator(_bare), Field(pattern=r"^c[1-9][0-9]{0,5}$")]
EventId = Annotated[str, BeforeValidator(_bare), Field(pattern=r"^e[1-9][0-9]{0,6}$")]
AgentId = Annotated[
    str, BeforeValidator(_bare), Field(pattern=r"^(chair-1|watchdog-1|envoy-1|operative-[1-9][0-9]?)$")
]
OperativeId = Annotated[str, BeforeValidator(_bare), Field(pattern=r"^operative-[1-9][0-9]?$")]
Recipient = Annotated[str, BeforeValidator(_bare), Field(pattern=r"^[a-z][a-z0-9:-]{0,31}$")]
Degree = Annotated[int, BeforeValidator(number), Field(ge=1, le=10)]
Lines = Annotated[tuple[Words, ...], BeforeValidator(bracketed), Field(max_length=24)]
CollabIds = Annotated[tuple[CollabId, ...], BeforeValidator(bracketed), Field(max_length=64)]
ProductIds = Annotated[tuple[ProductId, ...], BeforeValidator(bracketed), Field(max_length=24)]
Path = Annotated[str, BeforeValidator(lambda value: "" if value is None else value), Field(max_length=1000)]
CollabKind = Annotated[Literal["feedback", "question", "suggestion", "endorsement", "concern"], _LOWER]
KindName = Annotated[Kind, _TITLE]


# -- comments, requests and reflections ------------------------------------------------------------


class CollabItem(Tolerant):
    """A comment on a product."""

    refersToProduct: ProductId
    type: CollabKind
    importance: Degree
    comment: Words
    shortestSummary: Line


class RemarkItem(Tolerant):
    """A message to chair-1, operative-N, watchdog-1, team, self, u:all or u:user-1."""

    recipients: Annotated[tuple[Recipient, ...], BeforeValidator(bracketed), Field(min_length=1, max_length=16)]
    type: Annotated[Literal["question", "suggestion", "observation", "note"], _LOWER]
    content: Words


Collabs = Annotated[tuple[CollabItem, ...], BeforeValidator(bracketed), Field(max_length=24)]
Remarks = Annotated[tuple[RemarkItem, ...], BeforeValidator(bracketed), Field(max_length=12)]


class StepQuestion(Tolerant):
    """One request for more context during a step."""

    product_id: ProductId
    need: Annotated[Need, _LOWER]


class HaltItem(Tolerant):
    """A request to stop: for the user's answer, or because the mission is done."""

    type: Annotated[Literal["question", "done"], _LOWER]
    to: Annotated[tuple[Recipient, ...], BeforeValidator(bracketed), Field(max_length=4)] = ("u:all",)
    message: Words
    options: Annotated[tuple[Line, ...], BeforeValidator(bracketed), Field(max_length=8)] = ()


class ResponseFields(Tolerant):
    """An owner's response to a collab on its product, reasons first."""

    collab_id: CollabId
    rationale: Maybe = ""
    planned_change: Maybe = ""
    action: Annotated[Literal["accept", "defer", "reject"], _LOWER]


class ReflectionItem(Tolerant):
    """An owner's assessment of its product against the definition of done, gaps first."""

    refersToProduct: ProductId
    dod_gaps: Lines = ()
    dod_status: Annotated[Literal["not_met", "partially_met", "met"], _LOWER]
    feedback_responses: Annotated[tuple[ResponseFields, ...], BeforeValidator(bracketed), Field(max_length=64)] = ()
    lessons_from_history: Maybe = ""
    next_version_delta: Maybe = ""
    blockers: Lines = ()


class VersionItem(Tolerant):
    """A new version; a Decision also states its `outcome` in one line."""

    product_id: ProductId
    title: Annotated[str, Field(min_length=1, max_length=200)]
    content: Annotated[str, StringConstraints(strip_whitespace=False, min_length=1, max_length=CONTENT)]
    change_summary: Words
    outcome: Annotated[str, Field(max_length=600)] = ""
    addresses: CollabIds = ()


class MessageItem(Tolerant):
    """One message to the user, in the voice of the chair or of an operative, based on these `events`."""

    content: Annotated[str, Field(min_length=1, max_length=600)]
    as_agent: AgentId
    events: Annotated[tuple[EventId, ...], BeforeValidator(bracketed), Field(min_length=1, max_length=12)]


# -- the charter and the tree ----------------------------------------------------------------------


class DomainItem(Tolerant):
    """An operative's responsibility, and the area that it works in."""

    responsibility: Line
    area: Line


def _given(value: Any) -> Any:
    """Return a map without its keys that have no value: strict schemas know no optional keys."""
    return {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else value


Personas = Annotated[dict[AgentId, Words], BeforeValidator(_given)]
Domains = Annotated[dict[OperativeId, DomainItem], BeforeValidator(_given)]


class Overrides(Tolerant):
    """The chair's changes to the charter, from the next round on."""

    mission: Words | None = None
    objectives: Lines | None = None
    constraints: Lines | None = None
    personas: Personas | None = None
    operative_domains: Domains | None = None


class CheckItem(Block):
    """A test of a criterion that code runs. A schema may be given as the text of its JSON."""

    kind: Annotated[
        Literal["regex", "contains", "json_schema", "reference", "min_words", "max_words", "command", "judged"],
        _LOWER,
    ]
    value: Any = None

    @model_validator(mode="before")
    @classmethod
    def _schema_as_text(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("kind") == "json_schema" and isinstance(value.get("value"), str):
            with suppress(ValueError, RecursionError):
                return {**value, "value": json.loads(value["value"])}
        return value


class CriterionItem(Tolerant):
    """One criterion. A plain string is a judged criterion. Give `id` to keep an existing one."""

    text: Line
    id: Annotated[str, Field(pattern=r"^(d[1-9][0-9]?)?$")] = ""
    check: CheckItem = CheckItem(kind="judged")

    @model_validator(mode="before")
    @classmethod
    def _text_alone(cls, value: Any) -> Any:
        return {"text": value} if isinstance(value, str) else value


def _bounded(value: Any) -> Any:
    if len(json.dumps(value, default=str)) > DOD:
        raise ValueError(f"must not be longer than {DOD} characters")
    return value


Dod = Annotated[tuple[CriterionItem, ...], BeforeValidator(bracketed), Field(max_length=16), AfterValidator(_bounded)]


class ProductItem(Tolerant):
    """A product to be created. If the chair owns it, it is `meta`: only the chair writes it.

    `path` makes a Content a file ("src/app.js") or a folder of files ("app/"); without it, it is a document.
    """

    name: Name
    type: KindName
    dod: Dod = ()
    owner: AgentId | None = None
    decide_by: Annotated[str, BeforeValidator(lambda value: value or "")] = ""
    path: Path = ""


class NewProduct(ProductItem):
    """A product of the first tree; `parent_id` may be the `new_id` of an earlier product."""

    new_id: Annotated[str, Field(pattern=r"^(new-[1-9][0-9]{0,2})?$")] = ""
    parent_id: ProductId | None = None


class ProductChange(Tolerant):
    """The fields of a product that an UPDATE changes; missing fields stay as they are."""

    name: Name | None = None
    type: KindName | None = None
    dod: Dod | None = None
    owner: AgentId | None = None
    decide_by: str | None = None
    path: Path | None = None


class TreeOperation(Tolerant):
    """A change of the tree: ADD, REMOVE (archives), MOVE, UPDATE."""

    action: Annotated[Literal["ADD", "REMOVE", "MOVE", "UPDATE"], _UPPER]
    new_id: Annotated[str, Field(pattern=r"^(new-[1-9][0-9]{0,2})?$")] = ""
    product_id: ProductId | None = None
    parent_id: ProductId | None = None
    product: ProductItem | ProductChange | None = None
    reason: Maybe = ""

    @field_validator("product", mode="wrap", json_schema_input_type=ProductChange | None)
    @classmethod
    def _by_action(
        cls, value: Any, _handler: ValidatorFunctionWrapHandler, info: ValidationInfo
    ) -> ProductItem | ProductChange | None:
        """Parse a whole product for an ADD, and changed fields for an UPDATE; ignore it for other actions.

        It wraps the usual parser, which it does not use: pydantic dumps the field of a "plain" one with a warning.
        """
        kinds: dict[Any, type[ProductItem | ProductChange]] = {"ADD": ProductItem, "UPDATE": ProductChange}
        kind = kinds.get(info.data.get("action"))
        return kind.model_validate(value) if kind and value else None

    @model_validator(mode="after")
    def _complete(self) -> TreeOperation:
        needs = {
            "ADD": ("new_id", "parent_id", "product"),
            "REMOVE": ("product_id", "reason"),
            "MOVE": ("product_id", "parent_id"),
            "UPDATE": ("product_id", "product"),
        }[self.action]
        if missing := [key for key in needs if not getattr(self, key)]:
            raise ValueError(f"{self.action} needs {', '.join(missing)}")
        return self


# -- work and its judgement ------------------------------------------------------------------------


class DirectiveItem(Tolerant):
    """The chair's instructions for an assignment, with the reason."""

    importance: Degree
    objective: Words
    dod: Maybe = ""
    why: Maybe = ""
    context: Maybe = ""


class AssignmentItem(Tolerant):
    """A product for the first of `assignee_ids` to write; the others also review it."""

    product_id: ProductId
    assignee_ids: Annotated[tuple[OperativeId, ...], BeforeValidator(bracketed), Field(min_length=1, max_length=8)]
    directive: DirectiveItem
    attach_context: ProductIds = ()
    address: CollabIds = ()


class WaiverItem(Tolerant):
    """The chair's waiver of a blocking collab, or of the revision that the inspection of a product wants."""

    collab_id: CollabId | None = None
    product_id: ProductId | None = None
    reason: Words

    @model_validator(mode="after")
    def _of_one(self) -> WaiverItem:
        if (self.collab_id is None) is (self.product_id is None):
            raise ValueError("a waiver names a `collab_id` or a `product_id`")
        return self


class ResultItem(Tolerant):
    """The result for a criterion, evidence first; `quote` is text of the version that proves it."""

    criterion_id: Annotated[str, Field(pattern=r"^d[1-9][0-9]?$")]
    quote: Maybe = ""
    note: Maybe = ""
    passed: bool


class FindingItem(Tolerant):
    """A finding of an inspection; `collab_id` names an open collab that already covers it."""

    category: Annotated[Literal["security", "completeness", "coherence", "integration", "quality"], _LOWER]
    issue: Words
    severity: Degree
    recommendation: Maybe = ""
    criterion_id: Annotated[str, Field(pattern=r"^(d[1-9][0-9]?)?$")] = ""
    collab_id: Annotated[
        str, BeforeValidator(lambda value: _bare(value) or ""), Field(pattern=r"^(c[1-9][0-9]{0,5})?$")
    ] = ""


class InspectionItem(Tolerant):
    """The inspection of one product; code derives the verdict."""

    product_id: ProductId
    version_id: VersionId | None = None
    criteria: Annotated[tuple[ResultItem, ...], BeforeValidator(bracketed), Field(max_length=40)] = ()
    findings: Annotated[tuple[FindingItem, ...], BeforeValidator(bracketed), Field(max_length=24)] = ()
