"""Sums up the runs of the person's command for a fault: before any change, and with each patch. Pure."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from cdo.core.steps import CheckRun
from cdo.formats.markdown import in_fence

TITLE, BEFORE, PATCHED = "Check", "Before any change", "With the patch of"
SHOWN = 3000  # characters of each output that a prompt or FINAL.md shows: the last ones


def passed(run: CheckRun) -> bool:
    """True if the command ran and ended with exit code 0."""
    return run.code == 0 and not run.refused


def failed(run: CheckRun) -> bool:
    """True if the command ran, and ended with an error or did not end in time."""
    return run.code != 0 and not run.refused


class CheckRuns(Struct, frozen=True):
    """The runs of one command: `before` any change, and `after` as (artifact that proposed the patch, run)."""

    before: CheckRun | None = None
    after: tuple[tuple[str, CheckRun], ...] = ()

    def with_patch(self, artifact: str, run: CheckRun) -> CheckRuns:
        """Return these runs and another one."""
        return replace(self, after=(*self.after, (artifact, run)))

    @property
    def reproduced(self) -> bool:
        """True if the command failed before any change."""
        return self.before is not None and failed(self.before)

    @property
    def passing(self) -> tuple[str, ...]:
        """The artifacts with whose patch the command passes, if it failed before any change."""
        return tuple(artifact for artifact, run in self.after if passed(run)) if self.reproduced else ()

    @property
    def verdict(self) -> str:
        """What the runs show, as a clause; "" if there were none."""
        if self.before is None:
            return ""
        if not self.reproduced:
            return "the check passes without any patch: the fault could not be reproduced"
        if self.passing:
            return f"the check failed before and passes with the patch of {' and of '.join(self.passing)}"
        if not self.after:
            return "the check failed before any change; it was not run with a patch"
        if all(run.refused for _, run in self.after):
            return "the check failed before, and no patch on record applies to the work tree"
        return "the check failed before and still fails with the patch"

    def data(self) -> dict[str, Any] | None:
        """Return the runs as the data of a call; None if there were none."""
        if self.before is None:
            return None
        patches = [{"title": f"{PATCHED} {artifact}", **_told(run)} for artifact, run in self.after]
        return {
            "command": self.before.command,
            "verdict": self.verdict,
            "runs": [{"title": BEFORE, **_told(self.before)}, *patches],
        }

    def section(self) -> str:
        """Return the section of FINAL.md about the runs; "" if there were none."""
        if self.before is None:
            return ""
        heads = [(BEFORE, self.before), *((f"{PATCHED} {name}", run) for name, run in self.after)]
        verdict = f"{self.verdict[0].upper()}{self.verdict[1:]}."
        parts = [f"## {TITLE}", verdict, in_fence(self.before.command, "sh")]
        for title, run in heads:
            parts.append(f"- {title}: {_word(run)} ({run.outcome}).")
            if output := _output(run):
                parts.append(in_fence(output))
        return "\n\n".join([*parts, holding(self.before)])


def holding(run: CheckRun) -> str:
    """Return a sentence that says what a command was kept from and what not."""
    copy = "Each run had a copy of the work tree of its own, without what git ignores."
    if not run.sandbox:
        return f"{copy} No sandbox held it: it could reach other files, the network and other processes."
    return f"{copy} The sandbox ({run.sandbox}) kept it from {', '.join(run.held)}."


def _word(run: CheckRun) -> str:
    return "does not apply" if run.refused else "passes" if passed(run) else "fails"


def _output(run: CheckRun) -> str:
    """Return the ends of a command's stdout and stderr."""
    both = [(name, text.strip("\n")) for name, text in (("stdout", run.out), ("stderr", run.err)) if text.strip()]
    return "\n".join(f"{name}:\n{_end(text)}" for name, text in both)


def _end(text: str) -> str:
    return text if len(text) <= SHOWN else f"[…]{text[-SHOWN:]}"


def _told(run: CheckRun) -> dict[str, Any]:
    return {"word": _word(run), "outcome": run.outcome, "output": _output(run)}
