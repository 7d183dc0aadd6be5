"""A training loop of one's own, or of another framework, that follows the scheduler by restarts.

For a change of its plan, the loop saves a checkpoint at a step boundary and exits. The agent, or without one the
scheduler, then starts the script again, which resumes from the checkpoint under the new plan.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

import msgspec
import torch.distributed as dist
from torch import Tensor

from refold.errors import BadInput
from refold.model import LaunchEngine, Plan, Seconds
from refold.planning.plans import LaunchRequest, LaunchSettings, Workers, launch_problem, launch_settings
from refold.train import fork_server
from refold.train.boundary import Boundary, BoundaryRequest
from refold.train.channel import connect
from refold.train.fork_server import PRELOAD_VARIABLE, PRELOADED
from refold.train.messages import Change, Ready
from refold.train.process_group import own_rank
from refold.train.reports import Reports
from refold.train.run_settings import read_plan
from refold.train.starting import become_agent_if_needed, wait_for_first_change


class OwnLoop:
    """Tells a loop its plan and when to save, and the scheduler how far it is.

    Call `begin` before the first step, `should_save` after each one, `saved` with each complete checkpoint, which exits
    if the run is stopped or its plan changes, and `finished` at the end. All ranks do so at the same steps.
    """

    def __init__(
        self,
        batch: int,
        *,
        engine: LaunchEngine | None = None,
        largest_micro_batch: int | None = None,
        is_sharded: bool | None = None,
        preload: str = "",
    ) -> None:
        """Create it before the process group, so that a script that the scheduler has started becomes an agent.

        `batch`: the global batch size; the number of ranks divides it. `engine`: the framework that is told the plan;
        without one, there is data parallelism only. `largest_micro_batch`: for larger ones, the plan gets more
        accumulation. `is_sharded`: whether the checkpoint to continue from is one of FSDP, if there is one. `preload`:
        modules that a restart should not have to import.
        """
        self.batch = batch
        self._engine = engine
        self._largest = largest_micro_batch or batch
        self._is_sharded = is_sharded
        self._channel = connect()
        self._change: Change | None = None
        if self._channel is None:
            if int(os.environ.get("REFOLD_INSTANCES", "1")) == 1:  # several nodes need the framework's launcher
                os.environ.setdefault(PRELOAD_VARIABLE, f"{PRELOADED},{preload}")
                become_agent_if_needed(os.environ)
            asked = _plan_of_launcher()
        else:
            self._change = wait_for_first_change(self._channel, Ready(own_rank(), 0, batch, restarts=True))
            asked = self._change.plan
        self.plan, self._why = self._usable_plan(asked)
        self._is_sharded = self.plan.zero > 0
        self._reports = Reports(self._channel, batch)
        self._boundary: Boundary | None = None
        self._is_leaving = False

    @property
    def micro_batch(self) -> int:
        """Samples per rank and micro-batch."""
        return self.batch // (self.plan.data * self.plan.accumulation)

    def settings(self) -> LaunchSettings:
        """Return the plan as the framework is told it."""
        assert self._engine is not None
        return launch_settings(self._engine, LaunchRequest(self.plan, self.batch, Workers(self.plan.gpus)))

    def check_ranks(self, found: int) -> None:
        """Raise an error if the framework trains with another number of ranks than the plan has."""
        if found != self.plan.gpus:
            raise BadInput(f"{self.plan} has {self.plan.gpus} ranks, and the framework trains with {found}")

    def begin(self, step: int, save_every: Seconds = float("inf")) -> None:
        """Note that all ranks are about to train, `step` steps of the job being done. Collective."""
        group = dist.new_group(backend="gloo") if dist.is_initialized() else None
        self._boundary = Boundary(self._channel, save_every, group)
        self._boundary.reset(step)
        self._reports.begin(step)
        if self._change is not None:
            self._reports.entered(self._change, self.plan, step, {}, self._why)

    def should_save(self, step: int, loss: Tensor | float | None = None) -> bool:
        """Report a finished step, and return whether to write a checkpoint now. Collective."""
        assert self._boundary is not None, "begin was not called"
        self._reports.progressed(step, loss.detach() if isinstance(loss, Tensor) else loss)
        if self._is_leaving:
            return True
        match self._boundary.ask(step):
            case BoundaryRequest.PREPARE:
                self._is_leaving = self._accepts(self._boundary.take_change())
                restart = True
            case BoundaryRequest.STOP:
                self._is_leaving, restart = True, False
            case request:
                return request is BoundaryRequest.SAVE
        if self._is_leaving:
            self._reports.left(step, {}, restart=restart)
        return self._is_leaving

    def saved(self, step: int) -> None:
        """Report a complete checkpoint, and exit if requested. Collective."""
        assert self._boundary is not None, "begin was not called"
        self._boundary.note_saved()
        self._reports.saved(step)
        if self._is_leaving:
            _leave()

    def finished(self, step: int) -> None:
        """Report that all steps are done."""
        self._reports.finished(step)

    def _accepts(self, change: Change) -> bool:
        """Return whether a change would lead to another plan; report why not."""
        try:
            plan, why = self._usable_plan(change.plan)
        except BadInput as error:
            self._reports.not_entered(change, error)
            return False
        if why and plan == self.plan:
            self._reports.not_entered(change, BadInput(why))
            return False
        return True

    def _usable_plan(self, asked: Plan) -> tuple[Plan, str]:
        """Return a plan for the same number of ranks, and why it is not the one asked for."""
        problem = self._problem(asked)
        for plan in (asked, Plan(data=asked.gpus), Plan(data=asked.gpus, zero=3)):
            if not self._problem(plan):
                return _with_micro_batches(plan, self.batch, self._largest), problem
        raise BadInput(f"{asked} is not possible: {problem}")

    def _problem(self, plan: Plan) -> str:
        """Return why the loop cannot continue under a plan."""
        if self._engine is not None and (problem := launch_problem(self._engine, plan)):
            return problem
        if plan.tensor > 1:
            return "the script does not split its model for tensor parallelism"
        if self._engine is None and plan != Plan(data=plan.data, accumulation=plan.accumulation):
            return "the loop has data parallelism only"
        if self.batch % (plan.data * plan.accumulation):
            return f"a batch of {self.batch} cannot be divided into {plan.data * plan.accumulation} micro-batches"
        if self._is_sharded in (None, plan.zero > 0):
            return ""
        return f"checkpoints {'with' if self._is_sharded else 'without'} FSDP cannot be loaded under this plan"


def checkpoint_folder(given: Path | str | None) -> Path:
    """Return the folder of the checkpoints: the one that the script passes, or that of the run."""
    folder = given or os.environ.get("REFOLD_CHECKPOINT")
    if not folder:
        raise BadInput("pass checkpoint=…, the folder of the checkpoints")
    return Path(folder)


def checkpoints_in(folder: Path, prefix: str, last_file: str = "") -> dict[int, Path]:
    """Return the complete checkpoints by step, by names such as `step-200`: they have the file that is written last."""
    paths = [path for path in folder.glob(f"{prefix}*") if (path / last_file).exists()]
    return {int(step): path for path in paths if (step := path.name.removeprefix(prefix)).isdecimal()}


def is_sharded(checkpoint: Path | None) -> bool | None:
    """Return whether a checkpoint of Accelerate or the Trainer is one of FSDP; None if there is none."""
    return None if checkpoint is None else any(checkpoint.glob("pytorch_model_fsdp*"))


def _leave() -> NoReturn:
    """Exit when all ranks do."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
    fork_server.leave_quickly()
    sys.exit(0)


def _plan_of_launcher() -> Plan:
    """Return the plan of a run whose processes a launcher has started."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    plan = read_plan(os.environ) or Plan(data=ranks)
    if plan.gpus != ranks:
        raise BadInput(f"plan {plan} needs {plan.gpus} ranks, and {ranks} were started")
    return plan


def _with_micro_batches(plan: Plan, batch: int, largest: int) -> Plan:
    """Return the plan with at least its accumulation, and micro-batches that are not too large."""
    share = batch // plan.data
    counts = (count for count in range(plan.accumulation, share + 1) if share % count == 0)
    return msgspec.structs.replace(plan, accumulation=next(count for count in counts if share // count <= largest))
