"""Rubick's Table 2, from the authors' samples: `python -m benchmarks.accuracy.rubick [--write]`.

Both the authors' seven-parameter form and the corrections of our analytical model are fitted to the authors' profiling
samples of each model (one node, 1 to 8 GPUs; three to seven samples), and predict the measured steps on one node, by
family of plans. The table also has the errors in the paper. LLaMA is omitted: the paper's values for it are set by
hand.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.accuracy.cases import setting_of, with_step_time
from benchmarks.accuracy.device import read_cases
from benchmarks.accuracy.reports import as_measurement, run_report
from benchmarks.accuracy.tables import Case, data_folder
from benchmarks.table import markdown
from refold.model import Plan
from refold.planning.catalogue import find_engine, find_gpu
from refold.planning.perf import CorrectedForm, Form, Measurement, RubickForm, TrainingSetup, fit, relative_errors

HERE = Path(__file__).parent
FOLDERS = {"ViT-base": "vit", "RoBERTa-large": "roberta", "BERT-336M": "bert", "T5-1.2B": "t5", "GPT-2 1.5B": "gpt2"}
"""Folders of the profiling samples, by model in the measured table."""

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
"""Rubick, Table 2: mean and largest error in percent, for families of plans that run on one node."""


def family_of(plan: Plan) -> str:
    """Return the paper's name of the family of a plan."""
    if plan.offload:
        return "ZeRO-Offload"
    if plan.zero:
        return "ZeRO-DP"
    return "GC" if plan.recompute == "full" else "DP"


def profile_samples(folder: Path, case: Case) -> Iterator[Measurement]:
    """Yield the authors' samples: times of forward pass, backward pass with synchronisation, optimizer and step."""
    with (
        (folder / "config.csv").open(encoding="utf-8-sig") as configs,
        (folder / "data.csv").open(encoding="utf-8-sig") as times,
    ):
        for config, measured in zip(csv.DictReader(configs), csv.DictReader(times), strict=True):
            gpus, kind = int(config["gpus"]), int(config["zero_type"])
            yield Measurement(
                model=case.model.name,
                gpu=case.gpu,
                gpus_on_node=(gpus,),
                plan=Plan(gpus, zero=2 if kind else 0, offload=kind == 1),
                batch=case.batch,
                sequence=case.sequence,
                cpus=float(config["num_cpu_threads"]) * gpus,
                step_seconds=float(measured["iter_time"]) / 1000,
                forward_seconds=float(measured["forward_time"]) / 1000,
                backward_seconds=float(measured["Tcc"]) / 1000,
                optimizer_seconds=float(measured["Topt"]) / 1000,
            )


def _rows() -> Iterator[tuple[str, ...]]:
    folder = data_folder()
    assert folder is not None
    by_model = defaultdict(list)
    for case in with_step_time(read_cases("rubick_measured")):
        if len(case.gpus_on_node) == 1 and case.plan.gpus == case.plan.data:
            by_model[case.model.name].append(case)
    for name, subfolder in FOLDERS.items():
        cases = by_model[name]
        samples = list(profile_samples(folder / "rubick" / "profile" / subfolder, cases[0]))
        forms = _forms(cases[0], samples)
        fits = [fit(form, samples, min_samples=3) for form in forms]
        families = defaultdict(list)
        for case in cases:
            families[family_of(case.plan)].append(as_measurement(case))
        for family, steps in sorted(families.items()):
            paper = PAPER.get((name, family))
            errors = [np.abs(relative_errors(form, found, steps)) for form, found in zip(forms, fits, strict=True)]
            figures = [f"{100 * each.mean():.1f} / {100 * each.max():.1f} %" for each in errors]
            published = f"{paper[0]} / {paper[1]} %" if paper else ""
            yield (name, family, f"{len(samples)}", f"{len(steps)}", published, *figures)


def _forms(case: Case, samples: Sequence[Measurement]) -> list[Form]:
    def setting_for(one: Measurement) -> TrainingSetup:
        setting = setting_of(case, find_gpu, find_engine)
        machines = msgspec.structs.replace(setting.machines, gpus_on_node=one.gpus_on_node, cpus=one.cpus)
        return msgspec.structs.replace(setting, machines=machines, batch=one.batch, sequence=one.sequence)

    return [RubickForm(case.model, find_gpu(case.gpu), samples), CorrectedForm(setting_for)]


def report() -> str:
    """Return a Markdown table of mean and largest errors."""
    titles = ("model", "plans", "samples", "steps", "paper", "paper's form, our fit", "our model, corrected")
    return markdown(titles, list(_rows()))


def main() -> None:
    """Print the table; write it with --write."""
    run_report(report, "rubick", __doc__)


if __name__ == "__main__":
    main()
