"""Small models and data for tests of training."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

VOCABULARY, SEQUENCE = 64, 16


class Attention(nn.Module):
    """Causal attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_size = width // heads
        self.num_heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, hidden: Tensor) -> Tensor:
        """Mix positions."""
        query, key, value = (
            projection(hidden).unflatten(-1, (self.num_heads, self.head_size)).transpose(1, 2)
            for projection in (self.q, self.k, self.v)
        )
        return self.o(scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        """Mix channels."""
        return self.down(gelu(self.up(hidden)))


class Block(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mlp = Attention(width, heads), FeedForward(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the next layer's input."""
        hidden = hidden + self.dropout(self.attention(self.attention_norm(hidden)))
        return hidden + self.mlp(self.mlp_norm(hidden))


class SmallGpt(nn.Module):
    """A small GPT."""

    def __init__(
        self, *, width: int = 32, layers: int = 4, heads: int = 4, tied: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(SEQUENCE, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)
        if tied:
            nn.init.normal_(self.tokens.weight, std=0.1)
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits."""
        hidden = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))


class RepeatedWords:
    """Sequences that repeat a random word of four tokens, by number."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(index)
        text = torch.randint(VOCABULARY, (4,), generator=generator).repeat(SEQUENCE // 4 + 1)[: SEQUENCE + 1]
        return text[:-1], text[1:]


def next_token_loss(logits: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean cross entropy of the next tokens."""
    return cross_entropy(logits.flatten(0, 1), batch[1].flatten())
