from .backend import SLOT as SLOT, LocalBackend as LocalBackend, local_cluster as local_cluster
from .log_files import LogChunk as LogChunk, read_from as read_from, read_piece as read_piece, size as size
from .nvidia import (
    DetectedGpu as DetectedGpu,
    GpuProblem as GpuProblem,
    GpuReading as GpuReading,
    NvidiaDriver as NvidiaDriver,
    open_driver as open_driver,
)
from .run_files import RunFiles as RunFiles, log_path as log_path
from .safe_files import OutOfFileHandles as OutOfFileHandles, read_plain as read_plain
