"""Output of pods: read in parts without losing or repeating lines, and copied to the files of runs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given, strategies as st
from kubernetes_objects import make_pod

from refold.engines.kubernetes.api_server import ApiError, ApiServer
from refold.engines.kubernetes.mirror import Mirror
from refold.engines.kubernetes.objects import Pod
from refold.engines.kubernetes.pod_output import LogPart, PodOutput, parse_part, read_pod_log
from refold.errors import NotFound, Unavailable
from refold.server.live_state import LiveState

BEGIN = "2026-11-16T20:00:"


def line(second: int, text: str, nanoseconds: str = "5") -> bytes:
    return f"{BEGIN}{second:02}.{nanoseconds}Z {text}".encode()


class LogServer:
    """The API server, reduced to the output of one container. It may be broken."""

    def __init__(self) -> None:
        self.text = b""
        self.error: ApiError | None = None
        self.queries: list[Mapping[str, str]] = []

    def call(self, method: str, path: str, *, query: Mapping[str, str], retry: bool) -> bytes:
        assert (method, path, retry) == ("GET", "/api/v1/namespaces/default/pods/p/log", False)
        self.queries.append(query)
        if self.error is not None:
            raise self.error
        lines = self.text.splitlines(keepends=True)
        since = query.get("sinceTime", "")[:19].encode()
        return b"".join(text for text in lines if text[:19] >= since)[: int(query["limitBytes"])]


@pytest.fixture
def server() -> LogServer:
    return LogServer()


def read(server: LogServer, after: str = "", limit: int = 1000, pod: Pod | None = None) -> LogPart:
    return read_pod_log(cast(ApiServer, server), pod or make_pod("p"), after, limit)


def test_reading_continues_after_the_last_known_line_of_the_same_second(server: LogServer) -> None:
    server.text = line(1, "a\n") + line(2, "b\n", "1") + line(2, "c\n", "100000001")
    first = read(server, limit=len(server.text) - 2)
    assert first == LogPart(b"a\nb\n", f"{BEGIN}02.1Z")
    assert read(server, first.until) == LogPart(b"c\n", f"{BEGIN}02.100000001Z")
    assert read(server, f"{BEGIN}02.100000001Z") == LogPart(b"", f"{BEGIN}02.100000001Z")


def test_an_incomplete_line_is_read_when_it_is_complete_or_the_pod_has_ended(server: LogServer) -> None:
    server.text = line(1, "a\n") + line(2, "wait")
    assert read(server) == LogPart(b"a\n", f"{BEGIN}01.5Z")
    ended = make_pod("p", status={"phase": "Succeeded"})
    assert read(server, f"{BEGIN}01.5Z", pod=ended) == LogPart(b"wait", f"{BEGIN}02.5Z")


def test_output_that_is_written_too_fast_is_left_out_and_reading_continues(server: LogServer) -> None:
    server.text = line(1, "a\n") + line(1, "b" * 100 + "\n", "6") + line(1, "c\n", "7") + line(2, "d\n")
    parts = [read(server, limit=90)]
    for _ in range(4):
        parts.append(read(server, parts[-1].until, limit=90))
    assert parts[0].data == b"a\n"
    assert parts[1].data.startswith(b"bbb")
    assert parts[2].data == b"[output is missing: it was written too fast]\n"
    assert [part.data for part in parts[3:]] == [b"d\n", b""]


def test_times_in_other_zones_are_compared_as_times() -> None:
    text = b"2026-11-16T21:00:01.5+01:00 known\n2026-11-16T21:00:01.6+01:00 new\n"
    assert parse_part(text, f"{BEGIN}01.5Z").data == b"new\n"


def test_messages_of_the_kubelet_have_no_time() -> None:
    text = b"unable to retrieve container logs\n"
    assert parse_part(text) == LogPart(text, "")
    assert parse_part(line(1, "a\n") + text + line(2, "b\n") + text, f"{BEGIN}01.5Z").data == b"b\n" + text


@given(st.binary(max_size=200), st.sampled_from(["", f"{BEGIN}01.5Z", "garbage", "2026-99-99T99:99:99Z"]))
def test_any_bytes_are_output(text: bytes, after: str) -> None:
    found = parse_part(text, after)
    assert len(found.data) <= len(text)


def test_of_several_containers_the_default_one_is_read(server: LogServer) -> None:
    containers = [{"name": "sidecar"}, {"name": "train"}]
    read(server, pod=make_pod("p", containers=containers))
    annotations = {"kubectl.kubernetes.io/default-container": "train"}
    read(server, pod=make_pod("p", containers=containers, annotations=annotations))
    assert [query["container"] for query in server.queries] == ["sidecar", "train"]


class Copies:
    """Output of run 1 of job j, whose only instance is a pod."""

    def __init__(self, server: LogServer, folder: Path) -> None:
        self.pods = {"default/p": make_pod("p", annotations={"refold.dev/instance": "0"})}
        self.runs = {"j": SimpleNamespace(number=1)}
        mirror = SimpleNamespace(pods_of_run=lambda key: self.pods if key == ("j", 1) else {})
        state = SimpleNamespace(view=SimpleNamespace(runs=self.runs))
        self.log = folder / "j" / "run-1.0.log"
        self._output = PodOutput(
            cast(ApiServer, server), cast(Mirror, mirror), cast(LiveState, state), folder, max_bytes=1000
        )

    def refresh(self, run: int = 1, instance: int = 0, times: int = 1) -> bytes:
        async def work() -> None:
            await asyncio.gather(*(self._output.refresh("j", run, instance) for _ in range(times)))

        asyncio.run(work())
        return self.log.read_bytes() if self.log.exists() else b""


@pytest.fixture
def copies(server: LogServer, tmp_path: Path) -> Copies:
    return Copies(server, tmp_path)


def test_a_copy_grows_with_the_output_even_if_several_read_it(server: LogServer, copies: Copies) -> None:
    server.text = line(1, "a\n")
    assert copies.refresh(times=3) == b"a\n"
    server.text += line(1, "b\n", "6")
    assert copies.refresh() == b"a\nb\n"
    assert copies.log.stat().st_mode & 0o077 == 0


def test_a_copy_has_a_limited_size(server: LogServer, copies: Copies) -> None:
    for second in range(10):
        server.text = line(second, "x" * 299 + "\n")
        copies.refresh()
    assert sum(path.stat().st_size for path in copies.log.parent.iterdir()) < 1100


def test_a_container_that_has_not_started_has_no_output(server: LogServer, copies: Copies) -> None:
    server.error = ApiError(400, "BadRequest", "container is waiting to start: ContainerCreating")
    assert copies.refresh() == b""


def test_output_that_cannot_be_read_is_an_error_unless_there_is_a_copy(server: LogServer, copies: Copies) -> None:
    server.error = ApiError(403, "Forbidden", "pods is forbidden")
    with pytest.raises(Unavailable, match=r"may not read the output of pods \(pods/log: get\): pods is forbidden"):
        copies.refresh()
    server.error = ApiError(500, "InternalError", "dial tcp: connection refused")
    with pytest.raises(Unavailable, match="cannot be read: dial tcp"):
        copies.refresh()
    server.error, server.text = None, line(1, "a\n")
    copies.refresh()
    server.error = ApiError(0, "Unreachable", "the API server does not answer")
    assert copies.refresh() == b"a\n"


def test_without_a_pod_there_is_output_if_it_was_copied_or_may_still_come(server: LogServer, copies: Copies) -> None:
    pods, copies.pods = copies.pods, {}
    assert copies.refresh() == b""  # the pod is not bound yet
    copies.runs.clear()
    with pytest.raises(NotFound, match="the pod of instance 0 of run 1 of 'j' is gone"):
        copies.refresh()
    copies.pods, server.text = pods, line(1, "a\n")
    copies.refresh()
    copies.pods = {}
    assert copies.refresh() == b"a\n"
