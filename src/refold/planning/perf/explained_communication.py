"""Lines of an explanation (names with formulas over the names before them) and those about communication."""

from __future__ import annotations

import re
from math import ceil, gcd, log2

import msgspec
import numpy as np

from refold.model import Plan
from refold.planning.perf import communication, compute, memory_model
from refold.planning.perf.columns import Column
from refold.planning.perf.training_setup import TrainingSetup

_FUNCTIONS = {"max": max, "min": min, "ceil": ceil, "log2": log2}
_NAME = re.compile(r"[a-z_][a-z_0-9]*")


class FormulaLine(msgspec.Struct, frozen=True):
    """`name` = `formula` = `numbers` = `value`, and its meaning. Inputs have no formula."""

    name: str
    formula: str
    numbers: str
    value: float
    unit: str
    meaning: str


class Section(msgspec.Struct, frozen=True):
    """A group of lines with a title."""

    title: str
    lines: tuple[FormulaLine, ...]


class Lines:
    """The lines added so far, and the value of every name in them."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.sections: list[tuple[str, list[FormulaLine]]] = []

    def section(self, title: str) -> None:
        self.sections.append((title, []))

    def given(self, meaning: str = "", unit: str = "", **values: float) -> None:
        """Add inputs: named numbers without a formula."""
        for name, value in values.items():
            self.values[name] = float(value)
            self.sections[-1][1].append(FormulaLine(name, "", "", float(value), unit, meaning))

    def formula(self, name: str, formula: str, unit: str, meaning: str) -> None:
        """Add a number computed by a formula over the previous ones."""
        value = float(eval(formula, {"__builtins__": {}}, {**self.values, **_FUNCTIONS}))
        self.values[name] = value
        self.sections[-1][1].append(FormulaLine(name, formula, self._substitute(formula), value, unit, meaning))

    def _substitute(self, formula: str) -> str:
        def number(word: re.Match[str]) -> str:
            return f"{self.values[word[0]]:.6g}" if word[0] in self.values else word[0]

        return _NAME.sub(number, formula)


def replicas(plan: Plan) -> str:
    """Return the number of GPUs that hold the same weights, as a formula."""
    return "data * context" if plan.context > 1 else "data"


def shard_count(plan: Plan, *, ranks: bool = False) -> str:
    """Return over how many GPUs ZeRO shards, as a formula; `ranks`: with the members of the groups' all-reduce."""
    if plan.replicate == 1:
        return replicas(plan)
    return f"({replicas(plan)} / replicate{' + replicate' if ranks else ''})"


def add_communication(lines: Lines, setup: TrainingSetup, plan: Plan) -> None:
    """Add communication within a layer and between stages."""
    model, engine, machines = setup.model, setup.engine, setup.machines
    lines.section("Communication")
    lines.given("GPUs per node", per_node=machines.gpus / len(machines.domains))
    _add_group(lines, setup, "tensor", plan.tensor, 1)
    lines.given("collectives per layer", collectives=_collectives_per_layer(setup, plan))
    if model.opaque:
        lines.formula("tensor_comm", "0", "s", "an opaque model has no tensor parallelism")
    else:
        lines.formula("tensor_bytes", "tokens * hidden_width * value_bytes", "B", "bytes per collective")
        passes = _collective_formula(setup, "tensor", across=f" * {engine.tensor_inter_node_traffic}")
        exposed = f"{2 * engine.tensor_factor:g} * (1 - {engine.overlap_tensor} * (1 - 1 / tensor))"
        lines.formula("tensor_comm", f"{exposed} * collectives * {passes}", "s", "tensor parallelism, per layer")
    if plan.context > 1 and not model.opaque:
        _add_context(lines, setup, plan)
    else:
        lines.formula("context_comm", "0", "s", "no context parallelism")
    if plan.expert > 1 and model.experts > 1:
        _add_expert_exchange(lines, setup, plan)
    else:
        lines.formula("expert_comm", "0", "s", "experts are not divided among GPUs")
    copies = plan.data * plan.context
    stages, stride = np.full(1, float(plan.pipeline)), np.full(1, float(copies * plan.tensor))
    layout = communication.group_layout(machines, stages, stride)
    rate = "(node_rate / smallest_node)" if layout.nodes[0] > 1 else "link_rate"
    _add_crossing(lines, setup, "stage", communication.stage_crossing(layout))
    lines.given("GPUs of the smallest node", smallest_node=min(machines.domains))
    if plan.pipeline == 1:
        lines.formula("stage_transfer", "0", "s", "no pipeline")
    else:
        lines.formula(
            "stage_transfer",
            "2 * chunks * tokens * hidden_width * value_bytes / tensor"
            + (f" * max(1 / {rate}, stage_crossing)" if machines.crossings else f" / {rate}"),
            "s",
            "transfers between stages, forward and backward",
        )
    has_stage_wait = machines.gpus >= engine.stage_wait_from_gpus or plan.tensor >= engine.stage_wait_from_tensor
    lines.given("waiting time per neighbouring stage", "s", stage_wait=engine.stage_wait if has_stage_wait else 0.0)


def _add_context(lines: Lines, setup: TrainingSetup, plan: Plan) -> None:
    model = setup.model
    _add_group(lines, setup, "context", plan.context, plan.tensor)
    lines.given(
        "width of keys, and of values, on one GPU", key_width=max(model.key_width / plan.tensor, model.head_width)
    )
    lines.formula(
        "context_bytes", "2 * key_width * value_bytes * tokens * context", "B", "keys and values of a sequence"
    )
    lines.formula("context_once", _collective_formula(setup, "context"), "s", "one exchange of keys and values")
    lines.given("share of attention that overlaps with it", overlap_context=setup.engine.overlap_context)
    lines.formula("context_hidden", "overlap_context * (1 - 1 / context) * attention", "s", "that overlaps")
    lines.given("forward passes, repeated ones included", forward_passes=1 if plan.recompute == "none" else 2)
    lines.given("attention blocks per layer", attention_blocks=model.attentions / model.blocks)
    lines.formula(
        "context_comm",
        "attention_blocks * (forward_passes * max(0, context_once - context_hidden)"
        f" + max(0, 2 * context_once - {compute.BACKWARD_ATTENTION} * context_hidden))",
        "s",
        "context parallelism, per layer",
    )


def _add_expert_exchange(lines: Lines, setup: TrainingSetup, plan: Plan) -> None:
    model = setup.model
    _add_group(lines, setup, "expert", plan.expert, plan.tensor)
    lines.formula("sent", "imbalance * tokens * hidden_width * value_bytes / tensor", "B", "tokens of a GPU, once")
    lines.formula(
        "other_gpus",
        "(1 - 1 / expert) * expert * (1 - (1 - 1 / expert) ** experts_per_token)",
        "",
        "other GPUs to which a token is sent, on average",
    )
    nodes = "expert_nodes * (1 - (1 - 1 / expert_nodes) ** experts_per_token)"
    if model.groups_per_token:
        lines.given("groups that contain the experts of a token", groups=model.groups_per_token)
        nodes = f"min({nodes}, groups)"
    lines.formula(
        "other_nodes",
        f"(1 - 1 / expert_nodes) * {nodes}",
        "",
        "other nodes to which a token is sent, on average",
    )
    layout = communication.group_layout(setup.machines, np.full(1, float(plan.expert)), np.full(1, float(plan.tensor)))
    _add_crossing(lines, setup, "exchange", communication.exchange_crossing(setup, layout))
    crossing = ", sent * exchange_crossing" if setup.machines.crossings else ""
    lines.formula(
        "exchange",
        f"max(sent * other_gpus / link_rate, sent * other_nodes * per_node / node_rate{crossing}) + expert_latency",
        "s",
        "one exchange of tokens",
    )
    exchanges = communication.EXPERT_EXCHANGES * (1.5 if plan.recompute == "full" else 1.0)
    exchanges *= model.expert_layers / model.blocks
    lines.given("exchanges per average layer", exchanges=exchanges)
    may_overlap = lines.values["expert_nodes"] == 1 or plan.pipeline > 1
    hidden = f"{setup.expert_overlap if may_overlap else 0.0} * (forward + backward)"
    lines.formula(
        "expert_comm", f"max(0, exchanges * exchange - {hidden})", "s", "expert parallelism that is exposed, per layer"
    )


def _collectives_per_layer(setup: TrainingSetup, plan: Plan) -> float:
    return communication.TENSOR_COLLECTIVES * setup.model.parts * (1.5 if plan.recompute == "full" else 1.0)


def _add_group(lines: Lines, setup: TrainingSetup, kind: str, members: int, stride: int) -> None:
    """Add the layout of a group: members per node, nodes, groups that share a node's network, and latency."""
    machines = setup.machines
    inside = gcd(*machines.domains) % (members * stride) == 0
    lines.values[f"{kind}_members"] = float(members)
    if inside:
        lines.formula(f"{kind}_on_node", f"{members}", "", f"members of a {kind}-parallel group on a node: all")
    else:
        lines.formula(
            f"{kind}_on_node",
            f"min(max(per_node / {stride}, 1), {members})",
            "",
            f"members of a {kind}-parallel group on a node",
        )
    lines.formula(f"{kind}_nodes", f"max(1, {members} / {kind}_on_node)", "", "nodes of a group")
    lines.formula(f"{kind}_sharing", f"min({stride}, per_node)", "", "groups that share the network of a node")
    latency = machines.inside.latency_microseconds * log2(lines.values[f"{kind}_on_node"])
    latency += machines.network.latency_microseconds * log2(lines.values[f"{kind}_nodes"])
    lines.given("latency of one collective", "s", **{f"{kind}_latency": latency * 1e-6})
    layout = communication.group_layout(machines, np.full(1, float(members)), np.full(1, float(stride)))
    _add_crossing(lines, setup, kind, communication.ring_crossing(layout))


def _add_crossing(lines: Lines, setup: TrainingSetup, kind: str, seconds: Column) -> None:
    if setup.machines.crossings:
        meaning = "time for each byte between the domains of the slowest level that is crossed"
        lines.given(meaning, "s/B", **{f"{kind}_crossing": float(seconds[0])})


def _collective_formula(setup: TrainingSetup, kind: str, payload: str = "", across: str = "") -> str:
    payload = payload or f"{kind}_bytes"
    crossing = f", {payload} * {kind}_crossing{across}" if setup.machines.crossings else ""
    return (
        f"(max({payload} * (1 - 1 / {kind}_on_node) / link_rate, "
        f"{payload} * (1 - 1 / {kind}_nodes) * {kind}_sharing{across} / node_rate{crossing}) + {kind}_latency)"
    )


def add_data_parallel(lines: Lines, setup: TrainingSetup, plan: Plan) -> None:
    """Add the communication of gradients and weights, as far as it does not overlap."""
    parameters = memory_model.stage_parameters_of(setup, plan, is_last=False)
    has_experts = setup.model.routed_parameters > 0
    lines.given("weights of the first stage on one GPU", parameters=parameters.total)
    if has_experts:
        lines.given("those of experts", routed=parameters.routed)
    if plan.data * plan.context == 1:
        lines.formula("data_time", "0", "s", "one replica: no communication")
        return
    _add_collectives(lines, setup, plan)
    _add_exposed(lines, setup, plan)


def _add_collectives(lines: Lines, setup: TrainingSetup, plan: Plan) -> None:
    """Add one reduce-scatter and one all-gather of a stage's weights, and the exchange of its gradients."""
    engine = setup.engine
    has_experts = setup.model.routed_parameters > 0
    shards = plan.data * plan.context // plan.replicate
    _add_group(lines, setup, "data", shards, plan.tensor)
    common = "(parameters - routed)" if has_experts else "parameters"
    exchanged = setup.trained_share * engine.gradient_traffic_bytes
    gathered = setup.stored_weight_bytes if plan.zero == 3 else setup.trained_share * engine.weight_bytes
    lines.formula("gradient_bytes", f"{exchanged} * {common}", "B", "gradients to exchange")
    lines.formula("weight_bytes", f"{gathered} * {common}", "B", "weights to gather with ZeRO")
    reduce_scatter, all_gather = (
        _collective_formula(setup, "data", payload) for payload in ("gradient_bytes", "weight_bytes")
    )
    if has_experts:
        _add_group(lines, setup, "copies", shards // plan.expert, plan.tensor * plan.expert)
        lines.formula("expert_gradients", f"{exchanged} * routed", "B", "gradients of experts")
        lines.formula("expert_weights", f"{gathered} * routed", "B", "weights of experts to gather with ZeRO")
        reduce_scatter += f" + {_collective_formula(setup, 'copies', 'expert_gradients')}"
        all_gather += f" + {_collective_formula(setup, 'copies', 'expert_weights')}"
    lines.formula("reduce_scatter", reduce_scatter, "s", "one reduce-scatter")
    lines.formula("all_gather", all_gather, "s", "one all-gather")
    full_exchange = plan.zero <= (0 if engine.scatters_gradients else 1)
    exchange = "2 * reduce_scatter" if full_exchange else "reduce_scatter"
    if plan.replicate > 1:
        _add_group(lines, setup, "replicate", plan.replicate, plan.tensor * shards)
        lines.formula("replicate_bytes", f"{exchanged} * parameters / {shards}", "B", "gradients of a shard")
        lines.formula(
            "sum_of_groups", f"2 * {_collective_formula(setup, 'replicate')}", "s", "all-reduce between groups"
        )
        exchange += " + sum_of_groups"
    lines.formula("grad_exchange", exchange, "s", f"gradient exchange with ZeRO-{plan.zero}")


def _add_exposed(lines: Lines, setup: TrainingSetup, plan: Plan) -> None:
    """Add how often these happen, and how much of them does not overlap."""
    engine = setup.engine
    per_micro_batch = plan.zero >= 2 or engine.reduces_each_micro_batch
    messages = f"{engine.message_seconds} * {shard_count(plan, ranks=True)} * stage_layers"
    overlap = engine.overlap_gradients if plan.zero == 0 else engine.overlap_shards
    overlap *= setup.machines.gpu.peer_to_peer
    lines.given("share of a pass that overlaps with communication", overlap=overlap)
    lines.formula("grad_per_step", "grad_exchange" if not per_micro_batch else "0", "s", "gradients, per step")
    lines.formula(
        "grad_exposed",
        f"max(0, grad_per_step + {messages} - overlap * stage_layers * (backward + recompute_time))",
        "s",
        "exposed",
    )
    lines.formula("weights_per_step", "all_gather" if plan.zero in (1, 2) else "0", "s", "updated weights, per step")
    lines.formula("weights_exposed", "max(0, weights_per_step - overlap * stage_layers * forward)", "s", "exposed")
    lines.formula("weights_per_pass", "all_gather" if plan.zero == 3 else "0", "s", "weights, per pass")
    lines.formula("grad_per_batch", "grad_exchange" if per_micro_batch else "0", "s", "gradients, per micro-batch")
    lines.formula(
        "exposed_per_batch",
        "max(0, grad_per_batch + weights_per_pass - overlap * stage_layers * (backward + recompute_time))"
        " + max(0, weights_per_pass - overlap * stage_layers * forward)",
        "s",
        "exposed, per micro-batch",
    )
    lines.formula(
        "data_time",
        "grad_exposed + weights_exposed + micro_batches * exposed_per_batch",
        "s",
        "exposed data-parallel communication",
    )
