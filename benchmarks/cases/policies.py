"""For information: every policy with best-fit, and fifo with every placement rule, on Philly and Helios jobs."""

from __future__ import annotations

from benchmarks.measure import in_fresh_process
from benchmarks.table import Row, skipped
from benchmarks.workloads import HELIOS, PHILLY, PHILLY_NODES, general_seconds, helios, missing, philly
from refold.placement import RULES
from refold.policies import POLICIES

FILES = {"Philly": (PHILLY, PHILLY_NODES), "Helios": (HELIOS,)}


def rows(quick: bool) -> list[Row]:
    """Measure jobs per second of the general simulator, journal on."""
    count = 2_000 if quick else 20_000
    pairs = [(policy, "best-fit") for policy in POLICIES]
    pairs += [("fifo", placement) for placement in RULES if placement != "best-fit"]
    found: list[Row] = []
    for trace, files in FILES.items():
        unavailable = missing(*files)
        if unavailable:
            found.append(skipped(f"policies on {trace}", unavailable))
            continue
        for policy, placement in pairs:
            seconds = in_fresh_process(general, trace, count, policy, placement)
            name = f"{policy} + {placement}, first {count:,} {trace} jobs"
            found.append(Row(name, f"{count / seconds:,.0f} jobs/s", count / seconds))
    return found


def general(trace: str, count: int, policy: str, placement: str) -> float:
    """Return the CPU seconds of one run."""
    jobs, cluster = philly(count) if trace == "Philly" else helios(count)
    return general_seconds(jobs, cluster, policy, placement)
