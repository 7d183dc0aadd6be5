from .reader import Checkpoint as Checkpoint, EndedRow as EndedRow, Epoch as Epoch, StoreReader as StoreReader
from .store import Commit as Commit, EndedJob as EndedJob, NewJob as NewJob, Store as Store
