from .history import read_history as read_history
from .observation import SlurmSnapshot as SlurmSnapshot, observe_slurm as observe_slurm
