"""GPUs × time: who held which GPU when. Few runs are drawn one by one; many become one image with a dot per moment."""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refold.journal import History
from refold.model import WHOLE, Cluster, Share, text_from_seconds
from refold.packing import Ints
from refold.results import svg
from refold.results.charts import WIDE, Axis, Chart, Frame, bottom_axis, cut
from refold.results.measures import SIZES, middles, size_of

FILLS = ("#77aadd", "#ee8866", "#44bb99", "#eedd88", "#99ddff", "#ffaabb", "#bbcc33", "#aaaa00", "#b5b8bd")
"""Paul Tol's light colours, which colour-blind eyes tell apart and which stand on light and dark; grey is the rest."""

MOST_BLOCKS = 12_000
"""More blocks than this, over all pictures of a page, make it heavy; then they become images."""

MOST_COLUMNS, MOST_ROWS = 1000, 1080


@dataclass(frozen=True, slots=True, eq=False)
class Colouring:
    """By what blocks are coloured: the name of each fill, and the fill of each job."""

    by: str
    names: tuple[str, ...]
    of_job: Ints


def colouring(history: History) -> Colouring:
    """By tenant, those with most GPU-hours first; where all jobs are of one tenant, by size."""
    if len(history.tenants) < 2:
        sizes = np.array([size_of(job) for job in history.jobs.jobs], dtype=np.int64)
        return Colouring("job size", SIZES, sizes)
    held = np.bincount(history.jobs.tenant, history.jobs.gpus * history.time_running, minlength=len(history.tenants))
    rank = np.empty(len(held), dtype=np.int64)
    rank[np.argsort(-held, kind="stable")] = np.arange(len(held))
    named = len(FILLS) if len(held) <= len(FILLS) else len(FILLS) - 1
    first = [history.tenants[tenant] for tenant in np.argsort(-held, kind="stable")[:named]]
    rest = ("all others",) if len(held) > named else ()
    return Colouring("tenant", (*first, *rest), np.minimum(rank, named)[history.jobs.tenant])


def blocks_of(history: History) -> int:
    """How many blocks it takes to draw a history one by one."""
    return sum(sum(1 for _ in _stretches(share)) for one in history.runs.allocations for share in one.placement)


def gantt_picture(history: History, colours: Colouring, axis: Axis, *, as_image: bool, label: str) -> Chart:
    """The picture of one history."""
    gpus = history.cluster.gpus
    row = min(16.0, (400 if gpus <= 400 else 520) / max(gpus, 1))
    frame = Frame(WIDE, row * gpus + 42, left=84, right=18, top=8, bottom=34)
    ground = svg.tag("rect", class_="ground", x=frame.left, y=frame.top, width=frame.across, height=frame.down)
    numbers: dict[str, Any] = {
        "frame": [frame.left, frame.right_edge, frame.width],
        "rows": [frame.top, frame.bottom_edge, frame.height],
        "x": [axis.kind, axis.low, axis.high],
        "nodes": [[node.name, node.gpus] for node in history.cluster.nodes],
    }
    if as_image:
        drawn = [_image(history, colours, axis, frame)]
        numbers |= {"names": list(colours.names), "fills": list(FILLS)}
    else:
        blocks = list(_blocks(history, colours, axis, frame, row))
        drawn = [path for path, _ in blocks]
        numbers["blocks"] = [block for _, block in blocks]
    parts = [ground, *drawn, *_node_names(history.cluster, frame, row), *bottom_axis(frame, axis)]
    return Chart(svg.drawing(frame.width, frame.height, label, parts, "gantt"), numbers)


def _node_names(cluster: Cluster, frame: Frame, row: float) -> list[str]:
    """A line between nodes where there is room for one, and as many names as can be read."""
    parts, top, last = [], frame.top, -100.0
    for node in cluster.nodes:
        high = node.gpus * row
        middle = top + high / 2
        if high >= 7 and top > frame.top:
            parts.append(svg.across(frame.left, frame.right_edge, top, "between"))
        if high and middle - last >= 15:
            last = middle
            parts.append(svg.words(cut(node.name, 12), frame.left - 8, middle, "tick y"))
        top += high
    return parts


def _first_rows(cluster: Cluster) -> list[int]:
    """The row of each node's first GPU."""
    return [0, *accumulate(node.gpus for node in cluster.nodes)]


def _stretches(share: Share) -> Iterator[tuple[int, int]]:
    """GPUs that are drawn as one block: whole neighbours, so that (0, 1, 2, 5) are 0 to 2 and 5 to 5; parts alone."""
    if share.gpu_milli < WHOLE:
        yield from ((gpu, gpu) for gpu in share.gpus)
        return
    for _, group in groupby(enumerate(sorted(share.gpus)), key=lambda pair: pair[1] - pair[0]):
        neighbours = [gpu for _, gpu in group]
        yield neighbours[0], neighbours[-1]


def _blocks(
    history: History, colours: Colouring, axis: Axis, frame: Frame, row: float
) -> Iterator[tuple[str, list[Any]]]:
    first_rows = _first_rows(history.cluster)
    shelves = _Shelves()
    scale = frame.across / (axis.high - axis.low)
    for run, allocation in enumerate(history.runs.allocations):
        start, end = float(history.runs.start[run]), float(history.run_end[run])
        job = int(history.runs.job[run])
        block = [job, int(history.runs.number[run]), round(start, 1), round(end, 1), int(history.runs.ending[run])]
        left, wide = frame.left + (start - axis.low) * scale, max((end - start) * scale, 0.4)
        for share in allocation.placement:
            for low, high in _stretches(share):
                part, offset = _height_within(share, shelves, first_rows[share.node] + low, start, end)
                top = frame.top + (first_rows[share.node] + low + offset) * row
                tall = (high - low) * row + part * row
                d = f"M{left:.1f} {top:.1f}h{wide:.1f}v{tall:.1f}h-{wide:.1f}z"
                yield svg.tag("path", class_=f"f{colours.of_job[job]}", d=d), [*block, share.node, low, high]


def _height_within(share: Share, shelves: _Shelves, row: int, start: float, end: float) -> tuple[float, float]:
    """How much of a GPU's row a share takes, and from where: shares of one GPU stand above each other."""
    if share.gpu_milli == WHOLE:
        return 1.0, 0.0
    return share.gpu_milli / WHOLE, shelves.place(row, share.gpu_milli, start, end) / WHOLE


class _Shelves:
    """Where the shares of each GPU stand: the lowest place that is free for now."""

    def __init__(self) -> None:
        self._standing: dict[int, list[tuple[int, int, float]]] = {}

    def place(self, row: int, milli: int, start: float, end: float) -> int:
        state = sorted(one for one in self._standing.get(row, []) if one[2] > start)
        at = 0
        for low, high, _ in state:
            if low - at >= milli:
                break
            at = max(at, high)
        at = min(at, WHOLE - milli)
        self._standing[row] = [*state, (at, at + milli, end)]
        return at


def _image(history: History, colours: Colouring, axis: Axis, frame: Frame) -> str:
    data = b64encode(png_of(raster(history, colours, axis), FILLS)).decode()
    return svg.tag(
        "image",
        x=frame.left,
        y=frame.top,
        width=frame.across,
        height=frame.down,
        preserveAspectRatio="none",
        href=f"data:image/png;base64,{data}",
    )


def raster(history: History, colours: Colouring, axis: Axis) -> NDArray[np.uint8]:
    """A dot per GPU and moment: 0 where nobody held it, else 1 more than the fill of the job that did."""
    gpus = history.cluster.gpus
    times = middles(axis.low, axis.high, MOST_COLUMNS)
    # Of a very large cluster every n-th GPU is drawn, so that the image stays one that a page can carry.
    every = max(1, -(-gpus // MOST_ROWS))
    dots = np.zeros((max(1, -(-gpus // every)), len(times)), dtype=np.uint8)
    first = np.searchsorted(times, history.runs.start, side="left").tolist()
    beyond = np.searchsorted(times, history.run_end, side="left").tolist()
    fill = (colours.of_job[history.runs.job] + 1).tolist()
    first_rows = _first_rows(history.cluster)
    for run, allocation in enumerate(history.runs.allocations):
        if first[run] == beyond[run]:
            continue
        for share in allocation.placement:
            for gpu in share.gpus:
                row, left_over = divmod(first_rows[share.node] + gpu, every)
                if not left_over:
                    dots[row, first[run] : beyond[run]] = fill[run]
    return dots


def png_of(dots: NDArray[np.uint8], fills: Sequence[str]) -> bytes:
    """A PNG image with a palette; 0 is transparent and n is the n-th fill."""
    height, width = dots.shape
    palette = b"\0\0\0" + b"".join(bytes.fromhex(fill[1:]) for fill in fills)
    lines = np.zeros((height, width + 1), dtype=np.uint8)  # each line begins with its filter, 0: none
    lines[:, 1:] = dots
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = (
        (b"IHDR", header),
        (b"PLTE", palette),
        (b"tRNS", b"\0"),
        (b"IDAT", zlib.compress(lines.tobytes(), 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def job_texts(history: History) -> list[list[str]]:
    """What a pointer on a block is told of its job: id, tenant, demand, work."""
    return [
        [job.id, job.tenant, str(job.demand), "" if job.work is None else text_from_seconds(job.work)]
        for job in history.jobs.jobs
    ]
