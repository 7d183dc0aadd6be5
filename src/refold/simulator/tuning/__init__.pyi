from .bootstrap import (
    CONFIDENCE as CONFIDENCE,
    Blocks as Blocks,
    Interval as Interval,
    make_blocks as make_blocks,
)
from .front import find_front as find_front
from .parts import (
    HistoryPart as HistoryPart,
    Split as Split,
    split_history as split_history,
)
from .picture import render_trade_off as render_trade_off
from .policy_file import write_policy_file as write_policy_file
from .report import (
    Gain as Gain,
    ReportPart as ReportPart,
    ReportPolicy as ReportPolicy,
    ReportRow as ReportRow,
    TuningReport as TuningReport,
    format_setting as format_setting,
    make_report as make_report,
)
from .search import (
    Evaluate as Evaluate,
    Evaluated as Evaluated,
    Search as Search,
    SettingTrial as SettingTrial,
    Space as Space,
    expected_slices as expected_slices,
)
from .study import (
    Study as Study,
    StudyInputs as StudyInputs,
)
from .trade_off import (
    MEASURES as MEASURES,
    OBJECTIVES as OBJECTIVES,
    CountedJobs as CountedJobs,
    Objective as Objective,
)
from .tuner import (
    Goal as Goal,
    PartRun as PartRun,
    TrialBudget as TrialBudget,
    TunedPolicy as TunedPolicy,
    Tuner as Tuner,
    TuningResult as TuningResult,
)
