"""A shell on a terminal, driven as a user would: type a command, read the screen, look at the exit status."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from kept_pictures import keep_terminal
from terminal import Terminal

PROMPT = re.compile(r"<<(\d+)>> ")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][AB0]|\x1b[=>]|\r")

TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True)
class Result:
    """What a command printed, without colours, and its exit status."""

    text: str
    status: int

    @property
    def lines(self) -> list[str]:
        """The lines that are not empty."""
        return [line.rstrip() for line in self.text.splitlines() if line.strip()]

    @property
    def words(self) -> str:
        """The text without line breaks and repeated spaces, for sentences that a narrow terminal wraps."""
        return " ".join(self.text.split())


class Shell(Terminal):
    """A shell with its own home folder. Use it in a `with` statement."""

    def __init__(self, home: Path, columns: int = 100, path: str | None = None) -> None:
        """`path`: the folders of commands; None: with those of this Python, as after `source …/activate`."""
        environment = {
            "HOME": str(home),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}" if path is None else path,
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
        }
        start = f"cd {shlex.quote(str(home))}; stty -echo; PS1='<<$?>> ' exec bash --norc --noprofile --noediting"
        super().__init__(["/bin/bash", "-c", start], environment, rows=60, columns=columns)
        self._columns, self._typed = columns, list[tuple[int, str]]()
        """Where in the output commands were typed."""
        self._read_until_prompt()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the shell; keep a picture of what it has shown."""
        super().__exit__(kind, error, trace)
        keep_terminal(PROMPT.sub("$ ", "".join(self._shown())), self._columns)

    def _shown(self) -> Iterator[str]:
        """Yield the output, with the commands in it: the terminal does not echo them."""
        begin = 0
        for end, command in self._typed:
            yield f"{self.output[begin:end]}{command}"
            begin = end
        yield self.output[begin:]

    def type(self, text: str) -> None:
        """Type text."""
        self._typed.append((len(self.output), text))
        super().type(text)

    def run(self, command: str) -> Result:
        """Run a command to its end."""
        self.type(f"{command}\n")
        return self._read_until_prompt()

    def succeed(self, command: str) -> Result:
        """Run a command whose exit status must be 0."""
        result = self.run(command)
        assert result.status == 0, f"{command}: exit status {result.status}\n{result.text}"
        return result

    def interrupt(self) -> Result:
        """Press Ctrl-C, and wait for the prompt."""
        self.type("\x03")
        return self._read_until_prompt()

    def _read_until_prompt(self) -> Result:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while (prompt := PROMPT.search(self.output, self._read_to)) is None:
            if time.monotonic() > deadline or not self._read():
                raise AssertionError(f"the command did not end: {self.output[self._read_to :]!r}")
        shown = self.output[self._read_to : prompt.start()]
        self._read_to = prompt.end()
        return Result(ESCAPES.sub("", shown), int(prompt[1]))


@contextmanager
def daemon(home: Path, options: str = "--slots 4") -> Iterator[None]:
    """Run `refold serve` in a terminal of its own until the end of the context."""
    with Shell(home, columns=120) as shell:
        asked = not (home / "refold.yaml").exists()
        shell.type(f"refold serve --port 0 {options}\n")
        if asked:
            shell.expect("preemption [consent]: ")
            shell.type("\n")
        shell.expect("next, in another terminal")
        yield
        assert shell.interrupt().status == 0
