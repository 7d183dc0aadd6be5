"""Prediction from seven measured steps on one H200: `python -m benchmarks.accuracy.device_fit [--write]`.

The seven are chosen without measurements (`perf.choose_initial_samples`): one after another, the sample that is most
uncertain under the model. The table shows the error on all other steps, which are not used in the fit, compared with
the error without any sample, and the difference between two runs of the same configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.accuracy.device import measurements
from benchmarks.accuracy.reports import DOCS, run_report, write_section
from benchmarks.table import markdown
from refold.planning.catalogue import find_engine, find_gpu, find_model, read_samples
from refold.planning.perf import (
    CorrectedForm,
    Form,
    Machines,
    Measurement,
    RubickForm,
    TrainingSetup,
    Vector,
    choose_initial_samples,
    fit,
    fit_as_far_as_useful,
    relative_errors as unseen_errors,
)
from refold.planning.perf.fitting import MEASUREMENT_NOISE

HERE = Path(__file__).parent
REPEATED = HERE / "h200_repeated.csv"
SAMPLES, DRAWS = 7, 10


def setting_for(one: Measurement) -> TrainingSetup:
    """Return the model, machine and engine of a measured step."""
    gpu = find_gpu(one.gpu)
    machines = Machines(gpu, one.gpus_on_node, gpu.link, gpu.link, one.cpus)
    return TrainingSetup(find_model(one.model), machines, find_engine("pytorch"), one.batch, one.sequence)


def relative_errors(form: Form, chosen: Sequence[Measurement], others: Sequence[Measurement]) -> Vector:
    """Fit the form to the chosen samples, and return the absolute relative errors on the others."""
    use = fit_as_far_as_useful if isinstance(form, CorrectedForm) else fit
    return np.abs(unseen_errors(form, use(form, chosen), others))


def _row(name: str, rows: Sequence[Measurement]) -> tuple[str, ...]:
    corrected = CorrectedForm(setting_for)
    order = choose_initial_samples(corrected, rows, SAMPLES)
    chosen, others = [rows[index] for index in order], [rows[index] for index in range(len(rows)) if index not in order]
    rubick = RubickForm(find_model(name), find_gpu(rows[0].gpu), chosen)
    measured = np.array([one.step_seconds for one in others])
    before = np.abs(corrected.predict(np.ones(len(corrected.parameters)), others).step / measured - 1)
    columns = (before, relative_errors(corrected, chosen, others), relative_errors(rubick, chosen, others))
    figures = [
        f"{100 * float(statistic(each)):.1f} %" for each in columns for statistic in (np.mean, np.median, np.max)
    ]
    fitted = {"none": "nothing", "factor": "one factor", "full": "all"}[fit_as_far_as_useful(corrected, chosen).kind]
    return (name, f"{len(rows)}", fitted, *figures)


def _draws(all_rows: Sequence[Sequence[Measurement]]) -> str:
    """Return a sentence on fits to seven samples chosen at random, ten times for each model."""
    form, random = CorrectedForm(setting_for), np.random.default_rng(0)
    before, after = [], []
    for rows in all_rows:
        for _ in range(DRAWS):
            order = random.permutation(len(rows))
            chosen, others = ([rows[index] for index in part] for part in (order[:SAMPLES], order[SAMPLES:]))
            measured = np.array([one.step_seconds for one in others])
            before.append(float(np.abs(form.predict(np.ones(len(form.parameters)), others).step / measured - 1).mean()))
            after.append(float(relative_errors(form, chosen, others).mean()))
    worse = np.array(after) - np.array(before)
    noise = MEASUREMENT_NOISE / np.sqrt(SAMPLES)
    return (
        f"With {SAMPLES} samples chosen at random, {DRAWS} times for each model, the mean error is "
        f"{100 * np.mean(after):.1f} %, and {100 * np.mean(before):.1f} % without samples; {(worse > noise).sum()} of "
        f"{len(worse)} fits are worse than none by more than {100 * noise:.1f} %, the noise of a mean, "
        f"at most by {100 * worse.max():.1f} %."
    )


def _repeatability() -> str:
    """Return a sentence on the difference between two runs of the same configurations."""
    repeated = read_samples(REPEATED)
    same_model = [one for one in measurements() if one.model == repeated[0].model]
    first = {(one.plan, one.batch, one.sequence, one.cpus): one.step_seconds or 0.0 for one in same_model}
    pairs = [(one.step_seconds or 0.0, first[one.plan, one.batch, one.sequence, one.cpus]) for one in repeated]
    differences = 100 * np.abs([one / other - 1 for one, other in pairs])
    median, p90 = np.median(differences), np.quantile(differences, 0.9)
    return (
        f"{len(pairs)} configurations of {repeated[0].model} were measured twice: the times differ by {median:.1f} % "
        f"at the median, {p90:.1f} % at the 90th percentile, {differences.max():.1f} % at most."
    )


def report() -> str:
    """Return a Markdown table with a row for each model."""
    finished = [one for one in measurements() if one.status == "ok"]
    names = dict.fromkeys(one.model for one in finished)
    of_models = [[one for one in finished if one.model == name] for name in names]
    rows = [_row(name, steps) for name, steps in zip(names, of_models, strict=True)]
    titles = ("no samples", f"corrected, {SAMPLES} samples", f"Rubick's form, {SAMPLES} samples")
    columns = [title for name in titles for title in (f"{name}: mean", "median", "max")]
    table = markdown(("model", "steps", "fitted", *columns), rows)
    return "\n\n".join((table, _draws(of_models), _repeatability()))


def main() -> None:
    """Print the table; write it with --write."""
    if run_report(report, "device_fit", __doc__, needs_published_tables=False):
        write_section(DOCS / "fit.md", "fits", (HERE / "device_fit.md").read_text(encoding="utf-8").strip())


if __name__ == "__main__":
    main()
