"""Model shapes: the dimensions that determine time and memory."""

from __future__ import annotations

from functools import cached_property
from math import isfinite
from typing import Literal

import msgspec

from refold.errors import BadValue

ModelKind = Literal["decoder", "encoder", "encoder-decoder", "vit", "opaque"]


class ModelShape(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, dict=True):
    """The dimensions of a transformer, or a few measured totals of an opaque model.

    `layers` counts those of the decoder, or of the only stack; an encoder-decoder also has `encoder_layers`. `gated`:
    the feed-forward block has three matrices (SwiGLU, GEGLU) instead of two. Each token uses `experts_per_token` of
    `experts` feed-forward blocks. `parameters_stated` is a published count, where the shapes do not give it exactly.
    `sequence` and `batch` are the defaults of commands. An opaque model has `parameters_stated`, `sample_gflop`
    (forward pass) and `sample_mib` (saved activations).
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
    sequence: int = 2048
    batch: int = 256
    parameters_stated: int = 0
    sample_gflop: float = 0.0
    sample_mib: float = 0.0
    source: str = ""

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
            "parameters_stated": self.parameters_stated,
            "sample_gflop": self.sample_gflop,
            "sample_mib": self.sample_mib,
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
        if (self.kind == "encoder-decoder") != bool(self.encoder_layers):
            raise BadValue(f"model {self.name!r}: encoder_layers is required for kind 'encoder-decoder', and only then")

    def _check_opaque(self) -> None:
        if not (self.parameters_stated and self.sample_gflop):
            raise BadValue(f"opaque model {self.name!r} needs parameters_stated and sample_gflop")

    @property
    def opaque(self) -> bool:
        """Whether only measured totals are known, not the shapes."""
        return self.kind == "opaque"

    @property
    def blocks(self) -> int:
        """Total number of layers, between which a pipeline can be split."""
        return self.layers + self.encoder_layers

    @property
    def attentions(self) -> int:
        """Number of attention blocks: a decoder with an encoder has two per layer (self- and cross-attention)."""
        return self.blocks + (self.layers if self.encoder_layers else 0)

    @property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.head_size or self.hidden // self.heads

    @property
    def query_width(self) -> int:
        """Width of all queries of a token."""
        return self.heads * self.head_width

    @property
    def key_width(self) -> int:
        """Width of all keys of a token, and of all values; less than the queries if heads share them."""
        return (self.kv_heads or self.heads) * self.head_width

    @property
    def ffn_width(self) -> int:
        """Width of one feed-forward block; four times the hidden width by default."""
        return self.ffn or 4 * self.hidden

    @cached_property
    def attention_parameters(self) -> int:
        """Weights of one attention block: queries, keys, values, output."""
        weights = 2 * self.hidden * (self.query_width + self.key_width)
        biases = self.query_width + 2 * self.key_width + self.hidden
        return weights + (biases if self.bias else 0)

    @cached_property
    def expert_parameters(self) -> int:
        """Weights of one feed-forward block."""
        matrices = 3 if self.gated else 2
        biases = (matrices - 1) * self.ffn_width + self.hidden
        return matrices * self.hidden * self.ffn_width + (biases if self.bias else 0)

    @cached_property
    def stack_parameters(self) -> int:
        """Weights of all layers, without embeddings."""
        if self.opaque:
            return self.parameters_stated
        router = self.hidden * self.experts if self.experts > 1 else 0
        norms = 2 * self.hidden * (2 if self.bias else 1)
        each = self.experts * self.expert_parameters + router + norms
        return self.blocks * each + self.attentions * self.attention_parameters

    @cached_property
    def active_parameters(self) -> int:
        """Weights of all layers that are active for one token."""
        unused = self.experts - self.experts_per_token
        return self.stack_parameters - (0 if self.opaque else self.blocks * unused * self.expert_parameters)

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
