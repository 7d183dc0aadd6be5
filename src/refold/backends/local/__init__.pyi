from .backend import SLOT as SLOT, LocalBackend as LocalBackend, local_cluster as local_cluster
from .log_files import Piece as Piece, read_from as read_from, read_piece as read_piece, size as size
from .nvidia import Driver as Driver, Gpu as Gpu, Problem as Problem, Reading as Reading, open_driver as open_driver
from .run_files import RunFiles as RunFiles, log_path as log_path
from .safe_files import NotNow as NotNow, read_plain as read_plain
