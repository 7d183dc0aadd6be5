"""Rubick's testbed: its traces, its cluster, its measured step times, and what policies know of them.

`python -m benchmarks.scheduling.testbed FOLDER` writes them as files for the command line (docs/results/table4.md).

The simulator charges measured step times. Policies use a fit of the performance model to seven of them per model, and
may choose among the plans that were measured for the model, as in Rubick's artifact. The seven are chosen without
knowledge of the others.
"""

from __future__ import annotations

import argparse
import hashlib
from collections import defaultdict
from functools import cache
from pathlib import Path

import msgspec

from benchmarks.accuracy.device import read_cases
from benchmarks.accuracy.tables import data_folder
from benchmarks.measure import REPOSITORY
from refold.model import Cluster, GpuType, Job, Link, Node, Tenant, mib_from_gib, milli_from_number
from refold.planning.catalogue import find_engine, find_gpu, find_model, write_samples
from refold.planning.perf import (
    CorrectedForm,
    Fitted,
    Machines,
    Measurement,
    TrainingSetup,
    choose_samples_adaptively,
    fit,
)
from refold.planning.plans import Knowledge, Speeds
from refold.simulator import MeasuredSpeeds, RecordedSpeeds
from refold.simulator.traces import Trace, read_trace, write_cluster, write_trace

WORKLOADS = {
    "ViT-base": ("vit", "vit-base-16"),
    "RoBERTa-large": ("roberta", "roberta-large"),
    "BERT-336M": ("bert", "bert-large"),
    "T5-1.2B": ("t5", "t5-1.2b"),
    "GPT-2 1.5B": ("gpt2", "gpt2-xl"),
    "LLaMA-2-7B": ("llama7", "llama-2-7b-rubick"),
    "LLaMA-30B": ("llama30", "llama-30b"),
}
"""Names of the measured models in the traces and in the catalogue."""

GPU = "A800-80GB"
NVLINK, RDMA = Link("nvlink", 200.0), Link("rdma", 100.0)
SAMPLES = 7
CPUS_PER_GPU = 8
TRACES = {"random-plan": "workload-bp.csv", "best-plan": "workload-base.csv", "multi-tenant": "workload-mt.csv"}
"""The files named base and bp appear to be swapped (benchmarks/README.md)."""


def cluster(nodes: int = 8, tenants: tuple[Tenant, ...] = ()) -> Cluster:
    """Return a cluster of servers with eight A800-80GB, 96 CPUs and 1,600 GiB."""
    servers = tuple(
        Node(f"a800-{index}", 8, GPU, milli_from_number(96), mib_from_gib(1600), inside=NVLINK)
        for index in range(nodes)
    )
    return Cluster(servers, (GpuType(GPU, 80.0),), network=RDMA, name="rubick", tenants=tenants)


def jobs(trace: str) -> tuple[Job, ...]:
    """Return the jobs of one of TRACES."""
    folder = data_folder()
    assert folder is not None
    return read_trace(str(folder / "rubick" / TRACES[trace]), gpus_per_instance=8).jobs


@cache
def measurements() -> tuple[Measurement, ...]:
    """Return all measured steps of the models in the traces, with the catalogue's model names.

    The number of CPUs of measured offloading plans is not documented; the number that the traces request is assumed.
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
    """Return what policies know: fits to seven samples per model, and the available plans."""
    by_model: dict[str, list[Measurement]] = defaultdict(list)
    for row in measurements():
        if row.batch == find_model(row.model).batch:
            by_model[row.model].append(row)
    names = {model: workload for workload, model in WORKLOADS.values()}
    menu = {names[model]: tuple(dict.fromkeys(row.plan for row in rows)) for model, rows in by_model.items()}
    return Knowledge(tuple(_fitted(rows) for rows in by_model.values()), menu)


def charged_speeds(cluster: Cluster) -> MeasuredSpeeds:
    """Return the speeds that the simulator charges: measured ones, extended by the fits."""
    return MeasuredSpeeds(measurements(), Speeds(cluster, knowledge()), RecordedSpeeds(cluster))


def _fitted(rows: list[Measurement]) -> Fitted:
    """Fit the model to seven of the rows; fits are cached under build/."""
    engine = "megatron-2023-fp32" if rows[0].model == "llama-30b" else "deepspeed-2023-fp32"
    model, gpu = find_model(rows[0].model), find_gpu(GPU)

    def setting_for(one: Measurement) -> TrainingSetup:
        machines = Machines(gpu, one.gpus_on_node, NVLINK, RDMA, one.cpus)
        return TrainingSetup(model, machines, find_engine(engine), one.batch, one.sequence)

    key = msgspec.json.encode([rows, model, gpu, find_engine(engine), SAMPLES])
    path = REPOSITORY / "build" / "fits" / f"{model.name}-{hashlib.sha256(key).hexdigest()[:16]}.json"
    if path.exists():
        return msgspec.json.decode(path.read_bytes(), type=Fitted)
    form = CorrectedForm(setting_for)
    chosen = choose_samples_adaptively(form, rows, SAMPLES)
    found = msgspec.structs.replace(fit(form, [rows[index] for index in chosen], min_samples=1), engine=engine)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(found))
    return found


def write_files(folder: Path) -> list[Path]:
    """Write the traces, the cluster, the measured steps and the knowledge of the policies; return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "cluster.yaml", folder / "steps.csv", folder / "knowledge.json"]
    write_cluster(cluster(), paths[0])
    write_samples(paths[1], measurements())
    paths[2].write_bytes(msgspec.json.format(msgspec.json.encode(knowledge())))
    for name in TRACES:
        paths.append(folder / f"{name}.csv")
        write_trace(Trace(name, jobs(name)), paths[-1])
    return paths


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scheduling.testbed", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="output folder")
    folder = parser.parse_args().folder
    if data_folder() is None:
        parser.error("needs the published traces (rubick/ of the data folder), which are not part of this repository")
    for path in write_files(folder):
        print(path)


if __name__ == "__main__":
    main()
