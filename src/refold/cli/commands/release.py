"""`refold release`: release held jobs."""

from __future__ import annotations

from refold.cli import LiveJobsArgument, apply_to_jobs, make_client
from refold.cli.views import AsJson


def release(jobs: LiveJobsArgument, as_json: AsJson = False) -> None:
    """Release held jobs, so that they can be scheduled.

    Example: refold release train-17
    """
    apply_to_jobs(jobs, make_client().release, "released", as_json)
