"""`refold report`: write a report of recorded jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli import HistorySourceOption, Since, make_client, require_option
from refold.cli.views import AsJson, print_json, print_line, print_notes, print_tables, progress

if TYPE_CHECKING:
    from refold.simulator.results import ReportRun


def report(
    journal: Annotated[
        Path | None, typer.Argument(metavar="JOURNAL", help="Journal file, plain or .gz (default: the daemon's).")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Write report.html to this folder.")] = Path(
        "refold-report"
    ),
    source: HistorySourceOption = None,
    since: Since = None,
    as_json: AsJson = False,
) -> None:
    """Print the measures of recorded jobs and write a report: waiting times, GPU use, tenants, start estimates.

    Reads the daemon's journal, or a file; with --from slurm, what Slurm did with the jobs of the last weeks.

    Examples: refold report · refold report out/journal.jsonl -o report · refold report --from slurm --since 14d
    """
    from refold.cli import output_folder, try_write_report
    from refold.cli.views import guarantee_tables, measure_tables
    from refold.simulator.results import check_guarantees, describe_unfinished

    if source is None:
        require_option("--from slurm", {"--since": since}, "a journal is read whole")
    with ExitStack() as folders:
        folders.enter_context(output_folder(out))
        name, run, notes = _read_slurm(journal, since) if source else _read_journal(journal, folders)
        written = try_write_report(out, [run], f"Recorded jobs: {name}", "As recorded.", notes)
    notes += [text for text in [describe_unfinished(run.history)] if text]
    guarantees = check_guarantees(run.history)
    if as_json:
        found = {"journal": name, "measures": run.measures, "guarantees": guarantees, "notes": notes}
        print_json({**found, "report": written and str(written)})
        return
    print_notes(notes)
    print_tables(*measure_tables(f"{run.name}, {name}", run), *guarantee_tables(guarantees))
    if written:
        print_line(f"report: {written}")


def _read_journal(journal: Path | None, folders: ExitStack) -> tuple[str, ReportRun, list[str]]:
    from refold.cli.inputs import read_recorded_run

    path = journal or folders.enter_context(_download_journal())
    run, _ = read_recorded_run(path)
    return "the daemon's journal" if journal is None else journal.name, run, []


def _read_slurm(journal: Path | None, since: str | None) -> tuple[str, ReportRun, list[str]]:
    from refold.cli import TraceOptions
    from refold.cli.inputs import parse_since, read_slurm_workload
    from refold.errors import BadInput
    from refold.simulator import Costs

    if journal is not None:
        raise BadInput(f"--from slurm reads Slurm's accounting; leave {journal} out")
    workload = read_slurm_workload(parse_since(since), "", None, TraceOptions(), Costs())
    assert workload.recorded is not None, "the cluster is Slurm's own"
    return "Slurm's accounting", workload.recorded, list(workload.notes)


@contextmanager
def _download_journal() -> Iterator[Path]:
    """Download the daemon's journal to a temporary file that exists inside the context."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="refold-") as folder, progress("fetching the journal"):
        yield make_client().journal(Path(folder) / "journal.jsonl")
