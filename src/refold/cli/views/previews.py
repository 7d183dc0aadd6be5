"""What `refold submit` expects of a job before it is submitted."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from refold.cli.views.output import plural, resource_text
from refold.cli.views.tables import Table, fact_table
from refold.cli.views.times import format_clock_near, format_gpus

if TYPE_CHECKING:
    from refold.client.api import Preview, Submission

MAX_COMMAND_LENGTH = 60
"""Characters of a command that are shown."""


def preview_table(jobs: Sequence[Submission], preview: Preview, now: float) -> Table:
    """Return the expected outcome of the first job, which stands for all: the jobs of one file are alike."""
    from refold.model import Consent

    facts = {
        "job": jobs[0].name + (f", and {plural(len(jobs) - 1, 'similar job')}" if len(jobs) > 1 else ""),
        "array": jobs[0].array,
        "command": _format_command(jobs[0]),
        "directory": jobs[0].folder,
        "environment": f"{plural(len(preview.exported), 'variable')} of this shell" if preview.exported else "",
        "demand": resource_text(f"{preview.demand}, {jobs[0].job_class}"),
        "preemptible": str(Consent(preview.preemptible, preview.consent)),
        "plan": preview.plan,
        "start": resource_text(_format_start(jobs[0], preview, now)),
    }
    after = [resource_text(f"note: {note}") for note in preview.notes]
    return fact_table("", facts, after)


def _format_command(job: Submission) -> str:
    """Format the command, shortened; a script by its first line that is not a comment."""
    text = shlex.join(job.command) if len(job.command) < 3 or job.command[1] != "-c" else job.command[2]
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    first = lines[0] if lines else text
    shortened = len(first) > MAX_COMMAND_LENGTH or len(lines) > 1
    return first[:MAX_COMMAND_LENGTH] + (" …" if shortened else "")


def _format_start(job: Submission, preview: Preview, now: float) -> str:
    """Format 'immediately', 'about 14:05:00, between 14:00:00 and 15:10:00, 3 jobs ahead'."""
    if not preview.fits:
        return f"never: {format_gpus(preview.gpus)} as requested do not fit the empty cluster"
    if job.hold:
        return "after release"
    if preview.starts_now:
        return "immediately"
    ahead = f"{plural(preview.jobs_ahead, 'job')} ahead" if preview.jobs_ahead else ""
    estimate = preview.start_estimate
    if estimate is None:
        return ahead or "when resources are free"
    when = f"about {format_clock_near(estimate.at, now)}"
    if estimate.soonest is not None and estimate.latest is not None:
        when += f", between {format_clock_near(estimate.soonest, now)} and {format_clock_near(estimate.latest, now)}"
    return ", ".join(part for part in (when, ahead) if part)
