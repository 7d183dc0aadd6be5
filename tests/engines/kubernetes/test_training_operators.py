"""JobSets, TrainJobs and PyTorchJobs are suspended, resumed and resized by their own specs.

Each test runs on an API server in memory, and on a real one if there is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pytest
from backend_runs import Runs, play, running
from fake_api_server import FakeApiServer, Refusal
from kubernetes_daemon import JOBS, PODS, job_json, wait_for
from kubernetes_objects import Json
from process_kubelet import ProcessKubelet, kubelet_nodes
from training_operators import FOLDERS, JOBSETS, PYTORCHJOBS, TRAINJOBS, TrainingOperators, resource_definition

from refold.core import RunStarted, RunStopped, StartRun, StopRun
from refold.engines.kubernetes import run_state
from refold.engines.kubernetes.api_server import ApiError, ApiServer, as_dict
from refold.engines.kubernetes.gangs import GangName
from refold.engines.kubernetes.owners import Owners
from refold.errors import BadInput
from refold.model import Allocation, Demand, Job, Launch, Plan, Share

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
TWO = Allocation((Share(0, (0,)), Share(1, (0,))))
THREE = Allocation((Share(0, (0, 1)), Share(1, (0,))), Plan(data=3))

REAL = pytest.param("real", marks=pytest.mark.kubernetes)


@pytest.fixture
def fake() -> Iterator[FakeApiServer]:
    server = FakeApiServer()
    yield server
    server.stop()


@pytest.fixture(params=["fake", REAL])
def api(request: pytest.FixtureRequest) -> Iterator[ApiServer]:
    """A server with the kinds, their controllers, and two nodes."""
    found: ApiServer = request.getfixturevalue({"fake": "fake", "real": "servers"}[request.param]).api
    if request.param == "real":
        define_kinds(found)
    kubelet, operators = ProcessKubelet(found, kubelet_nodes(2), instant=True), TrainingOperators(found)
    kubelet.start()
    operators.start()
    yield found
    operators.stop()
    for folder in (*FOLDERS, JOBS):
        found.delete(folder, {"propagationPolicy": "Background"})
    kubelet.stop()


def define_kinds(api: ApiServer) -> None:
    """Create the definitions, unless an earlier test has; wait until they are served."""
    for folder in FOLDERS:
        try:
            api.create(DEFINITIONS, resource_definition(folder))
        except ApiError as error:
            assert error.status == 409
    wait_for(lambda: all(is_served(api, folder) for folder in FOLDERS), "the kinds are served")


def is_served(api: ApiServer, folder: str) -> bool:
    try:
        api.call("GET", folder)
    except ApiError:
        return False
    return True


def pod_template(name: str, seconds: float = 1000.0) -> Json:
    template: Json = job_json(name, 1, 1, seconds)["spec"]["template"]
    return template


Kind = Literal["JobSet", "TrainJob", "PyTorchJob"]


def create(api: ApiServer, kind: Kind, name: str, pods: int = 2, seconds: float = 1000.0) -> GangName:
    """Create an object with this number of pods; return the gang that these are."""
    template = pod_template(name, seconds)
    match kind:
        case "TrainJob":
            folder, version = TRAINJOBS, "trainer.kubeflow.org/v1alpha1"
            spec: Json = {"trainer": {"numNodes": pods}, "template": template}
        case "JobSet":
            folder, version = JOBSETS, "jobset.x-k8s.io/v1alpha2"
            size = {"parallelism": pods, "completions": pods, "completionMode": "Indexed", "backoffLimit": 0}
            spec = {
                "replicatedJobs": [{"name": "w", "replicas": 1, "template": {"spec": {**size, "template": template}}}]
            }
        case "PyTorchJob":
            folder, version = PYTORCHJOBS, "kubeflow.org/v1"
            counts = {"Master": 1, "Worker": pods - 1}
            roles = {role: {"replicas": count, "template": template} for role, count in counts.items()}
            spec = {"runPolicy": {"suspend": False}, "pytorchReplicaSpecs": roles}
    api.create(folder, {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec})
    made = wait_for(lambda: find(api, JOBSETS if kind == "TrainJob" else folder, name), f"{kind} {name} exists")
    return GangName("PyTorchJob" if kind == "PyTorchJob" else "JobSet", "default", name, made["metadata"]["uid"])


def find(api: ApiServer, folder: str, name: str) -> Json:
    try:
        return as_dict(api.call("GET", f"{folder}/{name}"))
    except ApiError:
        return {}


def job_of(gang: GangName, pods: int = 2, **fields: Any) -> dict[str, Job]:
    return {gang.name: Job(gang.name, demand=Demand(pods), launch=Launch(gang=gang.text()), **fields)}


@pytest.mark.parametrize(
    ("kind", "folder"), [("JobSet", JOBSETS), ("TrainJob", TRAINJOBS), ("PyTorchJob", PYTORCHJOBS)]
)
def test_a_preempted_gang_is_suspended_and_resumed_for_its_next_run(api: ApiServer, kind: Kind, folder: str) -> None:
    name = f"preempted-{kind.lower()}"
    jobs = job_of(create(api, kind, name))

    def is_suspended() -> bool:
        spec = find(api, folder, name)["spec"]
        return bool(spec.get("suspend") or spec.get("runPolicy", {}).get("suspend"))

    async def test(runs: Runs) -> None:
        await runs.backend.carry_out([StartRun(name, 1, TWO)], jobs)
        await runs.wait_for(RunStarted(name, 1))
        await runs.backend.carry_out([StopRun(name, 1, "preempted")], jobs)
        await runs.wait_for(RunStopped(name, 1))
        assert is_suspended()
        assert find(api, folder, name)["metadata"]["annotations"]["refold.dev/ended-run"] == "1"
        assert all(pod.is_deleted for pod in running(api, name))  # on a node that is down, pods do not end
        await runs.backend.carry_out([StartRun(name, 2, TWO)], jobs)
        await runs.wait_for(RunStarted(name, 2))
        assert not is_suspended()

    play(api, test)
    failed = [job["status"].get("failed", 0) for job in as_dict(api.call("GET", JOBS))["items"]]
    assert not any(failed)


@pytest.mark.parametrize("kind", ["JobSet", "PyTorchJob"])
def test_an_elastic_gang_gets_another_number_of_pods(api: ApiServer, kind: Kind) -> None:
    name = f"elastic-{kind.lower()}"
    gang = create(api, kind, name)
    jobs = job_of(gang, gpu_range=(1, 4), reshapable=True)
    Owners(api).check_resizable(gang)

    async def test(runs: Runs) -> None:
        await runs.backend.carry_out([StartRun(name, 1, TWO)], jobs)
        await runs.wait_for(RunStarted(name, 1))
        await runs.backend.carry_out([StopRun(name, 1, "reshaped", THREE)], jobs)
        await runs.wait_for(RunStopped(name, 1))
        await runs.backend.carry_out([StartRun(name, 2, THREE)], jobs)
        await runs.wait_for(RunStarted(name, 2))
        pods = running(api, name)
        assert sorted(pod.spec.node_name for pod in pods) == ["n0", "n0", "n1"]
        assert {pod.metadata.annotations["refold.dev/plan"] for pod in pods} == {'{"data":3}'}
        await runs.backend.carry_out([StopRun(name, 2, "reshaped", TWO)], jobs)
        await runs.wait_for(RunStopped(name, 2))
        await runs.backend.carry_out([StartRun(name, 3, TWO)], jobs)
        await runs.wait_for(RunStarted(name, 3))
        assert len(running(api, name)) == 2

    play(api, test)


def test_a_train_job_is_resized_by_its_number_of_nodes_if_the_server_allows_it(fake: FakeApiServer) -> None:
    kubelet, operators = ProcessKubelet(fake.api, kubelet_nodes(2), instant=True), TrainingOperators(fake.api)
    kubelet.start()
    operators.start()
    gang = create(fake.api, "TrainJob", "train")
    jobs = job_of(gang, gpu_range=(1, 4), reshapable=True)
    Owners(fake.api).check_resizable(gang)

    async def test(runs: Runs) -> None:
        await runs.backend.carry_out([StartRun("train", 1, THREE)], jobs)
        await runs.wait_for(RunStarted("train", 1))
        assert len(running(fake.api, "train")) == 3

    play(fake.api, test)
    assert find(fake.api, TRAINJOBS, "train")["spec"]["trainer"]["numNodes"] == 3
    operators.stop()
    kubelet.stop()


@pytest.mark.parametrize("api", [REAL], indirect=True)
def test_a_refusal_to_resize_is_known_before_the_gang_is_accepted(api: ApiServer) -> None:
    """The definition of the TrainJob on the real server makes its trainer immutable, as current versions do."""
    gang = create(api, "TrainJob", "fixed")
    with pytest.raises(BadInput, match=r"number of pods of TrainJob fixed cannot be changed: .*field is immutable"):
        Owners(api).check_resizable(gang)
    assert find(api, TRAINJOBS, "fixed")["spec"]["trainer"]["numNodes"] == 2


@pytest.mark.parametrize("problem", ["the controller does nothing", "the object cannot be changed"])
def test_pods_are_evicted_if_suspending_their_object_does_not_end_them(
    problem: str, fake: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubelet, operators = ProcessKubelet(fake.api, kubelet_nodes(2), instant=True), TrainingOperators(fake.api)
    kubelet.start()
    operators.start()
    jobs = job_of(create(fake.api, "PyTorchJob", "kept"))

    async def test(runs: Runs) -> None:
        await runs.backend.carry_out([StartRun("kept", 1, TWO)], jobs)
        await runs.wait_for(RunStarted("kept", 1))
        if problem == "the controller does nothing":
            monkeypatch.setattr(run_state, "SUSPEND_WAIT", 0.1)
            operators.stop()
        else:
            fake.refuse = lambda method, path: Refusal(403) if (method, path[-5:]) == ("PATCH", "/kept") else None
        await runs.backend.carry_out([StopRun("kept", 1, "preempted")], jobs)
        await runs.wait_for(RunStopped("kept", 1))

    play(fake.api, test)
    evicted = {request for request in fake.requests if request.endswith("/eviction")}
    assert len(evicted) == 2 and all(request.startswith(f"POST {PODS}/kept-") for request in evicted)
    operators.stop()
    kubelet.stop()
