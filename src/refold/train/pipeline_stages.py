"""Split a model into pipeline stages, without changing its forward pass or the names of its parameters.

A stage is the whole model, in which the layers of other stages are replaced by modules that pass their input on. What
comes before the layers is in the first stage only: in the others the input is the output of the stage before, the first
embedding passes it on, and further embeddings, which are added to it, are zero. What comes after the layers is in the
last stage only.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from refold.errors import BadInput
from refold.train.losses import ModelInputs


class PipelineRule(NamedTuple):
    """Names of a model's modules: its list of layers, and what is executed before and after them.

    Of `before`, the first module gets the input of the model; the results of the others are added to its result.
    """

    layers: str
    before: tuple[str, ...]
    after: tuple[str, ...]


class Adapter(Protocol):
    """Lets a model take one positional tensor and return one."""

    def __call__(self, model: nn.Module, *, takes_hidden: bool = False, gives_hidden: bool = False) -> None:
        """Adapt a model in place, whose input or output is between two stages."""


class PassOn(nn.Module):
    """Returns its input: the first tensor of its arguments, unless there are embedded inputs by name."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the input."""
        candidates = (kwargs.get("inputs_embeds"), *args, *kwargs.values())
        return next(value for value in candidates if isinstance(value, Tensor))


class Zero(nn.Module):
    """Returns a zero that can be added to anything."""

    def forward(self, like: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Return zero."""
        del args, kwargs
        device = like.device if isinstance(like, Tensor) else "cpu"
        return torch.zeros((), device=device)  # without dimensions, it does not change the type of a sum


def find_rule(model: nn.Module) -> PipelineRule:
    """Return the rule of a model: its largest list of layers, and the modules before and after it in order.

    Modules are expected to be executed in the order in which they were assigned to the model. Modules without
    parameters stay in every stage.
    """
    lists = {name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    if not lists:
        raise BadInput("the model has no nn.ModuleList of layers that could be pipeline stages")
    layers = max(lists, key=lambda name: sum(parameter.numel() for parameter in lists[name].parameters()))
    before: list[str] = []
    after: list[str] = []
    owner, path = model, ""
    for part in layers.split("."):
        loose = next((name for name, _ in owner.named_parameters(recurse=False)), None)
        if loose is not None:
            raise BadInput(
                f"the model uses the parameter {path + loose!r} outside of a module; it cannot be split into pipeline "
                "stages"
            )
        children = [name for name, child in owner.named_children() if name == part or _has_parameters(child)]
        position = children.index(part)
        before += [path + name for name in children[:position]]
        after = [path + name for name in children[position + 1 :]] + after
        owner, path = owner.get_submodule(part), f"{path}{part}."
    return PipelineRule(layers, tuple(before), tuple(after))


def find_difference(model: nn.Module, rule: PipelineRule, adapt: Adapter, inputs: ModelInputs) -> str:
    """Return why two pipeline stages do not compute what the model computes; empty if they do."""
    tensors = [*model.parameters(), *model.buffers()]
    whole, first, last = (copy.deepcopy(model, {id(tensor): tensor for tensor in tensors}).eval() for _ in range(3))
    advice = "pass pipeline=PipelineRule(…) to refold.train.start, or move what forward() does itself into modules"
    try:
        keep_stage(first, rule, 0, 2)
        keep_stage(last, rule, 1, 2)
        adapt(whole)
        adapt(first, gives_hidden=True)
        adapt(last, takes_hidden=True)
        with torch.no_grad():
            expected = whole(inputs.main, **inputs.named)
            found = last(first(inputs.main, **inputs.named), **inputs.named)
            same = torch.allclose(expected, found, rtol=1e-3, atol=1e-5)
    except Exception as error:  # whatever a model does with a hidden state instead of its inputs
        return f"the model cannot be split into pipeline stages ({type(error).__name__}: {error}); {advice}"
    return "" if same else f"two pipeline stages of the model compute something else than the model; {advice}"


def check_stages(model: nn.Module, rule: PipelineRule, stages: int) -> None:
    """Raise an error if the model has too few layers for a number of stages."""
    layers = model.get_submodule(rule.layers)
    if not isinstance(layers, nn.ModuleList) or len(layers) < stages:
        count = len(layers) if isinstance(layers, nn.ModuleList) else 0
        raise BadInput(f"the model has {count} layers, which cannot be split into {stages} pipeline stages")


def layers_of_stage(layers: int, stage: int, stages: int) -> range:
    """Return the layers of a stage; the first stages have one more if they cannot be equal."""
    share, rest = divmod(layers, stages)
    first = stage * share + min(stage, rest)
    return range(first, first + share + (stage < rest))


def keep_stage(model: nn.Module, rule: PipelineRule, stage: int, stages: int) -> None:
    """Remove from a model, in place, everything that does not belong to a stage."""
    layers = model.get_submodule(rule.layers)
    assert isinstance(layers, nn.ModuleList)
    kept = layers_of_stage(len(layers), stage, stages)
    for index in range(len(layers)):
        if index not in kept:
            layers[index] = PassOn()
    if stage > 0:
        for position, name in enumerate(rule.before):
            model.set_submodule(name, Zero() if position else PassOn())
    if stage < stages - 1:
        for name in rule.after:
            model.set_submodule(name, PassOn())


def _has_parameters(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())
