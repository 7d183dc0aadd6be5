"""The steps of a run of a gang, and the answers to them: what `run_state` says and `gang_run` does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from refold.core import RunFailed, RunFinished, RunStopped
from refold.engines.kubernetes.budgets import DisruptionBudget
from refold.engines.kubernetes.objects import Pod
from refold.engines.kubernetes.owner_specs import OwnerState
from refold.engines.kubernetes.pod_states import PodTarget
from refold.model import Seconds

RunEnd = RunFinished | RunFailed | RunStopped


# Steps. All but the reports have an answer, which is among the next facts.


class AskOwner(NamedTuple):
    """Read the state of the object that creates the pods."""


class ResumeOwner(NamedTuple):
    """Let the object create pods; with a number, that many of them."""

    pods: int | None


class BindPods(NamedTuple):
    """Bind pods, if there is room for all of them."""

    targets: Sequence[PodTarget]


class AskBudgets(NamedTuple):
    """Read the PodDisruptionBudgets."""


class SuspendOwner(NamedTuple):
    """Suspend the object: its controller ends the pods, and does not count them as failed."""

    note: str


class RemovePods(NamedTuple):
    """Evict pods, or delete them."""

    pods: Sequence[Pod]
    grace: Seconds
    evict: bool


class PauseSteps(NamedTuple):
    """Wait until a pod changes, or for some time. `budget`: the PodDisruptionBudget that is waited for."""

    seconds: Seconds | None = None
    budget: str = ""


class ReportStart(NamedTuple):
    """Report that the run has started."""


class ReportEnd(NamedTuple):
    """Report the end of the run."""

    end: RunEnd


GangStep = (
    AskOwner | ResumeOwner | BindPods | AskBudgets | SuspendOwner | RemovePods | PauseSteps | ReportStart | ReportEnd
)


# Answers to steps.


class OwnerRead(NamedTuple):
    """The object; None if it does not exist any more."""

    state: OwnerState | None


class PodsBound(NamedTuple):
    """Why a pod could not be bound, or ''; and the pods of which it is unknown whether they were bound."""

    problem: str = ""
    uncertain: Sequence[Pod] = ()


class NoRoom(NamedTuple):
    """No pod was bound: there is no room for all of them, or a node has changed since it was chosen (`lasting`)."""

    problem: str
    lasting: bool = False


class BudgetsRead(NamedTuple):
    """The PodDisruptionBudgets of the namespace."""

    budgets: Sequence[DisruptionBudget]


class OwnerSuspended(NamedTuple):
    """Whether the object was suspended."""

    accepted: bool


class PodsRemoved(NamedTuple):
    """The request, and the pods of which the removal was accepted, by uid."""

    step: RemovePods
    accepted: frozenset[str]


class Unchanged(NamedTuple):
    """The time of a pause is over, and no pod has changed."""


GangAnswer = OwnerRead | PodsBound | NoRoom | BudgetsRead | OwnerSuspended | PodsRemoved | Unchanged
