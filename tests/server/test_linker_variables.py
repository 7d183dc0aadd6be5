"""Variables of the dynamic linker are a matter of the job alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_daemon import RealDaemon


@pytest.mark.parametrize("name", ["LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "GLIBC_TUNABLES"])
def test_variables_of_the_dynamic_linker_reach_the_command_and_not_the_shim(tmp_path: Path, name: str) -> None:
    script = f"""printf '%s\\n' "${name}"; tr '\\0' '\\n' </proc/$PPID/environ | grep -c '^{name}='"""
    with RealDaemon(tmp_path / "state") as daemon, daemon.client() as client:
        job = client.submit(name="job", command=["/bin/sh", "-c", script], environment={name: "a b=c:'\"$HOME"}).id
        client.wait(job, timeout=30)
        lines = "".join(client.logs(job)).splitlines()
        assert [line for line in lines if "ld.so" not in line] == ["a b=c:'\"$HOME", "0"]
