"""Time that jumps to the next event, and a back end that pretends."""

from refold.simulator.charges import AsRecorded, Charge, Costs
from refold.simulator.faults import Endless, Fault, NeverEnds, Stuck, seeded_faults, seeded_never_ending
from refold.simulator.simulate import simulate

__all__ = [
    "AsRecorded",
    "Charge",
    "Costs",
    "Endless",
    "Fault",
    "NeverEnds",
    "Stuck",
    "seeded_faults",
    "seeded_never_ending",
    "simulate",
]
