from .drf import Drf as Drf
from .fifo import (
    Fifo as Fifo,
    FifoSkip as FifoSkip,
)
from .las import (
    ROUNDING_GPU_SECONDS as ROUNDING_GPU_SECONDS,
    THRESHOLD_GPU_SECONDS as THRESHOLD_GPU_SECONDS,
    Las as Las,
)
from .preempting import PreemptingQueue as PreemptingQueue
from .queue import Queue as Queue
from .sjf import Sjf as Sjf
from .srtf import Srtf as Srtf
