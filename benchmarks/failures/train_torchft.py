"""The same small GPT on hosts that fail, trained by torchft: every host is a replica group of one rank.

Arguments: the folder of the host, its address, that of the lighthouse, and milliseconds to load a sample. The global
batch stays the same: it is divided among the replicas that take part in a step. The first of them appends 'TIME STEP
LOSS' to `steps` in the folder.
"""

from __future__ import annotations

import socket
import sys
import time
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "train"))

import torch
import torch.distributed as dist
from gpt import GPT, VOCABULARY, loss  # type: ignore[import-not-found]
from options import SIZES  # type: ignore[import-not-found]
from synthetic_data import MarkovText, SlowData  # type: ignore[import-not-found]
from torch.nn.utils import parameters_to_vector
from torch.utils.data import default_collate
from torchft import Manager, Optimizer, ProcessGroupGloo  # type: ignore[import-not-found]

BATCH = 12
TIMEOUT = timedelta(seconds=5)

folder, address, lighthouse, milliseconds = Path(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4])
torch.manual_seed(0)
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
size = SIZES["tiny"]
model = GPT(size, VOCABULARY)
adam = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = SlowData(MarkovText(VOCABULARY, size.length), milliseconds)


def load_state(state: dict[str, dict[str, object]]) -> None:
    """Load what another replica has sent."""
    model.load_state_dict(state["model"])
    adam.load_state_dict(state["adam"])


def average_gradients() -> None:
    """Average the gradients over the replicas. After an error, torchft's DistributedDataParallel 0.2.0 would fail."""
    flat = parameters_to_vector(parameter.grad for parameter in model.parameters() if parameter.grad is not None)
    manager.allreduce(flat).wait()
    at = 0
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.copy_(flat[at : at + parameter.numel()].view_as(parameter))
            at += parameter.numel()


socket.gethostname = lambda: address  # where torchft serves the state; network namespaces have no name of their own
store = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False)
manager = Manager(
    pg=ProcessGroupGloo(timeout=TIMEOUT),
    load_state_dict=load_state,
    state_dict=lambda: {"model": model.state_dict(), "adam": adam.state_dict()},
    min_replica_size=1,
    timeout=TIMEOUT,
    rank=0,
    world_size=1,
    store_addr=address,
    store_port=store.port,
    lighthouse_addr=f"http://{lighthouse}",
    replica_id=folder.name,
    hostname=address,
)
optimizer = Optimizer(manager, adam)
with (folder / "steps").open("a", buffering=1) as file:
    while True:
        optimizer.zero_grad()  # begins a quorum
        replicas, own, step = manager.num_participants(), manager.participating_rank(), manager.current_step()
        part = BATCH // replicas
        first = step * BATCH + (own or 0) * part
        batch = default_collate([data[index % len(data)] for index in range(first, first + part)])
        value = loss(model(batch["input_ids"]), batch)
        value.backward()
        average_gradients()
        optimizer.step()
        if own == 0 and manager.current_step() > step:
            file.write(f"{time.time():.3f} {manager.current_step()} {value.item():.15g}\n")
