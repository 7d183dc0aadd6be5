"""The data model: cluster, job, plan, allocation, run, decision. All types are frozen.

What users supply (cluster, job, plan) is validated on construction; allocations and decisions are checked by `core`.
Frozen objects refer only to objects that existed before them, so they cannot form reference cycles: hence `gc=False`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
