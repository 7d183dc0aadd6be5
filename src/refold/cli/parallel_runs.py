"""Simulate a workload under several policies: one after the other, in several processes, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refold.cli.experiment import run_policy, simulate_policy
from refold.cli.inputs import SelectedPolicy, Workload
from refold.cli.views import Advance, progress

if TYPE_CHECKING:
    from concurrent.futures import Future

    from refold.results import ReportRun

POLL_SECONDS = 0.2
"""Interval at which the progress of other processes is read."""


def run_policies(
    workload: Workload, policies: Sequence[SelectedPolicy], processes: int = 1, gap: bool = False
) -> list[ReportRun]:
    """Simulate the workload under each policy; results are in the given order for any number of processes."""
    if processes == 1 or len(policies) == 1:
        return [run_policy(workload, policy, gap=gap) for policy in policies]
    return _run_policies_in_processes(workload, policies, min(processes, len(policies)), gap)


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


def _simulate_on_ray(
    workload: Workload, item: tuple[SelectedPolicy, bool], advance: Callable[..., None]
) -> ReportRun | _SerialisedError:
    return _try_to_simulate(workload, *item, advance)


def _try_to_simulate(
    workload: Workload, policy: SelectedPolicy, gap: bool, advance: Advance
) -> ReportRun | _SerialisedError:
    from refold.errors import RefoldError

    try:
        return simulate_policy(workload, policy, None, advance, gap)
    except RefoldError as error:
        return _SerialisedError(str(error), getattr(error, "frames", ""))


class _SerialisedError:
    """An error as text, to send between processes: exceptions whose constructor takes more than a message cannot be."""

    def __init__(self, text: str, frames: str) -> None:
        self._text, self._frames = text, frames

    def error(self) -> Exception:
        from refold.cli.policy_guard import PolicyFailed

        return PolicyFailed(self._text, self._frames)


def _unpack(result: ReportRun | _SerialisedError) -> ReportRun:
    if isinstance(result, _SerialisedError):
        raise result.error()
    return result


# Processes of this machine.


def _run_policies_in_processes(
    workload: Workload, policies: Sequence[SelectedPolicy], processes: int, gap: bool
) -> list[ReportRun]:
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import active_children, get_context

    from refold.errors import RefoldError

    # Spawn, do not fork: this process has threads, and a fork would copy their locks.
    context = get_context("spawn")
    done = context.RawArray("q", len(policies))
    pool = ProcessPoolExecutor(processes, context, _initialise_process, (workload, done))
    try:
        futures = [pool.submit(_simulate_in_process, index, policy, gap) for index, policy in enumerate(policies)]
        with progress(f"{len(policies)} policies", len(policies) * len(workload.jobs)) as advance:
            _wait_for_all(futures, done, advance)
        return [_unpack(future.result()) for future in futures]
    except BaseException as error:
        for process in active_children():
            process.terminate()
        if isinstance(error, BrokenProcessPool):
            raise RefoldError(
                "a worker process was killed, possibly for lack of memory; try fewer --processes"
            ) from None
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _wait_for_all(
    futures: Sequence[Future[ReportRun | _SerialisedError]], done: Sequence[int], advance: Advance
) -> None:
    """Wait until all simulations have ended or one has failed; report the number of finished jobs as progress."""
    from concurrent.futures import FIRST_COMPLETED, wait

    reported, pending = 0, set(futures)
    while pending:
        ended, pending = wait(pending, POLL_SECONDS, FIRST_COMPLETED)
        for future in ended:
            _unpack(future.result())
        finished = sum(done)
        advance(finished - reported)
        reported = finished


_PROCESS_STATE: list[Any] = []
"""State of a worker process: the workload, sent once, and a shared array with the finished jobs of each simulation."""


def _initialise_process(workload: Workload, done: Any) -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    _PROCESS_STATE[:] = [workload, done]


def _simulate_in_process(index: int, policy: SelectedPolicy, gap: bool) -> ReportRun | _SerialisedError:
    workload, done = _PROCESS_STATE

    def advance(amount: float = 1.0) -> None:
        done[index] += int(amount)

    return _try_to_simulate(workload, policy, gap, advance)
