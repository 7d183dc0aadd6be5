"""Options of the commands about plans: model, machines, limits on plans."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from refold.cli import argument, option, switch
from refold.cli.inputs.plan_values import MAX_AMOUNT, parse_gib, parse_gpus, parse_network, parse_pins
from refold.errors import BadInput, UnknownName
from refold.model import plural

if TYPE_CHECKING:
    from refold.model import LaunchEngine
    from refold.planning.perf import Engine, GpuSpec, Machines, ModelShape, Precision, Tuning
    from refold.planning.plans import Pins, PlanLimits, Task

MAX_CURVE_GPUS = 4096
"""Largest number of GPUs of a curve: more would take minutes to compute."""


def _complete_models(incomplete: str) -> list[str]:
    """Return catalogue models and matching files: the shell completes files itself only without other completions."""
    from refold.planning.catalogue import model_names

    known = [name for name in model_names() if name.startswith(incomplete)]
    return known + sorted(path.name for path in Path().glob(f"{incomplete}*")) if known else []


def _complete_optimizers(incomplete: str) -> list[str]:
    return [name for name in ("adamw", "adamw-8bit") if name.startswith(incomplete)]


def _complete_engines(incomplete: str) -> list[str]:
    from refold.planning.catalogue import engines

    return [engine.name for engine in engines() if engine.name.startswith(incomplete)]


def _complete_precisions(incomplete: str) -> list[str]:
    from typing import get_args

    from refold.planning.perf import Precision

    return [name for name in get_args(Precision) if name.startswith(incomplete)]


def _complete_gpu_types(incomplete: str) -> list[str]:
    from refold.planning.catalogue import gpu_names

    return [name for name in gpu_names() if name.startswith(incomplete)]


def _complete_gpus(incomplete: str) -> list[str]:
    """Complete '8xA10' to '8xA100-80GB'; without a count there is nothing to complete."""
    count = re.match(r"\d+[x×]", incomplete)
    return [count[0] + name for name in _complete_gpu_types(incomplete[count.end() :])] if count else []


ModelName = Annotated[
    str,
    argument(
        "MODEL",
        "Model name (see 'refold models'), config.json or its folder, YAML file, or Python file with a module.",
        complete=_complete_models,
    ),
]
GpuTypeName = Annotated[str | None, option("TYPE", "GPU type.", "--gpu", complete=_complete_gpu_types)]
NetworkRate = Annotated[
    str | None, option("RATE", "Bandwidth per node, such as 100GB/s or 800Gb/s (default: by GPU type).", "--network")
]
EngineName = Annotated[
    str, option("NAME", "Training framework (see 'refold engines').", "--engine", complete=_complete_engines)
]


@dataclass(frozen=True, slots=True)
class MachineOptions:
    """The machines of `refold plan`."""

    gpus: Annotated[
        str,
        option(
            "COUNTxTYPE",
            "GPUs, such as 8xA100-80GB, A100-80GB:8, or 2x8:A100-80GB for two nodes (see 'refold gpus').",
            complete=_complete_gpus,
        ),
    ]
    nodes: Annotated[int | None, option("N", "Number of nodes (default: as few as possible).", min=1)] = None
    cpus: Annotated[
        float | None, option("N", "Total CPU threads of all nodes (default: 8 per GPU).", min=0.001, max=MAX_AMOUNT)
    ] = None
    host_memory: Annotated[
        str | None, option("SIZE", "Total memory of all nodes, such as 1600GB (default: no limit).")
    ] = None
    network: NetworkRate = None
    margin: Annotated[
        float | None,
        option(
            "PERCENT",
            "Share of GPU memory to leave free, for fragmentation of the allocator (default: 6).",
            min=0,
            max=90,
        ),
    ] = None

    def parse(self) -> Machines:
        from msgspec.structs import replace

        from refold.planning.catalogue import find_gpu
        from refold.planning.perf import build_machines

        count, name, on_nodes = parse_gpus(self.gpus)
        if on_nodes and self.nodes not in (None, on_nodes):
            both = f"--gpus {self.gpus} has {on_nodes} nodes but --nodes is {self.nodes}"
            raise BadInput(f"{both}: leave one of them out")
        nodes = self.nodes or on_nodes
        gpu = find_gpu(name)
        if nodes > count:
            raise BadInput(f"--nodes {nodes}: expected at most {count} nodes for {count} GPUs")
        memory = parse_gib(self.host_memory) if self.host_memory is not None else 0.0
        machines = build_machines(gpu, count, nodes=nodes, cpus=self.cpus or 0.0, memory_gib=memory)
        if self.margin is not None:
            machines = replace(machines, margin=self.margin / 100)
        if self.network is None:
            return machines
        if machines.nodes == 1:
            raise BadInput(
                f"--network {self.network} has no effect on one node; use --nodes 2 to spread the GPUs over two"
            )
        return replace(machines, network=parse_network(self.network))


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """The batch and the framework of a training."""

    batch: Annotated[
        int | None, option("N", "Global batch size in samples (default: the model's).", min=1, max=MAX_AMOUNT)
    ] = None
    seq: Annotated[
        int | None, option("N", "Sequence length in tokens (default: the model's).", min=1, max=MAX_AMOUNT)
    ] = None
    engine: Annotated[
        str | None,
        option(
            "NAME",
            "Training framework (see 'refold engines'; default: by model, GPUs and what is trained).",
            complete=_complete_engines,
        ),
    ] = None
    precision: Annotated[
        str | None,
        option(
            "NAME",
            "Precision of the matrix products of layers: bf16, fp8, mxfp8 or nvfp4 (default: the engine's).",
            complete=_complete_precisions,
        ),
    ] = None
    async_tp: Annotated[
        bool, switch("--async-tp", "Tensor-parallel communication overlaps with products (asynchronous TP).")
    ] = False
    cuda_graphs: Annotated[
        bool, switch("--cuda-graphs", "CUDA graphs launch the kernels of layers, besides those of experts.")
    ] = False

    def resolve_engine(
        self, shape: ModelShape, gpu: GpuSpec, gpus: int, task: Task, known: str | None = None
    ) -> tuple[Engine, list[str]]:
        """Return the framework in the precision that was asked for, and a note if it was not given.

        `known`: the framework that other options give.
        """
        from refold.planning.catalogue import find_engine
        from refold.planning.plans import default_engine

        precision = self._parse_precision()
        if name := known or self.engine:
            engine, notes = find_engine(name), []
        else:
            engine, reason = default_engine(shape, gpu, gpus, task._replace(precision=precision))
            notes = [f"assuming --engine {engine.name}, the default for {reason}"]
        if engine.released and gpu.released > engine.released:
            notes.append(
                f"{engine.label} is older than {gpu.name} ({gpu.released}): it was not fitted to this GPU type"
            )
        if self.async_tp:
            engine = engine.with_asynchronous_tensor()
        if self.cuda_graphs:
            engine = engine.with_cuda_graphs()
        return engine if precision is None else engine.with_precision(precision), notes

    def _parse_precision(self) -> Precision | None:
        from typing import get_args

        from refold.planning.perf import Precision

        if self.precision is None:
            return None
        for known in get_args(Precision):
            if known == self.precision.casefold():
                precision: Precision = known
                return precision
        raise UnknownName("precision", self.precision, get_args(Precision))

    def resolve_sizes(
        self, shape: ModelShape, gpus: int = 1, tuning: Tuning | None = None
    ) -> tuple[int, int, list[str]]:
        """Return the batch size and sequence length with the defaults of the task filled in, and notes on these."""
        from refold.planning.perf import Tuning
        from refold.planning.plans import default_sizes

        batch, sequence = self.batch, self.seq
        if shape.opaque and sequence is not None:
            raise BadInput(f"--seq {sequence} has no effect: {shape.name} is known only by its totals per sample")
        assumed, default = [], default_sizes(shape, gpus, tuning or Tuning())
        if batch is None:
            assumed.append(f"--batch {default.batch}")
        if sequence is None and not shape.opaque:
            assumed.append(f"--seq {default.sequence}")
        notes = []
        if assumed:
            notes.append(f"assuming {' '.join(assumed)}, the {plural(len(assumed), 'default')} for {default.reason}")
        if sequence is not None and 0 < shape.positions < sequence:
            notes.append(
                f"{shape.name} has position embeddings for {shape.positions:,} tokens, but --seq is {sequence:,}"
            )
        return batch or default.batch, sequence or default.sequence, notes


MAX_RANK = 65_536
"""Largest rank of LoRA adapters."""

DEFAULT_RANK = 16
"""The rank of QLoRA's adapters if none is given."""


@dataclass(frozen=True, slots=True)
class TuningOptions:
    lora: Annotated[
        int | None, option("RANK", "Train LoRA adapters of this rank, all else frozen.", min=1, max=MAX_RANK)
    ] = None
    qlora: Annotated[
        bool, switch("--qlora", "Store frozen weights in 4 bits (QLoRA; default: adapters of rank 16).")
    ] = False
    stored_weights: Annotated[
        bool, switch("--stored-weights", "Store frozen weights in the precision of the products (--precision).")
    ] = False
    lora_layers: Annotated[str, option("all|attention", "Linear layers with adapters (default: all).")] = "all"
    frozen_layers: Annotated[int, option("N", "Do not train the first N layers and the embedding.", min=0)] = 0
    packing: Annotated[
        int | None,
        option(
            "TOKENS",
            "Sequences are filled with samples of so many tokens on average, which do not attend to each other.",
            min=1,
            max=MAX_AMOUNT,
        ),
    ] = None
    optimizer: Annotated[
        str, option("NAME", "Optimizer: adamw, or adamw-8bit with moments in 8 bits.", complete=_complete_optimizers)
    ] = "adamw"

    def parse(self) -> tuple[Tuning, list[str]]:
        """Return what is trained, and notes on what was assumed."""
        from typing import get_args

        from msgspec import convert

        from refold.planning.perf import AdaptedLayers, Optimizer, Tuning

        if self.lora_layers not in get_args(AdaptedLayers):
            raise UnknownName("kind of layers", self.lora_layers, get_args(AdaptedLayers))
        if self.lora_layers != "all" and not (self.lora or self.qlora):
            raise BadInput("--lora-layers says which layers have adapters: give their rank with --lora or --qlora")
        if self.stored_weights and (self.qlora or not self.lora):
            raise BadInput("--stored-weights is for weights that --lora leaves frozen, and not for --qlora")
        if self.optimizer not in get_args(Optimizer):
            raise UnknownName("optimizer", self.optimizer, get_args(Optimizer))
        assumed = self.qlora and self.lora is None
        rank = DEFAULT_RANK if assumed else self.lora or 0
        layers = convert(self.lora_layers, AdaptedLayers)
        optimizer = convert(self.optimizer, Optimizer)
        tuning = Tuning(rank, self.qlora, optimizer, self.frozen_layers, layers, self.stored_weights)
        return tuning, [f"assuming --lora {rank} for --qlora"] if assumed else []


@dataclass(frozen=True, slots=True)
class PlanLimitOptions:
    pin: Annotated[str | None, option("PLAN", "Fix part of the plan, such as 'tp4 zero1'.")] = None
    no_offload: Annotated[bool, switch("--no-offload", "Exclude plans with offload to the host.")] = False
    tensor_across_nodes: Annotated[
        bool, switch("--tensor-across-nodes", "Allow tensor-parallel groups that span nodes.")
    ] = False
    uneven: Annotated[
        bool | None,
        switch(
            "--uneven/--even",
            "Whether pipeline stages may differ by one layer (default: they may, but not with --launch).",
        ),
    ] = None

    def parse(
        self, sequence: int, for_offload: Mapping[str, object], launched_by: LaunchEngine | None = None
    ) -> PlanLimits:
        """Return the limits. `for_offload`: options with their values that matter only to plans with offload."""
        from msgspec.structs import replace

        from refold.planning.plans import wide_limits

        for name, value in for_offload.items():
            if self.no_offload and value is not None:
                raise BadInput(f"{name} applies only to plans with offload, which --no-offload excludes")
        pinned = self.parse_pins()
        if self.no_offload and pinned.offload:
            raise BadInput(f"--pin {self.pin} requires offload, which --no-offload excludes: leave one of them out")
        return replace(
            wide_limits(sequence),
            offload=not self.no_offload,
            tensor_across_nodes=self.tensor_across_nodes,
            uneven=launched_by is None if self.uneven is None else self.uneven,
            engine=launched_by,
            pinned=pinned,
        )

    def parse_pins(self) -> Pins:
        from refold.planning.plans import Pins

        return Pins() if self.pin is None else parse_pins(self.pin)


def default_network_note(gpu: GpuSpec) -> list[str]:
    """Return a note with the assumed network bandwidth."""
    return [f"assuming --network {gpu.node_network_gigabytes_per_second:g}GB/s, the default for nodes with {gpu.name}"]
