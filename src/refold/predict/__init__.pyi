from .distribution import DurationDistribution as DurationDistribution, bin_edges as bin_edges
from .layout import Floats as Floats
from .predictor import Predictor as Predictor
from .renewal import is_outdated as is_outdated
from .survival import quantiles as quantiles
