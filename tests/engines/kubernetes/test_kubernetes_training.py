"""Training jobs on a real API server, as processes of a kubelet of our own: they are reshaped, and have output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from engine_tests import needs_torch
from kubernetes_daemon import JOBS, KubernetesDaemon, apply_rights, job_json, wait_for
from kubernetes_servers import KubernetesServers
from process_kubelet import ProcessKubelet, kubelet_nodes

HELPERS = Path(__file__).parents[2] / "helpers"
EXAMPLES = Path(__file__).parents[3] / "examples" / "train"
GPUS = 4


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("volume")


CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"


@pytest.fixture(scope="module")
def kubelet(servers: KubernetesServers, volume: Path) -> Iterator[ProcessKubelet]:
    found = ProcessKubelet(servers.api, kubelet_nodes(1, GPUS), volume=volume)
    found.start()
    apply_rights(servers.api)
    spec = {"accessModes": ["ReadWriteMany"], "volumeName": "saved", "resources": {"requests": {"storage": "1Gi"}}}
    servers.api.create(CLAIMS, {"metadata": {"name": "claim"}, "spec": spec})
    servers.api.patch(f"{CLAIMS}/claim/status", {"status": {"phase": "Bound"}})
    yield found
    servers.api.delete(JOBS, {"propagationPolicy": "Background"})
    found.stop()


@pytest.fixture(scope="module")
def daemon(
    servers: KubernetesServers, kubelet: ProcessKubelet, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KubernetesDaemon]:
    folder = tmp_path_factory.mktemp("trains")
    (folder / "refold.yaml").write_text("kubernetes: {image: none, volume_claim: claim}\n")
    options = ("--policy", str(HELPERS / "shrinking_policy.py"), "--config", str(folder / "refold.yaml"))
    with KubernetesDaemon(servers, folder / "state", *options, host="trains").serving() as found:
        yield found


def refold(daemon: KubernetesDaemon, *arguments: str) -> str:
    """Return what a command prints."""
    environment = {**os.environ, "REFOLD_HOME": str(daemon.folder)}
    command = [sys.executable, "-m", "refold", *arguments]
    return subprocess.run(command, check=True, env=environment, capture_output=True, text=True).stdout


def has_printed(daemon: KubernetesDaemon, name: str, text: str) -> bool:
    """Whether the output of a job contains a text; not if it has not started."""
    try:
        return text in refold(daemon, "logs", name)
    except subprocess.CalledProcessError as error:
        assert "has not started yet" in error.stderr
        return False


def submit_training(daemon: KubernetesDaemon, name: str, command: list[str]) -> None:
    """Submit a job that may have two to four GPUs, and reports its steps in its output."""
    spec = {"name": name, "gpus": f"2..{GPUS}", "run": command, "progress": r"step (\d+)"}
    file = daemon.folder.parent / f"{name}.yaml"
    file.write_text(yaml.safe_dump(spec))
    refold(daemon, "submit", str(file))


def reshape(daemon: KubernetesDaemon, name: str) -> None:
    """Let a running job shrink, because another one needs two GPUs; wait until both have finished."""
    wait_for(lambda: has_printed(daemon, name, "step 2"), f"{name} trains")
    refold(daemon, "submit", "--name", f"{name}-other", "--gpus", "2", "--", "sleep", "0.1")
    daemon.wait_for_state(f"{name}-other", "finished")
    daemon.wait_for_state(name, "finished")


def test_a_job_is_reshaped_and_continues_from_its_checkpoint(daemon: KubernetesDaemon, volume: Path) -> None:
    further = 20
    submit_training(daemon, "counts", [sys.executable, str(HELPERS / "checkpointing_script.py"), str(further)])
    reshape(daemon, "counts")
    (folder,) = (volume / "checkpoints").glob("counts*")
    saved = int((folder / "checkpoint").read_text())
    steps = saved + further
    trained = [tuple(map(int, line.split())) for line in (folder / "steps").read_text().splitlines()]
    assert trained == [(step, GPUS if step <= saved else 2) for step in range(1, steps + 1)]
    with daemon.client() as client:
        status = client.job("counts")
    assert (status.runs, status.steps_done) == (2, steps)
    assert refold(daemon, "logs", "counts", "--run", "1").startswith(f"continues at step 0 on {GPUS} GPUs\nstep 1 on ")
    second = [f"step {step} on 2 GPUs" for step in range(saved + 1, steps + 1)]
    assert refold(daemon, "logs", "counts").splitlines() == [f"continues at step {saved} on 2 GPUs", *second]


@pytest.mark.torch
@needs_torch
def test_a_pytorch_job_is_reshaped_and_its_loss_continues_to_fall(daemon: KubernetesDaemon) -> None:
    command = [sys.executable, str(EXAMPLES / "gpt.py"), "--batch", "8", "--steps", "200", "--load-ms", "10"]
    submit_training(daemon, "gpt", command)
    wait_for(lambda: has_printed(daemon, "gpt", "step 20,"), "the model trains")
    reshape(daemon, "gpt")
    first, second = (
        [(int(step), float(loss)) for step, loss in re.findall(r"step (\d+), loss ([\d.]+)", text)]
        for text in (refold(daemon, "logs", "gpt", "--run", "1"), refold(daemon, "logs", "gpt"))
    )
    assert second[0][0] > first[0][0]
    assert second[-1][0] == 200
    assert second[-1][1] < first[0][1]


def test_the_output_of_a_users_job_is_shown_until_its_pods_are_gone_and_after(
    daemon: KubernetesDaemon, kubelet: ProcessKubelet
) -> None:
    body = job_json("shown", 2, 1, 0)
    container = body["spec"]["template"]["spec"]["containers"][0]
    container["command"] = ["sh", "-c", "echo one; echo two >&2; while ! test -e stop; do sleep 0.05; done; echo three"]
    container["workingDir"] = str(daemon.folder.parent)
    daemon.api.create(JOBS, body)
    daemon.wait_for_state("shown", "running")
    wait_for(lambda: refold(daemon, "logs", "shown", "--instance", "1") == "one\ntwo\n", "the output is shown")
    (daemon.folder.parent / "stop").touch()
    daemon.wait_for_state("shown", "finished")
    assert refold(daemon, "logs", "shown", "--instance", "1") == "one\ntwo\nthree\n"
    assert kubelet.logs is not None
    assert "sinceTime" in kubelet.logs.requests[-1]
    daemon.api.delete(f"{JOBS}/shown", {"propagationPolicy": "Background"})
    wait_for(lambda: not daemon.pods("shown"), "the pods are gone")
    assert refold(daemon, "logs", "shown", "--instance", "1") == "one\ntwo\nthree\n"
    with pytest.raises(subprocess.CalledProcessError) as failed:
        refold(daemon, "logs", "shown")
    assert "is gone, and with it its output" in failed.value.stderr
