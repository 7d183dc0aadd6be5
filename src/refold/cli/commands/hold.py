"""`refold hold`: hold jobs so that they do not start."""

from __future__ import annotations

from refold.cli import LiveJobsArgument, apply_to_jobs, make_client
from refold.cli.views import AsJson


def hold(jobs: LiveJobsArgument, as_json: AsJson = False) -> None:
    """Hold jobs so that they do not start until they are released.

    Examples: refold hold train-17 · refold release train-17
    """
    apply_to_jobs(jobs, make_client().hold, "held", as_json)
