"""Model shapes: the dimensions that determine time and memory."""

from __future__ import annotations

from functools import cached_property
from math import isfinite
from typing import Literal

import msgspec

from refold.errors import BadValue
from refold.planning.perf.linear_attention import LinearAttention

ModelKind = Literal["decoder", "encoder", "encoder-decoder", "vit", "opaque"]


class ModelShape(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, dict=True):
    """The dimensions of a transformer, or a few measured totals of an opaque model.

    `layers` counts those of the decoder, or of the only stack; an encoder-decoder also has `encoder_layers`. `gated`:
    the feed-forward block has three matrices (SwiGLU, GEGLU) instead of two. Each token uses `experts_per_token` of
    `experts` feed-forward blocks of width `ffn`, and one of width `shared_ffn`, if there is one; `dense_layers` have
    no experts but one block of width `dense_ffn`. With `groups_per_token`, the experts of a token are in that many
    groups at most, and a group is on one node. With latent attention (MLA), keys and values are computed from
    `key_rank` numbers per token, and queries from `query_rank`, if given; `rope_size` is the part of a head that has
    positions, besides `head_size`, and `value_size` the width of its values. `mtp_layers` follow the others and predict
    further tokens (multi-token prediction): each has the shapes of the last layer, and a pass of the output layer.
    Hybrid models have `linear` attention in some layers; `attention_free` layers have no other attention, and
    `ffn_free` layers no feed-forward block. `attention_gate`: a gate multiplies the results of attention.
    `norms` counts the normalisations of a layer; with `head_norms`, queries and keys are normalised besides.
    `composed_activation`: the activation function is computed in several steps (GELU by its formula). `capped_logits`:
    logits are limited by a hyperbolic tangent.

    `parameters_stated` is a published count, where the shapes do not give it exactly. `sequence` and `batch` are the
    defaults of commands. An opaque model has `parameters_stated`, `sample_gflop` (forward pass) and `sample_mib` (saved
    activations). If it was traced, also FLOPs of a sample inside fused attention, memory traffic outside products, and
    the number of operations of a step; products have `product_width` columns, `product_results` results per sample, and
    `product_share` of the efficiency of large ones (harmonic means, weighted by FLOPs).

    `not_modelled`: parts of a model that estimates leave out.
    """

    name: str
    kind: ModelKind = "decoder"
    layers: int = 1
    hidden: int = 1
    heads: int = 1
    kv_heads: int = 0
    head_size: int = 0
    ffn: int = 0
    gated: bool = False
    bias: bool = True
    vocabulary: int = 0
    tied: bool = True
    positions: int = 0
    encoder_layers: int = 0
    experts: int = 1
    experts_per_token: int = 1
    groups_per_token: int = 0
    shared_ffn: int = 0
    dense_layers: int = 0
    dense_ffn: int = 0
    query_rank: int = 0
    key_rank: int = 0
    rope_size: int = 0
    value_size: int = 0
    mtp_layers: int = 0
    linear: LinearAttention | None = None
    attention_free: int = 0
    ffn_free: int = 0
    attention_gate: bool = False
    norms: int = 2
    head_norms: bool = False
    composed_activation: bool = False
    capped_logits: bool = False
    sequence: int = 2048
    batch: int = 256
    parameters_stated: int = 0
    sample_gflop: float = 0.0
    sample_mib: float = 0.0
    attention_gflop: float = 0.0
    traffic_mib: float = 0.0
    operations: int = 0
    product_share: float = 1.0
    product_width: float = 0.0
    product_results: float = 0.0
    source: str = ""
    not_modelled: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        positive = {
            "layers": self.layers,
            "hidden": self.hidden,
            "heads": self.heads,
            "experts": self.experts,
            "experts_per_token": self.experts_per_token,
            "sequence": self.sequence,
            "batch": self.batch,
        }
        non_negative = {
            "kv_heads": self.kv_heads,
            "head_size": self.head_size,
            "ffn": self.ffn,
            "vocabulary": self.vocabulary,
            "positions": self.positions,
            "encoder_layers": self.encoder_layers,
            "groups_per_token": self.groups_per_token,
            "shared_ffn": self.shared_ffn,
            "dense_layers": self.dense_layers,
            "dense_ffn": self.dense_ffn,
            "query_rank": self.query_rank,
            "key_rank": self.key_rank,
            "rope_size": self.rope_size,
            "value_size": self.value_size,
            "mtp_layers": self.mtp_layers,
            "attention_free": self.attention_free,
            "ffn_free": self.ffn_free,
            "norms": self.norms,
            "parameters_stated": self.parameters_stated,
            "sample_gflop": self.sample_gflop,
            "sample_mib": self.sample_mib,
            "attention_gflop": self.attention_gflop,
            "traffic_mib": self.traffic_mib,
            "operations": self.operations,
            "product_share": self.product_share,
            "product_width": self.product_width,
            "product_results": self.product_results,
        }
        for minimum, fields in ((1, positive), (0, non_negative)):
            for field, value in fields.items():
                if not (isfinite(value) and minimum <= value <= 1e15):
                    raise BadValue(f"model {self.name!r}: {field} is {value}, expected a number ≥ {minimum}")
        self._check_transformer() if self.kind != "opaque" else self._check_opaque()

    def _check_transformer(self) -> None:
        if not self.head_size and self.hidden % self.heads:
            raise BadValue(f"model {self.name!r}: hidden {self.hidden} is not divisible by {self.heads} heads")
        if self.kv_heads and self.heads % self.kv_heads:
            raise BadValue(f"model {self.name!r}: {self.heads} heads are not divisible by {self.kv_heads} kv_heads")
        if self.experts_per_token > self.experts:
            raise BadValue(
                f"model {self.name!r}: experts_per_token is {self.experts_per_token}, expected ≤ {self.experts}"
            )
        if self.dense_layers and (self.experts == 1 or self.dense_layers >= self.layers):
            raise BadValue(
                f"model {self.name!r}: dense_layers is {self.dense_layers}, expected fewer than the {self.layers} "
                "layers of a model with experts"
            )
        if self.key_rank and not (self.head_size and self.value_size):
            raise BadValue(f"model {self.name!r}: latent attention (key_rank) needs head_size and value_size")
        if max(self.attention_free, self.ffn_free + self.dense_layers, self.linear_layers) > self.blocks:
            raise BadValue(
                f"model {self.name!r}: attention_free, ffn_free with dense_layers, and the layers of linear attention "
                f"are {self.attention_free}, {self.ffn_free + self.dense_layers} and {self.linear_layers}, expected at "
                f"most the {self.blocks} layers"
            )
        if (self.kind == "encoder-decoder") != bool(self.encoder_layers):
            raise BadValue(f"model {self.name!r}: encoder_layers is required for kind 'encoder-decoder', and only then")

    def _check_opaque(self) -> None:
        if not (self.parameters_stated and self.sample_gflop):
            raise BadValue(f"opaque model {self.name!r} needs parameters_stated and sample_gflop")
        if bool(self.product_width) != bool(self.product_results):
            raise BadValue(f"opaque model {self.name!r} needs both product_width and product_results, or neither")

    @property
    def opaque(self) -> bool:
        """Whether only measured totals are known, not the shapes."""
        return self.kind == "opaque"

    @property
    def traced(self) -> bool:
        """Whether the sizes of matrix products are known on average, though not the shapes."""
        return self.product_width > 0

    @property
    def blocks(self) -> int:
        """Total number of layers, between which a pipeline can be split."""
        return self.layers + self.encoder_layers + self.mtp_layers

    @property
    def attentions(self) -> int:
        """Number of attention blocks: a decoder with an encoder has two per layer (self- and cross-attention)."""
        return self.blocks - self.attention_free + (self.layers if self.encoder_layers else 0)

    @property
    def linear_layers(self) -> int:
        """Number of layers with linear attention."""
        return self.linear.layers if self.linear else 0

    @property
    def ffn_layers(self) -> int:
        """Number of layers with a feed-forward block."""
        return self.blocks - self.ffn_free

    @property
    def parts(self) -> float:
        """Attention and feed-forward blocks of an average layer: two, unless layers have one of them only."""
        return (self.attentions + self.linear_layers + self.ffn_layers) / self.blocks

    @property
    def head_width(self) -> int:
        return self.head_size or self.hidden // self.heads

    @property
    def query_width(self) -> int:
        return self.heads * (self.head_width + self.rope_size)

    @property
    def value_width(self) -> int:
        """Width of the results of all heads for a token."""
        return self.heads * (self.value_size or self.head_width)

    @property
    def key_width(self) -> int:
        """Width of all keys of a token, and of all values, on average; less than the queries if heads share them."""
        if self.key_rank:
            return (self.query_width + self.value_width) // 2
        return (self.kv_heads or self.heads) * self.head_width

    @property
    def ffn_width(self) -> int:
        """Width of one feed-forward block; four times the hidden width by default."""
        return self.ffn or 4 * self.hidden

    @property
    def active_ffn_width(self) -> float:
        """Width of all feed-forward blocks that a token uses in a layer, on average."""
        with_experts = self.experts_per_token * self.ffn_width + self.shared_ffn
        return (self.dense_layers * self.dense_ffn + self.expert_layers * with_experts) / self.blocks

    @property
    def norm_width(self) -> int:
        """Elements of a token that a layer normalises."""
        return self.norms * self.hidden + (self.query_width + self.key_width if self.head_norms else 0)

    @cached_property
    def attention_parameters(self) -> int:
        """Weights of one attention block: queries, keys, values, output."""
        if self.key_rank:
            return self._latent_attention_parameters()
        weights = self.hidden * ((3 if self.attention_gate else 2) * self.query_width + 2 * self.key_width)
        biases = self.query_width + 2 * self.key_width + self.hidden
        return weights + (biases if self.bias else 0)

    def _latent_attention_parameters(self) -> int:
        """Count projections down to the ranks and their norms, up to the heads, and the output."""
        queries = self.query_rank * (self.hidden + 1 + self.query_width) or self.hidden * self.query_width
        keys_and_values = self.heads * self.head_width + self.value_width
        latent = self.hidden * (self.key_rank + self.rope_size) + self.key_rank * (1 + keys_and_values)
        return queries + latent + self.value_width * self.hidden

    @cached_property
    def expert_parameters(self) -> int:
        """Weights of one feed-forward block, of one expert."""
        return self._feed_forward_parameters(self.ffn_width)

    def _feed_forward_parameters(self, width: int) -> int:
        matrices = 3 if self.gated else 2
        biases = (matrices - 1) * width + self.hidden
        return matrices * self.hidden * width + (biases if self.bias and width else 0)

    @cached_property
    def stack_parameters(self) -> int:
        """Weights of all layers, without embeddings."""
        if self.opaque:
            return self.parameters_stated
        norms = self.norms * self.hidden * (2 if self.bias else 1)
        everywhere = self.blocks * norms + self.attentions * self.attention_parameters
        everywhere += self.attentions * 2 * self.head_width if self.head_norms else 0
        everywhere += self.linear.layers * self.linear.parameters(self.hidden) if self.linear else 0
        dense = self.dense_layers * self._feed_forward_parameters(self.dense_ffn)
        return everywhere + dense + self.expert_layers * self._expert_layer_parameters(self.experts)

    @property
    def routed_parameters(self) -> int:
        """Weights of all experts in all layers, which expert parallelism divides."""
        return self.expert_layers * self.experts * self.expert_parameters if self.experts > 1 else 0

    @property
    def expert_layers(self) -> int:
        """Number of layers with experts; if there is only one, all that have a feed-forward block."""
        return self.ffn_layers - self.dense_layers

    def _expert_layer_parameters(self, experts: int) -> int:
        """Weights of the feed-forward part of a layer, if it had so many experts: with the router and a shared one."""
        router = self.hidden * self.experts if self.experts > 1 else 0
        return experts * self.expert_parameters + router + self._feed_forward_parameters(self.shared_ffn)

    @cached_property
    def active_parameters(self) -> int:
        """Weights of all layers that are active for one token."""
        unused = self.experts - self.experts_per_token
        return self.stack_parameters - (0 if self.opaque else self.expert_layers * unused * self.expert_parameters)

    @property
    def embedding_parameters(self) -> int:
        """Weights of the token (or patch) and position embeddings."""
        return 0 if self.opaque else (self.vocabulary + self.positions) * self.hidden

    @property
    def head_parameters(self) -> int:
        """Weights of the output layer; 0 if they are tied to the embedding."""
        return 0 if self.opaque or self.tied else self.vocabulary * self.hidden

    @cached_property
    def parameters(self) -> int:
        """Total number of weights; the published count if available."""
        return self.parameters_stated or self.stack_parameters + self.embedding_parameters + self.head_parameters

    @property
    def predicts_tokens(self) -> bool:
        """Whether the output layer is computed for every token."""
        return self.kind in ("decoder", "encoder", "encoder-decoder")
