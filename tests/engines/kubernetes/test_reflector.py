"""Following objects: resumption of watches, and lists when changes were missed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from kubernetes_objects import pod_json

from refold.engines.kubernetes.access import Access, read_kubeconfig
from refold.engines.kubernetes.api_server import ApiError, ApiServer, WatchEvent, watch_error
from refold.engines.kubernetes.mirror import Reflector
from refold.engines.kubernetes.objects import Pod

WAIT = 10.0


class Script:
    """Answers of a server, one per request; the requests are recorded. A watch is a list of events."""

    def __init__(self) -> None:
        self.answers: Queue[tuple[int, Any]] = Queue()
        self.requests: list[str] = []
        self.tokens: list[str | None] = []
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                asked = parse_qs(urlsplit(self.path).query)
                script.tokens.append(self.headers.get("Authorization"))
                script.requests.append(f"watch {asked['resourceVersion'][0]}" if "watch" in asked else "list")
                try:
                    status, body = script.answers.get(timeout=WAIT)
                except Exception:
                    return
                lines = body if isinstance(body, list) else [body]
                text = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.api = ApiServer(Access(f"http://127.0.0.1:{self.server.server_port}", None), retry_for=0.5)


@pytest.fixture
def script() -> Iterator[Script]:
    found = Script()
    yield found
    found.api.close()
    found.server.shutdown()
    found.server.server_close()


def pod(name: str, version: int) -> dict[str, Any]:
    found = pod_json(name)
    found["metadata"]["resourceVersion"] = str(version)
    return found


def listed(version: int, *pods: dict[str, Any]) -> dict[str, Any]:
    return {"items": pods, "metadata": {"resourceVersion": str(version)}}


class Following:
    """A reflector and what it reports."""

    def __init__(self, api: ApiServer) -> None:
        self.seen: Queue[str] = Queue()
        self.reflector = Reflector(
            api,
            "/api/v1/pods",
            Pod,
            lambda pods: self.seen.put(f"all {' '.join(pod.metadata.name for pod in pods)}"),
            lambda pod, deleted: self.seen.put(f"{'deleted' if deleted else 'is'} {pod.metadata.name}"),
        )
        self.reflector.start()

    def next(self, count: int) -> list[str]:
        return [self.seen.get(timeout=WAIT) for _ in range(count)]


@pytest.fixture
def following(script: Script) -> Iterator[Following]:
    found = Following(script.api)
    yield found
    script.answers.put((500, {}))
    found.reflector.stop()


def test_a_watch_continues_where_the_last_one_ended(script: Script, following: Following) -> None:
    script.answers.put((200, listed(5, pod("a", 3))))
    script.answers.put((200, [{"type": "ADDED", "object": pod("b", 6)}, {"type": "DELETED", "object": pod("a", 7)}]))
    script.answers.put((200, [{"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "90"}}}]))
    script.answers.put((200, [{"type": "MODIFIED", "object": pod("b", 91)}]))
    assert following.next(4) == ["all a", "is b", "deleted a", "is b"]
    assert script.requests[:4] == ["list", "watch 5", "watch 7", "watch 90"]


def test_an_error_in_a_watch_has_the_code_and_the_words_of_the_server() -> None:
    status = msgspec.Raw(b'{"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}')
    error = watch_error(WatchEvent("ERROR", status))
    assert (error.status, error.reason, str(error)) == (410, "Expired", "too old")


@pytest.mark.parametrize("as_event", [False, True], ids=["as the answer", "as an event"])
def test_after_410_gone_everything_is_listed_again(script: Script, following: Following, as_event: bool) -> None:
    status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
    script.answers.put((200, listed(5, pod("a", 3))))
    script.answers.put((200, [{"type": "ERROR", "object": status}]) if as_event else (410, status))
    script.answers.put((200, listed(50, pod("b", 40))))
    script.answers.put((200, [{"type": "ADDED", "object": pod("c", 51)}]))
    assert following.next(3) == ["all a", "all b", "is c"]
    assert script.requests[:4] == ["list", "watch 5", "list", "watch 50"]


def test_other_errors_of_a_watch_are_retried_without_a_list(script: Script, following: Following) -> None:
    script.answers.put((200, listed(5)))
    script.answers.put((503, {"message": "starting"}))
    script.answers.put((200, [{"type": "ADDED", "object": pod("a", 6)}]))
    assert following.next(2) == ["all ", "is a"]
    assert script.requests[:3] == ["list", "watch 5", "watch 5"]


def test_an_object_that_cannot_be_decoded_does_not_hide_the_others(script: Script, following: Following) -> None:
    broken = pod("broken", 4)
    broken["spec"]["priority"] = "high"
    script.answers.put((200, listed(5, pod("a", 3), broken)))
    script.answers.put((200, [{"type": "MODIFIED", "object": broken}, {"type": "ADDED", "object": pod("b", 6)}]))
    assert following.next(2) == ["all a", "is b"]


def test_a_token_that_was_replaced_meanwhile_is_read_again(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refold.engines.kubernetes.access.MIN_TOKEN_AGE", 0.0)
    (tmp_path / "token").write_text("old")
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "s", "user": "u"}}],
        "clusters": [{"name": "s", "cluster": {"server": f"http://127.0.0.1:{script.server.server_port}"}}],
        "users": [{"name": "u", "user": {"tokenFile": "token"}}],
    }
    (tmp_path / "config").write_text(json.dumps(config))
    access = read_kubeconfig(tmp_path / "config")
    assert access.headers() == {"Authorization": "Bearer old"}
    (tmp_path / "token").write_text("new")
    script.answers.put((401, {"reason": "Unauthorized", "message": "Unauthorized"}))
    script.answers.put((200, listed(1)))
    api = ApiServer(access)
    api.call("GET", "/api/v1/pods")
    api.close()
    assert script.tokens == ["Bearer old", "Bearer new"]


def test_a_request_is_repeated_while_the_server_is_overloaded(script: Script) -> None:
    script.answers.put((429, {"message": "too many requests"}))
    script.answers.put((500, {"message": "etcd"}))
    script.answers.put((200, listed(1)))
    script.api.call("GET", "/api/v1/pods")
    assert len(script.requests) == 3


def test_a_request_that_cannot_succeed_is_not_repeated(script: Script) -> None:
    script.answers.put((403, {"reason": "Forbidden", "message": "pods is forbidden"}))
    with pytest.raises(ApiError, match="pods is forbidden") as caught:
        script.api.call("GET", "/api/v1/pods")
    assert (caught.value.status, caught.value.reason, len(script.requests)) == (403, "Forbidden", 1)


def test_a_server_that_does_not_answer_is_named(script: Script) -> None:
    script.server.shutdown()
    script.server.server_close()
    with pytest.raises(ApiError, match=r"http://127.0.0.1:\d+ does not answer") as caught:
        script.api.call("GET", "/api/v1/pods")
    assert caught.value.is_transient
