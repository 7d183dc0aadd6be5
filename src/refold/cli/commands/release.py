"""`refold release`: release held jobs."""

from __future__ import annotations

from refold.cli import LiveJobsArgument, apply_to_jobs, make_client, select_jobs
from refold.cli.views import AsJson


def release(jobs: LiveJobsArgument, as_json: AsJson = False) -> None:
    """Release held jobs, so that they can be scheduled.

    Examples: refold release train-17 · refold release 'train-*'
    """
    client = make_client()
    apply_to_jobs(select_jobs(client, jobs, ("held",)), client.release, "released", as_json)
