"""What a training framework does, as far as time and memory depend on it: facts of its code, not of a GPU."""

from __future__ import annotations

from math import isfinite
from typing import Literal

import msgspec

from refold.errors import BadValue

Arithmetic = Literal["half", "tf32", "single"]


class Engine(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A training framework of some era. Where its documents do not say, numbers were fitted (`source` says to what)."""

    name: str

    arithmetic: Arithmetic = "half"
    """Which peak of a GPU counts: that of half precision, of TF32 or of single precision."""

    value_bytes: float = 2.0
    """Bytes of an activation."""

    weight_bytes: float = 2.0
    """Bytes per weight that is computed with, and that travels under ZeRO."""

    gradient_bytes: float = 4.0
    """Bytes per weight for gradients, as kept between micro-batches."""

    optimizer_bytes: float = 12.0
    """Bytes per weight for master weights and moments."""

    gradient_traffic_bytes: float = 2.0
    """Bytes per weight when gradients travel."""

    fused_attention: bool = True
    """Scores are never written to memory; where attention looks back only, half of them are not computed."""

    pads_vocabulary: bool = False
    """The vocabulary is rounded up to what tensor cores take."""

    passes_hidden: float = 10.0
    """How often what is as wide as the hidden state is read or written in a forward pass, besides by products."""

    passes_inner: float = 2.0
    """The same of what is inside attention and feed-forward."""

    kept_hidden: float = 6.0
    """Bytes kept for the backward pass per element as wide as the hidden state."""

    kept_inner: float = 2.0
    """The same per element inside attention and feed-forward."""

    kept_logits: float = 6.0
    """The same per logit."""

    compute_factor: float = 1.0
    """How many times as long as modelled computing takes: 1, until measured samples say otherwise."""

    selective_again: float = 0.0
    """Share of a layer's forward pass, besides attention, that selective recomputation computes again."""

    selective_kept: float = 1.0
    """Share of a layer's activations, besides scores, that is kept under selective recomputation."""

    launch_seconds: float = 0.001
    """What the host takes to start the kernels of one layer, forward and backward: no layer is faster."""

    launch_full: float = 4 / 3
    """How many times as long that takes under full recomputation."""

    launch_selective: float = 1.0
    """How many times as long that takes under selective recomputation."""

    overlap_gradients: float = 0.8
    """Share of the last backward pass that hides the exchange of gradients without ZeRO."""

    overlap_shards: float = 0.8
    """Share of the passes that hides the traffic of ZeRO."""

    overlap_tensor: float = 0.0
    """Share of the traffic of tensor parallelism that is hidden behind products."""

    scatters_gradients: bool = True
    """Under ZeRO each replica receives its share of the gradients only; otherwise stage 1 exchanges all of them."""

    reduces_each_micro_batch: bool = False
    """Gradients travel for each micro-batch, also where once per step would do."""

    message_seconds: float = 0.0
    """What each replica adds to the exchange of a layer's gradients, of any size; 0 where buckets travel."""

    update_passes: float = 1.0
    """How many times the least traffic it needs the optimiser takes on a GPU."""

    cpu_seconds_per_parameter: float = 2.6e-9
    """How long one CPU thread takes to update a parameter: two threads on the host of an H200 took 1.4e-9, and Rubick's
    fitted k_opt_off is 2.2 to 4.9 ms per 2²⁰ parameters and thread."""

    step_seconds: float = 0.01
    """What a step costs besides everything else: clipping, logging, data."""

    overhead_gib: float = 1.0
    """Memory of a GPU that the framework and its communication take."""

    tensor_traffic_across: float = 1.0
    """How many times the bytes of tensor parallelism cross between nodes, where it spans several."""

    tensor_wait_across_nodes: float = 0.0
    """Seconds that each tensor-parallel rank beyond the first node adds to a layer."""

    tensor_wait_in_pipeline: float = 0.0
    """Seconds that each tensor-parallel rank adds to a layer where there is a pipeline over several nodes."""

    stage_wait: float = 0.0
    """Seconds that a stage waits for each neighbour and micro-batch, from `stage_wait_from_gpus` GPUs on."""

    stage_wait_from_gpus: int = 0

    source: str = ""

    @property
    def selects_activations(self) -> bool:
        """Whether selective recomputation saves memory: not where attention is fused and all the rest is kept."""
        return not self.fused_attention or self.selective_kept < 1

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if isinstance(value, float) and not (isfinite(value) and value >= 0):
                raise BadValue(f"engine {self.name!r}: {field} is {value}, expected a number ≥ 0")
