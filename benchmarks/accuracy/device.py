"""Our measurements on one H200 as cases, like those of published tables.

The tables are part of the repository: h200_measured.csv (`measure_device`, on the machine of h200_machine.json) and
transformers_h200.csv (`measure_transformers`, with the versions of transformers_h200.json). What is in
transformers_h200_later.csv was measured when the model was complete: nothing was chosen or fitted with it.
transformers_h200_long.csv has LoRA with sequences of 2,048 to 32,768 tokens, of all layers and of attention alone.
modules_h200.csv has steps of modules whose shapes are not known (`measure_modules`), modules_traced.json their totals.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from msgspec import convert

from benchmarks.accuracy.measure_transformers import MODELS
from benchmarks.accuracy.published import read_published, read_published_2025
from benchmarks.accuracy.recipes import RECIPES, read_recipes
from benchmarks.accuracy.tables import Case, read_table
from refold.model import Plan
from refold.model.documents import load_yaml
from refold.planning.catalogue import find_gpu, find_model, read_samples, shape_from_config
from refold.planning.perf import AdaptedLayers, Measurement, ModelShape, ModuleCosts, ModuleTotals, Tuning

HERE = Path(__file__).parent
FILE = HERE / "h200_measured.csv"


def measurements() -> list[Measurement]:
    """Return all measurements on the H200."""
    return read_samples(FILE)


@cache
def read_cases(table: str) -> Sequence[Case]:
    """Return the cases of a table, published or measured by us; cached."""
    if table in RECIPES:
        return tuple(read_recipes(table))
    match table:
        case "h200_measured":
            return tuple(_case(row, one) for row, one in enumerate(measurements(), start=2))
        case "modules_h200":
            return tuple(module_cases())
        case "published":
            return tuple(read_published())
        case "published_2025":
            return tuple(read_published_2025())
        case "transformers_h200" | "transformers_h200_later" | "transformers_h200_long":
            path = HERE / f"{table}.csv"
            with path.open(encoding="utf-8", newline="") as file:
                rows = enumerate(csv.DictReader(file), start=2)
                return tuple(_transformers_case(path.name, row, keys) for row, keys in rows)
    return tuple(read_table(table))


def _case(row: int, one: Measurement) -> Case:
    gpu = find_gpu(one.gpu)
    return Case(
        source=FILE.name,
        row=row,
        group=f"{one.model} on 1 {gpu.name}, batch {one.batch} × {one.sequence}",
        model=find_model(one.model),
        gpu=gpu.name,
        gpus_on_node=one.gpus_on_node,
        network=gpu.link,
        inside=None,
        engine="pytorch",
        plan=one.plan,
        micro_batch=round(one.micro_batch),
        batch=one.batch,
        sequence=one.sequence,
        cpus=one.cpus,
        step_seconds=one.step_seconds,
        memory_gib=one.memory_gib,
        fits=one.status == "ok",
        forward_seconds=one.forward_seconds,
        sync_seconds=one.backward_seconds,
        optimizer_seconds=one.optimizer_seconds,
    )


@cache
def module_totals() -> Mapping[str, ModuleTotals]:
    """Return the totals of the traced modules by name."""
    document = json.loads((HERE / "modules_traced.json").read_text(encoding="utf-8"))
    return convert(document["modules"], dict[str, ModuleTotals])


def module_cases(costs: ModuleCosts | None = None) -> Iterator[Case]:
    """Yield the measured steps of modules, with the totals that costs give."""
    path, gpu = HERE / "modules_h200.csv", find_gpu("H200")
    with path.open(encoding="utf-8", newline="") as file:
        for row, keys in enumerate(csv.DictReader(file), start=2):
            name, batch = keys["module"], int(keys["batch"])
            totals = module_totals()[name]
            yield Case(
                source=path.name,
                row=row,
                group=f"{name} on 1 {gpu.name}",
                model=totals.shape(name) if costs is None else totals.shape(name, costs),
                gpu=gpu.name,
                gpus_on_node=(1,),
                network=gpu.link,
                inside=None,
                engine="pytorch-bf16",
                plan=Plan(),
                micro_batch=batch,
                batch=batch,
                sequence=1,
                cpus=0.0,
                step_seconds=float(keys["step_s"]),
                memory_gib=float(keys["memory_gib"]),
                fits=True,
            )


@cache
def transformers_shape(name: str) -> ModelShape:
    """Return the shapes of a measured Hugging Face model, read from its configuration."""
    return shape_from_config(load_yaml(json.dumps(MODELS[name]), name), name)


def _transformers_case(source: str, row: int, keys: Mapping[str, str]) -> Case:
    gpu, batch, sequence = find_gpu("H200"), int(keys["batch"]), int(keys["sequence"])
    engine = "transformers" + ("-bf16" if keys["precision"] == "bf16" else "")
    return Case(
        source=source,
        row=row,
        group=f"{keys['model']} {engine} LoRA {keys['rank']}, batch {batch} × {sequence}",
        model=transformers_shape(keys["model"]),
        gpu=gpu.name,
        gpus_on_node=(1,),
        network=gpu.link,
        inside=None,
        engine=engine + ("-eager" if keys["attention"] == "eager" else ""),
        plan=Plan(recompute="full" if keys["checkpointing"] == "1" else "none"),
        micro_batch=batch,
        batch=batch,
        sequence=sequence,
        cpus=16,
        step_seconds=float(keys["step_s"]) if keys["step_s"] else None,
        memory_gib=float(keys["memory_gib"]) if keys["memory_gib"] else None,
        fits=keys["status"] == "ok",
        tuning=Tuning(int(keys["rank"]), lora_layers=convert(keys.get("layers") or "all", AdaptedLayers)),
    )
