"""Progress is read from output or from a file, and so is that trying again is of no use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from refold.backends.local.log_files import rotate
from refold.backends.local.run_files import RunFiles
from refold.core.events import Event, RunProgressed
from refold.jobspec.patterns import Matcher
from refold.model import Job, Launch
from refold.server.config.settings import OutputRule
from refold.server.monitor.output import MOST_PER_LOOK, OutputWatch

STEPS = Launch(progress=r"step (\S+)")


class Watched:
    """A watch over a folder, what it has reported and noted, and a run that writes there."""

    def __init__(self, folder: Path, *rules: OutputRule) -> None:
        self.files = RunFiles(folder, "job", 1)
        self.files.folder.mkdir()
        self.reports: list[Event] = []
        self.notes: list[tuple[str, str]] = []
        self.watch = OutputWatch(folder, self.reports.append, rules, self._note, Matcher(patience=0.2))

    def _note(self, job: str, sentence: str) -> None:
        self.notes.append((job, sentence))

    def follow(self, launch: Launch, instances: int = 1) -> None:
        self.watch.follow(Job("job", launch=launch), 1, instances)

    def write(self, text: str, instance: int = 0) -> None:
        with self.files.log(instance).open("a", newline="") as log:
            log.write(text)

    def steps(self) -> list[int | None]:
        """What is reported after one more look."""
        self.reports.clear()
        self.watch.look()
        assert all(isinstance(report, RunProgressed) for report in self.reports)
        return [report.steps for report in self.reports if isinstance(report, RunProgressed)]


Make = Callable[..., Watched]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Make]:
    made: list[Watched] = []

    def make(*rules: OutputRule) -> Watched:
        made.append(Watched(tmp_path, *rules))
        return made[-1]

    yield make
    for each in made:
        each.watch.close()


def test_the_last_step_of_what_is_new_is_reported_once(watched: Make) -> None:
    run = watched()
    run.follow(STEPS)
    assert run.steps() == []
    run.write("step 1\nstep 2\nstep 3")
    assert run.steps() == [2]
    assert run.reports == [RunProgressed("job", 1, steps=2)]
    run.write("0\n")
    assert run.steps() == [30]
    run.write("nothing new\n")
    assert run.steps() == []


def test_lines_that_are_written_over_are_lines(watched: Make) -> None:
    run = watched()
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
def test_what_is_no_number_of_steps_is_not_taken_for_one(watched: Make, text: str, steps: list[int]) -> None:
    run = watched()
    run.follow(STEPS)
    run.write(f"step {text}\n")
    assert run.steps() == steps


def test_progress_may_be_written_to_a_file_instead(watched: Make) -> None:
    run = watched()
    run.follow(Launch(), instances=2)
    run.files.progress(1).write_text("7\n")
    assert run.steps() == [7]
    assert run.steps() == []
    run.files.progress(0).write_text("9\n")
    assert run.steps() == [9]


def test_of_a_flood_the_end_is_looked_at(watched: Make) -> None:
    run = watched()
    run.follow(STEPS)
    run.write("step 1\n" + "x" * MOST_PER_LOOK + "\nstep 5\n")
    assert run.steps() == [5]


def test_output_is_followed_through_rotation(watched: Make) -> None:
    run = watched()
    run.follow(STEPS)
    run.write("step 1\n")
    assert run.steps() == [1]
    run.write("step 2\nstep")
    rotate(run.files.log(0), keep=1000)
    run.write(" 3\n")
    assert run.steps() == [3]


def test_a_job_says_which_failures_are_for_good(watched: Make) -> None:
    run = watched()
    run.follow(Launch(never_retry=("^ValueError", "no such data")), instances=2)
    assert not run.watch.never_retry("job", 1)
    run.write("ValueError: 3", instance=1)
    assert run.watch.never_retry("job", 1)
    assert not run.watch.never_retry("job", 2)


def test_what_was_said_early_is_remembered(watched: Make) -> None:
    run = watched()
    run.follow(Launch(never_retry=("^ValueError",)))
    run.write("ValueError: 3\n")
    run.watch.look()
    run.write("x" * 2 * MOST_PER_LOOK)
    assert run.watch.never_retry("job", 1)


def test_rules_of_the_cluster_hold_for_every_job(watched: Make) -> None:
    run = watched(OutputRule("uncorrectable ECC", "drain-node"), OutputRule("SyntaxError", "no-retry"))
    run.follow(Launch())
    run.write("an uncorrectable ECC error")
    assert (run.watch.never_retry("job", 1), run.watch.drains("job", 1)) == (False, "uncorrectable ECC")
    run.write("SyntaxError")
    assert run.watch.never_retry("job", 1)


def test_a_pattern_that_takes_too_long_is_switched_off_and_the_others_are_not(watched: Make) -> None:
    run = watched()
    run.follow(Launch(progress="step (a+)+$", never_retry=("fatal",)))
    run.write("step " + "a" * 60 + "!\nfatal\n")
    assert run.steps() == []
    assert run.notes == [("job", "progress: 'step (a+)+$' takes too long on its output and is not looked for any more")]
    assert run.watch.never_retry("job", 1)
    run.write("step " + "a" * 60 + "!\n")
    run.watch.look()
    assert len(run.notes) == 1


def test_a_run_that_is_forgotten_is_not_looked_at(watched: Make) -> None:
    run = watched()
    run.follow(STEPS)
    run.watch.forget("job", 1)
    run.write("step 3\n")
    assert run.steps() == []
