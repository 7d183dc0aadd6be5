"""Fuzzing of job files: any text gives valid submissions, or an error with file and line."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings, strategies as st

from refold.client.api.submissions import Submission
from refold.client.jobspec.job_fields import UNSUPPORTED, JobFields, RequestedResources
from refold.client.jobspec.reader import SpecFile, parse_spec
from refold.client.jobspec.sbatch import READERS
from refold.client.jobspec.sbatch_directives import LONG_NAMES, UNSUPPORTED_OPTIONS
from refold.client.jobspec.sbatch_tasks import SIZE_OPTIONS
from refold.errors import RefoldError

MAX_ERROR_BYTES = 3000

OUR_YAML = r"""name: big
num_nodes: 2
gpus: 2..8
resources: {accelerators: [H100, A100], cpus: 4+, memory: 32, cloud: aws}
envs: {LR: 1e-4, EMPTY: ''}
setup: pip install -e .
run: python train.py
time_limit: 2h
estimate: 90m
plan: {dp: 2, zero: 1}
checkpoint: {path: /out, signal: SIGUSR1, grace: 2m}
progress: step (\d+)
after: [prepare, job-7]
---
run: [a, &x b, *x]
plan: DP1 recompute full
elastic: {max: 2}
"""
SCRIPT = """#!/bin/bash -l
#SBATCH --job-name=train --nodes=2 -n 8 --gres=gpu:a100:4,nvme:1
#SBATCH --time=1-12:30 --mem 32G # a comment
#SBATCH --array=0-9:2%4 --signal=B:USR1@60 --export=ALL,A="b c"
#SBATCH --dependency=afterok:1:2 -p gpu

srun python train.py
"""
MANIFEST = """apiVersion: batch/v1
kind: Job
metadata: {name: train, labels: {kueue.x-k8s.io/queue-name: vision}}
spec:
  parallelism: 2
  suspend: true
  backoffLimit: 4
  template:
    spec:
      containers:
        - image: x
          command: [python, $(A)]
          env: [{name: A, value: "1"}]
          resources: {limits: {nvidia.com/gpu: 4, cpu: 500m, memory: 32Gi}}
"""
PYTORCH = """apiVersion: kubeflow.org/v1
kind: PyTorchJob
spec:
  runPolicy: {activeDeadlineSeconds: 60}
  pytorchReplicaSpecs:
    Master: &one {replicas: 1, template: {spec: {containers: [{command: [a]}]}}}
    Worker: *one
"""

numbers = st.integers() | st.floats() | st.sampled_from([10**30, -1, 0, 2**31, 2**63, 1e308])
words = st.sampled_from(
    [
        *("", "8", "0.5", "2..8", "H100:8", "auto", "off", "dp8", "90s", "1-12", "1h", "4+", "32Gi"),
        *("(", "(a+)+$", "~", "~root", "/", "\0", "é", "٣", ".nan", "-.inf", "*a", "&a"),
    ]
)
scalars = st.none() | st.booleans() | numbers | words | st.text(max_size=20)
FIELDS = [field.encode_name for field in msgspec.structs.fields(JobFields)]
keys = st.sampled_from(
    [*FIELDS, *RequestedResources.__struct_fields__, *UNSUPPORTED, "min", "max", "limit", "dp", "path"]
) | st.text(max_size=6)
trees = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=6), max_leaves=12
)
manifest_keys = st.sampled_from(
    [
        *(
            "apiVersion",
            "kind",
            "metadata",
            "name",
            "labels",
            "spec",
            "template",
            "containers",
            "command",
            "args",
            "env",
        ),
        *("value", "resources", "limits", "requests", "cpu", "nvidia.com/gpu", "trainer", "numNodes", "Master"),
        *("pytorchReplicaSpecs", "replicas", "runPolicy", "suspend", "activeDeadlineSeconds", "workingDir"),
    ]
)
manifest_trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(manifest_keys, inner, max_size=6),
    max_leaves=16,
)


def check(text: str, where: str = "job.yaml") -> SpecFile | None:
    """Check that the text gives submissions that survive JSON, or a short error with file and line."""
    try:
        spec = parse_spec(text, "job", where)
    except RefoldError as error:
        message = str(error)
        assert re.match(rf"{re.escape(where)} line [1-9]\d*: \S", message), message
        assert len(message.encode()) <= MAX_ERROR_BYTES
        return None
    for submission in spec.submissions[:3]:
        assert msgspec.json.decode(msgspec.json.encode(submission), type=Submission) == submission
    for note in spec.notes:
        assert re.match(rf"{re.escape(where)} line [1-9]\d*: \S", note)
    return spec


def as_yaml(tree: Any) -> str:
    return json.dumps(tree).replace("NaN", ".nan").replace("Infinity", ".inf")


@given(st.text(max_size=200), st.sampled_from(["", "#!/bin/sh\n", "#SBATCH ", "run: ", "kind: ", "- ", "\ufeff"]))
@settings(max_examples=100)
@example("\ud800", "")
@example("\x00", "#!/bin/sh\n")
@example("\x85#SBATCH --time=x", "#!/bin/sh\n")
def test_any_text_is_parsed_or_rejected(text: str, begin: str) -> None:
    check(begin + text)


@given(st.dictionaries(keys, trees, max_size=8))
@settings(max_examples=60)
def test_any_mapping_of_our_fields_is_parsed_or_rejected(tree: dict[str, Any]) -> None:
    check(as_yaml({"run": "x"} | tree))


@given(st.sampled_from([key for key in FIELDS if key != "run"]), trees)
@settings(max_examples=120)
def test_any_value_of_a_field_is_parsed_or_rejected(key: str, tree: Any) -> None:
    check(f"run: x\n{key}: {as_yaml(tree)}")


@given(st.sampled_from(["Job", "TrainJob", "PyTorchJob"]), manifest_trees, manifest_trees)
@settings(max_examples=100)
def test_any_manifest_is_parsed_or_rejected(kind: str, spec: Any, metadata: Any) -> None:
    group = {"Job": "batch/v1", "TrainJob": "trainer.kubeflow.org/v1alpha1", "PyTorchJob": "kubeflow.org/v1"}[kind]
    check(as_yaml({"apiVersion": group, "kind": kind, "metadata": metadata, "spec": spec}))


options = st.sampled_from(
    [
        *(f"--{name}" for name in (*READERS, *SIZE_OPTIONS, *UNSUPPORTED_OPTIONS)),
        *(f"-{letter}" for letter in LONG_NAMES),
    ]
)
values = words | numbers.map(str) | st.text(max_size=12) | st.from_regex(r"[0-9a-z:@%,-]{1,12}", fullmatch=True)
directives = st.builds(
    lambda option, joint, value: f"{option}{joint}{value}", options, st.sampled_from(["=", " ", ""]), values
)


@given(st.lists(directives, max_size=4), st.sampled_from(["true", "srun x"]))
@settings(max_examples=120)
def test_any_directives_are_parsed_or_rejected(lines: list[str], command: str) -> None:
    check("\n".join(["#!/bin/sh", *(f"#SBATCH {line}" for line in lines), command]), "job.sh")


@given(
    st.sampled_from([OUR_YAML, SCRIPT, MANIFEST, PYTORCH]),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12), words | st.text(max_size=5)), min_size=1, max_size=4),
)
@settings(max_examples=120)
def test_damaged_job_files_are_parsed_or_rejected(text: str, changes: list[tuple[float, int, str]]) -> None:
    for position, removed, inserted in changes:
        at = int(position * len(text))
        text = text[:at] + inserted + text[at + removed :]
    check(text)


@pytest.mark.parametrize("text", [OUR_YAML, SCRIPT, MANIFEST, PYTORCH])
def test_the_job_files_to_damage_are_valid(text: str) -> None:
    assert check(text) is not None


@pytest.mark.parametrize(
    "text",
    [
        "run: x\nenvs: " + "[" * 5000,
        "run: x\nenvs:\n  v0: &v0 [x]\n" + "".join(f"  v{i + 1}: &v{i + 1} [*v{i}, *v{i}]\n" for i in range(20)),
        "run: &a [*a]",
        "run: x\ngpus: " + "9" * 100_000,
        "run: x\nenvs: {" + ", ".join(f"A{i}: x" for i in range(600)) + "}",
        "run: x\nname: " + "a" * 100_000,
        "run: x\nprogress: " + "(" * 500 + ")" * 500,
        "run: x\n---\n" * 1001,
        "#!/bin/sh\n#SBATCH --array=" + ",".join(["0-4000000"] * 100),
        "#!/bin/sh\n#SBATCH --comment=" + "'a" * 40_001,
        "#!/bin/sh\n" + "x" * 200_000,
        "#!/bin/sh\n#SBATCH " + "\\" * 100_001,
        "#!/bin/sh\n#SBATCH --export=" + ",".join(f"A{i}=b" for i in range(600)),
        "#!" + "x" * 100_000,
        "kind: " + "x" * 100_000,
    ],
    ids=lambda text: text[:40],
)
def test_excessive_input_is_rejected(text: str) -> None:
    assert check(text) is None


def test_the_number_of_notes_is_limited() -> None:
    pod = "{containers: [{command: [a], resources: {limits: {" + ", ".join(f"r{i}: 1" for i in range(1000)) + "}}}]}"
    notes = parse_spec(f"{{apiVersion: batch/v1, kind: Job, spec: {{template: {{spec: {pod}}}}}}}", "job", "job").notes
    assert (len(notes), notes[-1]) == (51, "and 950 more notes")


def test_long_whitespace_is_read_quickly() -> None:
    padding = " " * 50_000
    spec = check(f"#!/bin/sh\n#SBATCH -J a{padding[:5000]}\n{';' + padding}true")
    assert spec is not None
    assert spec.submissions[0].name == "a"
