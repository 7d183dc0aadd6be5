from .engine import EngineParts as EngineParts, KubernetesEngine as KubernetesEngine, load_daemon_id as load_daemon_id
from .leadership import Leadership as Leadership, LeaseLost as LeaseLost
