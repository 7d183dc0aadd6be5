"""A training job of the benchmark: starts it, changes its plan in one of four ways, and reads what it has written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Literal, NamedTuple

import msgspec

from refold.model import ChangeRequest, Plan, Seconds, parse_plan
from refold.train.change_file import read_answer, write_request

Way = Literal["live", "warm", "cold", "torchrun"]

SCRIPT = Path(__file__).with_name("training.py")
TIMEOUT: Seconds = 300.0


class Step(NamedTuple):
    """A step of the training as the script has reported it."""

    number: int
    loss: float
    began: Seconds
    ended: Seconds
    plan: str


class TrainingJob:
    """A training in a folder. `torchrun`: it is started by torchrun instead of an agent, and can only be relaunched."""

    def __init__(self, folder: Path, *options: object, torchrun: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._options = [str(option) for option in options]
        self._torchrun = torchrun
        self._process: subprocess.Popen[bytes] | None = None
        self._changes = 0

    def start(self, plan: Plan) -> None:
        """Start the training under a plan, from its last checkpoint if there is one."""
        self._change_file.unlink(missing_ok=True)
        launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={plan.gpus}"]
        command = launcher if self._torchrun else ["refold.train"]
        variables = {
            "REFOLD_PLAN": msgspec.json.encode(plan).decode(),
            "REFOLD_STOP_SIGNAL": "TERM",
            "OMP_NUM_THREADS": "1",
            **({} if self._torchrun else {"REFOLD_CHANGE": str(self._change_file)}),
        }
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *command, str(SCRIPT), str(self._folder), *self._options],
                env={**os.environ, **variables},
                stdout=log,
                stderr=log,
            )

    def change(self, plan: Plan, way: Way) -> dict[str, Seconds]:
        """Change the plan; return seconds by phase, as the job reports them."""
        if way in ("cold", "torchrun"):
            self.stop()
            self.start(plan)
            return {}
        self._changes += 1
        request = ChangeRequest(self._changes, plan, way="warm" if way == "warm" else "live")
        write_request(self._change_file, request)
        answer = self._wait(lambda: read_answer(self._change_file, self._changes))
        if answer.error:
            raise RuntimeError(f"the plan was not changed: {answer.error}")
        phases: dict[str, Seconds] = answer.phases
        return phases

    def stop(self) -> None:
        """Stop the training; it saves a checkpoint first."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(TIMEOUT)

    def finish(self) -> None:
        """Wait for the end of the training."""
        assert self._process is not None
        status = self._process.wait(TIMEOUT * 10)
        if status:
            raise RuntimeError(f"the training has failed with status {status}:\n{self._log()[-3000:]}")

    def kill(self) -> None:
        """End the training, if it is running."""
        if self._process is not None and self._process.poll() is None:
            self.stop()

    def steps(self) -> list[Step]:
        """Return the steps that have been reported, in order of time."""
        path = self._folder / "steps"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        fields = [line.split(maxsplit=4) for line in lines if line.endswith("\n")]
        return [
            Step(int(number), float(loss), float(began), float(ended), plan.strip())
            for number, loss, began, ended, plan in fields
        ]

    def wait_for_step(self, number: int) -> None:
        """Wait until a step is done."""
        self._wait(lambda: any(step.number >= number for step in self.steps()[-1:]))

    def wait_for_plan(self, plan: Plan, steps: int) -> None:
        """Wait until so many steps in a row were done with a plan."""
        self._wait(lambda: [step.plan for step in self.steps()[-steps:]] == [str(plan)] * steps)

    @property
    def _change_file(self) -> Path:
        return self._folder / "change"

    def _wait(self, condition: Callable[[], Any]) -> Any:
        deadline = monotonic() + TIMEOUT
        while not (value := condition()):
            if self._process is not None and self._process.poll() not in (None, 0):
                raise RuntimeError(f"the training has failed:\n{self._log()[-3000:]}")
            if monotonic() > deadline:
                raise RuntimeError(f"waited for {TIMEOUT:g} s in vain:\n{self._log()[-3000:]}")
            sleep(0.01)
        return value

    def _log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")


def plans(*texts: str) -> list[Plan]:
    """Return plans by their texts."""
    return [parse_plan(text) for text in texts]
