"""Which plans a training framework can run: those that use only features that it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refold.model import Plan
from refold.planning.perf import FULL, SELECTIVE, Engine, PlanColumns, PlanFeature, plans_to_columns

USES: dict[PlanFeature, Callable[[PlanColumns], Any]] = {
    "tensor": lambda plans: plans.tensor > 1,
    "sequence": lambda plans: plans.sequence_parallel > 0,
    "pipeline": lambda plans: plans.pipeline > 1,
    "interleave": lambda plans: plans.interleave > 1,
    "context": lambda plans: plans.context > 1,
    "expert": lambda plans: plans.expert > 1,
    "zero-1": lambda plans: plans.zero == 1,
    "zero-2": lambda plans: plans.zero == 2,
    "zero-3": lambda plans: plans.zero == 3,
    "replicate": lambda plans: plans.replicate > 1,
    "offload": lambda plans: plans.offload > 0,
    "selective": lambda plans: plans.recompute == SELECTIVE,
    "full": lambda plans: plans.recompute == FULL,
}
"""Whether plans use a feature."""

NAMES: dict[PlanFeature, str] = {
    "tensor": "tensor parallelism",
    "sequence": "sequence parallelism",
    "pipeline": "pipeline stages",
    "interleave": "interleaved stages",
    "context": "context parallelism",
    "expert": "expert parallelism",
    "zero-1": "ZeRO-1",
    "zero-2": "ZeRO-2",
    "zero-3": "ZeRO-3",
    "replicate": "hybrid sharding",
    "offload": "offload",
    "selective": "selective recomputation",
    "full": "full recomputation",
}
"""Names of features in messages."""


def lacking_features(engine: Engine) -> list[PlanFeature]:
    """Return the features that a framework does not have."""
    return [feature for feature in USES if engine.runs and feature not in engine.runs]


def cannot_run(engine: Engine, plans: PlanColumns) -> NDArray[np.bool_]:
    """Return which of the plans a framework cannot run."""
    used = [USES[feature](plans) for feature in lacking_features(engine)]
    return np.asarray(np.logical_or.reduce([np.zeros(len(plans), bool), *used]))


def cannot_run_reason(engine: Engine, plan: Plan) -> str:
    """Return why a framework cannot run a plan."""
    plans = plans_to_columns([plan])
    missing = [NAMES[feature] for feature in lacking_features(engine) if USES[feature](plans)[0]]
    return f"{engine.name} has no {', '.join(missing)}"
