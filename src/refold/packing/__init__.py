"""Where a demand fits: compiled kernels over arrays, the same for a live cluster and a million-task replay."""

from refold.packing.free import Free
from refold.packing.placer import GENETIC, RULES, Placer
from refold.packing.trial import Trial

__all__ = ["GENETIC", "RULES", "Free", "Placer", "Trial"]
