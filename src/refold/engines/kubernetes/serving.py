"""Serve a Kubernetes cluster, while no other daemon does."""

from __future__ import annotations

import asyncio
from pathlib import Path

from refold.engines.kubernetes.access import find_access, own_namespace
from refold.engines.kubernetes.engine import BINDING_KEY, KubernetesEngine
from refold.engines.kubernetes.gangs import DaemonIdentity
from refold.engines.kubernetes.job_objects import OwnJobs
from refold.engines.kubernetes.leadership import Leadership
from refold.server import ServeRequest, load_daemon_id, on_termination, run_until_done, serve_cluster

BINDING_KEY_BYTES = 32


def serve_kubernetes(request: ServeRequest, kubeconfig: Path | None, standby: bool) -> None:
    """Serve until a signal ends the daemon. Pods continue. `standby`: wait until no other daemon serves the cluster."""
    run_until_done(_serve(request, kubeconfig, standby))


async def _serve(request: ServeRequest, kubeconfig: Path | None, standby: bool) -> None:
    access, given, ended = find_access(kubeconfig), request.config.kubernetes, asyncio.Event()
    on_termination(ended.set)
    leadership = Leadership(access, own_namespace() or given.namespace, request.folder, ended)
    try:
        daemon_id = await leadership.acquire(standby, request.say)
        if not daemon_id:
            return
        own = OwnJobs(given.namespace, given.image, given.volume_claim)
        key = await asyncio.to_thread(load_daemon_id, request.folder, BINDING_KEY, BINDING_KEY_BYTES)
        engine = KubernetesEngine(access, DaemonIdentity(daemon_id, key), own, request.config.tenants, leadership.check)
        try:
            await serve_cluster(request, engine, _connect(engine, access.address), ended)
        finally:
            await engine.close()
    finally:
        await leadership.release()
    leadership.raise_if_lost()
    request.say("stopped; pods continue, and `refold serve --on kubernetes` takes control of them again")


async def _connect(engine: KubernetesEngine, address: str) -> str:
    return f"Kubernetes {await engine.connect()} at {address}"
