"""The actor of an instance: it starts the command on its node, keeps its output, and knows how it ended.

Methods take and return plain values, so that the daemon and the nodes need not agree on more than this file.

Of the output the last part is kept, in files that have no name and end with the actor.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time

import msgspec

from refold.engines.ray.guard import InstanceEnd, InstanceSpec, StopInstance
from refold.model import Seconds

POLL_SECONDS: Seconds = 0.1
CHUNK_BYTES = 2**20
"""Output that is sent at a time."""

DRAIN_SECONDS: Seconds = 5.0
"""How long the rest of the output is waited for: a process that is not the instance's may have its end of the pipe."""

ALL_OUTPUT = 2**62
"""An offset beyond all output."""

DEVICE_VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""Ray has set them for the actor: it decides which GPUs of the node the instance gets."""


class BoundedOutput:
    """Keeps the last `limit` bytes, or at least half of them. Offsets count all bytes that were ever written."""

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._lock = threading.Lock()
        self._older = tempfile.TemporaryFile(prefix="refold-")  # noqa: SIM115 - as long as the actor lives
        self._newer = tempfile.TemporaryFile(prefix="refold-")  # noqa: SIM115
        self._first = 0
        """The offset of the first byte that is kept."""
        self._begin = 0
        """The offset of the first byte in the newer file."""
        self.size = 0

    def write(self, data: bytes) -> None:
        """Append output; forget what was written long ago."""
        with self._lock:
            while data:
                room = self._half - (self.size - self._begin)
                if not room:
                    self._older, self._newer = self._newer, self._older
                    self._first, self._begin, room = self._begin, self.size, self._half
                    self._newer.truncate(0)
                part, data = data[:room], data[room:]
                os.pwrite(self._newer.fileno(), part, self.size - self._begin)
                self.size += len(part)

    def read(self, offset: int, limit: int) -> tuple[int, bytes]:
        """Return what was written from an offset on, or from the first byte that is kept, and where that begins."""
        with self._lock:
            begin = min(max(offset, self._first), self.size)
            data = b""
            if begin < self._begin:
                data = os.pread(self._older.fileno(), min(limit, self._begin - begin), begin - self._first)
            position = begin + len(data)
            if position >= self._begin and len(data) < limit:
                data += os.pread(self._newer.fileno(), limit - len(data), position - self._begin)
            return begin, data

    def close(self) -> None:
        """Delete the files."""
        with self._lock:
            self._older.close()
            self._newer.close()


class RankActor:
    """Runs an instance once. Several methods may run at a time. `max_output_bytes`: what is kept of its output."""

    def __init__(self, max_output_bytes: int) -> None:
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._end = InstanceEnd(problem="its guard was killed")
        self._guard: subprocess.Popen[bytes] | None = None
        self._output = BoundedOutput(max_output_bytes)

    def start(self, spec: bytes) -> None:
        """Start the instance, unless it was started before."""
        with self._lock:
            if self._guard is not None:
                return
            answers, write_end = os.pipe()
            command = [sys.executable, "-m", "refold.engines.ray.guard", str(write_end)]
            self._guard = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[write_end],
                bufsize=0,
            )
            os.close(write_end)
        copying = threading.Thread(target=self._copy_output, daemon=True)
        copying.start()
        threading.Thread(target=self._wait, args=(answers, copying), daemon=True).start()
        self._send(_with_devices(msgspec.json.decode(spec, type=InstanceSpec)))

    def stop(self, signal: str, grace: Seconds) -> None:
        """End the instance; at once if it is ending and `grace` is 0."""
        if self._guard is None:
            self._end = InstanceEnd(problem="it was not started")
            self._ended.set()
        else:
            self._send(StopInstance(signal, grace))

    def poll(self, offset: int, wait: Seconds) -> tuple[bool, int | None, str, int, bytes]:
        """Return whether the instance has ended, its exit code or why it has none, and its output from an offset on.

        Before the output comes where it begins: that is later if what was at the offset is not kept any more. Waits for
        a while until there is something new.
        """
        deadline = time.monotonic() + wait
        while time.monotonic() < deadline and self._output.size <= offset:
            if self._ended.wait(POLL_SECONDS):
                break
        ended = self._ended.is_set()  # before the output is read, which is then complete
        begin, data = self._output.read(offset, CHUNK_BYTES)
        is_all = begin + len(data) >= self._output.size
        return ended and is_all, self._end.code, self._end.problem, begin, data

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

    def _copy_output(self) -> None:
        assert self._guard is not None and self._guard.stdout is not None
        with self._guard.stdout as pipe:
            while data := pipe.read(CHUNK_BYTES):
                self._output.write(data)

    def _wait(self, answers: int, copying: threading.Thread) -> None:
        assert self._guard is not None
        with open(answers, "rb") as pipe:
            line = pipe.readline()
        self._guard.wait()  # it has detached itself long ago
        copying.join(DRAIN_SECONDS)
        if line:
            self._end = msgspec.json.decode(line, type=InstanceEnd)
        self._ended.set()


def _with_devices(spec: InstanceSpec) -> InstanceSpec:
    """Return what to run with the GPUs that Ray has assigned."""
    found = {name: os.environ[name] for name in DEVICE_VARIABLES if name in os.environ}
    kept = {name: value for name, value in spec.environment.items() if name not in DEVICE_VARIABLES}
    return msgspec.structs.replace(spec, environment={**kept, **found})
