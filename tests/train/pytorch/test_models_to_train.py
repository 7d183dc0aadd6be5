"""Models are built from their shapes and have the number of parameters of the shape."""

from __future__ import annotations

import math

import pytest
import torch

from refold.errors import BadInput
from refold.model.plan import RECOMPUTE, Recompute
from refold.planning.perf.shapes import ModelShape
from refold.train.models import Batch, Transformer, build, random_batch

GPT = ModelShape("gpt", layers=2, hidden=64, heads=4, vocabulary=300, positions=16)
LLAMA = ModelShape(
    "llama", layers=2, hidden=64, heads=4, kv_heads=2, ffn=172, gated=True, bias=False, vocabulary=300, tied=False
)
BERT = ModelShape("bert", kind="encoder", layers=2, hidden=64, heads=4, vocabulary=300, positions=16)
T5 = ModelShape(
    "t5",
    kind="encoder-decoder",
    layers=2,
    encoder_layers=3,
    hidden=64,
    heads=4,
    head_size=32,
    bias=False,
    vocabulary=99,
)
VIT = ModelShape("vit", kind="vit", layers=2, hidden=192, heads=4, positions=17)
MIXTURE = ModelShape(
    "mixture", layers=2, hidden=64, heads=4, gated=True, bias=False, vocabulary=300, experts=4, experts_per_token=2
)
ALL = [GPT, LLAMA, BERT, T5, VIT, MIXTURE]
each_shape = pytest.mark.parametrize("shape", ALL, ids=[shape.name for shape in ALL])


@each_shape
def test_a_model_has_as_many_parameters_as_its_shape(shape: ModelShape) -> None:
    built = sum(weights.numel() for weights in build(shape).parameters())
    patches = 768 * shape.hidden if shape is VIT else 0  # not part of the shape
    assert built == pytest.approx(shape.parameters + patches, rel=0.01)


@pytest.mark.parametrize(
    "shape",
    [
        ModelShape("gpt2", layers=48, hidden=1600, heads=25, vocabulary=50257, positions=1024),
        ModelShape(
            "7b", layers=32, hidden=4096, heads=32, ffn=11008, gated=True, bias=False, vocabulary=32000, tied=False
        ),
        ModelShape("vit-base", kind="vit", layers=12, hidden=768, heads=12, positions=197),
    ],
    ids=lambda shape: shape.name,
)
def test_a_large_model_has_as_many_parameters_as_its_shape(shape: ModelShape) -> None:
    with torch.device("meta"):
        built = sum(weights.numel() for weights in Transformer(shape).parameters())
    assert built == pytest.approx(shape.parameters, rel=0.01)


@each_shape
def test_the_initial_loss_is_that_of_a_uniform_prediction(shape: ModelShape) -> None:
    loss = build(shape)(random_batch(shape, 4, 16))
    assert loss.item() == pytest.approx(math.log(shape.vocabulary or 768), rel=0.1)


@pytest.mark.parametrize("recompute", RECOMPUTE[1:])
@each_shape
def test_recomputation_gives_the_same_gradients(shape: ModelShape, recompute: Recompute) -> None:
    batch = random_batch(shape, 2, 16)
    assert torch.allclose(gradients(shape, batch, "none"), gradients(shape, batch, recompute), atol=1e-6)


def gradients(shape: ModelShape, batch: Batch, recompute: Recompute) -> torch.Tensor:
    model = build(shape)
    model(batch, recompute).backward()
    assert [name for name, weights in model.named_parameters() if weights.grad is None] == []
    return torch.cat([weights.grad.flatten() for weights in model.parameters() if weights.grad is not None])


def test_a_decoder_does_not_attend_to_later_tokens() -> None:
    assert not torch.equal(*first_states(BERT))
    assert torch.equal(*first_states(GPT))
    assert torch.equal(*first_states(LLAMA))


def first_states(shape: ModelShape) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output of a layer for the first of eight tokens, before and after changing the last token."""
    layer = build(shape).layers[0]
    tokens = torch.randn(1, 8, shape.hidden, generator=torch.Generator().manual_seed(1))
    changed = tokens.clone()
    changed[:, -1] *= -1
    return layer(tokens, None)[:, 0], layer(changed, None)[:, 0]


def test_the_same_seed_gives_the_same_model_and_data() -> None:
    first, second, other = (build(GPT, seed=seed).positions for seed in (1, 1, 2))
    assert first is not None and second is not None and other is not None
    assert torch.equal(first.weight, second.weight)
    assert not torch.equal(first.weight, other.weight)
    assert torch.equal(random_batch(GPT, 2, 8, seed=3).inputs, random_batch(GPT, 2, 8, seed=3).inputs)


def test_splitting_a_batch_keeps_all_samples() -> None:
    batch = random_batch(T5, 4, 8)
    micro_batches = batch.split(2)
    assert [len(one.inputs) for one in micro_batches] == [2, 2]
    assert batch.source is not None
    assert torch.equal(torch.cat([one.source for one in micro_batches if one.source is not None]), batch.source)


def test_models_that_cannot_be_built_are_rejected() -> None:
    with pytest.raises(BadInput, match="'resnet' is opaque"):
        build(ModelShape("resnet", kind="opaque", parameters_stated=25, sample_gflop=8.0))
    with pytest.raises(BadInput, match="'no-vocabulary' has no vocabulary"):
        build(ModelShape("no-vocabulary", hidden=4, heads=2))
    with pytest.raises(BadInput, match="need an even head width, got 3"):
        build(ModelShape("odd", hidden=6, heads=2, vocabulary=9))
    with pytest.raises(BadInput, match="'gpt' has 16 positions, fewer than 17 tokens"):
        random_batch(GPT, 1, 17)
