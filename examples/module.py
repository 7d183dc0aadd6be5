"""A module for `refold plan examples/module.py`: `build` returns it with the inputs of a batch, here of 32 images."""

import torch
from torch import nn


class ImageClassifier(nn.Module):
    """Convolutions, then a transformer over the places of the image."""

    def __init__(self, width: int = 768, layers: int = 12) -> None:
        super().__init__()
        self.patches = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3), nn.GELU(), nn.Conv2d(64, width, 8, 8))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 12, 4 * width, dropout=0.0, activation="gelu", batch_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(width, 1000)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return a score for every class."""
        hidden = self.patches(images).flatten(2).transpose(1, 2)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden.mean(1))


def build() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return the module and its inputs; nothing is allocated for them."""
    return ImageClassifier(), (torch.randn(32, 3, 224, 224),)
