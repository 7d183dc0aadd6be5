"""Building blocks of policies: drafts, options, guarantees, durations, queues, reasons, rounds and the run watch."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
