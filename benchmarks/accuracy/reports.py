"""Reports that are printed, and with --write stored next to the code that generates them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from benchmarks.accuracy.tables import Case, data_folder
from benchmarks.measure import REPOSITORY
from refold.planning.perf import Measurement

HERE = Path(__file__).parent
DOCS = REPOSITORY / "docs"


def run_report(
    report: Callable[[], str], name: str, description: str | None, *, needs_published_tables: bool = True
) -> bool:
    """Parse the command line, print a report, and with --write store it as NAME.md. Return whether it was stored."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.accuracy.{name}", description=description)
    parser.add_argument("--write", action="store_true", help=f"write benchmarks/accuracy/{name}.md")
    options = parser.parse_args()
    if needs_published_tables and data_folder() is None:
        print("the published tables are not available (see benchmarks/README.md)")
        return False
    text = report()
    print(text)
    if options.write:
        (HERE / f"{name}.md").write_text(text + "\n", encoding="utf-8")
    return bool(options.write)


def write_section(page: Path, name: str, text: str) -> None:
    """Replace what is between the comments 'NAME: begin' and 'NAME: end' of a page."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    page.write_text(f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}", encoding="utf-8")


def as_measurement(case: Case, name: str = "") -> Measurement:
    """Convert a published step; `name` distinguishes several kinds of steps of one model."""
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
