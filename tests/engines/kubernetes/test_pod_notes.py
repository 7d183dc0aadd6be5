"""Pods are told why they wait, and only while they do."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any, cast

from fake_api_server import FakeApiServer
from kubernetes_daemon import PODS
from kubernetes_objects import Json, make_node, make_pod, pod_json
from msgspec.structs import replace

from refold.client.api import JobStatus, TimeEstimate
from refold.engines.kubernetes.api_server import ApiServer
from refold.engines.kubernetes.objects import Pod
from refold.engines.kubernetes.pod_notes import Note, PodNotes, Said, waiting_text
from refold.engines.kubernetes.volumes import PodVolumes
from refold.model import Shortage


def make_notes(api: ApiServer) -> PodNotes:
    state = SimpleNamespace(now=lambda: 0.0)
    return PodNotes(cast(Any, state), api, cast(Any, SimpleNamespace(volumes=PodVolumes())), cast(Any, None))


def create_pod(server: FakeApiServer, name: str) -> Pod:
    server.api.create(PODS, pod_json(name))
    return server.api.get(f"{PODS}/{name}", Pod)


def conditions(server: FakeApiServer, name: str) -> list[str]:
    return [entry.message for entry in server.api.get(f"{PODS}/{name}", Pod).status.conditions]


def test_a_pod_that_was_bound_meanwhile_is_not_told_that_it_waits(fake_server: FakeApiServer) -> None:
    waits, bound = create_pod(fake_server, "waits"), create_pod(fake_server, "bound")
    body = {"metadata": {"uid": bound.metadata.uid, "annotations": {}}, "target": {"name": "n0"}}
    fake_server.api.create(f"{PODS}/bound/binding", body)
    notes = make_notes(fake_server.api)
    notes._send([Note(bound, "Resources", "no room", True), Note(waits, "Resources", "no room", True)], [])
    assert conditions(fake_server, "waits") == ["no room"]
    assert conditions(fake_server, "bound") == []
    events = [body for path, body in fake_server.objects.items() if "/events/" in path]
    assert [event["involvedObject"]["name"] for event in events] == ["waits"]


def test_which_constraints_exclude_a_pod_is_found_out_when_it_is_told(fake_server: FakeApiServer) -> None:
    fake_server.api.create(PODS, pod_json("waits", nodeSelector={"pool": "a"}))
    pod = fake_server.api.get(f"{PODS}/waits", Pod)
    notes = make_notes(fake_server.api)
    shortage = Shortage(nodes=4, not_allowed=3, too_few_gpus=1)
    tainted = make_node("n2", labels={"pool": "a"}, taints=[{"key": "team", "value": "x", "effect": "NoSchedule"}])
    nodes = [make_node("n0"), make_node("n1"), tainted, make_node("n3", labels={"pool": "a"})]
    notes._send([Note(pod, "Resources", shortage.text(), True)], nodes)
    assert conditions(fake_server, "waits") == [
        "0 of 4 nodes fit: 1 has too few free GPUs, 2 do not match the node selector, 1 has the taint team=x:NoSchedule"
    ]


def test_pods_that_request_another_kind_of_gpu_have_causes_of_their_own(fake_server: FakeApiServer) -> None:
    slices: Json = {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}}}]}
    fake_server.api.create(PODS, pod_json("slice", **slices))
    whole = create_pod(fake_server, "whole")
    text = Shortage(nodes=2, not_allowed=2).text()
    pods = [whole, fake_server.api.get(f"{PODS}/slice", Pod)]
    notes = make_notes(fake_server.api)
    notes._send([Note(pod, "Resources", text, False) for pod in pods], [make_node("n0"), make_node("n1", gpus=0)])
    assert conditions(fake_server, "whole") == ["0 of 2 nodes fit: 1 has no nvidia.com/gpu"]
    assert conditions(fake_server, "slice") == ["0 of 2 nodes fit: 2 have no nvidia.com/mig-1g.10gb"]


def test_an_expected_start_that_has_passed_is_withdrawn_at_once() -> None:
    estimate = TimeEstimate(1000.0, 2000.0)
    status = JobStatus("train-1", "train", "waiting", "lab", "", "guaranteed", 0, "1 GPU", 1, 0.0, reason="Resources")
    status = replace(status, start_estimate=estimate)
    before, after = waiting_text(status, 999.0), waiting_text(status, 1000.0)
    assert before == ("train-1: Resources; expected start 1970-01-01T00:16Z", 1000.0)
    assert after == ("train-1: Resources", inf)
    notes, pod = make_notes(cast(Any, None)), make_pod("waits")
    notes._said[pod.metadata.uid] = Said("Resources", before[0], at=0.0, valid_until=before[1])
    assert notes._is_news(Note(pod, "Resources", after[0], True), now=1.0), "it is not repeated after a minute"
    notes._said[pod.metadata.uid] = Said("Resources", before[0], at=0.0, valid_until=inf)
    assert not notes._is_news(Note(pod, "Resources", after[0], True), now=1.0)
