"""`refold hold` and `refold release`: jobs that are to wait until somebody says so."""

from __future__ import annotations

from refold.cli.daemon import LiveJobs, daemon, on_each
from refold.cli.output import AsJson


def hold(jobs: LiveJobs, as_json: AsJson = False) -> None:
    """Hold jobs: they are not started until they are released.

    Examples: refold hold train-17 · refold release train-17
    """
    on_each(jobs, daemon().hold, "is held", as_json)


def release(jobs: LiveJobs, as_json: AsJson = False) -> None:
    """Release jobs that were held: they wait like others again.

    Example: refold release train-17
    """
    on_each(jobs, daemon().release, "is released", as_json)
