from .demand_history import DemandHistory as DemandHistory, empty_demand_history as empty_demand_history
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
from .heap import (
    TaskHeap as TaskHeap,
    first_time as first_time,
    pop as pop,
    pop_task as pop_task,
    push as push,
    push_task as push_task,
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
    Ints as Ints,
    Need as Need,
    Words as Words,
)
from .placer import RULES as RULES, Placer as Placer
from .pooled_queue import estimate_fifo_starts as estimate_fifo_starts
from .power import NO_RACK as NO_RACK, Power as Power
from .shortest_tasks import (
    ShortestTasks as ShortestTasks,
    add_waiting as add_waiting,
    first_waiting as first_waiting,
    no_shortest_tasks as no_shortest_tasks,
    remove_waiting as remove_waiting,
    shortest_waiting as shortest_waiting,
)
from .timetable import (
    BookedJobs as BookedJobs,
    FreeIntervals as FreeIntervals,
    Timetable as Timetable,
    change_interval as change_interval,
    drop_past_intervals as drop_past_intervals,
    earliest_start as earliest_start,
    first_that_can_start_earlier as first_that_can_start_earlier,
    initial_intervals as initial_intervals,
    is_overbooked as is_overbooked,
    longest_free_duration as longest_free_duration,
    longest_free_duration_on as longest_free_duration_on,
    with_doubled_capacity as with_doubled_capacity,
    write_free_during as write_free_during,
)
from .trial import Trial as Trial
