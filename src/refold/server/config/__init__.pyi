from .reader import read_config as read_config
from .settings import (
    BadGpuRule as BadGpuRule,
    ClusterChoice as ClusterChoice,
    Config as Config,
    IdleRule as IdleRule,
    Kind as Kind,
    NotifyChoice as NotifyChoice,
    OutputRule as OutputRule,
    PolicyChoice as PolicyChoice,
    Then as Then,
    WatchChoice as WatchChoice,
)
from .template import write_commented as write_commented
