"""`python -m refold.train script.py …`: run a training script on several ranks, and change their number and plan."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, sleep, time_ns

import msgspec

from refold.errors import BadInput, RefoldError, WaitTimeout
from refold.model import ChangeAnswer, ChangeRequest, Plan, Seconds, parse_plan
from refold.train.agent import Agent, request_path
from refold.train.change_file import read_answer, write_request
from refold.train.fork_server import Program
from refold.train.owned_files import folder_of, is_scheduled, running_agents
from refold.train.run_settings import read_settings

CHANGE_TIMEOUT: Seconds = 600.0
POLL_SECONDS: Seconds = 0.02

USAGE = """\
python -m refold.train [--plan PLAN | --ranks N] [-m] SCRIPT [ARGUMENT …]
       python -m refold.train change --plan PLAN [--warm] [--pid AGENT] [--json]"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit status: 2 for bad input."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if arguments[:1] == ["change"]:
            return _change(_change_parser().parse_args(arguments[1:]))
        return _train(_train_parser().parse_args(arguments))
    except RefoldError as error:
        print(f"refold.train: {error}", file=sys.stderr)
        return 2


def _train_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m refold.train",
        usage=USAGE,
        description="Run a PyTorch script on several ranks, restart them from the last checkpoint if one fails, and "
        "change their number and plan while they train.",
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--plan", help="parallel plan, such as 'dp2 tp2' (default: $REFOLD_PLAN)")
    group.add_argument("--ranks", type=int, help="number of data-parallel ranks (default: one per slot of the run)")
    parser.add_argument("-m", dest="is_module", action="store_true", help="SCRIPT is the name of a module")
    parser.add_argument("script", metavar="SCRIPT", help="script or module to run")
    parser.add_argument("arguments", metavar="ARGUMENT", nargs=argparse.REMAINDER, help="arguments of the script")
    return parser


def _change_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m refold.train change", description="Change the plan of a training job that runs on this machine."
    )
    parser.add_argument("--plan", required=True, help="parallel plan, such as 'dp2 tp2'")
    parser.add_argument("--warm", action="store_true", help="replace all processes, even those that could stay")
    parser.add_argument("--pid", type=int, help="pid of the job's agent (default: the only one of this user)")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    return parser


def _train(options: argparse.Namespace) -> int:
    if options.ranks is not None and options.ranks < 1:
        raise BadInput(f"--ranks is {options.ranks}, expected at least 1")
    plan = parse_plan(options.plan) if options.plan is not None else Plan(data=options.ranks) if options.ranks else None
    if not options.is_module and not Path(options.script).is_file():
        raise BadInput(f"there is no script {options.script!r}")
    program = Program(options.script, options.arguments, options.is_module)
    found = read_settings(os.environ, plan)
    if not found.forms_group:
        return Agent(program, found, os.environ).run()
    from refold.train.group_agent import GroupAgent  # with NumPy

    return GroupAgent(program, found, os.environ).run()


def _change(options: argparse.Namespace) -> int:
    request = ChangeRequest(time_ns(), parse_plan(options.plan), way="warm" if options.warm else "live")
    path = request_path(folder_of(_agent(options.pid)))
    write_request(path, request)
    answer = _wait_for_answer(path, request.run)
    if options.json:
        print(msgspec.json.encode(answer).decode())
    if answer.error:
        raise BadInput(f"the plan was not changed: {answer.error}")
    if not options.json:
        phases = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in answer.phases.items())
        why = f": {answer.why}" if answer.why else ""
        print(f"{answer.plan} from step {answer.step} on, {answer.way} change ({phases}){why}")
    return 0


def _agent(pid: int | None) -> int:
    agents = [agent for agent in running_agents() if not is_scheduled(agent)]
    running = ", ".join(map(str, agents)) or "none"
    if pid in agents:
        return pid
    if pid is not None and is_scheduled(pid):
        raise BadInput(f"agent {pid} runs a job of the scheduler, which chooses its plan")
    if pid is not None:
        raise BadInput(f"no agent with pid {pid} (running: {running})")
    if not agents:
        raise BadInput("no training job of this user is running; start one with python -m refold.train SCRIPT")
    if len(agents) > 1:
        raise BadInput(f"{len(agents)} agents are running; choose one with --pid: {running}")
    return agents[0]


def _wait_for_answer(path: Path, run: int) -> ChangeAnswer:
    deadline = monotonic() + CHANGE_TIMEOUT
    while monotonic() < deadline:
        if answer := read_answer(path, run):
            return answer
        if not path.parent.exists():
            return ChangeAnswer(run, error="the agent has ended")
        sleep(POLL_SECONDS)
    raise WaitTimeout(f"the agent has not answered within {CHANGE_TIMEOUT:g} s")


if __name__ == "__main__":
    sys.exit(main())
