"""Check that a tag names the version of the package, and that the changelog has a section for it: `v0.1.0`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def package_version() -> str:
    """Return the version, without importing the package."""
    found = re.search(r'^__version__ = "(.+)"$', (ROOT / "src/refold/__init__.py").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def problem(tag: str, changelog: str) -> str:
    """Return what is wrong with a tag, or ''."""
    version = package_version()
    if tag != f"v{version}":
        return f"the tag is {tag}, but the version is {version}: change __version__ in src/refold/__init__.py"
    if not re.search(rf"^## \[{re.escape(version)}\]", changelog, re.MULTILINE):
        return f"CHANGELOG.md has no section '## [{version}]'"
    return ""


if __name__ == "__main__":
    sys.exit(problem(sys.argv[1], (ROOT / "CHANGELOG.md").read_text()) or 0)
