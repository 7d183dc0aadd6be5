"""`refold report`: write a report of recorded jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from refold.cli import make_client
from refold.cli.views import AsJson, print_json, print_line, print_notes, print_tables, progress


def report(
    journal: Annotated[
        Path | None, typer.Argument(metavar="JOURNAL", help="Journal file, plain or .gz (default: the daemon's).")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Write report.html to this folder.")] = Path(
        "refold-report"
    ),
    as_json: AsJson = False,
) -> None:
    """Print the measures of recorded jobs and write a report: waiting times, GPU use, tenants, start estimates.

    Reads the daemon's journal, or a file.

    Examples: refold report · refold report out/journal.jsonl -o report
    """
    from refold.cli import output_folder, try_write_report
    from refold.cli.inputs import read_recorded_run
    from refold.cli.views import guarantee_tables, measure_tables
    from refold.results import check_guarantees, describe_unfinished

    with ExitStack() as folders:
        folders.enter_context(output_folder(out))
        path = journal or folders.enter_context(_download_journal())
        name = "the daemon's journal" if journal is None else journal.name
        run, _ = read_recorded_run(path)
        written = try_write_report(out, [run], f"Recorded jobs: {name}", "As recorded.", [])
    notes = [text for text in [describe_unfinished(run.history)] if text]
    guarantees = check_guarantees(run.history)
    if as_json:
        found = {"journal": name, "measures": run.measures, "guarantees": guarantees, "notes": notes}
        print_json({**found, "report": written and str(written)})
        return
    print_notes(notes)
    print_tables(*measure_tables(f"{run.name}, {name}", run), *guarantee_tables(guarantees))
    if written:
        print_line(f"report: {written}")


@contextmanager
def _download_journal() -> Iterator[Path]:
    """Download the daemon's journal to a temporary file that exists inside the context."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="refold-") as folder, progress("fetching the journal"):
        yield make_client().journal(Path(folder) / "journal.jsonl")
