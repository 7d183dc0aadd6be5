"""How reliable the daemon is: `python -m benchmarks.reliability [--crashes 300] [--load] [--write]`.

`--crashes N` kills daemons in N worlds, some two seconds each. `--load`: fifty clients submit 1,000 jobs per second
for a minute, and a queue of 10,000 jobs is asked for; four minutes. What was found is kept under build/; `--write`
puts it into docs/reliability.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import msgspec

from benchmarks.measure import REPOSITORY
from benchmarks.reliability import crashes, load

KEPT = REPOSITORY / "build" / "reliability"
PAGE = REPOSITORY / "docs" / "reliability.md"

PARTS: dict[str, tuple[type[Any], Callable[[Any], str]]] = {
    "crashes": (crashes.Crashed, crashes.table),
    "load": (load.Loaded, load.table),
}


def main() -> None:
    """Measure what is asked for; print what has been found so far."""
    words = argparse.ArgumentParser(prog="python -m benchmarks.reliability", description=__doc__)
    words.add_argument("--crashes", type=int, default=0, metavar="N", help="kill daemons in N worlds")
    words.add_argument("--at-once", type=int, default=1, help="worlds at the same time [1]")
    words.add_argument("--load", action="store_true", help="many clients at once, and a long queue")
    words.add_argument("--seconds", type=float, default=60.0, help="how long clients submit [60]")
    words.add_argument("--per-second", type=float, default=1000.0, help="what they submit together [1000]")
    words.add_argument("--write", action="store_true", help="put what was found into docs/reliability.md")
    asked = words.parse_args()
    if asked.crashes:
        _keep("crashes", crashes.crash(asked.crashes, asked.at_once))
    if asked.load:
        _keep("load", load.load(asked.seconds, asked.per_second))
    found = {name: _text(name) for name in PARTS if (KEPT / f"{name}.json").exists()}
    print("\n\n".join(found.values()))
    if asked.write:
        page = PAGE.read_text(encoding="utf-8")
        for name, text in found.items():
            page = between_marks(page, name, text)
        PAGE.write_text(page, encoding="utf-8")


def _keep(name: str, found: object) -> None:
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / f"{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(found)))


def _text(name: str) -> str:
    kind, table = PARTS[name]
    return table(msgspec.json.decode((KEPT / f"{name}.json").read_bytes(), type=kind))


def between_marks(page: str, name: str, text: str) -> str:
    """The page with another text between two comments that carry a name."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, _, rest = page.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{PAGE.name} has no {begin.strip()} … {end}")
    return f"{before}{begin}{text}\n{end}{after}"


if __name__ == "__main__":
    main()
