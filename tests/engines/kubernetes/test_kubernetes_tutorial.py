"""The tutorial on Kubernetes, typed line by line; a kubelet of our own stands for the nodes of kind."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes_objects import node_json
from kubernetes_servers import KubernetesServers
from process_kubelet import ProcessKubelet
from typed_shell import Shell, daemon

PAGE = Path(__file__).parents[3] / "docs" / "tutorials" / "kubernetes_laptop.md"


def blocks(language: str) -> list[str]:
    """Return the blocks of the page in a language, except those marked as not run."""
    pattern = rf"(<!-- not run: [^\n]*\n)?^```{language}\n(.*?)^```$"
    found = re.findall(pattern, PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [block for mark, block in found if not mark]


@pytest.fixture
def home(servers: KubernetesServers, tmp_path: Path) -> Iterator[Path]:
    """A home folder whose kubectl context is a cluster like that of kind."""
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl")
    (tmp_path / ".kube").mkdir()
    shutil.copy(servers.kubeconfig, tmp_path / ".kube" / "config")
    kubelet = ProcessKubelet(servers.api, [node_json(name, gpus=0) for name in ("kind-worker", "kind-worker2")])
    kubelet.start()
    yield tmp_path
    servers.api.delete("/apis/batch/v1/namespaces/default/jobs", {"propagationPolicy": "Background"})
    kubelet.stop()


def test_gangs_start_and_wait_as_in_the_tutorial(home: Path) -> None:
    (home / "first.yaml").write_text(blocks("yaml")[0])
    pretend, *typed = blocks("sh")
    printed: dict[str, str] = {}
    with Shell(home, columns=160) as shell:
        for line in pretend.splitlines():
            shell.succeed(line)
        with daemon(home, "--on kubernetes"):
            for block in typed:
                for line in block.splitlines():
                    printed[f"{block[:30]}: {line}"] = shell.succeed(line).words

    def shown(line: str) -> list[str]:
        return [text for key, text in printed.items() if key.endswith(f": {line}")]

    first, second = shown("refold queue")
    assert re.search(r"first-1 2 × 8 GPUs", first) and re.search(r"second-\d+ 2 × 4 GPUs", second)
    assert "Resources" in shown("refold why second")[0]
    assert "refold second" in shown("kubectl describe pod --selector job-name=second")[0]
    assert "4 GPUs" in shown("refold whatif third.yaml --gpus 2,4")[0]
    assert "refold" in shown("refold compare now.jsonl --policies fifo,easy,refold")[0]
