"""`refold release`: let held jobs start again."""

from __future__ import annotations

from refold.cli import LiveJobs, daemon, on_each
from refold.cli.views import AsJson


def release(jobs: LiveJobs, as_json: AsJson = False) -> None:
    """Release jobs that were held: they wait like others again.

    Example: refold release train-17
    """
    on_each(jobs, daemon().release, "is released", as_json)
