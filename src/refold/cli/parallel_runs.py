"""Simulate a workload under several policies: one after the other, in several processes, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from refold.cli.experiment import run_policy, simulate_policy
from refold.cli.inputs import SelectedPolicy, Workload
from refold.cli.views import Advance, progress
from refold.cli.worker_processes import WorkerProcesses, worker_processes
from refold.errors import RefoldError

if TYPE_CHECKING:
    from refold.simulator.results import ReportRun

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")


def run_policies(workload: Workload, policies: Sequence[SelectedPolicy], processes: int = 1) -> list[ReportRun]:
    """Simulate the workload under each policy; results are in the given order for any number of processes."""
    if processes == 1 or len(policies) == 1:
        return [run_policy(workload, policy) for policy in policies]
    with (
        worker_processes(workload, min(processes, len(policies)), "--processes") as workers,
        progress(f"{len(policies)} policies", len(policies) * len(workload.jobs)) as advance,
    ):
        found = dict(map_items(workers, _simulate, policies, advance))
    return [found[number] for number in range(len(policies))]


def run_policies_on_ray(workload: Workload, policies: Sequence[SelectedPolicy]) -> list[ReportRun]:
    """Simulate the workload under each policy on a Ray cluster; results are in the given order."""
    from refold.engines.ray import RayTasks, connected, load_ray

    ray = load_ray("--workers ray")
    items = [_with_absolute_path(policy) for policy in policies]
    with connected(ray), progress(f"{len(policies)} policies", len(policies) * len(workload.jobs)) as advance:
        results = RayTasks(ray).map(_simulate_on_ray, workload, items, advance)
    return [_unpack(result) for result in results]


def _with_absolute_path(policy: SelectedPolicy) -> SelectedPolicy:
    """Return a policy that a worker with another working directory finds, if it is a file."""
    path = Path(policy.policy)
    return replace(policy, policy=str(path.resolve())) if path.is_file() else policy


def _simulate(workload: Workload, policy: SelectedPolicy, advance: Advance) -> ReportRun:
    return simulate_policy(workload, policy, None, advance)


def _simulate_on_ray(
    workload: Workload, policy: SelectedPolicy, advance: Callable[..., None]
) -> ReportRun | _SerialisedError:
    return _try(_simulate, workload, policy, advance)


def map_items(
    workers: WorkerProcesses[Shared],
    function: Callable[[Shared, Item, Advance], Result],
    items: Sequence[Item],
    advance: Advance,
) -> Iterator[tuple[int, Result]]:
    """Yield the number and the result of each item as soon as it is there; the first error is raised."""
    for number, result in workers.map(partial(_try, function), items, advance):
        yield number, _unpack(result)


def _try(
    function: Callable[[Shared, Item, Advance], Result], shared: Shared, item: Item, advance: Advance
) -> Result | _SerialisedError:
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
