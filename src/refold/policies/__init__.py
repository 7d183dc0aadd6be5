"""The policies, one file each, and the table of their names. A new one is a file and a line here.

A policy of your own need not be here: `--policy path/to/mine.py` takes the file as it is, and every file of a
folder named by REFOLD_POLICIES is listed and can be called by its name.
"""

from __future__ import annotations

from typing import NamedTuple


class Known(NamedTuple):
    """Where a policy is, and what it does in one line."""

    module: str
    class_name: str
    summary: str
    oracle: bool = False
    preempts: bool = False


POLICIES: dict[str, Known] = {
    "fifo": Known("refold.policies.fifo", "Fifo", "strict order of arrival"),
    "fifo-skip": Known("refold.policies.fifo", "FifoSkip", "order of arrival; what has no place is passed over"),
    "sjf": Known("refold.policies.sjf", "Sjf", "shortest job first, durations known", oracle=True),
    "srtf": Known("refold.policies.srtf", "Srtf", "shortest remaining time first", oracle=True, preempts=True),
    "las": Known("refold.policies.las", "Las", "least attained service, two queues (Tiresias)", preempts=True),
    "drf": Known("refold.policies.drf", "Drf", "the tenant with the smallest dominant share first"),
}
"""The literal table."""
