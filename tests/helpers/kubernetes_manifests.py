"""The manifests of `deploy/`, rendered: those of kustomize, and those of the Helm chart."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_objects import Json

DEPLOY = Path(__file__).parents[2] / "deploy"
KUSTOMIZE, CHART = DEPLOY / "kubernetes", DEPLOY / "helm" / "refold"


def kustomized() -> list[Json]:
    """Return the objects of the kustomization; it names files and a namespace, which they have already."""
    found = yaml.safe_load((KUSTOMIZE / "kustomization.yaml").read_text())
    assert set(found) == {"apiVersion", "kind", "namespace", "resources"}
    return [body for name in found["resources"] for body in yaml.safe_load_all((KUSTOMIZE / name).read_text())]


def charted(values: Json | None = None, namespace: str = "refold") -> list[Json]:
    """Return the objects of the chart: rendered by Helm if it is installed, else as Helm does it, by a Go program."""
    text = _helm(values or {}, namespace) if shutil.which("helm") else _render(values or {}, namespace)
    return [body for body in yaml.safe_load_all(text) if body]


def _helm(values: Json, namespace: str) -> str:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(values, file)
        file.flush()
        command = ["helm", "template", "refold", str(CHART), "--namespace", namespace, "--values", file.name]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _render(values: Json, namespace: str) -> str:
    if shutil.which("go") is None:
        pytest.skip("needs Helm, or Go")
    data: dict[str, Any] = {
        "Values": {**yaml.safe_load((CHART / "values.yaml").read_text()), **values},
        "Release": {"Namespace": namespace, "Name": "refold"},
    }
    templates = sorted(map(str, (CHART / "templates").iterdir()))
    program = Path(__file__).with_name("render_chart.go")
    return subprocess.run(
        ["go", "run", str(program), "--", *templates],
        input=json.dumps(data),
        env={**os.environ, "GO111MODULE": "off", "CGO_ENABLED": "0"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
