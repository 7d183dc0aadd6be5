"""Events: facts that the scheduler is informed of. An event about a run that has ended is late, and has no effect."""

from __future__ import annotations

import msgspec

from refold.model import Allocation, ChangeWay, Job, MiB, Milli, NodeSet, Plan, Reason, RunUsage, Seconds


class JobSubmitted(msgspec.Struct, gc=False, frozen=True, tag=True):
    """A job was submitted."""

    job: Job


class JobCancelled(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, tag=True):
    """A job was cancelled; if it runs, its run is stopped first."""

    job: str
    why: str = ""


class JobHeld(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, tag=True):
    """A job is held: it is not scheduled until it is released. If it runs, its run is stopped first.

    A hold for another reason does not replace that of a user, so that its end does not release the job.
    """

    job: str
    reason: Reason = Reason.HELD


class JobReleased(msgspec.Struct, gc=False, frozen=True, tag=True):
    """A held job was released: it is queued again, at the end of the queue."""

    job: str


class MemoryRaised(msgspec.Struct, gc=False, frozen=True, tag=True):
    """A held job that ran out of memory requests more for its next run: so much for each instance."""

    job: str
    memory_mib: MiB


class NodesAllowed(msgspec.Struct, gc=False, frozen=True, tag=True):
    """The nodes on which these jobs may be placed from now on; None: all nodes. Runs stay where they are."""

    jobs: tuple[str, ...]
    nodes: NodeSet | None


class JobContinued(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, tag=True):
    """The progress of a job from before the journal began: number of runs, work and steps done, GPU-seconds.

    `changes`: how often the policy has stopped or reshaped it, the last time at `changed_at`. `change_costs`: seconds
    that the last change in each way has cost, if that was measured.
    """

    job: str
    runs: int = 0
    done: Seconds = 0.0
    steps: int = 0
    gpu_seconds: float = 0.0
    change_costs: dict[ChangeWay, Seconds] = {}
    changes: int = 0
    changed_at: Seconds = 0.0


class PastJob(msgspec.Struct, gc=False, frozen=True, tag=True):
    """A job that ended before the journal began, and its total run time."""

    job: Job
    run_time: Seconds


class RunAdopted(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, tag=True):
    """A run of a submitted job was already in progress when the journal began."""

    job: str
    run: int
    allocation: Allocation
    since: Seconds
    profiling: Seconds = 0.0


class RunRecalled(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, tag=True):
    """A run must stop, and its job be queued again, for a reason outside the policy, such as a drain of its node."""

    job: str
    run: int
    why: str = ""


class RunStarted(msgspec.Struct, gc=False, frozen=True, tag=True):
    """A run has finished starting up, and computes."""

    job: str
    run: int


class RunProgressed(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, tag=True):
    """The total work that a job has done, in seconds, and would keep if stopped now; `steps` if it counts steps.

    `loss` and `samples_per_second` are those of the last steps, if the job reports them. `plan`: the plan in use, if it
    is not that of its allocation, because the job cannot use that.
    """

    job: str
    run: int
    done: Seconds = 0.0
    steps: int | None = None
    loss: float | None = None
    samples_per_second: float | None = None
    plan: Plan | None = None


class ChangeMeasured(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, tag=True):
    """The change with which a run began has left its job for `seconds` without training.

    `way`: live (its processes stayed), warm (new processes, state in memory) or cold (restarted from a checkpoint).
    """

    job: str
    run: int
    seconds: Seconds
    way: ChangeWay


class SpeedMeasured(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, tag=True):
    """The average speed of a kind of job on GPUs of a type with a plan, measured before the journal began.

    0 steps per second: jobs of this kind cannot use the plan. `spread`: GPUs in each domain of each level.
    """

    workload: str
    batch: int
    sequence: int
    gpu_type: str
    layout: tuple[int, ...]
    plan: Plan
    steps_per_second: float
    reports: int = 1
    spread: tuple[tuple[int, ...], ...] = ()


class GpuTimeUsed(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, tag=True):
    """GPU-seconds of all runs that ended before the journal began, and of all profiling up to then."""

    gpu_seconds: float
    profiling: float = 0.0


class UsageRecorded(msgspec.Struct, gc=False, frozen=True, tag=True):
    """GPU-seconds of the runs of a user that ended before the journal began: pairs of time and amount."""

    tenant: str
    user: str
    amounts: tuple[tuple[Seconds, float], ...]


class ModelProfiled(msgspec.Struct, gc=False, frozen=True, tag=True):
    """Seconds of profiling runs of a model type on a GPU type before the journal began."""

    workload: str
    gpu_type: str
    seconds: Seconds


class RunStopped(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, tag=True):
    """A run has ended after a stop order; its job can resume from `done` seconds of work. `usage`: if measured."""

    job: str
    run: int
    done: Seconds = 0.0
    steps: int | None = None
    usage: RunUsage | None = None


class RunFinished(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, tag=True):
    """A run has completed the work of its job; both have ended. `usage`: if measured."""

    job: str
    run: int
    usage: RunUsage | None = None


class RunFailed(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, tag=True):
    """A run has ended without completing. With `retry`, its job is queued again and resumes from `done`.

    `exit_code` is that of the process, if there was one, as a shell reports it. `usage`: if measured.
    """

    job: str
    run: int
    why: str = ""
    done: Seconds = 0.0
    retry: bool = False
    steps: int | None = None
    exit_code: int | None = None
    usage: RunUsage | None = None


class NodeLost(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, tag=True):
    """A node went down and accepts no new runs. What happens to its runs is reported run by run."""

    node: int
    why: str = ""


class NodeDrained(NodeLost, gc=False, frozen=True, omit_defaults=True, tag=True):
    """A node was taken out of service by an operator or a rule. Its runs continue unless they are recalled."""


class NodeReturned(msgspec.Struct, gc=False, frozen=True, tag=True):
    """A node accepts new runs again."""

    node: int


class GpuLost(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, tag=True):
    """A GPU went down and accepts no new runs. What happens to its runs is reported run by run."""

    node: int
    gpu: int
    why: str = ""


class GpuDrained(GpuLost, gc=False, frozen=True, omit_defaults=True, tag=True):
    """A GPU was taken out of service by an operator or a rule. Its runs continue unless they are recalled."""


class GpuReturned(msgspec.Struct, gc=False, frozen=True, tag=True):
    """A GPU accepts new runs again."""

    node: int
    gpu: int


class NodeUsed(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, tag=True):
    """What others than the scheduler use on a node: whole GPUs, CPUs and memory. It replaces the last such report.

    What runs hold is not taken from them: only what is free becomes used.
    """

    node: int
    gpus: tuple[int, ...] = ()
    cpu_milli: Milli = 0
    memory_mib: MiB = 0


class Woke(msgspec.Struct, gc=False, frozen=True, tag=True):
    """The `wake_at` time of a decision was reached."""


Event = (
    JobSubmitted
    | RunFinished
    | RunStopped
    | RunStarted
    | RunProgressed
    | RunFailed
    | JobCancelled
    | JobHeld
    | JobReleased
    | MemoryRaised
    | NodesAllowed
    | JobContinued
    | PastJob
    | ChangeMeasured
    | SpeedMeasured
    | GpuTimeUsed
    | UsageRecorded
    | ModelProfiled
    | RunAdopted
    | RunRecalled
    | NodeLost
    | NodeDrained
    | NodeReturned
    | GpuLost
    | GpuDrained
    | GpuReturned
    | NodeUsed
    | Woke
)
