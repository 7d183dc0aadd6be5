"""How fast jobs are in a simulation, and what policies are told of it: `--charge`, `--knowledge`, `--fit`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold.journal.files import read_journal
from refold.model import Plan
from refold.plans.speeds import Speeds
from refold.testing import make_job
from refold.traces.formats import read_cluster

Said = Callable[..., str]
Told = Callable[..., Any]

HALF = '''
from refold.model import Allocation, Decision, Plan, Share, Start
from refold.plans.speeds import NOTHING_MORE, Knowledge


class Half:
    """Every job on the first half of the first node, with the plan that is known to be possible."""

    name = "half"

    def __init__(self, knowledge=NOTHING_MORE):
        self._menu = Knowledge.of(knowledge).menu

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
    """One job of 100 s and 100 steps on eight GPUs, which can have another shape."""
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
    return 100 * speeds.asked(job).steps_per_second / here.steps_per_second


def test_as_recorded_half_the_gpus_are_half_as_fast(trained: Path, half: Path, told: Told) -> None:
    found = told("simulate", str(trained), *ON, "--policy", str(half), "--charge", "recorded")
    assert makespan(found) == pytest.approx(200)


def test_jobs_that_the_catalogue_knows_are_as_fast_as_modelled(trained: Path, half: Path, told: Told) -> None:
    expected = modelled_on_half(Plan(4))
    assert abs(expected - 200) > 1
    for charge in ([], ["--charge", "model"]):
        assert makespan(told("simulate", str(trained), *ON, "--policy", str(half), *charge)) == pytest.approx(expected)


def test_a_table_of_samples_is_charged_as_it_stands(trained: Path, half: Path, samples: Path, told: Told) -> None:
    found = told("simulate", str(trained), *ON, "--policy", str(half), "--charge", str(samples))
    assert makespan(found) == pytest.approx(150)


def test_the_report_says_by_what_jobs_were_charged(trained: Path, samples: Path, tmp_path: Path, said: Said) -> None:
    said("simulate", str(trained), *ON, "--charge", str(samples), "--out", str(tmp_path / "out"))
    assert "1 of 1 jobs as fast as samples.csv has measured" in (tmp_path / "out" / "report.html").read_text()


def test_policies_are_told_what_is_known_and_the_journal_holds_it(
    trained: Path, half: Path, tmp_path: Path, said: Said, told: Told
) -> None:
    knowledge, journal = tmp_path / "knowledge.json", tmp_path / "j.jsonl"
    knowledge.write_text('{"menu": {"gpt2": [{"data": 4, "zero": 2, "offload": true}]}}')
    words = ("simulate", str(trained), *ON, "--policy", str(half), "--knowledge", str(knowledge))
    found = told(*words, "--journal", str(journal))
    assert makespan(found) == pytest.approx(modelled_on_half(Plan(4, zero=2, offload=True)))
    assert read_journal(journal)[0].settings["knowledge"] == json.loads(knowledge.read_text())
    assert "identical" in said("replay", str(journal))


def test_only_policies_that_ask_are_told(trained: Path, half: Path, tmp_path: Path, told: Told) -> None:
    knowledge = tmp_path / "knowledge.json"
    knowledge.write_text('{"menu": {}}')
    words = ("--policies", f"fifo,{half}", "--knowledge", str(knowledge), "--out", str(tmp_path / "out"))
    fifo, own = told("compare", str(trained), *ON, *words)["runs"]
    assert (fifo["settings"], own["settings"]) == ({}, {"knowledge": {}})


def test_several_processes_charge_the_same(
    trained: Path, half: Path, samples: Path, tmp_path: Path, told: Told
) -> None:
    words = ("--policies", f"fifo,{half}", "--charge", str(samples), "--out", str(tmp_path / "out"), "--processes", "2")
    runs = told("compare", str(trained), *ON, *words)["runs"]
    assert [makespan(run) for run in runs] == pytest.approx([100, 150])


def test_fits_correct_what_is_believed_and_charged(trained: Path, half: Path, tmp_path: Path, told: Told) -> None:
    fit = tmp_path / "fit.json"
    fit.write_text(json.dumps(FIT))
    words = ("simulate", str(trained), *ON, "--policy", str(half))
    found = told(*words, "--fit", str(fit))
    assert [one["model"] for one in found["settings"]["knowledge"]["fits"]] == ["gpt2-xl"]
    assert makespan(found) != pytest.approx(makespan(told(*words)))


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


def test_a_fit_of_another_form_is_refused(trained: Path, tmp_path: Path, refuses: Said) -> None:
    fit = tmp_path / "fit.json"
    fit.write_text(json.dumps(FIT | {"form": "rubick-power", "values": {"k_bwd": 2.0}}))
    said = refuses("simulate", str(trained), *ON, "--fit", str(fit))
    assert "the fit of gpt2-xl on A800-80GB is of the form rubick-power and lacks compute" in said


def test_runs_can_say_how_far_they_are(trained: Path, half: Path, tmp_path: Path, told: Told) -> None:
    def progressed(*words: str) -> int:
        journal = tmp_path / "j.jsonl"
        told("simulate", str(trained), *ON, "--charge", "recorded", *words, "--journal", str(journal))
        return journal.read_text().count("RunProgressed")

    assert (progressed(), progressed("--report-every", "30s")) == (0, 3)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--charge", "modle"], "modle: no such file; --charge is recorded, model, or a CSV file of measured samples"),
        (["--knowledge", "none.json"], "none.json: cannot be read"),
        (["--fit", "none.json"], "none.json: cannot be read"),
        (["--report-every", "0s"], "report_every is seconds > 0"),
    ],
)
def test_what_cannot_be_is_one_line(trained: Path, words: list[str], problem: str, refuses: Said) -> None:
    assert problem in refuses("simulate", str(trained), *ON, *words)


def test_knowledge_that_is_none_is_refused(trained: Path, tmp_path: Path, refuses: Said) -> None:
    path = tmp_path / "knowledge.json"
    path.write_text('{"fit": []}')
    assert "is not what is known of speeds" in refuses("simulate", str(trained), *ON, "--knowledge", str(path))


def test_a_charge_that_is_about_no_job_is_refused(jobs: Path, samples: Path, refuses: Said) -> None:
    for charge, words in (("model", "that the catalogue knows"), (str(samples), "has samples of")):
        said = refuses("simulate", str(jobs), *ON, "--charge", charge)
        assert f"--charge {charge} is about no job of jobs" in said and words in said


def test_knowledge_that_would_change_nothing_is_refused(jobs: Path, tmp_path: Path, refuses: Said) -> None:
    path = tmp_path / "knowledge.json"
    path.write_text("{}")
    said = refuses("simulate", str(jobs), *ON, "--charge", "recorded", "--knowledge", str(path))
    assert "none of these does" in said


def test_the_list_of_policies_says_of_knowledge_only_what_is_unusual(
    half: Path, monkeypatch: pytest.MonkeyPatch, said: Said, told: Told
) -> None:
    monkeypatch.setenv("REFOLD_POLICIES", str(half.parent))
    assert "knowledge={}" in said("policies")
    assert told("policies")["policies"][-1]["settings"] == {"knowledge": {}}
