"""Progress and patterns are read from the output of runs and from progress files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from refold.core.events import Event, RunProgressed
from refold.model import Job, Launch, Plan
from refold.server.config.settings import OutputRule
from refold.server.monitor.output import MAX_BYTES_PER_POLL, OutputWatch
from refold.server.output.log_files import rotate_log
from refold.server.output.run_files import RunFiles

STEPS = Launch(progress=r"step (\S+)")


class WatchSetup:
    """An output watch on a folder, its reports and notes, and a run that writes there."""

    def __init__(self, folder: Path, *rules: OutputRule, max_match_seconds: float = 60.0) -> None:
        self.files = RunFiles(folder, "job", 1)
        self.files.folder.mkdir()
        self.reports: list[Event] = []
        self.notes: list[tuple[str, str]] = []
        self.watch = OutputWatch(
            folder,
            self.reports.append,
            rules,
            self._note,
            lambda job, slow: f" (instance {slow.instance} of {job})",
            max_match_seconds=max_match_seconds,
        )

    def _note(self, job: str, text: str) -> None:
        self.notes.append((job, text))

    def follow(self, launch: Launch, instances: int = 1) -> None:
        self.watch.follow(Job("job", launch=launch), 1, instances)

    def write(self, text: str, instance: int = 0) -> None:
        with self.files.log(instance).open("a", newline="") as log:
            log.write(text)

    def steps(self) -> list[int | None]:
        """Poll once; return the reported step counts."""
        self.reports.clear()
        self.watch.poll()
        assert all(isinstance(report, RunProgressed) for report in self.reports)
        return [report.steps for report in self.reports if isinstance(report, RunProgressed)]


MakeSetup = Callable[..., WatchSetup]


@pytest.fixture
def setups(tmp_path: Path) -> Iterator[MakeSetup]:
    created: list[WatchSetup] = []

    def make(*rules: OutputRule, **options: float) -> WatchSetup:
        created.append(WatchSetup(tmp_path, *rules, **options))
        return created[-1]

    yield make
    for setup in created:
        setup.watch.close()


def test_the_last_new_step_is_reported_once(setups: MakeSetup) -> None:
    run = setups()
    run.follow(STEPS)
    assert run.steps() == []
    run.write("step 1\nstep 2\nstep 3")
    assert run.steps() == [2]
    assert run.reports == [RunProgressed("job", 1, steps=2)]
    run.write("0\n")
    assert run.steps() == [30]
    run.write("nothing new\n")
    assert run.steps() == []


def test_carriage_returns_separate_lines(setups: MakeSetup) -> None:
    run = setups()
    run.follow(STEPS)
    run.write("\rstep 1\rstep 2\rstep")
    assert run.steps() == [2]


NUMBERS = {
    "1,200": [1200],
    "1_000": [1000],
    "nan": [],
    "-4": [],
    "٣": [],
    str(2**40 + 1): [],
    "9" * 100: [],
}


@pytest.mark.parametrize(("text", "steps"), NUMBERS.items())
def test_invalid_step_counts_are_ignored(setups: MakeSetup, text: str, steps: list[int]) -> None:
    run = setups()
    run.follow(STEPS)
    run.write(f"step {text}\n")
    assert run.steps() == steps


def test_progress_may_be_written_to_a_file_instead(setups: MakeSetup) -> None:
    run = setups()
    run.follow(Launch(), instances=2)
    run.files.progress(1).write_text("7\n")
    assert run.steps() == [7]
    assert run.steps() == []
    run.files.progress(0).write_text("9\n")
    assert run.steps() == [9]


def test_a_slow_rank_is_noted_once_with_its_place(setups: MakeSetup) -> None:
    setup = setups()
    setup.follow(Launch())
    for step in (1, 2, 3):
        slow = r'{"instance":1,"local_rank":0,"what":"rank\u0020\u001b2 is slow"}'.replace(" is ", r"\u0020is\u0020")
        setup.files.progress(0).write_text(f"{step} slow={slow}\n")
        setup.watch.poll()
    assert setup.notes == [("job", "rank 2 is slow (instance 1 of job)")]
    assert setup.reports == [RunProgressed("job", 1, steps=step) for step in (1, 2, 3)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("120", [RunProgressed("job", 1, steps=120)]),
        ("120 loss=2.31 samples_per_second=88.1", [RunProgressed("job", 1, 0.0, 120, 2.31, 88.1)]),
        ("1,200 samples_per_second=0.5", [RunProgressed("job", 1, 0.0, 1200, None, 0.5)]),
        ("120 loss=nan samples_per_second=-1 other=3", [RunProgressed("job", 1, steps=120)]),
        ('120 loss=2.5 plan={"data":2}', [RunProgressed("job", 1, 0.0, 120, 2.5, None, Plan(data=2))]),
        ("120 plan=dp2", [RunProgressed("job", 1, steps=120)]),
        ("120 loss=", [RunProgressed("job", 1, steps=120)]),
        ("120 of 300", []),
        ("loss=2.31", []),
        ("", []),
    ],
)
def test_a_progress_file_may_have_loss_and_speed(setups: MakeSetup, text: str, expected: list[Event]) -> None:
    setup = setups()
    setup.follow(Launch())
    setup.files.progress(0).write_text(text + "\n")
    setup.watch.poll()
    setup.watch.poll()
    assert setup.reports == expected


def test_only_the_end_of_a_flood_is_read(setups: MakeSetup) -> None:
    run = setups()
    run.follow(STEPS)
    run.write("step 1\n" + "x" * MAX_BYTES_PER_POLL + "\nstep 5\n")
    assert run.steps() == [5]


def test_output_is_followed_through_rotation(setups: MakeSetup) -> None:
    run = setups()
    run.follow(STEPS)
    run.write("step 1\n")
    assert run.steps() == [1]
    run.write("step 2\nstep")
    rotate_log(run.files.log(0), keep=1000)
    run.write(" 3\n")
    assert run.steps() == [3]


def test_no_retry_patterns_of_a_job(setups: MakeSetup) -> None:
    run = setups()
    run.follow(Launch(never_retry=("^ValueError", "no such data")), instances=2)
    assert not run.watch.matches_no_retry("job", 1)
    run.write("ValueError: 3", instance=1)
    assert run.watch.matches_no_retry("job", 1)
    assert not run.watch.matches_no_retry("job", 2)


def test_an_early_match_is_remembered(setups: MakeSetup) -> None:
    run = setups()
    run.follow(Launch(never_retry=("^ValueError",)))
    run.write("ValueError: 3\n")
    run.watch.poll()
    run.write("x" * 2 * MAX_BYTES_PER_POLL)
    assert run.watch.matches_no_retry("job", 1)


def test_configured_rules_apply_to_every_job(setups: MakeSetup) -> None:
    run = setups(OutputRule("uncorrectable ECC", "drain-node"), OutputRule("SyntaxError", "no-retry"))
    run.follow(Launch())
    run.write("an uncorrectable ECC error")
    assert (run.watch.matches_no_retry("job", 1), run.watch.drain_pattern("job", 1)) == (False, "uncorrectable ECC")
    run.write("SyntaxError")
    assert run.watch.matches_no_retry("job", 1)


def test_a_slow_pattern_is_disabled_after_its_match(setups: MakeSetup) -> None:
    run = setups(max_match_seconds=0.0)
    run.follow(Launch(progress=r"step (\d+)", never_retry=("fatal",)))
    run.write("step 1\nfatal\n")
    assert run.steps() == [1]
    assert run.notes == [
        ("job", "progress: 'step (\\\\d+)' took too long on the job's output and was disabled"),
        ("job", "never_retry: 'fatal' took too long on the job's output and was disabled"),
    ]
    assert run.watch.matches_no_retry("job", 1)
    run.write("step 2\n")
    assert run.steps() == []
    assert len(run.notes) == 2


def test_backtracking_does_not_disable_a_pattern(setups: MakeSetup) -> None:
    run = setups()
    run.follow(Launch(progress="step (a+)+$", never_retry=("fatal",)))
    run.write("step " + "a" * 60 + "!\nfatal\n")
    assert run.steps() == []
    assert run.watch.matches_no_retry("job", 1)
    assert run.notes == []


def test_an_invalid_pattern_of_a_stored_job_is_ignored(setups: MakeSetup) -> None:
    run = setups()
    run.follow(Launch(progress=r"step (\d+)(?=!)", never_retry=("fatal",)))
    run.write("step 1!\nfatal\n")
    assert run.steps() == []
    assert run.watch.matches_no_retry("job", 1)


def test_a_forgotten_run_is_not_read(setups: MakeSetup) -> None:
    run = setups()
    run.follow(STEPS)
    run.watch.forget("job", 1)
    run.write("step 3\n")
    assert run.steps() == []
