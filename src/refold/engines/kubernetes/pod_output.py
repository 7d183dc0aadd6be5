"""Output of pods, copied to the files that have the output of runs whenever somebody reads it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from weakref import WeakValueDictionary

from refold.engines.kubernetes.api_server import FORBIDDEN, NOT_FOUND, ApiError, ApiServer
from refold.engines.kubernetes.gangs import INSTANCE_ANNOTATION
from refold.engines.kubernetes.mirror import Mirror
from refold.engines.kubernetes.objects import Pod
from refold.engines.kubernetes.pod_logs import read_pod_log
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
