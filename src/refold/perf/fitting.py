"""What was measured corrects what is modelled: a few numbers of a job, fitted to a few of its steps.

A form says how step times follow from numbers (`Form`); fitting is the same for all forms. It is least squares of
logarithms with a pull towards what was believed before, so that seven samples are enough, and one bad sample is not
believed blindly. The same algebra says how sure each number is, how large the error on an unseen sample would be, and
which further sample would tell most.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from refold.errors import BadInput
from refold.perf.measurement import Measurement

Vector = NDArray[np.float64]

NOISE = 0.04
"""How far repeated steps of one plan are apart: about 4 % on shared machines."""

PARTS = 0.2
"""How much a measured part counts beside the step: frameworks draw the line between parts in different places."""

LIKELY = 2.0
"""Errors of more than so many times the noise pull less than their share."""

MOST_LEVERAGE = 0.95
"""A sample that alone decides a number would be anything if left out: its error is given as twenty times larger."""

MOST_OFF = 3.0
"""No error is given as larger than e to this: what is that far off is off."""

NUDGE = 1e-3
"""By which share a value is moved to see what follows."""

THRESHOLD = 0.10
"""A fit whose new measurements are off by more than this, on average, is fitted anew."""


class Parameter(msgspec.Struct, frozen=True):
    """A number that is fitted: what it means, what is believed of it, and how firmly (as a factor e^±width)."""

    name: str
    meaning: str
    start: float
    width: float
    least: float = 1e-9
    most: float = 1e9


class Times(NamedTuple):
    """Seconds of steps, and of the parts that were measured; a part that a form does not tell apart is None."""

    step: Vector
    forward: Vector | None = None
    backward: Vector | None = None
    optimizer: Vector | None = None


class Form(Protocol):
    """How step times follow from a few numbers."""

    name: str
    parameters: tuple[Parameter, ...]

    def predict(self, values: Vector, samples: Sequence[Measurement]) -> Times:
        """Times of the samples' plans, as they would be with these values; what was measured is not looked at."""
        ...


class Fitted(msgspec.Struct, frozen=True):
    """Values of a form's parameters, how sure they are, and the samples they were fitted to.

    `spread` is how far a value may be off, as a factor: 1.1 is ±10 %. `errors` are those of the samples, modelled
    against measured, and `unseen` those that each sample would have had if it had been left out.
    """

    form: str
    model: str
    gpu: str
    values: dict[str, float]
    spread: dict[str, float]
    samples: tuple[Measurement, ...]
    errors: tuple[float, ...]
    unseen: tuple[float, ...]
    engine: str = ""

    @property
    def mean_error(self) -> float:
        """Of the samples it was fitted to."""
        return float(np.mean(np.abs(self.errors)))

    @property
    def unseen_error(self) -> float:
        """Of a sample it was not fitted to."""
        return float(np.mean(np.abs(self.unseen)))


def fit(form: Form, samples: Sequence[Measurement], least: int = 0) -> Fitted:
    """The values with which the form comes nearest to the samples, and to what was believed before.

    Fewer samples than values are refused, unless it is said how many are the least: then beliefs fill the gap.
    """
    ran = _usable(form, samples, least or len(form.parameters))
    values = _solved(form, ran)
    slopes, wide = _slopes(form, values, ran), _widths(form)
    covariance = _covariance(slopes, wide)
    errors = np.exp(_log_errors(form, values, ran)[: len(ran)]) - 1
    hat = np.einsum("ij,jk,ik->i", slopes, covariance, slopes) / NOISE**2
    unseen = np.expm1(np.clip(np.log1p(errors) / (1 - np.minimum(hat, MOST_LEVERAGE)), -MOST_OFF, MOST_OFF))
    names = [parameter.name for parameter in form.parameters]
    return Fitted(
        form.name,
        ran[0].model,
        ran[0].gpu,
        dict(zip(names, values.tolist(), strict=True)),
        dict(zip(names, np.exp(np.sqrt(np.diag(covariance))).tolist(), strict=True)),
        tuple(ran),
        tuple(errors.tolist()),
        tuple(unseen.tolist()),
    )


def values_of(form: Form, fitted: Fitted) -> Vector:
    """The fitted values, in the order of the form's parameters."""
    return np.array([fitted.values[parameter.name] for parameter in form.parameters])


def predict(form: Form, fitted: Fitted, asked: Sequence[Measurement]) -> Vector:
    """Seconds of a step for each of these plans."""
    return form.predict(values_of(form, fitted), asked).step


def errors_of(form: Form, fitted: Fitted, samples: Sequence[Measurement]) -> list[float]:
    """How far it is off on samples that ran, as shares of what was measured."""
    if not samples:
        return []
    return [float(error) for error in predict(form, fitted, samples) / _measured(samples) - 1]


def spread_of(form: Form, fitted: Fitted, asked: Sequence[Measurement]) -> Vector:
    """How far each of those may be off, as a share."""
    values = values_of(form, fitted)
    covariance = _covariance(_slopes(form, values, fitted.samples), _widths(form))
    slopes = _slopes(form, values, asked)
    return np.asarray(np.sqrt(np.einsum("ij,jk,ik->i", slopes, covariance, slopes)))


def most_telling(form: Form, fitted: Fitted, candidates: Sequence[Measurement]) -> Measurement | None:
    """Which of these, if it were measured next, would leave all of them surest."""
    if not candidates:
        return None
    values = values_of(form, fitted)
    covariance = _covariance(_slopes(form, values, fitted.samples), _widths(form))
    return candidates[int(np.argmax(_told(_slopes(form, values, candidates), covariance)))]


def first_samples(form: Form, candidates: Sequence[Measurement], count: int) -> list[int]:
    """Which samples to take before anything is known: one after another that which leaves all candidates surest.

    Only what is believed before is used, and nothing that was measured.
    """
    values = np.array([parameter.start for parameter in form.parameters])
    slopes, wide = _slopes(form, values, candidates), _widths(form)
    chosen: list[int] = []
    while len(chosen) < min(count, len(candidates)):
        told = _told(slopes, _covariance(slopes[chosen], wide))
        told[chosen] = -1.0
        chosen.append(int(np.argmax(told)))
    return chosen


def samples_in_turn(form: Form, candidates: Sequence[Measurement], count: int) -> list[int]:
    """The same, but each is measured, and the form fitted to what was, before the next is chosen."""
    values = np.array([parameter.start for parameter in form.parameters])
    chosen: list[int] = []
    while len(chosen) < min(count, len(candidates)):
        if chosen:
            values = _solved(form, [candidates[index] for index in chosen])
        slopes = _slopes(form, values, candidates)
        told = _told(slopes, _covariance(slopes[chosen], _widths(form)))
        told[chosen] = -1.0
        chosen.append(int(np.argmax(told)))
    return chosen


def keep_up(form: Form, fitted: Fitted, new: Sequence[Measurement], threshold: float = THRESHOLD) -> Fitted:
    """The same fit while it holds; where new measurements are off by more than the threshold, one with them."""
    ran = [one for one in new if one.status == "ok"]
    if not ran:
        return fitted
    off = np.mean(np.abs(errors_of(form, fitted, ran)))
    return fitted if off <= threshold else fit(form, [*fitted.samples, *ran])


def _usable(form: Form, samples: Sequence[Measurement], need: int) -> list[Measurement]:
    """Those that ran; refused where they cannot tell what is asked of them."""
    ran = [sample for sample in samples if sample.status == "ok"]
    if len({(sample.model, sample.gpu) for sample in ran}) > 1:
        names = sorted({f"{sample.model} on {sample.gpu}" for sample in ran})
        raise BadInput(f"samples are of {len(names)} kinds ({', '.join(names)}); fit one model on one type of GPU")
    if len(ran) < need:
        raise BadInput(
            f"{len(ran)} samples cannot tell the {len(form.parameters)} numbers of {form.name!r}; "
            f"measure {need - len(ran)} more"
        )
    kinds = {(one.plan, one.batch, one.sequence, one.gpus_on_node, one.cpus) for one in ran}
    if len(kinds) < 3:
        raise BadInput(
            f"all samples are of {len(kinds)} configurations; vary micro-batches, recomputation, offloading or GPUs, "
            "so that their effects can be told apart"
        )
    return ran


def _solved(form: Form, samples: Sequence[Measurement]) -> Vector:
    from scipy.optimize import least_squares

    start = np.log([parameter.start for parameter in form.parameters])
    bounds = np.log([(parameter.least, parameter.most) for parameter in form.parameters]).T
    wide = _widths(form)

    def residuals(logs: Vector) -> Vector:
        errors = _log_errors(form, np.exp(logs), samples) / NOISE
        return np.concatenate([_softened(errors), (logs - start) / wide])

    best = least_squares(residuals, np.clip(start, bounds[0], bounds[1]), bounds=(bounds[0], bounds[1]), diff_step=1e-4)
    return np.asarray(np.exp(best.x))


def _softened(errors: Vector) -> Vector:
    """As they are while they are likely, and from there on growing like a root."""
    large = np.abs(errors) / LIKELY
    return np.asarray(np.sign(errors) * LIKELY * np.sqrt(2 * (np.sqrt(1 + large**2) - 1)))


def _log_errors(form: Form, values: Vector, samples: Sequence[Measurement]) -> Vector:
    """Logarithms of modelled by measured: steps first, and then whatever parts both have."""
    times = form.predict(values, samples)
    errors = [np.log(times.step / _measured(samples))]
    for part, modelled in (("forward", times.forward), ("backward", times.backward), ("optimizer", times.optimizer)):
        if modelled is None:
            continue
        seen = [getattr(sample, f"{part}_seconds") for sample in samples]
        known = np.array([bool(value) for value in seen])
        share = np.where(known, np.array([value or np.nan for value in seen]) / _measured(samples), 0.0)
        off = np.where(known, np.log(np.maximum(modelled, 1e-12) / np.array([value or 1.0 for value in seen])), 0.0)
        errors.append(PARTS * off * np.sqrt(np.nan_to_num(share)))  # and no more than its share of the step
    return np.concatenate(errors)


def _measured(samples: Sequence[Measurement]) -> Vector:
    return np.array([sample.step_seconds or np.nan for sample in samples])


def _widths(form: Form) -> Vector:
    return np.array([parameter.width for parameter in form.parameters])


def _slopes(form: Form, values: Vector, samples: Sequence[Measurement]) -> Vector:
    """How the logarithm of each step moves with the logarithm of each value."""
    if not len(samples):
        return np.zeros((0, len(values)))
    columns = []
    for index in range(len(values)):
        steps = []
        for move in (NUDGE, -NUDGE):
            at = values.copy()
            at[index] *= exp(move)
            steps.append(np.log(form.predict(at, samples).step))
        columns.append((steps[0] - steps[1]) / (2 * NUDGE))
    return np.stack(columns, axis=1)


def _covariance(slopes: Vector, wide: Vector) -> Vector:
    """How unsure the logarithms of the values are, given these samples and what was believed before."""
    precision = np.diag(1 / wide**2) + slopes.T @ slopes / NOISE**2
    return np.asarray(np.linalg.inv(precision))


def _told(slopes: Vector, covariance: Vector) -> Vector:
    """By how much measuring each of the candidates would shrink the spreads of all of them, added up."""
    shared = slopes @ covariance @ slopes.T
    unsure = np.diag(shared)
    left = unsure[:, None] - shared**2 / (NOISE**2 + unsure[None, :])
    return np.asarray((np.sqrt(unsure)[:, None] - np.sqrt(np.maximum(left, 0.0))).sum(axis=0))


def factor_text(factor: float) -> str:
    """'±8 %' for a factor of 1.08; from a factor of 2 on '× or ÷ 2.4'."""
    return f"±{100 * log(factor):.0f} %" if factor < 2 else f"× or ÷ {factor:.1f}"
