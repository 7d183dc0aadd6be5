"""Command-line options of the examples: from seconds on two CPU cores to one large GPU."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Size:
    """Layers, width and heads of a model, and tokens per sample."""

    layers: int
    hidden: int
    heads: int
    length: int


SIZES = {
    "tiny": Size(4, 64, 4, 32),
    "small": Size(4, 256, 4, 128),
    "medium": Size(12, 768, 12, 512),
    "large": Size(24, 2048, 16, 1024),
}
"""About 0.2, 3, 90 and 1,200 million parameters."""


def read_options(description: str | None, **defaults: object) -> Namespace:
    """Read the options of an example; `defaults` add options of its own."""
    parser = ArgumentParser(description=description)
    parser.add_argument("--size", choices=SIZES, default="tiny", help="size of the model (default: tiny)")
    parser.add_argument("--steps", type=int, default=100, help="number of steps (default: 100)")
    parser.add_argument("--batch", type=int, default=16, help="samples per step (default: 16)")
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate (default: 0.001)")
    parser.add_argument("--seed", type=int, default=0, help="random seed of weights and data (default: 0)")
    parser.add_argument("--load-ms", type=float, default=0.0, help="milliseconds to load a sample (default: 0)")
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=type(value), default=value, help=f"(default: {value})")
    return parser.parse_args()
