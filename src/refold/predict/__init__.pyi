from .distribution import DurationDistribution as DurationDistribution
from .kernels import Floats as Floats, quantiles as quantiles
from .predictor import Predictor as Predictor
