"""Test the reliability of the daemon: `python -m benchmarks.reliability [--crashes 300] [--load] … [--write]`.

`--crashes N` runs N crash scenarios, in which daemons are killed; each takes about two seconds. `--load`: fifty clients
submit 1,000 jobs per second for a minute, then a queue of 10,000 jobs is queried; four minutes. `--long-queue`: jobs
that end while 10,000 wait, and a restart with 50,000. `--reshapes N`: with N seeds, daemons are killed while jobs
change their shape. `--abuse`: costly questions, changes of 20,000 jobs,
floods of output. `--churn MINUTES`: the memory of the daemon. Results are stored under build/; `--write` updates
docs/reliability.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import msgspec

from benchmarks.measure import REPOSITORY
from benchmarks.reliability import abuse, churn, crashes, load, long_queue, reshape_kills

RESULTS = REPOSITORY / "build" / "reliability"
PAGE = REPOSITORY / "docs" / "reliability.md"

PARTS: dict[str, tuple[type[Any], Callable[[Any], str]]] = {
    "crashes": (crashes.CrashResults, crashes.table),
    "load": (load.LoadResults, load.table),
    "long-queue": (long_queue.QueueResults, long_queue.table),
    "reshapes": (reshape_kills.ReshapeKills, reshape_kills.table),
    "abuse": (abuse.AbuseResults, abuse.table),
    "churn": (churn.ChurnResult, churn.table),
}


def main() -> None:
    """Run the selected parts, and print all stored results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reliability", description=__doc__)
    parser.add_argument("--crashes", type=int, default=0, metavar="N", help="run N crash scenarios")
    parser.add_argument("--at-once", type=int, default=1, help="number of concurrent scenarios [1]")
    parser.add_argument("--load", action="store_true", help="run many clients at once, and query a long queue")
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of the load [60]")
    parser.add_argument("--per-second", type=float, default=1000.0, help="target submissions per second [1000]")
    parser.add_argument("--long-queue", action="store_true", help="jobs ended, and restarts, with long queues")
    parser.add_argument("--reshapes", type=int, default=0, metavar="N", help="kill daemons during reshapes, N seeds")
    parser.add_argument("--kills", type=int, default=10, help="how often with each seed [10]")
    parser.add_argument("--abuse", action="store_true", help="what one user can cost the others")
    parser.add_argument("--churn", type=float, default=0.0, metavar="MINUTES", help="measure the memory over time")
    parser.add_argument("--policy", default="refold", help="the policy of --churn [refold]")
    parser.add_argument("--write", action="store_true", help="update docs/reliability.md")
    options = parser.parse_args()
    if options.crashes:
        _save("crashes", crashes.run_scenarios(options.crashes, options.at_once))
    if options.load:
        _save("load", load.run_load(options.seconds, options.per_second))
    if options.long_queue:
        _save("long-queue", long_queue.run_long_queue())
    if options.reshapes:
        _save("reshapes", reshape_kills.run_reshape_kills(options.reshapes, options.kills))
    if options.abuse:
        _save("abuse", abuse.run_abuse())
    if options.churn:
        _save("churn", churn.run_churn(options.churn, options.policy, 4.0))
    sections = {name: _format_section(name) for name in PARTS if (RESULTS / f"{name}.json").exists()}
    print("\n\n".join(sections.values()))
    if options.write:
        page = PAGE.read_text(encoding="utf-8")
        for name, text in sections.items():
            page = replace_section(page, name, text)
        PAGE.write_text(page, encoding="utf-8")


def _save(name: str, results: object) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(results)))


def _format_section(name: str) -> str:
    kind, table = PARTS[name]
    return table(msgspec.json.decode((RESULTS / f"{name}.json").read_bytes(), type=kind))


def replace_section(page: str, name: str, text: str) -> str:
    """Return the page with the text between the comments `<!-- name -->` and `<!-- /name -->` replaced."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, _, rest = page.partition(begin)
    _, separator, after = rest.partition(end)
    if not separator:
        raise SystemExit(f"{PAGE.name} has no section {begin.strip()} … {end}")
    return f"{before}{begin}{text}\n{end}{after}"


if __name__ == "__main__":
    main()
