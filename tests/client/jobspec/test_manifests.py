"""Kubernetes and Kubeflow manifests: conversion to submissions, notes and errors."""

from __future__ import annotations

from typing import Any

import pytest

from refold.client.api.submissions import Submission
from refold.client.jobspec.reader import SpecFile, parse_spec
from refold.errors import RefoldError
from refold.model import TopologyRequest

JOB = """\
apiVersion: batch/v1
kind: Job
metadata:
  name: train
  labels: {app: mine, kueue.x-k8s.io/queue-name: vision}
spec:
  parallelism: 2
  completions: 2
  completionMode: Indexed
  backoffLimit: 4
  activeDeadlineSeconds: 3600
  template:
    spec:
      restartPolicy: Never
      containers:
        - name: main
          image: pytorch/pytorch
          command: [python, train.py]
          args: [--lr, "0.1", $(MODE), $$(MODE), $(UNKNOWN)]
          workingDir: /work
          env:
            - {name: MODE, value: fast}
            - {name: RUN, value: very-$(MODE)}
          resources:
            requests: {cpu: 500m, memory: 16Gi}
            limits: {nvidia.com/gpu: 4, cpu: "2", memory: 32Gi}
"""

TRAIN_JOB = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: fine-tune}
spec:
  runtimeRef: {name: torch-distributed}
  suspend: true
  activeDeadlineSeconds: 600
  trainer:
    numNodes: 4
    image: mine
    command: [torchrun, train.py]
    args: ["--x"]
    env: [{name: A, value: "1"}]
    resourcesPerNode:
      limits: {nvidia.com/gpu: 8, cpu: 16, memory: 512Mi}
"""

PYTORCH_JOB = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: ddp}
spec:
  runPolicy: {backoffLimit: 2, suspend: true, cleanPodPolicy: None}
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      restartPolicy: OnFailure
      template:
        spec: &pod
          containers:
            - name: pytorch
              command: [python, ddp.py]
              resources: {limits: {nvidia.com/gpu: 2}}
    Worker:
      replicas: 3
      template:
        spec: *pod
"""

CONTAINER = "spec.template.spec.containers[0]"
IMAGE = "image is ignored: the command runs directly on the node"


def read(text: str) -> SpecFile:
    return parse_spec(text, "job", "job.yaml")


def replace_in(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


def test_a_job_becomes_a_submission() -> None:
    assert read(JOB) == SpecFile(
        [
            Submission(
                name="train",
                command=["python", "train.py", "--lr", "0.1", "fast", "$(MODE)", "$(UNKNOWN)"],
                instances=2,
                gpus=4,
                cpus=0.5,
                memory_gib=16.0,
                tenant="vision",
                time_limit=3600.0,
                retries=4,
                environment={"MODE": "fast", "RUN": "very-fast"},
                folder="/work",
            )
        ],
        [f"job.yaml line 17: {IMAGE}"],
    )


def test_a_train_job_becomes_a_submission() -> None:
    assert read(TRAIN_JOB) == SpecFile(
        [
            Submission(
                name="fine-tune",
                command=["torchrun", "train.py", "--x"],
                instances=4,
                gpus=8,
                cpus=16.0,
                memory_gib=0.5,
                time_limit=600.0,
                environment={"A": "1"},
                hold=True,
            )
        ],
        ["job.yaml line 5: spec.runtimeRef is ignored", f"job.yaml line 10: {IMAGE}"],
    )


def test_a_pytorch_job_becomes_a_submission() -> None:
    assert read(PYTORCH_JOB) == SpecFile(
        [Submission(name="ddp", command=["python", "ddp.py"], instances=4, gpus=2, retries=2, hold=True)], []
    )


@pytest.mark.parametrize(
    ("old", "new", "overrides"),
    [
        ("nvidia.com/gpu: 4, ", "", {"gpus": 0}),
        ("nvidia.com/gpu: 4", 'nvidia.com/gpu: "4"', {"gpus": 4}),
        ("nvidia.com/gpu", "amd.com/gpu", {"gpus": 4}),
        ("requests: {cpu: 500m, memory: 16Gi}", "requests: {}", {"cpus": 2.0, "memory_gib": 32.0}),
        ("cpu: 500m", "cpu: 1.5", {"cpus": 1.5}),
        ("cpu: 500m", "cpu: 0", {"cpus": 0.0}),
        ("memory: 16Gi", "memory: 1073741824", {"memory_gib": 1.0}),
        ("memory: 16Gi", "memory: 1048576Ki", {"memory_gib": 1.0}),
        ("memory: 16Gi", "memory: 1e9", {"memory_gib": 1e9 / 2**30}),
        ("memory: 16Gi", "memory: 128M", {"memory_gib": 128e6 / 2**30}),
        ("  name: train\n", "  generateName: train-\n", {}),
        ("kueue.x-k8s.io/queue-name: vision", "other: x", {"tenant": ""}),
        ("  backoffLimit: 4\n", "", {"retries": 0}),
        ("metadata:\n", "x-metadata:\n", {"name": "job", "tenant": ""}),
    ],
)
def test_equivalent_notations_give_the_same_fields(old: str, new: str, overrides: dict[str, Any]) -> None:
    expected = {
        "name": "train",
        "gpus": 4,
        "cpus": 0.5,
        "memory_gib": 16.0,
        "tenant": "vision",
        "retries": 4,
    } | overrides
    (submission,) = read(replace_in(JOB, old, new)).submissions
    assert {name: getattr(submission, name) for name in expected} == expected


def test_a_suspended_job_with_a_queue_label_is_not_held() -> None:
    held = replace_in(JOB, "  parallelism: 2", "  suspend: true\n  parallelism: 2")
    found = read(held)
    assert [submission.hold for submission in found.submissions] == [False]
    assert found.notes[-1] == ("job.yaml line 7: suspend is ignored: a job with a queue label is not held")
    alone = replace_in(held, "kueue.x-k8s.io/queue-name", "other")
    assert [submission.hold for submission in read(alone).submissions] == [True]


@pytest.mark.parametrize(
    ("old", "new", "note"),
    [
        (
            "  completions: 2",
            "  completions: 9",
            "line 8: spec.completions is ignored: each of `parallelism` instances runs once",
        ),
        ("      restartPolicy: Never", "      volumes: []", "line 14: spec.template.spec.volumes is ignored"),
        ("  backoffLimit: 4", "  ttlSecondsAfterFinished: 4", "line 10: spec.ttlSecondsAfterFinished is ignored"),
        (
            "name: MODE, value: fast",
            "name: MODE, valueFrom: {}",
            f"line 22: {CONTAINER}.env[0]: MODE is not set: valueFrom is not supported",
        ),
        (
            "nvidia.com/gpu",
            "nvidia.com/mig-1g.5gb",
            f"line 26: {CONTAINER}.resources.limits.nvidia.com/mig-1g.5gb is ignored",
        ),
        (
            "          workingDir: /work",
            "          volumeMounts: []",
            f"line 20: {CONTAINER}.volumeMounts is ignored",
        ),
    ],
)
def test_ignored_fields_are_noted(old: str, new: str, note: str) -> None:
    found = read(replace_in(JOB, old, new))
    assert sorted(found.notes) == sorted([f"job.yaml {note}", f"job.yaml line 17: {IMAGE}"])


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "kind: Job",
            "kind: Pod",
            "line 2: kind: unknown manifest kind 'Pod' (known: Job, PyTorchJob, TrainJob)",
        ),
        ("kind: Job", "kinds: Job", "line 1: kind is missing"),
        (
            "kind: Job",
            "kind: TrainJob",
            "line 1: apiVersion is 'batch/v1', expected trainer.kubeflow.org/v1alpha1 for a TrainJob",
        ),
        ("batch/v1", "batch/v2", "line 1: apiVersion is 'batch/v2', expected batch/v1 for a Job"),
        ("  template:", "  templates:", "line 6: spec: template is missing"),
        ("parallelism: 2", "parallelism: 0", "line 7: spec.parallelism is 0, expected a whole number ≥ 1"),
        ("parallelism: 2", "parallelism: two", "line 7: spec.parallelism is 'two', expected a whole number ≥ 1"),
        (
            "backoffLimit: 4",
            "backoffLimit: 4000",
            "line 10: spec.backoffLimit is 4000, expected a whole number from 0 to 1000",
        ),
        ("Seconds: 3600", "Seconds: .inf", "line 11: spec.activeDeadlineSeconds is .inf, expected whole seconds ≥ 1"),
        (
            "command:",
            "commands:",
            f"line 16: {CONTAINER}: command is missing, expected a list of arguments;"
            " the command of the image is unknown",
        ),
        ("[python, train.py]", "python", f"line 18: {CONTAINER}.command is 'python', expected a list of arguments"),
        (
            "value: fast",
            "value: 3",
            f"line 22: {CONTAINER}.env[0].value is 3, expected text; quote numbers and booleans",
        ),
        ("name: MODE", "nam: MODE", f"line 22: {CONTAINER}.env[0]: name is missing, expected a variable name"),
        (
            "cpu: 500m",
            "cpu: -1",
            f"line 25: {CONTAINER}.resources.requests.cpu is -1, expected a quantity such as 500m, 2, 512Mi or 32Gi",
        ),
        (
            "gpu: 4",
            "gpu: 0.5",
            f"line 26: {CONTAINER}.resources.limits.nvidia.com/gpu is 0.5, expected a whole number of GPUs",
        ),
        (
            "gpu: 4",
            "gpu: 1E",
            f"line 26: {CONTAINER}.resources.limits.nvidia.com/gpu is '1E', expected a whole number ≤ 63,488",
        ),
        (
            "memory: 16Gi",
            "memory: 16GiB",
            f"line 25: {CONTAINER}.resources.requests.memory is '16GiB', "
            "expected a quantity such as 500m, 2, 512Mi or 32Gi",
        ),
        (
            "workingDir: /work",
            "workingDir: work",
            f"line 20: {CONTAINER}.workingDir is 'work', expected an absolute path to a folder",
        ),
    ],
)
def test_errors_name_the_line(old: str, new: str, problem: str) -> None:
    with pytest.raises(RefoldError) as raised:
        read(replace_in(JOB, old, new))
    assert str(raised.value) == f"job.yaml {problem}"


def test_a_minimal_manifest_is_valid() -> None:
    pod = "{activeDeadlineSeconds: 60, containers: [{command: [a], env: [{name: EMPTY}]}, {command: [b]}]}"
    found = read(f"{{apiVersion: batch/v1, kind: Job, spec: {{template: {{spec: {pod}}}}}}}")
    assert found == SpecFile(
        [Submission(name="job", command=["a"], gpus=0, time_limit=60.0, environment={"EMPTY": ""})],
        ["job.yaml line 1: spec.template.spec.containers[1] is ignored: only the first container runs"],
    )


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (
            "{template: {spec: {containers: []}}}",
            "spec.template.spec.containers: is an empty list, expected one container",
        ),
        ("{template: {spec: {}}}", "spec.template.spec: containers is missing"),
        ("{template: {spec: []}}", "spec.template.spec is a list, expected keys and their values"),
        ("[]", "spec is a list, expected keys and their values"),
    ],
)
def test_a_manifest_without_a_container_is_rejected(spec: str, problem: str) -> None:
    with pytest.raises(RefoldError) as raised:
        read(f"apiVersion: batch/v1\nkind: Job\nspec: {spec}")
    assert str(raised.value) == f"job.yaml line 3: {problem}"


def test_a_pytorch_job_without_replicas_is_rejected() -> None:
    with pytest.raises(
        RefoldError, match=r"line 3: spec\.pytorchReplicaSpecs is keys and their values, expected a Master"
    ):
        read("apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nspec: {pytorchReplicaSpecs: {}}")


def test_different_masters_and_workers_are_rejected() -> None:
    pod = "          containers:\n            - {command: [python, ddp.py], resources: {limits: {nvidia.com/gpu: 1}}}"
    with pytest.raises(RefoldError) as raised:
        read(replace_in(PYTORCH_JOB, "        spec: *pod", f"        spec:\n{pod}"))
    assert str(raised.value) == (
        "job.yaml line 16: spec.pytorchReplicaSpecs.Worker: differs in command, env or resources, "
        "expected identical replicas"
    )


def test_one_file_may_mix_manifests_and_our_yaml() -> None:
    assert [submission.name for submission in read(f"{JOB}---\n{TRAIN_JOB}---\nrun: x\n").submissions] == [
        "train",
        "fine-tune",
        "job",
    ]


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ("podset-required-topology: cloud.com/block", TopologyRequest("cloud.com/block")),
        ("podset-preferred-topology: cloud.com/rack", TopologyRequest(preferred="cloud.com/rack")),
        (
            "podset-slice-required-topology: cloud.com/rack, kueue.x-k8s.io/podset-slice-size: '2'",
            TopologyRequest(segment=2, segment_level="cloud.com/rack"),
        ),
        ("podset-unconstrained-topology: 'true'", None),
    ],
)
def test_annotations_of_kueue_request_domains(annotations: str, expected: TopologyRequest | None) -> None:
    metadata = f"  template:\n    metadata: {{annotations: {{kueue.x-k8s.io/{annotations}}}}}\n    spec:"
    [job] = read(JOB.replace("  template:\n    spec:", metadata)).submissions
    assert job.topology == expected


def test_a_slice_needs_a_level_and_a_size() -> None:
    for line in ("podset-slice-size: '2'", "podset-slice-required-topology: x/rack"):
        metadata = f"  template:\n    metadata: {{annotations: {{kueue.x-k8s.io/{line}}}}}\n    spec:"
        with pytest.raises(RefoldError, match="expected pods ≥ 1, with kueue"):
            read(JOB.replace("  template:\n    spec:", metadata))
