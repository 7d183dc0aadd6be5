"""Which model, machines and plans a command about plans was asked for: the options, and what their text means."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from refold.model import Link
    from refold.perf import GpuSpec, Machines, ModelShape
    from refold.plans import Pins, PlanLimits

MOST_GPUS = 2**17
"""More GPUs than any job has: beyond it, somebody mistyped."""

MOST_UP_TO = 4096
"""GPUs of a curve: more would take minutes, and fit no screen."""

MOST = 2**24
"""The same of samples in a step, of tokens in a sample, and of CPUs."""

USUAL_ENGINE = "megatron"
"""As in the catalogue, which the options must not load; a test holds the two together."""


def _models_beginning(incomplete: str) -> list[str]:
    """Those of the catalogue; beside them files, which the shell completes by itself only where nothing is offered."""
    from refold.catalogue import model_names

    known = [name for name in model_names() if name.startswith(incomplete)]
    return known + sorted(path.name for path in Path().glob(f"{incomplete}*")) if known else []


def _engines_beginning(incomplete: str) -> list[str]:
    from refold.catalogue import engines

    return [engine.name for engine in engines() if engine.name.startswith(incomplete)]


def _gpu_types_beginning(incomplete: str) -> list[str]:
    from refold.catalogue import gpu_names

    return [name for name in gpu_names() if name.startswith(incomplete)]


def _gpus_beginning(incomplete: str) -> list[str]:
    """'8xA10' is completed to '8xA100-80GB'; before the count is there, nothing is known of the type."""
    count = re.match(r"\d+[x×]", incomplete)
    return [count[0] + name for name in _gpu_types_beginning(incomplete[count.end() :])] if count else []


ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A name (see 'refold models'), a config.json or its folder, or a YAML file of shapes.",
        autocompletion=_models_beginning,
    ),
]
GpusAsked = Annotated[
    str,
    typer.Option(
        "--gpus",
        metavar="COUNTxTYPE",
        help="Such as 8xA100-80GB, A100-80GB:8, or 2x8:A100-80GB on two nodes (see 'refold gpus').",
        autocompletion=_gpus_beginning,
    ),
]
GpuTypeName = Annotated[
    str | None,
    typer.Option("--gpu", metavar="TYPE", help="The type of GPU.", autocompletion=_gpu_types_beginning),
]
Nodes = Annotated[int | None, typer.Option("--nodes", min=1, help="Spread them over so many nodes [as few as can be].")]
Cpus = Annotated[
    float | None,
    typer.Option("--cpus", min=0.001, max=MOST, help="CPU threads on all nodes together [8 per GPU]."),
]
HostMemory = Annotated[
    str | None,
    typer.Option("--host-memory", metavar="SIZE", help="Memory of all nodes together, such as 1600GB [no limit]."),
]
NetworkRate = Annotated[
    str | None,
    typer.Option("--network", metavar="RATE", help="What a node can send: 100GB/s, 800Gb/s [usual for the GPU]."),
]
Batch = Annotated[
    int | None, typer.Option("--batch", min=1, max=MOST, help="Samples in a step, over all GPUs [the model's own].")
]
Sequence = Annotated[int | None, typer.Option("--seq", min=1, max=MOST, help="Tokens in a sample [the model's own].")]
EngineName = Annotated[
    str,
    typer.Option("--engine", help="The training framework (see 'refold engines').", autocompletion=_engines_beginning),
]
Pin = Annotated[str | None, typer.Option("--pin", metavar="PLAN", help="Fix a part of the plan, such as 'tp4 zero1'.")]
NoOffload = Annotated[bool, typer.Option("--no-offload", help="Keep everything on the GPUs.")]
TensorAcrossNodes = Annotated[
    bool, typer.Option("--tensor-across-nodes", help="Let tensor-parallel groups span nodes.")
]
Uneven = Annotated[bool, typer.Option("--uneven", help="Let pipeline stages differ by a layer.")]


# Machines.

_COUNT_TYPE = re.compile(r"(\d+)\s*[x×]\s*(.+)", re.IGNORECASE | re.ASCII)
_TYPE_COUNT = re.compile(r"(.+?)\s*:\s*(\d+)", re.ASCII)
_NODES_COUNT_TYPE = re.compile(r"(\d+)\s*[x×]\s*(\d+)\s*:\s*(.+)", re.IGNORECASE | re.ASCII)


def machines_from(
    gpus: str, nodes: int | None, cpus: float | None, host_memory: str | None, network: str | None
) -> Machines:
    """The machines that the options of `refold plan` describe."""
    from msgspec.structs import replace

    from refold.catalogue import find_gpu
    from refold.errors import BadInput
    from refold.perf import machines_of

    count, name, on_nodes = _gpus_from(gpus)
    if on_nodes and nodes not in (None, on_nodes):
        raise BadInput(f"--gpus {gpus} is {on_nodes} nodes, and --nodes says {nodes}: say it once")
    nodes = nodes or on_nodes
    gpu = find_gpu(name)
    if nodes > count:
        raise BadInput(f"--nodes {nodes}: {count} GPUs cannot be spread over so many nodes")
    memory = gib_from_text(host_memory) if host_memory is not None else 0.0
    machines = machines_of(gpu, count, nodes=nodes, cpus=cpus or 0.0, memory_gib=memory)
    if network is None:
        return machines
    if machines.nodes == 1:
        raise BadInput(f"--network {network} changes nothing on one node; --nodes 2 would spread the GPUs over two")
    return replace(machines, network=network_from_text(network))


def _gpus_from(text: str) -> tuple[int, str, int]:
    """How many GPUs, of which type, and on how many nodes, if that was said."""
    from refold.errors import BadInput

    nodes = 0
    if found := _NODES_COUNT_TYPE.fullmatch(text.strip()):
        nodes, count, name = _limited(text, found[1]), _limited(text, found[2]), found[3]
        count *= nodes
    elif found := _COUNT_TYPE.fullmatch(text.strip()):
        count, name = _limited(text, found[1]), found[2]
    elif found := _TYPE_COUNT.fullmatch(text.strip()):
        count, name = _limited(text, found[2]), found[1]
    else:
        raise BadInput(f"--gpus {text}: expected how many of which type, such as 8xA100-80GB or A100-80GB:8")
    if not 1 <= count <= MOST_GPUS:
        raise BadInput(f"--gpus {text}: expected 1 to {MOST_GPUS:,} GPUs")
    return count, name, nodes


def _limited(text: str, digits: str) -> int:
    from refold.errors import BadInput

    if len(digits) > len(str(MOST_GPUS)):
        raise BadInput(f"--gpus {text}: expected 1 to {MOST_GPUS:,} GPUs")
    return int(digits)


_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z/]*)", re.ASCII)
_GIB = {"": 1.0, "gib": 1.0, "tib": 1024.0, "gb": 1e9 / 2**30, "tb": 1e12 / 2**30, "g": 1.0, "t": 1024.0}
_GIGABYTES = {"GB/s": 1.0, "GBps": 1.0, "Gb/s": 1 / 8, "Gbps": 1 / 8, "gbps": 1 / 8, "Gbit/s": 1 / 8, "gbit/s": 1 / 8}


def gib_from_text(text: str) -> float:
    """'1600GB', '1.5TiB' or '512', which are GiB."""
    return _amount("--host-memory", text, lambda unit: _GIB.get(unit.lower()), "memory such as 1600GB or 1.5TiB")


def network_from_text(text: str) -> Link:
    """'100GB/s', or in bits, '800Gb/s'. A number without a unit could be either, and so could 'gb/s'."""
    from refold.model import Link

    return Link("network", _amount("--network", text, _GIGABYTES.get, "a rate such as 100GB/s, or 800Gb/s in bits"))


def _amount(option: str, text: str, factor_of: Callable[[str], float | None], expected: str) -> float:
    from refold.errors import BadInput

    found = _AMOUNT.fullmatch(text.strip())
    factor = factor_of(found[2]) if found else None
    amount = float(found[1]) * factor if found and factor else 0.0
    if not (isfinite(amount) and 0 < amount <= MOST):
        raise BadInput(f"{option} {text}: expected {expected}")
    return amount


def usual_network(gpu: GpuSpec) -> list[str]:
    """What to know where nobody said how fast the network is."""
    return [f"--network {gpu.node_network_gigabytes_per_second:g}GB/s is what nodes of {gpu.name} usually have"]


# Models and plans.


def sizes_from(shape: ModelShape, batch: int | None, sequence: int | None) -> tuple[int, int, list[str]]:
    """Samples in a step and tokens in a sample, and what to know about them."""
    from refold.errors import BadInput

    if shape.opaque and sequence is not None:
        raise BadInput(f"--seq {sequence} changes nothing: of {shape.name} only totals per sample are known")
    own = []
    if batch is None:
        own.append(f"--batch {shape.batch}")
    if sequence is None and not shape.opaque:
        own.append(f"--seq {shape.sequence}")
    notes = [f"{' '.join(own)} {'are' if len(own) > 1 else 'is'} what is usual for {shape.name}"] if own else []
    if sequence is not None and 0 < shape.positions < sequence:
        notes.append(f"{shape.name} has learned positions for {shape.positions:,} tokens, and --seq is {sequence:,}")
    return batch or shape.batch, sequence or shape.sequence, notes


def limits_from(
    pin: str | None, no_offload: bool, tensor_across_nodes: bool, uneven: bool, for_offload: Mapping[str, object]
) -> PlanLimits:
    """Which plans may be chosen; `for_offload` are options that only plans that offload have a use for."""
    from refold.errors import BadInput
    from refold.plans import Pins, PlanLimits

    for option, value in for_offload.items():
        if no_offload and value is not None:
            raise BadInput(f"{option} is for plans that offload, and --no-offload leaves them out")
    pinned = Pins() if pin is None else pins_from_text(pin)
    if no_offload and pinned.offload:
        raise BadInput(f"--pin {pin} wants offload, and --no-offload does not: leave one of them out")
    return PlanLimits(offload=not no_offload, tensor_across_nodes=tensor_across_nodes, uneven=uneven, pinned=pinned)


def pins_from_text(text: str) -> Pins:
    """'tp4 zero1', written as plans are: only what is said is pinned, also where plans have it anyway ('tp1')."""
    from refold.model import fields_from_text
    from refold.plans import Pins

    return Pins(**fields_from_text(text))


# How people read amounts.


def seconds_text(seconds: float) -> str:
    """Of a step: '478.3 ms', '60.71 s', '1,488 s'."""
    if seconds < 1:
        return f"{seconds * 1000:,.1f} ms"
    return f"{seconds:.2f} s" if seconds < 100 else f"{seconds:,.1f} s" if seconds < 1000 else f"{seconds:,.0f} s"


def rate_text(rate: float) -> str:
    """Three digits, or as many as stand before the point: '16.7', '3,855', '0.342'."""
    digits = 0 if rate >= 99.95 else 1 if rate >= 9.995 else 2 if rate >= 0.9995 else 3
    return f"{rate:,.{digits}f}"


def layout_text(gpus_on_node: Iterable[int]) -> str:
    """'1 node', '2 nodes', or where they differ '2 nodes (8 + 4 GPUs)'."""
    from refold.cli.views import plural

    sizes = list(gpus_on_node)
    kinds = list(dict.fromkeys(sizes))
    differ = " + ".join(f"{sizes.count(kind)} × {kind}" if sizes.count(kind) > 1 else str(kind) for kind in kinds)
    return plural(len(sizes), "node") + (f" of {differ} GPUs" if len(kinds) > 1 else "")
