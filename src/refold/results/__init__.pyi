from .charts import Frame as Frame, cut as cut, nice_top as nice_top, series_class as series_class
from .guarantees import Guarantees as Guarantees, broken_guarantees as broken_guarantees
from .measures import (
    MeasureGroup as MeasureGroup,
    Measures as Measures,
    Spread as Spread,
    measure as measure,
    spread_of as spread_of,
)
from .plan_curve_chart import (
    COLOURS as COLOURS,
    STYLE as STYLE,
    CurveChart as CurveChart,
    CurveStep as CurveStep,
    Stair as Stair,
    page as page,
)
from .power import PowerUse as PowerUse, nearest_to_limit_first as nearest_to_limit_first, rack_text as rack_text
from .report import ReportRun as ReportRun, write_report as write_report
from .start_estimates import StartEstimateGroup as StartEstimateGroup
from .tables import (
    MAIN as MAIN,
    MORE as MORE,
    POWER as POWER,
    PROMISES as PROMISES,
    Cell as Cell,
    Comparison as Comparison,
    group_table as group_table,
    measure_table as measure_table,
    text_of as text_of,
)
from .unfinished import unfinished_text as unfinished_text
