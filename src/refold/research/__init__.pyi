from .comparators import CHANCES as CHANCES, COMPARATORS as COMPARATORS, PredictorQuantiles as PredictorQuantiles
from .evaluate import (
    LATER as LATER,
    Evaluation as Evaluation,
    Score as Score,
    pinball as pinball,
    play as play,
    play_running as play_running,
    score as score,
)
from .gap import GapMeter as GapMeter, GapRun as GapRun, gap_between as gap_between, gap_notes as gap_notes
from .optimal import OptimumSearch as OptimumSearch, throughput_of as throughput_of
