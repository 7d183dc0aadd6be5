"""`refold tune`, and the policy files that it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from real_daemon import wait_until
from served_daemon import END_SECONDS, ServedDaemon
from typer.testing import Result

from refold.cli import parallel_runs
from refold.simulator.registry import default_settings, make_policy, setting_ranges

TextOf = Callable[..., str]
JsonOf = Callable[..., Any]
Invoke = Callable[..., Result]

SLOW = '''
from refold.core import View
from refold.model import Allocation, Decision, Reason, Start, Wait
from refold.placement import Placer


class Slow:
    """Order of arrival; jobs start some time after their submission."""

    name = "slow"

    def __init__(self, patience: float = 4000.0) -> None:
        self._patience = patience
        self._placer = Placer("best-fit")

    def decide(self, view: View) -> Decision:
        self._placer.observe(view)
        trial = view.trial()
        starts, waits, due = [], [], []
        for job in view.waiting.values():
            at = job.submitted + self._patience
            placement = trial.place(self._placer, job.demand) if view.now >= at else None
            if placement is not None:
                starts.append(Start(job.id, Allocation(placement)))
                continue
            waits.append(Wait(job.id, Reason.RESOURCES, shortage=view.shortage(job.demand)))
            due += [at] if at > view.now else []
        return Decision(starts=tuple(starts), waits=tuple(waits), wake_at=min(due, default=None))
'''


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """400 jobs in about three weeks, on a cluster of two nodes of four GPUs."""
    random = np.random.default_rng(0)
    submitted = np.cumsum(random.exponential(4000.0, 400)).astype(int)
    rows = [
        f"j{number},{at},{gpus},{int(seconds)}"
        for number, (at, gpus, seconds) in enumerate(
            zip(submitted, random.choice([1, 2, 4], 400), random.lognormal(7.0, 1.0, 400), strict=True)
        )
    ]
    path = tmp_path / "history.csv"
    path.write_text("\n".join(["job_id,submit_s,num_gpu,duration_s", *rows, ""]))
    return path


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    path = tmp_path / "slow.py"
    path.write_text(SLOW)
    return path


@pytest.fixture
def tune(history: Path, tmp_path: Path) -> tuple[str, ...]:
    return ("tune", str(history), "--cluster", "2x4", "--trials", "8", "--out", str(tmp_path / "out"))


def report_of(document: Any) -> Any:
    """Return the document without the paths of the output folder."""
    assert Path(document["picture"]).read_text().startswith("<!doctype html>")
    return {key: value for key, value in document.items() if key not in ("picture", "policy_file")}


def test_better_settings_are_recommended_and_written(
    tune: tuple[str, ...], history: Path, slow: Path, tmp_path: Path, json_of: JsonOf, stdout_of: TextOf
) -> None:
    options = ("--policy", str(slow), "--objective", "delay", "--range", "patience=1:9000", "--baselines")
    found = json_of(*tune, *options, "fifo")
    assert (found["recommended"], found["policy_file"]) == (False, None)
    assert "than fifo [" in found["verdict"]
    path = tmp_path / "out" / "policy.yaml"
    assert not path.exists()
    found = json_of(*tune, *options, "")
    assert (found["recommended"], found["policy_file"]) == (True, str(path))
    chosen = next(row for row in found["report"]["rows"] if row["policy"]["number"] == found["report"]["chosen"])
    assert default_settings(str(path)) == {"patience": chosen["policy"]["settings"]["patience"]}
    assert "Recommended: point" in stdout_of(*tune, *options, "")
    arguments = ("--cluster", "2x4", "--policies", f"{slow},{path}", "--out", str(tmp_path / "compared"))
    runs = json_of("compare", str(history), *arguments)["runs"]
    assert [run["name"] for run in runs] == ["slow", str(path)]
    assert runs[1]["measures"]["waiting"]["mean"] < runs[0]["measures"]["waiting"]["mean"] / 2


def test_nothing_is_recommended_that_is_not_better(tune: tuple[str, ...], tmp_path: Path, stdout_of: TextOf) -> None:
    text = stdout_of(*tune, "--policy", "las", "--baselines", "fifo")
    assert "No recommendation: " in text
    assert not (tmp_path / "out" / "policy.yaml").exists()


def test_a_history_with_too_few_jobs_is_not_tuned_on(tmp_path: Path, stdout_of: TextOf) -> None:
    options = ("--policy", "las", "--trials", "8", "--limit", "600", "--objective", "tail", "--out", str(tmp_path))
    text = stdout_of("tune", "demo", *options)
    assert "No recommendation: not enough jobs. The best settings differ from the default ones in 2 parts" in text
    assert "fifo" not in text  # nothing is compared on the later jobs


def test_the_same_command_simulates_nothing_twice(
    tune: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, json_of: JsonOf
) -> None:
    first = json_of(*tune, "--policy", "las", "--baselines", "fifo")

    def fail(*_: object) -> None:
        raise AssertionError("simulated again")

    monkeypatch.setattr(parallel_runs, "simulate_part", fail)
    assert json_of(*tune, "--policy", "las", "--baselines", "fifo") == first


def test_a_search_that_was_interrupted_continues(
    tune: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, json_of: JsonOf, invoke: Invoke
) -> None:
    options = (*tune[:-1], str(tmp_path / "whole"), "--policy", "las", "--baselines", "fifo")
    whole = json_of(*options)
    simulate, calls = parallel_runs.simulate_part, []

    def interrupt(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 12:
            raise KeyboardInterrupt
        return simulate(*arguments)

    monkeypatch.setattr(parallel_runs, "simulate_part", interrupt)
    stopped = invoke(*tune, "--policy", "las", "--baselines", "fifo")
    assert stopped.exit_code == 130
    assert "the same command continues" in stopped.stderr
    assert report_of(json_of(*tune, "--policy", "las", "--baselines", "fifo")) == report_of(whole)


def test_several_workers_give_the_same_results(tune: tuple[str, ...], tmp_path: Path, json_of: JsonOf) -> None:
    options = ("--policy", "las", "--baselines", "fifo", "--trials", "2")
    other = (*tune[:-1], str(tmp_path / "other"))
    assert report_of(json_of(*other, *options, "--workers", "2")) == report_of(json_of(*tune, *options))


def test_a_study_of_another_history_is_refused(tune: tuple[str, ...], json_of: JsonOf, error_of: TextOf) -> None:
    json_of(*tune, "--policy", "las", "--baselines", "fifo", "--trials", "1")
    assert "study of other inputs (differs in: jobs)" in error_of(*tune, "--policy", "las", "--limit", "350")
    assert "(differs in: overheads)" in error_of(*tune, "--policy", "las", "--restart-cost", "1m")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--weights", "delay=2", "--objective", "tail"), "both say what to minimise"),
        (("--weights", "delay"), "--weights delay: expected NAME=WEIGHT, such as delay=2"),
        (("--weights", "dely=1"), "unknown measure 'dely'; did you mean 'delay'?"),
        (("--objective", "tails"), "unknown objective 'tails'; did you mean 'tail'?"),
        (("--range", "threshold_gpu_seconds"), "expected KEY=LOW:HIGH or KEY=A,B,…"),
        (("--range", "treshold_gpu_seconds=1:2"), "did you mean 'threshold_gpu_seconds'?"),
        (("--range", "threshold_gpu_seconds=9:2"), "expected ascending numbers"),
        (("--set", "threshold_gpu_seconds=60"), "no setting of las varies"),
    ],
)
def test_errors_are_one_line(tune: tuple[str, ...], options: tuple[str, ...], message: str, error_of: TextOf) -> None:
    assert message in error_of(*tune, "--policy", "las", *options)


@pytest.mark.parametrize(
    ("row", "cluster", "message"),
    [
        ("{at},1,10", "8x8", "no job of the tuning part waits under the default settings: there is nothing to tune"),
        ("{at},8,10", "1x4", "no job of the tuning part ends under the default settings: do jobs fit the cluster?"),
        ("0,1,10", "1x4", "jobs that are submitted at the same time are not divided"),
    ],
)
def test_histories_that_cannot_be_tuned_on_are_refused(
    row: str, cluster: str, message: str, tmp_path: Path, error_of: TextOf
) -> None:
    path = tmp_path / "jobs.csv"
    rows = [f"j{number},{row.format(at=100 * number)}" for number in range(150)]
    path.write_text("\n".join(["job_id,submit_s,num_gpu,duration_s", *rows, ""]))
    options = ("--cluster", cluster, "--policy", "las", "--gpus-per-instance", "8", "--out", str(tmp_path / "out"))
    assert message in error_of("tune", str(path), *options)


# Policy files and ranges.


def policy_file(folder: Path, text: str) -> str:
    path = folder / "tuned.yaml"
    path.write_text(text)
    return str(path)


def test_a_policy_file_stands_for_a_policy_with_settings(tmp_path: Path, json_of: JsonOf) -> None:
    path = policy_file(tmp_path, "name: las\nsettings: {threshold_gpu_seconds: 60}\ntuned: {history: x}\n")
    assert make_policy(path).name == "las"
    assert default_settings(path)["threshold_gpu_seconds"] == 60
    simulated = json_of("simulate", "demo", "--limit", "20", "--policy", path, "--seed", "3")
    assert (simulated["policy"], simulated["settings"]) == ("las", {"threshold_gpu_seconds": 60, "seed": 3})


def test_a_python_file_in_a_policy_file_is_relative_to_it(tmp_path: Path, slow: Path) -> None:
    path = policy_file(tmp_path, f"name: {slow.name}\n")
    assert make_policy(path, {"patience": 5.0}).name == "slow"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: lass\n", "tuned.yaml line 1: name: unknown policy 'lass'; did you mean 'las'"),
        ("name: las\nsettings: {x: 1}\n", "tuned.yaml line 2: settings: unknown field 'x'"),
        ("settings: {}\n", "tuned.yaml line 1: name is missing"),
        ("name: other.yaml\n", "name is 'other.yaml', expected the name of a policy, or a Python file"),
    ],
)
def test_errors_of_policy_files_name_the_line(tmp_path: Path, text: str, message: str, error_of: TextOf) -> None:
    path = policy_file(tmp_path, text)
    assert message in error_of("simulate", "demo", "--limit", "20", "--policy", path)


def test_a_policy_without_declared_ranges_gets_them_from_its_defaults(slow: Path) -> None:
    assert setting_ranges(str(slow))["patience"].value(0.0) == 1000.0
    assert "seed" not in setting_ranges("fifo")


@pytest.mark.parametrize("name", ["refold", "easy", "conservative", "las", "tiresias"])
def test_policies_accept_both_ends_of_their_ranges(name: str) -> None:
    for key, one in setting_ranges(name).items():
        for share in (0.0, 0.5, 1.0):
            make_policy(name, {key: one.value(share)})


# `refold serve` with a policy file.


def test_the_daemon_takes_the_policy_file_that_tune_wrote(
    tune: tuple[str, ...], slow: Path, tmp_path: Path, json_of: JsonOf
) -> None:
    found = json_of(
        *tune, "--policy", str(slow), "--objective", "delay", "--range", "patience=1:9000", "--baselines", ""
    )
    settings = default_settings(found["policy_file"])
    daemon = ServedDaemon(
        tmp_path / "state", tmp_path / "log", ["--slots", "1", "--policy", found["policy_file"]], os.environ
    )
    daemon.launch()

    try:
        wait_until(lambda: daemon.is_serving or daemon.has_ended, END_SECONDS, "the daemon serves")
        with daemon.client() as client:
            header = json.loads(client.journal(tmp_path / "journal.jsonl").read_text().splitlines()[0])
        assert Path(header["policy"]).name == "slow.py"
        used = header["settings"]
    finally:
        daemon.kill()
    assert {**used, **settings} == used


def test_the_daemon_refuses_a_policy_file_in_one_line(tmp_path: Path) -> None:
    path = policy_file(tmp_path, "name: las\nsettings: {threshold: 60}\n")
    words = ("serve", "--slots", "1", "--port", "0", "--state", str(tmp_path / "state"), "--policy", path)
    ended = subprocess.run(
        [sys.executable, "-m", "refold", *words], capture_output=True, text=True, timeout=END_SECONDS, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1), ended.stderr
    assert ended.stderr.startswith(f"error: {path} line 2: settings: unknown field 'threshold'")
