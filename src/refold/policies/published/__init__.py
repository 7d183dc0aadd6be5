"""Published schedulers, for comparison: AntMan, Gavel, Optimus, Pollux, Sia, Synergy and Tiresias."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
