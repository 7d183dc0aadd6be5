"""Keep the daemon running when a policy raises an exception."""

from __future__ import annotations

import logging
from collections.abc import Callable

from refold.core import Policy, View
from refold.errors import BadDecision
from refold.model import NO_CHANGE, Decision

log = logging.getLogger("refold")


class FallbackPolicy:
    """Wraps a policy; if it raises, nothing changes in this round and a new instance decides from the next round on.

    The new instance is shown all waiting jobs as newly submitted and all runs as newly started, because it has not seen
    the earlier rounds.
    """

    def __init__(self, make: Callable[[], Policy]) -> None:
        self._make = make
        self._policy = make()
        self._is_new = False
        self.name = self._policy.name

    def decide(self, view: View) -> Decision:
        """Return the policy's decision, or no change if it raises."""
        if self._is_new:
            _mark_all_as_new(view)
        try:
            decision = self._policy.decide(view)
        except Exception:  # the policy may be a user's file
            log.exception("policy %s failed; nothing changes in this round, and the policy is restarted", self.name)
            self._policy, self._is_new = self._make(), True
            return NO_CHANGE
        self._is_new = False
        return decision


def _mark_all_as_new(view: View) -> None:
    changes = view.changes
    changes.clear()
    changes.submitted += view.waiting.values()
    changes.started += view.runs.values()


def log_rejection(rejection: BadDecision) -> None:
    """Log a decision that failed the check. The scheduler keeps the current allocations."""
    log.warning("decision rejected: %s", rejection)
