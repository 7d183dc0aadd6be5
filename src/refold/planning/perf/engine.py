"""Properties of a training framework that determine time and memory, independent of the GPU."""

from __future__ import annotations

from math import isfinite
from typing import Literal

import msgspec

from refold.errors import BadValue
from refold.model import MAX_DEGREE

Arithmetic = Literal["half", "tf32", "single", "fp8", "mxfp8", "nvfp4"]
"""Arithmetic of matrix products. With `fp8`, `mxfp8` and `nvfp4`, those of the layers are in 8 or 4 bits; attention,
the output layer and everything between the products stay in half precision."""

LOW_PRECISION: frozenset[Arithmetic] = frozenset(("fp8", "mxfp8", "nvfp4"))


Precision = Literal["bf16", "fp8", "mxfp8", "nvfp4"]
"""Precision of the matrix products of layers, as users choose it."""


ASYNCHRONOUS_TENSOR_OVERLAP = 0.3
"""`Engine.overlap_tensor` with asynchronous tensor parallelism: torchtitan's steps of the 8B model on 64 H100 take
9.0 % less time with it in bf16, and 8.8 % less in float8."""

PlanFeature = Literal[
    "tensor",
    "sequence",
    "pipeline",
    "interleave",
    "context",
    "expert",
    "zero-1",
    "zero-2",
    "zero-3",
    "replicate",
    "offload",
    "selective",
    "full",
]
"""A feature that a plan may use: `sequence` is sequence parallelism, `selective` and `full` are recomputation."""


class Engine(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A version of a training framework. Undocumented numbers were fitted; `source` says to which measurements."""

    name: str

    arithmetic: Arithmetic = "half"
    """Which peak of a GPU applies to matrix products."""

    value_bytes: float = 2.0
    """Bytes per activation element."""

    weight_bytes: float = 2.0
    """Bytes per weight, as used in computation and as gathered by ZeRO."""

    gradient_bytes: float = 4.0
    """Bytes per weight for gradients, as accumulated over micro-batches."""

    optimizer_bytes: float = 12.0
    """Bytes per weight of optimizer state: master weights and moments."""

    gradient_traffic_bytes: float = 2.0
    """Bytes per weight in gradient communication."""

    fused_attention: bool = True
    """Attention scores are never written to memory; with causal attention, half of them are not computed."""

    attention_share: float = 1.0
    """Speed of its attention kernels relative to those that a GPU type's efficiency is fitted to."""

    context_attention_share: float = 1.0
    """The same with context parallelism, which computes attention in blocks and merges them, relative to without."""

    pads_vocabulary: bool = False
    """The vocabulary is padded to the alignment of tensor cores."""

    passes_hidden: float = 10.0
    """Memory passes over tensors of hidden width in a forward pass, outside matrix products."""

    passes_inner: float = 2.0
    """The same for tensors inside attention and feed-forward."""

    passes_norm: float = 0.0
    """Memory passes over each element of RMS norms that are computed in several steps, besides `passes_hidden`."""

    passes_attention: float = 0.0
    """Memory passes over queries, keys and values for positions and repeated keys, besides `passes_inner`."""

    passes_activation: float = 0.0
    """Memory passes over the feed-forward width for an activation function in several steps, besides."""

    passes_scores: float = 5.0
    """Memory passes over the attention scores in a forward pass without fused attention: written by the product, read
    and written by softmax and by dropout, read by the next product."""

    logit_traffic_bytes: float = 12.0
    """Bytes of memory traffic per logit: the product writes it, the loss reads it and writes its softmax in single
    precision, the backward pass reads that and writes its gradient."""

    hidden_activation_bytes: float = 6.0
    """Bytes saved for the backward pass per element of hidden width."""

    inner_activation_bytes: float = 2.0
    """Bytes saved for the backward pass per element inside attention and feed-forward."""

    norm_activation_bytes: float = 0.0
    """Bytes saved per element of RMS norms that are computed in several steps, besides those of hidden width."""

    composed_activation_bytes: float = 0.0
    """Bytes saved per element of an activation function in several steps, besides those inside."""

    score_activation_bytes: float = 5.0
    """Bytes saved per attention score without fused attention: softmax input, dropout mask, dropout output."""

    checkpoint_bytes: float = 0.0
    """Bytes saved per element of the input of a recomputed layer; 0: those of an activation."""

    quantised_activations: bool = True
    """In low precision, inputs of products are saved quantised for the backward pass."""

    gathered_activation_bytes: float = 0.0
    """Bytes per element of hidden width that a layer needs besides in its backward pass and that sequence parallelism
    does not divide, where gathered inputs of products are kept instead of gathered again."""

    logit_activation_bytes: float = 6.0
    """Bytes saved for the backward pass per logit."""

    cast_weight_bytes: float = 0.0
    """Bytes per weight of its copy in half precision, where it is made for each use (autocast) and saved as well."""

    releases_gradients: bool = False
    """Gradients are released after each update; in the backward pass, they take the place of activations, and only what
    they need besides is counted."""

    compute_factor: float = 1.0
    """Compute time relative to the model: 1 unless fitted to measurements."""

    selective_recompute_share: float = 0.0
    """Share of a layer's forward pass, besides attention, that selective recomputation repeats."""

    selective_activation_share: float = 1.0
    """Share of a layer's activations, besides scores, that is saved with selective recomputation."""

    selective_attention: bool = True
    """Whether selective recomputation repeats attention."""

    launch_seconds: float = 0.001
    """Host time to launch the kernels of one layer, forward and backward: a lower bound of the layer's time."""

    operation_launch_seconds: float = 0.00000925
    """Host time to launch one operation of a traced module, forward or backward."""

    norm_launch_seconds: float = 0.0
    """The same for each RMS norm that is computed in several steps, besides."""

    launch_factor_full: float = 4 / 3
    """Factor on the launch time with full recomputation."""

    launch_factor_selective: float = 1.0
    """Factor on the launch time with selective recomputation."""

    adapter_input_bytes: float = 2.0
    """Memory traffic of a LoRA adapter in a forward pass, per element of its input. It is read in half precision; where
    adapters are in single precision (PEFT), it is cast besides."""

    adapter_output_bytes: float = 6.0
    """The same per element of its output: read, and added to that of the frozen matrix in half precision."""

    adapter_saved_bytes: float = 0.0
    """Bytes saved for the backward pass per element of an adapter's input, where each adapter has its own copy."""

    fuses_projections: bool = False
    """Queries, keys and values are one product, and so are the two inner ones of a gated feed-forward block: each has
    one adapter."""

    adapter_launch_seconds: float = 0.0005
    """Host time to launch the kernels of one adapter, forward and backward."""

    overlap_gradients: float = 0.8
    """Share of the last backward pass that overlaps with the gradient all-reduce, without ZeRO."""

    overlap_shards: float = 0.8
    """Share of the forward and backward passes that overlaps with the communication of ZeRO."""

    overlap_tensor: float = 0.0
    """Share of tensor-parallel communication that overlaps with products in as many parts as there are GPUs, all but
    one: with two GPUs, half of it at most."""

    overlap_stages: float = 0.0
    """Share of a stage's passes that overlaps with transfers between interleaved stages."""

    overlap_context: float = 1.0
    """Share of attention that overlaps with the exchange of keys and values in context parallelism, where they travel
    in a ring; 0: they are gathered before."""

    overlap_experts: float = 0.0
    """Share of a layer's forward and backward passes that overlaps with the exchange of tokens between experts."""

    expert_passes: float = 4.0
    """Memory passes over tensors of hidden width in a forward pass, for each expert of a token: tokens are sorted by
    expert, and what the experts return is put back and summed."""

    expert_bias_passes: float = 0.0
    """Memory passes over what experts compute in a forward pass, if they have biases, added by separate kernels."""

    expert_launch_seconds: float = 0.0
    """Host time to launch the kernels of routing and experts in a layer, forward and backward, besides the others."""

    expert_imbalance: float = 1.1
    """Tokens of the GPU with the most, relative to the average, if experts are divided among GPUs."""

    scatters_gradients: bool = True
    """With ZeRO, gradients are reduce-scattered to their owners; otherwise stage 1 all-reduces all gradients."""

    reduces_each_micro_batch: bool = False
    """Gradients are exchanged for each micro-batch, even where once per step would suffice."""

    message_seconds: float = 0.0
    """Seconds that each replica adds to the gradient exchange of a layer, whatever its size; 0 with bucketing."""

    update_passes: float = 1.0
    """Memory traffic of the optimizer on a GPU, relative to the minimum."""

    cpu_seconds_per_parameter: float = 2.6e-9
    """Time of one CPU thread to update a parameter: two threads on the host of an H200 took 1.4e-9, and Rubick's fitted
    k_opt_off is 2.2 to 4.9 ms per 2²⁰ parameters and thread."""

    step_seconds: float = 0.01
    """Fixed time of a step for gradient clipping, logging and data loading."""

    overhead_gib: float = 1.0
    """GPU memory of the framework and its communication buffers."""

    tensor_factor: float = 1.0
    """Duration of tensor-parallel collectives relative to what their bytes take."""

    tensor_inter_node_traffic: float = 1.0
    """How many times the bytes of tensor parallelism cross between nodes, if a group spans several."""

    tensor_wait_across_nodes: float = 0.0
    """Seconds added to a layer for each tensor-parallel rank beyond the first node."""

    tensor_wait_in_pipeline: float = 0.0
    """Seconds added to a layer for each tensor-parallel rank, with a pipeline over several nodes."""

    stage_wait: float = 0.0
    """Seconds that a stage waits for each neighbour and micro-batch, with at least so many GPUs in all or in a
    tensor-parallel group as the fields below."""

    stage_wait_from_gpus: int = 0

    stage_wait_from_tensor: int = MAX_DEGREE

    straggler_share: float = 0.0
    """Share by which a step takes longer with each doubling of the nodes, as all wait for the slowest."""

    gather_straggler_share: float = 0.0
    """The same in addition with ZeRO-3, where all wait for each other in every layer."""

    runs: tuple[PlanFeature, ...] = ()
    """What its plans may use; empty: everything. Data parallelism and accumulation are always possible."""

    source: str = ""

    release: str = ""
    """The releases that it was fitted to, or written for."""

    released: str = ""
    """Year and month of the newest of these releases: '2026-06'."""

    def with_precision(self, precision: Precision) -> Engine:
        """Return the framework with the products of layers in another precision."""
        if self.arithmetic not in ("half", *LOW_PRECISION):
            raise BadValue(f"engine {self.name!r} computes in {self.arithmetic} precision, not in {precision}")
        return msgspec.structs.replace(self, arithmetic="half" if precision == "bf16" else precision)

    def with_asynchronous_tensor(self) -> Engine:
        """Return the framework with tensor-parallel communication that overlaps with products, in parts."""
        return msgspec.structs.replace(self, overlap_tensor=max(self.overlap_tensor, ASYNCHRONOUS_TENSOR_OVERLAP))

    def with_cuda_graphs(self) -> Engine:
        """Return the framework with CUDA graphs of layers: the host launches no kernels, except those of experts."""
        return msgspec.structs.replace(
            self, launch_seconds=0.0, norm_launch_seconds=0.0, adapter_launch_seconds=0.0, operation_launch_seconds=0.0
        )

    @property
    def label(self) -> str:
        """The name with the releases: 'megatron-core (NeMo 26.06)'."""
        return f"{self.name} ({self.release})" if self.release else self.name

    @property
    def low_precision(self) -> bool:
        """Whether the matrix products of layers are in less than half precision."""
        return self.arithmetic in LOW_PRECISION

    @property
    def selects_activations(self) -> bool:
        """Whether selective recomputation saves memory; it does not if attention is fused and all the rest is saved."""
        return not self.fused_attention or self.selective_activation_share < 1

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if isinstance(value, float) and not (isfinite(value) and value >= 0):
                raise BadValue(f"engine {self.name!r}: {field} is {value}, expected a number ≥ 0")
