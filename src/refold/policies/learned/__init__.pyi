from .arrays import (
    REVIEW_SECONDS as REVIEW_SECONDS,
    STARTS as STARTS,
    STOPS as STOPS,
    JobColumns as JobColumns,
    RoundLimits as RoundLimits,
    RoundResult as RoundResult,
    RunColumns as RunColumns,
    Shares as Shares,
    Weights as Weights,
)
from .columns import (
    Expectations as Expectations,
    job_columns as job_columns,
    share_rows as share_rows,
)
from .learned import Learned as Learned
from .parameters import HiddenUnit as HiddenUnit, Parameters as Parameters
from .placing import add_rows as add_rows
from .round import plan_round as plan_round
from .scores import FEATURES as FEATURES
