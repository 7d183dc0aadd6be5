from .choice import Conditions as Conditions, Experiment as Experiment, find_replay as find_replay
from .columns import ReplayResult as ReplayResult, TaskColumns as TaskColumns, task_columns as task_columns
from .fifo import replay_fifo as replay_fifo
