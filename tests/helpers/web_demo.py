"""A service with a cluster of any size, for the tests, screenshots and measurements of the web UI.

Run as a script, it serves: `python tests/helpers/web_demo.py --gpus 1000 --jobs 10000`.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from fake_service import MEMBER, OWNER, READER, FakeService, known_tokens, serve
from msgspec.structs import replace

from refold.client.api import TimelineQuery
from refold.client.api.queries import Caller
from refold.client.api.wire import (
    Alert,
    DaemonInfo,
    Event,
    GpuStatus,
    JobStatus,
    NodeGpus,
    NodeStatus,
    StartAccuracy,
    TenantStatus,
    TimeEstimate,
    Timeline,
    TimelineRun,
    UserStatus,
)

TENANTS = {
    "vision": ("ann", "ben", "chen"),
    "speech": ("dina", "emre"),
    "language": ("fay", "gus", "hana"),
    "robotics": ("ivo",),
}
NAMES = ("resnet", "llama-7b", "whisper", "bert-large", "diffusion", "policy-net", "eval", "sweep", "gpt-2", "vit-l")
PLANS = ("dp8", "dp4 tp2", "tp4 zero1", "dp2 pp2 tp2", "")
GPUS_PER_NODE = 8
NODES_PER_RACK, NODES_PER_BLOCK = 8, 32


def _rack(index: int) -> str:
    return f"r{index // NODES_PER_RACK + 1}"


class DemoService(FakeService):
    """A busy cluster: nodes of eight GPUs, jobs on most of them, and a queue."""

    def __init__(self, gpus: int, jobs: int, seed: int = 7) -> None:
        super().__init__(known_tokens())
        self.random = random.Random(seed)
        self.now = time.time()
        self.cluster_nodes = [
            NodeStatus(
                f"gpu-{index + 1:03}",
                True,
                GPUS_PER_NODE,
                "H100",
                0.0,
                rack=_rack(index) if gpus > 64 else "",
                domains={"block": f"b{index // NODES_PER_BLOCK + 1}", "rack": _rack(index)} if gpus > 64 else {},
            )
            for index in range(max(1, gpus // GPUS_PER_NODE))
        ]
        self.held_gpus: dict[tuple[str, int], JobStatus] = {}
        self.drained = {("gpu-001", 5): "XID 79: GPU has fallen off the bus"} if gpus > 8 else {}
        if gpus > 64:
            self.drained["gpu-001", 6] = "ECC errors"
            self.cluster_nodes[3] = replace(self.cluster_nodes[3], up=False, drained=True, reason="new fans")
        self._start_jobs()
        self._publish_some()
        for _ in range(max(0, jobs - len(self.jobs_by_id))):
            self.add_waiting()

    def _start_jobs(self) -> None:
        chance = self.random
        places = [(node.name, index) for node in self.cluster_nodes if node.up for index in range(node.gpus)]
        places = [place for place in places if place not in self.drained]
        while places:
            wanted = chance.choice([1, 1, 2, 4, 4, 8, 8, 16, 32] if len(self.cluster_nodes) > 4 else [1, 2, 2, 4])
            taken, places = places[:wanted], places[wanted:]
            if chance.random() < 0.93:
                self._start_job(taken)

    def _publish_some(self) -> None:
        kinds = [
            "submitted",
            "placed",
            "started",
            "finished",
            "submitted",
            "reshaped",
            "started",
            "failed",
            "submitted",
            "placed",
        ]
        jobs = list(self.jobs_by_id.values())[:40]
        for number, kind in enumerate(kinds, start=1):
            job = self.random.choice(jobs)
            text = {
                "placed": "on gpu-014 (GPUs 0–7), dp8",
                "reshaped": "on gpu-020 (GPUs 0–3), dp4: 2 jobs start earlier",
                "failed": "exit status 1; it will be retried",
            }
            self.event_stream.publish(
                [Event(number, self.now - 300 + 25 * number, kind, job.id, 1, text.get(kind, ""), job.tenant)]
            )

    def _domains_of(self, nodes: Collection[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for node in self.cluster_nodes:
            if node.name in nodes:
                path: list[str] = []
                for level, name in node.domains.items():
                    path.append(name)
                    found.setdefault(level, []).append("/".join(path))
        return {level: list(dict.fromkeys(names)) for level, names in found.items()}

    def _start_job(self, places: list[tuple[str, int]]) -> None:
        status, chance = self._new_job(float(len(places))), self.random
        begun = self.now - chance.expovariate(1 / 9000)
        end = self.now + chance.expovariate(1 / 9000)
        by_node: dict[str, list[int]] = {}
        for node, index in places:
            by_node.setdefault(node, []).append(index)
        steps = chance.choice([None, 20_000, 100_000])
        self.jobs_by_id[status.id] = status = replace(
            status,
            state="running",
            started=begun,
            runs=1,
            reason="",
            message="",
            plan=chance.choice(PLANS),
            placement=[NodeGpus(node, gpus) for node, gpus in by_node.items()],
            domains=self._domains_of(by_node),
            steps=steps,
            steps_done=round((steps or 0) * (self.now - begun) / (end - begun)),
            loss=round(chance.uniform(0.4, 3.0), 3) if steps else None,
            samples_per_second=round(chance.uniform(100, 4000), 1) if steps else None,
            end_estimate=TimeEstimate(end, self.now + (end - self.now) * 0.7, self.now + (end - self.now) * 1.6),
            start_estimate=None,
            warning="no progress for 14 minutes" if chance.random() < 0.01 else "",
        )
        self.held_gpus |= dict.fromkeys(places, status)
        self.events_by_job[status.id] = [
            Event(1, status.submitted, "submitted", status.id, 0, status.demand),
            Event(2, begun - 20, "placed", status.id, 1, f"on {places[0][0]} (GPUs 0, 1), {status.plan}"),
            Event(3, begun, "started", status.id, 1),
        ]
        if steps:
            self.output[status.id] = "".join(
                f"step {step:>6}  loss {3 * 0.99**step + 0.4:.4f}  lr 3.0e-04  {status.samples_per_second} samples/s\n"
                for step in range(0, 4000, 20)
            )

    def _new_job(self, gpus: float) -> JobStatus:
        chance = self.random
        tenant = chance.choices(list(TENANTS), (5, 3, 6, 1))[0]
        user, name, number = chance.choice(TENANTS[tenant]), chance.choice(NAMES), len(self.jobs_by_id) + 1
        submitted = self.now - chance.expovariate(1 / 20_000)
        return JobStatus(
            f"{name}-{number}",
            name,
            "waiting",
            tenant,
            user,
            "guaranteed",
            0,
            f"{gpus:g} GPU{'s' * (gpus != 1)}",
            gpus,
            submitted,
            requested_gpus=gpus,
        )

    def add_waiting(self) -> JobStatus:
        """Add a job to the end of the queue."""
        status = self._new_job(float(self.random.choice([1, 1, 2, 4, 8, 16])))
        position = (
            1 + sum(1 for job in self.jobs_by_id.values() if job.state == "waiting")
            if len(self.jobs_by_id) < 2000
            else len(self.jobs_by_id)
        )
        at = self.now + 240.0 * position
        first = position == 1
        self.jobs_by_id[status.id] = status = replace(
            status,
            position=position,
            reason="Resources" if first else "Priority",
            message=f"0 of {len(self.cluster_nodes)} nodes fit: {len(self.cluster_nodes)} have fewer free GPUs"
            if first
            else f"{position - 1:,} job{'s' * (position != 2)} ahead",
            start_estimate=TimeEstimate(at, at - 100, at + 900) if position < 400 else None,
            end_estimate=TimeEstimate(at + self.random.expovariate(1 / 6000) + 300) if position < 400 else None,
        )
        self.events_by_job[status.id] = [Event(1, status.submitted, "submitted", status.id, 0, status.demand)]
        return status

    # For the API.

    def info(self, caller: Caller) -> DaemonInfo:
        states = [job.state for job in self.jobs_by_id.values()]
        gpus = sum(node.gpus for node in self.cluster_nodes)
        drained = len(self.drained) + sum(node.gpus for node in self.cluster_nodes if not node.up)
        return DaemonInfo(
            *(
                "0.1.0",
                "hpc-west",
                "refold",
                len(self.cluster_nodes),
                gpus,
                float(gpus - drained - len(self.held_gpus)),
            ),
            *(states.count("running"), states.count("waiting"), time.time(), self.now - 86400),
            role=caller.role,
            tenant=caller.tenant,
            user=caller.user,
            forecasts_starts=True,
            start_accuracy=StartAccuracy(412, 3, 340.0, 400, 0.94),
            drained_gpus=drained,
            held=states.count("held"),
            last_event=self.event_stream.last,
        )

    def nodes(self, caller: Caller) -> list[NodeStatus]:
        jobs: dict[str, dict[str, None]] = {}
        for (node, _), job in self.held_gpus.items():
            jobs.setdefault(node, {})[job.id] = None
        held = [node for node, _ in (*self.held_gpus, *self.drained)]
        return [
            replace(
                node,
                jobs=list(jobs.get(node.name, ())),
                free_gpus=float(node.gpus - held.count(node.name)) if node.up else 0.0,
            )
            for node in self.cluster_nodes
        ]

    async def gpus(self, caller: Caller) -> list[GpuStatus]:
        return [self._gpu(node, index) for node in self.cluster_nodes for index in range(node.gpus)]

    def _gpu(self, node: NodeStatus, index: int) -> GpuStatus:
        job = self.held_gpus.get((node.name, index))
        chance = random.Random(f"{node.name} {index}")
        busy = chance.betavariate(8, 2) * 100 if job else 0.0
        reason = self.drained.get((node.name, index), "") or ("" if node.up else node.reason)
        return GpuStatus(
            *(node.name, index, "H100", [job.id] if job else [], 0.0 if job else 1.0, reason),
            *(
                round(chance.uniform(0.3, 0.95) * 81_559) if job else 4,
                81_559,
                round(busy, 1),
                round(34 + busy * 0.4),
                round(90 + busy * 5.6),
            ),
            tenant=job.tenant if job else "",
            user=job.user if job else "",
        )

    def alerts(self, caller: Caller) -> list[Alert]:
        flagged = [Alert("run flagged", job.warning, job.id) for job in self.jobs_by_id.values() if job.warning]
        faulty = [
            Alert("gpu down", f"GPU {gpu} is drained: {why}", node=node) for (node, gpu), why in self.drained.items()
        ]
        return [*faulty, *flagged]

    def tenants(self, caller: Caller) -> list[TenantStatus]:
        rows = []
        for tenant, quota in zip(TENANTS, (256, 192, 384, 64), strict=True):
            running = [job for job in self.jobs_by_id.values() if job.tenant == tenant and job.state == "running"]
            waiting = [job for job in self.jobs_by_id.values() if job.tenant == tenant and job.state == "waiting"]
            sizes = sum(job.gpus for job in running), sum(job.gpus for job in waiting)
            scaled = float(round(quota * len(self.cluster_nodes) / 125)) or 1.0
            rows.append(TenantStatus(tenant, scaled, 0.0, len(running), sizes[0], len(waiting), sizes[1]))
        return rows

    async def timeline(self, caller: Caller, query: TimelineQuery) -> Timeline:
        """Past runs before those that run now: jobs of random lengths, one after the other on the same GPUs."""
        chance, now, since = random.Random(3), time.time(), time.time() - query.seconds
        runs = []
        for job in self.jobs_by_id.values():
            if job.state != "running" or job.started is None:
                continue
            runs.append(TimelineRun(job.id, 1, job.tenant, job.user, job.started, None, "", job.placement))
            end = job.started - chance.uniform(0, 400)
            while end > since:
                start = end - chance.expovariate(1 / 7000)
                tenant = chance.choice(list(TENANTS))
                ending = "failed" if chance.random() < 0.08 else "finished"
                name = f"{chance.choice(NAMES)}-{chance.randrange(100, 99999)}"
                runs.append(TimelineRun(name, 1, tenant, TENANTS[tenant][0], start, end, ending, job.placement))
                end = start - chance.uniform(0, 900)
        busy = [
            (since + step * (now - since) / 200, len(self.held_gpus) * chance.uniform(0.7, 0.82)) for step in range(200)
        ]
        return Timeline(now, since, runs, busy)

    def users(self, caller: Caller) -> list[UserStatus]:
        rows = []
        for tenant, users in TENANTS.items():
            for user in users:
                own = [job for job in self.jobs_by_id.values() if job.user == user]
                running = [job for job in own if job.state == "running"]
                waiting = [job for job in own if job.state == "waiting"]
                hours = 37.0 * (1 + len(running))
                rows.append(
                    UserStatus(
                        user,
                        tenant,
                        len(running),
                        sum(job.gpus for job in running),
                        len(waiting),
                        sum(job.gpus for job in waiting),
                        hours,
                    )
                )
        total = sum(row.gpu_hours for row in rows)
        return [replace(row, used=row.gpu_hours / total, share=1 / len(rows), weight=1.0) for row in rows]


@contextmanager
def serve_demo(gpus: int, jobs: int) -> Iterator[tuple[DemoService, str]]:
    """Serve a demo cluster with the web UI; yield the service and its address."""
    service = DemoService(gpus, jobs)
    with serve(service) as server:
        yield service, server.address


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=10_000)
    options = parser.parse_args()
    with serve_demo(options.gpus, options.jobs) as (_, address):
        print(f"{address}  tokens: {OWNER} {MEMBER} {READER}", flush=True)
        while True:
            time.sleep(3600)


if __name__ == "__main__":
    main()
