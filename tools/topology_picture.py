"""Draw a small cluster with levels and the jobs on it as SVG: `python tools/topology_picture.py PICTURE.svg`.

For docs/topology.md. The jobs are placed one after the other, as the scheduler places them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from html import escape
from pathlib import Path

from refold.model import Cluster, Demand, Placement, TopologyRequest
from refold.placement import FreeResources, Placer
from refold.simulator.traces import read_cluster

CLUSTER = "2 blocks of 3 racks of 4x4:GB200"
JOBS = {
    "a (1 × 4 GPUs)": Demand(1, 4),
    "b (2 × 4 GPUs)": Demand(2, 4),
    "c (1 × 2 GPUs)": Demand(1, 2),
    "J (8 × 4 GPUs)": Demand(8, 4, topology=TopologyRequest("block", segment=4, segment_level="rack")),
}
"""The last job requires one block, and each 4 of its instances in one rack."""

COLOURS = ("#4a7c8c", "#c0661a", "#2c8f5b", "#2f5fd0")
CELL, GAP, PAD, TITLE = 16, 4, 10, 18
NODE_WIDTH = 4 * CELL + GAP
LEGEND = 28


def place_all(cluster: Cluster) -> dict[str, Placement]:
    """Place the jobs in their order."""
    free, placer = FreeResources(cluster), Placer("best-fit")
    found = {name: placer.place(free, demand) for name, demand in JOBS.items()}
    return {name: placement for name, placement in found.items() if placement is not None}


def draw(cluster: Cluster, placements: Mapping[str, Placement]) -> str:
    """Return the picture: blocks side by side, their racks below one another, the nodes of a rack in a line."""
    job_of = {
        (share.node, gpu): number
        for number, placement in enumerate(placements.values())
        for share in placement
        for gpu in share.gpus
    }
    blocks: dict[str, dict[str, list[int]]] = {}
    for index, node in enumerate(cluster.nodes):
        block, rack = node.domains
        blocks.setdefault(block, {}).setdefault(rack, []).append(index)
    racks, nodes = max(map(len, blocks.values())), max(len(own) for block in blocks.values() for own in block.values())
    rack_size = (nodes * (NODE_WIDTH + GAP) - GAP + 2 * PAD, 2 * TITLE + CELL + PAD)
    block_size = (rack_size[0] + 2 * PAD, TITLE + racks * (rack_size[1] + PAD))
    width, height = len(blocks) * (block_size[0] + PAD) + PAD, block_size[1] + 2 * PAD + LEGEND
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for column, (block, own_racks) in enumerate(blocks.items()):
        left = PAD + column * (block_size[0] + PAD)
        lines += _frame(left, PAD, block_size, block, "#888")
        for row, (rack, members) in enumerate(own_racks.items()):
            x, y = left + PAD, PAD + TITLE + row * (rack_size[1] + PAD)
            lines += _frame(x, y, rack_size, rack, "#bbb")
            for place, node in enumerate(members):
                at = (x + PAD + place * (NODE_WIDTH + GAP), y + TITLE)
                lines += _node(*at, cluster.nodes[node].name, [job_of.get((node, gpu)) for gpu in range(4)])
    for number, name in enumerate(placements):
        x, y = PAD + number * 130, height - LEGEND + 6
        lines.append(f'<rect x="{x}" y="{y}" width="{CELL - 2}" height="{CELL - 2}" rx="3" fill="{COLOURS[number]}"/>')
        lines.append(f'<text x="{x + CELL + 4}" y="{y + 12}" fill="#222">{escape(name)}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _frame(x: int, y: int, size: tuple[int, int], title: str, colour: str) -> list[str]:
    return [
        f'<rect x="{x}" y="{y}" width="{size[0]}" height="{size[1]}" rx="6" fill="none" stroke="{colour}"/>',
        f'<text x="{x + PAD}" y="{y + 14}" fill="#555">{escape(title)}</text>',
    ]


def _node(x: int, y: int, name: str, jobs: list[int | None]) -> list[str]:
    """Return the GPUs of a node, in the colours of their jobs, and its name below."""
    lines = [f'<text x="{x}" y="{y + CELL + 13}" fill="#555">{escape(name)}</text>']
    for gpu, job in enumerate(jobs):
        fill = "#ffffff" if job is None else COLOURS[job]
        lines.append(
            f'<rect x="{x + gpu * CELL}" y="{y}" width="{CELL - 2}" height="{CELL - 2}" rx="3" fill="{fill}" '
            'stroke="#999"/>'
        )
    return lines


if __name__ == "__main__":
    found = read_cluster(CLUSTER)
    Path(sys.argv[1]).write_text(draw(found, place_all(found)), encoding="utf-8")
