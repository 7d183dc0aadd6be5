"""What was measured corrects what is modelled."""

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from refold.catalogue import find_engine, find_gpu, find_model
from refold.errors import BadInput
from refold.model.plan import Plan
from refold.perf.fitting import (
    Fitted,
    Parameter,
    Times,
    Vector,
    errors_of,
    factor_text,
    first_samples,
    fit,
    keep_up,
    most_telling,
    predict,
    spread_of,
)
from refold.perf.forms import CorrectedForm, RubickForm
from refold.perf.hardware import Machines
from refold.perf.measurement import Measurement
from refold.perf.setting import Setting

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
    one = Measurement("bert-large", "A100-80GB", nodes, plan, 256, 512, 4.0 * plan.gpus, seconds)
    return msgspec.structs.replace(one, **changes)


def setting_for(one: Measurement) -> Setting:
    machines = Machines(GPU, one.gpus_on_node, GPU.link, GPU.link, one.cpus)
    return Setting(MODEL, machines, ENGINE, one.batch, one.sequence)


FORM = CorrectedForm(setting_for)


def measured(values: Sequence[float], plans: Sequence[Plan] = PLANS) -> list[Measurement]:
    """Samples as they would be if these corrections were true."""
    asked = [sample(plan) for plan in plans]
    times = FORM.predict(np.array(values), asked)
    assert times.optimizer is not None
    return [
        msgspec.structs.replace(one, step_seconds=float(step), optimizer_seconds=float(update))
        for one, step, update in zip(asked, times.step, times.optimizer, strict=True)
    ]


def test_corrections_that_are_true_are_found() -> None:
    truth = [1.3, 1.0, 1.0, 1.0, 2.0, 1.5, 0.7]
    found = fit(FORM, measured(truth))
    for name, value in zip(found.values, truth, strict=True):
        assert abs(np.log(found.values[name] / value)) < 2 * np.log(found.spread[name]), name
    assert found.mean_error < 0.02
    assert found.values["compute"] == pytest.approx(1.3, rel=0.03)
    assert found.values["host"] < 0.85  # a small part of these steps: towards the truth, not all the way


def test_without_news_nothing_is_corrected() -> None:
    found = fit(FORM, measured([1.0] * 7))
    assert list(found.values.values()) == pytest.approx([1.0] * 7, rel=1e-3)


def test_what_no_sample_tells_stays_as_it_was_believed() -> None:
    alone = [plan for plan in PLANS if plan.gpus == 1] + [Plan(1, accumulation=a) for a in (2, 8, 16)]
    found = fit(FORM, measured([1.2] + [1.0] * 6, alone))
    assert found.values["network"] == pytest.approx(1.0)
    assert found.spread["network"] == pytest.approx(np.exp(0.5))


def test_one_bad_sample_does_not_carry_the_others_away() -> None:
    good = measured([1.2] + [1.0] * 6)
    bad = msgspec.structs.replace(good[0], step_seconds=5 * (good[0].step_seconds or 0.0), optimizer_seconds=None)
    found = fit(FORM, [bad, *good[1:]])
    assert np.abs(found.errors[1:]).max() < 0.12
    assert found.errors[0] < -0.7


def test_the_error_of_a_sample_left_out_is_what_leaving_it_out_gives() -> None:
    noise = np.random.default_rng(1).normal(0, 0.02, len(PLANS))
    samples = [
        msgspec.structs.replace(
            one, step_seconds=(one.step_seconds or 0.0) * float(np.exp(off)), optimizer_seconds=None
        )
        for one, off in zip(measured([1.1] + [1.0] * 6), noise, strict=True)
    ]
    found = fit(FORM, samples)
    for index, one in enumerate(samples):
        others = fit(FORM, samples[:index] + samples[index + 1 :])
        assert found.unseen[index] == pytest.approx(errors_of(FORM, others, [one])[0], abs=0.012)


def test_the_next_sample_is_the_one_that_leaves_all_surest() -> None:
    alone = [plan for plan in PLANS if plan.gpus == 1] + [Plan(1, accumulation=a) for a in (2, 8, 16)]
    found = fit(FORM, measured([1.0] * 7, alone))
    asked = [sample(Plan(1, accumulation=32)), sample(Plan(16)), sample(Plan(1, recompute="full", accumulation=2))]
    assert most_telling(FORM, found, asked) == asked[1]
    unsure = spread_of(FORM, found, asked)
    assert unsure[1] == unsure.max()
    assert most_telling(FORM, found, []) is None


def test_first_samples_are_chosen_before_anything_is_measured() -> None:
    candidates = measured([1.0] * 7)
    chosen = first_samples(FORM, candidates, 7)
    assert len(set(chosen)) == 7
    others = [msgspec.structs.replace(one, step_seconds=3.0, optimizer_seconds=None) for one in candidates]
    assert first_samples(FORM, others, 7) == chosen


def test_a_fit_is_kept_while_it_holds_and_made_anew_when_it_does_not() -> None:
    samples = measured([1.0] * 7)
    found = fit(FORM, samples)
    assert keep_up(FORM, found, samples[:3]) is found
    assert keep_up(FORM, found, []) is found
    slower = measured([1.5] + [1.0] * 6)
    anew = keep_up(FORM, found, slower)
    assert len(anew.samples) == len(samples) + len(slower)
    assert anew.values["compute"] > 1.1


def test_a_fit_survives_being_saved() -> None:
    found = fit(FORM, measured([1.1] + [1.0] * 6))
    again = msgspec.json.decode(msgspec.json.encode(found), type=Fitted)
    assert again == found
    assert predict(FORM, again, found.samples) == pytest.approx(predict(FORM, found, found.samples))


@pytest.mark.parametrize(
    ("samples", "problem"),
    [
        (measured([1.0] * 7)[:6], "6 samples cannot tell the 7 numbers of 'corrected'; measure 1 more"),
        ([sample(Plan(1))] * 9, "all samples are of 1 configurations; vary micro-batches"),
        (
            [*measured([1.0] * 7), sample(Plan(1), gpu="H100-80GB")],
            "2 kinds (bert-large on A100-80GB, bert-large on H100-80GB); fit one model on one type of GPU",
        ),
        ([sample(Plan(1), status="oom", step_seconds=None)] * 9, "0 samples cannot tell"),
    ],
)
def test_samples_that_cannot_tell_are_refused(samples: list[Measurement], problem: str) -> None:
    with pytest.raises(BadInput) as refused:
        fit(FORM, samples)
    assert problem in str(refused.value)


class Line:
    """step = slope × batch: a form of one number, whose fit can be written down."""

    name = "line"
    parameters: tuple[Parameter, ...] = (Parameter("slope", "seconds per sample", 1.0, 1e6),)

    def predict(self, values: Vector, samples: Sequence[Measurement]) -> Times:
        return Times(values[0] * np.array([one.batch for one in samples], float))


def test_with_nothing_believed_a_line_goes_through_the_mean_of_logarithms() -> None:
    samples = [sample(Plan(1), seconds, batch=batch) for batch, seconds in ((1, 2.0), (2, 4.1), (4, 7.9))]
    expected = np.exp(np.mean(np.log([2.0, 4.1 / 2, 7.9 / 4])))
    assert fit(Line(), samples).values["slope"] == pytest.approx(expected, rel=1e-3)


PUBLISHED = {"k_bwd": 1.776, "k_sync": 1.141, "k_opt": 1e-8, "k_opt_off": 4.401, "k_const": 15.257, "k_off": 37.289}
"""BERT, as the authors of Rubick fitted it (with k_swap 26.222)."""


def test_rubicks_form_gives_what_its_authors_formula_gives() -> None:
    """Data parallel on 8 GPUs and offloading on 4, by hand, in ms: see the docstring of the form."""
    bert = msgspec.structs.replace(MODEL, parameters_stated=336_297_858)
    profiled = [sample(Plan(8), 0.157, forward_seconds=0.040, batch=32), sample(Plan(4), 0.3, batch=32)]
    form = RubickForm(bert, GPU, profiled, "additive", pcie=64.0, link=119.5)
    values = np.array([*PUBLISHED.values(), 26.222])
    weights, forward = 336_297_858 / 2**20, 0.040 * 8 / 32 * 1000  # ms per sample on one GPU
    asked = [sample(Plan(8), batch=32), sample(Plan(4, zero=2, offload=True), batch=32)]
    times = form.predict(values, asked)

    def mean(one: float, other: float) -> float:
        return float((one**1.141 + other**1.141) ** (1 / 1.141))

    plain = forward * 4 + mean(8 * weights * 7 / 8 / 119.5, 1.776 * forward * 4) + 1e-8 * weights + 26.222 + 15.257
    assert times.step[0] * 1000 == pytest.approx(plain)
    down = 4 * weights / 4 / 64
    hidden = mean(8 * weights * 3 / 4 / 119.5, 1.776 * forward * 8) + 37.289 + down
    finish = 4.401 * weights / (4 * 4) + 26.222 + down
    assert times.step[1] * 1000 == pytest.approx(forward * 8 + hidden + finish + 15.257)
    assert times.backward is not None
    assert times.backward[1] * 1000 == pytest.approx(hidden)


@pytest.mark.parametrize("overlap", ["additive", "power"])
def test_rubicks_parameters_are_found_again(overlap: str) -> None:
    profiled = [sample(Plan(1), forward_seconds=0.3)]
    form = RubickForm(MODEL, GPU, profiled, overlap)  # type: ignore[arg-type]
    truth = np.array([one.start for one in form.parameters]) * 1.2
    asked = [sample(plan) for plan in PLANS if plan.tensor == 1]
    times = form.predict(truth, asked)
    assert times.backward is not None
    assert times.optimizer is not None
    told = zip(asked, times.step, times.backward, times.optimizer, strict=True)
    samples = [
        msgspec.structs.replace(
            one, step_seconds=float(step), backward_seconds=float(back), optimizer_seconds=float(update)
        )
        for one, step, back, update in told
    ]
    found = fit(form, samples)
    assert found.mean_error < 0.02
    assert found.values["k_bwd"] == pytest.approx(truth[0], rel=0.1)
    assert found.values["k_opt_off"] == pytest.approx(truth[3], rel=0.2)


def test_rubicks_form_needs_the_time_of_a_forward_pass() -> None:
    with pytest.raises(BadInput, match="needs the time of a forward pass"):
        RubickForm(MODEL, GPU, [sample(Plan(1))])


def test_a_spread_reads_as_a_percentage_or_a_factor() -> None:
    assert (factor_text(1.02), factor_text(2.4)) == ("±2 %", "× or ÷ 2.4")
