"""Trainings on hosts that fail, in four ways."""

from __future__ import annotations

import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks.failures.course import HOSTS, Course
from benchmarks.failures.hosts import HUB_ADDRESS, PORT, Hosts, wait_until

FOLDER = Path(__file__).parent
NEVER = 1e6
START_SECONDS = 300.0
LOAD_MILLISECONDS = 60.0
CHECKPOINT_SECONDS = 2.0
"""About the best interval for failures every 90 s: a checkpoint of the model takes some 20 ms (Young 1974)."""

LIGHTHOUSE = f"{HUB_ADDRESS}:29510"
NOTICED = re.compile(r"refold.train: (lost instance|restarting with|instances [0-9, ]+ are there)")


@dataclass(frozen=True)
class Way:
    """A way of training. `restarts`: everything is started anew after a failure; else the others go on."""

    name: str
    tool: str
    spare: bool = False
    restarts: bool = False


WAYS = (
    Way("torchrun", "torchrun", restarts=True),
    Way("torchft", "torchft"),
    Way("Refold, shrinking", "refold"),
    Way("Refold, with a spare", "refold", spare=True),
)


def why_no_torchft() -> str:
    """Return why torchft cannot be compared; empty if it can."""
    return "" if find_spec("torchft") else "torchft is not installed: pip install torchft==0.2.0"


class Trial:
    """A training on hosts that fail."""

    def __init__(
        self, hosts: Hosts, way: Way, common: Path, steps: int = 10**6, milliseconds: float = LOAD_MILLISECONDS
    ) -> None:
        self._hosts = hosts
        self._way = way
        self._common = common
        self._steps = steps
        self._milliseconds = milliseconds
        if way.tool == "torchft":
            options = ["--min_replicas", "1", "--heartbeat_timeout_ms", "1000", "--join_timeout_ms", "1000"]
            hosts.start_on_hub(sys.executable, str(FOLDER / "lighthouse.py"), "--bind", LIGHTHOUSE, *options)

    def start(self, host: int) -> None:
        """Start what trains on a host."""
        hosts, folder = self._hosts, self._hosts.own_folder(host)
        every = CHECKPOINT_SECONDS if self._way.restarts else NEVER
        script = (str(FOLDER / "train_gpt.py"), str(folder), str(self._common), str(every), str(self._steps))
        words: tuple[str, ...]
        match self._way.tool:
            case "refold":
                words = (*script, str(self._milliseconds))
                hosts.train(host, f"dp{HOSTS}", *words, slots=1, variables={"REFOLD_GRACE": "1"})
            case "torchrun":
                node = ("--nnodes", str(HOSTS), "--nproc-per-node", "1", "--node-rank", str(host))
                meeting = ("--master-addr", hosts.address(0), "--master-port", str(PORT))
                words = ("-m", "torch.distributed.run", *node, *meeting, *script, str(self._milliseconds))
                hosts.agents[host] = hosts.start(host, sys.executable, *words, variables=_gloo())
            case _:
                words = (str(FOLDER / "train_torchft.py"), str(folder), hosts.address(host), LIGHTHOUSE)
                hosts.agents[host] = hosts.start(
                    host, sys.executable, *words, str(self._milliseconds), variables=_gloo()
                )

    def start_all(self) -> None:
        """Start what trains on all hosts."""
        for host in range(self._hosts.count):
            self.start(host)

    def steps(self) -> list[tuple[float, int, float]]:
        """Return time, number and loss of all steps."""
        lines = [line.split() for host in range(self._hosts.count) for line in self._lines(host, "steps")]
        return sorted((float(at), int(step), float(loss)) for at, step, loss in lines)

    def copies(self) -> list[float]:
        """Return how long each copy of the state has taken."""
        return [float(line) for host in range(self._hosts.count) for line in self._lines(host, "copies")]

    def notices(self) -> int:
        """Return how often agents of Refold have said that they have noticed a failure."""
        if self._way.tool != "refold":
            return 0
        return sum(len(NOTICED.findall(self._hosts.log(host))) for host in range(self._hosts.count))

    def _lines(self, host: int, name: str) -> list[str]:
        path = self._hosts.own_folder(host) / name
        text = path.read_text() if path.exists() else ""
        return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]


def run(way: Way, seconds: float, failures: Sequence[float], back: float) -> Course:
    """Train for some time, with failures at given times, and return the course."""
    with tempfile.TemporaryDirectory() as folder:
        hosts = Hosts(HOSTS + way.spare, Path(folder))
        try:
            return _Failing(way, hosts, Path(folder), back).course(seconds, failures)
        finally:
            hosts.close()


class _Failing:
    """Lets hosts fail, and come back."""

    def __init__(self, way: Way, hosts: Hosts, folder: Path, back: float) -> None:
        self._way = way
        self._hosts = hosts
        self._trial = Trial(hosts, way, folder / "checkpoints")
        self._back = back
        self._chance = random.Random(0)
        self._down: set[int] = set()
        self._events: list[tuple[float, Callable[[], None]]] = []
        self._course = Course(way.name, 0.0)
        self._notices = 0

    def course(self, seconds: float, failures: Sequence[float]) -> Course:
        """Train for so long."""
        self._trial.start_all()
        wait_until(lambda: len(self._trial.steps()) > 10, START_SECONDS)
        course = self._course
        course.began = time.time()
        course.hosts.append((course.began, self._hosts.count))
        self._events += [(course.began + at, self._fail) for at in failures]
        while time.time() < course.began + seconds:
            for event in [event for event in self._events if event[0] <= time.time()]:
                self._events.remove(event)
                event[1]()
            if len(course.noticed) < len(course.failures) and self._trial.notices() > self._notices:
                course.noticed.append(time.time() - course.failures[-1])
            time.sleep(0.05)
        course.ended = time.time()
        course.steps = [(at, step) for at, step, _ in self._trial.steps()]
        course.copies = self._trial.copies()
        return course

    def _fail(self) -> None:
        victim = self._chance.choice([host for host in range(self._hosts.count) if host not in self._down])
        self._notices = self._trial.notices()
        self._course.failures.append(time.time())
        if self._way.restarts:
            for host in range(self._hosts.count):
                self._hosts.kill_host(host)
            self._trial.start_all()
            return
        self._hosts.kill_host(victim)
        self._down.add(victim)
        self._note_hosts()
        self._events.append((time.time() + self._back, lambda: self._come_back(victim)))

    def _come_back(self, host: int) -> None:
        self._trial.start(host)
        self._down.discard(host)
        self._note_hosts()

    def _note_hosts(self) -> None:
        self._course.hosts.append((time.time(), self._hosts.count - len(self._down)))


def _gloo() -> dict[str, str]:
    return {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
