"""The Jobs of submitted commands on the API server, one for each run: created, and deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import msgspec

from refold.core import StartRun
from refold.engines.kubernetes.api_server import CONFLICT, NOT_FOUND, ApiError, Calls, ObjectList
from refold.engines.kubernetes.gangs import JOB_ANNOTATION, RUN_ANNOTATION, GangName, RunKey
from refold.engines.kubernetes.mirror import Mirror
from refold.engines.kubernetes.objects import BatchJob
from refold.engines.kubernetes.own_jobs import SUBMITTED_LABEL, PodSettings, manifest, object_name, service_manifest
from refold.errors import BadInput
from refold.model import Job, Seconds

DELETE_AFTER: Seconds = 90.0
"""How long the Job of a stopped run is kept. A later daemon deletes Jobs of which the journal knows nothing."""


class OwnJobs(msgspec.Struct, frozen=True):
    """Where submitted jobs become Jobs of Kubernetes, the image of their containers, and a volume for checkpoints."""

    namespace: str = "default"
    image: str = ""
    volume_claim: str = ""


class OwnJobObjects:
    """The Jobs of a daemon. `grace`: the grace period of their pods."""

    def __init__(self, calls: Calls, mirror: Mirror, own: OwnJobs, grace: Seconds) -> None:
        self._calls = calls
        self._mirror = mirror
        self._own = own
        self._settings = PodSettings(mirror.daemon, own.image, grace, own.volume_claim)
        self._path = f"/apis/batch/v1/namespaces/{own.namespace}/jobs"
        self._has_service = False
        self._deletions: list[asyncio.Task[None]] = []

    async def create(self, job: Job, order: StartRun) -> GangName:
        """Create the Job of a run, unless it exists."""
        if not self._own.image:
            raise BadInput("no image for the containers of submitted commands: set kubernetes.image in refold.yaml")
        body = manifest(job, order.run, order.allocation, self._settings)
        await self._create_service()
        try:
            text = await self._calls.repeat(self._calls.api.create, self._path, body)
            created = msgspec.json.decode(text, type=BatchJob)
        except ApiError as error:
            if error.status != CONFLICT:
                raise
            path = f"{self._path}/{object_name(self._mirror.daemon, job.id, order.run)}"
            created = await self._calls.repeat(self._calls.api.get, path, BatchJob)
        return GangName("Job", self._own.namespace, created.metadata.name, created.metadata.uid)

    def delete_later(self, gang: GangName) -> None:
        """Delete the suspended Job of a run that was stopped, when its end is in the journal: until then it says so."""
        self._deletions = [task for task in self._deletions if not task.done()]
        self._deletions.append(asyncio.create_task(self._delete_after_a_while(gang.name)))

    async def delete_all_except(self, runs: Collection[RunKey]) -> None:
        """Delete the Jobs of other runs that have not ended, and wait until their pods are gone."""
        selector = {"labelSelector": f"{SUBMITTED_LABEL}={self._mirror.daemon}"}
        found = await self._calls.repeat(self._calls.api.get, self._path, ObjectList[BatchJob], selector)
        active = [job for job in found.items if not job.has_ended]  # the output of others is kept
        await asyncio.gather(*(self._delete_with_pods(job) for job in active if _run_of_job(job) not in runs))

    async def stop(self) -> None:
        """Delete nothing any more."""
        for task in self._deletions:
            task.cancel()
        await asyncio.gather(*self._deletions, return_exceptions=True)

    async def _create_service(self) -> None:
        """Create the Service by which pods of a gang find each other, unless it exists."""
        if self._has_service:
            return
        path = f"/api/v1/namespaces/{self._own.namespace}/services"
        try:
            await self._calls.repeat(self._calls.api.create, path, service_manifest(self._settings))
        except ApiError as error:
            if error.status != CONFLICT:
                raise
        self._has_service = True

    async def _delete_with_pods(self, job: BatchJob) -> None:
        gang = GangName("Job", job.metadata.namespace, job.metadata.name, job.metadata.uid)
        await self._delete(gang.name)
        changes = self._mirror.follow()
        try:
            while any(not pod.has_ended and pod.is_bound for pod in self._mirror.pods_of_gang(gang).values()):
                await changes.get()
        finally:
            self._mirror.unfollow(changes)

    async def _delete_after_a_while(self, name: str) -> None:
        await asyncio.sleep(DELETE_AFTER)
        await self._delete(name)

    async def _delete(self, name: str) -> None:
        try:
            await self._calls.repeat(
                self._calls.api.delete, f"{self._path}/{name}", {"propagationPolicy": "Background"}
            )
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise


def _run_of_job(job: BatchJob) -> RunKey:
    annotations = job.metadata.annotations
    number = annotations.get(RUN_ANNOTATION, "")
    return annotations.get(JOB_ANNOTATION, ""), int(number) if number.isdecimal() else 0
