"""Secrets of jobs that have ended are nowhere in the state folder."""

from __future__ import annotations

from pathlib import Path

from real_daemon import RealDaemon, wait_until

from refold.client.client import Client

SECRET = "a-secret-that-nobody-else-may-know"


def files_with_secret(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes())


def submit(client: Client, command: list[str]) -> str:
    return client.submit(name="job", command=command, secrets={"KEY": SECRET}).id


def test_secrets_do_not_remain_in_the_write_ahead_log(tmp_path: Path) -> None:
    with RealDaemon(tmp_path / "state") as daemon, daemon.client() as client:
        running = submit(client, ["sleep", "600"])
        assert "refold.db-wal" in files_with_secret(daemon.folder)
        client.wait(submit(client, ["sh", "-c", 'test -n "$KEY"']), timeout=30)
        client.cancel(running)
        client.wait(running, timeout=30)
        wait_until(lambda: files_with_secret(daemon.folder) == [])


def test_secrets_that_a_killed_daemon_has_left_are_removed_at_the_next_start(tmp_path: Path) -> None:
    with RealDaemon(tmp_path / "state", prepare="fault_injection:keep_write_ahead_log") as daemon:
        with daemon.client() as client:
            client.wait(submit(client, ["true"]), timeout=30)
        assert files_with_secret(daemon.folder) == ["refold.db-wal"]
        daemon.kill()
    with RealDaemon(tmp_path / "state") as daemon:
        assert files_with_secret(daemon.folder) == []
