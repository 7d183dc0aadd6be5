from .demand_history import DemandHistory as DemandHistory, empty_demand_history as empty_demand_history
from .fragmentation import (
    cluster_fragmentation as cluster_fragmentation,
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
from .heap import pop as pop, push as push
from .kernels import (
    INSTANCES_THAT_FIT as INSTANCES_THAT_FIT,
    TAKEN as TAKEN,
    adjust_free as adjust_free,
    candidate_row as candidate_row,
    count_instances as count_instances,
    count_shortages as count_shortages,
    fits as fits,
    instances_on_node as instances_on_node,
    max_gpus_per_node as max_gpus_per_node,
    need_at as need_at,
    next_fitting_node as next_fitting_node,
    set_free as set_free,
    take as take,
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
    POWER_TOLERANCE_WATTS as POWER_TOLERANCE_WATTS,
    TYPE_BIT as TYPE_BIT,
    UNLIMITED as UNLIMITED,
    UP as UP,
    WHOLE_FREE as WHOLE_FREE,
    Bools as Bools,
    Floats as Floats,
    FreeArrays as FreeArrays,
    Ints as Ints,
    Need as Need,
    Words as Words,
)
from .placer import RULES as RULES, Placer as Placer
from .pooled_queue import estimate_fifo_starts as estimate_fifo_starts
from .power import NO_RACK as NO_RACK, Power as Power
from .timetable import BookedJobs as BookedJobs, Timetable as Timetable
from .trial import Trial as Trial
