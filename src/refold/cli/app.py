"""The `refold` program: run a command, print errors as one red line, set the exit status."""

from __future__ import annotations

import gc
import os
import sys
from io import TextIOWrapper
from typing import TYPE_CHECKING

from refold.cli.plain_queue import parse_queue_words, print_queue
from refold.cli.views import ERROR_COLOUR, print_line, resource_text
from refold.errors import RefoldError

if TYPE_CHECKING:
    import typer


OBJECTS_PER_COLLECTION = 20_000
"""Python's default of 700 new objects takes 7 % of the time of a command that simulates, and finds little garbage."""


def main() -> None:
    """Run the `refold` command.

    Exit status: 0 success; 1 negative result (replay differs, not all jobs finished); 2 bad input; 130 interrupted;
    141 broken pipe; 143 ended by SIGTERM.
    """
    gc.set_threshold(OBJECTS_PER_COLLECTION)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # do not fail on characters that the terminal cannot encode
    raise SystemExit(_run())


def _run() -> int:
    """Run the command and return its exit status."""
    try:
        status = _run_command()
        sys.stdout.flush()
    except RefoldError as error:
        for line in getattr(error, "frames", "").splitlines():
            print_line(line, err=True)
        return _print_error(resource_text(str(error)))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return _discard_output()
    except SystemExit as exiting:
        if isinstance(exiting.__context__, BrokenPipeError):  # typer caught the broken pipe first
            return _discard_output()
        raise
    except OSError as error:
        # Errors of the system that no command handles: a full disk, a folder without write permission.
        return _print_error(f"{error.filename or 'the output'}: {error.strerror or error}")
    return status


def _run_command() -> int:
    if (request := parse_queue_words(sys.argv[1:])) is not None:
        print_queue(request)
        return 0
    return _run_with_typer()


def _run_with_typer() -> int:
    import typer

    from refold.cli.lazy_group import UsageError, run_command

    try:
        return run_command()
    except UsageError as error:
        return _print_usage_error(error)
    except typer.Abort:  # a confirmation prompt was interrupted
        return 130


def _discard_output() -> int:
    """After a broken pipe (`refold … | head`), discard buffered output so that flushing at exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141


def _print_error(message: str) -> int:
    print_line(f"error: {message}", err=True, fg=ERROR_COLOUR)
    return 2


REMOVED_OPTIONS = {
    "--interval": "the screen is refreshed every two seconds; --once prints it once",
    "--report-share": "settings are chosen on the first 60 % of the jobs, and reported on with the others",
}
"""Options that earlier versions had, and what to do without them."""


def _print_usage_error(error: typer.BadParameter) -> int:
    message = error.format_message()
    if "\n" in message:  # the help text, which typer raises when no command is given
        error.show()
        return 2
    option = message.removeprefix("No such option: ").partition(" ")[0].rstrip(".")
    if option in REMOVED_OPTIONS:
        return _print_error(f"{option} is no longer an option: {REMOVED_OPTIONS[option]}")
    hint = f"; see {error.ctx.command_path} --help" if error.ctx else ""
    return _print_error(message.replace(": Value error, ", ": ", 1).rstrip(".") + hint)


if __name__ == "__main__":
    main()
