"""A training session: an ordinary model and optimizer, trained under a plan that may change at any step."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import default_collate

from refold.errors import BadInput, CheckpointNotWritten
from refold.model import Plan, Seconds
from refold.train import process_group, progress
from refold.train.boundary import Boundary, Request
from refold.train.channel import RankChannel, connect
from refold.train.checkpoints import Checkpoints
from refold.train.fused_layers import replace_fused_layers
from refold.train.local_model import SplittableModel
from refold.train.messages import Change, Entered, Finished, Left, Progress, Ready, Saved
from refold.train.micro_batches import Batch, Loss, TrainingStep
from refold.train.pipeline_stages import PipelineRule
from refold.train.plain_values import plain, restored
from refold.train.process_group import Rendezvous
from refold.train.reshaper import Reshaper
from refold.train.run_settings import CHANGE_VARIABLE, read_plan
from refold.train.samples import SampleOrder
from refold.train.tensor_rules import Split
from refold.train.training_state import Facts, TrainingState

log = logging.getLogger("refold.train")

SAVE_EVERY: Seconds = 600.0
"""Default time between checkpoints."""

MAX_TRIED_PARAMETERS = 10**8
"""Up to this size, pipeline stages are compared with the whole model at the start: two forward passes of a sample."""

REPORT_EVERY: Seconds = 1.0
"""Time between two reports of progress."""


class Data(Protocol):
    """A data set: samples by number. Every rank reads the samples that it needs."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def __getitem__(self, index: int, /) -> Any:
        """Return a sample."""


class LearningRateScheduler(Protocol):
    """A scheduler of `torch.optim.lr_scheduler`."""

    def step(self) -> None:
        """Adjust the learning rate after a step."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Restore the state."""


class TrainingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a session trains, besides model, optimizer, loss and data. See `start`."""

    batch: int
    steps: int
    seed: int = 0
    shuffle: bool = True
    inputs: Callable[[Batch], Tensor]
    autocast: Any = None
    clip: float | None = None
    save_every: Seconds = SAVE_EVERY
    scheduler: Any = None


class Session:
    """Trains a model step by step, and follows the scheduler between steps.

    Iterate over it for the batches of this rank, and call `step` with each of them.
    """

    def __init__(
        self,
        reshaper: Reshaper,
        loss: Loss,
        data: Data | None,
        options: TrainingOptions,
        channel: RankChannel | None = None,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self.steps_done = 0
        self._reshaper = reshaper
        self._loss = loss
        self._data = data
        self._options = options
        self._order = SampleOrder(len(data), options.batch, options.seed, shuffle=options.shuffle) if data else None
        self._channel = channel
        self._checkpoints = checkpoints
        self._boundary = Boundary(channel, options.save_every if checkpoints else float("inf"))
        self._training_step: TrainingStep | None = None
        self._has_batch = False
        self._reported_at, self._reported_steps = monotonic(), 0

    # What a script uses.

    def __iter__(self) -> Iterator[Batch]:
        if self._order is None:
            raise BadInput("pass data=… to refold.train.start, or call session.step with batches of your own")
        while self.steps_done < self._options.steps:
            while self._follow(self._boundary.ask(self.steps_done)) is not Request.NOTHING:
                pass  # ranks that have joined ask at their first step, so the others do as well
            self._has_batch = True
            yield self._next_batch()
            if self._has_batch:
                raise BadInput("call session.step(batch) once for every batch of the session")
        self._finish()

    def step(self, batch: Batch) -> Tensor:
        """Train with a batch of the session; return the mean loss of the global batch."""
        assert self._training_step is not None
        plan, position = self.plan, self._reshaper.model.layout.position
        torch.manual_seed(_seed(self._options.seed, self.steps_done, position.data * plan.pipeline + position.stage))
        loss = self._training_step.run(batch)
        if dist.get_world_size() > 1:
            dist.all_reduce(loss)
            loss /= plan.data * plan.tensor
        if self._options.clip is not None:
            self._reshaper.state.clip_gradients(self._options.clip)
        self._reshaper.state.optimizer.step()
        if self._options.scheduler is not None:
            self._options.scheduler.step()
        self.steps_done += 1
        self._has_batch = False
        self._report(loss)
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

    def full_state_dict(self) -> dict[str, Tensor]:
        """Return all parameters and buffers of the whole model, on the host. Collective."""
        return self._reshaper.state.full_state_dict()

    def save(self, *, wait: bool = True) -> None:
        """Write a checkpoint; without `wait`, in the background. Collective. Raises `CheckpointNotWritten`."""
        if self._checkpoints is None:
            raise BadInput("the session has no folder for checkpoints; pass checkpoint=… to refold.train.start")
        self._boundary.note_saved()
        self._reshaper.state.save(self._checkpoints, self.steps_done, self._facts(), wait=wait)

    def should_change(self) -> bool:
        """Return whether to save and exit, because of a stop or a change of the plan. For loops of your own.

        After a change of the plan, the script is started again. Checkpoints that are due are written here.
        """
        match self._boundary.ask(self.steps_done):
            case Request.PREPARE | Request.CHANGE:
                self._boundary.take_change()
                self._tell_that_this_rank_leaves(restart=True)
                return True
            case Request.STOP:
                return True
            case request:
                self._follow(request)
                return False

    def prepare(self, plan: Plan) -> None:
        """Prepare a change of the plan in the background, so that it takes less time."""
        self._reshaper.prepare(plan)

    def change(self, plan: Plan) -> None:
        """Train with another plan on the same ranks from the next step on. Collective.

        If the model or the batch cannot be divided as the plan says, the error says why, and nothing has changed.
        """
        if self._has_batch:
            raise BadInput("change the plan after session.step(batch): the batch was read for the present plan")
        self._reshaper.check(plan)
        if plan.gpus != dist.get_world_size():
            raise BadInput(f"{plan} needs {plan.gpus} ranks, the session has {dist.get_world_size()}")
        with tempfile.TemporaryDirectory(dir=_shared_memory()) as folder:
            shared: list[Any] = [Path(folder)]
            dist.broadcast_object_list(shared, 0)
            self._move(plan, Rendezvous(self.rank, plan.gpus, shared[0] / "group"), shared[0] / "state")
            dist.barrier()

    # Shapes.

    def begin(self, plan: Plan, rendezvous: Rendezvous) -> None:
        """Enter the first shape, with the state of the last checkpoint if there is one."""
        facts = self._reshaper.begin(plan, rendezvous, self._checkpoints)
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
        if why and self.rank == 0:
            log.warning("%s; the plan is %s instead", why, usable)

    def enter(self, change: Change) -> None:
        """Enter the first shape, as told by the agent."""
        plan, why = self._reshaper.usable_plan(change.plan, change.ranks)
        rendezvous = Rendezvous(_own_rank(), plan.gpus, _group_file(change))
        if rendezvous.rank >= plan.gpus:
            self._leave()
        if change.resume:
            self._restore(self._reshaper.join(plan, rendezvous, Path(change.state)))
            self._prepare()
        else:
            self.begin(plan, rendezvous)
        self._report_entered(change, why)

    def _follow(self, request: Request) -> Request:
        """Do what was requested at a step boundary, and return it."""
        match request:
            case Request.SAVE:
                self._try_to_save(wait=False)
            case Request.STOP:
                self._try_to_save(wait=True)
                self._leave()
            case Request.PREPARE:
                change = self._boundary.change
                assert change is not None
                self._boundary.preparation = self._reshaper.prepare(change.plan, Path(change.state))
            case Request.CHANGE:
                change = self._boundary.take_change()
                plan, why = self._reshaper.usable_plan(change.plan, change.plan.gpus)
                ranks = min(plan.gpus, change.ranks)
                self._move(plan, Rendezvous(self.rank, ranks, _group_file(change)), Path(change.state))
                self._report_entered(change, why)
        self._note_saved()
        return request

    def _move(self, plan: Plan, rendezvous: Rendezvous, shared: Path) -> None:
        self._training_step = None  # it holds on to the model
        if not self._reshaper.move(plan, rendezvous, shared, self._facts(), self._wait_for_checkpoint):
            self._leave()
        self._prepare()

    def _prepare(self) -> None:
        """Prepare for steps in the present shape."""
        options, model = self._options, self._reshaper.model
        self._training_step = TrainingStep(model, self.plan, self._loss, options.inputs, self._context())
        self._boundary.reset(self.steps_done)
        self._reported_at, self._reported_steps = monotonic(), self.steps_done

    def _context(self) -> Callable[[], AbstractContextManager[Any]]:
        if self._options.autocast is None:
            return nullcontext
        return partial(torch.autocast, self._reshaper.model.layout.device.type, self._options.autocast)

    # Data and state.

    def _next_batch(self) -> Batch:
        assert self._data is not None
        assert self._order is not None
        layout = self._reshaper.model.layout
        samples = self._order.of_step(self.steps_done, layout.position.data, self.plan.data)
        return _to_device(default_collate([self._data[sample] for sample in samples]), layout.device)

    def _facts(self) -> Facts:
        scheduler = self._options.scheduler
        return {
            "step": self.steps_done,
            "batch": self._options.batch,
            "model": self._reshaper.state.splittable.template.fingerprint(),
            "groups": self._reshaper.state.optimizer.settings(),
            "scheduler": None if scheduler is None else plain(scheduler.state_dict()),
        }

    def _restore(self, facts: Facts) -> None:
        self.steps_done = facts["step"]
        self._reshaper.state.optimizer.restore_settings(facts["groups"])
        scheduler = self._options.scheduler
        if scheduler is not None and facts["scheduler"] is not None:
            scheduler.load_state_dict(restored(facts["scheduler"], scheduler.state_dict()))

    # Checkpoints and reports.

    def _try_to_save(self, *, wait: bool) -> None:
        """Write a checkpoint; if that fails, print why and go on."""
        if self._checkpoints is None:
            return
        try:
            self.save(wait=wait)
        except CheckpointNotWritten as error:
            self._warn(error)
        else:
            if wait:
                self._send(Saved(self.steps_done))

    def _note_saved(self) -> None:
        """Report a checkpoint that was completed in the background."""
        if self._checkpoints is not None:
            try:
                step = self._checkpoints.finish(wait=False)
            except CheckpointNotWritten as error:
                self._warn(error)
            else:
                if step is not None:
                    self._send(Saved(step))

    def _wait_for_checkpoint(self) -> None:
        if self._checkpoints is not None:
            try:
                self._checkpoints.finish()
            except CheckpointNotWritten as error:
                self._warn(error)

    def _warn(self, error: Exception) -> None:
        if self.rank == 0:
            log.warning("%s; training continues", error)

    def _report(self, loss: Tensor) -> None:
        now = monotonic()
        if self.rank or now - self._reported_at < REPORT_EVERY:
            return
        speed = (self.steps_done - self._reported_steps) * self._options.batch / (now - self._reported_at)
        self._reported_at, self._reported_steps = now, self.steps_done
        if self._channel is None:
            progress.report(self.steps_done, float(loss), speed)
        else:
            self._channel.send(Progress(self.steps_done, float(loss), speed))

    def _report_entered(self, change: Change, why: str) -> None:
        self._send(Entered(change.generation, self.plan, self.steps_done, self.phases, why))

    def _send(self, message: Entered | Saved | Finished) -> None:
        if self._channel is not None and self.rank == 0:
            self._channel.send(message)

    def _finish(self) -> None:
        self._wait_for_checkpoint()
        self._try_to_save(wait=True)
        if self._channel is None and self.rank == 0:
            progress.report(self.steps_done)
        self._send(Finished(self.steps_done))

    def _leave(self) -> None:
        """Exit, because the new shape does not need this rank or the run was stopped."""
        self._tell_that_this_rank_leaves()
        process_group.leave()
        sys.exit(0)

    def _tell_that_this_rank_leaves(self, *, restart: bool = False) -> None:
        if self._channel is not None:
            self._channel.send(Left(_own_rank(), self.steps_done, restart))


def start(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    loss: Loss,
    data: Data | None = None,
    batch: int,
    steps: int,
    seed: int = 0,
    shuffle: bool = True,
    inputs: Callable[[Batch], Tensor] | None = None,
    scheduler: LearningRateScheduler | None = None,
    clip: float | None = None,
    autocast: torch.dtype | None = None,
    compile_layers: bool = False,
    tensor: Mapping[str, Split] | None = None,
    pipeline: PipelineRule | None = None,
    shard_group: int | None = None,
    checkpoint: Path | str | None = None,
    save_every: Seconds = SAVE_EVERY,
) -> Session:
    """Begin or resume the training of a model, under the plan that the scheduler has chosen.

    The model is an ordinary module, the same on every rank; use `session.model` from now on. `loss(output, batch)`
    returns the mean loss of a micro-batch. `data` is a data set with a length (None: you pass each rank's part of a
    batch to `session.step` yourself), `batch` the global batch size, `steps` the total number of steps.
    `inputs(batch)` returns what the model gets (default: the batch, its first part, or its `input_ids`).

    `clip`: largest norm of the gradients. `autocast`: type of mixed precision. `compile_layers`: compile each layer
    with torch.compile. `tensor` and `pipeline` say how to split a model whose names are not known. `shard_group`: ZeRO
    shards over groups of so many ranks, which are replicas of each other. `checkpoint`: folder for checkpoints
    (default: $REFOLD_CHECKPOINT, if set), written every `save_every` seconds, when the run is stopped, and at the end.

    Without an agent, the plan is that of $REFOLD_PLAN, or data parallelism over the ranks of torchrun. A script that
    was started as a single process by the scheduler is replaced by `python -m refold.train script.py`.
    """
    channel = connect()
    if channel is None:
        _use_agent_if_needed()
    options = TrainingOptions(
        batch=batch,
        steps=steps,
        seed=seed,
        shuffle=shuffle,
        inputs=inputs or first_tensor,
        autocast=autocast,
        clip=clip,
        save_every=save_every,
        scheduler=scheduler,
    )
    replacements = replace_fused_layers(model, optimizer)
    splittable = SplittableModel(model, tensor=tensor, pipeline=pipeline, compile_layers=compile_layers)
    if pipeline is None and data and sum(parameter.numel() for parameter in model.parameters()) <= MAX_TRIED_PARAMETERS:
        splittable.try_pipeline(model, options.inputs(default_collate([data[0]])))
    state = TrainingState(model, optimizer, splittable, replacements)
    folder = checkpoint or os.environ.get("REFOLD_CHECKPOINT")
    session = Session(
        Reshaper(state, batch, process_group.choose_device(), shard_group),
        loss,
        data,
        options,
        channel,
        Checkpoints(Path(folder)) if folder else None,
    )
    if channel is None:
        session.begin_alone(read_plan(os.environ), process_group.from_environment())
    else:
        channel.send(Ready(_own_rank(), state.estimated_bytes()))
        message = channel.wait()
        while not isinstance(message, Change):
            message = channel.wait()
        session.enter(message)
    return session


def first_tensor(batch: Batch) -> Tensor:
    """Return the input of the model: the batch itself, its `input_ids`, or its first part."""
    if isinstance(batch, Tensor):
        return batch
    found = batch.get("input_ids", next(iter(batch.values()))) if isinstance(batch, Mapping) else batch[0]
    assert isinstance(found, Tensor)
    return found


def _use_agent_if_needed() -> None:
    """Replace this process by an agent if the plan needs several ranks and nobody has started them.

    Also if the plan may change: only the ranks of an agent can change live.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return
    may_change = "RANK" not in os.environ and CHANGE_VARIABLE in os.environ  # whether or not it has a plan yet
    plan = read_plan(os.environ) or Plan()
    if may_change or plan.gpus > int(os.environ.get("WORLD_SIZE", "1")):
        arguments = sys.orig_argv[1:]
        options = arguments[: len(arguments) - len(sys.argv[1:]) - (2 if _is_module() else 1)]
        os.execv(sys.executable, [sys.executable, *options, "-m", "refold.train", *arguments[len(options) :]])


def _is_module() -> bool:
    """Whether the script was started with `python -m`."""
    return sys.modules["__main__"].__spec__ is not None


def _own_rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _seed(seed: int, step: int, part: int) -> int:
    """Return the random seed of a step on a rank: equal for tensor-parallel ranks, and for a repeated step."""
    return hash((seed, step, part)) & 0x7FFF_FFFF_FFFF_FFFF


def _to_device(batch: Batch, device: torch.device) -> Batch:
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {name: _to_device(part, device) for name, part in batch.items()}
    if isinstance(batch, list | tuple):
        return [_to_device(part, device) for part in batch]
    return batch


def _group_file(change: Change) -> Path:
    return Path(f"{change.state}.group-{change.generation}")


def _shared_memory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
