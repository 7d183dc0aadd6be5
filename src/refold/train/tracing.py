"""Totals of any PyTorch module from one traced training step. Nothing is computed, so it needs neither GPU nor memory.

The module and its inputs are replaced by fake tensors in half precision, and every operation of a forward and a
backward pass is recorded: matrix products with their sizes, fused attention, memory traffic of everything else, and
which tensors are alive at the same time.
"""

from __future__ import annotations

import copy
import runpy
import weakref
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, count
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from refold.errors import BadFile, BadInput, RefoldError
from refold.planning.perf import (
    TENSOR_CORE_ALIGNMENT,
    ModelShape,
    ModuleTotals,
    ProductKind,
    ProductTotals,
    TrafficKind,
)

MIN_FLOPS_PER_BYTE = 60.0
"""Products with less arithmetic for each byte, such as depthwise convolutions, are bound by memory bandwidth."""

FREE = {"_unsafe_view", "detach", "empty", "empty_like", "new_empty", "lift_fresh", "_reshape_alias"}
"""Operations that move no data, besides views."""

LOOKUPS = {"embedding", "gather", "index", "index_select"}
"""Operations that read of their first argument only what they return."""

SCATTERS = {"embedding_dense_backward", "index_put", "index_put_"}
"""Operations that write of their result only what they are given."""


def trace_module(
    module: nn.Module,
    inputs: Sequence[Any] | Mapping[str, Any],
    loss: Callable[[Any], Tensor] | None = None,
    name: str = "",
) -> ModelShape:
    """Return a module as an opaque model, known by its totals per sample.

    The first dimension of the inputs is the batch. `loss` turns the output into a number; by default it is the field
    `loss` of the output, or the sum of its first tensor of real numbers. Weights may be on the device `meta`.
    """
    name = name or type(module).__name__
    totals = trace_totals(module, inputs, loss)
    if not totals.products:
        raise BadInput(f"{name} has no matrix products or convolutions to estimate")
    return totals.shape(name)


def trace_totals(
    module: nn.Module, inputs: Sequence[Any] | Mapping[str, Any], loss: Callable[[Any], Tensor] | None = None
) -> ModuleTotals:
    """Return the totals of a training step of a module."""
    positional = () if isinstance(inputs, Mapping) else tuple(inputs)
    named = dict(inputs) if isinstance(inputs, Mapping) else {}
    totals = ModuleTotals(
        samples=_batch_size([*positional, *named.values()]),
        parameters=sum(one.numel() for one in module.parameters()),
        weights=len(list(module.parameters())),
        layers=repeated_blocks(module),
    )
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        model = _in_half_precision(module, fake)
        positional, named = tree_map(lambda one: _faked(one, fake), (positional, named))
        memory = _Memory((*model.parameters(), *model.buffers(), *_tensors((positional, named))))
        recorder = _Recorder(totals, memory)
        with _WithoutDropoutInAttention(), recorder:
            result = (loss or default_loss)(model(*positional, **named))
            recorder.is_forward = False
            result.backward()
        totals.peak_bytes = memory.peak_bytes([one.grad for one in model.parameters() if one.grad is not None])
    return totals


def trace_file(path: Path, function: str = "build") -> ModelShape:
    """Return the module that a function of a Python file builds; it returns module, inputs, and optionally a loss."""
    try:
        build = runpy.run_path(str(path)).get(function)
        if not callable(build):
            raise BadFile(path, f"has no function {function}() that returns a module and its inputs")
        with torch.device("meta"):
            built = build()
        module, inputs, *loss = built if isinstance(built, tuple) else (built, None)
        if not isinstance(module, nn.Module) or not isinstance(inputs, Mapping | Sequence) or len(loss) > 1:
            raise BadFile(path, f"{function}() returns no module with a tuple or a mapping of inputs")
        return trace_module(module, inputs, loss[0] if loss else None, path.stem)
    except RefoldError:
        raise
    except Exception as error:
        raise BadFile(path, f"cannot be traced: {type(error).__name__}: {str(error).splitlines()[0]}") from error


def default_loss(output: Any) -> Tensor:
    """Return the loss of an output: its field, or the sum of its first tensor of real numbers."""
    stated = getattr(output, "loss", None)
    if isinstance(stated, Tensor):
        return stated
    values = list(output.values()) if isinstance(output, Mapping) else output
    first = next((one for one in _tensors(values) if one.is_floating_point() and one.requires_grad), None)
    if first is None:
        raise BadInput(f"the module returns {type(output).__name__} without a tensor that depends on its weights")
    return first.float().sum()


def repeated_blocks(module: nn.Module) -> int:
    """Return the number of layers: the most weights are in so many modules of the same class; 1 if nothing repeats."""
    best = (0, 1)
    for container in module.modules():
        by_class: dict[type, list[nn.Module]] = {}
        for child in container.children():
            by_class.setdefault(type(child), []).append(child)
        for children in by_class.values():
            weights = sum(one.numel() for child in children for one in child.parameters())
            if len(children) > 1:
                best = max(best, (weights, len(children)))
    return best[1]


class _Recorder(TorchDispatchMode):
    """Records the operations of a step."""

    def __init__(self, totals: ModuleTotals, memory: _Memory) -> None:
        super().__init__()
        self.is_forward = True
        self._totals = totals
        self._memory = memory

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.namespace == "aten":
            self._totals.operations += 1
            if not _moves_no_data(func):
                self._record(func, args, kwargs or {}, result)
        for one in _tensors(result):
            self._memory.note(one)
        return result

    def _record(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        packet = func._overloadpacket
        name = packet.__name__
        if "attention" in name and packet in flop_registry:
            if self.is_forward:
                flops = float(flop_registry[packet](*args, **kwargs, out_val=result))
                self._totals.attention_flops += flops * (0.5 if _is_causal(func, args, kwargs) else 1.0)
            return
        moved = _moved_bytes(name, (args, kwargs), result)
        product = _product(name, args, result)
        if product is None or product.flops < MIN_FLOPS_PER_BYTE * moved:
            self._totals.add_traffic(_traffic_kind(name), moved)
            return
        sums = self._totals.products.setdefault(product.kind, ProductTotals())
        sums.add(product.flops, product.rows, product.width, is_forward=self.is_forward)
        if product.kind == "convolution":
            self._totals.add_traffic("convolution", moved)


class _Memory:
    """What is allocated in the course of a step, besides what was there before. Storages are numbered."""

    def __init__(self, before: Sequence[Tensor]) -> None:
        self._numbers = {_address(one): -1 for one in before}
        self._changes: list[tuple[int, int]] = []
        self._next = count()

    def note(self, tensor: Tensor) -> None:
        """Note a result; its storage may be known already."""
        address = _address(tensor)
        if address in self._numbers:
            return
        storage, number = tensor.untyped_storage(), next(self._next)
        self._numbers[address] = number
        self._changes.append((number, storage.nbytes()))
        weakref.finalize(storage, self._free, address, number, storage.nbytes())

    def _free(self, address: int, number: int, size: int) -> None:
        del self._numbers[address]  # another storage may get the same one
        self._changes.append((number, -size))

    def peak_bytes(self, excluded: Sequence[Tensor]) -> float:
        """Return the largest number of bytes that were allocated at the same time, without some tensors."""
        numbers = {self._numbers[_address(one)] for one in excluded}
        changes = [change for number, change in self._changes if number not in numbers]
        return float(max(accumulate(changes), default=0))


class _WithoutDropoutInAttention(TorchFunctionMode):
    """Leaves out dropout of attention weights, with which attention on a CPU is not fused; on a GPU it is."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.scaled_dot_product_attention:
            kwargs = {**(kwargs or {}), "dropout_p": 0.0}
        return func(*args, **(kwargs or {}))


class _Product(NamedTuple):
    """A matrix product or a convolution: its rows, and the smaller of its columns and the length of its sums."""

    kind: ProductKind
    flops: float
    rows: float
    width: float


def _product(name: str, args: Any, result: Any) -> _Product | None:
    """Return the product that an operation computes; None if it is none."""
    match name:
        case "mm" | "bmm" | "_grouped_mm":
            return _matrix_product(*args[:2])
        case "addmm" | "baddbmm":
            return _matrix_product(*args[1:3])
        case "convolution":
            return _convolution(args[0], args[1], result, transposed=args[6], groups=args[8])
        case "convolution_backward":
            applied = _convolution(args[1], args[2], args[0], transposed=args[7], groups=args[9])
            return applied._replace(flops=sum(args[10][:2]) * applied.flops)
        case _:
            return None


def _matrix_product(first: Tensor, second: Tensor) -> _Product:
    rows, inner, columns = first.numel() / first.shape[-1], first.shape[-1], second.shape[-1]
    is_aligned = inner % TENSOR_CORE_ALIGNMENT == 0 and columns % TENSOR_CORE_ALIGNMENT == 0
    return _Product("aligned" if is_aligned else "unaligned", 2.0 * rows * inner * columns, rows, min(inner, columns))


def _convolution(given: Tensor, weight: Tensor, result: Tensor, *, transposed: bool, groups: int) -> _Product:
    """Return a convolution as a product: a row for every place, a column for every channel of the result."""
    each = weight[0].numel()
    out = given if transposed else result
    width = min(out.shape[1] / groups, each)
    return _Product("convolution", 2.0 * out.numel() * each, out.numel() / out.shape[1], width)


def _traffic_kind(name: str) -> TrafficKind:
    if "convolution" in name:
        return "depthwise"
    return "batch-norm" if "batch_norm" in name else "elementwise"


def _moved_bytes(name: str, arguments: Any, result: Any) -> float:
    written = sum(map(_size, _tensors(result)))
    if name in LOOKUPS:
        return 2.0 * written
    if name in SCATTERS:
        given = _tensors(arguments)
        return 2.0 * sum(map(_size, given[-2:] if name.startswith("index") else given))
    return float(written + sum(map(_size, _tensors(arguments))))


def _size(tensor: Tensor) -> int:
    """Return the bytes of a tensor; a dimension that is repeated counts once."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def _moves_no_data(func: Any) -> bool:
    returns = func._schema.returns
    is_view = any(one.alias_info is not None and not one.alias_info.is_write for one in returns)
    return is_view or not returns or func._overloadpacket.__name__ in FREE


def _is_causal(func: Any, args: Any, kwargs: Any) -> bool:
    names = [argument.name for argument in func._schema.arguments]
    return bool({**dict(zip(names, args, strict=False)), **kwargs}.get("is_causal", False))


def _address(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _tensors(values: Any) -> list[Tensor]:
    return [one for one in tree_leaves(values) if isinstance(one, Tensor)]


def _in_half_precision(module: nn.Module, fake: FakeTensorMode) -> nn.Module:
    """Return a copy of a module with fake weights in half precision; the module itself is not changed."""
    copies: dict[int, Any] = {}
    for one in (*module.parameters(), *module.buffers()):
        replaced = _faked(one, fake)
        copies[id(one)] = nn.Parameter(replaced, one.requires_grad) if isinstance(one, nn.Parameter) else replaced
    return copy.deepcopy(module, copies).train()


def _faked(value: Any, fake: FakeTensorMode) -> Any:
    if not isinstance(value, Tensor):
        return value
    dtype = torch.bfloat16 if value.is_floating_point() else value.dtype
    with fake:
        return torch.empty(value.shape, dtype=dtype, device="cpu")


def _batch_size(values: Sequence[Any]) -> int:
    sizes = [one.shape[0] for one in _tensors(values) if one.ndim]
    if not sizes or sizes[0] < 1:
        raise BadInput("the inputs have no tensor whose first dimension is the batch")
    return int(sizes[0])
