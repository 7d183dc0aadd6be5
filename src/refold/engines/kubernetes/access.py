"""How to reach and authenticate to an API server: from a kubeconfig file, or inside a cluster."""

from __future__ import annotations

import base64
import os
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import msgspec
import msgspec.yaml

from refold.errors import BadFile, BadInput
from refold.model import MINUTE, Seconds
from refold.model.documents import read_text

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its token and the certificate of the API server."""

TOKEN_MAX_AGE: Seconds = MINUTE
"""How long a token from a file or a program is used. Tokens of service accounts are replaced about hourly."""

MIN_TOKEN_AGE: Seconds = 1.0
"""A rejected token that is younger than this is not read again."""

EXEC_TIMEOUT_SECONDS: Seconds = 30.0

TokenSource = Callable[[], str]


class Access:
    """Address of an API server, TLS settings and credentials."""

    def __init__(self, server: str, tls: ssl.SSLContext | None, token: TokenSource | None = None) -> None:
        parts = urlsplit(server)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadInput(f"the address of the API server is {server!r}, expected https://HOST:PORT")
        self.host = parts.hostname
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self.prefix = parts.path.rstrip("/")
        self.tls = tls if parts.scheme == "https" else None
        self._token = token

    @property
    def address(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://{self.host}:{self.port}{self.prefix}"

    def headers(self) -> dict[str, str]:
        return {} if self._token is None else {"Authorization": f"Bearer {self._token()}"}

    def renew(self) -> bool:
        """Forget a token that was rejected, so that the next request reads it again; return whether that may help."""
        return isinstance(self._token, _CachedToken) and self._token.forget()


def find_access(kubeconfig: Path | None = None) -> Access:
    """Return access by the given kubeconfig, else that of the pod this runs in, else `KUBECONFIG` or ~/.kube/config."""
    if kubeconfig is not None:
        return read_kubeconfig(kubeconfig)
    if os.environ.get("KUBERNETES_SERVICE_HOST") and (SERVICE_ACCOUNT / "token").exists():
        return in_cluster_access(os.environ, SERVICE_ACCOUNT)
    given = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    path = Path(given) if given else Path.home() / ".kube" / "config"
    if not path.exists():
        raise BadInput(f"no Kubernetes cluster: {path} does not exist; name a kubeconfig file with --kubeconfig")
    return read_kubeconfig(path)


def own_namespace() -> str | None:
    """Return the namespace of the pod that this runs in; None outside a cluster."""
    path = SERVICE_ACCOUNT / "namespace"
    return path.read_text().strip() if path.exists() else None


def in_cluster_access(environment: Mapping[str, str], folder: Path) -> Access:
    """Return access with the service account of a pod."""
    host, port = environment["KUBERNETES_SERVICE_HOST"], environment.get("KUBERNETES_SERVICE_PORT", "443")
    tls = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    return Access(
        f"https://{f'[{host}]' if ':' in host else host}:{port}", tls, _CachedToken(_file_token(folder / "token"))
    )


# Kubeconfig files.


class _Exec(msgspec.Struct, rename="camel"):
    command: str
    api_version: str = "client.authentication.k8s.io/v1"
    args: list[str] | None = None
    env: list[dict[str, str]] | None = None


class _User(msgspec.Struct, rename="kebab"):
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    exec: _Exec | None = None


class _Cluster(msgspec.Struct, rename="kebab"):
    server: str
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False


class _Context(msgspec.Struct):
    cluster: str
    user: str = ""


class _NamedCluster(msgspec.Struct):
    name: str
    cluster: _Cluster


class _NamedUser(msgspec.Struct):
    name: str
    user: _User


class _NamedContext(msgspec.Struct):
    name: str
    context: _Context


class _Kubeconfig(msgspec.Struct, rename="kebab"):
    clusters: list[_NamedCluster]
    contexts: list[_NamedContext]
    users: list[_NamedUser] = []
    current_context: str = ""


def read_kubeconfig(path: Path) -> Access:
    """Return access by the current context of a kubeconfig file."""
    try:
        config = msgspec.yaml.decode(read_text(path), type=_Kubeconfig)
    except msgspec.DecodeError as error:  # also if it is not YAML
        raise BadFile(path, f"not a kubeconfig: {' '.join(str(error).split())}") from None
    contexts = {named.name: named.context for named in config.contexts}
    context = contexts.get(config.current_context)
    if context is None:
        raise BadFile(path, f"current-context is {config.current_context!r}, expected one of {', '.join(contexts)}")
    cluster = {named.name: named.cluster for named in config.clusters}.get(context.cluster)
    if cluster is None:
        raise BadFile(path, f"context {config.current_context!r} names cluster {context.cluster!r}, which is missing")
    user = {named.name: named.user for named in config.users}.get(context.user, _User())
    try:
        return Access(cluster.server, _tls(cluster, user, path.parent), _token_source(user, path.parent))
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise BadFile(path, f"cannot use its certificates: {error}") from None


def _tls(cluster: _Cluster, user: _User, folder: Path) -> ssl.SSLContext:
    authority = _decoded(cluster.certificate_authority_data).decode()
    file = str(folder / cluster.certificate_authority) if cluster.certificate_authority else None
    context = ssl.create_default_context(cafile=file, cadata=authority or None)
    if cluster.insecure_skip_tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if user.client_certificate_data or user.client_certificate:
        certificate = _decoded(user.client_certificate_data) or (folder / user.client_certificate).read_bytes()
        key = _decoded(user.client_key_data) or (folder / user.client_key).read_bytes()
        with tempfile.NamedTemporaryFile(prefix="refold-", suffix=".pem") as file_of_both:  # readable by us alone
            file_of_both.write(certificate + b"\n" + key)
            file_of_both.flush()
            context.load_cert_chain(file_of_both.name)
    return context


def _decoded(data: str) -> bytes:
    return base64.b64decode(data)


def _token_source(user: _User, folder: Path) -> TokenSource | None:
    if user.exec is not None:
        return _CachedToken(_program_token(user.exec))
    if user.token_file:
        return _CachedToken(_file_token(folder / user.token_file))
    return (lambda: user.token) if user.token else None


def _file_token(path: Path) -> TokenSource:
    return lambda: path.read_text().strip()


def _program_token(program: _Exec) -> TokenSource:
    """Return a source that runs a credential plug-in, as kubectl does."""
    info: dict[str, Any] = {"apiVersion": program.api_version, "kind": "ExecCredential", "spec": {"interactive": False}}
    variables = {entry["name"]: entry.get("value", "") for entry in program.env or []}
    environment = {**os.environ, **variables, "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()}

    def run() -> str:
        try:
            answer = subprocess.run(
                [program.command, *(program.args or [])],
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=EXEC_TIMEOUT_SECONDS,
                check=True,
            )
            return str(msgspec.json.decode(answer.stdout)["status"]["token"])
        except (OSError, subprocess.SubprocessError, msgspec.DecodeError, LookupError, TypeError) as error:
            raise BadInput(f"the credential plug-in {program.command!r} gave no token: {error}") from None

    return run


class _CachedToken:
    """A token that is read again when it is old, or was rejected."""

    def __init__(self, source: TokenSource) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._token = ""
        self._read_at = -TOKEN_MAX_AGE

    def __call__(self) -> str:
        with self._lock:
            if monotonic() - self._read_at >= TOKEN_MAX_AGE:
                self._token, self._read_at = self._source(), monotonic()
            return self._token

    def forget(self) -> bool:
        """Forget the token, unless it has just been read."""
        with self._lock:
            is_old = monotonic() - self._read_at >= MIN_TOKEN_AGE
            self._read_at = -TOKEN_MAX_AGE if is_old else self._read_at
            return is_old
