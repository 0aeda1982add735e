"""Defines the data blocks of the replies of voices and synthesisers. Pure."""

# Annotations are evaluated here, not kept as texts: pydantic would evaluate each text again at every start.
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from cdo.formats.blocks import Block, Id, Line, ReplyRole, Share, Strings, Text, Tolerant
from cdo.formats.fields import TensionStatus, as_list, number


def _or_empty(value: Any) -> Any:
    return "" if value is None else value


def _shortened(value: Any) -> Any:
    """Shorten a position to the length of a line: asking the model again would cost a whole reply."""
    text = " ".join(value.split()) if isinstance(value, str) else value
    return f"{text[:599].rstrip()}…" if isinstance(text, str) and len(text) > 600 else text


class Claim(Tolerant):
    """One checkable statement of a voice, with its evidence."""

    id: Id
    text: Text
    evidence: Strings = ()


class Objection(Tolerant):
    """An objection of a voice to an answer; `severity` is 1 (quibble) to 10 (must not be done).

    `against` names the claim, option or tension that the objection is aimed at; "" if the voice does not say.
    """

    id: Id
    text: Text
    severity: Annotated[int, BeforeValidator(number), Field(ge=1, le=10)]
    against: Annotated[str, BeforeValidator(_or_empty), Field(max_length=600)] = ""


class VoiceData(Tolerant):
    """The front matter of a voice's reply. Unknown keys are ignored.

    A person need not say how sure they are: then `confidence` is None. `withdraws` lists ids of the voice's own
    objections, as the run's ledger numbers them.
    """

    position: Annotated[Line, BeforeValidator(_shortened)]
    confidence: Share | None = None
    claims: Annotated[tuple[Claim, ...], BeforeValidator(as_list), Field(max_length=64)] = ()
    objections: Annotated[tuple[Objection, ...], BeforeValidator(as_list), Field(max_length=64)] = ()
    changed_because: Text | None = None
    acknowledged: Strings = ()
    withdraws: Strings = ()


class AgentData(VoiceData):
    """The front matter of a model's reply: a model has to say how sure it is."""

    confidence: Share


class Note(Block):
    """A message between turns, written by the lead or the human; `to` names a teammate."""

    to: ReplyRole
    text: Annotated[str, Field(min_length=1, max_length=2000)]


class RoleWish(Block):
    """A role that the directive asks for: by name, or with a charge and skills of its own."""

    name: ReplyRole
    charge: Annotated[str, Field(max_length=1000)] = ""
    skills: Strings = ()


def _role_wish(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


MaybeLine = Annotated[str, BeforeValidator(_or_empty), Field(max_length=600)]


class TensionWish(Block):
    """A disagreement as the synthesiser reports it this turn.

    `outside` means that only a fact from outside the run can settle it. `settled_by` says what settled it, or for
    `outside` who can settle it.
    """

    id: Id
    title: Line
    status: TensionStatus
    settled_by: MaybeLine = ""


class Ruling(Tolerant):
    """The synthesiser's statement on an objection of the ledger: what it is aimed at, and its state.

    `leading` is false if the objection is aimed at something else than the leading answer, and None if that is not
    stated. `why` is the answer to the objection.
    """

    id: Id
    leading: bool | None = None
    status: Literal["open", "answered", "ruled"] = "open"
    why: MaybeLine = ""


class Camp(Block):
    """Voices of a turn that give the same answer, as the synthesiser groups them."""

    position: Line
    voices: Annotated[tuple[ReplyRole, ...], BeforeValidator(as_list), Field(max_length=256)]


class Directive(Block):
    """The fenced YAML block of a synthesis: the plan of the next turn, and how sure the synthesiser is.

    `decides` says what in the decision the focus would change. `settle_with` says what at hand could settle the
    focus. `alternative` is the best answer that is not the leading one. `answer_changed`: the leading answer differs
    in substance from that of the turn before. `agreement` is computed from `camps`; a stated one is ignored.
    """

    width: Annotated[int, BeforeValidator(number), Field(ge=1, le=256)]
    roles: Annotated[
        tuple[Annotated[RoleWish, BeforeValidator(_role_wish)], ...], BeforeValidator(as_list), Field(max_length=256)
    ]
    skills: Strings = ()
    focus: Annotated[str, BeforeValidator(lambda value: "" if value is None else value), Field(max_length=2000)]
    decides: MaybeLine = ""
    settle_with: Annotated[str, BeforeValidator(_or_empty), Field(max_length=100)] = ""
    alternative: MaybeLine = ""
    answer_changed: bool | None = None
    confidence: Share
    exit_ready: bool
    agreement: Share | None = None
    tensions: Annotated[tuple[TensionWish, ...], BeforeValidator(as_list), Field(max_length=64)] = ()
    gaps: Strings = ()
    camps: Annotated[tuple[Camp, ...], BeforeValidator(as_list), Field(max_length=64)] = ()
    messages: Annotated[tuple[Note, ...], BeforeValidator(as_list), Field(max_length=16)] = ()
    objections: Annotated[tuple[Ruling, ...], BeforeValidator(as_list), Field(max_length=128)] = ()
