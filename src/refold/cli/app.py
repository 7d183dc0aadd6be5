"""The `refold` program: run a command, print errors as one red line, set the exit status."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from typing import Annotated, cast

import typer

from refold import __version__
from refold.cli.lazy_group import CommandGroup
from refold.cli.views import ERROR_COLOUR, print_line
from refold.errors import RefoldError

# Plain help: rich markup costs a tenth of a second. No pretty tracebacks: users never see a traceback.
app = typer.Typer(
    name="refold",
    cls=CommandGroup,
    help="A scheduler for shared GPU clusters: simulate policies on your job history, then run them.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"refold {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """A scheduler for shared GPU clusters: simulate policies on your job history, then run them."""


# The base class of typer's usage errors, which typer does not export.
UsageError = cast(type[typer.BadParameter], typer.BadParameter.__mro__[1])


def main() -> None:
    """Run the `refold` command.

    Exit status: 0 success; 1 negative result (replay differs, not all jobs finished); 2 bad input; 130 interrupted;
    141 broken pipe.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # do not fail on characters that the terminal cannot encode
    raise SystemExit(_run())


def _run() -> int:
    """Run the command and return its exit status."""
    try:
        status = app(prog_name="refold", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except UsageError as error:
        return _print_usage_error(error)
    except RefoldError as error:
        for line in getattr(error, "frames", "").splitlines():
            print_line(line, err=True)
        return _print_error(str(error))
    except (KeyboardInterrupt, typer.Abort):  # typer aborts when a confirmation prompt is interrupted
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


def _discard_output() -> int:
    """After a broken pipe (`refold … | head`), discard buffered output so that flushing at exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141


def _print_error(message: str) -> int:
    print_line(f"error: {message}", err=True, fg=ERROR_COLOUR)
    return 2


def _print_usage_error(error: typer.BadParameter) -> int:
    message = error.format_message()
    if "\n" in message:  # the help text, which typer raises when no command is given
        error.show()
        return 2
    hint = f"; see {error.ctx.command_path} --help" if error.ctx else ""
    return _print_error(message.rstrip(".") + hint)


if __name__ == "__main__":
    main()
