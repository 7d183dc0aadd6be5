"""An API server in memory, for tests of failures that a real one does not produce on demand.

It has what the back end uses: objects with versions, watches, bindings, evictions, graceful deletion of pods, and a
controller that creates and deletes the pods of Jobs. `refuse` decides about each request; a refused request may still
have taken effect, as when its answer is lost.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

from http_answers import send_answer, write_kubeconfig
from kubernetes_objects import Json

from refold.engines.kubernetes.access import Access
from refold.engines.kubernetes.api_server import ApiServer

POLL_SECONDS = 0.02


class Refusal(NamedTuple):
    """The answer to a request that is refused. Status 0: the connection breaks. `late`: it has taken effect."""

    status: int
    message: str = "injected"
    late: bool = False
    retry_after: str = ""


class Rejected(Exception):
    """The server rejects a request."""

    def __init__(self, status: int, reason: str, message: str = "") -> None:
        super().__init__(message or reason)
        self.status, self.reason = status, reason


Refuse = Callable[[str, str], Refusal | None]
"""Decides about a request, given its method and path."""


def allow_all(method: str, path: str) -> None:
    """Refuse nothing."""


class FakeApiServer:
    """The server. `api` is a client of it, `objects` what it stores by path, `requests` what it was asked to change."""

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.requests: list[str] = []
        self.refuse: Refuse = allow_all
        self.evictions_allowed = True
        self.controls_jobs = True
        """Whether the controller of Jobs works; it may be slow."""
        self._events: list[tuple[int, str, str, Json]] = []
        self._version = 0
        self._oldest = 0
        self._changed = threading.Condition(threading.RLock())
        self._stopped = False
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                with suppress(ConnectionError):
                    super().handle_one_request()

            def answer(self) -> None:
                server._answer(self)

            do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = answer  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._http.server_port}"
        self._threads = [
            threading.Thread(target=self._http.serve_forever, args=(POLL_SECONDS,), daemon=True),
            threading.Thread(target=self._control_jobs, daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        self.api = ApiServer(Access(self.address, None), retry_for=0.2)

    def stop(self) -> None:
        """Stop serving."""
        self.api.close()
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._http.shutdown()
        self._http.server_close()
        for thread in self._threads:
            thread.join()

    def write_kubeconfig(self, folder: Path, user: str = "test") -> Path:
        """Write a kubeconfig file for this server."""
        return write_kubeconfig(folder / f"{user}.kubeconfig", self.address, user, user)

    def forget_changes(self) -> None:
        """End all watches, which cannot be continued: they expire (410)."""
        with self._changed:
            self._events.clear()
            self._version += 1
            self._oldest = self._version
            self._changed.notify_all()

    def pods(self, prefix: str = "") -> list[Json]:
        """Return the pods whose names begin so."""
        with self._changed:
            found = [body for path, body in self.objects.items() if _collection(path).endswith("/pods")]
            return [deepcopy(body) for body in found if body["metadata"]["name"].startswith(prefix)]

    # Requests.

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        length = int(request.headers.get("Content-Length") or 0)
        body = json.loads(request.rfile.read(length)) if length else {}
        parts = urlsplit(request.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        method = request.command
        if method != "GET":
            self.requests.append(f"{method} {parts.path}")
        refusal = self.refuse(method, parts.path)
        try:
            if refusal is not None and not refusal.late:
                raise Rejected(refusal.status, "Injected", refusal.message)
            if "watch" in query:
                self._watch(request, parts.path, int(query["resourceVersion"]))
                return
            with self._changed:
                answer = self._perform(method, parts.path, body, query)
            if refusal is not None:
                raise Rejected(refusal.status, "Injected", refusal.message)
            send_answer(request, 200, json.dumps(answer).encode())
        except Rejected as error:
            if not error.status:
                request.close_connection = True
                request.connection.close()
                return
            status = {"kind": "Status", "code": error.status, "reason": error.reason, "message": str(error)}
            text = json.dumps(status).encode()
            send_answer(request, error.status, text, refusal.retry_after if refusal else "")

    def _perform(self, method: str, path: str, body: Json, query: dict[str, str]) -> Json:
        if method == "GET" or "dryRun" in query:
            return self._read(path, query)
        if path.endswith("/binding"):
            return self._bind(path.removesuffix("/binding"), body)
        if path.endswith("/eviction"):
            return self._evict(path.removesuffix("/eviction"), body)
        if method == "POST":
            return self._create(path, body)
        if method == "DELETE":
            return self._delete(path, body)
        return self._change(path.removesuffix("/status"), body, replace=method == "PUT")

    def _read(self, path: str, query: dict[str, str]) -> Json:
        if path == "/version":
            return {"gitVersion": "v0.0.0-fake"}
        if path == "/apis/scheduling.k8s.io":
            return {"versions": [{"version": "v1alpha2"}]}
        if path in self.objects:
            return self.objects[path]
        if path.rpartition("/")[2] not in KINDS:
            raise Rejected(404, "NotFound", f"{path} not found")
        items = [body for key, body in self.objects.items() if _is_in(key, path)]
        if wanted := query.get("labelSelector"):
            key, _, value = wanted.partition("=")
            items = [body for body in items if (body["metadata"].get("labels") or {}).get(key) == value]
        if wanted := query.get("fieldSelector"):
            fields = dict(part.split("=") for part in wanted.split(","))
            uid, kind = fields["involvedObject.uid"], fields["type"]
            items = [body for body in items if (body["involvedObject"]["uid"], body["type"]) == (uid, kind)]
        return {"kind": "List", "items": items, "metadata": {"resourceVersion": str(self._version)}}

    def _create(self, path: str, body: Json) -> Json:
        metadata = body.setdefault("metadata", {})
        if "generateName" in metadata:
            metadata["name"] = metadata["generateName"] + uuid4().hex[:5]
        key = f"{path}/{metadata['name']}"
        if key in self.objects:
            raise Rejected(409, "AlreadyExists", f"{key} already exists")
        parts = path.split("/")
        if "namespaces" in parts:
            metadata["namespace"] = parts[parts.index("namespaces") + 1]
        metadata["uid"] = str(uuid4())
        metadata["creationTimestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        if parts[-1] == "pods":
            body["status"] = {"phase": "Pending"}
        return self._store("ADDED", key, body)

    def _change(self, path: str, body: Json, *, replace: bool) -> Json:
        before = self._get(path)
        wanted = body.get("metadata", {}).get("resourceVersion")
        if wanted and wanted != before["metadata"]["resourceVersion"]:
            raise Rejected(409, "Conflict", "the object has been modified")
        if replace:
            identity = {key: before["metadata"][key] for key in ("uid", "creationTimestamp")}
            after = {**body, "metadata": {**body["metadata"], **identity}}
        else:
            after = _merged(before, body)
        return self._store("MODIFIED", path, after)

    def _bind(self, path: str, body: Json) -> Json:
        pod = deepcopy(self._get(path))
        wanted = body["metadata"].get("uid")
        if pod["spec"].get("nodeName") or "deletionTimestamp" in pod["metadata"] or wanted != pod["metadata"]["uid"]:
            raise Rejected(409, "Conflict", "the pod is bound, deleted or another one")
        pod["spec"]["nodeName"] = body["target"]["name"]
        pod["metadata"].setdefault("annotations", {}).update(body["metadata"]["annotations"])
        return self._store("MODIFIED", path, pod)

    def _evict(self, path: str, body: Json) -> Json:
        if not self.evictions_allowed:
            raise Rejected(429, "TooManyRequests", "cannot evict: it would violate the disruption budget")
        return self._delete(path, body.get("deleteOptions") or {})

    def _delete(self, path: str, options: Json) -> Json:
        if path.rpartition("/")[2] in KINDS:
            for key in [key for key in self.objects if _is_in(key, path)]:
                self._delete(key, options)
            return {}
        found = deepcopy(self._get(path))
        metadata = found["metadata"]
        if options.get("preconditions", {}).get("uid", metadata["uid"]) != metadata["uid"]:
            raise Rejected(409, "Conflict", "the uid is another one")
        is_pod = _collection(path).endswith("/pods")
        grace = options.get("gracePeriodSeconds", found.get("spec", {}).get("terminationGracePeriodSeconds", 30))
        if is_pod and grace and found["spec"].get("nodeName"):
            metadata.setdefault("deletionTimestamp", "2026-01-01T00:00:00Z")
            metadata["deletionGracePeriodSeconds"] = min(grace, metadata.get("deletionGracePeriodSeconds", grace))
            return self._store("MODIFIED", path, found)
        del self.objects[path]
        self._version += 1
        metadata["resourceVersion"] = str(self._version)
        self._publish("DELETED", path, found)
        for key, body in list(self.objects.items()):
            owners = body["metadata"].get("ownerReferences") or []
            if any(owner["uid"] == metadata["uid"] for owner in owners):
                self._delete(key, {})
        return found

    def _get(self, path: str) -> Json:
        if path not in self.objects:
            raise Rejected(404, "NotFound", f"{path} not found")
        return self.objects[path]

    # Versions and watches.

    def _store(self, kind: str, path: str, body: Json) -> Json:
        self._version += 1
        body["metadata"]["resourceVersion"] = str(self._version)
        self.objects[path] = body
        self._publish(kind, path, body)
        return body

    def _publish(self, kind: str, path: str, body: Json) -> None:
        self._events.append((self._version, kind, path, deepcopy(body)))
        self._changed.notify_all()

    def _watch(self, request: BaseHTTPRequestHandler, path: str, version: int) -> None:
        if version < self._oldest:
            raise Rejected(410, "Expired", "too old resource version")
        request.send_response(200)
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        for event in self._events_after(version, path):
            line = json.dumps(event).encode() + b"\n"
            request.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            request.wfile.flush()
        request.wfile.write(b"0\r\n\r\n")

    def _events_after(self, version: int, path: str) -> Iterator[Json]:
        while True:
            with self._changed:
                while not (found := [event for event in self._events if event[0] > version]):
                    if self._stopped or version < self._oldest:
                        return
                    self._changed.wait(timeout=1.0)
            for number, kind, key, body in found:
                version = number
                if _is_in(key, path):
                    yield {"type": kind, "object": body}

    # The controller of Jobs.

    def _control_jobs(self) -> None:
        seen = -1
        while not self._stopped:
            with self._changed:
                if self._version == seen:
                    self._changed.wait(timeout=0.2)
                seen = self._version
                for path, job in list(self.objects.items()) if self.controls_jobs else ():
                    if _collection(path).endswith("/jobs"):
                        self._control_job(path, job)

    def _control_job(self, path: str, job: Json) -> None:
        spec, status = job["spec"], job.get("status", {})
        has_ended = bool(status.get("conditions"))
        folder = f"/api/v1/namespaces/{job['metadata']['namespace']}/pods"
        uid = job["metadata"]["uid"]
        pods = {
            key: body
            for key, body in self.objects.items()
            if any(owner["uid"] == uid for owner in body["metadata"].get("ownerReferences") or [])
        }
        done = {_index(body) for body in pods.values() if body["status"]["phase"] == "Succeeded"}
        failures = [body for body in pods.values() if body["status"]["phase"] == "Failed"]
        failed = sum("deletionTimestamp" not in body["metadata"] for body in failures)
        live = {key: body for key, body in pods.items() if body["status"]["phase"] in ("Pending", "Running")}
        wanted: Json = {"succeeded": len(done), "failed": failed}
        if len(done) >= spec["completions"]:
            wanted["conditions"] = [{"type": "Complete", "status": "True"}]
        elif failed > spec.get("backoffLimit", 6):
            wanted["conditions"] = [{"type": "Failed", "status": "True", "message": "BackoffLimitExceeded"}]
        if not has_ended and {key: status.get(key) for key in wanted} != wanted:
            self._store("MODIFIED", path, {**job, "status": {**status, **wanted}})
        elif spec.get("suspend") or has_ended:
            for key, body in live.items():
                if "deletionTimestamp" not in body["metadata"]:
                    self._delete(key, {})
        else:
            taken = {_index(body) for body in live.values()} | done
            for index in [index for index in range(spec["parallelism"]) if index not in taken]:
                self._create(folder, _pod_of(job, index))


KINDS = (
    *("pods", "nodes", "jobs", "events", "leases", "poddisruptionbudgets", "podgroups", "services", "secrets"),
    *("persistentvolumeclaims", "persistentvolumes", "storageclasses"),
    *("jobsets", "trainjobs", "pytorchjobs", "topologies"),
)


def _pod_of(job: Json, index: int) -> Json:
    template = deepcopy(job["spec"]["template"])
    metadata = template.setdefault("metadata", {})
    metadata["generateName"] = f"{job['metadata']['name']}-{index}-"
    metadata.setdefault("labels", {})["batch.kubernetes.io/job-completion-index"] = str(index)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}
    metadata["ownerReferences"] = [{**owner, "controller": True}]
    return {"apiVersion": "v1", "kind": "Pod", **template}


def _index(pod: Json) -> int:
    return int(pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"])


def _collection(path: str) -> str:
    return path.rpartition("/")[0]


def _is_in(key: str, collection: str) -> bool:
    """Whether an object is in a collection of its namespace, or of all namespaces."""
    if _collection(key) == collection:
        return True
    prefix, _, kind = collection.rpartition("/")
    return key.startswith(f"{prefix}/namespaces/") and _collection(key).endswith(f"/{kind}")


def _merged(before: Any, change: Any) -> Any:
    if not isinstance(change, dict) or not isinstance(before, dict):
        return change
    after = dict(before)
    for key, value in change.items():
        if value is None:
            after.pop(key, None)
        else:
            after[key] = _merged(after.get(key), value)
    return after
