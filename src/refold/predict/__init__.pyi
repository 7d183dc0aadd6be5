from .distribution import DurationDistribution as DurationDistribution, bin_edges as bin_edges
from .kernels import Floats as Floats, quantiles as quantiles
from .predictor import Predictor as Predictor
from .renewal import is_outdated as is_outdated
