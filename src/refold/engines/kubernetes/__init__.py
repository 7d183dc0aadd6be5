"""Runs as gangs of pods: Refold decides where they run, Kubernetes runs them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
