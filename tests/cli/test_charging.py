"""Simulated job speeds and what policies know of them: `--charge`, `--knowledge`, `--fit`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold.journal.files import read_journal
from refold.model import Plan
from refold.planning.plans.speeds import Speeds
from refold.simulator.traces.formats import read_cluster
from refold.testing import make_job

TextOf = Callable[..., str]
JsonOf = Callable[..., Any]

HALF = '''
from refold.model import Allocation, Decision, Plan, Share, Start
from refold.planning.plans.speeds import CATALOGUE_ONLY, Knowledge


class Half:
    """Every job on the first half of the first node, with a plan from the menu."""

    name = "half"

    def __init__(self, knowledge=CATALOGUE_ONLY):
        self._menu = Knowledge.from_settings(knowledge).menu

    def decide(self, view):
        free = set(view.waiting) and not view.runs
        return Decision(starts=tuple(self._start(job) for job in list(view.waiting.values())[:1] if free))

    def _start(self, job):
        plan = self._menu.get(job.workload, [Plan(4)])[0]
        return Start(job.id, Allocation((Share(0, (0, 1, 2, 3)),), plan))
'''

ON = ("--cluster", "1x8:A800-80GB", "--gpus-per-instance", "8")


@pytest.fixture
def half(tmp_path: Path) -> Path:
    path = tmp_path / "half.py"
    path.write_text(HALF)
    return path


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """One reshapable job of 100 s and 100 steps on eight GPUs."""
    extra = 'gpt2|reshapable=true|steps=100|plan={"data":8}|batch=16'
    path = tmp_path / "trained.csv"
    path.write_text(f'job_id,submit_s,num_gpu,duration_s,extra\na,0,8,100,"{extra.replace(chr(34), chr(34) * 2)}"\n')
    return path


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    path = tmp_path / "samples.csv"
    path.write_text("model,gpu,placement,data,batch,step_s\ngpt2-xl,A800-80GB,8,8,16,1\ngpt2,A800-80GB,4,4,16,1.5\n")
    return path


def makespan(document: Any) -> float:
    found = document["measures"]["makespan"]
    assert isinstance(found, float)
    return found


def modelled_on_half(plan: Plan) -> float:
    speeds = Speeds(read_cluster("1x8:A800-80GB"))
    job = make_job("a", gpus=8, reshapable=True, workload="gpt2", batch=16, plan=Plan(8))
    here = speeds.with_plan(job, "A800-80GB", (4,), 0.0, plan)
    return 100 * speeds.requested_speed(job).steps_per_second / here.steps_per_second


def test_recorded_speed_is_proportional_to_gpus(trained: Path, half: Path, json_of: JsonOf) -> None:
    found = json_of("simulate", str(trained), *ON, "--policy", str(half), "--charge", "recorded")
    assert makespan(found) == pytest.approx(200)


def test_jobs_in_the_catalogue_run_at_the_modelled_speed(trained: Path, half: Path, json_of: JsonOf) -> None:
    expected = modelled_on_half(Plan(4))
    assert abs(expected - 200) > 1
    for charge in ([], ["--charge", "model"]):
        assert makespan(json_of("simulate", str(trained), *ON, "--policy", str(half), *charge)) == pytest.approx(
            expected
        )


def test_a_table_of_samples_determines_the_speed(trained: Path, half: Path, samples: Path, json_of: JsonOf) -> None:
    found = json_of("simulate", str(trained), *ON, "--policy", str(half), "--charge", str(samples))
    assert makespan(found) == pytest.approx(150)


def test_the_report_names_the_source_of_job_speeds(
    trained: Path, samples: Path, tmp_path: Path, stdout_of: TextOf
) -> None:
    stdout_of("simulate", str(trained), *ON, "--charge", str(samples), "--out", str(tmp_path / "out"))
    assert "speed of 1 of 1 jobs from samples.csv" in (tmp_path / "out" / "report.html").read_text()


def test_knowledge_is_passed_to_policies_and_stored_in_the_journal(
    trained: Path, half: Path, tmp_path: Path, stdout_of: TextOf, json_of: JsonOf
) -> None:
    knowledge, journal = tmp_path / "knowledge.json", tmp_path / "j.jsonl"
    knowledge.write_text('{"menu": {"gpt2": [{"data": 4, "zero": 2, "offload": true}]}}')
    words = ("simulate", str(trained), *ON, "--policy", str(half), "--knowledge", str(knowledge))
    found = json_of(*words, "--journal", str(journal))
    assert makespan(found) == pytest.approx(modelled_on_half(Plan(4, zero=2, offload=True)))
    assert read_journal(journal)[0].settings["knowledge"] == json.loads(knowledge.read_text())
    assert "identical" in stdout_of("replay", str(journal))


def test_knowledge_is_passed_only_to_policies_that_take_it(
    trained: Path, half: Path, tmp_path: Path, json_of: JsonOf
) -> None:
    knowledge = tmp_path / "knowledge.json"
    knowledge.write_text('{"menu": {}}')
    words = ("--policies", f"fifo,{half}", "--knowledge", str(knowledge), "--out", str(tmp_path / "out"))
    fifo, own = json_of("compare", str(trained), *ON, *words)["runs"]
    assert (fifo["settings"], own["settings"]) == ({}, {"knowledge": {}})


def test_speeds_are_the_same_in_several_processes(
    trained: Path, half: Path, samples: Path, tmp_path: Path, json_of: JsonOf
) -> None:
    words = ("--policies", f"fifo,{half}", "--charge", str(samples), "--out", str(tmp_path / "out"), "--processes", "2")
    runs = json_of("compare", str(trained), *ON, *words)["runs"]
    assert [makespan(run) for run in runs] == pytest.approx([100, 150])


def test_fits_correct_both_knowledge_and_simulated_speed(
    trained: Path, half: Path, tmp_path: Path, json_of: JsonOf
) -> None:
    fit = tmp_path / "fit.json"
    fit.write_text(json.dumps(FIT))
    words = ("simulate", str(trained), *ON, "--policy", str(half))
    found = json_of(*words, "--fit", str(fit))
    assert [one["model"] for one in found["settings"]["knowledge"]["fits"]] == ["gpt2-xl"]
    assert makespan(found) != pytest.approx(makespan(json_of(*words)))


FIT = {
    "form": "corrected",
    "model": "gpt2-xl",
    "gpu": "A800-80GB",
    "values": {"compute": 1.0, "small": 1.0, "launch": 1.0, "link": 9.0, "network": 1.0, "update": 1.0, "host": 1.0},
    "spread": {},
    "samples": [],
    "errors": [],
    "unseen": [],
}


def test_a_fit_of_another_form_is_rejected(trained: Path, tmp_path: Path, error_of: TextOf) -> None:
    fit = tmp_path / "fit.json"
    fit.write_text(json.dumps(FIT | {"form": "rubick-power", "values": {"k_bwd": 2.0}}))
    message = error_of("simulate", str(trained), *ON, "--fit", str(fit))
    assert "the fit of gpt2-xl on A800-80GB has the form rubick-power and lacks compute" in message


def test_runs_report_progress_at_the_given_interval(trained: Path, half: Path, tmp_path: Path, json_of: JsonOf) -> None:
    def progressed(*words: str) -> int:
        journal = tmp_path / "j.jsonl"
        json_of("simulate", str(trained), *ON, "--charge", "recorded", *words, "--journal", str(journal))
        return journal.read_text().count("RunProgressed")

    assert (progressed(), progressed("--report-every", "30s")) == (0, 3)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--charge", "modle"], "modle: no such file; --charge is recorded, model, or a CSV file of measured samples"),
        (["--knowledge", "none.json"], "none.json: cannot be read"),
        (["--fit", "none.json"], "none.json: cannot be read"),
        (["--report-every", "0s"], "report_every is 0.0, expected seconds > 0"),
    ],
)
def test_bad_options_give_a_one_line_error(trained: Path, words: list[str], problem: str, error_of: TextOf) -> None:
    assert problem in error_of("simulate", str(trained), *ON, *words)


def test_a_file_without_knowledge_is_rejected(trained: Path, tmp_path: Path, error_of: TextOf) -> None:
    path = tmp_path / "knowledge.json"
    path.write_text('{"fit": []}')
    assert "is not a knowledge file" in error_of("simulate", str(trained), *ON, "--knowledge", str(path))


def test_a_charge_that_applies_to_no_job_is_rejected(jobs: Path, samples: Path, error_of: TextOf) -> None:
    for charge, words in (("model", "trains a model in the catalogue"), (str(samples), "has samples of")):
        message = error_of("simulate", str(jobs), *ON, "--charge", charge)
        assert f"--charge {charge} applies to no job of jobs" in message and words in message


def test_knowledge_without_effect_is_rejected(jobs: Path, tmp_path: Path, error_of: TextOf) -> None:
    path = tmp_path / "knowledge.json"
    path.write_text("{}")
    message = error_of("simulate", str(jobs), *ON, "--charge", "recorded", "--knowledge", str(path))
    assert "none of the policies uses job speeds" in message


def test_the_list_of_policies_shows_only_non_default_knowledge(
    half: Path, monkeypatch: pytest.MonkeyPatch, stdout_of: TextOf, json_of: JsonOf
) -> None:
    monkeypatch.setenv("REFOLD_POLICIES", str(half.parent))
    assert "knowledge={}" in stdout_of("policies")
    assert json_of("policies")["policies"][-1]["settings"] == {"knowledge": {}}
