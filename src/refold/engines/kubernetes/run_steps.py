"""The steps of a run of a gang, and the answers to them: what `run_state` says and `gang_run` does."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from refold.core import RunFailed, RunFinished, RunStopped
from refold.engines.kubernetes.objects import Metadata, Pod, Requirement
from refold.engines.kubernetes.owner_specs import OwnerState
from refold.engines.kubernetes.pod_states import PodTarget
from refold.model import Seconds

# PodDisruptionBudgets: whether the pods of a gang may be evicted, all of them.

PATH = "/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"


class _BudgetObject(msgspec.Struct, frozen=True, rename="camel"):
    pass


class LabelSelector(_BudgetObject, frozen=True):
    """Selects objects by their labels; an empty selector selects all."""

    match_labels: dict[str, str] = {}
    match_expressions: list[Requirement] = []

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is selected."""
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            requirement.is_met(labels) for requirement in self.match_expressions
        )


class BudgetSpec(_BudgetObject, frozen=True):
    """The pods that a budget is about."""

    selector: LabelSelector | None = None


class BudgetStatus(_BudgetObject, frozen=True):
    """How many of its pods may be evicted now."""

    disruptions_allowed: int = 0


class DisruptionBudget(_BudgetObject, frozen=True):
    metadata: Metadata
    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()

    def covers(self, pod: Pod) -> bool:
        selector = self.spec.selector
        return selector is not None and selector.matches(pod.metadata.labels)


def blocking_budget(budgets: Collection[DisruptionBudget], pods: Collection[Pod]) -> str:
    """Return the name of a budget that forbids to evict all of these pods, which are in its namespace; '' if none does.

    A gang is evicted as a whole: a part of it would be of no use, and would keep its GPUs.
    """
    for budget in budgets:
        if sum(budget.covers(pod) for pod in pods) > budget.status.disruptions_allowed:
            return budget.metadata.name
    return ""


# The steps of a run of a gang, and the answers to them: what `run_state` says and `gang_run` does.

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


class AskKubelet(NamedTuple):
    """Read the latest warning about a pod that does not start."""

    pod: Pod


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
    end: RunEnd


OwnerStep = AskOwner | ResumeOwner | SuspendOwner
GangStep = OwnerStep | BindPods | AskKubelet | AskBudgets | RemovePods | PauseSteps | ReportStart | ReportEnd


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


class KubeletSaid(NamedTuple):
    """The latest warning, or ''."""

    warning: str


class OwnerSuspended(NamedTuple):
    accepted: bool


class PodsRemoved(NamedTuple):
    """The request, and the pods of which the removal was accepted, by uid."""

    step: RemovePods
    accepted: frozenset[str]


class Unchanged(NamedTuple):
    """The time of a pause is over, and no pod has changed."""


GangAnswer = OwnerRead | PodsBound | NoRoom | KubeletSaid | BudgetsRead | OwnerSuspended | PodsRemoved | Unchanged
