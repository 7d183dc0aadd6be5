"""Tracing: what a step of a module computes, moves and keeps, compared with counting by hand."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from refold.errors import BadFile, BadInput
from refold.planning.perf import ModuleTotals
from refold.train.tracing import repeated_blocks, trace_file, trace_module, trace_totals

pytestmark = pytest.mark.in_child

WIDTH, INNER = 256, 1024


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, values: Any) -> Any:
        return self.second(torch.relu(self.first(values)))


class Attention(nn.Module):
    def __init__(self, *, causal: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH, bias=False)
        self.causal, self.dropout = causal, dropout

    def forward(self, values: Any) -> Any:
        hidden = self.project(values)[:, None]
        return nn.functional.scaled_dot_product_attention(
            hidden, hidden, hidden, is_causal=self.causal, dropout_p=self.dropout
        )


def totals_of(module: nn.Module, *shape: int) -> ModuleTotals:
    with torch.device("meta"):
        return trace_totals(module, (torch.empty(shape),))


def test_products_of_dense_layers_are_counted_forward_and_backward() -> None:
    found = totals_of(Dense(), 4096, WIDTH).products["aligned"]
    product = 2.0 * 4096 * WIDTH * INNER
    assert found.forward_flops == 2 * product
    assert found.flops == 5 * product  # the gradient of the input is not needed
    assert found.forward_flops / found.by_width == WIDTH
    assert found.forward_flops / found.by_results == 4096 * WIDTH


def test_small_products_are_bound_by_memory() -> None:
    totals = totals_of(Dense(), 1, WIDTH)
    assert not totals.products
    assert totals.traffic["elementwise"] > 2 * 2 * WIDTH * INNER


def test_what_the_backward_pass_needs_is_alive_at_the_end_of_the_forward_pass() -> None:
    """The result of the activation function is kept; its input and the output (for the loss) exist at some time."""
    peak = totals_of(Dense(), 4096, WIDTH).peak_bytes
    kept = 2 * 4096 * INNER
    assert kept < peak < 3 * kept + 8 * 4096 * WIDTH


def test_gradients_of_weights_do_not_count_as_activations() -> None:
    assert totals_of(nn.Linear(4096, 4096, bias=False), 1, 4096).peak_bytes < 4096 * 4096


def test_convolutions_in_groups_are_counted_once_per_channel() -> None:
    conv = nn.Conv2d(64, 128, 3, padding=1, groups=2, bias=False)
    found = totals_of(conv, 8, 64, 32, 32).products["convolution"]
    forward = 2.0 * 8 * 128 * 32 * 32 * 32 * 9
    assert found.forward_flops == forward
    assert found.flops == 2 * forward


def test_a_transposed_convolution_has_the_work_of_the_convolution_that_it_reverses() -> None:
    there = totals_of(nn.Conv2d(64, 128, 4, 2, 1, bias=False), 8, 64, 32, 32).products["convolution"]
    back = totals_of(nn.ConvTranspose2d(128, 64, 4, 2, 1, bias=False), 8, 128, 16, 16).products["convolution"]
    assert there.forward_flops == back.forward_flops


def test_depthwise_convolutions_are_bound_by_memory() -> None:
    totals = totals_of(nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=False), 8, 64, 32, 32)
    assert not totals.products
    assert set(totals.traffic) == {"depthwise", "elementwise"}


@pytest.mark.parametrize(("causal", "share"), [(False, 1.0), (True, 0.5)])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_attention_is_fused_with_and_without_dropout(causal: bool, share: float, dropout: float) -> None:
    totals = totals_of(Attention(causal=causal, dropout=dropout), 8, 128, WIDTH)
    assert totals.attention_flops == share * 2 * 2.0 * 8 * 128 * 128 * WIDTH


def test_matrices_that_tensor_cores_cannot_align_are_counted_apart() -> None:
    products = totals_of(nn.Linear(4096, 4095, bias=False), 4096, 4096).products
    assert [kind for kind, found in products.items() if found.forward_flops] == ["unaligned"]


def test_the_totals_of_a_sample_do_not_depend_on_the_batch() -> None:
    with torch.device("meta"):
        module = Dense()
        one, other = (trace_module(module, (torch.empty(size, WIDTH),)) for size in (2048, 4096))
    assert one.sample_gflop == other.sample_gflop
    assert one.product_results == other.product_results
    assert one.sample_mib == pytest.approx(other.sample_mib, rel=0.01)
    assert one.traced
    assert one.opaque


def test_a_module_is_not_changed() -> None:
    module = Dense()
    before = [one.clone() for one in module.parameters()]
    trace_module(module, (torch.zeros(4096, WIDTH),))
    assert all(torch.equal(one, other) for one, other in zip(module.parameters(), before, strict=True))
    assert all(one.grad is None for one in module.parameters())


def test_layers_are_the_modules_that_repeat() -> None:
    assert repeated_blocks(nn.Sequential(nn.Embedding(10, 4), *(nn.Linear(64, 64) for _ in range(5)))) == 5
    assert repeated_blocks(nn.Linear(4, 4)) == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x = 1", "has no function build() that returns a module and its inputs"),
        ("def build(): return 3", "build() returns no module with a tuple or a mapping of inputs"),
        ("def build(): raise ValueError('no\\nway')", "cannot be traced: ValueError: no"),
        ("import nowhere_to_be_found", "cannot be traced: ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
    ],
)
def test_files_without_a_module_are_rejected(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "model.py"
    path.write_text(text)
    with pytest.raises(BadFile) as raised:
        trace_file(path)
    assert str(raised.value) == f"{path}: {problem}"


def test_the_example_can_be_traced() -> None:
    shape = trace_file(Path(__file__).parents[3] / "examples" / "module.py")
    assert (shape.name, shape.layers, shape.batch) == ("module", 12, 32)


def test_inputs_without_a_batch_are_rejected() -> None:
    with pytest.raises(BadInput, match="no tensor whose first dimension is the batch"):
        trace_module(Dense(), ())
