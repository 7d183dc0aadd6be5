"""The --json option of all commands with output."""

from __future__ import annotations

from typing import Annotated

from refold.cli import switch

AsJson = Annotated[bool, switch("--json", "Print JSON, for programs.")]
