"""Refold: a scheduler for shared GPU clusters that reshapes training jobs to fit the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refold.live.client.client import Client

__version__ = "0.1.0"
__all__ = ["Client", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "Client":  # imported when it is asked for: those who only simulate need no client
        from refold.live.client.client import Client

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
