"""Pods as gangs, and the sizes of gangs."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes_objects import make_pod

from refold.client.api import Submission
from refold.engines.kubernetes.gangs import GangName, gang_name, parse_gang_name
from refold.engines.kubernetes.owner_specs import Owner, owner_of_pods, read_owner
from refold.engines.kubernetes.pod_states import bindable
from refold.engines.kubernetes.pods import gang_submission
from refold.errors import BadInput, BadValue

INDEX = "batch.kubernetes.io/job-completion-index"


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        ({"uid": "u"}, GangName("Pod", "default", "p", "u")),
        ({"owner": ("Job", "train", "u1")}, GangName("Job", "default", "train", "u1")),
        ({"owner": ("ReplicaSet", "web", "u1"), "uid": "u"}, GangName("Pod", "default", "p", "u")),
        (
            {"owner": ("Job", "set-a-0", "u1"), "labels": {"jobset.sigs.k8s.io/jobset-name": "set"}},
            GangName("JobSet", "default", "set"),
        ),
        (
            {"labels": {"jobset.sigs.k8s.io/jobset-name": "set", "jobset.sigs.k8s.io/jobset-uid": "u3"}},
            GangName("JobSet", "default", "set", "u3"),
        ),
        ({"owner": ("PyTorchJob", "torch", "u2")}, GangName("PyTorchJob", "default", "torch", "u2")),
        ({"labels": {"refold.dev/gang": "g"}, "namespace": "team"}, GangName("Pods", "team", "g")),
        (
            {"schedulingGroup": {"podGroupName": "pg"}, "owner": ("Job", "train", "u1")},
            GangName("PodGroup", "default", "pg"),
        ),
        (
            {"workloadRef": {"name": "w", "podGroup": "workers"}},
            GangName("Workload", "default", "w", part="workers"),
        ),
    ],
)
def test_the_gang_of_a_pod(pod: dict[str, Any], expected: GangName) -> None:
    assert gang_name(make_pod("p", **pod)) == expected


def test_pods_that_wait_are_in_the_order_of_their_indices() -> None:
    job = ("Job", "train", "u1")
    pods = [make_pod(f"train-{n}", owner=job, labels={INDEX: str(n)}) for n in (10, 2, 0)]
    assert {gang_name(pod) for pod in pods} == {GangName("Job", "default", "train", "u1")}
    assert [pod.metadata.name for pod in bindable({pod.key: pod for pod in pods})] == ["train-0", "train-2", "train-10"]


def test_the_name_of_a_gang_is_read_as_it_was_written() -> None:
    for name in (GangName("Job", "ns", "a.b-c", "u"), GangName("Workload", "ns", "w", part="p")):
        assert parse_gang_name(name.text()) == name


def test_keys_tell_gangs_apart_and_are_short() -> None:
    names = [
        GangName("Job", "ns", "a", "u1"),
        GangName("Job", "ns", "a", "u2"),
        GangName("Pods", "ns", "a"),
        GangName("Pods", "ns2", "a"),
        GangName("JobSet", "ns", "a"),
    ]
    assert len({name.key for name in names}) == len(names)
    assert len(GangName("Workload", "n" * 63, "w" * 253).key) < 64


def template(parallelism: int) -> dict[str, Any]:
    return {"template": {"spec": {"parallelism": parallelism}}}


@pytest.mark.parametrize(
    ("kind", "spec", "expected"),
    [
        ("Job", {}, Owner(1, 6)),
        ("Job", {"parallelism": 4, "completions": 4, "completionMode": "Indexed"}, Owner(4, 6, elastic=True)),
        ("Job", {"parallelism": 4, "completions": 4, "backoffLimit": 0}, Owner(4, 0)),
        ("Job", {"parallelism": 4}, Owner(4, 6)),
        ("Job", {"parallelism": 4, "completions": 3}, Owner(3, 6)),
        ("Job", {"parallelism": 2, "completions": 10}, Owner(None, 6)),
        ("Job", {"activeDeadlineSeconds": 60, "suspend": True}, Owner(1, 6, 60, True)),
        (
            "JobSet",
            {
                "replicatedJobs": [{"name": "a", "replicas": 2, **template(4)}, {"name": "b", **template(1)}],
                "failurePolicy": {"maxRestarts": 3},
            },
            Owner(9, 3),
        ),
        (
            "PyTorchJob",
            {"pytorchReplicaSpecs": {"Master": {}, "Worker": {"replicas": 3}}, "runPolicy": {"backoffLimit": 2}},
            Owner(4, 2, elastic=True),
        ),
        (
            "PyTorchJob",
            {"pytorchReplicaSpecs": {"Master": {}}, "runPolicy": {"suspend": True, "activeDeadlineSeconds": 60}},
            Owner(1, 0, 60, True),
        ),
        ("PodGroup", {"schedulingPolicy": {"gang": {"minCount": 5}}}, Owner(5)),
        ("PodGroup", {"schedulingPolicy": {"basic": {}}}, Owner(None)),
        (
            "PodGroup",
            {
                "schedulingPolicy": {"gang": {"minCount": 5}},
                "schedulingConstraints": {"topology": [{"key": "example.com/rack"}]},
            },
            Owner(5, level="example.com/rack"),
        ),
        ("Workload", {"podGroups": [{"name": "w", "policy": {"gang": {"minCount": 3}}}]}, Owner(3)),
        ("Workload", {"podGroups": [{"name": "other", "policy": {"gang": {"minCount": 3}}}]}, Owner(None)),
    ],
)
def test_the_size_of_a_gang(kind: str, spec: dict[str, Any], expected: Owner) -> None:
    assert read_owner(kind, {"metadata": {}, "spec": spec}, part="w") == expected


@pytest.mark.parametrize(
    ("metadata", "condition", "ended"),
    [
        ({}, "Complete", True),
        ({}, "Failed", True),
        ({}, "Suspended", False),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, "Suspended", True),
    ],
)
def test_an_owner_that_creates_no_more_pods(metadata: dict[str, str], condition: str, ended: bool) -> None:
    status = {"conditions": [{"type": condition, "status": "True"}]}
    assert read_owner("Job", {"metadata": metadata, "spec": {}, "status": status}).ended == ended


@pytest.mark.parametrize(
    ("spec", "size"),
    [
        ({"parallelism": 4, "completions": 4}, 3),
        ({"parallelism": 4, "completions": 2}, 1),
        ({"parallelism": 4}, 4),
        ({"parallelism": 2, "completions": 9}, None),
    ],
)
def test_indices_that_are_complete_are_not_part_of_the_gang_any_more(spec: dict[str, Any], size: int | None) -> None:
    assert read_owner("Job", {"metadata": {}, "spec": spec, "status": {"succeeded": 1}}).size == size


def test_plain_pods_say_how_many_they_are() -> None:
    assert owner_of_pods([make_pod("p", labels={"refold.dev/gang": "g", "refold.dev/gang-size": "3"})]) == Owner(3)
    assert owner_of_pods([make_pod("p")]) == Owner(1)
    with pytest.raises(BadValue, match=r"gang-size is 'many'"):
        owner_of_pods([make_pod("p", labels={"refold.dev/gang": "g", "refold.dev/gang-size": "many"})])
    with pytest.raises(BadValue, match=r"gang-size is '', expected a number of pods"):
        owner_of_pods([make_pod("p", labels={"refold.dev/gang": "g"})])
    assert owner_of_pods([make_pod("p", labels={"refold.dev/gang-size": "3"})]) == Owner(1), "refused when submitted"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"annotations": {"refold.dev/gang-size": "3"}}, r"gang-size is a label, found as annotation"),
        ({"labels": {"refold.dev/gang-size": "3"}}, r"gang-size needs the label refold.dev/gang"),
        ({"annotations": {"refold.dev/workload": "banana"}}, r"unknown model 'banana'"),
        ({"labels": {"refold.dev/preemptible": "maybe"}}, r"preemptible is 'maybe', expected true or false"),
        ({"annotations": {"refold.dev/preemptible": "false"}}, r"preemptible is a label, found as annotation"),
        ({"labels": {"refold.dev/estimate": "2h"}}, r"estimate is an annotation, found as label"),
        ({"annotations": {"refold.dev/estimat": "2h"}}, r"unknown annotation .* did you mean 'refold.dev/estimate'"),
        ({"annotations": {"refold.dev/estimate": "soon"}}, r"soon"),
        ({"labels": {"refold.dev/class": "gold"}}, r"class is 'gold', expected guaranteed or best-effort"),
    ],
)
def test_labels_and_annotations_that_mean_nothing_are_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        submission_of(**fields)


def submission_of(**fields: Any) -> Submission:
    pod = make_pod("p", owner=("Job", "train", "u"), **fields)
    return gang_submission(gang_name(pod), [pod], Owner(elastic=True), "request")


def test_models_and_names_of_gangs_whose_speed_is_measured() -> None:
    assert submission_of(annotations={"refold.dev/workload": "Llama 2 7B"}).workload == "llama-2-7b"
    mine = {"refold.dev/workload": "banana", "refold.dev/gpu-range": "1..4"}
    assert submission_of(annotations=mine).workload == "banana"
    bound = {"refold.dev/job": "train-1", "refold.dev/plan": "{}"}
    assert submission_of(annotations=bound).gpus == 1, "copies of what a bound pod has"


def replicated(name: str, pods: int, **fields: Any) -> dict[str, Any]:
    spec = {"parallelism": pods, "completions": pods, "completionMode": "Indexed"}
    return {"name": name, "replicas": 1, "template": {"spec": spec}, **fields}


AFTER_DATA = [{"name": "data", "status": "Complete"}]
AFTER_HEAD = [{"name": "head", "status": "Ready"}]


@pytest.mark.parametrize(
    ("jobs", "order", "status", "size", "elastic"),
    [
        ([replicated("node", 4)], "", {}, 4, True),
        ([replicated("node", 4, replicas=2)], "", {}, 8, False),
        ([replicated("a", 1), replicated("b", 2)], "", {}, 3, False),
        ([replicated("data", 1), replicated("node", 4, dependsOn=AFTER_DATA)], "", {}, 1, True),
        ([replicated("data", 1), replicated("node", 4, dependsOn=AFTER_DATA)], "", {"data": {"ready": 1}}, 1, True),
        ([replicated("data", 1), replicated("node", 4, dependsOn=AFTER_DATA)], "", {"data": {"succeeded": 1}}, 4, True),
        ([replicated("head", 1), replicated("node", 4, dependsOn=AFTER_HEAD)], "", {"head": {"ready": 1}}, 5, False),
        ([replicated("head", 1), replicated("node", 4)], "InOrder", {}, 1, True),
        ([replicated("head", 1), replicated("node", 4)], "InOrder", {"head": {"ready": 1}}, 5, False),
    ],
)
def test_the_gang_of_a_jobset_are_the_jobs_that_have_pods_now(
    jobs: list[dict[str, Any]], order: str, status: dict[str, Any], size: int, elastic: bool
) -> None:
    counts = [{"name": name, **fields} for name, fields in status.items()]
    spec = {"replicatedJobs": jobs, "startupPolicy": {"startupPolicyOrder": order}}
    found = read_owner("JobSet", {"metadata": {}, "spec": spec, "status": {"replicatedJobsStatus": counts}})
    assert (found.size, found.elastic) == (size, elastic)


def test_pods_of_a_jobset_that_have_succeeded_are_not_part_of_the_gang_any_more() -> None:
    label = "jobset.sigs.k8s.io/replicatedjob-name"
    jobs = [
        {"metadata": {"labels": {label: name}}, "spec": {"completions": 4}, "status": {"succeeded": count}}
        for name, count in (("node", 3), ("data", 1))
    ]
    spec = {"replicatedJobs": [replicated("data", 1), replicated("node", 4, dependsOn=AFTER_DATA)]}
    status = {"replicatedJobsStatus": [{"name": "data", "succeeded": 1}]}
    assert read_owner("JobSet", {"metadata": {}, "spec": spec, "status": status}, jobs=jobs).size == 1


def test_the_queue_of_the_owner_is_that_of_the_gang() -> None:
    labels = {"kueue.x-k8s.io/queue-name": "vision"}
    assert read_owner("Job", {"metadata": {"labels": labels}, "spec": {}}).queue == "vision"


@pytest.mark.parametrize("kind", ["Job", "JobSet", "PyTorchJob", "PodGroup", "Workload"])
def test_an_object_without_a_spec_is_read(kind: str) -> None:
    read_owner(kind, {"spec": None, "status": None, "metadata": None})
