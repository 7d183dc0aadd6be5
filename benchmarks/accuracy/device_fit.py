"""Seven steps measured, the rest predicted, on one H200: `python -m benchmarks.accuracy.device_fit [--write]`.

The seven are chosen before anything is known (`fit.first_samples`): which samples are least sure under the model,
one after another. The error is that of all others, which the fit has not seen; beside it stand the error without any
sample, and how far two runs of the same trial were apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.accuracy.device import measurements
from benchmarks.accuracy.reports import print_and_keep
from benchmarks.table import markdown
from refold.catalogue import find_engine, find_gpu, find_model, read_samples
from refold.perf import (
    CorrectedForm,
    Form,
    Machines,
    Measurement,
    RubickForm,
    TrainingSetup,
    Vector,
    choose_initial_samples,
    fit,
    relative_errors as unseen_errors,
)

HERE = Path(__file__).parent
REPEATED = HERE / "h200_repeated.csv"
SAMPLES = 7


def setting_for(one: Measurement) -> TrainingSetup:
    """Where a step was measured."""
    gpu = find_gpu(one.gpu)
    machines = Machines(gpu, one.gpus_on_node, gpu.link, gpu.link, one.cpus)
    return TrainingSetup(find_model(one.model), machines, find_engine("pytorch"), one.batch, one.sequence)


def relative_errors(form: Form, chosen: Sequence[Measurement], others: Sequence[Measurement]) -> Vector:
    """Of samples that the fit has not seen."""
    return np.abs(unseen_errors(form, fit(form, chosen), others))


def _row(name: str, rows: Sequence[Measurement]) -> tuple[str, ...]:
    corrected = CorrectedForm(setting_for)
    order = choose_initial_samples(corrected, rows, SAMPLES)
    chosen, others = [rows[index] for index in order], [rows[index] for index in range(len(rows)) if index not in order]
    rubick = RubickForm(find_model(name), find_gpu(rows[0].gpu), chosen)
    measured = np.array([one.step_seconds for one in others])
    before = np.abs(corrected.predict(np.ones(len(corrected.parameters)), others).step / measured - 1)
    columns = (before, relative_errors(corrected, chosen, others), relative_errors(rubick, chosen, others))
    figures = [f"{100 * float(statistic(each)):.1f} %" for each in columns for statistic in (np.mean, np.max)]
    return (name, f"{len(rows)}", *figures)


def _repeated() -> str:
    """How far two runs of the same trials were apart."""
    again = read_samples(REPEATED)
    same = [one for one in measurements() if one.model == again[0].model]
    first = {(one.plan, one.batch, one.sequence, one.cpus): one.step_seconds or 0.0 for one in same}
    both = [(one.step_seconds or 0.0, first[one.plan, one.batch, one.sequence, one.cpus]) for one in again]
    apart = 100 * np.abs([one / other - 1 for one, other in both])
    return (
        f"{len(both)} trials of {again[0].model} were run twice: their times differ by {np.median(apart):.1f} % at the "
        f"median, {np.quantile(apart, 0.9):.1f} % for one in ten, {apart.max():.1f} % at most."
    )


def report() -> str:
    """A row for each model, as markdown."""
    ran = [one for one in measurements() if one.status == "ok"]
    rows = [_row(name, [one for one in ran if one.model == name]) for name in dict.fromkeys(one.model for one in ran)]
    titles = ("model", "steps", "no sample: mean", "max", f"corrected, {SAMPLES} samples: mean", "max")
    table = markdown((*titles, f"Rubick's form, {SAMPLES} samples: mean", "max"), rows)
    return f"{table}\n\n{_repeated()}"


def main() -> None:
    """Print the table; keep it with --write."""
    print_and_keep(report, "device_fit", published=False)


if __name__ == "__main__":
    main()
