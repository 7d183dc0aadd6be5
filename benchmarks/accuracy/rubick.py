"""Rubick's Table 2, from the samples that it was fitted from: `python -m benchmarks.accuracy.rubick [--write]`.

Each model is fitted to the authors' own profiling samples (one node, 1 to 8 GPUs; three to seven of them), once in
their seven-parameter form and once as corrections of our analytical model, and predicts the measured steps on one
node, by family of plans. Beside it stands what the paper says of its own fit. LLaMA is left out of their form's
column: the paper's figures for it come from values set by hand.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.accuracy.cases import setting_of, timed
from benchmarks.accuracy.device import read_cases
from benchmarks.accuracy.reports import as_measurement, print_and_keep
from benchmarks.accuracy.tables import Case, data_folder
from benchmarks.table import markdown
from refold.catalogue import find_engine, find_gpu
from refold.model import Plan
from refold.perf import CorrectedForm, Form, Measurement, RubickForm, TrainingSetup, fit, relative_errors

HERE = Path(__file__).parent
FOLDERS = {"ViT-base": "vit", "RoBERTa-large": "roberta", "BERT-336M": "bert", "T5-1.2B": "t5", "GPT-2 1.5B": "gpt2"}
"""Models of the measured table, and the folder of their profiling samples."""

PAPER = {
    ("ViT-base", "DP"): (3.63, 6.83),
    ("ViT-base", "GC"): (2.59, 6.19),
    ("ViT-base", "ZeRO-DP"): (4.23, 6.67),
    ("ViT-base", "ZeRO-Offload"): (3.00, 8.32),
    ("RoBERTa-large", "DP"): (2.21, 4.37),
    ("RoBERTa-large", "GC"): (3.36, 4.29),
    ("RoBERTa-large", "ZeRO-DP"): (3.59, 6.71),
    ("RoBERTa-large", "ZeRO-Offload"): (7.42, 10.44),
    ("BERT-336M", "DP"): (5.27, 8.32),
    ("BERT-336M", "GC"): (4.90, 7.27),
    ("BERT-336M", "ZeRO-DP"): (3.70, 6.90),
    ("BERT-336M", "ZeRO-Offload"): (6.37, 8.62),
    ("T5-1.2B", "ZeRO-DP"): (6.71, 9.55),
    ("T5-1.2B", "ZeRO-Offload"): (4.37, 6.34),
    ("GPT-2 1.5B", "ZeRO-DP"): (2.52, 3.86),
    ("GPT-2 1.5B", "ZeRO-Offload"): (5.52, 8.90),
}
"""Rubick, Table 2: average and largest error, in percent, of the families that one node can run."""


def family_of(plan: Plan) -> str:
    """The paper's name for a kind of plan."""
    if plan.offload:
        return "ZeRO-Offload"
    if plan.zero:
        return "ZeRO-DP"
    return "GC" if plan.recompute == "full" else "DP"


def profile_samples(folder: Path, case: Case) -> Iterator[Measurement]:
    """What the authors fitted to: seconds of forward, backward with synchronisation, optimiser, step."""
    with (
        (folder / "config.csv").open(encoding="utf-8-sig") as configs,
        (folder / "data.csv").open(encoding="utf-8-sig") as times,
    ):
        for config, seen in zip(csv.DictReader(configs), csv.DictReader(times), strict=True):
            gpus, kind = int(config["gpus"]), int(config["zero_type"])
            yield Measurement(
                model=case.model.name,
                gpu=case.gpu,
                gpus_on_node=(gpus,),
                plan=Plan(gpus, zero=2 if kind else 0, offload=kind == 1),
                batch=case.batch,
                sequence=case.sequence,
                cpus=float(config["num_cpu_threads"]) * gpus,
                step_seconds=float(seen["iter_time"]) / 1000,
                forward_seconds=float(seen["forward_time"]) / 1000,
                backward_seconds=float(seen["Tcc"]) / 1000,
                optimizer_seconds=float(seen["Topt"]) / 1000,
            )


def _rows() -> Iterator[tuple[str, ...]]:
    folder = data_folder()
    assert folder is not None
    by_model = defaultdict(list)
    for case in timed(read_cases("rubick_measured")):
        if len(case.gpus_on_node) == 1 and case.plan.gpus == case.plan.data:
            by_model[case.model.name].append(case)
    for name, where in FOLDERS.items():
        cases = by_model[name]
        samples = list(profile_samples(folder / "rubick" / "profile" / where, cases[0]))
        forms = _forms(cases[0], samples)
        fits = [fit(form, samples, min_samples=3) for form in forms]
        families = defaultdict(list)
        for case in cases:
            families[family_of(case.plan)].append(as_measurement(case))
        for family, steps in sorted(families.items()):
            paper = PAPER.get((name, family))
            errors = [np.abs(relative_errors(form, found, steps)) for form, found in zip(forms, fits, strict=True)]
            figures = [f"{100 * each.mean():.1f} / {100 * each.max():.1f} %" for each in errors]
            said = f"{paper[0]} / {paper[1]} %" if paper else ""
            yield (name, family, f"{len(samples)}", f"{len(steps)}", said, *figures)


def _forms(case: Case, samples: Sequence[Measurement]) -> list[Form]:
    def setting_for(one: Measurement) -> TrainingSetup:
        setting = setting_of(case, find_gpu, find_engine)
        machines = msgspec.structs.replace(setting.machines, gpus_on_node=one.gpus_on_node, cpus=one.cpus)
        return msgspec.structs.replace(setting, machines=machines, batch=one.batch, sequence=one.sequence)

    return [RubickForm(case.model, find_gpu(case.gpu), samples), CorrectedForm(setting_for)]


def report() -> str:
    """The table, as markdown: mean and largest error."""
    titles = ("model", "plans", "samples", "steps", "the paper", "its form, fitted by us", "our model, corrected")
    return markdown(titles, list(_rows()))


def main() -> None:
    """Print the table; keep it with --write."""
    print_and_keep(report, "rubick")


if __name__ == "__main__":
    main()
