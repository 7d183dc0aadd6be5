"""Reports that are printed, and with --write kept beside the code that makes them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.accuracy.tables import Case, data_folder
from refold.perf import Measurement

HERE = Path(__file__).parent


def print_and_keep(report: Callable[[], str], name: str, *, published: bool = True) -> None:
    """Print a report; keep it as NAME.md where that was asked for. `published`: it needs the published tables."""
    if published and data_folder() is None:
        print("the published tables are not here: nothing to compare with (see benchmarks/README.md)")
        return
    text = report()
    print(text)
    if "--write" in sys.argv[1:]:
        (HERE / f"{name}.md").write_text(text + "\n", encoding="utf-8")


def as_measurement(case: Case, name: str = "") -> Measurement:
    """A published step as if we had measured it; `name` where one model has several kinds of steps."""
    return Measurement(
        name or case.model.name,
        case.gpu,
        case.gpus_on_node,
        case.plan,
        case.batch,
        case.sequence,
        case.cpus,
        case.step_seconds,
    )
