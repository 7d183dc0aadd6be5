from .files import (
    JournalFile as JournalFile,
    check_replay as check_replay,
    read_journal as read_journal,
    replay as replay,
)
from .history import (
    History as History,
    HistoryJournal as HistoryJournal,
    Outcome as Outcome,
    sum_by_group as sum_by_group,
)
from .job_history import (
    Cancelled as Cancelled,
    Change as Change,
    Ending as Ending,
    Flagged as Flagged,
    Held as Held,
    JobChange as JobChange,
    JobEnded as JobEnded,
    JobHistories as JobHistories,
    JobRecord as JobRecord,
    NodeChange as NodeChange,
    Placed as Placed,
    RecordState as RecordState,
    Released as Released,
    RunEnded as RunEnded,
    RunRecord as RunRecord,
    Started as Started,
    StopOrdered as StopOrdered,
    Submitted as Submitted,
)
