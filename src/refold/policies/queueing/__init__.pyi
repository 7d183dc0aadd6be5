from .drf import Drf as Drf
from .fcfs import Fcfs as Fcfs
from .fifo import Fifo as Fifo, FifoSkip as FifoSkip
from .las import Las as Las
from .preempting import PreemptingQueue as PreemptingQueue
from .queue import Queue as Queue
from .sjf import Sjf as Sjf
from .srtf import Srtf as Srtf
