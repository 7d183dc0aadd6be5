"""Kubeconfig files, service accounts, and credential plug-ins."""

from __future__ import annotations

import re
import ssl
import sys
from pathlib import Path

import pytest

from refold.engines.kubernetes.access import Access, find_access, read_kubeconfig
from refold.errors import BadFile, BadInput

CONFIG = """
apiVersion: v1
kind: Config
current-context: test
contexts:
- {name: test, context: {cluster: local, user: me}}
- {name: other, context: {cluster: missing, user: me}}
clusters:
- {name: local, cluster: {server: "https://10.0.0.1:6443/k8s/"}}
users:
- name: me
  user: USER
"""


def write(folder: Path, user: str = "{}", old: str = "", new: str = "") -> Path:
    path = folder / "config"
    path.write_text(CONFIG.replace("USER", user).replace(old or "\0", new))
    return path


def test_the_current_context_names_server_and_user(tmp_path: Path) -> None:
    access = read_kubeconfig(write(tmp_path, "{token: secret}"))
    assert (access.host, access.port, access.prefix) == ("10.0.0.1", 6443, "/k8s")
    assert access.headers() == {"Authorization": "Bearer secret"}
    assert access.tls is not None
    assert access.tls.verify_mode == ssl.CERT_REQUIRED


def test_certificates_are_not_checked_only_if_the_file_says_so(tmp_path: Path) -> None:
    insecure = ", insecure-skip-tls-verify: true}"
    access = read_kubeconfig(write(tmp_path, old='/k8s/"}', new=f'/k8s/"{insecure}'))
    assert access.tls is not None
    assert access.tls.verify_mode == ssl.CERT_NONE


def test_a_token_file_is_relative_to_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")
    access = read_kubeconfig(write(tmp_path, "{tokenFile: token}"))
    assert access.headers() == {"Authorization": "Bearer from-file"}


def test_a_credential_plug_in_is_run_and_its_token_kept_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "plugin.py"
    script.write_text(
        "import json, os, pathlib\n"
        "path = pathlib.Path('calls'); calls = path.read_text() if path.exists() else ''\n"
        "path.write_text(calls + 'x')\n"
        "kind = json.loads(os.environ['KUBERNETES_EXEC_INFO'])['kind']\n"
        "print(json.dumps({'status': {'token': kind + os.environ['SUFFIX']}}))\n"
    )
    user = f"{{exec: {{command: {sys.executable}, args: [{script}], env: [{{name: SUFFIX, value: '-1'}}]}}}}"
    access = read_kubeconfig(write(tmp_path, user))
    monkeypatch.chdir(tmp_path)
    tokens = {access.headers()["Authorization"] for _ in range(3)}
    assert tokens == {"Bearer ExecCredential-1"}
    assert (tmp_path / "calls").read_text() == "x"


def test_a_plug_in_that_fails_is_named(tmp_path: Path) -> None:
    access = read_kubeconfig(write(tmp_path, "{exec: {command: /no/such/plugin}}"))
    with pytest.raises(BadInput, match="'/no/such/plugin' gave no token"):
        access.headers()


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("current-context: test", "current-context: tset", "current-context is 'tset', expected one of test, other"),
        ("current-context: test", "current-context: other", "names cluster 'missing', which is missing"),
        ("clusters:", "clutsers:", "missing required field `clusters`"),
        ("https://10.0.0.1:6443/k8s/", "10.0.0.1", "expected https://HOST:PORT"),
        ('/k8s/"}', '/k8s/", certificate-authority: no.crt}', "cannot use its certificates"),
    ],
)
def test_a_broken_kubeconfig_is_an_error_of_one_line(tmp_path: Path, old: str, new: str, problem: str) -> None:
    with pytest.raises((BadFile, BadInput), match=re.escape(problem)) as caught:
        read_kubeconfig(write(tmp_path, old=old, new=new))
    assert "\n" not in str(caught.value)


def test_without_a_cluster_the_error_says_how_to_name_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(BadInput, match="--kubeconfig"):
        find_access()


def test_a_port_is_not_required() -> None:
    assert Access("https://k8s.example.org", None).port == 443
    assert Access("http://localhost", None).address == "http://localhost:80"
