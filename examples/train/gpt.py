"""Train a small GPT to predict the next token.

python examples/train/gpt.py --size tiny --steps 100
refold submit examples/train/gpt.yaml
"""

from __future__ import annotations

import torch
from blocks import Block
from options import SIZES, Size, read_options
from synthetic_data import MarkovText, SlowData
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import refold.train

VOCABULARY = 256


class GPT(nn.Module):
    """A decoder. Modules are assigned in the order of execution, so that pipeline stages can be cut out of it."""

    def __init__(self, size: Size, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size.hidden)
        self.positions = nn.Embedding(size.length, size.hidden)
        self.layers = nn.ModuleList(Block(size.hidden, size.heads, causal=True) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.hidden)
        self.head = nn.Linear(size.hidden, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of each next token."""
        hidden = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            hidden = layer(hidden)
        logits: Tensor = self.head(self.norm(hidden))
        return logits


def loss(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """Return the mean loss of the tokens of a micro-batch."""
    return cross_entropy(logits.flatten(0, -2).float(), batch["labels"].flatten())


def main() -> None:
    """Train."""
    options = read_options(__doc__)
    torch.manual_seed(options.seed)
    size = SIZES[options.size]
    model = GPT(size, VOCABULARY)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate)
    data = SlowData(MarkovText(VOCABULARY, size.length, seed=options.seed), options.load_ms)

    session = refold.train.start(
        model, optimizer, loss=loss, data=data, batch=options.batch, steps=options.steps, seed=options.seed
    )
    for batch in session:
        value = session.step(batch)
        if session.rank == 0 and session.steps_done % 10 == 0:
            print(f"step {session.steps_done}, loss {value:.4f}, {session.plan}", flush=True)


if __name__ == "__main__":
    main()
