"""An optimizer whose parameters are replaced when the layout changes, and may be on the host (ZeRO-Offload).

The optimizer works on plain tensors: the local part of each parameter, or a copy of it on the host. Optimizers that
treat every element alike (SGD, Adam, AdamW, Adagrad, RMSprop, …) give the same result in every layout; for others,
plans that divide parameters are refused. State whose shape depends on how a parameter is divided, such as scales of
blocks, starts anew when a parameter is, or was, divided.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from refold.errors import BadInput
from refold.model import Plan
from refold.train.elementwise import is_elementwise
from refold.train.host_tensors import HostReserve, describe, empty_tensor, plain, restored
from refold.train.local_model import LocalModel, local_part

LIKE_PARAMETER = "like parameter"
"""Marks state that has the shape of its parameter, and is divided as the parameter is; a type follows if it differs."""

AVERAGE = "average"
"""The key of the exponential moving average of a parameter, which is kept beside the state of the optimizer."""

Slots = dict[str, dict[str, Any]]
"""State of an optimizer by parameter and key: LIKE_PARAMETER, the description of a tensor, or a number itself.

Every rank that has the parameter has the tensor or the number."""


def is_like(key: str, value: Tensor, parameter: Tensor) -> bool:
    """Whether a tensor of the state has the shape of its parameter, and is divided and moved as it is.

    If the parameter is a scalar, all of its state is, except the number of steps.
    """
    return value.shape == parameter.shape and (value.dim() > 0 or key != "step")


class LocalOptimizer:
    """The user's optimizer, the same object in every layout, so that learning-rate schedulers keep their grip on it."""

    def __init__(self, optimizer: Optimizer, names: Mapping[int, str]) -> None:
        """`names`: the name of each parameter of the model, by id."""
        self.optimizer = optimizer
        self._groups = [
            [_name_of(parameter, names) for parameter in group["params"]] for group in optimizer.param_groups
        ]
        self._pairs: dict[str, tuple[nn.Parameter, nn.Parameter]] = {}
        self._offload = False
        self._reserve = HostReserve()
        self.is_averaged = False
        """Whether averages of the parameters are kept."""
        self._averages: dict[str, Tensor] = {}

    @cached_property
    def is_elementwise(self) -> bool:
        """Whether the optimizer may get parts of parameters."""
        return is_elementwise(self.optimizer)

    def check(self, plan: Plan) -> None:
        """Raise an error if a plan divides parameters that the optimizer needs as a whole."""
        divides = plan.tensor > 1 or (plan.zero and plan.data > 1)
        if divides and not self.is_elementwise:
            kind = type(self.optimizer).__name__
            raise BadInput(
                f"{kind} needs whole parameters, and {plan} divides them; use data parallelism without ZeRO, or "
                "pipeline stages"
            )

    def attach(self, model: LocalModel, *, offload: bool) -> None:
        """Replace the parameters by those of a local model; the state of the optimizer is empty."""
        pairs = {name: (parameter, _optimized_copy(parameter, offload)) for name, parameter in model.named_parameters()}
        self.detach()
        self._replace(pairs, offload)

    def detach(self) -> None:
        """Let go of the parameters and their state."""
        self.optimizer.state = defaultdict(dict)
        self._averages = {}
        self._replace({}, offload=False)

    def set_offload(self, offload: bool) -> None:
        """Move the optimizer's parameters and state to the host, or back."""
        host = self._reserve.take(self._large_tensors()) if offload else None
        pairs: dict[str, tuple[nn.Parameter, nn.Parameter]] = {}
        for name, (parameter, old) in self._pairs.items():
            local = local_part(parameter).detach()
            new = nn.Parameter(_moved(local, local.device, host), requires_grad=parameter.requires_grad)
            moved = {
                key: _moved(value, local.device, host)
                if is_like(key, value, old)
                else value.to(self._device_of_counters(name, new))
                for key, value in self.tensors_of(old).items()
            }
            self.optimizer.state[new] = {**self.optimizer.state.get(old, {}), **moved}
            self.optimizer.state.pop(old, None)
            if name in self._averages:
                self._averages[name] = _moved(self._averages[name], local.device, host)
            pairs[name] = (parameter, new)
        self._replace(pairs, offload)
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def prepare_offload(self) -> None:
        """Allocate the memory that `set_offload` needs."""
        self._reserve.fill(self._large_tensors())

    def _large_tensors(self) -> list[Tensor]:
        """Return parameters and state like them, in the order in which they are moved."""
        return [
            tensor
            for name, (parameter, copy) in self._pairs.items()
            for tensor in (
                local_part(parameter).detach(),
                *(value for key, value in self.tensors_of(copy).items() if is_like(key, value, copy)),
                *([self._averages[name]] if name in self._averages else []),
            )
        ]

    def tensors_of(self, copy: nn.Parameter) -> dict[str, Tensor]:
        """Return the state of one of the optimizer's parameters."""
        state: dict[str, Any] = self.optimizer.state.get(copy, {})
        return {key: value for key, value in state.items() if isinstance(value, Tensor)}

    def movable_tensors(self, name: str) -> dict[str, Tensor]:
        """Return the state of a parameter that has a meaning in other layouts too."""
        return {key: value for key, value in self._movable_state(name).items() if isinstance(value, Tensor)}

    def slots(self) -> Slots:
        """Return which state the local parameters have."""
        return {
            name: {key: _kind(key, value, copy) for key, value in self._movable_state(name).items()}
            for name, copy in self.optimized().items()
        }

    def create_state(self, wanted: Slots, existing: Mapping[str, Tensor] | None = None) -> list[str]:
        """Create the state of the local parameters; return names of state that is of no use here.

        It is uninitialised, except for tensors like their parameter that exist already, by the name of their box.
        """
        unused: list[str] = []
        tensors = existing or {}
        for name, (parameter, copy) in self._pairs.items():
            kinds = wanted.get(name, {})
            counters = self._device_of_counters(name, copy)
            if AVERAGE in kinds:
                self._averages[name] = _empty(
                    kinds[AVERAGE], copy, counters, tensors.get(f"optimizer.{name}.{AVERAGE}")
                )
            own = {key: kind for key, kind in kinds.items() if key != AVERAGE}
            if is_divided(parameter) and any(map(_has_own_shape, own.values())):
                unused += [f"{name}.{key}" for key in own]
            elif own:
                self.optimizer.state[copy] = {
                    key: _empty(kind, copy, counters, tensors.get(f"optimizer.{name}.{key}"))
                    for key, kind in own.items()
                }
        return unused

    def _movable_state(self, name: str) -> dict[str, Tensor | float]:
        """Return average and state of a parameter, unless that depends on how it is divided, as with Adafactor."""
        parameter, copy = self._pairs[name]
        state = self.optimizer.state.get(copy, {})
        known = {key: value for key, value in state.items() if isinstance(value, Tensor | int | float)}
        if is_divided(parameter) and any(_has_own_shape(_kind(key, value, copy)) for key, value in known.items()):
            known = {}
        return {**known, AVERAGE: self._averages[name]} if name in self._averages else known

    def _device_of_counters(self, name: str, copy: Tensor) -> torch.device:
        """Return where state is that is not like its parameter, such as the number of steps."""
        groups = zip(self.optimizer.param_groups, self._groups, strict=True)
        own = [group for group, names in groups if name in names]  # none for frozen parameters
        is_on_device = any(group.get("fused") or group.get("capturable") for group in own)
        return copy.device if is_on_device else torch.device("cpu")

    def optimized(self) -> Mapping[str, nn.Parameter]:
        """Return the tensors that the optimizer changes, by name of their parameter."""
        return {name: copy for name, (_, copy) in self._pairs.items()}

    def step(self) -> None:
        """Let the optimizer make a step with the gradients of the model, which are then dropped."""
        for parameter, copy in self._pairs.values():
            gradient = parameter.grad
            copy.grad = None if gradient is None else local_part(gradient).to(copy.device)
        self.optimizer.step()
        self.drop_gradients()
        self.write_back()

    def drop_gradients(self) -> None:
        """Drop the gradients, for the next step or instead of this one."""
        for parameter, copy in self._pairs.values():
            parameter.grad = copy.grad = None

    @torch.no_grad()
    def update_averages(self, decay: float) -> None:
        """Move the averages of the trained parameters towards their values; the first values are the first averages."""
        for name, (_, copy) in self._pairs.items():
            if not copy.requires_grad or not copy.is_floating_point():
                continue
            average, value = self._averages.get(name), copy.detach().to(_average_type(copy))
            if average is None:
                self._averages[name] = value.clone()
            else:
                average.lerp_(value, 1 - decay)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Let the parameters have the values of their averages within the context."""
        self._swap_averages()
        try:
            yield
        finally:
            self._swap_averages()

    @torch.no_grad()
    def _swap_averages(self) -> None:
        for name, average in self._averages.items():
            copy = self._pairs[name][1]
            value = copy.detach().clone()
            copy.copy_(average)
            average.copy_(value)
        self.write_back()

    def settings(self) -> list[dict[str, Any]]:
        """Return the settings of each group of parameters, such as the learning rate, that JSON can express."""
        return [
            {key: value for key, value in group.items() if isinstance(value, bool | int | float | str | list)}
            for group in (plain({**group, "params": None}) for group in self.optimizer.param_groups)
        ]

    def restore_settings(self, settings: list[dict[str, Any]]) -> None:
        """Restore the settings of each group of parameters."""
        if len(settings) != len(self._groups):
            raise BadInput(
                f"the checkpoint has {len(settings)} groups of parameters, the optimizer {len(self._groups)}; continue "
                "with the same groups, or in another folder for checkpoints"
            )
        for group, saved in zip(self.optimizer.param_groups, settings, strict=True):
            group.update({key: restored(value, group.get(key)) for key, value in saved.items()})

    def write_back(self) -> None:
        """Copy the optimizer's parameters to the model if they are copies on the host."""
        if self._offload:
            with torch.no_grad():
                for parameter, copy in self._pairs.values():
                    local_part(parameter).copy_(copy)

    def _replace(self, pairs: dict[str, tuple[nn.Parameter, nn.Parameter]], offload: bool) -> None:
        self._pairs, self._offload = pairs, offload
        for group, names in zip(self.optimizer.param_groups, self._groups, strict=True):
            group["params"] = [pairs[name][1] for name in names if name in pairs]


def _moved(tensor: Tensor, device: torch.device, host: Iterator[Tensor] | None) -> Tensor:
    """Return a tensor on a device, or a copy in memory of the host."""
    return tensor.to(device, non_blocking=True) if host is None else next(host).copy_(tensor, non_blocking=True)


def _optimized_copy(parameter: nn.Parameter, offload: bool) -> nn.Parameter:
    local = local_part(parameter).detach()
    if offload:
        host = torch.empty_like(local, device="cpu", pin_memory=local.is_cuda)
        local = host.copy_(local)
    return nn.Parameter(local, requires_grad=parameter.requires_grad)


def _kind(key: str, value: Tensor | float, copy: Tensor) -> Any:
    if not isinstance(value, Tensor):
        return value
    if not is_like(key, value, copy):
        return describe(value.dtype, value.shape)
    return LIKE_PARAMETER if value.dtype == copy.dtype else f"{LIKE_PARAMETER} {describe(value.dtype, ())[0]}"


def _has_own_shape(kind: Any) -> bool:
    """Whether state is neither like its parameter nor a number."""
    return isinstance(kind, list) and prod(kind[1:]) > 1


def is_divided(parameter: Tensor) -> bool:
    """Whether ranks have different parts of a parameter."""
    if not isinstance(parameter, DTensor):
        return False
    sizes = parameter.device_mesh.shape
    return any(placement.is_shard() and size > 1 for placement, size in zip(parameter.placements, sizes, strict=True))


def _empty(kind: Any, copy: Tensor, counters: torch.device, existing: Tensor | None) -> Any:
    """Return uninitialised state of a kind, or a tensor that can be used instead; numbers have their values."""
    if isinstance(kind, int | float):
        return kind
    if existing is not None and existing.device == copy.device:
        return existing
    if not isinstance(kind, str):
        return empty_tensor(kind, counters)
    dtype = kind.removeprefix(LIKE_PARAMETER).strip()
    return torch.empty_like(copy.detach(), dtype=getattr(torch, dtype) if dtype else None)


def _average_type(parameter: Tensor) -> torch.dtype:
    """Return the type of the average of a parameter: small changes of 16 bits would be rounded to nothing."""
    return torch.promote_types(parameter.dtype, torch.float32)


def _name_of(parameter: Tensor, names: Mapping[int, str]) -> str:
    if id(parameter) not in names:
        raise BadInput("the optimizer has a parameter that the model does not have")
    return names[id(parameter)]
