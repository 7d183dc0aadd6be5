"""How long a job will last, as a distribution, from history and progress."""

from refold.predict.lasting import Lasting
from refold.predict.predictor import Predictor

__all__ = ["Lasting", "Predictor"]
