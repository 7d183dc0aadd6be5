from .gpu_poller import GpuPoller as GpuPoller
from .gpu_use import GpuUseWatch as GpuUseWatch
from .job_use import USE_POLL_SECONDS as USE_POLL_SECONDS, JobUseHistory as JobUseHistory
from .machine import (
    Layout as Layout,
    Machine as Machine,
    NvidiaMachine as NvidiaMachine,
    SlotsMachine as SlotsMachine,
    build_layout as build_layout,
    default_slots as default_slots,
    open_machine as open_machine,
    with_power as with_power,
    with_topology as with_topology,
)
from .nvidia import open_driver as open_driver
from .output import (
    OUTPUT_POLL_SECONDS as OUTPUT_POLL_SECONDS,
    OutputFollower as OutputFollower,
    OutputWatch as OutputWatch,
)
