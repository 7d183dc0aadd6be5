"""Alerts: what needs attention now, from the state of the daemon."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from refold.client.api import Alert, Caller
from refold.core import View
from refold.journal import JobRecord
from refold.server.live_state import LiveState

MAX_LISTED = 20
"""Alerts of one kind that are listed one by one; more are counted in the last of them."""


def find_alerts(caller: Caller, state: LiveState, storage: str, late: Sequence[str]) -> list[Alert]:
    """Return all alerts that the caller may see. `storage`: why the store cannot be written. `late`: late jobs."""
    view, records = state.view, state.job_table.records
    readable = {job_id for job_id, record in records.items() if _can_read(caller, record)}
    own = [Alert("storage", storage)] if storage else []
    warnings = {job: records[job].warning for job in view.runs if job in readable}
    flagged = [Alert("run flagged", warning, job) for job, warning in warnings.items() if warning]
    return [
        *own,
        *_shorten(list(_nodes_down(view))),
        *_shorten(list(_gpus_down(view))),
        *_shorten(flagged),
        *_shorten([Alert("late start", "waits longer than first estimated", job) for job in late if job in readable]),
        *_shorten([Alert("infeasible", "does not fit the empty cluster", job) for job in view.infeasible]),
    ]


def _can_read(caller: Caller, record: JobRecord) -> bool:
    return caller.can_read(record.job.tenant, record.job.user)


def _nodes_down(view: View) -> Iterator[Alert]:
    for index, node in enumerate(view.cluster.nodes):
        if not view.is_up(index) and not view.is_drained(index):
            yield Alert("node down", view.down_reason(index) or "it does not answer", node=node.name)


def _gpus_down(view: View) -> Iterator[Alert]:
    """GPUs that are down or drained on nodes that are up: a faulty GPU is drained by the daemon itself."""
    for (index, gpu), why in sorted(view.down_gpus.items()):
        if view.is_up(index):
            state = "drained" if view.is_drained(index, gpu) else "down"
            text = f"GPU {gpu} is {state}" + (f": {why}" if why else "")
            yield Alert("gpu down", text, node=view.cluster.nodes[index].name)


def _shorten(alerts: list[Alert]) -> list[Alert]:
    if len(alerts) <= MAX_LISTED:
        return alerts
    rest = len(alerts) - MAX_LISTED + 1
    return [*alerts[: MAX_LISTED - 1], Alert(alerts[0].kind, f"and {rest:,} more", count=rest)]
