from .connections import ConnectionTable as ConnectionTable
from .http_protocol import make_http_server as make_http_server
from .limits import (
    ConnectionLimits as ConnectionLimits,
    describe_fewer_connections as describe_fewer_connections,
    limits_for as limits_for,
)
from .turnstile import LoopLag as LoopLag
