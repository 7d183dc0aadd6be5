"""Segments: how the step time depends on the nodes that are together in one NVLink domain, such as an NVL72 rack."""

from __future__ import annotations

from msgspec.structs import replace

from refold.model import Plan
from refold.planning.perf import FormulaLine, Section, TrainingSetup, estimate
from refold.planning.plans.selection import TIE_FACTOR


def segment_times(setup: TrainingSetup, plan: Plan) -> dict[int, float]:
    """Return the step time by segment, in nodes, if each segment is in a domain of its own; {}: domains are nodes."""
    machines = setup.machines
    each = machines.gpus_on_node[0]
    if machines.gpu.link_domain < 2 * each or machines.nodes == 1 or set(machines.gpus_on_node) != {each}:
        return {}
    most = machines.gpu.link_domain // each
    sizes = [nodes for nodes in range(1, most + 1) if machines.nodes % nodes == 0]
    domains = {nodes: (nodes * each,) * (machines.nodes // nodes) for nodes in sizes}
    setups = {nodes: replace(setup, machines=replace(machines, link_domains=gpus)) for nodes, gpus in domains.items()}
    return {nodes: estimate(one, plan).step_seconds for nodes, one in setups.items()}


def explain_segments(setup: TrainingSetup, plan: Plan) -> tuple[Section, ...]:
    """Explain which segment to request, and what it costs if fewer nodes are together."""
    times = segment_times(setup, plan)
    if len(times) < 2:
        return ()
    fastest = min(times.values())
    best = next(nodes for nodes, seconds in times.items() if seconds <= fastest * TIE_FACTOR)
    lines = [_line("segment", best, "nodes", "the smallest segment with which a step takes at most 1 % longer")]
    for nodes, seconds in times.items():
        more = f", {seconds / fastest - 1:.0%} longer".replace("%", " %") if seconds > fastest * TIE_FACTOR else ""
        together = f"{nodes} nodes" if nodes > 1 else "no nodes"
        lines.append(_line(f"step_{nodes}", seconds, "s", f"{together} together in an NVLink domain{more}"))
    return (Section("Segments: step time by the nodes that are in one NVLink domain", tuple(lines)),)


def _line(name: str, value: float, unit: str, meaning: str) -> FormulaLine:
    return FormulaLine(name, "", "", value, unit, meaning)
