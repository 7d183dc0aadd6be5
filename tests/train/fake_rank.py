"""A rank that speaks the protocol of the agent, without PyTorch: rank 0 counts steps, and the others follow.

Arguments: a folder for everything that the test looks at, and the number of steps. In the folder: `steps` (a line
'GENERATION STEP' per step), `checkpoint` (the last saved step), and `pid-RANK-PID` for every process.
"""

import os
import sys
import time
from pathlib import Path

from refold.train.channel import connect
from refold.train.messages import Change, Entered, Finished, Left, Progress, Ready, Saved, StopTraining, ToRank

CHECKPOINT_EVERY = 5
STEP_SECONDS = 0.01

folder, steps = Path(sys.argv[1]), int(sys.argv[2])
rank = int(os.environ["RANK"])
(folder / f"pid-{rank}-{os.getpid()}").touch()
connected = connect()
assert connected is not None
channel = connected


def write(path: Path, text: str) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)


def meet(change: Change) -> None:
    """Wait until all ranks of a generation are here."""
    (folder / f"member-{change.generation}-{rank}").touch()
    while len(list(folder.glob(f"member-{change.generation}-*"))) < change.ranks:
        time.sleep(0.002)


def lead(change: Change, step: int) -> Change | None:
    """Train as rank 0 until there is a change; return it."""
    while step < steps:
        message = channel.poll()
        if isinstance(message, Change):
            Path(message.state).write_text(str(step))
            write(folder / f"state-{message.generation}", "written")
            return message
        if isinstance(message, StopTraining):
            write(folder / "checkpoint", str(step))
            channel.send(Left(rank, step))
            break
        time.sleep(STEP_SECONDS)
        step += 1
        with (folder / "steps").open("a") as file:
            file.write(f"{change.generation} {step}\n")
        channel.send(Progress(step, 0.5, 10.0))
        if step % CHECKPOINT_EVERY == 0:
            write(folder / "checkpoint", str(step))
            channel.send(Saved(step))
    else:
        channel.send(Finished(step))
    (folder / f"over-{change.generation}").touch()
    return None


def follow(change: Change) -> Change | None:
    """Wait as another rank until there is a change; return it."""
    while not (folder / f"over-{change.generation}").exists():
        message = channel.poll()
        if isinstance(message, Change):
            while not (folder / f"state-{message.generation}").exists():
                channel.poll()
                time.sleep(0.002)
            return message
        time.sleep(0.002)
    return None


if "fail" in sys.argv[3:]:
    sys.exit(3)
if os.environ.get("FAKE_JOINERS_FAIL") and (folder / "steps").exists():
    sys.exit(4)
channel.send(Ready(rank, 64))
message: ToRank | None = channel.wait()
while isinstance(message, Change):
    if rank >= message.ranks:
        channel.send(Left(rank, 0))
        sys.exit()
    meet(message)
    if rank == 0:
        saved = Path(message.state) if message.resume else folder / "checkpoint"
        first = int(saved.read_text().strip("\0")) if saved.exists() else 0
        channel.send(Entered(message.generation, message.plan, first, {"drain": 0.1}))
        message = lead(message, first)
    else:
        message = follow(message)
