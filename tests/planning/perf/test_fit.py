"""Fits of the performance model to measurements."""

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from refold.errors import BadInput
from refold.model.plan import Plan
from refold.planning.catalogue import find_engine, find_gpu, find_model
from refold.planning.perf.fitting import (
    Fitted,
    Parameter,
    PhaseTimes,
    Vector,
    choose_initial_samples,
    fit,
    fit_as_far_as_useful,
    format_uncertainty,
    most_informative_sample,
    predict,
    refit_if_needed,
    relative_errors,
)
from refold.planning.perf.forms import CorrectedForm, RubickForm
from refold.planning.perf.hardware import Machines
from refold.planning.perf.measurement import Measurement
from refold.planning.perf.training_setup import TrainingSetup

GPU, ENGINE, MODEL = find_gpu("A100-80GB"), find_engine("pytorch"), find_model("bert-large")

PLANS = [
    Plan(1),
    Plan(1, accumulation=4),
    Plan(1, recompute="full"),
    Plan(1, offload=True),
    Plan(8, zero=2),
    Plan(8),
    Plan(8, zero=2, accumulation=4),
    Plan(8, zero=2, offload=True),
    Plan(16, zero=1),
    Plan(16),
    Plan(2, 8, 1, accumulation=2),
]


def sample(plan: Plan, seconds: float = 1.0, **changes: object) -> Measurement:
    nodes = (plan.gpus,) if plan.gpus <= 8 else (8,) * (plan.gpus // 8)
    measurement = Measurement("bert-large", "A100-80GB", nodes, plan, 256, 512, 4.0 * plan.gpus, seconds)
    return msgspec.structs.replace(measurement, **changes)


def setup_for(measurement: Measurement) -> TrainingSetup:
    machines = Machines(GPU, measurement.gpus_on_node, GPU.link, GPU.link, measurement.cpus)
    return TrainingSetup(MODEL, machines, ENGINE, measurement.batch, measurement.sequence)


FORM = CorrectedForm(setup_for)


def measured(values: Sequence[float], plans: Sequence[Plan] = PLANS) -> list[Measurement]:
    """Samples generated with these corrections."""
    queries = [sample(plan) for plan in plans]
    times = FORM.predict(np.array(values), queries)
    assert times.optimizer is not None
    return [
        msgspec.structs.replace(measurement, step_seconds=float(step), optimizer_seconds=float(update))
        for measurement, step, update in zip(queries, times.step, times.optimizer, strict=True)
    ]


def test_true_corrections_are_recovered() -> None:
    truth = [1.3, 1.0, 1.0, 1.0, 2.0, 1.5, 0.7]
    fitted = fit(FORM, measured(truth))
    for name, value in zip(fitted.values, truth, strict=True):
        assert abs(np.log(fitted.values[name] / value)) < 2 * np.log(fitted.spread[name]), name
    assert fitted.mean_error < 0.02
    assert fitted.values["compute"] == pytest.approx(1.3, rel=0.03)
    assert fitted.values["host"] < 0.85  # a small part of these steps: only partly corrected


def test_samples_as_modelled_give_no_corrections() -> None:
    fitted = fit(FORM, measured([1.0] * 7))
    assert list(fitted.values.values()) == pytest.approx([1.0] * 7, rel=1e-3)


def test_parameters_without_samples_keep_their_prior() -> None:
    single_gpu = [plan for plan in PLANS if plan.gpus == 1] + [Plan(1, accumulation=a) for a in (2, 8, 16)]
    fitted = fit(FORM, measured([1.2] + [1.0] * 6, single_gpu))
    assert fitted.values["network"] == pytest.approx(1.0)
    assert fitted.spread["network"] == pytest.approx(np.exp(0.5))


def test_one_outlier_does_not_distort_the_fit() -> None:
    good = measured([1.2] + [1.0] * 6)
    bad = msgspec.structs.replace(good[0], step_seconds=5 * (good[0].step_seconds or 0.0), optimizer_seconds=None)
    fitted = fit(FORM, [bad, *good[1:]])
    assert np.abs(fitted.errors[1:]).max() < 0.12
    assert fitted.errors[0] < -0.7


def test_the_unseen_error_equals_leave_one_out_cross_validation() -> None:
    noise = np.random.default_rng(1).normal(0, 0.02, len(PLANS))
    samples = [
        msgspec.structs.replace(
            measurement, step_seconds=(measurement.step_seconds or 0.0) * float(np.exp(error)), optimizer_seconds=None
        )
        for measurement, error in zip(measured([1.1] + [1.0] * 6), noise, strict=True)
    ]
    fitted = fit(FORM, samples)
    for index in (0, 3, 6):
        measurement, others = samples[index], fit(FORM, samples[:index] + samples[index + 1 :])
        assert fitted.unseen[index] == pytest.approx(relative_errors(FORM, others, [measurement])[0], abs=0.012)


def test_the_next_sample_reduces_uncertainty_most() -> None:
    single_gpu = [plan for plan in PLANS if plan.gpus == 1] + [Plan(1, accumulation=a) for a in (2, 8, 16)]
    fitted = fit(FORM, measured([1.0] * 7, single_gpu))
    queries = [sample(Plan(1, accumulation=32)), sample(Plan(16)), sample(Plan(1, recompute="full", accumulation=2))]
    assert most_informative_sample(FORM, fitted, queries) == queries[1]
    assert most_informative_sample(FORM, fitted, []) is None


def test_initial_samples_are_chosen_without_measurements() -> None:
    candidates = measured([1.0] * 7)
    chosen = choose_initial_samples(FORM, candidates, 7)
    assert len(set(chosen)) == 7
    others = [
        msgspec.structs.replace(measurement, step_seconds=3.0, optimizer_seconds=None) for measurement in candidates
    ]
    assert choose_initial_samples(FORM, others, 7) == chosen


def test_a_fit_is_repeated_only_if_new_measurements_differ() -> None:
    samples = measured([1.0] * 7)
    fitted = fit(FORM, samples)
    assert refit_if_needed(FORM, fitted, samples[:3]) is fitted
    slower = measured([1.5] + [1.0] * 6)
    refitted = refit_if_needed(FORM, fitted, slower)
    assert refitted is not None
    assert refitted.samples == tuple(slower)
    assert refitted.values["compute"] > 1.1


def test_a_first_fit_needs_three_configurations() -> None:
    samples = measured([1.5] + [1.0] * 6)
    assert refit_if_needed(FORM, None, samples[:2]) is None
    fitted = refit_if_needed(FORM, None, samples[:3])
    assert fitted is not None
    assert fitted.values["compute"] > 1.1


def test_a_fit_round_trips_through_json() -> None:
    fitted = fit(FORM, measured([1.1] + [1.0] * 6))
    again = msgspec.json.decode(msgspec.json.encode(fitted), type=Fitted)
    assert again == fitted
    assert predict(FORM, again, fitted.samples) == pytest.approx(predict(FORM, fitted, fitted.samples))


@pytest.mark.parametrize(
    ("samples", "problem"),
    [
        (measured([1.0] * 7)[:6], "6 samples are too few for the 7 parameters of 'corrected'; measure 1 more"),
        (
            [sample(Plan(1))] * 9,
            "the samples have only 1 different configurations, expected at least 3; vary micro-batches",
        ),
        (
            [*measured([1.0] * 7), sample(Plan(1), gpu="H100-80GB")],
            "2 kinds (bert-large on A100-80GB, bert-large on H100-80GB); expected one model on one GPU type",
        ),
        ([sample(Plan(1), status="oom", step_seconds=None)] * 9, "0 samples are too few"),
    ],
)
def test_insufficient_samples_are_rejected(samples: list[Measurement], problem: str) -> None:
    with pytest.raises(BadInput) as raised:
        fit(FORM, samples)
    assert problem in str(raised.value)


class Line:
    """step = slope × batch: a form with one parameter and a closed-form fit."""

    name = "line"
    parameters: tuple[Parameter, ...] = (Parameter("slope", "seconds per sample", 1.0, 1e6),)

    def predict(self, values: Vector, samples: Sequence[Measurement]) -> PhaseTimes:
        return PhaseTimes(values[0] * np.array([measurement.batch for measurement in samples], float))


def test_without_a_prior_a_line_goes_through_the_geometric_mean() -> None:
    samples = [sample(Plan(1), seconds, batch=batch) for batch, seconds in ((1, 2.0), (2, 4.1), (4, 7.9))]
    expected = np.exp(np.mean(np.log([2.0, 4.1 / 2, 7.9 / 4])))
    assert fit(Line(), samples).values["slope"] == pytest.approx(expected, rel=1e-3)


PUBLISHED = {"k_bwd": 1.776, "k_sync": 1.141, "k_opt": 1e-8, "k_opt_off": 4.401, "k_const": 15.257, "k_off": 37.289}
"""BERT, as fitted by the authors of Rubick (with k_swap 26.222)."""


def test_rubicks_form_matches_the_published_formula() -> None:
    """Data parallel on 8 GPUs and offload on 4, computed by hand in ms; see the docstring of the form."""
    bert = msgspec.structs.replace(MODEL, parameters_stated=336_297_858)
    profiled = [sample(Plan(8), 0.157, forward_seconds=0.040, batch=32), sample(Plan(4), 0.3, batch=32)]
    form = RubickForm(bert, GPU, profiled, "additive", pcie=64.0, link=119.5)
    values = np.array([*PUBLISHED.values(), 26.222])
    weights, forward = 336_297_858 / 2**20, 0.040 * 8 / 32 * 1000  # ms per sample on one GPU
    queries = [sample(Plan(8), batch=32), sample(Plan(4, zero=2, offload=True), batch=32)]
    times = form.predict(values, queries)

    def mean(measurement: float, second: float) -> float:
        return float((measurement**1.141 + second**1.141) ** (1 / 1.141))

    plain = forward * 4 + mean(8 * weights * 7 / 8 / 119.5, 1.776 * forward * 4) + 1e-8 * weights + 26.222 + 15.257
    assert times.step[0] * 1000 == pytest.approx(plain)
    transfer = 4 * weights / 4 / 64
    hidden = mean(8 * weights * 3 / 4 / 119.5, 1.776 * forward * 8) + 37.289 + transfer
    finish = 4.401 * weights / (4 * 4) + 26.222 + transfer
    assert times.step[1] * 1000 == pytest.approx(forward * 8 + hidden + finish + 15.257)
    assert times.backward is not None
    assert times.backward[1] * 1000 == pytest.approx(hidden)


@pytest.mark.parametrize("overlap", ["additive", "power"])
def test_rubicks_parameters_are_recovered(overlap: str) -> None:
    profiled = [sample(Plan(1), forward_seconds=0.3)]
    form = RubickForm(MODEL, GPU, profiled, overlap)  # type: ignore[arg-type]
    truth = np.array([measurement.start for measurement in form.parameters]) * 1.2
    queries = [sample(plan) for plan in PLANS if plan.tensor == 1]
    times = form.predict(truth, queries)
    assert times.backward is not None
    assert times.optimizer is not None
    rows = zip(queries, times.step, times.backward, times.optimizer, strict=True)
    samples = [
        msgspec.structs.replace(
            measurement, step_seconds=float(step), backward_seconds=float(back), optimizer_seconds=float(update)
        )
        for measurement, step, back, update in rows
    ]
    fitted = fit(form, samples)
    assert fitted.mean_error < 0.02
    assert fitted.values["k_bwd"] == pytest.approx(truth[0], rel=0.1)
    assert fitted.values["k_opt_off"] == pytest.approx(truth[3], rel=0.2)


def test_rubicks_form_of_tensor_and_pipeline_parallelism() -> None:
    """Two pipeline stages of four GPUs on one node, in ms; see the docstring of the form and its communication."""
    profiled = [sample(Plan(8), 0.157, forward_seconds=0.040, batch=32)]
    form = RubickForm(MODEL, GPU, profiled, "additive", pcie=64.0, link=100.0, network=20.0)
    values = np.array([2.0, 1.0, 1e-8, 4.0, 15.0, 30.0, 20.0])
    query = sample(Plan(1, 4, 2, accumulation=4), batch=32)
    step = float(form.predict(values, [query]).step[0]) * 1000
    micro_batch = 0.040 * 8 / 32 * 1000 * 32 / (4 * 8) * (4 + 2 - 1) / 4  # forward, with the bubble
    width = MODEL.hidden * 512 * 32 / 2**20
    tensor = 8 * 4 * width * MODEL.blocks * 3 / 4 / 100.0
    pipeline = 16 * width / 4 * 2 / 20.0
    update = 1e-8 * MODEL.parameters / 2**20 / 8
    assert step == pytest.approx(4 * 3 * micro_batch + tensor + pipeline + update + 15.0 + 20.0)


def test_rubicks_forward_time_is_that_of_plans_without_recomputation_if_there_are_any() -> None:
    plain, recomputed = (
        sample(Plan(1, recompute=mode), 1.0, forward_seconds=seconds)  # type: ignore[arg-type]
        for mode, seconds in (("none", 0.3), ("full", 0.9))
    )
    start = np.array([parameter.start for parameter in RubickForm(MODEL, GPU, [plain]).parameters])
    steps = [
        float(RubickForm(MODEL, GPU, profiled).predict(start, [plain]).step[0])
        for profiled in ([plain], [plain, recomputed, recomputed], [recomputed])
    ]
    assert steps[0] == steps[1] < steps[2]


def test_measured_parts_of_steps_are_fitted_too() -> None:
    """Steps as modelled, but with optimizer times of twice that: the update takes longer, and other parts less."""
    samples = measured([1.0] * 7)
    slower = [
        msgspec.structs.replace(measurement, optimizer_seconds=2 * (measurement.optimizer_seconds or 0.0))
        for measurement in samples
    ]
    assert fit(FORM, slower).values["update"] > 1.1 > fit(FORM, samples).values["update"]


def test_there_are_no_errors_without_samples() -> None:
    assert relative_errors(FORM, fit(FORM, measured([1.0] * 7)), []) == []


def test_rubicks_form_needs_a_forward_time() -> None:
    with pytest.raises(BadInput, match="no sample has a forward time"):
        RubickForm(MODEL, GPU, [sample(Plan(1))])


def test_uncertainty_is_formatted_as_a_percentage_or_a_factor() -> None:
    assert (format_uncertainty(1.02), format_uncertainty(2.4)) == ("±2 %", "× or ÷ 2.4")


def test_no_more_is_fitted_than_leave_one_out_errors_justify() -> None:
    modelled = FORM.predict(np.ones(7), [sample(plan) for plan in PLANS]).step
    noise = np.array([1.03, 0.98, 1.02, 0.97, 1.01, 0.99, 1.02, 0.98, 1.0, 1.03, 0.97])
    as_it_is = [sample(plan, seconds) for plan, seconds in zip(PLANS, modelled * noise, strict=True)]
    assert fit_as_far_as_useful(FORM, as_it_is).kind == "none"
    slower = [sample(plan, 1.3 * seconds) for plan, seconds in zip(PLANS, modelled * noise, strict=True)]
    factor = fit_as_far_as_useful(FORM, slower)
    assert (factor.kind, factor.values["small"]) == ("factor", 1.0)
    assert factor.values["compute"] == pytest.approx(1.3, rel=0.03)
    values = np.array([3.0 if name in ("link", "host", "update") else 1.0 for name in factor.values])
    uneven = FORM.predict(values, as_it_is).step
    measured = [sample(plan, seconds) for plan, seconds in zip(PLANS, uneven, strict=True)]
    assert fit_as_far_as_useful(FORM, measured).kind == "full"
