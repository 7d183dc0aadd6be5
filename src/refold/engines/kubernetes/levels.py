"""The levels of a Kubernetes cluster: labels of nodes, as configured or as Kueue's Topology lists them."""

from __future__ import annotations

from collections.abc import Sequence

from refold.engines.kubernetes.api_server import FORBIDDEN, NOT_FOUND, ApiError, ApiServer, as_dict
from refold.engines.kubernetes.objects import ApiNode
from refold.model import Cluster, Level

KUEUE_GROUP = "/apis/kueue.x-k8s.io"
HOSTNAME_LABEL = "kubernetes.io/hostname"
"""Kueue's innermost level is often the node itself, which is none here."""


def kueue_levels(api: ApiServer) -> tuple[str, ...]:
    """Return the labels of the levels of Kueue's Topology, outermost first.

    None if there is no Topology or several, or if they may not be read. Blocks while the API server answers.
    """
    try:
        version = as_dict(api.call("GET", KUEUE_GROUP)).get("preferredVersion", {}).get("version", "")
        found = as_dict(api.call("GET", f"{KUEUE_GROUP}/{version}/topologies")).get("items", [])
    except ApiError as error:
        if error.status not in (FORBIDDEN, NOT_FOUND):
            raise
        return ()
    if len(found) != 1:
        return ()
    labels = (level["nodeLabel"] for level in found[0]["spec"]["levels"])
    return tuple(label for label in labels if label != HOSTNAME_LABEL)


def with_levels(cluster: Cluster, nodes: Sequence[ApiNode], labels: Sequence[str]) -> Cluster:
    """Return the cluster with the levels that these labels of its nodes name.

    A label that no node with GPUs has is left out. A node without a label is a domain by itself.
    """
    of_nodes = [node.metadata.labels for node in nodes]
    with_gpus = [own for node, own in zip(cluster.nodes, of_nodes, strict=True) if node.gpus]
    known = [label for label in labels if any(own.get(label) for own in with_gpus)]
    return cluster.with_levels(
        [Level(label) for label in known], [[own.get(label, "") for label in known] for own in of_nodes]
    )
