from .engine import EngineParts as EngineParts, KubernetesEngine as KubernetesEngine, load_daemon_id as load_daemon_id
from .leadership import Leadership as Leadership, LeaseLost as LeaseLost
from .observation import Observation as Observation, observe as observe, read_only as read_only
