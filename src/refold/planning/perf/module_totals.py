"""Totals of a traced training step of any module, and the model that they give: averages of products, memory traffic.

The costs were fitted on eight modules on one H200 (`python -m benchmarks.accuracy.fit_modules`). Kernels are those of
PyTorch without compilation; tensors of images have their channels before their places.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from refold.planning.perf.compute import UNALIGNED_PEAK_SHARE
from refold.planning.perf.shapes import ModelShape

ProductKind = Literal["aligned", "unaligned", "convolution"]
TrafficKind = Literal["elementwise", "batch-norm", "depthwise", "convolution"]

STEP_PASSES = 3.0
"""A step has three times the work of a forward pass: the model counts the backward pass as two."""

MIB = 2.0**20


class ModuleCosts(msgspec.Struct, frozen=True):
    """What the parts of a traced step cost.

    `elementwise`, `batch_norm`, `depthwise`: memory time of operations that are no products, of batch normalisation,
    and of convolutions with little arithmetic, relative to their bytes. `convolution`: the same for other convolutions,
    besides their arithmetic, whose efficiency is `convolution_share` of that of large matrix products.
    `operations_per_weight`: host time for the gradient and the update of a tensor of weights, in operations.
    """

    elementwise: float = 1.52
    batch_norm: float = 2.59
    depthwise: float = 23.9
    convolution: float = 2.15
    convolution_share: float = 0.805
    operations_per_weight: float = 7.83

    def passes(self, kind: TrafficKind) -> float:
        """Return the memory time of operations of a kind, relative to their bytes."""
        match kind:
            case "elementwise":
                return self.elementwise
            case "batch-norm":
                return self.batch_norm
            case "depthwise":
                return self.depthwise
            case "convolution":
                return self.convolution

    def share(self, kind: ProductKind) -> float:
        """Return the efficiency of products of a kind, relative to large and aligned ones."""
        match kind:
            case "aligned":
                return 1.0
            case "unaligned":
                return UNALIGNED_PEAK_SHARE
            case "convolution":
                return self.convolution_share


DEFAULT_COSTS = ModuleCosts()


class ProductTotals(msgspec.Struct):
    """Products of a kind: FLOPs of a step, and of the forward pass, also divided by columns, and by results.

    Of a product with f FLOPs, r rows and w columns, these are f, f / w and f / (r · w).
    """

    flops: float = 0.0
    forward_flops: float = 0.0
    by_width: float = 0.0
    by_results: float = 0.0

    def add(self, flops: float, rows: float, width: float, *, is_forward: bool) -> None:
        self.flops += flops
        if is_forward:
            self.forward_flops += flops
            self.by_width += flops / width
            self.by_results += flops / (width * rows)


class ModuleTotals(msgspec.Struct):
    """A step of so many samples: products and bytes by kind, operations, attention of the forward pass, peak memory.

    `weights` is the number of tensors of weights, `layers` that of repeated blocks.
    """

    samples: int
    parameters: int
    weights: int
    layers: int
    operations: int = 0
    attention_flops: float = 0.0
    peak_bytes: float = 0.0
    products: dict[ProductKind, ProductTotals] = msgspec.field(default_factory=dict)
    traffic: dict[TrafficKind, float] = msgspec.field(default_factory=dict)

    def add_traffic(self, kind: TrafficKind, moved: float) -> None:
        """Add the bytes that an operation reads and writes."""
        self.traffic[kind] = self.traffic.get(kind, 0.0) + moved

    def shape(self, name: str, costs: ModuleCosts = DEFAULT_COSTS) -> ModelShape:
        """Return the model with the totals of one sample."""
        products = self.products.values()
        forward = sum(one.forward_flops for one in products)
        weighted = sum(one.forward_flops / costs.share(kind) for kind, one in self.products.items())
        traffic = sum(costs.passes(kind) * moved for kind, moved in self.traffic.items())
        return ModelShape(
            name,
            kind="opaque",
            layers=self.layers,
            parameters_stated=self.parameters,
            batch=self.samples,
            sample_gflop=sum(one.flops for one in products) / STEP_PASSES / self.samples / 1e9,
            sample_mib=self.peak_bytes / self.samples / MIB,
            attention_gflop=self.attention_flops / self.samples / 1e9,
            traffic_mib=traffic / STEP_PASSES / self.samples / MIB,
            operations=self.operations + round(costs.operations_per_weight * self.weights),
            product_share=forward / weighted,
            product_width=forward / sum(one.by_width for one in products),
            product_results=forward / sum(one.by_results for one in products) / self.samples,
            source="traced",
        )
