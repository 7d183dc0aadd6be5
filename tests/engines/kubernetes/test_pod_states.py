"""How a run is doing, from its pods."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes_objects import make_pod

from refold.engines.kubernetes.pod_states import (
    PodFailure,
    first_failure,
    have_started,
    have_succeeded,
    pod_failure,
    start_problem,
)


def ended(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    terminated = {"exitCode": code, "reason": reason, "message": message}
    return {"phase": "Failed", "containerStatuses": [{"name": "main", "state": {"terminated": terminated}}]}


@pytest.mark.parametrize(
    ("status", "failure"),
    [
        ({"phase": "Running"}, None),
        ({"phase": "Succeeded"}, None),
        (ended(3), PodFailure("pod default/p: exit 3", exit_code=3)),
        (ended(137, "OOMKilled"), PodFailure("pod default/p: exit 137 (OOMKilled)", exit_code=137)),
        (ended(128, "StartError", "no such file"), PodFailure("pod default/p: no such file", exit_code=128)),
        (
            {"phase": "Failed", "reason": "OutOfnvidia.com/gpu", "message": "too few"},
            PodFailure("pod default/p failed: OutOfnvidia.com/gpu: too few", lost=True),
        ),
        (
            {**ended(143), "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "TaintManager"}]},
            PodFailure("pod default/p failed: TaintManager", lost=True),
        ),
        ({"phase": "Failed"}, PodFailure("pod default/p failed: no reason given")),
    ],
)
def test_why_a_pod_failed(status: dict[str, Any], failure: PodFailure | None) -> None:
    assert pod_failure(make_pod("p", status=status)) == failure


@pytest.mark.parametrize("status", [{"phase": "Running"}, {"phase": "Succeeded"}, ended(143)])
def test_a_pod_that_was_told_to_end_is_lost_however_it_ends(status: dict[str, Any]) -> None:
    pod = make_pod("p", deletionTimestamp="2026-01-01T00:00:00Z", status=status)
    assert pod_failure(pod) == PodFailure("pod default/p was deleted", lost=True)


def test_a_failure_of_the_job_itself_explains_the_loss_of_its_other_pods() -> None:
    pods = [
        make_pod("a", deletionTimestamp="2026-01-01T00:00:00Z", status={"phase": "Running"}),
        make_pod("b", status=ended(5)),
    ]
    assert first_failure(pods) == PodFailure("pod default/b: exit 5", exit_code=5)
    assert first_failure(pods[:1]) == PodFailure("pod default/a was deleted", lost=True)
    assert first_failure([]) is None


def test_a_run_has_succeeded_when_all_its_pods_have() -> None:
    running, done = make_pod("a", status={"phase": "Running"}), make_pod("b", status={"phase": "Succeeded"})
    assert not have_succeeded([running, done], 2)
    assert have_succeeded([done, done], 2)


def test_a_pod_that_exits_with_0_after_it_was_told_to_end_has_not_finished() -> None:
    """It may have saved a checkpoint and exited, as it should: the job has work left."""
    done = make_pod("a", status={"phase": "Succeeded"})
    deleted = make_pod("b", deletionTimestamp="2026-01-01T00:00:00Z", status={"phase": "Succeeded"})
    assert not have_succeeded([done, deleted], 2)


@pytest.mark.parametrize(("phase", "started"), [("Pending", 1), ("Running", 2), ("Succeeded", 2), ("Failed", 2)])
def test_a_run_has_started_when_all_its_pods_run_or_have_run(phase: str, started: int) -> None:
    pods = [make_pod("a", status={"phase": "Running"}), make_pod("b", status={"phase": phase})]
    assert have_started(pods, started)
    assert not have_started(pods, started + 1)


def container(**state: Any) -> list[dict[str, Any]]:
    return [{"name": "main", "state": state}]


CREATING = container(waiting={"reason": "ContainerCreating"})
PULLING = container(waiting={"reason": "ImagePullBackOff", "message": "Back-off pulling image"})


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        ({"phase": "Running"}, None),
        ({"phase": "Succeeded"}, None),
        ({"phase": "Pending"}, PodFailure("", lost=True)),
        ({"phase": "Pending", "containerStatuses": CREATING}, PodFailure("", lost=True)),
        (
            {"phase": "Pending", "containerStatuses": PULLING},
            PodFailure("ImagePullBackOff: Back-off pulling image"),
        ),
        ({"phase": "Pending", "initContainerStatuses": container(running={}), "containerStatuses": CREATING}, None),
        (
            {"phase": "Pending", "initContainerStatuses": PULLING, "containerStatuses": CREATING},
            PodFailure("ImagePullBackOff: Back-off pulling image"),
        ),
        (
            {"phase": "Pending", "initContainerStatuses": container(terminated={}), "containerStatuses": PULLING},
            PodFailure("ImagePullBackOff: Back-off pulling image"),
        ),
    ],
)
def test_why_a_pod_does_not_start(status: dict[str, Any], problem: PodFailure | None) -> None:
    assert start_problem(make_pod("p", status=status)) == problem
