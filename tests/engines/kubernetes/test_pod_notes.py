"""Pods are told why they wait, and only while they do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from fake_api_server import FakeApiServer
from kubernetes_daemon import PODS
from kubernetes_objects import make_node, pod_json

from refold.engines.kubernetes.api_server import ApiServer
from refold.engines.kubernetes.objects import Pod
from refold.engines.kubernetes.pod_notes import Note, PodNotes


def make_notes(api: ApiServer) -> PodNotes:
    state = SimpleNamespace(now=lambda: 0.0)
    return PodNotes(cast(Any, state), api, cast(Any, None), cast(Any, None))


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
    notes._send([Note(pod, "Infeasible", "no room", True, is_infeasible=True)], [make_node("n0"), make_node("n1")])
    expected = "no room; node constraints: does not match the node selector (2 nodes)"
    assert conditions(fake_server, "waits") == [expected]
