from .allocation import Allocation as Allocation, Placement as Placement, Share as Share, beyond as beyond
from .cluster import (
    ETHERNET as ETHERNET,
    MAX_GPU_TYPES as MAX_GPU_TYPES,
    MAX_GPUS_PER_NODE as MAX_GPUS_PER_NODE,
    PCIE as PCIE,
    Cluster as Cluster,
    GpuType as GpuType,
    Link as Link,
    Node as Node,
    Rack as Rack,
    Tenant as Tenant,
)
from .decision import (
    KEEP as KEEP,
    Decision as Decision,
    End as End,
    Flag as Flag,
    Reshape as Reshape,
    Start as Start,
    StartEstimate as StartEstimate,
    Stop as Stop,
)
from .job import LARGEST as LARGEST, MOST_GPUS as MOST_GPUS, Demand as Demand, Job as Job, JobClass as JobClass
from .launch import MOST_RETRIES as MOST_RETRIES, Launch as Launch, StopSignal as StopSignal
from .plan import (
    DEGREES as DEGREES,
    LARGEST_DEGREE as LARGEST_DEGREE,
    RECOMPUTE as RECOMPUTE,
    Plan as Plan,
    Recompute as Recompute,
    fields_from_text as fields_from_text,
    plan_from_text as plan_from_text,
)
from .run import Run as Run
from .units import (
    DAY as DAY,
    HOUR as HOUR,
    MINUTE as MINUTE,
    WHOLE as WHOLE,
    MiB as MiB,
    Milli as Milli,
    Seconds as Seconds,
    mib_from_gib as mib_from_gib,
    milli_from_number as milli_from_number,
    seconds_from_text as seconds_from_text,
    text_from_seconds as text_from_seconds,
)
from .waiting import Reason as Reason, Shortage as Shortage, Wait as Wait
