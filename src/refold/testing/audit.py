"""A journal that does not trust anybody: it keeps its own books in plain Python and complains at once.

Put it beside any journal of a simulation or of a live scheduler. It holds that no GPU is shared beyond 1.0 and no
node's CPUs or memory beyond what it has, that a gang starts whole, that no job is lost or runs twice, that a run
is reported on only while it is the present one, and that a node's loss ends only runs on that node. A job that may be
reshaped gets GPUs of a type it accepts, as many as its plan is for; one that may not be stopped is not. A job that is
held is not started, and no tenant uses more GPUs than it may.
"""

from __future__ import annotations

from collections import defaultdict

from refold.core import (
    Entry,
    Event,
    JobCancelled,
    JobContinued,
    JobHeld,
    JobReleased,
    JobSubmitted,
    NodeLost,
    NodeReturned,
    Order,
    RunAdopted,
    RunFailed,
    RunFinished,
    RunRecalled,
    RunStopped,
    StartRun,
    StopRun,
)
from refold.model import WHOLE, Allocation, Cluster, Job, Share


class AuditFailed(AssertionError):
    """A promise was broken."""


class Audit:
    """Books on who holds what, kept from a journal alone."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.jobs: dict[str, Job] = {}
        self.running: dict[str, tuple[int, Allocation]] = {}
        self.over: dict[str, str] = {}
        self.starts: list[tuple[float, str, int]] = []
        self.stops = 0
        self.entries = 0
        self._runs: dict[str, int] = defaultdict(int)
        self._gpus: dict[tuple[int, int], int] = defaultdict(int)
        self._cpu: dict[int, int] = defaultdict(int)
        self._memory: dict[int, int] = defaultdict(int)
        self._down: set[int] = set()
        self._cancelled: set[str] = set()
        self._recalled: set[str] = set()
        self._held: set[str] = set()
        self._told_to_stop: set[tuple[str, int]] = set()
        self._ended_now: set[tuple[str, int]] = set()
        self._now = float("-inf")

    def write(self, entry: Entry) -> None:
        """Look at one entry."""
        self.entries += 1
        self._demand(entry.now >= self._now, f"time went back from {self._now} to {entry.now}")
        self._now = entry.now
        self._ended_now.clear()
        lost = {event.node for event in entry.events if isinstance(event, NodeLost)}
        for event in entry.events:
            self._fact(event, lost)
        self._cancelled |= {end.job for end in entry.ends}
        for order in entry.orders:
            self._order(order)
        for wait in entry.waits:
            self._demand(wait.job in self.jobs, f"a reason was given for {wait.job!r}, which is not known")
            waits = wait.job not in self.running and wait.job not in self.over
            self._demand(waits, f"a reason was given for {wait.job!r}, which does not wait")

    def waiting(self) -> list[str]:
        """Jobs that neither run nor are over."""
        return [job for job in self.jobs if job not in self.running and job not in self.over]

    def _fact(self, event: Event, lost: set[int]) -> None:
        match event:
            case JobSubmitted(job):
                self.jobs.setdefault(job.id, job)
            case RunFinished(job_id, run):
                self._end(job_id, run, "finished")
            case RunStopped(job_id, run):
                if self._is_present(job_id, run):
                    told = (job_id, run) in self._told_to_stop or job_id in self._cancelled
                    self._demand(told, f"{job_id!r} stopped, and nobody told it to")
                self._end(job_id, run, "")
            case RunFailed(job_id, run, why, _, retry):
                if lost and why == "node lost" and self._is_present(job_id, run):
                    nodes = self.running[job_id][1].nodes
                    self._demand(bool(nodes & lost), f"{job_id!r} was lost with a node it was not on")
                self._end(job_id, run, "" if retry else "failed")
            case JobCancelled(job_id):
                self._cancelled.add(job_id)
                if job_id in self.jobs and job_id not in self.running:
                    self.over.setdefault(job_id, "cancelled")
            case JobHeld(job_id):
                self._held.add(job_id)
                self._recalled.add(job_id)
            case JobReleased(job_id):
                self._held.discard(job_id)
            case RunRecalled(job_id):
                self._recalled.add(job_id)
            case JobContinued(job_id, runs):
                self._runs[job_id] = runs
            case RunAdopted(job_id, run, allocation):
                self._demand(job_id in self.jobs, f"{job_id!r} was adopted and never submitted")
                taken = self._free_of(allocation) if job_id in self._held else allocation
                if job_id not in self.running and job_id not in self.over and self._has_room(taken):
                    self._begin(job_id, run, taken)  # else it is told of what is not so, and tried again later
            case NodeLost(node):
                self._down.add(node)
            case NodeReturned(node):
                self._down.discard(node)
            case _:
                pass

    def _order(self, order: Order) -> None:
        match order:
            case StartRun(job_id, run, allocation):
                self._demand(job_id in self.jobs, f"{job_id!r} was started and never submitted")
                self._demand(job_id not in self.running, f"{job_id!r} was started while it runs")
                self._demand(job_id not in self.over, f"{job_id!r} was started after its end")
                self._demand(job_id not in self._held, f"{job_id!r} was started while it is held")
                self._demand(run == self._runs[job_id] + 1, f"{job_id!r} has no run {run} now")
                self._demand_fitting_shape(self.jobs[job_id], allocation)
                self._begin(job_id, run, allocation)
                self._demand_within_limit(self.jobs[job_id].tenant)  # not of adopted runs: the limit may be new
                self.starts.append((self._now, job_id, run))
            case StopRun(job_id, run) if (job_id, run) not in self._ended_now:
                self._demand(self._is_present(job_id, run), f"{job_id!r} was told to stop run {run}, which is not on")
                may_be = self.jobs[job_id].preemptible or job_id in self._cancelled | self._recalled
                self._demand(may_be, f"{job_id!r} was told to stop and is not preemptible")
                self._told_to_stop.add((job_id, run))
                self.stops += 1
            case StopRun():
                pass  # it was cancelled and had stopped in the same moment

    def _begin(self, job_id: str, run: int, allocation: Allocation) -> None:
        self._runs[job_id] = run
        self._hold(job_id, allocation, 1)
        self.running[job_id] = (run, allocation)

    def _demand_within_limit(self, tenant: str) -> None:
        most = next((one.limit_gpus for one in self.cluster.tenants if one.name == tenant), 0.0)
        if most:
            used = sum(held.gpu_milli for job, (_, held) in self.running.items() if self.jobs[job].tenant == tenant)
            self._demand(used <= most * WHOLE, f"tenant {tenant!r} uses {used / WHOLE:g} GPUs and may use {most:g}")

    def _free_of(self, allocation: Allocation) -> Allocation:
        """What is free of an allocation: a job that is held and adopted stands for something that wants no more."""
        parts = [
            Share(share.node, (gpu,), min(WHOLE - self._gpus[share.node, gpu], share.gpu_milli))
            for share in allocation.placement
            for gpu in share.gpus
            if self._gpus[share.node, gpu] < WHOLE
        ]
        return Allocation(tuple(parts))

    def _has_room(self, allocation: Allocation) -> bool:
        for share in allocation.placement:
            if share.node in self._down or not share.node < len(self.cluster.nodes):
                return False
            there = range(self.cluster.nodes[share.node].gpus)
            if any(gpu not in there or self._gpus[share.node, gpu] + share.gpu_milli > WHOLE for gpu in share.gpus):
                return False
        return bool(allocation.placement)

    def _is_present(self, job_id: str, run: int) -> bool:
        return job_id in self.running and self.running[job_id][0] == run

    def _end(self, job_id: str, run: int, outcome: str) -> None:
        if not self._is_present(job_id, run):
            return  # a late report
        self._ended_now.add((job_id, run))
        _, allocation = self.running.pop(job_id)
        self._hold(job_id, allocation, -1)
        if outcome or job_id in self._cancelled:
            self.over[job_id] = outcome or "cancelled"

    def _demand_fitting_shape(self, job: Job, allocation: Allocation) -> None:
        accepted = job.demand.gpu_types
        for share in allocation.placement:
            kind = self.cluster.nodes[share.node].gpu_type
            self._demand(not (accepted and share.gpus) or kind in accepted, f"{job.id!r} got a {kind}")
        if job.reshapable:
            self._demand_gpus_for_its_plan(job, allocation)
        else:
            self._demand_whole_gang(job, allocation)

    def _demand_gpus_for_its_plan(self, job: Job, allocation: Allocation) -> None:
        plan, gpus = allocation.plan, sum(len(share.gpus) for share in allocation.placement)
        self._demand(gpus > 0 or not job.demand.gpus, f"{job.id!r} got no GPU at all")
        fits = plan is None or plan == job.plan or plan.gpus == gpus
        self._demand(fits, f"{job.id!r} got {gpus} GPUs for {plan}")

    def _demand_whole_gang(self, job: Job, allocation: Allocation) -> None:
        plan = allocation.plan
        self._demand(plan is None or plan == job.plan, f"{job.id!r} is not reshapable, and got {plan}")
        shares, demand = allocation.placement, job.demand
        self._demand(len(shares) == demand.instances, f"{job.id!r} got {len(shares)} of {demand.instances} instances")
        asked = (demand.gpus, demand.gpu_milli, demand.cpu_milli, demand.memory_mib)
        for share in shares:
            got = (len(set(share.gpus)), share.gpu_milli, share.cpu_milli, share.memory_mib)
            self._demand(got == asked, f"{job.id!r} asked for {demand} an instance, got {share}")

    def _hold(self, job_id: str, allocation: Allocation, sign: int) -> None:
        for share in allocation.placement:
            node = self.cluster.nodes[share.node]
            self._demand(
                sign < 0 or share.node not in self._down, f"{job_id!r} was put on {node.name!r}, which is down"
            )
            for gpu in share.gpus:
                self._gpus[share.node, gpu] += sign * share.gpu_milli
                held = self._gpus[share.node, gpu]
                self._demand(
                    0 <= gpu < node.gpus and 0 <= held <= WHOLE, f"GPU {gpu} of {node.name!r} is given {held} milli"
                )
            self._cpu[share.node] += sign * share.cpu_milli
            self._memory[share.node] += sign * share.memory_mib
            over_cpu = self.cluster.cpus_known and self._cpu[share.node] > node.cpu_milli
            over_memory = self.cluster.memory_known and self._memory[share.node] > node.memory_mib
            self._demand(not over_cpu and not over_memory, f"{node.name!r} is given more CPUs or memory than it has")

    def _demand(self, kept: bool, broken: str) -> None:
        if not kept:
            raise AuditFailed(f"entry {self.entries} at {self._now}: {broken}")
