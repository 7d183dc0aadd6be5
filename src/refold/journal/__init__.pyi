from .files import (
    JournalFile as JournalFile,
    check_replay as check_replay,
    read_journal as read_journal,
    replay as replay,
)
from .history import (
    Ending as Ending,
    History as History,
    HistoryJournal as HistoryJournal,
    Outcome as Outcome,
    sum_by_group as sum_by_group,
)
