"""Parses a step's reply: one JSON object, checked against the schema, then against the mission's state. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from cdo.cabal import cut_reply, reply_documents, reply_grammar
from cdo.cabal.model.entities import MissionStep
from cdo.cabal.model.references import absent
from cdo.cabal.model.state import MissionState
from cdo.cabal.replies import partial
from cdo.cabal.replies.fields import bracketed
from cdo.cabal.replies.partial import RefusedPart
from cdo.cabal.replies.schemas import REPLIES, ContextRequest, PlanReply, Said, StepReply
from cdo.cabal.rules import reducer
from cdo.cabal.rules.feedback import Judged
from cdo.cabal.rules.product_tree import PRESETS
from cdo.core.formatting import CONTROLS
from cdo.core.steps import InvalidReply
from cdo.formats import document_blocks
from cdo.formats.blocks import validate
from cdo.formats.document_blocks import DocumentBlock
from cdo.formats.fields import too_long
from cdo.formats.lenient.layout import ReplyLayout
from cdo.formats.markdown import fenced, unwrap
from cdo.formats.strict_yaml import shown

MAX_CHARS = 1_000_000  # characters of a reply with documents: as many as are recorded of one
DOCUMENTS = {MissionStep.WRITE: "versions", MissionStep.PLAN: "chair_versions"}  # whose texts may stand in blocks
MAX_DEPTH = 12  # levels of nested lists and objects
MAX_PROBLEMS = 12  # most problems reported at once: a model does not fix more
FINAL, REQUEST, HALT = "final_output", "request_context", "halt"
_NO_ANSWER = re.compile(rf"""response_type\W{{1,8}}({REQUEST}|{HALT})|(?<!\\)["']requests["']\s*:""", re.IGNORECASE)
_CONTROLS = re.compile(f"[{CONTROLS}]")
_SURROGATES = re.compile(r"[\ud800-\udfff]")
_ASKED = "halt: the user answered all the questions that one step may ask; plan with these answers."
_ADVICE = r"Answer with one JSON object; inside its texts write a quote as \" and a line break as \n."


@dataclass(frozen=True)
class StepFormat:
    """The format of a reply of `agent` in `step`, checked against `state` (a `ReplyFormat`).

    `about` are the products of the step: those to write, to review or due to be inspected. `last` means that no more
    context can be requested (in Bootstrap: that the user cannot be asked). `presets` are what a Decision may be
    decided by. Without `ask`, a plan cannot ask the user either.
    """

    step: MissionStep
    agent: str
    state: MissionState = field(repr=False)
    about: tuple[str, ...] = ()
    last: bool = False
    presets: tuple[str, ...] = PRESETS
    ask: bool = True
    _known: list[tuple[StepReply, MissionState, Judged]] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    @property
    def name(self) -> str:
        """The step's name."""
        return self.step.value

    @property
    def layout(self) -> ReplyLayout:
        """The arrangement of the reply, for reading it leniently."""
        key, state = DOCUMENTS.get(self.step), self.state
        documents = (key, reply_documents.CONTENT) if key else None
        keys = {"personas": state.agents, "operative_domains": state.team}
        return ReplyLayout("json", (REPLIES[self.step], ContextRequest), documents=documents, keys=keys)

    @property
    def types(self) -> tuple[str, ...]:
        """The allowed values of `response_type`."""
        if self.step is MissionStep.BOOTSTRAP:
            return (FINAL,) if self.last else (FINAL, HALT)
        return (FINAL, *(() if self.last else (REQUEST,)), *((HALT,) if self.step is MissionStep.PLAN else ()))

    def parse(self, text: str) -> Said:
        """Return the validated reply or context request; raise `InvalidReply`.

        What is no answer to the step, such as a broken request for context, needs the prompt: its draft alone could
        only become an empty reply.
        """
        try:
            return self._parsed(text)
        except InvalidReply as invalid:
            if invalid.needs_prompt or self._answers(text):
                raise
            raise InvalidReply(invalid.problems, needs_prompt=True) from None

    def _answers(self, text: str) -> bool:
        """Return whether an invalid reply answers the step: it is, and may be, no request for context and no halt."""
        outside = document_blocks.split(text)[0] if self.step in DOCUMENTS else text
        if REQUEST in self.types and "{" not in outside:
            return False
        other = _NO_ANSWER.search(outside)
        return other is None or ((other[1] or "").lower() == HALT and HALT in self.types)

    def _parsed(self, text: str) -> Said:
        """Return what `parse` returns; raise `InvalidReply` with what is wrong with the text."""
        key = DOCUMENTS.get(self.step, "")
        too_long(text, *((MAX_CHARS,) if key else ()))
        outside, blocks = document_blocks.split(text) if key else (text, [])
        data = _typed(load(extracted(outside)), tuple(REPLIES[self.step].model_fields))
        kind = data["response_type"]
        if kind not in self.types:
            raise InvalidReply([self._refused(kind)])
        if kind == REQUEST:
            return self._requested(data)
        data, refused = self._with_documents(data, key, blocks) if key else (data, ())
        try:
            reply = self._whole(data)
        except InvalidReply as invalid:
            return self._part(data, refused, invalid)
        if not refused:
            return reply
        problems = [problem for part in refused for problem in part.problems]
        return self._part(data, refused, InvalidReply(_bounded(problems), needs_prompt=True))

    def _whole(self, data: Mapping[str, Any], *, part: bool = False) -> StepReply:
        """Return a reply that is valid as a whole, or with `part` as part of one; raise `InvalidReply`."""
        reply = validate(REPLIES[self.step], dict(data), "The reply")
        _, problems = self.judged(reply, self.state, part=part)
        if not self.ask and isinstance(reply, PlanReply) and reply.halt and reply.halt.type == "question":
            problems = (_ASKED, *problems)
        if problems:
            raise InvalidReply(_bounded(problems), needs_prompt=True)
        return reply

    def _part(self, data: Mapping[str, Any], refused: Sequence[RefusedPart], invalid: InvalidReply) -> StepReply:
        """Return what is valid of a reply, with what is not; raise `invalid` if nothing is."""

        def problems(part: Mapping[str, Any]) -> Sequence[str]:
            try:
                self._whole(part, part=True)
            except InvalidReply as wrong:
                return wrong.problems
            return ()

        found = partial.valid_part(self.step, data, problems)
        if found is None:
            raise invalid
        kept, more = found
        parts = (*refused, *more)
        gone = {part.product for part in parts}
        left = [id for id in self._unsaid(kept) if id not in gone]
        parts += tuple(RefusedPart(DOCUMENTS[self.step], id, (f"There is no version of {id}.",)) for id in left)
        return self._whole(kept, part=True).without(parts) if parts else self._refuse(invalid)

    def _refuse(self, invalid: InvalidReply) -> StepReply:
        raise invalid

    def _unsaid(self, kept: Mapping[str, Any]) -> list[str]:
        """Return the products to write of which a reply says nothing."""
        if self.step is not MissionStep.WRITE:
            return []
        said = {partial.product_of(item) for key in ("versions", "collabs") for item in kept.get(key, ())}
        return [id for id in self.about if id not in said]

    def _with_documents(
        self, data: dict[str, Any], key: str, blocks: Sequence[DocumentBlock]
    ) -> tuple[dict[str, Any], tuple[RefusedPart, ...]]:
        """Return the data with the text of each block in its entry of `key`, without entries whose text is wrong."""
        clean = [replace(block, text=_clean(block.text, 0)) for block in blocks]
        found = reply_documents.placed(key, bracketed(data.get(key)), clean, self.state)
        refused = tuple(RefusedPart(key, id, tuple(told)) for id, told in found.problems.items())
        entries = [item for item in found.entries if reply_documents.product(item) not in found.problems]
        return ({**data, key: entries} if key in data or clean else data), refused

    def judged(self, reply: StepReply, state: MissionState, *, part: bool = False) -> Judged:
        """Return the result of `reducer.apply_reply`; it is cached for the last reply and state."""
        for known, before, found in self._known:
            if known is reply and before is state:
                return found
        found = reducer.apply_reply(state, self.step, self.agent, reply, self.about, self.presets, part=part)
        self._known[:] = [(reply, state, found)]
        return found

    def repair(self, text: str) -> tuple[str, tuple[str, ...]] | None:
        """Return None: text added by cdo would count as the agent's own."""
        return None

    def object_alone(self, text: str) -> str | None:
        """Return an invalid reply without its documents if each is as it has to be; None if one of them is not."""
        key = DOCUMENTS.get(self.step)
        outside, blocks = document_blocks.split(text)
        if key is None or "{" not in outside:
            return None
        with suppress(InvalidReply):
            clean = [replace(block, text=_clean(block.text, 0)) for block in blocks]
            if reply_documents.complete(key, outside, clean, self.state):
                return outside.strip()
        return None

    def complete_part(self, text: str) -> str | None:
        """Return a reply that was cut off as far as it is complete and valid, None if nothing is."""
        for each in (text, cut_reply.closed(text)):
            with suppress(InvalidReply):
                if each:
                    self.parse(each)
                    return each
        return None

    def grammar(self) -> str:
        """Return a grammar for a short reply with valid ids."""
        return reply_grammar.grammar(self.step, self.agent, self.state, self.about)

    def _refused(self, kind: Any) -> str:
        allowed = " or ".join(f'"{item}"' for item in self.types)
        why = ""
        if kind == REQUEST:
            why = (
                "nothing can be asked for in this step"
                if self.step is MissionStep.BOOTSTRAP
                else "enough was asked for"
            )
        elif kind == HALT:
            why = (
                "enough was asked" if self.step is MissionStep.BOOTSTRAP else "only the chair can halt, when it plans"
            )
        return f"`response_type` must be {allowed}, not {_quoted(kind)}{f': {why}' if why else ''}."

    def _requested(self, data: dict[str, Any]) -> ContextRequest:
        request = validate(ContextRequest, data, "The request")
        unknown = dict.fromkeys(
            item.product_id for item in request.requests if item.product_id not in self.state.products
        )
        if unknown:
            raise InvalidReply([f"{absent(self.state, item)}." for item in unknown], needs_prompt=True)
        return request


# -- reading JSON ----------------------------------------------------------------------------------


def extracted(text: str) -> str:
    """Return the JSON object in a reply, without a fence or text around it; raise `InvalidReply` for none or several.

    The text around it may not have braces: a part of a broken object is never taken for the reply.
    """
    text = unwrap(text)
    if not text.startswith(("{", "[")):
        blocks = fenced(text, ("json",))
        if len(blocks) > 1:
            raise InvalidReply([f"There are {len(blocks)} blocks of JSON in the reply. {_ADVICE}"])
        text = blocks[0][0].strip() if blocks else text
    if text.startswith("["):
        return text
    start, end = text.find("{"), text.rfind("}")
    if start < 0:
        raise InvalidReply([f"There is no JSON object in the reply. {_ADVICE}"])
    return text[start : end + 1] if end > start else text[start:]


def load(text: str) -> Any:
    """Parse a JSON text, with one kind of line break in texts; raise `InvalidReply`.

    Refuse duplicate keys, NaN and numbers beyond a float's range, more than `MAX_DEPTH` levels, half surrogate pairs,
    and control characters other than tab and line breaks.
    """
    try:
        value = json.loads(text, object_pairs_hook=_mapping, parse_float=_number, parse_constant=_number)
    except json.JSONDecodeError as error:
        why = "something follows the object" if error.msg == "Extra data" else error.msg.removesuffix(" at")
        where = f"line {error.lineno}, column {error.colno} of the object"
        raise InvalidReply([f"The reply is not valid JSON: {where}: {why}. {_ADVICE}"]) from None
    except RecursionError:
        raise InvalidReply([f"The reply is nested deeper than {MAX_DEPTH} levels."]) from None
    except ValueError:  # Python reads no whole number of more than 4,300 digits
        raise InvalidReply(["A number in the reply is too large."]) from None
    return _clean(value, MAX_DEPTH)


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise InvalidReply([f"The key `{shown(key)}` is given twice in one object."])
        found[key] = value
    return found


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise InvalidReply([f"{shown(text)} is not a number in JSON."])
    return value


def _clean(value: Any, levels: int) -> Any:
    if isinstance(value, (dict, list)) and not levels:
        raise InvalidReply([f"The reply is nested deeper than {MAX_DEPTH} levels."])
    if isinstance(value, dict):
        return {_clean(key, 0): _clean(item, levels - 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item, levels - 1) for item in value]
    if not isinstance(value, str):
        return value
    value = value.replace("\r\n", "\n").replace("\r", "\n")
    if bad := _CONTROLS.search(value) or _SURROGATES.search(value):
        kind = "half a surrogate pair" if "\ud800" <= bad[0] <= "\udfff" else "a control character"
        raise InvalidReply([f"A text in the reply holds {kind}: U+{ord(bad[0]):04X}."])
    return value


def _typed(data: Any, keys: Sequence[str]) -> dict[str, Any]:
    """Return the object with a `response_type`; if it is missing and a key of the step is there, "final_output"."""
    if not isinstance(data, dict):
        raise InvalidReply([f"The reply must be a JSON object with the keys {', '.join(keys)}."])
    kind = data.get("response_type", FINAL)
    if "response_type" not in data and not set(keys) & set(data):
        raise InvalidReply(
            [f"`response_type` is missing, and so is every other key of this step: {', '.join(keys)}."]
        )
    return {**data, "response_type": kind.strip().lower() if isinstance(kind, str) else kind}


# -- words -----------------------------------------------------------------------------------------


def _quoted(value: Any) -> str:
    return f'"{shown(value)}"' if isinstance(value, str) else "a value that is no text"


def _bounded(problems: Sequence[str]) -> list[str]:
    """Return each problem once, at most `MAX_PROBLEMS`; if there are more, the last says how many were left out."""
    found = list(dict.fromkeys(problems))
    if len(found) > MAX_PROBLEMS:
        found[MAX_PROBLEMS - 1 :] = [f"{len(found) - MAX_PROBLEMS + 1} more things are wrong."]
    return found
