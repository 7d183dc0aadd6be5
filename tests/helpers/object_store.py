"""An object store that speaks the protocol of S3 (moto), in a process of its own."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.error import URLError
from urllib.request import Request, urlopen

BUCKET = "checkpoints"


@contextmanager
def object_store() -> Iterator[Mapping[str, str]]:
    """Start a store with an empty bucket; yield the environment with which its clients find it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        _create_bucket(f"{address}/{BUCKET}")
        yield {
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": "user",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
    finally:
        server.terminate()
        server.wait()


def _create_bucket(address: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            with urlopen(Request(address, method="PUT")):
                return
        except (URLError, ConnectionError):
            assert time.monotonic() < deadline, "the object store did not start"
            time.sleep(0.1)
