"""A transformer block whose layers have names that refold.train knows, so that tensor parallelism can split them."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention


class Attention(nn.Module):
    """Multi-head attention with separate projections: heads are split, so q, k and v must not share a matrix."""

    def __init__(self, hidden: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.head_width = hidden // heads
        self.causal = causal
        self.q, self.k, self.v = (nn.Linear(hidden, hidden) for _ in range(3))
        self.o = nn.Linear(hidden, hidden)

    def forward(self, hidden: Tensor) -> Tensor:
        """Attend to all tokens, or with `causal` to those before."""
        query, key, value = (self._split_heads(project(hidden)) for project in (self.q, self.k, self.v))
        attended = scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        output: Tensor = self.o(attended.transpose(1, 2).flatten(2))
        return output

    def _split_heads(self, projected: Tensor) -> Tensor:
        return projected.unflatten(-1, (-1, self.head_width)).transpose(1, 2)  # as many heads as this rank has


class FeedForward(nn.Module):
    """Two linear layers."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)

    def forward(self, hidden: Tensor) -> Tensor:
        """Transform each token independently."""
        output: Tensor = self.down(gelu(self.up(hidden)))
        return output


class Block(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, hidden: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(hidden), Attention(hidden, heads, causal)
        self.mlp_norm, self.mlp = nn.LayerNorm(hidden), FeedForward(hidden)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden states after the layer."""
        hidden = hidden + self.attention(self.attention_norm(hidden))
        output: Tensor = hidden + self.mlp(self.mlp_norm(hidden))
        return output
