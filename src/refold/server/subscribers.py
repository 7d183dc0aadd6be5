"""What other parts of the daemon contribute to the loop's steps."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from refold.core import Entry, Event
from refold.journal import Change, JobEnded, JobRecord
from refold.model import Seconds
from refold.server.job_table import Notice


class LoopStep(msgspec.Struct, frozen=True):
    """A step that was committed and carried out."""

    entry: Entry
    changes: list[Change]
    notices: list[Notice]

    @property
    def ended(self) -> list[JobRecord]:
        """The jobs that ended."""
        return [change.record for change in self.changes if isinstance(change, JobEnded)]


class Subscriber:
    """A part that takes part in every step. Subclasses override what they need; the loop calls them in order.

    An error in `started` or `before_step` ends the loop: nothing was decided yet. An error in `after_step` is logged:
    the step has been carried out.
    """

    def started(self) -> None:
        """Called once, when the state of the previous daemon has been restored."""

    def next_step_at(self) -> Seconds | None:
        """Return when a step is due even if no input arrives; None if there is no such time."""
        return None

    def before_step(self, now: Seconds) -> Sequence[Event]:  # noqa: ARG002
        """Return events to add to the step at this time, before the policy decides."""
        return ()

    def after_step(self, step: LoopStep) -> None:
        """Called after each step has been carried out."""
