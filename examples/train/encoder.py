"""Train an encoder to predict masked tokens.

python examples/train/encoder.py --size tiny --steps 100
refold submit examples/train/encoder.yaml
"""

from __future__ import annotations

import torch
from blocks import Block
from options import SIZES, Size, read_options
from synthetic_data import IGNORED, MaskedText, SlowData
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import refold.train

VOCABULARY = 64


class Encoder(nn.Module):
    """An encoder with bidirectional attention; the last token of the vocabulary is the mask."""

    def __init__(self, size: Size, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size.hidden)
        self.positions = nn.Embedding(size.length, size.hidden)
        self.layers = nn.ModuleList(Block(size.hidden, size.heads, causal=False) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.hidden)
        self.head = nn.Linear(size.hidden, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits for every token, masked or not."""
        positions = self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        hidden = self.embedding(tokens) + positions
        for layer in self.layers:
            hidden = layer(hidden)
        logits: Tensor = self.head(self.norm(hidden))
        return logits


def loss(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """Return the mean loss of the masked tokens of a micro-batch."""
    return cross_entropy(logits.flatten(0, -2).float(), batch["labels"].flatten(), ignore_index=IGNORED)


def main() -> None:
    """Train."""
    options = read_options(__doc__)
    torch.manual_seed(options.seed)
    size = SIZES[options.size]
    model = Encoder(size, VOCABULARY + 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate)

    session = refold.train.start(
        model,
        optimizer,
        loss=loss,
        data=SlowData(MaskedText(VOCABULARY, size.length, seed=options.seed), options.load_ms),
        batch=options.batch,
        steps=options.steps,
        seed=options.seed,
    )
    for batch in session:
        value = session.step(batch)
        if session.rank == 0 and session.steps_done % 10 == 0:
            print(f"step {session.steps_done}, loss {value:.4f}, {session.plan}", flush=True)


if __name__ == "__main__":
    main()
