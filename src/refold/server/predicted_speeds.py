"""The speed of running jobs by the performance model, to compare with what they report."""

from __future__ import annotations

from refold.core import Header
from refold.model import WHOLE
from refold.planning.plans import Knowledge, Speeds
from refold.server.live_state import LiveState


class PredictedSpeeds:
    """Predicts the throughput of runs as a policy that chooses plans does."""

    def __init__(self, state: LiveState) -> None:
        self._state = state
        self._made_for: Header | None = None
        self._speeds = Speeds(state.header.cluster)

    def samples_per_second(self, job_id: str) -> float | None:
        """Return the modelled throughput of a running job; None if its model or GPU type is not known."""
        view = self._state.view
        run = view.runs.get(job_id)
        if run is None:
            return None
        job, allocation, speeds = view.active[job_id], run.allocation, self._current()
        if not job.workload or not allocation.gpus_on_node or not speeds.types_for(job):
            return None
        gpu_type = view.cluster.nodes[allocation.placement[0].node].gpu_type
        plan = allocation.plan or speeds.own_plan(job)
        if plan.gpus != sum(allocation.gpus_on_node):
            return None
        speed = speeds.with_plan(job, gpu_type, allocation.gpus_on_node, allocation.cpu_milli / WHOLE, plan)
        return speed.steps_per_second * speeds.batch(job)

    def _current(self) -> Speeds:
        header = self._state.header
        if header is not self._made_for:
            knowledge = Knowledge.from_settings(header.settings.get("knowledge", {}))
            self._made_for, self._speeds = header, Speeds(header.cluster, knowledge)
        return self._speeds
