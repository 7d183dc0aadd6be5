"""`refold backup`: back up the daemon's store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from refold.cli.views import AsJson, print_json, print_line


def backup(
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FILE", help="Output file (default: in the state folder)."),
    ] = None,
    state: Annotated[
        Path | None, typer.Option("--state", metavar="FOLDER", help="State folder (default: ~/.refold).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Back up the daemon's store: jobs, journal, events and tokens. The daemon may be running.

    The copy is checked. `refold serve` also makes a backup every day. Job output is not included. The file contains
    secrets of jobs and hashes of tokens, and can be read by its owner only.

    Example: refold backup --to /mnt/backup/refold.db
    """
    from datetime import UTC, datetime

    from refold.client import state_folder
    from refold.errors import BadFile
    from refold.server.store import BACKUPS_FOLDER, FILE_NAME, backup_name, copy_database

    folder = (state or state_folder()).expanduser()
    source = folder / FILE_NAME
    if not source.is_file():
        raise BadFile(folder, "has no store; choose another folder with --state")
    target = to or folder / BACKUPS_FOLDER / backup_name(datetime.now(UTC))
    copy_database(source, target)
    if as_json:
        print_json({"backup": str(target), "bytes": target.stat().st_size})
    else:
        print_line(f"backup: {target}")
        print_line("It contains secrets of jobs and hashes of tokens: keep it as safe as the state folder.")
