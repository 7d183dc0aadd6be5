"""Transformer models built from their shapes, with random weights and data but the cost of the real models.

Everything that costs time or memory is included; dropout and meaningful labels are not. All layers are pre-norm, even
if the published model is post-norm. Position embeddings are learned if the shape has a position table, and rotary
otherwise.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, linear, scaled_dot_product_attention, silu
from torch.utils.checkpoint import checkpoint

from refold.errors import BadInput
from refold.model import Recompute
from refold.planning.perf import ModelShape

PATCH_VALUES = 16 * 16 * 3
"""Values in an image patch, if the shape of a ViT does not specify it."""

ROTARY_BASE = 10_000.0
INITIAL_STD = 0.02
"""Standard deviation of the initial weights."""


class Batch(NamedTuple):
    """The samples of one step: input tokens (or patches) and targets; `source` is the input of an encoder."""

    inputs: Tensor
    targets: Tensor
    source: Tensor | None = None

    def split(self, count: int) -> list[Batch]:
        """Split the batch into micro-batches."""
        sources = [None] * count if self.source is None else self.source.chunk(count)
        return [*map(Batch, self.inputs.chunk(count), self.targets.chunk(count), sources)]


class Transformer(nn.Module):
    """An embedding, a stack of layers and a loss, with a second stack if the shape has an encoder.

    A ViT reads patches of `vocabulary` values and has as many classes.
    """

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        width = _vocabulary(shape)
        self.embedding = (
            nn.Linear(width, shape.hidden, bias=False) if shape.kind == "vit" else nn.Embedding(width, shape.hidden)
        )
        self.positions = nn.Embedding(shape.positions, shape.hidden) if shape.positions else None
        self.encoder = nn.ModuleList(Layer(shape, causal=False) for _ in range(shape.encoder_layers))
        causal, cross_attention = shape.kind in ("decoder", "encoder-decoder"), shape.encoder_layers > 0
        self.layers = nn.ModuleList(
            Layer(shape, causal=causal, cross_attention=cross_attention) for _ in range(shape.layers)
        )
        self.norm = _norm(shape)
        self.encoder_norm = _norm(shape) if shape.encoder_layers else None
        self.head = None if shape.tied else nn.Linear(shape.hidden, width, bias=False)

    def forward(self, batch: Batch, recompute: Recompute = "none") -> Tensor:
        """Return the mean loss of the batch."""
        memory = None
        if batch.source is not None and self.encoder_norm is not None:
            memory = self.encoder_norm(self._run_layers(self.encoder, self._embed(batch.source), None, recompute))
        hidden = self.norm(self._run_layers(self.layers, self._embed(batch.inputs), memory, recompute))
        if not self.shape.predicts_tokens:
            hidden = hidden.mean(dim=1)
        logits = linear(hidden, self._head_weight()).float()
        return cross_entropy(logits.flatten(0, -2), batch.targets.flatten())

    def _embed(self, inputs: Tensor) -> Tensor:
        embedded: Tensor = self.embedding(inputs)
        if self.positions is None:
            return embedded
        return embedded + self.positions.weight[: inputs.shape[1]]

    def _run_layers(self, layers: nn.ModuleList, hidden: Tensor, memory: Tensor | None, recompute: Recompute) -> Tensor:
        rotary = None if self.shape.positions else _rotary_tables(self.shape.head_width, hidden)
        for layer in layers:
            if recompute == "full":
                hidden = _checkpointed(layer, hidden, rotary, memory)
            else:
                hidden = layer(hidden, rotary, memory, recompute == "selective")
        return hidden

    def _head_weight(self) -> Tensor:
        if self.head is not None:
            return self.head.weight
        embedding = self.embedding.weight
        return embedding.t() if self.shape.kind == "vit" else embedding


class Layer(nn.Module):
    """A transformer layer: self-attention, optional cross-attention to the encoder, and a feed-forward block."""

    def __init__(self, shape: ModelShape, *, causal: bool, cross_attention: bool = False) -> None:
        super().__init__()
        self.attention_norm, self.attention = _norm(shape), Attention(shape, causal=causal)
        self.cross_attention_norm = _norm(shape) if cross_attention else None
        self.cross_attention = Attention(shape, causal=False) if cross_attention else None
        self.feed_forward_norm = _norm(shape)
        self.feed_forward = Experts(shape) if shape.experts > 1 else FeedForward(shape)

    def forward(
        self, hidden: Tensor, rotary: Rotary | None, memory: Tensor | None = None, recompute_attention: bool = False
    ) -> Tensor:
        """Return the hidden states after the layer."""
        hidden = hidden + self.attention(self.attention_norm(hidden), rotary, None, recompute_attention)
        if self.cross_attention is not None and self.cross_attention_norm is not None:
            hidden = hidden + self.cross_attention(self.cross_attention_norm(hidden), None, memory, recompute_attention)
        output: Tensor = hidden + self.feed_forward(self.feed_forward_norm(hidden))
        return output


class Attention(nn.Module):
    """Multi-head attention; heads may share keys and values (GQA), which may come from an encoder."""

    def __init__(self, shape: ModelShape, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.head_width = shape.head_width
        self.queries_per_key = shape.query_width // shape.key_width
        self.query = nn.Linear(shape.hidden, shape.query_width, bias=shape.bias)
        self.key_and_value = nn.Linear(shape.hidden, 2 * shape.key_width, bias=shape.bias)
        self.output = nn.Linear(shape.query_width, shape.hidden, bias=shape.bias)

    def forward(
        self, hidden: Tensor, rotary: Rotary | None, memory: Tensor | None = None, recompute: bool = False
    ) -> Tensor:
        """Attend to the other tokens or, for cross-attention, to `memory`."""
        query = self._split_heads(self.query(hidden))
        key, value = map(self._split_heads, self.key_and_value(hidden if memory is None else memory).chunk(2, dim=-1))
        if rotary is not None:
            query, key = _rotate(query, rotary), _rotate(key, rotary)
        attended = _checkpointed(self._attend, query, key, value) if recompute else self._attend(query, key, value)
        output: Tensor = self.output(attended)
        return output

    def _split_heads(self, projected: Tensor) -> Tensor:
        return projected.view(*projected.shape[:-1], -1, self.head_width).transpose(1, 2)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self.queries_per_key > 1:
            key, value = (shared.repeat_interleave(self.queries_per_key, dim=1) for shared in (key, value))
        attended = scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return attended.transpose(1, 2).flatten(2)


class FeedForward(nn.Module):
    """A feed-forward block, gated (SwiGLU) or not (GELU)."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.hidden, shape.ffn_width, bias=shape.bias) if shape.gated else None
        self.up = nn.Linear(shape.hidden, shape.ffn_width, bias=shape.bias)
        self.down = nn.Linear(shape.ffn_width, shape.hidden, bias=shape.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Transform each token independently."""
        expanded = self.up(hidden)
        expanded = gelu(expanded) if self.gate is None else silu(self.gate(hidden)) * expanded
        output: Tensor = self.down(expanded)
        return output


class Experts(nn.Module):
    """A mixture of experts: each token is routed to a few feed-forward blocks, which run sequentially."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.per_token = shape.experts_per_token
        self.router = nn.Linear(shape.hidden, shape.experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(shape) for _ in range(shape.experts))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the sum of the experts' outputs, weighted by the router."""
        tokens = hidden.flatten(0, -2)
        weights, chosen = self.router(tokens).softmax(dim=-1).topk(self.per_token)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        outputs = torch.zeros_like(tokens)
        for index, expert in enumerate(self.experts):
            rows, ranks = (chosen == index).nonzero(as_tuple=True)
            outputs = outputs.index_add(0, rows, weights[rows, ranks, None] * expert(tokens[rows]))
        return outputs.view_as(hidden)


def build(shape: ModelShape, device: str = "cpu", dtype: torch.dtype = torch.float32, seed: int = 0) -> Transformer:
    """Build the model on the device with random weights; the same seed gives the same model on the same device."""
    if shape.opaque:
        raise BadInput(f"model {shape.name!r} is opaque: its layers are unknown, so it cannot be built and measured")
    if not shape.positions and shape.head_width % 2:
        raise BadInput(f"model {shape.name!r}: rotary positions need an even head width, got {shape.head_width}")
    with torch.device("meta"):
        model = Transformer(shape).to(dtype)
    model.to_empty(device=device)
    generator = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.dim() > 1:
                weights.normal_(0.0, INITIAL_STD, generator=generator)
            else:
                weights.fill_(0.0 if name.endswith("bias") else 1.0)
    return model


def random_batch(
    shape: ModelShape,
    samples: int,
    sequence: int,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Batch:
    """Return a batch of random data of the right shape."""
    if shape.positions and sequence > shape.positions:
        raise BadInput(f"model {shape.name!r} has {shape.positions} positions, fewer than {sequence} tokens")
    vocabulary = _vocabulary(shape)
    generator = torch.Generator(device).manual_seed(seed)

    def tokens(*sizes: int) -> Tensor:
        return torch.randint(vocabulary, sizes, generator=generator, device=device)

    if shape.kind == "vit":
        patches = torch.randn(samples, sequence, vocabulary, generator=generator, device=device, dtype=dtype)
        return Batch(patches, tokens(samples))
    source = tokens(samples, sequence) if shape.encoder_layers else None
    return Batch(tokens(samples, sequence), tokens(samples, sequence), source)


Rotary = tuple[Tensor, Tensor]
"""Cosines and sines by position and dimension of a head."""


def _rotary_tables(head_width: int, like: Tensor) -> Rotary:
    dimensions = torch.arange(0, head_width, 2, device=like.device, dtype=torch.float32)
    positions = torch.arange(like.shape[1], device=like.device, dtype=torch.float32)
    angles = torch.outer(positions, ROTARY_BASE ** (-dimensions / head_width)).repeat(1, 2)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def _rotate(heads: Tensor, rotary: Rotary) -> Tensor:
    """Su et al. 2021 (RoFormer): rotate each pair of dimensions by an angle proportional to the position."""
    cosines, sines = rotary
    first, second = heads.chunk(2, dim=-1)
    return heads * cosines + torch.cat((-second, first), dim=-1) * sines


def _checkpointed(function: object, *inputs: object) -> Tensor:
    """Call the function with activation checkpointing: only its inputs are stored for the backward pass."""
    output: Tensor = checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
    return output


def _norm(shape: ModelShape) -> nn.Module:
    return nn.LayerNorm(shape.hidden) if shape.bias else nn.RMSNorm(shape.hidden)


def _vocabulary(shape: ModelShape) -> int:
    if shape.vocabulary or shape.kind == "vit":
        return shape.vocabulary or PATCH_VALUES
    raise BadInput(f"model {shape.name!r} has no vocabulary: it cannot be built and measured")
