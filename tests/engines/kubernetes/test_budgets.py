"""PodDisruptionBudgets: whether a gang may be evicted as a whole."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from kubernetes_objects import make_pod

from refold.engines.kubernetes.run_steps import DisruptionBudget, blocking_budget


def budget(selector: dict[str, Any] | None, allowed: int) -> DisruptionBudget:
    fields = {
        "metadata": {"name": "keep"},
        "spec": {} if selector is None else {"selector": selector},
        "status": {"disruptionsAllowed": allowed},
    }
    return msgspec.convert(fields, DisruptionBudget)


GANG = [make_pod("a-0", labels={"app": "a"}), make_pod("a-1", labels={"app": "a"})]


@pytest.mark.parametrize(
    ("selector", "allowed", "blocks"),
    [
        ({"matchLabels": {"app": "a"}}, 2, False),
        ({"matchLabels": {"app": "a"}}, 1, True),
        ({"matchLabels": {"app": "b"}}, 0, False),
        ({}, 1, True),
        (None, 0, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["a", "c"]}]}, 0, True),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["a"]}]}, 0, False),
        ({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, 0, True),
        ({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, 0, False),
    ],
)
def test_a_budget_must_allow_to_evict_all_pods_of_a_gang(
    selector: dict[str, Any] | None, allowed: int, blocks: bool
) -> None:
    assert blocking_budget([budget(selector, allowed)], GANG) == ("keep" if blocks else "")
