from .fit import read_fit as read_fit
from .trace import most_gpus_of_a_node as most_gpus_of_a_node
