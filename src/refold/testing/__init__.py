"""For tests of your own policies, back ends and trace readers: small makers, an audit, and contracts to subclass."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
