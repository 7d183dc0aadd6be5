"""The nodes and pods of a cluster, in memory, kept up to date by watches."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from refold.engines.kubernetes.api_server import ApiError, ApiServer, ObjectList, Watch, WatchEvent, watch_error
from refold.engines.kubernetes.gangs import DaemonIdentity, GangName, RunKey, gang_name, is_ours, run_of
from refold.engines.kubernetes.objects import ApiNode, BatchJob, Metadata, Pod
from refold.engines.kubernetes.volumes import CLAIMS, CLASSES, VOLUMES, PodVolumes, StorageClass, Volume, VolumeClaim
from refold.model import Seconds

NODES = "/api/v1/nodes"
PODS = "/api/v1/pods"
JOBS = "/apis/batch/v1/jobs"

GONE = 410
"""The API server no longer has the changes since the last known version."""

FIRST_PAUSE: Seconds = 0.2
MAX_PAUSE: Seconds = 10.0

log = logging.getLogger("refold")


class HasMetadata(Protocol):
    @property
    def metadata(self) -> Metadata:
        """Its name and version."""


K = TypeVar("K")
T = TypeVar("T", bound=HasMetadata)


class Changed(NamedTuple):
    """What has changed: names of nodes, and pods as they are now; deleted pods as they were last.

    `ended`: Jobs that are deleted, or are being deleted.
    """

    nodes: Collection[str]
    pods: Sequence[Pod]
    ended: Sequence[GangName] = ()


class Mirror:
    """Nodes by name; pods by namespace and name, by gang, by run and by node. Use it within one event loop.

    `daemon`: tells the runs of this daemon from those of others, whose jobs may have the same names.
    """

    def __init__(self, api: ApiServer, daemon: DaemonIdentity) -> None:
        self.daemon = daemon
        self.nodes: dict[str, ApiNode] = {}
        self.pods: dict[str, Pod] = {}
        self.volumes = PodVolumes()
        self._gangs: dict[GangName, dict[str, Pod]] = {}
        self._runs: dict[RunKey, dict[str, Pod]] = {}
        self._on_node: dict[str, dict[str, Pod]] = {}
        self._loop = asyncio.get_running_loop()
        self._followers: list[asyncio.Queue[Changed]] = []
        self._posted: deque[Callable[[], None]] = deque()
        self._changed_nodes: set[str] = set()
        self._changed_pods: list[Pod] = []
        self._ended: list[GangName] = []
        self._listed = (asyncio.Event(), asyncio.Event())
        self._reflectors: tuple[Reflector[Any], ...] = (
            Reflector(api, NODES, ApiNode, self._posts(self._replace_nodes), self._posts(self._change_node)),
            Reflector(api, PODS, Pod, self._posts(self._replace_pods), self._posts(self._change_pod)),
        )
        claims, volumes, classes = self.volumes.claims, self.volumes.volumes, self.volumes.classes
        self._others: tuple[Reflector[Any], ...] = (
            Reflector(api, JOBS, BatchJob, lambda _: None, self._posts(self._change_job)),
            Reflector(api, CLAIMS, VolumeClaim, self._posts(claims.replace), self._posts(claims.change)),
            Reflector(api, VOLUMES, Volume, self._posts(volumes.replace), self._posts(volumes.change)),
            Reflector(api, CLASSES, StorageClass, self._posts(classes.replace), self._posts(classes.change)),
        )
        """What is of use, and not needed: the daemon may not have the right to read it."""

    async def start(self) -> None:
        """Begin to follow the cluster; return when all nodes and pods are known."""
        for reflector in (*self._reflectors, *self._others):
            reflector.start()
        for listed in self._listed:
            await listed.wait()

    async def stop(self) -> None:
        await asyncio.gather(*(asyncio.to_thread(reflector.stop) for reflector in (*self._reflectors, *self._others)))

    @property
    def problem(self) -> str:
        """Why the cluster cannot be followed at present; '' if it can."""
        return next((reflector.problem for reflector in self._reflectors if reflector.problem), "")

    def follow(self) -> asyncio.Queue[Changed]:
        queue: asyncio.Queue[Changed] = asyncio.Queue()
        self._followers.append(queue)
        return queue

    def unfollow(self, queue: asyncio.Queue[Changed]) -> None:
        self._followers.remove(queue)

    def gangs(self) -> Collection[GangName]:
        """Return the gangs that ask for this scheduler and have pods."""
        return self._gangs.keys()

    def pods_of_gang(self, gang: GangName) -> Mapping[str, Pod]:
        if gang.kind != "Pod":
            return self._gangs.get(gang, {})
        pod = self.pods.get(f"{gang.namespace}/{gang.name}")
        return {pod.key: pod} if pod is not None and pod.metadata.uid == gang.uid else {}

    def run_of(self, pod: Pod) -> RunKey | None:
        return run_of(pod, self.daemon)

    def pods_of_run(self, run: RunKey) -> Mapping[str, Pod]:
        return self._runs.get(run, {})

    def runs(self) -> Collection[RunKey]:
        return self._runs.keys()

    def pods_on_node(self, name: str) -> Mapping[str, Pod]:
        return self._on_node.get(name, {})

    # From the watching threads to the event loop. Changes that arrive together are published together.

    def _posts(self, apply: Callable[..., None]) -> Callable[..., None]:
        def post(*arguments: object) -> None:
            self._posted.append(partial(apply, *arguments))
            with suppress(RuntimeError):  # the event loop is closed: the daemon is ending
                self._loop.call_soon_threadsafe(self._drain)

        return post

    def _drain(self) -> None:
        while self._posted:
            try:
                self._posted.popleft()()
            except Exception:  # whatever an object says must not keep others from being seen
                log.exception("a change in the cluster cannot be processed, and is ignored")
        if not (self._changed_nodes or self._changed_pods or self._ended):
            return
        changed = Changed(self._changed_nodes, self._changed_pods, self._ended)
        self._changed_nodes, self._changed_pods, self._ended = set(), [], []
        for queue in self._followers:
            queue.put_nowait(changed)

    def _replace_nodes(self, nodes: Sequence[ApiNode]) -> None:
        self._changed_nodes |= self.nodes.keys()
        self.nodes.clear()
        for node in nodes:
            self._change_node(node, False)
        self._listed[0].set()

    def _change_node(self, node: ApiNode, deleted: bool) -> None:
        self._changed_nodes.add(node.name)
        if deleted:
            self.nodes.pop(node.name, None)
        else:
            self.nodes[node.name] = node

    def _replace_pods(self, pods: Sequence[Pod]) -> None:
        found = {pod.key for pod in pods}
        for pod in [pod for key, pod in self.pods.items() if key not in found]:
            self._change_pod(pod, True)
        for pod in pods:
            self._change_pod(pod, False)
        self._listed[1].set()

    def _change_pod(self, pod: Pod, deleted: bool) -> None:
        self._changed_pods.append(pod)
        if (before := self.pods.pop(pod.key, None)) is not None:
            self._index(before, None)
        if not deleted:
            self.pods[pod.key] = pod
            self._index(pod, pod)

    def _change_job(self, job: BatchJob, deleted: bool) -> None:
        if deleted or job.metadata.deletion_timestamp is not None:
            self._ended.append(GangName("Job", job.metadata.namespace, job.metadata.name, job.metadata.uid))

    def _index(self, pod: Pod, entry: Pod | None) -> None:
        """Add a pod to all indices, or remove it if there is no entry for it."""
        if is_ours(pod):
            _put(self._gangs, gang_name(pod), pod.key, entry)
        if (run := self.run_of(pod)) is not None:
            _put(self._runs, run, pod.key, entry)
        if pod.is_bound:
            _put(self._on_node, pod.spec.node_name, pod.key, entry)
            self._changed_nodes.add(pod.spec.node_name)


def _put(index: dict[K, dict[str, Pod]], group: K, key: str, pod: Pod | None) -> None:
    if pod is not None:
        index.setdefault(group, {})[key] = pod
        return
    members = index.get(group, {})
    members.pop(key, None)
    if not members:
        index.pop(group, None)


# One kind of objects.


class Reflector(Generic[T]):
    """Follows the objects of a kind from a thread of its own.

    `replaced` is called with all objects: at first, and after changes may have been missed. `changed` is called with an
    object that was created, changed or deleted. Both are called from that thread.
    """

    def __init__(
        self,
        api: ApiServer,
        path: str,
        kind: type[T],
        replaced: Callable[[Sequence[T]], None],
        changed: Callable[[T, bool], None],
    ) -> None:
        self.problem = ""
        """Why the objects cannot be followed at present; '' if they can."""
        self._api = api
        self._path = path
        self._list: msgspec.json.Decoder[ObjectList[T]] = msgspec.json.Decoder(ObjectList[kind])  # type: ignore[valid-type]
        self._object = msgspec.json.Decoder(kind)
        self._metadata = msgspec.json.Decoder(_Bookmark)
        self._replaced = replaced
        self._changed = changed
        self._version = ""
        self._stopped = threading.Event()
        self._watch: Watch | None = None
        self._thread = threading.Thread(target=self._run, name=f"refold-watch {path}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for the thread to end."""
        self._stopped.set()
        if self._watch is not None:
            self._watch.close()
        self._thread.join(timeout=2.0)

    def _run(self) -> None:
        pause = FIRST_PAUSE
        while not self._stopped.is_set():
            try:
                self._follow()
                pause = FIRST_PAUSE
            except ApiError as error:
                if error.status == GONE:
                    self._version = ""
                    continue
                if not self.problem:
                    log.warning("cannot watch %s: %s; retrying", self._path, error)
                self.problem = str(error)
                self._stopped.wait(max(pause, error.retry_after))
                pause = min(2 * pause, MAX_PAUSE)
            except Exception:  # whatever happens must not end the thread
                log.exception("cannot process the changes of %s; listing again", self._path)
                self._version = ""
                self._stopped.wait(pause)
                pause = min(2 * pause, MAX_PAUSE)

    def _follow(self) -> None:
        """List if that is needed, then watch until the watch ends."""
        if not self._version:
            found = self._decode_list(self._api.call("GET", self._path, retry=False))  # repeated by `_run`
            self._replaced(found.items)
            self._version = found.metadata.resource_version
        self._watch = self._api.watch(self._path, self._version)
        self.problem = ""
        if self._stopped.is_set():
            self._watch.close()
        for event in self._watch:
            self._apply(event)

    def _apply(self, event: WatchEvent) -> None:
        if event.type == "ERROR":
            raise watch_error(event)
        if event.type != "BOOKMARK" and (found := self._decode(event.object)) is not None:
            self._changed(found, event.type == "DELETED")
        self._version = self._metadata.decode(event.object).metadata.resource_version

    def _decode_list(self, text: bytes) -> ObjectList[T]:
        """Decode a list. Objects that cannot be decoded are left out: one of them must not hide all others."""
        try:
            return self._list.decode(text)
        except msgspec.ValidationError:
            encoded = msgspec.json.decode(text, type=ObjectList[msgspec.Raw])
            items = [found for item in encoded.items if (found := self._decode(item)) is not None]
            return ObjectList(items, encoded.metadata)

    def _decode(self, encoded: msgspec.Raw) -> T | None:
        try:
            return self._object.decode(encoded)
        except msgspec.ValidationError as error:
            log.error("an object of %s is ignored: %s: %s", self._path, error, bytes(encoded)[:300])
            return None


class _Bookmark(msgspec.Struct):
    metadata: Metadata
