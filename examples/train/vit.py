"""Train a vision transformer to classify images.

python examples/train/vit.py --size tiny --steps 100
refold submit examples/train/vit.yaml
"""

from __future__ import annotations

import torch
from blocks import Block
from options import SIZES, Size, read_options
from synthetic_data import PatternImages, SlowData
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import refold.train

PATCH_VALUES = 48
"""Values of a patch of 4 × 4 pixels in three colours."""


class Classifier(nn.Module):
    """The mean of all patches, and a linear layer."""

    def __init__(self, hidden: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.classes = nn.Linear(hidden, classes)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the logits of each image."""
        logits: Tensor = self.classes(self.norm(hidden).mean(dim=1))
        return logits


class ViT(nn.Module):
    """A vision transformer. What comes after the layers is a module, so that it can be left out of pipeline stages."""

    def __init__(self, size: Size, classes: int) -> None:
        super().__init__()
        self.patches = nn.Linear(PATCH_VALUES, size.hidden)
        self.positions = nn.Embedding(size.length, size.hidden)
        self.layers = nn.ModuleList(Block(size.hidden, size.heads, causal=False) for _ in range(size.layers))
        self.head = Classifier(size.hidden, classes)

    def forward(self, patches: Tensor) -> Tensor:
        """Return the logits of each image."""
        positions = torch.arange(patches.shape[1], device=patches.device)
        hidden = self.patches(patches) + self.positions(positions)
        for layer in self.layers:
            hidden = layer(hidden)
        logits: Tensor = self.head(hidden)
        return logits


def loss(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """Return the mean loss of the images of a micro-batch."""
    return cross_entropy(logits.float(), batch["labels"])


def main() -> None:
    """Train."""
    options = read_options(__doc__, classes=10)
    torch.manual_seed(options.seed)
    size = SIZES[options.size]
    images = PatternImages(options.classes, size.length, PATCH_VALUES, seed=options.seed)
    data = SlowData(images, options.load_ms)
    model = ViT(size, options.classes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate)

    session = refold.train.start(
        model, optimizer, loss=loss, data=data, batch=options.batch, steps=options.steps, seed=options.seed
    )
    for batch in session:
        value = session.step(batch)
        if session.rank == 0 and session.steps_done % 10 == 0:
            print(f"step {session.steps_done}, loss {value:.4f}, {session.plan}", flush=True)


if __name__ == "__main__":
    main()
