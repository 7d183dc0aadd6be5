"""A fake agent: a program without PyTorch that speaks the file protocol of live changes.

Arguments: a folder, and how it answers requests: 'changes', 'refuses', 'crashes', 'ignores', or 'slow' (after a while).
It appends to `agents` of the folder when it begins, and to `plans` the run and its data-parallel size for each change.
Of several instances, only the first answers. It ends by itself after two minutes, so that a test that fails leaves
nothing behind.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

folder, manner = Path(sys.argv[1]), sys.argv[2]
change = Path(os.environ["REFOLD_CHANGE"])
progress = Path(os.environ["REFOLD_PROGRESS"])
answered = 0
step = 0
stopped: list[bool] = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))


def append(name: str, text: str) -> None:
    with (folder / name).open("a") as file:
        file.write(text + "\n")


def replace(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text)
    temporary.replace(path)


def read_request() -> dict[str, Any] | None:
    try:
        request = json.loads(change.read_bytes())
    except (OSError, ValueError):
        return None
    return request if request["run"] > answered else None


def answer(request: dict[str, Any]) -> None:
    if manner == "crashes":
        os._exit(9)
    if manner == "slow":
        time.sleep(0.2)
    if manner == "refuses":
        replace(Path(f"{change}.done"), json.dumps({"run": request["run"], "error": "does not fit"}))
        return
    devices = request.get("devices") or [instance["devices"] for instance in request.get("instances", ())] or None
    append("plans", f"{request['run']} {request['plan'].get('data', 1)} {devices}")
    print(f"run {request['run']}", flush=True)
    phases = {"drain": 0.1, "load": 0.2}
    done = {"run": request["run"], "plan": request["plan"], "step": step, "phases": phases, "way": "warm"}
    replace(Path(f"{change}.done"), json.dumps(done))


print(f"run {os.environ['REFOLD_RUN']}", flush=True)
append("agents", f"{os.environ['REFOLD_RUN']} {os.getpid()}")
replace(Path(f"{change}.agent"), "")
deadline = time.monotonic() + 120
while not stopped and not (folder / "finish").exists() and time.monotonic() < deadline:
    step += 1
    replace(progress, f"{step}\n")
    request = read_request()
    if request is not None and manner != "ignores" and os.environ["REFOLD_INSTANCE"] == "0":
        answered = request["run"]
        answer(request)
    time.sleep(0.01)
append("ends", "stopped" if stopped else "finished")
