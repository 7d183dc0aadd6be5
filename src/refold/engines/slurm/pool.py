"""A pool: allocations of Slurm that are held, so that runs start inside them at once.

Each allocation that is requested here has one node with all that is on it: nodes fail, end and are renewed one by one.
Others may be given by their job id.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from time import localtime, monotonic, strftime
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from refold.engines.slurm.nodes import GpuGroup, SlurmCluster, SlurmNode, expand_hosts, expand_tasks, gpus_by_type
from refold.engines.slurm.programs import Programs, Run
from refold.engines.slurm.requests import SlurmSettings, minutes_argument
from refold.engines.slurm.run_jobs import ENDED, WAITING, SlurmId, own_jobs, queued_jobs
from refold.errors import BadValue
from refold.model import HOUR, MINUTE, Seconds, format_duration

MIN_LEAD: Seconds = MINUTE
MAX_LEAD: Seconds = HOUR / 2
MIN_LIMIT: Seconds = 5 * MINUTE
"""Of an allocation: shorter ones would mostly be ending."""

COLUMNS = {"JobID": 16, "HetJobOffset": 12, "State": 24, "StartTime": 24, "EndTime": 24, "NodeList": 1024}

REQUEST_INTERVAL: Seconds = 10.0
"""Allocations are not requested more often: one that ends at once would otherwise be requested again and again."""

END_MARGIN: Seconds = 15.0
"""How long before the time limit of an allocation its runs have ended, which are signalled a grace period earlier."""

HOLD = "#!/bin/bash\ntrap : HUP INT URG USR1 USR2\nwhile :; do sleep 3600 & wait $!; done\n"
"""The batch script of an allocation. It ends with the allocation."""

JOB_NAME = "refold-pool"

log = logging.getLogger("refold")


class PoolSettings(msgspec.Struct, frozen=True):
    """What is held. `nodes`: to request, one allocation each, with this time limit; `jobs`: allocations of others.

    `release_idle_after`: how long an allocation may have no runs while no job waits.
    """

    nodes: int = 0
    time_limit: Seconds | None = None
    jobs: tuple[int, ...] = ()
    release_idle_after: Seconds = 5 * MINUTE

    def __post_init__(self) -> None:
        if self.time_limit is not None and self.time_limit < MIN_LIMIT:
            raise BadValue(f"the time limit of a pool is {self.time_limit:g} s, expected at least {MIN_LIMIT:g} s")

    @property
    def is_used(self) -> bool:
        """Whether runs are started in a pool."""
        return bool(self.nodes or self.jobs)


class PoolNode(NamedTuple):
    """What an allocation has on a node. `memory_mib`: 0 if Slurm does not allocate memory."""

    name: str
    gpus: dict[str, int]
    cpus: int
    memory_mib: int


class PoolJob(NamedTuple):
    """An allocation. `ends_at`: by its time limit; None: never. `is_own`: requested by this daemon.

    `is_abandoned`: nothing is started in it any more.
    """

    number: int
    state: str
    nodes: tuple[PoolNode, ...] = ()
    started_at: Seconds | None = None
    ends_at: Seconds | None = None
    is_own: bool = True
    is_abandoned: bool = False

    @property
    def is_waiting(self) -> bool:
        """Whether it has no nodes yet."""
        return self.state in WAITING

    @property
    def is_held(self) -> bool:
        """Whether runs can be started in it."""
        return not self.is_waiting and self.state not in ENDED and self.state != "COMPLETING"

    def is_ending(self, now: Seconds) -> bool:
        """Whether nothing is started in it any more, as when its time limit is near."""
        return self.is_abandoned or (self.ends_at is not None and now > self.ends_at - self._lead())

    def _lead(self) -> Seconds:
        length = (self.ends_at or 0.0) - (self.started_at or 0.0)
        return min(MAX_LEAD, max(MIN_LEAD, length / 10))


class PoolChange(NamedTuple):
    """What is to be done: how many allocations to request, and which to release."""

    request: int = 0
    release: tuple[int, ...] = ()


def pool_comment(daemon: str) -> str:
    """Return the comment of the allocations of a daemon."""
    return f"refold/{daemon}/pool/"


def next_change(jobs: Iterable[PoolJob], wanted: int, now: Seconds, busy: Collection[str]) -> PoolChange:
    """Return how the allocations of this daemon become `wanted` ones that last. `busy`: nodes that have runs.

    One whose time limit is near is replaced early, and released as soon as its runs have ended.
    """
    own = [job for job in jobs if job.is_own and (job.is_held or job.is_waiting)]
    lasting = sorted((job for job in own if not job.is_ending(now)), key=_rank)
    closing = [*lasting[wanted:], *(job for job in own if job.is_ending(now))]
    idle = [job.number for job in closing if not any(node.name in busy for node in job.nodes)]
    return PoolChange(max(0, wanted - len(lasting)), tuple(sorted(idle)))


def closing_jobs(jobs: Iterable[PoolJob], wanted: int, now: Seconds) -> set[int]:
    """Return the allocations in which nothing is started any more: those that end soon, and those too many."""
    held = [job for job in jobs if job.is_held]
    lasting = sorted((job for job in held if job.is_own and not job.is_ending(now)), key=_rank)
    return {job.number for job in (*lasting[wanted:], *(job for job in held if job.is_ending(now)))}


def idle_jobs(jobs: Iterable[PoolJob], busy: Collection[str]) -> list[int]:
    """Return the allocations of this daemon that have no runs. `busy`: nodes that have runs."""
    own = [job for job in jobs if job.is_own and (job.is_held or job.is_waiting)]
    return sorted(job.number for job in own if not any(node.name in busy for node in job.nodes))


def _rank(job: PoolJob) -> tuple[bool, int]:
    """Those that have nodes are kept before those that wait."""
    return job.is_waiting, job.number


def read_pool(run: Run, daemon: str, others: Collection[int], known: Iterable[PoolJob] = ()) -> list[PoolJob]:
    """Read the allocations. What `known` ones have on their nodes is not read again."""
    nodes_of = {(job.number, job.started_at): job.nodes for job in known}
    found = []
    for cells, comment in queued_jobs(run, COLUMNS, own_jobs()):
        number, _, state, start, end, nodes = cells
        is_own = comment == pool_comment(daemon)
        if not number.isdecimal() or not (is_own or int(number) in others):
            continue
        job = PoolJob(int(number), state, (), _time(start), _time(end), is_own)
        if job.is_held and nodes:
            parts = nodes_of.get((job.number, job.started_at)) or read_pool_nodes(run, job.number)
            job = job._replace(nodes=parts)
        found.append(job)
    return found


def read_pool_nodes(run: Run, number: int) -> tuple[PoolNode, ...]:
    """Read what an allocation has on each of its nodes."""
    text = run("scontrol", "show", "job", "--details", "--oneliner", str(number))
    return parse_pool_nodes(text)


def parse_pool_nodes(text: str) -> tuple[PoolNode, ...]:
    """Parse the groups of equal nodes: 'Nodes=n[1-2] CPU_IDs=0-63 Mem=65536 GRES=gpu:a100:8(IDX:0-7)'."""
    found: list[PoolNode] = []
    fields: dict[str, str] = {}
    for word in text.split():
        name, _, value = word.partition("=")
        fields = {**fields, name: value} if name != "Nodes" else {"Nodes": value}
        if name == "GRES" and "Nodes" in fields:
            cpus = len(expand_tasks(fields.get("CPU_IDs", "0")))
            memory = fields.get("Mem", "0")
            found += [
                PoolNode(host, gpus_by_type(value, "GRES"), cpus, int(memory) if memory.isdecimal() else 0)
                for host in expand_hosts(fields.pop("Nodes"))
            ]
    return tuple(found)


def narrowed(nodes: SlurmCluster, places: Mapping[str, PoolNode]) -> SlurmCluster:
    """Return the nodes with what the allocations have on them."""
    return nodes._replace(groups=tuple(_narrow(group, places.get(group.node.name)) for group in nodes.groups))


def _narrow(group: GpuGroup, place: PoolNode | None) -> GpuGroup:
    if place is None:
        return group
    gpus = place.gpus or group.node.gpus
    memory = place.memory_mib or group.node.memory_mib
    return group._replace(node=replace(group.node, gpus=gpus, cpus=place.cpus, memory_mib=memory))


def _time(text: str) -> Seconds | None:
    return float(text) if text.isdecimal() else None


class HeldPool:
    """The allocations of a daemon, as they were last read. `settings`: options of sbatch."""

    def __init__(self, programs: Programs, daemon: str, settings: SlurmSettings, pool: PoolSettings) -> None:
        self._programs = programs.without_user_environment()
        self._daemon = daemon
        self._settings = settings
        self._pool = pool
        self._requested_at: Seconds | None = None
        self._closing: set[int] = set()
        self._was_closing: set[int] = set()
        self._abandoned: set[int] = set()
        self._wanted = pool.nodes
        """How many are held: fewer after idle ones were released, until jobs wait."""
        self._idle_since: dict[int, Seconds] = {}
        self.jobs: list[PoolJob] = []

    @property
    def is_used(self) -> bool:
        """Whether runs are started in the pool."""
        return self._pool.is_used

    def read(self, now: Seconds) -> None:
        """Read the allocations. Raises SlurmError."""
        read = read_pool(self._programs.run, self._daemon, self._pool.jobs, self.jobs)
        found = [job._replace(is_abandoned=job.number in self._abandoned) for job in read]
        held = {job.number for job in found if job.is_held}
        for job in self.jobs:
            if job.is_held and job.number not in held:
                state = next((each.state for each in found if each.number == job.number), "unknown to Slurm")
                log.warning("allocation %d of the pool has ended: %s", job.number, state.lower().replace("_", " "))
        self._was_closing = self._closing
        self.jobs, self._closing = found, closing_jobs(found, self._wanted, now)

    def abandon(self, step: SlurmId) -> None:
        """Start nothing more in the allocation of a step, and release it when its runs have ended."""
        number = int(step.partition(".")[0])
        if number not in self._abandoned:
            log.warning("Slurm keeps step %s, which has ended; its allocation is released when it is idle", step)
        self._abandoned.add(number)

    def is_abandoned(self, step: SlurmId) -> bool:
        """Whether a step is in an allocation that is used no more."""
        return step.partition(".")[0] in map(str, self._abandoned)

    def missing_jobs(self) -> list[int]:
        """Return the given allocations that Slurm does not know, or that are of others."""
        return [number for number in self._pool.jobs if number not in {job.number for job in self.jobs}]

    def request_missing(self, now: Seconds) -> None:
        """Request allocations that are missing, or will be. Raises SlurmError."""
        count = next_change(self.jobs, self._wanted, now, ()).request
        if count and (self._requested_at is None or monotonic() > self._requested_at + REQUEST_INTERVAL):
            self._requested_at = monotonic()
            self._request(count)

    def release_idle(self, now: Seconds, busy: Collection[str]) -> None:
        """Release allocations that end soon, or are too many, and have no runs. `busy`: nodes that have runs.

        Their nodes have been drained since the last read: nothing is about to start there.
        """
        waiting = {job.number for job in self.jobs if job.is_waiting}
        for number in next_change(self.jobs, self._wanted, now, busy).release:
            if number in self._was_closing | waiting:
                log.info("releasing allocation %d of the pool", number)
                self._programs.run("scancel", "--quiet", str(number))

    def adapt(self, now: Seconds, busy: Collection[str], jobs_wait: bool) -> None:
        """Want all nodes while jobs wait, and otherwise fewer by each that has had no runs for long."""
        idle = () if jobs_wait else idle_jobs((job for job in self.jobs if not job.is_abandoned), busy)
        self._idle_since = {number: self._idle_since.get(number, now) for number in idle}
        if jobs_wait:
            self._wanted = self._pool.nodes
        for number, since in self._idle_since.items():
            if now - since >= self._pool.release_idle_after and number not in self._abandoned:
                log.info("allocation %d of the pool was idle for %s", number, format_duration(now - since))
                self._abandoned.add(number)
                self._wanted -= 1

    def release_all_idle(self, busy: Collection[str]) -> None:
        """Release all allocations of this daemon without runs, at its end. Raises SlurmError."""
        if numbers := idle_jobs(self.jobs, busy):
            self._programs.run("scancel", "--quiet", *map(str, numbers))

    def place(self, node: str) -> tuple[int, PoolNode] | None:
        """Return the allocation that has a node, and what it has there; one that lasts before others."""
        held = sorted((job for job in self.jobs if job.is_held), key=lambda job: job.number in self._closing)
        return next(((job.number, part) for job in held for part in job.nodes if part.name == node), None)

    def drain_reason(self, node: SlurmNode) -> str:
        """Return why nothing can be started on a node, or ''."""
        place = self.place(node.name)
        if place is None:
            return "not in the pool"
        job = next(job for job in self.jobs if job.number == place[0])
        if job.number not in self._closing:
            return ""
        return f"its allocation in the pool ends{_at(job.ends_at)}"

    def end_reason(self, claim: SlurmId, grace: Seconds, now: Seconds) -> str:
        """Return why a run must end now so that its grace period ends before its allocation does, or ''."""
        job = next((job for job in self.jobs if str(job.number) == claim.partition(".")[0]), None)
        if job is None or job.ends_at is None or now < job.ends_at - grace - END_MARGIN:
            return ""
        return f"the time limit of its allocation, job {job.number} of Slurm, is near"

    def _request(self, count: int) -> None:
        words = [
            "--parsable",
            f"--comment={pool_comment(self._daemon)}",
            f"--job-name={JOB_NAME}",
            "--output=/dev/null",
            "--no-requeue",
            "--nodes=1",
            "--exclusive",
            "--gres=gpu:1",  # a node that has GPUs: --exclusive gives all of them
            "--mem=0",
            *([f"--partition={self._settings.partition}"] if self._settings.partition else []),
            *minutes_argument(self._pool.time_limit),
            *self._settings.arguments(),
        ]
        for _ in range(count):
            number = self._programs.run("sbatch", *words, stdin=HOLD).strip()
            log.info("requested a node for the pool: job %s of Slurm", number)


def _at(time: Seconds | None) -> str:
    return strftime(" at %H:%M", localtime(time)) if time is not None else ""
