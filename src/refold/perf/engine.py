"""What a training framework does, as far as time and memory depend on it: facts of its code, not of a GPU."""

from __future__ import annotations

from math import isfinite

import msgspec

from refold.errors import BadValue


class Engine(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A training framework of some era.

    Bytes are per parameter: `weight_bytes` and `gradient_bytes` as kept between micro-batches, and
    `optimizer_bytes` for master weights and moments; `gradient_traffic_bytes` is what travels.
    `fused_attention`: scores are never written to memory. `passes_hidden` and `passes_inner`: how often what
    is as wide as the hidden state, and what is inside attention and feed-forward, is read or written in a
    forward pass besides by products of matrices. `kept_*`: bytes kept for the backward pass of each element of
    those.
    `launch_seconds`: what the host needs to start the kernels of one layer, forward and backward.
    `overlap_*`: share of the time to backward through the model that can hide each kind of traffic.
    """

    name: str
    weight_bytes: float = 2.0
    gradient_bytes: float = 4.0
    optimizer_bytes: float = 12.0
    gradient_traffic_bytes: float = 2.0
    fused_attention: bool = True
    passes_hidden: float = 10.0
    passes_inner: float = 2.0
    kept_hidden: float = 6.0
    kept_inner: float = 2.0
    kept_logits: float = 6.0
    launch_seconds: float = 0.001
    overlap_gradients: float = 0.8
    overlap_shards: float = 0.8
    reduces_each_micro_batch: bool = False
    sync_seconds_per_rank: float = 0.0
    step_seconds: float = 0.01
    overhead_gib: float = 1.0
    tensor_wait_across_nodes: float = 0.0
    tensor_wait_in_pipeline: float = 0.0
    stage_wait: float = 0.0
    stage_wait_from_gpus: int = 0
    source: str = ""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if isinstance(value, float) and not (isfinite(value) and value >= 0):
                raise BadValue(f"engine {self.name!r}: {field} is {value}, expected a number ≥ 0")
