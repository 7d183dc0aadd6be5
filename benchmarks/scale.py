"""Simulations of large clusters: `python -m benchmarks.scale [--write] [--again | --measured] [--policy NAME]`.

Each case runs in a fresh process: a synthetic workload at 95 % load, simulated without a journal, as `refold compare`
does, and measured. Results are kept under build/, and measured once more with --again. `--write` writes
benchmarks/scale.md.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cases.scale import GPUS_PER_NODE, LOAD, SETTINGS, Measured, run
from benchmarks.measure import REPOSITORY, in_fresh_process
from benchmarks.result_page import page_parser, publish
from benchmarks.table import markdown

PAGE = Path(__file__).with_name("scale.md")


class Case(NamedTuple):
    """A policy with a number of jobs, on a number of nodes."""

    policy: str
    jobs: int
    nodes: int


CASES = (
    *(Case(policy, 1_000_000, 12_500) for policy in ("fifo", "easy")),
    *(Case(policy, jobs, 1_250) for policy in ("fifo", "easy") for jobs in (10_000, 100_000, 1_000_000)),
    *(Case(policy, 1_000_000, 125) for policy in ("fifo", "easy")),
    *(Case(policy, 30_000, 125) for policy in ("easy-predicted", "las", "srtf")),
    *(Case("refold", jobs, 125) for jobs in (1_000, 3_000, 10_000, 30_000)),
    *(Case("refold", jobs, 1_250) for jobs in (1_000, 10_000)),
    *(Case("refold", jobs, 12_500) for jobs in (1_000, 10_000, 100_000, 1_000_000)),
)


def main() -> None:
    """Measure what has not been measured yet, and print the page."""
    parser = page_parser("benchmarks.scale", __doc__)
    parser.add_argument("--again", action="store_true", help="measure again what has been measured before")
    parser.add_argument("--policy", choices=SETTINGS, help="measure the cases of one policy; the page has all")
    parser.add_argument("--measured", action="store_true", help="measure nothing: a page of what has been measured")
    options = parser.parse_args()
    for case in () if options.measured else CASES:
        if options.policy in (None, case.policy) and (options.again or _load(case) is None):
            print(f"measuring {case} …", file=sys.stderr, flush=True)
            _save(case, Measured(*in_fresh_process(run, *case)))
    publish(options, PAGE, _page({case: found for case in CASES if (found := _load(case)) is not None}))


def _file(case: Case) -> Any:
    return REPOSITORY / "build" / "scale" / f"{case.policy}-{case.jobs}-{case.nodes}.json"


def _load(case: Case) -> Measured | None:
    return Measured(*json.loads(_file(case).read_text())) if _file(case).exists() else None


def _save(case: Case, measured: Measured) -> None:
    _file(case).parent.mkdir(parents=True, exist_ok=True)
    _file(case).write_text(json.dumps(measured))


def _page(measured: dict[Case, Measured]) -> str:
    titles = ("policy", "jobs", "GPUs", "simulation", "per job", "measures", "peak memory", "mean wait", "allocated")
    rows = [_row(case, measured[case]) for case in sorted(measured)]
    return f"""# Scale

How long simulations of large clusters take, and how much memory they need. The jobs are synthetic (`refold trace
generate`: most are small and short, a few are large and long), at {LOAD:.0%} of the capacity of nodes with
{GPUS_PER_NODE} GPUs. As in `refold compare`, no journal is written and no start estimates are made. `fifo` is
the compiled replay; the others run in the general simulator, `easy` with known run times and with predicted ones
(`easy-predicted`). CPU time of one core; the peak memory includes the jobs. The machine has two
cores, and did other work at the same time: a million jobs under `refold` took two hours, in which most other cases were
measured.

```sh
python -m benchmarks.scale --write
```

{markdown(titles, rows)}
"""


def _row(case: Case, found: Measured) -> tuple[str, ...]:
    per_job = found.simulation / case.jobs
    return (
        case.policy,
        f"{case.jobs:,}",
        f"{case.nodes * GPUS_PER_NODE:,}",
        f"{found.simulation:,.1f} s",
        f"{per_job * 1e6:,.0f} µs" if per_job < 1e-3 else f"{per_job * 1e3:,.1f} ms",
        f"{found.measures:,.1f} s",
        f"{found.memory_mib:,.0f} MiB",
        f"{found.mean_wait:,.0f} s",
        f"{found.allocation:.0%}",
    )


if __name__ == "__main__":
    main()
