"""A reader that lists the first 1,000 jobs again and again, over many connections: what one user can cost the others.

As a program: `python -m benchmarks.reliability.list_flood ADDRESS TOKEN CONNECTIONS SECONDS`.
"""

from __future__ import annotations

import asyncio
import sys
from urllib.parse import urlsplit

from refold.client.api import V1


async def _list_jobs(host: str, port: int, token: str) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    request = f"GET {V1}/jobs?match=*&limit=1000 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
    while True:
        writer.write(request.encode())
        head = await reader.readuntil(b"\r\n\r\n")
        (length,) = (line.partition(b":")[2] for line in head.lower().split(b"\r\n") if b"content-length" in line)
        await reader.readexactly(int(length))


async def flood(address: str, token: str, connections: int, seconds: float) -> None:
    """List jobs over so many connections for so long."""
    parts = urlsplit(address)
    assert parts.hostname is not None
    assert parts.port is not None
    tasks = [asyncio.create_task(_list_jobs(parts.hostname, parts.port, token)) for _ in range(connections)]
    await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)


if __name__ == "__main__":
    asyncio.run(flood(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
