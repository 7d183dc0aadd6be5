from .backups import (
    BACKUPS_FOLDER as BACKUPS_FOLDER,
    backup_name as backup_name,
    copy_database as copy_database,
    list_backups as list_backups,
    remove_old_backups as remove_old_backups,
    restore_database as restore_database,
)
from .folder_lock import FILE_NAME as FILE_NAME, FolderInUse as FolderInUse, FolderLock as FolderLock
from .journal_reader import Checkpoint as Checkpoint, JournalReader as JournalReader, StoredEpoch as StoredEpoch
from .reader import (
    ACTIVE as ACTIVE,
    EndedRow as EndedRow,
    GroupUsage as GroupUsage,
    StoreReader as StoreReader,
    with_launch as with_launch,
    without_launch as without_launch,
)
from .store import Commit as Commit, EndedJob as EndedJob, NewJob as NewJob, Store as Store
