"""The command line of benchmarks that generate a page of results: print it, and with options write it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.measure import REPOSITORY

FOLDER = REPOSITORY / "docs" / "results"


def page_parser(module: str, description: str | None, writes: str = "the page of results") -> argparse.ArgumentParser:
    """Return a parser with the option --write."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--write", action="store_true", help=f"write {writes}")
    return parser


def measurement_parser(module: str, description: str | None, quick: str, **more: str) -> argparse.ArgumentParser:
    """Return a parser with the options --write, --quick and --json; `quick` is the help text of --quick."""
    parser = page_parser(module, description, **more)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    return parser


def publish(
    options: argparse.Namespace, page: Path, text: str, numbers: Any = None, charts: Mapping[str, str] | None = None
) -> None:
    """Print a page; with --json, write its numbers; with --write, write the page, and its charts beside it."""
    print(text)
    if getattr(options, "json", None):
        options.json.write_text(json.dumps(numbers), encoding="utf-8")
    if options.write:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")
        for name, chart in (charts or {}).items():
            (page.parent / name).write_text(chart, encoding="utf-8")
