from .choice import (
    Conditions as Conditions,
    Experiment as Experiment,
    find_journaled_replay as find_journaled_replay,
    find_replay as find_replay,
)
from .columns import (
    ReplayResult as ReplayResult,
    TaskColumns as TaskColumns,
    task_columns as task_columns,
)
from .easy import replay_easy as replay_easy
from .fifo import replay_fifo as replay_fifo
from .journal import journal_entries as journal_entries
from .loop import JournalNotes as JournalNotes
