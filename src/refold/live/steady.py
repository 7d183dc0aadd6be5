"""A policy that may fail, and a daemon that may not."""

from __future__ import annotations

import logging

from refold.core import Policy, View
from refold.errors import BadDecision
from refold.model import KEEP, Decision

log = logging.getLogger("refold")


class Steady:
    """Asks a policy; where that fails, everything stays as it is, and it is asked again at the next occasion."""

    def __init__(self, policy: Policy) -> None:
        self.name = policy.name
        self._policy = policy

    def decide(self, view: View) -> Decision:
        """What the policy decides, or nothing."""
        try:
            return self._policy.decide(view)
        except Exception:  # a policy may be anybody's file
            log.exception("the policy %s failed; everything stays as it is", self.name)
            return KEEP


def refused(refusal: BadDecision) -> None:
    """A decision that breaks a rule: the last good one is kept."""
    log.warning("refused: %s", refusal)
