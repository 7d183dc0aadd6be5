"""What a model is made of, as far as time and memory depend on it."""

from __future__ import annotations

from functools import cached_property
from math import isfinite
from typing import Literal

import msgspec

from refold.errors import BadValue

Kind = Literal["decoder", "encoder", "encoder-decoder", "vit", "opaque"]


class ModelShape(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, dict=True):
    """The shapes of a transformer, or of an opaque model the few numbers that were measured.

    `layers` are those of the decoder, or of the only stack there is; an encoder-decoder has `encoder_layers`
    besides. `gated`: the feed-forward part has three matrices (SwiGLU, GEGLU), not two. Of `experts`
    feed-forward parts, each token uses `experts_per_token`. `parameters_stated` is a published count, where
    shapes alone do not give it exactly. `sequence` and `batch` are what is usual, and what commands assume.
    An opaque model has `parameters_stated`, `sample_gflop` (forward pass) and `sample_mib` (activations kept).
    """

    name: str
    kind: Kind = "decoder"
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
        least_one = {
            "layers": self.layers,
            "hidden": self.hidden,
            "heads": self.heads,
            "experts": self.experts,
            "experts_per_token": self.experts_per_token,
            "sequence": self.sequence,
            "batch": self.batch,
        }
        least_none = {
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
        for least, fields in ((1, least_one), (0, least_none)):
            for field, value in fields.items():
                if not (isfinite(value) and least <= value <= 1e15):
                    raise BadValue(f"model {self.name!r}: {field} is {value}, expected a number ≥ {least}")
        self._check_transformer() if self.kind != "opaque" else self._check_opaque()

    def _check_transformer(self) -> None:
        if not self.head_size and self.hidden % self.heads:
            raise BadValue(f"model {self.name!r}: hidden {self.hidden} does not divide by {self.heads} heads")
        if self.kv_heads and self.heads % self.kv_heads:
            raise BadValue(f"model {self.name!r}: {self.heads} heads do not divide by {self.kv_heads} kv_heads")
        if self.experts_per_token > self.experts:
            raise BadValue(
                f"model {self.name!r}: a token cannot use {self.experts_per_token} of {self.experts} experts"
            )
        if (self.kind == "encoder-decoder") != bool(self.encoder_layers):
            raise BadValue(f"model {self.name!r}: encoder_layers go with the kind 'encoder-decoder', and only with it")

    def _check_opaque(self) -> None:
        if not (self.parameters_stated and self.sample_gflop):
            raise BadValue(f"opaque model {self.name!r} needs parameters_stated and sample_gflop")

    @property
    def opaque(self) -> bool:
        """Whether only measured numbers are known of it, and no shapes."""
        return self.kind == "opaque"

    @property
    def blocks(self) -> int:
        """Layers in all, which a pipeline can be cut between."""
        return self.layers + self.encoder_layers

    @property
    def attentions(self) -> int:
        """How many times attention is computed: a decoder that reads an encoder does so twice a layer."""
        return self.blocks + (self.layers if self.encoder_layers else 0)

    @property
    def head_width(self) -> int:
        """Width of one head."""
        return self.head_size or self.hidden // self.heads

    @property
    def query_width(self) -> int:
        """Width of all queries of a token."""
        return self.heads * self.head_width

    @property
    def key_width(self) -> int:
        """Width of all keys of a token, and of all values; less than that of the queries where heads share them."""
        return (self.kv_heads or self.heads) * self.head_width

    @property
    def ffn_width(self) -> int:
        """Width of one feed-forward part; four times the hidden width where nothing was said."""
        return self.ffn or 4 * self.hidden

    @cached_property
    def attention_parameters(self) -> int:
        """Weights of one attention: queries, keys, values, output."""
        weights = 2 * self.hidden * (self.query_width + self.key_width)
        biases = self.query_width + 2 * self.key_width + self.hidden
        return weights + (biases if self.bias else 0)

    @cached_property
    def expert_parameters(self) -> int:
        """Weights of one feed-forward part."""
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
        """Weights of all layers that one token meets."""
        unused = self.experts - self.experts_per_token
        return self.stack_parameters - (0 if self.opaque else self.blocks * unused * self.expert_parameters)

    @property
    def embedding_parameters(self) -> int:
        """Weights that turn tokens (or patches) into vectors."""
        return 0 if self.opaque else (self.vocabulary + self.positions) * self.hidden

    @property
    def head_parameters(self) -> int:
        """Weights of the output layer; none of its own where it shares those of the embedding."""
        return 0 if self.opaque or self.tied else self.vocabulary * self.hidden

    @cached_property
    def parameters(self) -> int:
        """All weights: the published count where there is one."""
        return self.parameters_stated or self.stack_parameters + self.embedding_parameters + self.head_parameters

    @property
    def predicts_tokens(self) -> bool:
        """Whether the output layer is computed for every token."""
        return self.kind in ("decoder", "encoder", "encoder-decoder")
