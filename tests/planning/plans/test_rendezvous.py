"""Gangs whose instances find each other."""

from __future__ import annotations

import pytest

from refold.errors import BadInput
from refold.planning.plans import check_gang_command


def test_a_gang_of_deepspeeds_launcher_is_rejected_with_what_would_work() -> None:
    command = ["/usr/bin/deepspeed", "--num_gpus", "8", "train.py", "--deepspeed", "zero.json"]
    with pytest.raises(BadInput, match=r"train has 2 instances.*torchrun train\.py"):
        check_gang_command("train", command, 2)


@pytest.mark.parametrize(
    "command",
    [
        ["deepspeed", "--hostfile=hosts", "--no_ssh", "train.py"],
        ["deepspeed", "--launcher", "slurm", "train.py"],
        ["torchrun", "train.py", "--deepspeed", "zero.json"],
        ["bash", "-c", "deepspeed train.py"],
        ["torchrun", "--standalone", "--nnodes=1", "train.py"],
        ["python", "train.py", "--standalone"],
        [],
    ],
)
def test_other_gangs_are_not_rejected(command: list[str]) -> None:
    check_gang_command("train", command, 2)


def test_deepspeeds_launcher_serves_a_single_instance() -> None:
    check_gang_command("train", ["deepspeed", "train.py"], 1)


@pytest.mark.parametrize("launcher", [["/opt/bin/torchrun"], ["python", "-m", "torch.distributed.run"]])
def test_a_gang_whose_instances_would_wait_for_each_other_is_rejected(launcher: list[str]) -> None:
    command = [*launcher, "--standalone", "train.py"]
    with pytest.raises(BadInput, match=r"train has 2 instances, and with --standalone each would wait .* --nnodes=1"):
        check_gang_command("train", command, 2)
    check_gang_command("train", command, 1)
