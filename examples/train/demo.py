"""Three training jobs on four CPU slots, scheduled by `fifo` with fixed plans and by `refold`, which changes them.

    make demo

1. Measure the step time of each job on one and on four slots.
2. Run the jobs under `fifo`: two slots and data parallelism for each.
3. Run them under `refold`: they start on all free slots, and shrink, grow and change plan when others come and go.
4. Replay both journals, and simulate both runs with the measured step times.

Slots share the cores of this machine. So that four slots compute faster than one even on two cores, a sample takes a
given time to load, which stands for the work of a GPU. Exits with status 1 if a job failed, a journal does not replay,
no job changed its shape, or the simulation is wrong by more than 15 %.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import pairwise
from math import inf
from pathlib import Path
from statistics import mean, median
from typing import Any

import msgspec

from refold.client import Client, read_address
from refold.core import JobSubmitted, RunFinished, RunProgressed, RunStopped, StartRun
from refold.errors import BadJournal, NoDaemon, RefoldError
from refold.journal import check_replay, read_journal
from refold.model import Job, Plan
from refold.planning.perf import Measurement
from refold.planning.plans import Knowledge, Speeds
from refold.simulator import Costs, ModelledSpeeds, RecordedSpeeds, simulate
from refold.simulator.registry import make_policy

HERE = Path(__file__).parent
SLOTS = 4
BATCH = 16
LOAD_MILLISECONDS = 20
MEASURED_STEPS = 30
PRINTED_EVERY = 10
"""How many steps of an example there are between two lines of its output."""

RESTART_SECONDS = 2.0
"""What `refold` assumes that a change of shape costs."""

MAX_ERROR = 0.15
"""Largest relative error of the simulated makespan."""


@dataclass(frozen=True, slots=True)
class DemoJob:
    """A job of the demo: an example, its number of steps, and when it is submitted, in seconds."""

    example: str
    steps: int
    at: float

    def command(self, steps: int) -> list[str]:
        """Return the command that trains for a number of steps."""
        options = {"--steps": steps, "--batch": BATCH, "--load-ms": LOAD_MILLISECONDS}
        return [str(HERE / f"{self.example}.py"), *(str(word) for pair in options.items() for word in pair)]


JOBS = (DemoJob("gpt", 250, 0.0), DemoJob("vit", 100, 20.0), DemoJob("encoder", 100, 30.0))


def main() -> int:
    """Run the demo, and return its exit status."""
    if find_spec("torch") is None:
        print("skipped: PyTorch is not installed; pip install '.[train]'")
        return 0
    with tempfile.TemporaryDirectory(prefix="refold-demo-") as folder:
        variables = {"HOME": folder, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        environment = {**os.environ, **variables}
        return _demo(Path(folder), environment)


def _demo(folder: Path, environment: Mapping[str, str]) -> int:
    measured = tuple(_measure(environment))
    settings = {"knowledge": msgspec.to_builtins(Knowledge(measured=measured)), "restart_seconds": RESTART_SECONDS}
    fixed = PolicyRun(_run("fifo", {}, folder / "fifo", environment))
    changing = PolicyRun(_run("refold", settings, folder / "refold", environment))
    print(f"\n{'policy':8} {'total':>8} {'simulated':>10} {'mean completion':>16} {'changes':>8}")
    problems = []
    for outcome in (fixed, changing):
        simulated = outcome.simulate(measured)
        problems += outcome.problems(simulated)
        changes = len(outcome.runs) - len(outcome.jobs)
        times = f"{outcome.makespan:6.1f} s {simulated:8.1f} s {outcome.completion:14.1f} s"
        print(f"{outcome.policy:8} {times} {changes:8}")
    print("\nruns under refold:")
    for run in sorted(changing.runs, key=lambda run: run.begin):
        print(f"  {run.begin:6.1f} s  {run.job.id:10} run {run.number}: {run.plan}, {run.steps} steps")
    if len(changing.runs) == len(changing.jobs):
        problems.append("refold: no job changed its shape")
    print(f"\nrefold needs {changing.makespan / fixed.makespan:.2f} × the total time of fifo")
    for problem in problems:
        print(f"failed: {problem}")
    return int(bool(problems))


def _measure(environment: Mapping[str, str]) -> Iterator[Measurement]:
    """Yield the step times of all jobs, from short runs alone on this machine."""
    print("step times:", end="", flush=True)
    for job in JOBS:
        for plan in (Plan(), Plan(data=SLOTS)):
            seconds = _step_seconds(job, plan, environment)
            print(f" {job.example} {plan} {1000 * seconds:.0f} ms,", end="", flush=True)
            yield _measurement(job.example, plan, seconds)
    print()


def _measurement(workload: str, plan: Plan, seconds: float) -> Measurement:
    return Measurement(workload, "slot", (plan.gpus,), plan, BATCH, 1, step_seconds=seconds)


def _step_seconds(job: DemoJob, plan: Plan, environment: Mapping[str, str]) -> float:
    command = [sys.executable, "-m", "refold.train", "--plan", str(plan), *job.command(MEASURED_STEPS)]
    times = []
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if re.match(r"step \d+,", line):
                times.append(time.monotonic())
    if process.returncode or len(times) < 2:
        raise SystemExit(f"{job.example} failed under {plan}, with exit status {process.returncode}")
    return min(after - before for before, after in pairwise(times)) / PRINTED_EVERY  # others may use this machine too


def _run(policy: str, settings: dict[str, Any], folder: Path, environment: Mapping[str, str]) -> Path:
    """Run the jobs under a policy; return the journal."""
    folder.mkdir(mode=0o700)
    config = {"cluster": {"slots": SLOTS}, "policy": {"name": policy, "settings": settings}, "serve": {"port": 0}}
    (folder / "refold.yaml").write_bytes(msgspec.yaml.encode(config))
    with _daemon(folder, environment) as client:
        print(f"{policy}: ", end="", flush=True)
        begin = time.monotonic()
        submitted = []
        try:
            for job in JOBS:
                time.sleep(max(0.0, begin + job.at - time.monotonic()))
                submitted.append(client.submit(_submission(job, policy, folder)).id)
            for job_id in submitted:
                ended = client.wait(job_id)
                print(f"{ended.id} {ended.state} ", end="", flush=True)
        except BaseException:  # also Ctrl-C: jobs would outlive the daemon
            for job_id in submitted:
                with suppress(RefoldError):
                    client.cancel(job_id, now=True)
            raise
        print()
        return client.journal(folder / "journal.jsonl")


def _submission(job: DemoJob, policy: str, folder: Path) -> dict[str, Any]:
    shape: dict[str, Any] = {"gpus": 2, "plan": Plan(data=2)}
    if policy != "fifo":
        shape = {"gpus": 1, "gpu_range": (1, SLOTS), "plan": "auto"}
    return {
        "name": job.example,
        "command": [sys.executable, *job.command(job.steps)],
        "workload": job.example,
        "batch": BATCH,
        "steps": job.steps,
        "folder": str(folder),
        **shape,
    }


@contextmanager
def _daemon(folder: Path, environment: Mapping[str, str]) -> Iterator[Client]:
    """Start a daemon on CPU slots; yield a client."""
    command = [sys.executable, "-m", "refold", "serve", "--config", str(folder / "refold.yaml"), "--state", str(folder)]
    with (folder / "daemon.log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        with _connect(folder, process) as client:
            yield client
    finally:
        process.terminate()
        process.wait()


def _connect(folder: Path, daemon: subprocess.Popen[bytes]) -> Client:
    """Wait until the daemon answers."""
    while daemon.poll() is None:
        if address := read_address(folder):
            client = Client(address.address, address.token)
            with suppress(NoDaemon):
                client.info()
                return client
        time.sleep(0.1)
    raise SystemExit(f"the daemon did not start: {(folder / 'daemon.log').read_text()}")


@dataclass(slots=True)
class ObservedRun:
    """A run in a journal: its plan, its time and steps, and its reports of finished steps with their times."""

    job: Job
    number: int
    plan: Plan
    begin: float
    first_step: int
    last_step: int
    end: float = 0.0
    reports: list[tuple[float, int]] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """The steps of this run."""
        return self.last_step - self.first_step

    def finish(self, now: float, steps: int | None) -> None:
        """Note the end. A run that was changed while it trained has reported its last step before or after it."""
        self.end = now
        self.last_step = steps if steps is not None else self.reports[-1][1] if self.reports else self.first_step

    @property
    def seconds_and_steps(self) -> tuple[float, int]:
        """The time between the first and the last report, and the steps in it."""
        if len(self.reports) < 2:
            return 0.0, 0
        (first, first_steps), (last, last_steps) = self.reports[0], self.reports[-1]
        return last - first, last_steps - first_steps


class PolicyRun:
    """What the journal of a policy says."""

    def __init__(self, journal: Path) -> None:
        self.header, entries = read_journal(journal)
        self.entries = list(entries)
        self.jobs = [event.job for _, event in self._events(JobSubmitted)]
        self.runs = self._read_runs()
        self.ends = {event.job: now for now, event in self._events(RunFinished)}
        self.makespan = max(self.ends.values(), default=inf) - self.jobs[0].submitted

    @property
    def policy(self) -> str:
        """The name of the policy."""
        return self.header.policy

    @property
    def completion(self) -> float:
        """Mean seconds from submission to end."""
        return mean(self.ends[job.id] - job.submitted for job in self.jobs if job.id in self.ends)

    def measurements(self) -> list[Measurement]:
        """Return the step times that were observed, by workload and plan."""
        observed: dict[tuple[str, Plan], list[tuple[float, int]]] = defaultdict(list)
        for run in self.runs:
            observed[run.job.workload, run.plan].append(run.seconds_and_steps)
        return [
            _measurement(workload, plan, sum(time for time, _ in parts) / sum(steps for _, steps in parts))
            for (workload, plan), parts in observed.items()
            if sum(steps for _, steps in parts)
        ]

    def overhead(self, speeds: Speeds, first: bool) -> float:
        """Return the median time in which a run does not train: of first runs, or of those after a change."""
        idle = [
            run.end - run.begin - run.steps / speeds.with_plan(run.job, "slot", (run.plan.gpus,), 0, run.plan)[0]
            for run in self.runs
            if (run.number == 1) == first and run.end
        ]
        return max(0.0, median(idle or [0.0]))

    def simulate(self, measured: Sequence[Measurement]) -> float:
        """Return the makespan of a simulation of the same jobs under the same policy, with measured step times."""
        cluster = self.header.cluster
        speeds = Speeds(cluster, Knowledge(measured=(*measured, *self.measurements())))
        costs = Costs(start=self.overhead(speeds, first=True), restart=self.overhead(speeds, first=False))
        jobs = [msgspec.structs.replace(job, reshapable=True) for job in self.jobs]
        charge = ModelledSpeeds(speeds, RecordedSpeeds(cluster))
        view = simulate(jobs, cluster, make_policy(self.policy, self.header.settings), charge=charge, costs=costs)
        return view.now - jobs[0].submitted

    def problems(self, simulated: float) -> list[str]:
        """Return what is wrong with the outcome."""
        problems = [f"{self.policy}: {job.id} did not finish" for job in self.jobs if job.id not in self.ends]
        try:
            check_replay(self.header, iter(self.entries), make_policy(self.policy, self.header.settings))
        except BadJournal as error:
            problems.append(f"{self.policy}: the journal does not replay: {error}")
        error = abs(simulated / self.makespan - 1)
        if error > MAX_ERROR:
            problems.append(
                f"{self.policy}: the simulated time is off by {error:.0%}, expected at most {MAX_ERROR:.0%}"
            )
        return problems

    def _events(self, kind: type) -> list[tuple[float, Any]]:
        return [(entry.now, event) for entry in self.entries for event in entry.events if isinstance(event, kind)]

    def _read_runs(self) -> list[ObservedRun]:
        jobs = {job.id: job for job in self.jobs}
        runs: dict[tuple[str, int], ObservedRun] = {}
        for entry in self.entries:
            for event in entry.events:
                match event:
                    case RunProgressed(job, run, _, int(steps)):
                        runs[job, run].reports.append((entry.now, steps))
                    case RunStopped(job, run):
                        runs[job, run].finish(entry.now, event.steps)
                    case RunFinished(job, run):
                        runs[job, run].finish(entry.now, jobs[job].steps)
            for order in entry.orders:
                if isinstance(order, StartRun):
                    earlier = runs.get((order.job, order.run - 1))
                    plan = order.allocation.plan or jobs[order.job].plan or Plan()
                    first_step = earlier.last_step if earlier else 0
                    runs[order.job, order.run] = ObservedRun(
                        jobs[order.job], order.run, plan, entry.now, first_step, first_step
                    )
        return list(runs.values())


if __name__ == "__main__":
    sys.exit(main())
