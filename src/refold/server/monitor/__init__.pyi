from .gpu_poller import GpuPoller as GpuPoller
from .machine import (
    Layout as Layout,
    Machine as Machine,
    NvidiaMachine as NvidiaMachine,
    SlotsMachine as SlotsMachine,
    layout_of as layout_of,
    machine_of as machine_of,
    usual_slots as usual_slots,
)
from .output import LOOK_EVERY as LOOK_EVERY, OutputWatch as OutputWatch
