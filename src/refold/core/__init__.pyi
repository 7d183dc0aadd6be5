from .changes import Changes as Changes
from .entries import (
    VERSION as VERSION,
    Entry as Entry,
    Header as Header,
    Journal as Journal,
    Journals as Journals,
    ListJournal as ListJournal,
)
from .events import (
    ChangeMeasured as ChangeMeasured,
    Event as Event,
    GpuDrained as GpuDrained,
    GpuLost as GpuLost,
    GpuReturned as GpuReturned,
    GpuTimeUsed as GpuTimeUsed,
    JobCancelled as JobCancelled,
    JobContinued as JobContinued,
    JobHeld as JobHeld,
    JobReleased as JobReleased,
    JobSubmitted as JobSubmitted,
    MemoryRaised as MemoryRaised,
    ModelProfiled as ModelProfiled,
    NodeDrained as NodeDrained,
    NodeLost as NodeLost,
    NodeReturned as NodeReturned,
    NodesAllowed as NodesAllowed,
    NodeUsed as NodeUsed,
    PastJob as PastJob,
    RunAdopted as RunAdopted,
    RunFailed as RunFailed,
    RunFinished as RunFinished,
    RunProgressed as RunProgressed,
    RunRecalled as RunRecalled,
    RunStarted as RunStarted,
    RunStopped as RunStopped,
    SpeedMeasured as SpeedMeasured,
    UsageRecorded as UsageRecorded,
    Woke as Woke,
)
from .orders import Order as Order, StartRun as StartRun, StopRun as StopRun, orders_as_recorded as orders_as_recorded
from .scheduler import Policy as Policy, Scheduler as Scheduler
from .usage import TenantUser as TenantUser, decayed_gpu_seconds as decayed_gpu_seconds
from .view import View as View
