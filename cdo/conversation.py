"""One call's talk with one model: its request, how that changes after a fault, and what a response amounts to.

Pure but for loading templates: nothing is sent or written here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cdo import briefs
from cdo.artifacts import Artifact
from cdo.content import Library
from cdo.context import estimate_tokens
from cdo.models import ModelSpec
from cdo.types import BackendError, Call, Fault, Finish, Message, Request, Response, Usage

# Faults after which a provider has most likely done the work: charged by estimate when it reported nothing.
CHARGED = frozenset(
    {Fault.TIMEOUT, Fault.TRUNCATED, Fault.MALFORMED, Fault.EMPTY, Fault.LENGTH, Fault.REFUSED, Fault.INVALID}
)


@dataclass
class Work:
    """A call on its way: the key of its inputs, what is recorded for it, and the artifact on disk.

    `last` is (text, model) of the last reply that came, valid or not; `failed` counts the records of attempts at
    which the whole run failed: they are kept, but a resume begins anew.
    """

    call: Call
    key: str
    inputs: Mapping[str, str]
    texts: Mapping[str, str]
    artifact: Artifact | None
    records: list[dict[str, Any]] = field(default_factory=list)
    given_up: str = ""
    failed: int = 0
    last: tuple[str, str] | None = None

    @property
    def stale(self) -> bool:
        """Whether the artifact on disk is cdo's own and was made from other inputs."""
        if self.artifact is None or self.artifact.edited:
            return False
        return (self.artifact.own.get("inputs") or {}).get("call") != self.key


class Conversation:
    """The request of one call to one model, and how it changes after what came back."""

    def __init__(self, library: Library, session: str, work: Work, spec: ModelSpec, reply_tokens: int | None) -> None:
        self.problems: tuple[str, ...] = ()
        self._library, self._session, self._work, self._spec = library, session, work, spec
        self._reply_tokens = min(reply_tokens or spec.reply_tokens, spec.window // 2)
        self._rejected = ""
        self._limit = 0

    def reject(self, text: str, problems: Sequence[str]) -> None:
        """The next request shows the model its reply and what is wrong with it."""
        self._rejected, self.problems = text, tuple(problems)

    def change(self, fault: Fault) -> None:
        """Change the next request such that `fault` need not come again."""
        if fault in (Fault.LENGTH, Fault.EMPTY):
            self._reply_tokens = min(2 * self._reply_tokens, self._spec.window // 2)
        elif fault is Fault.OVERFLOW:
            self._limit = (self._limit or self._longest()) // 2

    def request(self) -> Request:
        """The request as it stands now, shortened so far that it should fit the model's window."""
        call, spec = self._work.call, self._spec
        messages = self._messages()
        room = spec.window - self._reply_tokens
        while sum(estimate_tokens(message.text) for message in messages) > room and self._limit != 1:
            self._limit = max(1, (self._limit or self._longest()) * 2 // 3)
            messages = self._messages()
        return Request(
            model=spec.model,
            messages=messages,
            max_tokens=self._reply_tokens,
            headers={
                "X-Cdo-Session": self._session,
                "X-Cdo-Call": call.name,
                "X-Cdo-Kind": call.kind,
                "X-Cdo-Attempt": str(len(self._work.records) + 1),
            },
            grammar=call.format.grammar() if spec.grammar else "",
        )

    def _longest(self) -> int:
        """Characters of the longest text that may be shortened."""
        return max((len(text) for name, text in self._work.texts.items() if name != briefs.QUESTION), default=0)

    def _messages(self) -> tuple[Message, ...]:
        messages = briefs.messages(self._work.call, self._work.texts, self._library, limit=self._limit)
        if not self._rejected:
            return messages
        told = self._library.render("engine/repair", {"problems": self.problems})
        return (*messages, Message("assistant", self._rejected), Message("user", told))


def fault_of(response: Response) -> BackendError | None:
    """What is wrong with a complete response before anybody reads it, or None."""
    wrong: tuple[Fault, str] | None = None
    if response.finish is Finish.REFUSAL:
        wrong = Fault.REFUSED, "the model refused to answer"
    elif not response.text.strip():
        wrong = Fault.EMPTY, "only reasoning, no answer" if response.reasoning else "the answer is empty"
    elif response.finish is Finish.LENGTH:
        wrong = Fault.LENGTH, "the answer was cut off by the token cap"
    return BackendError(*wrong, usage=response.usage, text=response.text) if wrong else None


def usage_of(response: Response | None, error: BackendError | None, input_tokens: int) -> Usage | None:
    """What an exchange took: as reported, else estimated where the provider most likely worked."""
    reported = (response.usage if response else None) or (error.usage if error else None)
    if reported:
        return reported
    if error and error.fault not in CHARGED:
        return None
    text = response.text + response.reasoning if response else error.text if error else ""
    return Usage(input_tokens, estimate_tokens(text), measured=False)
