"""`refold fit`."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold.cli.commands import fit as command

ROOT = Path(__file__).parents[2]
ALL_MEASURED = (ROOT / "benchmarks" / "accuracy" / "h200_measured.csv").read_text().splitlines()
SAMPLES = 10

TextOf = Callable[..., str]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a file with the first samples of each model: fits to all of them take a second each."""
    header, *lines = ALL_MEASURED
    first = Counter[str]()
    kept = []
    for line in lines:
        model = line.partition(",")[0]
        first[model] += 1
        kept += [line] if first[model] <= SAMPLES else []
    path = tmp_path_factory.mktemp("measured") / "h200.csv"
    path.write_text("\n".join([header, *kept]))
    return str(path)


def test_parameters_samples_errors_and_the_next_sample_are_printed(
    stdout_of: TextOf, measured: str, tmp_path: Path
) -> None:
    saved = tmp_path / "gpt2.json"
    text = stdout_of("fit", measured, "--model", "gpt2-xl", "--out", str(saved))
    assert f"gpt2-xl on H200: corrected, fitted to {SAMPLES} samples" in text
    for word in ("compute", "launch", "mean error", "leave-one-out", "most informative next sample", str(saved)):
        assert word in text
    assert command.read_fit(saved).model == "gpt2-xl"


def test_a_fit_corrects_a_plan(stdout_of: TextOf, measured: str, tmp_path: Path) -> None:
    saved, slower = str(tmp_path / "gpt2.json"), tmp_path / "slower.csv"
    header, *lines = Path(measured).read_text().splitlines()
    at = header.split(",").index("step_s")
    rows = [[*cells[:at], cells[at] and str(1.3 * float(cells[at])), *cells[at + 1 :]] for cells in map(_cells, lines)]
    slower.write_text("\n".join([header, *map(",".join, rows)]))
    stdout_of("fit", str(slower), "--model", "gpt2-xl", "--out", saved)
    words = ("plan", "gpt2-xl", "--gpus", "1xH200", "--engine", "pytorch", "--pin", "accumulate 1", "--json")
    plain, fitted = (json.loads(stdout_of(*words, *more)) for more in ((), ("--fit", saved)))
    ratio = fitted["best"][0]["step_seconds"] / plain["best"][0]["step_seconds"]
    assert abs(ratio / 1.3 - 1) < 0.08


def _cells(line: str) -> list[str]:
    return line.split(",")


def test_the_fit_as_json(stdout_of: TextOf, measured: str, tmp_path: Path) -> None:
    found = json.loads(stdout_of("fit", measured, "--model", "bert-large", "--out", str(tmp_path / "f"), "--json"))
    assert set(found) == {"fitted", "next", "against", "saved", "notes"}
    assert len(found["fitted"]["values"]) == 7


def test_validation_samples_are_predicted(stdout_of: TextOf, tmp_path: Path) -> None:
    lines = ALL_MEASURED
    ours = [line for line in lines if line.startswith("bert-large")][:20]
    few, more = tmp_path / "few.csv", tmp_path / "more.csv"
    few.write_text("\n".join([lines[0], *ours[:14]]))
    more.write_text("\n".join([lines[0], *ours[14:]]))
    text = stdout_of("fit", str(few), "--against", str(more))
    assert "Validation samples" in text
    assert f"on {len(ours) - 14} validation samples" in text


def test_samples_of_a_cpu_are_fitted_without_a_data_sheet(stdout_of: TextOf, tmp_path: Path) -> None:
    path = tmp_path / "cpu.csv"
    rows = [(1, 1.1), (2, 1.3), (4, 1.6), (8, 2.4), (16, 4.0), (32, 7.6), (64, 14.0)]
    lines = [f"bert-large,cpu,{count},64,16,{seconds}" for count, seconds in rows]
    path.write_text("\n".join(["model,gpu,accumulation,batch,sequence,step_s", *lines]))
    assert "bert-large on cpu: corrected, fitted to 7 samples" in stdout_of("fit", str(path))


@pytest.mark.parametrize("form", ["rubick-additive", "rubick-power"])
def test_rubicks_form_can_be_fitted(form: str, stdout_of: TextOf, measured: str, tmp_path: Path) -> None:
    text = stdout_of("fit", measured, "--model", "t5-1.2b", "--form", form, "--out", str(tmp_path / "t5.json"))
    assert "k_bwd" in text
    assert f"t5-1.2b on H200: {form}" in text


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("MEASURED",), "has samples of 6 models; select one with --model"),
        (("MEASURED", "--model", "gpt3-175b"), "has no sample of gpt3-175b"),
        (("MEASURED", "--model", "gpt2-xl", "--form", "rubik"), "unknown form 'rubik'"),
        (
            ("MEASURED", "--model", "gpt2-xl", "--engine", "megatorn"),
            "unknown engine 'megatorn'; did you mean 'megatron'?",
        ),
        (("nothing.csv",), "nothing.csv: cannot be read"),
        (("MEASURED", "--model", "gpt2-xl", "--out", "/nowhere/at/all.json"), "cannot be written"),
    ],
)
def test_bad_input_gives_a_one_line_error(
    arguments: tuple[str, ...], problem: str, measured: str, error_of: Callable[..., str]
) -> None:
    words = [measured if word == "MEASURED" else word for word in arguments]
    assert problem in error_of("fit", *words)


def test_a_fit_for_another_gpu_or_of_another_form_is_rejected(
    stdout_of: TextOf, error_of: Callable[..., str], measured: str, tmp_path: Path
) -> None:
    saved = str(tmp_path / "gpt2.json")
    stdout_of("fit", measured, "--model", "gpt2-xl", "--out", saved)
    assert "was fitted on H200" in error_of("plan", "gpt2-xl", "--gpus", "1xA100", "--fit", saved)
    stdout_of("fit", measured, "--model", "gpt2-xl", "--form", "rubick-additive", "--out", saved)
    assert "expected 'corrected'" in error_of("plan", "gpt2-xl", "--gpus", "1xH200", "--fit", saved)
    Path(saved).write_text("{}")
    assert "is not a file saved by refold fit" in error_of("plan", "gpt2-xl", "--gpus", "1xH200", "--fit", saved)


def test_a_fit_determines_the_engine_and_its_error_is_shown(
    stdout_of: TextOf, error_of: Callable[..., str], measured: str, tmp_path: Path
) -> None:
    saved = str(tmp_path / "gpt2.json")
    stdout_of("fit", measured, "--model", "gpt2-xl", "--out", saved)
    text = stdout_of("plan", "gpt2-xl", "--gpus", "1xH200", "--fit", saved)
    assert "16 samples of 1,024 tokens per step, pytorch" in text
    assert f"Corrected with {SAMPLES} measured steps of gpt2-xl" in text
    assert "Estimated without measurements" not in text
    problem = error_of("plan", "gpt2-xl", "--gpus", "1xH200", "--fit", saved, "--engine", "fsdp")
    assert "was fitted with engine pytorch, not fsdp" in problem


def test_samples_of_another_model_are_not_used(error_of: Callable[..., str], tmp_path: Path) -> None:
    lines = ALL_MEASURED
    path = tmp_path / "bert.csv"
    path.write_text("\n".join([lines[0], *(line for line in lines if line.startswith("bert-large"))]))
    assert "has no sample of gpt2-small; it has bert-large" in error_of("fit", str(path), "--model", "gpt2-small")


def test_a_warning_points_to_times_in_milliseconds(invoke: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "ms.csv"
    rows = [f"bert-large,A100-80GB,{count},64,512,{1000 * count}" for count in (1, 2, 4, 8, 16, 32, 64)]
    path.write_text("\n".join(["model,gpu,accumulation,batch,sequence,step_s", *rows]))
    assert "is step_s in seconds?" in invoke("fit", str(path)).output
