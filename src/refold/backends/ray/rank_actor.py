"""The actor of an instance: it starts the command on its node, keeps its output, and knows how it ended.

Methods take and return plain values, so that the daemon and the nodes need not agree on more than this file.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time

import msgspec

from refold.backends.ray.guard import InstanceEnd, InstanceSpec, StopInstance
from refold.model import Seconds

POLL_SECONDS: Seconds = 0.1
MAX_OUTPUT_BYTES = 2**20
"""Output that is sent at a time."""

DEVICE_VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""Ray has set them for the actor: it decides which GPUs of the node the instance gets."""


class RankActor:
    """Runs an instance once. Several methods may run at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._end = InstanceEnd(problem="its guard was killed")
        self._guard: subprocess.Popen[bytes] | None = None
        self._output = tempfile.TemporaryFile(prefix="refold-")  # noqa: SIM115 - as long as the actor lives

    def start(self, spec: bytes) -> None:
        """Start the instance, unless it was started before."""
        with self._lock:
            if self._guard is not None:
                return
            read_end, write_end = os.pipe()
            command = [sys.executable, "-m", "refold.backends.ray.guard", str(write_end)]
            output = self._output.fileno()
            self._guard = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=output, pass_fds=[write_end]
            )
            os.close(write_end)
        threading.Thread(target=self._wait, args=(read_end,), daemon=True).start()
        self._send(_with_devices(msgspec.json.decode(spec, type=InstanceSpec)))

    def stop(self, signal: str, grace: Seconds) -> None:
        """End the instance; at once if it is ending and `grace` is 0."""
        if self._guard is None:
            self._end = InstanceEnd(problem="it was not started")
            self._ended.set()
        else:
            self._send(StopInstance(signal, grace))

    def poll(self, offset: int, wait: Seconds) -> tuple[bool, int | None, str, bytes]:
        """Return whether the instance has ended, its exit code or why it has none, and its output from an offset on.

        Waits for a while until there is something new.
        """
        deadline = time.monotonic() + wait
        while time.monotonic() < deadline and os.fstat(self._output.fileno()).st_size <= offset:
            if self._ended.wait(POLL_SECONDS):
                break
        ended = self._ended.is_set()  # before the output is read, which is then complete
        data = os.pread(self._output.fileno(), MAX_OUTPUT_BYTES, offset)
        return ended and len(data) < MAX_OUTPUT_BYTES, self._end.code, self._end.problem, data

    def close(self) -> None:
        """Kill the instance, if it runs, and release everything. Ray just ends the process."""
        if self._guard is not None:
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            self._ended.wait()
        self._output.close()

    def _send(self, order: InstanceSpec | StopInstance) -> None:
        assert self._guard is not None and self._guard.stdin is not None
        try:
            self._guard.stdin.write(msgspec.json.encode(order) + b"\n")
            self._guard.stdin.flush()
        except BrokenPipeError:  # it has ended
            pass

    def _wait(self, answers: int) -> None:
        assert self._guard is not None
        with open(answers, "rb") as pipe:
            line = pipe.readline()
        self._guard.wait()  # it has detached itself long ago
        if line:
            self._end = msgspec.json.decode(line, type=InstanceEnd)
        self._ended.set()


def _with_devices(spec: InstanceSpec) -> InstanceSpec:
    """Return what to run with the GPUs that Ray has assigned."""
    found = {name: os.environ[name] for name in DEVICE_VARIABLES if name in os.environ}
    kept = {name: value for name, value in spec.environment.items() if name not in DEVICE_VARIABLES}
    return msgspec.structs.replace(spec, environment={**kept, **found})
