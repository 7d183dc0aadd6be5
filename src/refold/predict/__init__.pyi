from .distribution import DurationDistribution as DurationDistribution, bin_edges as bin_edges
from .kernels import Floats as Floats, quantiles as quantiles
from .numbered import (
    NumberedPredictor as NumberedPredictor,
    expected_survival as expected_survival,
    finish_numbered as finish_numbered,
    quantile_beyond as quantile_beyond,
    submit_numbered as submit_numbered,
)
from .predictor import Predictor as Predictor
from .renewal import is_outdated as is_outdated
