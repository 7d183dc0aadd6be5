"""Parts of a history, resampled blocks, the front, and when settings are recommended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from refold.errors import BadFile, BadInput
from refold.model import DAY, HOUR
from refold.placement import Floats
from refold.policies import Range
from refold.simulator.results import JobMeasures
from refold.simulator.tuning import (
    OBJECTIVES,
    CountedJobs,
    Doubt,
    Evaluated,
    Goal,
    HistoryPart,
    Objective,
    PartRun,
    ReportPart,
    ReportPolicy,
    Space,
    Study,
    StudyInputs,
    TrialBudget,
    TunedPolicy,
    Tuner,
    find_front,
    make_blocks,
    make_report,
    render_trade_off,
    split_history,
)
from refold.simulator.tuning.report import interval

JOBS = 200
DELAY = OBJECTIVES["delay"]


def measures(delay: Floats | float, jobs: int = JOBS) -> JobMeasures:
    return JobMeasures(np.broadcast_to(delay, jobs).astype(float), np.ones(jobs), np.zeros(jobs))


def noisy(mean: float, seed: int) -> JobMeasures:
    return measures(mean * np.random.default_rng(seed).uniform(0.5, 1.5, JOBS))


def policy(kind: str, name: str, number: int | None = None) -> ReportPolicy:
    return ReportPolicy(kind, name, "las", {}, number)  # type: ignore[arg-type]


PART = ReportPart(np.arange(JOBS, dtype=np.float64) * HOUR, np.where(np.arange(JOBS) % 4, 1.0, 8.0))


# Parts.


def test_the_report_part_begins_after_the_tuning_part() -> None:
    slices, report = split_history([float(number) for number in range(1000)], 0.4)
    assert [part.measured for part in slices] == [0, 75, 150, 225, 300, 375, 450, 525]
    assert max(part.last for part in slices) == report.measured == 600
    assert report == HistoryPart(500, 600, 1000)


def test_jobs_that_are_submitted_at_once_are_in_one_part() -> None:
    submitted = [0.0] * 50 + [1.0] * 110 + [2.0] * 60
    assert split_history(submitted, 0.4).report.measured == 160


def test_a_short_history_has_fewer_slices() -> None:
    assert len(split_history([float(number) for number in range(200)], 0.4).slices) == 2


def test_a_history_that_is_too_short_is_rejected() -> None:
    with pytest.raises(BadInput, match="expected a history of at least 100 jobs, found 99"):
        split_history([float(number) for number in range(99)], 0.4)


# Blocks.


@pytest.mark.parametrize(
    ("days", "block", "number"), [(70, 7 * DAY, 10), (30, 3 * DAY, 10), (7, DAY, 7), (2, 6 * HOUR, 8)]
)
def test_blocks_are_weeks_or_shorter_if_the_history_is_short(days: int, block: float, number: int) -> None:
    submitted = np.linspace(0.0, days * DAY - 1, 5000)
    blocks = make_blocks(submitted)
    assert (blocks.seconds, blocks.number) == (block, number)


def test_whole_blocks_are_resampled() -> None:
    blocks = make_blocks(np.linspace(0.0, 10 * DAY - 1, 100))
    weights = blocks.resample(seed=0)
    for block in range(blocks.number):
        of_block = weights[:, blocks.of_job == block]
        assert (of_block == of_block[:, :1]).all()
    assert set(np.unique(weights)) >= {0.0, 1.0, 2.0}


def test_intervals_of_few_blocks_are_wider() -> None:
    resampled = np.random.default_rng(0).normal(1.0, 0.1, 2000)
    widths = [interval(1.0, resampled, blocks) for blocks in (3, 6, 1000)]
    assert widths[0].high > widths[1].high > widths[2].high == pytest.approx(1.196, abs=0.02)
    assert interval(1.0, resampled, 1) == (1.0, 0.0, np.inf)


def test_intervals_contain_the_true_ratio_as_often_as_they_say() -> None:
    """Delays of jobs of one block are alike: 12 blocks of 5 jobs, with a true ratio of 1."""
    random = np.random.default_rng(1)
    part = ReportPart(np.repeat(np.arange(12.0) * DAY, 5), np.ones(60))
    contained = 0
    for _ in range(30):
        pair = [
            (policy("default", "default"), measures(np.repeat(random.lognormal(5.0, 0.5, 12), 5), 60)),
            (policy("point", "point 1", 1), measures(np.repeat(random.lognormal(5.0, 0.5, 12), 5), 60)),
        ]
        score = make_report(part, pair, DELAY, chosen=1).row(1).score
        contained += score.low <= 1.0 <= score.high
    assert contained >= 26  # 28 or 29 of 30 are expected; independent jobs would give about 15


# Measures.


def test_the_measures_of_jobs() -> None:
    delay = np.arange(100.0)
    jobs = JobMeasures(delay, delay / 10, np.where(delay < 50, 1.0, 0.0))
    gpus = np.where(delay >= 90, 8.0, 1.0)
    counted = CountedJobs.finished_under(jobs, gpus)
    assert counted.trade_off(jobs).tolist() == [49.5, 98.0, 94.5, 9.8, 0.5]


def test_jobs_that_the_default_settings_do_not_finish_are_not_counted() -> None:
    reference = measures(np.where(np.arange(JOBS) == 0, np.inf, 10.0))
    counted = CountedJobs.finished_under(reference, np.ones(JOBS))
    assert counted.trade_off(reference)[0] == 10.0
    assert counted.trade_off(measures(np.where(np.arange(JOBS) == 1, np.inf, 5.0)))[0] == np.inf


def test_a_score_is_the_weighted_mean_of_ratios_without_undefined_measures() -> None:
    objective = Objective({"delay": 1.0, "tail": 1.0, "wide": 5.0})
    values, reference = np.array([90.0, 390.0, np.nan, 1.0, 0.0]), np.array([390.0, 390.0, np.nan, 1.0, 0.0])
    assert float(objective.scores(values, reference)) == pytest.approx(0.5)


# The front.


def test_the_front_is_what_no_other_settings_beat() -> None:
    rows = [[9, 9, 9, 9, 9], [5, 8, 8, 8, 8], [4, 9, 8, 8, 8], [6, 9, 9, 9, 9]]
    found = [Evaluated({"n": number}, np.array(row, dtype=float)) for number, row in enumerate(rows)]
    assert [one.settings["n"] for one in find_front(found, DELAY)] == [2, 1]
    assert [one.settings["n"] for one in find_front(found, OBJECTIVES["tail"])] == [1, 2]


def test_settings_with_the_same_values_are_one_point_and_those_of_the_default_none() -> None:
    rows = [[4, 9], [5, 8], [4, 9], [5, 8]]
    found = [Evaluated({"n": number}, np.array([*row, 8, 8, 8], dtype=float)) for number, row in enumerate(rows)]
    assert [one.settings["n"] for one in find_front(found, DELAY)] == [1]


# Recommendations.


def test_settings_that_are_clearly_better_than_all_are_recommended() -> None:
    report = make_report(
        PART,
        [
            (policy("default", "default"), noisy(100.0, 1)),
            (policy("point", "point 1", 1), noisy(50.0, 2)),
            (policy("baseline", "fifo"), noisy(200.0, 3)),
            (policy("oracle", "srtf"), noisy(10.0, 4)),
        ],
        DELAY,
        chosen=1,
    )
    assert report.is_recommended
    assert [(gain.over, gain.relation, gain.required) for gain in report.gains] == [
        ("default", "better", True),
        ("fifo", "better", True),
        ("srtf", "worse", False),
    ]
    score = report.row(1).score
    assert score.low < score.value < score.high < 1


@pytest.mark.parametrize(("default", "baseline"), [(50.0, 200.0), (100.0, 50.0), (100.0, 20.0)])
def test_settings_that_are_not_clearly_better_than_one_are_not_recommended(default: float, baseline: float) -> None:
    results = [
        (policy("default", "default"), noisy(default, 1)),
        (policy("point", "point 1", 1), noisy(50.0, 2)),
        (policy("baseline", "fifo"), noisy(baseline, 3)),
    ]
    assert not make_report(PART, results, DELAY, chosen=1).is_recommended


def test_a_gain_in_one_block_only_is_not_recommended() -> None:
    default = measures(np.where(np.arange(JOBS) < 12, 10_000.0, 10.0))
    results = [(policy("default", "default"), default), (policy("point", "point 1", 1), measures(10.0))]
    assert not make_report(PART, results, DELAY, chosen=1).is_recommended


# The whole.


def tuner(delay_on_report: float) -> tuple[Tuner, list[PartRun]]:
    """Settings x < 10 halve the delays of the tuning part; on the report part they have the given delay."""
    runs: list[PartRun] = []
    split = split_history([number * HOUR for number in range(2 * JOBS)], 0.5)

    def simulate(wanted: Sequence[PartRun]) -> list[JobMeasures]:
        runs.extend(wanted)
        found = []
        for run in wanted:
            tuned = delay_on_report if run.part == split.report else 50.0
            delay = tuned if run.settings.get("x", 10.0) < 10.0 else 100.0
            found.append(measures(delay, run.part.last - run.part.measured))
        return found

    return Tuner(split, np.arange(2 * JOBS, dtype=np.float64) * HOUR, np.ones(2 * JOBS), simulate), runs


TUNED = TunedPolicy("las", Space({"x": Range(1.0, 100.0)}, {}, lambda _: True), {"x": 10.0})


def test_settings_are_recommended_only_if_they_are_better_on_the_part_that_was_not_seen() -> None:
    for delay_on_report, recommended in ((50.0, True), (100.0, False), (150.0, False)):
        result = tuner(delay_on_report)[0].tune(TUNED, Goal(DELAY), TrialBudget(16))
        assert result.report.chosen is not None
        assert result.report.is_recommended is recommended


def test_the_search_sees_no_job_of_the_report_part() -> None:
    tuning, runs = tuner(50.0)
    tuning.tune(TUNED, Goal(DELAY), TrialBudget(16))
    parts = [run.part for run in runs]
    first_report = next(number for number, part in enumerate(parts) if part.last > JOBS)
    assert all(part.last <= JOBS for part in parts[:first_report])
    assert {part.measured for part in parts[first_report:]} == {JOBS}


def lucky_tuner(winning_parts: int) -> tuple[Tuner, list[PartRun]]:
    """Settings x < 10 have a fifth of the delay on some of the eight parts, and a tenth more on the others."""
    runs: list[PartRun] = []
    split = split_history([number * HOUR for number in range(8 * JOBS)], 0.5)

    def simulate(wanted: Sequence[PartRun]) -> list[JobMeasures]:
        runs.extend(wanted)
        return [measures(delay(run), run.part.last - run.part.measured) for run in wanted]

    def delay(run: PartRun) -> float:
        if run.settings.get("x", 10.0) >= 10.0:
            return 100.0
        return 20.0 if run.part in (*split.slices[:winning_parts], split.report) else 110.0

    return Tuner(split, np.arange(8 * JOBS, dtype=np.float64) * HOUR, np.ones(8 * JOBS), simulate), runs


def test_settings_that_are_better_on_few_parts_of_the_tuning_jobs_are_not_trusted() -> None:
    """The search ends after its first batch, and only the default settings are simulated on the later jobs."""
    tuning, runs = lucky_tuner(3)
    result = tuning.tune(TUNED, Goal(DELAY), TrialBudget(48))
    assert (result.tried, result.report.chosen, result.report.is_recommended) == (16, None, False)
    assert result.report.doubt == Doubt(wins=3, needed=6, parts=8)
    assert [row.policy.kind for row in result.report.rows] == ["default"]
    assert sum(run.part.last > 4 * JOBS for run in runs) == 1


def test_settings_that_are_better_on_three_quarters_of_the_parts_are_trusted() -> None:
    result = lucky_tuner(6)[0].tune(TUNED, Goal(DELAY), TrialBudget(48))
    assert (result.tried, result.report.chosen, result.report.doubt) == (48, 1, None)


def test_a_point_that_is_not_trusted_can_be_picked() -> None:
    result = lucky_tuner(3)[0].tune(TUNED, Goal(DELAY, pick=1), TrialBudget(48))
    assert (result.tried, result.report.chosen, result.report.is_recommended) == (16, 1, True)


def test_a_point_can_be_picked_by_its_number() -> None:
    assert tuner(50.0)[0].tune(TUNED, Goal(DELAY, pick=1), TrialBudget(16)).report.chosen == 1
    with pytest.raises(BadInput, match="--pick 99: the trade-off has the points 1 to"):
        tuner(50.0)[0].tune(TUNED, Goal(DELAY, pick=99), TrialBudget(16))


# Studies.

RUN = PartRun("las", {"x": 1.5}, HistoryPart(0, 0, 3))
INPUTS = StudyInputs({"jobs": "a", "cluster": "b"})


def test_a_study_keeps_results(tmp_path: Path) -> None:
    path = tmp_path / "study.jsonl"
    study = Study(path, INPUTS)
    assert study.get(RUN) is None
    study.add(RUN, JobMeasures(np.array([0.0, 1.5, np.inf]), np.ones(3), np.zeros(3)))
    again = Study(path, INPUTS).get(RUN)
    assert again is not None
    assert again.delay.tolist() == [0.0, 1.5, np.inf]
    assert Study(path, INPUTS).get(RUN._replace(settings={"x": 2.0})) is None


def test_a_study_that_was_cut_off_continues(tmp_path: Path) -> None:
    path = tmp_path / "study.jsonl"
    Study(path, INPUTS).add(RUN, measures(1.0, 3))
    path.write_bytes(path.read_bytes() + b'{"policy": "la')
    other = RUN._replace(policy="fifo")
    Study(path, INPUTS).add(other, measures(2.0, 3))
    study = Study(path, INPUTS)
    assert study.get(RUN) is not None
    assert study.get(other) is not None


def test_a_study_of_other_inputs_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "study.jsonl"
    Study(path, INPUTS)
    with pytest.raises(BadFile, match=r"study of other inputs \(differs in: cluster\)"):
        Study(path, StudyInputs({"jobs": "a", "cluster": "c"}))
    path.write_text("jobs,gpus\n")
    with pytest.raises(BadFile, match="is not a study file"):
        Study(path, INPUTS)


# The picture.


def test_the_picture_shows_every_policy_and_the_verdict() -> None:
    report = make_report(
        PART,
        [
            (policy("default", "default"), noisy(100.0, 1)),
            (policy("point", "point 1", 1), noisy(50.0, 2)),
            (policy("baseline", "a <fifo>"), measures(np.where(np.arange(JOBS) == 3, np.inf, 1.0))),
        ],
        DELAY,
        chosen=1,
    )
    page = render_trade_off(report, "las on x", "200 jobs", "Recommended: point 1.", "refold tune x")
    assert page.count("<circle") == 2 * 6
    assert "point 1, mean delay: 0." in page
    assert "a &lt;fifo&gt;" in page
    assert "Recommended: point 1." in page
