"""A forked rank behaves as `python script.py` does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PROBE = """
import atexit, dataclasses, json, multiprocessing, os, pickle, random, signal, sys, threading, time

@dataclasses.dataclass
class Point:
    x: int

def square(x):
    return x * x

def finish_late():
    time.sleep(0.05)
    print("late", value)

value = 7
if __name__ == "__main__":
    atexit.register(lambda: print("atexit", value))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        squares = pool.map(square, [2, 3])
    print(json.dumps({
        "argv": sys.argv, "path": sys.path, "file": __file__, "spec": getattr(__spec__, "name", None),
        "package": __package__,
        "annotations": str(Point.__annotations__), "pickled": pickle.loads(pickle.dumps(Point(1))) == Point(1),
        "main": sys.modules["__main__"].value, "cwd": os.getcwd(), "squares": squares,
        "flags": str(sys.flags), "stdin": sys.stdin.read(), "buffered": [sys.stdout.line_buffering],
        "signals": [str(signal.getsignal(n)) for n in sorted(signal.valid_signals()) if n < 32],
        "children": multiprocessing.parent_process() is None, "files": sorted(os.listdir("/proc/self/fd")),
        "variables": sorted(name for name in os.environ if not name.startswith("REFOLD")),
        "threads": threading.active_count(),
    }))
    threading.Thread(target=finish_late).start()
    sys.exit(5)
"""

RANK_VARIABLES = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


def run(folder: Path, *command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder,
        env={**os.environ, "REFOLD_PRELOAD": "", "OMP_NUM_THREADS": "1", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder, with scripts in another."""
    (tmp_path / "work").mkdir()
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "probe.py").write_text(PROBE)
    (scripts / "fails.py").write_text("def f():\n    raise ValueError('no')\nprint('unflushed')\nf()\n")
    (scripts / "wrong.py").write_text("def f(:\n")
    (scripts / "exits.py").write_text("import sys\nsys.exit('with a message')\n")
    (tmp_path / "work" / "module.py").write_text(PROBE)
    return tmp_path / "work"


@pytest.fixture
def _default_signals() -> Iterator[None]:
    """Let programs that a test starts get the default action of signals, also if the tests run under `nohup`."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGHUP, signal.SIGQUIT)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_default_signals")
@pytest.mark.parametrize("fork", ["1", "0"])
@pytest.mark.parametrize("program", [["../scripts/probe.py", "a", "--b"], ["-m", "module", "a", "-m", "x"]])
def test_a_rank_cannot_tell_that_it_was_forked(folder: Path, program: list[str], fork: str) -> None:
    plain = run(folder, *program)
    rank = run(folder, "-m", "refold.train", *program, REFOLD_FORK=fork)
    seen = json.loads(rank.stdout.splitlines()[0])
    expected = json.loads(plain.stdout.splitlines()[0])
    expected["variables"] = sorted({*expected["variables"], *RANK_VARIABLES})
    assert seen == expected
    assert rank.stdout.splitlines()[1:] == plain.stdout.splitlines()[1:] == ["late 7", "atexit 7"]
    assert (rank.returncode, plain.returncode) == (5, 5)


@pytest.mark.parametrize("script", ["fails.py", "wrong.py", "exits.py"])
def test_errors_look_the_same(folder: Path, script: str) -> None:
    plain = run(folder, f"../scripts/{script}")
    rank = run(folder, "-m", "refold.train", f"../scripts/{script}")
    assert rank.stdout == plain.stdout
    assert rank.stderr == plain.stderr + "refold.train: rank 0 has exited with status 1\n"
    assert (rank.returncode, plain.returncode) == (1, 1)


def test_a_rank_that_leaves_quickly_loses_no_output(folder: Path) -> None:
    (folder / "leaves.py").write_text(
        "import atexit, sys, threading, time\n"
        "from refold.train.fork_server import leave_quickly\n"
        "atexit.register(print, 'atexit')\n"
        "file = open('written', 'w')\n"
        "file.write('not flushed')\n"
        "threading.Thread(target=lambda: [time.sleep(0.2), print('thread')]).start()\n"
        "leave_quickly()\n"
        "print('last', end=' ')\n"
        "sys.exit(0)\n"
    )
    rank = run(folder, "-m", "refold.train", "leaves.py")
    assert (rank.returncode, rank.stdout) == (0, "last thread\natexit\n")
    assert (folder / "written").read_text() == "not flushed"


def test_ranks_have_different_random_numbers(folder: Path) -> None:
    (folder / "draw.py").write_text(
        "import random, numpy\nprint(f'{random.random()} {numpy.random.rand()}\\n', end='')"
    )
    drawn = run(folder, "-m", "refold.train", "--ranks", 3, "draw.py", REFOLD_PRELOAD="numpy.random").stdout.split()
    assert len(set(drawn)) == 6


def test_ranks_get_the_variables_of_torch_distributed(folder: Path) -> None:
    (folder / "show.py").write_text(
        "import os, sys\nsys.stdout.write(' '.join(os.environ[name] for name in "
        "('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE', 'MASTER_ADDR', 'CUDA_VISIBLE_DEVICES')) + '\\n')"
    )
    done = run(folder, "-m", "refold.train", "--plan", "tp2", "show.py", CUDA_VISIBLE_DEVICES="4,5")
    assert sorted(done.stdout.splitlines()) == ["0 0 2 2 127.0.0.1 4,5", "1 1 2 2 127.0.0.1 4,5"]
    gang = {"REFOLD_INSTANCES": "2", "REFOLD_INSTANCE": "1", "REFOLD_SLOTS": "0,1", "RANK": "1", "WORLD_SIZE": "2"}
    second = run(
        folder,
        *("-m", "refold.train", "--plan", "dp4", "show.py"),
        **gang,
        MASTER_ADDR="127.0.0.9",
        MASTER_PORT="1234",
        CUDA_VISIBLE_DEVICES="0,1",
    )
    assert sorted(second.stdout.splitlines()) == ["2 0 4 2 127.0.0.9 0,1", "3 1 4 2 127.0.0.9 0,1"]


@pytest.mark.parametrize(
    ("arguments", "variables", "error"),
    [
        (["--ranks", "0", "x.py"], {}, "--ranks is 0, expected at least 1"),
        (["x.py"], {}, "there is no script 'x.py'"),
        (["--plan", "no", "module.py"], {}, "'no' is not a plan at 'no'; write it as"),
        (["module.py"], {"REFOLD_PLAN": "{"}, "REFOLD_PLAN is '{', expected a plan as JSON:"),
        (
            ["module.py"],
            {"REFOLD_PLAN": '{"data": 3}', "REFOLD_INSTANCES": "2", "REFOLD_SLOTS": "0"},
            "plan DP3 needs 3 ranks on 2 instances, of which this one has 1 GPUs",
        ),
        (["change", "--plan", "tp2", "--pid", "1"], {}, "no agent with pid 1 (running: "),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    folder: Path, arguments: list[str], variables: dict[str, str], error: str
) -> None:
    done = run(folder, "-m", "refold.train", *arguments, **variables)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"refold.train: {error}")
    assert len(done.stderr.splitlines()) == 1


def test_the_agent_does_not_import_pytorch(folder: Path) -> None:
    done = run(
        folder, "-c", "import sys, refold.train.__main__; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    )
    assert done.stdout == "[]\n"
