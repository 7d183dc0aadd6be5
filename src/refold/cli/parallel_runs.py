"""Simulate a workload under several policies: one after the other, in several processes, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from refold.cli.experiment import run_policy, simulate_policy
from refold.cli.inputs import SelectedPolicy, Workload
from refold.cli.views import Advance, progress

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

    from refold.results import ReportRun

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")

POLL_SECONDS = 0.2
"""Interval at which the progress of other processes is read."""


def run_policies(
    workload: Workload, policies: Sequence[SelectedPolicy], processes: int = 1, gap: bool = False
) -> list[ReportRun]:
    """Simulate the workload under each policy; results are in the given order for any number of processes."""
    if processes == 1 or len(policies) == 1:
        return [run_policy(workload, policy, gap=gap) for policy in policies]
    items = [(policy, gap) for policy in policies]
    with (
        worker_processes(workload, min(processes, len(policies)), "--processes") as workers,
        progress(f"{len(policies)} policies", len(policies) * len(workload.jobs)) as advance,
    ):
        found = dict(workers.map(_simulate, items, advance))
    return [found[number] for number in range(len(items))]


def run_policies_on_ray(workload: Workload, policies: Sequence[SelectedPolicy], gap: bool = False) -> list[ReportRun]:
    """Simulate the workload under each policy on a Ray cluster; results are in the given order."""
    from refold.backends.ray import RayTasks, connected, load_ray

    ray = load_ray("--workers ray")
    items = [(_with_absolute_path(policy), gap) for policy in policies]
    with connected(ray), progress(f"{len(policies)} policies", len(policies) * len(workload.jobs)) as advance:
        results = RayTasks(ray).map(_simulate_on_ray, workload, items, advance)
    return [_unpack(result) for result in results]


def _with_absolute_path(policy: SelectedPolicy) -> SelectedPolicy:
    """Return a policy that a worker with another working directory finds, if it is a file."""
    path = Path(policy.policy)
    return replace(policy, policy=str(path.resolve())) if path.is_file() else policy


def _simulate(workload: Workload, item: tuple[SelectedPolicy, bool], advance: Advance) -> ReportRun:
    policy, gap = item
    return simulate_policy(workload, policy, None, advance, gap)


def _simulate_on_ray(
    workload: Workload, item: tuple[SelectedPolicy, bool], advance: Callable[..., None]
) -> ReportRun | _SerialisedError:
    return _try(_simulate, workload, item, advance)


def _try(
    function: Callable[[Shared, Item, Advance], Result], shared: Shared, item: Item, advance: Advance
) -> Result | _SerialisedError:
    from refold.errors import RefoldError

    try:
        return function(shared, item, advance)
    except RefoldError as error:
        return _SerialisedError(str(error), getattr(error, "frames", ""))


class _SerialisedError:
    """An error as text, to send between processes: exceptions whose constructor takes more than a message cannot be."""

    def __init__(self, text: str, frames: str) -> None:
        self._text, self._frames = text, frames

    def error(self) -> Exception:
        from refold.cli.policy_guard import PolicyFailed

        return PolicyFailed(self._text, self._frames)


def _unpack(result: Result | _SerialisedError) -> Result:
    if isinstance(result, _SerialisedError):
        raise result.error()
    return result


# Processes of this machine.


class WorkerProcesses(Generic[Shared]):
    """Processes that apply a function to items. Each has a copy of a value that all items share, such as a workload."""

    def __init__(self, pool: ProcessPoolExecutor, done: Any) -> None:
        self._pool, self._done = pool, done

    def map(
        self, function: Callable[[Shared, Item, Advance], Result], items: Sequence[Item], advance: Advance
    ) -> Iterator[tuple[int, Result]]:
        """Yield the number and the result of each item as soon as it is there; the first error is raised."""
        from concurrent.futures import FIRST_COMPLETED, wait

        numbers: dict[Future[Result | _SerialisedError], int] = {
            self._pool.submit(_apply, function, item): number for number, item in enumerate(items)
        }
        pending, reported = set(numbers), self._done.value
        while pending:
            ended, pending = wait(pending, POLL_SECONDS, FIRST_COMPLETED)
            advance(self._done.value - reported)
            reported = self._done.value
            for future in sorted(ended, key=numbers.__getitem__):
                yield numbers[future], _unpack(future.result())


@contextmanager
def worker_processes(shared: Shared, processes: int, option: str) -> Iterator[WorkerProcesses[Shared]]:
    """Start worker processes, and end them at the end or on an error; `option` sets their number."""
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import active_children, get_context

    from refold.errors import RefoldError

    # Spawn, do not fork: this process has threads, and a fork would copy their locks.
    context = get_context("spawn")
    done = context.Value("q", 0)
    pool = ProcessPoolExecutor(processes, context, _initialise_process, (shared, done))
    try:
        yield WorkerProcesses(pool, done)
    except BaseException as error:
        for process in active_children():
            process.terminate()
        if isinstance(error, BrokenProcessPool):
            raise RefoldError(f"a worker process was killed, possibly for lack of memory; try fewer {option}") from None
        raise
    finally:
        pool.shutdown(cancel_futures=True)


_PROCESS_STATE: list[Any] = []
"""State of a worker process: the shared value, sent once, and the counter of finished jobs of all processes."""


def _initialise_process(shared: Any, done: Any) -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    _PROCESS_STATE[:] = [shared, done]


def _apply(function: Callable[[Any, Item, Advance], Result], item: Item) -> Result | _SerialisedError:
    shared, done = _PROCESS_STATE

    def advance(amount: float = 1.0) -> None:
        with done.get_lock():
            done.value += int(amount)

    return _try(function, shared, item, advance)
