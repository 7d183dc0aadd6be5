"""What is done about a gang in the queue: literal facts in, literal steps out."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes_objects import make_pod

from refold.engines.kubernetes import GangName, Owner, Pod, single_pod
from refold.engines.kubernetes.queue_state import (
    CancelJob,
    FindOwner,
    FindQueue,
    GangJob,
    HoldPods,
    OwnerFound,
    QueuedGang,
    QueueStep,
    SubmitGang,
    next_steps,
)

JOB, JOB_SET = GangName("Job", "default", "train", "u"), GangName("JobSet", "default", "train")
WAITING_JOB = GangJob("train-1")


def pod(number: int, kind: str = "Job", **fields: Any) -> Pod:
    if kind == "JobSet":
        return make_pod(f"train-{number}", labels={"jobset.sigs.k8s.io/jobset-name": "train"}, **fields)
    return make_pod(f"train-{number}", owner=("Job", "train", "u"), **fields)


def steps(*pods: Pod, gang: GangName = JOB, owner: Owner | str | None = "unknown", **facts: Any) -> list[QueueStep]:
    """Return what is to be done. `owner`: None if it does not exist."""
    found = None if isinstance(owner, str) else OwnerFound(owner)
    return [*next_steps(QueuedGang(gang, {pod.key: pod for pod in pods}, found=found, **facts))]


def test_pods_that_wait_are_submitted_once_all_of_them_exist() -> None:
    first, second, third = pods = [pod(0), pod(1), pod(2)]
    assert steps(first) == [FindOwner([first])]
    assert steps(first, owner=Owner(2)) == [HoldPods([first], "1 of 2 pods of the gang exist")]
    assert steps(*pods, owner=Owner(2)) == [SubmitGang(JOB, [first, second], Owner(2))]
    assert steps(first, third, owner=Owner(None)) == [
        SubmitGang(single_pod(pod), [pod], Owner(None)) for pod in (first, third)
    ]


def test_pods_that_are_bound_deleted_or_over_do_not_wait() -> None:
    deleted = pod(1, deletionTimestamp="2026-01-01T00:00:00Z")
    assert steps(pod(0, nodeName="n"), deleted, pod(2, status={"phase": "Failed"})) == []


@pytest.mark.parametrize(
    ("owner", "why"), [(None, f"{JOB} does not exist"), (Owner(1, ended=True), f"{JOB} has ended")]
)
def test_pods_whose_owner_is_gone_are_held(owner: Owner | None, why: str) -> None:
    assert steps(pod(0), owner=owner) == [HoldPods([pod(0)], why)]


def test_a_gang_that_names_a_queue_is_held_until_there_is_one() -> None:
    owner = Owner(1, queue="lab")
    assert steps(pod(0), owner=owner) == [FindQueue("lab")]
    missing = "LocalQueue lab not found in namespace default"
    assert steps(pod(0), owner=owner, is_queue_missing=True) == [HoldPods([pod(0)], missing)]
    assert steps(pod(0), owner=owner, is_queue_missing=False) == [SubmitGang(JOB, [pod(0)], owner)]


def test_pods_that_a_running_gang_can_do_without_are_jobs_of_their_own() -> None:
    surplus, running = pod(2, "JobSet"), [pod(number, "JobSet", nodeName="n") for number in (0, 1)]
    job = GangJob("train-1", 2, running)
    assert steps(*running, surplus, gang=JOB_SET, job=job) == [FindOwner([surplus])]
    each = [SubmitGang(single_pod(surplus), [surplus], Owner(None))]
    assert steps(*running, surplus, gang=JOB_SET, job=job, owner=Owner(2)) == each
    assert steps(*running, surplus, gang=JOB_SET, job=job, owner=Owner(2, elastic=True)) == []


def test_pods_that_wait_while_a_run_lacks_pods_replace_them() -> None:
    running, waiting = pod(0, "JobSet", nodeName="n"), pod(1, "JobSet")
    assert steps(running, waiting, gang=JOB_SET, job=GangJob("train-1", 2, [running])) == []
    assert steps(running, waiting, gang=JOB_SET, job=GangJob("train-1", 1, [running], stopping=True)) == []


def test_a_waiting_job_whose_pods_another_scheduler_has_bound_is_cancelled() -> None:
    bound = [CancelJob("train-1", "its pods were bound by another scheduler")]
    assert steps(pod(0, nodeName="n"), job=WAITING_JOB) == bound
    assert steps(pod(0, nodeName="n"), pod(1), job=WAITING_JOB) == []
    assert steps(pod(0, nodeName="n"), job=WAITING_JOB._replace(bound=["uid-train-0"])) == []


def test_the_job_of_a_single_pod_ends_with_the_pod() -> None:
    """Another pod that its controller creates in its place is another job."""
    single = GangName("Pod", "default", "web-1", "u")
    assert steps(gang=single, job=WAITING_JOB) == [CancelJob("train-1", "its pod was deleted")]
    deleted = make_pod("web-1", deletionTimestamp="2026-01-01T00:00:00Z")
    assert steps(deleted, gang=single, job=WAITING_JOB) == [CancelJob("train-1", "its pod was deleted")]


@pytest.mark.parametrize(
    ("owner", "has_run", "expected"),
    [
        (None, False, [CancelJob("train-1", "its pods were deleted")]),
        (Owner(2, ended=True), False, [CancelJob("train-1", "its pods were deleted")]),
        (Owner(2, suspended=True), False, [CancelJob("train-1", f"{JOB} was suspended")]),
        (Owner(2, suspended=True), True, []),
        (Owner(2), False, []),
    ],
)
def test_a_waiting_job_without_pods_is_cancelled_if_nothing_will_create_them(
    owner: Owner | None, has_run: bool, expected: list[QueueStep]
) -> None:
    job = WAITING_JOB._replace(has_run=has_run)
    assert steps(job=job) == []
    assert steps(job=job, without_pods=job.gone_after) == [FindOwner([])]
    assert steps(job=job, without_pods=job.gone_after, owner=owner) == expected
