"""Output of pods, copied to the files that have the output of runs whenever somebody reads it."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from datetime import datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import NamedTuple
from weakref import WeakValueDictionary

from refold.engines.kubernetes.api_server import FORBIDDEN, NOT_FOUND, ApiError, ApiServer
from refold.engines.kubernetes.gangs import INSTANCE_ANNOTATION
from refold.engines.kubernetes.mirror import Mirror
from refold.engines.kubernetes.objects import Pod
from refold.engines.kubernetes.pod_states import pod_path
from refold.errors import NotFound, Refused, Unavailable
from refold.server import LiveState
from refold.server.output import append_log, log_path, read_regular, write_atomically

NOT_STARTED = 400
"""The answer of the API server while the container has no output yet."""


class PodOutput:
    """Copies output. A copy remains when the pod is gone, for as long as all output is kept."""

    def __init__(self, api: ApiServer, mirror: Mirror, state: LiveState, logs: Path, max_bytes: int) -> None:
        self._api = api
        self._mirror = mirror
        self._state = state
        self._logs = logs
        self._max_bytes = max_bytes
        self._locks: WeakValueDictionary[Path, asyncio.Lock] = WeakValueDictionary()

    async def refresh(self, job: str, run: int, instance: int) -> None:
        """Copy the new output of an instance. Raises Refused if there is none, and none can be had."""
        path, pod = log_path(self._logs, job, run, instance), self._pod(job, run, instance)
        if pod is None:
            current = self._state.view.runs.get(job)
            if not path.exists() and (current is None or current.number != run):
                raise NotFound(
                    f"the pod of instance {instance} of run {run} of {job!r} is gone, and with it its output"
                )
            return
        async with self._locks.setdefault(path, asyncio.Lock()):
            try:
                await asyncio.to_thread(self._copy, pod, path)
            except ApiError as error:
                if error.status not in (NOT_STARTED, NOT_FOUND) and not path.exists():
                    raise _explain(error) from None

    async def copy_progress(self) -> None:
        """Copy the output, of the first instance, of jobs that report progress in it."""
        view = self._state.view
        runs = [run for run in view.runs.values() if view.active[run.job].launch.progress]
        for run in runs:
            with suppress(Refused):
                await self.refresh(run.job, run.number, 0)

    def _pod(self, job: str, run: int, instance: int) -> Pod | None:
        pods = self._mirror.pods_of_run((job, run)).values()
        return next((pod for pod in pods if pod.metadata.annotations.get(INSTANCE_ANNOTATION) == str(instance)), None)

    def _copy(self, pod: Pod, path: Path) -> None:
        position = path.with_name(f"{path.name}.until")
        try:
            after = read_regular(position).decode(errors="replace")
        except OSError:
            after = ""
        found = read_pod_log(self._api, pod, after)
        if found.data:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            append_log(path, found.data, self._max_bytes)
            write_atomically(position, found.until.encode())


def _explain(error: ApiError) -> Refused:
    if error.status == FORBIDDEN:
        return Unavailable(f"the daemon may not read the output of pods (pods/log: get): {error}")
    return Unavailable(f"the output of the pod cannot be read: {error}")


# The output of containers, read from the API server in parts. The API server gives output since a second. With the
# time of each line, reading continues after the last known one, also after the kubelet has removed older output.

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
