"""LocalQueues: a gang that names one waits until it exists, on clusters that have Kueue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_api_server import FakeApiServer
from kubernetes_daemon import daemon_of, job_json, wait_for

from refold.engines.kubernetes import ApiError
from refold.engines.kubernetes.gang_queue import KEPT_SECONDS, LocalQueues

GROUP = "/apis/kueue.x-k8s.io"
QUEUES = f"{GROUP}/v1beta1/namespaces/default/localqueues"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


class Answers:
    """An API server with these objects; `requests`: what was asked for."""

    def __init__(self, objects: dict[str, Any]) -> None:
        self.objects = objects
        self.requests: list[str] = []
        self.now = 0.0

    def call(self, _: str, path: str) -> bytes:
        self.requests.append(path)
        found = self.objects.get(path, 404)
        if isinstance(found, int):
            raise ApiError(found, "", "no")
        return msgspec.json.encode(found)

    def queues(self) -> LocalQueues:
        return LocalQueues(self, lambda: self.now)  # type: ignore[arg-type]


KUEUE = {GROUP: {"preferredVersion": {"version": "v1beta1"}}}


def test_a_queue_that_does_not_exist_is_missing() -> None:
    queues = Answers({**KUEUE, f"{QUEUES}/vision": {}}).queues()
    assert [queues.is_missing("default", name) for name in ("vision", "visoin")] == [False, True]
    assert queues.is_missing("other", "vision")


def test_nothing_is_missing_without_kueue_or_the_right_to_read_queues() -> None:
    assert not Answers({}).queues().is_missing("default", "vision")
    assert not Answers({**KUEUE, f"{QUEUES}/vision": 403}).queues().is_missing("default", "vision")


def test_an_answer_is_used_again_for_a_while() -> None:
    server = Answers(KUEUE)
    queues = server.queues()
    assert all(queues.is_missing("default", "vision") for _ in range(3))
    assert server.requests == [GROUP, f"{QUEUES}/vision"]
    server.objects[f"{QUEUES}/vision"] = {}
    server.now = KEPT_SECONDS
    assert not queues.is_missing("default", "vision")


@pytest.mark.long  # the daemon asks for a queue again after ten seconds
def test_a_gang_waits_for_its_queue(fake_server: FakeApiServer, tmp_path: Path) -> None:
    fake_server.objects[GROUP] = {**KUEUE[GROUP], "metadata": {"name": "kueue.x-k8s.io"}}

    def message() -> str:
        return " ".join(
            entry["message"] for pod in fake_server.pods("one-") for entry in pod["status"].get("conditions", [])
        )

    with daemon_of(fake_server, tmp_path, "policy: {name: fifo}\ntenants: {vision: {}}\n") as daemon:
        body = job_json("one", 1, 1, 0.2, labels={QUEUE_LABEL: "vision"})
        fake_server.api.create("/apis/batch/v1/namespaces/default/jobs", body)
        wait_for(lambda: "LocalQueue vision not found in namespace default" in message(), "the pod says so")
        fake_server.api.create(QUEUES, {"metadata": {"name": "vision"}})
        daemon.wait_for_state("one", "finished")
