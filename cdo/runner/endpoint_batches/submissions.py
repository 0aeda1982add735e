"""Reads from a session's records which calls wait at a provider's batch endpoint, and says what is recorded. Pure.

A submission is recorded before it is made (`batch-intent`, with its marker and calls), and when the provider has
named it (`batch-sent`). It is open until its answers are recorded (`batch-ended`), or it is known that the provider
never got it (`batch-void`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from cdo.core.exchange import BackendError, Request, Response
from cdo.core.formatting import pluralise
from cdo.core.usage import TotalUsage
from cdo.providers.models import ModelSpec
from cdo.runner.budget import Reservation
from cdo.runner.exchange_records import answered_of, fault_of, usage_of

INTENT, SENT, VOID, ENDED = "batch-intent", "batch-sent", "batch-void", "batch-ended"


class SubmittedCall(Struct, frozen=True):
    """One request of a submission: its id there, what is recorded of it, and the parts of its body beside the texts.

    `estimate` are the tokens of its prompt, as estimated.
    """

    id: str
    asked: Mapping[str, Any]
    body: Mapping[str, Any]
    estimate: int

    @property
    def key(self) -> tuple[str, str, str]:
        """The call's name, the key of its inputs, and the model: no two open requests have the same."""
        return str(self.asked["call"]), str(self.asked["inputs"]), str(self.asked["model"])

    def held(self, spec: ModelSpec) -> Reservation:
        """Return the most that the request can use."""
        reply = int(self.asked["request"]["max_tokens"])
        return Reservation(self.estimate + reply, spec.most(self.estimate, reply) or 0.0, reply)

    def record(self) -> dict[str, Any]:
        """Return what the intent records of it."""
        return {"id": self.id, "asked": dict(self.asked), "body": dict(self.body), "estimate": self.estimate}


class Submission(Struct, frozen=True):
    """A batch that was submitted, or was about to be: `id` is the provider's, "" if it is not known.

    `calls` are those of this session whose answers are not recorded, `answered` the ids of the others. `of` is the
    `cdo batch` that submitted it for several sessions, "" for none. `at` is when it was recorded, before it was
    submitted.
    """

    marker: str
    provider: str
    url: str
    factor: float
    at: str
    calls: tuple[SubmittedCall, ...]
    id: str = ""
    of: str = ""
    answered: frozenset[str] = frozenset()

    @property
    def since(self) -> float:
        """When it was recorded, as Unix time; 0 if that cannot be read."""
        try:
            return datetime.fromisoformat(self.at).timestamp()
        except (ValueError, OverflowError):
            return 0.0

    def intent(self) -> dict[str, Any]:
        """Return what is recorded before it is submitted."""
        return {
            "kind": INTENT, "marker": self.marker, "provider": self.provider, "url": self.url, "of": self.of,
            "factor": self.factor, "at": self.at, "calls": [call.record() for call in self.calls],
        }  # fmt: skip

    def told(self) -> str:
        """Return what waits where, and since when."""
        name = f"batch {self.id}" if self.id else "a batch"
        waiting = "waits" if len(self.calls) == 1 else "wait"
        return f"{pluralise(len(self.calls), 'call')} {waiting} at {self.provider} ({name}, since {since(self.at)})"


def since(at: str) -> str:
    """Return a recorded time for people."""
    return f"{at[:16].replace('T', ' ')} UTC"


def now() -> str:
    """Return the time as it is recorded."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def open_submissions(records: Iterable[Mapping[str, Any]]) -> list[Submission]:
    """Return the submissions that are open by a session's records, in their order."""
    intents, ids = dict[str, Mapping[str, Any]](), dict[str, str]()
    answered, closed = set[str](), set[str]()
    for record in records:
        match record["kind"]:
            case "batch-intent":
                intents[str(record["marker"])] = record
            case "batch-sent":
                ids[str(record["marker"])] = str(record["id"])
            case "batch-void" | "batch-ended":
                closed.add(str(record["marker"]))
            case "exchange" if "batch" in record:
                answered.add(str(record["batch"]))
    return [
        _submission(record, ids.get(marker, ""), answered)
        for marker, record in intents.items()
        if marker not in closed
    ]


def _submission(record: Mapping[str, Any], ident: str, answered: set[str]) -> Submission:
    calls = tuple(
        SubmittedCall(str(call["id"]), call["asked"], call["body"], int(call["estimate"]))
        for call in record["calls"]
        if call["id"] not in answered
    )
    return Submission(
        record["marker"], record["provider"], record["url"], float(record["factor"]), record["at"], calls, ident,
        record.get("of", ""), frozenset(str(call["id"]) for call in record["calls"] if call["id"] in answered),
    )  # fmt: skip


def away(submissions: Sequence[Submission], specs: Mapping[str, ModelSpec]) -> TotalUsage:
    """Return the most that the calls of open submissions can use; those of models without a spec are left out."""
    found = TotalUsage()
    for call in (call for submission in submissions for call in submission.calls):
        if spec := specs.get(str(call.asked["model"])):
            held = call.held(spec.in_batch())
            found += TotalUsage(1, held.tokens, 0, held.cost)
    return found


def exchange_record(
    call: SubmittedCall, submission: Submission, result: Response | BackendError, spec: ModelSpec
) -> dict[str, Any]:
    """Return the record of a call's exchange, from the result of the provider."""
    limit = int(call.asked["request"]["max_tokens"])
    response, error = (result, None) if isinstance(result, Response) else (None, result)
    if response:
        error = fault_of(response, Request(spec.model, (), limit))
    usage = usage_of(response, error, call.estimate)
    cost = spec.cost(usage) if usage else None
    record = {**call.asked, **answered_of(error or result, usage, cost)}
    return record | {"batch": call.id, "started": submission.at, "seconds": 0.0}
