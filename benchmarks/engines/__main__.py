"""Measure Refold on Slurm: `python -m benchmarks.engines`. Needs `make engines-slurm`.

Measures the time from a submission to the start of its process beside plain `sbatch`. `--faults N` kills daemons,
controllers and nodes N times each instead, and counts what goes wrong.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.engines.slurm_faults import SLURM_FAULTS, fault_table, measure_fault
from benchmarks.engines.slurm_latency import latency_table, measure_latency


def main() -> None:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines", description=__doc__)
    parser.add_argument("--repeats", type=int, default=20, help="submissions in each way (default: 20)")
    parser.add_argument("--faults", type=int, metavar="N", help="kill something N times, for each kind of failure")
    parser.add_argument("--fault", choices=SLURM_FAULTS, action="append", help="one kind of failure; can be repeated")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the failures (default: 0)")
    options = parser.parse_args()
    if options.faults is None:
        print("\n".join(latency_table(measure_latency(max(1, options.repeats)))))
        return
    found = []
    for fault in options.fault or SLURM_FAULTS:
        print(f"{fault} …", file=sys.stderr)
        found.append(measure_fault(fault, options.faults, options.seed))
    print("\n".join(fault_table(found)))


if __name__ == "__main__":
    main()
