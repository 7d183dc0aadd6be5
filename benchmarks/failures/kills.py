"""Random kills of ranks, agents and hosts in one training: does it hang, and is every loss as without them?"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.failures.course import HOSTS
from benchmarks.failures.hosts import Hosts, wait_until
from benchmarks.failures.trials import FOLDER, NEVER, WAYS, Trial
from benchmarks.table import Row, at_most

TOLERANCE = 1e-10
MILLISECONDS = 2.0
STALLED_SECONDS = 300.0
"""A training that makes no step for so long after a kill hangs."""


def count_wrong(kills: int, seed: int) -> list[Row]:
    """Kill at random, and count what went wrong."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hosts = Hosts(HOSTS, folder)
        trial = Trial(hosts, WAYS[2], folder / "checkpoints", milliseconds=MILLISECONDS)
        hung = 0
        counts = dict.fromkeys(("rank", "agent", "host"), 0)
        try:
            trial.start_all()
            wait_until(lambda: len(trial.steps()) > 10, 300.0)
            for number in range(kills):
                before = len(trial.steps())
                counts[_kill(hosts, chance)] += 1
                time.sleep(chance.uniform(0, 3))
                for host in [host for host in range(HOSTS) if not _is_up(hosts, host)]:
                    trial.start(host)  # others may be killed while it joins
                if number % 3 == 2:  # several failures at once, then time to recover
                    hung += not _goes_on(trial, before)
                    print(f"{number + 1} kills, {len(trial.steps())} steps, hung {hung} times", flush=True)
            hung += not _goes_on(trial, len(trial.steps()))
            steps = trial.steps()
        finally:
            hosts.close()
        furthest = max(step for _, step, _ in steps)
        expected = _undisturbed(folder / "undisturbed", furthest)
    differences = [abs(loss - expected[step]) / abs(expected[step]) for _, step, loss in steps]
    wrong = sum(difference > TOLERANCE for difference in differences)
    missing = furthest - len({step for _, step, _ in steps})
    return [
        Row("kills", f"{kills}: {', '.join(f'{count} of {way}s' for way, count in counts.items())}"),
        Row("steps", f"{furthest} ({len(steps) - furthest + missing} of them repeated)"),
        at_most("hung", hung, 0, str(hung), ""),
        at_most("steps without a loss", missing, 0, str(missing), ""),
        at_most("wrong losses", wrong, 0, f"{wrong} (largest relative difference {max(differences):.1e})", ""),
    ]


def _kill(hosts: Hosts, chance: random.Random) -> str:
    """Kill something on a random host, unless that would be the last one."""
    victim = chance.choice([host for host in range(hosts.count) if _is_up(hosts, host)])
    way = chance.choice(["rank", "agent", "host"])
    with suppress(ProcessLookupError, StopIteration, IndexError):
        match way:
            case "rank":
                os.kill(chance.choice(hosts.ranks(victim)), signal.SIGKILL)
            case "agent":
                os.kill(hosts.agent(victim), signal.SIGKILL)
                hosts.agents[victim].wait()
            case _:
                hosts.kill_host(victim)
    return way


def _is_up(hosts: Hosts, host: int) -> bool:
    return host in hosts.agents and hosts.agents[host].poll() is None


def _goes_on(trial: Trial, before: int) -> bool:
    """Whether the training makes further steps."""
    try:
        wait_until(lambda: len(trial.steps()) > before + 5, STALLED_SECONDS)
    except AssertionError:
        return False
    return True


def _undisturbed(folder: Path, steps: int) -> dict[int, float]:
    """Return the losses of a training in one process."""
    folder.mkdir()
    script = [sys.executable, str(FOLDER / "train_gpt.py"), str(folder), str(folder), str(NEVER), str(steps), "0"]
    subprocess.run(script, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True)
    lines = [line.split() for line in (folder / "steps").read_text().splitlines()]
    return {int(step): float(loss) for _, step, loss in lines}
