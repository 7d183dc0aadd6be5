"""A training session: an ordinary model and optimizer, trained under a plan that may change at any step."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from refold.errors import BadInput, RanksLost, StateNotMoved
from refold.model import Plan, Seconds
from refold.train import fork_server, process_group
from refold.train.batches import Batches, seed_all
from refold.train.boundary import Boundary, BoundaryRequest
from refold.train.channel import RankChannel
from refold.train.checkpoints import Checkpoints
from refold.train.layout import with_micro_batches
from refold.train.losses import Batch, Loss, LossReducer
from refold.train.messages import Change
from refold.train.micro_batches import TrainingStep
from refold.train.process_group import Rendezvous
from refold.train.recovery import Recovery
from refold.train.reports import Reports
from refold.train.reshaper import PhaseTimer, ReadState, Reshaper
from refold.train.session_checkpoints import SessionCheckpoints
from refold.train.session_state import LOSS
from refold.train.session_view import SessionView
from refold.train.state_copies import StateCopies
from refold.train.state_exchange import NOTHING, HeldState, hold
from refold.train.step_clock import StepClock
from refold.train.training_options import TrainingOptions
from refold.train.training_state import Facts, TrainingState

log = logging.getLogger("refold.train")


class Session(SessionView):
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
        super().__init__(reshaper, loss, batches, options)
        self._reports = Reports(channel, options.batch)
        self._checkpoints = SessionCheckpoints(checkpoints, reshaper.state, self._reports)
        self._boundary = Boundary(channel, options.save_every if checkpoints else float("inf"))
        self._channel = channel
        self._recovery = Recovery(channel, reshaper)
        self._copies: StateCopies | None = None
        self._training_step: TrainingStep | None = None
        self._reducer = LossReducer()
        self._last_loss: Tensor | None = None
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
            batch = self._next_batch(batches)
            self._has_batch = True
            seed_all(self._step_seed())
            yield batch
            if self._has_batch:
                raise BadInput("call session.step(batch) once for every batch of the session")

    def _next_batch(self, batches: Batches) -> Batch:
        """Follow requests, and return this rank's part of the next batch. Collective."""
        while True:
            try:
                while self._follow(self._boundary.ask(self.steps_done)) is not BoundaryRequest.NOTHING:
                    pass  # ranks that have joined ask at their first step, so the others do as well
                return self._clock.read(batches, self.steps_done, self._reshaper.model.layout)
            except (RuntimeError, RanksLost) as error:
                if not self._recover(error):
                    raise

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
        before = self.steps_done
        while True:
            try:
                return self._train(batch)
            except (RuntimeError, RanksLost) as error:
                if self._batches is None or not self._recover(error):
                    raise
            if self.steps_done > before:  # others had finished the step when it was interrupted here
                self._has_batch = False
                assert self._last_loss is not None
                return self._last_loss
            batch = self._next_batch(self._batches)

    def _train(self, batch: Batch) -> Tensor:
        assert self._training_step is not None
        torch.manual_seed(self._step_seed())
        loss, factor = self._reducer.reduce(self._training_step.run(batch, self._update.loss_scale), batch)
        self._update.run(factor, self._begin_update)
        self.steps_done += 1
        self._state.end_step()
        self._last_loss = loss
        self._has_batch = False
        self._reports.progressed(self.steps_done, loss, self._clock.end_step())
        return loss

    def _begin_update(self) -> None:
        """Prepare for a change of the weights."""
        self._state.begin_update()
        if self._copies is not None:
            self._copies.before_update()

    def stop(self) -> None:
        """Let the loop over the batches of the session end after this step, with a checkpoint. Call it on all ranks."""
        self._last_step = self.steps_done + self._has_batch

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
        with tempfile.TemporaryDirectory(dir=_shared_memory()) as folder:
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
            _warn_of_plan(why, usable)

    def enter(self, change: Change) -> None:
        """Enter the first shape, as told by the agent."""
        if change.copies is not None:
            self._recovery.begin()
        if change.keep:
            self._reshaper.state.forget_initial_values()
            self._regroup(change, process_group.own_rank(), NOTHING)
            return
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
        seconds = copies.write(self._reshaper.state, self._facts(), wait=wait)
        self._boundary.note_copied(seconds, has_replicas=copies.has_replicas)

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
                change = self._boundary.take_change()
                if change.keep:
                    self._checkpoints.finish(wait=True)
                    self._regroup(change, self.rank, hold(self._reshaper.state, self._facts()))
                else:
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
        timer = PhaseTimer()
        with timer.phase("write"):
            self._copy(copies, wait=True)
            if not copies.fits:
                self._save_if_possible(wait=True)
        self._checkpoints.finish(wait=True)
        self._leave(timer.seconds)

    def _recover(self, error: Exception) -> bool:
        """Go on without the ranks that are lost; return False if the error is not that of a lost rank."""
        change = self._recovery.change_after(error)
        if change is None:
            return False
        self._checkpoints.abandon()
        facts = self._state.facts_of_interrupted(self.steps_done, self._last_loss)
        self._regroup(change, change.rank, hold(self._reshaper.state, facts))
        return True

    def _regroup(self, change: Change, rank: int, held: HeldState) -> None:
        """Form a group with ranks that stay or join, and go on with the newest state that they have."""
        assert self._channel is not None
        self._recovery.is_regrouping = True
        self._training_step = None  # it holds on to the model
        plan, why = self._reshaper.usable_plan(change.plan, change.ranks)
        rendezvous = process_group.rendezvous_of(change, rank, plan.gpus)
        if rank >= plan.gpus:
            self._leave()
        self._copies = StateCopies(change, self._channel)
        otherwise = self._copies.load if change.copies and change.copies.load else None
        facts = self._reshaper.regroup(plan, rendezvous, held, otherwise)
        if held.facts is None or facts["step"] != held.facts["step"]:
            self._restore(facts)
            self._last_loss = None if facts.get(LOSS) is None else torch.tensor(facts[LOSS], dtype=torch.float64)
        if change.lost:
            self._state.rewind(self.steps_done)
        self._prepare()
        self._boundary.begin_copies(self.steps_done)
        self._recovery.is_regrouping = False
        self._report_entered(change, why)

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
        self._state.watch(model)
        self._boundary.reset(self.steps_done)
        self._reports.begin(self.steps_done)

    # State.

    def _facts(self) -> Facts:
        return self._state.facts(self.steps_done)

    def _restore(self, facts: Facts) -> None:
        self.steps_done = facts["step"]
        self._state.restore(facts)

    def _save_if_possible(self, *, wait: bool) -> None:
        self._boundary.note_saved()
        self._checkpoints.try_to_save(self._facts(), wait=wait)

    def _report_entered(self, change: Change, why: str) -> None:
        if self.rank == 0:
            _warn_of_plan(why, self.plan)
            process_group.remove_group_files(change, except_for=self._reshaper.meeting)
        self._reports.entered(change, self.plan, self.steps_done, self.phases, why)

    def _leave(self, phases: dict[str, Seconds] | None = None) -> None:
        """Exit, because the new shape does not need this rank, after phases of a change; or the run was stopped."""
        self._reports.left(self.steps_done, phases or {})
        self._close_data()
        process_group.leave()
        fork_server.leave_quickly()
        sys.exit(0)


def _warn_of_plan(why: str, plan: Plan) -> None:
    """Say why the requested plan is not used, if there is a reason."""
    if why:
        log.warning("%s; the plan is %s instead", why, plan)


def _shared_memory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
