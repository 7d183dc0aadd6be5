"""Gangs on a real API server: a change of size, and PodDisruptionBudgets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from backend_runs import Runs, play, running
from kubernetes_daemon import JOBS, job_json
from kubernetes_servers import KubernetesServers
from process_kubelet import ProcessKubelet, kubelet_nodes

from refold.core import RunStarted, RunStopped, StartRun, StopRun
from refold.engines.kubernetes.api_server import ApiServer, as_dict
from refold.engines.kubernetes.gangs import GangName
from refold.engines.kubernetes.objects import BatchJob
from refold.model import Allocation, Demand, Job, Launch, Plan, Share

BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


@pytest.fixture
def api(servers: KubernetesServers) -> Iterator[ApiServer]:
    kubelet = ProcessKubelet(servers.api, kubelet_nodes(2), instant=True)
    kubelet.start()
    yield servers.api
    servers.api.delete(JOBS, {"propagationPolicy": "Background"})
    kubelet.stop()


def create_job(api: ApiServer, name: str, pods: int) -> GangName:
    api.create(JOBS, job_json(name, pods, 1, 1000.0, labels={"app": name}))
    return GangName("Job", "default", name, api.get(f"{JOBS}/{name}", BatchJob).metadata.uid)


def test_an_elastic_gang_changes_its_number_of_pods(api: ApiServer) -> None:
    launch = Launch(gang=create_job(api, "elastic", 4).text())
    jobs = {"elastic": Job("elastic", demand=Demand(4), gpu_range=(1, 8), reshapable=True, launch=launch)}

    async def test(runs: Runs) -> None:
        wide, narrow = (
            Allocation((Share(0, (0, 1, 2)), Share(1, (0, 1)))),
            Allocation((Share(1, (0, 1)),), Plan(data=2)),
        )
        await runs.backend.carry_out([StartRun("elastic", 1, wide)], jobs)
        await runs.wait_for(RunStarted("elastic", 1))
        assert sorted(pod.spec.node_name for pod in running(api, "elastic")) == ["n0", "n0", "n0", "n1", "n1"]
        await runs.backend.carry_out([StopRun("elastic", 1, "reshaped", narrow)], jobs)
        await runs.wait_for(RunStopped("elastic", 1))
        await runs.backend.carry_out([StartRun("elastic", 2, narrow)], jobs)
        await runs.wait_for(RunStarted("elastic", 2))
        pods = running(api, "elastic")
        assert [pod.spec.node_name for pod in pods] == ["n1", "n1"]
        assert {pod.metadata.annotations["refold.dev/plan"] for pod in pods} == {'{"data":2}'}
        spec = as_dict(api.call("GET", f"{JOBS}/elastic"))["spec"]
        assert (spec["parallelism"], spec["completions"], spec.get("suspend", False)) == (2, 2, False)

    play(api, test)


def test_a_preemption_waits_for_the_disruption_budget(api: ApiServer) -> None:
    jobs = {"kept": Job("kept", demand=Demand(2), launch=Launch(gang=create_job(api, "kept", 2).text()))}
    budget = {"minAvailable": 2, "selector": {"matchLabels": {"app": "kept"}}}
    kind = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "kept"}}
    api.create(BUDGETS, {**kind, "spec": budget})

    async def test(runs: Runs) -> None:
        await runs.backend.carry_out([StartRun("kept", 1, Allocation((Share(0, (0,)), Share(1, (0,)))))], jobs)
        await runs.wait_for(RunStarted("kept", 1))
        await runs.backend.carry_out([StopRun("kept", 1, "preempted")], jobs)
        await asyncio.sleep(3.0)  # longer than the pause between two looks at the budget
        assert len(running(api, "kept")) == 2
        assert not as_dict(api.call("GET", f"{JOBS}/kept"))["spec"].get("suspend")
        api.delete(f"{BUDGETS}/kept")
        await runs.wait_for(RunStopped("kept", 1))

    play(api, test)
