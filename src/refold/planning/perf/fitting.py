"""Fit the parameters of a performance model to a few measured steps of a job.

A `Form` computes step times from parameters; fitting is the same for all forms: least squares of logarithms with a
prior, so that seven samples suffice, and with a robust loss, so that one bad sample does little harm. The same algebra
gives the uncertainty of each parameter, the error on an unseen sample, and the most informative next sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, sqrt
from typing import Literal, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from refold.errors import BadInput
from refold.planning.perf.measurement import Measurement

Vector = NDArray[np.float64]

MEASUREMENT_NOISE = 0.04
"""Relative spread of repeated steps of one plan: about 4 % on shared machines."""

PART_WEIGHT = 0.2
"""Weight of a measured part relative to the step: frameworks separate the parts at different points."""

SIGNIFICANT_DEVIATIONS = 1.5
"""Standard deviations of a mean gain that are no chance. Of 99 fits to seven random samples of nine published sets, 8
were worse than none by more than the noise of 1.5 % without this condition, and 2 with it."""

OUTLIER_NOISES = 2.0
"""Errors of more than this many times the noise are damped as outliers."""

MAX_LEVERAGE = 0.95
"""Maximum leverage of a sample: one that alone determines a parameter would be arbitrary if left out. At this limit the
error counts twenty times."""

MAX_LOG_ERROR = 3.0
"""Reported errors are limited to a factor of e to this."""

RELATIVE_STEP = 1e-3
"""Relative step of the finite differences."""

MIN_CONFIGURATIONS = 3
"""Samples of fewer configurations determine no parameters."""

FitKind = Literal["full", "factor", "none"]
"""All parameters, one common factor on all times, or none: the model as it is."""

REFIT_THRESHOLD = 0.10
"""A fit is repeated if new measurements are off by more than this on average."""


class Parameter(msgspec.Struct, frozen=True):
    """A fitted parameter: its meaning, start value (median of the prior), and the width of the prior as e^±width.

    `is_time`: a part of the step time is proportional to it.
    """

    name: str
    meaning: str
    start: float
    width: float
    minimum: float = 1e-9
    maximum: float = 1e9
    is_time: bool = True


class PhaseTimes(NamedTuple):
    """Seconds of steps and of their phases; None for a phase that a form does not model."""

    step: Vector
    forward: Vector | None = None
    backward: Vector | None = None
    optimizer: Vector | None = None


class Form(Protocol):
    """A parametric model of step times."""

    name: str
    parameters: tuple[Parameter, ...]

    def predict(self, values: Vector, samples: Sequence[Measurement]) -> PhaseTimes:
        """Return the modelled times of the samples' plans with these parameter values; measurements are ignored."""


class Fitted(msgspec.Struct, frozen=True):
    """Fitted parameter values of a form, their uncertainty, and the samples they were fitted to.

    `spread` is the uncertainty of a value as a factor: 1.1 is ±10 %. `errors` are the relative errors of the samples
    (modelled against measured), and `unseen` those with the sample left out of the fit. `kind`: what was fitted.
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
    kind: FitKind = "full"

    @property
    def mean_error(self) -> float:
        return float(np.mean(np.abs(self.errors)))

    @property
    def unseen_error(self) -> float:
        """Mean absolute error on samples left out of the fit."""
        return float(np.mean(np.abs(self.unseen)))


def fit(form: Form, samples: Sequence[Measurement], min_samples: int = 0) -> Fitted:
    """Fit a form to the samples and to the priors of its parameters.

    Fewer samples than parameters are rejected, unless `min_samples` is smaller; the priors then determine the rest.
    """
    usable = _usable_samples(form, samples, min_samples or len(form.parameters))
    values = _solve(form, usable)
    slopes, widths = _slopes(form, values, usable), _widths(form)
    covariance = _covariance(slopes, widths)
    errors = np.exp(_log_errors(form, values, usable)[: len(usable)]) - 1
    hat = np.einsum("ij,jk,ik->i", slopes, covariance, slopes) / MEASUREMENT_NOISE**2
    unseen = np.expm1(np.clip(np.log1p(errors) / (1 - np.minimum(hat, MAX_LEVERAGE)), -MAX_LOG_ERROR, MAX_LOG_ERROR))
    names = [parameter.name for parameter in form.parameters]
    return Fitted(
        form.name,
        usable[0].model,
        usable[0].gpu,
        dict(zip(names, values.tolist(), strict=True)),
        dict(zip(names, np.exp(np.sqrt(np.diag(covariance))).tolist(), strict=True)),
        tuple(usable),
        tuple(errors.tolist()),
        tuple(unseen.tolist()),
    )


def fit_as_far_as_useful(form: Form, samples: Sequence[Measurement]) -> Fitted:
    """Fit all parameters, one common factor, or none: the simplest whose error on samples left out is as small.

    The form's parameters are corrections, 1 for the model as it is. More is fitted if the error becomes smaller by more
    than the noise of a mean of so many samples, and by more than chance: otherwise a few samples often do harm.
    """
    full = fit(form, samples)
    chosen = _with_factor(form, full, "none")
    for fuller in (_with_factor(form, full, "factor"), full):
        gains = np.abs(chosen.unseen) - np.abs(fuller.unseen)
        root = sqrt(len(gains))
        if gains.mean() > max(MEASUREMENT_NOISE / root, SIGNIFICANT_DEVIATIONS * gains.std(ddof=1) / root):
            chosen = fuller
    return chosen


def _with_factor(form: Form, full: Fitted, kind: FitKind) -> Fitted:
    """Return the fit with a common factor on all times, the median of the samples, or with none."""
    start = np.array([parameter.start for parameter in form.parameters])
    logs = _log_errors(form, start, full.samples)[: len(full.samples)]
    others = [np.delete(logs, index) for index in range(len(logs))]
    factor, left_out = 0.0, np.zeros(len(logs))
    if kind == "factor":
        factor, left_out = -float(np.median(logs)), np.array([-float(np.median(rest)) for rest in others])
    values = {one.name: exp(factor) if one.is_time else one.start for one in form.parameters}
    spread = dict.fromkeys(values, exp(MEASUREMENT_NOISE / sqrt(len(logs))) if kind == "factor" else 1.0)
    return msgspec.structs.replace(
        full,
        values=values,
        spread=spread,
        errors=tuple(np.expm1(logs + factor).tolist()),
        unseen=tuple(np.expm1(logs + left_out).tolist()),
        kind=kind,
    )


def values_of(form: Form, fitted: Fitted) -> Vector:
    """Return the fitted values in the order of the form's parameters."""
    return np.array([fitted.values[parameter.name] for parameter in form.parameters])


def predict(form: Form, fitted: Fitted, queries: Sequence[Measurement]) -> Vector:
    """Return the modelled step time of each query."""
    return form.predict(values_of(form, fitted), queries).step


def relative_errors(form: Form, fitted: Fitted, samples: Sequence[Measurement]) -> list[float]:
    """Return the relative errors on measured samples."""
    if not samples:
        return []
    return [float(error) for error in predict(form, fitted, samples) / _measured(samples) - 1]


def most_informative_sample(form: Form, fitted: Fitted, candidates: Sequence[Measurement]) -> Measurement | None:
    """Return the candidate whose measurement would reduce the uncertainty of all candidates most."""
    if not candidates:
        return None
    values = values_of(form, fitted)
    covariance = _covariance(_slopes(form, values, fitted.samples), _widths(form))
    return candidates[int(np.argmax(_information(_slopes(form, values, candidates), covariance)))]


def choose_initial_samples(form: Form, candidates: Sequence[Measurement], count: int) -> list[int]:
    """Choose the samples to measure first: greedily, the one that reduces the uncertainty of all candidates most.

    Uses only the priors, no measurements. Returns indices.
    """
    values = np.array([parameter.start for parameter in form.parameters])
    slopes, widths = _slopes(form, values, candidates), _widths(form)
    chosen: list[int] = []
    while len(chosen) < min(count, len(candidates)):
        information = _information(slopes, _covariance(slopes[chosen], widths))
        information[chosen] = -1.0
        chosen.append(int(np.argmax(information)))
    return chosen


def choose_samples_adaptively(form: Form, candidates: Sequence[Measurement], count: int) -> list[int]:
    """Choose samples one by one; the form is refitted to the measured ones before the next is chosen."""
    values = np.array([parameter.start for parameter in form.parameters])
    chosen: list[int] = []
    while len(chosen) < min(count, len(candidates)):
        if chosen:
            values = _solve(form, [candidates[index] for index in chosen])
        slopes = _slopes(form, values, candidates)
        information = _information(slopes, _covariance(slopes[chosen], _widths(form)))
        information[chosen] = -1.0
        chosen.append(int(np.argmax(information)))
    return chosen


def refit_if_needed(form: Form, fitted: Fitted | None, samples: Sequence[Measurement]) -> Fitted | None:
    """Return the same fit, or a new one to these samples if there is none or its mean error is too large.

    None: samples of fewer than three configurations, which determine no parameters.
    """
    if fitted is not None and np.mean(np.abs(relative_errors(form, fitted, samples))) <= REFIT_THRESHOLD:
        return fitted
    return fit(form, samples, MIN_CONFIGURATIONS) if _count_configurations(samples) >= MIN_CONFIGURATIONS else None


def _usable_samples(form: Form, samples: Sequence[Measurement], min_samples: int) -> list[Measurement]:
    """Return the samples that ran; raise `BadInput` if they do not determine the parameters."""
    completed = [sample for sample in samples if sample.status == "ok"]
    if len({(sample.model, sample.gpu) for sample in completed}) > 1:
        names = sorted({f"{sample.model} on {sample.gpu}" for sample in completed})
        raise BadInput(f"samples of {len(names)} kinds ({', '.join(names)}); expected one model on one GPU type")
    if len(completed) < min_samples:
        raise BadInput(
            f"{len(completed)} samples are too few for the {len(form.parameters)} parameters of {form.name!r}; "
            f"measure {min_samples - len(completed)} more"
        )
    configurations = _count_configurations(completed)
    if configurations < MIN_CONFIGURATIONS:
        raise BadInput(
            f"the samples have only {configurations} different configurations, expected at least {MIN_CONFIGURATIONS}; "
            "vary micro-batches, recomputation, offloading or GPUs"
        )
    return completed


def _count_configurations(samples: Sequence[Measurement]) -> int:
    return len({(sample.plan, sample.batch, sample.sequence, sample.gpus_on_node, sample.cpus) for sample in samples})


def _solve(form: Form, samples: Sequence[Measurement]) -> Vector:
    from scipy.optimize import least_squares

    start = np.log([parameter.start for parameter in form.parameters])
    bounds = np.log([(parameter.minimum, parameter.maximum) for parameter in form.parameters]).T
    widths = _widths(form)

    def residuals(logs: Vector) -> Vector:
        errors = _log_errors(form, np.exp(logs), samples) / MEASUREMENT_NOISE
        return np.concatenate([_damp_outliers(errors), (logs - start) / widths])

    best = least_squares(residuals, np.clip(start, bounds[0], bounds[1]), bounds=(bounds[0], bounds[1]), diff_step=1e-4)
    return np.asarray(np.exp(best.x))


def _damp_outliers(errors: Vector) -> Vector:
    """Return the errors, growing only with the square root beyond the outlier threshold."""
    large = np.abs(errors) / OUTLIER_NOISES
    return np.asarray(np.sign(errors) * OUTLIER_NOISES * np.sqrt(2 * (np.sqrt(1 + large**2) - 1)))


def _log_errors(form: Form, values: Vector, samples: Sequence[Measurement]) -> Vector:
    """Return log(modelled / measured): steps first, then the phases that are both modelled and measured."""
    times = form.predict(values, samples)
    errors = [np.log(times.step / _measured(samples))]
    for part, modelled in (("forward", times.forward), ("backward", times.backward), ("optimizer", times.optimizer)):
        if modelled is None:
            continue
        measured = [getattr(sample, f"{part}_seconds") for sample in samples]
        is_measured = np.array([bool(value) for value in measured])
        share = np.where(is_measured, np.array([value or np.nan for value in measured]) / _measured(samples), 0.0)
        error = np.where(
            is_measured, np.log(np.maximum(modelled, 1e-12) / np.array([value or 1.0 for value in measured])), 0.0
        )
        errors.append(PART_WEIGHT * error * np.sqrt(np.nan_to_num(share)))  # weighted by its share of the step
    return np.concatenate(errors)


def _measured(samples: Sequence[Measurement]) -> Vector:
    return np.array([sample.step_seconds or np.nan for sample in samples])


def _widths(form: Form) -> Vector:
    return np.array([parameter.width for parameter in form.parameters])


def _slopes(form: Form, values: Vector, samples: Sequence[Measurement]) -> Vector:
    """Return the derivatives of the log step times by the log values."""
    if not len(samples):
        return np.zeros((0, len(values)))
    columns = []
    for index in range(len(values)):
        steps = []
        for step in (RELATIVE_STEP, -RELATIVE_STEP):
            at = values.copy()
            at[index] *= exp(step)
            steps.append(np.log(form.predict(at, samples).step))
        columns.append((steps[0] - steps[1]) / (2 * RELATIVE_STEP))
    return np.stack(columns, axis=1)


def _covariance(slopes: Vector, widths: Vector) -> Vector:
    """Return the covariance of the log values, given samples with these slopes and the priors."""
    precision = np.diag(1 / widths**2) + slopes.T @ slopes / MEASUREMENT_NOISE**2
    return np.asarray(np.linalg.inv(precision))


def _information(slopes: Vector, covariance: Vector) -> Vector:
    """Return by how much a measurement of each candidate would reduce the summed uncertainty of all candidates."""
    covariances = slopes @ covariance @ slopes.T
    variance = np.diag(covariances)
    remaining = variance[:, None] - covariances**2 / (MEASUREMENT_NOISE**2 + variance[None, :])
    return np.asarray((np.sqrt(variance)[:, None] - np.sqrt(np.maximum(remaining, 0.0))).sum(axis=0))


def format_uncertainty(factor: float) -> str:
    """Format an uncertainty factor: '±8 %' for 1.08; from 2 on '× or ÷ 2.4'."""
    return f"±{100 * log(factor):.0f} %" if factor < 2 else f"× or ÷ {factor:.1f}"
