"""Gangs of pods as submissions."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes_objects import make_pod

from refold.client.api import Submission
from refold.engines.kubernetes import gang_submission
from refold.engines.kubernetes.gangs import GangName
from refold.engines.kubernetes.owner_specs import Owner
from refold.errors import BadInput

GANG = GangName("Job", "team-a", "train.v2", "uid")
OWNED = {"owner": ("Job", "train.v2", "uid"), "namespace": "team-a"}
H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}


def submit(*pods: dict[str, Any], owner: Owner | None = None) -> Submission:
    made = [make_pod(f"p{number}", **{**OWNED, **fields}) for number, fields in enumerate(pods)]
    return gang_submission(GANG, made, owner or Owner(len(made)), "request")


def test_a_gang_is_a_job_with_one_instance_per_pod() -> None:
    resources = {"requests": {"cpu": "2", "memory": "3Gi"}, "limits": {"nvidia.com/gpu": 4}}
    container = {"name": "main", "image": "i", "command": ["torchrun"], "args": ["train.py"], "resources": resources}
    fields = {"containers": [container], "priority": 1000}
    submission = submit(fields, fields, owner=Owner(2, retries=3, time_limit=3600))
    assert submission == Submission(
        name="train.v2",
        command=["torchrun", "train.py"],
        instances=2,
        gpus=4,
        cpus=2.0,
        memory_gib=3.0,
        tenant="team-a",
        priority=1000,
        time_limit=3600.0,
        retries=3,
        allow_impossible=True,
        request="request",
    )


def test_labels_and_annotations_say_what_a_pod_cannot() -> None:
    labels = {
        "kueue.x-k8s.io/queue-name": "research",
        "refold.dev/class": "best-effort",
        "refold.dev/preemptible": "false",
    }
    annotations = {"refold.dev/estimate": "2h", "refold.dev/time-limit": "1d", "refold.dev/workload": "llama-3.1-8b"}
    submission = submit({"labels": labels, "annotations": annotations}, owner=Owner(1, time_limit=60))
    assert (submission.tenant, submission.job_class, submission.preemptible) == ("research", "best-effort", False)
    assert (submission.estimate, submission.time_limit, submission.workload) == (7200, 86400, "llama-3.1-8b")


def test_the_tenant_is_the_queue_of_the_pods_else_of_their_owner_else_the_namespace() -> None:
    labels = {"kueue.x-k8s.io/queue-name": "research"}
    assert submit({"labels": labels}, owner=Owner(1, queue="vision")).tenant == "research"
    assert submit({}, owner=Owner(1, queue="vision")).tenant == "vision"
    assert submit({}).tenant == "team-a"


@pytest.mark.parametrize(("image", "command"), [("ubuntu:24.04", "ubuntu:24.04"), ("", "pod")])
def test_a_pod_without_a_command_shows_its_image(image: str, command: str) -> None:
    container = {"name": "main", "image": image, "resources": {"limits": {"nvidia.com/gpu": 1}}}
    assert submit({"containers": [container]}).command == [command]


def test_a_pod_that_nothing_creates_again_is_not_preemptible() -> None:
    labels = {"refold.dev/preemptible": "true"}
    assert submit({"labels": labels}).preemptible is True
    assert submit({"labels": labels, "owner": None}).preemptible is False
    assert submit({}).preemptible is None


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"labels": {"refold.dev/class": "gold"}}, "the label refold.dev/class is 'gold'"),
        ({"labels": {"refold.dev/preemptible": "yes"}}, "the label refold.dev/preemptible is 'yes'"),
        ({"annotations": {"refold.dev/estimate": "soon"}}, "'soon' is not a duration"),
        ({"overhead": {"cpu": "much"}}, "'much' is not a quantity"),
    ],
)
def test_what_is_wrong_is_said_with_the_name_of_the_gang(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadInput, match=r"Job team-a/train.v2: ") as caught:
        submit(fields)
    assert problem in str(caught.value)
