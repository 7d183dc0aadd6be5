"""`refold`: where every command is registered, and where errors become one red line."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from refold import __version__
from refold.cli import compare, policies, replay, run, simulate, trace
from refold.errors import RefoldError

# Plain help, since drawing boxes costs a tenth of a second; no pretty tracebacks, since users see none.
app = typer.Typer(
    name="refold",
    help="A scheduler for shared GPU clusters: simulate it on your job history, then run it.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# Commands, in the order that `refold --help` lists them.
app.command("compare")(compare.compare)
app.command("simulate")(simulate.simulate)
app.command("policies")(policies.policies)
app.command("replay")(replay.replay)
app.command("run")(run.run)
app.add_typer(trace.app, name="trace")


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


def main() -> None:
    """What the `refold` command runs.

    Exit status: 0 done; 1 done, and the answer is no (replay differs, not all jobs finished); 2 bad input;
    130 interrupted.
    """
    try:
        app()
    except RefoldError as error:
        typer.secho(f"error: {error}", fg=typer.colors.RED, err=True)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:
        # The reader went away (`refold … | head`): there is nobody left to tell, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except OSError as error:
        # What no command foresaw of the world outside: a full disk, a folder without permission.
        typer.secho(f"error: {error}", fg=typer.colors.RED, err=True)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
