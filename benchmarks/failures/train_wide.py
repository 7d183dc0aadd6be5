"""Layers of a given width, trained for ever. Arguments: the width, and the number of layers."""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

import refold.train

width, count = int(sys.argv[1]), int(sys.argv[2])


class Wide(nn.Module):
    """Linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the last layer."""
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


torch.manual_seed(0)
torch.set_num_threads(1)
model = Wide()
session = refold.train.start(
    model,
    torch.optim.Adam(model.parameters()),
    loss=lambda output, batch: (output - batch["x"]).square().mean(),
    data=[{"x": torch.randn(width)} for _ in range(64)],
    batch=4,
    steps=10**6,
)
for batch in session:
    session.step(batch)
