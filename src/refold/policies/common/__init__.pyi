from .defragment import Defragment as Defragment
from .draft import (
    Draft as Draft,
    Transition as Transition,
    jobs_over as jobs_over,
    something_happened as something_happened,
)
from .durations import DurationSource as DurationSource, Source as Source
from .guarantees import GuaranteeRules as GuaranteeRules
from .options import (
    WORTH_MORE as WORTH_MORE,
    Option as Option,
    OptionCache as OptionCache,
    as_asked as as_asked,
    range_of as range_of,
)
from .outlook import Outlook as Outlook
from .queue_by_demand import Place as Place, QueueByDemand as QueueByDemand
from .reasons import Reasons as Reasons
from .rounds import Budget as Budget, Rounds as Rounds, Wishes as Wishes, is_held as is_held, possible as possible
from .run_watch import RunWatch as RunWatch, WatchRules as WatchRules
from .throughput import Throughput as Throughput
