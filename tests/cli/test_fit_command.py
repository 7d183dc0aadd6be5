"""`refold fit`, as it is typed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold.cli.commands import fit as command

ROOT = Path(__file__).parents[2]
MEASURED = str(ROOT / "benchmarks" / "accuracy" / "h200_measured.csv")

Said = Callable[..., str]


def test_numbers_samples_errors_and_the_next_sample_are_printed(said: Said, tmp_path: Path) -> None:
    saved = tmp_path / "gpt2.json"
    text = said("fit", MEASURED, "--model", "gpt2-xl", "--out", str(saved))
    assert "gpt2-xl on H200: corrected, fitted to 29 samples" in text
    for word in ("compute", "launch", "mean error", "if left out", "the next sample that would tell most", str(saved)):
        assert word in text
    assert command.read_fit(saved).model == "gpt2-xl"


def test_a_fit_corrects_a_plan(said: Said, tmp_path: Path) -> None:
    saved = str(tmp_path / "gpt2.json")
    said("fit", MEASURED, "--model", "gpt2-xl", "--out", saved)
    asked = ("plan", "gpt2-xl", "--gpus", "1xH200", "--engine", "pytorch", "--pin", "accumulate 1", "--json")
    plain, fitted = (json.loads(said(*asked, *more)) for more in ((), ("--fit", saved)))
    measured = 0.354  # of the first line of that model
    off = [abs(found["best"][0]["step_seconds"] / measured - 1) for found in (plain, fitted)]
    assert off[1] < 0.03
    assert plain["best"][0]["step_seconds"] != fitted["best"][0]["step_seconds"]


def test_json_has_everything(said: Said, tmp_path: Path) -> None:
    found = json.loads(said("fit", MEASURED, "--model", "bert-large", "--out", str(tmp_path / "f"), "--json"))
    assert set(found) == {"fitted", "next", "against", "saved", "notes"}
    assert len(found["fitted"]["values"]) == 7


def test_further_samples_are_predicted(said: Said, tmp_path: Path) -> None:
    lines = Path(MEASURED).read_text().splitlines()
    ours = [line for line in lines if line.startswith("bert-large")]
    few, more = tmp_path / "few.csv", tmp_path / "more.csv"
    few.write_text("\n".join([lines[0], *ours[:14]]))
    more.write_text("\n".join([lines[0], *ours[14:]]))
    text = said("fit", str(few), "--against", str(more))
    assert "Against further samples" in text
    assert f"on {len(ours) - 14} further samples" in text


def test_samples_of_a_cpu_are_fitted_without_a_data_sheet(said: Said, tmp_path: Path) -> None:
    path = tmp_path / "cpu.csv"
    rows = [(1, 1.1), (2, 1.3), (4, 1.6), (8, 2.4), (16, 4.0), (32, 7.6), (64, 14.0)]
    lines = [f"bert-large,cpu,{count},64,16,{seconds}" for count, seconds in rows]
    path.write_text("\n".join(["model,gpu,accumulation,batch,sequence,step_s", *lines]))
    assert "bert-large on cpu: corrected, fitted to 7 samples" in said("fit", str(path))


@pytest.mark.parametrize("form", ["rubick-additive", "rubick-power"])
def test_rubicks_form_can_be_fitted(form: str, said: Said, tmp_path: Path) -> None:
    text = said("fit", MEASURED, "--model", "t5-1.2b", "--form", form, "--out", str(tmp_path / "t5.json"))
    assert "k_bwd" in text
    assert f"t5-1.2b on H200: {form}" in text


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((MEASURED,), "has samples of 6 models; say which with --model"),
        ((MEASURED, "--model", "gpt3-175b"), "has no sample of gpt3-175b"),
        ((MEASURED, "--model", "gpt2-xl", "--form", "rubik"), "no form 'rubik'"),
        ((MEASURED, "--model", "gpt2-xl", "--engine", "megatorn"), "no engine 'megatorn'; did you mean 'megatron'?"),
        (("nothing.csv",), "nothing.csv: cannot be read"),
        ((MEASURED, "--model", "gpt2-xl", "--out", "/nowhere/at/all.json"), "cannot be written"),
    ],
)
def test_bad_input_is_one_sentence(arguments: tuple[str, ...], problem: str, refuses: Callable[..., str]) -> None:
    assert problem in refuses("fit", *arguments)


def test_a_fit_for_another_gpu_or_form_is_not_used(said: Said, refuses: Callable[..., str], tmp_path: Path) -> None:
    saved = str(tmp_path / "gpt2.json")
    said("fit", MEASURED, "--model", "gpt2-xl", "--out", saved)
    assert "was fitted on H200" in refuses("plan", "gpt2-xl", "--gpus", "1xA100", "--fit", saved)
    said("fit", MEASURED, "--model", "gpt2-xl", "--form", "rubick-additive", "--out", saved)
    assert "plans need 'corrected'" in refuses("plan", "gpt2-xl", "--gpus", "1xH200", "--fit", saved)
    Path(saved).write_text("{}")
    assert "is not what refold fit saves" in refuses("plan", "gpt2-xl", "--gpus", "1xH200", "--fit", saved)


def test_a_fit_brings_its_engine_along_and_says_how_sure_it_is(
    said: Said, refuses: Callable[..., str], tmp_path: Path
) -> None:
    saved = str(tmp_path / "gpt2.json")
    said("fit", MEASURED, "--model", "gpt2-xl", "--out", saved)
    text = said("plan", "gpt2-xl", "--gpus", "1xH200", "--fit", saved)
    assert "16 samples of 1,024 tokens a step, pytorch" in text
    assert "Corrected with 29 measured steps of gpt2-xl" in text
    assert "Estimated without measurements" not in text
    problem = refuses("plan", "gpt2-xl", "--gpus", "1xH200", "--fit", saved, "--engine", "fsdp")
    assert "was fitted to steps run by pytorch, not by fsdp" in problem


def test_samples_of_another_model_are_not_taken_for_it(refuses: Callable[..., str], tmp_path: Path) -> None:
    lines = Path(MEASURED).read_text().splitlines()
    path = tmp_path / "bert.csv"
    path.write_text("\n".join([lines[0], *(line for line in lines if line.startswith("bert-large"))]))
    assert "has no sample of gpt2-small; it has bert-large" in refuses("fit", str(path), "--model", "gpt2-small")


def test_times_in_milliseconds_are_suspected(typed: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "ms.csv"
    rows = [f"bert-large,A100-80GB,{count},64,512,{1000 * count}" for count in (1, 2, 4, 8, 16, 32, 64)]
    path.write_text("\n".join(["model,gpu,accumulation,batch,sequence,step_s", *rows]))
    assert "is step_s in seconds?" in typed("fit", str(path)).output
