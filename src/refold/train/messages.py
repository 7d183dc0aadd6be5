"""The messages between the agent of a run and its ranks: JSON, one per line, over a Unix socket. No PyTorch."""

from __future__ import annotations

import msgspec

from refold.model import ChangeAnswer, Plan, Seconds, SlowPlace
from refold.train.copies import CopyToLoad, TensorRegions
from refold.train.slow_ranks import RankTimes


class CopyOrders(msgspec.Struct, frozen=True):
    """How ranks on several hosts move their state: by copies in memory of their hosts.

    `host`: the instance on whose host the rank runs. `slot`: which of the two files is written first. `load`: the copy
    with which the generation begins, if there is one.
    """

    slot: int = 0
    load: CopyToLoad | None = None
    host: int = 0


class Change(msgspec.Struct, frozen=True, tag=True):
    """To every rank: train with `plan` on `ranks` ranks from the next step boundary.

    A rank that was just started enters with its first `Change`; ranks ≥ `ranks` leave: all of them if other processes
    take over (`ranks` is 0). `generation` numbers the process groups of a run. The state of the model is in the shared
    memory of `state`, a file that the agent has created: written there by the ranks of the previous generation if there
    are any (`resume`), else the session starts from the last checkpoint, or from the beginning. The ranks create
    further files whose names begin with that of `state`.

    On several hosts, the ranks meet at an address and a port, and `copies` says where the state is: if they are to
    `keep` what they have, this is needed only if they do not have all of it together. `lost`: ranks of the generation
    are lost; give up the step that is under way, and train as number `rank` of those that are left.
    """

    plan: Plan
    ranks: int
    generation: int
    state: str
    resume: bool
    address: str = ""
    port: int = 0
    copies: CopyOrders | None = None
    keep: bool = False
    lost: bool = False
    rank: int = 0


class StopTraining(msgspec.Struct, frozen=True, tag=True):
    """To rank 0: write a checkpoint at the next step boundary, within `seconds`, and exit."""

    seconds: Seconds


class CopySecured(msgspec.Struct, frozen=True, tag=True):
    """To rank 0: the last copy would survive the loss of a host; the next one may be written."""

    step: int


ToRank = Change | StopTraining | CopySecured


class Ready(msgspec.Struct, frozen=True, tag=True):
    """From a rank that has called `start` and waits for its first `Change`; `state_bytes`: size of the state.

    `batch`: the global batch size. `restarts`: for a change, it saves a checkpoint and leaves (`Left.restart`), so that
    no ranks need to be started before.
    """

    rank: int
    state_bytes: int
    batch: int = 0
    restarts: bool = False


class Entered(msgspec.Struct, frozen=True, tag=True):
    """From rank 0: the ranks of a generation train, with `plan`, which may differ from the one in `Change` (`why`).

    `phases`: seconds without training by phase.
    """

    generation: int
    plan: Plan
    step: int
    phases: dict[str, Seconds]
    why: str = ""


class NotEntered(msgspec.Struct, frozen=True, tag=True):
    """From rank 0: because of `error`, the ranks of the previous generation continue."""

    generation: int
    error: str


class Progress(msgspec.Struct, frozen=True, tag=True):
    """From rank 0, at most once per second: finished steps, loss of the last one (None: not a number), and speed."""

    step: int
    loss: float | None
    samples_per_second: float


class Saved(msgspec.Struct, frozen=True, tag=True):
    """From rank 0: a checkpoint of a step is complete on disk."""

    step: int


class Left(msgspec.Struct, frozen=True, tag=True):
    """From a rank that exits because the new generation does not need it, or because of `StopTraining`.

    `restart`: the script has a training loop of its own, which saves a checkpoint and exits for a `Change`. When all
    ranks have exited, start new ones with the new plan. `phases`: seconds without training so far, by phase.
    """

    rank: int
    step: int
    restart: bool = False
    phases: dict[str, Seconds] = {}


class Finished(msgspec.Struct, frozen=True, tag=True):
    """From rank 0: all steps are done."""

    step: int


ToSupervisor = Ready | Entered | NotEntered | Progress | Saved | Left | Finished | RankTimes


class Copying(msgspec.Struct, frozen=True, tag=True):
    """From a rank that is going to write to a file of copies: what is there is no longer complete."""

    slot: int


class Copied(msgspec.Struct, frozen=True, tag=True):
    """From a rank that has written its regions of a copy; `ranks`: how many ranks of this host do."""

    generation: int
    step: int
    slot: int
    ranks: int
    regions: TensorRegions


ToAgent = ToSupervisor | Copying | Copied


# What the supervisor of a run lets its agent do.


class StartRank(msgspec.Struct, frozen=True, tag=True):
    """Start a rank as process number `process`; `devices` replaces CUDA_VISIBLE_DEVICES if it is not None.

    On several hosts: `host` is the instance that starts it, as one of `local_ranks`.
    """

    process: int
    rank: int
    ranks: int
    devices: str | None
    host: int = 0
    local_rank: int = 0
    local_ranks: int = 0


class Send(msgspec.Struct, frozen=True, tag=True):
    """Send a message to a process."""

    process: int
    message: ToRank


class SignalRank(msgspec.Struct, frozen=True, tag=True):
    """Send a signal to a process."""

    process: int
    number: int


class Announce(msgspec.Struct, frozen=True, tag=True):
    """Let the back end know that the run can be changed."""


class Answer(msgspec.Struct, frozen=True, tag=True):
    """Answer a request of the back end."""

    answer: ChangeAnswer


class Report(msgspec.Struct, frozen=True, tag=True):
    """Report the progress of the training: finished steps, and the loss and speed of the last ones if known.

    `plan`: the plan in use, if it is not the requested one. `slow`: the rank that holds up the others, if there is one.
    """

    steps: int
    loss: float | None = None
    samples_per_second: float | None = None
    plan: Plan | None = None
    slow: SlowPlace | None = None


class Log(msgspec.Struct, frozen=True, tag=True):
    """Print a line to the log of the run."""

    text: str


class Exit(msgspec.Struct, frozen=True, tag=True):
    """End the agent; all ranks have ended."""

    status: int


Action = StartRank | Send | SignalRank | Announce | Answer | Report | Log | Exit
