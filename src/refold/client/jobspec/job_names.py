"""Names of jobs."""

from __future__ import annotations

import re

from refold.client.api import MAX_NAME_CHARS


def make_job_name(text: str) -> str:
    """Make a valid job name from any text."""
    return re.sub(r"[^\w.-]+", "-", text).strip("-")[:MAX_NAME_CHARS] or "job"
