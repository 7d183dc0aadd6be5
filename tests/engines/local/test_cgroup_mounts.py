"""Where cgroups are mounted, and where a process is in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from refold.engines.local.cgroup_mounts import Hierarchy, parse_hierarchies

UNIFIED = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
HYBRID = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""


def test_version_2_has_one_hierarchy() -> None:
    own = Path("/sys/fs/cgroup/system.slice/refold.service/daemon")
    assert parse_hierarchies(UNIFIED, "0::/system.slice/refold.service/daemon\n") == [
        Hierarchy(Path("/sys/fs/cgroup"), own, frozenset(), unified=True)
    ]


def test_version_1_has_several_and_both_versions_may_be_mounted() -> None:
    own = "5:memory:/user.slice\n4:cpu,cpuacct:/\n1:name=systemd:/init.scope\n0::/init.scope\n"
    root = Path("/sys/fs/cgroup")
    assert parse_hierarchies(HYBRID, own) == [
        Hierarchy(root / "cpu,cpuacct", root / "cpu,cpuacct", frozenset(["cpu", "cpuacct"])),
        Hierarchy(root / "memory", root / "memory/user.slice", frozenset(["memory"])),
        Hierarchy(root / "systemd", root / "systemd/init.scope", frozenset(["name=systemd"])),
        Hierarchy(root / "unified", root / "unified/init.scope", unified=True),
    ]


def test_a_mount_may_show_only_a_part_of_its_hierarchy() -> None:
    mounts = r"30 23 0:26 /docker/0b7f /cgroup\040of\040this rw - cgroup2 cgroup rw"
    assert parse_hierarchies(mounts, "0::/docker/0b7f/app\n") == [
        Hierarchy(Path("/cgroup of this"), Path("/cgroup of this/app"), unified=True)
    ]
    assert parse_hierarchies(mounts, "0::/docker/other\n") == []


def test_the_first_of_several_mounts_counts() -> None:
    mounts = UNIFIED + UNIFIED.replace("/sys/fs/cgroup", "/elsewhere")
    assert [found.mount for found in parse_hierarchies(mounts, "0::/\n")] == [Path("/sys/fs/cgroup")]


@pytest.mark.parametrize("own", ["", "garbage", "0::", "0::/../../x\n", "7:memory\n", "a:b:c:d\n", "::/\n"])
def test_a_process_that_is_not_shown_has_no_cgroup(own: str) -> None:
    assert parse_hierarchies(UNIFIED, own) == []


@pytest.mark.parametrize("mounts", ["", "\n\n", " - ", "a - cgroup2", "1 2 3 4 5 - ext4 /dev/sda r", "x - cgroup2 a b"])
def test_other_mounts_are_skipped(mounts: str) -> None:
    assert parse_hierarchies(mounts, "0::/\n") == []
