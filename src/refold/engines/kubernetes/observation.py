"""The current state of a cluster that any scheduler schedules, as a snapshot. Nothing is changed in the cluster.

Pods that request GPUs are jobs, of any scheduler: those that are bound run, the others wait, and those that have
succeeded are the history from which run times are predicted. All other pods are use of nodes by others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime

import msgspec

from refold.core import PastJob
from refold.engines.kubernetes.api_server import ApiError, ApiServer, ObjectList
from refold.engines.kubernetes.gangs import GangName, gang_name
from refold.engines.kubernetes.mirror import NODES, PODS
from refold.engines.kubernetes.nodes import NodeMap, kueue_levels, map_nodes
from refold.engines.kubernetes.objects import ApiNode, Pod
from refold.engines.kubernetes.owner_specs import Owner, read_owner
from refold.engines.kubernetes.owners import Owners
from refold.engines.kubernetes.snapshot_events import Observation, SnapshotEvents, is_job
from refold.errors import BadInput, BadValue
from refold.model import Tenant

JOBS = "/apis/batch/v1/jobs"


def read_only() -> None:
    """Guard of a client that must not change anything."""
    raise ApiError(403, "ReadOnly", "nothing may be changed in the cluster")


def observe(api: ApiServer, policy: str, tenants: tuple[Tenant, ...] = ()) -> Observation:
    """Read the state of a cluster. Needs the right to list nodes and pods; with that to read Jobs, limits are known."""
    try:
        nodes = api.get(NODES, ObjectList[ApiNode]).items
        pods = api.get(PODS, ObjectList[Pod]).items
        levels = kueue_levels(api)
    except ApiError as error:
        raise BadInput(f"the cluster cannot be read: {error}") from None
    try:
        mapped = map_nodes(nodes, tenants=tenants, levels=levels)
    except BadValue as error:
        raise BadInput(str(error)) from None
    return SnapshotEvents(mapped, pods, _read_owners(api, pods), datetime.now(UTC)).observe(policy)


def past_gangs(nodes: NodeMap, pods: Sequence[Pod]) -> list[PastJob]:
    """Return the gangs that have succeeded, the latest ones, from which run times are predicted."""
    return SnapshotEvents(nodes, pods, {}, datetime.now(UTC)).past_jobs()


def _read_owners(api: ApiServer, pods: Iterable[Pod]) -> dict[GangName, Owner]:
    members: dict[GangName, list[Pod]] = {}
    for pod in filter(is_job, pods):
        members.setdefault(gang_name(pod), []).append(pod)
    jobs, owners = _read_jobs(api), Owners(api)
    found: dict[GangName, Owner] = {}
    for gang, listed in members.items():
        with suppress(ApiError, BadValue):
            owner = jobs.get(gang.uid) if gang.kind == "Job" else owners.find(gang, listed)
            found |= {gang: owner} if owner is not None else {}
    return found


def _read_jobs(api: ApiServer) -> dict[str, Owner]:
    """Return the Jobs of a cluster by uid; none if they may not be read."""
    try:
        found = api.get(JOBS, ObjectList[msgspec.Raw]).items
    except ApiError:
        return {}
    objects = [msgspec.json.decode(item) for item in found]
    return {item["metadata"]["uid"]: read_owner("Job", item) for item in objects}
