"""No pod ends or blocks the daemon, and no pod gets into the run of another: whatever its owner writes into it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, strategies as st
from kubernetes_objects import DAEMON, binding_of, make_node, make_pod

from refold.engines.kubernetes.constraints import unsupported_fields
from refold.engines.kubernetes.gangs import DaemonIdentity, GangName, gang_name, parse_gang_name, run_of, single_pod
from refold.engines.kubernetes.mirror import Mirror
from refold.engines.kubernetes.nodes import group_use, map_nodes
from refold.engines.kubernetes.objects import Pod
from refold.engines.kubernetes.observation import past_gangs
from refold.engines.kubernetes.owner_specs import Owner, owner_of_pods
from refold.engines.kubernetes.owners import Owners
from refold.engines.kubernetes.pod_states import bindable, pod_failure
from refold.engines.kubernetes.pods import gang_submission, pod_constraints
from refold.engines.kubernetes.volumes import PodVolumes
from refold.errors import BadInput, BadValue

NODES = map_nodes([make_node("n0"), make_node("n1", labels={"pool": "x"}), make_node("cpu", gpus=0)])

HOSTILE = (
    "",
    "0",
    "-1",
    "9" * 5000,
    "1e999999999",
    "NaN",
    "inf",
    "²",
    "٣",
    "a/b",
    "../../../x",
    "%2F",
    "\0",
    "{}",
    "x" * 100_000,
    "maybe",
    "4..16",
    "16..4",
    f"1..{'9' * 5000}",
)
texts = st.sampled_from(HOSTILE) | st.text(max_size=8)
amounts = texts | st.integers(-5, 2**70) | st.floats()
resources = st.sampled_from(["cpu", "memory", "nvidia.com/gpu", "amd.com/gpu", "nvidia.com/mig-1g", "x/y", ""])
keys = st.sampled_from(
    [
        *("refold.dev/" + key for key in ("gang", "gang-size", "class", "preemptible", "estimate", "time-limit")),
        *("refold.dev/" + key for key in ("workload", "gpu-range", "gpu-fraction", "daemon", "job", "run", "instance")),
        "refold.dev/binding",
        "refold.dev/submitted",
        "jobset.sigs.k8s.io/jobset-name",
        "jobset.sigs.k8s.io/jobset-uid",
        "batch.kubernetes.io/job-completion-index",
        "kueue.x-k8s.io/queue-name",
    ]
)
requirements = st.fixed_dictionaries(
    {"key": texts, "operator": st.sampled_from(["In", "NotIn", "Gt", "Lt", "Exists", ""]), "values": st.lists(texts)}
)
terms = st.fixed_dictionaries({"matchExpressions": st.lists(requirements), "matchFields": st.lists(requirements)})
containers = st.fixed_dictionaries(
    {"resources": st.fixed_dictionaries({key: st.dictionaries(resources, amounts) for key in ("limits", "requests")})},
    optional={"command": st.lists(texts), "restartPolicy": st.just("Always")},
)


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    """A pod as anybody may create it, bound or not."""
    fields: dict[str, Any] = {
        "labels": draw(st.dictionaries(keys, texts)),
        "annotations": draw(st.dictionaries(keys, texts)),
        "containers": draw(st.lists(containers, min_size=1, max_size=2)),
        "initContainers": draw(st.lists(containers, max_size=1)),
        "nodeSelector": draw(st.dictionaries(texts, texts)),
        "nodeName": draw(st.sampled_from(["", "n0", "gone"])),
        "priority": draw(st.integers(-(2**31), 2**31 - 1)),
        "status": {"phase": draw(st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "odd"]))},
    }
    if draw(st.booleans()):
        selector = {"nodeSelectorTerms": draw(st.lists(terms, max_size=2))}
        fields["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}}
    if draw(st.booleans()):
        fields["owner"] = draw(st.sampled_from(["Job", "JobSet", "PyTorchJob", "x"])), draw(texts), draw(texts)
    if draw(st.booleans()):
        fields["workloadRef"] = {"name": draw(texts), "podGroup": draw(texts)}
    try:
        return make_pod("p", **fields)
    except (msgspec.ValidationError, UnicodeEncodeError):  # cannot be sent, or is left out by the mirror
        return make_pod("p")


def examine(pod: Pod) -> None:
    """Ask all that the daemon asks about a pod, in the order in which it does. BadValue and BadInput are answers."""
    gang = gang_name(pod)
    assert parse_gang_name(gang.text()) == gang
    assert parse_gang_name(single_pod(pod).text()) == single_pod(pod)
    run_of(pod, DAEMON), bindable({"p": pod}), pod_failure(pod), unsupported_fields(pod)
    group_use(NODES.groups[0], [pod])
    past_gangs(NODES, [pod])
    for read in (owner_of_pods, lambda _: Owner(1, elastic=True)):
        try:
            owner = read([pod])
            submission = gang_submission(gang, [pod], owner, gang.key)
            NODES.allowed_nodes(pod_constraints([pod], PodVolumes()))
            submission.to_job("j-1", "default", "", 0.0)
        except (BadInput, BadValue) as error:
            assert str(error)


@given(pods())
def test_whatever_a_pod_says_is_understood_or_refused(pod: Pod) -> None:
    examine(pod)


async def _mirror_of(found: Sequence[Pod]) -> Mirror:
    mirror = Mirror(cast(Any, SimpleNamespace()), DAEMON)
    for pod in found:
        mirror._posts(mirror._change_pod)(pod, False)
    await asyncio.sleep(0)
    mirror._drain()
    return mirror


@given(st.lists(pods(), max_size=3))
def test_the_mirror_shows_the_other_pods_whatever_some_say(hostile: list[Pod]) -> None:
    good = make_pod("good", owner=("Job", "train", "u"))
    mirror = asyncio.run(_mirror_of([*hostile, good]))
    assert mirror.pods_of_gang(GangName("Job", "default", "train", "u"))[good.key] is good


BOUND = make_pod("train-0", nodeName="n0", annotations=binding_of("uid-train-0", "train-1", 1, 0))
RUN = ("train-1", 1)


def copied(**fields: Any) -> Pod:
    """A pod with the annotations of another one."""
    return make_pod("train-0", nodeName="n0", **{"annotations": dict(BOUND.metadata.annotations), **fields})


def test_a_pod_belongs_to_the_run_for_which_the_daemon_has_bound_it() -> None:
    assert run_of(BOUND, DAEMON) == RUN
    assert run_of(BOUND, DaemonIdentity("other", "key")) is None
    assert run_of(BOUND, DaemonIdentity("daemon", "another key")) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"namespace": "attacker"},
        {"uid": "another"},
        {"namespace": "attacker", "uid": "another"},
        {"annotations": {**BOUND.metadata.annotations, "refold.dev/job": "victim-7"}},
        {"annotations": {**BOUND.metadata.annotations, "refold.dev/run": "2"}},
        {"annotations": {**BOUND.metadata.annotations, "refold.dev/instance": "1"}},
        {"annotations": {**BOUND.metadata.annotations, "refold.dev/binding": ""}},
        {"annotations": {**BOUND.metadata.annotations, "refold.dev/binding": "²" * 40}},
        {"annotations": {**BOUND.metadata.annotations, "refold.dev/run": "9" * 5000}},
    ],
)
def test_a_pod_with_copied_annotations_belongs_to_no_run(fields: dict[str, Any]) -> None:
    """Anyone may copy annotations onto a pod of their own: a failure of it would end the run of somebody else."""
    stranger = copied(**fields)
    assert run_of(stranger, DAEMON) is None
    mirror = asyncio.run(_mirror_of([BOUND, stranger] if stranger.key != BOUND.key else [stranger]))
    assert all(pod is BOUND for pod in mirror.pods_of_run(RUN).values())


@pytest.mark.parametrize("name", ["../../victim/jobs/train", "a/status", "x?dryRun=All", "%2e%2e/x"])
def test_the_name_of_an_owner_leads_to_no_other_object(name: str) -> None:
    """References to owners are not checked by the API server: a name may have any characters."""
    gang = gang_name(make_pod("p", namespace="team", owner=("Job", name, "u")))
    path = Owners(cast(Any, None)).path(gang)
    folder = "/apis/batch/v1/namespaces/team/jobs/"
    assert path.startswith(folder)
    assert not set(path.removeprefix(folder)) & {"/", "?", "#"}
