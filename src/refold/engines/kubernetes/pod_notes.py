"""Tell pods why they wait, and when they may start: as a condition of the pod, and as an event."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from math import inf
from typing import Any, NamedTuple

from refold.client.api import JobStatus
from refold.engines.kubernetes.api_server import CONFLICT, STRATEGIC_PATCH, ApiError, ApiServer
from refold.engines.kubernetes.constraints import constraints_text, refusals
from refold.engines.kubernetes.gangs import SCHEDULER_NAME, parse_gang_name
from refold.engines.kubernetes.mirror import Mirror
from refold.engines.kubernetes.nodes import down_reason
from refold.engines.kubernetes.objects import ApiNode, Pod
from refold.engines.kubernetes.pod_states import bindable, pod_path
from refold.engines.kubernetes.resources import pod_need
from refold.errors import BadValue
from refold.model import NOT_ALLOWED, Seconds
from refold.server import LiveState

INTERVAL: Seconds = 5.0
"""Pause between two rounds, in which the pods of waiting jobs are brought up to date."""

MAX_CHANGES_PER_ROUND = 100
"""Requests to the API server in a round. The pods of the first jobs of the queue come first."""

REPEAT_AFTER: Seconds = 60.0
"""How often a pod is told about changes of details, such as its expected start."""

NOT_ALLOWED_COUNT = re.compile(rf"\d+ (?:does|do) {NOT_ALLOWED}")

log = logging.getLogger("refold")


class Note(NamedTuple):
    """What a pod should say, and the kind of reason. `as_event`: also as an event, if the kind of reason changes.

    `valid_until`: the expected start that it names, in Unix time.
    """

    pod: Pod
    reason: str
    text: str
    as_event: bool
    valid_until: Seconds = inf


class Said(NamedTuple):
    """What a pod says, since when, and until when it is true."""

    reason: str
    text: str
    at: Seconds
    valid_until: Seconds = inf


class PodNotes:
    """Sets the condition `PodScheduled` of waiting pods, and creates an event for the first pod of each gang.

    `status_of` returns the status of a job. Notes are sent in the background, since the API server may be slow.
    """

    def __init__(self, state: LiveState, api: ApiServer, mirror: Mirror, status_of: Callable[[str], JobStatus]) -> None:
        self._state = state
        self._api = api
        self._mirror = mirror
        self._status_of = status_of
        self._wanted: dict[str, str] = {}
        """What pods that are in no job should say, by the uid of the pod."""
        self._said: dict[str, Said] = {}

    def set(self, pods: Iterable[Pod], message: str) -> None:
        """Say why pods wait that do not belong to a job."""
        self._wanted |= {pod.metadata.uid: message for pod in pods}

    async def run(self) -> None:
        """Bring the pods up to date, again and again, until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL)
            try:
                await asyncio.to_thread(self._send, self._find_changes(), [*self._mirror.nodes.values()])
            except ApiError as error:
                log.warning("cannot tell pods why they wait: %s", error)

    def _find_changes(self) -> list[Note]:
        """Return the notes that are new, or were changed in detail some time ago."""
        notes, now = self._notes(), self._state.now()
        present = {note.pod.metadata.uid for note in notes}
        self._said = {uid: said for uid, said in self._said.items() if uid in present}
        changed = [note for note in notes if self._is_news(note, now)]
        return changed[:MAX_CHANGES_PER_ROUND]

    def _is_news(self, note: Note, now: Seconds) -> bool:
        said = self._said.get(note.pod.metadata.uid)
        if said is None or said.reason != note.reason:
            return True
        return said.text != note.text and (now >= said.at + REPEAT_AFTER or time.time() >= said.valid_until)

    def _notes(self) -> list[Note]:
        found: list[Note] = []
        view = self._state.view
        for job in (*view.waiting.values(), *view.held.values(), *view.infeasible.values()):
            pods = bindable(self._mirror.pods_of_gang(parse_gang_name(job.launch.gang))) if job.launch.gang else []
            if pods:
                status = self._status_of(job.id)
                text, valid_until = waiting_text(status, time.time())
                found += [Note(pod, status.reason, text, pod is pods[0], valid_until) for pod in pods]
        in_jobs = {note.pod.metadata.uid for note in found}
        pods_by_uid = {pod.metadata.uid: pod for pod in self._mirror.pods.values()} if self._wanted else {}
        self._wanted = {uid: text for uid, text in self._wanted.items() if uid not in in_jobs and uid in pods_by_uid}
        others = bindable({uid: pods_by_uid[uid] for uid in self._wanted})
        texts = [(pod, self._wanted[pod.metadata.uid]) for pod in others]
        return [*found, *(Note(pod, text, text, True) for pod, text in texts)]

    def _send(self, notes: list[Note], nodes: Sequence[ApiNode]) -> None:
        """Send notes. Which constraints exclude how many nodes is found out here, in a thread, since it takes long."""
        up = [node for node in nodes if not (down_reason(node) or node.spec.unschedulable)]
        causes: dict[tuple[bytes, str], str] = {}
        for note in notes:
            pod, said, text = note.pod, self._said.get(note.pod.metadata.uid), note.text
            is_new = said is None or said.reason != note.reason
            if match := NOT_ALLOWED_COUNT.search(text):
                spec, resource = self._mirror.volumes.limited(pod), _gpu_resource(pod)
                key = constraints_text(spec), resource
                causes[key] = causes.get(key) or refusals(spec, up, resource)
                text = text.replace(match[0], causes[key] or match[0])
            try:
                self._api.patch(f"{pod_path(pod)}/status", _change(pod, text), STRATEGIC_PATCH)
                if note.as_event and is_new:
                    self._api.create(f"/api/v1/namespaces/{pod.metadata.namespace}/events", _event(pod, text))
            except ApiError as error:
                if error.is_transient:
                    raise
                if error.status == CONFLICT:
                    continue
            self._said[pod.metadata.uid] = Said(note.reason, note.text, self._state.now(), note.valid_until)


def _gpu_resource(pod: Pod) -> str:
    try:
        return pod_need(pod).resource
    except BadValue:  # it was accepted, and has been changed since
        return ""


def waiting_text(status: JobStatus, now: Seconds) -> tuple[str, Seconds]:
    """Return why a job waits, and when it may start: 'Resources: 0 of 2 nodes fit: …; expected start …'.

    The time is that of the expected start, after which the text is no longer true. `now`: in Unix time.
    """
    text = f"{status.id}: " + ": ".join(filter(None, [status.reason, status.message]))
    if status.start_estimate is None or status.start_estimate.at <= now:
        return text, inf
    expected = datetime.fromtimestamp(status.start_estimate.at, UTC).strftime("%Y-%m-%dT%H:%MZ")
    return f"{text}; expected start {expected}", status.start_estimate.at


def _change(pod: Pod, text: str) -> dict[str, Any]:
    """Return the condition of a pod that waits. It is not set if the pod has changed: it may have been bound."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": text[:1000]}
    return {
        "metadata": {"uid": pod.metadata.uid, "resourceVersion": pod.metadata.resource_version},
        "status": {"conditions": [{**condition, "lastProbeTime": None, "lastTransitionTime": _now()}]},
    }


def _event(pod: Pod, text: str) -> dict[str, Any]:
    now = _now()
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{pod.metadata.name}.", "namespace": pod.metadata.namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": pod.metadata.name,
            "namespace": pod.metadata.namespace,
            "uid": pod.metadata.uid,
        },
        "type": "Normal",
        "reason": "Waiting",
        "message": text[:1000],
        "source": {"component": SCHEDULER_NAME},
        "reportingComponent": SCHEDULER_NAME,
        "reportingInstance": os.uname().nodename,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
