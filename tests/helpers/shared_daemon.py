"""A daemon that root has started for all users, in a process of its own: each job has the uid of its user."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from other_users import as_user, with_readable_interpreter
from real_daemon import wait_until
from served_daemon import ServedDaemon

import refold
from refold.client import Client

CONFIG = """
users: {{allow: all}}
serve: {{user: '{user}', socket: {socket}, grace: 1s}}
"""


class SharedDaemon(ServedDaemon):
    """The daemon, its helper, and its users. `public`: a folder that everybody can enter. `uid`: that of the daemon.

    `settings`: further lines of its configuration. `options`: further options of `refold serve`.
    """

    def __init__(
        self,
        public: Path,
        tmp_path: Path,
        uid: int,
        settings: str = "",
        options: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.socket = public / "refold.sock"
        config = tmp_path / "refold.yaml"
        config.write_text(settings + CONFIG.format(user=uid, socket=self.socket))
        self._mount_point = tmp_path / "interpreter"
        environment = {
            **(os.environ if variables is None else variables),
            "PYTHONPATH": str(Path(refold.__file__).parent.parent),
        }
        super().__init__(public / "state", tmp_path / "log", ["--config", str(config), *options], environment)

    def command(self, words: list[str]) -> list[str]:
        """Return the command that starts it, with an interpreter that the daemon's user can run."""
        return with_readable_interpreter(words, self._mount_point)

    def start(self) -> None:
        """Start it, and wait until it serves."""
        self.launch()
        wait_until(lambda: self.is_serving or self.has_ended)
        assert self.is_serving, self.log()

    def pids(self) -> tuple[int, int]:
        """Return the pids of the helper and of the daemon."""
        assert self._process is not None
        helper = self._process.pid
        (daemon,) = Path(f"/proc/{helper}/task/{helper}/children").read_text().split()[:1]
        return helper, int(daemon)

    def submit(self, uid: int, script: str, **fields: Any) -> str:
        """Submit a shell script as a user. `fields`: those of the submission."""
        given = {"name": "a", "command": ["sh", "-c", script], "folder": "/", **fields}

        def submit() -> str:
            return Client(f"unix:{self.socket}").submit(**given).id

        return as_user(uid, submit)

    def output(self, uid: int, job: str) -> str:
        """Return what a job of a user has printed so far."""
        return as_user(uid, lambda: "".join(Client(f"unix:{self.socket}").logs(job)))

    def run(self, uid: int, script: str, **fields: Any) -> list[str]:
        """Run a script as a job of a user, and return the lines that it has printed."""
        job = self.submit(uid, script, **fields)
        wait_until(lambda: self.owner.job(job).state in ("finished", "failed"))
        assert self.owner.job(job).state == "finished", (self.owner.job(job), self.output(uid, job), self.log())
        return self.output(uid, job).splitlines()

    def intrude(self, uid: int, victim: str, pid: int, others: Mapping[str, str]) -> list[str]:
        """Let a job of a user try what only others may do; return what it could do.

        `victim`: a job of another user, with its process. `others`: further commands, by what they try.
        """
        state, log = self.folder, self.folder / "logs" / victim / "run-1.0.log"
        attempts = {
            "the store": f"cat {state}/refold.db",
            "the owner's token": f"cat {state}/client.json",
            "the list of jobs": f"ls {state}/logs",
            "the state": f"ls {state}",
            "a link to the store": f"ln {state}/refold.db $REFOLD_CHECKPOINT/db",
            "another user's log": f"cat {log}",
            "another user's folder": f"ls {log.parent}",
            "another user's run": f"touch {log.parent}/run-1.end",
            "another user's process": f"kill -0 {pid}",
            "the daemon": f"kill -0 {self.pids()[1]}",
            **others,
        }
        tries = [f"{attempt} >/dev/null 2>&1 && echo {shlex.quote(name)}" for name, attempt in attempts.items()]
        begin, *done, end = self.run(uid, "\n".join(["touch $REFOLD_CHECKPOINT/x && echo begin", *tries, "echo end"]))
        assert (begin, end) == ("begin", "end")
        return done

    @property
    def owner(self) -> Client:
        """A client of root."""
        return Client(f"unix:{self.socket}")
