"""Plan search: valid plans on given machines, the best of them, and throughput curves over resources."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
