from .defragment import Defragment as Defragment
from .draft import (
    Draft as Draft,
    Transition as Transition,
    ended_jobs as ended_jobs,
    has_external_changes as has_external_changes,
)
from .durations import (
    DurationSource as DurationSource,
    DurationSourceName as DurationSourceName,
    ExpectedService as ExpectedService,
)
from .fair_share import (
    AccountShare as AccountShare,
    FairShare as FairShare,
)
from .guarantees import (
    GuaranteeRules as GuaranteeRules,
    QuotaAdmission as QuotaAdmission,
)
from .options import (
    Option as Option,
    OptionCache as OptionCache,
    Options as Options,
    allowed_gpu_range as allowed_gpu_range,
    requested_option as requested_option,
)
from .profiling import (
    Profiling as Profiling,
    ProfilingLimits as ProfilingLimits,
)
from .progress_estimator import ProgressEstimator as ProgressEstimator
from .queue_by_demand import (
    QueueByDemand as QueueByDemand,
    QueueEntry as QueueEntry,
)
from .reasons import Reasons as Reasons
from .rounds import (
    GpuBudget as GpuBudget,
    PreferredOptions as PreferredOptions,
    Rounds as Rounds,
    feasible_options as feasible_options,
    matches_option as matches_option,
)
from .run_watch import (
    RunWatch as RunWatch,
    WatchRules as WatchRules,
)
from .sharing import Sharing as Sharing
from .throughput import ThroughputPacker as ThroughputPacker
