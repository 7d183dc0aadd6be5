"""The tutorial on reshapable scripts, typed line by line beside a daemon."""

from __future__ import annotations

import re
from pathlib import Path

from typed_shell import Shell, daemon

PAGE = Path(__file__).parents[3] / "docs" / "tutorials" / "reshapable_script.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_a_script_becomes_reshapable_as_in_the_tutorial(tmp_path: Path) -> None:
    before, after = blocks("python")
    (tmp_path / "before.py").write_text(before)
    (tmp_path / "train.py").write_text(after)
    (tmp_path / "train.yaml").write_text(blocks("yaml")[0])
    by_hand, *scheduled = blocks("sh")
    with Shell(tmp_path) as shell:
        assert "step 60" in shell.succeed("python before.py").text
        for line in by_hand.splitlines():
            shell.run(line)
        printed = (tmp_path / "output.txt").read_text()
    assert "DP2" in printed and "DP1" in printed
    assert all(line.startswith("step ") for line in printed.splitlines())
    with daemon(tmp_path), Shell(tmp_path, columns=200) as shell:
        shown = {line: shell.succeed(line).words for block in scheduled for line in block.splitlines()}
        assert "train-1 1 slot" in shown["refold queue"] and "other-2 3 slots" in shown["refold queue"]
        assert "gave 3 slots" in shown["refold why train"] and "DP1" in shown["refold why train"]
        shell.succeed("refold cancel --now train")
