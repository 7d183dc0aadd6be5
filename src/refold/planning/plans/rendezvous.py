"""How the instances of a gang find each other: the variables that launchers and frameworks read."""

from __future__ import annotations

from collections.abc import Sequence

from refold.errors import BadInput
from refold.planning.plans.launch_targets import Workers

_DEEPSPEED_OPTIONS = ("--hostfile", "-H", "--launcher", "--no_ssh")
"""Options by which its user tells DeepSpeed's launcher where the other nodes are."""

_TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.launch")


def gang_variables(workers: Workers) -> dict[str, str]:
    """Return the variables of torch.distributed, torchrun and JAX for an instance, which is one process or a launcher.

    torchrun takes the default of each option from PET_OPTION, and so does `accelerate launch`, which passes a port of
    its own: hence the endpoint, which has precedence. Without an option, torchrun uses the static rendezvous, in which
    the rank of each node is that of its instance; as no other run has the port, it needs no id.
    """
    count, rank, address, port = str(workers.nodes), workers.rank, workers.address, workers.port
    endpoint = f"{address}:{port}"
    return {
        "RANK": rank,
        "WORLD_SIZE": count,
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": rank,
        "NODE_RANK": rank,
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "PET_NNODES": count,
        "PET_NPROC_PER_NODE": str(workers.per_node),
        "PET_NODE_RANK": rank,
        "PET_MASTER_ADDR": address,
        "PET_MASTER_PORT": port,
        "PET_RDZV_ENDPOINT": endpoint,
        "JAX_COORDINATOR_ADDRESS": endpoint,
        "JAX_NUM_PROCESSES": count,
        "JAX_PROCESS_ID": rank,
    }


GANG_VARIABLES = frozenset(gang_variables(Workers(1)))


def check_gang_command(job: str, command: Sequence[str], instances: int) -> None:
    """Raise BadInput if the instances of a gang would not find each other.

    DeepSpeed's launcher reads no variables: without a hosts file each instance would train a copy of its own. torchrun
    takes the number of nodes from them even with `--standalone`, and would wait for the others on its own machine.
    """
    if instances <= 1 or not command:
        return
    program, options = command[0].rpartition("/")[2], {word.partition("=")[0] for word in command}
    if program == "deepspeed" and options.isdisjoint(_DEEPSPEED_OPTIONS):
        raise BadInput(
            f"{job} has {instances} instances, and `deepspeed` would start a separate training on each: it does "
            f"not know the others. Start the script by torchrun instead, which does: torchrun {_script(command)}; "
            "or name the nodes by --hostfile and --no_ssh"
        )
    is_torchrun = program == "torchrun" or not options.isdisjoint(_TORCHRUN_MODULES)
    if is_torchrun and "--standalone" in options and "--nnodes" not in options:
        raise BadInput(
            f"{job} has {instances} instances, and with --standalone each would wait for the others on its own machine."
            " Leave it out: torchrun finds the others; or add --nnodes=1 to train on each instance alone"
        )


def _script(command: Sequence[str]) -> str:
    """Return the script of a launcher's command: the first word that ends as one."""
    return next((word for word in command[1:] if word.endswith(".py")), "train.py")
