"""`refold backup` and `restore`: copies of the daemon's store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from refold.cli import argument, option
from refold.cli.views import AsJson, print_json, print_line
from refold.errors import BadFile


def backup(
    to: Annotated[Path | None, option("FILE", "Output file (default: in the state folder).")] = None,
    state: Annotated[Path | None, option("FOLDER", "State folder (default: ~/.refold).")] = None,
    as_json: AsJson = False,
) -> None:
    """Back up the daemon's store: jobs, journal, events and tokens. The daemon may be running.

    The copy is checked. `refold serve` also makes a backup every day. Job output is not included. The file contains
    secrets of jobs and hashes of tokens, and can be read by its owner only.

    Example: refold backup --to /mnt/backup/refold.db
    """
    from datetime import UTC, datetime

    from refold.client import state_folder
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


def restore(
    file: Annotated[Path | None, argument("BACKUP", "A backup (default: the latest).", show_default=False)] = None,
    state: Annotated[Path | None, option("FOLDER", "State folder (default: ~/.refold).")] = None,
    as_json: AsJson = False,
) -> None:
    """Restore the daemon's store from a backup. The daemon must not be running.

    The current file is kept under another name. Jobs that were submitted after the backup are forgotten; those of them
    that still run are stopped when the daemon starts.

    Example: refold restore --state /var/lib/refold
    """
    from contextlib import closing
    from datetime import UTC, datetime

    from refold.client import state_folder
    from refold.server.store import FILE_NAME, FolderLock, list_backups, restore_database

    folder = (state or state_folder()).expanduser()
    chosen = file or next(iter(list_backups(folder)), None)
    if chosen is None:
        raise BadFile(folder, "has no backups; name a file")
    if not folder.is_dir():
        raise BadFile(folder, "is not a folder; choose another one with --state")
    with closing(FolderLock(folder)):
        kept = restore_database(chosen, folder / FILE_NAME, datetime.now(UTC))
    if as_json:
        print_json({"restored": str(chosen), "kept": None if kept is None else str(kept)})
        return
    print_line(f"restored {chosen}" + (f"; the file before is {kept}" if kept is not None else ""))
