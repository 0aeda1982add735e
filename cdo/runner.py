"""Executes programs durably: the only place that calls a model, retries, charges, validates and records.

A program's batches are looked up before they are sent: an artifact or record that matches the call's inputs is
used as it is, so that resuming *is* running again. The runner knows no program by name.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar, cast

from cdo import artifacts
from cdo.archive import as_read, checked_in
from cdo.artifacts import Artifact
from cdo.attempts import Attempts, Deadlines, Seat
from cdo.budget import Budget, Limits, Totals
from cdo.content import Library
from cdo.conversation import Toolbox, Work
from cdo.errors import BudgetReached, CdoError, ConfigError, ModelsFailed, NeedsHuman, SessionError
from cdo.people import Human, People
from cdo.policy import Allowance
from cdo.store import Session
from cdo.types import (
    CAPPED,
    Ask,
    Batch,
    Call,
    Collect,
    Event,
    Fault,
    Finding,
    Gather,
    InvalidReply,
    Nest,
    Nested,
    Observe,
    Pause,
    Program,
    Project,
    Publish,
    Reply,
    Review,
    Step,
    Usage,
)

T = TypeVar("T")
# What a lenient batch goes on without: nothing that trying again later would mend.
EXCUSED = (
    CAPPED,
    *(fault.value for fault in (Fault.INVALID, Fault.REFUSED, Fault.LENGTH, Fault.EMPTY, Fault.OVERFLOW)),
)


@dataclass
class Runner:
    """One process's hold on one session. `seats` maps model names to how they are reached.

    `toolbox` lets models look into the repository; `check` finds what the citations of a text are worth; `skill`
    reads the body of a skill by its name; `nest` holds a deliberation in a session of its own, within the caps it is
    given, and tells what that used. Each is None where there is nothing to look at. `reopened` tells that a cap which
    ended the work is lifted: what was made because of that end needs no consent to be made anew.
    """

    session: Session
    library: Library
    seats: Mapping[str, Seat]
    budget: Budget
    observe: Observe
    human: Human = field(default_factory=Human)
    deadlines: Deadlines = field(default_factory=Deadlines)
    concurrency: int = 256
    reply_tokens: int | None = None
    allowance: Allowance = field(default_factory=Allowance)
    toolbox: Toolbox | None = None
    check: Callable[[str], tuple[Finding, ...]] | None = None
    skill: Callable[[str], str] | None = None
    nest: Callable[[Nest, Limits], Awaitable[tuple[Nested | None, Totals]]] | None = None
    reopened: bool = False
    kept: dict[str, Artifact] = field(default_factory=dict)
    _visited: set[str] = field(default_factory=set)
    _checked: dict[str, tuple[Finding, ...]] = field(default_factory=dict)
    _begun: dict[str, str] = field(default_factory=dict)
    _gone: dict[str, str] = field(default_factory=dict)
    _attempts: Attempts = field(init=False)
    _people: People = field(init=False)

    def __post_init__(self) -> None:
        self._people = People(self.session, self.library, self.human, self.observe)
        self._checked = checked_in(self.session.records)
        self._attempts = Attempts(
            self.session,
            self.library,
            self.budget,
            self.observe,
            self.deadlines,
            self.concurrency,
            self.reply_tokens,
            self.allowance,
            self.toolbox,
        )

    # -- the loop -----------------------------------------------------------------------------

    async def drive(self, program: Program[T]) -> T:
        """Run `program` to its end and return its outcome; raises `CdoError` when it cannot go on."""
        answer: Any = None
        try:
            while True:
                try:
                    step = program.send(answer)
                except StopIteration as stop:
                    return cast(T, stop.value)
                answer = await self._step(step)
        finally:
            with contextlib.suppress(SessionError):
                self._people.show()

    async def _step(self, step: Step) -> Any:
        match step:
            case Batch():
                return await self._batch(step)
            case Pause():
                return await self._people.pause(step)
            case Review():
                return await self._people.review(step)
            case Collect():
                return await self._people.collect(step)
            case Publish():
                return self._people.publish(step)
            case Project():
                return self._people.project(step)
            case Ask():
                return await self._people.ask(step)
            case Gather():
                return await self._people.gather(step)
            case Nest():
                return await self._nested(step)

    async def _batch(self, batch: Batch) -> tuple[Reply, ...]:
        """Replay what is recorded, ask for what is not, and hold the quorum."""
        works = await self._prepared(batch.calls)
        await self._settle_stale(works)
        self._visited.update(call.artifact for call in batch.calls)
        self.observe(Event("batch", "", {"calls": [[call.name, call.kind] for call in batch.calls]}))
        self._attempts.batch_deadline = time.monotonic() + self.budget.remaining_seconds() / 2
        replies = await _all([self._reply(work, lenient=batch.lenient) for work in works])
        missing = [reply for reply in replies if reply.missing]
        excused = sum(batch.lenient and reply.reason.startswith(EXCUSED) for reply in missing)
        if len(replies) - len(missing) + excused < batch.quorum:
            for work in [work for work, reply in zip(works, replies, strict=True) if reply.missing]:
                await self.session.commit({"kind": "failed", "call": work.call.name, "inputs": work.key})
            raise self._failed(batch, missing)
        for work, reply in zip(works, replies, strict=True):
            if reply.missing and not work.given_up:
                capped: dict[str, Any] = {"caps": self._caps} if reply.reason.startswith(CAPPED) else {}
                if capped and reply.reason.endswith(self.budget.time_limit):  # another process has time of its own
                    capped["caps"] = ["time"]
                await self.session.commit(
                    {"kind": "missing", "call": work.call.name, "inputs": work.key, "reason": reply.reason, **capped}
                )
        return tuple(replies)

    @property
    def _caps(self) -> list[float | None]:
        limits = self.budget.limits
        return [limits.calls, limits.tokens, limits.cost]

    def _lifted(self, record: Mapping[str, Any]) -> bool:
        """Whether a record tells of a cap that is another one now; a time limit is that of one process."""
        return "caps" in record and record["caps"] != self._caps

    @property
    def _late(self) -> bool:
        """Whether the share of the time limit that a batch gets is used up."""
        return self.budget.limits.seconds is not None and time.monotonic() >= self._attempts.batch_deadline - 0.05

    async def _reply(self, work: Work, *, lenient: bool = False) -> Reply:
        try:
            reply = self._replay(work) or await self._ask(work)
        except BudgetReached as error:
            if not lenient:
                raise
            reply = Reply(work.call.name, reason=f"{CAPPED}: {error.message}")
            self.observe(Event("missing", work.call.name, {"reason": reply.reason}))
        if reply.missing and lenient and self._late and not reply.reason.startswith(EXCUSED):
            reply = replace(reply, reason=f"{CAPPED}: {self.budget.time_limit}")
        if reply.missing:
            return reply
        return replace(reply, findings=await self._check(self.kept[work.call.name]))

    def _failed(self, batch: Batch, missing: Sequence[Reply]) -> CdoError:
        # Half of the time that is left belongs to one batch: with that used up, the cap is what ended it.
        if self._late:
            return BudgetReached(self.budget.time_limit, "`cdo resume` goes on; nothing is paid twice.")
        reasons = "; ".join(f"{reply.call}: {reply.reason}" for reply in missing[:3])
        if missing and all(reply.reason.startswith(Fault.DENIED.value) for reply in missing):
            return ConfigError(
                f"The provider refuses access ({reasons}).", "Check the key and the model's name, then `cdo resume`."
            )
        wanted = f"{len(batch.calls) - len(missing)} of {len(batch.calls)} answered, {batch.quorum} are needed"
        return ModelsFailed(
            f"The models failed: {wanted} ({reasons}).", "`cdo resume` asks only for what is missing."
        )

    async def _nested(self, nest: Nest) -> Nested | None:
        """What a deliberation in a session of its own came to, as recorded or held now; None where a cap ended it."""
        key = artifacts.digest({"question": nest.question, "context": nest.context, "preset": nest.preset})[:16]
        for record in self.session.records:
            if record["kind"] == "nested" and (record["name"], record["inputs"]) == (nest.name, key):
                return Nested(**record["result"])
        if self.nest is None:
            return None
        self._people.go_on()
        self.observe(Event("note", nest.name, {"text": f"{nest.name}: a deliberation begins ({nest.preset})"}))
        result, used = await self.nest(nest, self.budget.left())
        self.budget.totals.join(used)
        if result is None:
            return None
        record = {"kind": "nested", "name": nest.name, "inputs": key, "result": asdict(result), "used": asdict(used)}
        kept = await self.session.commit(record)
        return Nested(**kept["result"])

    # -- what is recorded ---------------------------------------------------------------------

    async def _prepared(self, calls: Sequence[Call]) -> list[Work]:
        """The calls with what they read, all as of one moment at which no person was in the middle of a save."""
        stems = dict.fromkeys(stem for call in calls for stem in (call.artifact, *call.reads) if "/" not in stem)
        names = [f"{stem}.md" for stem in stems]
        while True:
            before = await self.session.edits.settle(names)
            self._gone.clear()
            works = [self._prepare(call) for call in calls]
            if self.session.edits.signatures(names) == before:
                break
        for name, text in self._gone.items():
            self.session.write_again(f"{name}.md", text)
            self.observe(Event("note", "", {"text": f"{name}.md was gone; it is written again as it was"}))
        return works

    def _prepare(self, call: Call) -> Work:
        texts, inputs = {}, {}
        for name in call.reads:
            texts[name], inputs[name] = self._read(name)
        key = artifacts.digest({"template": call.template, "data": dict(call.data), "reads": inputs})[:16]
        work = Work(call, key, inputs, texts, self.session.artifact(call.artifact))
        for record in self.session.records:
            if record.get("call") != call.name or record.get("inputs") != key:
                continue
            if self._lifted(record):
                self.reopened = True
            else:
                work.take(record)
        return work

    def _recorded(self, work: Work) -> tuple[Any, str, str] | None:
        """A valid reply among the recorded ones, by whichever model: (data, text, model)."""
        for record in work.records:
            if (
                "response" in record
                and (data := _parsed(work.call, text := str(record["response"]["text"]))) is not None
            ):
                return data, text, str(record["model"])
        return None

    def _open(self, work: Work) -> bool:
        """Whether a model must be asked: nothing on disk or on record answers the call."""
        return not (work.artifact or work.given_up or self._recorded(work))

    def _replay(self, work: Work) -> Reply | None:
        """The reply as the artifact on disk has it, or the recorded decision to go on without one."""
        call, artifact = work.call, work.artifact
        # A deferred file is more than the reply: the record knows better, unless a person edited it.
        if artifact and (artifact.edited or not (call.deferred and work.records)):
            added = tuple(artifact.own.get("added") or ())
            text, data = artifact.reply, _parsed(call, artifact.reply)
            if data is None and (mended := call.format.repair(text)):
                data = _parsed(call, mended[0])
            if data is not None:
                self.kept[call.name] = artifact
                how = "edited" if artifact.edited else "recorded"
                self.observe(Event("reply", call.name, {**_headline(data), "how": how}))
                return Reply(call.name, data, added=added)
            if artifact.edited:
                raise _broken_edit(self.session, call)
        if work.given_up:
            self.observe(Event("missing", call.name, {"reason": work.given_up, "how": "recorded"}))
            return Reply(call.name, reason=work.given_up)
        return None

    def _read(self, name: str) -> tuple[str, str]:
        """What an artifact says, without cdo's own keys, and its identity; files called 00-* are read as they are."""
        if name.startswith("00-"):
            text = self._given(name)
            return text, artifacts.digest(text)[:16]
        if name.startswith("skills/"):
            return self._skill(name)
        artifact = self._deferred(name) or self.session.artifact(name)
        if artifact is None:
            artifact = self.session.edits.last_seen(name)
            if artifact is None:
                return "", ""
            self._gone[name] = artifact.as_found()
        if not artifact.reply.strip():
            raise SessionError(
                f"{self.session.path / name}.md is empty.",
                "Mend it and resume, or remove it: cdo then restores what was recorded.",
            )
        return as_read(artifact, self._checked)

    def _given(self, name: str) -> str:
        """What a file says that the run was begun with; one that has vanished since is written again."""
        text = self.session.read(f"{name}.md")
        if text is None and (text := self._begun.get(name)) is not None:
            self._gone[name] = text
        self._begun[name] = text or ""
        return text or ""

    def _deferred(self, name: str) -> Artifact | None:
        """The reply that a file will hold which the shell writes at the end."""
        return self.kept.get(name.lower()) if name.isupper() else None

    def _skill(self, name: str) -> tuple[str, str]:
        """The body of a skill: as it was when the session first used it, which is kept beside the artifacts."""
        text = self.session.read(f"{name}.md")
        if text is None:
            text = self.skill(name.partition("/")[2]) if self.skill else ""
            self.session.put_now(f"{name}.md", text)
        return text, artifacts.digest(text)[:16]

    async def _check(self, artifact: Artifact) -> tuple[Finding, ...]:
        """What the citations of an artifact are worth: as first found, also after the files have changed."""
        if artifact.sha not in self._checked and self.check:
            found = await asyncio.to_thread(self.check, artifact.reply)
            self._checked[artifact.sha] = found
            if found:
                listed = [asdict(finding) for finding in found]
                await self.session.commit({"kind": "checked", "sha": artifact.sha, "findings": listed})
        return self._checked.get(artifact.sha, ())

    async def _settle_stale(self, works: Sequence[Work]) -> None:
        """Move what no longer follows from its inputs to superseded/, after asking."""
        here = {work.call.artifact for work in works}
        peers = {(work.call.kind, work.call.data.get("turn")) for work in works}
        stale = [work.call.artifact for work in works if work.stale]
        if not stale and not any(self._open(work) for work in works):
            return
        edited: list[str] = []
        outdated, replaced = bool(stale), False
        for name in self.session.artifact_names():
            if name not in self._visited | here and (artifact := self.session.artifact(name)):
                (edited if artifact.edited else stale).append(name)
                # An answer to a call like these that is no longer made: the new ones take its place.
                replaced |= (artifact.own.get("kind"), artifact.own.get("turn")) in peers
        if not outdated and not (replaced and any(self._open(work) for work in works)):
            return
        if edited or not self.reopened:
            await self._consent(stale, edited)
        place = self.session.supersede(stale)
        self.observe(Event("stale", "", {"superseded": stale, "kept": edited, "place": place.name}))
        for work in works:
            if work.call.artifact in stale:
                work.artifact = None

    async def _consent(self, stale: Sequence[str], edited: Sequence[str]) -> None:
        """Ask the person whether stale files may be asked for again; raise `NeedsHuman` where they may not."""
        if self.human.consent is None:
            raise NeedsHuman(
                f"Edited files make these stale: {', '.join(f'{name}.md' for name in stale)}.",
                f"`cdo resume {self.session.name} --yes` asks for them again and keeps the old ones in superseded/.",
            )
        if not await self.human.consent(stale, edited):
            raise NeedsHuman(
                "Nothing was changed; the stale files were left as they are.", "`cdo resume` asks again."
            )

    def findings(self, call: str) -> tuple[Finding, ...]:
        """What the citations in the reply to a call are worth."""
        return self._checked.get(self.kept[call].sha, ()) if call in self.kept else ()

    # -- asking -------------------------------------------------------------------------------

    async def _ask(self, work: Work) -> Reply:
        """Ask the call's models, in order, until one reply is valid; a missing reply says why."""
        if found := self._recorded(work):
            return await self._keep(work, found[1], found[2], Reply(work.call.name, found[0]))
        self.allowance.call()
        reply = Reply(work.call.name, reason="no model")
        self._people.go_on()
        for name in dict.fromkeys(work.call.models):
            reply = await self._attempts.ask(work, self.seats[name])
            if work.last and not reply.missing:
                return await self._keep(work, *work.last, reply)
        if work.last and (mended := work.call.format.repair(work.last[0])):
            data = _parsed(work.call, mended[0])
            if data is not None:
                return await self._keep(work, mended[0], work.last[1], Reply(work.call.name, data, added=mended[1]))
        self.observe(Event("missing", work.call.name, {"reason": reply.reason}))
        return reply

    async def _keep(self, work: Work, text: str, model: str, reply: Reply) -> Reply:
        """Write the artifact of a valid reply, with what its citations are worth."""
        call, used = work.call, [record for record in work.records if record.get("usage")]
        costs = [record["cost"] for record in used]
        own = {
            "kind": call.kind,
            **{key: call.data[key] for key in ("role", "turn") if key in call.data},
            "model": model,
            "usage": {key: sum(record["usage"][key] for record in used) for key in ("input_tokens", "output_tokens")},
            "cost": None if None in costs else round(sum(costs), 9),
            "attempts": len(work.records),
            **({"added": list(reply.added)} if reply.added else {}),
            "inputs": {**work.inputs, "call": work.key},
        }
        artifact = artifacts.from_reply(text, own)
        if findings := await self._check(artifact):
            artifact = replace(artifact, own={**own, "citations": [asdict(finding) for finding in findings]})
        self.kept[call.name] = artifact if call.deferred else self.session.put(call.artifact, artifact)
        self._checked.setdefault(self.kept[call.name].sha, findings)
        self.observe(Event("reply", call.name, _headline(reply.data)))
        return reply


def _parsed(call: Call, text: str) -> Any:
    """The data of a reply, or None when it is not valid."""
    try:
        return call.format.parse(text)
    except InvalidReply:
        return None


def _broken_edit(session: Session, call: Call) -> SessionError:
    """What is wrong with a file that a person edited; lines count from the top of the file."""
    try:
        call.format.parse(session.read(f"{call.artifact}.md") or "")
        why = "it cannot be read."
    except InvalidReply as invalid:
        why = " ".join(invalid.problems)
    return SessionError(
        f"{session.path / call.artifact}.md was edited and is no longer valid: {why}",
        "Mend it and resume, or remove it: cdo then restores what was recorded.",
    )


def _headline(data: Any) -> dict[str, Any]:
    """What a live view shows of a reply."""
    shown = ("position", "confidence", "focus", "exit_ready", "agreement")
    headline = {key: getattr(data, key) for key in shown if getattr(data, key, None) is not None}
    return {**headline, "directive": data.model_dump(mode="json")} if "exit_ready" in headline else headline


async def _all(coroutines: Sequence[Coroutine[Any, Any, Reply]]) -> list[Reply]:
    """Await all and let each finish what is paid for, then raise the first error if any.

    Where the disk fails nothing can be recorded any more: then the others are stopped at once.
    """
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        waiting = set(tasks)
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_EXCEPTION)
            if any(isinstance(task.exception(), SessionError) for task in done):
                break
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException)]
    for error in sorted(errors, key=lambda error: isinstance(error, asyncio.CancelledError)):
        raise error
    return [result for result in results if isinstance(result, Reply)]


def totals(records: Sequence[Mapping[str, Any]]) -> Totals:
    """What the recorded exchanges and nested sessions used; exchanges that a fork took along (`from`) were paid for
    by another session.
    """
    found = Totals()
    for record in records:
        if record["kind"] == "exchange" and not record.get("from"):
            usage = record.get("usage")
            found.add(Usage(usage["input_tokens"], usage["output_tokens"]) if usage else None, record.get("cost"))
        elif record["kind"] == "nested":
            found.join(Totals(**record["used"]))
    return found
