from .address import (
    LOOPBACK_OF_WILDCARD as LOOPBACK_OF_WILDCARD,
    Address as Address,
    local_url as local_url,
    read_address as read_address,
    state_folder as state_folder,
    write_address as write_address,
)
from .client import Client as Client
from .export import (
    EXPORT_ALL as EXPORT_ALL,
    ExportedVariables as ExportedVariables,
    choose_exported as choose_exported,
)
from .unix_sockets import (
    MACHINE_SOCKET as MACHINE_SOCKET,
    SOCKET_NAME as SOCKET_NAME,
    peer_uid as peer_uid,
    reachable_path as reachable_path,
    shared_socket_folder as shared_socket_folder,
)
