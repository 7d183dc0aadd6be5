"""`refold hold`: keep jobs from starting."""

from __future__ import annotations

from refold.cli import LiveJobs, daemon, on_each
from refold.cli.views import AsJson


def hold(jobs: LiveJobs, as_json: AsJson = False) -> None:
    """Hold jobs: they are not started until they are released.

    Examples: refold hold train-17 · refold release train-17
    """
    on_each(jobs, daemon().hold, "is held", as_json)
