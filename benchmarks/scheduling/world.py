"""Rubick's testbed as an experiment: its traces, its cluster, its measured steps, and what a policy may know of them.

The simulator charges measured steps. A policy sees a fit of the performance model to seven of them for each model,
chosen before the others were looked at, and may choose the plans that were measured for the model, as Rubick's
artifact does.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from functools import cache
from pathlib import Path

import msgspec

from benchmarks.accuracy.device import read_cases
from benchmarks.accuracy.tables import data_folder
from benchmarks.measure import REPOSITORY
from refold.catalogue import find_engine, find_gpu, find_model
from refold.model import Cluster, GpuType, Job, Link, Node, Tenant, mib_from_gib, milli_from_number
from refold.perf import CorrectedForm, Fitted, Machines, Measurement, Setting, fit, samples_in_turn
from refold.plans import Knowledge, Speeds
from refold.simulator import MeasuredSpeeds, RecordedSpeeds
from refold.traces import read_trace

WORKLOADS = {
    "ViT-base": ("vit", "vit-base-16"),
    "RoBERTa-large": ("roberta", "roberta-large"),
    "BERT-336M": ("bert", "bert-large"),
    "T5-1.2B": ("t5", "t5-1.2b"),
    "GPT-2 1.5B": ("gpt2", "gpt2-xl"),
    "LLaMA-2-7B": ("llama7", "llama-2-7b-rubick"),
    "LLaMA-30B": ("llama30", "llama-30b"),
}
"""Models of the measured table: as the traces call them, and as the catalogue does."""

GPU = "A800-80GB"
NVLINK, RDMA = Link("nvlink", 200.0), Link("rdma", 100.0)
SAMPLES = 7
CPUS_PER_GPU = 8
TRACES = {"random-plan": "workload-bp.csv", "best-plan": "workload-base.csv", "multi-tenant": "workload-mt.csv"}
"""The files called base and bp look swapped (benchmarks/README.md)."""


def cluster(nodes: int = 8, tenants: tuple[Tenant, ...] = ()) -> Cluster:
    """Servers of eight A800-80GB, 96 CPUs and 1,600 GB."""
    servers = tuple(
        Node(f"a800-{index}", 8, GPU, milli_from_number(96), mib_from_gib(1600), inside=NVLINK)
        for index in range(nodes)
    )
    return Cluster(servers, (GpuType(GPU, 80.0),), network=RDMA, name="rubick", tenants=tenants)


def jobs(trace: str) -> tuple[Job, ...]:
    """The jobs of one of TRACES."""
    folder = data_folder()
    assert folder is not None
    return read_trace(str(folder / "rubick" / TRACES[trace]), gpus_per_instance=8).jobs


@cache
def table() -> tuple[Measurement, ...]:
    """Every measured step of the traces' models, by the catalogue's names.

    How many CPUs an offloading plan was measured with is not said: taken to be those that the traces ask for.
    """
    rows = []
    for case in read_cases("rubick_measured"):
        if case.model.name not in WORKLOADS or case.step_seconds is None:
            continue
        name = WORKLOADS[case.model.name][1]
        cpus, nodes = CPUS_PER_GPU * float(case.gpus), case.gpus_on_node
        rows.append(Measurement(name, GPU, nodes, case.plan, case.batch, case.sequence, cpus, case.step_seconds))
    return tuple(rows)


@cache
def knowledge() -> Knowledge:
    """What policies know: fits to seven samples for each model, and which plans there are."""
    by_model: dict[str, list[Measurement]] = defaultdict(list)
    for row in table():
        if row.batch == find_model(row.model).batch:
            by_model[row.model].append(row)
    names = {model: workload for workload, model in WORKLOADS.values()}
    menu = {names[model]: tuple(dict.fromkeys(row.plan for row in rows)) for model, rows in by_model.items()}
    return Knowledge(tuple(_fitted(rows) for rows in by_model.values()), menu)


def charge(on: Cluster) -> MeasuredSpeeds:
    """The truth: what was measured, and between that what the fits say."""
    return MeasuredSpeeds(table(), Speeds(on, knowledge()), RecordedSpeeds(on))


def _fitted(rows: list[Measurement]) -> Fitted:
    """A fit to seven of the rows; found once, and kept for the next time."""
    engine = "megatron-2023-fp32" if rows[0].model == "llama-30b" else "deepspeed-2023-fp32"
    model, gpu = find_model(rows[0].model), find_gpu(GPU)

    def setting_for(one: Measurement) -> Setting:
        machines = Machines(gpu, one.gpus_on_node, NVLINK, RDMA, one.cpus)
        return Setting(model, machines, find_engine(engine), one.batch, one.sequence)

    asked = msgspec.json.encode([rows, model, gpu, find_engine(engine), SAMPLES])
    kept = REPOSITORY / "build" / "fits" / f"{model.name}-{hashlib.sha256(asked).hexdigest()[:16]}.json"
    if kept.exists():
        return msgspec.json.decode(kept.read_bytes(), type=Fitted)
    form = CorrectedForm(setting_for)
    chosen = samples_in_turn(form, rows, SAMPLES)
    found = msgspec.structs.replace(fit(form, [rows[index] for index in chosen], least=1), engine=engine)
    _keep(kept, found)
    return found


def _keep(path: Path, found: Fitted) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(found))
