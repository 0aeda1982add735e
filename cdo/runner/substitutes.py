"""What takes the place of records that a session does not have. A run has no substitutes; a replay has its own."""

from __future__ import annotations

from cdo.core.steps import CheckRun, Nest, Nested
from cdo.runner.requests import PendingCall


class Substitutes:
    """No substitutes: what is not on record is asked, held and run."""

    closed = False  # whether letters and files that were left after the end of the run are ignored
    lifts_caps = True  # whether a cap that ended a call may be another one now

    def prepare(self, work: PendingCall) -> None:
        """Add records to a call that is about to be looked up, or change whom it asks."""

    def nested(self, nest: Nest) -> Nested | None:
        """Return the result of a deliberation that is not on record as it is asked now."""
        return None

    def check_run(self, name: str) -> CheckRun | None:
        """Return the run of the person's command that is not on record as it is run now."""
        return None
