"""Whether an optimizer treats every element of a parameter by itself, so that ranks may have parts of parameters."""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

_SIZE = 8
_RATE = 0.01


def is_elementwise(optimizer: Optimizer) -> bool:
    """Return whether steps of a small parameter equal those of its halves, for each group of parameters.

    An optimizer that cannot make such a step is taken for one that works element by element.
    """
    return all(
        _treats_halves_alike(optimizer, group, parameter)
        for group in optimizer.param_groups
        for parameter in {min(each.dim(), 2): each for each in group["params"]}.values()
    )


def _treats_halves_alike(optimizer: Optimizer, group: dict[str, Any], like: Tensor) -> bool:
    generator = torch.Generator().manual_seed(0)
    shape = (_SIZE,) * min(max(like.dim(), 1), 2)
    value, gradient = (torch.randn(shape, generator=generator).to(like.device) for _ in range(2))
    half = _SIZE // 2
    try:
        whole = _stepped(optimizer, group, value, gradient)
        parts = [_stepped(optimizer, group, value[rows], gradient[rows]) for rows in (slice(half), slice(half, None))]
    except Exception:
        return True
    return torch.allclose(whole, torch.cat(parts), rtol=1e-5, atol=1e-8)


def _stepped(optimizer: Optimizer, group: dict[str, Any], value: Tensor, gradient: Tensor) -> Tensor:
    """Return what a copy of the optimizer makes of a value in two steps."""
    parameter = nn.Parameter(value.clone())
    probe: Any = object.__new__(type(optimizer))
    wrapped_by_schedulers = {"step"}
    probe.__dict__ |= {name: part for name, part in vars(optimizer).items() if name not in wrapped_by_schedulers}
    settings = {key: part for key, part in group.items() if key != "params"}
    probe.param_groups = [
        {**copy.deepcopy(settings), "params": [parameter], **({"lr": _RATE} if "lr" in group else {})}
    ]
    probe.state = defaultdict(dict)
    probe._optimizer_step_pre_hooks, probe._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
    for _ in range(2):
        parameter.grad = gradient.clone()
        probe.step()
    return parameter.detach()
