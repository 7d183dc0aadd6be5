"""A reference model of the scheduler: what each event and decision does to jobs, written for clarity and not for speed.

It shares no code with `refold.core`. Every job is one record with the name of its state; queues are lists that are
searched from the start; usage and free GPUs are summed up whenever they are needed. Jobs request whole GPUs on one
node, and jobs of tenants with a limit are not reshapable.
"""

from dataclasses import dataclass, field

WAITING, HELD, INFEASIBLE, RUNNING, STOPPING = "waiting", "held", "infeasible", "running", "stopping"
USER, DEPENDENCY, BACKOFF, LIMIT = "Held", "Dependency", "Backoff", "Limit"

Gpus = tuple[int, tuple[int, ...]]
"""A node, and GPUs of it."""


@dataclass
class ModelJob:
    """One job. `after_stop` says what follows when its run has stopped: "queue", "hold", "end"."""

    name: str
    gpus: int
    tenant: str
    priority: int
    state: str = WAITING
    hold_reason: str = ""
    arrival: int = 0
    """Position among the jobs that wait for admission by their tenant's limit; 0: it does not."""
    runs: int = 0
    held_gpus: Gpus | None = None
    since: float = 0.0
    after_stop: str = "queue"
    hold_after_stop: bool = False
    target: Gpus | None = None
    saved: float = 0.0
    computing_since: float | None = None
    reported_start: bool = False
    gpu_seconds: float = 0.0

    def done(self, now: float) -> float:
        """Return the work done."""
        return self.saved + (now - self.computing_since if self.computing_since is not None else 0.0)

    def attained(self, now: float) -> float:
        """Return the GPU-seconds of all runs."""
        running = (now - self.since) * len(self.held_gpus[1]) if self.held_gpus is not None else 0.0
        return self.gpu_seconds + running


@dataclass
class ReferenceScheduler:
    """All jobs, and the order of the queue."""

    sizes: tuple[int, ...]
    limits: dict[str, int]
    now: float = 0.0
    jobs: dict[str, ModelJob] = field(default_factory=dict)
    queue: list[str] = field(default_factory=list)
    down: set[int] = field(default_factory=set)
    down_gpus: set[tuple[int, int]] = field(default_factory=set)
    late: int = 0
    orders: list[tuple[str, str, int]] = field(default_factory=list)
    """(start or stop, job, number of the run), since they were last read."""
    arrivals: int = 0

    # Resources.

    def free_gpus(self, node: int) -> list[int]:
        """Return the GPUs of a node that are up and that no run holds or will hold; none if the node is down."""
        if node in self.down:
            return []
        taken = {
            gpu
            for job in self.jobs.values()
            for place in (job.held_gpus, job.target)
            if place is not None and place[0] == node
            for gpu in place[1]
        }
        taken |= {gpu for down_node, gpu in self.down_gpus if down_node == node}
        return [gpu for gpu in range(self.sizes[node]) if gpu not in taken]

    def is_up(self, place: Gpus) -> bool:
        """Whether a node and these GPUs of it are up."""
        node, gpus = place
        return node not in self.down and not any((node, gpu) in self.down_gpus for gpu in gpus)

    def usage(self, tenant: str) -> int:
        """Return the GPUs of the admitted jobs of a tenant."""
        return sum(
            job.gpus for job in self.jobs.values() if job.tenant == tenant and job.state in (WAITING, RUNNING, STOPPING)
        )

    # Events.

    def submit(self, name: str, gpus: int, tenant: str, priority: int) -> None:
        """A job is submitted."""
        if name in self.jobs:
            self.late += 1
            return
        job = self.jobs[name] = ModelJob(name, gpus, tenant, priority)
        if gpus > max(self.sizes):
            job.state = INFEASIBLE
        else:
            self._enqueue(job)

    def cancel(self, name: str) -> None:
        """A job is cancelled."""
        job = self.jobs.get(name)
        if job is None:
            self.late += 1
        elif job.held_gpus is not None:
            job.after_stop = "end"
            self._order_stop(job)
        else:
            self._remove(job)

    def hold(self, name: str, reason: str) -> None:
        """A job is held by a user, for a dependency or for back-off."""
        job = self.jobs.get(name)
        if job is None or job.state == INFEASIBLE:
            self.late += 1
        elif job.held_gpus is not None:
            if reason == BACKOFF:
                self.late += 1
                return
            job.hold_after_stop = True
            self._order_stop(job)
        elif reason != USER and job.hold_reason == USER:
            self.late += 1
        else:
            self._set_aside(job, reason)
            self._admit_others(job.tenant)

    def release(self, name: str) -> None:
        """A job is released."""
        job = self.jobs.get(name)
        if job is not None and job.hold_after_stop:
            job.hold_after_stop = False
        elif job is None or job.state != HELD or job.hold_reason == LIMIT:
            self.late += 1
        else:
            self._enqueue(job)

    def recall(self, name: str, run: int) -> None:
        """A run must stop."""
        job = self._current(name, run)
        if job is not None:
            self._order_stop(job)

    def started(self, name: str, run: int) -> None:
        """A run computes."""
        job = self._current(name, run)
        if job is None:
            return
        if job.reported_start:
            self.late += 1
            return
        job.reported_start = True
        if job.state == RUNNING:
            job.computing_since = self.now

    def progressed(self, name: str, run: int, done: float) -> None:
        """A run reports its work."""
        job = self._current(name, run)
        if job is None:
            return
        if done <= job.saved:
            self.late += 1
            return
        job.saved = done
        if job.state == RUNNING:
            job.computing_since = self.now

    def stopped(self, name: str, run: int, done: float) -> None:
        """A run has ended after a stop order."""
        job = self._current(name, run)
        if job is None:
            return
        target = job.target
        self._end_run(job, done)
        if job.after_stop == "end":
            self._remove(job)
        elif target is not None and not job.hold_after_stop and self.is_up(target):
            self._begin_run(job, target)
        else:
            self._queue_again(job)

    def failed(self, name: str, run: int, done: float, retry: bool) -> None:
        """A run has failed."""
        job = self._current(name, run)
        if job is None:
            return
        retried = retry and job.after_stop != "end"
        self._end_run(job, done if retried else job.saved)
        if retried:
            self._queue_again(job)
        else:
            self._remove(job)

    def finished(self, name: str, run: int) -> None:
        """A run has completed its job."""
        job = self._current(name, run)
        if job is not None:
            self._end_run(job, job.saved)
            self._remove(job)

    def set_up(self, node: int, up: bool) -> None:
        """A node goes down or returns."""
        if not 0 <= node < len(self.sizes) or (node not in self.down) == up:
            self.late += 1
        elif up:
            self.down.remove(node)
        else:
            self.down.add(node)

    def set_gpu_up(self, node: int, gpu: int, up: bool) -> None:
        """A GPU goes down or returns."""
        exists = 0 <= node < len(self.sizes) and 0 <= gpu < self.sizes[node]
        if not exists or ((node, gpu) not in self.down_gpus) == up:
            self.late += 1
        elif up:
            self.down_gpus.remove((node, gpu))
        else:
            self.down_gpus.add((node, gpu))

    # Decisions.

    def start(self, name: str, place: Gpus) -> None:
        """Start a waiting job."""
        self.queue.remove(name)
        self._begin_run(self.jobs[name], place)

    def stop(self, name: str) -> None:
        """Preempt a run."""
        self._order_stop(self.jobs[name])

    def end(self, name: str) -> None:
        """Terminate a run and its job."""
        self.jobs[name].after_stop = "end"
        self._order_stop(self.jobs[name])

    def reshape(self, name: str, place: Gpus) -> None:
        """Move a run to other GPUs."""
        self._order_stop(self.jobs[name])
        self.jobs[name].target = place

    # Parts of these.

    def _current(self, name: str, run: int) -> ModelJob | None:
        job = self.jobs.get(name)
        if job is None or job.held_gpus is None or job.runs != run:
            self.late += 1
            return None
        return job

    def _order_stop(self, job: ModelJob) -> None:
        if job.state == RUNNING:
            job.saved, job.computing_since = job.done(self.now), None
            job.state = STOPPING
            self.orders.append(("stop", job.name, job.runs))

    def _begin_run(self, job: ModelJob, place: Gpus) -> None:
        job.state, job.held_gpus, job.since = RUNNING, place, self.now
        job.runs += 1
        job.computing_since, job.reported_start = self.now, False
        self.orders.append(("start", job.name, job.runs))

    def _end_run(self, job: ModelJob, done: float) -> None:
        job.gpu_seconds = job.attained(self.now)
        job.held_gpus = job.target = job.computing_since = None
        job.saved = done

    def _queue_again(self, job: ModelJob) -> None:
        if job.hold_after_stop:
            job.hold_after_stop = False
            self._set_aside(job, USER)
            self._admit_others(job.tenant)
        else:
            job.state = WAITING
            self.queue.append(job.name)

    def _enqueue(self, job: ModelJob) -> None:
        job.hold_reason, job.arrival = "", 0
        limit = self.limits.get(job.tenant)
        job.state = HELD  # not counted yet
        if limit is not None and job.gpus > limit:
            job.hold_reason = LIMIT
        elif limit is None or (not self._admission_queue(job.tenant) and self.usage(job.tenant) + job.gpus <= limit):
            job.state = WAITING
            self.queue.append(job.name)
        else:
            self.arrivals += 1
            job.hold_reason, job.arrival = LIMIT, self.arrivals

    def _admission_queue(self, tenant: str) -> list[ModelJob]:
        waiting = [job for job in self.jobs.values() if job.tenant == tenant and job.arrival]
        return sorted(waiting, key=lambda job: (-job.priority, job.arrival))

    def _admit_others(self, tenant: str) -> None:
        limit = self.limits.get(tenant)
        while limit is not None and (waiting := self._admission_queue(tenant)):
            first = waiting[0]
            if self.usage(tenant) + first.gpus > limit:
                return
            first.state, first.hold_reason, first.arrival = WAITING, "", 0
            self.queue.append(first.name)

    def _set_aside(self, job: ModelJob, reason: str) -> None:
        if job.state == WAITING and job.name in self.queue:
            self.queue.remove(job.name)
        job.state, job.hold_reason, job.arrival = HELD, reason, 0

    def _remove(self, job: ModelJob) -> None:
        if job.name in self.queue:
            self.queue.remove(job.name)
        del self.jobs[job.name]
        self._admit_others(job.tenant)
