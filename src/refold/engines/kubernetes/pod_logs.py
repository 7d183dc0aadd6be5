"""The output of containers, read from the API server in parts.

The API server gives output since a second. With the time of each line, reading continues after the last known one, also
after the kubelet has removed older output.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from io import BytesIO
from typing import NamedTuple

from refold.engines.kubernetes.api_server import ApiServer
from refold.engines.kubernetes.objects import Pod
from refold.engines.kubernetes.pod_states import pod_path

DEFAULT_CONTAINER_ANNOTATION = "kubectl.kubernetes.io/default-container"
MAX_PART_BYTES = 16 * 2**20
"""Maximum output that is read at once."""

_TIMED_LINE = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) ")

Moment = tuple[float, int]
"""Seconds and nanoseconds: `datetime` has only microseconds."""


class LogPart(NamedTuple):
    """Output, and the time of its last line: where the next part begins."""

    data: bytes
    until: str


def read_pod_log(api: ApiServer, pod: Pod, after: str = "", limit: int = MAX_PART_BYTES) -> LogPart:
    """Return the complete lines that a pod has written after a time, which is that of its last known line. Blocks."""
    names = [container.name for container in pod.spec.containers]
    wanted = pod.metadata.annotations.get(DEFAULT_CONTAINER_ANNOTATION, "")
    query = {"timestamps": "true", "limitBytes": str(limit)}
    if names:
        query["container"] = wanted if wanted in names else names[0]
    if after:
        query["sinceTime"] = after
    text = api.call("GET", f"{pod_path(pod)}/log", query=query, retry=False)
    found = parse_part(text, after, is_complete=pod.has_ended and len(text) < limit)
    if not found.data and len(text) >= limit:  # a line that is too long, or one second with too many lines
        found = parse_part(text, after)
    if found.data or len(text) < limit:
        return found
    return LogPart(b"[output is missing: it was written too fast]\n", _next_second(after))


def parse_part(text: bytes, after: str = "", *, is_complete: bool = True) -> LogPart:
    """Return the lines after a time, without their times. The last line may be incomplete, unless `is_complete`."""
    lines = BytesIO(text).readlines()  # unlike splitlines, it keeps carriage returns
    if lines and not (is_complete or lines[-1].endswith(b"\n")):
        lines.pop()
    if after:
        known = _moment(_TIMED_LINE.match(f"{after} ".encode()))
        newer = (number for number, line in enumerate(lines) if _moment(_TIMED_LINE.match(line)) > known)
        lines = lines[next(newer, len(lines)) :]
    until, data = after, []
    for line in lines:
        match = _TIMED_LINE.match(line)
        if match is not None:
            until = match[0].decode().strip()
        data.append(line[match.end() :] if match is not None else line)
    return LogPart(b"".join(data), until)


def _moment(match: re.Match[bytes] | None) -> Moment:
    """Return the time of a line. Lines without one, such as messages of the kubelet, are older than all others."""
    if match is None:
        return (0.0, 0)
    whole, fraction, zone = match.groups(default=b"")
    try:
        seconds = datetime.fromisoformat((whole + zone).decode()).timestamp()
    except ValueError:
        return (0.0, 0)
    return seconds, int(fraction.ljust(9, b"0"))


def _next_second(after: str) -> str:
    match = _TIMED_LINE.match(f"{after} ".encode())
    if match is None:
        return after
    moment = datetime.fromisoformat((match[1] + match[3]).decode()) + timedelta(seconds=1)
    return moment.isoformat().replace("+00:00", "Z")
