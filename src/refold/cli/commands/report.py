"""`refold report`: write a report of recorded jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from refold.cli import HistorySourceOption, Since, argument, make_client, option, require_option
from refold.cli.views import AsJson, print_json, print_line, print_notes, print_tables, progress
from refold.errors import BadInput

if TYPE_CHECKING:
    from refold.core import Header
    from refold.model import Job, PreemptionOutlook
    from refold.simulator.results import ReportRun


def report(
    journal: Annotated[Path | None, argument("JOURNAL", "Journal file, plain or .gz (default: the daemon's).")] = None,
    out: Annotated[Path, option("DIR", "Write report.html to this folder.", "--out", "-o")] = Path("refold-report"),
    source: HistorySourceOption = None,
    since: Since = None,
    as_json: AsJson = False,
) -> None:
    """Print the measures of recorded jobs and write a report: waiting times, GPU use, tenants, start estimates.

    Reads the daemon's journal, or a file; with --from slurm, what Slurm did with the jobs of the last weeks.

    The latest 1,000 jobs are simulated, to show the costs and benefits of preemption.

    Examples: refold report · refold report out/journal.jsonl -o report · refold report --from slurm --since 14d
    """
    from refold.cli import output_folder, try_write_report
    from refold.cli.views import guarantee_tables, measure_tables, outlook_table
    from refold.simulator.results import check_guarantees, describe_unfinished

    if source is None:
        require_option("--from slurm", {"--since": since}, "a journal is read whole")
    with ExitStack() as folders:
        folders.enter_context(output_folder(out))
        recorded = _read_slurm(journal, since) if source else _read_journal(journal, folders)
        name, run, notes = recorded.name, recorded.run, recorded.notes
        outlook = _simulate_outlook(recorded)
        written = try_write_report(out, [run], f"Recorded jobs: {name}", "As recorded.", notes, outlook)
    notes += [text for text in [describe_unfinished(run.history)] if text]
    guarantees = check_guarantees(run.history)
    if as_json:
        found = {"journal": name, "measures": run.measures, "guarantees": guarantees, "preemption": outlook}
        found["notes"] = notes
        print_json({**found, "report": written and str(written)})
        return
    print_notes(notes)
    print_tables(*measure_tables(f"{run.name}, {name}", run), *guarantee_tables(guarantees))
    if outlook:
        print_tables(outlook_table(outlook))
    if written:
        print_line(f"report: {written}")


class _Recorded(NamedTuple):
    """What is known of recorded jobs. `jobs`: those whose work is known; `header`: of the journal, if there is one."""

    name: str
    run: ReportRun
    notes: list[str]
    jobs: Sequence[Job]
    header: Header | None = None


def _read_journal(journal: Path | None, folders: ExitStack) -> _Recorded:
    from refold.cli.inputs import jobs_with_work, read_recorded_run

    path = journal or folders.enter_context(_download_journal())
    run, header = read_recorded_run(path)
    name = "the daemon's journal" if journal is None else journal.name
    return _Recorded(name, run, [], jobs_with_work(run.history), header)


def _read_slurm(journal: Path | None, since: str | None) -> _Recorded:
    from refold.cli import TraceOptions
    from refold.cli.inputs import parse_since, read_slurm_workload
    from refold.simulator import Costs

    if journal is not None:
        raise BadInput(f"--from slurm reads Slurm's accounting; leave {journal} out")
    workload = read_slurm_workload(parse_since(since), "", None, TraceOptions(), Costs())
    assert workload.recorded is not None, "the cluster is Slurm's own"
    return _Recorded("Slurm's accounting", workload.recorded, list(workload.notes), workload.jobs)


def _simulate_outlook(recorded: _Recorded) -> PreemptionOutlook | None:
    """Return what preemption would have cost and brought; None if no job has ended, or the policy cannot be simulated.

    The journal may be older than this version, and its policy have other settings now.
    """
    from refold.errors import RefoldError
    from refold.model import jobs_under
    from refold.simulator import DEFAULT_POLICY, simulate_outlook

    if not recorded.jobs:
        return None
    cluster, header = recorded.run.history.cluster, recorded.header
    with progress("simulating preemption"):
        if header is None:
            jobs = jobs_under("consent", recorded.jobs)
            return simulate_outlook(recorded.name, jobs, cluster, DEFAULT_POLICY, {})
        try:
            return simulate_outlook(recorded.name, recorded.jobs, cluster, header.policy, header.settings)
        except RefoldError as error:
            recorded.notes.append(f"the costs and benefits of preemption is not simulated: {error}")
            return None


@contextmanager
def _download_journal() -> Iterator[Path]:
    """Download the daemon's journal to a temporary file that exists inside the context."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="refold-") as folder, progress("fetching the journal"):
        yield make_client().journal(Path(folder) / "journal.jsonl")
