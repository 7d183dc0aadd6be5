"""Communication time: ring collectives over the slowest link that a group of GPUs crosses.

Ranks are in the common order: tensor-parallel ranks are adjacent, then data-parallel ranks, and pipeline stages are
furthest apart. A group is `members` ranks that are `stride` apart.
"""

from __future__ import annotations

from math import ceil, gcd
from typing import NamedTuple

import numpy as np

from refold.perf.columns import FULL, Column, PlanColumns
from refold.perf.hardware import Machines
from refold.perf.training_setup import TrainingSetup

TENSOR_COLLECTIVES = 4.0
"""All-reduces per layer: after attention and after feed-forward, in the forward and in the backward pass. With sequence
parallelism each is a reduce-scatter and an all-gather, which transfer as many bytes."""


class GroupLayout(NamedTuple):
    """Placement of a group: members per node, number of nodes, and how many such groups share a node's network."""

    on_node: Column
    nodes: Column
    sharing: Column


def group_layout(machines: Machines, members: Column, stride: Column) -> GroupLayout:
    """Return the layout of a group. A block of ranks lies within nodes if every node holds a whole number of blocks."""
    common = gcd(*machines.gpus_on_node)
    inside = np.mod(common, stride * members) == 0
    per_node = machines.gpus / machines.nodes
    on_node = np.where(inside, members, np.clip(per_node / stride, 1.0, members))
    return GroupLayout(on_node, np.maximum(1.0, members / on_node), np.minimum(stride, per_node))


def link_rate(machines: Machines) -> float:
    """Return the effective bytes per second from a GPU to another GPU of its node."""
    return machines.inside.gigabytes_per_second * 1e9 * machines.gpu.efficiency.link


def node_rate(machines: Machines) -> float:
    """Return the effective bytes per second out of the node with the fewest GPUs, over the network cards it uses."""
    gpu = machines.gpu
    cards = ceil(min(machines.gpus_on_node) * gpu.network_cards / gpu.gpus_per_node)
    share = min(1.0, cards / gpu.network_cards)
    return machines.network.gigabytes_per_second * 1e9 * share * machines.gpu.efficiency.network


def ring_seconds(
    machines: Machines, payload: Column, members: Column, stride: Column, inter_node_factor: float = 1.0
) -> Column:
    """Return the seconds of a reduce-scatter or an all-gather of `payload` bytes; an all-reduce takes two of them.

    `inter_node_factor`: how many times the bytes cross between nodes, for frameworks that do not gather in rings.
    """
    return pass_seconds(machines, payload, group_layout(machines, members, stride), inter_node_factor)


def pass_seconds(machines: Machines, payload: Column, layout: GroupLayout, inter_node_factor: float = 1.0) -> Column:
    """Return the seconds of a reduce-scatter or an all-gather of `payload` bytes in a group with a known layout."""
    inside = payload * (1 - 1 / layout.on_node) / link_rate(machines)
    across = payload * (1 - 1 / layout.nodes) * layout.sharing * inter_node_factor / node_rate(machines)
    latency = (
        machines.inside.latency_microseconds * np.log2(layout.on_node)
        + machines.network.latency_microseconds * np.log2(layout.nodes)
    ) * 1e-6
    return np.maximum(inside, across) + latency


def tensor_seconds(setup: TrainingSetup, plans: PlanColumns) -> Column:
    """Return the exposed seconds of tensor-parallel communication for one layer and one micro-batch."""
    if setup.model.opaque:
        return np.zeros(len(plans))
    model = setup.model
    per_layer = TENSOR_COLLECTIVES * model.attentions / model.blocks
    collectives = per_layer * np.where(plans.recompute == FULL, 1.5, 1.0)
    payload = setup.micro_tokens(plans) * model.hidden * setup.engine.value_bytes
    neighbours, inter_node_factor = np.ones(len(plans)), setup.engine.tensor_inter_node_traffic
    exposed = 2 * (1 - setup.engine.overlap_tensor)
    return exposed * collectives * ring_seconds(setup.machines, payload, plans.tensor, neighbours, inter_node_factor)


def stage_seconds(setup: TrainingSetup, plans: PlanColumns) -> Column:
    """Return the seconds of point-to-point transfers of a pipeline stage for one micro-batch, forward and backward."""
    machines = setup.machines
    stride = plans.data * plans.tensor
    layout = group_layout(machines, plans.pipeline, stride)
    payload = setup.micro_tokens(plans) * setup.model.hidden * setup.engine.value_bytes / plans.tensor
    card = node_rate(machines) / min(machines.gpus_on_node)
    seconds = payload / np.where(layout.nodes > 1, card, link_rate(machines))
    return np.where(plans.pipeline > 1, 2 * plans.interleave * seconds, 0.0)


class DataParallelTime(NamedTuple):
    """Seconds of data-parallel communication: gradients and weights, per step or per micro-batch."""

    gradients_per_step: Column
    gradients_per_micro_batch: Column
    weights_per_step: Column
    weights_per_pass: Column


def gradient_seconds(setup: TrainingSetup, plans: PlanColumns, parameters: Column) -> DataParallelTime:
    """Return the communication time of gradients and, with ZeRO, of weights; `parameters` are those of a GPU's stage.

    Without ZeRO and in stage 1, gradients are exchanged once per step; from stage 2 on only shards of them are stored,
    so they are exchanged for each micro-batch. In stages 1 and 2 the updated weights are gathered once per step, in
    stage 3 for every forward and every backward pass.
    """
    engine = setup.engine
    group = group_layout(setup.machines, plans.data, plans.tensor)
    gradients = pass_seconds(setup.machines, engine.gradient_traffic_bytes * parameters, group)
    weights = pass_seconds(setup.machines, engine.weight_bytes * parameters, group)
    full_exchange = plans.zero <= (0 if engine.scatters_gradients else 1)
    exchange = np.where(plans.data > 1, np.where(full_exchange, 2 * gradients, gradients), 0.0)
    gather = np.where(plans.data > 1, weights, 0.0)
    latency = np.where(plans.data > 1, engine.message_seconds * plans.data * setup.stage_blocks(plans), 0.0)
    per_layer = np.ones(len(plans), bool) if engine.reduces_each_micro_batch else plans.zero >= 2
    return DataParallelTime(
        np.where(per_layer, 0.0, exchange) + latency,
        np.where(per_layer, exchange, 0.0),
        np.where((plans.zero == 1) | (plans.zero == 2), gather, 0.0),
        np.where(plans.zero == 3, gather, 0.0),
    )
