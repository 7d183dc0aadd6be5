"""The learned policy: order, preemption and reservations by score; the files of its weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refold.core import ListJournal
from refold.core.orders import StopRun
from refold.errors import BadFile, BadValue, RefoldError, UnknownName
from refold.model import Cluster, Job, Reason
from refold.policies.learned import Expectations, Parameters
from refold.predict import Predictor
from refold.registry import make_policy, resolve_policy
from refold.simulator import Costs, simulate
from refold.testing import Audit, make_cluster, make_job

SHORTEST_FIRST: dict[str, Any] = {
    "features": {"service": 1.0},
    "preemption_margin": 1e6,
    "patience_seconds": 1e9,
    "protection": 0.0,
}


def starts(jobs: list[Job], cluster: Cluster, weights: dict[str, Any], **settings: Any) -> list[tuple[float, str]]:
    audit = Audit(cluster)
    policy = make_policy("learned", {"weights": weights, "durations": "known", **settings})
    simulate(jobs, cluster, policy, journal=audit, costs=Costs())
    return [(at, job) for at, job, _ in audit.starts]


FOUR = [
    make_job("first", at=0, work=100),
    make_job("long", at=1, work=90),
    make_job("short", at=2, work=20),
    make_job("urgent", at=3, work=50, priority=1),
]


def test_without_preemption_the_lowest_score_starts_next() -> None:
    started = starts([job for job in FOUR if job.id != "urgent"], make_cluster(1), SHORTEST_FIRST)
    assert started == [(0, "first"), (100, "short"), (120, "long")]


def test_a_higher_priority_goes_before_every_score_and_every_margin() -> None:
    assert starts(FOUR, make_cluster(1), SHORTEST_FIRST)[:2] == [(0, "first"), (3, "urgent")]


def test_a_score_that_is_lower_by_the_margin_preempts() -> None:
    jobs = [make_job("long", at=0, work=1000), make_job("half", at=10, work=500), make_job("tenth", at=20, work=50)]
    weights = SHORTEST_FIRST | {"preemption_margin": 1.5}  # exp(1.5) = 4.5 times as short
    assert starts(jobs, make_cluster(1), weights) == [(0, "long"), (20, "tenth"), (70, "half"), (570, "long")]


def test_a_run_is_protected_until_it_has_paid_for_its_restart() -> None:
    jobs = [make_job("long", at=0, work=1000), make_job("short", at=10, work=50)]
    weights = SHORTEST_FIRST | {"preemption_margin": 1.0, "protection": 2.0}
    preempted = starts(jobs, make_cluster(1), weights, restart_seconds=100.0)
    assert preempted[1] == (240, "short")  # the first review after 2 × 100 s


def test_a_job_is_preempted_at_most_so_often() -> None:
    jobs = [make_job("long", at=0, work=1000), *(make_job(f"short-{n}", at=10 + 20 * n, work=5) for n in range(5))]
    weights = SHORTEST_FIRST | {"preemption_margin": 1.0}
    started = starts(jobs, make_cluster(1), weights, restart_seconds=0.0, max_restarts=2)
    assert [job for _, job in started].count("long") == 3


def test_a_job_that_may_not_be_stopped_is_not() -> None:
    jobs = [make_job("long", at=0, work=1000, preemptible=False), make_job("short", at=10, work=5)]
    weights = SHORTEST_FIRST | {"preemption_margin": 0.0}
    assert starts(jobs, make_cluster(1), weights) == [(0, "long"), (1000, "short")]


WIDE_AND_STREAM = [
    make_job("wide", at=1, gpus=2, work=1000),
    *(make_job(f"narrow-{number:02}", at=60 * number, work=100) for number in range(40)),
]
WIDE_AND_STREAM.sort(key=lambda job: job.submitted)


@pytest.mark.parametrize(("patience", "before"), [(1e9, 40), (600.0, 12)])
def test_a_job_that_has_waited_for_long_has_a_reservation(patience: float, before: int) -> None:
    weights = SHORTEST_FIRST | {"patience_seconds": patience}
    order = [job for _, job in starts(WIDE_AND_STREAM, make_cluster(2), weights)]
    assert order.index("wide") <= before
    assert (order.index("wide") == len(order) - 1) == (patience == 1e9)


def test_jobs_that_a_reservation_keeps_waiting_are_told_so() -> None:
    journal = ListJournal()
    weights = SHORTEST_FIRST | {"patience_seconds": 600.0}
    policy = make_policy("learned", {"weights": weights, "durations": "known"})
    simulate(WIDE_AND_STREAM, make_cluster(2), policy, journal=journal)
    assert Reason.RESERVED in {wait.reason for entry in journal.entries for wait in entry.waits}


def test_a_stop_says_for_which_job() -> None:
    journal = ListJournal()
    jobs = [make_job("long", at=0, work=1000), make_job("short", at=10, work=5)]
    weights = SHORTEST_FIRST | {"preemption_margin": 1.0}
    simulate(jobs, make_cluster(1), make_policy("learned", {"weights": weights, "durations": "known"}), journal=journal)
    stops = [order for entry in journal.entries for order in entry.orders if isinstance(order, StopRun)]
    assert [(stop.job, stop.why) for stop in stops] == [("long", "learned: preempted for short")]


def test_a_hidden_unit_changes_the_order() -> None:
    jobs = [make_job("a", at=0, work=10), make_job("long", at=1, work=90), make_job("short", at=2, work=20)]
    unit = {"features": {"service": 1.0}, "bias": -3.8, "output": -100.0}  # tanh(log 20 − 3.8) < 0 < tanh(log 90 − 3.8)
    weights = SHORTEST_FIRST | {"hidden": [unit]}
    assert [job for _, job in starts(jobs, make_cluster(1), weights)] == ["a", "long", "short"]


def test_expectations_follow_from_the_predicted_distribution() -> None:
    predictor, job = Predictor(), make_job("a")
    for number in range(50):
        past = make_job(f"past-{number}")
        predictor.submitted(past, float(number))
        predictor.finished(past, 100.0 if number % 2 else 10_000.0, float(number))
    predicted = predictor.expect(job, 100.0)
    expected = Expectations.allocate(1)
    expected.set_predicted(0, predicted)
    for age, elapsed in ((0, 0.0), (11, 1024.0)):
        rest = predicted.beyond(elapsed).mean - elapsed
        assert np.exp(expected.rest[0, age]) == pytest.approx(rest, rel=0.1)
        service = predicted.beyond(elapsed).service_per_completion()
        assert np.exp(expected.service[0, age]) == pytest.approx(service, rel=0.2)


WEIGHTS_FILE = """\
features: {service: 1.0, delay: -0.5}
preemption_margin: 1.0
patience_seconds: 3600.0
protection: 1.0
"""


def test_weights_are_read_from_a_file_and_settings_keep_their_contents(tmp_path: Path) -> None:
    file = tmp_path / "weights.yaml"
    file.write_text(WEIGHTS_FILE)
    name, settings = resolve_policy("learned", {"weights": str(file), "max_restarts": 3})
    file.unlink()
    make_policy(name, settings)
    assert settings["max_restarts"] == 3
    assert Parameters.from_settings(settings["weights"]).features == {"service": 1.0, "delay": -0.5}


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (WEIGHTS_FILE.replace("service", "length"), RefoldError, "length"),
        (WEIGHTS_FILE + "more: 1\n", BadFile, "more"),
        (WEIGHTS_FILE.replace("margin: 1.0", "margin: -1.0"), RefoldError, "preemption_margin"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, error: type[Exception], message: str) -> None:
    file = tmp_path / "weights.yaml"
    file.write_text(text)
    with pytest.raises(error, match=message):
        make_policy("learned", {"weights": str(file)})


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(BadValue, match="restart_seconds is -1"):
        make_policy("learned", {"restart_seconds": -1})
    with pytest.raises(UnknownName, match="feature"):
        make_policy("learned", {"weights": SHORTEST_FIRST | {"features": {"nothing": 1.0}}})
    with pytest.raises(BadValue, match="at most 16"):
        make_policy(
            "learned", {"weights": SHORTEST_FIRST | {"hidden": [{"features": {}, "bias": 0, "output": 0}] * 17}}
        )
