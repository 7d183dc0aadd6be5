"""The Jobs of submitted commands on the API server, one for each run: created, and deleted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

import msgspec

from refold.core import StartRun
from refold.engines.kubernetes.api_server import CONFLICT, FORBIDDEN, NOT_FOUND, ApiError, Calls, ObjectList
from refold.engines.kubernetes.gangs import (
    BINDING_ANNOTATION,
    JOB_ANNOTATION,
    RUN_ANNOTATION,
    GangName,
    RunKey,
    is_run_number,
)
from refold.engines.kubernetes.mirror import Mirror
from refold.engines.kubernetes.objects import BatchJob
from refold.engines.kubernetes.own_jobs import (
    SUBMITTED_LABEL,
    PodSettings,
    manifest,
    object_name,
    secret_manifest,
    service_manifest,
)
from refold.errors import BadInput
from refold.model import Job, Seconds

DELETE_AFTER: Seconds = 90.0
"""How long the Job of a stopped run is kept. A later daemon deletes Jobs of which the journal knows nothing."""

log = logging.getLogger("refold")


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
        self._settings = PodSettings(mirror.daemon, own.namespace, own.image, grace, own.volume_claim)
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
            path = f"{self._path}/{object_name(self._settings.daemon, job.id, order.run)}"
            created = await self._calls.repeat(self._calls.api.get, path, BatchJob)
            if self._run_of(created) != (job.id, order.run):
                raise BadInput(f"somebody else has a Job with the name {created.metadata.name}") from None
        if len(order.allocation.placement) > 1:
            await self._create_secret((job.id, order.run), created.metadata.uid)
        return GangName("Job", self._own.namespace, created.metadata.name, created.metadata.uid)

    def delete_later(self, gang: GangName) -> None:
        """Delete the suspended Job of a run that was stopped, when its end is in the journal: until then it says so."""
        self._deletions = [task for task in self._deletions if not task.done()]
        self._deletions.append(asyncio.create_task(self._delete_after_a_while(gang.name)))

    async def delete_all_except(self, runs: Collection[RunKey]) -> None:
        """Delete the Jobs of other runs that have not ended, and wait until their pods are gone."""
        selector = {"labelSelector": f"{SUBMITTED_LABEL}={self._settings.daemon}"}
        found = await self._calls.repeat(self._calls.api.get, self._path, ObjectList[BatchJob], selector)
        active = [job for job in found.items if not job.has_ended]  # the output of others is kept
        others = [job for job in active if (run := self._run_of(job)) is not None and run not in runs]
        await asyncio.gather(*map(self._delete_with_pods, others))

    def _run_of(self, job: BatchJob) -> RunKey | None:
        annotations = job.metadata.annotations
        number = annotations.get(RUN_ANNOTATION, "")
        if not is_run_number(number):
            return None
        run = annotations.get(JOB_ANNOTATION, ""), int(number)
        proof = annotations.get(BINDING_ANNOTATION, "")
        return run if self._settings.identity.has_signed(proof, job.metadata.namespace, "", run) else None

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

    async def _create_secret(self, run: RunKey, owner: str) -> None:
        """Create the Secret of a run, unless it exists. Without it, the run ends with the first failure of a rank."""
        path = f"/api/v1/namespaces/{self._own.namespace}/secrets"
        try:
            await self._calls.repeat(self._calls.api.create, path, secret_manifest(run, self._settings, owner))
        except ApiError as error:
            if error.status == FORBIDDEN:
                log.warning("run %d of %s does not survive failures of ranks: %s", run[1], run[0], error)
            elif error.status != CONFLICT:
                raise

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
