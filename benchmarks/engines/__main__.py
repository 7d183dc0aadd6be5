"""Measure Refold on Slurm: `python -m benchmarks.engines`. Needs `make engines-slurm`; with `--on ray`, `ray[default]`.

Measures the time from a submission to the start of its process, as a job and in a pool, beside plain `sbatch` and
`srun`, or on Ray, beside its own jobs. `--faults N` kills daemons, controllers and nodes N times each, and counts
what goes wrong. `--jobs N` plays jobs of a trace through Slurm, by its own backfill and by Refold in a pool, beside the
simulator. `--estimates N` lets Slurm alone schedule N jobs of a trace, and compares start estimates for its queue with
those of `squeue --start`. `--nodes N` starts jobs on all nodes of a large cluster.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.engines.ray_latency import measure_ray_latency, ray_latency_table
from benchmarks.engines.slurm_estimates import measure_estimates
from benchmarks.engines.slurm_faults import POOL_FAULTS, SLURM_FAULTS, fault_table, measure_fault
from benchmarks.engines.slurm_latency import latency_table, measure_latency
from benchmarks.engines.slurm_scale import measure_scale, scale_table
from benchmarks.engines.slurm_trace import Replay, measure_trace


def main() -> None:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines", description=__doc__)
    parser.add_argument("--repeats", type=_count, default=20, help="submissions in each way (default: 20)")
    parser.add_argument("--faults", type=_count, metavar="N", help="kill something N times, for each kind of failure")
    parser.add_argument("--fault", choices=SLURM_FAULTS, action="append", help="one kind of failure; can be repeated")
    parser.add_argument("--pool", action="store_true", help="runs are started in a pool that Refold holds")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the failures (default: 0)")
    parser.add_argument("--jobs", type=_count, metavar="N", help="play N jobs of the Philly trace")
    parser.add_argument("--estimates", type=_count, metavar="N", help="estimate the starts of N jobs in Slurm's queue")
    parser.add_argument("--speed-up", type=_count, help="of the trace (default: 150; with --estimates, 60)")
    parser.add_argument("--nodes", type=_count, metavar="N", help="start jobs on all of N nodes, and on all at once")
    parser.add_argument("--on", choices=("slurm", "ray"), default="slurm", help="the engine (default: slurm)")
    options = parser.parse_args()
    if options.on == "ray":
        if {options.faults, options.jobs, options.nodes, options.estimates} != {None}:
            parser.error("--faults, --jobs, --nodes and --estimates are measured on Slurm only")
        print("\n".join(ray_latency_table(measure_ray_latency(options.repeats))))
        return
    if options.nodes is not None:
        print("\n".join(scale_table(measure_scale(options.nodes))))
        return
    if options.estimates is not None:
        print("\n".join(measure_estimates(options.estimates, options.speed_up or 60)))
        return
    if options.jobs is not None:
        print("\n".join(measure_trace(Replay(options.jobs, options.speed_up or 150))))
        return
    if options.faults is None:
        print("\n".join(latency_table(measure_latency(options.repeats))))
        return
    found = []
    for fault in options.fault or [name for name in SLURM_FAULTS if options.pool or name not in POOL_FAULTS]:
        if fault in POOL_FAULTS and not options.pool:
            parser.error(f"--fault '{fault}' needs --pool")
        print(f"{fault} …", file=sys.stderr)
        found.append(measure_fault(fault, options.faults, options.seed, pool=options.pool))
    print("\n".join(fault_table(found)))


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a number ≥ 1")
    return int(text)


if __name__ == "__main__":
    main()
