from .limits import MIN_CONNECTIONS as MIN_CONNECTIONS, HttpConfig as HttpConfig, LimitsConfig as LimitsConfig
from .reader import read_config as read_config
from .settings import (
    POWER_PLACEMENT as POWER_PLACEMENT,
    POWER_POLICIES as POWER_POLICIES,
    BadGpuRule as BadGpuRule,
    ClusterConfig as ClusterConfig,
    Config as Config,
    IdleRule as IdleRule,
    NotificationKind as NotificationKind,
    NotifyConfig as NotifyConfig,
    OutputAction as OutputAction,
    OutputRule as OutputRule,
    PolicyConfig as PolicyConfig,
    PowerConfig as PowerConfig,
    PowerRange as PowerRange,
    ServeConfig as ServeConfig,
    SlurmConfig as SlurmConfig,
    UsersConfig as UsersConfig,
    WatchConfig as WatchConfig,
)
from .template import write_template as write_template
from .topology import Topology as Topology
from .values import AUTO as AUTO, OFF as OFF
