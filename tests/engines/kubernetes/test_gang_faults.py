"""Gangs while the API server fails in all ways: never half bound, never bound twice, never forgotten."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from fake_api_server import FakeApiServer, Refusal, allow_all
from kubernetes_daemon import JOBS, PODS, job_json
from kubernetes_objects import DAEMON, Json, pod_json
from msgspec.structs import replace
from process_kubelet import ProcessKubelet, kubelet_nodes

from refold.core import Event, JobCancelled, RunFailed, RunFinished, RunStarted, RunStopped, StartRun, StopRun
from refold.engines.kubernetes import gang_run, run_state
from refold.engines.kubernetes.backend import KubernetesBackend
from refold.engines.kubernetes.gangs import GangName
from refold.engines.kubernetes.job_objects import OwnJobs
from refold.engines.kubernetes.mirror import Mirror
from refold.engines.kubernetes.nodes import map_nodes
from refold.model import Allocation, Demand, Job, Launch, Plan, Share

TIMEOUT_SECONDS = 30.0
MAX_REFUSALS = 3
"""Times that a request is refused: pauses between attempts grow, and many in a row would take longer than the test."""

BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
Ending = RunFinished | RunFailed | RunStopped


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApiServer]:
    for name in ("OWNER_CHECK_PAUSE", "BUDGET_PAUSE", "EVICTION_PAUSE"):
        monkeypatch.setattr(run_state, name, 0.05)
    monkeypatch.setattr(gang_run, "REPEAT_PAUSE", 0.05)
    monkeypatch.setattr("refold.engines.kubernetes.api_server.REPEAT_PAUSE", 0.05)
    monkeypatch.setattr("refold.engines.kubernetes.backend.REFUSED_PAUSE", 0.05)
    found = FakeApiServer()
    kubelet = ProcessKubelet(found.api, kubelet_nodes(2), instant=True)
    kubelet.start()
    yield found
    found.refuse = allow_all
    kubelet.stop()
    found.stop()


class Gangs:
    """A back end on the server, gangs for it, and its reports."""

    def __init__(self, server: FakeApiServer) -> None:
        self.server = server
        self.reports: list[Event] = []
        self._reported = asyncio.Event()
        self._jobs: dict[str, Job] = {}
        self._mirror = Mirror(server.api, DAEMON)

    async def start(self) -> None:
        await self._mirror.start()
        nodes = map_nodes(self._mirror.nodes.values())
        self.backend = KubernetesBackend(self._report, self.server.api, self._mirror, nodes, OwnJobs(image="none"))

    async def stop(self) -> None:
        await self.backend.detach()
        await self._mirror.stop()

    async def restart(self) -> None:
        """Replace the back end by one that knows only what is in the cluster."""
        await self.stop()
        self.reports.clear()
        self._mirror = Mirror(self.server.api, DAEMON)
        await self.start()

    def _report(self, event: Event) -> None:
        self.reports.append(event)
        self._reported.set()

    def create_job(self, name: str, pods: int = 4, seconds: float = 1000.0, **fields: Any) -> None:
        """Create a Job of Kubernetes, and the job that it is."""
        made: Json = self._create(JOBS, job_json(name, pods, 1, seconds, **fields))
        self._add(name, pods, GangName("Job", "default", name, made["metadata"]["uid"]))

    def create_pods(self, name: str, count: int, seconds: float = 1000.0) -> None:
        """Create plain pods that are a gang."""
        for number in range(count):
            labels = {"refold.dev/gang": name, "refold.dev/gang-size": str(count)}
            body = pod_json(f"{name}-{number}", gpus=1, labels=labels, owner=("Custom", name, "u"))
            body["spec"]["containers"][0]["command"] = ["sleep", f"{seconds:g}"]
            self._create(PODS, body)
        self._add(name, count, GangName("Pods", "default", name))

    def _create(self, path: str, body: Json) -> Json:
        self.server.api.create(path, body)
        return self.server.objects[f"{path}/{body['metadata']['name']}"]

    def _add(self, name: str, pods: int, gang: GangName) -> None:
        self._jobs[name] = Job(name, demand=Demand(pods), launch=Launch(gang=gang.text()))

    def make_elastic(self, name: str, least: int, most: int) -> None:
        self._jobs[name] = replace(self._jobs[name], gpu_range=(least, most), reshapable=True)

    async def order(self, *orders: StartRun | StopRun) -> None:
        await self.backend.carry_out(orders, self._jobs)

    async def run(self, name: str, number: int = 1) -> None:
        """Order a run with its instances on both nodes in turn."""
        instances = self._jobs[name].demand.instances
        placement = tuple(Share(index % 2, (index // 2,)) for index in range(instances))
        await self.order(StartRun(name, number, Allocation(placement)))

    async def end(self, name: str, number: int = 1) -> Ending:
        """Wait for the end of a run."""
        while not (found := [event for event in self.reports if _is_end(event, name, number)]):
            await self._next_report()
        assert isinstance(found[0], Ending)
        return found[0]

    async def started(self, name: str, number: int = 1) -> None:
        while RunStarted(name, number) not in self.reports:
            await self._next_report()

    async def _next_report(self) -> None:
        self._reported.clear()
        await self._reported.wait()

    async def until(self, look: Callable[[], bool]) -> None:
        while not look():
            await asyncio.sleep(0.01)

    def nodes(self, name: str) -> list[str]:
        """Return the nodes of the pods that have not ended; '' for those that wait."""
        pods = [pod for pod in self.server.pods(f"{name}-") if pod["status"]["phase"] in ("Pending", "Running")]
        return sorted(pod["spec"].get("nodeName", "") for pod in pods)

    def bindings(self) -> list[str]:
        return [request for request in self.server.requests if request.endswith("/binding")]


def _is_end(event: Event, name: str, number: int) -> bool:
    return isinstance(event, Ending) and (event.job, event.run) == (name, number)


def play(server: FakeApiServer, test: Callable[[Gangs], Coroutine[Any, Any, None]]) -> None:
    """Run a test with a back end."""

    async def run() -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            gangs = Gangs(server)
            await gangs.start()
            try:
                await test(gangs)
            finally:
                await gangs.stop()

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(5))
def test_gangs_are_bound_once_and_as_a_whole_although_bindings_fail(server: FakeApiServer, seed: int) -> None:
    draw = random.Random(seed)
    failures = (Refusal(0), Refusal(0, late=True), Refusal(500), Refusal(503, late=True), Refusal(429, retry_after="0"))

    refused = Counter[str]()

    def refuse(method: str, path: str) -> Refusal | None:
        if not path.endswith("/binding") or refused[path] == MAX_REFUSALS or draw.random() > 0.4:
            return None
        refused[path] += 1
        return draw.choice(failures)

    async def test(gangs: Gangs) -> None:
        server.refuse = refuse
        names = [f"gang{number}" for number in range(4)]
        for name in names:
            gangs.create_job(name, seconds=0.1)
            await gangs.run(name)
        assert [await gangs.end(name) for name in names] == [RunFinished(name, 1) for name in names]
        for name in names:
            pods = server.pods(f"{name}-")
            instances = Counter(pod["metadata"]["annotations"]["refold.dev/instance"] for pod in pods)
            assert instances == {"0": 1, "1": 1, "2": 1, "3": 1}

    play(server, test)


@pytest.mark.parametrize("kind", ["Job", "Pods"])
@pytest.mark.parametrize("status", [422, 500])
def test_a_gang_of_which_a_pod_cannot_be_bound_is_ended(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch, kind: str, status: int
) -> None:
    monkeypatch.setattr(gang_run, "BIND_WAIT", 0.2)

    async def test(gangs: Gangs) -> None:
        if kind == "Job":
            gangs.create_job("torn")
        else:
            gangs.create_pods("torn", 4)
        await gangs.until(lambda: len(server.pods("torn-")) == 4)
        victim = sorted(pod["metadata"]["name"] for pod in server.pods("torn-"))[2]
        server.refuse = lambda _, path: Refusal(status) if path.endswith(f"/{victim}/binding") else None
        await gangs.run("torn")
        end = await gangs.end("torn")
        assert isinstance(end, RunFailed)
        assert end.retry
        assert f"{victim} cannot be bound" in end.why
        assert not any(gangs.nodes("torn"))
        if kind == "Pods":  # it is unknown whether a binding that failed with 500 has taken effect
            assert bool(server.pods(victim)) == (status == 422)

    play(server, test)


def test_a_binding_that_is_forbidden_at_first_is_repeated(server: FakeApiServer) -> None:
    """An API server that has just started does not know the rights of the daemon yet."""
    refusals = [Refusal(403)] * 6

    async def test(gangs: Gangs) -> None:
        gangs.create_job("early", seconds=0.1)
        await gangs.until(lambda: len(server.pods("early-")) == 4)
        server.refuse = lambda _, path: refusals.pop() if path.endswith("/binding") and refusals else None
        await gangs.run("early")
        assert await gangs.end("early") == RunFinished("early", 1)

    play(server, test)


def test_a_gang_runs_again_although_the_pods_of_its_failed_run_are_not_deleted_yet(server: FakeApiServer) -> None:
    """The Job was suspended to end the failed run; that its controller is slow does not mean that its user did that."""

    async def test(gangs: Gangs) -> None:
        gangs.create_job("slow", seconds=0.1)
        await gangs.until(lambda: len(server.pods("slow-")) == 4)
        server.controls_jobs = False
        server.refuse = lambda _, path: Refusal(422) if path.endswith("/binding") else None
        await gangs.run("slow")
        assert isinstance(await gangs.end("slow"), RunFailed)
        assert server.objects[f"{JOBS}/slow"]["spec"]["suspend"] and len(server.pods("slow-")) == 4
        await gangs.run("slow", 2)
        assert isinstance(await gangs.end("slow", 2), RunFailed)
        server.refuse = allow_all
        await gangs.run("slow", 3)
        assert await gangs.end("slow", 3) == RunFinished("slow", 3)
        assert not any(isinstance(report, JobCancelled) for report in gangs.reports)
        assert not server.objects[f"{JOBS}/slow"]["spec"]["suspend"]

    play(server, test)


def test_a_run_that_is_stopped_while_its_pods_are_missing_binds_none(server: FakeApiServer) -> None:
    async def test(gangs: Gangs) -> None:
        gangs.create_pods("late", 2)
        server.api.delete(f"{PODS}/late-1")
        await gangs.run("late")
        await gangs.order(StopRun("late", 1))
        assert await gangs.end("late") == RunStopped("late", 1)
        assert gangs.bindings() == []

    play(server, test)


def test_a_repeated_order_does_not_bind_the_pods_of_a_run_that_has_ended(server: FakeApiServer) -> None:
    async def test(gangs: Gangs) -> None:
        gangs.create_pods("once", 2)
        await gangs.run("once")
        await gangs.started("once")
        await gangs.order(StopRun("once", 1))
        assert await gangs.end("once") == RunStopped("once", 1)
        await gangs.until(lambda: not server.pods("once-"))  # pods that have ended are deleted a moment later
        gangs.create_pods("once", 2)
        gangs.reports.clear()
        await gangs.run("once")
        assert await gangs.end("once") == RunStopped("once", 1)
        assert gangs.nodes("once") == ["", ""]
        await gangs.run("once", 2)
        await gangs.started("once", 2)

    play(server, test)


def test_indices_that_were_complete_before_get_no_pods_in_the_next_run(server: FakeApiServer) -> None:
    async def test(gangs: Gangs) -> None:
        gangs.create_job("rest", pods=3)
        await gangs.run("rest")
        await gangs.started("rest")
        first, second, _ = sorted(pod["metadata"]["name"] for pod in server.pods("rest-"))
        server.api.patch(f"{PODS}/{first}/status", {"status": {"phase": "Succeeded"}})
        failed = {"phase": "Failed", "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 1}}}]}
        server.api.patch(f"{PODS}/{second}/status", {"status": failed})
        assert isinstance(await gangs.end("rest"), RunFailed)
        await gangs.run("rest", 2)
        await gangs.started("rest", 2)
        assert gangs.nodes("rest") == ["n0", "n1"]
        for pod in server.pods("rest-"):
            path = f"{PODS}/{pod['metadata']['name']}/status"
            server.api.patch(path, {"status": {"phase": "Succeeded"}})
        assert await gangs.end("rest", 2) == RunFinished("rest", 2)

    play(server, test)


def test_a_job_whose_user_suspends_it_is_cancelled_and_not_resumed(server: FakeApiServer) -> None:
    async def test(gangs: Gangs) -> None:
        gangs.create_job("paused")
        await gangs.run("paused")
        await gangs.started("paused")
        server.api.patch(f"{JOBS}/paused", {"spec": {"suspend": True}})
        assert await gangs.end("paused") == RunStopped("paused", 1)
        assert JobCancelled("paused", "Job default/paused was suspended") in gangs.reports
        assert server.objects[f"{JOBS}/paused"]["spec"]["suspend"]

    play(server, test)


def test_a_preempted_job_is_suspended_and_its_next_run_resumes_it(server: FakeApiServer) -> None:
    async def test(gangs: Gangs) -> None:
        gangs.create_job("back")
        await gangs.run("back")
        await gangs.started("back")
        await gangs.order(StopRun("back", 1, "preempted"))
        assert await gangs.end("back") == RunStopped("back", 1)
        await gangs.until(lambda: not server.pods("back-"))
        await gangs.run("back", 2)
        await gangs.started("back", 2)

    play(server, test)


def test_a_preemption_waits_until_the_budget_allows_to_evict_the_whole_gang(server: FakeApiServer) -> None:
    async def test(gangs: Gangs) -> None:
        budget = {"metadata": {"name": "keep"}, "spec": {"selector": {}}, "status": {"disruptionsAllowed": 3}}
        server.api.create(BUDGETS, budget)
        asked: list[str] = []

        def note(method: str, path: str) -> None:
            asked.extend([path] if path == BUDGETS and method == "GET" else [])

        server.refuse = note
        for name, create in (("job", gangs.create_job), ("plain", gangs.create_pods)):
            create(name, 4)
            await gangs.run(name)
            await gangs.started(name)
            await gangs.order(StopRun(name, 1, "preempted"))
            asked.clear()
            await gangs.until(lambda: len(asked) >= 3)
            await gangs.order(StopRun(name, 1, "already stopping"))
            asked.clear()
            await gangs.until(lambda: len(asked) >= 3)
            assert len(gangs.nodes(name)) == 4
            assert not any("deletionTimestamp" in pod["metadata"] for pod in server.pods(name))
            server.api.patch(f"{BUDGETS}/keep", {"status": {"disruptionsAllowed": 4}})
            assert await gangs.end(name) == RunStopped(name, 1)
            server.api.patch(f"{BUDGETS}/keep", {"status": {"disruptionsAllowed": 3}})

    play(server, test)


def test_budgets_do_not_delay_a_cancellation_or_the_end_of_a_broken_gang(server: FakeApiServer) -> None:
    async def test(gangs: Gangs) -> None:
        server.evictions_allowed = False
        budget = {"metadata": {"name": "keep"}, "spec": {"selector": {}}, "status": {"disruptionsAllowed": 0}}
        server.api.create(BUDGETS, budget)
        gangs.create_job("unwanted")
        gangs.create_pods("broken", 2)
        for name in ("unwanted", "broken"):
            await gangs.run(name)
            await gangs.started(name)
        await gangs.order(StopRun("unwanted", 1, "cancelled"))
        assert await gangs.end("unwanted") == RunStopped("unwanted", 1)
        server.api.delete(f"{PODS}/broken-0", {"gracePeriodSeconds": 0})
        end = await gangs.end("broken")
        assert isinstance(end, RunFailed)
        assert end.retry

    play(server, test)


def test_an_eviction_that_is_refused_for_now_is_tried_again(server: FakeApiServer) -> None:
    async def test(gangs: Gangs) -> None:
        gangs.create_pods("plain", 2)
        await gangs.run("plain")
        await gangs.started("plain")
        server.evictions_allowed = False
        await gangs.order(StopRun("plain", 1, "preempted"))
        await gangs.until(lambda: sum(request.endswith("/eviction") for request in server.requests) >= 4)
        assert gangs.nodes("plain") == ["n0", "n1"]
        server.evictions_allowed = True
        assert await gangs.end("plain") == RunStopped("plain", 1)

    play(server, test)


def test_a_run_is_not_given_up_while_the_api_server_refuses_to_end_it(server: FakeApiServer) -> None:
    async def test(gangs: Gangs) -> None:
        gangs.create_job("kept")
        await gangs.run("kept")
        await gangs.started("kept")
        server.refuse = lambda method, path: Refusal(403) if (method, path) == ("PATCH", f"{JOBS}/kept") else None
        await gangs.order(StopRun("kept", 1, "preempted"))
        await gangs.until(lambda: sum(request == f"PATCH {JOBS}/kept" for request in server.requests) >= 3)
        assert not any(_is_end(event, "kept", 1) for event in gangs.reports)
        server.refuse = allow_all
        assert await gangs.end("kept") == RunStopped("kept", 1)

    play(server, test)


def test_pods_that_change_while_watches_are_expired_are_not_missed(server: FakeApiServer) -> None:
    async def test(gangs: Gangs) -> None:
        gangs.create_job("seen", pods=2)
        await gangs.run("seen")
        await gangs.started("seen")
        server.refuse = lambda _, path: Refusal(503) if path == "/api/v1/pods" else None
        server.forget_changes()
        for pod in server.pods("seen-"):
            path = f"{PODS}/{pod['metadata']['name']}/status"
            server.api.patch(path, {"status": {"phase": "Succeeded"}})
        server.forget_changes()
        server.refuse = allow_all
        assert await gangs.end("seen") == RunFinished("seen", 1)

    play(server, test)


@pytest.mark.parametrize("seed", range(5))
def test_a_back_end_that_is_replaced_at_any_moment_leaves_no_gang_half_bound(server: FakeApiServer, seed: int) -> None:
    draw = random.Random(seed)

    async def test(gangs: Gangs) -> None:
        names = [f"gang{number}" for number in range(3)]
        for name in names:
            gangs.create_job(name, seconds=0.3)
        for _ in range(4):
            for name in names:
                await gangs.run(name)
            await asyncio.sleep(draw.uniform(0.0, 0.06))
            await gangs.restart()
        for name in names:
            await gangs.run(name)
        assert [await gangs.end(name) for name in names] == [RunFinished(name, 1) for name in names]
        for name in names:
            pods = server.pods(f"{name}-")
            assert sorted(pod["metadata"]["annotations"]["refold.dev/instance"] for pod in pods) == ["0", "1", "2", "3"]

    play(server, test)


def test_an_elastic_gang_gets_as_many_pods_as_its_allocation_has_room_for(server: FakeApiServer) -> None:
    async def test(gangs: Gangs) -> None:
        gangs.create_job("elastic", pods=4)
        gangs.make_elastic("elastic", 1, 8)
        wide = Allocation((Share(0, (0, 1, 2)), Share(1, (0, 1))))
        await gangs.order(StartRun("elastic", 1, wide))
        await gangs.started("elastic")
        assert gangs.nodes("elastic") == ["n0", "n0", "n0", "n1", "n1"]
        narrow = Allocation((Share(1, (0, 1)),), Plan(data=2))
        await gangs.order(StopRun("elastic", 1, "reshaped", narrow))
        assert await gangs.end("elastic") == RunStopped("elastic", 1)
        await gangs.order(StartRun("elastic", 2, narrow))
        await gangs.started("elastic", 2)
        assert gangs.nodes("elastic") == ["n1", "n1"]
        spec = server.objects[f"{JOBS}/elastic"]["spec"]
        assert (spec["parallelism"], spec["completions"], spec["suspend"]) == (2, 2, False)
        live = [pod for pod in server.pods("elastic-") if pod["status"]["phase"] == "Running"]
        assert {pod["metadata"]["annotations"]["refold.dev/plan"] for pod in live} == {'{"data":2}'}
        assert {pod["metadata"]["annotations"]["refold.dev/instances"] for pod in live} == {"2"}

    play(server, test)


def with_devices() -> Json:
    """Return the fields of a pod that requests one of the devices of a node, of a kind that the scheduler ignores."""
    command = ["sleep", "0.3"]
    limits = {"nvidia.com/gpu": "1", "rdma/ib": "1"}
    return {"containers": [{"name": "main", "image": "none", "command": command, "resources": {"limits": limits}}]}


def test_gangs_wait_for_resources_that_the_scheduler_does_not_count(server: FakeApiServer) -> None:
    for name in ("n0", "n1"):
        server.api.patch(f"/api/v1/nodes/{name}/status", {"status": {"allocatable": {"rdma/ib": "1"}}})

    async def test(gangs: Gangs) -> None:
        names = ["first", "second", "third"]
        for name in names:
            gangs.create_job(name, pods=2, pod=with_devices())
            await gangs.run(name)
        assert [await gangs.end(name) for name in names] == [RunFinished(name, 1) for name in names]

    play(server, test)
    states = Counter(pod["spec"]["nodeName"] for pod in server.pods())
    assert states == {"n0": 3, "n1": 3}


def test_a_gang_that_finds_no_room_fails_and_is_not_bound(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_state, "POD_WAIT", 0.2)
    for name in ("n0", "n1"):
        server.api.patch(f"/api/v1/nodes/{name}/status", {"status": {"allocatable": {"rdma/ib": "1"}}})

    async def test(gangs: Gangs) -> None:
        gangs.create_job("cramped", pods=4, pod=with_devices())
        await gangs.run("cramped")
        end = await gangs.end("cramped")
        assert isinstance(end, RunFailed)
        assert (end.retry, "has 1 of rdma/ib left, and 2 are needed" in end.why) == (True, True), end.why

    play(server, test)
    assert not any(request.endswith("/binding") for request in server.requests)
