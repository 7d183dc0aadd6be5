"""A scripted policy and a short form of an allocation, for tests of the core."""

from refold.core import View
from refold.model import NO_CHANGE, Allocation, Decision, Share


class ScriptedPolicy:
    """A policy that returns `next` once and then no change."""

    name = "scripted"

    def __init__(self) -> None:
        self.next = NO_CHANGE

    def decide(self, view: View) -> Decision:
        decision, self.next = self.next, NO_CHANGE
        return decision


def on(*gpus: int, node: int = 0) -> Allocation:
    """Return an allocation of whole GPUs on one node."""
    return Allocation((Share(node, gpus),))
