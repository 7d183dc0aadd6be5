from .axes import Axis as Axis, Frame as Frame, Plot as Plot, range_axis as range_axis, value_axis as value_axis
from .figures import ReportRun as ReportRun
from .guarantees import (
    GuaranteeReport as GuaranteeReport,
    QuotaWait as QuotaWait,
    check_guarantees as check_guarantees,
    find_violations as find_violations,
)
from .job_measures import JobMeasures as JobMeasures, join_measures as join_measures, measure_jobs as measure_jobs
from .measures import (
    MeasureGroup as MeasureGroup,
    Measures as Measures,
    Spread as Spread,
    compute_spread as compute_spread,
    measure as measure,
)
from .plan_curve_chart import (
    CurveChart as CurveChart,
    CurveStep as CurveStep,
    StepCurve as StepCurve,
    render_page as render_page,
)
from .power import (
    PowerUse as PowerUse,
    RackPower as RackPower,
    format_rack_name as format_rack_name,
    sort_by_limit_margin as sort_by_limit_margin,
)
from .recorded import (
    Reproduction as Reproduction,
    measure_reproduction as measure_reproduction,
    measure_waits as measure_waits,
    peak_gpus as peak_gpus,
)
from .replayed import replayed_history as replayed_history
from .report import compare_with_record as compare_with_record, write_report as write_report
from .start_estimates import StartEstimateGroup as StartEstimateGroup
from .svg import html_page as html_page
from .tables import (
    MAIN_MEASURES as MAIN_MEASURES,
    MORE_MEASURES as MORE_MEASURES,
    POWER_MEASURES as POWER_MEASURES,
    START_ESTIMATE_MEASURES as START_ESTIMATE_MEASURES,
    TOPOLOGY_MEASURES as TOPOLOGY_MEASURES,
    Comparison as Comparison,
    MeasureRow as MeasureRow,
    Recorded as Recorded,
    describe_unfinished as describe_unfinished,
    format_value as format_value,
    measure_table as measure_table,
    outlook_table as outlook_table,
)
from .topology import TopologyUse as TopologyUse
