"""`refold run`."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from refold.cli.commands.run import run
from refold.core.events import JobSubmitted
from refold.errors import BadFile, BadInput, BadValue, UnknownName
from refold.journal.files import check_replay, read_journal
from refold.simulator.registry import make_policy

TIMEOUT_SECONDS = 30.0


def refold_run(folder: Path, jobs: str, *options: str) -> Result:
    """Run `refold run` on a list of jobs with one slot, in a folder."""
    app = typer.Typer()
    app.command()(run)
    (folder / "jobs.yaml").write_text(jobs)
    arguments = [str(folder / "jobs.yaml"), "--slots", "1", "--out", str(folder / "out"), *options]
    return CliRunner().invoke(app, arguments)


def without_times(text: str) -> list[str]:
    return [re.sub(r"^ *[\d.]+ s", "T", line.rstrip()) for line in text.splitlines()]


def test_events_and_final_states_are_printed(tmp_path: Path) -> None:
    jobs = """
    - {name: good, run: 'true'}
    - {name: bad, run: 'echo one; printf "5%%\\r\\033[31m9%%\\033[0m\\n"; echo oops >&2; exit 3'}
    - {name: wide, run: 'true', gpus: 2}
    - {name: half, run: 'true', gpus: 0.5}
    """
    result = refold_run(tmp_path, jobs)
    assert result.exit_code == 1
    assert without_times(result.stdout)[:10] == [
        "T  wide  infeasible: requests 2 GPUs",
        "T  good  started on slot 0",
        "T  good  finished",
        "T  bad   started on slot 0",
        "T  bad   failed: exit 3",
        "            run-1.0.log: one",
        "            run-1.0.log: 9%",
        "            run-1.0.log: oops",
        "T  half  started on 0.5 of slot 0",
        "T  half  finished",
    ]
    table = [line.split()[:2] for line in result.stdout.splitlines()[13:17]]
    assert table == [["good", "finished"], ["bad", "failed"], ["wide", "infeasible"], ["half", "finished"]]


def test_with_json_stdout_has_only_the_document(tmp_path: Path) -> None:
    result = refold_run(tmp_path, "- {name: a, run: 'true'}", "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 0
    assert [(job["job"], job["state"], job["runs"]) for job in document["jobs"]] == [("a", "finished", 1)]
    assert Path(document["journal"]).exists()


def test_the_journal_replays_with_its_own_settings(tmp_path: Path) -> None:
    options = ("--policy", "las", "--set", "threshold_gpu_seconds=0.5", "--placement", "first-fit")
    assert refold_run(tmp_path, "- {name: a, run: 'true'}\n- {name: b, run: 'true'}", *options).exit_code == 0
    header, entries = read_journal(tmp_path / "out" / "journal.jsonl")
    assert (header.policy, header.settings) == ("las", {"placement": "first-fit", "threshold_gpu_seconds": 0.5})
    assert check_replay(header, entries, make_policy(header.policy, header.settings)) > 0


def test_jobs_are_submitted_at_their_times(tmp_path: Path) -> None:
    jobs = "- {name: later, run: 'true', begin: 300ms}\n- {name: first, run: 'true'}"
    assert refold_run(tmp_path, jobs).exit_code == 0
    _, entries = read_journal(tmp_path / "out" / "journal.jsonl")
    submitted = {
        event.job.id: entry.now for entry in entries for event in entry.events if isinstance(event, JobSubmitted)
    }
    assert list(submitted) == ["first", "later"]
    assert submitted["later"] >= 0.3


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (("--policy", "fiffo"), UnknownName, "did you mean 'fifo'"),
        (("--set", "seed"), BadInput, "expected KEY=VALUE"),
        (("--set", "sead=1"), UnknownName, "did you mean 'seed'"),
        (("--grace", "soon"), BadValue, "not a duration"),
        (("--out", "/dev/null"), BadFile, "cannot create the folder"),
    ],
)
def test_bad_options_are_rejected_and_no_folder_is_created(
    tmp_path: Path, options: tuple[str, ...], error: type[Exception], text: str
) -> None:
    result = refold_run(tmp_path, "- {name: a, run: 'true'}", *options)
    assert isinstance(result.exception, error)
    assert text in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_an_earlier_journal_is_not_overwritten(tmp_path: Path) -> None:
    refold_run(tmp_path, "- {name: a, run: 'true'}")
    before = (tmp_path / "out" / "journal.jsonl").read_bytes()
    assert isinstance(refold_run(tmp_path, "- {name: a, run: 'true'}").exception, BadFile)
    assert (tmp_path / "out" / "journal.jsonl").read_bytes() == before


def refold_run_process(folder: Path, jobs: str, grace: str) -> subprocess.Popen[str]:
    """Start `refold run` as a process; it prints its first line when it has started a job."""
    (folder / "jobs.yaml").write_text(jobs)
    program = "import typer; from refold.cli.commands.run import run; typer.run(run)"
    arguments = ["jobs.yaml", "--slots", "1", "--out", "out", "--json", "--grace", grace]
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def interrupt(folder: Path, jobs: str, signals: list[signal.Signals], grace: str) -> tuple[int, dict[str, str]]:
    """Send `refold run` a signal after each line that it prints; return its exit status and the states of the jobs."""
    process = refold_run_process(folder, jobs, grace)
    try:
        assert process.stderr is not None
        for number in signals:
            process.stderr.readline()
            process.send_signal(number)
        output, _ = process.communicate(timeout=TIMEOUT_SECONDS)
    finally:
        process.kill()
        process.wait()
    return process.returncode, {job["job"]: job["state"] for job in json.loads(output)["jobs"]}


def replays(folder: Path) -> bool:
    header, entries = read_journal(folder / "out" / "journal.jsonl")
    return check_replay(header, entries, make_policy(header.policy, header.settings)) > 0


THREE_JOBS = """
- {name: running, run: 'exec sleep 1000'}
- {name: waiting, run: 'exec sleep 1000'}
- {name: later, run: 'exec sleep 1000', begin: 1h}
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_on_a_signal_all_runs_are_stopped_before_the_end(tmp_path: Path, number: signal.Signals, status: int) -> None:
    ended = {"running": "cancelled", "waiting": "cancelled", "later": "not submitted"}
    assert interrupt(tmp_path, THREE_JOBS, [number], "60s") == (status, ended)
    assert replays(tmp_path)


def test_a_second_interrupt_kills_runs_that_do_not_stop(tmp_path: Path) -> None:
    jobs = "- {name: stubborn, run: \"trap '' TERM; while :; do sleep 0.05; done\"}"
    assert interrupt(tmp_path, jobs, [signal.SIGINT, signal.SIGINT], "1h") == (130, {"stubborn": "cancelled"})
    assert replays(tmp_path)


def test_runs_have_their_grace_period_when_the_terminal_is_closed(tmp_path: Path) -> None:
    jobs = (
        "- {name: polite, run: \"trap 'sleep 0.2; echo >saved; exit 0' TERM; echo >up; while :; do sleep 0.05; done\"}"
    )
    with refold_run_process(tmp_path, jobs, "60s") as process:
        assert process.stderr is not None
        process.stderr.readline()
        while not (tmp_path / "up").exists():
            time.sleep(0.02)
        process.stderr.close()
        process.send_signal(signal.SIGHUP)
        assert process.wait(TIMEOUT_SECONDS) == 129
    assert (tmp_path / "saved").exists()
    assert replays(tmp_path)
