"""Read and write job traces and cluster descriptions.

To add a trace format, write a module with `recognises(first_line)` and `read(source, ...)` and add it to `FORMATS` in
`formats.py`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
