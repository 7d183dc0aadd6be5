"""The process group of one generation of ranks. It is left and formed anew when ranks leave or join."""

from __future__ import annotations

import os
import socket
import stat
import sys
from collections.abc import Iterator, Set
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from refold.errors import RanksLost
from refold.train.messages import Change

TIMEOUT = timedelta(minutes=10)
AGREEMENT_TIMEOUT = timedelta(seconds=10)


class Rendezvous(NamedTuple):
    """Where the ranks of a generation meet, and which of them this is: at a file of their node, or at an address."""

    rank: int
    ranks: int
    file: Path | None = None
    address: str = ""
    port: int = 0


def from_environment() -> Rendezvous:
    """Return the rendezvous that torchrun, or a gang of Refold, has set; a single rank without one."""
    variables = os.environ
    if "RANK" not in variables or "MASTER_PORT" not in variables:
        return Rendezvous(0, 1)
    address, port = variables.get("MASTER_ADDR", "127.0.0.1"), int(variables["MASTER_PORT"])
    return Rendezvous(int(variables["RANK"]), int(variables["WORLD_SIZE"]), None, address, port)


def own_rank() -> int:
    """Return the number of this rank, whether or not it is in a group."""
    return int(os.environ.get("RANK", "0"))


def group_rank() -> int:
    """Return the number of this rank in its process group, or what its launcher has set if there is none."""
    return dist.get_rank() if dist.is_initialized() else own_rank()


def choose_device() -> torch.device:
    """Return the device of this rank: the GPU of its local rank, or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def join(rendezvous: Rendezvous, device: torch.device) -> None:
    """Form the process group of a generation; wait for all of its ranks."""
    rank, ranks, file, address, port = rendezvous
    if file is not None:  # ranks that come first wait for the others without retrying connections
        store: dist.Store = dist.FileStore(str(file), ranks)
    elif ranks == 1:
        store = dist.HashStore()
    else:
        store = dist.TCPStore(address, port, ranks, is_master=rank == 0, timeout=TIMEOUT)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=TIMEOUT)


def all_ranks_are_at(place: str) -> bool:
    """Return whether all ranks call this with the same words, within some seconds; not collective."""
    store = dist.distributed_c10d._get_default_store()
    store.set(f"{place}, rank {dist.get_rank()}", "")
    try:
        store.wait([f"{place}, rank {rank}" for rank in range(dist.get_world_size())], AGREEMENT_TIMEOUT)
    except dist.DistStoreError:
        return False
    return True


def connections() -> set[int]:
    """Return the numbers of the TCP connections of this process, which the system gives them."""
    return {number for number, _ in _connections()}


def cut(numbers: Set[int]) -> None:
    """Shut down connections, so that threads that wait on them get an error: gloo has no other way to abort."""
    for number, connection in _connections():
        if number in numbers:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def _connections() -> Iterator[tuple[int, socket.socket]]:
    for path in Path("/proc/self/fd").iterdir() if sys.platform == "linux" else ():
        with suppress(OSError):
            status = os.fstat(int(path.name))
            if stat.S_ISSOCK(status.st_mode):
                with socket.socket(fileno=os.dup(int(path.name))) as connection:
                    if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.getpeername():
                        yield status.st_ino, connection


def is_of_lost_rank(error: Exception) -> bool:
    """Whether an error may be the consequence of the loss of another rank."""
    return isinstance(error, (dist.DistError, RanksLost)) or "gloo" in str(error)


def leave() -> None:
    """Leave the process group."""
    if dist.is_initialized():
        dist.destroy_process_group()


def rendezvous_of(change: Change, rank: int, ranks: int) -> Rendezvous:
    """Return where the ranks of a change meet: at an address if they are on several hosts, else at a file."""
    if change.address:
        return Rendezvous(rank, ranks, None, change.address, change.port)
    return Rendezvous(rank, ranks, group_file(change))


def group_file(change: Change) -> Path:
    """Return the file at which the ranks of a change meet, if they are on one host."""
    return Path(f"{change.state}.group-{change.generation}")


def remove_group_files(change: Change, except_for: Path | None) -> None:
    """Remove the files at which the ranks of earlier process groups met."""
    state = Path(change.state)
    for file in state.parent.glob(f"{state.name}.group-*"):
        if file != except_for:
            file.unlink(missing_ok=True)


def shared_memory() -> str | None:
    """Return the folder of shared memory; None: only that of temporary files can be used."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
