from .picture import render_trade_off as render_trade_off
from .report import (
    Doubt as Doubt,
    Gain as Gain,
    Interval as Interval,
    ReportPart as ReportPart,
    ReportPolicy as ReportPolicy,
    ReportRow as ReportRow,
    TuningReport as TuningReport,
    format_setting as format_setting,
    make_blocks as make_blocks,
    make_report as make_report,
)
from .search import (
    Evaluated as Evaluated,
    Search as Search,
    Space as Space,
    expected_slices as expected_slices,
    find_front as find_front,
)
from .study import Study as Study, StudyInputs as StudyInputs
from .trade_off import (
    MEASURES as MEASURES,
    OBJECTIVES as OBJECTIVES,
    CountedJobs as CountedJobs,
    Objective as Objective,
)
from .tuner import (
    Goal as Goal,
    HistoryPart as HistoryPart,
    PartRun as PartRun,
    Split as Split,
    TrialBudget as TrialBudget,
    TunedPolicy as TunedPolicy,
    Tuner as Tuner,
    TuningResult as TuningResult,
    split_history as split_history,
)
