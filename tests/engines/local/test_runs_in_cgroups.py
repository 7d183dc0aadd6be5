"""Runs in real cgroups: the back end contract, limits, kills from which nothing escapes, and restarts of the daemon."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cgroup_tests import KINDS, hierarchies, open_for, require
from other_users import ANN, needs_root, public_folder

from refold.core.events import RunFailed, RunFinished, RunStopped
from refold.core.orders import StartRun
from refold.engines.local import cgroups as cgroups_module
from refold.engines.local.backend import LocalBackend
from refold.engines.local.helper import Helper
from refold.engines.local.helper_processes import HelperProcesses
from refold.engines.local.process_host import GATE, OwnProcesses, start_in_group
from refold.engines.local.run_groups import GroupPlace, ResourceLimits, group_name
from refold.model import Allocation, Job, Share
from refold.server.backend import Backend, Report
from refold.server.output.run_files import mark_prefix, new_mark
from refold.server.unix_users import JobAccount
from refold.testing.backend_contract import SHORT_GRACE, BackendContract
from refold.testing.backend_harness import BackendHarness

pytestmark = pytest.mark.cgroups

ESCAPE = "env -i setsid sh -c 'trap \"\" TERM; echo $$ >{0}.new; mv {0}.new {0}; while :; do sleep 1; done' &"
"""A process that leaves the session of its run, clears its environment, and ignores SIGTERM."""

HOP = """\
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("hopping", "w").close()
while True:
    if os.fork():
        os._exit(0)
    os.setsid()
    time.sleep(0.001)
"""
"""A process that becomes another one in another session before it can be signalled."""

ALLOCATE = f"{sys.executable} -c 'block = bytearray({{}} * 2**20)'"


def processes_of(program: Path) -> list[str]:
    """Return the processes that run a program."""
    lines = {file.parent.name: read(file) for file in Path("/proc").glob("[0-9]*/cmdline")}
    return [pid for pid, line in lines.items() if str(program) in line]


def read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""  # the process has ended


class RunsInCgroups(BackendContract):
    kind = "all"

    @pytest.fixture(autouse=True)
    def _needs_cgroups(self) -> None:
        require(self.kind)

    def make_backend(self, report: Report, folder: Path, grace: float) -> Backend:
        host = OwnProcesses(open_for(mark_prefix(folder / "logs"), self.kind))
        return LocalBackend(report, folder / "logs", grace, host=host)

    def left(self, folder: Path) -> list[str]:
        """Return the cgroups that are left of the runs of a folder."""
        name = f"refold-{mark_prefix(folder / 'logs')[:-1]}"
        return [str(path) for found in hierarchies(self.kind) for path in found.own.glob(f"{name}/**/")]

    async def start_limited(self, harness: BackendHarness, shell: str, share: Share) -> None:
        harness.add_job(Job("job", command=("sh", "-c", f"cd '{harness.folder}'\n{shell}")))
        await harness.order(StartRun("job", 1, Allocation((share,))))

    def test_a_process_that_leaves_session_and_environment_ends_with_its_run(self, tmp_path: Path) -> None:
        async def test(harness: BackendHarness) -> None:
            await harness.start("job", f"{ESCAPE.format('pid')} while [ ! -e pid ]; do sleep 0.02; done")
            assert await harness.ending("job") == RunFinished("job", 1)
            assert not self.is_alive(int((tmp_path / "pid").read_text()))

        self.run_test(tmp_path, test, grace=SHORT_GRACE)
        assert self.left(tmp_path) == []

    def test_a_process_that_forks_and_exits_all_the_time_is_killed(self, tmp_path: Path) -> None:
        program = tmp_path / "hop.py"
        program.write_text(HOP)

        async def test(harness: BackendHarness) -> None:
            await harness.start("job", f"env -i setsid {sys.executable} {program} & exec sleep 1000")
            await harness.wait_for_file("hopping")
            await harness.stop("job")
            assert await harness.ending("job") == RunStopped("job", 1)
            assert processes_of(program) == []

        self.run_test(tmp_path, test, grace=SHORT_GRACE)
        assert self.left(tmp_path) == []

    def test_a_process_that_has_escaped_is_ended_by_the_next_daemon(self, tmp_path: Path) -> None:
        async def test(harness: BackendHarness) -> None:
            await harness.start("job", f"{ESCAPE.format('pid')} while [ ! -e pid ]; do sleep 0.02; done; sleep 1000")
            pid = int(await harness.content("pid"))
            await harness.replace_backend()
            assert self.is_alive(pid)
            await harness.order(StartRun("job", 1, Allocation((Share(0, (0,)),))))
            await harness.started("job")
            await harness.stop("job")
            assert await harness.ending("job") == RunStopped("job", 1)
            assert not self.is_alive(pid)

        self.run_test(tmp_path, test, grace=SHORT_GRACE)
        assert self.left(tmp_path) == []

    def test_a_forged_start_record_does_not_keep_a_run_from_ending(self, tmp_path: Path) -> None:
        async def test(harness: BackendHarness) -> None:
            await harness.start("job", "echo begun >begun; exec sleep 1000")
            await harness.content("begun")
            await harness.replace_backend()
            record = tmp_path / "logs" / ".records" / "job" / "run-1.start"
            record.write_text('{"mark": "../../\\udcff", "port": 0}')
            await harness.order(StartRun("job", 1, Allocation((Share(0, (0,)),))))
            await harness.started("job")
            await harness.stop("job")
            assert await harness.ending("job") == RunStopped("job", 1)
            await harness.backend.stop_all_except([])

        self.run_test(tmp_path, test, grace=SHORT_GRACE)
        assert self.left(tmp_path) == []

    def test_what_an_unknown_run_has_left_is_killed_and_removed(self, tmp_path: Path) -> None:
        async def test(harness: BackendHarness) -> None:
            await harness.start("job", f"{ESCAPE.format('pid')} while [ ! -e pid ]; do sleep 0.02; done; sleep 1000")
            pid = int(await harness.content("pid"))
            await harness.replace_backend()
            assert self.left(tmp_path) != []
            await harness.backend.stop_all_except([])
            assert not self.is_alive(pid)

        self.run_test(tmp_path, test)
        assert self.left(tmp_path) == []

    def test_a_run_that_exceeds_its_memory_is_killed_with_a_clear_reason(self, tmp_path: Path) -> None:
        require(self.kind, "memory")

        async def test(harness: BackendHarness) -> None:
            await self.start_limited(harness, ALLOCATE.format(200), Share(0, (0,), memory_mib=64))
            why = "out of memory: a process was killed at the limit of 64 MiB"
            assert await harness.ending("job") == RunFailed("job", 1, why, exit_code=137)
            assert harness.usage["job", 1].out_of_memory

        self.run_test(tmp_path, test)

    def test_a_run_within_its_memory_is_not_killed_and_its_peak_is_reported(self, tmp_path: Path) -> None:
        require(self.kind, "memory")
        copy = "dd if=/dev/zero of=copied bs=1M count=150 2>/dev/null"

        async def test(harness: BackendHarness) -> None:
            await self.start_limited(harness, f"{copy}; {ALLOCATE.format(200)}", Share(0, (0,), memory_mib=500))
            assert await harness.ending("job") == RunFinished("job", 1)
            usage = harness.usage["job", 1]
            assert usage.peak_memory_mib is not None
            assert 200 <= usage.peak_memory_mib < 330  # of 350 MiB and more, with the cache of the file
            assert not usage.out_of_memory

        self.run_test(tmp_path, test)

    def test_each_instance_has_its_own_limit(self, tmp_path: Path) -> None:
        require(self.kind, "memory")
        shell = f"if [ $REFOLD_INSTANCE = 1 ]; then {ALLOCATE.format(200)}; else sleep 1000; fi"

        async def test(harness: BackendHarness) -> None:
            harness.add_job(Job("job", command=("sh", "-c", shell)))
            shares = (Share(0, (0,), memory_mib=400), Share(0, (1,), memory_mib=64))
            await harness.order(StartRun("job", 1, Allocation(shares)))
            why = "instance 1: out of memory: a process was killed at the limit of 64 MiB"
            assert await harness.ending("job") == RunFailed("job", 1, why, exit_code=137)

        self.run_test(tmp_path, test, grace=SHORT_GRACE)

    def test_the_cpu_time_of_all_processes_is_reported(self, tmp_path: Path) -> None:
        burn = f"{sys.executable} -c 'import time; [0 for _ in iter(lambda: time.process_time() < 0.3, False)]'"

        async def test(harness: BackendHarness) -> None:
            await harness.start("job", f"{burn} & {burn} & wait")
            await harness.ending("job")
            assert (harness.usage["job", 1].cpu_seconds or 0.0) >= 0.6

        self.run_test(tmp_path, test)

    def test_what_a_run_has_used_survives_the_daemon(self, tmp_path: Path) -> None:
        async def test(harness: BackendHarness) -> None:
            await harness.start("job", "while [ ! -e go ]; do sleep 0.02; done")
            await harness.started("job")
            await harness.replace_backend()
            (tmp_path / "go").touch()
            await harness.order(StartRun("job", 1, Allocation((Share(0, (0,)),))))
            await harness.ending("job")
            first = harness.usage.pop(("job", 1))
            await harness.replace_backend()
            await harness.order(StartRun("job", 1, Allocation((Share(0, (0,)),))))
            await harness.ending("job")
            assert harness.usage["job", 1] == first

        self.run_test(tmp_path, test)

    def test_the_kernel_limits_the_cpus_of_a_run(self, tmp_path: Path) -> None:
        require(self.kind, "cpus")

        async def test(harness: BackendHarness) -> None:
            await self.start_limited(harness, "echo started >started; exec sleep 1000", Share(0, (0,), cpu_milli=1500))
            await harness.content("started")
            files = [file for folder in self.left(tmp_path) for file in Path(folder).glob("cpu.*")]
            limits = {file.name: file.read_text().strip() for file in files if file.parent.name.endswith(".0")}
            assert limits.get("cpu.max", limits.get("cpu.cfs_quota_us")) in ("150000 100000", "150000")

        self.run_test(tmp_path, test)

    def test_a_run_cannot_use_up_the_processes_of_the_machine(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cgroups_module, "_max_processes", lambda: 12)
        if not any("pids" in found.controllers or found.unified for found in hierarchies(self.kind)):
            pytest.skip("needs the controller pids")
        if self.kind == "v2" and "memory" not in open_for("0" * 16 + "-", self.kind).enforced:
            pytest.skip("needs controllers of version 2")

        async def test(harness: BackendHarness) -> None:
            await harness.start("job", "i=0; while [ $i -lt 40 ]; do sleep 1000 & i=$((i+1)); done; echo $i >started")
            await harness.ending("job")
            assert not (tmp_path / "started").exists()

        self.run_test(tmp_path, test)


class TestRunsInVersion1(RunsInCgroups):
    kind = "v1"


class TestRunsInVersion2(RunsInCgroups):
    kind = "v2"


class TestRunsInAllHierarchies(RunsInCgroups):
    kind = "all"


@pytest.mark.parametrize("kind", KINDS)
def test_a_shim_does_nothing_before_it_is_in_its_cgroup(kind: str, tmp_path: Path) -> None:
    require(kind)
    groups = open_for(mark_prefix(tmp_path), kind)
    run = group_name(new_mark(tmp_path))
    words = ["/bin/sh", "-c", "(cat /proc/self/cgroup)"]
    process = start_in_group(words, GroupPlace(run, 0), groups, stdout=subprocess.PIPE)
    output = process.communicate()[0].decode()
    name = f"/refold-{mark_prefix(tmp_path)[:-1]}/{run}.0"
    assert output.count(name) == len({path for path in groups_folders(tmp_path, kind) if path.name.endswith(".0")})
    assert groups.members(run) == []
    groups.remove(run)
    groups.close()
    assert groups_folders(tmp_path, kind) == []


@pytest.mark.parametrize("kind", KINDS)
def test_no_empty_cgroup_outlives_a_daemon_that_could_not_remove_it(kind: str, tmp_path: Path) -> None:
    """It was killed after the end of a run; its helper closes the cgroups."""
    require(kind)
    groups = open_for(mark_prefix(tmp_path), kind)
    groups.create(GroupPlace(group_name(new_mark(tmp_path)), 0))
    groups.close()
    assert groups_folders(tmp_path, kind) == []


def groups_folders(out: Path, kind: str) -> list[Path]:
    name = f"refold-{mark_prefix(out)[:-1]}"
    return [path for found in hierarchies(kind) for path in found.own.glob(f"{name}/*/")]


def test_a_shim_whose_daemon_dies_before_it_is_in_its_cgroup_does_not_begin(tmp_path: Path) -> None:
    ended = subprocess.run(["/bin/sh", "-c", f"{GATE}touch '{tmp_path}/begun'"], stdin=subprocess.DEVNULL, check=False)
    assert (ended.returncode, list(tmp_path.iterdir())) == (97, [])


@pytest.fixture
def helped() -> Iterator[tuple[Path, HelperProcesses]]:
    """A helper with cgroups, in a thread: its folder, and what the daemon has of it."""
    require("all")
    daemon = JobAccount("60010", 60010, 60010, (), "/", "/bin/sh")
    with public_folder(daemon.uid) as out:
        groups = open_for(mark_prefix(out), "all")
        ours, theirs = socket.socketpair()
        thread = threading.Thread(target=Helper(theirs, out, daemon, groups).serve)
        thread.start()
        try:
            yield out, HelperProcesses(ours, groups)
        finally:
            for run in groups.runs():
                groups.kill(run)
            ours.close()
            thread.join()


@needs_root
def test_the_helper_puts_jobs_of_users_in_cgroups_and_kills_them_there(
    helped: tuple[Path, HelperProcesses], tmp_path: Path
) -> None:
    out, host = helped
    run = group_name(new_mark(out))
    words = ["/bin/sh", "-c", "exec env -i sleep 1000"]
    with (tmp_path / "log").open("w") as log:
        place = GroupPlace(run, 0, ResourceLimits(500, 64))
        pid = host.start(str(ANN), words, {"PATH": os.defpath}, log.fileno(), place)
    assert (host.groups.members(run), host.groups.runs()) == ([pid], [run])
    host.groups.limit(GroupPlace(run, 0, ResourceLimits(1000, 128)))
    for forged in ("../..", "", "f" * 31):
        with pytest.raises(OSError, match="is not the name of a run"), (tmp_path / "log").open("w") as log:
            host.start(str(ANN), words, {}, log.fileno(), GroupPlace(forged, 0))
    host.groups.kill(run)
    while host.groups.members(run):
        time.sleep(0.01)
    assert [used.instance for used in host.groups.usage(run)] == [0]
    host.groups.remove(run)
    assert (host.groups.runs(), groups_folders(out, "all")) == ([], [])
