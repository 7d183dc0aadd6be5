from .distribution import DurationDistribution as DurationDistribution
from .layout import Floats as Floats
from .predictor import (
    FrozenPredictor as FrozenPredictor,
    Predictor as Predictor,
)
from .renewal import is_outdated as is_outdated
