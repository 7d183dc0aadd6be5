"""The daemon on Kubernetes: pods enter the queue, nodes and their use become events, pods learn why they wait."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
