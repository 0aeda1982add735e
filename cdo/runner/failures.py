"""Tells whether a batch has enough replies, and if not why: the true cause, once, and what helps. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from cdo.core.errors import BudgetReached, CdoError, ConfigError, ModelsFailed
from cdo.core.exchange import Fault
from cdo.core.formatting import one_line
from cdo.core.steps import CAPPED, Batch, Reply
from cdo.providers.models import ModelSpec

# Reasons for a missing reply that a lenient batch accepts: a later retry would not help.
EXCUSED = frozenset((CAPPED, Fault.INVALID, Fault.REFUSED, Fault.LENGTH, Fault.EMPTY, Fault.OVERFLOW))
SHOWN = 3  # causes that an error names
MAX_CAUSE = 220  # characters of a cause: a provider's sentence is repeated, not its whole page
RESUME = "`cdo resume` asks only for what is missing"
OTHER_MODEL = "`cdo resume -m NAME` goes on with another model"


class MissingReply(Struct, frozen=True):
    """A reply that is missing, with the model that was asked last."""

    reply: Reply
    spec: ModelSpec


def enough(batch: Batch, replies: Sequence[Reply]) -> bool:
    """Return True if these replies, all of models, are enough for the quorum of their batch."""
    missing = [reply for reply in replies if reply.missing]
    excused = sum(batch.lenient and reply.reason.kind in EXCUSED for reply in missing)
    return len(replies) - len(missing) + excused >= batch.quorum


def failure(missing: Sequence[MissingReply], asked: int, quorum: int, time_limit: str = "") -> CdoError:
    """Return the error for a batch of `asked` calls that has fewer than `quorum` replies.

    `time_limit` is the message of the time cap if its share for this batch is used up, else "". Without a connection
    more time would not have helped, so then the cap is not the cause.
    """
    kinds = {item.reply.reason.kind for item in missing}
    if time_limit and kinds != {Fault.NETWORK}:
        known = [item for item in missing if item.reply.reason.kind != Fault.TIMEOUT]
        why = f" Meanwhile: {_by_call(known)}." if known else ""
        return BudgetReached(f"{time_limit}{why}", "`cdo resume` goes on; nothing is paid twice.")
    kind = kinds.pop() if len(kinds) == 1 else ""
    if kind in (Fault.DENIED, Fault.USED_UP):
        what = "The provider refuses access" if kind == Fault.DENIED else "A quota or the credit is used up"
        return ConfigError(f"{what} ({_by_model(missing)}).", _hint(kind, missing))
    if kind == Fault.NETWORK:
        return ModelsFailed(f"The models failed: {_by_model(missing)}.", _hint(kind, missing))
    verb = "is" if quorum == 1 else "are"
    wanted = f"{asked - len(missing)} of {asked} answered, at least {quorum} {verb} needed"
    return ModelsFailed(f"The models failed: {wanted} ({_by_call(missing)}).", _hint(kind, missing))


def _hint(kind: str, missing: Sequence[MissingReply]) -> str:
    """Return what helps against a fault that all missing replies have in common."""
    if kind == Fault.DENIED:
        return f"{_access(missing)}, then `cdo resume`; {OTHER_MODEL}."
    if kind == Fault.USED_UP:
        return f"Add credit or wait until the quota is renewed, then `cdo resume`; {OTHER_MODEL}."
    if kind == Fault.NETWORK:
        return f"Check the network and the address, then `cdo resume`; {OTHER_MODEL}."
    if kind == Fault.REJECTED:
        return f"`cdo models` shows the names of models; {OTHER_MODEL}, and {RESUME}."
    return f"{RESUME}."


def _access(missing: Sequence[MissingReply]) -> str:
    """Return how to get access to the models: which variables hold their keys, which agents need a login."""
    keys = list(dict.fromkeys(item.spec.key_env for item in missing if item.spec.key_env))
    agents = list(dict.fromkeys(item.spec.agent for item in missing if item.spec.agent))
    login = f"Log in with {' and '.join(f'`{name}`' for name in agents)}" if agents else ""
    if login and not keys:
        return login
    named = f"Check the key in {' and '.join(keys)}" if keys else "Check the key"
    return f"{named} and what it may use (`cdo doctor` tells which keys are set)"


def _by_model(missing: Sequence[MissingReply]) -> str:
    """Return the causes without their kind, each once, with the model that it is about."""
    found = dict.fromkeys((item.spec.name, _short(item.reply.reason.text)) for item in missing)
    return _listed([f"{model}: {text}" if text else model for model, text in found])


def _by_call(missing: Sequence[MissingReply]) -> str:
    """Return the causes with their kind, each once, behind the calls that had it."""
    found: dict[str, list[str]] = {}
    for item in missing:
        found.setdefault(_short(str(item.reply.reason)), []).append(item.reply.call)
    return _listed([f"{', '.join(calls)}: {cause}" for cause, calls in found.items()])


def _listed(causes: Sequence[str]) -> str:
    more = f"; and {len(causes) - SHOWN} more" if len(causes) > SHOWN else ""
    return "; ".join(causes[:SHOWN]) + more


def _short(text: str) -> str:
    return one_line(text, MAX_CAUSE).rstrip(".")
