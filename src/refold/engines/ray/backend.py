"""Runs on Ray: an actor for each instance, on the node that was chosen; none while the head node is lost."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Collection, Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any

from refold.core import Order, RunFailed, StartRun, StopRun
from refold.engines.local import Devices, RunEnvironment, no_exported_environment, no_secrets
from refold.engines.ray.cluster import RayNode, RayNodes
from refold.engines.ray.gang import Rank, RayGang, RayRunFiles
from refold.engines.ray.guard import InstanceSpec
from refold.model import WHOLE, Job, Seconds, Share
from refold.server import ExportedOf, Report, SecretsOf
from refold.server.output import new_mark

MAX_OUTPUT_BYTES = 2**30
OBJECT_STORE_PART = 0.3
"""Of the memory of an instance whose program uses Ray: Ray's own default."""

RunKey = tuple[str, int]

log = logging.getLogger("refold")


class RayBackend:
    """Starts runs on a cluster that Ray is connected to, and follows them. `daemon`: its id, part of their names."""

    def __init__(
        self,
        report: Report,
        ray: Any,
        nodes: RayNodes,
        out: Path,
        daemon: str,
        *,
        grace: Seconds = 10.0,
        exported: ExportedOf = no_exported_environment,
        secrets: SecretsOf = no_secrets,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
    ) -> None:
        self._report = report
        self._ray = ray
        self._nodes = nodes
        self._out = out
        self._daemon = daemon
        self._grace = grace
        self._max_output_bytes = max_output_bytes
        self._environment = RunEnvironment({}, Devices({}, None, (), are_gpus=False), exported, secrets)
        self._gangs: dict[RunKey, RayGang] = {}
        self._tasks: dict[RunKey, asyncio.Task[None]] = {}

    async def carry_out(self, orders: Sequence[Order], jobs: Mapping[str, Job]) -> None:
        """Start, adopt or end runs; then return."""
        for order in orders:
            match order:
                case StartRun(job_id, number):
                    if (job_id, number) not in self._tasks:
                        self._start(jobs[job_id], order)
                case StopRun(job_id, number):
                    if (gang := self._gangs.get((job_id, number))) is not None:
                        gang.stop()

    async def close(self) -> None:
        """Kill all runs, and wait until they have ended."""
        for gang in self._gangs.values():
            gang.stop(0.0)
        await asyncio.gather(*self._tasks.values())

    def kill(self, job_id: str) -> None:
        """Kill the run of a job without a grace period, if there is one."""
        for key, gang in self._gangs.items():
            if key[0] == job_id:
                gang.stop(0.0)

    async def detach(self) -> None:
        """Stop following; actors stay as they are until another back end adopts them."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def stop_all_except(self, runs: Collection[RunKey]) -> None:
        """Kill all runs of this daemon but these, and wait for their end."""
        wanted = set(runs)
        for key in [key for key in self._gangs if key not in wanted]:
            self._gangs[key].stop(0.0)
        found = await asyncio.to_thread(self._find_runs)
        strays = [key for key in found if key not in wanted and key not in self._tasks]
        await asyncio.gather(
            *(self._end_stray(key, found[key]) for key in strays),
            *(task for key, task in self._tasks.items() if key not in wanted),
        )

    def enforcement(self) -> str:
        """Describe what limits the runs."""
        return "Ray sets CUDA_VISIBLE_DEVICES; shares of a GPU, CPUs and memory are counted, not enforced."

    # Runs.

    def _start(self, job: Job, order: StartRun) -> None:
        key = (job.id, order.run)
        files = RayRunFiles(self._out, *key)
        grace = self._grace if job.launch.grace is None else job.launch.grace
        placement = order.allocation.placement

        def ranks() -> list[Rank]:
            return self._ranks(job, order, files, grace)

        signal = job.launch.stop_signal
        self._gangs[key] = RayGang(
            self._ray, self._name(key), files, ranks, len(placement), signal, grace, self._max_output_bytes
        )
        self._tasks[key] = asyncio.create_task(self._supervise(key))

    async def _supervise(self, key: RunKey) -> None:
        """Follow a run, and report its end once."""
        try:
            end = await self._gangs[key].supervise(self._report)
        except Exception as error:
            log.exception("cannot follow run %d of %s", key[1], key[0])
            end = RunFailed(*key, f"cannot be followed: {error}", retry=True)
        finally:
            del self._gangs[key], self._tasks[key]
        self._report(end)

    def _ranks(self, job: Job, order: StartRun, files: RayRunFiles, grace: Seconds) -> list[Rank]:
        """Return what the instances of a run get and run."""
        placement = order.allocation.placement
        nodes = [self._nodes.nodes[share.node] for share in placement]
        record = files.record_start(new_mark(self._out), len(placement))
        addresses, folder = [node.address for node in nodes], str(files.common.checkpoint_folder / job.launch.folder)
        environments = self._environment.build(job, order, files.common, record, grace, addresses)
        given = {name for name, _ in job.launch.environment}
        return [
            Rank(
                node.id,
                resources_of(share),
                InstanceSpec(
                    job.command,
                    environment | ({} if "RAY_ADDRESS" in given else own_ray(share, node)),
                    folder,
                    f"{record.mark}-{index}",
                    grace,
                ),
            )
            for index, (node, share, environment) in enumerate(zip(nodes, placement, environments, strict=True))
        ]

    # Runs that the scheduler does not know.

    def _name(self, key: RunKey) -> str:
        return f"{self._daemon}:{key[1]}:{key[0]}"

    def _find_runs(self) -> dict[RunKey, int]:
        """Return the runs of this daemon that have actors, and how many instances at least."""
        found: dict[RunKey, int] = {}
        for name in self._ray.util.list_named_actors():
            daemon, _, rest = name.partition(":")
            run, _, rest = rest.partition(":")
            job, _, instance = rest.rpartition(":")
            if daemon == self._daemon and run.isdecimal() and instance.isdecimal():
                found[job, int(run)] = max(found.get((job, int(run)), 0), int(instance) + 1)
        return found

    async def _end_stray(self, key: RunKey, instances: int) -> None:
        """Kill a run that the scheduler does not know."""
        files = RayRunFiles(self._out, *key)
        await asyncio.to_thread(files.record_end, RunFailed(*key, "it is not known any more", retry=True))
        gang = RayGang(self._ray, self._name(key), files, list, instances, "KILL", 0.0, self._max_output_bytes)
        await gang.supervise(lambda _: None)


def own_ray(share: Share, node: RayNode) -> dict[str, str]:
    """Return the variables by which `ray.init()` in an instance starts a Ray that has what the instance has.

    In the Ray of the cluster its tasks would get other GPUs: the actor of the instance has its own ones, and cannot
    share them with tasks. An instance that requests no CPUs gets as many as belong to its GPUs.
    """
    gpus = len(share.gpus)
    cpus = ceil(share.cpu_milli / WHOLE) or max(1, int(node.cpus * gpus / node.gpus))
    resources: dict[str, float] = {"CPU": cpus, "GPU": gpus}
    if memory := share.memory_mib * 2**20:
        objects = int(memory * OBJECT_STORE_PART)
        resources |= {"memory": memory - objects, "object_store_memory": objects}
    return {"RAY_ADDRESS": "local", "RAY_OVERRIDE_RESOURCES": json.dumps(resources)}


def resources_of(share: Share) -> dict[str, float]:
    """Return what Ray reserves for an instance."""
    gpus = len(share.gpus) * share.gpu_milli / WHOLE
    found = {"CPU": share.cpu_milli / WHOLE, "GPU": gpus, "memory": float(share.memory_mib * 2**20)}
    return {name: amount for name, amount in found.items() if amount} or {"CPU": 0.001}


class DisconnectedBackend:
    """Takes no notice of orders. They are repeated to its successor, which then finds the runs or not."""

    async def carry_out(self, orders: Sequence[Order], jobs: Mapping[str, Job]) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""

    def kill(self, job_id: str) -> None:
        """Do nothing."""

    async def detach(self) -> None:
        """Do nothing."""

    async def stop_all_except(self, runs: Collection[tuple[str, int]]) -> None:
        """Do nothing."""

    def enforcement(self) -> str:
        """Describe what limits the runs."""
        return ""
