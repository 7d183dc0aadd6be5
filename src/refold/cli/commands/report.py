"""`refold report`: the simulator's measures and report, of what has really happened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from refold.cli import daemon
from refold.cli.views import AsJson, print_json, print_tables, progress, say, tell


def report(
    journal: Annotated[
        Path | None, typer.Argument(metavar="JOURNAL", help="A journal.jsonl, plain or .gz [the daemon's].")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Write report.html into this folder.")] = Path(
        "refold-report"
    ),
    as_json: AsJson = False,
) -> None:
    """Measure what has happened, and draw it: waiting, use of the GPUs, tenants, promises; as after a simulation.

    The daemon's journal is read, or a file.

    Examples: refold report · refold report out/journal.jsonl -o what-happened
    """
    from refold.cli import output_folder, try_report
    from refold.cli.inputs import recorded_in
    from refold.cli.views import measure_tables
    from refold.results import unfinished_text

    with ExitStack() as folders:
        folders.enter_context(output_folder(out))
        path = journal or folders.enter_context(_journal_of_daemon())
        name = "the daemon's journal" if journal is None else journal.name
        run, _ = recorded_in(path)
        written = try_report(out, [run], f"What happened: {name}", "As it was recorded.", [])
    notes = [text for text in [unfinished_text(run.history)] if text]
    if as_json:
        print_json({"journal": name, "measures": run.measures, "notes": notes, "report": written and str(written)})
        return
    tell(notes)
    print_tables(*measure_tables(f"{run.name}, {name}", run))
    if written:
        say(f"report: {written}")


@contextmanager
def _journal_of_daemon() -> Iterator[Path]:
    """A copy of it, kept as long as this is in use."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="refold-") as folder, progress("fetching the journal"):
        yield daemon().journal(Path(folder) / "journal.jsonl")
