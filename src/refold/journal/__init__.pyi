from .changes import (
    Cancelled as Cancelled,
    Change as Change,
    Flagged as Flagged,
    Held as Held,
    JobChange as JobChange,
    JobEnded as JobEnded,
    NodeChange as NodeChange,
    Placed as Placed,
    PlanReplaced as PlanReplaced,
    Released as Released,
    RunBegan as RunBegan,
    RunEnded as RunEnded,
    StopOrdered as StopOrdered,
    Submitted as Submitted,
)
from .epochs import (
    Epoch as Epoch,
    membership_changes as membership_changes,
    read_history as read_history,
    read_united_epochs as read_united_epochs,
)
from .files import (
    JournalFile as JournalFile,
    check_replay as check_replay,
    read_epochs as read_epochs,
    read_journal as read_journal,
    replay as replay,
)
from .history import (
    TIME_TOLERANCE_SECONDS as TIME_TOLERANCE_SECONDS,
    History as History,
    HistoryJournal as HistoryJournal,
    JobColumns as JobColumns,
    Outcome as Outcome,
    RunColumns as RunColumns,
    StartEstimateColumns as StartEstimateColumns,
    sum_by_group as sum_by_group,
)
from .job_history import JobHistories as JobHistories
from .packed_history import PackedHistoryJournal as PackedHistoryJournal
from .records import Ending as Ending, JobRecord as JobRecord, RecordState as RecordState, RunRecord as RunRecord
