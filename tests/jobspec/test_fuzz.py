"""Whatever a file of jobs says: it is understood as jobs that can be sent, or refused with its line."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings, strategies as st

from refold.api.wire import Submission
from refold.errors import RefoldError
from refold.jobspec.reader import SpecFile, parse_spec
from refold.jobspec.refold_yaml import KEYS, NOT_HONOURED, RESOURCES
from refold.jobspec.sbatch import READERS
from refold.jobspec.sbatch_tasks import SIZES
from refold.jobspec.slurm_options import LEFT_OUT, SHORT

LONGEST_ERROR = 3000

OWN = r"""name: big
num_nodes: 2
gpus: 2..8
resources: {accelerators: [H100, A100], cpus: 4+, memory: 32, cloud: aws}
envs: {LR: 1e-4, EMPTY: ''}
setup: pip install -e .
run: python train.py
time: {limit: 2h, estimate: 90m}
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
keys = st.sampled_from([*KEYS, *RESOURCES, *NOT_HONOURED, "min", "max", "limit", "dp", "path"]) | st.text(max_size=6)
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
    """What the text asks for can go over the wire as it is; or it is refused with file and line, and not at length."""
    try:
        read = parse_spec(text, "job", where)
    except RefoldError as error:
        said = str(error)
        assert re.match(rf"{re.escape(where)} line [1-9]\d*: \S", said), said
        assert len(said.encode()) <= LONGEST_ERROR
        return None
    for one in read.submissions[:3]:
        assert msgspec.json.decode(msgspec.json.encode(one), type=Submission) == one
    for note in read.notes:
        assert re.match(rf"{re.escape(where)} line [1-9]\d*: \S", note)
    return read


def as_yaml(tree: Any) -> str:
    return json.dumps(tree).replace("NaN", ".nan").replace("Infinity", ".inf")


@given(st.text(max_size=200), st.sampled_from(["", "#!/bin/sh\n", "#SBATCH ", "run: ", "kind: ", "- ", "\ufeff"]))
@settings(max_examples=100)
@example("\ud800", "")
@example("\x00", "#!/bin/sh\n")
@example("\x85#SBATCH --time=x", "#!/bin/sh\n")
def test_any_text(text: str, begin: str) -> None:
    check(begin + text)


@given(st.dictionaries(keys, trees, max_size=8))
@settings(max_examples=60)
def test_any_tree_of_our_own_keys(tree: dict[str, Any]) -> None:
    check(as_yaml({"run": "x"} | tree))


@given(st.sampled_from([key for key in KEYS if key != "run"]), trees)
@settings(max_examples=120)
def test_anything_as_the_value_of_a_key(key: str, tree: Any) -> None:
    check(f"run: x\n{key}: {as_yaml(tree)}")


@given(st.sampled_from(["Job", "TrainJob", "PyTorchJob"]), manifest_trees, manifest_trees)
@settings(max_examples=100)
def test_any_manifest(kind: str, spec: Any, metadata: Any) -> None:
    group = {"Job": "batch/v1", "TrainJob": "trainer.kubeflow.org/v1alpha1", "PyTorchJob": "kubeflow.org/v1"}[kind]
    check(as_yaml({"apiVersion": group, "kind": kind, "metadata": metadata, "spec": spec}))


options = st.sampled_from(
    [*(f"--{name}" for name in (*READERS, *SIZES, *LEFT_OUT)), *(f"-{letter}" for letter in SHORT)]
)
values = words | numbers.map(str) | st.text(max_size=12) | st.from_regex(r"[0-9a-z:@%,-]{1,12}", fullmatch=True)
directives = st.builds(
    lambda option, joint, value: f"{option}{joint}{value}", options, st.sampled_from(["=", " ", ""]), values
)


@given(st.lists(directives, max_size=4), st.sampled_from(["true", "srun x"]))
@settings(max_examples=120)
def test_any_directives(lines: list[str], command: str) -> None:
    check("\n".join(["#!/bin/sh", *(f"#SBATCH {line}" for line in lines), command]), "job.sh")


@given(
    st.sampled_from([OWN, SCRIPT, MANIFEST, PYTORCH]),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12), words | st.text(max_size=5)), min_size=1, max_size=4),
)
@settings(max_examples=120)
def test_jobs_that_were_damaged(text: str, changes: list[tuple[float, int, str]]) -> None:
    for where, dropped, put_in in changes:
        at = int(where * len(text))
        text = text[:at] + put_in + text[at + dropped :]
    check(text)


@pytest.mark.parametrize("text", [OWN, SCRIPT, MANIFEST, PYTORCH])
def test_what_is_damaged_here_was_whole(text: str) -> None:
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
def test_what_would_be_too_much_is_refused(text: str) -> None:
    assert check(text) is None


def test_notes_are_not_without_end() -> None:
    pod = "{containers: [{command: [a], resources: {limits: {" + ", ".join(f"r{i}: 1" for i in range(1000)) + "}}}]}"
    notes = parse_spec(f"{{apiVersion: batch/v1, kind: Job, spec: {{template: {{spec: {pod}}}}}}}", "job", "job").notes
    assert (len(notes), notes[-1]) == (51, "and 950 more notes")


def test_what_is_long_and_harmless_is_read_at_once() -> None:
    padding = " " * 50_000
    read = check(f"#!/bin/sh\n#SBATCH -J a{padding[:5000]}\n{';' + padding}true")
    assert read is not None
    assert read.submissions[0].name == "a"
