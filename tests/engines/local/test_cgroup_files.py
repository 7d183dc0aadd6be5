"""What is written to and read from the files of cgroups: version 2 in a folder of plain files."""

from __future__ import annotations

from pathlib import Path

import pytest

from refold.engines.local.cgroup_mounts import Hierarchy
from refold.engines.local.cgroups import Cgroups, Tree, open_cgroups
from refold.engines.local.run_groups import (
    GroupPlace,
    InstanceUsage,
    NoGroups,
    ResourceLimits,
    describe_limits,
    group_name,
)
from refold.errors import BadInput

PREFIX = "0123456789abcdef-"
RUN = "0" * 32
ALL = frozenset(["cpu", "memory", "pids"])


def cgroups(folder: Path, controllers: frozenset[str] = ALL, *, unified: bool = True) -> Cgroups:
    return Cgroups([Tree(unified, controllers, [folder])])


def contents(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir() if file.name != "pids.max"}


def test_the_limits_of_version_2(tmp_path: Path) -> None:
    cgroups(tmp_path).create(GroupPlace(RUN, 1, ResourceLimits(2500, 512)))
    assert contents(tmp_path / f"{RUN}.1") == {
        "cpu.max": "250000 100000",
        "memory.max": str(512 * 2**20),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
    }


def test_the_limits_of_version_1(tmp_path: Path) -> None:
    cgroups(tmp_path, unified=False).create(GroupPlace(RUN, 0, ResourceLimits(1, 1)))
    assert contents(tmp_path / f"{RUN}.0") == {
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_quota_us": "1000",  # the kernel accepts no less
        "memory.limit_in_bytes": "1048576",
        "memory.memsw.limit_in_bytes": "1048576",
    }


def test_a_folder_that_was_removed_while_it_was_empty_is_created_again(tmp_path: Path) -> None:
    groups = cgroups(tmp_path / "refold-0")
    groups.create(GroupPlace(RUN, 0))
    assert groups.runs() == [RUN]
    assert (tmp_path / "refold-0" / "cgroup.subtree_control").read_text() == "+pids"  # the last of three writes


def test_what_is_not_requested_is_not_limited(tmp_path: Path) -> None:
    cgroups(tmp_path).create(GroupPlace(RUN, 0))
    assert contents(tmp_path / f"{RUN}.0") == {}


def test_an_instance_has_at_most_half_of_the_processes_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refold.engines.local.cgroups.KERNEL", tmp_path)
    (tmp_path / "pid_max").write_text("32768\n")
    (tmp_path / "threads-max").write_text("2000\n")
    cgroups(tmp_path).create(GroupPlace(RUN, 0))
    assert (tmp_path / f"{RUN}.0" / "pids.max").read_text() == "1000"


USAGE = {
    "cpu.stat": "usage_usec 2500000\nuser_usec 2000000\n",
    "memory.peak": str(300 * 2**20 + 1),
    "memory.stat": f"anon 7\nactive_file {60 * 2**20}\ninactive_file {40 * 2**20}\n",
    "memory.events": "low 0\nhigh 0\nmax 12\noom 1\noom_kill 1\noom_group_kill 1\n",
}


def write_usage(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)


def test_the_usage_of_version_2_without_the_cache_of_files(tmp_path: Path) -> None:
    write_usage(tmp_path / f"{RUN}.0", USAGE)
    write_usage(tmp_path / f"{RUN}.1", {})
    write_usage(tmp_path / f"{'f' * 32}.0", USAGE)
    assert cgroups(tmp_path).usage(RUN) == [InstanceUsage(0, 2.5, 201, 1), InstanceUsage(1)]


@pytest.mark.parametrize("text", ["", "garbage", "-1", "max\n", "usage_usec\noom_kill\n", "usage_usec x\noom_kill x\n"])
def test_what_cannot_be_read_is_not_measured(text: str, tmp_path: Path) -> None:
    write_usage(tmp_path / f"{RUN}.0", dict.fromkeys(USAGE, text))
    assert cgroups(tmp_path).usage(RUN) == [InstanceUsage(0)]


@pytest.mark.parametrize("run", ["", "..", f"../{RUN}", f"{RUN}/x", f"{RUN}\n", RUN[1:], RUN.replace("0", "A"), "*"])
def test_no_other_cgroup_can_be_named(run: str, tmp_path: Path) -> None:
    groups = cgroups(tmp_path / "runs")
    (tmp_path / "runs" / f"{RUN}.0").mkdir(parents=True)
    for place in (GroupPlace(run, 0), GroupPlace(RUN, -1)):
        with pytest.raises(BadInput, match="is not the name of a run and an instance"):
            groups.create(place)
        with pytest.raises(BadInput):
            groups.join(place, 1)
    groups.kill(run)
    groups.remove(run)
    assert (groups.members(run), groups.usage(run), groups.runs()) == ([], [], [RUN])


def test_marks_cannot_be_read_from_the_names_of_cgroups() -> None:
    mark = f"{PREFIX}{RUN}"
    assert len(group_name(mark)) == 32
    assert RUN not in group_name(mark)
    assert group_name(mark) != group_name(mark + "1")


def test_runs_are_listed(tmp_path: Path) -> None:
    for name in (f"{RUN}.0", f"{RUN}.1", "probe", f"{RUN}.x", "daemon"):
        (tmp_path / name).mkdir()
    assert cgroups(tmp_path).runs() == [RUN]
    assert cgroups(tmp_path / "nothing").runs() == []


def test_cgroups_of_a_daemon_that_was_started_elsewhere_are_found(tmp_path: Path) -> None:
    earlier = tmp_path / "user.slice" / "a.scope" / f"refold-{PREFIX[:-1]}"
    (earlier / f"{RUN}.0").mkdir(parents=True)
    (tmp_path / "b.scope").mkdir()
    found = open_cgroups(PREFIX, [Hierarchy(tmp_path, tmp_path / "b.scope", frozenset(["memory"]))])
    assert found is not None
    assert found.runs() == [RUN]
    found.create(GroupPlace("1" * 32, 0))
    assert (tmp_path / "b.scope" / f"refold-{PREFIX[:-1]}" / f"{'1' * 32}.0").is_dir()


def test_runs_can_be_in_another_cgroup_than_the_daemon(tmp_path: Path) -> None:
    found = open_cgroups(PREFIX, [Hierarchy(tmp_path, tmp_path, frozenset(["memory"]))], "/lab/refold")
    assert found is not None
    found.create(GroupPlace(RUN, 0))
    assert (tmp_path / "lab" / "refold" / f"refold-{PREFIX[:-1]}" / f"{RUN}.0").is_dir()


def test_hierarchies_in_which_nothing_can_be_created_are_not_used(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert open_cgroups(PREFIX, []) is None
    assert open_cgroups(PREFIX, [Hierarchy(gone, gone, frozenset(["memory"]))]) is None
    assert open_cgroups(PREFIX, [Hierarchy(tmp_path, tmp_path, frozenset(["name=systemd"]))]) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("controllers", "text"),
    [(ALL, "enforced"), (["memory"], "memory enforced"), (["cpu", "pids"], "CPUs enforced"), (["pids"], "counted")],
)
def test_which_requests_are_enforced(controllers: frozenset[str], text: str, tmp_path: Path) -> None:
    assert describe_limits(cgroups(tmp_path, frozenset(controllers))) == text
    assert describe_limits(NoGroups()) == "counted"
