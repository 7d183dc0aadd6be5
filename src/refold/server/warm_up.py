"""Load the kernels of a policy, or compile them: that takes about a minute, in which the daemon schedules without them.

As a program, this module compiles the kernels of the policy whose journal header is given on standard input.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Protocol

import msgspec

from refold.core import Header
from refold.errors import RefoldError
from refold.jit import KernelNotCached, cached_kernels_only, kernel_folder
from refold.model import Cluster, Demand, Job, Seconds
from refold.registry import make_policy
from refold.simulator import compile_start_simulator, simulate

REPORT_INTERVAL_SECONDS: Seconds = 10.0
"""Pause between two reports on the progress of the compilation."""

LOW_PRIORITY = 10
"""Niceness of the compilation."""

log = logging.getLogger("refold")


class Kernels(Protocol):
    """The compiled kernels of policies."""

    def load(self, header: Header) -> bool:
        """Load the kernels of a policy from the cache; return whether all of them were there."""

    async def compile(self, header: Header, report: Callable[[str], None]) -> str:
        """Compile the kernels of a policy into the cache; return what went wrong, or ''. Reports the progress."""


class CachedKernels:
    """Kernels in the cache on disk, which another process fills: Numba would keep the daemon from answering."""

    def load(self, header: Header) -> bool:
        """Schedule a few jobs with the policy; return whether no kernel had to be compiled."""
        try:
            with cached_kernels_only():
                warm_up(header)
        except KernelNotCached:
            return False
        return True

    async def compile(self, header: Header, report: Callable[[str], None]) -> str:
        """Compile the kernels in another process of low priority."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", __name__),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "REFOLD_CACHE_DIR": str(kernel_folder().parent)},
        )
        reporting = asyncio.create_task(_report_progress(report))
        try:
            _, errors = await process.communicate(msgspec.json.encode(header))
        finally:
            reporting.cancel()
            with suppress(ProcessLookupError):
                process.kill()
        lines = errors.decode(errors="replace").strip().splitlines()
        return (lines[-1] if lines else f"exit status {process.returncode}") if process.returncode else ""


async def _report_progress(report: Callable[[str], None]) -> None:
    began = monotonic()
    while True:
        await asyncio.sleep(REPORT_INTERVAL_SECONDS)
        kernels = await asyncio.to_thread(lambda: sum(1 for _ in kernel_folder().glob("*.nbc")))
        report(f"{kernels} kernels in {monotonic() - began:.0f} s")


def warm_up(header: Header) -> None:
    """Schedule a few jobs with a policy, so that its kernels are loaded, or compiled if they are not in the cache.

    The kernels for start estimates are loaded as well.
    """
    policy = make_policy(header.policy, header.settings)
    compile_start_simulator(header.cluster)
    try:
        simulate(_varied_jobs(header.cluster), header.cluster, policy)
    except KernelNotCached:
        raise
    except Exception:  # the policy may be a user's file
        log.exception("policy %s failed when it was tried out", header.policy)


def _varied_jobs(cluster: Cluster) -> list[Job]:
    """Return jobs that do not all fit at once: small, large, short, long, with parts of GPUs and two instances."""
    gpus = max(node.gpus for node in cluster.nodes)
    half = Demand(gpus=-(-gpus // 2))
    demands = (Demand(), Demand(gpus=gpus), Demand(gpu_milli=500), Demand(instances=2), half)
    return [
        Job(f"warm-up-{number}", submitted=5.0 * number, work=40.0 * (1 + number % 4), demand=demands[number % 5])
        for number in range(60)
    ]


def main() -> None:
    """Compile the kernels of the policy on standard input."""
    os.nice(LOW_PRIORITY)
    try:
        warm_up(msgspec.json.decode(sys.stdin.buffer.read(), type=Header))
    except RefoldError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
