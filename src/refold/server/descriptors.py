"""The limit of file descriptors: raised for the daemon, unchanged for jobs."""

from __future__ import annotations

import resource
from functools import cache

MAX_DESCRIPTORS = 65_536
"""To what the limit is raised at most: some programs close every descriptor that is allowed."""


def raise_descriptor_limit() -> int:
    """Raise the limit of this process as far as it may; return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    job_descriptor_limit()  # remembered before the limit changes
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


@cache
def job_descriptor_limit() -> int:
    """Return the soft limit for jobs: that with which the daemon was started. Many programs use select()."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
