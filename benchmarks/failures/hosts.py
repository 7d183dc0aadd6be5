"""Hosts for tests and benchmarks: network namespaces of this machine, with addresses of their own, joined by a bridge.

They share no folder: each has its own for everything that its processes write. Shared memory is that of the machine,
but files there are named by process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

SECRET = "only the hosts of this test know it"
PORT = 29400
HUB_ADDRESS = "10.77.0.250"
"""The address of a host that never fails."""

_NUMBERS = count(1)


def why_not() -> str:
    """Return why there can be no hosts; empty if there can."""
    if os.geteuid():
        return "network namespaces need root"
    command = ["ip", "netns", "add", f"refold-{os.getpid()}-try"]
    made = subprocess.run(command, check=False, capture_output=True, text=True)
    if made.returncode:
        return f"no network namespaces: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", f"refold-{os.getpid()}-try"], check=True)
    return ""


def wait_until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait for a condition, and return its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return value


class Hosts:
    """Some hosts with addresses 10.77.0.1 and so on. `close` ends all that runs there."""

    def __init__(self, count: int, folder: Path, megabits: int | None = None) -> None:
        self.count = count
        self.folder = folder
        self._prefix = f"refold-{os.getpid()}-{next(_NUMBERS)}"
        self._hub = f"{self._prefix}-hub"
        _ip("netns", "add", self._hub)
        _ip("-n", self._hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._hub, "address", "add", f"{HUB_ADDRESS}/24", "dev", "bridge")
        _ip("-n", self._hub, "link", "set", "bridge", "up")
        for host in range(count):
            name, port = self.name(host), f"port{host}"
            _ip("netns", "add", name)
            _ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", self._hub)
            _ip("-n", name, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", name, "link", "set", device, "up")
            _ip("-n", self._hub, "link", "set", port, "master", "bridge")
            _ip("-n", self._hub, "link", "set", port, "up")
            if megabits:
                burst = f"{max(256, megabits)}kb"  # at least what may be sent between two ticks of the kernel
                rate = ["rate", f"{megabits}mbit", "burst", burst, "latency", "50ms"]
                _run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", *rate)
            (folder / f"host-{host}").mkdir(parents=True)
        self.agents: dict[int, subprocess.Popen[bytes]] = {}
        self._servers: list[subprocess.Popen[bytes]] = []

    def name(self, host: int) -> str:
        """Return the name of the namespace of a host."""
        return f"{self._prefix}-{host}"

    def address(self, host: int) -> str:
        """Return the address of a host."""
        return f"10.77.0.{host + 1}"

    def own_folder(self, host: int) -> Path:
        """Return the folder of a host."""
        return self.folder / f"host-{host}"

    def start(
        self, host: int, *command: str, variables: Mapping[str, str], log: str = "log"
    ) -> subprocess.Popen[bytes]:
        """Start a program on a host; its output goes to a file in the host's folder."""
        folder = self.own_folder(host)
        (folder / "tmp").mkdir(exist_ok=True)
        output = (folder / log).open("ab")
        with output:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.name(host), *command],
                env={**os.environ, "TMPDIR": str(folder / "tmp"), **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
            )

    def start_on_hub(self, *command: str) -> None:
        """Start a program on the host that never fails."""
        with (self.folder / "hub.log").open("ab") as log:
            words = ["ip", "netns", "exec", self._hub, *command]
            self._servers.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def train(self, host: int, plan: str, *script: str, slots: int, variables: Mapping[str, str]) -> None:
        """Start an agent of a run on all hosts."""
        folder = self.own_folder(host)
        environment = {
            "REFOLD_RUN_SECRET": SECRET,
            "REFOLD_INSTANCE": str(host),
            "REFOLD_INSTANCES": str(self.count),
            "REFOLD_SLOTS": ",".join(map(str, range(slots))),
            "REFOLD_CHANGE": str(folder / "change"),
            "REFOLD_PROGRESS": str(folder / "progress"),
            "MASTER_ADDR": self.address(0),
            "MASTER_PORT": str(PORT),
            **variables,
        }
        command = (sys.executable, "-m", "refold.train", "--plan", plan, *script)
        self.agents[host] = self.start(host, *command, variables=environment)

    def log(self, host: int) -> str:
        """Return what the processes of a host have printed."""
        path = self.own_folder(host) / "log"
        return path.read_text() if path.exists() else ""

    def pids(self, host: int) -> list[int]:
        """Return the processes of a host."""
        found = subprocess.run(["ip", "netns", "pids", self.name(host)], capture_output=True, text=True, check=True)
        return list(map(int, found.stdout.split()))

    def agent(self, host: int) -> int:
        """Return the agent on a host."""
        return next(pid for pid in self.pids(host) if b"refold.train" in _words(pid) and b"-m" in _words(pid))

    def ranks(self, host: int) -> list[int]:
        """Return the ranks on a host: the processes of which the parent is the fork server, a child of the agent."""
        parents = {pid: _parent(pid) for pid in self.pids(host)}
        agent = self.agent(host)
        return [pid for pid, parent in parents.items() if parents.get(parent) == agent]

    def kill_host(self, host: int) -> None:
        """Kill all processes of a host."""
        for pid in self.pids(host):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if agent := self.agents.pop(host, None):
            agent.wait()

    def set_link(self, host: int, *, up: bool) -> None:
        """Cut the link of a host, or mend it."""
        _ip("-n", self._hub, "link", "set", f"port{host}", "up" if up else "down")

    def request(self, host: int, run: int, plan: dict[str, int], way: str = "live") -> None:
        """Request a change of the plan on a host."""
        path = self.own_folder(host) / "change"
        new = path.with_name("request")
        new.write_bytes(msgspec.json.encode({"run": run, "plan": plan, "devices": None, "way": way}))
        new.replace(path)

    def answer(self, host: int, run: int) -> dict[str, Any]:
        """Wait for the answer to a request, and return it."""
        done = self.own_folder(host) / "change.done"

        def find() -> dict[str, Any] | None:
            found: dict[str, Any] = msgspec.json.decode(done.read_bytes()) if done.exists() else {}
            return found if found.get("run") == run else None

        answer: dict[str, Any] = wait_until(find)
        return answer

    def finish(self, seconds: float = 120.0) -> dict[int, int]:
        """Wait for the end of all agents, and return their exit statuses."""
        deadline = time.monotonic() + seconds
        return {host: agent.wait(max(0.1, deadline - time.monotonic())) for host, agent in self.agents.items()}

    def close(self) -> None:
        """End all processes of the hosts, and remove the hosts."""
        for host in range(self.count):
            self.kill_host(host)
            _ip("netns", "del", self.name(host))
        for server in self._servers:
            server.kill()
            server.wait()
        _ip("netns", "del", self._hub)


def _words(pid: int) -> list[bytes]:
    with suppress(OSError):
        return Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")
    return []


def _parent(pid: int) -> int:
    with suppress(OSError):
        return int(Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
