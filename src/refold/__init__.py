"""Refold: a scheduler for shared GPU clusters that reshapes training jobs to fit the cluster.

The public API is listed in `__init__.pyi`; names are imported when they are first used. docs/python.md has examples.
"""

import lazy_loader

from refold.moved import find_moved_folders

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

find_moved_folders()
