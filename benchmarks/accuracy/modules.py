"""PyTorch modules whose shapes the catalogue does not know, to check the estimates of traced modules.

Each function builds a module and inputs for a batch. With `torch.device("meta")` nothing is allocated.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Built = tuple[nn.Module, dict[str, Any]]


def loss_of(output: Any) -> torch.Tensor:
    """Return the loss of an output; without one, a sum to differentiate."""
    loss = getattr(output, "loss", None)
    return output.float().sum() if loss is None else loss


def _vision(model_type: str, size: int = 224, **keys: Any) -> Callable[[int], Built]:
    from transformers import AutoConfig, AutoModelForImageClassification

    def build(batch: int) -> Built:
        module = AutoModelForImageClassification.from_config(AutoConfig.for_model(model_type, num_labels=1000, **keys))
        return module, {"pixel_values": torch.randn(batch, 3, size, size), "labels": _whole(batch, high=1000)}

    return build


def _text(kind: str, model_type: str, length: int, **keys: Any) -> Callable[[int], Built]:
    import transformers

    def build(batch: int) -> Built:
        config = transformers.AutoConfig.for_model(model_type, use_cache=False, **keys)
        module = getattr(transformers, kind).from_config(config)
        tokens = _whole(batch, length, high=1000)
        return module, {"input_ids": tokens, "labels": tokens}

    return build


def _whole(*shape: int, high: int) -> torch.Tensor:
    return torch.randint(0, high, shape)


class UNet(nn.Module):  # type: ignore[misc]
    """Convolutions at four resolutions with skip connections, as in segmentation and diffusion."""

    def __init__(self, width: int = 128, channels: int = 4) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width, 4 * width]
        self.first = nn.Conv2d(channels, width, 3, padding=1)
        self.down = nn.ModuleList(
            _residual(before, after) for before, after in zip([width, *widths], widths, strict=False)
        )
        self.up = nn.ModuleList(
            _residual(2 * one, after) for one, after in zip(widths[::-1], [*widths[-2::-1], width], strict=True)
        )
        self.last = nn.Conv2d(width, channels, 3, padding=1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        hidden, kept = self.first(image), []
        for block in self.down:
            hidden = block(hidden)
            kept.append(hidden)
            hidden = functional.avg_pool2d(hidden, 2)
        for block, other in zip(self.up, reversed(kept), strict=True):
            hidden = functional.interpolate(hidden, scale_factor=2.0, mode="nearest")
            hidden = block(torch.cat((hidden, other), 1))
        return self.last(hidden)


def _residual(before: int, after: int) -> nn.Module:
    return nn.Sequential(
        nn.GroupNorm(32, before),
        nn.SiLU(),
        nn.Conv2d(before, after, 3, padding=1),
        nn.GroupNorm(32, after),
        nn.SiLU(),
        nn.Conv2d(after, after, 3, padding=1),
    )


class Recommender(nn.Module):  # type: ignore[misc]
    """Embedding tables and dense layers, as in recommendation."""

    def __init__(self, tables: int = 26, rows: int = 100_000, width: int = 128) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2 + width
        layers = [pairs, 1024, 1024, 512, 256]
        self.top = nn.Sequential(
            *(part for a, b in pairwise(layers) for part in (nn.Linear(a, b), nn.ReLU())),
            nn.Linear(256, 1),
        )
        below = [row * (tables + 1) + column for row in range(tables + 1) for column in range(row)]
        self.register_buffer("below", torch.tensor(below))

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        hidden = self.bottom(dense)
        every = torch.stack([hidden, *(table(sparse[:, at]) for at, table in enumerate(self.tables))], 1)
        crossed = torch.bmm(every, every.transpose(1, 2)).flatten(1)[:, self.below]
        return self.top(torch.cat((hidden, crossed), 1))


class Mixer(nn.Module):  # type: ignore[misc]
    """MLP-Mixer: dense layers over patches and over channels in turn."""

    def __init__(self, depth: int = 24, patches: int = 196, width: int = 1024) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 16, 16)
        self.blocks = nn.ModuleList(
            nn.ModuleList((nn.LayerNorm(width), _dense(patches, 512), nn.LayerNorm(width), _dense(width, 4 * width)))
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 1000)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        hidden = self.patch(image).flatten(2).transpose(1, 2)
        for first, tokens, second, channels in self.blocks:
            hidden = hidden + tokens(first(hidden).transpose(1, 2)).transpose(1, 2)
            hidden = hidden + channels(second(hidden))
        return self.head(hidden.mean(1))


def _dense(width: int, inner: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))


def _unet(batch: int) -> Built:
    return UNet(), {"image": torch.randn(batch, 4, 64, 64)}


def _recommender(batch: int) -> Built:
    return Recommender(), {"dense": torch.randn(batch, 13), "sparse": _whole(batch, 26, high=100_000)}


def _mixer(batch: int) -> Built:
    return Mixer(), {"image": torch.randn(batch, 3, 224, 224)}


def _whisper(batch: int) -> Built:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        d_model=768,
        encoder_layers=12,
        decoder_layers=12,
        encoder_attention_heads=12,
        decoder_attention_heads=12,
        encoder_ffn_dim=3072,
        decoder_ffn_dim=3072,
        use_cache=False,
    )
    return WhisperForConditionalGeneration(config), {
        "input_features": torch.randn(batch, 80, 3000),
        "labels": _whole(batch, 448, high=1000),
    }


def _clip(batch: int) -> Built:
    from transformers import CLIPConfig, CLIPModel

    return CLIPModel(CLIPConfig()), {
        "input_ids": _whole(batch, 77, high=1000),
        "pixel_values": torch.randn(batch, 3, 224, 224),
        "attention_mask": torch.ones(batch, 77, dtype=torch.long),
        "return_loss": True,
    }


MODULES: dict[str, tuple[Callable[[int], Built], tuple[int, ...]]] = {
    # name: (build, batches)
    "resnet-50": (_vision("resnet"), (16, 128, 512)),
    "convnext-base": (_vision("convnext", depths=[3, 3, 27, 3], hidden_sizes=[128, 256, 512, 1024]), (8, 64, 256)),
    "swin-base": (_vision("swin", embed_dim=128, depths=[2, 2, 18, 2], num_heads=[4, 8, 16, 32]), (8, 64, 256)),
    "unet": (_unet, (8, 32, 128)),
    "mlp-mixer-large": (_mixer, (16, 64, 256)),
    "recommender": (_recommender, (2048, 16384, 65536)),
    "whisper-small": (_whisper, (4, 16, 32)),
    "t5-large": (
        _text(
            "AutoModelForSeq2SeqLM",
            "t5",
            512,
            d_model=1024,
            d_ff=4096,
            num_layers=24,
            num_decoder_layers=24,
            num_heads=16,
            decoder_start_token_id=0,
        ),
        (4, 16),
    ),
    "bert-large": (
        _text(
            "AutoModelForMaskedLM",
            "bert",
            512,
            hidden_size=1024,
            num_hidden_layers=24,
            num_attention_heads=16,
            intermediate_size=4096,
        ),
        (8, 32, 64),
    ),
    "vit-large": (
        _vision("vit", hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096),
        (16, 64, 256),
    ),
    "clip": (_clip, (16, 64, 256)),
    "mamba-370m": (_text("AutoModelForCausalLM", "mamba", 128, hidden_size=1024, num_hidden_layers=12), (2,)),
    "efficientnet-b4": (_vision("efficientnet", 380), (8, 32)),
    "segformer-b3": (_vision("segformer", depths=[3, 4, 18, 3], hidden_sizes=[64, 128, 320, 512]), (16, 64)),
    "olmoe-1b-7b-8-layers": (_text("AutoModelForCausalLM", "olmoe", 1024, num_hidden_layers=8), (4, 8)),
}
"""Modules that are measured, with their batches."""
