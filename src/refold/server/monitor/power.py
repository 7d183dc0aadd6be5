"""Racks and watts of the machine's cluster, from `refold.yaml` and the data sheets of GPUs."""

from __future__ import annotations

from msgspec.structs import replace

from refold.errors import BadInput, BadValue, UnknownName
from refold.model import Cluster, GpuType, Rack
from refold.placement import Power
from refold.planning.catalogue import find_gpu
from refold.server.config import POWER_PLACEMENT, POWER_POLICIES, PolicyConfig, PowerConfig, PowerRange
from refold.simulator import default_settings


def with_power(cluster: Cluster, config: PowerConfig, policy: PolicyConfig) -> Cluster:
    """Return the cluster with racks, power limits and watts, which the policy must keep; unchanged without racks."""
    if not config.racks:
        return cluster
    _check_policy(policy)
    rack_of = _rack_of_node(cluster, config)
    watts = config.node_watts
    powered = replace(
        cluster,
        nodes=tuple(
            replace(node, rack=rack_of.get(node.name, node.rack), idle_watts=watts.idle, busy_watts=watts.busy)
            for node in cluster.nodes
        ),
        gpu_types=tuple(_with_watts(cluster, name, config.gpu_watts) for name in cluster.type_names),
        racks=(
            *(rack for rack in cluster.racks if rack.name not in config.racks),
            *(Rack(name, rack.limit_watts) for name, rack in config.racks.items()),
        ),
    )
    try:
        Power(powered).reject_limits_below_idle()
    except BadValue as error:
        raise BadInput(f"power.racks: {error}") from None
    return powered


def _check_policy(policy: PolicyConfig) -> None:
    able = [name for name in POWER_POLICIES if "placement" in default_settings(name)]
    if policy.name not in able:
        raise BadInput(
            f"power.racks: policy {policy.name!r} does not keep power limits; policies that do: {', '.join(able)}"
        )
    placement = policy.settings.get("placement", POWER_PLACEMENT)
    if placement != POWER_PLACEMENT:
        raise BadInput(f"power.racks: placement {placement!r} does not keep power limits; only {POWER_PLACEMENT} does")


def _rack_of_node(cluster: Cluster, config: PowerConfig) -> dict[str, str]:
    """Return the rack of each node: as configured, else as the engine reports it; a single rack can have all nodes."""
    names = [node.name for node in cluster.nodes]
    found: dict[str, str] = {}
    for rack_name, rack in config.racks.items():
        nodes = rack.nodes or [node.name for node in cluster.nodes if node.rack == rack_name]
        if not nodes and len(config.racks) > 1:
            raise BadInput(f"power.racks.{rack_name}: nodes is missing: with several racks, each lists its nodes")
        for node in nodes or names:
            if node not in names:
                raise BadInput(f"power.racks.{rack_name}.nodes: {UnknownName('node', node, names)}")
            found[node] = rack_name
    return found


def _with_watts(cluster: Cluster, name: str, configured: PowerRange | None) -> GpuType:
    gpu_type = cluster.gpu_type(name)
    if configured is not None:
        return replace(gpu_type, idle_watts=configured.idle, busy_watts=configured.busy)
    try:
        return replace(gpu_type, busy_watts=find_gpu(name).watts)
    except UnknownName:
        raise BadInput(
            f"power.gpu_watts is missing, and no data sheet of {name!r} is known; expected watts such as "
            "{idle: 60, busy: 400}"
        ) from None
