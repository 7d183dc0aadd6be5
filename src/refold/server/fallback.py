"""A policy that may fail, and a daemon that may not."""

from __future__ import annotations

import logging
from collections.abc import Callable

from refold.core import Policy, View
from refold.errors import BadDecision
from refold.model import KEEP, Decision

log = logging.getLogger("refold")


class FallbackPolicy:
    """Asks a policy; where that fails, everything stays as it is, and at the next look another one begins anew.

    To that one everybody who waits has just come, and everybody who runs has just begun: what the policy that failed
    had been shown, and perhaps not taken note of, is not lost.
    """

    def __init__(self, make: Callable[[], Policy]) -> None:
        self._make = make
        self._policy = make()
        self._begins_anew = False
        self.name = self._policy.name

    def decide(self, view: View) -> Decision:
        """What the policy decides, or nothing."""
        if self._begins_anew:
            _as_if_new(view)
        try:
            decision = self._policy.decide(view)
        except Exception:  # a policy may be anybody's file
            log.exception("the policy %s failed; everything stays as it is, and it begins anew", self.name)
            self._policy, self._begins_anew = self._make(), True
            return KEEP
        self._begins_anew = False
        return decision


def _as_if_new(view: View) -> None:
    changes = view.changes
    changes.forget()
    changes.submitted += view.waiting.values()
    changes.started += view.runs.values()


def refused(refusal: BadDecision) -> None:
    """A decision that breaks a rule: the last good one is kept."""
    log.warning("refused: %s", refusal)
