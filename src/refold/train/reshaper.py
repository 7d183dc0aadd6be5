"""Bring a training into the shape of a plan, and from one shape into another while its processes stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter

import torch
import torch.distributed as dist

from refold.errors import BadInput, StateNotMoved
from refold.model import Plan, Seconds
from refold.train import process_group
from refold.train.checkpoints import Checkpoints
from refold.train.fork_server import freeze_until_exit
from refold.train.layout import Meshes, RankMesh, check_batch, fallback_plan, with_micro_batches
from refold.train.local_model import LocalModel
from refold.train.process_group import Rendezvous
from refold.train.state import Box
from refold.train.state_exchange import HeldState, exchange
from refold.train.training_state import Facts, TrainingState

ReadState = Callable[[TrainingState], Facts]
"""Reads the state that others have written, in a layout that was entered."""


class Reshaper:
    """The shape of a training: its plan, its process group, and the layout of its state.

    `phases`: seconds of the last change by phase. All methods but the first two are collective.
    """

    def __init__(self, state: TrainingState, batch: int, device: torch.device, shard_group: int | None = None) -> None:
        self.state = state
        self.plan = Plan()
        self.phases: dict[str, Seconds] = {}
        self._batch = batch
        self._device = device
        self._shard_group = shard_group
        self._meshes = Meshes()
        self._connections: Set[int] = frozenset()
        self.meeting: Path | None = None
        """The file at which the ranks of the process group have met; they need it to form further groups."""
        freeze_until_exit()  # collecting what a change leaves behind is fast then

    def check(self, plan: Plan) -> None:
        """Raise an error if the model or the batch cannot be divided as a plan says."""
        check_batch(plan, self._batch)
        self.state.splittable.check(plan)
        self.state.optimizer.check(plan)

    def usable_plan(self, plan: Plan, ranks: int) -> tuple[Plan, str]:
        """Return a plan, or one that is possible for the same number of ranks and why the plan is not."""
        plan = with_micro_batches(plan, self._batch)
        try:
            self.check(plan)
            if plan.gpus != ranks:
                raise BadInput(f"{plan} needs {plan.gpus} ranks, there are {ranks}")
        except BadInput as error:
            divides = self.state.optimizer.is_elementwise
            return fallback_plan(ranks, self._batch, divides=divides), str(error)
        return plan, ""

    def prepare(self, plan: Plan, ranks: int, shared: Path | None = None) -> Future[None]:
        """Prepare a move to so many ranks in the background. Call it on all ranks."""
        if has_same_layout(plan, self.plan):
            return self.state.prepare(plan)
        stays = ranks == dist.get_world_size()  # else, process groups can be formed only after the current one is left
        return self.state.prepare(plan, shared, partial(self._make_layout, plan) if stays else None)

    def begin(self, plan: Plan, rendezvous: Rendezvous, checkpoints: Checkpoints | None) -> Facts | None:
        """Enter the first shape: with the last checkpoint, or the model's initial values (None)."""
        timer = PhaseTimer()
        with timer.phase("group"):
            self._join(rendezvous)
        step = checkpoints.latest() if checkpoints else None
        facts = None
        if step is None:
            self.state.share_initial_values()
        with timer.phase("build"):
            self._build(plan)
        with timer.phase("load"):
            if step is None:
                self.state.set_initial_values()
            else:
                assert checkpoints is not None
                facts = self.state.load(checkpoints, step)
        self.state.forget_initial_values()
        self.phases = timer.seconds
        return facts

    def join(self, plan: Plan, rendezvous: Rendezvous, read: ReadState) -> Facts:
        """Enter the shape into which other ranks move, or have moved, with the state that they have written."""
        self.state.forget_initial_values()
        return self._enter(plan, rendezvous, read, PhaseTimer())

    def regroup(self, plan: Plan, rendezvous: Rendezvous, held: HeldState, otherwise: ReadState | None) -> Facts:
        """Form a group of ranks that stay and ranks that join, of which some have the state.

        `otherwise` reads the state if ranks that are lost have taken a part with them.
        """
        timer = PhaseTimer()
        with timer.phase("leave"):
            process_group.leave()
        with timer.phase("group"):
            self._join(rendezvous)
        with timer.phase("build"):
            self._build(plan, held.boxes)
        with timer.phase("load"):
            facts = exchange(self.state, held)
            if facts is None:
                if otherwise is None:
                    raise StateNotMoved("the ranks that are left do not have the whole state")
                facts = otherwise(self.state)
            dist.barrier()
        self.phases = timer.seconds
        return facts

    def interrupt(self) -> None:
        """Let all ranks that wait for this one, and this one itself, fail: ranks are lost."""
        process_group.cut(self._connections)

    def move(
        self, plan: Plan, rendezvous: Rendezvous, shared: Path, facts: Facts, before_leaving: Callable[[], None]
    ) -> bool:
        """Move from the present shape to another; return False if the new one does not need this rank."""
        timer = PhaseTimer()
        if rendezvous.ranks == dist.get_world_size() and has_same_layout(plan, self.plan):
            with timer.phase("adjust"):
                self._adjust(plan)
            self.phases = timer.seconds
            return True
        with timer.phase("write"):
            stays = self.state.is_prepared(plan, rendezvous.ranks)
            self.state.write_shared(shared, facts)
        with timer.phase("leave"):
            before_leaving()
            if not stays:
                process_group.leave()
        self.phases = timer.seconds
        if rendezvous.rank >= rendezvous.ranks:
            return False
        self._enter(plan, rendezvous, partial(TrainingState.read_shared, path=shared), timer)
        return True

    def _enter(self, plan: Plan, rendezvous: Rendezvous, read: ReadState, timer: PhaseTimer) -> Facts:
        with timer.phase("group"):
            stays = dist.is_initialized()
            if not stays:
                self._join(rendezvous)
        with timer.phase("build"):
            if stays:
                self.plan = plan
                self.state.enter_prepared()
            else:
                self._build(plan)
        with timer.phase("load"):
            facts = read(self.state)
            dist.barrier()
        self.phases = timer.seconds
        return facts

    def _build(self, plan: Plan, kept: Mapping[str, Box] | None = None) -> None:
        self.plan = plan
        self.state.enter(self._make_layout(plan), kept)
        self._connections = process_group.connections() - self._connections

    def _make_layout(self, plan: Plan) -> RankMesh:
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)  # each thread has its own
        return RankMesh(plan, dist.get_rank(), self._device, self._shard_group, self._meshes)

    def _join(self, rendezvous: Rendezvous) -> None:
        self._connections = process_group.connections()
        process_group.join(rendezvous, self._device)
        self.meeting = rendezvous.file
        self._meshes = Meshes(self._meshes.number + 1)

    def _adjust(self, plan: Plan) -> None:
        self.plan = plan
        self.state.adjust(plan)

    @property
    def model(self) -> LocalModel:
        """The local part of the model."""
        return self.state.model


def has_same_layout(plan: Plan, other: Plan) -> bool:
    """Whether two plans differ in nothing but recomputation, offloading and accumulation."""
    return _layout_of(plan) == _layout_of(other)


def _layout_of(plan: Plan) -> tuple[int, ...]:
    return plan.data, plan.tensor, plan.pipeline, plan.interleave, plan.zero


# Seconds by phase.


class PhaseTimer:
    """Measures phases that follow each other."""

    def __init__(self) -> None:
        self.seconds: dict[str, Seconds] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of a block to a phase."""
        began = perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + perf_counter() - began
