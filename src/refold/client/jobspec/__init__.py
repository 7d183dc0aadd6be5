"""Job files: Refold's YAML, `#SBATCH` scripts and Kubernetes manifests, converted to submissions."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
