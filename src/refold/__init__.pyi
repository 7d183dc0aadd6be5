from .client import Client as Client
from .core import Policy as Policy, View as View
from .model import Cluster as Cluster, Decision as Decision, Job as Job
from .planning.plans import best_plans as best_plans
from .predict import Predictor as Predictor
from .simulator import simulate as simulate
from .simulator.comparison import compare as compare
from .simulator.registry import make_policy as make_policy
from .simulator.traces import read_cluster as read_cluster, read_trace as read_trace

__version__: str
