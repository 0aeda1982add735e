"""Runs the steps whose result is recorded once: deliberations within a run, the person's command, further files."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from cdo.core.errors import BudgetReached, NeedsHuman
from cdo.core.events import NoteTold, Observe
from cdo.core.formatting import one_line, pluralise
from cdo.core.steps import FURTHER, CheckRun, Nest, Nested, RunCheck, Survey
from cdo.core.usage import TotalUsage
from cdo.repository.shown_files import shown_files
from cdo.runner.budget import Budget, Limits
from cdo.runner.substitutes import Substitutes
from cdo.session import artifact as artifacts
from cdo.session.store import Session


class RecordedSteps(Struct):
    """Runner of these steps for one session; each returns the recorded result if its inputs are the same.

    `nest` runs a deliberation in its own session within given caps, and returns its result and usage; `run_check`
    runs the person's command; `survey` returns the text of further files for a focus, "" if there are none. They are
    None if not available. `go_on` is called before something new is begun.
    """

    session: Session
    budget: Budget
    observe: Observe
    substitutes: Substitutes
    go_on: Callable[[], None]
    nest: Callable[[Nest, Limits], Awaitable[tuple[Nested | None, TotalUsage]]] | None = None
    run_check: Callable[[RunCheck], Awaitable[CheckRun]] | None = None
    survey: Callable[[Survey], str] | None = None

    async def nested(self, step: Nest) -> Nested | None:
        """Return the result of a nested deliberation, recorded or run now; None if a cap ended it."""
        key = _key({"question": step.question, "context": step.context, "preset": step.preset})
        if record := self._recorded("nested", step.name, key):
            return Nested.of(record["result"])
        if self.nest is None:
            return self.substitutes.nested(step)
        self.go_on()
        self.observe(NoteTold(name=step.name, text=f"{step.name}: a deliberation begins ({step.preset})"))
        result, used = await self.nest(step, self.budget.left())
        self.budget.totals += used
        if result is None:
            return None
        new = {"kind": "nested", "name": step.name, "inputs": key, "result": asdict(result), "used": used.record()}
        return Nested.of((await self.session.commit(new))["result"])

    async def checked_by_command(self, step: RunCheck) -> CheckRun:
        """Return the result of the person's command, recorded or run now."""
        key = _key({"command": step.command, "patch": step.patch, "files": dict(step.files)})
        if record := self._recorded("check-run", step.name, key):
            return CheckRun.of(record["run"])
        if run := self.substitutes.check_run(step.name):
            return run
        if self.run_check is None:
            raise NeedsHuman("The check cannot be run here.", "`cdo resume` runs it.")
        self.go_on()
        left = self.budget.remaining_seconds()
        try:
            run = await asyncio.wait_for(self.run_check(step), None if left == float("inf") else left)
        except TimeoutError:
            raise BudgetReached(self.budget.time_limit, "`cdo resume` runs the check again.") from None
        new = {"kind": "check-run", "name": step.name, "inputs": key, "run": asdict(run)}
        return CheckRun.of((await self.session.commit(new))["run"])

    async def surveyed(self, step: Survey) -> str:
        """Return the stem of the file with further files, "" if there are none; write the file where it is missing.

        A file that was made for another focus moves to superseded/.
        """
        key, file = _key({"focus": step.focus, "tokens": step.tokens}), f"{step.name}.md"
        record = self._recorded("surveyed", step.name, key)
        if record is None and self.survey is None:  # a replay: what was shown then
            found = (item for item in reversed(self.session.records) if item["kind"] == "surveyed")
            record = next((item for item in found if item["name"] == step.name), {"text": ""})
        elif record is None and self.survey:
            self.go_on()
            text = await asyncio.to_thread(self.survey, step)
            if self.session.read(file) is not None:
                self.session.supersede([step.name])
            record = await self.session.commit({"kind": "surveyed", "name": step.name, "inputs": key, "text": text})
            self._tell(step.name, str(record["text"]))
        text = str(record["text"]) if record else ""
        if text and not (self.session.read(file) or "").strip():
            self.session.put_now(file, text)
        return step.name if text else ""

    def _tell(self, name: str, text: str) -> None:
        if files := shown_files(text):
            names = one_line(", ".join(item.path for item in files), 300)
            told = f"{pluralise(len(files), 'further file')} of the repository for the focus: {names}"
            self.observe(NoteTold(text=f"turn {name.removeprefix(FURTHER)}: {told}"))

    def _recorded(self, kind: str, name: str, key: str) -> Mapping[str, Any] | None:
        """Return the record of this kind, name and inputs."""
        identity = (kind, name, key)
        records = (item for item in self.session.records if item["kind"] == kind)
        return next((item for item in records if (kind, item["name"], item["inputs"]) == identity), None)


def _key(inputs: Mapping[str, Any]) -> str:
    return artifacts.digest(dict(inputs))[:16]
