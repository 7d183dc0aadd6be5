"""Slurm's accounting for tests: MariaDB and slurmdbd with the data of one cluster in its folder."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_servers import READY_SECONDS, VERSION, SlurmServers, find_program, free_ports
from tools.slurm_versions import plugins_of

PROGRAMS = ("mariadbd", "mariadb-install-db", "mariadb-admin", "slurmdbd", "sacct", "sacctmgr")

SLURMDBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
DbdHost=localhost
DbdPort={port}
SlurmUser={user}
PidFile={folder}/slurmdbd.pid
LogFile={folder}/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=root
StorageLoc=slurm_acct_db
"""


class SlurmWithAccounting(SlurmServers):
    """A cluster whose jobs are recorded by slurmdbd: `sacct` answers."""

    def __init__(
        self, nodes: int = 4, gpus: int = 8, *, settings: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        self._database_port, dbd_port = free_ports(2)
        accounting = {
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "AccountingStorageHost": "localhost",
            "AccountingStoragePort": str(dbd_port),
            "AccountingStorageTRES": "gres/gpu",
        }
        super().__init__(nodes, gpus, settings={**accounting, **(settings or {})}, **options)
        with self.conf.open("a") as file:
            file.write(f"AccountingStoragePass={self.folder}/munge/socket\n")
        text = SLURMDBD_CONF.format(
            folder=self.folder,
            port=dbd_port,
            database_port=self._database_port,
            user=self.user,
        )
        conf = self.folder / "slurmdbd.conf"
        conf.touch(mode=0o600)  # slurmdbd refuses a file that others may read
        conf.write_text(text + (f"PluginDir={plugins_of(VERSION)}\n" if VERSION else ""))

    def start(self, seconds: float = READY_SECONDS) -> None:
        """Start all servers; return when all nodes are idle."""
        self._start_munge()
        self._start_database()
        self.start_accounting()
        self.run("sacctmgr", "--immediate", "add", "cluster", "refold-test")
        self._start_slurm(seconds)

    def start_accounting(self) -> None:
        """Start slurmdbd, possibly again; return when it answers."""
        self._start("slurmdbd", "-D")
        self.wait_until(
            lambda: self.run("sacctmgr", "--noheader", "list", "qos", check=False) != "", "slurmdbd answers"
        )

    def _start_database(self) -> None:
        data = self.folder / "database"
        subprocess.run(
            [
                find_program("mariadb-install-db"),
                "--no-defaults",
                f"--datadir={data}",
                f"--user={self.user}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        socket = self.folder / "database.socket"
        self._start(
            "mariadbd",
            "--no-defaults",
            f"--datadir={data}",
            f"--user={self.user}",
            f"--socket={socket}",
            f"--pid-file={self.folder / 'database.pid'}",
            "--bind-address=127.0.0.1",
            f"--port={self._database_port}",
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-buffer-pool-size=64M",
            "--innodb-lock-wait-timeout=900",
        )
        self.wait_until(lambda: _answers(socket), "MariaDB answers")


def _answers(socket: Path) -> bool:
    found = subprocess.run(
        [find_program("mariadb-admin"), "--no-defaults", f"--socket={socket}", "--user=root", "ping"],
        check=False,
        capture_output=True,
    )
    return found.returncode == 0
