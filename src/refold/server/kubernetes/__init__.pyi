from .engine import KubernetesEngine as KubernetesEngine
