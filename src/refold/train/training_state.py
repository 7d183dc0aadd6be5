"""What is trained: a model and its optimizer in the current layout, and the ways their state moves between layouts."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from refold.errors import StateNotMoved
from refold.model import Plan
from refold.train.checkpoints import Checkpoints
from refold.train.fused_layers import Replacement
from refold.train.handover import Handover, Regions
from refold.train.host_tensors import Description, empty_tensor
from refold.train.layout import RankMesh
from refold.train.local_model import LocalModel, SplittableModel, local_part
from refold.train.local_optimizer import LocalOptimizer, Slots
from refold.train.shared_state import ALIGNMENT, SharedMemory, SharedState, make_index, reserve, stored_bytes
from refold.train.state import Box, Boxes, replicas

Facts = dict[str, Any]
"""What belongs to the state besides tensors, as JSON: the step, settings of the optimizer, the user's own."""

USER_BYTES = "user_bytes"
"""The fact that says how many bytes the state of the user's objects has."""

_USER_BOX = "user"
_OPTIMIZER_COPIES = 3
"""Adam: tensors of the size of a parameter, which are the parameter and two moments. It also counts steps."""


class _Prepared(NamedTuple):
    """A model without storage, in a layout that may be entered, and the regions that this rank will have."""

    model: LocalModel
    regions: Regions


class TrainingState:
    """A model and its optimizer. All methods but the first two are collective."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        splittable: SplittableModel,
        replacements: Sequence[Replacement] = (),
    ) -> None:
        """`replacements`: parameters of the user's model that were replaced in it."""
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        self.splittable = splittable
        self.optimizer = LocalOptimizer(optimizer, names)
        self._initial: dict[str, Tensor] = {name: value.detach() for name, value in model.named_parameters()}
        self._replacements = replacements
        self._model: LocalModel | None = None
        self._boxes: Boxes | None = None
        self._kept: dict[str, Tensor] = {}
        self._memory = SharedMemory()
        self._background = ThreadPoolExecutor(1, "refold-prepare")
        self._preparation: Future[None] | None = None
        self._prepared: _Prepared | None = None
        self.user_state: Tensor | None = None
        """The state of the user's objects, as bytes, while it is written or read."""

    def estimated_bytes(self) -> int:
        """Return the size of the whole state in shared memory, if the optimizer is Adam."""
        model = self.splittable.template.model
        copies = _OPTIMIZER_COPIES + self.optimizer.is_averaged
        parameters = sum(copies * stored_bytes(value) + ALIGNMENT for value in model.parameters())
        return parameters + sum(map(stored_bytes, model.buffers()))

    @property
    def model(self) -> LocalModel:
        """The local part of the model in the current layout."""
        assert self._model is not None, "no layout yet"
        return self._model

    @property
    def boxes(self) -> Iterator[Box]:
        """The boxes of the current layout, and that of the user's state, of which each rank has all."""
        assert self._boxes is not None, "no layout yet"
        yield from self._boxes
        if self.user_state is not None:
            size = (len(self.user_state),)
            yield Box(_USER_BOX, self.user_state, size, (0,), dist.get_rank(), dist.get_world_size())

    def expect_user_state(self, facts: Facts) -> None:
        """Make room for the user's state that is read next."""
        size = facts.get(USER_BYTES, 0)
        self.user_state = torch.empty(size, dtype=torch.uint8) if size else None

    def enter(self, layout: RankMesh, kept: Mapping[str, Box] | None = None) -> None:
        """Build the local part of the model in a layout. Its values, and the state of the optimizer, are not set.

        `kept`: boxes of the layout before; their memory is used for parameters of which this rank keeps the region.
        """
        self._free()
        model = self.splittable.build(layout)
        if kept:
            regions = Boxes(model, self.optimizer).regions()
            self._kept = {
                name: box.local
                for name, box in kept.items()
                if box.parameter and regions.get(box.parameter) == box.region()
            }
        self._enter(model)

    def take_kept(self) -> dict[str, Tensor]:
        """Return, once, the tensors that this rank has kept of the layout before."""
        kept, self._kept = self._kept, {}
        return kept

    def enter_prepared(self) -> None:
        """Enter the layout that was prepared, in the same process group; values and state are not set."""
        assert self._prepared is not None
        self.model.close()
        self._free()
        self._enter(self._prepared.model)

    def _free(self) -> None:
        """Free the memory of the old layout."""
        self._model = None
        self._boxes = None
        self.optimizer.detach()
        gc.collect()

    def _enter(self, model: LocalModel) -> None:
        plan = model.layout.plan
        model.allocate({name.removeprefix("model."): local for name, local in self._kept.items()})
        model.set_recompute(plan.recompute)
        self.optimizer.attach(model, offload=plan.offload)
        self._model, self._prepared = model, None
        self._boxes = Boxes(model, self.optimizer)

    def adjust(self, plan: Plan) -> None:
        """Change what does not affect the layout: recomputation and offloading."""
        self._await_preparation()
        self.model.set_recompute(plan.recompute)
        if plan.offload != self.model.layout.plan.offload:
            self.optimizer.set_offload(plan.offload)
        self.model.layout.plan = plan

    def prepare(
        self, plan: Plan, shared: Path | None = None, make_layout: Callable[[], RankMesh] | None = None
    ) -> Future[None]:
        """Prepare a change in the background: its memory, and the model in its layout if that can be made already.

        Layouts are made, and models built, by all ranks together.
        """
        self._await_preparation()
        self._prepared = None

        def work() -> None:
            if plan.offload and not self.model.layout.plan.offload:
                self.optimizer.prepare_offload()
            if shared is not None:
                self._memory.map_ahead(shared)
            if make_layout is not None:
                model = self.splittable.build(make_layout())
                self._prepared = _Prepared(model, Boxes(model, self.optimizer).regions())
            else:
                self.splittable.template.build_ahead()

        self._preparation = self._background.submit(work)
        return self._preparation

    def is_prepared(self, plan: Plan, ranks: int) -> bool:
        """Return whether all ranks have prepared a plan, and stay; if not, discard what was prepared."""
        self._await_preparation()
        planned = None if self._prepared is None else self._prepared.model.layout.plan
        prepared = torch.tensor(int(planned == plan and ranks == dist.get_world_size()))
        dist.all_reduce(prepared, dist.ReduceOp.MIN)
        if not prepared:
            self._prepared = None
        return self._prepared is not None

    def _await_preparation(self) -> None:
        """Wait until nothing is prepared in the background. What could not be prepared is done later."""
        if self._preparation is not None:
            wait([self._preparation])
            self._preparation = None

    def set_initial_values(self) -> None:
        """Take the values that the model had on rank 0 when it was passed to `start`."""
        device = self.model.layout.device
        for box in self.boxes:
            if not box.name.startswith("model."):
                continue
            with torch.no_grad():
                box.local.copy_(self._initial[box.name.removeprefix("model.")].to(device)[box.slices()])
        self.optimizer.write_back()

    def share_initial_values(self) -> None:
        """Send the values of parameters and buffers that the model has on rank 0 to all ranks."""
        for value in (*self._initial.values(), *self.splittable.template.model.buffers()):
            sent = value.contiguous()
            dist.broadcast(sent, 0)
            value.copy_(sent)

    def forget_initial_values(self) -> None:
        """Free the memory of the model that was passed to `start`."""
        for value in self._initial.values():
            value.untyped_storage().resize_(0)
        self._initial.clear()

    def write_shared(self, path: Path, facts: Facts) -> None:
        """Write the state to shared memory, whatever layout will read it. Raises `StateNotMoved` on every rank."""
        mine = list(self.boxes)
        whole, all_slots = self._describe(mine)
        index, size = make_index(whole)
        problem = ""
        if dist.get_rank() == 0:
            try:
                reserve(path, size)
                _facts_path(path).write_text(json.dumps([whole, all_slots, facts]))
            except OSError as error:
                problem = f"{path} cannot hold {size} bytes of model state: {error.strerror}"
        if problem := gather(problem)[0]:
            raise StateNotMoved(problem)
        handover = self._handover()
        SharedState(self._memory.map(path, size), index).write(mine, handover)
        if handover is not None:
            self._kept = {box.name: box.local for box in mine if box.parameter and handover.keeps(box.parameter)}
        dist.barrier()

    def _handover(self) -> Handover | None:
        """Return what ranks write and keep; None: they write everything, for ranks that are not known yet."""
        if self._prepared is None:
            return None
        own = self._boxes
        assert own is not None
        before, after = zip(*gather((own.regions(), self._prepared.regions)), strict=True)
        return Handover(dist.get_rank(), before, after)

    def read_shared(self, path: Path) -> Facts:
        """Read the state from shared memory."""
        whole, all_slots, facts = json.loads(_facts_path(path).read_text())
        index, size = make_index(whole)
        self.optimizer.create_state(all_slots, self._kept)
        self.expect_user_state(facts)
        SharedState(self._memory.map(path, size), index).read(self.boxes, self._kept)
        self._kept = {}
        self.optimizer.write_back()
        return cast(Facts, facts)

    def save(self, checkpoints: Checkpoints, facts: Facts, *, wait: bool) -> None:
        """Write a checkpoint."""
        self._await_preparation()  # both form process groups, which all ranks must do in the same order
        _, all_slots = self._describe(self.boxes)
        checkpoints.save(facts["step"], self._tensors(), {**facts, "slots": all_slots}, wait=wait)

    def load(self, checkpoints: Checkpoints, step: int) -> Facts:
        """Load a checkpoint, whatever layout wrote it."""
        known = checkpoints.facts(step)
        unused = self.optimizer.create_state(known["slots"])
        self.expect_user_state(known)
        facts = checkpoints.load(step, self._tensors(), {f"optimizer.{name}" for name in unused})
        self.optimizer.write_back()
        return facts

    def gradient_norm(self) -> Tensor:
        """Return the norm of the gradients of the whole model."""
        total = torch.zeros((), device=self.model.layout.device)
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                gradient = local_part(parameter.grad)
                copies = replicas(parameter, self.model, tied=self.model.is_on_two_stages(name))[1]
                dtype = torch.promote_types(gradient.dtype, torch.float32)
                total = total + torch.linalg.vector_norm(gradient, dtype=dtype).square() / copies
        dist.all_reduce(total)
        return total.sqrt()

    def scale_gradients(self, factor: Tensor) -> None:
        """Multiply all gradients."""
        for _, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                local_part(parameter.grad).mul_(factor)

    def full_state_dict(self) -> dict[str, Tensor]:
        """Return parameters and buffers of the whole model, on the host, on every rank."""
        mine = {box.name: box for box in self.boxes if box.name.startswith(("model.", "buffer."))}
        result: dict[str, Tensor] = {}
        for name, description in merge(gather({name: box.description() for name, box in mine.items()})).items():
            whole = empty_tensor(description).zero_()
            box = mine.get(name)
            if box is not None and box.writer == 0:
                whole[box.slices()] = box.local.detach().cpu()
            _add_up(whole)
            result[name.partition(".")[2]] = whole
        result |= {alias: result[name] for alias, name in self.splittable.template.aliases.items()}
        for replacement in self._replacements:
            replacement.restore(result)
        return result

    def _describe(self, mine: Iterable[Box]) -> tuple[dict[str, Description], Slots]:
        """Return descriptions of all tensors, and which state the optimizer has, from all ranks."""
        tables = gather(({box.name: box.description() for box in mine}, self.optimizer.slots()))
        return merge(table for table, _ in tables), merge(part for _, part in tables)

    def _tensors(self) -> Mapping[str, Tensor]:
        return {box.name: box.distributed() for box in self.boxes}


def _facts_path(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _add_up(tensor: Tensor) -> None:
    """Add up a tensor that is zero where other ranks have values, bit by bit: of any type, without rounding."""
    dist.all_reduce(tensor.view(-1).view(torch.uint8))


def gather(value: Any) -> list[Any]:
    """Return the values of all ranks. Collective."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def merge(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return what several tables have together."""
    return {name: value for part in parts for name, value in part.items()}
