"""Jobs on a real Slurm while something is killed again and again; the jobs themselves record what goes wrong.

In each round, jobs are submitted to a daemon: one that runs for a moment, one that takes longer, and a gang on two
nodes. Then something is killed, after a time that follows from a seed, and started again.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "tests" / "helpers"))

from slurm_accounting import SlurmWithAccounting  # noqa: E402
from slurm_daemon import SlurmDaemon  # noqa: E402
from slurm_servers import SlurmServers  # noqa: E402

from refold.errors import NoDaemon  # noqa: E402

NODES = 3
MAX_DELAY_SECONDS = 1.5
"""How long after the submissions something is killed, at most. Runs start and end in this time."""

SETTLE_SECONDS = 240.0
"""How long jobs may need to finish after the last failure. One that is lost again and again waits longer each time."""

LEAVE_SECONDS = 30.0
ID_USED_TWICE = "Duplicate jobid"
"""Why Slurm drains a node on which it has started a job with the id of an earlier one.

A controller that was killed gives ids that it has forgotten to other jobs. An administrator has to resume the node.
"""

POOL = "refold-pool"
"""The name of the allocations of a pool."""

ENDED = {"finished", "failed", "cancelled", "ended"}

# A second start of a run, a run that starts while another one of its job has processes, and work that is done twice.
JOB = """
mkdir -p {folder}/$REFOLD_JOB && cd {folder}/$REFOLD_JOB || exit 9
for other in alive.$REFOLD_INSTANCE.*; do
    pid=$(cat "$other" 2>/dev/null) || continue
    ! grep -qsz "^REFOLD_JOB=$REFOLD_JOB\\$" "/proc/$pid/environ" || echo "overlaps run ${{other##*.}}" >>wrong
done
echo $$ >alive.$REFOLD_INSTANCE.$REFOLD_RUN
echo >>starts.$REFOLD_INSTANCE.$REFOLD_RUN
sleep {seconds} || exit 1
echo >>done.$REFOLD_INSTANCE.$REFOLD_RUN
rm alive.$REFOLD_INSTANCE.$REFOLD_RUN
"""


class FaultOutcome(NamedTuple):
    """What was counted. `lost`: jobs that have not finished. `runs`: attempts of all jobs.

    `twice`: runs that were started twice, overlapped with another run of their job, or did finished work again.
    `left`: jobs in Slurm's queue at the end.
    """

    fault: str
    times: int
    jobs: int
    runs: int
    lost: int
    twice: int
    left: int


class FaultyCluster:
    """A Slurm with a daemon, and a folder where jobs write what happens to them."""

    def __init__(self, slurm: SlurmServers, folder: Path, pool: bool) -> None:
        self.slurm = slurm
        options = ("--pool", str(NODES)) if pool else ()
        self.daemon = SlurmDaemon(slurm, folder / "state", "--policy", "fifo", *options)
        self.record = folder / "record"
        self.record.mkdir()

    def submit(self) -> list[str]:
        """Submit the jobs of a round; return their ids."""
        shapes = [("moment", 1, 0.1), ("longer", 1, 1.5), ("gang", 2, 0.5)]
        with self.daemon.client() as client:
            return [
                client.submit(
                    name=name,
                    command=["sh", "-c", JOB.format(folder=self.record, seconds=seconds)],
                    instances=instances,
                    gpus=8 if instances > 1 else 1,
                    memory_gib=1,
                    cpus=1,
                ).id
                for name, instances, seconds in shapes
            ]

    def kill_daemon(self) -> None:
        """Kill Refold's daemon."""
        self.daemon.kill()
        self.daemon.start()

    def kill_controller(self) -> None:
        """Kill slurmctld; it forgets the jobs since it last saved its state."""
        self.slurm.kill("slurmctld")
        self.slurm.start_controller()

    def kill_both(self) -> None:
        """Kill the daemon and slurmctld."""
        self.daemon.kill()
        self.kill_controller()
        self.daemon.start()

    def kill_node(self) -> None:
        """Kill a node with all that runs on it. Slurm would find out after its SlurmdTimeout."""
        self.slurm.kill_node("n0")
        self.slurm.run("scontrol", "update", "NodeName=n0", "State=DOWN", "Reason=killed")
        self.slurm.start_node("n0")
        self.slurm.run("scontrol", "update", "NodeName=n0", "State=RESUME", check=False)

    def cancel_allocation(self) -> None:
        """Cancel the allocation of a node that a pool holds. Another one is requested."""
        self.slurm.run("scancel", f"--name={POOL}", "--nodelist=n0")

    def kill_accounting(self) -> None:
        """Kill slurmdbd, and some time later slurmctld, which may not start without it."""
        assert isinstance(self.slurm, SlurmWithAccounting)
        self.slurm.kill("slurmdbd")
        time.sleep(MAX_DELAY_SECONDS)
        self.slurm.kill("slurmctld")
        self.slurm.start_accounting()
        self.slurm.start_controller()

    def unfinished(self, jobs: list[str]) -> list[str]:
        """Wait until jobs have ended; return those that have not finished."""
        deadline = time.monotonic() + SETTLE_SECONDS
        states: dict[str, str] = {}
        while time.monotonic() < deadline:
            states = self._states(jobs)
            if {*states.values()} <= ENDED and len(states) == len(jobs):
                break
            self._resume_nodes()
            time.sleep(0.5)
        found = [job for job in jobs if states.get(job) != "finished"]
        for job in found:
            print(f"{job}: {states.get(job)}, {self.daemon.events(job)}", file=sys.stderr)
        if found:
            self._print_state(found)
        return found

    def _resume_nodes(self) -> None:
        """Do what an administrator has to do after the controller was killed."""
        for line in self.slurm.run("sinfo", "--Node", "--noheader", "--format=%N %T %E", check=False).splitlines():
            name, state, reason = [*line.split(" ", 2), "", ""][:3]
            if state == "drained" and reason == ID_USED_TWICE:
                print(f"{name} was drained by Slurm: {reason}; resumed", file=sys.stderr)
                self.slurm.run("scontrol", "update", f"NodeName={name}", "State=RESUME")

    def _print_state(self, jobs: list[str]) -> None:
        """Print what may tell why jobs have not finished: what Slurm and the daemon know of jobs and nodes."""
        for words in (
            ("squeue", "--all", "--states=all", "--format=%i %j %T %r %R %k"),
            ("scontrol", "show", "nodes", "--oneliner", "--details"),
        ):
            print(self.slurm.run(*words, check=False), file=sys.stderr)
        with suppress(NoDaemon), self.daemon.client() as client:
            for job in jobs:
                print(f"{job}: {client.why(job)}", file=sys.stderr)
            for node in client.nodes():
                print(node, file=sys.stderr)
        print(self.daemon.log()[-3000:], file=sys.stderr)

    def _states(self, jobs: list[str]) -> dict[str, str]:
        try:
            with self.daemon.client() as client:
                return {job: client.job(job).state for job in jobs}
        except NoDaemon:
            return {}

    def left_in_slurm(self) -> int:
        """Return the number of jobs and steps that do not leave Slurm: those submitted twice end by themselves."""
        deadline = time.monotonic() + LEAVE_SECONDS
        while (left := self._runs_in_slurm()) and time.monotonic() < deadline:
            time.sleep(0.5)
        return left

    def _runs_in_slurm(self) -> int:
        names = self.slurm.run("squeue", "--noheader", "--format=%j").split()
        steps = self.slurm.run("squeue", "--noheader", "--steps", "--format=%j").split()
        return len([name for name in names if name != POOL]) + len([name for name in steps if "refold/" in name])

    def wrong(self) -> int:
        """Return the number of runs that started twice, overlapped, or did finished work again."""
        twice = [path for path in self.record.glob("*/starts.*") if path.read_text() != "\n"]
        again = [path for path in self.record.iterdir() if len(_finished_runs(path)) > 1]
        overlaps = [*self.record.glob("*/wrong")]
        for path in (*twice, *again, *overlaps):
            print(f"wrong: {path.relative_to(self.record)}", file=sys.stderr)
        return len(twice) + len(again) + len(overlaps)

    def runs(self) -> int:
        """Return the number of runs that were started."""
        return len([*self.record.glob("*/starts.0.*")])


def _finished_runs(job: Path) -> list[str]:
    """Return the runs of which all instances have done their work."""
    instances = {path.name.split(".")[1] for path in job.glob("starts.*")}
    runs = {path.name.split(".")[2] for path in job.glob("starts.*")}
    return [run for run in runs if all((job / f"done.{instance}.{run}").exists() for instance in instances)]


SLURM_FAULTS: dict[str, Callable[[FaultyCluster], None]] = {
    "daemon killed": FaultyCluster.kill_daemon,
    "slurmctld killed": FaultyCluster.kill_controller,
    "daemon and slurmctld killed": FaultyCluster.kill_both,
    "node killed": FaultyCluster.kill_node,
    "slurmdbd and slurmctld killed": FaultyCluster.kill_accounting,
    "allocation cancelled": FaultyCluster.cancel_allocation,
}
POOL_FAULTS = ("allocation cancelled",)
"""Those that need a pool."""


def measure_fault(fault: str, times: int, seed: int = 0, *, pool: bool = False) -> FaultOutcome:
    """Submit jobs and kill something, again and again; count what is wrong."""
    draw = random.Random(seed)
    slurm = SlurmWithAccounting(NODES, 8) if "slurmdbd" in fault else SlurmServers(NODES, 8)
    with TemporaryDirectory(prefix="refold-faults-") as folder:
        cluster = FaultyCluster(slurm, Path(folder), pool)
        try:
            slurm.start()
            cluster.daemon.start()
            jobs: list[str] = []
            for _ in range(times):
                jobs += cluster.submit()
                time.sleep(draw.uniform(0.0, MAX_DELAY_SECONDS))
                SLURM_FAULTS[fault](cluster)
            lost = cluster.unfinished(jobs)
            left = cluster.left_in_slurm()
            outcome = FaultOutcome(fault, times, len(jobs), cluster.runs(), len(lost), cluster.wrong(), left)
        finally:
            cluster.daemon.kill()
            slurm.stop()
    return outcome


def fault_table(outcomes: list[FaultOutcome]) -> list[str]:
    """Return a Markdown table of what went wrong."""
    return [
        "| killed and started again | times | jobs | runs | jobs lost | runs twice | left in Slurm |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {found.fault} | {found.times} | {found.jobs} | {found.runs} | {found.lost} | {found.twice} |"
            f" {found.left} |"
            for found in outcomes
        ),
    ]
