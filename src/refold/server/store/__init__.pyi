from .journal_reader import Checkpoint as Checkpoint, Epoch as Epoch, JournalReader as JournalReader
from .reader import ACTIVE as ACTIVE, EndedRow as EndedRow, StoreReader as StoreReader
from .store import (
    Commit as Commit,
    EndedJob as EndedJob,
    FolderInUse as FolderInUse,
    NewJob as NewJob,
    Store as Store,
)
