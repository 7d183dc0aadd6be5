"""One workload under one policy, or under several: the part that `simulate`, `compare` and `replay` share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refold.cli.output import Advance, nobody_looks, progress
from refold.cli.workload import Workload

if TYPE_CHECKING:
    from refold.core import Header, Journal
    from refold.results import ReportRun

JOURNAL = "journal.jsonl"
REPORT = "report.html"


@dataclass(frozen=True, slots=True)
class Choice:
    """A policy as it was asked for, by name or file, with its settings; `name` is what people read."""

    policy: str
    settings: Mapping[str, Any]
    name: str


def name_of(policy: str, settings: Mapping[str, Any]) -> str:
    """'las', or 'las/fgd' where a placement was asked for; of a file, the file's."""
    short = Path(policy).stem if policy.endswith(".py") else policy
    placement = settings.get("placement")
    return f"{short}/{placement}" if placement else short


def chosen_policy(policy: str, settings: Mapping[str, Any]) -> Choice:
    """One policy. It is made once, so that a mistake is told before the simulation and not after an hour."""
    from refold.registry import make_policy

    return Choice(policy, settings, name_of(make_policy(policy, settings).name, settings))


def chosen_policies(
    policies: Sequence[str], placements: Sequence[str], shared: Mapping[str, Any], given: Mapping[str, Any]
) -> list[Choice]:
    """Every policy with every placement; a policy that names its placement (fifo/fgd) has that one only.

    `shared` settings go to all; those `given` as POLICY.KEY go to that policy, and as KEY to all.
    """
    wanted = [_policy_and_placement(text) for text in policies]
    _check_settings(given, [policy for policy, _ in wanted])
    chosen: list[Choice] = []
    for policy, placement in wanted:
        for one in [placement] if placement else placements or [""]:
            where = {"placement": one} if one else {}
            choice = chosen_policy(policy, {**where, **shared, **_settings_of(policy, given)})
            if choice not in chosen:
                chosen.append(choice)
    return _told_apart(chosen)


def _policy_and_placement(text: str) -> tuple[str, str]:
    if text.endswith(".py"):
        return text, ""
    policy, slash, placement = text.rpartition("/")
    return (policy, placement) if slash else (text, "")


def _settings_of(policy: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given to all, and over it what was given to this one."""
    to_all = {key: value for key, value in given.items() if "." not in key}
    return to_all | {key.rpartition(".")[2]: value for key, value in given.items() if _is_for(policy, key)}


def _is_for(policy: str, key: str) -> bool:
    return key.rpartition(".")[0] in (policy, name_of(policy, {}))


def _check_settings(given: Mapping[str, Any], policies: Sequence[str]) -> None:
    from refold.errors import UnknownName

    for key in given:
        if "." in key and not any(_is_for(policy, key) for policy in policies):
            raise UnknownName("policy to set that of,", key.rpartition(".")[0], set(policies))


def _told_apart(chosen: list[Choice]) -> list[Choice]:
    """Two files may hold policies of one name: then people read the files."""
    names = [choice.name for choice in chosen]
    return [replace(choice, name=choice.policy) if names.count(choice.name) > 1 else choice for choice in chosen]


def simulated(workload: Workload, choice: Choice, journal: Path | None = None) -> ReportRun:
    """What this policy makes of the workload; with its journal in a file, if one is named."""
    with progress(choice.name, len(workload.jobs)) as advance:
        return _simulated(workload, choice, journal, advance)


def _simulated(workload: Workload, choice: Choice, path: Path | None, advance: Advance) -> ReportRun:
    from refold.core import Header, Journals
    from refold.registry import make_policy
    from refold.results import HistoryJournal, ReportRun, measure
    from refold.simulator import simulate

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
            make_policy(choice.policy, choice.settings),
            journal=Journals(kept, file) if file else kept,
            costs=workload.costs,
            faults=workload.faults,
            progress=tell,
        )
    history = kept.history(workload.cluster)
    return ReportRun(choice.name, history, measure(history))


@contextmanager
def _journal_file(path: Path | None, header: Header) -> Iterator[Journal | None]:
    from refold.errors import BadFile
    from refold.journal import JournalFile

    if path is None:
        yield None
        return
    try:
        file = JournalFile(path, header)
    except OSError as error:
        raise BadFile(path, f"cannot be written: {error.strerror}") from None
    with file:
        yield file


def all_simulated(workload: Workload, chosen: Sequence[Choice], processes: int = 1) -> list[ReportRun]:
    """The workload under each policy, in the order asked for, however many processes share the work."""
    if processes == 1 or len(chosen) == 1:
        return [simulated(workload, choice) for choice in chosen]
    return _simulated_in_processes(workload, chosen, min(processes, len(chosen)))


def _simulated_in_processes(workload: Workload, chosen: Sequence[Choice], processes: int) -> list[ReportRun]:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import active_children, get_context

    from refold.errors import RefoldError

    # Not forked: this process has threads by now, and a fork would copy their locks.
    pool = ProcessPoolExecutor(processes, get_context("spawn"), _prepare_process, (workload,))
    runs: list[ReportRun] = []
    try:
        with progress(f"{len(chosen)} policies", len(chosen)) as advance:
            for run in pool.map(_simulated_here, chosen):
                if isinstance(run, str):
                    raise RefoldError(run)
                runs.append(run)
                advance()
    except BaseException:
        for process in active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    return runs


_WORKLOAD_HERE: list[Workload] = []
"""In a process of the pool: what it simulates, sent once."""


def _prepare_process(workload: Workload) -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the first process's to handle
    _WORKLOAD_HERE.append(workload)


def _simulated_here(choice: Choice) -> ReportRun | str:
    """The run, or what is wrong: our errors know more than their text, which does not travel between processes."""
    from refold.errors import RefoldError

    try:
        return _simulated(_WORKLOAD_HERE[0], choice, None, nobody_looks)
    except RefoldError as error:
        return str(error)


def try_report(folder: Path, runs: Sequence[ReportRun], title: str, conditions: str) -> Path | None:
    """Write the report. Without the library that draws it, say so: the numbers are still worth printing."""
    import typer

    from refold.cli.options import make_folder
    from refold.cli.output import typed_command
    from refold.errors import MissingExtra
    from refold.results import write_report

    path = make_folder(folder) / REPORT
    try:
        with progress("drawing the report"):
            write_report(path, runs, title=title, workload=conditions, command=typed_command())
    except MissingExtra as missing:
        typer.echo(f"note: no report: {missing}", err=True)
        return None
    return path
