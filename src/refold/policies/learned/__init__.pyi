from .columns import (
    Expectations as Expectations,
    job_columns as job_columns,
    placement_rule as placement_rule,
    share_rows as share_rows,
)
from .kernels import (
    FEATURES as FEATURES,
    STARTS as STARTS,
    STOPS as STOPS,
    FreeArrays as FreeArrays,
    JobColumns as JobColumns,
    PlacementRule as PlacementRule,
    RoundLimits as RoundLimits,
    RoundResult as RoundResult,
    RunColumns as RunColumns,
    Shares as Shares,
    Weights as Weights,
    add_rows as add_rows,
    plan_round as plan_round,
)
from .learned import REVIEW_SECONDS as REVIEW_SECONDS, Learned as Learned
from .parameters import HiddenUnit as HiddenUnit, Parameters as Parameters
