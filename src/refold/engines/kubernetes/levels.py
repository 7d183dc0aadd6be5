"""The levels of a Kubernetes cluster: labels of nodes, as configured or as Kueue's Topology lists them."""

from __future__ import annotations

from refold.engines.kubernetes.api_server import FORBIDDEN, NOT_FOUND, ApiError, ApiServer, as_dict

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
