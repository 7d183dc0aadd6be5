"""Gantt chart of GPU allocation over time. Runs are drawn as blocks or, if there are too many, as a raster image."""

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
from refold.model import WHOLE, Cluster, Share, format_duration
from refold.placement import Ints
from refold.simulator.results import svg
from refold.simulator.results.axes import Axis, Frame, Plot
from refold.simulator.results.charts import FULL_WIDTH, Chart, chart_html
from refold.simulator.results.measures import SIZES, midpoints, size_of

FILLS = ("#77aadd", "#ee8866", "#44bb99", "#eedd88", "#99ddff", "#ffaabb", "#bbcc33", "#aaaa00", "#b5b8bd")
"""Paul Tol's light colours: distinguishable for the colour-blind, on light and dark backgrounds. Grey: all others."""

MAX_BLOCKS = 12_000
"""Maximum number of blocks in all Gantt charts of a page; with more, images are used to keep the page small."""

MAX_IMAGE_COLUMNS, MAX_IMAGE_ROWS = 1000, 1080


@dataclass(frozen=True, slots=True, eq=False)
class JobColours:
    """The attribute that blocks are coloured by, the name of each fill, and the fill of each job."""

    attribute: str
    names: tuple[str, ...]
    fill_of_job: Ints


def choose_colours(history: History) -> JobColours:
    """Colour jobs by tenant, in order of GPU-hours, or by size if there is only one tenant."""
    if len(history.tenants) < 2:
        return JobColours("job size", SIZES, history.jobs.by_kind(size_of))
    gpu_seconds = np.bincount(
        history.jobs.tenant, history.jobs.gpus * history.time_running, minlength=len(history.tenants)
    )
    rank = np.empty(len(gpu_seconds), dtype=np.int64)
    rank[np.argsort(-gpu_seconds, kind="stable")] = np.arange(len(gpu_seconds))
    named = len(FILLS) if len(gpu_seconds) <= len(FILLS) else len(FILLS) - 1
    first = [history.tenants[tenant] for tenant in np.argsort(-gpu_seconds, kind="stable")[:named]]
    rest = ("all others",) if len(gpu_seconds) > named else ()
    return JobColours("tenant", (*first, *rest), np.minimum(rank, named)[history.jobs.tenant])


def count_blocks(history: History) -> int:
    return sum(
        1 for allocation in history.runs.allocations for share in allocation.placement for _ in _adjacent_gpus(share)
    )


def gantt_chart(history: History, colours: JobColours, axis: Axis, *, as_image: bool, label: str) -> Chart:
    gpus = history.cluster.gpus
    row_height = min(16.0, (400 if gpus <= 400 else 520) / max(gpus, 1))
    frame = Frame(FULL_WIDTH, row_height * gpus + 42, left=84, right=18, top=8, bottom=34)
    background = svg.tag(
        "rect", class_="background", x=frame.left, y=frame.top, width=frame.plot_width, height=frame.plot_height
    )
    data: dict[str, Any] = {
        "frame": [frame.left, frame.right_edge, frame.width],
        "rows": [frame.top, frame.bottom_edge, frame.height],
        "x": [axis.kind, axis.low, axis.high],
        "nodes": [[node.name, node.gpus] for node in history.cluster.nodes],
    }
    if as_image:
        drawn = [_image(history, colours, axis, frame)]
        data |= {"names": list(colours.names), "fills": list(FILLS)}
    else:
        blocks = list(_blocks(history, colours, axis, frame, row_height))
        drawn = [path for path, _ in blocks]
        data["blocks"] = [block for _, block in blocks]
    x_axis = Plot(frame, axis, Axis("count", 0, gpus)).draw_x_axis()
    names, borders = _node_labels(history.cluster, frame, row_height)
    return Chart(chart_html(frame, label, names, [background, *drawn, *borders, *x_axis], "gantt"), data)


def _node_labels(cluster: Cluster, frame: Frame, row_height: float) -> tuple[list[str], list[str]]:
    """Draw node names with sufficient distance, and lines between nodes that are high enough."""
    names: list[str] = []
    borders: list[str] = []
    top, last = frame.top, -100.0
    for node in cluster.nodes:
        height = node.gpus * row_height
        middle = top + height / 2
        if height >= 7 and top > frame.top:
            borders.append(svg.horizontal_line(frame.left, frame.right_edge, top, "node-border"))
        if height and middle - last >= 15:
            last = middle
            names.append(svg.label_text(svg.truncate(node.name, 12), frame.left - 8, middle, "tick y"))
        top += height
    return names, borders


def _first_rows(cluster: Cluster) -> list[int]:
    return [0, *accumulate(node.gpus for node in cluster.nodes)]


def _adjacent_gpus(share: Share) -> Iterator[tuple[int, int]]:
    """Yield the first and last GPU of each block: adjacent whole GPUs share one, fractions have their own.

    GPUs 0, 1, 2 and 5 give (0, 2) and (5, 5).
    """
    if share.gpu_milli < WHOLE:
        yield from ((gpu, gpu) for gpu in share.gpus)
        return
    gpus = sorted(share.gpus)
    if gpus and gpus[-1] - gpus[0] == len(gpus) - 1:
        yield gpus[0], gpus[-1]
        return
    for _, group in groupby(enumerate(gpus), key=lambda pair: pair[1] - pair[0]):
        adjacent = [gpu for _, gpu in group]
        yield adjacent[0], adjacent[-1]


def _blocks(
    history: History, colours: JobColours, axis: Axis, frame: Frame, row_height: float
) -> Iterator[tuple[str, list[Any]]]:
    first_rows = _first_rows(history.cluster)
    stacks = _ShareStacks()
    scale = frame.plot_width / (axis.high - axis.low)
    for run, allocation in enumerate(history.runs.allocations):
        start, end = float(history.runs.start[run]), float(history.run_end[run])
        job = int(history.runs.job[run])
        fill = f"f{colours.fill_of_job[job]}"
        block = [job, int(history.runs.number[run]), round(start, 1), round(end, 1), int(history.runs.ending[run])]
        left, width = frame.left + (start - axis.low) * scale, max((end - start) * scale, 0.4)
        for share in allocation.placement:
            for low, high in _adjacent_gpus(share):
                share_height, offset = _share_position(share, stacks, first_rows[share.node] + low, start, end)
                top = frame.top + (first_rows[share.node] + low + offset) * row_height
                height = (high - low) * row_height + share_height * row_height
                d = f"M{left:.1f} {top:.1f}h{width:.1f}v{height:.1f}h-{width:.1f}z"
                yield f'<path class="{fill}" d="{d}"/>', [*block, share.node, low, high]


def _share_position(share: Share, stacks: _ShareStacks, row: int, start: float, end: float) -> tuple[float, float]:
    """Return height and offset of a share within the row of its GPU; concurrent shares of a GPU are stacked."""
    if share.gpu_milli == WHOLE:
        return 1.0, 0.0
    return share.gpu_milli / WHOLE, stacks.add(row, share.gpu_milli, start, end) / WHOLE


class _ShareStacks:
    """Stacks the concurrent shares of each GPU: each gets the lowest free position."""

    def __init__(self) -> None:
        self._shares: dict[int, list[tuple[int, int, float]]] = {}

    def add(self, row: int, milli: int, start: float, end: float) -> int:
        current = sorted(share for share in self._shares.get(row, []) if share[2] > start)
        offset = 0
        for low, high, _ in current:
            if low - offset >= milli:
                break
            offset = max(offset, high)
        offset = min(offset, WHOLE - milli)
        self._shares[row] = [*current, (offset, offset + milli, end)]
        return offset


def _image(history: History, colours: JobColours, axis: Axis, frame: Frame) -> str:
    data = b64encode(encode_png(rasterise(history, colours, axis), FILLS)).decode()
    return svg.tag(
        "image",
        x=frame.left,
        y=frame.top,
        width=frame.plot_width,
        height=frame.plot_height,
        preserveAspectRatio="none",
        href=f"data:image/png;base64,{data}",
    )


def rasterise(history: History, colours: JobColours, axis: Axis) -> NDArray[np.uint8]:
    """Return a pixel per GPU and time: 0 if the GPU was free, else 1 + the fill of the job that held it."""
    gpus = history.cluster.gpus
    times = midpoints(axis.low, axis.high, MAX_IMAGE_COLUMNS)
    # On very large clusters only every n-th GPU is drawn, to limit the size of the image.
    every = max(1, -(-gpus // MAX_IMAGE_ROWS))
    pixels = np.zeros((max(1, -(-gpus // every)), len(times)), dtype=np.uint8)
    first = np.searchsorted(times, history.runs.start, side="left")
    beyond = np.searchsorted(times, history.run_end, side="left")
    fill = colours.fill_of_job[history.runs.job] + 1
    first_rows = _first_rows(history.cluster)
    for run in np.flatnonzero(first < beyond).tolist():
        for share in history.runs.allocations[run].placement:
            for gpu in share.gpus:
                row, remainder = divmod(first_rows[share.node] + gpu, every)
                if not remainder:
                    pixels[row, first[run] : beyond[run]] = fill[run]
    return pixels


def encode_png(pixels: NDArray[np.uint8], fills: Sequence[str]) -> bytes:
    """Encode the pixels as a PNG image with a palette: 0 is transparent, n is the n-th fill."""
    height, width = pixels.shape
    palette = b"\0\0\0" + b"".join(bytes.fromhex(fill[1:]) for fill in fills)
    lines = np.zeros((height, width + 1), dtype=np.uint8)  # each line begins with its filter type (0: none)
    lines[:, 1:] = pixels
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


def job_details(history: History) -> list[list[str]]:
    """Return the tooltip texts of each job: id, tenant, demand, work."""
    return [
        [job.id, job.tenant, str(job.demand), "" if job.work is None else format_duration(job.work)]
        for job in history.jobs.jobs
    ]
