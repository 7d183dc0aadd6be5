"""Time that jumps to the next event, and a back end that pretends."""

from refold.simulator.charges import AsRecorded, Charge, Costs
from refold.simulator.faults import Fault, seeded_faults
from refold.simulator.simulate import simulate

__all__ = ["AsRecorded", "Charge", "Costs", "Fault", "seeded_faults", "simulate"]
