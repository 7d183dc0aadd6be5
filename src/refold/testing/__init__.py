"""Tools for testing policies, back ends and trace readers: factories, an audit, and contract suites to subclass."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
