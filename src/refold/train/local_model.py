"""Apply a layout to a model: the part of the model that one rank has, ready for training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from refold.errors import BadInput
from refold.model import Plan, Recompute
from refold.train.layout import PIPELINE, REPLICA, SHARD, TENSOR, RankMesh
from refold.train.losses import ModelInputs, parameters_of
from refold.train.pipeline_stages import PipelineRule, check_stages, find_difference, find_rule, keep_stage
from refold.train.template import Template, allocate
from refold.train.tensor_rules import Split, check_splits, find_splits, is_inner, split_layers

_aten = torch.ops.aten
_SAVED_WHEN_SELECTIVE = {_aten.mm.default, _aten.addmm.default, _aten.bmm.default}
"""Results that selective recomputation keeps: matrix products. Attention, norms and activations are recomputed."""


class SplittableModel:
    """A model with the rules by which plans split it."""

    def __init__(
        self,
        model: nn.Module,
        *,
        tensor: Mapping[str, Split] | None = None,
        pipeline: PipelineRule | None = None,
        compile_layers: bool = False,
    ) -> None:
        self.template = Template(model)
        self._splits = find_splits(self.template.model, tensor or {})
        self._rule = pipeline
        self._compile = compile_layers
        self._pipeline_problem = ""

    def try_pipeline(self, model: nn.Module, inputs: ModelInputs) -> None:
        """Compare two pipeline stages with the whole model on a few inputs. Without that, the rule is trusted."""
        try:
            self._pipeline_problem = find_difference(model, self.pipeline_rule(), adapt_hugging_face, inputs)
        except BadInput as error:
            self._pipeline_problem = str(error)

    def check(self, plan: Plan) -> None:
        """Raise an error if the model cannot be split as a plan says."""
        if plan.tensor > 1:
            check_splits(self.template.model, self._splits, plan.tensor)
            self._check_ties_within(
                lambda name: name.rpartition(".")[0] if self._is_split(name) else "", "split layers"
            )
        if plan.pipeline > 1:
            if self._pipeline_problem:
                raise BadInput(self._pipeline_problem)
            check_stages(self.template.model, self.pipeline_rule(), plan.pipeline * plan.interleave)
            self._check_ties_within(self._pipeline_part, "pipeline stages", except_for=self._on_two_stages())

    def pipeline_rule(self) -> PipelineRule:
        """Return how the model is divided into stages."""
        return self._rule or find_rule(self.template.model)

    def build(self, layout: RankMesh) -> LocalModel:
        """Return the part of the model that a rank has, whose parameters have no storage yet. Collective."""
        plan = layout.plan
        chunks = [self._chunk(layout, number) for number in range(plan.interleave)]
        inner = {name for name in self.template.parameters if is_inner(name, self._splits)}
        shared = SharedParameters(self.template.aliases, inner, self._on_two_stages() if plan.pipeline > 1 else set())
        return LocalModel(chunks, shared, layout)

    def _check_ties_within(self, part_of: Callable[[str], str], parts: str, except_for: Collection[str] = ()) -> None:
        """Raise an error if a tied parameter would be in two parts of the model, which do not add up its gradients."""
        for alias, name in self.template.aliases.items():
            if part_of(alias) != part_of(name) and name not in except_for:
                raise BadInput(f"{alias} is tied to {name}: {parts} cannot share it")

    def _is_split(self, parameter: str) -> bool:
        return self._splits.get(parameter.rpartition(".")[0]) in ("column", "row")

    def _pipeline_part(self, parameter: str) -> str:
        """Return what is always in one stage: a layer, or all that comes before the layers or after them."""
        rule = self.pipeline_rule()
        if parameter.startswith(f"{rule.layers}."):
            return parameter[: parameter.index(".", len(rule.layers) + 1)]
        return "after" if parameter.startswith(tuple(f"{name}." for name in rule.after)) else "before"

    def _on_two_stages(self) -> set[str]:
        """Return the tied parameters that are used before and after the layers."""
        rule = self.pipeline_rule()
        before, after = (tuple(f"{name}." for name in names) for names in (rule.before, rule.after))
        return {
            name for alias, name in self.template.aliases.items() if name.startswith(before) and alias.startswith(after)
        }

    def _chunk(self, layout: RankMesh, number: int) -> Chunk:
        plan = layout.plan
        stage, stages = number * plan.pipeline + layout.position.stage, plan.pipeline * plan.interleave
        model = self.template.build()
        if stages > 1:
            keep_stage(model, self.pipeline_rule(), stage, stages)
        if plan.tensor > 1:
            split_layers(model, self._splits, layout.mesh(TENSOR))
        layers = self._layers(model)
        if self._compile:
            for layer in layers:
                layer.compile()
        if plan.data > 1:
            mesh = layout.data_mesh
            scalars = {parameter for parameter in model.parameters() if not parameter.dim()}
            for module in (*(layer for layer in layers if not _is_tied_to_others(layer, model)), model):
                if plan.zero:
                    fully_shard(module, mesh=mesh, reshard_after_forward=plan.zero == 3, ignored_params=scalars)
                else:
                    replicate(module, mesh=mesh, ignored_params=scalars)
        adapt_hugging_face(model, takes_hidden=stage > 0, gives_hidden=stage < stages - 1)
        return Chunk(model, stage, stages, layers)

    def _layers(self, model: nn.Module) -> list[nn.Module]:
        """Return the layers with parameters: the units of sharding and recomputation. None if there is no list."""
        try:
            layers = model.get_submodule(self.pipeline_rule().layers)
        except BadInput:
            return []
        return [layer for layer in layers.children() if any(True for _ in layer.parameters())]


class Chunk:
    """A part of the model that is executed as one: the whole model, or a pipeline stage."""

    def __init__(self, model: nn.Module, stage: int, stages: int, layers: list[nn.Module]) -> None:
        self.model = model
        self.stage = stage
        self.stages = stages
        self.in_pipeline = False
        """Whether the pipeline is running, which alone may call a stage."""
        self._layers = layers
        self._forwards = [layer.forward for layer in layers]
        if stages > 1:
            model.register_forward_pre_hook(self._check_caller, prepend=True)

    def set_recompute(self, recompute: Recompute) -> None:
        """Set what the backward pass recomputes, layer by layer."""
        for layer, forward in zip(self._layers, self._forwards, strict=True):
            layer.forward = _recomputed(forward, recompute)

    def _check_caller(self, model: nn.Module, inputs: Any) -> None:
        """Refuse calls that would return hidden values instead of the output of the model."""
        del model, inputs
        if not self.in_pipeline:
            raise BadInput(
                f"the model is divided into {self.stages} pipeline stages, and this rank has stage {self.stage}; call "
                "session.evaluate(data, metric) on all ranks instead of the model"
            )

    def set_gradient_sync(self, sync: bool) -> None:
        """Set whether the next backward pass reduces gradients over data-parallel ranks."""
        if isinstance(self.model, FSDPModule):
            self.model.set_requires_gradient_sync(sync)
            self.model.set_is_last_backward(sync)


class SharedParameters(NamedTuple):
    """Parameters that several modules or ranks use. `aliases`: the other names of tied parameters, and the first one.

    `inner`: those within split layers. `on_two_stages`: tied ones that the first and the last pipeline stage have.
    """

    aliases: Mapping[str, str]
    inner: Collection[str]
    on_two_stages: Collection[str]


class LocalModel:
    """The chunks of the model that one rank has."""

    def __init__(self, chunks: list[Chunk], shared: SharedParameters, layout: RankMesh) -> None:
        self.chunks = chunks
        self.layout = layout
        self._shared = shared
        self._tied_group = self._make_tied_group() if shared.on_two_stages else None

    def allocate(self, existing: Mapping[str, Tensor]) -> None:
        """Give the parameters storage: tensors that exist already, by name, or storage that is not initialised."""
        device = self.layout.device
        usable = {
            id(parameter): existing[name]
            for name, parameter in self.named_parameters()
            if name in existing and existing[name].device == device
        }
        for chunk in self.chunks:
            allocate(chunk.model, device, usable)

    @contextmanager
    def pipeline_run(self) -> Iterator[None]:
        """Let the pipeline call the stages of this rank."""
        for chunk in self.chunks:
            chunk.in_pipeline = True
        try:
            yield
        finally:
            for chunk in self.chunks:
                chunk.in_pipeline = False

    def close(self) -> None:
        """Leave the process group that only this model uses."""
        if self._tied_group is not None:
            dist.destroy_process_group(self._tied_group)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Return the local parameters with their names in the whole model; tied parameters once."""
        seen: set[str] = set()
        for chunk in self.chunks:
            for local_name, parameter in chunk.model.named_parameters():
                name = self._shared.aliases.get(local_name, local_name)
                if name not in seen:
                    seen.add(name)
                    yield name, parameter

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Return the buffers that change during training and belong to a checkpoint, such as running means."""
        for chunk in self.chunks:
            persistent = chunk.model.state_dict(keep_vars=True)
            for name, buffer in chunk.model.named_buffers():
                if name in persistent:
                    yield name, buffer

    def is_on_two_stages(self, name: str) -> bool:
        """Whether a parameter is in the first and in the last pipeline stage, because it is tied."""
        return name in self._shared.on_two_stages

    def add_gradients(self) -> None:
        """Add up gradients of parameters that several ranks use: tied ones, and those within split layers.

        Those of scalars, which PyTorch does not shard, are averaged over data-parallel ranks.
        """
        if self.layout.plan.data > 1:
            self._average_gradients_of_scalars()
        has_inner = self._shared.inner and self.layout.plan.tensor > 1
        tensor_group = self.layout.group(TENSOR) if has_inner else None
        if self._tied_group is None and tensor_group is None:
            return
        for name, parameter in self.named_parameters():
            if parameter.grad is None:
                continue
            if self.is_on_two_stages(name):
                dist.all_reduce(local_part(parameter.grad), group=self._tied_group)
            if name in self._shared.inner and tensor_group is not None:
                dist.all_reduce(local_part(parameter.grad), group=tensor_group)

    def _average_gradients_of_scalars(self) -> None:
        for _, parameter in self.named_parameters():
            if not parameter.dim() and parameter.grad is not None:
                for dimension in (REPLICA, SHARD):
                    if self.layout.sizes[dimension] > 1:
                        dist.all_reduce(parameter.grad, group=self.layout.group(dimension))
                parameter.grad /= self.layout.plan.data

    def _make_tied_group(self) -> dist.ProcessGroup | None:
        """Return the group of this rank and its counterpart in the first or last stage; None between. Collective."""
        last = self.layout.sizes[PIPELINE] - 1
        pairs = zip(self.layout.ranks_of_stage(0), self.layout.ranks_of_stage(last), strict=True)
        groups = {pair: dist.new_group(pair) for pair in pairs}
        return next((group for pair, group in groups.items() if self.layout.rank in pair), None)

    def set_recompute(self, recompute: Recompute) -> None:
        """Set what the backward pass recomputes."""
        for chunk in self.chunks:
            chunk.set_recompute(recompute)

    @property
    def has_last_stage(self) -> bool:
        """Whether this rank computes the loss."""
        return self.layout.position.stage == self.layout.sizes[PIPELINE] - 1


def local_part(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this rank has."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _is_tied_to_others(layer: nn.Module, model: nn.Module) -> bool:
    """Whether a layer shares a parameter with other modules of a model."""
    places = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    own = Counter(id(parameter) for _, parameter in layer.named_parameters(remove_duplicate=False))
    return any(places[parameter] > count for parameter, count in own.items())


def _recomputed(forward: Callable[..., Any], recompute: Recompute) -> Callable[..., Any]:
    match recompute:
        case "none":
            return forward
        case "full":
            return partial(checkpoint, forward, use_reentrant=False)
        case "selective":
            contexts = partial(create_selective_checkpoint_contexts, _selective_policy)
            return partial(checkpoint, forward, use_reentrant=False, context_fn=contexts)


def _selective_policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    del context, args, kwargs
    saved = operator in _SAVED_WHEN_SELECTIVE
    return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE


def adapt_hugging_face(model: nn.Module, *, takes_hidden: bool = False, gives_hidden: bool = False) -> None:
    """Let a model of Hugging Face return one tensor: logits, hidden values, or with `labels` the loss, of dimension 1.

    Its first input is positional: tokens or pixels, or hidden values.
    """
    if not is_hugging_face(model):
        return
    forward, parameters = model.forward, parameters_of(model)
    argument = "inputs_embeds" if takes_hidden else next(iter(parameters), "input_ids")
    fixed = {"use_cache": False} if "use_cache" in parameters else {}

    def forward_to_tensor(inputs: Tensor, labels: Tensor | None = None, **named: Any) -> Tensor:
        has_loss = labels is not None and not gives_hidden
        output = forward(**{argument: inputs}, **named, **fixed, **({"labels": labels} if has_loss else {}))
        if has_loss:
            return cast(Tensor, output.loss).reshape(1)  # the outputs of pipeline stages need a dimension
        return cast(Tensor, output.logits if hasattr(output, "logits") else output[0])

    model.forward = forward_to_tensor


def is_hugging_face(model: nn.Module) -> bool:
    """Whether a model is one of Transformers, or has the same form."""
    return hasattr(model, "config") and hasattr(model, "get_input_embeddings")
