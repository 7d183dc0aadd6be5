from .distribution import DurationDistribution as DurationDistribution
from .evaluate import (
    COMPARATORS as COMPARATORS,
    QUANTILE_LEVELS as QUANTILE_LEVELS,
    RECHECK_SECONDS as RECHECK_SECONDS,
    Evaluation as Evaluation,
    PredictorQuantiles as PredictorQuantiles,
    Score as Score,
    evaluate_at_submission as evaluate_at_submission,
    evaluate_while_running as evaluate_while_running,
    pinball_loss as pinball_loss,
    score as score,
)
from .layout import Floats as Floats
from .predictor import (
    FrozenPredictor as FrozenPredictor,
    Predictor as Predictor,
)
from .renewal import is_outdated as is_outdated
