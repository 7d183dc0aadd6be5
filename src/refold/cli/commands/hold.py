"""`refold hold`: hold jobs so that they do not start."""

from __future__ import annotations

from refold.cli import LiveJobsArgument, change_jobs, make_client, select_jobs
from refold.cli.views import AsJson


def hold(jobs: LiveJobsArgument, as_json: AsJson = False) -> None:
    """Hold jobs so that they do not start until they are released.

    Examples: refold hold train-17 · refold hold 'train-*' · refold hold 12_[0-3]
    """
    client = make_client()
    change_jobs(client, "hold", select_jobs(client, jobs, ("waiting", "held")), as_json)
