"""The measures of a trace that is played through Kubernetes."""

from __future__ import annotations

from benchmarks.kubernetes.replay import JobTimes, Outcome, Slice, summarize


def test_waits_and_allocation_until_the_last_job_has_ended() -> None:
    times = [JobTimes(0.0, 0.0, 10.0, 8), JobTimes(0.0, 10.0, 20.0, 4), JobTimes(10.0, 15.0, 20.0, 4)]
    assert summarize(times, Slice(0, 3, nodes=1)) == Outcome(5.0, 5.0, 20.0, (80 + 40 + 20) / 160)
