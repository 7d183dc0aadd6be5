"""Metrics of the daemon in Prometheus' text format (version 0.0.4)."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from time import time
from typing import Literal, NamedTuple

import msgspec

from refold import __version__
from refold.client.api import GpuStatus
from refold.core import StartRun
from refold.server.http import EventStream, Page, Reply
from refold.server.inbox import Inbox
from refold.server.live_state import LiveState
from refold.server.monitor import GpuPoller
from refold.server.network import ConnectionTable, LoopLag
from refold.server.start_forecasts import TenantScores
from refold.server.status import tenant_statuses
from refold.server.subscribers import LoopStep, Subscriber

MEDIA = "text/plain; version=0.0.4; charset=utf-8"


class Sample(NamedTuple):
    """A value with its labels."""

    value: float
    labels: Mapping[str, str] = {}


class Metric(NamedTuple):
    """A metric. `text`: what it is, in a line."""

    name: str
    kind: Literal["gauge", "counter"]
    text: str
    samples: list[Sample]


def format_metrics(metrics: Iterable[Metric]) -> bytes:
    """Return metrics as text; those without samples are left out."""
    lines: list[str] = []
    for metric in metrics:
        if metric.samples:
            lines += [f"# HELP {metric.name} {metric.text}", f"# TYPE {metric.name} {metric.kind}"]
            lines += [f"{metric.name}{_format_labels(sample.labels)} {sample.value:.10g}" for sample in metric.samples]
    return ("\n".join(lines) + "\n").encode()


def _format_labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}" if labels else ""


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


class Metrics(Subscriber):
    """Counts what the scheduling loop does, and reads everything else when asked."""

    def __init__(
        self,
        state: LiveState,
        inbox: Inbox,
        gpus: GpuPoller,
        event_stream: EventStream,
        connections: ConnectionTable,
        lag: LoopLag,
        database: Path,
        scores: Mapping[str, TenantScores],
        of_engine: Callable[[], list[Metric]],
    ) -> None:
        self._state = state
        self._inbox = inbox
        self._gpus = gpus
        self._event_stream = event_stream
        self._connections = connections
        self._lag = lag
        self._database = database
        self._scores = scores
        self._of_engine = of_engine
        self._steps = 0
        self._runs = 0
        self._ended: Counter[str] = Counter({"finished": 0, "failed": 0, "timed out": 0, "cancelled": 0})
        self._last_step = time()

    def after_step(self, step: LoopStep) -> None:
        self._steps += 1
        self._last_step = time()
        self._runs += sum(isinstance(order, StartRun) for order in step.entry.orders)
        self._ended.update(record.state for record in step.ended)

    async def page(self) -> bytes:
        gpus = await self._gpus.statuses()
        of_daemon = (
            *self._cluster(),
            *self._estimates(),
            *self._loop(),
            *self._network(),
            *_gpu_readings(gpus),
            *_process(),
        )
        return format_metrics([*of_daemon, *self._of_engine()])

    def _cluster(self) -> list[Metric]:
        view, header = self._state.view, self._state.header
        tenants = tenant_statuses(view)
        jobs = {"running": len(view.active), "waiting": len(view.waiting), "held": len(view.held)}
        used = header.cluster.gpus - view.free_gpus - view.down_gpu_count
        gpus = {"used": used, "free": view.free_gpus, "drained": view.down_gpu_count}
        up = sum(view.is_up(index) for index in range(len(header.cluster.nodes)))
        nodes = {"up": up, "down": len(header.cluster.nodes) - up}
        oldest = min((job.submitted for job in view.waiting.values()), default=None)
        labels = {"version": __version__, "policy": header.policy}
        return [
            Metric("refold_info", "gauge", "Version and policy.", [Sample(1, labels)]),
            Metric("refold_nodes", "gauge", "Nodes.", _by("state", nodes)),
            Metric("refold_gpus", "gauge", "GPUs, shared ones in part.", _by("state", gpus)),
            Metric("refold_jobs", "gauge", "Jobs that have not ended.", _by("state", jobs)),
            Metric(
                "refold_longest_wait_seconds",
                "gauge",
                "Time since the submission of the job that waits longest.",
                [Sample(0.0 if oldest is None else max(0.0, self._state.now() - oldest))],
            ),
            Metric(
                "refold_tenant_jobs",
                "gauge",
                "Jobs of a tenant that have not ended.",
                [
                    Sample(value, {"tenant": tenant.name, "state": state})
                    for tenant in tenants
                    for state, value in (("running", tenant.running), ("waiting", tenant.waiting))
                ],
            ),
            Metric(
                "refold_tenant_gpus",
                "gauge",
                "GPUs that a tenant uses or waits for.",
                [
                    Sample(value, {"tenant": tenant.name, "state": state})
                    for tenant in tenants
                    for state, value in (("used", tenant.gpus), ("waiting", tenant.waiting_gpus))
                ],
            ),
        ]

    def _estimates(self) -> list[Metric]:
        """Return how good the first start estimates were, of jobs that have started."""
        found = self._scores.items()
        return [
            Metric(
                "refold_start_estimates_total",
                "counter",
                "Jobs that have started and had a start estimate.",
                [Sample(scores.jobs, {"tenant": tenant}) for tenant, scores in found],
            ),
            Metric(
                "refold_start_estimate_error_seconds_total",
                "counter",
                "Sum of the absolute errors of their first estimates.",
                [Sample(scores.error, {"tenant": tenant}) for tenant, scores in found],
            ),
            Metric(
                "refold_start_bounds_total",
                "counter",
                "Jobs that have started by the latest start of their first estimate, or later.",
                [
                    Sample(value, {"tenant": tenant, "bound": bound})
                    for tenant, scores in found
                    for bound, value in (("met", scores.bounds_met), ("missed", scores.bounds_missed))
                ],
            ),
        ]

    def _loop(self) -> list[Metric]:
        sizes = {
            "database": _size(self._database),
            "log": _size(self._database.with_name(f"{self._database.name}-wal")),
        }
        return [
            Metric("refold_steps_total", "counter", "Steps of the scheduling loop.", [Sample(self._steps)]),
            Metric("refold_runs_started_total", "counter", "Runs that were started.", [Sample(self._runs)]),
            Metric("refold_jobs_ended_total", "counter", "Jobs that have ended.", _by("state", self._ended)),
            Metric("refold_last_step_timestamp_seconds", "gauge", "When the last step was.", [Sample(self._last_step)]),
            Metric(
                "refold_event_loop_lag_seconds",
                "gauge",
                "By how much the event loop was late, at most, in the last minute.",
                [Sample(self._lag.largest())],
            ),
            Metric(
                "refold_storage_writable",
                "gauge",
                "Whether the journal can be written.",
                [Sample(not self._inbox.problem)],
            ),
            Metric(
                "refold_storage_bytes", "gauge", "Size of the database and its write-ahead log.", _by("file", sizes)
            ),
        ]

    def _network(self) -> list[Metric]:
        table = self._connections
        return [
            Metric("refold_http_connections", "gauge", "Open connections.", [Sample(len(table))]),
            Metric(
                "refold_http_connections_refused_total",
                "counter",
                "Connections that were refused, as there were too many.",
                [Sample(table.refused)],
            ),
            Metric(
                "refold_http_connections_dropped_total",
                "counter",
                "Idle connections that made room for others.",
                [Sample(table.dropped)],
            ),
            Metric("refold_event_streams", "gauge", "Open event streams.", [Sample(self._event_stream.listeners)]),
        ]


def _by(label: str, values: Mapping[str, float]) -> list[Sample]:
    return [Sample(value, {label: name}) for name, value in values.items()]


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0


def _gpu_readings(gpus: Iterable[GpuStatus]) -> list[Metric]:
    readings = {
        "refold_gpu_utilisation_ratio": ("Utilisation of a GPU, 0 to 1.", "utilisation", 0.01),
        "refold_gpu_memory_used_bytes": ("Used memory of a GPU.", "memory_used_mib", 2**20),
        "refold_gpu_memory_bytes": ("Memory of a GPU.", "memory_mib", 2**20),
        "refold_gpu_temperature_celsius": ("Temperature of a GPU.", "celsius", 1),
        "refold_gpu_power_watts": ("Power of a GPU.", "watts", 1),
    }
    return [
        Metric(
            name,
            "gauge",
            text,
            [
                Sample(value * unit, {"node": gpu.node, "gpu": str(gpu.index)})
                for gpu in gpus
                if (value := getattr(gpu, field)) is not None
            ],
        )
        for name, (text, field, unit) in readings.items()
    ]


def _process() -> list[Metric]:
    """Return what Prometheus' own client libraries report of a process; memory and descriptors only with /proc."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    metrics = [
        Metric("process_cpu_seconds_total", "counter", "CPU time.", [Sample(usage.ru_utime + usage.ru_stime)]),
        Metric("process_max_fds", "gauge", "Limit of file descriptors.", [Sample(descriptors)]),
    ]
    with suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        open_descriptors = sum(1 for _ in Path("/proc/self/fd").iterdir())
        metrics += [
            Metric("process_open_fds", "gauge", "Open file descriptors.", [Sample(open_descriptors)]),
            Metric("process_resident_memory_bytes", "gauge", "Memory.", [Sample(pages * resource.getpagesize())]),
        ]
    return metrics


# Pages for monitoring: `/readyz` for load balancers and Kubernetes, `/metrics` for Prometheus.


def make_pages(inbox: Inbox, metrics: Metrics) -> dict[str, Page]:
    async def ready() -> Reply:
        problem = _problem(inbox)
        return Reply(503 if problem else 200, msgspec.json.encode({"status": problem or "ready"}))

    async def show_metrics() -> Reply:
        return Reply(200, await metrics.page(), MEDIA)

    return {"/readyz": Page(None, ready), "/metrics": Page("reader", show_metrics)}


def _problem(inbox: Inbox) -> str:
    """Return why no request that changes something is accepted; ''. Paths are not shown: anybody may ask."""
    if inbox.stopping:
        return "the daemon is shutting down"
    return "the journal cannot be written" if inbox.problem else ""
