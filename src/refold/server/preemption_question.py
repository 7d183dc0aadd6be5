"""Costs and benefits of preemption, simulated on the jobs that the daemon has run, in a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from refold.core import PastJob
from refold.errors import NotFound
from refold.model import Cluster, Job, PreemptionOutlook, Seconds
from refold.server.live_state import LiveState
from refold.server.simulation_process import LIMIT_SECONDS, SimulationProcess, answer_question
from refold.server.store import StoreReader
from refold.simulator import MAX_OUTLOOK_JOBS, simulate_outlook

HISTORY = "the daemon's latest jobs"


class _OutlookQuestion(msgspec.Struct, frozen=True):
    jobs: list[Job]
    cluster: Cluster
    policy: str
    settings: dict[str, Any]


class PreemptionAdviser:
    """Answers the question for the API."""

    def __init__(self, state: LiveState, reader: StoreReader, limit: Seconds = LIMIT_SECONDS) -> None:
        self._state, self._reader = state, reader
        self._process = SimulationProcess(__name__, PreemptionOutlook, limit)

    async def outlook(self) -> PreemptionOutlook:
        """Return how long the latest jobs would have waited if all, those that consent, or none could be preempted."""
        past = await asyncio.to_thread(self._reader.ran_jobs, MAX_OUTLOOK_JOBS)
        if not past:
            raise NotFound("no job has ended yet: there is nothing to simulate")
        header = self._state.header
        question = _OutlookQuestion(_as_submitted(past), header.cluster, header.policy, dict(header.settings))
        return await self._process.ask(question, "`refold report` simulates the same without a limit")


def _as_submitted(past: Sequence[PastJob]) -> list[Job]:
    """Return the jobs in order of submission, with the time that they ran as their work."""
    jobs = [msgspec.structs.replace(ended.job, work=ended.run_time) for ended in past]
    return sorted(jobs, key=lambda job: job.submitted)


def _simulate(question: _OutlookQuestion) -> PreemptionOutlook:
    return simulate_outlook(HISTORY, question.jobs, question.cluster, question.policy, question.settings)


if __name__ == "__main__":
    answer_question(_OutlookQuestion, _simulate)
