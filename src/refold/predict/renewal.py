"""When the prediction for a job is to be renewed. Compiled loops use the same rule."""

from __future__ import annotations

from refold.model import Seconds

MIN_CHANGE = 1.1
"""The prediction for a run is renewed when the work that it has done has grown by this factor."""

MIN_CHANGE_SECONDS: Seconds = 5.0
"""And by at least this much."""

MAX_ENDED_RUNS = 50
"""The prediction for a waiting job is renewed when so many runs have ended since."""


def is_outdated(
    predicted_done: Seconds, predicted_ended: int, done: Seconds, ended_runs: int, is_running: bool
) -> bool:
    """Return whether a prediction is to be renewed.

    For a run, it is when the work that it has done has grown; for a waiting job, also when many runs have ended.
    `predicted_done`, `predicted_ended`: work done and number of ended runs at the time of the prediction.
    """
    has_changed = done < predicted_done or done > predicted_done * MIN_CHANGE + MIN_CHANGE_SECONDS
    return has_changed or (not is_running and ended_runs - predicted_ended >= MAX_ENDED_RUNS)
