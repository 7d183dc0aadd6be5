"""The current queue under other policies: simulated in a process of its own, which cannot delay the scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from time import monotonic
from typing import Any

import msgspec
import numpy as np

from refold.client.api import JobStarts, PolicyComparison, PolicyForecast, PolicyQuestion
from refold.core import Entry, Header, Policy
from refold.errors import BadInput
from refold.model import Seconds
from refold.placement import Floats
from refold.policies import POLICIES
from refold.server.live_state import LiveState, redacted
from refold.server.recovery import MAX_PAST_JOBS
from refold.server.simulation_process import LIMIT_SECONDS, SimulationProcess, answer_question
from refold.server.store import StoreReader
from refold.simulator import (
    Futures,
    StateAt,
    continue_with_new_policy,
    make_policy,
    simulate_futures,
    split_settings,
    without_start_estimates,
)

SIMULATION_SECONDS: Seconds = 20.0
"""All policies together simulate no further future after this time."""

MAX_LISTED_JOBS = 200
SHIFT_SECONDS: Seconds = 1.0
"""A job whose start differs by less starts at the same time."""


def comparable_policies() -> list[str]:
    """Return the names of the policies that need not know run times in advance."""
    return [name for name, entry in POLICIES.items() if not entry.oracle and entry.module.startswith("refold.policies")]


class _Task(msgspec.Struct, frozen=True):
    header: Header
    state: Entry
    policies: list[str]
    futures: int
    seed: int
    jobs: int
    waiting: int


class _Simulated(msgspec.Struct, frozen=True):
    """Means over the futures, in journal seconds, of the jobs that start, and end, in all of them."""

    policy: str
    futures: int
    starts: dict[str, float]
    ends: dict[str, float]


class _SimulatedAnswer(msgspec.Struct, frozen=True):
    simulated: list[_Simulated] = []
    knows_run_times: bool = True


class PolicyComparer:
    """Compares policies for the API, one question at a time."""

    def __init__(self, state: LiveState, reader: StoreReader, limit: Seconds = LIMIT_SECONDS) -> None:
        self._state = state
        self._reader = reader
        self._process = SimulationProcess(__name__, _SimulatedAnswer, limit)

    async def compare(self, question: PolicyQuestion) -> PolicyComparison:
        """Return when the current jobs would start and end under each policy, the configured one first."""
        known = comparable_policies()
        for name in question.policies:
            if name not in known:
                raise BadInput(f"unknown policy {name!r}, expected one of {', '.join(known)}")
        state = self._state
        past = await asyncio.to_thread(self._reader.past_jobs, MAX_PAST_JOBS)
        now, own = state.now(), state.header
        entry = Entry(now, tuple(map(redacted, state.as_events(past))))
        others = [name for name in dict.fromkeys(question.policies) if name != own.policy]
        view = state.view
        jobs, waiting = len(view.waiting) + len(view.runs), len(view.waiting)
        task = _Task(own, entry, others, question.futures, question.seed, jobs, waiting)
        answer = await self._process.ask(task, "try fewer policies, or `refold snapshot` and `refold replay --policy`")
        return _summarise(task, answer, state.wall_time)


def _summarise(task: _Task, answer: _SimulatedAnswer, wall_time: Callable[[Seconds], float]) -> PolicyComparison:
    """Compare the jobs that start, and those that end, under every policy."""
    present, now = answer.simulated[0], task.state.now
    started = [job for job in present.starts if all(job in one.starts for one in answer.simulated)]
    ended = [job for job in present.ends if all(job in one.ends for one in answer.simulated)]
    forecasts = []
    for one in answer.simulated:
        shifts = [one.starts[job] - present.starts[job] for job in started]
        forecasts.append(
            PolicyForecast(
                policy=one.policy,
                futures=one.futures,
                mean_wait=_mean([one.starts[job] - now for job in started]),
                mean_completion=_mean([one.ends[job] - now for job in ended]),
                earlier=sum(shift < -SHIFT_SECONDS for shift in shifts),
                later=sum(shift > SHIFT_SECONDS for shift in shifts),
            )
        )
    return PolicyComparison(
        now=wall_time(now),
        policy=task.header.policy,
        jobs=task.jobs,
        waiting=task.waiting,
        compared=len(started),
        forecasts=forecasts,
        starts=[
            JobStarts(job, [wall_time(one.starts[job]) for one in answer.simulated])
            for job in _largest_shifts(answer.simulated, started)
        ],
        knows_run_times=answer.knows_run_times,
    )


def _largest_shifts(simulated: Sequence[_Simulated], jobs: Sequence[str]) -> list[str]:
    def spread(job: str) -> float:
        starts = [one.starts[job] for one in simulated]
        return max(starts) - min(starts)

    return sorted(jobs, key=spread, reverse=True)[:MAX_LISTED_JOBS]


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


# The process.


def simulate_policies(task: _Task) -> _SimulatedAnswer:
    """Simulate the current policy and the others in the same futures, as many as fit into the time."""
    header = task.header
    state = StateAt.from_entries(header.cluster, [task.state])
    choices: list[tuple[str, Mapping[str, Any]]] = [(header.policy, header.settings)]
    choices += [(name, {}) for name in task.policies]
    simulated = []
    for name, settings in choices:
        end = monotonic() + SIMULATION_SECONDS / len(choices)
        scheduler = continue_with_new_policy(state, header.cluster, lambda: [task.state], _maker(name, settings))
        futures = simulate_futures(
            state,
            scheduler,
            futures=task.futures,
            seed=task.seed,
            estimates_hold=True,
            ends_of=(*state.view.waiting, *state.view.runs),
            should_stop=lambda end=end: monotonic() > end,  # type: ignore[misc]
        )
        simulated.append((name, futures))
    fewest = min(futures.count for _, futures in simulated)
    return _SimulatedAnswer([_average(name, futures, fewest) for name, futures in simulated], state.knows_run_times)


def _average(name: str, futures: Futures, count: int) -> _Simulated:
    def means(times: Mapping[str, Floats]) -> dict[str, float]:
        found = {job: float(of_job[:count].mean()) for job, of_job in times.items()}
        return {job: mean for job, mean in found.items() if isfinite(mean)}

    return _Simulated(name, count, means(futures.all_starts), means(futures.all_ends))


def _maker(name: str, settings: Mapping[str, Any]) -> Callable[[], Policy]:
    own, _ = split_settings(name, settings)  # watch rules need reports, which nobody makes here
    return lambda: make_policy(name, without_start_estimates(own))


if __name__ == "__main__":
    answer_question(_Task, simulate_policies)
