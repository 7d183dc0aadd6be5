from .comparators import (
    COMPARATORS as COMPARATORS,
    QUANTILE_LEVELS as QUANTILE_LEVELS,
    PredictorQuantiles as PredictorQuantiles,
)
from .evaluate import (
    RECHECK_SECONDS as RECHECK_SECONDS,
    Evaluation as Evaluation,
    Score as Score,
    evaluate_at_submission as evaluate_at_submission,
    evaluate_while_running as evaluate_while_running,
    pinball_loss as pinball_loss,
    score as score,
)
from .gap import (
    GapMeter as GapMeter,
    GapRun as GapRun,
    gap_between as gap_between,
    gap_notes as gap_notes,
)
from .optimal import (
    OptimumSearch as OptimumSearch,
    throughput_of as throughput_of,
)
