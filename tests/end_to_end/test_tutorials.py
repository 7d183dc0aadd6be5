"""The tutorial with a daemon, typed line by line. The others are run with all examples in tests/docs."""

from __future__ import annotations

import re
from pathlib import Path

from typed_shell import Shell, daemon

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "workstation.md"


def test_a_workstation_is_shared_as_in_the_tutorial(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"(<!-- not run: [^\n]*\n)?^```sh\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    lines = [line for mark, block in blocks if not mark for line in block.splitlines()]
    printed: dict[str, str] = {}
    with daemon(tmp_path), Shell(tmp_path) as shell:
        for line in lines:
            if line == "refold history":  # when the jobs before it have ended
                shell.run("refold logs -f broken; refold logs -f slow")
            printed[line] = shell.succeed(line).words
    assert f"hello from {tmp_path}" in printed["refold logs -f first"]
    assert re.search(r"next-\d+ .* waiting", printed["refold queue --start"])
    assert "Resources" in printed["refold why next"]
    assert "4 slots" in printed[next(line for line in lines if "whatif" in line)]
    assert "timed out" in printed["refold history"] and "exit 3" in printed["refold history"]
