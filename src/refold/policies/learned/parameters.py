"""The parameters of the learned policy, as they are stored in a file."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import msgspec
import numpy as np

from refold.errors import BadValue, UnknownName
from refold.model import Seconds
from refold.policies.learned.arrays import Weights
from refold.policies.learned.scores import FEATURES

MAX_HIDDEN_UNITS = 16


class HiddenUnit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A hidden unit: tanh of a weighted sum of features and a bias, multiplied by its weight in the score."""

    features: dict[str, float]
    bias: float
    output: float

    def __post_init__(self) -> None:
        _check_features(self.features)


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Weights of the features in the score (the lowest score is the most urgent), and the rules of a round.

    `preemption_margin`: by how much the score of a run must exceed that of a job that preempts it. `patience_seconds`:
    delay from which a job goes first. `protection`: for how many restart costs, times its number of starts, a run is
    not preempted. `trained_on`: how the parameters were found, for people.
    """

    features: dict[str, float]
    preemption_margin: float
    patience_seconds: Seconds
    protection: float
    hidden: tuple[HiddenUnit, ...] = ()
    trained_on: str = ""

    def __post_init__(self) -> None:
        _check_features(self.features)
        for name in ("preemption_margin", "patience_seconds", "protection"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise BadValue(f"{name} is {getattr(self, name)}, expected a number ≥ 0")
        if len(self.hidden) > MAX_HIDDEN_UNITS:
            raise BadValue(f"hidden has {len(self.hidden)} units, expected at most {MAX_HIDDEN_UNITS}")

    @staticmethod
    def from_settings(settings: Parameters | Mapping[str, Any]) -> Parameters:
        """Return parameters that are given as such, or as the contents of a file."""
        if isinstance(settings, Parameters):
            return settings
        try:
            return msgspec.convert(settings, Parameters)
        except msgspec.ValidationError as error:
            raise BadValue(f"weights of the learned policy: {error}") from error

    def weights(self) -> Weights:
        """Return the arrays for the compiled round."""
        units = [[*_vector(unit.features), unit.bias] for unit in self.hidden]
        return Weights(
            np.array(_vector(self.features)),
            np.array(units).reshape(len(units), len(FEATURES) + 1),
            np.array([unit.output for unit in self.hidden], dtype=np.float64),
            np.array([self.preemption_margin, self.patience_seconds, self.protection]),
        )


def _vector(features: Mapping[str, float]) -> list[float]:
    return [float(features.get(name, 0.0)) for name in FEATURES]


def _check_features(features: Mapping[str, float]) -> None:
    for name, value in features.items():
        if name not in FEATURES:
            raise UnknownName("feature", name, FEATURES)
        if not isfinite(value):
            raise BadValue(f"the weight of feature {name} is {value}, expected a finite number")
