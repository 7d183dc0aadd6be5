from .address import (
    Address as Address,
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
