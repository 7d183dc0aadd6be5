from .fit import read_fit as read_fit
from .trace import max_gpus_per_node as max_gpus_per_node
