"""A real Slurm for tests: munged, slurmctld and several slurmd as processes of this machine.

Everything is in a temporary folder with ports and a socket of its own: a Slurm of the machine is not touched. GPUs are
links to /dev/null. Nodes are processes, so that a test can kill one. REFOLD_SLURM chooses another version than the
machine's, which `make test-slurm` unpacks into the cache.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from tools.slurm_versions import plugins_of, programs_of, wanted_version

READY_SECONDS = 30.0
PROGRAMS = (
    "munged",
    "mungekey",
    "slurmctld",
    "slurmd",
    "slurmstepd",
    "sbatch",
    "squeue",
    "sinfo",
    "scontrol",
    "scancel",
)
SYSTEM_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/sbin")
"""Where daemons are installed, which users often do not have in their PATH."""

SLURM_CONF = """\
ClusterName=refold-test
SlurmctldHost=localhost
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters={scheduler}
PriorityType=priority/multifactor
JobAcctGatherType=jobacct_gather/none
JobRequeue=1
KillWait=2
MinJobAge={min_job_age}
MessageTimeout=30
SlurmctldTimeout=30
SlurmdTimeout={node_timeout}
ReturnToService=2
SlurmdParameters=config_overrides
GresTypes={gres_types}
"""

VERSION = wanted_version()
if VERSION:
    os.environ["PATH"] = f"{programs_of(VERSION)}{os.pathsep}{os.environ['PATH']}"

DEFAULTS = {"AccountingStorageType": "accounting_storage/none", "DefMemPerCPU": "100"}


def missing_programs(names: Iterable[str] = PROGRAMS) -> list[str]:
    """Return the programs that are not installed."""
    return [name for name in names if not Path(find_program(name)).is_absolute()]


def find_program(name: str) -> str:
    """Return the path of a program; its name if it is not installed."""
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(SYSTEM_FOLDERS)) or name


def plugins(name: str) -> list[Path]:
    """Return the files of a plugin; [] if this Slurm does not have it."""
    return [*plugins_of(VERSION).glob(f"{name}.so")] if VERSION else [*Path("/usr").glob(f"lib*/**/slurm*/{name}.so")]


class SlurmServers:
    """A cluster of `nodes` nodes n0, n1, … with `gpus` GPUs, `cpus` CPUs and `memory_mib` each.

    `shards`: in how many parts each GPU can be allocated; 0: whole GPUs only.
    `partitions`: lines of slurm.conf; by default one partition with all nodes. `settings`: further lines. `topology`:
    the text of topology.conf.
    """

    def __init__(
        self,
        nodes: int = 4,
        gpus: int = 8,
        cpus: int = 64,
        memory_mib: int = 65536,
        *,
        gpu_type: str = "a100",
        shards: int = 0,
        node_timeout: int = 5,
        min_job_age: int = 300,
        scheduler: str = "bf_interval=1,batch_sched_delay=0,sched_min_interval=20000",
        partitions: Iterable[str] = (),
        settings: Mapping[str, str] | None = None,
        topology: str = "",
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="refold-slurm-"))
        self.folder.chmod(0o755)
        self.nodes = [f"n{number}" for number in range(nodes)]
        self.user = pwd.getpwuid(os.getuid()).pw_name
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.conf = self.folder / "slurm.conf"
        self.environment = {**os.environ, "SLURM_CONF": str(self.conf)}
        self._write_files(gpus, gpu_type, shards * gpus)
        ports = free_ports(nodes + 1)
        text = SLURM_CONF.format(
            port=ports[0],
            user=self.user,
            folder=self.folder,
            node_timeout=node_timeout,
            min_job_age=min_job_age,
            scheduler=scheduler,
            gres_types="gpu,shard" if shards else "gpu",
        )
        lines = [f"{key}={value}" for key, value in {**DEFAULTS, **(settings or {})}.items()]
        lines += [f"PluginDir={plugins_of(VERSION)}"] if VERSION else []
        parts = f",shard:{shards * gpus}" if shards else ""
        gres = f"Gres=gpu:{gpu_type}:{gpus}{parts} " if gpus else ""
        lines += [
            f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} "
            f"CPUs={cpus} RealMemory={memory_mib} {gres}State=UNKNOWN"
            for name, port in zip(self.nodes, ports[1:], strict=True)
        ]
        lines += partitions or [f"PartitionName=gpu Nodes=n[0-{nodes - 1}] Default=YES MaxTime=INFINITE State=UP"]
        self.conf.write_text(text + "\n".join(lines) + "\n")
        if topology:
            (self.folder / "topology.conf").write_text(topology)

    def start(self, seconds: float = READY_SECONDS) -> None:
        """Start all servers; return when all nodes are idle, which they must be within some time."""
        self._start_munge()
        self._start_slurm(seconds)

    def _start_slurm(self, seconds: float = READY_SECONDS) -> None:
        self.start_controller()
        for name in self.nodes:
            self.start_node(name)
        self.wait_until(self.is_ready, "all nodes are idle", seconds)

    def stop(self) -> None:
        """End all servers and everything that they have started, and delete their data."""
        for name in reversed(list(self._processes)):
            self.kill(name)
        _kill_all(self._processes_of_this_cluster())
        shutil.rmtree(self.folder, ignore_errors=True)

    def start_controller(self) -> None:
        """Start slurmctld, possibly again; return when it answers."""
        self._start("slurmctld", "-D")
        self.wait_until(lambda: "UP" in self.run("scontrol", "ping", check=False), "slurmctld answers")

    def wait_until_saved(self) -> None:
        """Wait until slurmctld has saved its jobs, which it does some seconds after a change.

        Jobs that were submitted after the last time are lost if it is killed.
        """
        saved = self.folder / "state" / "job_state"
        now = time.time()
        self.run("sbatch", "--hold", "--output=/dev/null", "--wrap", "true")  # a change
        self.wait_until(lambda: saved.exists() and saved.stat().st_mtime > now, "slurmctld has saved its jobs")

    def start_node(self, name: str) -> None:
        """Start the slurmd of a node, possibly again; in a folder by which its steps are found."""
        self._node_folder(name).mkdir(exist_ok=True)
        words = ("-D", "-d", find_program("slurmstepd"), "-N", name)
        self._start("slurmd", *words, name=name, folder=self._node_folder(name))

    def kill(self, name: str) -> None:
        """Kill a server: munged, slurmctld, or the slurmd of a node. Runs on a node continue."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def kill_node(self, name: str) -> None:
        """Kill a node together with all that runs on it, as if its power had failed."""
        self.kill(name)
        _kill_all(pid for pid in self._processes_of_this_cluster() if self._is_of_node(pid, name))

    def cancel_all(self) -> None:
        """Kill all jobs, and wait until the nodes are free."""
        for user in {self.user, *self.run("squeue", "--noheader", "--format=%U", check=False).split()}:
            self.run("scancel", "--signal=KILL", "--full", "--state=running", "--quiet", "--user", user, check=False)
            self.run("scancel", "--quiet", "--user", user, check=False)
        self.wait_until(self.is_ready, "all nodes are idle")

    def is_ready(self) -> bool:
        """Whether all nodes are idle."""
        states = self.run("sinfo", "--Node", "--noheader", "--format=%N %T", check=False).split("\n")
        return {line for line in states if line} == {f"{name} idle" for name in self.nodes}

    def run(self, program: str, *arguments: str, check: bool = True) -> str:
        """Run a program of Slurm and return what it prints."""
        found = subprocess.run(
            [program, *arguments], env=self.environment, check=False, text=True, capture_output=True, timeout=60
        )
        if check and found.returncode:
            raise AssertionError(f"{program} {' '.join(arguments)}: {found.stderr}")
        return found.stdout

    def wait_until(self, condition: Callable[[], bool], what: str, seconds: float = READY_SECONDS) -> None:
        """Wait until a condition holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not within {seconds:g} s\n{self.log_of('slurmctld')}")
            time.sleep(0.05)

    def log_of(self, name: str) -> str:
        """Return the last lines that slurmctld or the slurmd of a node has written."""
        path = self.folder / (f"{name}.log" if name == "slurmctld" else f"slurmd-{name}.log")
        return "\n".join(path.read_text(errors="replace").splitlines()[-15:]) if path.exists() else ""

    def _write_files(self, gpus: int, gpu_type: str, shards: int) -> None:
        for name in ("munge", "state", "gpus"):
            (self.folder / name).mkdir(mode=0o755)
        for number in range(gpus):
            (self.folder / "gpus" / f"gpu{number}").symlink_to("/dev/null")
        files = f"{self.folder}/gpus/gpu[0-{gpus - 1}]"
        nodes = f"NodeName=n[0-{len(self.nodes) - 1}]"
        lines = [f"{nodes} Name=gpu Type={gpu_type} File={files}\n"] if gpus else []
        lines += [f"{nodes} Name=shard Count={shards}\n"] if shards else []
        (self.folder / "gres.conf").write_text("".join(lines))
        (self.folder / "cgroup.conf").write_text("CgroupAutomount=no\n")

    def _start_munge(self) -> None:
        folder = self.folder / "munge"
        key, socket_path = folder / "key", folder / "socket"
        subprocess.run([find_program("mungekey"), "--create", "--keyfile", str(key)], check=True)
        options = {
            "key-file": key,
            "log-file": folder / "log",
            "pid-file": folder / "pid",
            "seed-file": folder / "seed",
        }
        arguments = [f"--{name}={path}" for name, path in options.items()]
        self._start("munged", "--foreground", "--force", f"--socket={socket_path}", *arguments)
        self.wait_until(socket_path.exists, "munged answers")

    def _node_folder(self, name: str) -> Path:
        return self.folder / f"node-{name}"

    def _start(self, program: str, *arguments: str, name: str = "", folder: Path | None = None) -> None:
        with (self.folder / f"{name or program}.out").open("ab") as log:
            self._processes[name or program] = subprocess.Popen(
                [find_program(program), *arguments],
                env=self.environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=folder or self.folder,
            )

    def _processes_of_this_cluster(self) -> list[int]:
        """Return the steps, and the processes of jobs: all have the configuration in their environment.

        Newer versions write the title of a step over its environment: it is in the folder of its node.
        """
        mark = f"SLURM_CONF={self.conf}".encode()
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
        found = (pid for pid in pids if mark in _environment(pid) or _folder(pid).parent == self.folder)
        return [pid for pid in found if pid != os.getpid()]

    def _is_of_node(self, pid: int, node: str) -> bool:
        """Whether a process is a step of a node, or belongs to a job there."""
        mark = f"SLURMD_NODENAME={node}".encode()
        return _folder(pid) == self._node_folder(node) or mark in _environment(pid)


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _folder(pid: int) -> Path:
    """Return the working directory of a process."""
    try:
        return Path(f"/proc/{pid}/cwd").readlink()
    except OSError:
        return Path()


def _kill_all(pids: Iterable[int]) -> None:
    """Kill processes and wait until they have ended; the steps, which would report the end of the others, first."""
    found = sorted(pids, key=lambda pid: not _name(pid).startswith("slurmstepd"))
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    while any(is_running(pid) for pid in found):
        time.sleep(0.01)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


def is_running(pid: int) -> bool:
    """Whether a process exists and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def free_ports(count: int) -> list[int]:
    """Return ports that are free now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()
