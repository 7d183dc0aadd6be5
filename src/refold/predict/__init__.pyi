from .distribution import DurationDistribution as DurationDistribution
from .kernels import Floats as Floats, times_at as times_at
from .predictor import Predictor as Predictor
