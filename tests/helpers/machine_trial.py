"""What a daemon and its jobs do in a booted machine: the part of test_booted_machine that runs there, at each boot.

It writes its findings as one JSON object per boot to a serial port. The first boot ends in a reboot while a job runs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from refold.client import Client
from refold.errors import RefoldError

PORT = Path("/dev/ttyS1")
SOCKETS = (Path("/var/lib/refold/refold.sock"), Path("/run/refold/refold.sock"))
"""Of a daemon for its own user and root, and of one for all users."""

SUBMIT = """\
import json, sys
from refold.client import Client
print(Client(sys.argv[1]).submit(**json.loads(sys.argv[2])).id)
"""
CGROUPS = Path("/sys/fs/cgroup")
NOTES = Path("/root/trial.json")
SECONDS = 300.0
"""How long anything may take: the processor may be emulated."""

ESCAPE = "env -i setsid sh -c 'trap \"\" TERM; echo $$; exec sleep 100000' & wait"
MUCH = "import sys; data = bytearray(200 << 20); print('not reached')"

Found = TypeVar("Found")


def wait_for(find: Callable[[], Found], what: str) -> Found:
    """Return what is found as soon as it is true; meanwhile, the daemon may be away."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        try:
            if found := find():
                return found
        except RefoldError:
            pass
        time.sleep(0.2)
    raise TimeoutError(what)


def systemctl(*words: str) -> str:
    """Return what systemctl prints."""
    return subprocess.run(["systemctl", *words], check=True, capture_output=True, text=True).stdout.strip()


def is_alive(pid: int) -> bool:
    """Whether a process exists."""
    return Path(f"/proc/{pid}").exists()


def main_pid() -> int:
    """Return the process of the unit; 0 while there is none."""
    return int(systemctl("show", "--property", "MainPID", "--value", "refold"))


class Trial:
    """The daemon of the unit, as root sees it. `user`: who submits jobs."""

    def __init__(self, user: str) -> None:
        self.user = user
        socket = wait_for(lambda: next(filter(Path.exists, SOCKETS), None), "the daemon has no socket")
        self.address = f"unix:{socket}"
        self.client = Client(self.address)

    def wait_for_daemon(self) -> None:
        """Wait until it answers."""
        wait_for(self.client.info, "the daemon does not answer")

    def submit(self, script: str, **fields: Any) -> str:
        """Submit a job and return its id."""
        given = json.dumps({"name": "job", "command": ["sh", "-c", script], "folder": "/", **fields})
        words = [sys.executable, "-c", SUBMIT, self.address, given]
        done = subprocess.run(
            words, user=self.user, group=self.user, cwd="/", check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def pid_of(self, job: str) -> int:
        """Return the process that a job has printed."""
        return int(wait_for(lambda: "".join(self.client.logs(job)).strip(), f"{job} prints nothing"))

    def ended(self, job: str) -> dict[str, Any]:
        """Wait until a job has ended; return how."""
        status = self.client.wait(job, SECONDS)
        return {"state": status.state, "message": status.message, "exit_code": status.exit_code}

    def first_boot(self) -> dict[str, Any]:
        """Limits, kills, and a daemon that is killed and restarted while a job runs."""
        self.wait_for_daemon()
        found: dict[str, Any] = {
            "hierarchies": sorted(
                {line.split()[2] for line in Path("/proc/mounts").read_text().splitlines() if " cgroup" in line}
            ),
            "systemd": subprocess.run(
                ["systemctl", "--version"], capture_output=True, text=True, check=True
            ).stdout.split()[1],
            "limits": self.client.nodes()[0].limits,
            "daemon": Path(f"/proc/{main_pid()}/cgroup").read_text().strip(),
        }
        job = self.submit("echo $$; exec sleep 100000", cpus=0.5, memory_gib=0.125)
        pid = self.pid_of(job)
        group = Path(f"/proc/{pid}/cgroup").read_text().strip().removeprefix("0::/")
        found["group"] = group
        for name in ("cpu.max", "memory.max", "memory.swap.max", "memory.oom.group"):
            file = CGROUPS / group / name
            found[name] = file.read_text().strip() if file.exists() else None
        found["out of memory"] = self.ended(self.submit(f'exec python3 -c "{MUCH}"', memory_gib=0.0625))
        escaped = self.submit(ESCAPE, grace=1.0)
        escaped_pid = self.pid_of(escaped)
        self.client.cancel(escaped)
        found["escaped"] = {**self.ended(escaped), "alive": is_alive(escaped_pid)}
        found["user"] = Path(f"/proc/{pid}").owner()
        found["killed"] = self.replaced(lambda: os.kill(main_pid(), signal.SIGKILL), job, pid)
        found["restarted"] = self.replaced(lambda: systemctl("restart", "refold"), job, pid)
        second = self.submit("true", cpus=0.5)
        found["after"] = self.ended(second)
        NOTES.write_text(json.dumps({"job": job}))
        return found

    def replaced(self, end: Callable[[], object], job: str, pid: int) -> dict[str, Any]:
        """End the daemon; when systemd has started another one, return what has become of a job."""
        before = main_pid()
        end()
        wait_for(lambda: main_pid() not in (0, before), "no new daemon")
        self.wait_for_daemon()
        status = self.client.job(job)
        return {"state": status.state, "runs": status.runs, "alive": is_alive(pid)}

    def second_boot(self) -> dict[str, Any]:
        """After a reboot, the job that ran is started again."""
        self.wait_for_daemon()
        job = json.loads(NOTES.read_text())["job"]
        wait_for(lambda: self.client.job(job).runs > 1, "the job is not started again")
        events = [f"{event.kind}: {event.text}" for event in self.client.why(job).events]
        found = {"runs": self.client.job(job).runs, "events": events}
        self.client.cancel(job, now=True)
        found["end"] = self.ended(job)["state"]
        left = [str(path) for path in CGROUPS.rglob("refold-*/*.0")]
        log = subprocess.run(["journalctl", "--unit", "refold"], check=True, capture_output=True, text=True).stdout
        return {**found, "left": left, "tracebacks": log.count("Traceback")}


def main() -> None:
    """Report the findings of this boot."""
    action = "poweroff"
    try:
        if NOTES.exists():
            found = Trial(sys.argv[1]).second_boot()
        else:
            found = Trial(sys.argv[1]).first_boot()
            action = "reboot"
    except BaseException:
        log = subprocess.run(
            ["journalctl", "--unit", "refold", "--lines", "40"], check=False, capture_output=True, text=True
        )
        found = {"error": traceback.format_exc(), "log": log.stdout}
    with PORT.open("w") as port:
        port.write(json.dumps(found) + "\n")
    os.sync()
    systemctl(action)


if __name__ == "__main__":
    main()
