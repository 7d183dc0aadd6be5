from .reader import Chapter as Chapter, Checkpoint as Checkpoint, EndedRow as EndedRow, Reading as Reading
from .store import Commit as Commit, EndedJob as EndedJob, NewJob as NewJob, Store as Store
