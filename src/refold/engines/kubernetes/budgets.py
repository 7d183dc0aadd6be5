"""PodDisruptionBudgets: whether the pods of a gang may be evicted, all of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from refold.engines.kubernetes.objects import Metadata, Pod, Requirement

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
    """A PodDisruptionBudget."""

    metadata: Metadata
    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()

    def covers(self, pod: Pod) -> bool:
        """Whether a pod counts for the budget."""
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
