"""A training session: an ordinary model and optimizer, trained under a plan that may change at any step."""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from refold.errors import BadInput, StateNotMoved
from refold.model import Plan, Seconds
from refold.train import fork_server, process_group
from refold.train.batches import Batches, Data, seed_all
from refold.train.boundary import Boundary, BoundaryRequest
from refold.train.channel import RankChannel
from refold.train.checkpoints import Checkpoints
from refold.train.evaluation import ModelEvaluation
from refold.train.host_tensors import plain, restored
from refold.train.layout import with_micro_batches
from refold.train.losses import Batch, Loss, LossReducer, without_labels
from refold.train.messages import Change
from refold.train.micro_batches import TrainingStep
from refold.train.process_group import Rendezvous
from refold.train.reports import Reports, warn_of_plan
from refold.train.reshaper import PhaseTimer, ReadState, Reshaper
from refold.train.session_checkpoints import SessionCheckpoints
from refold.train.state_copies import StateCopies
from refold.train.step_clock import StepClock
from refold.train.training_options import TrainingOptions
from refold.train.training_state import USER_BYTES, Facts, TrainingState
from refold.train.user_state import UserState

log = logging.getLogger("refold.train")


class Session:
    """Trains a model step by step, and follows the scheduler between steps.

    Iterate over it for the batches of this rank, and call `step` with each of them.
    """

    def __init__(
        self,
        reshaper: Reshaper,
        loss: Loss,
        batches: Batches | None,
        options: TrainingOptions,
        channel: RankChannel | None = None,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self.steps_done = 0
        self._reshaper = reshaper
        self._loss = loss
        self._options = options
        self._batches = batches
        self._user = UserState(batches.state if batches else lambda _: None)
        self._update = options.weight_update(reshaper.state)
        self._reports = Reports(channel, options.batch)
        self._checkpoints = SessionCheckpoints(checkpoints, reshaper.state, self._reports)
        self._boundary = Boundary(channel, options.save_every if checkpoints else float("inf"))
        self._channel = channel
        self._copies: StateCopies | None = None
        self._training_step: TrainingStep | None = None
        self._reducer = LossReducer()
        self._has_batch = False
        self._last_step = options.steps

    # What a script uses.

    def __iter__(self) -> Iterator[Batch]:
        if self._batches is None:
            raise BadInput("pass data=… to refold.train.start, or call session.step with batches of your own")
        try:
            yield from self._batches_of_steps(self._batches)
        except GeneratorExit:
            self._end_early()
            raise
        self._end()

    def _batches_of_steps(self, batches: Batches) -> Iterator[Batch]:
        while self.steps_done < self._last_step:
            while self._follow(self._boundary.ask(self.steps_done)) is not BoundaryRequest.NOTHING:
                pass  # ranks that have joined ask at their first step, so the others do as well
            self._has_batch = True
            batch = self._clock.read(batches, self.steps_done, self._reshaper.model.layout)
            seed_all(self._reshaper.model.layout.seed(self._options.seed, self.steps_done))
            yield batch
            if self._has_batch:
                raise BadInput("call session.step(batch) once for every batch of the session")

    def _end_early(self) -> None:
        """Write a checkpoint, because the script has left the loop: with `break`, or by an error on some ranks only."""
        if self._has_batch:
            return
        if process_group.all_ranks_are_at(f"left after step {self.steps_done}"):
            self._end()
        else:
            log.warning("rank %d has left the loop after step %d, and others not", self.rank, self.steps_done)

    def _end(self) -> None:
        """Write a checkpoint after the last step."""
        self._close_data()
        self._checkpoints.finish(wait=True)
        self._save_if_possible(wait=True)
        self._reports.finished(self.steps_done)

    def step(self, batch: Batch) -> Tensor:
        """Train with a batch of the session; return the mean loss of the global batch."""
        assert self._training_step is not None
        torch.manual_seed(self._reshaper.model.layout.seed(self._options.seed, self.steps_done))
        loss, factor = self._reducer.reduce(self._training_step.run(batch, self._update.loss_scale), batch)
        if self._copies is not None:
            self._copies.before_update()
        self._update.run(factor)
        self.steps_done += 1
        self._has_batch = False
        self._reports.progressed(self.steps_done, loss, self._clock.end_step())
        return loss

    @property
    def plan(self) -> Plan:
        """The plan that is used now."""
        return self._reshaper.plan

    @property
    def phases(self) -> dict[str, Seconds]:
        """Seconds without training of the last change of the plan, by phase."""
        return self._reshaper.phases

    @property
    def rank(self) -> int:
        """The number of this rank. Let rank 0 print and log."""
        return dist.get_rank()

    @property
    def data_rank(self) -> int:
        """The number of this rank among the `plan.data` parts of a batch. Ranks of one part get the same samples."""
        return self._reshaper.model.layout.position.data

    @property
    def model(self) -> nn.Module:
        """The part of the model on this rank: in pipelines, a stage."""
        return self._reshaper.model.chunks[0].model

    def evaluate(self, data: Data, metric: Loss | None = None, *, batch: int | None = None) -> float:
        """Return the mean of a metric over a data set, with every sample counted once. Collective.

        `metric(output, batch)` returns a mean, or a sum and a count (default: the loss). `batch` is the global batch
        size (default: that of training).
        """
        inputs = self._options.inputs if metric is None else without_labels(self._options.inputs)
        evaluation = ModelEvaluation(self._reshaper.model, metric or self._loss, inputs, self._context())
        return evaluation.run(data, batch or self._options.batch)

    def register(self, name: str, item: Any) -> None:
        """Let the state of an object be part of checkpoints and changes; if training continues, set it. On all ranks.

        It has `state_dict` and `load_state_dict`, or is a generator of random numbers. The state is that of rank 0.
        """
        self._user.register(name, item)

    def averaged_weights(self) -> AbstractContextManager[None]:
        """Let the model have the averages of its weights within the context (`ema=…`). Call it on all ranks."""
        if self._options.ema is None:
            raise BadInput("pass ema=0.999, for example, to refold.train.start")
        return self._reshaper.state.optimizer.averaged()

    def stop(self) -> None:
        """Let the loop over the batches of the session end after this step, with a checkpoint. Call it on all ranks."""
        self._last_step = self.steps_done + self._has_batch

    def full_state_dict(self) -> dict[str, Tensor]:
        """Return all parameters and buffers of the whole model, on the host. Collective."""
        return self._reshaper.state.full_state_dict()

    def save(self, *, wait: bool = True) -> None:
        """Write a checkpoint; without `wait`, in the background. Collective. Raises `CheckpointNotWritten`."""
        self._boundary.note_saved()
        self._checkpoints.save(self._facts(), wait=wait)

    def should_change(self) -> bool:
        """Return whether to save and exit, because of a stop or a change of the plan. For loops of your own.

        After a change of the plan, the script is started again. Checkpoints that are due are written here.
        """
        match self._boundary.ask(self.steps_done):
            case BoundaryRequest.PREPARE | BoundaryRequest.CHANGE:
                self._boundary.take_change()
                if self._copies is not None:
                    self._copy(self._copies, wait=True)
                self._reports.left(self.steps_done, {}, restart=True)
                return True
            case BoundaryRequest.STOP:
                return True
            case request:
                self._follow(request)
                return False

    def prepare(self, plan: Plan) -> None:
        """Prepare a change of the plan in the background, so that it takes less time. Call it on all ranks."""
        self._reshaper.prepare(plan, plan.gpus)

    def change(self, plan: Plan) -> None:
        """Train with another plan on the same ranks from the next step on. Collective.

        If the model or the batch cannot be divided as the plan says, or if there is no room for the state in shared
        memory (`StateNotMoved`), the error says why, and nothing has changed.
        """
        if self._has_batch:
            raise BadInput("change the plan after session.step(batch): the batch was read for the current plan")
        plan = with_micro_batches(plan, self._options.batch)
        self._reshaper.check(plan)
        if plan.gpus != dist.get_world_size():
            raise BadInput(f"{plan} needs {plan.gpus} ranks, the session has {dist.get_world_size()}")
        with tempfile.TemporaryDirectory(dir=process_group.shared_memory()) as folder:
            shared: list[Any] = [Path(folder)]
            dist.broadcast_object_list(shared, 0)
            meeting = Path(f"{shared[0]}.group")  # PyTorch removes it when the ranks leave the process group
            self._move(plan, Rendezvous(self.rank, plan.gpus, meeting), shared[0] / "state")
            dist.barrier()

    # Shapes.

    def begin(self, plan: Plan, rendezvous: Rendezvous) -> None:
        """Enter the first shape, with the state of the last checkpoint if there is one."""
        facts = self._reshaper.begin(plan, rendezvous, self._checkpoints.checkpoints)
        if facts is not None:
            self._restore(facts)
        self._prepare()

    def begin_alone(self, plan: Plan | None, rendezvous: Rendezvous) -> None:
        """Enter the first and only shape, without an agent: if the plan does not fit, another one on the same ranks."""
        ranks = rendezvous.ranks
        usable, why = self._reshaper.usable_plan(plan or Plan(data=ranks), ranks)
        if usable.gpus != ranks:
            raise BadInput(f"{why}, and other plans for {ranks} ranks do not fit either")
        self.begin(usable, rendezvous)
        if self.rank == 0:
            warn_of_plan(why, usable)

    def enter(self, change: Change) -> None:
        """Enter the first shape, as told by the agent."""
        plan, why = self._reshaper.usable_plan(change.plan, change.ranks)
        rendezvous = process_group.rendezvous_of(change, process_group.own_rank(), plan.gpus)
        if rendezvous.rank >= plan.gpus:
            self._leave()
        read = self._reader(change)
        if read is not None:
            self._restore(self._reshaper.join(plan, rendezvous, read))
            self._prepare()
        else:
            self.begin(plan, rendezvous)
        if self._copies is not None:
            self._boundary.begin_copies(self.steps_done)
        self._report_entered(change, why)

    def _reader(self, change: Change) -> ReadState | None:
        """Return what reads the state with which a generation begins; None: from a checkpoint, or initial values."""
        if change.copies is not None:
            assert self._channel is not None
            self._copies = StateCopies(change, self._channel)
            return self._copies.load if change.copies.load else None
        return partial(TrainingState.read_shared, path=Path(change.state)) if change.resume else None

    def _copy(self, copies: StateCopies, *, wait: bool = False) -> None:
        """Write a copy of the state to memory of the hosts."""
        self._boundary.note_copied(copies.write(self._reshaper.state, self._facts(), wait=wait))

    def _follow(self, request: BoundaryRequest) -> BoundaryRequest:
        """Do what was requested at a step boundary, and return it."""
        match request:
            case BoundaryRequest.SAVE:
                self._save_if_possible(wait=False)
            case BoundaryRequest.STOP:
                self._save_if_possible(wait=True)
                self._leave()
            case BoundaryRequest.COPY:
                assert self._copies is not None
                self._copy(self._copies)
            case BoundaryRequest.PREPARE | BoundaryRequest.CHANGE if self._copies is not None:
                self._hand_over(self._copies)
            case BoundaryRequest.PREPARE:
                change = self._boundary.change
                assert change is not None
                plan, ranks, _ = self._target(change)
                self._boundary.preparation = self._reshaper.prepare(plan, ranks, Path(change.state))
            case BoundaryRequest.CHANGE:
                self._follow_change(self._boundary.take_change())
        self._checkpoints.finish(wait=False)
        return request

    def _hand_over(self, copies: StateCopies) -> None:
        """Write a copy, with which other ranks continue, and exit."""
        self._boundary.take_change()
        timer = PhaseTimer()
        with timer.phase("write"):
            self._copy(copies, wait=True)
            if not copies.fits:
                self._save_if_possible(wait=True)
        self._checkpoints.finish(wait=True)
        self._leave(timer.seconds)

    def _follow_change(self, change: Change) -> None:
        plan, ranks, why = self._target(change)
        try:
            self._move(plan, Rendezvous(self.rank, ranks, process_group.group_file(change)), Path(change.state))
        except StateNotMoved as error:
            self._reports.not_entered(change, error)
        else:
            self._report_entered(change, why)

    def _target(self, change: Change) -> tuple[Plan, int, str]:
        """Return the plan and the number of ranks after a change, and why it is not the requested plan."""
        plan, why = self._reshaper.usable_plan(change.plan, change.plan.gpus)
        return plan, min(plan.gpus, change.ranks), why

    def _move(self, plan: Plan, rendezvous: Rendezvous, shared: Path) -> None:
        """Move to another shape; raise `StateNotMoved` if the current one is kept."""
        self._training_step = None  # it holds on to the model
        finish_checkpoint = partial(self._checkpoints.finish, wait=True)
        try:
            stays = self._reshaper.move(plan, rendezvous, shared, self._facts(), finish_checkpoint)
        except StateNotMoved:
            self._prepare()
            raise
        if not stays:
            self._leave(self.phases)
        self._prepare()

    def _prepare(self) -> None:
        """Prepare for steps in the present shape."""
        options, model = self._options, self._reshaper.model
        self._clock = StepClock(self.rank, self.plan, model.layout.device)
        self._training_step = TrainingStep(model, self.plan, self._loss, options.inputs, self._context())
        self._reducer.begin(self.plan)
        self._boundary.reset(self.steps_done)
        self._reports.begin(self.steps_done)

    def _context(self) -> Callable[[], AbstractContextManager[Any]]:
        device, autocast = self._reshaper.model.layout.device.type, self._options.autocast
        return self._clock.timed(nullcontext if autocast is None else partial(torch.autocast, device, autocast))

    # State.

    def _facts(self) -> Facts:
        """Return the facts about the training, and make the state of the user's objects part of its state."""
        scheduler = self._options.scheduler
        user = self._reshaper.state.user_state = self._user.encode(self.steps_done)
        return {
            "step": self.steps_done,
            "groups": self._reshaper.state.optimizer.settings(),
            "scheduler": None if scheduler is None else plain(scheduler.state_dict()),
            "scaler": self._update.facts(),
            USER_BYTES: 0 if user is None else len(user),
        }

    def _restore(self, facts: Facts) -> None:
        self.steps_done = facts["step"]
        self._reshaper.state.optimizer.restore_settings(facts["groups"])
        self._update.restore(facts.get("scaler"))
        position = self._user.decode(self._reshaper.state.user_state)
        if self._batches is not None and position is not None:
            self._batches.restore(position)
        scheduler = self._options.scheduler
        if scheduler is not None and facts["scheduler"] is not None:
            scheduler.load_state_dict(restored(facts["scheduler"], scheduler.state_dict()))

    def _close_data(self) -> None:
        if self._batches is not None:
            self._batches.close()

    def _save_if_possible(self, *, wait: bool) -> None:
        self._boundary.note_saved()
        self._checkpoints.try_to_save(self._facts(), wait=wait)

    def _report_entered(self, change: Change, why: str) -> None:
        if self.rank == 0:
            warn_of_plan(why, self.plan)
            process_group.remove_group_files(change, except_for=self._reshaper.meeting)
        self._reports.entered(change, self.plan, self.steps_done, self.phases, why)

    def _leave(self, phases: dict[str, Seconds] | None = None) -> None:
        """Exit, because the new shape does not need this rank, after phases of a change; or the run was stopped."""
        self._reports.left(self.steps_done, phases or {})
        self._close_data()
        process_group.leave()
        fork_server.leave_quickly()
        sys.exit(0)
