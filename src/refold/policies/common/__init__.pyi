from .defragment import Defragment as Defragment
from .draft import (
    Board as Board,
    Steering as Steering,
    jobs_over as jobs_over,
    something_happened as something_happened,
)
from .durations import Foresight as Foresight, Source as Source
from .guarantees import Promises as Promises
from .options import (
    WORTH_MORE as WORTH_MORE,
    Option as Option,
    Options as Options,
    as_asked as as_asked,
    range_of as range_of,
)
from .outlook import Outlook as Outlook
from .queue_by_demand import Lines as Lines, Place as Place
from .reasons import Reasons as Reasons
from .rounds import Budget as Budget, Rounds as Rounds, Wishes as Wishes, is_held as is_held, possible as possible
from .run_watch import Rules as Rules, Watch as Watch
from .throughput import Throughput as Throughput
