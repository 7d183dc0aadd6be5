from .engine import DAEMON_KEY as DAEMON_KEY, SlurmEngine as SlurmEngine
from .history import RecordedStart as RecordedStart, SlurmHistory as SlurmHistory, read_history as read_history
from .observation import SlurmSnapshot as SlurmSnapshot, observe_slurm as observe_slurm
from .recorded import recorded_entries as recorded_entries
