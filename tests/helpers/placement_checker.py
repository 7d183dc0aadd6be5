"""Checks every binding of Refold against the API server's own watch, with nothing of the back end's code.

A pod that is bound must be on a node that existed, was ready and not cordoned, matched its node selector and required
affinity, had no taint that it does not tolerate, and had room for it beside the other pods.
"""

from __future__ import annotations

import json
import ssl
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

Object = dict[str, Any]

FACTORS: dict[str, Fraction | int] = {
    "m": Fraction(1, 1000),
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
}
SUFFIXES: dict[str, Fraction] = {suffix: Fraction(factor) for suffix, factor in FACTORS.items()}


def quantity(text: str) -> Fraction:
    for suffix, factor in sorted(SUFFIXES.items(), key=lambda entry: -len(entry[0])):
        if str(text).endswith(suffix):
            return Fraction(str(text)[: -len(suffix)]) * factor
    return Fraction(str(text))


class PlacementChecker:
    """Follows nodes and pods, each in a thread, and notes violations."""

    def __init__(self, address: str, token: str) -> None:
        self.violations: list[str] = []
        self.bindings = 0
        self._address, self._token = address, token
        self._lock = threading.Lock()
        self._nodes: dict[str, list[Object]] = {}
        """The states of each node, the current one last."""
        self._pods: dict[str, Object] = {}
        self._stopped = False
        self._context = ssl._create_unverified_context()

    @contextmanager
    def checking(self) -> Iterator[PlacementChecker]:
        """Check inside the context; fail at its end if there were violations."""
        for path in ("nodes", "pods"):
            items, version = self._list(path)
            for item in items:
                self._see(path, "ADDED", item, known=True)
            threading.Thread(target=self._follow, args=(path, version), daemon=True).start()
        yield self
        self._stopped = True  # the threads end with their watches
        assert self.violations == []

    def _request(self, path: str) -> Any:
        request = urllib.request.Request(f"{self._address}/api/v1/{path}")
        request.add_header("Authorization", f"Bearer {self._token}")
        context = self._context if self._address.startswith("https") else None
        return urllib.request.urlopen(request, context=context, timeout=600)

    def _list(self, path: str) -> tuple[list[Object], str]:
        with self._request(path) as answer:
            found = json.load(answer)
        return found["items"], found["metadata"]["resourceVersion"]

    def _follow(self, path: str, version: str) -> None:
        try:
            for line in self._request(f"{path}?watch=true&resourceVersion={version}"):
                change = json.loads(line)
                self._see(path, change["type"], change["object"])
        except Exception as error:
            if not self._stopped:  # what is not seen cannot be checked
                self.violations.append(f"the watch of {path} has ended: {error!r}")

    def _see(self, path: str, kind: str, found: Object, *, known: bool = False) -> None:
        with self._lock:
            if path == "nodes":
                self._nodes.setdefault(found["metadata"]["name"], []).append(found)
                return
            uid = found["metadata"]["uid"]
            before = self._pods.pop(uid, None)
            if kind == "DELETED":
                return
            self._pods[uid] = found
            is_new = "nodeName" in found["spec"] and "nodeName" not in (before or {"spec": {}})["spec"]
            if is_new and not known and found["spec"].get("schedulerName") == "refold":
                self._check(found)

    def _check(self, pod: Object) -> None:
        """Compare with the last two states of the node: which of them the daemon knew cannot be told."""
        self.bindings += 1
        name, states = pod["spec"]["nodeName"], self._nodes.get(pod["spec"]["nodeName"], [])
        problems = [self._problem(pod, state) for state in states[-2:]] or ["does not exist"]
        if all(problems):
            self.violations.append(f"{pod['metadata']['name']} on {name}: {problems[-1]}")

    def _problem(self, pod: Object, node: Object) -> str:
        spec, labels = pod["spec"], node["metadata"].get("labels", {})
        conditions = {entry["type"]: entry["status"] for entry in node["status"].get("conditions", [])}
        if conditions.get("Ready") != "True" or node["spec"].get("unschedulable"):
            return "not ready, or cordoned"
        if any(labels.get(key) != value for key, value in spec.get("nodeSelector", {}).items()):
            return f"node selector {spec['nodeSelector']}"
        required = (
            (spec.get("affinity") or {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
        )
        if required and not any(_meets(term, node) for term in required["nodeSelectorTerms"]):
            return f"affinity {required}"
        for taint in node["spec"].get("taints", []):
            if taint["effect"] != "PreferNoSchedule" and not any(_tolerates(one, taint) for one in spec["tolerations"]):
                return f"taint {taint}"
        return self._overcommitted(node)

    def _overcommitted(self, node: Object) -> str:
        used: dict[str, Fraction] = {}
        for pod in self._pods.values():
            if pod["spec"].get("nodeName") == node["metadata"]["name"] and pod["status"].get("phase") not in (
                "Succeeded",
                "Failed",
            ):
                for container in pod["spec"]["containers"]:
                    for resource, amount in container.get("resources", {}).get("requests", {}).items():
                        used[resource] = used.get(resource, Fraction()) + quantity(amount)
        room = node["status"].get("allocatable", {})
        over = {name for name, amount in used.items() if amount > quantity(room.get(name, "0"))}
        return f"too much of {sorted(over)}" if over else ""


def _meets(term: Object, node: Object) -> bool:
    values = {"metadata.name": node["metadata"]["name"]}
    labels = [(each, node["metadata"].get("labels", {})) for each in term.get("matchExpressions", [])]
    fields = [(each, values) for each in term.get("matchFields", [])]
    return bool(labels or fields) and all(_holds(each, found.get(each["key"])) for each, found in (*labels, *fields))


def _holds(requirement: Object, value: str | None) -> bool:
    wanted = requirement.get("values", [])
    match requirement["operator"]:
        case "In":
            return value in wanted
        case "NotIn":
            return value not in wanted
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return value is not None and int(value) > int(wanted[0])
        case _:
            return value is not None and int(value) < int(wanted[0])


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator") == "Exists":
        return bool(toleration.get("key") in (None, "", taint["key"]))
    same_value = toleration.get("value", "") == taint.get("value", "")
    return bool(toleration.get("key") == taint["key"] and same_value)
