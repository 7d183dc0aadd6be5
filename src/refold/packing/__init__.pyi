from .demand_history import (
    DemandHistory as DemandHistory,
    ScoreCache as ScoreCache,
    nothing_expected as nothing_expected,
    nothing_known as nothing_known,
    renew as renew,
    time_to_renew as time_to_renew,
)
from .fragmentation import (
    cluster_fragments as cluster_fragments,
    fragments_after as fragments_after,
    no_typical as no_typical,
    node_fragments as node_fragments,
    renew_typical as renew_typical,
)
from .free import Free as Free, indices_of as indices_of, mask_of as mask_of, vector_of as vector_of
from .genetic_paper import best_pair as best_pair
from .jit import compiled as compiled, inlined as inlined
from .kernels import (
    fits as fits,
    lowest_row as lowest_row,
    most_gpus as most_gpus,
    move as move,
    need_of as need_of,
    next_fitting as next_fitting,
)
from .layout import (
    CPU_FREE as CPU_FREE,
    DEMAND_ENTRIES as DEMAND_ENTRIES,
    FIRST_GPU as FIRST_GPU,
    GPU_MASK as GPU_MASK,
    GPUS as GPUS,
    MEMORY_FREE as MEMORY_FREE,
    MILLI_FREE as MILLI_FREE,
    NODE as NODE,
    TYPE_BIT as TYPE_BIT,
    UNLIMITED as UNLIMITED,
    UP as UP,
    WHOLE_FREE as WHOLE_FREE,
    Bools as Bools,
    Floats as Floats,
    Ints as Ints,
    Need as Need,
    Words as Words,
)
from .lookahead import RackPowerNow as RackPowerNow, no_racks as no_racks
from .placer import GENETIC as GENETIC, LOOK_AHEAD as LOOK_AHEAD, RULES as RULES, Placer as Placer
from .pooled_queue import starts_in_turn as starts_in_turn
from .power import NO_RACK as NO_RACK, SLACK as SLACK, Power as Power
from .rules import FGD as FGD, MEMORY_ENTRIES as MEMORY_ENTRIES, SEED as SEED, place as place
from .timetable import (
    Spans as Spans,
    Timetable as Timetable,
    Waiting as Waiting,
    change as change,
    earliest as earliest,
    fill_window as fill_window,
    forget as forget,
    longest as longest,
    longest_on as longest_on,
    one_span_each as one_span_each,
)
from .trial import Trial as Trial
