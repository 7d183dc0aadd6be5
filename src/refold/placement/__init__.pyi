from .demand_history import (
    DemandHistory as DemandHistory,
    empty_demand_history as empty_demand_history,
    is_update_due as is_update_due,
)
from .fragmentation import (
    cluster_fragmentation as cluster_fragmentation,
    fragmentation_after as fragmentation_after,
    node_fragmentation as node_fragmentation,
    update_typical_demands as update_typical_demands,
)
from .free import (
    FreeResources as FreeResources,
    encode_demand as encode_demand,
    indices_from_mask as indices_from_mask,
    mask_from_indices as mask_from_indices,
)
from .genetic_operators import Random as Random
from .genetic_paper import best_pair as best_pair
from .heap import TaskHeap as TaskHeap
from .layout import (
    CPU_FREE as CPU_FREE,
    DEMAND_ENTRIES as DEMAND_ENTRIES,
    FIRST_GPU as FIRST_GPU,
    GPU_MASK as GPU_MASK,
    GPUS as GPUS,
    MEMORY_FREE as MEMORY_FREE,
    MILLI_FREE as MILLI_FREE,
    NODE as NODE,
    POWER_TOLERANCE_WATTS as POWER_TOLERANCE_WATTS,
    TYPE_BIT as TYPE_BIT,
    UNLIMITED as UNLIMITED,
    UP as UP,
    WHOLE_FREE as WHOLE_FREE,
    Bools as Bools,
    Floats as Floats,
    Ints as Ints,
    Need as Need,
)
from .placer import GENETIC as GENETIC, LEARNING_RULES as LEARNING_RULES, RULES as RULES, Placer as Placer
from .power import NO_RACK as NO_RACK, Power as Power
from .timetable import BookedJobs as BookedJobs, Timetable as Timetable
from .trial import Trial as Trial
from .worth import update_worth as update_worth
