"""The program that runs a command on a terminal of `refold shell`."""

from __future__ import annotations

import os
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

from refold.engines.local import hand_out, terminal_command


def test_the_exit_status_is_that_of_the_command_even_if_the_client_leaves_as_soon_as_it_has_ended(
    tmp_path: Path,
) -> None:
    path = tmp_path / "terminal"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        program = subprocess.Popen(terminal_command(path, ["sh", "-c", "sleep 0.2; exit 3"]))
        connection, _ = listener.accept()
        ours, theirs = os.openpty()
        hand_out(connection, theirs)
        os.close(theirs)
        with suppress(OSError):  # the command has ended
            while os.read(ours, 100):
                pass
        connection.close()
        assert program.wait(30) == 3
        os.close(ours)
