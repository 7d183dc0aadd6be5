"""The timeline as the API reports it: runs of the recent past, and how busy the GPUs were."""

from __future__ import annotations

from collections.abc import Sequence

from refold.client.api import Caller, Timeline, TimelineRun
from refold.model import Seconds
from refold.server.live_state import LiveState
from refold.server.run_log import LoggedRun, RunLog
from refold.server.status import wire_placement

MAX_SENT_RUNS = 5_000
MAX_SENT_READINGS = 400


async def make_timeline(
    caller: Caller, state: LiveState, run_log: RunLog, seconds: Seconds, busy: Sequence[tuple[float, float]]
) -> Timeline:
    """Return the runs of the last seconds. `busy`: readings, by Unix time."""
    now = state.now()
    since = now - seconds
    runs = [*await run_log.ended_since(since), *_open_runs(state)]
    sent = runs[-MAX_SENT_RUNS:]
    first = state.wall_time(since)
    return Timeline(
        state.wall_time(now),
        first,
        [_wire_run(caller, state, run) for run in sent],
        _thin_out([reading for reading in busy if reading[0] >= first]),
        len(sent) == len(runs),
    )


def _open_runs(state: LiveState) -> list[LoggedRun]:
    """Return the runs of now, also those that are older than the entries of the journal that were read."""
    return [
        LoggedRun(job.id, run.number, job.tenant, job.user, run.start, run.allocation)
        for job, run in ((record.job, record.current) for record in state.job_table.records.values())
        if run is not None
    ]


def _wire_run(caller: Caller, state: LiveState, run: LoggedRun) -> TimelineRun:
    return TimelineRun(
        run.job,
        run.number,
        run.tenant,
        run.user if caller.can_read(run.tenant, run.user) else "",
        state.wall_time(run.start),
        None if run.end is None else state.wall_time(run.end),
        run.ending,
        wire_placement(run.allocation, state.view.cluster),
    )


def _thin_out(readings: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the means of as many groups of readings as are sent at most."""
    size = -(-len(readings) // MAX_SENT_READINGS) or 1
    groups = (readings[first : first + size] for first in range(0, len(readings), size))
    return [(group[0][0], sum(value for _, value in group) / len(group)) for group in groups]
