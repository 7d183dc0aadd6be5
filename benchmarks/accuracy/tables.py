"""Published measurements of training, parsed into one type of row: `python -m benchmarks.accuracy.tables` counts them.

The files are not part of the repository (see ../shared/data/README.md). Information missing in a file was looked up in
the repository it came from; the constant or the note then names the document.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.measure import REPOSITORY
from refold.errors import BadFile, BadRow, BadValue, UnknownName
from refold.model import Link, Plan, Recompute
from refold.planning.perf import Arithmetic, ModelShape, Tuning
from refold.simulator.traces import plan_from_code

ENGINES = {
    "nanotron": "bfloat16, gradients accumulated in single precision",
    "llm-foundry": "PyTorch FSDP under autocast to bfloat16, gradients reduced in single precision",
    "llm-foundry-h100": "the same on H100, with kernels of 2023",
    "llm-foundry-pure": "PyTorch FSDP, weights gathered and gradients reduced in bfloat16",
    "torchtitan": "PyTorch FSDP2 of December 2024, bfloat16",
    "torchtitan-compile": "the same, through torch.compile",
    "torchtitan-2025": "PyTorch FSDP2 of June 2025, through torch.compile",
    "megatron-2021": "Megatron-LM 2.x, float16, attention not fused",
    "megatron-2022": "Megatron-LM of Korthikanti et al., float16",
    "deepspeed-2021": "Megatron-DeepSpeed, float16",
    "hf-deepspeed-2021": "transformers with DeepSpeed ZeRO, float16",
    "deepspeed-2022": "Megatron-DeepSpeed as it was tuned for BLOOM, float16 or bfloat16, gradients in half precision",
    "deepspeed-2022-bf16": "the same with its BF16 optimizer: gradients in single precision, not sharded",
    "deepspeed-2023-fp32": "DeepSpeed 0.9 and DDP in single precision (TF32: more than 19.5 TFLOP/s were reached)",
    "pytorch": "plain PyTorch of 2026 without torch.compile, as benchmarks.accuracy.measure_device runs it",
    "megatron-core": "Megatron-Core of June 2026 as NVIDIA's recipes run it",
    "megatron-core-graphs": "the same with CUDA graphs of whole steps",
    "megatron-core-2024": "the same as of 2024",
    "megatron-core-26.04": "the same of September 2025 to April 2026",
    "megatron-core-mlperf": "the same as submitted to MLPerf Training 5.1 for LoRA, attention in FP8",
    "pytorch-bf16": "any PyTorch module, traced: everything in bfloat16, fused AdamW, without torch.compile",
    "transformers": "Hugging Face transformers 5 with Trainer(bf16=True): weights in float32, autocast, SDPA",
    "transformers-eager": "the same with eager attention",
    "transformers-bf16": "the same with SDPA and all weights in bfloat16",
    "transformers-bf16-eager": "the same with eager attention",
    "megatron-2023-fp32": "Megatron-LM in single precision (its logs: fp16 False, bf16 False, params float32)",
}
"""Training frameworks by version, with the precision and features that determine bytes and rates."""

ASYNCHRONOUS = "asynchronous tensor parallelism"
"""Part of the note of a case."""


@dataclass(frozen=True, slots=True)
class Case:
    """One plan for one model on some machines, with its measurements; None: not measured or not known.

    `row` is the line of the file; the header is line 1. `group` names comparable plans. `network` is the bandwidth of a
    node in one direction; `inside` is None if it is that of the GPU type. `fits`: False if out of memory, None if
    unknown. If a case is not `usable`, `note` has the reason. `arithmetic`: that of the products, if not the engine's.
    `knows_recompute`: whether the table states which activations were recomputed; if not, any setting may be assumed.
    """

    source: str
    row: int
    group: str
    model: ModelShape
    gpu: str
    gpus_on_node: tuple[int, ...]
    network: Link
    inside: Link | None
    engine: str
    plan: Plan
    micro_batch: int
    batch: int
    sequence: int
    cpus: float
    step_seconds: float | None
    memory_gib: float | None
    fits: bool | None
    note: str = ""
    usable: bool = True
    forward_seconds: float | None = None
    sync_seconds: float | None = None
    optimizer_seconds: float | None = None
    arithmetic: Arithmetic | None = None
    knows_recompute: bool = True
    tuning: Tuning = field(default_factory=Tuning)
    packed: int = 0

    def __post_init__(self) -> None:
        where = f"{self.source} line {self.row}"
        if self.engine not in ENGINES:
            raise UnknownName("engine", self.engine, ENGINES)
        measured = (self.step_seconds, self.memory_gib, self.forward_seconds, self.sync_seconds, self.optimizer_seconds)
        if not all(value is None or (isfinite(value) and value > 0) for value in measured):
            raise BadValue(f"{where}: measured values are {measured}, expected numbers > 0")
        if self.usable and self.plan.gpus != self.gpus:
            raise BadValue(f"{where}: {self.plan} is not for {self.gpus} GPUs")
        if self.usable and self.plan.data * self.plan.accumulation * self.micro_batch != self.batch:
            raise BadValue(
                f"{where}: {self.plan} with micro-batches of {self.micro_batch} does not give a batch of {self.batch}"
            )

    @property
    def asynchronous(self) -> bool:
        """Whether tensor-parallel communication is asynchronous, as the note says."""
        return ASYNCHRONOUS in self.note

    @property
    def gpus(self) -> int:
        """Total number of GPUs."""
        return sum(self.gpus_on_node)

    @property
    def tokens(self) -> int:
        """Tokens per step."""
        return self.batch * self.sequence

    def with_note(self, note: str, *, usable: bool = True) -> Case:
        """Return the case with another note; a case that is not usable stays so."""
        notes = "; ".join(part for part in (self.note, note) if part)
        return replace(self, note=notes, usable=self.usable and usable)


@dataclass(frozen=True, slots=True)
class Table:
    """A parsed file: its cases, and the reasons for excluded lines by line number."""

    name: str
    lines: int
    cases: tuple[Case, ...]
    excluded: Mapping[int, str] = field(default_factory=dict)


class Line(NamedTuple):
    """One line of a CSV file."""

    source: str
    number: int
    cells: Mapping[str, str]

    def text(self, *columns: str) -> str:
        """Return the first of these columns that is not empty."""
        return next((self.cells[column] for column in columns if self.cells.get(column)), "")

    def real(self, *columns: str) -> float:
        """Parse a number > 0, with units and thousands separators ('75GB', '664.64 (ms)', '5,762')."""
        found = re.search(r"\d[\d,]*\.?\d*(e\d+)?", self.text(*columns))
        if found is None or not float(found[0].replace(",", "")) > 0:
            raise BadRow(self.source, self.number, "/".join(columns), self.text(*columns), "a number > 0")
        return float(found[0].replace(",", ""))

    def integer(self, *columns: str) -> int:
        """Parse a number > 0, rounded to an integer."""
        return round(self.real(*columns))

    def optional(self, *columns: str) -> float | None:
        """Parse a number > 0; None if there is none."""
        return self.real(*columns) if re.search(r"[1-9]", self.text(*columns)) else None


def data_folder() -> Path | None:
    """Return the folder of the published tables: $REFOLD_DATA, or ../shared/data; None if it does not exist."""
    folder = Path(os.environ.get("REFOLD_DATA") or REPOSITORY.parent / "shared" / "data")
    return folder if folder.is_dir() else None


def load_table(name: str) -> Table:
    """Read a table by its name in TABLES."""
    if name not in TABLES:
        raise UnknownName("table", name, TABLES)
    folder = data_folder()
    if folder is None:
        raise BadFile(REPOSITORY.parent / "shared" / "data", "no such folder; set $REFOLD_DATA to another one")
    file, reader = TABLES[name]
    lines = list(read_lines(folder / file))
    return reader(name, lines)


def read_table(name: str) -> list[Case]:
    """Return the cases of a table, usable or not."""
    return list(load_table(name).cases)


def summary() -> None:
    """Print a line per table with the numbers of cases by use."""
    if data_folder() is None:
        print("the published tables are not available (../shared/data or $REFOLD_DATA)")
        return
    columns = ("table", "lines", "excluded", "cases", "usable", "timed", "memory", "out of memory", "unknown")
    rows = [columns, *(_counts(load_table(name)) for name in TABLES)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(columns))]
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def _counts(table: Table) -> tuple[str, ...]:
    usable = [case for case in table.cases if case.usable]
    counts = (
        table.lines,
        len(table.excluded),
        len(table.cases),
        len(usable),
        sum(case.step_seconds is not None for case in usable),
        sum(case.memory_gib is not None for case in usable),
        sum(case.fits is False for case in usable),
        sum(case.fits is None for case in usable),
    )
    return (table.name, *map(str, counts))


def read_lines(path: Path) -> Iterator[Line]:
    """Read the lines of a CSV file, without its header."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for number, cells in enumerate(csv.DictReader(file), start=2):
                yield Line(path.name, number, {column: (cell or "").strip() for column, cell in cells.items()})
    except OSError as error:
        raise BadFile(path, error.strerror or "cannot be read") from error


def _table_of(name: str, lines: Sequence[Line], read: Callable[[Line], Case]) -> Table:
    return Table(name, len(lines), _note_repeats(read(line) for line in lines))


def _note_repeats(cases: Iterable[Case]) -> tuple[Case, ...]:
    """Add a note to repeated runs; duplicates with the same time are not usable."""
    first: dict[object, Case] = {}
    noted = []
    for case in cases:
        key = (case.model, case.gpu, case.gpus_on_node, case.engine, case.plan, case.batch, case.sequence, case.cpus)
        earlier = first.setdefault(key, case)
        if earlier is case:
            noted.append(case)
        elif case.step_seconds is not None and case.step_seconds == earlier.step_seconds:
            noted.append(case.with_note(f"duplicate of line {earlier.row}", usable=False))
        else:
            noted.append(case.with_note(f"another run of line {earlier.row}"))
    return tuple(noted)


def _group(model: ModelShape, gpus: int, gpu: str, batch: int, sequence: int) -> str:
    return f"{model.name} on {gpus} {gpu}, batch {batch} × {sequence}"


def _gpt(name: str, layers: int, hidden: int, heads: int, vocabulary: int, positions: int) -> ModelShape:
    """Return a GPT as in Megatron: biases, learned positions, tied embeddings."""
    return ModelShape(name, layers=layers, hidden=hidden, heads=heads, vocabulary=vocabulary, positions=positions)


def _llama(name: str, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocabulary: int) -> ModelShape:
    return ModelShape(
        name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        ffn=ffn,
        gated=True,
        bias=False,
        vocabulary=vocabulary,
        tied=False,
    )


# The Ultra-Scale Playbook: nanotron on AWS p5 (8 H100 and 3200 Gb/s of EFA per node), sequence 4096. Its memory is in
# GiB: the largest values are 77.4, just below the 79.1 GiB of an H100; in GB they would leave 7 GiB unused.

_EFA = Link("efa", 400.0)
_NANOTRON = {
    "1B": _llama("1B", 16, 2048, 32, 0, 8192, 131_072),
    "8B": _llama("8B", 32, 4096, 32, 0, 14_336, 131_072),
    "80B": _llama("80B", 80, 8192, 64, 0, 28_672, 131_072),
}
_SLOW_FACTOR = 3.0
"""Plans this many times slower than a neighbour (half or twice the micro-batch, the other ZeRO stage) get a note."""


def _ultrascale(name: str, lines: Sequence[Line]) -> Table:
    excluded = {line.number: "gbs_consistent is False" for line in lines if line.text("gbs_consistent") != "True"}
    cases = _note_repeats(_nanotron_case(line) for line in lines if line.number not in excluded)
    ran = [case for case in cases if case.fits]
    return Table(name, len(lines), tuple(_note_slow(_with_crash_reason(case, ran), ran) for case in cases), excluded)


def _nanotron_case(line: Line) -> Case:
    pipeline, tensor, gpus, batch = (line.integer(column) for column in ("pp", "tp", "gpus", "gbs"))
    zero = int(line.text("zero") == "1")
    sequence, variant = line.integer("seq_len"), line.text("variant")
    model = _nanotron_shape(line.text("model"), variant, pipeline)
    plan = Plan(line.integer("dp"), tensor, pipeline, zero, sequence_parallel=tensor > 1)
    ok = line.text("status") == "ok"
    return Case(
        source=line.source,
        row=line.number,
        group=_group(model, gpus, "H100-80GB", batch, sequence),
        model=model,
        gpu="H100-80GB",
        gpus_on_node=(8,) * (gpus // 8),
        network=_EFA,
        inside=None,
        engine="nanotron",
        plan=msgspec.structs.replace(plan, accumulation=line.integer("grad_acc")),
        micro_batch=line.integer("mbs"),
        batch=batch,
        sequence=sequence,
        cpus=0.0,
        step_seconds=batch * sequence / line.real("tok_s") if ok else None,
        memory_gib=line.optional("peak_mem_gb"),
        fits=ok,
        note=variant if ok else "crashed or out of memory",
    )


def _nanotron_shape(size: str, variant: str, pipeline: int) -> ModelShape:
    """Return the shape; if the file has no variant (very slow runs), that of most others: 1B is not tied under PP."""
    shape = _NANOTRON[size]
    if "GQA" in variant:
        return msgspec.structs.replace(shape, name="70B GQA", kv_heads=8)
    tied = size == "1B" and (variant.startswith("tied") or (not variant and pipeline == 1))
    return msgspec.structs.replace(shape, tied=tied)


def _with_crash_reason(case: Case, ran: Sequence[Case]) -> Case:
    """Add the reason of a crash; without a better reason, a crashed run counts as out of memory."""
    if case.fits:
        return case
    plan = case.plan
    if plan.accumulation < plan.pipeline - 1:
        reason = "nanotron's pipeline needs more micro-batches"
    elif plan.pipeline > case.model.layers:
        reason = "more stages than layers"
    else:
        heavier = next((other for other in ran if _needs_at_least_memory_of(other, case)), None)
        if heavier is None:
            return case
        reason = f"a plan that needs at least as much memory ran: line {heavier.row}"
    return replace(case.with_note(reason), fits=None)


def _needs_at_least_memory_of(other: Case, case: Case) -> bool:
    """Return whether the other plan needs at least as much memory for weights, states, activations and logits."""
    theirs, ours = other.plan, case.plan
    states_no_less = theirs.zero == 0 or (ours.zero == 1 and theirs.data <= ours.data)
    return (
        other.model.name == case.model.name
        and theirs.tensor <= ours.tensor
        and theirs.pipeline <= ours.pipeline
        and states_no_less
        and other.micro_batch >= case.micro_batch
        and _stored_samples(other) >= _stored_samples(case)
    )


def _stored_samples(case: Case) -> float:
    """Return the number of samples whose activations the first stage stores, times its share of each."""
    plan = case.plan
    return case.micro_batch * min(plan.pipeline, plan.accumulation) / plan.pipeline / plan.tensor


def _note_slow(case: Case, ran: Sequence[Case]) -> Case:
    faster = [
        other for other in ran if case.fits and other.group == case.group and _is_neighbour(other.plan, case.plan)
    ]
    best = min(faster, key=lambda other: other.step_seconds or 0.0, default=None)
    if best is None or (case.step_seconds or 0.0) < _SLOW_FACTOR * (best.step_seconds or 0.0):
        return case
    return case.with_note(f"more than {_SLOW_FACTOR:g} times slower than line {best.row}")


def _is_neighbour(one: Plan, other: Plan) -> bool:
    if (one.data, one.tensor, one.pipeline) != (other.data, other.tensor, other.pipeline):
        return False
    few, many = sorted((one.accumulation, other.accumulation))
    return many == 2 * few if one.zero == other.zero else many == few


# llm-foundry: MPT with FSDP, 8 A100 and 1600 Gb/s of RoCE per node. NumParams matches these shapes with biases.

_MPT = {
    "125m": (12, 768, 12),
    "350m": (24, 1024, 16),
    "760m": (24, 1536, 12),
    "1b": (24, 2048, 16),
    "3b": (32, 2560, 20),
    "7b": (32, 4096, 32),
    "13b": (40, 5120, 40),
    "30b": (48, 7168, 56),
    "70b": (80, 8192, 64),
}
_SHARDED = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2}


def _llm_foundry(name: str, lines: Sequence[Line]) -> Table:
    return _table_of(name, lines, _mpt_case)


def _mpt_case(line: Line) -> Case:
    gpus, batch, micro_batch, accumulation, sequence = (
        line.integer(column) for column in ("# GPUs", "GlobalBatchSize", "MicroBatchSize", "GradAccum", "SeqLen (T)")
    )
    model = _gpt(f"MPT {line.text('Model')}", *_MPT[line.text("Model")], 50_368, sequence)
    gpu = {"a100_40gb": "A100-40GB", "a100_80gb": "A100-80GB"}[line.text("GPU")]
    recompute: Recompute = "full" if line.text("Activation Checkpointing") == "True" else "none"
    pure = line.text("MP Mode") == "PURE"
    consistent = gpus * accumulation * micro_batch == batch
    return Case(
        source=line.source,
        row=line.number,
        group=_group(model, gpus, gpu, batch, sequence),
        model=model,
        gpu=gpu,
        gpus_on_node=(8,) * (gpus // 8),
        network=Link("roce", 200.0),
        inside=None,
        engine="llm-foundry-pure" if pure else "llm-foundry",
        plan=Plan(gpus, zero=_SHARDED[line.text("Sharding Strategy")], recompute=recompute, accumulation=accumulation),
        micro_batch=micro_batch,
        batch=batch,
        sequence=sequence,
        cpus=0.0,
        step_seconds=batch * sequence / line.real("Throughput (T/s)"),
        memory_gib=None,
        fits=True,
        note="" if consistent else f"GPUs × micro-batch × accumulation is not {batch}",
        usable=consistent,
    )


# torchtitan, December 2024: 8 H100 per node, 400 Gb/s of RDMA each. These H100 have 96 GB of HBM2e at 2.4 TB/s and a
# limit of 500 W (benchmarks/llama3_h100_202412_torchtitan.md). "Selective" recomputes every other matrix product.

_LLAMA_3 = {
    "8B": _llama("Llama 3.1 8B", 32, 4096, 32, 8, 14_336, 128_256),
    "70B": _llama("Llama 3.1 70B", 80, 8192, 64, 8, 28_672, 128_256),
    "405B": _llama("Llama 3.1 405B", 126, 16_384, 128, 8, 53_248, 128_256),
}


def _torchtitan(name: str, lines: Sequence[Line]) -> Table:
    excluded = {line.number: "no measurement" for line in lines if not line.text("TPS/GPU")}
    cases = _note_repeats(_torchtitan_case(line) for line in lines if line.number not in excluded)
    return Table(name, len(lines), cases, excluded)


def _torchtitan_case(line: Line) -> Case:
    title = re.sub(r"^.*?(?=e \d\*\*)", "", line.text("context"))
    description = f"{title} {line.text('Techniques')} {line.text('Parallelism')}"
    model = _LLAMA_3[_search(r"3\.1 (\d+B)", title)]
    gpus, local = int(_search(r"(\d+) GPUs", title)), int(_search(r"Local batch size (\d+)", title))
    tensor, pipeline, context = (int(_search(rf"{part} ?(\d+)", description, "1")) for part in ("TP", "PP", "CP"))
    shards = int(_search(r"FSDP (\d+)", description, str(gpus)))
    sequence = line.integer("Sequence Length") if line.text("Sequence Length") else 8192
    batch = local * shards
    recompute: Recompute = "selective" if "Selective" in title else "full"
    zero = 3 if pipeline == 1 else 1  # with a pipeline, weights stay gathered and gradients are summed once per step
    plan = Plan(shards, tensor, pipeline, zero, recompute=recompute, sequence_parallel=tensor > 1)
    interleave = 2 if line.text("Schedule").startswith("Interleaved") else 1
    plan = msgspec.structs.replace(plan, accumulation=pipeline, interleave=interleave, context=context)
    memory = line.real("Memory(GiB)")
    case = Case(
        source=line.source,
        row=line.number,
        group=_group(model, gpus, "H100-96GB", batch, sequence),
        model=model,
        gpu="H100-96GB",
        gpus_on_node=(8,) * (gpus // 8),
        network=Link("rdma", 400.0),
        inside=None,
        engine="torchtitan-compile" if "torch.compile" in description else "torchtitan",
        plan=plan,
        micro_batch=local // pipeline,
        batch=batch,
        sequence=sequence,
        cpus=0.0,
        step_seconds=batch * sequence / (line.real("TPS/GPU") * gpus),
        memory_gib=memory,
        fits=True,
        note="H100 of 96 GB, 2.4 TB/s, 500 W",
        arithmetic="fp8" if "Float8" in description else "half",
    )
    case = case.with_note("selective: every other matrix product") if recompute == "selective" else case
    case = case.with_note(ASYNCHRONOUS) if "AsyncTP" in description else case
    return case.with_note("micro-batches not stated: as many as stages") if pipeline > 1 else case


def _search(pattern: str, text: str, default: str | None = None) -> str:
    found = re.search(pattern, text)
    if found is None and default is None:
        raise BadValue(f"{pattern!r} is not in {text!r}")
    return found[1] if found else default or ""


# DLPerf: Megatron-LM with --checkpoint-activations on V100-SXM2-16GB, one 100 Gb/s InfiniBand card per node (README).
# Its TFLOP/s are reproduced exactly with a vocabulary of 51,200 and a sequence of 2048.


def _dlperf(name: str, lines: Sequence[Line]) -> Table:
    return _table_of(name, lines, _dlperf_case)


def _dlperf_case(line: Line) -> Case:
    nodes, on_node, batch = (line.integer(name) for name in ("num-nodes", "num-gpus-per-node", "global-batch-size"))
    layers, hidden, heads = (line.integer(name) for name in ("num-layers", "hidden-size", "num-attention-heads"))
    model = _gpt(f"GPT {layers}×{hidden}", layers, hidden, heads, 51_200, 2048)
    data, tensor, pipeline = (
        line.integer(f"{kind}-parallel-size") for kind in ("data", "tensor-model", "pipeline-model")
    )
    return Case(
        source=line.source,
        row=line.number,
        group=_group(model, nodes * on_node, "V100-16GB", batch, 2048),
        model=model,
        gpu="V100-16GB",
        gpus_on_node=(on_node,) * nodes,
        network=Link("infiniband", 12.5),
        inside=None,
        engine="megatron-2021",
        plan=Plan(data, tensor, pipeline, recompute="full", accumulation=line.integer("num-accumulation-steps")),
        micro_batch=line.integer("micro-batch-size"),
        batch=batch,
        sequence=2048,
        cpus=0.0,
        step_seconds=line.real("lantency") / 1000,
        memory_gib=None,
        fits=True,
    )


# Korthikanti et al. 2022, tables 3 and 5, figure 1: DGX A100, 8 HDR cards of 200 Gb/s each. The memory in the figure is
# calculated by the authors (18 bytes per parameter of the layers, and activations), not measured.

_RECOMPUTATION: dict[str, tuple[Recompute, bool]] = {
    "none": ("none", False),
    "full": ("full", False),
    "seqpar+selective": ("selective", True),
}


def _korthikanti(name: str, lines: Sequence[Line]) -> Table:
    return _table_of(name, lines, _korthikanti_case)


def _korthikanti_case(line: Line) -> Case:
    layers, hidden, heads, gpus, batch, sequence = (
        line.integer(column) for column in ("layers", "hidden", "heads", "gpus", "gbs", "seq_len")
    )
    model = _gpt(line.text("model"), layers, hidden, heads, 51_200, sequence)
    recompute, sequence_parallel = _RECOMPUTATION[line.text("recompute")]
    data, micro_batch = line.integer("dp"), line.integer("mbs")
    return Case(
        source=line.source,
        row=line.number,
        group=_group(model, gpus, "A100-80GB", batch, sequence),
        model=model,
        gpu="A100-80GB",
        gpus_on_node=(8,) * (gpus // 8),
        network=Link("infiniband", 200.0),
        inside=None,
        engine="megatron-2022",
        plan=Plan(
            data,
            line.integer("tp"),
            line.integer("pp"),
            recompute=recompute,
            accumulation=batch // (data * micro_batch),
            interleave=line.integer("vpp"),
            sequence_parallel=sequence_parallel,
        ),
        micro_batch=micro_batch,
        batch=batch,
        sequence=sequence,
        cpus=0.0,
        step_seconds=line.real("iter_time_s"),
        memory_gib=None,
        fits=True,
    )


def _korthikanti_memory(name: str, lines: Sequence[Line]) -> Table:
    timed = {case.model.name: case for case in read_table("korthikanti2022_table5")}

    def read(line: Line) -> Case:
        case = timed[line.text("model")]
        recompute, sequence_parallel = _RECOMPUTATION[line.text("recompute")]
        return replace(
            case,
            source=line.source,
            row=line.number,
            plan=msgspec.structs.replace(case.plan, recompute=recompute, sequence_parallel=sequence_parallel),
            step_seconds=None,
            memory_gib=line.real("params_optimizer_gib") + line.real("activations_gib"),
            fits=None,
            note="calculated by the authors: layers only, no buffers",
        )

    return _table_of(name, lines, read)


# BigScience on Jean Zay: nodes of 4 V100 (40 cores) or 8 A100 (64 cores), four Omni-Path cards of 100 Gb/s each. Shapes
# and settings are from the documents and scripts of github bigscience-workshop/bigscience. On the V100 "an identical
# test scored 40% faster or slower at different times of the day" (experiments/gpt2.md). Memory is from nvidia-smi, in
# whole GiB, including 1.1 to 1.5 GiB of CUDA itself and the allocator's reserve.

_OMNI_PATH = Link("omni-path", 50.0)
_NODE = {"V100-16GB": (4, 40), "V100-32GB": (4, 40), "A100-80GB": (8, 64)}
_GPT_2 = {
    "7.5B": (36, 4096),
    "18B": (40, 6144),
    "22B": (32, 8192),
    "25B": (40, 7168),
    "30B": (48, 7168),
    "39B": (48, 8192),
    "50B": (64, 8192),
    "52B": (64, 8192),
    "65B": (64, 9216),
    "78B": (64, 10_240),
    "97B": (64, 11_264),
    "116B": (64, 12_288),
    "206B": (64, 16_384),
}
"""Layers and hidden width by size, from the scripts experiments/gpt2-*/*.slurm; 32 heads."""

_BLOOM = {
    "176B": (70, 14_336),
    "177B": (96, 12_288),
    "178B": (82, 13_312),
    "181B": (72, 14_336),
    "183B": (72, 14_400),
    "187B": (80, 13_824),
    "191B": (77, 14_400),
    "194B": (78, 14_400),
    "195B": (77, 14_400),
    "200B": (80, 14_400),
    "205B": (81, 14_400),
}
"""The same for BLOOM candidates, if neither columns nor context state it; the TFLOPs column confirms each."""

_CORRECTED: dict[int, tuple[dict[str, str], str]] = {
    3: ({}, "ran out of memory after 60 steps"),
    4: ({}, "ran out of memory after 60 steps"),
    52: ({"PP": "16"}, "PP is stated as 8, but the context and 64 GPUs imply 16"),
    174: ({"DP": "4"}, "DP is stated as 8, but 40 nodes allow only 4"),
    175: ({"GBS": "512"}, "GBS is stated as 2048, but the context and the TFLOPs imply 512"),
    176: ({"GBS": "512"}, "GBS is stated as 2048, but the context and the TFLOPs imply 512"),
    177: ({"GBS": "512"}, "GBS is stated as 2048, but the context and the TFLOPs imply 512"),
    252: ({"NHIDDEN": "12288", "Layers": "106"}, "shape from chronicles-prequel.md"),
    253: ({"NHIDDEN": "12288", "Layers": "106"}, "shape from chronicles-prequel.md"),
}
_UNUSABLE = {
    7: "the log of this run has other degrees: TP 2, no pipeline, ZeRO 3, micro-batches of 16",
    124: "8-bit Adam",
    125: "8-bit Adam",
    126: "8-bit Adam",
    127: "8-bit Adam",
    178: "duplicate of line 164 with time and rate swapped",
}
_EXCLUDED = {
    60: "the shape of the 24B model is not stated",
    61: "the shape of the 24B model is not stated",
    92: "no batch; killed because of host memory",
    **dict.fromkeys(range(120, 124), "ran with a wrong, unknown FFN width: about 58B (experiments/tr8-104B.md)"),
    250: "no measurements",
}
_MAX_RATE_ERROR = 0.10
"""Rows whose stated TFLOP/s differ by more than this from those of their model, batch and time are inconsistent."""


class Sweep(NamedTuple):
    """The common columns of the tables of BigScience."""

    model: ModelShape
    gpu: str
    engine: str
    plan: Plan
    batch: int
    sequence: int
    micro_batch: int
    memory_column: tuple[str, ...] = ("GPU M", "Mem")
    note: str = ""
    memory_expressible: bool = True


def _bigscience(name: str, lines: Sequence[Line]) -> Table:
    cases = [_sweep_case(line) for line in lines if line.number not in _EXCLUDED]
    return Table(name, len(lines), _note_repeats(cases), _EXCLUDED)


def _sweep_case(line: Line) -> Case:
    corrections, note = _CORRECTED.get(line.number, ({}, ""))
    line = line._replace(cells={**line.cells, **corrections})
    sweep = _sweep(line)
    on_node, cores = _NODE[sweep.gpu]
    nodes = line.integer("GPUs") // on_node if line.text("GPUs") else line.integer("NNODES", "Nodes")
    seconds = _seconds(line)
    memory = re.search(r"(\d+(\.\d+)?)GB", line.text(*sweep.memory_column)) if seconds else None
    fits = bool(seconds) if sweep.memory_expressible or not seconds else None
    case = Case(
        source=line.source,
        row=line.number,
        group=_group(sweep.model, nodes * on_node, sweep.gpu, sweep.batch, sweep.sequence),
        model=sweep.model,
        gpu=sweep.gpu,
        gpus_on_node=(on_node,) * nodes,
        network=_OMNI_PATH,
        inside=None,
        engine=sweep.engine,
        plan=sweep.plan,
        micro_batch=sweep.micro_batch,
        batch=sweep.batch,
        sequence=sweep.sequence,
        cpus=float(cores * nodes),
        step_seconds=seconds,
        memory_gib=float(memory[1]) if memory else None,
        fits=fits,
        usable=False,
    )
    reasons = [_UNUSABLE.get(line.number, ""), *_contradictions(case, line.optional("TFlops", "TFLOPs"))]
    notes = (sweep.note, note, *reasons)
    return replace(case, note="; ".join(filter(None, notes)), usable=not any(reasons))


def _seconds(line: Line) -> float | None:
    text = line.text("Speed", "Sec/it", "Throughput")
    found = re.match(r"\d+(\.\d+)?", text)
    if found is None and "OOM" not in text + line.text("Mem", "Notes"):
        raise BadRow(line.source, line.number, "Speed", text, "seconds, or OOM somewhere")
    return float(found[0]) / (1000 if text.endswith("ms") else 1) if found else None


def _contradictions(case: Case, tflops: float | None) -> Iterator[str]:
    plan = case.plan
    if plan.gpus != case.gpus:
        yield f"TP × PP × DP is {plan.gpus}, not {case.gpus}"
    if plan.data * plan.accumulation * case.micro_batch != case.batch:
        yield f"DP × accumulation × micro-batch is not {case.batch}"
    if tflops and case.step_seconds:
        rates = [flops / case.step_seconds / case.gpus / 1e12 for flops in _flops_by_authors(case)]
        if all(abs(rate / tflops - 1) > _MAX_RATE_ERROR for rate in rates):
            yield f"{tflops:g} TFLOPs are stated, but model, batch and time give {rates[0]:.1f} to {rates[1]:.1f}"


def _flops_by_authors(case: Case) -> tuple[float, float]:
    """Return FLOPs per step by the two formulas in use.

    2 per weight, token and pass; and Narayanan et al. 2021: 96 B s l h² (1 + s/6h + V/16lh) for four passes.
    """
    model, passes = case.model, 4 if case.plan.recompute == "full" else 3
    layers, hidden = model.layers, model.hidden
    ends = 1 + case.sequence / (6 * hidden) + model.vocabulary / (16 * layers * hidden)
    return 2 * passes * model.parameters * case.tokens, 24 * passes * case.tokens * layers * hidden**2 * ends


def _sweep(line: Line) -> Sweep:
    document = line.text("section").split(" > ")[0]
    readers = {
        "experiments/gpt2-16gb-nodes.md": _gpt_2_sweep,
        "experiments/gpt2.md": _gpt_2_sweep,
        "experiments/tr3m-1B3.md": _tr3_sweep,
        "experiments/tr8-104B.md": _tr8_sweep,
        "train/tr11-176B-ml/chronicles-prequel.md": _tr11_sweep,
    }
    if document not in readers:
        raise BadRow(line.source, line.number, "section", document, f"one of {', '.join(readers)}")
    return readers[document](line)


def _gpt_2_sweep(line: Line) -> Sweep:
    """Parse GPT-2: TP is 4 without a column (as documented); always activation checkpointing, sequence 1024."""
    section, context = line.text("section"), line.text("context")
    layers, hidden = _GPT_2[line.text("Size")]
    model = _gpt(f"GPT {layers}×{hidden}", layers, hidden, 32, 50_257, 1024)
    gpu = "V100-16GB" if "16gb" in section or "16GB nodes" in context else "V100-32GB"
    micro_batch = line.integer("MBS", "Mic-BS", "Micro-BS")
    chunks = line.optional("GAS", "PP Chunks", "PP chunks")
    data = line.integer("DP") if line.text("DP") else line.integer("GPUs")
    batch = line.integer("GBS", "Glob-BS") if line.text("GBS", "Glob-BS") else round(micro_batch * (chunks or 1) * data)
    tensor = line.integer("TP") if line.text("TP") else 4
    pipeline = line.integer("PP") if line.text("PP") else 1
    plan = Plan(data, tensor, pipeline, recompute="full", accumulation=round(chunks or 1))
    sweep = Sweep(model, gpu, "megatron-2021", plan, batch, 1024, micro_batch)
    if "HF + Deepspeed" in section:
        return _hf_sweep(line, sweep)
    if "ZeRO (old branch)" in section:
        return _zero_sweep(line, sweep)
    if "3D (old branch)" in section or line.text("DS") == "Y":
        zero = 1 if data > 1 else 0
        return sweep._replace(engine="deepspeed-2021", plan=msgspec.structs.replace(plan, zero=zero))
    return sweep


def _hf_sweep(line: Line, sweep: Sweep) -> Sweep:
    """Parse transformers + DeepSpeed: without a column, everything is offloaded ('Zero 3 + Full Offload')."""
    offload = line.text("Opt Offl") in ("Y", "")
    plan = msgspec.structs.replace(sweep.plan, tensor=1, zero=3, offload=offload)
    return sweep._replace(engine="hf-deepspeed-2021", plan=plan)


def _zero_sweep(line: Line, sweep: Sweep) -> Sweep:
    """Parse ZeRO 3 with TP; meg_ds_zero_gpt2_perf_n16.slurm has --checkpoint-in-cpu unless stated otherwise."""
    removed = line.text("PA_CPU") == "N" or (
        not line.text("PA_CPU") and "removed  `--checkpoint" in line.text("context")
    )
    plan = msgspec.structs.replace(sweep.plan, zero=3, offload="full cpu offload" in line.text("context"))
    note = "" if removed else "activation checkpoints in host memory"
    return sweep._replace(engine="deepspeed-2021", plan=plan, note=note, memory_expressible=removed)


def _tr3_sweep(line: Line) -> Sweep:
    """Parse tr3m (tr3m-1B3-emb-norm-pile.slurm): ZeRO 1, batch 512 of 2048 tokens; memory is in the notes."""
    gpu = "V100-16GB" if "16GB node" in line.text("section") else "V100-32GB"
    recompute: Recompute = "none" if "After removing" in line.text("context") else "full"
    model = _gpt("GPT 24×2048", 24, 2048, 16, 50_257, 2048)
    return _with_degrees(
        line, Sweep(model, gpu, "deepspeed-2021", Plan(zero=1, recompute=recompute), 512, 2048, 0, ("Notes",))
    )


def _tr8_sweep(line: Line) -> Sweep:
    """Parse the 104B with 64 layers (required by PP 64; see chronicles-prequel.md); batch 2048 of 2048 tokens."""
    model = _gpt("GPT 64×11600", 64, 11_600, 80, 50_257, 2048)
    plan = Plan(zero=1, recompute="full")
    return _with_degrees(line, Sweep(model, "V100-32GB", "deepspeed-2021", plan, 2048, 2048, 0, ("Notes",)))


def _tr11_sweep(line: Line) -> Sweep:
    """Parse tr11: ZeRO 1, activation checkpointing, vocabulary 250,880; 64 heads unless stated ('above too')."""
    context = line.text("context")
    layers, hidden = _BLOOM.get(line.text("Size"), (0, 0))
    layers = int(line.text("Layers") or _search(r"NLAYERS=(\d+)", context, str(layers)))
    hidden = int(line.text("NHIDDEN") or _search(r"HIDDEN=(\d+)", context, str(hidden)))
    heads = int(line.text("NHEADS") or (96 if hidden == 14_400 else 64))
    model = _gpt(f"GPT {layers}×{hidden}, {heads} heads", layers, hidden, heads, 250_880, 2048)
    engine = "deepspeed-2022-bf16" if line.text("Notes").startswith("02-28") else "deepspeed-2022"
    plan = Plan(zero=0 if line.text("ZS") == "0" else 1, recompute="full")
    return _with_degrees(line, Sweep(model, "A100-80GB", engine, plan, line.integer("GBS"), 2048, 0))


def _with_degrees(line: Line, sweep: Sweep) -> Sweep:
    """Return the sweep with parallel degrees and micro-batch from the columns, and the resulting accumulation."""
    micro_batch = line.integer("MBS")
    data = line.integer("DP") if line.text("DP") else 1
    plan = msgspec.structs.replace(
        sweep.plan,
        data=data,
        tensor=line.integer("TP"),
        pipeline=line.integer("PP"),
        accumulation=max(1, sweep.batch // (data * micro_batch)),
    )
    return sweep._replace(plan=plan, micro_batch=micro_batch)


# Rubick's measurements: 8 A800 per node, NVLink with 200 GB/s per direction, 100 GB/s of RDMA, single precision. Shapes
# are from the authors' validation scripts (hidden × sequence × layers), consistent with the parallel degrees and the
# stated parameter counts; the layers of the T5 are not stated and are chosen to match its count.

_NVLINK_A800 = Link("nvlink", 200.0)
_RDMA = Link("rdma", 100.0)
_RUBICK = {
    "ViT-base": ModelShape(
        "ViT-base", "vit", layers=12, hidden=768, heads=12, positions=197, sequence=197, parameters_stated=85_952_456
    ),
    "RoBERTa-large": ModelShape(
        "RoBERTa-large",
        "encoder",
        layers=24,
        hidden=1024,
        heads=16,
        vocabulary=50_265,
        positions=514,
        sequence=512,
        parameters_stated=355_412_057,
    ),
    "BERT-336M": ModelShape(
        "BERT-336M",
        "encoder",
        layers=24,
        hidden=1024,
        heads=16,
        vocabulary=30_522,
        positions=512,
        sequence=512,
        parameters_stated=336_297_858,
    ),
    "T5-1.2B": ModelShape(
        "T5-1.2B",
        "encoder-decoder",
        layers=40,
        encoder_layers=40,
        hidden=1024,
        heads=16,
        bias=False,
        vocabulary=32_128,
        tied=False,
        sequence=512,
        parameters_stated=1_240_809_472,
    ),
    "T5-3B": ModelShape(
        "T5-3B",
        "encoder-decoder",
        layers=24,
        encoder_layers=24,
        hidden=1024,
        heads=32,
        head_size=128,
        ffn=16_384,
        bias=False,
        vocabulary=32_128,
        sequence=512,
    ),
    "GPT-2 1.5B": ModelShape(
        "GPT-2 1.5B",
        layers=48,
        hidden=1600,
        heads=25,
        vocabulary=50_257,
        positions=1024,
        sequence=1024,
        parameters_stated=1_557_686_400,
    ),
    "LLaMA-2-7B": msgspec.structs.replace(
        _llama("LLaMA-2-7B", 32, 4096, 32, 0, 11_008, 32_000), sequence=2048, parameters_stated=6_738_423_808
    ),
    "LLaMA-30B": msgspec.structs.replace(
        _llama("LLaMA-30B", 60, 6656, 52, 0, 17_920, 32_000), sequence=2048, parameters_stated=33_170_309_120
    ),
}
_OFFLOAD_THREADS = 4
"""CPU threads per GPU with ZeRO-Offload if the file has none, from the authors' scripts and profiles."""


def _rubick(name: str, lines: Sequence[Line]) -> Table:
    excluded = {line.number: "no iteration time" for line in lines if not line.text("iter_time_s")}
    cases = _note_repeats(_rubick_case(line) for line in lines if line.number not in excluded)
    return Table(name, len(lines), cases, excluded)


def _rubick_case(line: Line) -> Case:
    model, gpus = _RUBICK[line.text("model")], line.integer("gpus")
    batch = line.integer("global_batch") if line.text("global_batch") else 4
    plan, note, usable = _rubick_plan(line, batch)
    threads = line.optional("cpu_threads") or (_OFFLOAD_THREADS if plan.offload else 0)
    in_seconds = line.text("table") in ("vit", "roberta") or (line.text("table") == "llama7" and plan.offload)
    parts = [line.optional(column) for column in ("forward", "overlap_sync", "optimize")]
    forward, sync, optimizer = (part and part / (1 if in_seconds else 1000) for part in parts)
    return Case(
        source=line.source,
        row=line.number,
        group=_group(model, gpus, "A800-80GB", batch, model.sequence),
        model=model,
        gpu="A800-80GB",
        gpus_on_node=tuple(map(int, line.text("placement"))),
        network=_RDMA,
        inside=_NVLINK_A800,
        engine="megatron-2023-fp32" if line.text("tp") else "deepspeed-2023-fp32",
        plan=plan,
        micro_batch=batch // (plan.data * plan.accumulation),
        batch=batch,
        sequence=model.sequence,
        cpus=threads * gpus,
        step_seconds=line.real("iter_time_s"),
        memory_gib=None,
        fits=True,
        note=note,
        usable=usable,
        forward_seconds=forward,
        sync_seconds=sync,
        optimizer_seconds=optimizer,
    )


def _rubick_plan(line: Line, batch: int) -> tuple[Plan, str, bool]:
    """Return the plan, a note, and whether the row is usable."""
    table, code, gpus = line.text("table"), line.text("exec_plan"), line.integer("gpus")
    if table == "t5_3B":
        tensor = Plan(tensor=gpus, accumulation=2)
        return tensor if code == "tp+ga" else plan_from_code(code, gpus), "shape and plan are not stated", False
    if code == "zero-offload+gc" or (table == "llama7" and code == "zero-offload"):
        return Plan(gpus, zero=2, offload=True, recompute="full"), "gradient checkpointing, as in Table 2", True
    plan = plan_from_code(code, gpus)
    if table == "llama7b_bsz16":
        plan = msgspec.structs.replace(plan, accumulation=batch // plan.data)
        return plan, "micro-batches not stated: one sample assumed", True
    if line.text("tp"):
        shape = "; a Megatron T5 of unknown depth" if table == "t5" else ""
        return plan, f"one micro-batch: time does not decrease with more stages{shape}", True
    if table == "gpt2" and code == "zero-dp" and gpus <= 2:
        return msgspec.structs.replace(plan, accumulation=8 // gpus), "accumulates as in validate_gpt.py", True
    if table == "roberta" and gpus == 1 and code != "gc":
        return plan, "not slower than on two GPUs: probably run with half the batch", False
    note = "the forward time is only its launch time" if table in ("vit", "roberta") else ""
    if code == "ga":  # times equal the profiling samples of plain data parallelism to the millisecond
        plan, note = Plan(gpus), "; ".join(filter(None, (note, "one micro-batch, as in the profile")))
    return plan, note, True


TABLES: Mapping[str, tuple[str, Callable[[str, Sequence[Line]], Table]]] = {
    "ultrascale_h100": ("perf/ultrascale_h100.csv", _ultrascale),
    "llm_foundry_a100": ("perf/llm_foundry_a100.csv", _llm_foundry),
    "bigscience_sweeps": ("perf/bigscience_sweeps.csv", _bigscience),
    "torchtitan_docs": ("perf/torchtitan_docs_2025-01.csv", _torchtitan),
    "dlperf_megatron_v100": ("perf/dlperf_megatron_v100.csv", _dlperf),
    "korthikanti2022_table5": ("perf/korthikanti2022_table5_a100.csv", _korthikanti),
    "korthikanti2022_fig1_memory": ("perf/korthikanti2022_fig1_memory.csv", _korthikanti_memory),
    "rubick_measured": ("rubick/measured_iter_times.csv", _rubick),
}


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m benchmarks.accuracy.tables", description=__doc__).parse_args()
    summary()
