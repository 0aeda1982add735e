"""Previews the context that an agent would be shown of a product now: the pack of a step, with its tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from cdo.cabal.model.entities import STEPS, MissionStep
from cdo.cabal.model.state import MissionState
from cdo.cabal.program import shown
from cdo.cabal.reconstruction import retrace
from cdo.core.errors import UsageError
from cdo.core.exchange import Message
from cdo.core.mission_names import CHAIR, ENVOY, WATCHDOG
from cdo.core.steps import Call
from cdo.core.usage import estimate_tokens
from cdo.session.reader import SessionReader
from cdo.session.session_file import read_frozen

_BY = {MissionStep.PLAN: CHAIR, MissionStep.INSPECT: WATCHDOG, MissionStep.PRESENT: ENVOY}


class ContextPreview(Struct, frozen=True):
    """The call that would be made now for an agent, a step and a product."""

    call: Call
    agent: str
    step: MissionStep
    product: str

    @property
    def left_out(self) -> list[str]:
        """Descriptions of what did not fit the budget."""
        own: Any = self.call.data["own"]
        return list(own["left_out"])

    def json(self, messages: Sequence[Message]) -> dict[str, Any]:
        """Return the preview as data for `--json`."""
        return {
            "step": self.step.value,
            "agent": self.agent,
            "product": self.product,
            "tokens": sum(estimate_tokens(message.text) for message in messages),
            "shared": sum(estimate_tokens(message.text[: message.shared]) for message in messages),
            "left_out": self.left_out,
            "messages": [{"role": message.role, "text": message.text} for message in messages],
        }

    def lines(self, messages: Sequence[Message]) -> Iterator[str]:
        """Yield the preview as lines for the terminal."""
        told = self.json(messages)
        yield (
            f"{self.step} · {self.agent} · {self.product}: about {told['tokens']:,} tokens, "
            f"of which {told['shared']:,} are the same for everybody in this step"
        )
        if self.left_out:
            yield f"Left out for want of room: {', '.join(self.left_out)}"
        for message in messages:
            yield ""
            yield f"── {message.role} ({estimate_tokens(message.text):,} tokens) ──"
            yield message.text


def look(archive: SessionReader, product: str, step: str, agent: str) -> ContextPreview:
    """Return what `agent` would be shown of a product, by id or name, in a step of the next round.

    If `agent` is "", it is the agent responsible for the step. Raises `UsageError` for unknown names, `SessionError`
    if the session is no mission.
    """
    plan = read_frozen(archive.text("session.yaml"), Path(archive.place)).plan
    state = retrace(archive).state
    assert plan.crew is not None  # retrace has checked it
    named = next((item for item in STEPS[1:] if item.value == step.lower()), None)
    if named is None:
        raise UsageError(f"There is no step `{step[:40]}`.", f"The steps are {', '.join(STEPS[1:])}.")
    found = _named(state, product)
    who = agent or _BY.get(named) or _doer(state, named, found)
    if who not in state.agents:
        raise UsageError(f"Nobody in the team is called `{who[:40]}`.", f"The team: {', '.join(state.agents)}.")
    return ContextPreview(shown(plan, plan.crew, state, named, who, found), who, named, found)


def _named(state: MissionState, product: str) -> str:
    if found := state.named(product):
        return found
    there = ", ".join(f"{item.id} ({item.name})" for item in list(state.products.values())[:20])
    raise UsageError(f"There is no product `{product[:60]}`.", f"There are {there or 'none yet'}.")


def _doer(state: MissionState, step: MissionStep, product: str) -> str:
    """Return the operative that takes a step of this product: its owner, or for a review another operative."""
    owner = state.products[product].owner or state.team[0]
    if step is not MissionStep.REVIEW:
        return owner if owner in state.team else state.team[0]
    return next((agent for agent in state.team if agent != owner), state.team[0])
