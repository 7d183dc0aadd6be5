"""`refold`: where errors become one red line, and endings an exit status. Its commands are in `commands`."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from typing import Annotated, cast

import typer

from refold import __version__
from refold.cli.lazy_group import CommandGroup
from refold.cli.views import ERROR, say
from refold.errors import RefoldError

# Plain help, since drawing boxes costs a tenth of a second; no pretty tracebacks, since users see none.
app = typer.Typer(
    name="refold",
    cls=CommandGroup,
    help="A scheduler for shared GPU clusters: simulate it on your job history, then run it.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"refold {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Say which version this is.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """A scheduler for shared GPU clusters: simulate it on your job history, then run it."""


# What typer raises where it was typed wrongly; it has no public name.
UsageError = cast(type[typer.BadParameter], typer.BadParameter.__mro__[1])


def main() -> None:
    """What the `refold` command runs.

    Exit status: 0 done; 1 done, and the answer is no (replay differs, not all jobs finished); 2 bad input;
    130 interrupted; 141 the reader of its output went away.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # what a terminal cannot show is no reason to fail
    raise SystemExit(_status())


def _status() -> int:
    try:
        status = app(prog_name="refold", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except UsageError as error:
        return _usage(error)
    except RefoldError as error:
        for line in getattr(error, "frames", "").splitlines():
            say(line, err=True)
        return _refused(str(error))
    except (KeyboardInterrupt, typer.Abort):  # the latter where somebody was asked
        return 130
    except BrokenPipeError:
        return _nobody_reads()
    except SystemExit as left:
        if isinstance(left.__context__, BrokenPipeError):  # typer noticed it first
            return _nobody_reads()
        raise
    except OSError as error:
        # What no command foresaw of the world outside: a full disk, a folder without permission.
        return _refused(f"{error.filename or 'the output'}: {error.strerror or error}")


def _nobody_reads() -> int:
    """The reader went away (`refold … | head`): there is nobody left to tell, not even at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141


def _refused(what: str) -> int:
    say(f"error: {what}", err=True, fg=ERROR)
    return 2


def _usage(error: typer.BadParameter) -> int:
    said = error.format_message()
    if "\n" in said:  # no error, but help for who has typed nothing
        error.show()
        return 2
    hint = f"; see {error.ctx.command_path} --help" if error.ctx else ""
    return _refused(said.rstrip(".") + hint)


if __name__ == "__main__":
    main()
