"""Serve a Slurm cluster: each run is a job of Slurm, or a step in the pool."""

from __future__ import annotations

import asyncio
import os

from msgspec.structs import replace

from refold.engines.local import ProcessHost, describe_user, split_privileges
from refold.engines.slurm.engine import DAEMON_KEY, SlurmEngine
from refold.engines.slurm.pool import PoolSettings
from refold.engines.slurm.programs import Programs
from refold.engines.slurm.requests import SlurmSettings
from refold.errors import BadInput
from refold.server import ServeRequest, load_daemon_id, on_termination, run_until_done, serve_cluster
from refold.server.config import Config


def serve_slurm(request: ServeRequest) -> None:
    """Serve until a signal ends the daemon. Jobs continue."""
    check_user(os.geteuid(), request.config)
    run_until_done(_serve(request, _split(request) if request.config.serve.user else None))
    request.say("stopped; running jobs continue, and `refold serve --on slurm` takes control of them again")


def check_user(uid: int, config: Config) -> None:
    """Raise BadInput if the jobs of all users would run as root."""
    if uid == 0 and not config.serve.user and not config.slurm.as_root:
        raise BadInput(
            "root has started the daemon, so that the jobs of all who submit to it would run as root. To run them as "
            "their users, give the daemon an account of its own by these lines of refold.yaml: `serve: {user: refold}` "
            "and `users: {allow: all}`. Or start it as another user, as whom all jobs then run, also in a pool; with "
            "`slurm: {as_root: true}` they run as root"
        )


def _split(request: ServeRequest) -> ProcessHost:
    """Continue as `serve.user` beside a helper, without cgroups: runs are not on this machine."""
    config = request.config
    return split_privileges(replace(config, serve=replace(config.serve, cgroup="off")), request.folder.absolute())


async def _serve(request: ServeRequest, host: ProcessHost | None) -> None:
    ended, given = asyncio.Event(), request.config.slurm
    on_termination(ended.set)
    daemon_id = await asyncio.to_thread(load_daemon_id, request.folder, DAEMON_KEY)
    settings = SlurmSettings(given.partition, given.account, given.qos, given.options)
    pool = PoolSettings(given.pool, given.pool_time, given.pool_jobs, given.release_idle_after)
    engine = SlurmEngine(Programs(), daemon_id, settings, request.config.tenants, pool, host)
    await serve_cluster(request, engine, _connect(request, engine), ended)
    await engine.release_pool()


async def _connect(request: ServeRequest, engine: SlurmEngine) -> str:
    return f"{await engine.connect()}. {describe_user(request.config)}"
