from .address import (
    LOOPBACK_OF_WILDCARD as LOOPBACK_OF_WILDCARD,
    MACHINE_SOCKET as MACHINE_SOCKET,
    SOCKET_NAME as SOCKET_NAME,
    Address as Address,
    local_url as local_url,
    peer_uid as peer_uid,
    reachable_path as reachable_path,
    read_address as read_address,
    shared_socket_folder as shared_socket_folder,
    state_folder as state_folder,
    write_address as write_address,
)
from .client import Client as Client
from .export import EXPORT_ALL as EXPORT_ALL, ExportedVariables as ExportedVariables, choose_exported as choose_exported
