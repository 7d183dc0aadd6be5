"""Gap of policies to the optimum on a trace: `python -m benchmarks.research [TRACE] [--cluster C] [--policies NAMES]`.

The table has the mean gap of each policy: at every time at which it decides, the missing share of the optimum for the
same jobs, nodes and guarantees. If an instance is too large to compute the optimum, the reason is printed instead.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks.research.gap import GapMeter
from benchmarks.table import markdown
from refold.errors import RefoldError
from refold.model import Cluster, Job
from refold.simulator import simulate
from refold.simulator.registry import make_policy
from refold.simulator.traces import read_cluster, read_trace

DEFAULT_POLICIES = "fifo,las,srtf,refold"


def measure_gap(name: str, jobs: Sequence[Job], cluster: Cluster) -> str:
    """Return the mean gap of a policy as a percentage, or why there is none."""
    meter = GapMeter(make_policy(name))
    simulate(jobs, cluster, meter)
    if meter.gap is None:
        return f"no gap: {meter.unavailable or 'no jobs'}"
    return f"{100 * meter.gap:.1f} %"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of gaps."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.research", description=__doc__)
    parser.add_argument("trace", nargs="?", default="demo", help="a trace file, or demo [demo]")
    parser.add_argument("--cluster", default="demo", help="a cluster file or shorthand such as 4x8:A100 [demo]")
    parser.add_argument("--policies", default=DEFAULT_POLICIES, help=f"names or files [{DEFAULT_POLICIES}]")
    parser.add_argument("--limit", type=int, help="only the first jobs of the trace")
    options = parser.parse_args(arguments)
    try:
        jobs, cluster = read_trace(options.trace).jobs[: options.limit], read_cluster(options.cluster)
        rows = [[name, measure_gap(name, jobs, cluster)] for name in options.policies.split(",")]
    except RefoldError as error:
        parser.error(str(error))
    print(markdown(("policy", "mean gap to optimum"), rows))


if __name__ == "__main__":
    main()
