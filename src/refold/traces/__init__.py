"""Read and write job histories and clusters.

A trace format is one module with `recognises(first_line)` and `read(source, ...)`, and one line in the table of
`formats.py`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
