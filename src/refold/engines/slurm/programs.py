"""Run Slurm's programs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping

from refold.errors import RefoldError

TIMEOUT_SECONDS = 120.0
"""A busy controller may take this long to answer."""

ENVIRONMENT = {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0", "LC_ALL": "C.UTF-8"}
"""Times as seconds since 1970, and complete lists of array tasks."""


NEEDED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "SLURM_CONF")

NO_ANSWER = (
    "contact slurm controller",
    "timed out",
    "connection refused",
    "connection failure",
    "connection reset",
    "zero bytes",
    "authentication",
    "munge",
    "temporarily",
    "did not answer",
    "socket",
    "cannot be run",
)
"""Parts of messages of programs that got no answer. What they should do has been done or not, and may be repeated."""


class SlurmError(RefoldError):
    """A program of Slurm failed."""

    @property
    def is_transient(self) -> bool:
        """Whether the controller has not answered; otherwise it has refused."""
        message = str(self).lower()
        return any(part in message for part in NO_ANSWER)


class Programs:
    """Slurm's programs, as found in PATH. `environment`: such as SLURM_CONF; the default is that of this process."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        inherited = os.environ if environment is None else environment
        # What a user has set for `squeue` would change the output that is read here.
        settings = ("SQUEUE_", "SACCT_", "SINFO_", "SCONTROL_", "SBATCH_", "SLURM_CLUSTERS", "SLURM_TOPO_LEN")
        kept = {name: value for name, value in inherited.items() if not name.startswith(settings)}
        self.environment = {**kept, **ENVIRONMENT}

    def without_user_environment(self) -> Programs:
        """Return the programs with what they need themselves. Jobs that they submit inherit no more than that."""
        kept = {name: self.environment[name] for name in NEEDED if name in self.environment}
        return Programs(kept)

    def run(self, program: str, *arguments: str, stdin: str = "") -> str:
        """Run a program and return its output. Raises SlurmError with its message."""
        try:
            done = subprocess.run(
                [program, *arguments],
                env=self.environment,
                input=stdin,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TIMEOUT_SECONDS,
                check=False,
            )
        except FileNotFoundError:
            raise SlurmError(f"{program} was not found: run this where Slurm's commands are installed") from None
        except subprocess.TimeoutExpired:
            raise SlurmError(f"{program} did not answer within {TIMEOUT_SECONDS:g} s") from None
        except OSError as error:
            raise SlurmError(f"{program} cannot be run: {error.strerror}") from None
        if done.returncode:
            raise SlurmError(program_message(program, done.stderr, done.returncode))
        return done.stdout


Run = Callable[..., str]
"""`Programs.run`, or what answers in its place."""


def program_message(program: str, stderr: str, status: int) -> str:
    """Return the fatal error that a program has printed, or else the first."""
    lines = [line.strip().removeprefix(f"{program}: ") for line in stderr.splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith("fatal: ")]
    found = [*fatal, *lines, f"exit status {status}"][0]
    return f"{program}: {found.removeprefix('fatal: ').removeprefix('error: ')}"
