"""Communication time: ring collectives over the slowest link that a group of GPUs crosses.

A ring leaves each node, and each domain of a level such as racks, once; the nodes of a domain share its links outside.
Ranks are in the common order: tensor-parallel ranks are adjacent, then context-parallel and data-parallel ranks, and
pipeline stages are furthest apart. A group is `members` ranks that are `stride` apart.
"""

from __future__ import annotations

from math import ceil, gcd
from typing import NamedTuple

import numpy as np

from refold.planning.perf.columns import FULL, Column, PlanColumns
from refold.planning.perf.compute import BACKWARD_ATTENTION, attention_seconds, imbalance
from refold.planning.perf.hardware import Crossing, Machines
from refold.planning.perf.training_setup import TrainingSetup

TENSOR_COLLECTIVES = 2.0
"""All-reduces for each part of a layer, attention and feed-forward: in the forward and in the backward pass. With
sequence parallelism each is a reduce-scatter and an all-gather, which transfer as many bytes."""


class DomainLayout(NamedTuple):
    """Placement of a group in the domains of a level that the job crosses, such as racks.

    Number of domains, how many such groups share the links of a domain, the bytes per second out of the smallest
    domain, its GPUs, and the mean number of GPUs in a domain.
    """

    domains: Column
    sharing: Column
    rate: float
    smallest: int
    gpus: float


class GroupLayout(NamedTuple):
    """Placement of a group: members per node, number of nodes, and how many such groups share a node's network.

    Where links connect the GPUs of several nodes, these count as one node. `levels`: in domains further outside.
    """

    on_node: Column
    nodes: Column
    sharing: Column
    levels: tuple[DomainLayout, ...] = ()


def group_layout(machines: Machines, members: Column, stride: Column) -> GroupLayout:
    """Return the layout of a group. A block of ranks lies within nodes if every node holds a whole number of blocks."""
    inside = _lie_within(machines.domains, members, stride)
    per_node = machines.gpus / len(machines.domains)
    on_node = np.where(inside, members, np.clip(per_node / stride, 1.0, members))
    levels = tuple(_domain_layout(machines, level, members, stride) for level in machines.crossings)
    return GroupLayout(on_node, np.maximum(1.0, members / on_node), np.minimum(stride, per_node), levels)


def _lie_within(domains: tuple[int, ...], members: Column, stride: Column) -> Column:
    blocks = gcd(*domains) / (stride * members)
    return np.asarray(blocks == np.floor(blocks))


def _domain_layout(machines: Machines, level: Crossing, members: Column, stride: Column) -> DomainLayout:
    """Return the layout of a group on a level: some groups cross it unless all lie within domains."""
    gpus, smallest = machines.gpus / len(level.gpus_in_domain), min(level.gpus_in_domain)
    crossed = np.maximum(2.0, members / np.clip(gpus / stride, 1.0, members))
    domains = np.where(_lie_within(level.gpus_in_domain, members, stride), 1.0, crossed)
    nodes = smallest * machines.nodes / machines.gpus
    rate = level.network.gigabytes_per_second * 1e9 * nodes * machines.gpu.efficiency.network
    return DomainLayout(domains, np.minimum(stride, gpus), rate, smallest, gpus)


def link_rate(machines: Machines) -> float:
    """Return the effective bytes per second from a GPU to another GPU of its node."""
    return machines.inside.gigabytes_per_second * 1e9 * machines.gpu.efficiency.link


def node_rate(machines: Machines) -> float:
    """Return the effective bytes per second out of the node with the fewest GPUs, over the network cards it uses."""
    gpu, domains = machines.gpu, machines.domains
    cards = ceil(min(domains) * gpu.network_cards / gpu.gpus_per_node)
    share = min(machines.nodes / len(domains), cards / gpu.network_cards)
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
    slowest = np.maximum(np.maximum(inside, across), payload * inter_node_factor * ring_crossing(layout))
    return slowest + _latency(machines, layout)


def ring_crossing(layout: GroupLayout) -> Column:
    """Return the seconds for each byte of a ring collective between domains of the slowest level that is crossed."""
    seconds = [(1 - 1 / level.domains) * level.sharing / level.rate for level in layout.levels]
    return np.asarray(np.max(seconds, axis=0, initial=0.0))


def exchange_crossing(setup: TrainingSetup, layout: GroupLayout) -> Column:
    """Return the same for each byte that a GPU sends to experts."""
    model, seconds = setup.model, []
    for level in layout.levels:
        others = _others(level.domains, model.experts_per_token, model.groups_per_token or np.inf)
        seconds.append(others * level.gpus / level.rate)
    return np.asarray(np.max(seconds, axis=0, initial=0.0))


def stage_crossing(layout: GroupLayout) -> Column:
    """Return the same for each byte that a GPU sends to the next pipeline stage."""
    seconds = [np.where(level.domains > 1, level.smallest / level.rate, 0.0) for level in layout.levels]
    return np.asarray(np.max(seconds, axis=0, initial=0.0))


def _latency(machines: Machines, layout: GroupLayout) -> Column:
    """Return the seconds until the first bytes have reached all members."""
    inside = machines.inside.latency_microseconds * np.log2(layout.on_node)
    return (inside + machines.network.latency_microseconds * np.log2(layout.nodes)) * 1e-6


def tensor_seconds(setup: TrainingSetup, plans: PlanColumns) -> Column:
    """Return the exposed seconds of tensor-parallel communication for one layer and one micro-batch."""
    if setup.model.opaque:
        return np.zeros(len(plans))
    model = setup.model
    collectives = TENSOR_COLLECTIVES * model.parts * np.where(plans.recompute == FULL, 1.5, 1.0)
    payload = setup.micro_tokens(plans) * model.hidden * setup.engine.value_bytes
    neighbours, inter_node_factor = np.ones(len(plans)), setup.engine.tensor_inter_node_traffic
    exposed = 2 * setup.engine.tensor_factor * (1 - setup.engine.overlap_tensor * (1 - 1 / plans.tensor))
    return exposed * collectives * ring_seconds(setup.machines, payload, plans.tensor, neighbours, inter_node_factor)


def context_seconds(setup: TrainingSetup, plans: PlanColumns) -> Column:
    """Return the exposed seconds of context-parallel communication for one layer and one micro-batch.

    Each GPU needs the keys and values of all others: once in a forward pass, also if that is repeated, and in the
    backward pass, after which their gradients are summed. In a ring, blocks of keys and values travel while attention
    is computed with the block before, except for the first one.
    """
    if setup.model.opaque:
        return np.zeros(len(plans))
    model = setup.model
    once = pass_seconds(
        setup.machines, key_value_bytes(setup, plans), group_layout(setup.machines, plans.context, plans.tensor)
    )
    hidden = setup.engine.overlap_context * (1 - 1 / plans.context) * attention_seconds(setup, plans)
    forward = np.where(plans.recompute > 0, 2.0, 1.0) * np.maximum(0.0, once - hidden)
    backward = np.maximum(0.0, 2 * once - BACKWARD_ATTENTION * hidden)
    return np.where(plans.context > 1, (forward + backward) * model.attentions / model.blocks, 0.0)


def key_value_bytes(setup: TrainingSetup, plans: PlanColumns) -> Column:
    """Return the bytes of the keys and values of a layer and micro-batch that a GPU needs with context parallelism."""
    model = setup.model
    width = np.maximum(model.key_width / plans.tensor, model.head_width)  # a head is not split but replicated
    return 2 * width * setup.engine.value_bytes * setup.micro_tokens(plans) * plans.context


EXPERT_EXCHANGES = 4.0
"""Exchanges of tokens per layer: to the experts and back, in the forward and in the backward pass."""


def expert_seconds(setup: TrainingSetup, plans: PlanColumns, layer_seconds: Column) -> Column:
    """Return the exposed seconds of expert-parallel communication for an average layer and one micro-batch.

    `layer_seconds`: its forward and backward passes. The exchange of other tokens overlaps with them inside a node, and
    between nodes in a pipeline, where another micro-batch is at hand.
    """
    model = setup.model
    if model.opaque or model.experts == 1:
        return np.zeros(len(plans))
    exchanges = EXPERT_EXCHANGES * np.where(plans.recompute == FULL, 1.5, 1.0) * model.expert_layers / model.blocks
    layout = group_layout(setup.machines, plans.expert, plans.tensor)
    may_overlap = (layout.nodes == 1) | (plans.pipeline > 1)
    hidden = np.where(may_overlap, setup.expert_overlap * layer_seconds, 0.0)
    return np.where(plans.expert > 1, np.maximum(0.0, exchanges * exchange_seconds(setup, plans) - hidden), 0.0)


def exchange_seconds(setup: TrainingSetup, plans: PlanColumns) -> Column:
    """Return the seconds in which every GPU sends its tokens to their experts, all at once.

    A token is sent to a GPU once, whatever the number of its experts there, and to a node once and distributed there.
    """
    machines, model = setup.machines, setup.model
    layout = group_layout(machines, plans.expert, plans.tensor)
    token_bytes = model.hidden * setup.engine.value_bytes / plans.tensor
    sent = imbalance(setup, plans) * setup.micro_tokens(plans) * token_bytes
    inside = sent * _others(plans.expert, model.experts_per_token, np.inf) / link_rate(machines)
    nodes = _others(layout.nodes, model.experts_per_token, model.groups_per_token or np.inf)
    across = sent * nodes * (machines.gpus / len(machines.domains)) / node_rate(machines)
    slowest = np.maximum(np.maximum(inside, across), sent * exchange_crossing(setup, layout))
    return slowest + _latency(machines, layout)


def _others(places: Column, experts: int, limit: float) -> Column:
    """Return in how many other places (GPUs or nodes) than its own a token has experts, on average."""
    distinct = np.minimum(places * (1 - (1 - 1 / places) ** experts), limit)
    return (1 - 1 / places) * distinct


def stage_seconds(setup: TrainingSetup, plans: PlanColumns) -> Column:
    """Return the seconds of point-to-point transfers of a pipeline stage for one micro-batch, forward and backward."""
    machines = setup.machines
    stride = plans.replicas * plans.tensor
    layout = group_layout(machines, plans.pipeline, stride)
    payload = setup.micro_tokens(plans) * setup.model.hidden * setup.engine.value_bytes / plans.tensor
    card = node_rate(machines) / min(machines.domains)
    seconds = payload / np.where(layout.nodes > 1, card, link_rate(machines))
    seconds = np.maximum(seconds, payload * stage_crossing(layout))
    return np.where(plans.pipeline > 1, 2 * plans.interleave * seconds, 0.0)


class DataParallelTime(NamedTuple):
    """Seconds of data-parallel communication: gradients and weights, per step or per micro-batch."""

    gradients_per_step: Column
    gradients_per_micro_batch: Column
    weights_per_step: Column
    weights_per_pass: Column


def gradient_seconds(setup: TrainingSetup, plans: PlanColumns, parameters: Column, routed: Column) -> DataParallelTime:
    """Return the communication time of gradients and, with ZeRO, of weights; `parameters` are those of a GPU's stage.

    `routed` of them are those of experts, which fewer GPUs have.

    Without ZeRO and in stage 1, gradients are exchanged once per step; from stage 2 on only shards of them are stored,
    so they are exchanged for each micro-batch. In stages 1 and 2 the updated weights are gathered once per step, in
    stage 3 for every forward and every backward pass. With hybrid sharding both happen inside a group, and the groups
    then sum the shards of their gradients.
    """
    engine = setup.engine
    several = plans.replicas > 1
    trained = setup.trained_share
    gathered = np.where(plans.zero == 3, setup.stored_weight_bytes, trained * engine.weight_bytes)
    gradients = _replicated_seconds(setup, plans, trained * engine.gradient_traffic_bytes, parameters, routed)
    weights = _replicated_seconds(setup, plans, gathered, parameters, routed)
    full_exchange = plans.zero <= (0 if engine.scatters_gradients else 1)
    exchange = np.where(full_exchange, 2 * gradients, gradients)
    exchange = np.where(several, exchange + _sum_of_groups_seconds(setup, plans, parameters), 0.0)
    gather = np.where(several, weights, 0.0)
    ranks = plans.shards + np.where(plans.replicate > 1, plans.replicate, 0.0)
    latency = np.where(several, engine.message_seconds * ranks * setup.stage_blocks(plans), 0.0)
    per_layer = np.ones(len(plans), bool) if engine.reduces_each_micro_batch else plans.zero >= 2
    return DataParallelTime(
        np.where(per_layer, 0.0, exchange) + latency,
        np.where(per_layer, exchange, 0.0),
        np.where((plans.zero == 1) | (plans.zero == 2), gather, 0.0),
        np.where(plans.zero == 3, gather, 0.0),
    )


def _sum_of_groups_seconds(setup: TrainingSetup, plans: PlanColumns, parameters: Column) -> Column:
    """Return the seconds in which the groups of hybrid sharding sum their gradients: an all-reduce of each shard."""
    payload = setup.trained_share * setup.engine.gradient_traffic_bytes * parameters / plans.shards
    layout = group_layout(setup.machines, plans.replicate, plans.tensor * plans.shards)
    return np.where(plans.replicate > 1, 2 * pass_seconds(setup.machines, payload, layout), 0.0)


def _replicated_seconds(
    setup: TrainingSetup, plans: PlanColumns, each: float | Column, parameters: Column, routed: Column
) -> Column:
    """Return the seconds of a reduce-scatter or an all-gather of what replicas have, and of experts apart."""
    machines = setup.machines
    if not setup.model.routed_parameters:
        return pass_seconds(machines, each * parameters, group_layout(machines, plans.shards, plans.tensor))
    common = pass_seconds(machines, each * (parameters - routed), group_layout(machines, plans.shards, plans.tensor))
    experts = group_layout(machines, plans.shards / plans.expert, plans.tensor * plans.expert)
    return common + pass_seconds(machines, each * routed, experts)
