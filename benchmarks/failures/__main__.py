"""Goodput of a training on hosts that fail.

    python -m benchmarks.failures                # needs root, for network namespaces; half an hour
    python -m benchmarks.failures --minutes 1    # shorter
    python -m benchmarks.failures --kills 200    # random kills of ranks, agents and hosts; are all losses right?
    python -m benchmarks.failures --live         # seconds per GB of a live change between two hosts
    python -m benchmarks.failures --demo         # three failures before your eyes, with a plot of the steps per second

Four hosts (and a spare one) are network namespaces of this machine. At times drawn from an exponential distribution,
all processes of a random host are killed; it is back after a while. Goodput: steps in relation to those that the same
training makes on the hosts that are there while nothing happens (by its median step).

- torchrun: after a failure, everything is started anew at once from the last checkpoint in a common folder, on as many
  hosts as before: the best case, without the time in which a failure is noticed and a replacement is found.
- torchft: the other replicas go on, and the lost one joins them when its host is back.
- Refold, shrinking: the others go on with a smaller plan, and with the old one when the host is back.
- Refold, with a spare: a fifth host takes over.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
from collections.abc import Sequence
from statistics import mean, median

from benchmarks.failures.course import Course, plot
from benchmarks.failures.hosts import why_not
from benchmarks.failures.kills import count_wrong
from benchmarks.failures.live_change import seconds_per_gigabyte
from benchmarks.failures.trials import WAYS, Way, run, why_no_torchft
from benchmarks.table import Row, as_text, at_least, at_most, skipped

RESTART, TORCHFT, SHRINKING, SPARE = WAYS
GOALS = {SHRINKING: 90.0, SPARE: 95.0}
WIRE_GIGABITS = 10.0


def draw_failures(seconds: float, between: float, seed: int) -> list[float]:
    """Return times of failures."""
    chance = random.Random(seed)
    found, at = [], chance.expovariate(1 / between)
    while at < seconds - between / 3:
        found.append(at)
        at += chance.expovariate(1 / between)
    return found


def compare(ways: Sequence[Way], minutes: float, between: float, back: float, seed: int) -> list[Row]:
    """Train in several ways, one after the other, with the same failures; return the table."""
    seconds = 60 * minutes
    failures = draw_failures(seconds, between, seed)
    if not failures:
        raise SystemExit("benchmarks.failures: no failures in so short a time; try --minutes 5, or another --seed")
    rows = [Row("failures", f"{len(failures)} in {seconds:g} s, the same for all")]
    pauses: dict[Way, float] = {}
    for way in ways:
        if way is TORCHFT and (why := why_no_torchft()):
            rows.append(skipped(f"goodput, {way.name}", why))
            continue
        course = run(way, seconds, failures, back)
        value, usual = 100 * course.goodput(), 1000 * course.undisturbed_seconds()
        hosts = 100 * course.host_share()
        text = f"{value:.1f} % ({course.progress()} steps of {usual:.0f} ms, {hosts:.0f} % of the hosts)"
        what = f"goodput, {way.name}"
        rows.append(at_least(what, value, GOALS[way], text, "%") if way in GOALS else Row(what, text, value))
        pauses[way] = median(course.pauses())
        rows.append(Row(f"pause after a failure, {way.name}", f"{pauses[way]:.1f} s (median)"))
        if course.noticed:
            noticed = median(course.noticed)
            text = f"{noticed:.1f} s (median of {len(course.noticed)}, longest {max(course.noticed):.1f} s)"
            rows.append(at_most(f"failure noticed, {way.name}", noticed, 2.0, text, "s"))
        if course.copies:
            rows.append(_copies(course))
        print(as_text(rows), flush=True)
    for way in [way for way in GOALS if {way, RESTART} <= pauses.keys()]:
        ratio = pauses[way] / pauses[RESTART]
        rows.append(at_most(f"pause, {way.name} to {RESTART.name}", ratio, 0.1, f"{ratio:.2f} ×"))
    return rows


def _copies(course: Course) -> Row:
    """Return the share of the time that each host writes copies of the state."""
    share = 100 * sum(course.copies) / 4 / (course.ended - course.began)
    text = f"{share:.2f} % of the time ({len(course.copies)} of {1000 * mean(course.copies):.0f} ms)"
    return at_most(f"copies of the state, {course.name}", share, 3.0, text, "%")


def live_change() -> list[Row]:
    """Measure changes between two hosts in which ranks stay, and such in which all are replaced."""
    wire = 8 / WIRE_GIGABITS
    rows = []
    for way in ("warm", "live"):
        found = seconds_per_gigabyte(WIRE_GIGABITS, way)
        small = f"{found.small_seconds:.2f} s for {found.small_bytes / 1e9:.3f} GB"
        large = f"{found.large_seconds:.2f} s for {found.large_bytes / 1e9:.3f} GB"
        rows += [Row(f"pause, small model, {way} change", small), Row(f"pause, large model, {way} change", large)]
        ratio = found.per_gigabyte / wire
        text = f"{found.per_gigabyte:.2f} s/GB, {ratio:.1f} ×"
        rows.append(at_most(f"further seconds per further GB, to the time on the wire, {way}", ratio, 1.3, text))
    return rows


def demo() -> int:
    """Kill three hosts, and plot."""
    course = run(SHRINKING, 90.0, [10.0, 35.0, 60.0], 15.0)
    print(plot(course))
    print(f"{course.progress()} steps; after a failure, {median(course.pauses()):.1f} s until the next new step")
    return 0 if len(course.pauses()) == len(course.failures) else 1


def main() -> int:
    """Run the benchmark or the demo."""
    parser = argparse.ArgumentParser(description="Goodput of a training on hosts that fail.")
    parser.add_argument("--minutes", type=float, default=5.0, help="length of each training (default: 5)")
    parser.add_argument("--mean", type=float, default=90.0, help="mean seconds between failures (default: 90)")
    parser.add_argument("--back", type=float, default=30.0, help="seconds until a host is back (default: 30)")
    parser.add_argument("--seed", type=int, default=3, help="random seed of the failures (default: 3)")
    parser.add_argument("--only", action="append", choices=[way.name for way in WAYS], help="only this way; repeatable")
    parser.add_argument("--kills", type=int, help="count wrong losses after so many random kills")
    parser.add_argument("--live", action="store_true", help="measure live changes between two hosts")
    parser.add_argument("--demo", action="store_true", help="three failures, and a plot")
    options = parser.parse_args()
    if why := why_not():
        print(f"benchmarks.failures: {why}")
        return 3
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the hosts are removed then, too
    if options.demo:
        return demo()
    if options.kills:
        rows = count_wrong(options.kills, options.seed)
    elif options.live:
        rows = live_change()
    else:
        ways = [way for way in WAYS if way.name in (options.only or [each.name for each in WAYS])]
        rows = compare(ways, options.minutes, options.mean, options.back, options.seed)
    print(as_text(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
