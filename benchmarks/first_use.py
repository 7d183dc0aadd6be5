"""The first commands on a fresh machine: a clone of this repository, installed into an empty environment.

    python -m benchmarks.first_use --write     # docs/results/first_use.md; about five minutes on an idle machine

It needs a package index. The clone is that of the last commit; times are CPU times of whole processes, user and system.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import REPOSITORY
from benchmarks.result_page import FOLDER, page_parser, publish
from benchmarks.workloads import HELIOS, TRACES, missing
from refold.client import Client, read_address
from refold.errors import NoDaemon
from refold.model import Job
from refold.simulator.traces import read_trace

PAGE = FOLDER / "first_use.md"
HISTORY_JOBS = 4_400
DEMO = ("refold", "compare", "demo", "--limit", "200")
POLICIES = "fifo,fifo-skip,sjf,srtf,las,drf,easy,conservative,tiresias,refold"
TEN_JOBS = """
import refold
jobs = [refold.Job(f"j{number}", submitted=float(number), work=60.0) for number in range(10)]
refold.simulate(jobs, refold.read_cluster("2x4:A100"), refold.make_policy("refold"))
"""

TEXT = """# First use

What a new user waits for. One machine with two cores, {python}, {day}; a clone of the repository is installed into
an empty environment, in an empty home folder. CPU time, user and system, of whole processes, on a machine without other
work.
`python -m benchmarks.first_use --write` measures again and writes this page.

| measure | first time | second time | goal |
|---|---|---|---|
{rows}

Installing includes downloads, the virtual environment, and compiling kernels. The Slurm history has {history:,} jobs
of Helios Venus as `sacct` prints them, on 135 nodes of 8 GPUs, on which none of them has to wait. The daemon has 4
slots and the policy `refold`; its time is that of its process until a job that was submitted to it has ended. Its
memory is measured after 21 jobs; one that has estimated when waiting jobs start has loaded SciPy, too, and needs more.

`refold compare` simulates `refold` up to three times, for the table of the costs and benefits of preemption, which
`--preemption never` leaves out.
"""


class Measured(NamedTuple):
    """A measure with its unit, the first and the second time, and the goal."""

    name: str
    first: float
    second: float | None
    goal: str
    unit: str = "s"

    def row(self) -> str:
        """Return a row of the table."""
        second = "" if self.second is None else f"{self.second:.2f} {self.unit}"
        return f"| {self.name} | {self.first:.2f} {self.unit} | {second} | {self.goal} |"


class Machine:
    """A clone with its environment, and a home folder."""

    def __init__(self, folder: Path) -> None:
        self.clone, self.home = folder / "refold", folder / "home"
        self.home.mkdir()
        self._bin = self.clone / ".venv" / "bin"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("REFOLD_", "PYTHON"))}
        self.environment: Mapping[str, str] = {**kept, "HOME": str(self.home), "PATH": f"{self._bin}:{kept['PATH']}"}

    def run(self, *command: str) -> float:
        """Run a command to its end; return its CPU time."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, cwd=self.home, env=self.environment, stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def install(self) -> Measured:
        """Clone, make an environment, and install."""
        subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(self.clone)], check=True)
        environment = self.run(sys.executable, "-m", "venv", str(self._bin.parent))
        seconds = self.run("python", str(self.clone / "tools" / "install.py"), "report", "serve")
        return Measured("build and install from a clone", environment + seconds, None, "≤ 150 s")

    def twice(self, name: str, goal: str, *command: str) -> Measured:
        """Measure a command twice."""
        return Measured(name, self.run(*command), self.run(*command), goal)

    def serve(self) -> list[Measured]:
        """Start a daemon twice: CPU time until its policy has started a job, and memory while it is idle."""
        first, second = (self._serve_once(self.home / f"state-{number}") for number in range(2))
        return [
            Measured("`refold serve` until its own policy schedules", first[0], second[0], "≤ 1.5 s"),
            Measured("idle daemon under `refold`, resident memory", first[1], second[1], "≤ 110 MiB", "MiB"),
        ]

    def _serve_once(self, state: Path) -> tuple[float, float]:
        options = ["--slots", "4", "--policy", "refold", "--port", "0", "--state", str(state)]
        process = subprocess.Popen(
            [str(self._bin / "refold"), "serve", *options],
            cwd=self.home,
            env=self.environment,
            stdout=subprocess.DEVNULL,
        )
        try:
            with _connect(state) as client:
                client.wait(client.submit(command=["true"], name="first").id, 60)
                seconds = _cpu_seconds(process.pid)
                for number in range(20):
                    client.wait(client.submit(command=["sleep", "0.1"], name=f"nap-{number % 3}").id, 60)
            time.sleep(3)
            return seconds, _resident_mib(process.pid)
        finally:
            process.terminate()
            process.wait(30)


def _connect(state: Path) -> Client:
    """Return a client of the daemon as soon as it answers, which is after it has written its address."""
    while True:
        if state.exists() and (found := read_address(state)) is not None:
            client = Client(found.address, found.token)
            try:
                client.jobs()
            except NoDaemon:
                client.close()
            else:
                return client
        time.sleep(0.01)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def slurm_history(path: Path) -> None:
    """Write jobs of Helios as `sacct` prints them."""
    columns = "JobID|JobName|User|Account|State|Submit|Start|End|Elapsed|Timelimit|NNodes|ReqTRES|AllocTRES"
    jobs = read_trace(TRACES / HELIOS).jobs[:HISTORY_JOBS]
    path.write_text("\n".join([columns, *(_sacct_row(number, job) for number, job in enumerate(jobs, 1))]) + "\n")


def _sacct_row(number: int, job: Job) -> str:
    submitted = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=int(job.submitted))
    seconds = timedelta(seconds=int(job.work or 0.0))
    minutes, rest = divmod(int(seconds.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    gres = f"gres/gpu={job.demand.instances * job.demand.gpus},node={job.demand.instances}"
    times = "|".join(f"{at:%Y-%m-%dT%H:%M:%S}" for at in (submitted, submitted, submitted + seconds))
    elapsed = f"{hours:02}:{minutes:02}:{rest:02}"
    who = f"{number}|train|{job.user or 'ann'}|{job.tenant or 'lab'}"
    return f"{who}|COMPLETED|{times}|{elapsed}|2-00:00:00|{job.demand.instances}|{gres}|{gres}"


def measure() -> Iterator[Measured]:
    """Measure all, in a clone that is installed first."""
    with tempfile.TemporaryDirectory(prefix="refold-first-use-") as folder:
        machine = Machine(Path(folder))
        yield machine.install()
        yield from use(machine)


def use(machine: Machine) -> Iterator[Measured]:
    """Measure the first commands."""
    yield machine.twice("`refold compare demo --limit 200`", "≤ 1.5 s", *DEMO)
    yield machine.twice("the same with `--preemption never`", "≤ 1.5 s", *DEMO, "--preemption", "never")
    if problem := missing(HELIOS):
        print(f"skipped the Slurm history: {problem}", file=sys.stderr)
    else:
        history = machine.home / "history.txt"
        slurm_history(history)
        command = ("refold", "compare", str(history), "--cluster", "135x8:V100", "--policies", POLICIES)
        name = f"`refold compare` of a Slurm history of {HISTORY_JOBS:,} jobs, ten policies"
        yield machine.twice(name, "≤ 1.3 × the warm time with Numba, 17 s", *command)
    yield machine.twice("`import refold; refold.simulate` of 10 jobs", "≤ 0.5 s", "python", "-c", TEN_JOBS)
    yield from machine.serve()


def main() -> None:
    """Measure, and print or write the page."""
    options = page_parser("benchmarks.first_use", __doc__).parse_args()
    rows = []
    for measured in measure():
        print(measured.row(), file=sys.stderr)  # a later one may fail
        rows.append(measured.row())
    python = f"Python {sys.version.split()[0]}"
    publish(options, PAGE, TEXT.format(python=python, day=date.today(), rows="\n".join(rows), history=HISTORY_JOBS))


if __name__ == "__main__":
    main()
