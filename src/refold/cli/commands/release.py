"""`refold release`: release held jobs."""

from __future__ import annotations

from refold.cli import LiveJobsArgument, change_jobs, make_client, select_jobs
from refold.cli.views import AsJson


def release(jobs: LiveJobsArgument, as_json: AsJson = False) -> None:
    """Release held jobs, so that they can be scheduled.

    Examples: refold release train-17 · refold release 'train-*'
    """
    client = make_client()
    change_jobs(client, "release", select_jobs(client, jobs, ("held",)), as_json)
