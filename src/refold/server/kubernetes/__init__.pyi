from .engine import DAEMON_KEY as DAEMON_KEY, KubernetesEngine as KubernetesEngine
from .leadership import Leadership as Leadership, LeaseLost as LeaseLost
from .observation import Observation as Observation, observe as observe, read_only as read_only
