"""What a job trains, with which optimizer, and its whole training setup: everything except its plan."""

from __future__ import annotations

from functools import cached_property
from typing import Literal, NamedTuple

import msgspec

from refold.errors import BadValue
from refold.planning.perf.columns import Column, PlanColumns
from refold.planning.perf.engine import Arithmetic, Engine
from refold.planning.perf.hardware import Machines
from refold.planning.perf.shapes import ModelShape

Optimizer = Literal["adamw", "adamw-8bit"]

AdaptedLayers = Literal["all", "attention"]
"""Linear layers that have adapters: all but the output layer, or queries, keys, values and output of attention."""

MAX_RANK = 65_536

FROZEN_WEIGHT_BYTES = 2.0
"""Bytes per frozen weight: half precision, without a copy in single precision."""

QUANTIZED_WEIGHT_BYTES = 0.516
"""Bytes per weight in 4 bits with scales that are quantized themselves (Dettmers et al. 2023: 4.127 bits)."""

STORED_WEIGHT_BYTES: dict[Arithmetic, float] = {"fp8": 1.0, "mxfp8": 2 * (1 + 1 / 32), "nvfp4": 0.5 + 1 / 16}
"""Bytes per frozen weight that is stored as products need it. Blocks of MXFP8 have scales along one dimension, so that
the backward pass needs a second, transposed copy; those of weights in NVFP4 are square, with a scale per 16 values."""

MOMENT_BYTES = 8.0
"""Bytes per weight of Adam's two moments in single precision."""

QUANTIZED_MOMENT_BYTES = 2.0
"""The same in 8 bits (Dettmers et al. 2022)."""


class Adapters(NamedTuple):
    """Adapters of an average layer: their number, and the widths of their inputs and of their outputs, summed."""

    number: float
    inputs: float
    outputs: float


class Tuning(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What is trained. `lora_rank`: of the adapters of `lora_layers`; 0: all weights.

    `quantized`: frozen weights of layers are stored in 4 bits, and dequantized wherever they are used (QLoRA).
    `stored_quantised`: they are stored in the low precision of the products, which use them as they are.
    `frozen_layers`: the first layers that are not trained, and the embedding before them; they have no backward pass.
    """

    lora_rank: int = 0
    quantized: bool = False
    optimizer: Optimizer = "adamw"
    frozen_layers: int = 0
    lora_layers: AdaptedLayers = "all"
    stored_quantised: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.lora_rank <= MAX_RANK:
            raise BadValue(f"the rank of LoRA is {self.lora_rank}, expected 0 to {MAX_RANK:,}")
        if self.quantized and not self.lora_rank:
            raise BadValue("quantized weights cannot be trained: QLoRA needs the rank of its adapters")
        if self.stored_quantised and (self.quantized or not self.lora_rank):
            raise BadValue("only weights that LoRA leaves frozen can be stored in low precision, and not with QLoRA")
        if self.frozen_layers < 0:
            raise BadValue(f"frozen_layers is {self.frozen_layers}, expected a number ≥ 0")
        if self.frozen_layers and self.lora_rank:
            raise BadValue("with LoRA, all layers are frozen already")

    @property
    def backward_products(self) -> float:
        """Matrix products of the backward pass for each of the forward pass: none for the weights if frozen."""
        return 1.0 if self.lora_rank else 2.0

    def optimizer_bytes(self, in_single_precision: float) -> float:
        """Return the bytes of optimizer state per trained weight, where AdamW in single precision has so many."""
        if self.optimizer == "adamw":
            return in_single_precision
        moments = min(MOMENT_BYTES, in_single_precision)
        return in_single_precision - moments + min(QUANTIZED_MOMENT_BYTES, moments)

    def trained_share(self, model: ModelShape) -> float:
        """Return the number of trained weights relative to those of the model."""
        return self.trained_parameters(model) / model.parameters

    def trained_parameters(self, model: ModelShape) -> float:
        """Return the number of trained weights: those of layers that are not frozen, or two matrices per adapter."""
        if not self.lora_rank:
            return float(model.parameters) - self._frozen_parameters(model)
        adapters = self.adapters(model, experts=model.experts)
        return self.lora_rank * model.blocks * (adapters.inputs + adapters.outputs)

    def _frozen_parameters(self, model: ModelShape) -> float:
        if not self.frozen_layers:
            return 0.0
        embedding = 0 if model.tied else model.embedding_parameters  # a tied one is the output layer, which is trained
        return embedding + model.stack_parameters * self.frozen_layers / model.blocks

    def adapters(self, model: ModelShape, experts: float, *, fused: bool = False) -> Adapters:
        """Return the adapters of an average layer, of so many experts of each layer that has any.

        `fused`: queries, keys and values have one adapter, and so have the two inner matrices of a gated block.
        """
        if not self.lora_rank:
            return Adapters(0.0, 0.0, 0.0)
        attentions = model.attentions / model.blocks
        inward = 1 if fused else 3
        outward = (2 if model.attention_gate else 1) * model.query_width + 2 * model.key_width
        of_attention = Adapters(
            (inward + 1) * attentions,
            attentions * (inward * model.hidden + model.value_width),
            attentions * (outward + model.hidden),
        )
        if linear := model.linear:
            share = linear.layers / model.blocks
            widths = (2.0, model.hidden + linear.value_width, linear.projected_width + model.hidden)
            of_attention = Adapters(*(one + share * more for one, more in zip(of_attention, widths, strict=True)))
        if self.lora_layers == "attention":
            return of_attention
        wide, narrow = (2.0, 1.0) if model.gated else (1.0, 1.0)  # matrices to the feed-forward width, and back
        inner = 1.0 if fused else wide
        dense, others = model.dense_layers / model.blocks, model.expert_layers / model.blocks
        blocks = dense + others * (experts + (1.0 if model.shared_ffn else 0.0))
        ffn = dense * model.dense_ffn + others * (experts * model.ffn_width + model.shared_ffn)
        return Adapters(
            of_attention.number + (inner + narrow) * blocks,
            of_attention.inputs + inner * blocks * model.hidden + narrow * ffn,
            of_attention.outputs + wide * ffn + narrow * blocks * model.hidden,
        )

    def frozen_weight_bytes(self, model: ModelShape, arithmetic: Arithmetic = "half") -> float:
        """Return the bytes of a frozen weight on average; embeddings and output layer are not quantized."""
        of_layers = QUANTIZED_WEIGHT_BYTES if self.quantized else FROZEN_WEIGHT_BYTES
        if self.stored_quantised:
            of_layers = STORED_WEIGHT_BYTES[arithmetic]
        stack = min(1.0, model.stack_parameters / model.parameters)
        return stack * of_layers + (1 - stack) * FROZEN_WEIGHT_BYTES


class TrainingSetup(msgspec.Struct, frozen=True, dict=True):
    """Model, machines, training framework, global batch and sequence length of a job, and what it trains.

    `packed`: sequences are filled with samples of so many tokens on average, which do not attend to each other; 0: a
    sequence is one sample.
    """

    model: ModelShape
    machines: Machines
    engine: Engine
    batch: int
    sequence: int
    tuning: Tuning = Tuning()
    packed: int = 0

    def __post_init__(self) -> None:
        if not (1 <= self.batch <= 2**40 and 1 <= self.sequence <= 2**40):
            raise BadValue(f"batch is {self.batch} and sequence is {self.sequence}, expected at least 1")
        gpu, arithmetic = self.machines.gpu, self.engine.arithmetic
        if self.engine.low_precision and not (gpu.fp4_tflops if arithmetic == "nvfp4" else gpu.fp8_tflops):
            raise BadValue(f"{gpu.name} has no matrix products in {arithmetic}")
        if self.tuning.stored_quantised and not self.engine.low_precision:
            found = f"{self.engine.name} computes in {arithmetic} precision"
            raise BadValue(f"stored weights need products in fp8, mxfp8 or nvfp4, but {found}")
        if self.tuning.lora_rank and self.model.opaque:
            raise BadValue(f"LoRA needs the shapes of {self.model.name}, which is known only by its totals")
        if self.tuning.frozen_layers >= self.model.blocks:
            frozen, layers = self.tuning.frozen_layers, self.model.blocks
            raise BadValue(f"{frozen} layers are frozen, but {self.model.name} has {layers}: nothing would be trained")
        if not 0 <= self.packed <= self.sequence:
            found = f"samples of {self.packed:,} tokens cannot be packed into sequences of {self.sequence:,}"
            raise BadValue(f"{found}: expected at most as many")

    @property
    def tokens(self) -> int:
        """Tokens per step; samples for an opaque model."""
        return self.batch * self.tokens_per_sample

    @property
    def tokens_per_sample(self) -> int:
        """Tokens per sample; 1 for an opaque model, whose samples count as one token."""
        return 1 if self.model.opaque else self.sequence

    @property
    def attended(self) -> int:
        """Tokens to which those of a sample attend: the sequence, or less if samples are packed."""
        return min(self.packed or self.sequence, self.sequence)

    @property
    def backward_share(self) -> float:
        """Layers that have a backward pass, relative to all."""
        return 1 - self.tuning.frozen_layers / self.model.blocks

    @cached_property
    def trained_share(self) -> float:
        """Trained weights relative to all."""
        return self.tuning.trained_share(self.model)

    @cached_property
    def adapters(self) -> Adapters:
        """Adapters of an average layer that a token uses."""
        experts = self.model.experts_per_token
        return self.tuning.adapters(self.model, experts, fused=self.engine.fuses_projections)

    @cached_property
    def stored_weight_bytes(self) -> float:
        """Bytes per weight as stored on GPUs, with those of adapters; as gathered by ZeRO-3."""
        if not self.tuning.lora_rank:
            return self.engine.weight_bytes
        frozen = self.tuning.frozen_weight_bytes(self.model, self.engine.arithmetic)
        return frozen + self.trained_share * self.engine.weight_bytes

    @property
    def optimizer_bytes(self) -> float:
        """Bytes of optimizer state per trained weight."""
        return self.tuning.optimizer_bytes(self.engine.optimizer_bytes)

    @property
    def expert_overlap(self) -> float:
        """Share of a layer's passes that overlaps with the exchange of tokens: 0 with state-space layers.

        Megatron-Core overlaps it for models of transformer layers alone (`combined_1f1b.py`: GPTModel, not MambaModel).
        """
        linear = self.model.linear
        return 0.0 if linear and not linear.delta_rule else self.engine.overlap_experts

    def micro_tokens(self, plans: PlanColumns) -> Column:
        """Return the tokens of a micro-batch that one GPU has; the global batch is the same for all plans."""
        return self.tokens / (plans.replicas * plans.accumulation)

    def stage_blocks(self, plans: PlanColumns) -> Column:
        """Return the average number of layers per pipeline stage."""
        return self.model.blocks / plans.pipeline
