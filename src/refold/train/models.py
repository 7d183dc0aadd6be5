"""Models to run, made from their shapes: random weights, random data, and the work of the real ones.

What costs time or memory is there; what does not, such as dropout and labels that mean something, is not. Norms come
first in every layer, also where the published model has them last. Positions are learned where the shape has a table
of them, and rotary where it has none.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, linear, scaled_dot_product_attention, silu
from torch.utils.checkpoint import checkpoint

from refold.errors import BadInput
from refold.model import Recompute
from refold.perf import ModelShape

PATCH = 16 * 16 * 3
"""Numbers in a patch of an image, where the shape of a ViT says nothing of it."""

ROTARY_BASE = 10_000.0
SPREAD = 0.02
"""Standard deviation of new weights."""


class Batch(NamedTuple):
    """Samples of one step: tokens (or patches) and what should come out. `source` is what an encoder reads."""

    inputs: Tensor
    targets: Tensor
    source: Tensor | None = None

    def parts(self, number: int) -> list[Batch]:
        """As many micro-batches."""
        sources = [None] * number if self.source is None else self.source.chunk(number)
        return [*map(Batch, self.inputs.chunk(number), self.targets.chunk(number), sources)]


class Transformer(nn.Module):
    """A stack of layers between an embedding and a loss; a second stack before it where the shape has an encoder.

    A ViT reads patches of `vocabulary` numbers and tells as many classes apart.
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
        causal, reads = shape.kind in ("decoder", "encoder-decoder"), shape.encoder_layers > 0
        self.layers = nn.ModuleList(Layer(shape, causal=causal, reads=reads) for _ in range(shape.layers))
        self.norm = _norm(shape)
        self.encoder_norm = _norm(shape) if shape.encoder_layers else None
        self.head = None if shape.tied else nn.Linear(shape.hidden, width, bias=False)

    def forward(self, batch: Batch, recompute: Recompute = "none") -> Tensor:
        """The mean loss of the batch."""
        memory = None
        if batch.source is not None and self.encoder_norm is not None:
            memory = self.encoder_norm(self._through(self.encoder, self._embedded(batch.source), None, recompute))
        hidden = self.norm(self._through(self.layers, self._embedded(batch.inputs), memory, recompute))
        if not self.shape.predicts_tokens:
            hidden = hidden.mean(dim=1)
        logits = linear(hidden, self._head_weight()).float()
        return cross_entropy(logits.flatten(0, -2), batch.targets.flatten())

    def _embedded(self, inputs: Tensor) -> Tensor:
        embedded: Tensor = self.embedding(inputs)
        if self.positions is None:
            return embedded
        return embedded + self.positions.weight[: inputs.shape[1]]

    def _through(self, layers: nn.ModuleList, hidden: Tensor, memory: Tensor | None, recompute: Recompute) -> Tensor:
        rotary = None if self.shape.positions else _rotary_tables(self.shape.head_width, hidden)
        for layer in layers:
            if recompute == "full":
                hidden = _recomputed(layer, hidden, rotary, memory)
            else:
                hidden = layer(hidden, rotary, memory, recompute == "selective")
        return hidden

    def _head_weight(self) -> Tensor:
        if self.head is not None:
            return self.head.weight
        embedding = self.embedding.weight
        return embedding.t() if self.shape.kind == "vit" else embedding


class Layer(nn.Module):
    """Attention, attention to what an encoder has read where there is one, and a feed-forward part."""

    def __init__(self, shape: ModelShape, *, causal: bool, reads: bool = False) -> None:
        super().__init__()
        self.attention_norm, self.attention = _norm(shape), Attention(shape, causal=causal)
        self.reading_norm = _norm(shape) if reads else None
        self.reading = Attention(shape, causal=False) if reads else None
        self.feed_norm = _norm(shape)
        self.feed = Experts(shape) if shape.experts > 1 else FeedForward(shape)

    def forward(
        self, hidden: Tensor, rotary: Rotary | None, memory: Tensor | None = None, recompute_attention: bool = False
    ) -> Tensor:
        """The next hidden state."""
        hidden = hidden + self.attention(self.attention_norm(hidden), rotary, None, recompute_attention)
        if self.reading is not None and self.reading_norm is not None:
            hidden = hidden + self.reading(self.reading_norm(hidden), None, memory, recompute_attention)
        fed: Tensor = hidden + self.feed(self.feed_norm(hidden))
        return fed


class Attention(nn.Module):
    """Several heads; keys and values may be shared by some of them, and may come from elsewhere."""

    def __init__(self, shape: ModelShape, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.head_width = shape.head_width
        self.sharing = shape.query_width // shape.key_width
        self.query = nn.Linear(shape.hidden, shape.query_width, bias=shape.bias)
        self.key_and_value = nn.Linear(shape.hidden, 2 * shape.key_width, bias=shape.bias)
        self.output = nn.Linear(shape.query_width, shape.hidden, bias=shape.bias)

    def forward(
        self, hidden: Tensor, rotary: Rotary | None, memory: Tensor | None = None, recompute: bool = False
    ) -> Tensor:
        """What each token takes from the others, or from `memory`."""
        query = self._heads(self.query(hidden))
        key, value = map(self._heads, self.key_and_value(hidden if memory is None else memory).chunk(2, dim=-1))
        if rotary is not None:
            query, key = _rotated(query, rotary), _rotated(key, rotary)
        mixed = _recomputed(self._mixed, query, key, value) if recompute else self._mixed(query, key, value)
        output: Tensor = self.output(mixed)
        return output

    def _heads(self, wide: Tensor) -> Tensor:
        return wide.view(*wide.shape[:-1], -1, self.head_width).transpose(1, 2)

    def _mixed(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self.sharing > 1:
            key, value = (shared.repeat_interleave(self.sharing, dim=1) for shared in (key, value))
        mixed = scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return mixed.transpose(1, 2).flatten(2)


class FeedForward(nn.Module):
    """Wider, and back: with a gate (SwiGLU) or without one (GELU)."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.hidden, shape.ffn_width, bias=shape.bias) if shape.gated else None
        self.up = nn.Linear(shape.hidden, shape.ffn_width, bias=shape.bias)
        self.down = nn.Linear(shape.ffn_width, shape.hidden, bias=shape.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """One token at a time."""
        wide = self.up(hidden)
        wide = gelu(wide) if self.gate is None else silu(self.gate(hidden)) * wide
        narrow: Tensor = self.down(wide)
        return narrow


class Experts(nn.Module):
    """Several feed-forward parts, of which each token goes through a few, one expert after the other."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.per_token = shape.experts_per_token
        self.router = nn.Linear(shape.hidden, shape.experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(shape) for _ in range(shape.experts))

    def forward(self, hidden: Tensor) -> Tensor:
        """The experts' answers, each by the weight that the router gave it."""
        tokens = hidden.flatten(0, -2)
        weights, chosen = self.router(tokens).softmax(dim=-1).topk(self.per_token)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        answers = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows, places = (chosen == number).nonzero(as_tuple=True)
            answers = answers.index_add(0, rows, weights[rows, places, None] * expert(tokens[rows]))
        return answers.view_as(hidden)


def build(shape: ModelShape, device: str = "cpu", dtype: torch.dtype = torch.float32, seed: int = 0) -> Transformer:
    """The model with random weights, made where it will be used; the same seed gives the same model on one device."""
    if shape.opaque:
        raise BadInput(f"model {shape.name!r} is opaque: its shapes are not known, so it cannot be built and measured")
    if not shape.positions and shape.head_width % 2:
        raise BadInput(f"model {shape.name!r}: rotary positions need heads of an even width, not {shape.head_width}")
    with torch.device("meta"):
        model = Transformer(shape).to(dtype)
    model.to_empty(device=device)
    chance = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.dim() > 1:
                weights.normal_(0.0, SPREAD, generator=chance)
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
    """Data of the right shape, which mean nothing."""
    if shape.positions and sequence > shape.positions:
        raise BadInput(f"model {shape.name!r} has {shape.positions} positions: {sequence} tokens are too many")
    vocabulary = _vocabulary(shape)
    chance = torch.Generator(device).manual_seed(seed)

    def tokens(*sizes: int) -> Tensor:
        return torch.randint(vocabulary, sizes, generator=chance, device=device)

    if shape.kind == "vit":
        patches = torch.randn(samples, sequence, vocabulary, generator=chance, device=device, dtype=dtype)
        return Batch(patches, tokens(samples))
    source = tokens(samples, sequence) if shape.encoder_layers else None
    return Batch(tokens(samples, sequence), tokens(samples, sequence), source)


Rotary = tuple[Tensor, Tensor]
"""Cosines and sines, by position and by place in a head."""


def _rotary_tables(head_width: int, like: Tensor) -> Rotary:
    places = torch.arange(0, head_width, 2, device=like.device, dtype=torch.float32)
    at = torch.arange(like.shape[1], device=like.device, dtype=torch.float32)
    angles = torch.outer(at, ROTARY_BASE ** (-places / head_width)).repeat(1, 2)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def _rotated(heads: Tensor, rotary: Rotary) -> Tensor:
    """Su et al. 2021 (RoFormer): each pair of places is turned by an angle that grows with the position."""
    cosines, sines = rotary
    first, second = heads.chunk(2, dim=-1)
    return heads * cosines + torch.cat((-second, first), dim=-1) * sines


def _recomputed(what: object, *inputs: object) -> Tensor:
    """The same, but only the inputs are kept for the backward pass."""
    found: Tensor = checkpoint(what, *inputs, use_reentrant=False, preserve_rng_state=False)
    return found


def _norm(shape: ModelShape) -> nn.Module:
    return nn.LayerNorm(shape.hidden) if shape.bias else nn.RMSNorm(shape.hidden)


def _vocabulary(shape: ModelShape) -> int:
    if shape.vocabulary or shape.kind == "vit":
        return shape.vocabulary or PATCH
    raise BadInput(f"model {shape.name!r} has no vocabulary: it cannot be built and measured")
