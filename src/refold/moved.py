"""Earlier names of folders, which policy files and scripts may import: they stand for the new ones, with a warning."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "refold.api": "refold.client.api",
    "refold.catalogue": "refold.planning.catalogue",
    "refold.jobspec": "refold.client.jobspec",
    "refold.packing": "refold.placement",
    "refold.perf": "refold.planning.perf",
    "refold.plans": "refold.planning.plans",
    "refold.registry": "refold.simulator.registry",
    "refold.results": "refold.simulator.results",
    "refold.traces": "refold.simulator.traces",
}


class MovedFolders:
    """Finds the folders by their earlier names: a finder and loader of Python's import system."""

    def __init__(self) -> None:
        self._spec: ModuleSpec | None = None

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        del path, target
        return ModuleSpec(fullname, self) if fullname in MOVED else None  # type: ignore[arg-type]  # a duck-typed loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        from importlib import import_module
        from warnings import warn

        warn(f"{spec.name} is {MOVED[spec.name]} now", DeprecationWarning, stacklevel=2)
        module = import_module(MOVED[spec.name])
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing but keep the new name: the module has been executed."""
        module.__spec__ = self._spec


def find_moved_folders() -> None:
    """Let the earlier names be imported. The finder comes last: it is asked for nothing that exists."""
    sys.meta_path.append(MovedFolders())
