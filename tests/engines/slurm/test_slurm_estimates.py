"""The jobs whose starts `python -m benchmarks.engines --estimates` estimates, and its table, without Slurm."""

from __future__ import annotations

from itertools import pairwise

import pytest
from benchmarks.engines.slurm_estimates import CAPPED, Estimate, estimate_table, slurm_settings, submissions
from benchmarks.workloads import PHILLY, missing


@pytest.mark.skipif(bool(missing(PHILLY)), reason=missing(PHILLY))
def test_jobs_have_limits_of_whole_minutes_and_all_that_slurm_knows() -> None:
    found = submissions(300, 60.0)
    assert found == submissions(300, 60.0)
    assert all(60 * each.limit_minutes >= (each.job.work or 0.0) for each in found)
    assert all(before.job.submitted <= after.job.submitted for before, after in pairwise(found))
    options = {option.partition("=")[0] for each in found for option in each.options}
    assert options == {"--licenses", "--qos", "--exclusive", "--nodelist"}
    assert any(each.after for each in found) and any(each.tasks for each in found)
    assert all(each.job.demand.total_gpus <= 6 for each in found if f"--qos={CAPPED}" in each.options)


def test_times_of_priorities_are_scaled() -> None:
    assert slurm_settings(60.0)["PriorityMaxAge"] == "168"


def test_the_table_has_the_first_estimate_of_each_job_and_all_of_them() -> None:
    first = [Estimate("a", 10.0, 5.0, 20.0, 100.0, 12.0), Estimate("b", 10.0, 5.0, 20.0, None, 40.0)]
    later = [Estimate("a", 2.0, 1.0, 3.0, 90.0, 2.0)]
    assert estimate_table([first, later], 9)[-2:] == [
        "| first of each job | 2 (1 by Slurm) | 50% | 2 | 88 | 0.02 | 2 | 88 |",
        "| all | 3 (2 by Slurm) | 67% | 1 | 88 | 0.01 | 1 | 88 |",
    ]
