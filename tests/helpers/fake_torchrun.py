"""Stands in for `torchrun` without options: forms one group by the variables that it reads, and adds up its workers."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


def world_size(environment: Mapping[str, str]) -> int:
    """Return how many workers the nodes of a group have together: an all-reduce of the number of each node."""
    nodes, rank = int(environment.get("PET_NNODES", "1")), int(environment.get("PET_NODE_RANK", "0"))
    own = int(environment.get("PET_NPROC_PER_NODE", "1"))
    if nodes == 1:
        return own
    host, _, port = environment["PET_RDZV_ENDPOINT"].rpartition(":")
    return _collect(port, nodes, own) if rank == 0 else _contribute(host, port, own)


def _collect(port: str, nodes: int, own: int) -> int:
    with socket.create_server(("", int(port))) as server:
        server.settimeout(60)
        others = [server.accept()[0] for _ in range(nodes - 1)]
    total = own + sum(int(other.recv(16)) for other in others)
    for other in others:
        other.sendall(str(total).encode())
        other.close()
    return total


def _contribute(host: str, port: str, own: int) -> int:
    while True:
        try:
            with socket.create_connection((host, int(port)), 60) as connection:
                connection.sendall(str(own).encode())
                return int(connection.recv(16))
        except ConnectionRefusedError:  # the first node has not started yet
            pass


if __name__ == "__main__":
    print(f"node {os.environ.get('PET_NODE_RANK', '0')}: world size {world_size(os.environ)}")
