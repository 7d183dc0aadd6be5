"""One workload under one policy, or under several: the part that `simulate`, `compare` and `replay` share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refold.cli.inputs import Choice, Workload
from refold.cli.views import Advance, plural, progress

if TYPE_CHECKING:
    from concurrent.futures import Future

    from refold.core import Header, Journal, Policy
    from refold.journal import History
    from refold.research import GapMeter
    from refold.results import ReportRun

JOURNAL = "journal.jsonl"
REPORT = "report.html"

LOOK_EVERY = 0.2
"""Seconds between two looks at how far other processes are."""


def simulated(workload: Workload, choice: Choice, journal: Path | None = None, gap: bool = False) -> ReportRun:
    """What this policy makes of the workload; with its journal in a file, if one is named, and its `gap` if asked."""
    with progress(choice.name, len(workload.jobs)) as advance:
        return _simulated(workload, choice, journal, advance, gap)


def _simulated(workload: Workload, choice: Choice, path: Path | None, advance: Advance, gap: bool = False) -> ReportRun:
    from refold.cli.policy_guard import make_guarded
    from refold.core import Header, Journals
    from refold.journal import HistoryJournal
    from refold.results import ReportRun, measure
    from refold.simulator import simulate

    policy = make_guarded(choice.policy, choice.settings)
    watched = _watched(policy, choice) if gap else None
    finished = 0

    def tell(now_finished: int) -> None:
        nonlocal finished
        advance(now_finished - finished)
        finished = now_finished

    kept = HistoryJournal()
    header = Header(workload.cluster, choice.policy, dict(choice.settings))
    with _journal_file(path, header) as file:
        simulate(
            workload.jobs,
            workload.cluster,
            watched or policy,
            journal=Journals(kept, file) if file else kept,
            charge=workload.charging.charge(workload.cluster),
            costs=workload.costs,
            faults=workload.faults,
            never_end=workload.never_end,
            progress=tell,
        )
    tell(len(workload.jobs))
    history = kept.history(workload.cluster)
    if watched is not None:
        return watched.run_of(choice.name, history, measure(history))
    return ReportRun(choice.name, history, measure(history))


def _watched(policy: Policy, choice: Choice) -> GapMeter:
    """The policy, with somebody beside it who knows the best for each moment, by what the policy knows of jobs."""
    from refold.research import GapMeter

    return GapMeter(policy, choice.settings.get("knowledge", {}))


@contextmanager
def _journal_file(path: Path | None, header: Header) -> Iterator[Journal | None]:
    from refold.errors import BadFile
    from refold.journal import JournalFile

    if path is None:
        yield None
        return
    try:
        with JournalFile(path, header) as file:
            yield file
    except OSError as error:
        raise BadFile(path, f"cannot be written: {error.strerror or error}") from None


def all_simulated(
    workload: Workload, chosen: Sequence[Choice], processes: int = 1, gap: bool = False
) -> list[ReportRun]:
    """The workload under each policy, in the order asked for, however many processes share the work."""
    if processes == 1 or len(chosen) == 1:
        return [simulated(workload, choice, gap=gap) for choice in chosen]
    return _simulated_in_processes(workload, chosen, min(processes, len(chosen)), gap)


def _simulated_in_processes(workload: Workload, chosen: Sequence[Choice], processes: int, gap: bool) -> list[ReportRun]:
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import active_children, get_context

    from refold.errors import RefoldError

    # Not forked: this process has threads by now, and a fork would copy their locks.
    context = get_context("spawn")
    done = context.RawArray("q", len(chosen))
    pool = ProcessPoolExecutor(processes, context, _prepare_process, (workload, done))
    try:
        futures = [pool.submit(_simulated_here, place, choice, gap) for place, choice in enumerate(chosen)]
        with progress(f"{len(chosen)} policies", len(chosen) * len(workload.jobs)) as advance:
            _watch(futures, done, advance)
        return [_run_of(future) for future in futures]
    except BaseException as error:
        for process in active_children():
            process.terminate()
        if isinstance(error, BrokenProcessPool):
            raise RefoldError(
                "a process was ended by the system, perhaps for its memory; try fewer --processes"
            ) from None
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _watch(futures: Sequence[Future[ReportRun | _Failure]], done: Sequence[int], advance: Advance) -> None:
    """Until all have ended or one has failed, tell how many jobs have finished in all."""
    from concurrent.futures import FIRST_COMPLETED, wait

    told, pending = 0, set(futures)
    while pending:
        ended, pending = wait(pending, LOOK_EVERY, FIRST_COMPLETED)
        for future in ended:
            _run_of(future)
        finished = sum(done)
        advance(finished - told)
        told = finished


def _run_of(future: Future[ReportRun | _Failure]) -> ReportRun:
    result = future.result()
    if isinstance(result, _Failure):
        raise result.error()
    return result


class _Failure:
    """What is wrong, as it travels between processes: our errors are made of more than their text."""

    def __init__(self, text: str, frames: str) -> None:
        self._text, self._frames = text, frames

    def error(self) -> Exception:
        from refold.cli.policy_guard import PolicyFailed

        return PolicyFailed(self._text, self._frames)


_HERE: list[Any] = []
"""In a process of the pool: the workload, sent once, and where each simulation says how many jobs have finished."""


def _prepare_process(workload: Workload, done: Any) -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the first process's to handle
    _HERE[:] = [workload, done]


def _simulated_here(place: int, choice: Choice, gap: bool) -> ReportRun | _Failure:
    from refold.errors import RefoldError

    workload, done = _HERE

    def advance(amount: float = 1.0) -> None:
        done[place] += int(amount)

    try:
        return _simulated(workload, choice, None, advance, gap)
    except RefoldError as error:
        return _Failure(str(error), getattr(error, "frames", ""))


def faults_seen(history: History) -> int:
    """How many nodes were lost, each time counted, before the last job had ended."""
    return sum(not change.up for change in history.node_changes)


def faults_text(runs: Sequence[ReportRun]) -> str:
    """'3 node faults', or '3 to 5 node faults' where some policies took longer than others; '' without any."""
    seen = [faults_seen(run.history) for run in runs]
    if not any(seen):
        return ""
    least, most = min(seen), max(seen)
    return plural(most, "node fault") if least == most else f"{least:,} to {plural(most, 'node fault')}"


def conditions_of(workload: Workload, runs: Sequence[ReportRun]) -> str:
    """What changes cost, how fast jobs are and how many nodes were lost, for whoever reads the results."""
    from refold.cli.inputs import charging_text
    from refold.model import text_from_seconds

    costs = workload.costs
    named = {"start": costs.start, "stop": costs.stop, "restart": costs.restart}
    said = [f"{what} {text_from_seconds(seconds)}" for what, seconds in named.items() if seconds]
    changes = ", ".join(said) or "starting and stopping cost nothing"
    charged = charging_text(workload.charging, workload.jobs, workload.cluster)
    changes += f"; {charged}" if charged else ""
    return f"Simulated: {changes}; {faults_text(runs) or 'no node was lost'}."


def reading_notes(workload: Workload) -> list[str]:
    """What a person should know of how the trace was read."""
    left_out = f"left out {plural(workload.left_out, 'row')} of {workload.name}"
    return [*workload.notes, *([left_out] if workload.left_out else [])]


def notes_of(workload: Workload, runs: Sequence[ReportRun]) -> list[str]:
    """What a person should know before believing the results: how the trace was read, and who did not finish."""
    from refold.results import unfinished_text

    notes = reading_notes(workload)
    unfinished = [unfinished_text(run.history) for run in runs]
    if len(set(unfinished)) == 1:
        return notes + [text for text in unfinished[:1] if text]
    return notes + [f"{run.name}: {text}" for run, text in zip(runs, unfinished, strict=True) if text]


@contextmanager
def output_folder(folder: Path | None) -> Iterator[None]:
    """Make a folder before there is anything for it, so that a mistake is told at once; if nothing comes, remove it."""
    from refold.cli.options import make_folder

    if folder is None:
        yield
        return
    made = [one for one in (folder, *folder.parents) if not one.exists()]
    make_folder(folder)
    try:
        yield
    finally:
        for one in made:
            with suppress(OSError):  # something is in it
                one.rmdir()


def try_report(
    folder: Path, runs: Sequence[ReportRun], title: str, conditions: str, notes: Sequence[str]
) -> Path | None:
    """Write the report. Without the library that draws it, say so: the numbers are still worth printing.

    `notes` are of how the trace was read; who did not finish is for the report itself to say.
    """
    from refold.cli.views import tell, typed_command
    from refold.errors import MissingExtra
    from refold.results import write_report

    path = folder / REPORT
    try:
        with progress("drawing the report"):
            write_report(path, runs, title=title, workload=conditions, command=typed_command(), notes=notes)
    except MissingExtra as missing:
        tell([f"no report: {missing}"])
        return None
    return path
