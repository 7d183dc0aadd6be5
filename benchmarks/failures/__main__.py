"""Goodput of a training on hosts that fail.

    python -m benchmarks.failures                # needs root, for network namespaces; about half an hour
    python -m benchmarks.failures --minutes 1    # shorter
    python -m benchmarks.failures --demo         # three failures before your eyes, with a plot of the steps per second

Four hosts (and a spare one) are network namespaces of this machine. At times drawn from an exponential distribution,
all processes of a random host are killed; it is back after a while. Goodput: steps in relation to those that an
undisturbed training makes in the same time with the GPUs that are there.

- restart: after a failure, everything is started anew from the last checkpoint in a common folder, on as many hosts as
  before (the best case: a replacement is there at once).
- Refold, shrinking: the others go on with a smaller plan, and with the old one when the host is back.
- Refold, with a spare: a fifth host takes over.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks.failures.hosts import Hosts, wait_until, why_not
from benchmarks.table import Row, as_text, at_least, at_most

SCRIPT = Path(__file__).with_name("train_gpt.py")
HOSTS = 4
NEVER = 1e6
START_SECONDS = 300.0
UNDER_WAY = 2.0
"""Steps that are completed so many seconds after a failure do not end the pause."""


@dataclass
class Course:
    """The course of one training: its steps, its failures, and how many hosts there were when."""

    name: str
    began: float
    ended: float = 0.0
    steps: list[tuple[float, int]] = field(default_factory=list)
    failures: list[float] = field(default_factory=list)
    hosts: list[tuple[float, int]] = field(default_factory=list)

    def progress(self) -> int:
        """Return how far the training has come between the beginning and the end."""
        before = max((step for at, step in self.steps if at <= self.began), default=0)
        return max((step for at, step in self.steps if at <= self.ended), default=0) - before

    def host_share(self) -> float:
        """Return the share of host time that there was."""
        ends = [*(at for at, _ in self.hosts[1:]), self.ended]
        total = sum((end - at) * min(count, HOSTS) for (at, count), end in zip(self.hosts, ends, strict=True))
        return total / (HOSTS * (self.ended - self.began))

    def pauses(self) -> list[float]:
        """Return how long no new step was made after each failure: one that is under way may still be completed."""
        times, reached = [self.began], 0
        for at, step in self.steps:
            if step > reached and at <= self.ended:
                times.append(at)
                reached = step
        times.append(self.ended)
        return [
            max(end - begin for begin, end in pairwise(times) if end > failure and begin < failure + UNDER_WAY)
            for failure in self.failures
        ]


class Trial:
    """A training on hosts that fail."""

    def __init__(self, hosts: Hosts, common: Path, save_every: float) -> None:
        self._hosts = hosts
        self._common = common
        self._save_every = save_every

    def start(self, host: int) -> None:
        """Start the agent of a host."""
        folder = self._hosts.own_folder(host)
        script = (str(SCRIPT), str(folder), str(self._common), str(self._save_every))
        self._hosts.train(host, f"dp{HOSTS}", *script, slots=1, variables={"REFOLD_GRACE": "1"})

    def start_all(self) -> None:
        """Start the agents of all hosts."""
        for host in range(self._hosts.count):
            self.start(host)

    def steps(self) -> list[tuple[float, int]]:
        """Return time and number of all steps."""
        found = []
        for host in range(self._hosts.count):
            path = self._hosts.own_folder(host) / "steps"
            for line in path.read_text().splitlines() if path.exists() else ():
                at, step = line.split()
                found.append((float(at), int(step)))
        return sorted(found)


def run(name: str, seconds: float, failures: Sequence[float], *, spare: bool, restart: bool, back: float) -> Course:
    """Train for some time, with failures at given times, and return the course."""
    chance = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        hosts = Hosts(HOSTS + spare, Path(folder))
        trial = Trial(hosts, Path(folder) / "checkpoints", 5.0 if restart else NEVER)
        try:
            trial.start_all()
            wait_until(lambda: len(trial.steps()) > 10, START_SECONDS)
            course = Course(name, time.time())
            course.hosts.append((course.began, hosts.count))
            events: list[tuple[float, Callable[[], None]]] = []
            down: set[int] = set()

            def fail() -> None:
                victim = chance.choice([host for host in range(hosts.count) if host not in down])
                course.failures.append(time.time())
                if restart:
                    for host in range(hosts.count):
                        hosts.kill_host(host)
                    trial.start_all()
                    return
                hosts.kill_host(victim)
                down.add(victim)
                course.hosts.append((time.time(), hosts.count - len(down)))
                events.append((time.time() + back, lambda: come_back(victim)))

            def come_back(host: int) -> None:
                trial.start(host)
                down.discard(host)
                course.hosts.append((time.time(), hosts.count - len(down)))

            events += [(course.began + at, fail) for at in failures]
            while time.time() < course.began + seconds:
                due = [event for event in events if event[0] <= time.time()]
                for event in due:
                    events.remove(event)
                    event[1]()
                time.sleep(0.05)
            course.ended = time.time()
            course.steps = trial.steps()
            return course
        finally:
            hosts.close()


def plot(course: Course, width: int = 60, every: float = 2.0) -> str:
    """Return the steps per second over time as text; failures are marked."""
    counts = [0] * max(1, int((course.ended - course.began) / every) + 1)
    reached = max((step for at, step in course.steps if at <= course.began), default=0)
    for at, step in course.steps:
        if course.began < at <= course.ended and step > reached:
            counts[int((at - course.began) / every)] += 1
            reached = step
    failed = {int((at - course.began) / every) for at in course.failures}
    largest = max(*counts, 1)
    return "\n".join(
        f"{number * every:5.0f} s {count / every:5.1f}/s {'#' * round(width * count / largest)}"
        f"{'  <- a host is killed' if number in failed else ''}"
        for number, count in enumerate(counts)
    )


def draw_failures(seconds: float, mean: float, seed: int) -> list[float]:
    """Return times of failures."""
    chance = random.Random(seed)
    found, at = [], chance.expovariate(1 / mean)
    while at < seconds - mean / 3:
        found.append(at)
        at += chance.expovariate(1 / mean)
    return found


def compare(minutes: float, mean: float, back: float, seed: int) -> list[Row]:
    """Run all ways side by side, and return the table."""
    seconds = 60 * minutes
    failures = draw_failures(seconds, mean, seed)
    undisturbed = run("undisturbed", seconds, [], spare=False, restart=False, back=back)
    ways = [
        run("restart", seconds, failures, spare=False, restart=True, back=back),
        run("Refold, shrinking", seconds, failures, spare=False, restart=False, back=back),
        run("Refold, with a spare", seconds, failures, spare=True, restart=False, back=back),
    ]
    rows = [
        Row("steps, undisturbed", f"{undisturbed.progress()} in {seconds:g} s"),
        Row("failures", f"{len(failures)}"),
    ]
    pauses = {}
    for course, goal in zip(ways, (None, 90.0, 95.0), strict=True):
        value = 100 * course.progress() / undisturbed.progress() / course.host_share()
        text = f"{value:.1f} % ({course.progress()} steps, {100 * course.host_share():.0f} % of the hosts)"
        what = f"goodput, {course.name}"
        rows.append(Row(what, text, value) if goal is None else at_least(what, value, goal, text, "%"))
        pauses[course.name] = median(course.pauses())
        rows.append(Row(f"lost per failure, {course.name}", f"{pauses[course.name]:.1f} s (median)"))
    ratio = pauses["Refold, shrinking"] / pauses["restart"]
    rows.append(at_most("time lost, shrinking against restart", ratio, 0.1, f"{ratio:.2f} ×"))
    return rows


def main() -> int:
    """Run the benchmark or the demo."""
    parser = argparse.ArgumentParser(description="Goodput of a training on hosts that fail.")
    parser.add_argument("--minutes", type=float, default=5.0, help="length of each training (default: 5)")
    parser.add_argument("--mean", type=float, default=90.0, help="mean seconds between failures (default: 90)")
    parser.add_argument("--back", type=float, default=30.0, help="seconds until a host is back (default: 30)")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the failures (default: 0)")
    parser.add_argument("--demo", action="store_true", help="three failures, and a plot")
    options = parser.parse_args()
    if why := why_not():
        print(f"benchmarks.failures: {why}")
        return 3
    if options.demo:
        course = run("demo", 90.0, [10.0, 35.0, 60.0], spare=False, restart=False, back=15.0)
        print(plot(course))
        print(f"{course.progress()} steps; after a failure, {median(course.pauses()):.1f} s until the next new step")
        return 0 if len(course.pauses()) == len(course.failures) else 1
    print(as_text(compare(options.minutes, options.mean, options.back, options.seed)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
