"""A journal that checks the invariants of a scheduler independently, and raises at the first violation.

Use it with any other journal of a simulation or of a live scheduler (`Journals(audit, journal)`). It checks that

- no GPU is allocated beyond 1.0, and no node's CPUs or memory beyond its capacity;
- a gang starts with all its instances, and a job that is not reshapable gets exactly its request;
- a reshapable job gets GPUs of a type that it accepts, as many as its plan uses;
- no job is lost, started twice, or started while it is held;
- only preemptible runs are stopped, unless they are cancelled or recalled;
- nothing starts on a node or GPU that is down, and the loss of one ends only runs on it;
- no tenant exceeds its GPU limit.
"""

from __future__ import annotations

from collections import defaultdict

from refold import core
from refold.model import WHOLE, Allocation, Cluster, Job


class AuditFailed(AssertionError):
    """An invariant was violated."""


class Audit:
    """Tracks jobs, runs and allocations from the entries of a journal alone, and checks each entry."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.jobs: dict[str, Job] = {}
        self.running: dict[str, tuple[int, Allocation]] = {}
        self.ended: dict[str, str] = {}
        self.starts: list[tuple[float, str, int]] = []
        self.stops = 0
        self.entries = 0
        self._runs: dict[str, int] = defaultdict(int)
        self._gpus: dict[tuple[int, int], int] = defaultdict(int)
        self._cpu: dict[int, int] = defaultdict(int)
        self._memory: dict[int, int] = defaultdict(int)
        self._down: set[int] = set()
        self._down_gpus: set[tuple[int, int]] = set()
        self._cancelled: set[str] = set()
        self._recalled: set[str] = set()
        self._held: set[str] = set()
        self._stop_ordered: set[tuple[str, int]] = set()
        self._ended_now: set[tuple[str, int]] = set()
        self._now = float("-inf")

    def write(self, entry: core.Entry) -> None:
        """Check one entry."""
        self.entries += 1
        self._check(entry.now >= self._now, f"time went backwards from {self._now} to {entry.now}")
        self._now = entry.now
        self._ended_now.clear()
        lost = [event for event in entry.events if isinstance(event, core.NodeLost | core.GpuLost)]
        for event in entry.events:
            self._apply_event(event, lost)
        self._cancelled |= {end.job for end in entry.ends}
        for order in entry.orders:
            self._apply_order(order)
        for wait in entry.waits:
            self._check(wait.job in self.jobs, f"a wait reason was given for unknown job {wait.job!r}")
            waits = wait.job not in self.running and wait.job not in self.ended
            self._check(waits, f"a wait reason was given for {wait.job!r}, which is not waiting")

    def waiting(self) -> list[str]:
        """Return the jobs that neither run nor have ended."""
        return [job for job in self.jobs if job not in self.running and job not in self.ended]

    def _apply_event(self, event: core.Event, lost: list[core.NodeLost | core.GpuLost]) -> None:
        match event:
            case core.JobSubmitted(job):
                self.jobs.setdefault(job.id, job)
            case core.RunFinished(job_id, run):
                self._end(job_id, run, "finished")
            case core.RunStopped(job_id, run):
                if self._is_current(job_id, run):
                    expected = (job_id, run) in self._stop_ordered or job_id in self._cancelled
                    self._check(expected, f"{job_id!r} stopped without an order")
                self._end(job_id, run, "")
            case core.RunFailed(job_id, run, why, _, retry):
                if lost and why in ("node lost", "GPU lost") and self._is_current(job_id, run):
                    uses = any(_uses(self.running[job_id][1], part) for part in lost)
                    self._check(uses, f"{job_id!r} was lost with a node or GPU that it does not run on")
                self._end(job_id, run, "" if retry else "failed")
            case core.JobCancelled(job_id):
                self._cancelled.add(job_id)
                if job_id in self.jobs and job_id not in self.running:
                    self.ended.setdefault(job_id, "cancelled")
            case core.JobHeld(job_id):
                self._held.add(job_id)
                self._recalled.add(job_id)
            case core.JobReleased(job_id):
                self._held.discard(job_id)
            case core.RunRecalled(job_id):
                self._recalled.add(job_id)
            case core.JobContinued(job_id, runs):
                self._runs[job_id] = runs
            case core.RunAdopted(job_id, run, allocation):
                self._check(job_id in self.jobs, f"{job_id!r} was adopted but never submitted")
                if job_id not in self.running and job_id not in self.ended and self._fits(allocation):
                    self._begin(job_id, run, allocation)  # else the scheduler does not adopt it
            case core.NodeLost(node):
                self._down.add(node)
            case core.NodeReturned(node):
                self._down.discard(node)
            case core.GpuLost(node, gpu):
                self._down_gpus.add((node, gpu))
            case core.GpuReturned(node, gpu):
                self._down_gpus.discard((node, gpu))
            case _:
                pass

    def _apply_order(self, order: core.Order) -> None:
        match order:
            case core.StartRun(job_id, run, allocation):
                self._check(job_id in self.jobs, f"{job_id!r} was started but never submitted")
                self._check(job_id not in self.running, f"{job_id!r} was started while it is running")
                self._check(job_id not in self.ended, f"{job_id!r} was started after its end")
                self._check(job_id not in self._held, f"{job_id!r} was started while it is held")
                self._check(
                    run == self._runs[job_id] + 1,
                    f"{job_id!r} was started with run number {run}, expected {self._runs[job_id] + 1}",
                )
                self._check_shape(self.jobs[job_id], allocation)
                self._begin(job_id, run, allocation)
                self._check_limit(self.jobs[job_id].tenant)  # not for adopted runs: the limit may be new
                self.starts.append((self._now, job_id, run))
            case core.StopRun(job_id, run) if (job_id, run) not in self._ended_now:
                self._check(
                    self._is_current(job_id, run),
                    f"a stop was ordered for run {run} of {job_id!r}, which is not the current run",
                )
                allowed = self.jobs[job_id].preemptible or job_id in self._cancelled | self._recalled
                self._check(allowed, f"a stop was ordered for {job_id!r}, which is not preemptible")
                self._stop_ordered.add((job_id, run))
                self.stops += 1
            case core.StopRun():
                pass  # the run was cancelled and ended in the same step

    def _begin(self, job_id: str, run: int, allocation: Allocation) -> None:
        self._runs[job_id] = run
        self._hold(job_id, allocation, 1)
        self.running[job_id] = (run, allocation)

    def _check_limit(self, tenant: str) -> None:
        limit = next((known.limit_gpus for known in self.cluster.tenants if known.name == tenant), 0.0)
        if limit:
            used = sum(held.gpu_milli for job, (_, held) in self.running.items() if self.jobs[job].tenant == tenant)
            self._check(used <= limit * WHOLE, f"tenant {tenant!r} uses {used / WHOLE:g} GPUs, its limit is {limit:g}")

    def _fits(self, allocation: Allocation) -> bool:
        for share in allocation.placement:
            if share.node in self._down or not share.node < len(self.cluster.nodes):
                return False
            gpus = range(self.cluster.nodes[share.node].gpus)
            if any(gpu not in gpus or self._gpus[share.node, gpu] + share.gpu_milli > WHOLE for gpu in share.gpus):
                return False
            if any((share.node, gpu) in self._down_gpus for gpu in share.gpus):
                return False
        return bool(allocation.placement)

    def _is_current(self, job_id: str, run: int) -> bool:
        return job_id in self.running and self.running[job_id][0] == run

    def _end(self, job_id: str, run: int, outcome: str) -> None:
        if not self._is_current(job_id, run):
            return  # a stale report
        self._ended_now.add((job_id, run))
        _, allocation = self.running.pop(job_id)
        self._hold(job_id, allocation, -1)
        if outcome or job_id in self._cancelled:
            self.ended[job_id] = outcome or "cancelled"

    def _check_shape(self, job: Job, allocation: Allocation) -> None:
        accepted = job.demand.gpu_types
        for share in allocation.placement:
            gpu_type = self.cluster.nodes[share.node].gpu_type
            accepts = not (accepted and share.gpus) or gpu_type in accepted
            self._check(accepts, f"{job.id!r} got a GPU of type {gpu_type!r}, which it does not accept")
        if job.reshapable:
            self._check_gpus_of_plan(job, allocation)
        else:
            self._check_gang(job, allocation)

    def _check_gpus_of_plan(self, job: Job, allocation: Allocation) -> None:
        plan, gpus = allocation.plan, sum(len(share.gpus) for share in allocation.placement)
        self._check(gpus > 0 or not job.demand.gpus, f"{job.id!r} got no GPU")
        fits = plan is None or plan == job.plan or plan.gpus == gpus
        self._check(fits, f"{job.id!r} got {gpus} GPUs for plan {plan}")

    def _check_gang(self, job: Job, allocation: Allocation) -> None:
        plan = allocation.plan
        self._check(plan is None or plan == job.plan, f"{job.id!r} is not reshapable, but got plan {plan}")
        shares, demand = allocation.placement, job.demand
        self._check(len(shares) == demand.instances, f"{job.id!r} got {len(shares)} of {demand.instances} instances")
        requested = (demand.gpus, demand.gpu_milli, demand.cpu_milli, demand.memory_mib)
        for share in shares:
            got = (len(set(share.gpus)), share.gpu_milli, share.cpu_milli, share.memory_mib)
            self._check(got == requested, f"{job.id!r} requested {demand} per instance, got {share}")

    def _hold(self, job_id: str, allocation: Allocation, sign: int) -> None:
        for share in allocation.placement:
            node = self.cluster.nodes[share.node]
            self._check(
                sign < 0 or share.node not in self._down, f"{job_id!r} was placed on node {node.name!r}, which is down"
            )
            for gpu in share.gpus:
                up = sign < 0 or (share.node, gpu) not in self._down_gpus
                self._check(up, f"{job_id!r} was placed on GPU {gpu} of node {node.name!r}, which is down")
                self._gpus[share.node, gpu] += sign * share.gpu_milli
                held = self._gpus[share.node, gpu]
                self._check(
                    0 <= gpu < node.gpus and 0 <= held <= WHOLE,
                    f"GPU {gpu} of node {node.name!r} has {held} of {WHOLE} thousandths allocated",
                )
            self._cpu[share.node] += sign * share.cpu_milli
            self._memory[share.node] += sign * share.memory_mib
            over_cpu = self.cluster.cpus_known and self._cpu[share.node] > node.cpu_milli
            over_memory = self.cluster.memory_known and self._memory[share.node] > node.memory_mib
            self._check(
                not over_cpu and not over_memory, f"more CPUs or memory of node {node.name!r} are allocated than it has"
            )

    def _check(self, holds: bool, problem: str) -> None:
        if not holds:
            raise AuditFailed(f"entry {self.entries} at {self._now}: {problem}")


def _uses(allocation: Allocation, lost: core.NodeLost | core.GpuLost) -> bool:
    return any(
        share.node == lost.node and (isinstance(lost, core.NodeLost) or lost.gpu in share.gpus)
        for share in allocation.placement
    )
