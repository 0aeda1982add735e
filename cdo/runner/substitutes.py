"""Provides substitutes for missing records. A run has none; a replay has its own subclass."""

from __future__ import annotations

from cdo.core.steps import CheckRun, Nest, Nested
from cdo.runner.requests import PendingCall


class Substitutes:
    """The default, without substitutes: missing replies, deliberations and command runs are made."""

    closed = False  # whether files that a person left after the end of the run are ignored
    lifts_caps = True  # whether a call that a cap ended is tried again when the caps have changed

    def prepare(self, work: PendingCall) -> None:
        """Add records to a call before it is looked up, or change the models it asks."""

    def nested(self, nest: Nest) -> Nested | None:
        """Return a result for a deliberation without a matching record."""
        return None

    def check_run(self, name: str) -> CheckRun | None:
        """Return a run of the person's command without a matching record."""
        return None
