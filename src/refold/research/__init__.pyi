from .comparators import CHANCES as CHANCES, COMPARATORS as COMPARATORS, Foreseen as Foreseen
from .evaluate import (
    LATER as LATER,
    Played as Played,
    Score as Score,
    pinball as pinball,
    play as play,
    play_running as play_running,
    score as score,
)
from .gap import GapRun as GapRun, Watched as Watched, gap_between as gap_between, gap_notes as gap_notes
from .optimal import Finder as Finder, throughput_of as throughput_of
