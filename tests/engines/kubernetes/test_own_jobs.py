"""The Jobs that Refold creates: what their containers learn about the run."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes_objects import make_node, make_pod
from msgspec.structs import replace
from process_kubelet import environment, expand

from refold.client.api import Submission
from refold.core import StartRun
from refold.engines.kubernetes.engine import KubernetesEngine
from refold.engines.kubernetes.gangs import DaemonIdentity
from refold.engines.kubernetes.nodes import map_nodes
from refold.engines.kubernetes.own_jobs import (
    PodSettings,
    binding_annotations,
    manifest,
    pod_shares,
    secret_manifest,
    service_manifest,
)
from refold.errors import BadInput
from refold.model import Allocation, Demand, Job, Launch, NodeSet, Plan, Share
from refold.train.run_settings import read_settings

SETTINGS = PodSettings(DaemonIdentity("0123abcd", "key"), "default", "pytorch", 30.0, "claim")
TWO_NODES = (Share(0, (4, 5), cpu_milli=8000), Share(3, (0, 1), cpu_milli=6000, memory_mib=512))


def variables(job: Job, allocation: Allocation, instance: int = 0, run: int = 2) -> dict[str, str]:
    """Return the environment of a container of an instance, as a kubelet makes it."""
    spec = manifest(job, run, allocation, SETTINGS)["spec"]["template"]["spec"]
    shares = pod_shares(job, allocation)
    annotations = binding_annotations(
        SETTINGS.identity, make_pod("p"), job, StartRun(job.id, run, allocation), instance, shares
    )
    return environment(spec, spec["containers"][0], annotations)


def test_training_jobs_read_their_plan_and_rank_from_the_environment() -> None:
    job = Job("llm-7", demand=Demand(2, 2), command=("python", "train.py"))
    plan = Plan(tensor=2, data=2)
    settings = read_settings(variables(job, Allocation(TWO_NODES, plan), instance=1))
    assert settings.plan == plan
    assert (settings.gang.instances, settings.gang.first_rank) == (2, 2)
    assert (settings.address, settings.port, settings.grace) == ("127.0.0.1", 29500, 30.0)


def test_the_plan_of_the_annotation_is_that_of_the_environment() -> None:
    job, allocation = Job("j"), Allocation((Share(0, (0,)),), Plan())
    annotations = binding_annotations(
        SETTINGS.identity, make_pod("p"), job, StartRun(job.id, 1, allocation), 0, allocation.placement
    )
    assert annotations["refold.dev/plan"] == variables(job, allocation)["REFOLD_PLAN"]


def test_a_single_instance_is_not_a_gang() -> None:
    found = variables(Job("one"), Allocation((Share(0, (0,)),)))
    assert "MASTER_ADDR" not in found and "PET_NNODES" not in found
    assert "REFOLD_PLAN" not in found
    assert (found["REFOLD_INSTANCES"], found["REFOLD_RUN"]) == ("1", "2")
    assert found["REFOLD_CHECKPOINT"] == "/refold/checkpoints/one"


def test_pods_of_a_gang_find_the_first_by_its_name() -> None:
    body = manifest(Job("a b/C"), 1, Allocation(TWO_NODES), SETTINGS)
    template = body["spec"]["template"]["spec"]
    address = next(entry["value"] for entry in template["containers"][0]["env"] if entry["name"] == "MASTER_ADDR")
    assert address == f"{body['metadata']['name']}-0.refold-0123abcd"
    assert template["subdomain"] == "refold-0123abcd" == service_manifest(SETTINGS)["metadata"]["name"]


def test_the_secret_of_a_gang_is_not_in_its_job() -> None:
    body, run = manifest(Job("llm"), 2, Allocation(TWO_NODES), SETTINGS), ("llm", 2)
    made = secret_manifest(run, SETTINGS, "uid-of-the-job")
    assert made["metadata"]["name"] == body["metadata"]["name"]
    assert made["metadata"]["ownerReferences"][0]["uid"] == "uid-of-the-job"
    secret = made["stringData"]["secret"]
    assert secret not in str(body)
    assert secret != secret_manifest(("llm", 3), SETTINGS, "")["stringData"]["secret"]
    spec = body["spec"]["template"]["spec"]
    found = environment(spec, spec["containers"][0], {}, lambda name: {"secret": f"that of {name}"})
    assert found["REFOLD_RUN_SECRET"] == f"that of {body['metadata']['name']}"
    assert "REFOLD_RUN_SECRET" not in variables(Job("llm"), Allocation(TWO_NODES)), "without the Secret"
    own = Launch(environment=(("REFOLD_RUN_SECRET", ""),))
    assert variables(Job("llm", launch=own), Allocation(TWO_NODES))["REFOLD_RUN_SECRET"] == ""


def test_pods_of_a_gang_have_the_variables_of_torchrun() -> None:
    found = variables(Job("llm-7"), Allocation(TWO_NODES), instance=1)
    torchrun = {name: value for name, value in found.items() if name.startswith("PET_")}
    assert torchrun == {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "2",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": found["MASTER_ADDR"],
        "PET_MASTER_PORT": "29500",
        "PET_RDZV_ENDPOINT": f"{found['MASTER_ADDR']}:29500",
    }


def test_pods_request_what_each_instance_has() -> None:
    container = manifest(Job("j"), 1, Allocation(TWO_NODES), SETTINGS)["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"] == {"requests": {"cpu": "6000m"}, "limits": {"nvidia.com/gpu": "2"}}


def test_instances_of_different_sizes_are_rejected() -> None:
    with pytest.raises(BadInput, match="got 2, 1 GPUs on its nodes"):
        manifest(Job("j"), 1, Allocation((Share(0, (0, 1)), Share(1, (0,)))), SETTINGS)


def test_parentheses_of_the_shell_are_not_replaced_by_kubernetes() -> None:
    launch = Launch(environment=(("WHEN", "$(REFOLD_RUN) o'clock"),))
    job = Job("j", command=("sh", "-c", "echo $(REFOLD_JOB)"), launch=launch)
    allocation = Allocation((Share(0, (0,)),))
    container: dict[str, Any] = manifest(job, 1, allocation, SETTINGS)["spec"]["template"]["spec"]["containers"][0]
    assert variables(job, allocation)["WHEN"] == "$(REFOLD_RUN) o'clock"
    assert [expand(word, {"REFOLD_JOB": "x"}) for word in container["command"]] == list(job.command)


def test_the_variables_of_a_job_do_not_replace_those_of_its_run() -> None:
    launch = Launch(environment=(("REFOLD_RUN", "9"), ("REFOLD_CHECKPOINT", "/mine")))
    found = variables(Job("j", launch=launch), Allocation((Share(0, (0,)),)))
    assert (found["REFOLD_RUN"], found["REFOLD_CHECKPOINT"]) == ("2", "/mine")


def test_gangs_that_can_be_scaled_have_pods_of_equal_size() -> None:
    job = Job("j", demand=Demand(2, 2), gpu_range=(2, 8), reshapable=True, launch=Launch(gang="Job/default/j/u/"))
    shares = pod_shares(job, Allocation((Share(0, (0, 1, 4, 5), cpu_milli=4000), Share(2, (6, 7)))))
    assert shares == (
        Share(0, (0, 1), cpu_milli=2000),
        Share(0, (4, 5), cpu_milli=2000),
        Share(2, (6, 7)),
    )
    with pytest.raises(BadInput, match="3 GPUs on a node cannot be divided into pods of 2"):
        pod_shares(job, Allocation((Share(0, (0, 1, 2)),)))


def test_a_command_for_which_no_node_admits_pods_is_rejected() -> None:
    engine = KubernetesEngine.__new__(KubernetesEngine)
    tainted = make_node("a", taints=[{"key": "team", "effect": "NoSchedule"}])
    engine._nodes = map_nodes([tainted, make_node("b", gpus=0)])
    job, submission = Job("job-1", demand=Demand(gpus=1)), Submission(name="job", command=["true"])
    with pytest.raises(BadInput, match=r"no node of the cluster has nvidia.com/gpu and admits pods that tolerate no"):
        engine.complete(submission, job)
    submission = replace(submission, allow_impossible=True)
    assert engine.complete(submission, job).demand.allowed_nodes == NodeSet()
    assert engine.complete(submission, replace(job, demand=Demand(gpus=0))).demand.allowed_nodes == NodeSet.of([1])
